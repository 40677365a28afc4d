"""Limits of a store that fails in parts, such as a shared zone: where it fails, the configured choice decides.

Holds that are made in its place are settled in this process, and settlements that cannot reach it are kept, as for a
store behind a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headgate.clock import Clock
from headgate.costs import Cost, single_cost
from headgate.decision import Decision
from headgate.drive import drive
from headgate.errors import StoreError
from headgate.holding import Amounts, Extension, Hold, Reserved, Settlement
from headgate.keys import Key
from headgate.operation import Operation, Receipt
from headgate.stores.guard.breaker import CLOSED, OPEN, Breaker
from headgate.stores.guard.fallback import MAX_LOCAL_KEYS, Fallback
from headgate.stores.guard.holds import GuardedHolds
from headgate.stores.guard.local_holds import LocalHolds
from headgate.stores.guard.pending_settlements import Committer, PendingSettlements
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import BoundLimits, Decisions, paired_costs
from headgate.stores.python_table import PythonDecisions


class FallbackState:
    """What all limits of one store share for its failures: local states and holds, and pending settlements."""

    def __init__(self, shown: str, committer: Committer) -> None:
        self.local = MemoryStore(max_keys=MAX_LOCAL_KEYS, max_holds=MAX_LOCAL_KEYS)
        self.holds = LocalHolds()
        self.pending_settlements = PendingSettlements(shown, committer, committer, _do_nothing)


class FallbackLimits:
    """Limits of a store that answers at once or not at all, such as a shared zone, with a fallback for its failures.

    One part of such a store may fail while all others answer, so every request tries it first; the store itself knows
    which parts it need not wait for. `breaker` logs that some fail, and probes them in the background until all answer.
    """

    def __init__(
        self,
        bound: BoundLimits,
        fallback: Fallback,
        breaker: Breaker,
        probe: Callable[[], object],
        state: FallbackState | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.bound = bound
        """The limits on the store, which raise StoreError where it fails."""

        self._decide = bound.decide
        self._give_back = bound.give_back
        self._groups = fallback.groups
        self._fallback = fallback
        self._breaker = breaker
        self._probe = probe
        self._state = state or FallbackState(breaker.shown, lambda _: bound.commit)
        self.settle_also = self._state.holds.settle_also
        self._holds = GuardedHolds(
            _AlwaysTry(self._failed),
            bound,
            fallback,
            self._state.holds,
            self._state.pending_settlements,
            _NoRefusals(),
            clock,
        )

    @property
    def line(self) -> Any:
        """The lines that the store keeps for all processes; None where it has none."""
        return getattr(self.bound, "line", None)

    def decide(self, operation: Operation, /) -> Decision:
        try:
            return self._decide(operation)
        except StoreError as error:
            self._failed(error)
        return self._fallback.decide(operation)

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        if receipt.degraded == "local":
            self._fallback.give_back(receipt, ago_us)
            return
        try:
            self._give_back(receipt, ago_us)
        except StoreError as error:
            self._failed(error)

    def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Decision:
        units = cost if type(cost) is int else single_cost(self._fallback.definitions, cost)
        operation = Operation((key,) * self._groups, (units,) * self._groups)
        return self.decide(operation) if id is None else self.reserve(operation, Hold(id, 0, at_once=True)).decision

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        units = cost if type(cost) is int else single_cost(self._fallback.definitions, cost)
        return self.decide(Operation((key,) * self._groups, (units,) * self._groups, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        all_keys = list(keys)
        all_costs = paired_costs(len(all_keys), costs)
        decide = self.decide  # while a part fails, each by itself: an error of a call does not tell what was charged
        if self._breaker.state != OPEN:
            try:
                return self.bound.hit_many(all_keys, all_costs)
            except StoreError as error:
                self._failed(error)
            decide = self._fallback.decide
        pairs = zip(all_keys, all_costs, strict=True)
        return PythonDecisions(decide(Operation((key,) * self._groups, (cost,) * self._groups)) for key, cost in pairs)

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        found_locally = self._fallback.reset(keys)
        return self.bound.reset(keys) or found_locally

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        try:
            return self.bound.read(keys, now_us)
        except StoreError as error:
            self._failed(error)
        return self._fallback.read(keys, now_us)

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        return drive(self._holds.reserving(operation, hold, _do_nothing))

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        return drive(self._holds.committing(whole_id, actuals, now_us, self._state.pending_settlements.send_in_thread))

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        return drive(self._holds.extending(whole_id, lease_us, more, now_us, _do_nothing))

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        return self.bound.id_of(key, name)

    def _failed(self, error: Exception) -> None:
        self._breaker.failed(error)
        self._breaker.probe_in_thread(self._probe)


class _AlwaysTry:
    """Access that is always allowed: one part of the store may fail while all others answer."""

    state = CLOSED

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure

    def failed(self, error: Exception) -> None:
        self._on_failure(error)

    def lets_through(self) -> bool:
        return True

    def succeeded(self) -> None:
        """Record nothing: another part may still fail."""


class _NoRefusals:
    """The remembered refusals of a store that answers at once: there are none."""

    def charged(self, keys: tuple[Key, ...]) -> None: ...
    def held(self, whole_id: str, keys: tuple[Key, ...]) -> None: ...
    def settled(self, whole_id: str) -> None: ...
    def extended(self) -> None: ...


def _do_nothing(*_: object) -> None:
    """Do nothing: `FallbackLimits._failed` starts the probes of an outage."""
