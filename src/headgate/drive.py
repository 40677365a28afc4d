"""The one driver of work that may wait: it is written once, as a generator, and driven in either colour.

Such a generator yields what is to be done, and is given what came of it. An error is raised where it yielded, so a
`try` around a `yield` sees the same in both colours. `do` says how a step is done; without it a step is done already,
or an awaitable. On an event loop what is no awaitable is taken as it is: a store that never waits answers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

from headgate.errors import ConfigError

T = TypeVar("T")

_unfinished: set[asyncio.Future[Any]] = set()
"""What goes on although nothing waits for it: an event loop itself remembers its tasks only weakly."""

_answering: set[asyncio.Future[Any]] = set()
"""What of that is asked in any case."""

_TURNS = 20
"""So many turns of an event loop a cancelled task has to come to its end."""


def is_on_asyncio() -> bool:
    """Whether an event loop of asyncio runs in this thread; on trio none does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_asyncio(otherwise: str) -> None:
    """Raise ConfigError with this text where no event loop of asyncio runs."""
    if not is_on_asyncio():
        raise ConfigError(otherwise)


def drive(steps: Generator[Any, Any, T], do: Callable[[Any], Any] | None = None) -> T:
    """The result of the steps, which are done in this thread."""
    try:
        step = next(steps)
        while True:
            try:
                came = step if do is None else do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(came)
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
                came = step if do is None else do(step)
                if hasattr(came, "__await__"):
                    came = await came
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(came)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def drive_together(
    works: Sequence[Generator[Any, Any, T]],
    do: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]],
    first: Sequence[Any] | None = None,
) -> list[T | Exception]:
    """The result of each of several works, or the error that ended it; the steps that are due together are done so.

    `do` gives what came of each step, in their order; an error among it is raised where that step was yielded. Of works
    that have begun, `first` is what came of the step that each of them is at.
    """
    results: list[Any] = [None] * len(works)
    came: list[tuple[int, Any]] = list(enumerate([None] * len(works) if first is None else first))
    try:
        while came:
            places, steps = [], []
            for place, value in came:
                work = works[place]
                try:
                    step = work.throw(value) if isinstance(value, Exception) else work.send(value)
                except StopIteration as stop:
                    results[place] = stop.value
                except Exception as error:
                    results[place] = error
                else:
                    places.append(place)
                    steps.append(step)
            came = list(zip(places, await do(steps), strict=True)) if steps else []
    finally:
        for work in works:
            work.close()
    return results


def nested(outer: Generator[Any, Any, T], inner: Callable[[Any], Generator[Any, Any, Any]]) -> Generator[Any, Any, T]:
    """A work of which each step is a work of its own, which `inner` gives: it yields the steps of those."""
    try:
        step = next(outer)
        while True:
            try:
                came = yield from inner(step)
            except Exception as error:
                step = outer.throw(error)
            else:
                step = outer.send(came)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        outer.close()


def all_or_error(results: Sequence[T | Exception]) -> list[T]:
    """The results of `drive_together`; raises the first error among them."""
    good = []
    for result in results:
        if isinstance(result, Exception):
            raise result
        good.append(result)
    return good


async def answered(answer: T | Awaitable[T]) -> T:
    """What was answered: at once, or when it comes."""
    value: Any = answer
    came: T = await value if hasattr(value, "__await__") else value
    return came


def begun(answer: Awaitable[T]) -> asyncio.Future[T]:
    """What goes on to its end from now on, even if its caller stops waiting."""
    asked = asyncio.ensure_future(answer)
    _unfinished.add(asked)
    asked.add_done_callback(_unfinished.discard)
    return asked


async def answered_in_any_case(answer: Awaitable[T]) -> T:
    """What is answered; asking goes on to its end where the caller is cancelled, once or again and again."""
    asked = begun(answer)
    _answering.add(asked)
    asked.add_done_callback(_answering.discard)
    return await asyncio.shield(asked)


async def all_answered(*, within_s: float) -> None:
    """Wait until all is answered that is asked in any case on this event loop, but no longer than so many seconds.

    Tasks that were cancelled just before, as by a server that ends, come to ask first.
    """
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    asked = [each for each in tuple(_answering) if each.get_loop() is loop]
    if asked:
        await asyncio.wait(asked, timeout=within_s)
