"""The one driver of work that may wait: it is written once, as a generator, and driven in either colour.

Such a generator yields the steps to do, and is sent the answer to each. An error is raised where it yielded, so a `try`
around a `yield` sees the same in both colours. `do` performs a step; without it a step is its own answer, or an
awaitable of it. On an event loop an answer that is no awaitable is used as it is: a store that never waits answers at
once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

from headgate.errors import ConfigError

T = TypeVar("T")

_unfinished: set[asyncio.Future[Any]] = set()
"""Futures that go on although nothing awaits them: an event loop keeps only weak references to its tasks."""

_shielded: set[asyncio.Future[Any]] = set()
"""Those of `answered_in_any_case`."""

NEEDS_ASYNCIO = "waiting, holding in a block or a call, and Redis need asyncio, whose event loop does not run here"
"""The message of `check_asyncio` where a program runs on another event loop."""

_PORTION = 500
"""Requests that `all_in_portions` asks together: far fewer than an event loop and a server handle within a deadline."""

_CANCEL_TURNS = 20
"""The turns of an event loop that a cancelled task has to come to its end."""


def is_on_asyncio() -> bool:
    """Whether an event loop of asyncio runs in this thread; on trio none does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_asyncio(otherwise: str = NEEDS_ASYNCIO) -> None:
    """Raise ConfigError with this text where no event loop of asyncio runs."""
    if not is_on_asyncio():
        raise ConfigError(otherwise)


def drive(steps: Generator[Any, Any, T], do: Callable[[Any], Any] | None = None) -> T:
    """Perform the steps in this thread and return their result."""
    try:
        step = next(steps)
        while True:
            try:
                answer = step if do is None else do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def drive_async(steps: Generator[Any, Any, T], do: Callable[[Any], Any] | None = None) -> T:
    """`drive` on an event loop, which is never blocked; cancelling it ends the steps where they are."""
    try:
        step = next(steps)
        while True:
            try:
                answer = step if do is None else do(step)
                if hasattr(answer, "__await__"):
                    answer = await answer
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def drive_together(
    generators: Sequence[Generator[Any, Any, T]],
    do: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]],
    first: Sequence[Any] | None = None,
) -> list[T | Exception]:
    """Drive several generators together; return the result of each, or the error that ended it.

    `do` performs the current step of each in one call and returns the answers in their order; an error among them is
    raised where that step was yielded. For generators that have begun, `first` has the answers to the steps that they
    have yielded.
    """
    return await drive_async(together(generators, first), do)


def together(
    generators: Sequence[Generator[Any, Any, T]], first: Sequence[Any] | None = None
) -> Generator[list[Any], Sequence[Any], list[T | Exception]]:
    """Several generators as one, which yields the current steps of all; see `drive_together`."""
    results: list[Any] = [None] * len(generators)
    answers: list[tuple[int, Any]] = list(enumerate([None] * len(generators) if first is None else first))
    try:
        while answers:
            indexes, steps = [], []
            for index, answer in answers:
                generator = generators[index]
                try:
                    step = generator.throw(answer) if isinstance(answer, Exception) else generator.send(answer)
                except StopIteration as stop:
                    results[index] = stop.value
                except Exception as error:
                    results[index] = error
                else:
                    indexes.append(index)
                    steps.append(step)
            answers = list(zip(indexes, (yield steps), strict=True)) if steps else []
    finally:
        for generator in generators:
            generator.close()
    return results


def each(do: Callable[[Any], Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """Perform steps one after another; return the answers, with errors in their places."""

    def answer_or_error(step: Any) -> Any:
        try:
            return do(step)
        except Exception as error:
            return error

    return lambda steps: list(map(answer_or_error, steps))


def nested(outer: Generator[Any, Any, T], inner: Callable[[Any], Generator[Any, Any, Any]]) -> Generator[Any, Any, T]:
    """A generator that drives `outer`: each of its steps is done by a generator from `inner`, whose steps it yields."""
    try:
        step = next(outer)
        while True:
            try:
                answer = yield from inner(step)
            except Exception as error:
                step = outer.throw(error)
            else:
                step = outer.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        outer.close()


def all_in_portions(requests: Sequence[Any], answer_many: Callable[[Sequence[Any]], Any]) -> Generator[Any, Any, Any]:
    """The answers to many requests, in their order; raises the first error among them, which ends the rest.

    They are asked in portions, each of which has a deadline of its own; `answer_many` answers one, or returns an
    awaitable of the answers, with errors in their places.
    """
    values: list[Any] = []
    for start in range(0, len(requests), _PORTION):
        for answer in (yield answer_many(requests[start : start + _PORTION])):
            if isinstance(answer, Exception):
                raise answer
            values.append(answer)
    return values


async def answered(answer: T | Awaitable[T]) -> T:
    """Return an answer, after awaiting it where it is an awaitable."""
    value: Any = answer
    result: T = await value if hasattr(value, "__await__") else value
    return result


def as_future(answer: Awaitable[T]) -> asyncio.Future[T]:
    """Start an awaitable as a task; raises ConfigError where no event loop of asyncio runs."""
    if not is_on_asyncio():
        if inspect.iscoroutine(answer):
            answer.close()
        raise ConfigError(NEEDS_ASYNCIO)
    return asyncio.ensure_future(answer)


def begun(answer: Awaitable[T]) -> asyncio.Future[T]:
    """Start an awaitable as a task that goes on to its end, even if its caller stops waiting."""
    future = as_future(answer)
    _unfinished.add(future)
    future.add_done_callback(_unfinished.discard)
    return future


async def answered_in_any_case(answer: Awaitable[T]) -> T:
    """Return an awaited answer; the request goes on to its end however often the caller is cancelled."""
    future = begun(answer)
    _shielded.add(future)
    future.add_done_callback(_shielded.discard)
    return await asyncio.shield(future)


async def all_answered(*, within_s: float) -> None:
    """Wait for all `answered_in_any_case` requests of this event loop, for at most `within_s` seconds.

    Tasks that were cancelled just before, as by a server that ends, may still begin such requests first.
    """
    for _ in range(_CANCEL_TURNS):
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    pending = [future for future in tuple(_shielded) if future.get_loop() is loop]
    if pending:
        await asyncio.wait(pending, timeout=within_s)
