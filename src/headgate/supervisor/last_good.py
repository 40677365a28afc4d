"""The configuration that was last in force in any worker, for workers that start later."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_DIGEST_BYTES = hashlib.sha256().digest_size
_MEMORY = "/dev/shm"
"""Where many systems keep files in memory."""


class LastGood:
    """The text that was last in force in any worker, shared by all processes that are forked later.

    It is in a file without a name, which disappears with the last process, and no other process reads the secrets of a
    policy. The file is in memory where the system allows it, so that the keys of providers reach no disk.
    """

    def __init__(self, text: bytes) -> None:
        self._file = _unnamed_file()
        self.keep(text)

    def keep(self, text: bytes) -> None:
        """Store a text; without space for it, the previous one is lost."""
        with suppress(OSError), self._locked(fcntl.LOCK_EX) as file:
            os.ftruncate(file, 0)
            os.pwrite(file, hashlib.sha256(text).digest() + text, 0)

    def text(self) -> bytes | None:
        """The text; None where the process that wrote it was killed meanwhile."""
        with self._locked(fcntl.LOCK_SH) as file:
            digest, text = os.pread(file, _DIGEST_BYTES, 0), os.pread(file, os.fstat(file).st_size, _DIGEST_BYTES)
        return text if hashlib.sha256(text).digest() == digest else None

    @contextmanager
    def _locked(self, kind: int) -> Iterator[int]:
        file = self._file.fileno()
        fcntl.lockf(file, kind)  # locks of this kind belong to a process, though all share the file
        try:
            yield file
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)


def _unnamed_file() -> IO[bytes]:
    """A file in memory where the system has one, otherwise a temporary one; only this user may open either."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a kernel or a C library without it, or a sandbox that forbids it
            return os.fdopen(os.memfd_create("headgate-last-good", os.MFD_CLOEXEC), "w+b", buffering=0)
    with suppress(OSError):
        return tempfile.TemporaryFile(dir=_MEMORY)
    return tempfile.TemporaryFile()
