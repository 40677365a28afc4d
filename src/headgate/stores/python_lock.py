"""The lock of a table in Python, which a thread cannot wait for that has it."""

from __future__ import annotations

import threading
from typing import Any

from headgate.errors import StoreUnavailable


class TableLock:
    """A lock whose owner is refused in the midst of a decision, where it would wait for itself for ever.

    That is the handler of a signal that interrupts a decision, and decides itself: if it were let in, what it charges
    would be lost when the decision goes on. What the native core decides is not interrupted.
    """

    __slots__ = ("_acquire", "_is_owned", "_release")

    def __init__(self) -> None:
        lock: Any = threading.RLock()
        self._is_owned = lock._is_owned
        self._acquire = lock.acquire
        self._release = lock.release

    def __enter__(self) -> None:
        if self._is_owned():
            raise StoreUnavailable(
                "a decision was interrupted by a signal whose handler asks the same store: decide outside of handlers, "
                "or use the native core"
            )
        self._acquire()

    def __exit__(self, *_: object) -> None:
        self._release()
