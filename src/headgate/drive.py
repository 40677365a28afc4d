"""Work with I/O in it that is written once, as a generator of what is to be done, and driven in either colour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any


def drive(steps: Generator[Any, Any, Any], do: Callable[[Any], Any]) -> Any:
    """Do each step; what comes of it, or its error, goes back into the generator. Gives the generator's result."""
    try:
        step = next(steps)
        while True:
            try:
                came = do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(came)
    except StopIteration as stop:
        return stop.value


async def drive_async(steps: Generator[Any, Any, Any], do: Callable[[Any], Awaitable[Any]]) -> Any:
    """`drive` for an event loop."""
    try:
        step = next(steps)
        while True:
            try:
                came = await do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(came)
    except StopIteration as stop:
        return stop.value
