"""Async generators that are limited: what is sent and thrown goes to them, as without a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate import AsyncLimiter
from subjects import make_store


@pytest.fixture(params=["9/hour", "2 concurrent; 9/hour"])
def limiter(request: pytest.FixtureRequest, core: str) -> AsyncLimiter:
    return AsyncLimiter(request.param, store=make_store(core))


def used(limiter: AsyncLimiter) -> list[int]:
    return [reading.limit - reading.remaining for reading in limiter.bound.peek("key", 0).limits]


def test_a_context_manager_that_is_limited_sees_how_its_block_ends(limiter: AsyncLimiter) -> None:
    endings: list[str] = []

    @asynccontextmanager
    @limiter.limit(key="key")
    async def transaction() -> AsyncIterator[str]:
        try:
            yield "open"
        except KeyError:
            endings.append("rolled back, and swallowed")
        except ValueError:
            endings.append("rolled back")
            raise
        else:
            endings.append("committed")

    async def main() -> None:
        async with transaction() as state:
            assert state == "open"
        async with transaction():
            raise KeyError
        error = ValueError("of the block")
        with pytest.raises(ValueError, match="of the block") as caught:
            async with transaction():
                raise error
        assert caught.value is error

    asyncio.run(main())
    assert endings == ["committed", "rolled back, and swallowed", "rolled back"]
    assert used(limiter)[-1] == 3
    assert used(limiter)[:-1] in ([], [0])


def test_an_async_generator_that_is_limited_gets_what_is_sent(limiter: AsyncLimiter) -> None:
    @limiter.limit(key="key")
    async def doubled() -> AsyncGenerator[int, int]:
        given = 0
        while given >= 0:
            given = yield given * 2

    async def main() -> None:
        values: Any = doubled()
        assert await anext(values) == 0
        assert await values.asend(4) == 8
        assert await values.asend(0) == 0
        with pytest.raises(StopAsyncIteration):
            await values.asend(-1)

    asyncio.run(main())
    assert used(limiter)[:-1] in ([], [0])


def test_a_cancelled_block_is_seen_by_the_generator_that_is_limited(limiter: AsyncLimiter) -> None:
    endings: list[type[BaseException]] = []

    @asynccontextmanager
    @limiter.limit(key="key")
    async def lock() -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            endings.append(type(error))
            raise

    async def main() -> None:
        async def work() -> None:
            async with lock():
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert endings == [asyncio.CancelledError]
    assert used(limiter)[:-1] in ([], [0])


def test_an_error_thrown_into_a_fallback_that_is_not_a_generator_is_raised(core: str) -> None:
    class Nothing:
        """An async iterator that is no generator."""

        def __aiter__(self) -> Nothing:
            return self

        async def __anext__(self) -> str:
            return "busy"

    limiter = AsyncLimiter("1/hour", store=make_store(core))

    @limiter.limit(key="key", on_refusal=Nothing)
    async def work() -> AsyncIterator[str]:
        yield "worked"

    async def main() -> None:
        assert [value async for value in work()] == ["worked"]
        values: Any = work()
        assert await anext(values) == "busy"
        with pytest.raises(KeyError):
            await values.athrow(KeyError())
        with pytest.raises(StopAsyncIteration):
            await anext(values)

    asyncio.run(main())
