"""A cache of what takes long to make: one thread makes it, and those that ask for it meanwhile wait for that."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from threading import RLock
from typing import TypeVar

from headgate.forks import ProcessLock

T = TypeVar("T")


def made_once(make: Callable[..., T]) -> Callable[..., T]:
    """`functools.cache`, which has each of many threads that ask at once make the same.

    What raises is made anew for the next one. A process that is forked meanwhile makes its own.
    """
    lock = ProcessLock(RLock)
    made = cache(make)

    def make_alone(*arguments: Hashable, **named: Hashable) -> T:
        with lock.current:
            return made(*arguments, **named)

    return cache(make_alone)
