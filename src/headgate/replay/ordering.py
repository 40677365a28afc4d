"""Entries in the order of their times, in flat memory.

Logs are nearly sorted: a server writes a line when a request ends. A window of fifty thousand entries (smaller ones for
many logs) sorts such a log as it is read; the native core does that for entries of any kind, and merges several logs. A
log that is further out of order is sorted through temporary files instead, from its beginning; the result is the same.
Entries with equal times keep the order of their lines, and the order in which the logs were named.
"""

from __future__ import annotations

import heapq
import marshal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from headgate import core
from headgate.replay.entries import Block, Entry

_WINDOW = 50_000
_STEP = 25_000
"""The number of entries that leave the window together."""

_ALL_WINDOWS = 400_000
_LEAST_WINDOW = 2_000
"""The windows of many logs share the memory of eight, so that a year of daily logs can be read at once."""

_RUN_ENTRIES = 200_000
_BLOCK_ENTRIES = 2_000
_time_of = itemgetter(0)


class FarOutOfOrder(Exception):
    """An entry is older than one that has already left the window."""


def ordered(streams: Sequence[Iterable[Block]]) -> Iterator[Block]:
    """Merge the entries of nearly sorted streams; raises FarOutOfOrder where a window is too small to sort them."""
    native = core.native
    share = max(_LEAST_WINDOW, _ALL_WINDOWS // max(1, len(streams)))
    size, step = min(_WINDOW, share), min(_STEP, share // 2)
    windows = [
        _windowed(stream, size, step) if native is None else _native_windowed(stream, size, step, native)
        for stream in streams
    ]
    if len(windows) == 1:
        return windows[0]
    if native is not None:
        return _native_merged(windows, native)
    return _blocks(heapq.merge(*map(chain.from_iterable, windows), key=_time_of))


def sorted_on_disk(streams: Sequence[Iterable[Block]], folder: Path) -> Iterator[Block]:
    """Merge the entries of any streams in order, through files in `folder`."""
    runs: list[Iterator[Entry]] = []
    for run in _runs(chain.from_iterable(streams)):
        run.sort(key=_time_of)
        runs.append(_spilled(run, folder))
    return _blocks(heapq.merge(*runs, key=_time_of))


def _windowed(stream: Iterable[Block], size: int, step: int) -> Iterator[Block]:
    window: list[Entry] = []
    latest = -1
    for block in stream:
        window += block
        if len(window) >= size + step:
            window.sort(key=_time_of)
            if window[0][0] < latest:
                raise FarOutOfOrder
            leaving = window[:-size]
            yield leaving
            latest = leaving[-1][0]
            del window[: len(leaving)]
    window.sort(key=_time_of)
    if window and window[0][0] < latest:
        raise FarOutOfOrder
    yield window


def _native_windowed(stream: Iterable[Block], size: int, step: int, native: Any) -> Iterator[Block]:
    """`_windowed` by the native core, with native blocks."""
    window = native.LogBlock()
    latest = -1
    for block in stream:
        window.append(block if isinstance(block, native.LogBlock) else native.LogBlock(block))
        if len(window) >= size + step:
            window.sort()
            if window.ends_us[0] < latest:
                raise FarOutOfOrder
            leaving = window.take_first(len(window) - size)
            latest = leaving.ends_us[1]
            yield leaving
    window.sort()
    if len(window) and window.ends_us[0] < latest:
        raise FarOutOfOrder
    yield window


def _native_merged(windows: Sequence[Iterator[Block]], native: Any) -> Iterator[Block]:
    """`heapq.merge` of blocks by the native core."""
    merge = native.LogMerge(len(windows))
    while True:
        while (wanted := merge.wants) is not None:
            merge.give(wanted, next(windows[wanted], None))
        merged = merge.merged()
        if not len(merged):
            return
        yield merged


def _runs(stream: Iterable[Block]) -> Iterator[list[Entry]]:
    run: list[Entry] = []
    for block in stream:
        run += block
        if len(run) >= _RUN_ENTRIES:
            yield run
            run = []
    if run:
        yield run


def _blocks(entries: Iterator[Entry]) -> Iterator[Block]:
    while block := list(islice(entries, _BLOCK_ENTRIES)):
        yield block


def _spilled(run: list[Entry], folder: Path) -> Iterator[Entry]:
    """Write a sorted run to a file now, and read it back on demand."""
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the reader closes it
    for start in range(0, len(run), _BLOCK_ENTRIES):
        marshal.dump(run[start : start + _BLOCK_ENTRIES], file)
    file.seek(0)
    return _read_back(file)


def _read_back(file: IO[bytes]) -> Iterator[Entry]:
    with file:
        while True:
            try:
                block = marshal.load(file)
            except EOFError:
                return
            yield from block
