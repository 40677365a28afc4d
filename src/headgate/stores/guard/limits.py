"""Limits of a guarded store: the store decides, or the fallback where the store does not answer.

Each method is written once, as steps that yield calls to the store; `drive` runs them in either colour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from headgate.clock import SYSTEM_CLOCK, Clock, SystemClock
from headgate.costs import Cost, single_cost
from headgate.decision import Decision, NamedLimit
from headgate.drive import all_in_portions, drive, drive_async, drive_together, each, nested, together
from headgate.errors import StoreError
from headgate.holding import Amounts, Extension, Hold, Reserved, Settlement
from headgate.keys import Key
from headgate.operation import Operation, Receipt
from headgate.stores.guard.breaker import CLOSED
from headgate.stores.guard.fallback import Fallback
from headgate.stores.guard.holds import GuardedHolds
from headgate.stores.guard.refusals import RefusalMemory
from headgate.stores.protocol import (
    AsyncBoundLimits,
    BoundLimits,
    checked_pairs,
    read_receipt,
)
from headgate.stores.python_table import PythonDecisions

if TYPE_CHECKING:
    from headgate.stores.guard.store import GuardedStore

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]


class BatchedLimits(NamedTuple):
    """What the native core has to know about limits that decide in batches."""

    definitions: tuple[NamedLimit, ...]
    calls: Any
    """The native object that packs their calls and reads the replies; None where Python does."""

    number: int
    """Identifies these limits in `Refusals`."""

    remembers: bool
    """Whether their refusals are remembered."""

    places: tuple[tuple[str, int], ...]
    """The places of their states, as `refusals` names them, each with its group."""


class _GuardedLimits:
    """The common part of the guarded limits of both colours: each method as steps, which yield calls to the store."""

    def __init__(
        self,
        store: GuardedStore,
        bound: Any,
        fallback: Fallback,
        limits: Sequence[NamedLimit],
        clock: Clock | None,
    ) -> None:
        self._store = store
        self._bound = bound
        self._fallback = fallback
        self._limits = tuple(limits)
        self._groups = fallback.groups
        self._breaker = store.breaker
        now_us = SYSTEM_CLOCK.now_us if clock is None or isinstance(clock, SystemClock) else clock.now_us
        self._refusals = store.refusals
        self._memory = RefusalMemory(store.refusals, limits, now_us)
        self._remembers = store.remember and self._memory.is_used
        self._holds = GuardedHolds(
            self._breaker, bound, fallback, store.local_holds, store.pending_settlements, self._memory, clock
        )
        self.settle_also = store.local_holds.settle_also

    @property
    def line(self) -> Any:
        """The waiting lines that the store keeps for all processes; None where it has none, or does not answer."""
        return getattr(self._bound, "line", None) if self._breaker.state == CLOSED else None

    def _probe(self) -> None:
        """Start to probe for the end of an outage."""
        raise NotImplementedError

    def _handle_outage(self) -> None:
        """Start to probe for the end of an outage, and to send pending settlements."""
        raise NotImplementedError

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        whole_id: str = self._bound.id_of(key, name)
        return whole_id

    def _operation(self, key: Key, cost: Cost, *, commit: bool = True) -> Operation:
        """An operation with one key and cost for all groups."""
        units = cost if type(cost) is int else single_cost(self._limits, cost)
        return Operation((key,) * self._groups, (units,) * self._groups, commit=commit)

    def _operations(self, keys: Iterable[Key], costs: int | Iterable[int] | None) -> list[Operation]:
        """The operations of many keys."""
        return [self._operation(key, cost) for key, cost in zip(*checked_pairs(keys, costs), strict=True)]

    def _deciding(self, operation: Operation) -> Steps[Decision]:
        """Decide an operation: yields it where the store is to decide it."""
        if self._refusals.known and self._may_remember(operation):
            refusal = self._memory.recall(operation)
            if refusal is not None:
                return refusal
        undone = self._refusals.undone
        if self._breaker.state == CLOSED or self._breaker.lets_through():
            try:
                decision: Decision = yield operation
            except StoreError as error:
                self._breaker.failed(error)
                self._memory.charged(operation.keys)  # the store may have charged it
            else:
                if self._breaker.failures:
                    self._breaker.succeeded()
                if decision.allowed:
                    if self._refusals.known and operation.commit:
                        self._memory.charged(operation.keys)
                elif self._may_remember(operation):
                    self._memory.remember(operation, decision, undone)
                return decision
        self._probe()
        return self._fallback.decide(operation)

    def _may_remember(self, operation: Operation) -> bool:
        """Whether the refusal of such an operation may be repeated."""
        return self._remembers and operation.commit and operation.now_us is None and operation.max_delay_us is None

    def _giving_back(self, receipt: Receipt, ago_us: int) -> Steps[None]:
        if receipt.degraded == "local":
            self._fallback.give_back(receipt, ago_us)
        else:
            read_receipt(self._limits, receipt, ago_us)
        if receipt.degraded:  # a charge in place of the store was given back there
            return
        if self._breaker.lets_through():
            try:
                yield self._bound.give_back(receipt, ago_us)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                self._breaker.succeeded()
                return
            finally:
                self._memory.given_back(receipt.keys)
        self._probe()

    def _resetting(self, keys: tuple[Key, ...]) -> Steps[bool]:
        found_locally = self._fallback.reset(keys)
        try:
            found: bool = yield self._bound.reset(keys)
        finally:
            self._memory.given_back(keys)
        return found or found_locally

    def _reading(self, keys: tuple[Key, ...], now_us: int | None) -> Steps[list[tuple[Any, ...] | None]]:
        if self._breaker.lets_through():
            try:
                states: list[tuple[Any, ...] | None] = yield self._bound.read(keys, now_us)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                return states
        self._probe()
        return self._fallback.read(keys, now_us)


class GuardedLimits(_GuardedLimits, BoundLimits):
    """Limits of a guarded store, for threads."""

    def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Decision:
        if id is not None:
            return self.reserve(self._operation(key, cost), Hold(id, 0, at_once=True)).decision
        units = cost if type(cost) is int else single_cost(self._limits, cost)
        return drive(self._deciding(Operation((key,) * self._groups, (units,) * self._groups)), self._bound.decide)

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        return self.decide(self._operation(key, cost, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        return PythonDecisions(drive(all_in_portions(self._operations(keys, costs), self.decide_many)))

    def decide(self, operation: Operation, /) -> Decision:
        return drive(self._deciding(operation), self._bound.decide)

    def decide_many(self, operations: Sequence[Operation], /) -> list[Decision | Exception]:
        decide_many = getattr(self._bound, "decide_many", None) or each(self._bound.decide)
        return drive(together(list(map(self._deciding, operations))), decide_many)

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        drive(self._giving_back(receipt, ago_us))

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        return drive(self._holds.reserving(operation, hold, self._handle_outage))

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        return drive(self._holds.committing(whole_id, actuals, now_us, self._handle_outage))

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        return drive(self._holds.extending(whole_id, lease_us, more, now_us, self._handle_outage))

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        return drive(self._resetting(keys))

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        return drive(self._reading(keys, now_us))

    def _probe(self) -> None:
        self._breaker.probe_in_thread(self._store.probe)

    def _handle_outage(self) -> None:
        self._probe()
        self._store.pending_settlements.send_in_thread()


class AsyncGuardedLimits(_GuardedLimits, AsyncBoundLimits):
    """Limits of a guarded store, for asyncio."""

    def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Awaitable[Decision]:
        if id is not None:
            return self._hit_once(self._operation(key, cost), Hold(id, 0, at_once=True))
        return self.decide(self._operation(key, cost))

    async def _hit_once(self, operation: Operation, hold: Hold) -> Decision:
        return (await self.reserve(operation, hold)).decision

    def peek(self, key: Key, cost: Cost = 1) -> Awaitable[Decision]:
        return self.decide(self._operation(key, cost, commit=False))

    async def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        return PythonDecisions(await drive_async(all_in_portions(self._operations(keys, costs), self.decide_many)))

    def decide(self, operation: Operation, /) -> Awaitable[Decision]:
        return drive_async(self._deciding(operation), self._bound.decide)

    def decide_many(self, operations: Sequence[Operation], /) -> Awaitable[list[Decision | Exception]]:
        return drive_together(list(map(self._deciding, operations)), self._bound.decide_many)

    @property
    def batched(self) -> BatchedLimits:
        """What the native core has to know to decide in batches."""
        memory = self._memory
        calls = self._bound.native_calls
        return BatchedLimits(self._limits, calls, memory.number, self._remembers, memory.places)

    def deciding(self, operation: Operation) -> Steps[Decision]:
        """Decide an operation: yields calls for the store's servers."""
        return nested(self._deciding(operation), self._bound.deciding)

    def remember(self, operation: Operation, decision: Decision, undone: int) -> None:
        """Remember a refusal by the store; `undone` was read before the call."""
        self._memory.remember(operation, decision, undone)

    def charged(self, operation: Operation) -> None:
        """Forget the refusals that a charge has changed."""
        self._memory.charged(operation.keys)

    def give_back(self, receipt: Receipt, ago_us: int, /) -> Awaitable[None]:
        return drive_async(self._giving_back(receipt, ago_us))

    def reserve(self, operation: Operation, hold: Hold, /) -> Awaitable[Reserved]:
        return drive_async(self._holds.reserving(operation, hold, self._handle_outage))

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Awaitable[Settlement]:
        return drive_async(self._holds.committing(whole_id, actuals, now_us, self._handle_outage))

    def extend(
        self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None
    ) -> Awaitable[Extension]:
        return drive_async(self._holds.extending(whole_id, lease_us, more, now_us, self._handle_outage))

    def reset(self, keys: tuple[Key, ...], /) -> Awaitable[bool]:
        return drive_async(self._resetting(keys))

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> Awaitable[list[tuple[Any, ...] | None]]:
        return drive_async(self._reading(keys, now_us))

    def _probe(self) -> None:
        self._breaker.probe_in_task(self._store.probe_async, self._store.probe)

    def _handle_outage(self) -> None:
        self._probe()
        self._store.pending_settlements.send_in_task()
