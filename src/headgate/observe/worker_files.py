"""The files in which several workers count: each has its own, and all are read together."""

from __future__ import annotations

import os
from pathlib import Path

from headgate.errors import MissingExtraError

try:
    from prometheus_client import values
    from prometheus_client.mmap_dict import MmapedDict
except ImportError as error:
    raise MissingExtraError("metrics for Prometheus", extra="service") from error

ROOM_OF_WORKER, ROOM_OF_RULE = 1 << 18, 1 << 10
"""Bytes of the four files of a worker, as long as they do not grow, and what each rule adds to that."""


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


def count_in_files(folder: Path, worker: int) -> None:
    """For the whole process: figures made from now on are kept in the files of this worker, by its number."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]
