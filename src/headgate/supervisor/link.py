"""The connection of a worker to its supervisor: two pipes, and memory that all processes share.

On one pipe a worker reports that it is ready. The other never carries data, and closes when the supervisor has ended
for any reason. In the memory each worker counts the seconds in which its event loop ran.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

from headgate.observe.worker_files import WorkerCounts

_COUNTS = struct.Struct("II")
_BEATS = struct.Struct("I")


class SharedCounts:
    """Counts that all processes see: workers that answer, restarts, and heartbeats of each worker."""

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, _COUNTS.size + workers * _BEATS.size)

    def write(self, counts: WorkerCounts) -> None:
        """Set the supervisor's counts."""
        _COUNTS.pack_into(self._memory, 0, *counts)

    def read(self) -> WorkerCounts:
        """The supervisor's counts."""
        return WorkerCounts(*_COUNTS.unpack_from(self._memory))

    def beats(self, worker: int) -> int:
        """The number of a worker's heartbeats, modulo 2^32."""
        [beats] = _BEATS.unpack_from(self._memory, _offset_of(worker))
        return int(beats)

    def count_beat(self, worker: int) -> None:
        """Count one more heartbeat of a worker."""
        _BEATS.pack_into(self._memory, _offset_of(worker), (self.beats(worker) + 1) & 0xFFFFFFFF)


class SupervisorLink(NamedTuple):
    """A worker's end of the connection to its supervisor."""

    worker: int
    """The worker's number, from 1 to 255: it is sent as one byte."""

    listener: socket.socket
    lifeline: int
    """The reading end of a pipe that closes when the supervisor has ended."""

    ready: int
    """The writing end of the pipe on which workers report that they are ready."""

    counts: SharedCounts

    def report_ready(self) -> None:
        """Tell the supervisor that this worker answers."""
        with suppress(BrokenPipeError):  # the lifeline reports that
            os.write(self.ready, bytes([self.worker]))

    def beat(self) -> None:
        """Show that the event loop runs."""
        self.counts.count_beat(self.worker)


def _offset_of(worker: int) -> int:
    """The offset of a worker's heartbeats in the memory."""
    return _COUNTS.size + (worker - 1) * _BEATS.size
