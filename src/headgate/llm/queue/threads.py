"""The queue for threaded programs: the methods of `AsyncLlmQueue`, each of which blocks until it has its result.

An event loop on a separate thread does the work, from the first call until `close`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from headgate.clock import Clock
from headgate.errors import ArgumentError, ConfigError
from headgate.forks import register_for_forks
from headgate.llm.queue.attempt import Handler
from headgate.llm.queue.backlog import Bounds, Fairness
from headgate.llm.queue.gate_access import ScopeOf
from headgate.llm.queue.handlers import HandlerThreads, PlainHandler, without_exit
from headgate.llm.queue.job import CHAT_PATH, Job, Position
from headgate.llm.queue.pace import Pace
from headgate.llm.queue.queue import AsyncLlmQueue
from headgate.llm.queue.worker import LlmWorker

T = TypeVar("T")


class LlmQueue:
    """Jobs that wait until a gate admits them; thread-safe. The arguments are those of `AsyncLlmQueue`."""

    def __init__(
        self,
        gate: Any = None,
        store: str = "memory://",
        *,
        name: str = "jobs",
        bounds: Bounds | None = None,
        fairness: Fairness | None = None,
        lease: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self.gate = gate
        self._make = partial(
            AsyncLlmQueue, gate, store, name=name, bounds=bounds, fairness=fairness, lease=lease, clock=clock
        )
        self._closed = False
        self._reset()
        register_for_forks(self)

    def _reset(self) -> None:
        """Set the initial state: at first, and in a child process, where the loop and its tasks are the parent's."""
        self._queue = self._make()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(
        self,
        body: Mapping[str, Any],
        *,
        user: str = "",
        team: str = "",
        key: str = "",
        organisation: str = "",
        tier: str = "",
        priority: int = 0,
        deadline: float | None = None,
        id: str | None = None,
        path: str = CHAT_PATH,
        tokens: int | None = None,
    ) -> Job:
        """See `AsyncLlmQueue.submit`."""
        return self.execute(
            self._queue.submit(
                body, user=user, team=team, key=key, organisation=organisation, tier=tier, priority=priority,
                deadline=deadline, id=id, path=path, tokens=tokens,
            )
        )  # fmt: skip

    def result(self, id: str, timeout: float | None = None) -> Job:
        """See `AsyncLlmQueue.result`."""
        return self.execute(self._queue.result(id, timeout))

    def get(self, id: str) -> Job:
        """See `AsyncLlmQueue.get`."""
        return self.execute(self._queue.get(id))

    def position(self, id: str) -> Position:
        """See `AsyncLlmQueue.position`."""
        return self.execute(self._queue.position(id))

    def positions(self, id: str, every: float = 1.0) -> Generator[Position, None, None]:
        """See `AsyncLlmQueue.positions`."""
        iterator = self._queue.positions(id, every)
        try:
            while (position := self.execute(_next(iterator))) is not None:
                yield position
        finally:
            if threading.current_thread() is not self._thread and not self._closed:
                self.execute(iterator.aclose())

    def cancel(self, id: str) -> Job:
        """See `AsyncLlmQueue.cancel`."""
        return self.execute(self._queue.cancel(id))

    def worker(
        self,
        handler: Handler | PlainHandler,
        *,
        pace: Pace | None = None,
        retries: int = 5,
        when_lost: str = "again",
        scope_of: ScopeOf | None = None,
        name: str | None = None,
    ) -> ThreadWorker:
        """Return a worker that serves this queue: `with queue.worker(handler):`, or `worker.run()`.

        A handler that is a plain function runs on threads of the worker, one for each running job. It cannot be stopped
        there: if its job is cancelled, it runs on, and its answer is dropped. An `async` handler runs on the queue's
        event loop. The queue's gate is an `AsyncLlmGate`. See `AsyncLlmQueue.worker`.
        """
        if self.gate is not None and not iscoroutinefunction(getattr(self.gate, "reserve", None)):
            raise ConfigError(f"a worker needs an AsyncLlmGate, on an event loop of the queue, not {self.gate!r:.80}")
        own_pace = pace or Pace()
        threads = None if iscoroutinefunction(handler) else HandlerThreads(handler, own_pace.most)
        guarded = without_exit(threads or handler)
        options: dict[str, Any] = {"retries": retries, "when_lost": when_lost, "scope_of": scope_of, "name": name}
        return ThreadWorker(self, self._queue.worker(guarded, pace=own_pace, **options), threads)

    def close(self) -> None:
        """Close connections, and end the event loop; jobs in a Redis stay."""
        with self._lock:
            loop, thread, self._loop, self._thread, self._closed = self._loop, self._thread, None, None, True
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._queue.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __enter__(self) -> LlmQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step on the event loop, and wait for its result; not for the event loop's own thread."""
        try:
            loop = self._running()
        except Exception:
            step.close()
            raise
        future = asyncio.run_coroutine_threadsafe(step, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # this thread may have been interrupted
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise ConfigError("the queue is closed")
            if threading.current_thread() is self._thread:
                raise ArgumentError("an async handler on the queue's event loop cannot wait for it: use AsyncLlmQueue")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="headgate-queue", daemon=True)
                self._thread.start()
            return self._loop

    def call_soon(self, step: Callable[[], object]) -> None:
        """Schedule a step on the event loop, if there is one."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(step)

    def after_fork(self) -> None:
        """Reset the queue in a child process."""
        self._reset()


class ThreadWorker:
    """Serves a queue; made by `LlmQueue.worker`. For one `with` block, or one `run`."""

    def __init__(self, queue: LlmQueue, worker: LlmWorker, threads: HandlerThreads | None) -> None:
        self._queue = queue
        self._worker = worker
        self._threads = threads
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._worker.name

    @property
    def pace(self) -> Pace:
        return self._worker.pace

    @property
    def running(self) -> int:
        """How many jobs the worker has now."""
        return self._worker.running

    def run(self) -> None:
        """Serve until `stop`; a worker that is interrupted puts its jobs back."""
        with self:
            self._queue.execute(self._ended())

    def stop(self) -> None:
        """Take no more jobs; `run` ends when the running jobs have ended."""
        self._queue.call_soon(self._worker.stop)

    def __enter__(self) -> ThreadWorker:
        self._queue.execute(self._begin())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._queue.execute(self._end(at_once=kind is not None))
        finally:
            if self._threads is not None:
                self._threads.end()

    async def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._worker.run())

    async def _ended(self) -> None:
        assert self._task is not None
        await asyncio.shield(self._task)

    async def _end(self, *, at_once: bool) -> None:
        assert self._task is not None
        if at_once:
            self._task.cancel()
        else:
            self._worker.stop()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()


async def _next(iterator: AsyncGenerator[Position, None]) -> Position | None:
    return await anext(iterator, None)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        unfinished = asyncio.all_tasks(loop)
        for task in unfinished:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*unfinished, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
