"""Books that never make a call wait: a bounded queue in memory, and a thread in each process that writes.

`add` takes no lock that another thread holds while it waits, so it may be called anywhere, even in a finalizer.
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
"""The most entries that wait in memory until they are written; each takes about half a kilobyte."""

_LARGEST_BATCH = 2_000
_GATHER_S = 0.05
"""How long entries gather before they are written together."""

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0


class BooksFile(Protocol):
    """Stores records. Only one thread of a process calls it at a time; several processes may write."""

    @property
    def name(self) -> str:
        """The file, for messages."""
        ...

    def encode(self, record: Record) -> Any:
        """Encode a record for `append`; raises for one that cannot be written."""
        ...

    def append(self, encoded: Sequence[Any]) -> None:
        """Write all of these at the end, or none of them; raises OSError."""
        ...

    def close(self) -> None:
        """Close what is open; `append` opens it again."""
        ...

    def after_fork(self) -> None:
        """In a child process: release what the parent has open."""
        ...


class _Mark:
    """A mark in the queue: when `reached` is set, everything that was added before it is written."""

    __slots__ = ("ends", "reached")

    def __init__(self, *, ends: bool) -> None:
        self.reached = threading.Event()
        self.ends = ends


class QueuedBooks:
    """Books of one process that are written in the background; `open_books` creates them.

    When more than `most_waiting` entries wait, because the disk is slow or full, later ones are dropped. Their number
    is logged, and recorded in the books when these can be written again.
    """

    def __init__(self, file: BooksFile, *, most_waiting: int = MOST_WAITING) -> None:
        if most_waiting < 1:
            raise ArgumentError(f"at least one entry must be able to wait, not {most_waiting}")
        self._file = file
        self._most = most_waiting
        self._reset()
        _instances.add(self)
        register_for_forks(self)

    def _reset(self) -> None:
        """Begin without entries: at first, and in a child process, as the parent writes its own entries."""
        self._drops = _Drops()
        self._thread: threading.Thread | None = None
        self._has_given_up = False
        self._has_logged_failure = self._has_logged_drops = False
        self._make_queue()

    def _make_queue(self) -> None:
        self._queue: queue.SimpleQueue[Entry | _Mark] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._starting, self._ending = threading.Lock(), threading.Lock()

    def _adapt_to_gevent(self) -> None:
        """Make the queue anew where gevent has replaced threads since, as in a forked worker of gunicorn.

        Waiting for the old queue would block the whole process.
        """
        if self._thread is None and type(self._queue) is not queue.SimpleQueue:
            old_queue = self._queue
            self._make_queue()
            while not old_queue.empty():
                self._queue.put(old_queue.get_nowait())

    @property
    def name(self) -> str:
        """The path of the file."""
        return self._file.name

    @property
    def dropped(self) -> int:
        """The number of entries that this process could not write so far."""
        return self._drops.total

    def add(self, entry: Entry) -> None:
        """Add an entry; never waits for the disk and never raises."""
        if self._queue.qsize() >= self._most:
            self._drops.count()
            return
        self._queue.put(entry)
        if self._thread is None:
            self._start()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was added is written; False where that takes longer than `timeout` seconds."""
        self._adapt_to_gevent()
        if self._thread is None and self._queue.empty():
            return True
        mark = _Mark(ends=False)
        self._queue.put(mark)
        self._start()
        self._wake.set()
        return mark.reached.wait(timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Write the waiting entries and close the file; False where that takes longer than `timeout` seconds.

        Adding an entry later opens it again. At the end of a program, `close` is called automatically.
        """
        self._adapt_to_gevent()
        with self._ending:
            if self._thread is None and self._queue.empty():
                self._file.close()
                return True
            mark = _Mark(ends=True)
            self._queue.put(mark)
            self._start(waits=True)
            thread = self._thread
            if thread is None:  # Python is ending, and starts no threads
                self._has_given_up = True
                self._run()
                return mark.reached.is_set()
            self._wake.set()
            thread.join(timeout)
            if not thread.is_alive():
                return True
            self._has_given_up = True  # at the next attempt
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
        """Start the thread that writes, once. If another thread is about to start it, this call `waits` for that."""
        self._adapt_to_gevent()
        if self._thread is not None or not self._starting.acquire(blocking=waits):
            return
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="headgate-books", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError:
            pass  # no more threads: the next entry tries again, and `close` writes itself
        finally:
            self._starting.release()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            taken = [self._queue.get()]
            self._wake.wait(_GATHER_S)
            while len(taken) < _LARGEST_BATCH:
                try:
                    taken.append(self._queue.get_nowait())
                except Empty:
                    break
            marks = [item for item in taken if isinstance(item, _Mark)]
            self._write([item for item in taken if not isinstance(item, _Mark)])
            is_over = any(mark.ends for mark in marks)
            if marks:
                self._wake.clear()
            if is_over:
                self._file.close()
                self._has_given_up = False
                self._thread = None  # an entry that is added from here on starts another one
            for mark in marks:
                mark.reached.set()
        if not self._queue.empty():
            self._start()

    def _write(self, entries: Sequence[Entry]) -> None:
        """Write entries, and how many were dropped, as soon as the file can be written."""
        encoded = []
        for entry in entries:
            try:
                encoded.append(self._file.encode(entry))
            except Exception:  # one that cannot be encoded must not block the others
                log.exception("books %s: an entry cannot be written", self.name)
                self._drops.count()
        retry_s = _FIRST_RETRY_S
        while encoded or self._drops.unreported:
            unreported = self._drops.unreported
            notice = [self._file.encode(Dropped(now_us(), unreported))] if unreported else []
            try:
                self._file.append([*encoded, *notice])
            except (OSError, ConfigError) as error:  # ConfigError where something else is at the path
                self._log_failure(error)
                if self._has_given_up:
                    self._drops.count(len(encoded))
                    return
                self._wake.clear()
                self._wake.wait(retry_s)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
            else:
                self._log_success(unreported)
                return

    def _log_failure(self, error: OSError | ConfigError) -> None:
        if not self._has_logged_failure:
            self._has_logged_failure = True
            log.error("books %s: cannot be written, entries wait: %s", self.name, error)

    def _log_success(self, dropped: int) -> None:
        if self._has_logged_failure:
            self._has_logged_failure = False
            log.warning("books %s: are written again", self.name)
        if dropped:
            self._drops.reported += dropped
            if not self._has_logged_drops:
                log.error("books %s: %d entries were dropped, as too many waited", self.name, dropped)
        self._has_logged_drops = bool(dropped)

    def after_fork(self) -> None:
        self._reset()
        self._file.after_fork()


class _Drops:
    """Counts without a lock, so that a finalizer can count while another count is in progress."""

    __slots__ = ("_highest", "_latest", "_tickets", "reported")

    def __init__(self) -> None:
        self._tickets = count(1)
        self._latest: deque[int] = deque(maxlen=1024)
        self._highest = 0
        self.reported = 0

    def count(self, times: int = 1) -> None:
        for _ in range(times):
            self._latest.append(next(self._tickets))

    @property
    def total(self) -> int:
        """The highest ticket that was taken: threads record theirs in any order."""
        self._highest = max(self._highest, *self._latest.copy(), 0)
        return self._highest

    @property
    def unreported(self) -> int:
        return self.total - self.reported


_instances: WeakSet[QueuedBooks] = WeakSet()


def _at_exit() -> None:
    for books in list(_instances):
        books.close()


atexit.register(_at_exit)
