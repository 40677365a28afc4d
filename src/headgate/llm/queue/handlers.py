"""Wrappers of handlers: plain functions run on threads of a worker, and no handler ends the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.drive import answered
from headgate.llm.queue.attempt import Handler, QueuedCall, checked_awaitable

PlainHandler = Callable[[QueuedCall, Any], Any]
"""Performs a job on a thread, and returns the answer."""


class HandlerThreads:
    """A handler that runs a plain function on threads."""

    def __init__(self, handler: PlainHandler, max_threads: int) -> None:
        self._handler = handler
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="headgate-job")

    async def __call__(self, job: QueuedCall, call: Any) -> Any:
        returned = await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, job, call)
        return await answered(returned)  # an `async` function under a plain decorator returns its coroutine

    def _answer(self, job: QueuedCall, call: Any) -> Any:
        try:
            return self._handler(job, call)
        except StopIteration as error:  # an event loop cannot pass it on from a thread: the job would run for ever
            raise _as_error(error) from error

    def end(self) -> None:
        """Accept no more jobs; threads end when their current jobs have ended."""
        self._pool.shutdown(wait=False)


def without_exit(handler: Handler) -> Handler:
    """Wrap a handler so that `sys.exit()` in it fails its job, instead of ending the event loop and all jobs."""

    async def guarded(job: QueuedCall, call: Any) -> Any:
        try:
            return await checked_awaitable(handler(job, call))
        except (SystemExit, KeyboardInterrupt) as error:
            raise _as_error(error) from error

    return guarded


def _as_error(error: BaseException) -> RuntimeError:
    return RuntimeError(f"the handler raised {type(error).__name__}")
