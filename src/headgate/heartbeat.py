"""Leases that are extended while the work goes on: one thread for all of them, and one task on each event loop.

A lease is extended when a third of it is over. Where that is refused, as for a limit in debt, or the store does not
answer, it is tried again soon. A hold that is settled, lapsed or unknown is not extended any more. A reservation to
which nothing refers any more need not wait for its turn: see `hasten`.
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

_RETRY_SHARE = 9
"""After a refusal it is tried again when another ninth of the lease is over."""

_MAX_STOPPED = 64
"""Stopped reservations that the queue may contain in addition to as many as are running."""

_FINAL_OUTCOMES = ("lapsed", "already settled", "unknown")


class _Schedule:
    """Reservations by when their leases are due to be extended. Stopped ones stay in the queue until their turn."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Any]] = []
        self._numbers = count()
        self._running: dict[int, int] = {}
        """The number of the current entry of each reservation (by `id`) that is not stopped."""

    def add(self, reservation: Any, share: int = _SHARE) -> bool:
        """Have a lease extended after `1/share` of it; return whether that comes before all others."""
        entry = (SYSTEM_CLOCK.now_us() + reservation.lease_us // share, next(self._numbers), reservation)
        self._running[id(reservation)] = entry[1]
        heappush(self._queue, entry)
        return self._queue[0] is entry

    def remove(self, reservation: Any) -> None:
        self._running.pop(id(reservation), None)
        if len(self._queue) > 2 * len(self._running) + _MAX_STOPPED:
            self._queue = [entry for entry in self._queue if self._is_current(entry)]
            heapify(self._queue)

    def wait_s(self) -> float | None:
        """Seconds until the next is due; None where there is none."""
        while self._queue and not self._is_current(self._queue[0]):
            heappop(self._queue)
        return None if not self._queue else max(0.0, (self._queue[0][0] - SYSTEM_CLOCK.now_us()) / 1e6)

    def pop(self) -> Any:
        """Remove and return the reservation that is due, after `wait_s` returned 0."""
        return heappop(self._queue)[2]

    def is_running(self, reservation: Any) -> bool:
        """Whether a reservation was added, and not removed since."""
        return id(reservation) in self._running

    def note_outcome(self, reservation: Any, outcome: str) -> None:
        """Schedule the next extension by the outcome of this one, unless the reservation was stopped meanwhile."""
        if id(reservation) not in self._running:
            return
        if outcome in _FINAL_OUTCOMES or reservation.settled:
            del self._running[id(reservation)]
        else:
            self.add(reservation, _SHARE if outcome == "extended" else _RETRY_SHARE)

    def _is_current(self, entry: tuple[int, int, Any]) -> bool:
        return self._running.get(id(entry[2])) == entry[1]


class _Thread:
    """The thread that extends leases; it ends when there are none."""

    def __init__(self) -> None:
        self._schedule = _Schedule()
        self._lock = threading.RLock()
        self._wakeups: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Wakes the thread: None where another reservation is the next, else the one that is hastened."""
        self._running = False

    def start(self, reservation: Any) -> None:
        with self._lock:
            is_next = self._schedule.add(reservation)
            if not self._running:
                self._running = self._start_thread()
            elif is_next:
                self._wakeups.put(None)

    def hasten(self, reservation: Any) -> None:
        # No lock: the garbage collector may call this in the thread that holds it. `put` is reentrant.
        self._wakeups.put(reservation)

    def stop(self, reservation: Any) -> None:
        with self._lock:
            self._schedule.remove(reservation)

    def _start_thread(self) -> bool:
        """Start the thread; return whether it started. Where the system refuses one, the next start tries again.

        That one then extends the leases of all.
        """
        # gevent may make a greenlet of the thread since this was imported, as in a forked worker of gunicorn: waiting
        # for a queue that was made before that would block the whole process.
        self._wakeups = queue.SimpleQueue()
        try:
            threading.Thread(target=self._run, name="headgate-leases", daemon=True).start()
        except RuntimeError as error:
            log.warning("leases are not extended until a thread can be started: %s", error)
            return False
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                wait_s = self._schedule.wait_s()
                if wait_s is None:
                    self._running = False
                    return
                reservation = None if wait_s else self._schedule.pop()
            if reservation is None:
                reservation = self._wait(wait_s)
                with self._lock:
                    if reservation is None or not self._schedule.is_running(reservation):
                        continue
            try:
                outcome = reservation.extend().outcome
            except Exception as error:  # any error: the leases of others are still extended
                outcome = _failed(error)
            with self._lock:
                self._schedule.note_outcome(reservation, outcome)

    def _wait(self, wait_s: float) -> Any:
        """The reservation that is hastened within that time; None where there is none, or another is the next."""
        try:
            return self._wakeups.get(timeout=wait_s)
        except queue.Empty:
            return None


class _Task:
    """The task that extends the leases of one event loop; it ends when there are none."""

    def __init__(self) -> None:
        self._schedule = _Schedule()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, reservation: Any) -> None:
        is_next = self._schedule.add(reservation)
        if self._task is None:
            # A context of its own: that of the caller would stay alive, with all that it refers to.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())
        elif is_next:
            self._changed.set()

    def stop(self, reservation: Any) -> None:
        self._schedule.remove(reservation)

    async def _run(self) -> None:
        try:
            while (wait_s := self._schedule.wait_s()) is not None:
                if wait_s:
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(wait_s):
                            await self._changed.wait()
                    except TimeoutError:
                        pass
                    continue
                reservation = self._schedule.pop()
                try:
                    outcome = (await reservation.extend()).outcome
                except Exception as error:
                    outcome = _failed(error)
                self._schedule.note_outcome(reservation, outcome)
        finally:
            self._task = None


def _failed(error: Exception) -> str:
    """The outcome of an error: the extension is tried again soon, and a hold that no store has lapses by itself."""
    log.warning("a lease could not be extended: %s", error, exc_info=not isinstance(error, HeadgateError))
    return "refused"


_threads = [_Thread()]
"""The thread of this process."""

_tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Task] = WeakKeyDictionary()


def _after_fork() -> None:
    _threads[0] = _Thread()  # a child has neither the thread nor the holds


in_child(_after_fork)


def start(reservation: Any) -> None:
    """Extend the lease of a reservation until `stop`."""
    _threads[0].start(reservation)


def stop(reservation: Any) -> None:
    """Stop extending its lease."""
    _threads[0].stop(reservation)


def hasten(reservation: Any) -> None:
    """Extend its lease as soon as possible, if it was started in this process and not stopped.

    May be called anywhere, even by a destructor.
    """
    _threads[0].hasten(reservation)


def start_async(reservation: Any) -> None:
    """`start` on the running event loop."""
    loop = asyncio.get_running_loop()
    task = _tasks.get(loop)
    if task is None:
        _forget_ended_loops()
        task = _tasks[loop] = _Task()
    task.start(reservation)


def stop_async(reservation: Any) -> None:
    """`stop` on the running event loop."""
    task = _tasks.get(asyncio.get_running_loop())
    if task is not None:
        task.stop(reservation)


def _forget_ended_loops() -> None:
    """Drop the tasks of loops that have ended; they would keep the loops and their last reservations alive."""
    for reference in list(_tasks.keyrefs()):
        loop = reference()
        if loop is not None and loop.is_closed():
            _tasks.pop(loop, None)
