"""A store behind a guard: whatever happens to it, every request gets an answer, in time.

Calls go through a circuit breaker. Where a call fails, or may not be made, the configured choice of each
limit decides, see `fallback`; `degraded` of the decision states that. The store may have charged a call whose
answer was lost, so such a call is never repeated. A refusal is remembered until a number in it changes, at most a
second, see `refusals`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import ref

from headgate.clock import Clock
from headgate.decision import ON_STORE_ERROR, NamedLimit, OnStoreError
from headgate.drive import all_answered
from headgate.errors import ConfigError
from headgate.forks import InOneProcess
from headgate.stores.batches import DecidesBatches, Done, Failing
from headgate.stores.guard.breaker import Breaker
from headgate.stores.guard.fallback import MAX_LOCAL_KEYS, Fallback, read_share
from headgate.stores.guard.limits import AsyncGuardedLimits, GuardedLimits
from headgate.stores.guard.local_holds import LocalHolds
from headgate.stores.guard.pending_settlements import CLOSE_WITHIN_US, PendingSettlements, committer_of
from headgate.stores.guard.refusals import Refusals
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import (
    AsyncBoundLimits,
    BoundLimits,
    Failure,
    Store,
    StoreStats,
)


class GuardedStore(InOneProcess, Store):
    """A store that always answers: with its own decisions, or with the configured choice where it cannot decide.

    `on_error` is the choice for limits that have none of their own: "local" decides in this process by
    `local_share` of each limit, "open" passes, "closed" refuses. `remember` is whether refusals are
    remembered. Raises ConfigError for another choice or share.
    """

    failure: Failure = "never"

    def __init__(
        self,
        store: Store,
        *,
        on_error: OnStoreError = "local",
        local_share: float = 1,
        remember: bool = True,
    ) -> None:
        if on_error not in ON_STORE_ERROR:
            raise ConfigError(f"on_error is one of {', '.join(ON_STORE_ERROR)}, not {on_error!r}")
        self.inner = store
        self.on_error: OnStoreError = on_error
        self.local_share = read_share(local_share)
        self.remember = remember
        self._breaker = Breaker(repr(store))
        self.local = MemoryStore(max_keys=MAX_LOCAL_KEYS, max_holds=MAX_LOCAL_KEYS)
        self.local_holds = LocalHolds()
        self.refusals = Refusals()
        self.pending_settlements = PendingSettlements(
            repr(store), committer_of(store.bind), committer_of(store.bind_async), self.refusals.settled
        )
        self._breaker.listeners.append(_hastening(self.pending_settlements))

        self.blocking = store.blocking
        self.clock = store.clock
        self.in_process = store.in_process
        self.is_cluster = store.is_cluster
        self.decides_batches = store.decides_batches
        self.shown = store.shown

    @property
    def breaker(self) -> Breaker:
        return self._breaker

    @property
    def unguarded(self) -> Store:
        return self.inner.unguarded

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """Bind limits for threads."""
        return GuardedLimits(self, self.inner.bind(limits, clock=clock), self._fallback(limits, clock), limits, clock)

    def bind_async(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits | AsyncBoundLimits:
        """Bind limits for an event loop."""
        if not self.blocking:
            return self.bind(limits, clock=clock)
        bound = self.inner.bind_async(limits, clock=clock)
        return AsyncGuardedLimits(self, bound, self._fallback(limits, clock), limits, clock)

    def decide_batch(self, batch: Any, clock: Clock | None, failure: Failing, done: Done) -> None:
        """Decide a batch of checks of the front door, as limits of `bind_async` do; see `DecidesBatches`."""
        cast(DecidesBatches, self.inner).decide_batch(self, batch, clock, failure, done)

    def check_room(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> None:
        """Raise ConfigError for more limits of one policy than the store has room for."""
        self.inner.check_room(limits, clock=clock)

    def _fallback(self, limits: Sequence[NamedLimit], clock: Clock | None) -> Fallback:
        return Fallback(limits, self.on_error, self.local_share, self.local, clock)

    def probe(self) -> None:
        """Raise StoreError if the store would not decide."""
        self.inner.probe()

    async def probe_async(self) -> None:
        """`probe` for an event loop."""
        await self.inner.probe_async()

    def stats(self) -> StoreStats:
        """The counters of the store, and those of this guard for settlements that could not reach it."""
        pending = self.pending_settlements
        return self.inner.stats()._replace(kept=len(pending), sent_later=pending.sent, lost=pending.lost)

    def clear(self) -> None:
        """Forget everything."""
        self.local.clear()
        self.local_holds.clear()
        try:
            self.inner.clear()
        finally:
            self.refusals.clear()

    def ping(self) -> None:
        """Raise StoreError if the store does not answer."""
        self.inner.ping()

    def warm_up(self) -> None:
        """Have the store connect; raises StoreError where it cannot."""
        self.inner.warm_up()

    async def warm_up_async(self) -> None:
        """`warm_up` for an event loop."""
        await self.inner.warm_up_async()

    async def ping_async(self) -> None:
        """`ping` for an event loop."""
        await self.inner.ping_async()

    def close(self) -> None:
        """Close the store; pending settlements are sent first, for at most a second, or counted as lost."""
        self.pending_settlements.close()
        self.breaker.close()
        self.inner.close()

    async def aclose(self) -> None:
        """`close` for an event loop; settlements that are under way on it are completed first."""
        await all_answered(within_s=CLOSE_WITHIN_US / 1_000_000)
        await self.pending_settlements.aclose()
        self.breaker.close()
        await self.inner.aclose()

    def __repr__(self) -> str:
        return f"GuardedStore({self.inner!r}, on_error={self.on_error!r}, breaker={self.breaker.state!r})"


def _hastening(pending_settlements: PendingSettlements) -> Callable[[Exception | None], object]:
    """A listener for a breaker: it hastens settlements when the store is back, and does not keep them alive."""
    reference = ref(pending_settlements)

    def listen(error: Exception | None) -> None:
        settlements = reference()
        if error is None and settlements is not None:
            settlements.hasten()

    return listen
