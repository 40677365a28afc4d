"""Waiting in tests for what other threads, tasks and processes do: until it is so, at most half a minute."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LONGEST_S = 30


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + _LONGEST_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


async def until_async(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + _LONGEST_S
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@contextmanager
def in_thread(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """What a call in another thread gives, once the block and the call have ended."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    yield results
    thread.join(60)
    assert not thread.is_alive()
