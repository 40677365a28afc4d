"""Handlers of a queue for threads: plain functions on threads of a worker, none of which ends the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.drive import answered
from headgate.llm.queue.attempt import Handler, QueuedCall, awaitable

PlainHandler = Callable[[QueuedCall, Any], Any]
"""Has a job done on a thread, and gives the answer."""


class HandlerThreads:
    """A handler that has jobs done by a plain function, on threads."""

    def __init__(self, handler: PlainHandler, most: int) -> None:
        self._handler = handler
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="headgate-job")

    async def __call__(self, job: QueuedCall, call: Any) -> Any:
        given = await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, job, call)
        return await answered(given)  # an `async` function under a decorator gives its coroutine

    def _answer(self, job: QueuedCall, call: Any) -> Any:
        try:
            return self._handler(job, call)
        except StopIteration as error:  # which no event loop takes from a thread: its job would run for ever
            raise _raised(error) from error

    def end(self) -> None:
        """Take no more; threads end when what they do has ended."""
        self._pool.shutdown(wait=False)


def not_exiting(handler: Handler) -> Handler:
    """A handler whose `sys.exit()` fails its job, and does not end the event loop with the jobs of all."""

    async def asked(job: QueuedCall, call: Any) -> Any:
        try:
            return await awaitable(handler(job, call))
        except (SystemExit, KeyboardInterrupt) as error:
            raise _raised(error) from error

    return asked


def _raised(error: BaseException) -> RuntimeError:
    return RuntimeError(f"the handler raised {type(error).__name__}")
