"""The queue's interface for programs: jobs that wait for capacity instead of being refused."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND, Clock, check_clock
from headgate.errors import ArgumentError, ConfigError, StoreError, brief_number
from headgate.llm.entry import Caller
from headgate.llm.inputs import count_input
from headgate.llm.queue.attempt import PAUSE_S, Handler
from headgate.llm.queue.backlog import Backlog, Bounds, Fairness
from headgate.llm.queue.gate_access import ScopeOf
from headgate.llm.queue.job import CHAT_PATH, LONGEST_DEADLINE_S, Job, Position, job_request
from headgate.llm.queue.memory import MemoryBacklog
from headgate.llm.queue.news import wait_for
from headgate.llm.queue.pace import Pace
from headgate.llm.queue.redis import RedisBacklog, check_name
from headgate.llm.queue.worker import INLINE_BYTES, LlmWorker
from headgate.stores.redis.url import is_redis

DEFAULT_OUTPUT = 1_000
"""The output tokens that are assumed for a body without a maximum."""

_LEAST_S = 0.02
"""The shortest interval between queries of a backlog, whose clock may be behind."""

_CHECK_S = 30.0
"""The longest interval between queries for a job of which there is no news."""

_MOST_TOKENS = 1 << 32
_FOREVER_S = 1e9


class AsyncLlmQueue:
    """Jobs that wait until a gate admits them. For one event loop; `LlmQueue` is the same for threads.

    `store` is "memory://", or the URL of a Redis or Valkey that stores the jobs and that many processes share; `name`
    distinguishes several queues there. A worker that is silent for `lease` seconds loses its jobs to other workers.
    Only workers use `gate`: a process that only submits needs none.
    """

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
        self.clock = check_clock(clock) or SYSTEM_CLOCK
        self.backlog = _backlog(store, name, bounds or Bounds(), fairness or Fairness(), lease, clock)

    async def submit(
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
        """Queue the body of a call; return the job, which waits.

        `deadline` is in seconds from now: a job that was not started by then expires. With an `id` of your own, a
        repeated call returns the existing job (`repeated`), and raises ConflictingId if that is a different one.
        `tokens` is what the job is charged in the order of users until its usage is known; by default it is estimated.
        Raises QueueFull, and ArgumentError for a body that could not be sent to any provider.
        """
        caller = Caller(key, user, team, organisation, tier)
        request = job_request(
            body, caller, id=id, path=path, priority=priority, tokens=1, deadline_us=self._deadline_us(deadline)
        )
        if request.size > self.backlog.bounds.body_bytes:
            raise ArgumentError(f"a body has at most {self.backlog.bounds.body_bytes:,} bytes, not {request.size:,}")
        if tokens is None:
            is_long = request.size > INLINE_BYTES
            tokens = await asyncio.to_thread(estimate, body) if is_long else estimate(body)
        elif isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= _MOST_TOKENS:
            raise ArgumentError(f"tokens is a whole number from 0 to {_MOST_TOKENS:,}, not {str(tokens)[:40]!r}")
        return await self.backlog.submit(request._replace(tokens=max(1, tokens)))

    async def result(self, id: str, timeout: float | None = None) -> Job:
        """Wait until a job has ended, in whatever state, and return it; raises TimeoutError, and UnknownJob.

        `timeout` is in seconds. Where the store does not answer for a moment, it is asked again. A store that has not
        answered at all raises its StoreError: at the timeout, without one at once.
        """
        timeout = _timeout_s(timeout)
        job: Job | None = None
        unanswered: StoreError | None = None
        try:
            with self.backlog.news.for_job(id) as event:
                async with asyncio.timeout(timeout):
                    while True:
                        try:
                            job = await self.backlog.get(id)
                        except StoreError as error:
                            if not error.transient or (job is None and timeout is None):
                                raise
                            unanswered = error
                            await asyncio.sleep(PAUSE_S)
                            continue
                        if job.ended:
                            return job
                        await wait_for(event, self._until_check_s(job))
        except TimeoutError:
            if job is None and unanswered is not None:
                raise unanswered from None
            raise

    async def get(self, id: str) -> Job:
        """Return a job in its current state; raises UnknownJob."""
        return await self.backlog.get(id)

    async def position(self, id: str) -> Position:
        """Return the position of a job, and when it may start; raises UnknownJob."""
        return await self.backlog.position(id)

    async def positions(self, id: str, every: float = 1.0) -> AsyncGenerator[Position, None]:
        """Yield a job's position now and after each change, at most once in `every` seconds; ends with the job."""
        last = None
        with self.backlog.news.for_any() as event:
            while True:
                event.clear()
                position = await self.backlog.position(id)
                if (position.state, position.ahead) != last:
                    last = (position.state, position.ahead)
                    yield position
                if position.state not in ("waiting", "running"):
                    return
                await wait_for(event, self._until_check_s(await self.backlog.get(id)))
                await asyncio.sleep(every)

    async def cancel(self, id: str) -> Job:
        """End a job, and return it: a running job is stopped, a job that has ended does not change."""
        return await self.backlog.cancel(id)

    def worker(
        self,
        handler: Handler,
        *,
        pace: Pace | None = None,
        retries: int = 5,
        when_lost: str = "again",
        scope_of: ScopeOf | None = None,
        name: str | None = None,
    ) -> LlmWorker:
        """Return a worker that serves this queue: `async with queue.worker(handler):`, or `await worker.run()`."""
        if self.gate is None:
            raise ConfigError("a worker needs a gate: AsyncLlmQueue(gate, ...)")
        worker_name = name or f"worker-{os.urandom(6).hex()}"
        return LlmWorker(
            self.backlog, self.gate, handler, clock=self.clock, pace=pace or Pace(), retries=retries,
            when_lost=when_lost, scope_of=scope_of, name=worker_name,
        )  # fmt: skip

    async def close(self) -> None:
        """Close connections; jobs in a Redis stay."""
        await self.backlog.close()

    async def __aenter__(self) -> AsyncLlmQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    def _deadline_us(deadline: float | None) -> int:
        if deadline is None:
            return 0
        is_number = isinstance(deadline, int | float) and not isinstance(deadline, bool)
        if not is_number or (isinstance(deadline, float) and not math.isfinite(deadline)):
            raise ArgumentError(f"deadline is a number of seconds from now, not {str(deadline)[:40]!r}")
        if not 0 < deadline <= LONGEST_DEADLINE_S:
            stated = brief_number(deadline) if isinstance(deadline, int) else repr(deadline)
            raise ArgumentError(f"deadline is above 0 and at most {LONGEST_DEADLINE_S:,} seconds, not {stated}")
        return max(1, round(deadline * US_PER_SECOND))

    def _until_check_s(self, job: Job) -> float:
        """Return the seconds until a job is read again without news of it.

        So a waiting job is noticed to have expired without a worker, and any job to be gone from a store that was
        emptied or lost its data.
        """
        if not job.deadline_us or job.state != "waiting":
            return _CHECK_S
        return min(_CHECK_S, max(_LEAST_S, (job.deadline_us - self.clock.now_us()) / US_PER_SECOND))


def _timeout_s(timeout: float | None) -> float | None:
    """Clamp a timeout to what an event loop takes; raises ArgumentError for anything but a number or None."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout != timeout:
        raise ArgumentError(f"a timeout is a number of seconds or None, not {str(timeout)[:40]!r}")
    return min(max(timeout, 0.0), _FOREVER_S)


def estimate(body: Mapping[str, Any]) -> int:
    """Estimate how many tokens a call uses: its input, and its maximum output."""
    max_output = max(_count(body.get(name)) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
    choices = max(1, _count(body.get("n")), _count(body.get("best_of")))
    return min(_MOST_TOKENS, count_input(body, str(body["model"])).tokens + (max_output or DEFAULT_OUTPUT) * choices)


def _count(value: Any) -> int:
    return min(value, _MOST_TOKENS) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _backlog(store: str, name: str, bounds: Bounds, fairness: Fairness, lease: float, clock: Clock | None) -> Backlog:
    if store == "memory://":
        return MemoryBacklog(bounds, fairness, clock or SYSTEM_CLOCK)
    if not isinstance(store, str) or not is_redis(store):
        raise ConfigError(
            f"the store of a queue is memory:// or the URL of a Redis, not {str(store).partition(':')[0][:20]!r}"
        )
    if isinstance(lease, bool) or not isinstance(lease, int | float) or not 0.1 <= lease <= 3600:
        raise ConfigError(f"lease is a number of seconds from 0.1 to 3,600, not {str(lease)[:40]!r}")
    return RedisBacklog(store, check_name(name), bounds, fairness, lease, clock)
