"""The event that wakes a thread in line."""

from __future__ import annotations

import threading
from contextlib import suppress


class WakeSignal:
    """An event that one thread waits for.

    Its lock is the interpreter's own: a signal handler that raises never leaves it half acquired. It may do so with a
    `threading.Event`, whose methods are written in Python.
    """

    __slots__ = ("_unset",)

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the thread, now or as soon as it waits."""
        with suppress(RuntimeError):  # it was set already
            self._unset.release()

    def wait(self, seconds: float | None) -> None:
        """Wait until the signal is set, for at most `seconds`, None for ever."""
        self._unset.acquire(timeout=-1 if seconds is None else seconds)
