"""A cache of values that take long to make: one thread makes a value, other threads that need it meanwhile wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from threading import RLock
from typing import TypeVar

from headgate.forks import ProcessLock

T = TypeVar("T")


def made_once(make: Callable[..., T]) -> Callable[..., T]:
    """`functools.cache` under a lock, so that several threads that call at once do not make the same value each.

    After an error the next caller makes the value. A process that is forked meanwhile makes its own.
    """
    lock = ProcessLock(RLock)
    made = cache(make)

    def make_alone(*arguments: Hashable, **named: Hashable) -> T:
        with lock.current:
            return made(*arguments, **named)

    return cache(make_alone)
