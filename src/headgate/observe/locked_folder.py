"""A folder of one service, for the metrics of its workers or their sockets; it is removed when the service ends.

A service that is killed cannot clean up. So a service holds a lock on the folder that it uses, its
workers through their parent's descriptor, and the next service removes folders without a lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path

METRICS = "headgate-metrics-"
"""The prefix of a folder of metrics."""

_MEMORY = Path("/dev/shm")


class LockedFolder:
    """A new folder at `path` that no other user may enter.

    It is in memory where the system has a file system in memory with `size` free bytes; else among temporary files.
    Abandoned folders with the same prefix are removed. Raises OSError for lack of space.
    """

    def __init__(self, prefix: str, parent: Path | None = None, *, size: int = 0) -> None:
        parents = [_MEMORY, *_temporary()] if parent is None else [parent]
        for abandoned in (folder for each in parents for folder in each.glob(f"{prefix}*")):
            _remove_if_abandoned(abandoned)
        chosen = next((each for each in parents if _has_space(each, size)), parents[-1])
        if chosen is _MEMORY and not _has_space(chosen, size):
            elsewhere = "and there is no folder for temporary files: make it larger (--shm-size), or name one in TMPDIR"
            raise OSError(ENOSPC, f"it cannot take {size:,} bytes, {elsewhere}", str(_MEMORY))
        self.path, self._lock = _claim(chosen, prefix)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _temporary() -> list[Path]:
    """The folder of temporary files; none in a container whose file system is read-only, except in memory."""
    try:
        return [Path(tempfile.gettempdir())]
    except FileNotFoundError:
        return []


def _has_space(parent: Path, size: int) -> bool:
    if not os.access(parent, os.W_OK):
        return False
    free = os.statvfs(parent)
    return free.f_bavail * free.f_frsize >= size


def _claim(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Before it is locked, another service may consider it abandoned.
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _remove_if_abandoned(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
