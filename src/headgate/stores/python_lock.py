"""The lock of a table in Python, which a thread cannot wait for that has it."""

from __future__ import annotations

import threading
from typing import Any

from headgate.errors import StoreUnavailable


class TableLock:
    """A lock whose owner is refused in the midst of a decision, where it would wait for itself for ever.

    That is the handler of a signal that interrupts a decision, and decides itself: if it were let in, what it charges
    would be lost when the decision goes on. What the native core decides is not interrupted.

    `with lock.free:` has the interpreter's own lock: what a handler raises cannot end that between having the lock and
    knowing it, as it could end an `__enter__` or `__exit__` written in Python.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()

    @property
    def free(self) -> Any:
        """The lock to take; raises StoreUnavailable in the thread that has it."""
        if self._lock._is_owned():
            raise StoreUnavailable(
                "a decision was interrupted by a signal whose handler asks the same store: decide outside of handlers, "
                "or use the native core"
            )
        return self._lock
