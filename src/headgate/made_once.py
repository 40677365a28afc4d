"""A cache of what takes long to make: one thread makes it, and those that ask for it meanwhile wait for that."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from functools import cache
from threading import RLock
from typing import TypeVar

T = TypeVar("T")

_locks: list[RLock] = []


def made_once(make: Callable[..., T]) -> Callable[..., T]:
    """`functools.cache`, which has each of many threads that ask at once make the same.

    What raises is made anew for the next one. A process that is forked meanwhile makes its own.
    """
    number = len(_locks)
    _locks.append(RLock())
    made = cache(make)

    def make_alone(*arguments: Hashable, **named: Hashable) -> T:
        with _locks[number]:
            return made(*arguments, **named)

    return cache(make_alone)


def _after_fork() -> None:
    _locks[:] = [RLock() for _ in _locks]  # the thread that held one is not there


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
