"""Limit the calls of a function: refuse, wait in line, or call another function instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, ParamSpec, TypeVar, cast

from headgate.clock import Clock
from headgate.costs import Cost, Counted
from headgate.decision import Decision
from headgate.drive import check_asyncio
from headgate.errors import ConfigError, RateLimited
from headgate.held_calls import HeldCalls, RelayedValues, name_of, relaying
from headgate.holding import Hold, lease_of
from headgate.keys import Key, encode_key
from headgate.operation import Operation
from headgate.stores.protocol import BoundLimits
from headgate.waiting.lines import WaitingLines, proceed
from headgate.waiting.run import run, run_async
from headgate.waiting.steps import WaitSteps, timeout_us

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")

KeyOf = Key | Callable[..., Key]
CostOf = Cost | Callable[..., Cost]
OnRefusal = Literal["raise", "wait"] | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CallLimit:
    """How the calls of one function are limited."""

    bound: BoundLimits
    lines: WaitingLines
    clock: Clock
    counted: Counted
    key: KeyOf | None
    cost: CostOf
    on_refusal: OnRefusal
    timeout_us: int
    lease_us: int
    in_flight: bool
    """Whether one of the limits counts what is in flight: then a call holds its places while it runs."""

    @classmethod
    def checked(
        cls,
        bound: BoundLimits,
        lines: WaitingLines,
        clock: Clock,
        counted: Counted,
        *,
        key: KeyOf | None,
        cost: CostOf,
        on_refusal: OnRefusal,
        timeout: float | None,
        lease: float = 60,
        in_flight: bool = False,
    ) -> CallLimit:
        """Make a call limit; raises ConfigError for options that make no sense."""
        if key is not None and not callable(key):
            encode_key(key)
        if is_being_decorated(key):
            raise ConfigError("limit is written with parentheses, @limiter.limit(), also where no key is given")
        if not callable(cost):
            counted.read(cost)
        check_plain("key", key)
        check_plain("cost", cost)
        if on_refusal not in ("raise", "wait") and not callable(on_refusal):
            raise ConfigError(f'on_refusal is "raise", "wait" or a function, not {on_refusal!r}')
        if timeout is not None and on_refusal != "wait":
            raise ConfigError('a timeout is for on_refusal="wait"')
        lease_us = lease_of(lease, None)
        return cls(bound, lines, clock, counted, key, cost, on_refusal, timeout_us(timeout), lease_us, in_flight)

    def around(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function with its calls limited. `check_limitable` has passed it."""
        call = self if self.key is not None else self._keyed_by(function)
        if self.in_flight:
            return cast(Callable[P, R], call._hold_calls(function))
        if is_coroutine_function(function):
            return cast(Callable[P, R], call._around_coroutine(function))
        if is_async_generator_function(function):
            return cast(Callable[P, R], call._around_async_generator(cast(Callable[..., Any], function)))
        return call._around_plain(function)

    def _hold_calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        calls = HeldCalls(self.bound, self.clock, self.lease_us, self._key_and_costs, self._refused, self._waiting)
        if is_coroutine_function(function):
            return calls.around_coroutine(function)
        if is_async_generator_function(function):
            return calls.around_async_generator(function)
        if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(_call_of(function)):
            return calls.around_generator(function)
        return calls.around_plain(function)

    @property
    def _waiting(self) -> Callable[[Key, tuple[int, ...]], WaitSteps] | None:
        """The steps by which a call waits for the places that it holds while it runs; None if it does not wait."""
        if self.on_refusal != "wait":
            return None
        lines, hold = self.lines, Hold(None, self.lease_us)
        return lambda key, costs: lines.steps(key, costs, self.timeout_us, lines.holding(key, hold))

    def _around_plain(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            decision = run(self._steps(args, kwargs), self.bound, self.clock)
            if decision.allowed:
                return function(*args, **kwargs)
            return cast(R, self._refused(decision, args, kwargs))

        return limited

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            decision = await run_async(self._async_steps(args, kwargs), self.bound, self.clock)
            if decision.allowed:
                return await function(*args, **kwargs)
            substitute = self._refused(decision, args, kwargs)
            return await substitute if inspect.isawaitable(substitute) else substitute

        return limited

    def _around_async_generator(self, function: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
        return relaying(function, self._values)

    @asynccontextmanager
    async def _values(
        self, function: Callable[..., AsyncIterator[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncIterator[RelayedValues]:
        """The values of a call; of a refused one those of its substitute."""
        decision = await run_async(self._async_steps(args, kwargs), self.bound, self.clock)
        source = function(*args, **kwargs) if decision.allowed else self._refused(decision, args, kwargs)
        async with RelayedValues(source) as values:
            yield values

    def _steps(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WaitSteps:
        key, costs = self._key_and_costs(args, kwargs)
        if self.on_refusal == "wait":
            return self.lines.steps(key, costs, self.timeout_us)
        return self._decide(key, costs)

    def _async_steps(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WaitSteps:
        if self.on_refusal == "wait":
            check_asyncio()
        return self._steps(args, kwargs)

    def _key_and_costs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, tuple[int, ...]]:
        key = self.key(*args, **kwargs) if callable(self.key) else self.key or ""
        cost = self.cost(*args, **kwargs) if callable(self.cost) else self.cost
        return key, (cost,) if type(cost) is int and self.counted.is_plain else self.counted.read(cost)

    def _decide(self, key: Key, costs: tuple[int, ...]) -> Generator[Any, Any, Decision]:
        decision: Decision = yield Operation((key,) * len(costs), costs)
        yield from proceed(decision, self.clock)
        return decision

    def _refused(self, decision: Decision, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if callable(self.on_refusal):
            return self.on_refusal(*args, **kwargs)
        raise RateLimited(decision)

    def _keyed_by(self, function: Callable[..., Any]) -> CallLimit:
        unwrapped = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
        named = unwrapped if hasattr(unwrapped, "__qualname__") else type(unwrapped)
        name = f"{getattr(named, '__module__', None)}.{named.__qualname__}"  # a method of `str` has no module
        return replace(self, key=name)


def is_being_decorated(function: object) -> bool:
    """Whether the caller of Headgate is defining this function at this moment, below a decorator without arguments.

    This distinguishes `@limit` from `limit(function)`: the function's code is a constant of the caller's code, which is
    at one of the function's lines. It does not work for a function that another decorator has replaced without
    `functools.wraps`.
    """
    code = inspect.unwrap(function).__code__ if inspect.isfunction(function) else None
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "headgate":
        frame = frame.f_back
    if code is None or frame is None or code.co_name == "<lambda>":
        return False
    lines = [line for _, _, line in code.co_lines() if line is not None]
    is_its_own = any(code is constant for constant in frame.f_code.co_consts)
    return is_its_own and code.co_firstlineno <= frame.f_lineno <= max(lines)


def check_limitable(function: object) -> None:
    """Raise ConfigError for anything but a function or a callable object."""
    if isinstance(function, classmethod | staticmethod):
        raise ConfigError(f"put limit below @{type(function).__name__}, next to the function")
    if not callable(function) or inspect.isclass(function):
        kind = "class" if inspect.isclass(function) else type(function).__name__
        raise ConfigError(
            f"limit goes around a function or a method, not a {kind}; without a key it is written "
            "@limiter.limit(), with parentheses"
        )


def check_plain(name: str, function: object) -> None:
    """Raise ConfigError for a coroutine function where nothing would await its result."""
    if callable(function) and is_coroutine_function(function):
        raise ConfigError(f"{name} is no coroutine function: nothing awaits what it gives")


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Whether calling `function` returns a coroutine; an object counts by its `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_call_of(function))


def gives_coroutine(function: object) -> bool:
    """Whether `function` wraps a coroutine function, by another decorator."""
    if not callable(function) or isinstance(function, classmethod | staticmethod):
        return False
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def as_coroutine_function(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function of `def` that returns a coroutine, as methods of client packages do, in one of `async def`."""

    @functools.wraps(function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        answer: Any = function(*args, **kwargs)
        if not inspect.isawaitable(answer):
            raise ConfigError(f"{name_of(function)} is not async: use Limiter")
        return await answer

    return cast(Callable[P, R], called)


def markable(function: F) -> F:
    """Return a function that attributes can be set on: the given one; for a bound method, one that calls it."""
    if not inspect.ismethod(function):
        return function
    method: Callable[..., Any] = function
    if is_coroutine_function(method):

        @functools.wraps(method)
        async def called_async(*args: Any, **kwargs: Any) -> Any:
            return await method(*args, **kwargs)

        return cast(F, called_async)

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return cast(F, called)


def is_async_generator_function(function: Callable[..., object]) -> bool:
    """Whether calling `function` returns an async generator."""
    return inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(_call_of(function))


def _call_of(function: Callable[..., object]) -> object:
    return None if inspect.isroutine(function) else getattr(type(function), "__call__", None)  # noqa: B004
