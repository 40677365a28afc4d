"""A reserve whose caller is cancelled while Redis answers is given back, unless the hold has a name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from redis_servers import Server
from tcp_proxy import HOST, TcpProxy

from headgate import AsyncGate, AsyncLimiter, Request
from headgate.llm import AsyncLlmGate, Entry, Usage

pytestmark = pytest.mark.integration
WITHIN_S = 20
LLM_RULE = {"name": "all", "by": [], "limits": "100 tokens/day bucket"}
WAITING_RULES: dict[str, list[dict[str, Any]]] = {
    "this rule has a wait": [LLM_RULE | {"wait": "30s"}],
    "another rule has a wait": [
        LLM_RULE,
        {"name": "big", "match": {"model": "big"}, "by": [], "limits": "9/day", "wait": "30s"},
    ],
}
FLIGHT = {"name": "flight", "by": [], "limits": "1 concurrent", "wait": "30s"}


class Asked:
    """One of the places that hold: `reserve` holds of its ten units, `left` tells how many there are."""

    def __init__(self, kind: str, url: str) -> None:
        rule = {"name": "all", "by": [], "limits": "10/day bucket"}
        self._kind = kind
        self._of: Any
        if kind == "limiter":
            self._of = AsyncLimiter("10/day bucket", store=url)
        elif kind == "gate":
            self._of = AsyncGate({"version": 1, "namespace": "cancelled", "rules": [rule]}, store=url)
        else:
            policy = {"version": 1, "namespace": "cancelled-llm", "llm": {"hold": "max"}, "rules": [LLM_RULE]}
            self._of = AsyncLlmGate(policy, store=url)

    def reserve(self, name: str | None = None) -> Awaitable[Any]:
        if self._kind == "limiter":
            return self._of.reserve("key", 4, id=name)  # type: ignore[no-any-return]
        if self._kind == "gate":
            return self._of.reserve(Request("GET", "/"), 4, id=name)  # type: ignore[no-any-return]
        return self._of.reserve("m", input_tokens=30, max_tokens=10, id=name)  # type: ignore[no-any-return]

    async def left(self) -> int:
        """In units of which a reserve holds four, and there are ten."""
        if self._kind == "limiter":
            return (await self._of.peek("key", 0)).remaining  # type: ignore[no-any-return]
        if self._kind == "gate":
            return (await self._of.peek(Request("GET", "/"), 0)).remaining  # type: ignore[no-any-return]
        call = await self._of.reserve("m", input_tokens=0, max_tokens=0)
        return call.decision.limits[0].remaining // 10  # type: ignore[no-any-return]

    async def close(self) -> None:
        await self._of.close()


def patient(server: Server) -> str:
    """The URL of a server that answers late on a slow machine: nothing is decided without it."""
    return f"{server.url}?timeout=20s"


async def until(left: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await left() != wanted:  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["limiter", "gate", "llm gate"])
def test_what_a_cancelled_caller_holds_is_given_back_when_redis_answers(server: Server, kind: str) -> None:
    async def main(proxy: TcpProxy) -> None:
        prefix = uuid4().hex  # what a run that failed has left is no part of the next one
        near = Asked(kind, f"{patient(server)}&prefix={prefix}")
        far = Asked(kind, f"redis://{HOST}:{proxy.port}/0?timeout=20s&prefix={prefix}")
        assert await far.left() == 10
        await (await far.reserve()).cancel()  # connections are there
        proxy.hold_replies()
        reserving = asyncio.ensure_future(far.reserve())
        await until(near.left, 6)  # Redis holds, and its answer is on its way
        reserving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reserving
        proxy.mend()
        await until(near.left, 10)
        proxy.hold_replies()
        named = asyncio.ensure_future(far.reserve(f"of a {kind}"))
        await until(near.left, 6)
        named.cancel()
        with pytest.raises(asyncio.CancelledError):
            await named
        proxy.mend()
        again = await far.reserve(f"of a {kind}")
        assert again and again.repeated and await near.left() == 6, "who asks again by the name finds it"
        await near.close()
        await far.close()

    with TcpProxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_caller_that_is_cancelled_before_a_refusal_changes_nothing(server: Server) -> None:
    async def main(proxy: TcpProxy) -> None:
        near = AsyncLimiter("3/day bucket", store=patient(server))
        far = AsyncLimiter("3/day bucket", store=f"redis://{HOST}:{proxy.port}/0?timeout=20s")
        assert (await far.peek("small", 0)).remaining == 3
        proxy.hold_replies()
        refused = asyncio.ensure_future(far.reserve("small", 4))
        await asyncio.sleep(0.15)
        refused.cancel()
        with pytest.raises(asyncio.CancelledError):
            await refused
        proxy.mend()
        assert (await far.reserve("small", 3)) and (await near.peek("small", 0)).remaining == 0
        await near.close()
        await far.close()

    with TcpProxy(server.port) as proxy:
        asyncio.run(main(proxy))


def waiting_gate(url: str, *rules: dict[str, Any]) -> AsyncLlmGate:
    policy = {"version": 1, "namespace": "cancelled-waits", "llm": {"hold": "max"}, "rules": list(rules)}
    return AsyncLlmGate(policy, store=url)


def call_of(gate: AsyncLlmGate) -> Awaitable[Any]:
    return gate.reserve("m", input_tokens=30, max_tokens=10)


async def tokens_left(gate: AsyncLlmGate) -> int:
    call = await gate.reserve("m", input_tokens=0, max_tokens=0)
    await call.cancel()
    return call.decision.limits[0].remaining


async def places_left(gate: AsyncLlmGate) -> int:
    return (await gate.gate.peek(Request("POST", ""), 0)).remaining  # type: ignore[no-any-return]


@pytest.mark.parametrize("rules", WAITING_RULES.values(), ids=list(WAITING_RULES))
def test_a_call_that_is_cancelled_while_redis_answers_is_given_back_where_a_rule_has_a_wait(
    server: Server, rules: list[dict[str, Any]]
) -> None:
    async def main(proxy: TcpProxy) -> None:
        near = waiting_gate(patient(server), *rules)
        far = waiting_gate(f"redis://{HOST}:{proxy.port}/0?timeout=60s", *rules)
        assert await tokens_left(far) == 100
        proxy.hold_replies()
        reserving = asyncio.ensure_future(call_of(far))
        await until(lambda: tokens_left(near), 60)  # Redis holds, and its answer is on its way
        reserving.cancel()
        await asyncio.sleep(0)
        proxy.mend()
        with pytest.raises(asyncio.CancelledError):
            await reserving
        await until(lambda: tokens_left(near), 100)
        await near.close()
        await far.close()

    with TcpProxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_a_call_that_is_cancelled_in_line_leaves_it_and_one_that_is_cancelled_at_its_turn_gives_back(
    server: Server,
) -> None:
    async def main(proxy: TcpProxy) -> None:
        urls = (patient(server), f"redis://{HOST}:{proxy.port}/0?timeout=60s")
        near, far = (waiting_gate(url, FLIGHT) for url in urls)
        waiting: list[int] = []
        far.gate.watch_waiting(waiting.append)
        first = await call_of(far)
        in_line = [asyncio.ensure_future(call_of(far)) for _ in range(2)]
        async with asyncio.timeout(WITHIN_S):
            while waiting[-1:] != [2]:  # noqa: ASYNC110 - it is told on this loop
                await asyncio.sleep(0.01)
        in_line[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await in_line[0]
        assert waiting[-1] == 1, "the first in line has left it"
        proxy.delay(0.6)
        settling = asyncio.ensure_future(first.settle_unknown())
        await until(lambda: places_left(near), 1)
        await until(lambda: places_left(near), 0)  # Redis holds the next one, and its answer is on its way
        in_line[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await in_line[1]
        await settling
        assert waiting[-1] == 0
        await until(lambda: places_left(near), 1)
        await near.close()
        await far.close()

    with TcpProxy(server.port) as proxy:
        asyncio.run(main(proxy))


def test_the_books_have_a_settling_whose_caller_is_cancelled_while_redis_answers(server: Server) -> None:
    entries: list[Entry] = []

    class Written:
        def add(self, entry: Entry) -> None:
            entries.append(entry)

    async def main(proxy: TcpProxy) -> None:
        policy = {"version": 1, "namespace": f"books-{uuid4().hex}", "llm": {"hold": "max"}, "rules": [LLM_RULE]}
        url = f"redis://{HOST}:{proxy.port}/0?timeout=20s"
        async with AsyncLlmGate(policy, store=url, books=Written()) as gate:
            call = await gate.reserve("m", input_tokens=30, max_tokens=10)
            proxy.hold_replies()
            settling = asyncio.ensure_future(call.settle_usage(Usage(20, 5)))
            await asyncio.sleep(0.05)
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)
            assert settling.cancelled()
            proxy.mend()

            async def settled() -> int:
                return sum(entry.kind == "settled" and entry.usage == Usage(20, 5) for entry in entries)

            await until(settled, 1)

    with TcpProxy(server.port) as proxy:
        asyncio.run(main(proxy))
