"""Limits of a store that fails in parts, such as a shared zone: where it does not answer, what was written decides.

Holds that are made in its place are settled in this process, and settlements that cannot reach it wait, as they do for
a store behind a guard.
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
from headgate.stores.guard.breaker import CLOSED, Breaker
from headgate.stores.guard.fallback import MAX_LOCAL_KEYS, Fallback
from headgate.stores.guard.holds import GuardedHolds
from headgate.stores.guard.kept import Commit, KeptSettlements
from headgate.stores.guard.local_holds import LocalHolds
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import BoundLimits, Decisions, paired_costs
from headgate.stores.python_table import PythonDecisions


class Rescue:
    """What all limits of one store have in common where it fails: states and holds here, and settlements that wait.

    `settles` gives what settles any hold on the store itself, for limits on a clock.
    """

    def __init__(self, shown: str, settles: Commit) -> None:
        self.local = MemoryStore(max_keys=MAX_LOCAL_KEYS, max_holds=MAX_LOCAL_KEYS)
        self.holds = LocalHolds()
        self.kept = KeptSettlements(shown, settles, settles, _nothing)


class RescuedLimits:
    """Limits of a store that answers at once or not at all, such as a shared zone: where it fails, what was written.

    One part of such a store may fail while all others answer, so it is asked each time, and knows by itself which
    parts it need not wait for. `breaker` tells the log that some fail, and asks for them in the background until
    all answer.
    """

    def __init__(
        self,
        bound: BoundLimits,
        fallback: Fallback,
        breaker: Breaker,
        probe: Callable[[], object],
        rescue: Rescue | None = None,
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
        self._rescue = rescue or Rescue(breaker.shown, lambda _: bound.commit)
        self._holds = GuardedHolds(
            _EachTime(self._failed), bound, fallback, self._rescue.holds, self._rescue.kept, _NoRefusals(), clock
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

    def hit(self, key: Key, cost: Cost = 1) -> Decision:
        own = cost if type(cost) is int else single_cost(self._fallback.definitions, cost)
        return self.decide(Operation((key,) * self._groups, (own,) * self._groups))

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        own = cost if type(cost) is int else single_cost(self._fallback.definitions, cost)
        return self.decide(Operation((key,) * self._groups, (own,) * self._groups, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        every = list(keys)
        each = paired_costs(len(every), costs)
        try:
            return self.bound.hit_many(every, each)
        except StoreError as error:
            self._failed(error)
        pairs = zip(every, each, strict=True)
        return PythonDecisions(
            self._fallback.decide(Operation((key,) * self._groups, (cost,) * self._groups)) for key, cost in pairs
        )

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        here = self._fallback.reset(keys)
        return self.bound.reset(keys) or here

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        try:
            return self.bound.read(keys, now_us)
        except StoreError as error:
            self._failed(error)
        return self._fallback.read(keys, now_us)

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        return drive(self._holds.reserving(operation, hold, _nothing))

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        return drive(self._holds.committing(whole_id, actuals, now_us, self._rescue.kept.send_in_thread))

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        return drive(self._holds.extending(whole_id, lease_us, more, now_us, _nothing))

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        return self.bound.id_of(key, name)

    def _failed(self, error: Exception) -> None:
        self._breaker.failed(error)
        self._breaker.probe_in_thread(self._probe)


class _EachTime:
    """Asks the store each time: one part of it may fail while all others answer."""

    state = CLOSED

    def __init__(self, told: Callable[[Exception], None]) -> None:
        self._told = told

    def failed(self, error: Exception) -> None:
        self._told(error)

    def lets_through(self) -> bool:
        return True

    def succeeded(self) -> None:
        """Nothing is noted: another part may fail still."""


class _NoRefusals:
    """A store that answers at once has no refusals that are remembered."""

    def charged(self, keys: tuple[Key, ...]) -> None: ...
    def held(self, whole_id: str, keys: tuple[Key, ...]) -> None: ...
    def settled(self, whole_id: str) -> None: ...
    def extended(self) -> None: ...


def _nothing(*_: object) -> None:
    """What follows an outage is seen to where it is noted."""
