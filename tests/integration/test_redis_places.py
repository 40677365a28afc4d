"""Places in flight on Redis: a few leases in the field of their limit, more in sets, with the same decisions."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest
from holders import Holder
from redis_servers import Server

from headgate.stores.memory import MemoryStore
from headgate.stores.redis.scripts import MOST_IN_FIELD
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock

pytestmark = pytest.mark.integration
START_US = 1_800_000_000_000_000
SECOND = 1_000_000
MANY = "; ".join(f"{n}0000/{n} hours{kind}" for n in (2, 3, 4) for kind in (" fixed", " bucket", " counter"))
_prefixes = count()


@pytest.fixture
def store(server: Server) -> Any:
    opened = RedisStore(f"{server.url}?timeout=10s", prefix=f"places{next(_prefixes)}")
    yield opened
    opened.close()


def sets_of(store: RedisStore) -> list[bytes]:
    """The existing sorted sets of leases."""
    return [name for name in store.client.scan_iter(f"{store.prefix}*") if store.client.type(name) == b"zset"]


def fields_of(decision: Any) -> list[tuple[Any, ...]]:
    return [
        (limit.allowed, limit.remaining, limit.reset_after_us, limit.retry_after_us, limit.next_after_us)
        for limit in decision.limits
    ]


def standings(after: Any) -> list[tuple[int, int]]:
    return [(standing.remaining, standing.reset_after_us) for standing in after]


@pytest.mark.parametrize(
    ("limits", "costs"),
    [
        ("14 concurrent", [1]),
        ("30 concurrent; 100000/hour bucket", [1, 1, 2, 3]),
        ("3000 concurrent", [1, 1, 2, 255, 256, 700]),
        (f"{MANY}; 40 concurrent", [1, 2, 5]),  # the scripts for any limits
    ],
)
def test_leases_in_the_field_and_in_sets_are_decided_as_in_memory(
    store: RedisStore, limits: str, costs: list[int]
) -> None:
    draw, seen_sets = random.Random(limits), set()
    clock = ManualClock(START_US)
    memory = MemoryStore()
    with (
        Holder("sync", limits, store, scope="places", clock=clock) as own,
        Holder("sync", limits, memory, scope="places", clock=clock) as right,  # type: ignore[arg-type]
    ):
        held: list[str] = []
        for number in range(300):
            clock.advance(draw.choice([0, 0, 1, draw.randrange(SECOND)]))
            busy, what = number // 60 % 2 == 0, draw.random()  # times of many holds, and times that drain them
            if what < (0.6 if busy else 0.1) or not held:
                cost, lease_us = draw.choice(costs), draw.choice([SECOND, 5 * SECOND, 20 * SECOND])
                answers = [each.reserve("key", cost, str(number), lease_us) for each in (own, right)]
                assert fields_of(answers[0].decision) == fields_of(answers[1].decision), number
                held += [str(number)] if answers[0].decision else []
            elif what < 0.7:
                name, more = draw.choice(held), draw.choice([0, 0, *costs])
                both = [each.extend(each.id_of("key", name), 10 * SECOND, more) for each in (own, right)]
                assert (both[0].outcome, standings(both[0].after)) == (both[1].outcome, standings(both[1].after)), (
                    number
                )
            else:
                name, actual = held.pop(draw.randrange(len(held))), draw.choice([None, 1])
                settled = [each.commit(each.id_of("key", name), actual) for each in (own, right)]
                assert settled[0].outcome == settled[1].outcome, number
                assert standings(settled[0].after) == standings(settled[1].after), number
            peeked = [each.peek("key") for each in (own, right)]
            assert fields_of(peeked[0]) == fields_of(peeked[1]), number
            if number % 5 == 0:
                seen_sets.add(bool(sets_of(store)))
        assert seen_sets == {False, True}


def test_sets_are_used_for_more_leases_than_the_field_takes_until_none_is_in_flight(store: RedisStore) -> None:
    clock = ManualClock(START_US)
    with Holder("sync", "50 concurrent", store, scope="few", clock=clock) as holder:
        held = [holder.reserve("key", 1).id for _ in range(MOST_IN_FIELD)]
        assert sets_of(store) == []
        held.append(holder.reserve("key", 3).id)
        assert len(sets_of(store)) == 2  # of ones, and of twos
        assert holder.left("key") == [50 - MOST_IN_FIELD - 3]
        for each in held:
            assert holder.commit(each, None).outcome == "settled"
        assert holder.left("key") == [50]
        held = [holder.reserve("key", 1).id]
        assert sets_of(store) == []
        clock.advance(60 * SECOND)
        holder.reserve("key", 1)
        [field] = [
            store.client.hget(name, "p0") for name in store.client.scan_iter(f"{store.prefix}*:few*", _type="hash")
        ]
        assert len(field) == 60  # a lease that is over went with the next one


def test_a_reset_forgets_leases_in_the_field(store: RedisStore) -> None:
    with Holder("sync", "5 concurrent", store, scope="reset") as holder:
        held = [holder.reserve("key", 2).id for _ in range(2)]
        assert holder.do("reset", ("key",)) is True
        assert holder.left("key") == [5]
        assert [holder.commit(each, 0).outcome for each in held] == ["unknown"] * 2
        assert holder.do("reset", ("key",)) is False


@pytest.mark.parametrize(
    "others",
    [
        "6 concurrent; 7 concurrent; 8 concurrent; 100/minute log",
        "5/minute log; 6/minute log; 7/minute log",
        "6 concurrent; 6/minute log; 7/minute log",
    ],
)
def test_scripts_of_places_beside_limits_that_have_many_variables_are_compiled(store: RedisStore, others: str) -> None:
    with Holder("sync", f"5 concurrent; {others}", store, scope="locals") as holder:
        reserved = holder.reserve("key", 2)
        assert reserved.decision and holder.left("key")[0] == 3
        assert holder.commit(reserved.id, 1).outcome == "settled"
        assert holder.left("key")[0] == 5
