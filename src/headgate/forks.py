"""Objects in memory, and child processes: forked ones, where no thread of the parent holds a lock, and spawned ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, NoReturn, Protocol, Self
from weakref import WeakSet


class Forked(Protocol):
    """An object with a lock that a thread of the parent may hold at a fork, or with records of the parent's callers."""

    def after_fork(self) -> None:
        """Begin with a new lock, and without the records of the parent's callers. No other thread runs yet."""
        ...


def in_child(begin_anew: Callable[[], object]) -> None:
    """Have a function called in each child process from now on, before any other thread runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=begin_anew)


class InOneProcess:
    """An object that is not sent to another process, with what is in memory or connected here."""

    def __getstate__(self) -> NoReturn:
        """Raises TypeError: `pickle` and `copy.deepcopy` call this, and so does `multiprocessing` where it spawns."""
        kind = type(self).__qualname__
        raise TypeError(
            f"{kind} belongs to one process and cannot be pickled or deep-copied: make one in each process; "
            "those with the same shared:// or redis:// store count together"
        )

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other


_forked: WeakSet[Forked] = WeakSet()


def register_for_forks(forked: Forked) -> None:
    """Have the object's `after_fork` called in each child process from now on."""
    _forked.add(forked)


class ProcessLock:
    """A lock between the threads of one process; a child process begins with a new one.

    `with lock.current:` acquires the interpreter's own lock: an error that a signal handler raises cannot end that
    between acquiring the lock and recording it, and a child that was forked under the lock releases the one it has.

    `kind` is `Lock`, or `RLock` where code under the lock may acquire it again, as in a signal handler.
    """

    __slots__ = ("__weakref__", "_kind", "current")

    current: Any
    """The lock of this process."""

    def __init__(self, kind: Callable[[], Any] = Lock) -> None:
        self._kind, self.current = kind, kind()
        register_for_forks(self)

    def after_fork(self) -> None:
        """See `register_for_forks`."""
        self.current = self._kind()


def _after_fork() -> None:
    for forked in list(_forked):
        forked.after_fork()


in_child(_after_fork)
