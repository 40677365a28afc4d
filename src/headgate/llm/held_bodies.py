"""The bodies of answers to held calls: passed on as they arrive; each settles its call before its end is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from headgate.collector import call_outside
from headgate.drive import begun
from headgate.llm.call import AsyncCall, Call
from headgate.llm.held_requests import AnswerReading
from headgate.llm.tokens import count_text, count_text_async


class HeldBody:
    """The body of one answer, for threads; `raw` is a response of the client's library, which decodes it."""

    def __init__(self, raw: Any, reading: AnswerReading, call: Call) -> None:
        self._raw = raw
        self._reading = reading
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        reading = self._reading
        try:
            for chunk in self._raw.iter_bytes():
                passed_on = reading.feed(chunk)
                if reading.has_ended:  # before the client sees the end, as it may call again at once
                    self._settle()
                if passed_on:
                    yield passed_on
                if self._is_used_up():
                    rest = reading.cut(count_text(reading.stream.usage.text, self._call.model).tokens)
                    break
            else:
                rest = reading.end()
            self._settle()
            if rest:
                yield rest
        finally:
            self.close()

    def close(self) -> None:
        """End the answer here, and settle the call by what was read of it."""
        try:
            self._raw.close()
        finally:
            self._settle()

    def _is_used_up(self) -> bool:
        """Whether no more can be held for the output read so far, which may need several slices."""
        while self._reading.needs_more:
            if not self._call.hold_more(self._reading.stream):
                return True
        return False

    def _settle(self) -> None:
        reading, call = self._reading, self._call
        if reading.answer is not None:
            call.settle(reading.answer)
        elif reading.is_stream:
            call.settle_stream(reading.stream.usage)
        call.__exit__(None, None, None)

    def __del__(self) -> None:
        if not self._call.settled:
            call_outside(self.close)


class AsyncHeldBody:
    """`HeldBody` for asyncio."""

    def __init__(self, raw: Any, reading: AnswerReading, call: AsyncCall) -> None:
        self._raw = raw
        self._reading = reading
        self._call = call
        self._loop = asyncio.get_running_loop()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reading = self._reading
        try:
            async for chunk in self._raw.aiter_bytes():
                passed_on = reading.feed(chunk)
                if reading.has_ended:
                    await self._settle()
                if passed_on:
                    yield passed_on
                if await self._is_used_up():
                    counted = await count_text_async(reading.stream.usage.text, self._call.model)
                    rest = reading.cut(counted.tokens)
                    break
            else:
                rest = reading.end()
            await self._settle()
            if rest:
                yield rest
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End the answer here, and settle the call by what was read of it."""
        try:
            await self._raw.aclose()
        finally:
            await self._settle()

    async def _is_used_up(self) -> bool:
        """See `HeldBody._is_used_up`."""
        while self._reading.needs_more:
            if not await self._call.hold_more(self._reading.stream):
                return True
        return False

    async def _settle(self) -> None:
        await _settle(self._reading, self._call)

    def __del__(self) -> None:
        if not self._call.settled and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_end_in_task, self._raw, self._reading, self._call)


async def _settle(reading: AnswerReading, call: AsyncCall) -> None:
    if reading.answer is not None:
        await call.settle(reading.answer)
    elif reading.is_stream:
        await call.settle_stream(reading.stream.usage)
    await call.__aexit__(None, None, None)


def _end_in_task(raw: Any, reading: AnswerReading, call: AsyncCall) -> None:
    """Close an answer that was dropped without being closed, in a task."""

    async def end() -> None:
        try:
            await raw.aclose()
        finally:
            await _settle(reading, call)

    begun(end())
