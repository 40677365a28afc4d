"""Streams that are left early, or never begin, are settled by what was read of them, in threads and in asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from headgate import MemoryStore
from headgate.drive import all_answered
from headgate.llm import AsyncLlmGate, LlmGate, tokens
from headgate.testing import ManualClock

RULE = {"name": "u", "by": ["user"], "limits": "60/hour bucket; 100000 tokens/hour bucket; 5 concurrent"}
POLICY = {"version": 1, "llm": {"expected_output": 10}, "rules": [RULE]}
CALL: dict[str, Any] = {"model": "m", "user": "ann", "input_tokens": 0, "max_tokens": 5000}
WORDS = 400
ANSWER = httpx.Response(429, request=httpx.Request("POST", "http://provider"))


def chunks() -> Iterator[dict[str, Any]]:
    while True:
        yield {"choices": [{"index": 0, "delta": {"content": " word"}}]}


async def chunks_async() -> AsyncIterator[dict[str, Any]]:
    for chunk in chunks():
        yield chunk


async def used(gate: AsyncLlmGate) -> tuple[int, int]:
    """The requests and tokens that are charged."""
    call = await gate.reserve(**{**CALL, "max_tokens": 0})
    requests, tokens, places = (reading.remaining for reading in call.decision.limits)
    await call.cancel()
    assert places == 4
    return 60 - requests - 1, 100_000 - tokens


@pytest.mark.parametrize("way", ["break", "raise", "cancel", "dropped"])
def test_an_abandoned_stream_counts_what_was_read_of_it(way: str) -> None:
    async def main() -> None:
        async with AsyncLlmGate(POLICY, clock=ManualClock()) as gate:

            @gate.limited(user="ann", body=lambda: CALL)
            async def limited() -> Any:
                return chunks_async()

            async def read(stream: AsyncIterator[Any]) -> None:
                seen = 0
                async for _ in stream:
                    seen += 1
                    if seen == WORDS and way == "raise":
                        raise ZeroDivisionError
                    if seen == WORDS and way == "cancel":
                        await asyncio.Event().wait()
                    if seen == WORDS:
                        break

            async def leave() -> None:
                if way == "dropped":
                    await read(await limited())
                    return
                async with gate.call(**CALL) as call:
                    await read(call.stream(chunks_async()))

            leaving = asyncio.ensure_future(leave())
            await asyncio.wait([leaving], timeout=0.2)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await asyncio.sleep(0)
            assert (await used(gate))[1] >= WORDS

    asyncio.run(main())


@pytest.mark.parametrize("way", ["awaited", "cancelled"])
def test_the_text_of_a_long_stream_is_counted_while_the_event_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    counts, goes_on, usual = threading.Event(), threading.Event(), tokens.count_text

    def count_text(text: str, model: str) -> tokens.TokenCount:
        counts.set()
        assert goes_on.wait(10)
        return usual(text, model)

    async def main() -> None:
        async with AsyncLlmGate(POLICY, clock=ManualClock()) as gate:
            call = await gate.reserve(**CALL)
            reading = call.reading()
            reading.read({"choices": [{"index": 0, "delta": {"content": " word" * 4000}}]})
            monkeypatch.setattr(tokens, "count_text", count_text)
            settling = asyncio.ensure_future(call.settle_stream(reading.usage))
            assert await asyncio.to_thread(counts.wait, 10)
            await call.settle_failed()  # it is settled by its text already
            await call.settle_stream(reading.usage)
            if way == "cancelled":
                settling.cancel()
                await asyncio.sleep(0)
            goes_on.set()
            await asyncio.wait([settling])
            assert settling.cancelled() == (way == "cancelled")
            await all_answered(within_s=10)
            assert await used(gate) == (1, usual(" word" * 4000, "m").tokens)

    asyncio.run(main())


def test_an_abandoned_stream_that_is_still_referenced_counts_what_was_read_of_it() -> None:
    with LlmGate(POLICY, clock=ManualClock()) as gate:
        with gate.call(**CALL) as call:
            stream = call.stream(chunks())
            for _ in range(WORDS):
                next(stream)
        left = gate.reserve(**{**CALL, "max_tokens": 0}).decision.limits[1].remaining
        assert 100_000 - left >= WORDS
        del stream


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (httpx.HTTPStatusError("busy", request=ANSWER.request, response=ANSWER), (1, 0)),
        (httpx.ConnectError("nobody there"), (0, 0)),
        (httpx.ReadTimeout("no answer"), (1, 10)),
    ],
)
@pytest.mark.parametrize("is_limited", [True, False])
def test_a_call_that_fails_in_its_stream_is_settled_by_the_error(
    error: Exception, counts: tuple[int, int], is_limited: bool
) -> None:
    def fails() -> Iterator[Any]:
        raise error
        yield

    async def fails_async() -> AsyncIterator[Any]:
        raise error
        yield

    async def ask_async(gate: AsyncLlmGate) -> None:
        if is_limited:
            [chunk async for chunk in gate.limited(user="ann", body=lambda: CALL)(fails_async)()]
            return
        async with gate.call(**CALL) as call:
            [chunk async for chunk in call.stream(fails_async())]

    def call_model(gate: LlmGate) -> None:
        if is_limited:
            list(gate.limited(user="ann", body=lambda: CALL)(fails)())
            return
        with gate.call(**CALL) as call:
            list(call.stream(fails()))

    async def main() -> None:
        async with AsyncLlmGate(POLICY, clock=ManualClock()) as gate:
            with pytest.raises(type(error)):
                await ask_async(gate)
            assert await used(gate) == counts

    asyncio.run(main())
    with LlmGate(POLICY, clock=ManualClock()) as plain:
        with pytest.raises(type(error)):
            call_model(plain)
        requests, tokens, _ = plain.reserve(**{**CALL, "max_tokens": 0}).decision.limits
        assert (60 - requests.remaining - 1, 100_000 - tokens.remaining) == counts


def test_a_refusal_whose_call_is_cancelled_while_it_is_settled_frees_its_connection() -> None:
    class SlowStore(MemoryStore):
        def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
            bound = super().bind(limits, clock=clock)

            class Limits:
                def __getattr__(self, name: str) -> Any:
                    return getattr(bound, name)

                async def reserve(self, *arguments: Any) -> Any:
                    return bound.reserve(*arguments)

                async def commit(self, *arguments: Any) -> Any:
                    is_asked.set()
                    await goes_on.wait()
                    return bound.commit(*arguments)

            return Limits()

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"{}"

        async def aclose(self) -> None:
            is_closed.set()

    class Refusing(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(500, stream=Body())

    async def main() -> None:
        async with AsyncLlmGate(POLICY, store=SlowStore()) as gate, httpx.AsyncClient(transport=Refusing()) as plain:
            client = gate.wrap(plain, user="ann")
            asking = asyncio.ensure_future(client.post("http://provider/v1/chat/completions", json={"model": "m"}))
            await is_asked.wait()
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled() and is_closed.is_set()
            goes_on.set()
            await all_answered(within_s=10)

    is_asked, goes_on, is_closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    asyncio.run(main())
