"""Sleeping on an event loop, and waking on time.

The timers of an event loop count in milliseconds (epoll's unit), so a task wakes up to one millisecond late. A bucket
of small capacity loses the refill of that time: ten turns at a hundred a second take 6 % longer. Linux has timers that
the kernel keeps in nanoseconds and a loop can watch (timerfd, see timerfd_create(2)): each loop gets one while tasks
sleep. Without those, and for a second and more, the loop's own timers are used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any
from weakref import WeakKeyDictionary, ref

from headgate.clock import monotonic_ns
from headgate.drive import check_asyncio

_NS_PER_SECOND = 1_000_000_000
_LONGEST_NS = _NS_PER_SECOND
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class _TimeSpec(ctypes.Structure):
    """`struct timespec`."""

    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`: when the timer expires first, and at which interval from then on."""

    _fields_ = (("interval", _TimeSpec), ("first", _TimeSpec))


def _system_timers() -> Any:
    """The library that has timers a loop can watch; None where the system has none."""
    if sys.platform != "linux":
        return None
    with suppress(OSError):
        library = ctypes.CDLL(None)
        if hasattr(library, "timerfd_create"):
            return library
    return None


_SYSTEM = _system_timers()
_timers: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_LoopTimer]] = WeakKeyDictionary()
"""Timers of loops on which tasks sleep now. Each loop keeps its timer alive, and may be closed while tasks sleep."""


async def sleep(seconds: float) -> None:
    """Sleep for at least `seconds`, and hardly longer where the loop has a timer of the system."""
    check_asyncio()
    duration_ns = int(seconds * _NS_PER_SECOND)
    if 0 < duration_ns < _LONGEST_NS:
        loop = asyncio.get_running_loop()
        timer_ref = _timers.get(loop)
        timer = (timer_ref and timer_ref()) or _open(loop)
        if timer is not None:
            await timer.sleep(monotonic_ns() + duration_ns)
            return
    await asyncio.sleep(seconds)


def _open(loop: asyncio.AbstractEventLoop) -> _LoopTimer | None:
    """Open a timer that a loop watches; None where it cannot have one."""
    file = -1 if _SYSTEM is None else _SYSTEM.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if file < 0:
        return None
    timer = _LoopTimer(file)
    try:
        loop.add_reader(file, timer.wake_due)
    except NotImplementedError:
        return None
    _timers[loop] = ref(timer)
    return timer


class _LoopTimer:
    """A timer of the system that wakes the tasks of one loop; closed when none of them sleeps any more."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap of (when a task is to wake, a serial number, its future); a future that is done was cancelled."""

        self._number = 0
        self._asleep = 0

    def __del__(self) -> None:
        self._close()

    async def sleep(self, until_ns: int) -> None:
        """Sleep until a moment of the monotonic clock."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._number += 1
        self._asleep += 1
        heappush(self._sleepers, (until_ns, self._number, woken))
        if self._sleepers[0][2] is woken:
            self._set(until_ns)
        try:
            await woken
        finally:
            self._asleep -= 1
            if not self._asleep and _timers.pop(loop, None) is not None:
                loop.remove_reader(self._file)
                self._close()

    def wake_due(self) -> None:
        """Wake the tasks that are due, and set the timer for the next."""
        with suppress(BlockingIOError):  # it was set again before it was read
            os.read(self._file, 8)
        now_ns = monotonic_ns()
        while self._sleepers and (self._sleepers[0][0] <= now_ns or self._sleepers[0][2].done()):
            woken = heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)
        if self._sleepers:
            self._set(self._sleepers[0][0])

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _set(self, until_ns: int) -> None:
        first = _TimeSpec(*divmod(until_ns, _NS_PER_SECOND))
        _SYSTEM.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(_TimerSpec(_TimeSpec(0, 0), first)), None)
