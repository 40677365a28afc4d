"""Resets of keys on Redis whose holds have places in flight under other keys: the calls, and the remaining keys."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from redis_servers import Cluster, Server
from test_redis_holds import RIGHTS

from headgate.decision import NamedLimit, name_limits
from headgate.errors import StoreError
from headgate.holding import Hold
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock

pytestmark = pytest.mark.integration
SECOND = 1_000_000
START_US = 1_800_000_000_000_000
_prefixes = count()
_USER = name_limits(parse_limits("99/hour fixed; 99/minute log"), scope="user", name="user")
_TEAM = name_limits(parse_limits("99/hour bucket; 9 concurrent"), scope="team", name="team", group=1)
LIMITS: list[NamedLimit] = [*_USER, *_TEAM]


@pytest.fixture(params=["single", "cluster"])
def store(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    fixture: Server | Cluster = request.getfixturevalue({"single": "server", "cluster": "nodes"}[request.param])
    if isinstance(fixture, Cluster):
        fixture.wait_ok()
    opened = RedisStore(f"{fixture.url}?timeout=10s", prefix=f"rs{os.getpid()}-{next(_prefixes)}")
    yield opened
    opened.close()


def hold(bound: Any, user: str, team: str, lease_us: int = 60 * SECOND) -> Any:
    return bound.reserve(Operation((user, team), (1, 2)), Hold(None, lease_us))


def left(bound: Any, user: str, team: str) -> list[int]:
    return [reading.remaining for reading in bound.decide(Operation((user, team), (0, 0), commit=False)).limits]


def names(store: RedisStore, what: bytes) -> list[bytes]:
    return sorted(name for name in store.client.scan_iter(f"{store.prefix}:*") if what in name)


def test_an_event_loop_frees_them_like_threads(store: RedisStore) -> None:
    async def reset() -> None:
        bound: Any = store.bind_async(LIMITS)
        user: Any = store.bind_async(_USER)
        held = [await hold(bound, "ann", "blue") for _ in range(3)]
        assert (await bound.commit(held[0].id, (1, 2))).outcome == "settled"
        assert await user.reset(("ann",))
        decision = await bound.decide(Operation(("ann", "blue"), (0, 0), commit=False))
        assert [reading.remaining for reading in decision.limits] == [99, 99, 93, 9]
        assert (await bound.commit(held[1].id, (0, 0))).outcome == "unknown"
        await store.aclose()

    asyncio.run(reset())


def test_a_hold_that_is_settled_or_reset_leaves_no_list_behind(store: RedisStore) -> None:
    bound, user = store.bind(LIMITS), store.bind(_USER)
    settled, _ = hold(bound, "ann", "blue"), hold(bound, "ben", "blue")
    assert len(names(store, b"apart")) == 3
    bound.commit(settled.id, (1, 2))
    assert [b"ann" in name for name in names(store, b"apart")] == [False, False]
    assert user.reset(("ben",))
    assert names(store, b"apart") == [] and left(bound, "ben", "blue") == [99, 99, 95, 9]
    assert not user.reset(("ben",))
    store.clear()


def test_a_refusal_that_undoes_charges_leaves_no_list_behind(store: RedisStore) -> None:
    bound = store.bind(LIMITS)
    for user in ("ann", "ben", "cid", "dan"):
        assert hold(bound, user, "blue").decision.allowed
    assert not hold(bound, "eve", "blue").decision.allowed
    assert len(names(store, b"apart")) == 5 and not any(b"eve" in name for name in names(store, b"apart"))
    store.clear()


def test_a_list_forgets_holds_whose_leases_have_ended_and_expires(store: RedisStore) -> None:
    clock = ManualClock(START_US)
    bound = store.bind(LIMITS, clock=clock)
    for _ in range(8):
        hold(bound, "ann", "blue", SECOND)
        clock.advance(SECOND)
    lists = names(store, b"apart")
    assert len(lists) == 2 and all(store.client.zcard(name) == 1 for name in lists)
    assert all(0 < store.client.ttl(name) < 2 * 86_400 for name in lists)
    store.clear()


def test_holds_of_one_rule_or_without_places_have_no_list(store: RedisStore) -> None:
    rule = store.bind(name_limits(parse_limits("99/hour bucket; 9 concurrent"), scope="rule", name="rule"))
    rule.reserve(Operation(("ann",), (1,)), Hold(None, 60 * SECOND))
    hold(store.bind(LIMITS[:3]), "ann", "blue")
    assert names(store, b"apart") == []
    store.clear()


def test_a_reset_keeps_the_places_of_holds_that_it_does_not_forget(store: RedisStore) -> None:
    bound, user = store.bind(LIMITS), store.bind(_USER)
    other = store.bind([*name_limits(parse_limits("9/hour leaky 9"), scope="other", name="other"), *_TEAM])
    remaining_hold = hold(other, "ann", "blue")
    hold(bound, "ann", "blue")
    assert user.reset(("ann",))
    assert left(bound, "ann", "blue")[-1] == 7
    assert other.commit(remaining_hold.id, (1, 2)).outcome == "settled" and left(bound, "ann", "blue")[-1] == 9
    store.clear()


def test_the_rights_in_the_docs_suffice_for_holds_of_several_keys(server: Server) -> None:
    prefix = f"rights-of-resets{next(_prefixes)}"
    rights = [f"+{right}" for right in RIGHTS]
    server.cli("ACL", "SETUSER", "resetter", "reset", "on", ">reset-pass", f"~{prefix}:*", "-@all", *rights)
    url = f"{server.url.replace('redis://', 'redis://resetter:reset-pass@')}?timeout=10s"
    store, clock = RedisStore(url, prefix=prefix), ManualClock(START_US)
    bound, user = store.bind(LIMITS, clock=clock), store.bind(_USER, clock=clock)
    for _ in range(4):
        held = hold(bound, "ann", "blue", SECOND)
        assert bound.extend(held.id, 2 * SECOND, (0, 0)).outcome == "extended"
        clock.advance(SECOND)
    assert user.reset(("ann",)) and left(bound, "ann", "blue")[-1] == 9
    store.close()
    server.cli("ACL", "DELUSER", "resetter")


def test_a_reset_without_the_rights_to_hold_keeps_the_lists_of_holds(server: Server) -> None:
    store = RedisStore(f"{server.url}?timeout=10s", prefix=f"rights-of-resets{next(_prefixes)}")
    hold(store.bind(LIMITS), "ann", "blue")
    listed = names(store, b"apart")
    rights = ["+evalsha", "+eval", "+time", "+hget", "+hmget", "+hset", "+hdel", "+lrange", "+ttl", "+expireat"]
    server.cli(
        "ACL", "SETUSER", "limiter", "reset", "on", ">limiter-pass", f"~{store.prefix}:*", "-@all", *rights, "+unlink",
        "+set", "+ping",
    )  # fmt: skip
    url = f"{server.url.replace('redis://', 'redis://limiter:limiter-pass@')}?timeout=10s"
    limiter = RedisStore(url, prefix=store.prefix)
    other = name_limits(parse_limits("9/hour fixed"), scope="user", name="user")
    assert not limiter.bind(other).reset(("ben",))
    with contextlib.suppress(StoreError):  # it may not read the records of holds
        limiter.bind(other).reset(("ann",))
    assert names(store, b"apart") == listed and len(listed) == 2
    limiter.close()
    server.cli("ACL", "DELUSER", "limiter")
    store.clear()
    store.close()


def test_a_reset_repairs_a_list_that_another_program_wrote(server: Server) -> None:
    store = RedisStore(f"{server.url}?timeout=10s", prefix=f"damaged{next(_prefixes)}")
    bound, user = store.bind(LIMITS), store.bind(_USER)
    hold(bound, "ann", "blue")
    [name] = [name for name in names(store, b"apart") if b"ann" in name]
    store.client.set(name, "no list")
    with pytest.raises(StoreError):
        hold(bound, "ann", "blue")
    assert user.reset(("ann",))
    assert hold(bound, "ann", "green").decision.allowed
    store.clear()
    store.close()
