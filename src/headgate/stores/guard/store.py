"""A store behind a guard: whatever happens to it, every request gets an answer, in time.

Calls go through a circuit breaker. Where one fails, or none may be made, the written choice of each
limit decides, see `fallback`; the decision says so in `degraded`. A call whose answer was lost may have
been charged, so it is never repeated. A refusal is remembered until a number in it changes, at most a
second, see `refusals`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from headgate.clock import SYSTEM_CLOCK, Clock, SystemClock
from headgate.decision import Decision, NamedLimit
from headgate.errors import ConfigError, StoreError
from headgate.keys import Key, encode_key
from headgate.stores.guard.breaker import Breaker
from headgate.stores.guard.fallback import CHOICES, MAX_LOCAL_KEYS, Choice, Fallback, read_share
from headgate.stores.guard.refusals import RefusalMemory, Refusals
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import (
    AsyncBoundLimits,
    AsyncStore,
    BoundLimits,
    StoreStats,
    bind_async,
    close_async,
    paired_costs,
    ping_async,
    read_charge,
)
from headgate.stores.python_table import PythonDecisions


class GuardedStore:
    """A store that always answers: its own decisions, or where it does not make any, the written choice.

    `on_error` is the choice for limits that have none of their own: "local" decides in this process by
    `local_share` of each limit, "open" passes, "closed" refuses. `remember` is whether refusals are
    remembered. Raises ConfigError for another choice or share.
    """

    def __init__(
        self,
        store: AsyncStore,
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
        self.breaker = Breaker(repr(store))
        self.local = MemoryStore(max_keys=MAX_LOCAL_KEYS)
        self.refusals = Refusals()

    @property
    def blocking(self) -> bool:
        return self.inner.blocking

    @property
    def clock(self) -> Clock:
        return self.inner.clock

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """The limits, ready to be asked from threads."""
        return GuardedLimits(self, self.inner.bind(limits, clock=clock), self._fallback(limits, clock), limits, clock)

    def bind_async(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> AsyncBoundLimits:
        """The limits, ready to be asked from an event loop."""
        bound: Any = bind_async(self.inner, limits, clock)
        return AsyncGuardedLimits(self, bound, self._fallback(limits, clock), limits, clock)

    def _fallback(self, limits: Sequence[NamedLimit], clock: Clock | None) -> Fallback:
        return Fallback(limits, self.on_error, self.local_share, self.local, clock)

    def probe(self) -> None:
        """Raise StoreError if the store would not decide."""
        getattr(self.inner, "probe", self.inner.ping)()

    async def probe_async(self) -> None:
        """`probe` for an event loop."""
        probe = getattr(self.inner, "probe_async", None)
        await (ping_async(self.inner) if probe is None else probe())

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
        if (warm := getattr(self.inner, "warm_up", None)) is not None:
            warm()

    async def warm_up_async(self) -> None:
        """`warm_up` for an event loop."""
        if (warm := getattr(self.inner, "warm_up_async", None)) is not None:
            await warm()

    async def ping_async(self) -> None:
        """`ping` for an event loop."""
        await ping_async(self.inner)

    def close(self) -> None:
        """Close the store."""
        self.breaker.close()
        self.inner.close()

    async def aclose(self) -> None:
        """`close` for an event loop."""
        self.breaker.close()
        await close_async(self.inner)

    def __repr__(self) -> str:
        return f"GuardedStore({self.inner!r}, on_error={self.on_error!r}, breaker={self.breaker.state!r})"


class _Guard:
    """What the guarded limits of both colours are made of."""

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
        self._groups = max((limit.group + 1 for limit in limits), default=0)
        self._breaker = store.breaker
        now_us = SYSTEM_CLOCK.now_us if clock is None or isinstance(clock, SystemClock) else clock.now_us
        self._memory = RefusalMemory(store.refusals, limits, now_us)
        self._remembers = store.remember and self._memory.is_used

    def _is_to_be_asked(
        self,
        keys: tuple[Key, ...],
        costs: tuple[int, ...],
        ago_us: int,
        degraded: str,
        charged: Sequence[bool] | None,
    ) -> bool:
        """Whether the store has what is to be given back. What was charged here is given back here."""
        if degraded == "local":
            self._fallback.give_back(keys, costs, ago_us, charged)
        else:
            read_charge(self._limits, keys, costs, ago_us, charged)
        return not degraded


class GuardedLimits(_Guard):
    """Limits of a guarded store, for threads."""

    def hit(self, key: Key, cost: int = 1) -> Decision:
        return self.decide((key,) * self._groups, (cost,) * self._groups)

    def peek(self, key: Key, cost: int = 1) -> Decision:
        return self.decide((key,) * self._groups, (cost,) * self._groups, commit=False)

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        every = list(keys)
        each = paired_costs(len(every), costs)
        for key in every:
            encode_key(key)
        if self._breaker.lets_through():
            try:
                decisions: PythonDecisions = self._bound.hit_many(every, each)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                self._breaker.succeeded()
                return decisions
            finally:
                if not self._memory.is_empty:
                    for key in every:
                        self._memory.charged((key,) * self._groups)
        self._breaker.probe_in_thread(self._store.probe)
        groups = self._groups
        return PythonDecisions(
            self._fallback.decide((key,) * groups, (cost,) * groups) for key, cost in zip(every, each, strict=True)
        )

    def decide(
        self,
        keys: tuple[Key, ...],
        costs: tuple[int, ...],
        /,
        *,
        commit: bool = True,
        now_us: int | None = None,
        max_delay_us: int | None = None,
    ) -> Decision:
        usual = commit and now_us is None and max_delay_us is None and self._remembers
        if usual and not self._memory.is_empty and (known := self._memory.recall(keys, costs)) is not None:
            return known
        undone = self._memory.undone
        if self._breaker.lets_through():
            try:
                decision: Decision = self._bound.decide(
                    keys, costs, commit=commit, now_us=now_us, max_delay_us=max_delay_us
                )
            except StoreError as error:
                self._breaker.failed(error)
                self._memory.charged(keys)  # it may have been
            else:
                self._breaker.succeeded()
                if decision.allowed:
                    if commit:
                        self._memory.charged(keys)
                elif usual:
                    self._memory.remember(keys, costs, decision, undone)
                return decision
        self._breaker.probe_in_thread(self._store.probe)
        return self._fallback.decide(keys, costs, commit=commit, now_us=now_us, max_delay_us=max_delay_us)

    def give_back(
        self,
        keys: tuple[Key, ...],
        costs: tuple[int, ...],
        ago_us: int,
        /,
        *,
        degraded: str = "",
        charged: Sequence[bool] | None = None,
    ) -> None:
        if not self._is_to_be_asked(keys, costs, ago_us, degraded, charged):
            return
        if self._breaker.lets_through():
            try:
                self._bound.give_back(keys, costs, ago_us, charged=charged)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                self._breaker.succeeded()
                return
            finally:
                self._memory.given_back(keys)
        self._breaker.probe_in_thread(self._store.probe)

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        here = self._fallback.reset(keys)
        try:
            found: bool = self._bound.reset(keys)
        finally:
            self._memory.given_back(keys)
        return found or here

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        if self._breaker.lets_through():
            try:
                states: list[tuple[Any, ...] | None] = self._bound.read(keys, now_us)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                return states
        self._breaker.probe_in_thread(self._store.probe)
        return self._fallback.read(keys, now_us)


class AsyncGuardedLimits(_Guard):
    """Limits of a guarded store, for asyncio."""

    async def hit(self, key: Key, cost: int = 1) -> Decision:
        return await self.decide((key,) * self._groups, (cost,) * self._groups)

    async def peek(self, key: Key, cost: int = 1) -> Decision:
        return await self.decide((key,) * self._groups, (cost,) * self._groups, commit=False)

    async def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        every = list(keys)
        each = paired_costs(len(every), costs)
        for key in every:
            encode_key(key)
        asks = [self.hit(key, cost) for key, cost in zip(every, each, strict=True)]
        return PythonDecisions(await asyncio.gather(*asks))

    async def decide(
        self,
        keys: tuple[Key, ...],
        costs: tuple[int, ...],
        /,
        *,
        commit: bool = True,
        now_us: int | None = None,
        max_delay_us: int | None = None,
    ) -> Decision:
        usual = commit and now_us is None and max_delay_us is None and self._remembers
        if usual and not self._memory.is_empty and (known := self._memory.recall(keys, costs)) is not None:
            return known
        undone = self._memory.undone
        if self._breaker.lets_through():
            try:
                decision: Decision = await self._bound.decide(
                    keys, costs, commit=commit, now_us=now_us, max_delay_us=max_delay_us
                )
            except StoreError as error:
                self._breaker.failed(error)
                self._memory.charged(keys)  # it may have been
            else:
                self._breaker.succeeded()
                if decision.allowed:
                    if commit:
                        self._memory.charged(keys)
                elif usual:
                    self._memory.remember(keys, costs, decision, undone)
                return decision
        self._breaker.probe_in_task(self._store.probe_async)
        return self._fallback.decide(keys, costs, commit=commit, now_us=now_us, max_delay_us=max_delay_us)

    async def give_back(
        self,
        keys: tuple[Key, ...],
        costs: tuple[int, ...],
        ago_us: int,
        /,
        *,
        degraded: str = "",
        charged: Sequence[bool] | None = None,
    ) -> None:
        if not self._is_to_be_asked(keys, costs, ago_us, degraded, charged):
            return
        if self._breaker.lets_through():
            try:
                await self._bound.give_back(keys, costs, ago_us, charged=charged)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                self._breaker.succeeded()
                return
            finally:
                self._memory.given_back(keys)
        self._breaker.probe_in_task(self._store.probe_async)

    async def reset(self, keys: tuple[Key, ...], /) -> bool:
        here = self._fallback.reset(keys)
        try:
            found: bool = await self._bound.reset(keys)
        finally:
            self._memory.given_back(keys)
        return found or here

    async def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        if self._breaker.lets_through():
            try:
                states: list[tuple[Any, ...] | None] = await self._bound.read(keys, now_us)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                return states
        self._breaker.probe_in_task(self._store.probe_async)
        return self._fallback.read(keys, now_us)
