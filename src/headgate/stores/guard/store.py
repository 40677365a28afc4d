"""A store behind a guard: whatever happens to it, every request gets an answer, in time.

Calls go through a circuit breaker. Where one fails, or none may be made, the written choice of each
limit decides, see `fallback`; the decision says so in `degraded`. A call whose answer was lost may have
been charged, so it is never repeated. A refusal is remembered until a number in it changes, at most a
second, see `refusals`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from headgate.clock import SYSTEM_CLOCK, Clock, SystemClock
from headgate.decision import Decision, NamedLimit
from headgate.drive import drive, drive_async
from headgate.errors import ConfigError, StoreError
from headgate.keys import Key
from headgate.operation import Operation, Receipt
from headgate.stores.guard.breaker import CLOSED, Breaker
from headgate.stores.guard.fallback import CHOICES, MAX_LOCAL_KEYS, Choice, Fallback, read_share
from headgate.stores.guard.refusals import RefusalMemory, Refusals
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import (
    AsyncBoundLimits,
    BoundLimits,
    Failure,
    Store,
    StoreStats,
    checked_pairs,
    read_receipt,
)
from headgate.stores.python_table import PythonDecisions

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]


class GuardedStore(Store):
    """A store that always answers: its own decisions, or where it does not make any, the written choice.

    `on_error` is the choice for limits that have none of their own: "local" decides in this process by
    `local_share` of each limit, "open" passes, "closed" refuses. `remember` is whether refusals are
    remembered. Raises ConfigError for another choice or share.
    """

    failure: Failure = "never"

    def __init__(
        self,
        store: Store,
        *,
        on_error: Choice = "local",
        local_share: float = 1,
        remember: bool = True,
    ) -> None:
        if on_error not in CHOICES:
            raise ConfigError(f"on_error is one of {', '.join(CHOICES)}, not {on_error!r}")
        self.inner = store
        self.on_error: Choice = on_error
        self.local_share = read_share(local_share)
        self.remember = remember
        self._breaker = Breaker(repr(store))
        self.local = MemoryStore(max_keys=MAX_LOCAL_KEYS)
        self.refusals = Refusals()

        self.blocking = store.blocking
        self.clock = store.clock
        self.in_process = store.in_process
        self.is_cluster = store.is_cluster
        self.shown = store.shown

    @property
    def breaker(self) -> Breaker:
        return self._breaker

    @property
    def unguarded(self) -> Store:
        return self.inner.unguarded

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """The limits, ready to be asked from threads."""
        return GuardedLimits(self, self.inner.bind(limits, clock=clock), self._fallback(limits, clock), limits, clock)

    def bind_async(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits | AsyncBoundLimits:
        """The limits, ready to be asked from an event loop."""
        if not self.blocking:
            return self.bind(limits, clock=clock)
        bound = self.inner.bind_async(limits, clock=clock)
        return AsyncGuardedLimits(self, bound, self._fallback(limits, clock), limits, clock)

    def check_room(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> None:
        """Raise ConfigError for more limits of one policy than the store can know."""
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
        """What the store counts about itself."""
        return self.inner.stats()

    def clear(self) -> None:
        """Forget everything."""
        self.local.clear()
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
        """Close the store."""
        self.breaker.close()
        self.inner.close()

    async def aclose(self) -> None:
        """`close` for an event loop."""
        self.breaker.close()
        await self.inner.aclose()

    def __repr__(self) -> str:
        return f"GuardedStore({self.inner!r}, on_error={self.on_error!r}, breaker={self.breaker.state!r})"


class _GuardedLimits:
    """What the guarded limits of both colours are made of: each method as steps, which yield what the store answers."""

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

    def _probe(self) -> None:
        """See to it that the end of an outage is noticed."""
        raise NotImplementedError

    def _whole(self, key: Key, cost: int, *, commit: bool = True) -> Operation:
        """An operation with one key and cost for all groups."""
        return Operation((key,) * self._groups, (cost,) * self._groups, commit=commit)

    def _deciding(self, operation: Operation) -> Steps[Decision]:
        if self._refusals.known and self._may_remember(operation):
            known = self._memory.recall(operation)
            if known is not None:
                return known
        undone = self._refusals.undone
        if self._breaker.state == CLOSED or self._breaker.lets_through():
            try:
                decision: Decision = yield self._bound.decide(operation)
            except StoreError as error:
                self._breaker.failed(error)
                self._memory.charged(operation.keys)  # it may have been
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
        """Whether the refusal of such an operation may be told again."""
        return self._remembers and operation.commit and operation.now_us is None and operation.max_delay_us is None

    def _giving_back(self, receipt: Receipt, ago_us: int) -> Steps[None]:
        if receipt.degraded == "local":
            self._fallback.give_back(receipt, ago_us)
        else:
            read_receipt(self._limits, receipt, ago_us)
        if receipt.degraded:  # what was charged in place of the store was given back there
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
        here = self._fallback.reset(keys)
        try:
            found: bool = yield self._bound.reset(keys)
        finally:
            self._memory.given_back(keys)
        return found or here

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


class GuardedLimits(_GuardedLimits):
    """Limits of a guarded store, for threads."""

    def hit(self, key: Key, cost: int = 1) -> Decision:
        return drive(self._deciding(Operation((key,) * self._groups, (cost,) * self._groups)))

    def peek(self, key: Key, cost: int = 1) -> Decision:
        return self.decide(self._whole(key, cost, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        every, each = checked_pairs(keys, costs)
        if self._breaker.lets_through():
            try:
                decisions: PythonDecisions = self._bound.hit_many(every, each)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                self._breaker.succeeded()
                return decisions
            finally:
                if self._refusals.known:
                    for key in every:
                        self._memory.charged((key,) * self._groups)
        self._probe()
        pairs = zip(every, each, strict=True)
        return PythonDecisions(self._fallback.decide(self._whole(key, cost)) for key, cost in pairs)

    def decide(self, operation: Operation, /) -> Decision:
        return drive(self._deciding(operation))

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        drive(self._giving_back(receipt, ago_us))

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        return drive(self._resetting(keys))

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        return drive(self._reading(keys, now_us))

    def _probe(self) -> None:
        self._breaker.probe_in_thread(self._store.probe)


class AsyncGuardedLimits(_GuardedLimits):
    """Limits of a guarded store, for asyncio."""

    def hit(self, key: Key, cost: int = 1) -> Awaitable[Decision]:
        return self.decide(self._whole(key, cost))

    def peek(self, key: Key, cost: int = 1) -> Awaitable[Decision]:
        return self.decide(self._whole(key, cost, commit=False))

    async def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        pairs = zip(*checked_pairs(keys, costs), strict=True)
        return PythonDecisions(await asyncio.gather(*[self.hit(key, cost) for key, cost in pairs]))

    def decide(self, operation: Operation, /) -> Awaitable[Decision]:
        return drive_async(self._deciding(operation))

    def give_back(self, receipt: Receipt, ago_us: int, /) -> Awaitable[None]:
        return drive_async(self._giving_back(receipt, ago_us))

    def reset(self, keys: tuple[Key, ...], /) -> Awaitable[bool]:
        return drive_async(self._resetting(keys))

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> Awaitable[list[tuple[Any, ...] | None]]:
        return drive_async(self._reading(keys, now_us))

    def _probe(self) -> None:
        self._breaker.probe_in_task(self._store.probe_async)
