"""Books that never make a call wait: a bounded queue in memory, and one thread of each process that writes.

`add` takes no lock that another thread holds while it waits, so it may be called anywhere, in a finalizer too.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections import deque
from collections.abc import Sequence
from itertools import count
from queue import Empty
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakSet

from headgate.clock import now_us
from headgate.errors import ArgumentError, ConfigError
from headgate.forks import register_for_forks
from headgate.llm.books.records import Dropped, Record
from headgate.llm.entry import Entry

log = logging.getLogger("headgate")

MOST_WAITING = 50_000
"""Entries that wait in memory until they are written; each takes about half a kilobyte."""

_MOST_AT_ONCE = 2_000
_PAUSE_S = 0.05
"""So long entries gather before they are written together."""

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0


class BooksFile(Protocol):
    """Where records go. Only one thread of a process calls it at one time; several processes may write."""

    @property
    def name(self) -> str:
        """The file, for messages."""
        ...

    def encode(self, record: Record) -> Any:
        """A record as `append` takes it; raises for one that cannot be written."""
        ...

    def append(self, encoded: Sequence[Any]) -> None:
        """Write all of these at the end, or none of them; raises OSError."""
        ...

    def close(self) -> None:
        """Close what is open; `append` opens it again."""
        ...

    def after_fork(self) -> None:
        """In a child process: let go of what the parent has open."""
        ...


class _Mark:
    """Stands in the queue: all that was added before it is written when `reached` is set."""

    __slots__ = ("ends", "reached")

    def __init__(self, *, ends: bool) -> None:
        self.reached = threading.Event()
        self.ends = ends


class QueuedBooks:
    """Books of one process that are written in the background; `open_books` makes them.

    When more than `most_waiting` entries wait, because the disk is slow or full, later ones are dropped. Their number
    is logged, and written into the books when they can be written again.
    """

    def __init__(self, file: BooksFile, *, most_waiting: int = MOST_WAITING) -> None:
        if most_waiting < 1:
            raise ArgumentError(f"at least one entry must be able to wait, not {most_waiting}")
        self._file = file
        self._most = most_waiting
        self._renew()
        _all.add(self)
        register_for_forks(self)

    def _renew(self) -> None:
        """Begin with nothing: at first, and in a child process, where the entries of the parent are the parent's."""
        self._drops = _Drops()
        self._thread: threading.Thread | None = None
        self._given_up = False
        self._has_told_failure = self._has_told_drops = False
        self._make_queue()

    def _make_queue(self) -> None:
        self._queue: queue.SimpleQueue[Entry | _Mark] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._starting, self._ending = threading.Lock(), threading.Lock()

    def _fit(self) -> None:
        """Have a queue of greenlets where gevent has replaced threads since, as in a forked worker of gunicorn.

        To wait for one of before would hold up the whole process.
        """
        if self._thread is None and type(self._queue) is not queue.SimpleQueue:
            before = self._queue
            self._make_queue()
            while not before.empty():
                self._queue.put(before.get_nowait())

    @property
    def name(self) -> str:
        """The file that is written."""
        return self._file.name

    @property
    def dropped(self) -> int:
        """Entries that this process could not write so far."""
        return self._drops.total

    def add(self, entry: Entry) -> None:
        """Take an entry; never waits for the disk and never raises."""
        if self._queue.qsize() >= self._most:
            self._drops.count()
            return
        self._queue.put(entry)
        if self._thread is None:
            self._start()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was added is written; False where that takes longer than `timeout` seconds."""
        self._fit()
        if self._thread is None and self._queue.empty():
            return True
        mark = _Mark(ends=False)
        self._queue.put(mark)
        self._start()
        self._hurry.set()
        return mark.reached.wait(timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Write what waits and close the file; False where that takes longer than `timeout` seconds.

        What is added later opens it again. At the end of a program, `close` is called by itself.
        """
        self._fit()
        with self._ending:
            if self._thread is None and self._queue.empty():
                self._file.close()
                return True
            mark = _Mark(ends=True)
            self._queue.put(mark)
            self._start(waits=True)
            thread = self._thread
            if thread is None:  # Python is ending, and starts no threads
                self._given_up = True
                self._run()
                return mark.reached.is_set()
            self._hurry.set()
            thread.join(timeout)
            if not thread.is_alive():
                return True
            self._given_up = True  # at the next attempt
            log.error("books %s: about %d entries are not written", self.name, self._queue.qsize())
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<books {self.name}>"

    def _start(self, *, waits: bool = False) -> None:
        """Start the thread that writes, once. Where another thread is about to, it `waits` for that."""
        self._fit()
        if self._thread is not None or not self._starting.acquire(blocking=waits):
            return
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="headgate-books", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError:
            pass  # no more threads: the next entry tries again, and `close` writes by itself
        finally:
            self._starting.release()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            taken = [self._queue.get()]
            self._hurry.wait(_PAUSE_S)
            while len(taken) < _MOST_AT_ONCE:
                try:
                    taken.append(self._queue.get_nowait())
                except Empty:
                    break
            marks = [one for one in taken if isinstance(one, _Mark)]
            self._write([one for one in taken if not isinstance(one, _Mark)])
            is_over = any(mark.ends for mark in marks)
            if marks:
                self._hurry.clear()
            if is_over:
                self._file.close()
                self._given_up = False
                self._thread = None  # what is added from here on starts another one
            for mark in marks:
                mark.reached.set()
        if not self._queue.empty():
            self._start()

    def _write(self, entries: Sequence[Entry]) -> None:
        """Write entries, and how many were dropped, as soon as the file takes them."""
        encoded = []
        for entry in entries:
            try:
                encoded.append(self._file.encode(entry))
            except Exception:  # one that no file can take must not hold up the others
                log.exception("books %s: an entry cannot be written", self.name)
                self._drops.count()
        retry_s = _FIRST_RETRY_S
        while encoded or self._drops.untold:
            untold = self._drops.untold
            note = [self._file.encode(Dropped(now_us(), untold))] if untold else []
            try:
                self._file.append([*encoded, *note])
            except (OSError, ConfigError) as error:  # the latter where something else is at its place
                self._tell_failure(error)
                if self._given_up:
                    self._drops.count(len(encoded))
                    return
                self._hurry.clear()
                self._hurry.wait(retry_s)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
            else:
                self._tell_success(untold)
                return

    def _tell_failure(self, error: OSError | ConfigError) -> None:
        if not self._has_told_failure:
            self._has_told_failure = True
            log.error("books %s: cannot be written, entries wait: %s", self.name, error)

    def _tell_success(self, dropped: int) -> None:
        if self._has_told_failure:
            self._has_told_failure = False
            log.warning("books %s: are written again", self.name)
        if dropped:
            self._drops.told += dropped
            if not self._has_told_drops:
                log.error("books %s: %d entries were dropped, as too many waited", self.name, dropped)
        self._has_told_drops = bool(dropped)

    def after_fork(self) -> None:
        self._renew()
        self._file.after_fork()


class _Drops:
    """Counts without a lock, so that a finalizer can count in the middle of another count."""

    __slots__ = ("_highest", "_latest", "_tickets", "told")

    def __init__(self) -> None:
        self._tickets = count(1)
        self._latest: deque[int] = deque(maxlen=1024)
        self._highest = 0
        self.told = 0

    def count(self, times: int = 1) -> None:
        for _ in range(times):
            self._latest.append(next(self._tickets))

    @property
    def total(self) -> int:
        """The highest ticket that was taken: threads note theirs in any order."""
        self._highest = max(self._highest, *self._latest.copy(), 0)
        return self._highest

    @property
    def untold(self) -> int:
        return self.total - self.told


_all: WeakSet[QueuedBooks] = WeakSet()


def _at_exit() -> None:
    for books in list(_all):
        books.close()


atexit.register(_at_exit)
