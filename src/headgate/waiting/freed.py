"""Places in flight that are freed in this process wake the callers here that wait for them, at once."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from headgate.algorithms.table import is_in_flight
from headgate.decision import NamedLimit
from headgate.errors import ArgumentError
from headgate.forks import told_of_forks
from headgate.holding import Settlement, read_id
from headgate.keys import Key
from headgate.stores.protocol import Store

_ANY_NAME = b"-"


class FreedPlaces:
    """Callers of this process that wait for places in flight of one store, by the place that ids of holds tell of keys.

    Keys may share such a place: then a caller is woken that finds nothing free.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.by_place: dict[int, list[Callable[[], object]]] = {}
        told_of_forks(self)

    def after_fork(self) -> None:
        """See `headgate.forks`."""
        self._lock = threading.RLock()
        self.by_place.clear()

    def __bool__(self) -> bool:
        return bool(self.by_place)

    def add(self, place: int, call: Callable[[], object]) -> None:
        """Call this whenever places of such a key are freed."""
        with self._lock:
            calls = self.by_place.setdefault(place, [])
            if call not in calls:
                calls.append(call)

    def remove(self, place: int, call: Callable[[], object]) -> None:
        """Call this no more."""
        with self._lock:
            calls = self.by_place.get(place)
            if calls is None:
                return
            if call in calls:
                calls.remove(call)
            if not calls:
                del self.by_place[place]

    def freed(self, place: int) -> None:
        """Places of keys with this place were freed."""
        with self._lock:
            calls = list(self.by_place.get(place, ()))
        for call in calls:
            call()


class FreedKeys:
    """Callers of this process that wait for places of a limiter's keys, whose limits are bound."""

    __slots__ = ("_bound", "_places")

    def __init__(self, bound: Any, places: FreedPlaces) -> None:
        self._bound = bound
        self._places = places

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, key: Key, call: Callable[[], object]) -> None:
        """Call this whenever places of a key are freed."""
        self._places.add(_place_of(self._bound, key), call)

    def remove(self, key: Key, call: Callable[[], object]) -> None:
        self._places.remove(_place_of(self._bound, key), call)


class FreeingLimits:
    """Limits that are bound to a store, which tell `FreedPlaces` when one of their holds is settled or forgotten."""

    def __init__(self, bound: Any, waiting: FreedPlaces) -> None:
        self.bound = bound
        self._waiting = waiting
        self.decide = bound.decide
        self.reserve = bound.reserve
        self.extend = bound.extend

    def __getattr__(self, name: str) -> Any:
        if name == "hold":  # the native way to a reservation, which would settle without telling
            raise AttributeError(name)
        return getattr(self.bound, name)

    def commit(self, whole_id: str, actuals: Any = None, /, *, now_us: int | None = None) -> Any:
        """See `BoundLimits.commit`."""
        settlement = self.bound.commit(whole_id, actuals, now_us=now_us)
        if type(settlement) is not Settlement and hasattr(settlement, "__await__"):
            return self._settled(settlement, whole_id)
        if self._waiting.by_place and settlement.outcome == "settled":
            self._waiting.freed(read_id(whole_id)[1])
        return settlement

    def reset(self, keys: tuple[Key, ...], /) -> Any:
        """See `BoundLimits.reset`."""
        found = self.bound.reset(keys)
        if hasattr(found, "__await__"):
            return self._forgotten(found, keys)
        self._tell_of(keys)
        return found

    async def _settled(self, settling: Awaitable[Any], whole_id: str) -> Any:
        settlement = await settling
        if self._waiting and settlement.outcome == "settled":
            self._waiting.freed(read_id(whole_id)[1])
        return settlement

    async def _forgotten(self, resetting: Awaitable[Any], keys: tuple[Key, ...]) -> Any:
        found = await resetting
        self._tell_of(keys)
        return found

    def _tell_of(self, keys: tuple[Key, ...]) -> None:
        if self._waiting:
            for place in {_place_of(self.bound, key) for key in keys}:
                self._waiting.freed(place)


def freeing(bound: Any, store: Store, limits: Sequence[NamedLimit]) -> Any:
    """The bound limits; where they count what is in flight, they tell when places are freed.

    Native ones do so by themselves, all others as `FreeingLimits`.
    """
    if all(not is_in_flight(limit.limit.algorithm) for limit in limits):
        return bound
    places = freed_places(store)
    if not hasattr(bound, "call_when_freed"):
        return FreeingLimits(bound, places)
    bound.call_when_freed(places.by_place, places.freed)
    return bound


def _place_of(bound: Any, key: Key) -> int:
    """The place that ids of holds tell of a key of these limits."""
    return read_id(bound.id_of(key, _ANY_NAME))[1]


def freed_places(store: Store) -> FreedPlaces:
    """The callers that wait for places of a store; one for the store and all its guards."""
    return _by_store.setdefault(store.unguarded, FreedPlaces())


def check_has_lease(limits: Sequence[NamedLimit]) -> None:
    """Raise ArgumentError where limits count what is in flight, and it is to be acquired without a lease."""
    for limit in limits:
        if is_in_flight(limit.limit.algorithm):
            raise ArgumentError(
                f'"{limit.limit}" counts what is in flight, and what is acquired without a lease never ends: '
                "acquire(key, lease=60) waits for a place, and gives a reservation that frees it"
            )


_by_store: WeakKeyDictionary[Store, FreedPlaces] = WeakKeyDictionary()
