"""Streams of language models for benchmarks: begun at random moments, as those of clients are, or all in one."""

from __future__ import annotations

import asyncio
import json
import random
import time
from statistics import quantiles
from typing import NamedTuple

from benchmarks.servers import processor_seconds

_MESSAGE = {"role": "user", "content": "Tell me about the weather in the mountains, in fifty words. " * 5}
_BODY = json.dumps({"model": "m", "stream": True, "max_tokens": 100, "messages": [_MESSAGE]}).encode()
_HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
_REQUEST = f"{_HEAD}content-length: {len(_BODY)}\r\n\r\n".encode() + _BODY
_SEED = 7
_LONGEST_WAIT_S = 60.0

Address = tuple[str, int]


class Streams(NamedTuple):
    """So many streams open at a time, each with so many events, `pause_s` seconds apart in the mean."""

    streams: int
    events: int
    pause_s: float

    @property
    def length_s(self) -> float:
        """How long one lasts."""
        return self.events * self.pause_s

    @property
    def calls_a_second(self) -> float:
        return self.streams / self.length_s

    @property
    def events_a_second(self) -> float:
        return self.streams / self.pause_s


class Load(NamedTuple):
    """What streams took: milliseconds until the first byte of each, and how many of a core's seconds a second."""

    first_byte_ms: list[float]
    core_share: float

    def at(self, percent: int) -> float:
        """A percentile of the first bytes."""
        return quantiles(self.first_byte_ms, n=100, method="inclusive")[percent - 1]


async def steady(url: Address, streams: Streams, process: int | None, seconds: float) -> Load:
    """Keep streams open for so long, one beginning after another by a Poisson process, in each run at the same moments.

    Those of the first moments, until as many are open as there are to be, are not counted. Streams that began evenly
    would meet each other's events at ever the same few moments.
    """
    moments = random.Random(_SEED)
    loop = asyncio.get_running_loop()
    first: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    start = due = loop.time()
    used, began = 0.0, 0.0
    while due < start + streams.length_s + seconds:
        await asyncio.sleep(max(0.0, due - loop.time()))
        is_counted = due >= start + streams.length_s
        if is_counted and not began:
            began, used = time.perf_counter(), processor_seconds(process) if process else 0.0
        task = asyncio.create_task(_stream(url, first if is_counted else []))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += moments.expovariate(streams.calls_a_second)
    share = (processor_seconds(process) - used) / (time.perf_counter() - began) if process else 0.0
    await asyncio.gather(*tasks)
    return Load([seconds * 1000 for seconds in first], share)


async def burst(url: Address, calls: int) -> Load:
    """So many calls in one instant, on connections that are open."""
    connections = [await asyncio.open_connection(*url) for _ in range(calls)]
    first: list[float] = []
    await asyncio.gather(*(_ask(reader, writer, first) for reader, writer in connections))
    return Load([seconds * 1000 for seconds in first], 0.0)


async def _stream(url: Address, first: list[float]) -> None:
    """One call on a connection of its own, which is made before the time is taken."""
    await _ask(*await asyncio.open_connection(*url), first)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: list[float]) -> None:
    """The time until the first byte; an answer that does not end within a minute is an error, not a long benchmark."""
    began = time.perf_counter()
    async with asyncio.timeout(_LONGEST_WAIT_S):
        writer.write(_REQUEST)
        answered = await reader.readuntil(b"\r\n\r\n")
        assert answered.startswith(b"HTTP/1.1 200"), answered
        await reader.readuntil(b"\n\n")
        first.append(time.perf_counter() - began)
        end = b""
        while end != b"0\r\n\r\n" and (part := await reader.read(65536)):
            end = (end + part)[-5:]
    writer.close()
