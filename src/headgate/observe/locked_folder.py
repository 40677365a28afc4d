"""A folder of one service, for the figures of its workers or their sockets; it goes when the service ends.

A service that is killed cannot clear up. So a service holds a lock on the folder that it uses, its
workers through their parent's descriptor, and the next service removes folders without a lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

METRICS = "headgate-metrics-"
"""The prefix of a folder of figures."""

_MEMORY = Path("/dev/shm")


class LockedFolder:
    """A new folder that no other user may enter; `path` is where.

    It is in memory, where the system has such a place, with so many bytes of `room`; else among temporary files.
    Abandoned folders with the same prefix are removed. Raises OSError for lack of room.
    """

    def __init__(self, prefix: str, place: Path | None = None, *, room: int = 0) -> None:
        places = [_MEMORY, Path(tempfile.gettempdir())] if place is None else [place]
        for abandoned in (folder for each in places for folder in each.glob(f"{prefix}*")):
            _remove_if_abandoned(abandoned)
        self.path, self._lock = _claim(next((each for each in places if _has_room(each, room)), places[-1]), prefix)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _has_room(place: Path, room: int) -> bool:
    if not os.access(place, os.W_OK):
        return False
    free = os.statvfs(place)
    return free.f_bavail * free.f_frsize >= room


def _claim(place: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Between its making and its locking another service may take it for abandoned.
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
