"""The files of the metrics of several workers: each worker has its own, and all are read together."""

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

BYTES_PER_WORKER, BYTES_PER_RULE = 1 << 18, 1 << 10
"""Initial bytes of the four files of a worker, and the bytes that each rule adds."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ENTRY_OVERHEAD = 28
"""Bytes of an entry without its key: the key's length, up to eight bytes of padding, two numbers."""


class WorkerCounts(NamedTuple):
    """How many workers answer, and how often one was restarted."""

    answering: int
    restarts: int


class Sharing(NamedTuple):
    """How several workers share one set of metrics: each counts in files of its own, and all are read together.

    The files are named by the worker's number (from 1), not by its process: a worker's successor continues its
    counts, so metrics never decrease and files do not accumulate.
    """

    folder: Path
    worker: int
    workers: Callable[[], WorkerCounts]


def make_files(folder: Path, workers: int, rules: int = 0) -> None:
    """Create the empty files of all workers, for `rules` rules, before any process could read an incomplete one.

    Raises OSError where there is no space for them: a worker that first touches a page without space would be killed.
    """
    for worker in range(1, workers + 1):
        for kind in ("counter", "histogram", "gauge_min", "gauge_sum"):
            file = folder / f"{kind}_{worker}.db"
            with file.open("wb") as opened:
                try:
                    size = BYTES_PER_WORKER // 4 + (rules * BYTES_PER_RULE if kind == "counter" else 0)
                    os.posix_fallocate(opened.fileno(), 0, size)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(file)) from error
            MmapedDict(str(file)).close()  # type: ignore[no-untyped-call]


class _PreallocatedFile(MmapedDict):
    """A file that grows only where there is space for it: to touch a page without space kills the process.

    A metric without space is left out, and is complete once there is space: the library keeps its value.
    """

    _is_full = False

    def read_value(self, key: str) -> tuple[float, float]:
        """(value, time) of a metric, which is created where it is new."""
        return super().read_value(key) if self._has_space(key) else (0.0, 0.0)  # type: ignore[no-untyped-call]

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Change the value of a metric."""
        if self._has_space(key):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def _has_space(self, key: str) -> bool:
        file = self._f
        if key in self._positions or file is None:
            return True
        end = self._used + len(key.encode()) + _ENTRY_OVERHEAD
        if end <= self._capacity:
            return True
        capacity = self._capacity
        while capacity < end:
            capacity *= 2
        try:
            os.posix_fallocate(file.fileno(), 0, capacity)
        except OSError as error:
            if error.errno not in _NO_SPACE:  # some file systems cannot preallocate
                return True
            with suppress(OSError):  # release what was allocated in vain
                os.ftruncate(file.fileno(), self._capacity)
            if not self._is_full:
                self._is_full = True
                log.error("%s: %s: new metrics are left out until there is room", self._fname, error.strerror)
            return False
        self._is_full = False
        return True


def registries(sharing: Sharing | None) -> tuple[CollectorRegistry, CollectorRegistry | None]:
    """The registry whose metrics are exposed, and the one where metrics are registered.

    With `sharing` the latter is None: metrics created from now on in this process are in the files of this worker, by
    its number, and are exposed from the files of all workers.
    """
    registry = CollectorRegistry()
    if sharing is None:
        return registry, registry
    values.MmapedDict = _PreallocatedFile  # type: ignore[attr-defined]
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(sharing.folder)
    values.ValueClass = values.MultiProcessValue(lambda: sharing.worker)  # type: ignore[no-untyped-call]
    MultiProcessCollector(registry, str(sharing.folder))  # type: ignore[no-untyped-call]
    registry.register(_WorkersCollector(sharing.workers))
    return registry, None


class _WorkersCollector(Collector):
    """The supervisor's counts of the workers, read with the metrics."""

    def __init__(self, workers: Callable[[], WorkerCounts]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        counts = self._workers()
        yield GaugeMetricFamily("headgate_workers", "Workers that answer now", counts.answering)
        yield CounterMetricFamily(
            "headgate_worker_restarts", "Workers started again because one had ended", counts.restarts
        )
