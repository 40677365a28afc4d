"""What is kept in memory, in a child process: no lock is held there by a thread that only its parent has."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What has a lock that a thread of the parent may hold at the moment of a fork, or knows of its callers."""

    def after_fork(self) -> None:
        """Begin with a new lock, and without what is the parent's alone. No other thread runs yet."""
        ...


def in_child(begin_anew: Callable[[], object]) -> None:
    """Have a function called in child processes from now on. No other thread runs yet."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=begin_anew)


_made: WeakSet[Forked] = WeakSet()


def told_of_forks(made: Forked) -> None:
    """Have its `after_fork` called in child processes from now on."""
    _made.add(made)


class ProcessLock:
    """A lock between the threads of one process; a child process begins with a new one.

    `with lock.current:` has the interpreter's own lock: what a signal's handler raises cannot end that between having
    the lock and knowing it, and a child that was forked under the lock gives back the one that it has.

    `kind` is `Lock`, or `RLock` where what runs under the lock may ask for it again, as in a handler of a signal.
    """

    __slots__ = ("__weakref__", "_kind", "current")

    current: Any
    """The lock of this process."""

    def __init__(self, kind: Callable[[], Any] = Lock) -> None:
        self._kind, self.current = kind, kind()
        told_of_forks(self)

    def after_fork(self) -> None:
        """See `told_of_forks`."""
        self.current = self._kind()


def _after_fork() -> None:
    for made in list(_made):
        made.after_fork()


in_child(_after_fork)
