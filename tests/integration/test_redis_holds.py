"""Holds on Redis servers: the same results, whatever dies between holding and settling."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from holders import Holder, hold_steps
from redis.crc import key_slot
from redis_askers import COLOURS
from redis_servers import Cluster, Sentinels, Server

from headgate.decision import name_limits
from headgate.errors import ArgumentError, ConflictingId, StoreError
from headgate.holding import Hold
from headgate.limit_text import parse_limits
from headgate.operation import Operation, Receipt
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock

HOLDS = Path(__file__).parents[2] / "vectors" / "holds.jsonl"
pytestmark = pytest.mark.integration
HISTORIES = 40
START_US = 1_800_000_000_000_000
SECOND = 1_000_000
FAILOVER_WITHIN_S = 30
_prefixes = count()


@pytest.fixture(params=["single", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    names = {"single": "server", "sentinel": "watched", "cluster": "nodes"}
    fixture: Any = request.getfixturevalue(names[request.param])
    if request.param != "single":
        fixture.wait_ok()
    return str(fixture.url)


def opened(url: str, timeout_s: float = 10) -> RedisStore:
    return RedisStore(
        f"{url}?timeout={timeout_s}s&connect_timeout={timeout_s}s", prefix=f"h{os.getpid()}-{next(_prefixes)}"
    )


@pytest.fixture(params=COLOURS)
def hold(request: pytest.FixtureRequest, url: str) -> Iterator[Callable[..., Holder]]:
    """Makes holders of one store, in each colour and on each kind of server."""
    store, holders = opened(url), []

    def make(limits: str, clock: Any = None, *, scope: str = "held") -> Holder:
        holders.append(Holder(request.param, limits, store, scope=scope, clock=clock))
        return holders[-1]

    yield make
    for holder in holders:
        holder.__exit__(None, None, None)
    store.close()


# The same answers


@pytest.mark.parametrize("colour", COLOURS)
def test_vectors_of_holds_are_answered_exactly(url: str, colour: str) -> None:
    store, wrong, steps = opened(url), [], 0
    vectors = [json.loads(line) for line in HOLDS.read_text().splitlines()]
    for vector in vectors if colour == "sync" else vectors[:HISTORIES]:
        for given, right in hold_steps(colour, store, vector):
            steps += 1
            if given != right:
                wrong.append((vector["id"], given, right))
    store.close()
    print({"colour": colour, "vectors": len(vectors), "steps": steps, "wrong": len(wrong)})
    assert wrong == [] and steps > 1000


def test_all_keys_of_places_in_flight_expire(server: Server) -> None:
    draw = random.Random(7)
    store = opened(server.url)
    with Holder("sync", "50 concurrent", store, scope="expiring") as holder:  # sets of leases of several sizes
        held: list[str] = []
        for number in range(120):
            what = draw.randrange(4)
            if what == 0 and held:
                holder.commit(held.pop(draw.randrange(len(held))), draw.choice([None, 0, 9]))
            elif what == 1 and held:
                holder.extend(draw.choice(held), 10**7, draw.randrange(4))
            else:
                reserved = holder.reserve("expiring", draw.randrange(9), str(number), draw.choice([1, 10**7, 10**9]))
                held += [reserved.id] if reserved.decision else []
        keys = list(store.client.scan_iter(f"{store.prefix}*"))
        assert len(keys) > 30 and all(store.client.ttl(key) > 0 for key in keys)
    store.close()


def test_a_hold_and_its_settlement_are_one_call_each(server: Server) -> None:
    store = opened(server.url)
    with Holder("sync", "100/minute log; 10/second burst 100; 20 concurrent", store, scope="once") as holder:
        holder.commit(holder.reserve("warm").id, 1)
        calls = []
        for call in (lambda: holder.reserve("key", 3, "a"), lambda: holder.commit(holder.id_of("key", "a"), 1)):
            server.cli("CONFIG", "RESETSTAT")
            call()
            stats = store.client.info("commandstats")
            calls.append(sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")))
        store.close()
    assert calls == [1, 1]


def test_too_many_limits_for_their_own_script_decide_in_the_same_way(hold: Callable[..., Holder]) -> None:
    clock = ManualClock(START_US)
    texts = "; ".join(f"{n}00/{n} minutes{kind}" for n in (2, 3) for kind in (" log", " fixed", " bucket", " counter"))
    holder = hold(f"{texts}; 70 concurrent", clock)
    reserved = holder.reserve("key", 7)
    left = [limit.remaining for limit in reserved.decision.limits]
    settled = holder.commit(reserved.id, 5)
    assert left == [193, 193, 193, 193, 293, 293, 293, 293, 63]
    assert [standing.remaining for standing in settled.after] == [195, 195, 195, 195, 295, 295, 295, 295, 70]
    assert holder.left("key") == [195, 195, 195, 195, 295, 295, 295, 295, 70]


# Ids


def test_a_repeated_reserve_returns_its_first_result_and_charges_once(hold: Callable[..., Holder]) -> None:
    clock = ManualClock(START_US)
    holder = hold("10/minute log; 5 concurrent", clock)
    first = holder.reserve("key", 2, "job")
    clock.advance(SECOND)
    holder.reserve("key", 1, "other")
    again = holder.reserve("key", 2, "job", lease_us=5)
    holder.commit(first.id, 2)
    late = holder.reserve("key", 2, "job")
    assert (first.repeated, again.repeated, late.repeated) == (False, True, True)
    assert again.id == first.id == holder.id_of("key", "job")
    assert list(first.decision.limits) == list(again.decision.limits) == list(late.decision.limits)
    assert holder.left("key") == [7, 4]


def test_a_hit_with_an_id_is_charged_once(hold: Callable[..., Holder]) -> None:
    holder = hold("10/hour")
    remaining = [holder.hit("key", 3, id="order 7").remaining for _ in range(3)]
    assert remaining == [7, 7, 7] and holder.left("key") == [7]
    settled = holder.commit(holder.id_of("key", "order 7"), 0)
    assert (settled.outcome, settled.actual) == ("already settled", 3)


def test_an_id_of_another_cost_limit_or_kind_conflicts(hold: Callable[..., Holder]) -> None:
    holder, other = hold("10/hour"), hold("10/hour", scope="other")
    holder.reserve("key", 2, "job")
    for call in (
        lambda: holder.reserve("key", 3, "job"),
        lambda: other.reserve("key", 2, "job"),
        lambda: holder.hit("key", 2, id="job"),
    ):
        with pytest.raises(ConflictingId):
            call()
    assert holder.left("key") == [8] and other.left("key") == [10]
    assert not holder.reserve("another key", 3, "job").repeated  # names are those of a key


@pytest.mark.parametrize(
    "whole_id", ["", "h1", "job", "h1" + "A" * 25, "h2" + "A" * 24, "h1" + "ä" * 24, None, 7, b"h1"]
)
def test_an_invalid_id_is_refused(hold: Callable[..., Holder], whole_id: Any) -> None:
    holder = hold("10/hour")
    for call in (lambda: holder.commit(whole_id, 1), lambda: holder.extend(whole_id, SECOND)):
        with pytest.raises(ArgumentError):
            call()


@pytest.mark.parametrize("name", ["{x}", "a}b{c", "\0", "ключ", b"\xff\x00", "n" * 1024, "{}" * 100])
def test_names_of_any_bytes_have_separate_holds(hold: Callable[..., Holder], name: Any) -> None:
    holder = hold("10/hour")
    first, second = holder.reserve("{a}:b", 1, name), holder.reserve("{a}:b", 1, "plain")
    assert first.id != second.id and holder.left("{a}:b") == [8]
    assert holder.commit(holder.id_of("{a}:b", name), 0).outcome == "settled"
    assert holder.left("{a}:b") == [9]


@pytest.mark.parametrize("amount", [-1, True, 1.0, "1", 1 << 53])
def test_bad_amounts_and_leases_change_nothing(hold: Callable[..., Holder], amount: Any) -> None:
    holder = hold("10/hour; 5 concurrent")
    held = holder.reserve("key", 2)
    for call in (
        lambda: holder.commit(held.id, amount),
        lambda: holder.extend(held.id, SECOND, amount),
        lambda: holder.reserve("key", amount),
        lambda: holder.reserve("key", 1, lease_us=0),
        lambda: holder.extend(held.id, 0),
        lambda: holder.reserve("key", 1, lease_us=366 * 86_400 * SECOND),
        lambda: holder.reserve("key", 1, ""),
    ):
        with pytest.raises(ArgumentError):
            call()
    assert holder.left("key") == [8, 3]
    assert holder.commit(held.id, 2).outcome == "settled"


@pytest.mark.parametrize(
    "text", ["10/hour fixed", "1000/hour counter", "10/hour log", "10/hour bucket", "5/hour queue 9"]
)
def test_a_debt_that_cannot_be_counted_is_refused_and_nothing_changes(hold: Callable[..., Holder], text: str) -> None:
    holder = hold(f"100/minute; {text}")
    held, _ = holder.reserve("key", 2), holder.reserve("key", 1)
    before = holder.left("key")
    with pytest.raises(ArgumentError):
        holder.commit(held.id, 1 << 52)
    assert holder.left("key") == before
    assert holder.commit(held.id, 1).outcome == "settled"


# Settling: twice, late, after a reset


def test_only_the_first_settlement_counts(hold: Callable[..., Holder]) -> None:
    holder = hold("10/hour; 5 concurrent")
    held = holder.reserve("key", 4)
    settlements = [holder.commit(held.id, actual) for actual in (1, 0, 9)]
    assert [(each.outcome, each.actual) for each in settlements] == [("settled", 1)] + [("already settled", 1)] * 2
    assert holder.extend(held.id, SECOND).outcome == "already settled"
    assert holder.left("key") == [9, 5]


def test_a_settlement_returns_the_standing_of_each_limit(hold: Callable[..., Holder]) -> None:
    holder = hold("50 concurrent; 400/week counter; 300/week log; 100/week bucket; 200/week fixed")
    held = holder.reserve("key", 7)
    assert [limit.remaining for limit in held.decision.limits] == [43, 393, 293, 93, 193]
    after = holder.commit(held.id, 3).after
    assert [(standing.definition.limit.quota, standing.remaining) for standing in after] == [
        (50, 50), (400, 397), (300, 297), (100, 97), (200, 197),
    ]  # fmt: skip
    assert holder.left("key") == [50, 397, 297, 97, 197]


@pytest.mark.parametrize("kind", ["fixed", "counter", "log", "bucket"])
def test_a_hold_under_former_numbers_is_settled(hold: Callable[..., Holder], kind: str) -> None:
    held = hold(f"10/week {kind}").reserve("key", 4)
    changed = hold(f"20/week {kind}")
    assert [standing.remaining for standing in changed.commit(held.id, 1).after] == changed.left("key") != [20]
    assert changed.commit(held.id, 1).outcome == "already settled"


@pytest.mark.parametrize("amounts", [(3, 9), (3, 0), (2, None), (0, 5)])
def test_the_newest_entry_of_a_log_is_amended_like_any_other(
    hold: Callable[..., Holder], amounts: tuple[int, int]
) -> None:
    cost, actual = amounts
    holder = hold("100/week log")
    for others in range(3):
        held = holder.reserve("key", cost)
        left = holder.commit(held.id, actual).after[0].remaining
        assert left == 100 - (others + 1) * (cost if actual is None else actual) - others
        assert holder.left("key") == [left]
        holder.hit("key", 1)


def test_ended_leases_are_removed(server: Server) -> None:
    store = opened(server.url)
    with Holder("sync", "900 concurrent", store, scope="over") as holder:
        for _ in range(9):  # more than are in the field of the limit
            assert holder.reserve("key").decision
        for _ in range(600):
            assert holder.reserve("key", 1, lease_us=1).decision
        [leases] = [name for name in store.client.scan_iter(f"{store.prefix}*") if name.endswith(b":1")]
        assert store.client.zcard(leases) < 300
    store.close()


def test_one_of_many_concurrent_settlements_counts(url: str) -> None:
    store = opened(url)
    with Holder("sync", "1000/hour fixed", store, scope="many", clock=ManualClock(START_US)) as holder:
        ids = [holder.reserve("key", 10).id for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            settlements = list(pool.map(lambda number: holder.commit(ids[number % 8], number), range(64)))
        left = holder.left("key")
    store.close()
    assert [each.outcome for each in settlements].count("settled") == 8
    settled = sum(each.actual or 0 for each in settlements if each.outcome == "settled")
    assert left == [1000 - settled]


def test_a_late_settlement_gives_back_no_more_than_is_left_of_the_charge(hold: Callable[..., Holder]) -> None:
    clock = ManualClock(START_US)
    holder = hold("10000/minute bucket", clock)
    held = [holder.reserve("key", 1000).id for _ in range(10)]
    clock.advance(60 * SECOND)  # it is full again
    assert holder.hit("key", 10_000)
    clock.advance(SECOND)
    assert {holder.commit(each, 0).outcome for each in held} == {"settled"}
    assert holder.left("key") == [166]  # what has flowed in within a second, and nothing twice


def test_units_given_back_by_a_hit_are_not_given_back_again_by_a_hold(hold: Callable[..., Holder]) -> None:
    clock = ManualClock(START_US)
    holder = hold("60/minute bucket", clock)
    held = holder.reserve("key", 30).id
    holder.hit("key", 30)
    holder.do("give_back", Receipt(("key",), (30,)), 0)
    clock.advance(30 * SECOND)
    holder.hit("key", 60)
    assert holder.commit(held, 0).outcome == "settled"
    assert holder.left("key") == [0]


def test_a_reset_forgets_the_holds_of_its_key_alone(hold: Callable[..., Holder]) -> None:
    holder = hold("10/hour; 5 concurrent")
    forgotten, stays = holder.reserve("key", 3, "a"), holder.reserve("other key", 3, "a")
    assert holder.do("reset", ("key",)) is True
    assert holder.left("key") == [10, 5]
    assert holder.commit(forgotten.id, 9).outcome == "unknown"
    assert holder.extend(forgotten.id, SECOND).outcome == "unknown"
    again = holder.reserve("key", 2, "a")
    assert not again.repeated and holder.left("key") == [8, 3]
    assert holder.commit(again.id, 1).outcome == "settled"
    assert holder.commit(stays.id, 1).outcome == "settled"
    assert holder.left("other key") == [9, 5]


def test_a_hold_is_remembered_for_an_hour_after_its_end_and_no_longer(hold: Callable[..., Holder]) -> None:
    clock = ManualClock(START_US)
    holder = hold("10/minute bucket", clock)
    settled, open_one = holder.reserve("key", 1, lease_us=SECOND), holder.reserve("key", 1, lease_us=60 * SECOND)
    clock.advance(2 * SECOND)
    holder.commit(settled.id, 1)
    clock.advance(3600 * SECOND - 1)
    assert holder.commit(settled.id, 1).outcome == "already settled"
    clock.advance(1)
    assert holder.commit(settled.id, 1).outcome == "unknown"
    clock.set(START_US + 3660 * SECOND - 1)
    assert holder.commit(open_one.id, 3).outcome == "settled"


def test_records_expire_in_redis_and_leave_nothing_behind(server: Server) -> None:
    store = opened(server.url)
    with Holder("sync", "10/minute log; 5 concurrent; 9/second bucket", store, scope="ttl") as holder:
        held = [holder.reserve("key", 3).id for _ in range(1)]
        holder.commit(held[0], 1)
        times = {name: store.client.ttl(name) for name in store.client.scan_iter(f"{store.prefix}:*")}
    store.clear()
    assert len(times) >= 2 and all(3000 < seconds < 5000 for name, seconds in times.items() if b"hold/" in name)
    assert all(0 < seconds < 5000 for seconds in times.values())
    store.close()


RIGHTS = (
    "evalsha", "eval", "time", "hget", "hmget", "hset", "hdel", "lrange", "ttl", "expireat", "unlink", "set", "ping",
    "script|load", "get", "setrange", "hincrby", "zadd", "zcount", "zrange", "zrangebyscore", "zrem",
)  # fmt: skip
"""All rights that a user needs to hold, according to docs/redis.md."""


def test_the_rights_in_the_docs_suffice(server: Server) -> None:
    server.cli("SCRIPT", "FLUSH")
    prefix = f"rights{next(_prefixes)}"
    rights = [f"+{right}" for right in RIGHTS]
    server.cli("ACL", "SETUSER", "holder", "reset", "on", ">holder-pass", f"~{prefix}:*", "-@all", *rights)
    url = f"{server.url.replace('redis://', 'redis://holder:holder-pass@')}?timeout=10s"
    store, clock = RedisStore(url, prefix=prefix), ManualClock(START_US)
    texts = (
        "900/hour log; 900 concurrent",
        "9/second bucket",
        "; ".join(f"{n}00/{n} hours fixed" for n in range(1, 8)),
    )
    for text in texts:
        with Holder("sync", text, store, scope=text, clock=clock) as holder:
            for number in range(40):
                clock.advance(300_000)
                holder.reserve("key", 1 + number % 2, f"job {number}", lease_us=SECOND)
            for number in (3, 39, 2, 20):
                whole_id = holder.id_of("key", f"job {number}")
                holder.extend(whole_id, SECOND, 1)
                assert holder.commit(whole_id, number % 3).outcome in ("settled", "unknown")
            assert holder.do("reset", ("key",))
    store.close()
    server.cli("ACL", "DELUSER", "holder")


# Processes that die between holding and settling

_DYING = """
import sys
from headgate.decision import name_limits
from headgate.holding import Hold
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
url, prefix, now_us, limits = sys.argv[1:5]
bound = RedisStore(url + "?timeout=10s", prefix=prefix).bind(
    name_limits(parse_limits(limits), scope="dying", name="n"), clock=ManualClock(int(now_us)))
for number in range(20_000):  # more lines than a pipe takes that nobody reads
    bound.reserve(Operation(("key",), (1,)), Hold(f"job {number}", 30_000_000))
    print(number, flush=True)
"""


@pytest.mark.parametrize("colour", COLOURS)
def test_the_hold_of_a_killed_process_is_free_at_the_end_of_its_lease_and_settles_once(url: str, colour: str) -> None:
    limits, chance = "50000/hour; 20000 concurrent", random.Random(7)
    store, clock = opened(url), ManualClock(START_US)
    with Holder(colour, limits, store, scope="dying", clock=clock) as holder:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", _DYING, url, store.prefix, str(START_US), limits],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            for _ in range(2)
        ]
        for process in processes:
            assert process.stdout is not None
            for _ in range(chance.randrange(5, 60)):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            process.stdout.close()
        [rate, places] = holder.left("key")
        held = 50_000 - rate
        assert 5 <= held < 20_000 and places == 20_000 - held  # both gave the same names: each is held once
        clock.set(START_US + 30 * SECOND - 1)
        assert holder.left("key") == [rate, places]
        clock.advance(1)
        assert holder.left("key") == [rate, 20_000]  # to the moment, and what was charged stays
        outcomes = [holder.commit(holder.id_of("key", f"job {number}"), 0).outcome for number in range(held)]
        outcomes += [holder.commit(holder.id_of("key", f"job {number}"), 5).outcome for number in range(held)]
        assert outcomes == ["settled"] * held + ["already settled"] * held
        assert holder.left("key") == [50_000, 20_000]
    store.close()


def test_after_a_failover_holds_settle_as_before(watched: Sentinels) -> None:
    watched.wait_ok()
    store = opened(watched.url)
    with Holder("sync", "100/hour; 5 concurrent", store, scope="failover") as holder:
        held = [holder.reserve("key", 2, f"job {number}") for number in range(2)]
        primary = watched.primary
        store.client.wait(1, 5000)
        primary.kill()
        watched.wait_failover(primary)
        until = time.monotonic() + FAILOVER_WITHIN_S
        while True:
            try:
                first = holder.commit(held[0].id, 1)
                break
            except StoreError:
                assert time.monotonic() < until
        again = holder.reserve("key", 2, "job 1")
        second = holder.commit(held[1].id, 0)
    primary.restart()
    watched.wait_ok()
    store.close()
    assert first.outcome in ("settled", "already settled") and again.repeated
    assert second.outcome == "settled"
    assert [standing.remaining for standing in second.after] == [99, 5]


# A Cluster


def _apart(nodes: Cluster, store: RedisStore, *texts: str) -> tuple[Any, ManualClock]:
    clock = ManualClock(START_US)
    limits = [
        named
        for group, text in enumerate(texts)
        for named in name_limits(parse_limits(text), scope=f"g{group}", name="n", group=group)
    ]
    return store.bind(limits, clock=clock), clock


def _left(bound: Any, keys: tuple[str, ...]) -> list[int]:
    decision = bound.decide(Operation(keys, (0,) * len(keys), commit=False))
    return [limit.remaining for limit in decision.limits]


def test_a_hold_over_several_slots_is_held_and_settled_in_all(nodes: Cluster) -> None:
    nodes.wait_ok()
    store = opened(nodes.url)
    bound, clock = _apart(nodes, store, "10/minute; 4 concurrent", "20/minute bucket", "30/minute log")
    for number in range(6):
        keys = (f"a{number}", f"b{number}", f"c{number}")
        assert len({key_slot(key.encode()) for key in keys}) > 1
        operation = Operation(keys, (3, 4, 5))
        held = bound.reserve(operation, Hold("job", 10 * SECOND))
        assert held.decision and not held.repeated and _left(bound, keys) == [7, 1, 16, 25]
        assert bound.reserve(operation, Hold("job", 10 * SECOND)).repeated
        extended = bound.extend(held.id, 20 * SECOND, [1, 0, 2])
        assert extended.outcome == "extended" and _left(bound, keys) == [6, 0, 16, 23]
        assert [standing.remaining for standing in extended.after] == [6, 0, 16, 23]
        refused = bound.extend(held.id, 40 * SECOND, [0, 1, 90])
        assert refused.outcome == "refused" and _left(bound, keys) == [6, 0, 16, 23]
        clock.advance(20 * SECOND - 1)
        assert _left(bound, keys)[1] == 0
        clock.advance(1)  # the refused one did not move its end
        assert _left(bound, keys)[1] == 4
        settled = bound.commit(held.id, [1, None, 9])
        assert (settled.outcome, settled.actuals) == ("settled", (1, 4, 9))
        assert [standing.remaining for standing in settled.after] == [9, 4, 20, 21]
        assert bound.commit(held.id, [0, 0, 0]).actuals == (1, 4, 9)
        assert _left(bound, keys) == [9, 4, 20, 21]
    store.close()


def test_where_one_slot_refuses_nothing_is_held_in_any(nodes: Cluster) -> None:
    nodes.wait_ok()
    store = opened(nodes.url)
    bound, _ = _apart(nodes, store, "10/minute; 4 concurrent", "3/minute bucket", "30/minute log")
    for number in range(6):
        keys = (f"a{number}", f"b{number}", f"c{number}")
        refused = bound.reserve(Operation(keys, (2, 4, 2)), Hold("job", SECOND))
        assert not refused.decision
        assert [limit.remaining for limit in refused.decision.limits] == [10, 4, 3, 30] == _left(bound, keys)
        assert [limit.allowed for limit in refused.decision.limits] == [True, True, False, True]
        assert bound.commit(refused.id, [1, 1, 1]).outcome == "unknown"
        assert not bound.reserve(Operation(keys, (2, 1, 2)), Hold("job", SECOND)).repeated
        assert _left(bound, keys) == [8, 2, 2, 28]
    store.close()


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_debt_that_one_slot_cannot_count_changes_nothing_in_any(nodes: Cluster, late: int) -> None:
    nodes.wait_ok()
    store = opened(nodes.url)
    texts = ["10/minute; 4 concurrent", "30/minute log", "20/minute log"]
    texts[late] += "; 1/week bucket"  # whose scaled units are large
    bound, _ = _apart(nodes, store, *texts)
    keys = ("a0", "b0", "c0")
    assert len({key_slot(key.encode()) for key in keys}) == 3
    held = bound.reserve(Operation(keys, (1, 1, 1)), Hold("job", 10 * SECOND))
    before = _left(bound, keys)
    with pytest.raises(ArgumentError, match="so large a debt"):
        bound.commit(held.id, 2**40)
    assert _left(bound, keys) == before
    assert bound.extend(held.id, 20 * SECOND, [0, 0, 0]).outcome in ("extended", "refused"), "it is open"
    settled = bound.commit(held.id, [2, 3, 4])
    assert (settled.outcome, settled.actuals) == ("settled", (2, 3, 4))
    changed = {number: old - new for number, (old, new) in enumerate(zip(before, _left(bound, keys), strict=True))}
    assert sorted(changed.values()) == sorted([1, -1, 2, 3, late + 1]), "each is charged what was missing"
    assert bound.commit(held.id, 2**40).outcome == "already settled"
    store.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_while_a_slot_moves_holds_are_settled_completely_or_later(nodes: Cluster, colour: str) -> None:
    nodes.wait_ok()
    store = opened(nodes.url)
    with Holder(colour, "100/hour; 9 concurrent; 50/hour bucket", store, scope=f"moving {colour}") as holder:
        held = [holder.reserve("key", 2, f"job {number}") for number in range(4)]
        slot = key_slot(b"key")
        target = next(server for server in nodes.primaries() if server is not nodes.owner_of(slot))
        with ThreadPoolExecutor(4) as pool:
            settlements: list[Any] = []

            def pause() -> None:  # half of the keys are there
                settlements.extend(pool.submit(holder.commit, each.id, 1) for each in held)
                time.sleep(0.05)

            nodes.migrate_slot(slot, target, pause=pause)
            outcomes = [each.result(30).outcome for each in settlements]
        left = holder.left("key")
    store.close()
    assert outcomes == ["settled"] * 4 and left[:2] == [96, 9]


# The price


@pytest.mark.parametrize("text", ["20000/hour log", "20000/hour bucket", "20000/hour fixed", "20000 concurrent"])
def test_a_settlement_costs_no_more_where_ten_thousand_are_held(server: Server, text: str) -> None:
    store = opened(server.url)
    costs = {}
    for number in (10, 10_000):
        with Holder("sync", text, store, scope=f"{number} {text}") as holder:
            ids = []
            for start in range(0, number, 500):
                steps = [holder.bound._holds.reserve(Operation(("key",), (1,)), Hold(), None) for _ in range(500)]
                replies = store.sync_link.run_all([next(each) for each in steps[: number - start]])
                for each, reply in zip(steps, replies, strict=False):
                    try:
                        each.send(reply)
                    except StopIteration as stop:
                        ids.append(stop.value.id)
            assert len(ids) == number
            server.cli("CONFIG", "RESETSTAT")
            for whole_id in random.Random(5).sample(ids, 10):
                assert holder.commit(whole_id, 0).outcome == "settled"
            stats = store.client.info("commandstats")
            costs[number] = sum(each["calls"] for each in stats.values())
    store.close()
    print({"limit": text, "commands for ten settlings by holds": costs})
    # A log is halved for the entry, and its tree has a node more for each doubling.
    assert costs[10_000] <= costs[10] + 10 * (40 if "log" in text else 0) + 20
