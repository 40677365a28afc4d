"""The files in which several workers count: each has its own, and all are read together."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

from headgate.errors import MissingExtraError

try:
    from prometheus_client import values
    from prometheus_client.mmap_dict import MmapedDict
except ImportError as error:
    raise MissingExtraError("a page of metrics for Prometheus", extra="service", why=error) from error

log = logging.getLogger("headgate")

ROOM_OF_WORKER, ROOM_OF_RULE = 1 << 18, 1 << 10
"""Bytes of the four files of a worker, as long as they do not grow, and what each rule adds to that."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BESIDE_A_KEY = 28
"""Bytes that an entry takes beside its key: its length, up to eight of padding, two numbers."""


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


def count_in_files(folder: Path, worker: int) -> None:
    """For the whole process: figures made from now on are kept in the files of this worker, by its number."""
    values.MmapedDict = _RoomyFile  # type: ignore[attr-defined]
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]
