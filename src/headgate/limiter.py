"""Limits bound to a store: the main interface of the library.

`Limiter` for threads, `AsyncLimiter` for asyncio; both have the same names and share everything but
the way they wait.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ParamSpec, Self, TypeVar

from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit, name_limits
from headgate.decorator import (
    CallLimit,
    CostOf,
    KeyOf,
    OnRefusal,
    is_async_generator_function,
    is_coroutine_function,
)
from headgate.drive import answered
from headgate.errors import ConfigError
from headgate.keys import Key, check_cost
from headgate.limit_text import MOST_LIMITS, parse_limits
from headgate.limits import Limit
from headgate.operation import Operation, Receipt
from headgate.stores.guard.choice import answering, rescued
from headgate.stores.guard.fallback import Choice, check_choice
from headgate.stores.protocol import AsyncBoundLimits, BoundLimits, Decisions, Store
from headgate.stores.url import open_store
from headgate.waiting import WaitingLines, run, run_async, timeout_us

P = ParamSpec("P")
R = TypeVar("R")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class _BoundLimiter:
    """What the limiters of both colours are made of."""

    def __init__(
        self,
        limits: str | Limit | Sequence[Limit],
        *,
        store: str | Store = "memory://",
        name: str = "",
        clock: Clock | None = None,
        shadow: bool = False,
        on_store_error: Choice | None = None,
    ) -> None:
        self.limits = _read_limits(limits)
        self.name = _check_name(name)
        self.store = open_store(store) if isinstance(store, str) else store
        text = "; ".join(str(limit) for limit in self.limits)
        scope = f"limiter/{name}" if name else f"limits/{text}"
        self.definitions: tuple[NamedLimit, ...] = name_limits(
            self.limits,
            scope=scope,
            name=name or "default",
            shadow=shadow,
            on_store_error=check_choice(on_store_error),
        )
        self._answering = answering(self.store) if on_store_error else self.store
        self._own_clock = clock
        self._bound: Any = self._bind_as_told()
        self._clock = clock or self.store.clock
        self._lines = WaitingLines(self.definitions, self._clock)

    def _bind(self, clock: Clock | None) -> BoundLimits | AsyncBoundLimits:
        return self._answering.bind(self.definitions, clock=clock)

    def _bind_as_told(self) -> Any:
        bound = self._bind(self._own_clock)
        if not self.definitions[0].on_store_error:
            return bound
        return rescued(self.store, bound, self.definitions, self._own_clock)

    def _shorten(self) -> None:
        """Let methods that only pass on what they are given be those of the bound limits."""
        raise NotImplementedError

    def told(self, on_store_error: Choice) -> Self:
        """This limiter, with its lines, where `on_store_error` is its choice unless it has one of its own."""
        if self.definitions[0].on_store_error:
            return self
        other = copy(self)
        choice = check_choice(on_store_error)
        other.definitions = tuple(replace(limit, on_store_error=choice) for limit in self.definitions)
        other._answering = answering(self.store)
        other._bound = other._bind_as_told()
        other._shorten()
        return other

    @property
    def bound(self) -> Any:
        """The limits as they are bound to the store, `BoundLimits` or `AsyncBoundLimits`."""
        return self._bound

    def limit(
        self,
        key: KeyOf | None = None,
        *,
        cost: CostOf = 1,
        on_refusal: OnRefusal = "raise",
        timeout: float | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Limit the calls of a function.

        `key` and `cost` are values, or are called with the function's arguments; without a key, all
        calls of the function count together. A refused call raises RateLimited; with
        `on_refusal="wait"` it stands in line first, for at most `timeout` seconds; where `on_refusal`
        is a function, that is called instead, with the same arguments.
        """
        call = CallLimit.checked(
            self._bound, self._lines, self._clock, key=key, cost=cost, on_refusal=on_refusal, timeout=timeout
        )

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            self._check_colour(function)
            return call.around(function)

        return decorate

    def _check_colour(self, function: Callable[..., object]) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        text = "; ".join(str(limit) for limit in self.limits)
        return f"{type(self).__name__}({text!r}, store={self.store!r})"


class Limiter(_BoundLimiter):
    """Decides for one or several limits, all or none; safe under threads.

    `limits` is text ("10/second burst 100; 1000/hour") or limit values. `store` is a URL or a store;
    "memory://" gives this limiter a store of its own. Limiters that share a store share their counts
    if they have the same `name`; without a name, if they have the same limits. A named limiter's
    numbers may change without forgetting what was used. `clock` replaces the store's clock. With
    `shadow` everything is counted and reported, in `Decision.refusals`, but nothing is refused. `on_store_error`
    ("local", "open" or "closed") decides where the store cannot; without it, the store's URL does,
    and a store without a guard raises StoreError.

    Raises ConfigError for limits or stores that cannot be used.
    """

    def __init__(
        self,
        limits: str | Limit | Sequence[Limit],
        *,
        store: str | Store = "memory://",
        name: str = "",
        clock: Clock | None = None,
        shadow: bool = False,
        on_store_error: Choice | None = None,
    ) -> None:
        super().__init__(limits, store=store, name=name, clock=clock, shadow=shadow, on_store_error=on_store_error)
        self._shorten()

    def _shorten(self) -> None:
        # A bound method of the store is the shortest way to a decision; a subclass's own way stays.
        for method in ("hit", "peek", "hit_many"):
            if getattr(type(self), method) is getattr(Limiter, method):
                setattr(self, method, getattr(self._bound, method))

    def hit(self, key: Key, cost: int = 1) -> Decision:
        """Take `cost` units of `key` now, if every limit admits it. A cost of 0 only looks.

        `key` is text or a tuple of parts. Atomic; a refusal changes nothing. Raises ArgumentError for
        an invalid key or cost, StoreError where the store does not answer.
        """
        decision: Decision = self._bound.hit(key, cost)
        return decision

    def peek(self, key: Key, cost: int = 1) -> Decision:
        """Whether `cost` would pass, and what it would leave; changes nothing. A cost of 0 shows what is left."""
        decision: Decision = self._bound.peek(key, cost)
        return decision

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        """Decide one request after another, all at one instant; each by itself.

        `costs` is one cost for all or one for each. If any key or cost is invalid, none is charged.
        """
        decisions: Decisions = self._bound.hit_many(keys, costs)
        return decisions

    def acquire(self, key: Key, cost: int = 1, *, timeout: float | None = None) -> Decision:
        """Take `cost` units of `key`, waiting for them in line for at most `timeout` seconds.

        Refused at once, with nothing consumed, if the turn would come later than that or never.
        Blocks only this thread; callers that wait for other keys are not in its line.
        """
        return run(self._lines.steps(key, check_cost(cost), timeout_us(timeout)), self._bound)

    def reset(self, key: Key) -> bool:
        """Forget what `key` used; gives whether there was anything."""
        found: bool = self._bound.reset((key,))
        return found

    def give_back(self, key: Key, cost: int, ago_us: int, decision: Decision) -> None:
        """Give back `cost` units that the hit of `decision` charged up to `ago_us` microseconds ago.

        `ago_us` is measured from before that hit; `cost` may be a part of what was charged. Never more is given
        back than the part of that charge that still counts. Raises ArgumentError, and StoreError where a store
        has no guard.
        """
        self._bound.give_back(Receipt.of(Operation((key,), (cost,)), decision), ago_us)

    def _check_colour(self, function: Callable[..., object]) -> None:
        if self.store.blocking and _is_async(function):
            raise ConfigError(f"{_name_of(function)} is async and this store waits for I/O: use AsyncLimiter")

    def close(self) -> None:
        """Close the store."""
        self._answering.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLimiter(_BoundLimiter):
    """`Limiter` for asyncio: the same names, awaited.

    Memory never makes a caller wait, so there `hit` decides without giving up the event loop. A store
    that waits for I/O does not block it.
    """

    def __init__(
        self,
        limits: str | Limit | Sequence[Limit],
        *,
        store: str | Store = "memory://",
        name: str = "",
        clock: Clock | None = None,
        shadow: bool = False,
        on_store_error: Choice | None = None,
    ) -> None:
        super().__init__(limits, store=store, name=name, clock=clock, shadow=shadow, on_store_error=on_store_error)
        self._shorten()

    def _shorten(self) -> None:
        if type(self).ask is AsyncLimiter.ask:
            self.ask = self._bound.hit  # type: ignore[method-assign]  # the shortest way, as in Limiter

    def _bind(self, clock: Clock | None) -> BoundLimits | AsyncBoundLimits:
        return self._answering.bind_async(self.definitions, clock=clock)

    async def hit(self, key: Key, cost: int = 1) -> Decision:
        """See `Limiter.hit`."""
        decision: Decision = await answered(self._bound.hit(key, cost))
        return decision

    def ask(self, key: Key, cost: int = 1) -> Decision | Awaitable[Decision]:
        """`hit` without a coroutine of its own: the decision, or an awaitable where the store waits for I/O."""
        answer: Decision | Awaitable[Decision] = self._bound.hit(key, cost)
        return answer

    async def peek(self, key: Key, cost: int = 1) -> Decision:
        """See `Limiter.peek`."""
        decision: Decision = await answered(self._bound.peek(key, cost))
        return decision

    async def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        """See `Limiter.hit_many`."""
        decisions: Decisions = await answered(self._bound.hit_many(keys, costs))
        return decisions

    async def acquire(self, key: Key, cost: int = 1, *, timeout: float | None = None) -> Decision:
        """See `Limiter.acquire`; cancelling it leaves the line."""
        return await run_async(self._lines.steps(key, check_cost(cost), timeout_us(timeout)), self._bound)

    async def reset(self, key: Key) -> bool:
        """See `Limiter.reset`."""
        found: bool = await answered(self._bound.reset((key,)))
        return found

    async def give_back(self, key: Key, cost: int, ago_us: int, decision: Decision) -> None:
        """See `Limiter.give_back`."""
        await answered(self._bound.give_back(Receipt.of(Operation((key,), (cost,)), decision), ago_us))

    def _check_colour(self, function: Callable[..., object]) -> None:
        if not _is_async(function):
            raise ConfigError(f"{_name_of(function)} is not async: use Limiter")

    async def close(self) -> None:
        """Close the store."""
        await self._answering.aclose()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _read_limits(limits: str | Limit | Sequence[Limit]) -> tuple[Limit, ...]:
    if isinstance(limits, str):
        return parse_limits(limits)
    given: object = limits
    if not isinstance(given, Limit | Iterable) or isinstance(given, bytes | bytearray):
        raise ConfigError(
            f'limits are text such as "100/minute", limit values or a list of those, not a {type(given).__name__}'
        )
    values = (limits,) if isinstance(limits, Limit) else tuple(limits)
    for value in values:
        if not isinstance(value, Limit):
            raise ConfigError(f"limits are text or limit values, not a {type(value).__name__}")
    if not 0 < len(values) <= MOST_LIMITS:
        raise ConfigError(f"a limiter has 1 to {MOST_LIMITS} limits, not {len(values)}")
    return values


def _check_name(name: str) -> str:
    if name and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigError(f"a name is a letter and up to 63 more letters, digits, _ . or -, not {name!r}")
    return name


def _is_async(function: Callable[..., object]) -> bool:
    return is_coroutine_function(function) or is_async_generator_function(function)


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function))
