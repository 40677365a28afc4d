"""Leases that are extended while the work goes on: one thread for all of them, and one task on each event loop.

A lease is extended at a third of it. Where that is refused, as it is for a limit in debt, or the store does not
answer, it is tried again soon; a hold that is settled, lapsed or unknown is left alone from then on. What nothing
refers to any more need not wait for its turn: see `hasten`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from headgate.clock import SYSTEM_CLOCK
from headgate.errors import HeadgateError
from headgate.forks import in_child

log = logging.getLogger("headgate")

_SHARE = 3
"""A lease is extended when a third of it is over."""

_SOON = 9
"""After a refusal it is tried again when another ninth is over."""

_TIDY = 64
"""Stopped ones that the queue may have beside as many as are running."""

_AT_AN_END = ("lapsed", "already settled", "unknown")


class _Beats:
    """Reservations by when their leases are to be extended. What is stopped stays in the queue until its turn."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Any]] = []
        self._numbers = count()
        self._running: dict[int, int] = {}
        """The number of the entry that counts, of each reservation (by `id`) that is not stopped."""

    def add(self, reservation: Any, share: int = _SHARE) -> bool:
        """Extend its lease after a share of it; whether that comes before all others."""
        entry = (SYSTEM_CLOCK.now_us() + reservation.lease_us // share, next(self._numbers), reservation)
        self._running[id(reservation)] = entry[1]
        heappush(self._queue, entry)
        return self._queue[0] is entry

    def remove(self, reservation: Any) -> None:
        self._running.pop(id(reservation), None)
        if len(self._queue) > 2 * len(self._running) + _TIDY:
            self._queue = [entry for entry in self._queue if self._counts(entry)]
            heapify(self._queue)

    def wait_s(self) -> float | None:
        """How long until the next is due; None where there is none."""
        while self._queue and not self._counts(self._queue[0]):
            heappop(self._queue)
        return None if not self._queue else max(0.0, (self._queue[0][0] - SYSTEM_CLOCK.now_us()) / 1e6)

    def pop(self) -> Any:
        """The one that is due, after `wait_s` said so."""
        return heappop(self._queue)[2]

    def runs(self, reservation: Any) -> bool:
        """Whether it was added, and not removed since."""
        return id(reservation) in self._running

    def extended(self, reservation: Any, outcome: str) -> None:
        """What came of an extension: when the next is due, if it was not stopped meanwhile."""
        if id(reservation) not in self._running:
            return
        if outcome in _AT_AN_END or reservation.settled:
            del self._running[id(reservation)]
        else:
            self.add(reservation, _SHARE if outcome == "extended" else _SOON)

    def _counts(self, entry: tuple[int, int, Any]) -> bool:
        return self._running.get(id(entry[2])) == entry[1]


class _Thread:
    """The thread that extends leases; it ends when there are none."""

    def __init__(self) -> None:
        self._beats = _Beats()
        self._lock = threading.RLock()
        self._woken: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """What wakes the thread: None where another is the next, else what is hastened."""
        self._running = False

    def start(self, reservation: Any) -> None:
        with self._lock:
            is_next = self._beats.add(reservation)
            if not self._running:
                self._running = self._begins()
            elif is_next:
                self._woken.put(None)

    def hasten(self, reservation: Any) -> None:
        # No lock: the garbage collector may call this in the thread that has it. `put` is made for that.
        self._woken.put(reservation)

    def stop(self, reservation: Any) -> None:
        with self._lock:
            self._beats.remove(reservation)

    def _begins(self) -> bool:
        """Whether the thread began. Where the system has no room for one, the next start tries again, for all."""
        # gevent may make a greenlet of the thread since this was imported, as in a forked worker of gunicorn: to wait
        # for a queue of before that would hold up the whole process.
        self._woken = queue.SimpleQueue()
        try:
            threading.Thread(target=self._run, name="headgate-leases", daemon=True).start()
        except RuntimeError as error:
            log.warning("leases are not extended until a thread can be started: %s", error)
            return False
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                wait_s = self._beats.wait_s()
                if wait_s is None:
                    self._running = False
                    return
                reservation = None if wait_s else self._beats.pop()
            if reservation is None:
                reservation = self._wait(wait_s)
                with self._lock:
                    if reservation is None or not self._beats.runs(reservation):
                        continue
            try:
                outcome = reservation.extend().outcome
            except Exception as error:  # whatever it is, the leases of others go on
                outcome = _failed(error)
            with self._lock:
                self._beats.extended(reservation, outcome)

    def _wait(self, wait_s: float) -> Any:
        """What is hastened before that time is over; None where nothing is, or another is the next."""
        try:
            return self._woken.get(timeout=wait_s)
        except queue.Empty:
            return None


class _Task:
    """The task that extends the leases of one event loop; it ends when there are none."""

    def __init__(self) -> None:
        self._beats = _Beats()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, reservation: Any) -> None:
        is_next = self._beats.add(reservation)
        if self._task is None:
            # A context of its own: that of the caller would be kept, with all that it refers to.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())
        elif is_next:
            self._changed.set()

    def stop(self, reservation: Any) -> None:
        self._beats.remove(reservation)

    async def _run(self) -> None:
        try:
            while (wait_s := self._beats.wait_s()) is not None:
                if wait_s:
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(wait_s):
                            await self._changed.wait()
                    except TimeoutError:
                        pass
                    continue
                reservation = self._beats.pop()
                try:
                    outcome = (await reservation.extend()).outcome
                except Exception as error:
                    outcome = _failed(error)
                self._beats.extended(reservation, outcome)
        finally:
            self._task = None


def _failed(error: Exception) -> str:
    """What an error comes to: it is tried again soon, and a hold that no store has any more lapses by itself."""
    log.warning("a lease could not be extended: %s", error, exc_info=not isinstance(error, HeadgateError))
    return "refused"


_threads = [_Thread()]
"""The one of this process."""

_tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Task] = WeakKeyDictionary()


def _after_fork() -> None:
    _threads[0] = _Thread()  # a child has neither the thread nor the holds


in_child(_after_fork)


def start(reservation: Any) -> None:
    """Extend the lease of a reservation until `stop`."""
    _threads[0].start(reservation)


def stop(reservation: Any) -> None:
    """Extend it no more."""
    _threads[0].stop(reservation)


def hasten(reservation: Any) -> None:
    """Extend it as soon as possible, if it was started in this process and not stopped.

    It may be called anywhere, by a destructor too.
    """
    _threads[0].hasten(reservation)


def start_async(reservation: Any) -> None:
    """`start` on the running event loop."""
    _tasks.setdefault(asyncio.get_running_loop(), _Task()).start(reservation)


def stop_async(reservation: Any) -> None:
    """`stop` on the running event loop."""
    task = _tasks.get(asyncio.get_running_loop())
    if task is not None:
        task.stop(reservation)
