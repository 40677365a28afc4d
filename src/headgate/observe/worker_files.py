"""The files in which several workers count: each has its own, and all are read together."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headgate.errors import MissingExtraError

try:
    from prometheus_client import CollectorRegistry, values
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.mmap_dict import MmapedDict
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("a page of metrics for Prometheus", extra="service", why=error) from error

log = logging.getLogger("headgate")

ROOM_OF_WORKER, ROOM_OF_RULE = 1 << 18, 1 << 10
"""Bytes of the four files of a worker, as long as they do not grow, and what each rule adds to that."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BESIDE_A_KEY = 28
"""Bytes that an entry takes beside its key: its length, up to eight of padding, two numbers."""


class WorkerCounts(NamedTuple):
    """How many workers answer, and how often one was started again."""

    answering: int
    restarts: int


class Sharing(NamedTuple):
    """What makes the figures of several workers one set: each counts in files of its own, all are read together.

    The files bear the worker's number (from 1), not its process: a worker's successor counts on from where it
    ended, so figures never fall and files do not pile up.
    """

    folder: Path
    worker: int
    workers: Callable[[], WorkerCounts]


def make_files(folder: Path, workers: int, rules: int = 0) -> None:
    """Make the files of all workers, empty, before any process could read one half made; `rules` are counted in them.

    Raises OSError where there is no room for them: a worker that first touches a page without room would be killed.
    """
    for worker in range(1, workers + 1):
        for kind in ("counter", "histogram", "gauge_min", "gauge_sum"):
            file = folder / f"{kind}_{worker}.db"
            with file.open("wb") as made:
                try:
                    room = ROOM_OF_WORKER // 4 + (rules * ROOM_OF_RULE if kind == "counter" else 0)
                    os.posix_fallocate(made.fileno(), 0, room)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(file)) from error
            MmapedDict(str(file)).close()  # type: ignore[no-untyped-call]


class _RoomyFile(MmapedDict):
    """A file that grows only where there is room for it: to touch a page without room kills the process.

    A figure that has no room yet is left out, and is whole once there is room: the library keeps its value.
    """

    _is_full = False

    def read_value(self, key: str) -> tuple[float, float]:
        """(value, time) of a figure, which is made where it is new."""
        return super().read_value(key) if self._has_room(key) else (0.0, 0.0)  # type: ignore[no-untyped-call]

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Change a figure."""
        if self._has_room(key):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def _has_room(self, key: str) -> bool:
        file = self._f
        if key in self._positions or file is None:
            return True
        end = self._used + len(key.encode()) + _BESIDE_A_KEY
        if end <= self._capacity:
            return True
        capacity = self._capacity
        while capacity < end:
            capacity *= 2
        try:
            os.posix_fallocate(file.fileno(), 0, capacity)
        except OSError as error:
            if error.errno not in _NO_ROOM:  # some file systems cannot say
                return True
            with suppress(OSError):  # what it took for nothing
                os.ftruncate(file.fileno(), self._capacity)
            if not self._is_full:
                self._is_full = True
                log.error("%s: %s: new metrics are left out until there is room", self._fname, error.strerror)
            return False
        self._is_full = False
        return True


def registries(sharing: Sharing | None) -> tuple[CollectorRegistry, CollectorRegistry | None]:
    """The registry whose figures are shown, and the one where figures are registered.

    With `sharing` the latter is None: figures made from now on in this process are kept in the files of this worker,
    by its number, and are shown from the files of all.
    """
    shown = CollectorRegistry()
    if sharing is None:
        return shown, shown
    values.MmapedDict = _RoomyFile  # type: ignore[attr-defined]
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(sharing.folder)
    values.ValueClass = values.MultiProcessValue(lambda: sharing.worker)  # type: ignore[no-untyped-call]
    MultiProcessCollector(shown, str(sharing.folder))  # type: ignore[no-untyped-call]
    shown.register(_WorkersCollector(sharing.workers))
    return shown, None


class _WorkersCollector(Collector):
    """What the supervisor counts about the workers, read when the figures are."""

    def __init__(self, workers: Callable[[], WorkerCounts]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        counts = self._workers()
        yield GaugeMetricFamily("headgate_workers", "Workers that answer now", counts.answering)
        yield CounterMetricFamily(
            "headgate_worker_restarts", "Workers started again because one had ended", counts.restarts
        )
