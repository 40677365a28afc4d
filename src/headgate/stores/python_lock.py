"""The lock of a table in Python, which refuses the thread that has it."""

from __future__ import annotations

import threading
from typing import Any

from headgate.errors import StoreUnavailable


class TableLock:
    """A lock that refuses its owner in the middle of a decision, where it would deadlock.

    That owner is the handler of a signal that interrupts a decision, and decides itself: if it were let in, its charge
    would be lost when the decision goes on. Decisions of the native core are not interrupted.

    `with lock.free:` acquires the interpreter's own lock: an error that a handler raises cannot end that between
    acquiring the lock and recording it, as it could end an `__enter__` or `__exit__` written in Python.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()

    @property
    def free(self) -> Any:
        """The lock to acquire; raises StoreUnavailable in the thread that has it."""
        if self._lock._is_owned():
            raise StoreUnavailable(
                "a decision was interrupted by a signal whose handler asks the same store: decide outside of handlers, "
                "or use the native core"
            )
        return self._lock
