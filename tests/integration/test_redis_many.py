"""Operations that are decided together on a Redis, on an event loop: in one write, and independently."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from redis_askers import Loop
from redis_servers import Cluster, Server

from headgate.decision import Decision, name_limits
from headgate.errors import StoreError, StoreTimeout
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.guard.store import GuardedStore
from headgate.stores.redis.store import RedisStore

pytestmark = pytest.mark.integration
_prefixes = count()


class Many:
    """Limits on a store, which decide several keys together."""

    def __init__(self, store: Any, limits: str, loop: Loop) -> None:
        self.loop = loop
        self.bound: Any = store.bind_async(
            name_limits(parse_limits(limits), scope="many", name="many", on_store_error="local")
        )

    def decide(self, *keys: str, cost: int = 1) -> list[Decision | Exception]:
        async def decide_all() -> list[Decision | Exception]:
            decisions: list[Decision | Exception] = await self.bound.decide_many(
                [Operation((key,), (cost,)) for key in keys]
            )
            return decisions

        return self.loop.run(decide_all())

    def left(self, *keys: str, cost: int = 1) -> list[int | str]:
        """The remaining units of the first limit for each key, or the name of the error."""
        return [
            type(each).__name__ if isinstance(each, Exception) else each.limits[0].remaining
            for each in self.decide(*keys, cost=cost)
        ]


@contextmanager
def opened(url: str, limits: str = "5/week bucket", *, guarded: bool = False) -> Iterator[tuple[Many, RedisStore]]:
    loop = Loop()
    store = RedisStore(url, prefix=f"many{next(_prefixes)}")
    whole: Any = GuardedStore(store) if guarded else store
    try:
        yield Many(whole, limits, loop), store
    finally:
        loop.run(whole.aclose())
        loop.close()


def writes_of(store: RedisStore) -> int:
    link = store._async_link
    assert link is not None
    [connections] = link._by_loop.values()
    multiplexer = connections.multiplexer
    assert multiplexer is not None
    return multiplexer.writes


def key_of(server: Server, store: RedisStore, key: str) -> str:
    [found] = [name for name in server.cli("KEYS", f"{store.prefix}:*") if f"{{{key}}}" in name]
    return str(found)


def test_operations_that_are_decided_together_are_one_write_and_decided_in_order(server: Server) -> None:
    with opened(server.url) as (many, store):
        many.decide("warm")
        before = writes_of(store)
        assert many.left("a", "b", "a", "a", "b") == [4, 4, 3, 2, 3]
        assert writes_of(store) == before + 1


def test_each_is_charged_once_where_the_server_has_lost_its_scripts(server: Server) -> None:
    with opened(server.url) as (many, _):
        many.decide("warm")
        server.cli("SCRIPT", "FLUSH")
        assert many.left("a", "b", "a") == [4, 4, 3]
        assert many.left("a", "b", cost=0) == [3, 4]


def test_a_key_of_another_program_fails_by_itself(server: Server) -> None:
    with opened(server.url) as (many, store):
        many.decide("bad")
        name = key_of(server, store, "bad")
        server.cli("DEL", name)
        server.cli("SET", name, "text")
        good, bad, again = many.decide("good", "bad", "good")
        assert [isinstance(each, Decision) and each.limits[0].remaining for each in (good, again)] == [4, 3]

        async def alone() -> Decision:
            decision: Decision = await many.bound.decide(Operation(("bad",), (1,)))
            return decision

        with pytest.raises(StoreError) as raised:
            many.loop.run(alone())
        assert (type(bad), str(bad)) == (type(raised.value), str(raised.value))


def test_a_stopped_server_is_one_deadline_for_all_of_them(server: Server) -> None:
    with opened(f"{server.url}?timeout=300ms") as (many, _):
        many.decide("warm")
        server.stop()
        try:
            assert all(isinstance(each, StoreTimeout) for each in many.decide("a", "b", "c"))
        finally:
            server.go_on()


def test_the_guard_decides_each_of_them_while_the_server_is_stopped_and_calls_it_again(server: Server) -> None:
    with opened(f"{server.url}?timeout=300ms", guarded=True) as (many, _):
        many.decide("warm")
        server.stop()
        try:
            decisions = many.decide("a", "b", "a")
            assert [isinstance(each, Decision) and each.degraded for each in decisions] == ["local"] * 3
        finally:
            server.go_on()


def test_a_caller_that_gives_up_leaves_the_others_their_replies(server: Server) -> None:
    with opened(server.url) as (many, _):
        many.decide("warm")

        async def run() -> list[Any]:
            operations = [[Operation((name,), (1,))] * 2 for name in ("left", "kept")]
            left, awaited = [asyncio.ensure_future(many.bound.decide_many(each)) for each in operations]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            left.cancel()
            return list(await awaited)

        assert [each.limits[0].remaining for each in many.loop.run(run())] == [4, 3]
        assert many.left("kept", cost=0) == [3]


def test_several_limits_with_a_calendar_are_decided_as_if_one_by_one(server: Server) -> None:
    with opened(server.url, "9/day in UTC; 5/week log; 7/week bucket") as (many, _):
        many.decide("warm")
        assert many.left("a", "a", "b") == [8, 7, 8]


def test_keys_of_several_servers_of_a_cluster_are_decided_by_each(nodes: Cluster) -> None:
    with opened(nodes.url) as (many, _):
        keys = [f"key{number}" for number in range(20)]
        assert many.left(*keys, *keys) == [4] * 20 + [3] * 20


@pytest.mark.parametrize("guarded", [False, True])
def test_hits_of_more_keys_than_may_wait_at_one_time_are_all_decided_by_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    with opened(f"{server.url}?timeout=5s", guarded=guarded) as (many, _):
        monkeypatch.setattr("headgate.stores.redis.multiplexer.MOST_WAITING", 600)

        async def hit_all() -> list[Decision]:
            return list(await many.bound.hit_many([f"key{number}" for number in range(2_000)]))

        for remaining in (4, 3):
            decisions = many.loop.run(hit_all())
            assert {(decision.limits[0].remaining, decision.degraded) for decision in decisions} == {(remaining, "")}


@pytest.mark.parametrize("turns", range(4))
def test_a_stall_of_the_event_loop_is_no_outage_of_the_server(server: Server, turns: int) -> None:
    with opened(server.url) as (many, _):
        many.decide("warm")

        async def stall() -> Decision:
            deciding = asyncio.ensure_future(many.bound.decide(Operation(("key",), (1,))))
            for _ in range(turns):  # the call is pending, sent, or answered and unread
                await asyncio.sleep(0)
            time.sleep(0.2)  # noqa: ASYNC251 (the stall; the deadline is 50 ms)
            decision: Decision = await deciding
            return decision

        assert [many.loop.run(stall()).limits[0].remaining for _ in range(3)] == [4, 3, 2]


def test_too_many_at_once_are_refused_before_anything_is_charged(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(server.url) as (many, _):
        many.decide("warm")
        monkeypatch.setattr("headgate.stores.redis.multiplexer.MOST_WAITING", 2)
        assert all(isinstance(each, StoreError) for each in many.decide("a", "a", "a"))
        monkeypatch.undo()
        assert many.left("a", cost=0) == [5]
