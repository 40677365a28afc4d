"""What ties a worker to its supervisor: two pipes, and memory that all processes share.

On one pipe a worker says that it answers. The other never carries anything, and closes when the supervisor is gone,
however it went. In the memory each worker counts the seconds in which its event loop turned.
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
    """Counts that all processes see: how many workers answer, restarts, each worker's heartbeats."""

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, _COUNTS.size + workers * _BEATS.size)

    def write(self, counts: WorkerCounts) -> None:
        """Set what the supervisor counts."""
        _COUNTS.pack_into(self._memory, 0, *counts)

    def read(self) -> WorkerCounts:
        """What the supervisor counts."""
        return WorkerCounts(*_COUNTS.unpack_from(self._memory))

    def beats(self, worker: int) -> int:
        """How often a worker's event loop was seen to turn; it begins again at 2^32."""
        [beats] = _BEATS.unpack_from(self._memory, _place_of(worker))
        return int(beats)

    def count_beat(self, worker: int) -> None:
        """Count one more heartbeat of a worker."""
        _BEATS.pack_into(self._memory, _place_of(worker), (self.beats(worker) + 1) & 0xFFFFFFFF)


class SupervisorLink(NamedTuple):
    """What a worker process has of its supervisor."""

    worker: int
    """The worker's number, from 1 to 255: it is sent as one byte."""

    listener: socket.socket
    lifeline: int
    """The reading end of a pipe that closes when the supervisor is gone."""

    ready: int
    """The writing end of the pipe on which workers say that they answer."""

    counts: SharedCounts

    def report_ready(self) -> None:
        """Tell the supervisor that this worker answers."""
        with suppress(BrokenPipeError):  # the lifeline tells
            os.write(self.ready, bytes([self.worker]))

    def beat(self) -> None:
        """Show that the event loop turns."""
        self.counts.count_beat(self.worker)


def _place_of(worker: int) -> int:
    """Where a worker's heartbeats are in the memory."""
    return _COUNTS.size + (worker - 1) * _BEATS.size
