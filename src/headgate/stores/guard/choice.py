"""Any store, so that the choice written down for each limit decides where the store does not."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, cast

from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.stores.guard.fallback import MAX_LOCAL_KEYS, Choice, Fallback, RescuedLimits
from headgate.stores.guard.store import GuardedStore
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import AsyncStore, Store
from headgate.stores.shared.store import SharedStore


def answering(store: Store) -> Store:
    """The store, behind a guard if it is one that fails as a whole and has none.

    A GuardedStore has its own choice; memory does not fail; for a shared zone, of which one part may fail
    while all others answer, there is `rescued`.
    """
    if isinstance(store, GuardedStore | SharedStore) or type(store) is MemoryStore:
        return store
    return GuardedStore(cast(AsyncStore, store), remember=False)


def rescued(
    store: Store, bound: Any, limits: Sequence[NamedLimit], clock: Clock | None, *, local: MemoryStore | None = None
) -> Any:
    """Limits that are bound to what `answering` gave; where those of a shared zone fail, what was written decides.

    `local` keeps the states of what is decided here.
    """
    if not isinstance(store, SharedStore):
        return bound
    choice: Choice = "local"
    fallback = Fallback(limits, choice, Fraction(1), local or MemoryStore(max_keys=MAX_LOCAL_KEYS), clock)
    return RescuedLimits(bound, fallback, store.breaker, store.probe)
