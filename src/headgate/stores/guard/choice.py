"""What stands before a store that may fail, so that the choice written down for each limit decides where it does."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from headgate.clock import Clock
from headgate.decision import NamedLimit, OnStoreError
from headgate.stores.guard.fallback import Fallback
from headgate.stores.guard.kept import settling_on
from headgate.stores.guard.rescued import Rescue, RescuedLimits
from headgate.stores.guard.store import GuardedStore
from headgate.stores.protocol import Store


def answering(store: Store) -> Store:
    """The store, behind a guard if it fails as a whole; for one that fails in parts there is `rescued`."""
    return GuardedStore(store, remember=False) if store.failure == "as a whole" else store


def rescue_of(store: Store) -> Rescue:
    """What the limits of one store share where parts of it fail."""
    return Rescue(repr(store), settling_on(store.bind))


def rescued(
    store: Store, bound: Any, limits: Sequence[NamedLimit], clock: Clock | None, *, rescue: Rescue | None = None
) -> Any:
    """Limits that are bound to what `answering` gave; where a part of the store fails, what was written decides.

    `rescue` has the states of what is decided here, and the holds, for all limits of the store.
    """
    if store.failure != "in parts" or store.breaker is None:
        return bound
    choice: OnStoreError = "local"
    own = rescue or rescue_of(store)
    fallback = Fallback(limits, choice, Fraction(1), own.local, clock)
    return RescuedLimits(bound, fallback, store.breaker, store.probe, own, clock)
