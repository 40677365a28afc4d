"""Limits bound to a store: the main interface of the library.

`Limiter` is for threads, `AsyncLimiter` for asyncio. Both have the same names and share everything
but the way they wait.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ParamSpec, Self, TypeVar

from headgate.acquiring import Acquiring, AsyncAcquiring
from headgate.clock import Clock, check_clock
from headgate.costs import Cost, Counted
from headgate.decision import Decision, NamedLimit, OnStoreError, name_limits
from headgate.decorator import (
    CallLimit,
    CostOf,
    KeyOf,
    OnRefusal,
    as_coroutine_function,
    check_limitable,
    gives_coroutine,
    is_async_generator_function,
    is_coroutine_function,
)
from headgate.drive import answered
from headgate.errors import ArgumentError, ConfigError, check_flag, kind_of
from headgate.forks import InOneProcess
from headgate.held_calls import name_of
from headgate.holding import Extension, Hold, Reserved, Settlement, lease_of, remember_of
from headgate.keys import Key, encode_key, whole_number
from headgate.limit_text import MOST_LIMITS, parse_limits
from headgate.limits import Limit, check_hits, units_of
from headgate.operation import Operation, Receipt
from headgate.reservation import AsyncReservation, CountedHolds, Reservation, reserved_or_given_back
from headgate.stores.guard.choice import guarded, with_fallback
from headgate.stores.guard.fallback import check_on_store_error
from headgate.stores.protocol import AsyncBoundLimits, BoundLimits, Decisions, Store
from headgate.stores.python_table import PythonDecisions
from headgate.stores.url import store_of
from headgate.waiting.freed import freeing
from headgate.waiting.lines import MOST_WAITERS, WaitingLines

AnyLimits = str | Limit | Sequence[Limit]
"""Limits as text, one limit, or several."""

P = ParamSpec("P")
R = TypeVar("R")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class _BoundLimiter(InOneProcess):
    """The common part of the limiters of both colours."""

    def __init__(
        self,
        limits: AnyLimits,
        *,
        store: str | Store = "memory://",
        name: str = "",
        clock: Clock | None = None,
        shadow: bool = False,
        on_store_error: OnStoreError | None = None,
        max_waiters: int = MOST_WAITERS,
    ) -> None:
        self.limits = _read_limits(limits)
        self.name = _check_name(name)
        self._own_clock = check_clock(clock)
        self.store = store_of(store)
        text = "; ".join(str(limit) for limit in self.limits)
        scope = f"limiter/{name}" if name else f"limits/{text}"
        self.definitions: tuple[NamedLimit, ...] = name_limits(
            self.limits,
            scope=scope,
            name=name or "default",
            shadow=check_flag("shadow", shadow),
            on_store_error=check_on_store_error(on_store_error),
        )
        self.counted = Counted(units_of(self.limits))
        """The units that the limits count, and in which costs are read."""

        self._guarded_store = guarded(self.store) if on_store_error else self.store
        self._bound: Any = self._bind_with_choice()
        self._clock = self._own_clock or self.store.clock
        self._lines = WaitingLines(
            self.definitions, self._clock, self._guarded_store, self._bound, _check_waiters(max_waiters)
        )
        self._is_plain = self.counted.is_plain

    def _bind(self, clock: Clock | None) -> BoundLimits | AsyncBoundLimits:
        return self._guarded_store.bind(self.definitions, clock=clock)

    def _bind_with_choice(self) -> Any:
        bound = self._bind(self._own_clock)
        if self.definitions[0].on_store_error:
            bound = with_fallback(self.store, bound, self.definitions, self._own_clock)
        return freeing(bound, self.store, self.definitions)

    def _bind_shortcuts(self) -> None:
        """Replace methods that only pass their arguments on by those of the bound limits."""
        raise NotImplementedError

    def _plain_cost(self, cost: Cost) -> int:
        """The number of a cost in the only unit."""
        return self.counted.read(cost)[0]

    def _decide(self, key: Key, cost: Cost, *, commit: bool) -> Any:
        """Decide a request of limits that count several units, or money."""
        costs = self.counted.read(cost)
        return self._bound.decide(Operation((key,) * len(costs), costs, commit=commit))

    def _operation(self, key: Key, cost: Cost) -> Operation:
        """A request that charges this cost."""
        costs = self.counted.read(cost)
        return Operation((key,) * len(costs), costs)

    @property
    def _holds(self) -> Any:
        """The settler of holds, which takes amounts in the form of costs."""
        return CountedHolds(self._bound, self.counted)

    def _operations(self, all_keys: Sequence[Key], costs: object) -> list[Operation]:
        """Operations, all at one moment if this process knows it; raises ArgumentError for an invalid key or cost."""
        now_us = None if self.store.blocking and self._own_clock is None else self._clock.now_us()
        all_costs = [self.counted.read(cost) for cost in _each_cost(len(all_keys), costs)]
        groups = len(self.counted.units)
        for key in all_keys:
            encode_key(key)
        return [
            Operation((key,) * groups, key_costs, now_us=now_us)
            for key, key_costs in zip(all_keys, all_costs, strict=True)
        ]

    def _no_decisions(self, costs: Any) -> PythonDecisions:
        """The result of `hit_many` without keys; raises ArgumentError for costs or limits that no key could have."""
        check_hits(self.limits)
        if costs is None or (isinstance(costs, Iterable) and not isinstance(costs, Mapping | str)):
            _each_cost(0, costs)
        else:
            self.counted.read(costs)
        return PythonDecisions()

    def _numbers(self, costs: object, keys: int) -> object:
        """Costs in one unit as the bound `hit_many` takes them: each cost as a number; None or an int unchanged."""
        if costs is None or type(costs) is int:
            return costs
        return [self._plain_cost(cost) for cost in _each_cost(keys, costs)]

    def _reusable_costs(self, costs: Any) -> Any:
        """Costs in one unit that can be iterated twice: one for all, or a list."""
        if isinstance(costs, Mapping):
            return self._plain_cost(costs)
        return list(costs) if isinstance(costs, Iterable) and not isinstance(costs, list) else costs

    def _receipt(self, key: Key, cost: Cost, decision: Decision) -> Receipt:
        costs = self.counted.read_part(cost)
        return Receipt.of(Operation((key,) * len(costs), costs), decision)

    def with_on_store_error(self, on_store_error: OnStoreError) -> Self:
        """This limiter with the choice `on_store_error` and the same lines; unchanged if it has its own choice."""
        if self.definitions[0].on_store_error:
            return self
        other = copy(self)
        choice = check_on_store_error(on_store_error)
        other.definitions = tuple(replace(limit, on_store_error=choice) for limit in self.definitions)
        other._guarded_store = guarded(self.store)
        other._bound = other._bind_with_choice()
        other._lines = self._lines.with_bound(other._bound)
        other._bind_shortcuts()
        return other

    @property
    def bound(self) -> Any:
        """The limits bound to the store, `BoundLimits` or `AsyncBoundLimits`."""
        return self._bound

    def limit(
        self,
        key: KeyOf | None = None,
        *,
        cost: CostOf = 1,
        on_refusal: OnRefusal = "raise",
        timeout: float | None = None,
        lease: float = 60,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Limit the calls of a function.

        `key` and `cost` are values, or functions that are called with the call's arguments; without a
        key, all calls of the function count together. A refused call raises RateLimited; with
        `on_refusal="wait"` it waits in line first, for at most `timeout` seconds; if `on_refusal` is a
        function, that is called instead, with the same arguments.

        Where one of the limits counts what is in flight, a call holds its places, in leases of `lease` seconds that
        are extended automatically, until the function has ended, however it ends: a coroutine with its last step, a
        generator with its last value (its call is decided when its first value is requested).
        """
        call = CallLimit.checked(
            self._bound,
            self._lines,
            self._clock,
            self.counted,
            key=key,
            cost=cost,
            on_refusal=on_refusal,
            timeout=timeout,
            lease=lease,
            in_flight=any(not limit.is_rate for limit in self.limits),
        )

        def decorate(*functions: Callable[P, R], **named: object) -> Callable[P, R]:
            if len(functions) != 1 or named:  # @limiter.limit without parentheses: the function became the key
                raise ConfigError(
                    "a function is limited by @limiter.limit(), with parentheses: what is in them is its key"
                )
            [function] = functions
            check_limitable(function)
            return call.around(self._coloured(function))

        return decorate

    def _coloured(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function in the form this limiter calls; raises ConfigError for a function of the other colour."""
        raise NotImplementedError

    def __repr__(self) -> str:
        text = "; ".join(str(limit) for limit in self.limits)
        return f"{type(self).__name__}({text!r}, store={self.store!r})"


class Limiter(_BoundLimiter, Acquiring):
    """Decides for one or several limits, all or none; safe under threads.

    `limits` is text ("10/second burst 100; 1000/hour") or limit values. `store` is a URL or a store;
    "memory://" gives this limiter a store of its own. Limiters that share a store share their counts
    if they have the same `name`; without a name, if they have the same limits. The numbers of a named
    limiter may change, and usage is kept. `clock` replaces the store's clock. With `shadow` everything
    is counted and reported, in `Decision.refusals`, but nothing is refused. `on_store_error` ("local",
    "open" or "closed") states what decides where the store cannot; without it, the store's URL does,
    and a store without a guard raises StoreError. At most `max_waiters` calls of `acquire` wait at one time; further
    ones are refused at once, which is logged.

    Raises ConfigError for limits or stores that cannot be used.
    """

    def __init__(
        self,
        limits: AnyLimits,
        *,
        store: str | Store = "memory://",
        name: str = "",
        clock: Clock | None = None,
        shadow: bool = False,
        on_store_error: OnStoreError | None = None,
        max_waiters: int = MOST_WAITERS,
    ) -> None:
        super().__init__(
            limits,
            store=store,
            name=name,
            clock=clock,
            shadow=shadow,
            on_store_error=on_store_error,
            max_waiters=max_waiters,
        )
        self._bind_shortcuts()

    def _bind_shortcuts(self) -> None:
        # A bound method of the store is the shortest way to a decision; a method of a subclass stays.
        shortcuts = {method: getattr(self._bound, method) for method in ("hit", "peek")}
        if hasattr(self._bound, "hold"):
            shortcuts |= {"reserve": self._bound.hold, "commit": self._bound.commit}
        self._hold_new = getattr(self._bound, "hold_new", None) if self._is_plain else None
        for method, shortcut in shortcuts.items():
            if getattr(type(self), method) is getattr(Limiter, method):
                self.__dict__.pop(method, None)
                if self._is_plain:
                    setattr(self, method, shortcut)

    def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Decision:
        """Charge `cost` units of `key` now, if every limit admits them. A cost of 0 only reads.

        `key` is text or a tuple of parts. `cost` is a number, or one for each unit that the limits count, as
        {"requests": 1, "tokens": 900}: a number counts the only unit, or requests where there are several; in a mapping
        a missing number of requests is 1, of any other unit 0. Atomic; a refusal changes nothing. With an `id`, a name
        within the key, a repeated call charges once and is answered like the first one, for at least an hour. Raises
        ArgumentError for an invalid key or cost, and for limits of what is in flight; ConflictingId for an id of
        another charge; StoreError where the store does not answer.
        """
        if id is not None:
            reserved: Reserved = self._bound.reserve(self._operation(key, cost), Hold(id, 0, at_once=True))
            return reserved.decision
        if self._is_plain:
            decision: Decision = self._bound.hit(key, cost)
            return decision
        decided: Decision = self._decide(key, cost, commit=True)
        return decided

    def reserve(
        self,
        key: Key,
        cost: Cost = 1,
        lease: float = 60,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
    ) -> Reservation:
        """Hold `cost` units of `key`: they are charged now like a hit, and settled later with the real cost.

        `id` is a name for the hold within its key: the same call with the same id is answered like the first one and
        charges nothing; without it a random id is made. The lease, `lease` seconds or exactly `lease_us` microseconds,
        up to 31 days, is how long places in flight are held unless it is extended; all other charges stay until they
        are settled, however late. The hold is remembered after that for an hour, for the longest period of its limits,
        or for `remember` seconds, whichever is longest. Raises as `hit` does.
        """
        own_us = lease_of(lease, lease_us)
        if id is None and remember is None and self._hold_new is not None and type(cost) is int:
            return Reservation(self._holds, self._hold_new(key, cost, own_us), own_us)
        reserved = self._bound.reserve(self._operation(key, cost), Hold(id, own_us, remember_of(remember)))
        return Reservation(self._holds, reserved, own_us)

    def commit(self, id: str, actual: Cost | None = None) -> Settlement:
        """Settle a hold, by its whole id, with its real cost; None is as much as is held.

        Unused units are given back unless they have been replenished already, missing ones are charged, even past the
        limit. A hold is settled once: later settlements answer "already settled" and change nothing. Raises
        ArgumentError for an invalid id or amount; StoreError where the store does not answer, though it may have
        settled the hold.
        """
        holds = self._bound if self._is_plain and (type(actual) is int or actual is None) else self._holds
        settlement: Settlement = holds.commit(id, actual)
        return settlement

    def cancel(self, id: str) -> Settlement:
        """Settle a hold as if it had never been made: `commit` with 0."""
        return self.commit(id, 0)

    def extend(self, id: str, lease: float = 60, more: Cost = 0, *, lease_us: int | None = None) -> Extension:
        """Let a lease end `lease` seconds from now, never earlier than before, and hold `more` units in addition.

        Both or neither. A hold that is settled, or whose lease is over, is not extended. Raises as `commit` does.
        """
        extension: Extension = self._holds.extend(id, lease_of(lease, lease_us), (more,))
        return extension

    def id_of(self, key: Key, id: str | bytes) -> str:
        """The whole id of the hold of this name within a key, whether it exists or not; makes no call to the store."""
        whole_id: str = self._bound.id_of(key, id)
        return whole_id

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        """Whether `cost` would pass, and what would remain; changes nothing. A cost of 0 shows what remains now."""
        if self._is_plain:
            decision: Decision = self._bound.peek(key, cost)
            return decision
        decided: Decision = self._decide(key, cost, commit=False)
        return decided

    def hit_many(self, keys: Iterable[Key], costs: Cost | Iterable[Cost] | None = None) -> Decisions:
        """Decide one request after another, each on its own, all at one instant.

        `costs` is one cost for all or one for each. If any key or cost is invalid, none is charged. Where limits
        count several units, a store that waits for I/O decides each at an instant of its own. Raises as `hit` does;
        for limits of what is in flight even without keys.
        """
        all_keys = keys if type(keys) is list else list(keys)
        if not all_keys:
            return self._no_decisions(costs)
        if not self._is_plain:
            return PythonDecisions(map(self._bound.decide, self._operations(all_keys, costs)))
        cost_list = self._reusable_costs(costs)
        decisions: Decisions
        try:
            decisions = self._bound.hit_many(all_keys, cost_list)
        except ArgumentError:  # nothing was charged: a cost may be a mapping
            decisions = self._bound.hit_many(all_keys, self._numbers(cost_list, len(all_keys)))
        return decisions

    def reset(self, key: Key) -> bool:
        """Forget the usage of `key`; return whether there was any."""
        found: bool = self._bound.reset((key,) * len(self.counted.units))
        return found

    def give_back(self, key: Key, cost: Cost, ago_us: int, decision: Decision) -> None:
        """Give back `cost` units that the hit of `decision` charged up to `ago_us` microseconds ago.

        `ago_us` is measured from before that hit. `cost` may be a part of the charge: of units that a mapping does not
        name, nothing is given back. Never more is given back than the part of that charge that still counts. Raises
        ArgumentError, and StoreError where a store has no guard.
        """
        self._bound.give_back(self._receipt(key, cost, decision), ago_us)

    def _coloured(self, function: Callable[P, R]) -> Callable[P, R]:
        if self.store.blocking and _is_async(function):
            raise ConfigError(f"{name_of(function)} is async and this store waits for I/O: use AsyncLimiter")
        return function

    def close(self) -> None:
        """Close the store."""
        self._guarded_store.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLimiter(_BoundLimiter, AsyncAcquiring):
    """`Limiter` for asyncio: the same names, awaited.

    Memory never makes a caller wait, so there `hit` decides without giving up the event loop. A store
    that waits for I/O does not block it. A call without `await` decides nothing, and its coroutine
    counts as true: mypy finds it in a condition with the error code `truthy-bool`.
    """

    def __init__(
        self,
        limits: AnyLimits,
        *,
        store: str | Store = "memory://",
        name: str = "",
        clock: Clock | None = None,
        shadow: bool = False,
        on_store_error: OnStoreError | None = None,
        max_waiters: int = MOST_WAITERS,
    ) -> None:
        super().__init__(
            limits,
            store=store,
            name=name,
            clock=clock,
            shadow=shadow,
            on_store_error=on_store_error,
            max_waiters=max_waiters,
        )
        self._bind_shortcuts()

    def _bind_shortcuts(self) -> None:
        self._hold_new = getattr(self._bound, "hold_new", None) if self._is_plain else None
        if type(self).ask is AsyncLimiter.ask:
            self.__dict__.pop("ask", None)
            if self._is_plain:
                self.ask = self._bound.hit  # type: ignore[method-assign]  # the shortest way, as in Limiter

    def _bind(self, clock: Clock | None) -> BoundLimits | AsyncBoundLimits:
        return self._guarded_store.bind_async(self.definitions, clock=clock)

    async def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Decision:
        """See `Limiter.hit`."""
        if id is not None:
            hold = Hold(id, 0, at_once=True)
            reserved: Reserved = await answered(self._bound.reserve(self._operation(key, cost), hold))
            return reserved.decision
        decision: Decision = await answered(self.ask(key, cost))
        return decision

    async def reserve(
        self,
        key: Key,
        cost: Cost = 1,
        lease: float = 60,
        id: str | bytes | None = None,
        lease_us: int | None = None,
        remember: float | None = None,
    ) -> AsyncReservation:
        """See `Limiter.reserve`: `async with await limiter.reserve(key) as held`."""
        own_us = lease_of(lease, lease_us)
        if id is None and remember is None and self._hold_new is not None and type(cost) is int:
            return AsyncReservation(self._holds, await self._hold_new(key, cost, own_us), own_us)
        hold = Hold(id, own_us, remember_of(remember))
        reserved = await reserved_or_given_back(
            self._bound.reserve(self._operation(key, cost), hold), hold, self._bound.commit
        )
        return AsyncReservation(self._holds, reserved, own_us)

    async def commit(self, id: str, actual: Cost | None = None) -> Settlement:
        """See `Limiter.commit`."""
        holds = self._bound if self._is_plain and (type(actual) is int or actual is None) else self._holds
        settlement: Settlement = await answered(holds.commit(id, actual))
        return settlement

    async def cancel(self, id: str) -> Settlement:
        """See `Limiter.cancel`."""
        return await self.commit(id, 0)

    async def extend(self, id: str, lease: float = 60, more: Cost = 0, *, lease_us: int | None = None) -> Extension:
        """See `Limiter.extend`."""
        extension: Extension = await answered(self._holds.extend(id, lease_of(lease, lease_us), (more,)))
        return extension

    def id_of(self, key: Key, id: str | bytes) -> str:
        """See `Limiter.id_of`."""
        whole_id: str = self._bound.id_of(key, id)
        return whole_id

    def ask(self, key: Key, cost: Cost = 1) -> Decision | Awaitable[Decision]:
        """`hit` without a coroutine of its own: the decision, or an awaitable where the store waits for I/O."""
        if self._is_plain:
            answer: Decision | Awaitable[Decision] = self._bound.hit(key, cost)
            return answer
        decided: Decision | Awaitable[Decision] = self._decide(key, cost, commit=True)
        return decided

    async def peek(self, key: Key, cost: Cost = 1) -> Decision:
        """See `Limiter.peek`."""
        answer = self._bound.peek(key, cost) if self._is_plain else self._decide(key, cost, commit=False)
        decision: Decision = await answered(answer)
        return decision

    async def hit_many(self, keys: Iterable[Key], costs: Cost | Iterable[Cost] | None = None) -> Decisions:
        """See `Limiter.hit_many`."""
        all_keys = keys if type(keys) is list else list(keys)
        if not all_keys:
            return self._no_decisions(costs)
        if not self._is_plain:
            pending = [answered(self._bound.decide(operation)) for operation in self._operations(all_keys, costs)]
            return PythonDecisions(await asyncio.gather(*pending))
        cost_list = self._reusable_costs(costs)
        decisions: Decisions
        try:
            decisions = await answered(self._bound.hit_many(all_keys, cost_list))
        except ArgumentError:
            decisions = await answered(self._bound.hit_many(all_keys, self._numbers(cost_list, len(all_keys))))
        return decisions

    async def reset(self, key: Key) -> bool:
        """See `Limiter.reset`."""
        found: bool = await answered(self._bound.reset((key,) * len(self.counted.units)))
        return found

    async def give_back(self, key: Key, cost: Cost, ago_us: int, decision: Decision) -> None:
        """See `Limiter.give_back`."""
        await answered(self._bound.give_back(self._receipt(key, cost, decision), ago_us))

    def _coloured(self, function: Callable[P, R]) -> Callable[P, R]:
        if _is_async(function):
            return function
        if gives_coroutine(function):
            return as_coroutine_function(function)
        if is_async_generator_function(inspect.unwrap(function)):
            raise ConfigError(f"{name_of(function)} gives an async generator: put limit next to that")
        raise ConfigError(f"{name_of(function)} is not async: use Limiter")

    async def close(self) -> None:
        """Close the store."""
        await self._guarded_store.aclose()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _read_limits(limits: AnyLimits) -> tuple[Limit, ...]:
    if isinstance(limits, str):
        return parse_limits(limits)
    raw: object = limits
    if not isinstance(raw, Limit | Iterable) or isinstance(raw, bytes | bytearray | Mapping):
        raise ConfigError(f'limits are text such as "100/minute", limit values or a list of those, not {kind_of(raw)}')
    values = (limits,) if isinstance(limits, Limit) else tuple(limits)
    check_no_texts(values)
    for value in values:
        if not isinstance(value, Limit):
            raise ConfigError(
                f'limits are one text, with ";" between them, or limit values, not a list with {kind_of(value)}'
            )
    if not 0 < len(values) <= MOST_LIMITS:
        raise ConfigError(f"a limiter has 1 to {MOST_LIMITS} limits, not {len(values)}")
    return values


def check_no_texts(limits: Sequence[object]) -> None:
    """Raise ConfigError for limits that are written as several texts, as for other limiters, and say what to write."""
    texts = [limit for limit in limits if isinstance(limit, str)]
    if texts and len(texts) == len(limits):
        one = "; ".join(texts)
        raise ConfigError(f'several limits are one text with ";" between them, {one[:80]!r}, not a list of texts')


def _each_cost(keys: int, costs: Any) -> list[Any]:
    """A cost for each of `keys` keys, from one for all or one for each; raises ArgumentError for another number."""
    if costs is None:
        return [1] * keys
    if not isinstance(costs, Iterable) or isinstance(costs, Mapping | str):
        return [costs] * keys
    listed = list(costs)
    if len(listed) != keys:
        raise ArgumentError(f"{keys} keys need as many costs, not {len(listed)}")
    return listed


def _check_name(name: str) -> str:
    if name and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigError(f"a name is a letter and up to 63 more letters, digits, _ . or -, not {name!r}")
    return name


def _check_waiters(most: object) -> int:
    number = whole_number(most)
    if number is None or number < 1:
        raise ConfigError(f"max_waiters is a whole number of at least 1, not {most!r}")
    return number


def _is_async(function: Callable[..., object]) -> bool:
    return is_coroutine_function(function) or is_async_generator_function(function)
