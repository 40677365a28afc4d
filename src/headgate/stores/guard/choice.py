"""What stands before a store that may fail, so that the choice written down for each limit decides where it does."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.stores.guard.fallback import MAX_LOCAL_KEYS, Choice, Fallback, RescuedLimits
from headgate.stores.guard.store import GuardedStore
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import Store


def answering(store: Store) -> Store:
    """The store, behind a guard if it fails as a whole; for one that fails in parts there is `rescued`."""
    return GuardedStore(store, remember=False) if store.failure == "as a whole" else store


def rescued(
    store: Store, bound: Any, limits: Sequence[NamedLimit], clock: Clock | None, *, local: MemoryStore | None = None
) -> Any:
    """Limits that are bound to what `answering` gave; where a part of the store fails, what was written decides.

    `local` keeps the states of what is decided here.
    """
    if store.failure != "in parts" or store.breaker is None:
        return bound
    choice: Choice = "local"
    fallback = Fallback(limits, choice, Fraction(1), local or MemoryStore(max_keys=MAX_LOCAL_KEYS), clock)
    return RescuedLimits(bound, fallback, store.breaker, store.probe)
