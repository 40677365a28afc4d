"""Streams of language models for benchmarks: started at random times, as those of clients, or all at once."""

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
    """The result of a load: milliseconds to the first byte of each stream, and the share of one core."""

    first_byte_ms: list[float]
    core_share: float

    def at(self, percent: int) -> float:
        """A percentile of the first bytes."""
        return quantiles(self.first_byte_ms, n=100, method="inclusive")[percent - 1]


async def steady(url: Address, streams: Streams, process: int | None, seconds: float) -> Load:
    """Keep streams open for so long; they start by a Poisson process, in each run at the same times.

    The first ones, until the full number is open, are not counted. With streams that started at even intervals, the
    events of all would always coincide at the same few times.
    """
    moments = random.Random(_SEED)
    loop = asyncio.get_running_loop()
    first: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    start = due = loop.time()
    used, start_s = 0.0, 0.0
    while due < start + streams.length_s + seconds:
        await asyncio.sleep(max(0.0, due - loop.time()))
        is_counted = due >= start + streams.length_s
        if is_counted and not start_s:
            start_s, used = time.perf_counter(), processor_seconds(process) if process else 0.0
        task = asyncio.create_task(_stream(url, first if is_counted else []))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += moments.expovariate(streams.calls_a_second)
    share = (processor_seconds(process) - used) / (time.perf_counter() - start_s) if process else 0.0
    await asyncio.gather(*tasks)
    return Load([seconds * 1000 for seconds in first], share)


async def burst(url: Address, calls: int) -> Load:
    """Send all calls at once, on open connections."""
    connections = [await asyncio.open_connection(*url) for _ in range(calls)]
    first: list[float] = []
    await asyncio.gather(*(_send_call(reader, writer, first) for reader, writer in connections))
    return Load([seconds * 1000 for seconds in first], 0.0)


async def _stream(url: Address, first: list[float]) -> None:
    """Send one call on a new connection, which is opened before the time is taken."""
    await _send_call(*await asyncio.open_connection(*url), first)


async def _send_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: list[float]) -> None:
    """Measure the time to the first byte; an answer that does not end within a minute is an error."""
    start_s = time.perf_counter()
    async with asyncio.timeout(_LONGEST_WAIT_S):
        writer.write(_REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readuntil(b"\n\n")
        first.append(time.perf_counter() - start_s)
        end = b""
        while end != b"0\r\n\r\n" and (part := await reader.read(65536)):
            end = (end + part)[-5:]
    writer.close()
