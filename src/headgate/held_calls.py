"""Calls of a function under limits of what is in flight: places are held while it runs, and freed however it ends.

The other charges of a call stay, as they do under limits of rates alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from headgate import heartbeat
from headgate.clock import Clock
from headgate.decision import Decision
from headgate.drive import answered, check_asyncio
from headgate.errors import ConfigError
from headgate.holding import Hold
from headgate.keys import Key
from headgate.operation import Operation
from headgate.reservation import AsyncReservation, Reservation, end, end_async
from headgate.waiting.run import run, run_async
from headgate.waiting.steps import WaitSteps

KeyAndCosts = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Key, tuple[int, ...]]]
"""The key of a call and its cost in each unit, from its arguments."""

Waiting = Callable[[Key, tuple[int, ...]], WaitSteps]
"""The steps by which a call waits for the places that it holds."""

Refused = Callable[[Decision, tuple[Any, ...], dict[str, Any]], Any]
"""The substitute for a call that was refused."""


def name_of(function: Callable[..., object]) -> str:
    """The name of a function in error messages."""
    return getattr(function, "__qualname__", repr(function))


class HeldCalls:
    """Wraps a function so that each call holds places while it runs."""

    def __init__(
        self,
        bound: Any,
        clock: Clock,
        lease_us: int,
        key_and_costs: KeyAndCosts,
        refused: Refused,
        waiting: Waiting | None = None,
    ) -> None:
        self._bound = bound
        self._clock = clock
        self._waiting = waiting
        self._lease_us = lease_us
        self._key_and_costs = key_and_costs
        self._refused = refused

    def around_plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            reservation = self._reserve(args, kwargs)
            if not reservation:
                return self._refused(reservation.decision, args, kwargs)
            ends_later = False
            try:
                heartbeat.start(reservation)
                result = _started(function, function(*args, **kwargs))
                if inspect.isgenerator(result):  # another decorator is around the generator
                    values = _values_in_place(result, reservation)
                    next(values)
                    ends_later = True
                    return values
                return result
            finally:
                if not ends_later:
                    # Inline: in a function of its own, a signal handler that raises as that begins would end nothing.
                    try:
                        end(reservation)
                    except BaseException:  # a signal handler raised during it
                        end(reservation)
                        raise

        return limited

    def around_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            reservation = self._reserve(args, kwargs)
            if not reservation:
                return (yield from self._refused(reservation.decision, args, kwargs))
            try:
                heartbeat.start(reservation)
                return (yield from function(*args, **kwargs))
            finally:
                try:  # inline, as in `around_plain`
                    end(reservation)
                except BaseException:  # a signal handler raised during it
                    end(reservation)
                    raise

        return limited

    def around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            reservation = await self._reserve_async(args, kwargs)
            if not reservation:
                substitute = self._refused(reservation.decision, args, kwargs)
                return await substitute if inspect.isawaitable(substitute) else substitute
            heartbeat.start_async(reservation)
            try:
                return await function(*args, **kwargs)
            finally:
                await end_async(reservation)

        return limited

    def around_async_generator(self, function: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
        return relaying(function, self._values)

    @asynccontextmanager
    async def _values(
        self, function: Callable[..., AsyncIterator[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncIterator[RelayedValues]:
        """The values of a call, which holds its places until the values end."""
        reservation = await self._reserve_async(args, kwargs)
        if not reservation:
            async with RelayedValues(self._refused(reservation.decision, args, kwargs)) as values:
                yield values
            return
        heartbeat.start_async(reservation)
        try:
            async with RelayedValues(function(*args, **kwargs)) as values:
                yield values
        finally:
            await end_async(reservation)

    def _reserve(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reservation:
        key, costs = self._key_and_costs(args, kwargs)
        if self._waiting is not None:
            reserved = run(self._waiting(key, costs), self._bound, self._clock)
        else:
            reserved = self._bound.reserve(*self._operation_and_hold(key, costs))
        return Reservation(self._bound, reserved, self._lease_us)

    async def _reserve_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncReservation:
        check_asyncio()
        key, costs = self._key_and_costs(args, kwargs)
        if self._waiting is not None:
            reserved = await run_async(self._waiting(key, costs), self._bound, self._clock)
        else:
            reserved = await answered(self._bound.reserve(*self._operation_and_hold(key, costs)))
        return AsyncReservation(self._bound, reserved, self._lease_us)

    def _operation_and_hold(self, key: Key, costs: tuple[int, ...]) -> tuple[Operation, Hold]:
        return Operation((key,) * len(costs), costs), Hold(None, self._lease_us)


async def _no_values() -> AsyncIterator[None]:
    """Yield nothing: what is below `asynccontextmanager` for its type alone."""
    return
    yield


_BLOCKS = (type(contextmanager(lambda: iter(()))()), type(asynccontextmanager(_no_values)()))
"""The types of what a function below `contextmanager` or `asynccontextmanager` gives."""


def _started(function: Callable[..., Any], result: Any) -> Any:
    """Return the result of a call; raises ConfigError for one that runs later, without its place."""
    if inspect.iscoroutine(result):
        result.close()
        raise ConfigError(f"{name_of(function)} gives a coroutine, which runs later: use AsyncLimiter")
    if inspect.isasyncgen(result):
        raise ConfigError(f"{name_of(function)} gives an async generator, which runs later: put limit next to that")
    if isinstance(result, _BLOCKS):
        raise ConfigError(
            f"{name_of(function)} gives a context manager, whose block runs later: put limit below @contextmanager, "
            "next to the function, or write: with limiter.reserve(key)"
        )
    return result


def _values_in_place(values: Generator[Any, Any, Any], reservation: Reservation) -> Generator[Any, Any, Any]:
    """The values of a generator, which hold a place until they end.

    The caller takes a first step, which yields None: a generator that has not begun would not notice that it is closed.
    """
    try:
        yield None
        return (yield from values)
    finally:
        try:  # inline, as in `around_plain`
            end(reservation)
        except BaseException:  # a signal handler raised during it
            end(reservation)
            raise


Opened = Callable[
    [Callable[..., AsyncIterator[Any]], tuple[Any, ...], dict[str, Any]], "AbstractAsyncContextManager[RelayedValues]"
]
"""Decides a call of an async generator, by its function and its arguments, and opens its values."""


def relaying(function: Callable[..., AsyncIterator[Any]], opened: Opened) -> Callable[..., Any]:
    """Wrap an async generator function: each call takes its values from `opened`."""

    @functools.wraps(function)
    async def limited(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with opened(function, args, kwargs) as values:
            while await values.advance():
                try:
                    values.sent = yield values.value
                except GeneratorExit:
                    raise
                except BaseException as error:
                    values.thrown = error

    return limited


class RelayedValues:
    """The values of an async generator that another one yields, as `yield from` does for plain generators.

    Values and errors that the caller sends or throws are passed on to the inner generator: so `asynccontextmanager`
    around a limited function lets that see the error of its block. A caller that stops early stops it, too.
    """

    def __init__(self, values: AsyncIterator[Any]) -> None:
        self._values: Any = values
        self.value: Any = None
        self.sent: Any = None
        self.thrown: BaseException | None = None

    async def advance(self) -> bool:
        """Pass on what was `sent` or `thrown`; return whether there is one more `value`."""
        sent, thrown = self.sent, self.thrown
        self.sent = self.thrown = None
        try:
            self.value = await self._step(sent, thrown)
        except StopAsyncIteration:
            return False
        return True

    def _step(self, sent: Any, thrown: BaseException | None) -> Any:
        if thrown is not None:
            if not hasattr(self._values, "athrow"):  # an iterator of another kind, which cannot be thrown into
                raise thrown
            return self._values.athrow(thrown)
        return self._values.__anext__() if sent is None else self._values.asend(sent)

    async def __aenter__(self) -> RelayedValues:
        if not hasattr(self._values, "__anext__"):
            self._values = aiter(self._values)
        return self

    async def __aexit__(self, *_: object) -> None:
        close = getattr(self._values, "aclose", None)
        if close is not None:
            await close()
