"""Values attached to foreign objects, such as the state of an application: they live as long as their objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

from headgate.forks import ProcessLock

T = TypeVar("T")


class Attached(Generic[T]):
    """One value for each object, stored apart from it; objects need not be hashable. Thread-safe.

    A value must not refer to its object, or neither is ever freed.
    """

    __slots__ = ("_entries", "_lock")

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[object], T]] = {}
        self._lock = ProcessLock()

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, owner: object, make: Callable[[], T]) -> T:
        """Return the value of an object, made if there is none; raises TypeError if it supports no weak references."""
        entry = self._entries.get(id(owner))
        if entry is not None and entry[0]() is owner:
            return entry[1]
        with self._lock.current:
            entry = self._entries.get(id(owner))
            if entry is not None and entry[0]() is owner:
                return entry[1]
            value = make()
            number, table = id(owner), self._entries

            def forget(reference: ref[object]) -> None:
                # No lock: the garbage collector may call this in the thread that holds it.
                entry = table.get(number)
                if entry is not None and entry[0] is reference:
                    del table[number]

            table[number] = (ref(owner, forget), value)
            return value
