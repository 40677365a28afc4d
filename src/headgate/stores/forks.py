"""What a store keeps in memory, in a child process: no lock is held there by a thread that only its parent has."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What has a lock that a thread of the parent may hold at the moment of a fork."""

    def after_fork(self) -> None:
        """Begin with a new lock, and without what is the parent's alone. No other thread runs yet."""
        ...


_made: WeakSet[Forked] = WeakSet()


def told_of_forks(made: Forked) -> None:
    """Have its `after_fork` called in child processes from now on."""
    _made.add(made)


def _after_fork() -> None:
    for made in list(_made):
        made.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
