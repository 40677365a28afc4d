"""Selects the guard or fallback of a store that may fail, so that the configured choice of each limit decides then."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from headgate.clock import Clock
from headgate.decision import NamedLimit, OnStoreError
from headgate.stores.guard.fallback import Fallback
from headgate.stores.guard.fallback_limits import FallbackLimits, FallbackState
from headgate.stores.guard.pending_settlements import committer_of
from headgate.stores.guard.store import GuardedStore
from headgate.stores.protocol import Store


def guarded(store: Store) -> Store:
    """The store, behind a guard if it fails as a whole; for one that fails in parts there is `with_fallback`."""
    return GuardedStore(store, remember=False) if store.failure == "as a whole" else store


def fallback_state_of(store: Store) -> FallbackState:
    """What the limits of one store share for failures of its parts."""
    return FallbackState(repr(store), committer_of(store.bind))


def with_fallback(
    store: Store, bound: Any, limits: Sequence[NamedLimit], clock: Clock | None, *, state: FallbackState | None = None
) -> Any:
    """Limits bound to the store that `guarded` returned; where a part of it fails, the configured choice decides.

    `state` has the states and holds of what this process decides then, for all limits of the store.
    """
    if store.failure != "in parts" or store.breaker is None:
        return bound
    choice: OnStoreError = "local"
    state = state or fallback_state_of(store)
    fallback = Fallback(limits, choice, Fraction(1), state.local, clock)
    return FallbackLimits(bound, fallback, store.breaker, store.probe, state, clock)
