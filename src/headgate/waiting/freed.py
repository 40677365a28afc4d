"""A place in flight that is freed in this process wakes the callers of this process that wait for it, at once."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from headgate.algorithms.table import is_in_flight
from headgate.decision import NamedLimit
from headgate.errors import ArgumentError
from headgate.forks import register_for_forks
from headgate.holding import Settlement, read_id
from headgate.keys import Key
from headgate.stores.protocol import Store

_ANY_NAME = b"-"


class FreedPlaces:
    """Callers of this process that wait for places in flight of one store, by the place number in ids of holds.

    Several keys may have the same number: then a caller may be woken in vain.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.by_place: dict[int, list[Callable[[], object]]] = {}
        register_for_forks(self)

    def after_fork(self) -> None:
        """See `headgate.forks`."""
        self._lock = threading.RLock()
        self.by_place.clear()

    def __bool__(self) -> bool:
        return bool(self.by_place)

    def add(self, place: int, call: Callable[[], object]) -> None:
        """Call `call` whenever places in flight of a key with this number are freed."""
        with self._lock:
            calls = self.by_place.setdefault(place, [])
            if call not in calls:
                calls.append(call)

    def remove(self, place: int, call: Callable[[], object]) -> None:
        """Stop calling `call`."""
        with self._lock:
            calls = self.by_place.get(place)
            if calls is None:
                return
            if call in calls:
                calls.remove(call)
            if not calls:
                del self.by_place[place]

    def call_waiters(self, place: int) -> None:
        """Call the callers that wait for keys with this number, as places in flight were freed."""
        with self._lock:
            calls = list(self.by_place.get(place, ()))
        for call in calls:
            call()


class FreedKeys:
    """Callers of this process that wait for places in flight of one limiter's keys."""

    __slots__ = ("_bound", "_places")

    def __init__(self, bound: Any, places: FreedPlaces) -> None:
        self._bound = bound
        self._places = places

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, key: Key, call: Callable[[], object]) -> None:
        """Call `call` whenever places in flight of a key are freed."""
        self._places.add(_place_of(self._bound, key), call)

    def remove(self, key: Key, call: Callable[[], object]) -> None:
        self._places.remove(_place_of(self._bound, key), call)


class FreeingLimits:
    """Bound limits that report to `FreedPlaces` when one of their holds is settled or forgotten."""

    def __init__(self, bound: Any, places: FreedPlaces) -> None:
        self.bound = bound
        self._places = places
        self.decide = bound.decide
        self.reserve = bound.reserve
        self.extend = bound.extend

    def __getattr__(self, name: str) -> Any:
        if name == "hold":  # the native way to a reservation, which would settle without a report
            raise AttributeError(name)
        return getattr(self.bound, name)

    def commit(self, whole_id: str, actuals: Any = None, /, *, now_us: int | None = None) -> Any:
        """See `BoundLimits.commit`."""
        settlement = self.bound.commit(whole_id, actuals, now_us=now_us)
        if type(settlement) is not Settlement and hasattr(settlement, "__await__"):
            return self._commit_async(settlement, whole_id)
        if self._places.by_place and settlement.outcome == "settled":
            self._places.call_waiters(read_id(whole_id)[1])
        return settlement

    def reset(self, keys: tuple[Key, ...], /) -> Any:
        """See `BoundLimits.reset`."""
        had_state = self.bound.reset(keys)
        if hasattr(had_state, "__await__"):
            return self._reset_async(had_state, keys)
        self._call_waiters(keys)
        return had_state

    async def _commit_async(self, settling: Awaitable[Any], whole_id: str) -> Any:
        settlement = await settling
        if self._places and settlement.outcome == "settled":
            self._places.call_waiters(read_id(whole_id)[1])
        return settlement

    async def _reset_async(self, resetting: Awaitable[Any], keys: tuple[Key, ...]) -> Any:
        had_state = await resetting
        self._call_waiters(keys)
        return had_state

    def _call_waiters(self, keys: tuple[Key, ...]) -> None:
        if self._places:
            for place in {_place_of(self.bound, key) for key in keys}:
                self._places.call_waiters(place)


def freeing(bound: Any, store: Store, limits: Sequence[NamedLimit]) -> Any:
    """The bound limits; where they count what is in flight, they report when places are freed.

    Native ones do so by themselves, all others are wrapped in `FreeingLimits`.
    """
    if all(not is_in_flight(limit.limit.algorithm) for limit in limits):
        return bound
    places = freed_places(store)
    if not hasattr(bound, "call_when_freed"):
        return FreeingLimits(bound, places)
    bound.call_when_freed(places.by_place, places.call_waiters)
    return bound


def _place_of(bound: Any, key: Key) -> int:
    """The number of a key's place in the ids of its holds."""
    return read_id(bound.id_of(key, _ANY_NAME))[1]


def freed_places(store: Store) -> FreedPlaces:
    """The callers that wait for places in flight of a store; one object for the store and all its guards."""
    return _by_store.setdefault(store.unguarded, FreedPlaces())


def check_has_lease(limits: Sequence[NamedLimit]) -> None:
    """Raise ArgumentError if a limit counts what is in flight, as it cannot be acquired without a lease."""
    for limit in limits:
        if is_in_flight(limit.limit.algorithm):
            raise ArgumentError(
                f'"{limit.limit}" counts what is in flight, and what is acquired without a lease never ends: '
                "acquire(key, lease=60) waits for a place, and gives a reservation that frees it"
            )


_by_store: WeakKeyDictionary[Store, FreedPlaces] = WeakKeyDictionary()
