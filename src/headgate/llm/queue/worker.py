"""A worker: takes the next job, reserves what it needs at the gate, and runs its handler.

It never polls: it sleeps until a job changes, or until the next promised time. A job that the gate refuses waits
until the promised time, while jobs that their limits admit are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from headgate.clock import US_PER_SECOND, Clock
from headgate.errors import ArgumentError, ConfigError, ConflictingId, HeadgateError, StoreError
from headgate.llm.dialects.paths import DIALECTS
from headgate.llm.fallback_models import FIELDS as FALLING_BACK
from headgate.llm.inputs import count_input
from headgate.llm.queue.attempt import PAUSE_S, Attempt, Handler, Setting, body_of, settle, settle_and_wake
from headgate.llm.queue.backlog import Backlog, Nothing, Taken
from headgate.llm.queue.gate_access import HeldCall, QueueGate, ScopeOf, has_lapsed, never_reason, scopes_by_rules
from headgate.llm.queue.news import wait_for
from headgate.llm.queue.pace import Pace

log = logging.getLogger("headgate")

WHEN_LOST = ("again", "fail")
INLINE_BYTES = 10_000
"""The tokens of a longer body are counted on a thread."""

_LEASE_PARTS = 3


class LlmWorker:
    """Serves a queue until it is stopped; made by `AsyncLlmQueue.worker`.

    A job whose worker died is run `again` by another, or is to `fail` (`when_lost`): its request may have been sent
    already. `retries` bounds how often one job is tried again; the first death of a worker does not count.
    """

    def __init__(
        self,
        backlog: Backlog,
        gate: QueueGate,
        handler: Handler,
        *,
        clock: Clock,
        pace: Pace,
        retries: int,
        when_lost: str,
        scope_of: ScopeOf | None,
        name: str,
    ) -> None:
        if when_lost not in WHEN_LOST:
            raise ConfigError(f"when_lost is one of {', '.join(WHEN_LOST)}, not {str(when_lost)[:40]!r}")
        if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= 1000:
            raise ConfigError(f"retries is a whole number from 0 to 1,000, not {str(retries)[:40]!r}")
        self.name = name
        self.pace = pace
        self._backlog = backlog
        self._gate = gate
        self._clock = clock
        self._scope_of = scope_of or scopes_by_rules(gate)
        self._setting = Setting(name, backlog, handler, clock, pace, retries, when_lost == "fail")
        self._attempts: dict[str, tuple[Attempt, asyncio.Task[None]]] = {}
        self._stopping = False
        self._changed = asyncio.Event()
        self._cancelled = asyncio.Event()
        self._misses_cancellation = False
        """Whether a job was cancelled, which may be the next one that is started."""

        self._task: asyncio.Task[None] | None = None
        self._starting: asyncio.Future[None] | None = None

    @property
    def running(self) -> int:
        """How many jobs the worker has now."""
        return len(self._attempts)

    async def run(self) -> None:
        """Serve until `stop`; a cancelled worker puts its jobs back, and leaves their holds to the next worker."""
        with self._backlog.news.for_cancellations() as self._cancelled:
            await self._run()

    async def _run(self) -> None:
        reporting = asyncio.ensure_future(self._report_alive())
        try:
            with self._backlog.news.for_worker() as event:
                self._changed = event
                while not self._stopping:
                    try:
                        await self._serve()
                    except StoreError as error:
                        log.warning("a worker could not reach its queue, and tries again: %s", error)
                        await wait_for(self._changed, PAUSE_S)
                while self._attempts:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            with contextlib.suppress(TimeoutError):  # if the store does not answer, the worker's lease just expires
                async with asyncio.timeout(5 * PAUSE_S):
                    if self._starting is not None:
                        await asyncio.gather(self._starting, return_exceptions=True)
                    for attempt, _ in self._attempts.values():
                        attempt.stop("ends")
                    await asyncio.gather(*(task for _, task in self._attempts.values()))
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    def stop(self) -> None:
        """Take no more jobs; `run` ends when the running jobs have ended."""
        self._stopping = True
        self._changed.set()

    async def __aenter__(self) -> LlmWorker:
        self._task = asyncio.ensure_future(self.run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._task is not None
        if kind is None:
            self.stop()
        else:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _serve(self) -> None:
        """Take one job and start it, or sleep until that may be possible."""
        self._changed.clear()
        now_us = self._clock.now_us()
        if len(self._attempts) >= self.pace.width:
            await self._changed.wait()
        elif self.pace.paused_until_us > now_us:
            await self._sleep(self.pace.paused_until_us - now_us)
        else:
            taken = await self._backlog.take(self.name)
            if isinstance(taken, Nothing):
                await self._sleep(taken.after_us)
            else:
                self._starting = asyncio.ensure_future(self._start_taken(taken))
                await asyncio.shield(self._starting)  # a taken job is started or put back in any case

    async def _sleep(self, duration_us: int | None) -> None:
        """Sleep for `duration_us`, or until there is news."""
        if not self._changed.is_set():
            await wait_for(self._changed, None if duration_us is None else self._clock.let_pass(max(0, duration_us)))

    async def _start_taken(self, taken: Taken) -> None:
        """Reserve what a job needs, and start it, put it back or end it."""
        if taken.id in self._attempts:
            if self._attempts[taken.id][0].hold == taken.hold:  # this worker took over its own job, as it was silent
                return
            await self._park(taken, round(PAUSE_S * US_PER_SECOND))  # an earlier job of the same id is not settled yet
            return
        if taken.former:
            await self._end_former(taken)
        if taken.state == "running" and (death := self._death_reason(taken)):
            await self._backlog.finish(self.name, taken, "failed", error=death)
            return
        body = body_of(taken)
        try:
            input_count = (
                await asyncio.to_thread(count_input, body, taken.model) if len(taken.body) > INLINE_BYTES else None
            )
            call = await self._gate.reserve(
                **taken.caller._asdict(),
                model=taken.model,
                body=body,
                input_tokens=input_count,
                dialect=DIALECTS[taken.path].name,
                id=f"{taken.id}.{taken.hold}",
            )
            lapsed = taken.state == "running" and await has_lapsed(call)
        except StoreError as error:
            log.warning("a gate's store did not answer, the job is tried again: %s", error)
            await self._park(taken, round(PAUSE_S * US_PER_SECOND))
            return
        except ConflictingId:
            await self._start_renewed(taken, body)
            return
        except Exception as error:  # a body that cannot be counted, a model without a price
            if not isinstance(error, HeadgateError):
                log.exception("a gate could not reserve for the job %s", taken.id)
            await self._backlog.finish(self.name, taken, "failed", error=str(error)[:500], tokens=0)
            return
        if lapsed:  # what the dead worker held is charged, but another call may have its place in flight
            await self._start_renewed(taken, body)
        elif taken.state == "done" and not call:  # the store no longer has its hold
            await self._backlog.release(self.name, taken)
        elif taken.state == "done":
            await settle(self._setting, taken, call, json.loads(taken.answer), self._scopes(taken, call))
        elif call:
            await self._start(taken, call)
        else:
            await self._refused(taken, call)

    def _death_reason(self, taken: Taken) -> str:
        """Return why a job ends after its last workers died in a row; "" where it is tried again."""
        deaths, setting = taken.deliveries - 1, self._setting
        if deaths and setting.fails_when_lost:
            return "its worker died, and the provider may have been called"
        if deaths and taken.attempts + deaths > max(1, setting.retries):  # the job itself may kill its workers
            died = "its worker has died" if deaths == 1 else f"{deaths} workers that had it have died"
            return f"{died}, and it is not tried again"
        return ""

    async def _start_renewed(self, taken: Taken, body: dict[str, Any]) -> None:
        """Continue a job that a dead worker held by another estimate, or whose place in flight is free since.

        It is charged once: first the job gets a number for its next hold, then the former hold is ended, then the next
        one is made. If this worker dies in between, the worker that takes the job over ends the former hold as well.
        """
        if taken.state == "done":
            arguments: dict[str, Any] = {**taken.caller._asdict(), "model": taken.model, "body": body}
            dialect = DIALECTS[taken.path].name
            former_call = self._gate.held_before(**arguments, dialect=dialect, id=f"{taken.id}.{taken.hold}")
            try:
                await settle(self._setting, taken, former_call, json.loads(taken.answer))
            except ArgumentError as error:
                log.warning("what was held for the job %s stays charged: %s", taken.id, error)
                await self._backlog.release(self.name, taken)
            return
        renewed = await self._backlog.renew(self.name, taken)
        if renewed is not None:
            await self._start_taken(renewed)

    async def _end_former(self, taken: Taken) -> None:
        """Give back what the former hold took, unless it is settled: a job has one open hold at a time."""
        body = {name: value for name, value in body_of(taken).items() if name in FALLING_BACK}  # what decides the rules
        arguments: dict[str, Any] = {**taken.caller._asdict(), "model": taken.model, "body": body, "dialect": ""}
        try:
            await self._gate.held_before(**arguments, id=f"{taken.id}.{taken.former}").cancel()
        except ArgumentError as error:  # the policy has other limits now
            log.warning("what was held for the job %s stays charged: %s", taken.id, error)

    async def _refused(self, taken: Taken, call: HeldCall) -> None:
        retry_after_us = call.decision.retry_after_us
        if retry_after_us is None:
            limit, why = never_reason(call.decision)
            await self._backlog.finish(self.name, taken, "refused", error=why, limit=limit, tokens=0)
            return
        binding = call.decision.binding
        scope = "" if binding is None else self._scope_of(binding.definition, taken.caller, taken.model)
        await self._park(taken, retry_after_us, scope, refused=True)

    def _scopes(self, taken: Taken, call: HeldCall) -> tuple[str, ...]:
        """Return the known scopes of the limits of a job, sorted."""
        scopes = {self._scope_of(limit, taken.caller, taken.model) for limit in call.decision.definitions}
        return tuple(sorted(scopes - {""}))

    async def _start(self, taken: Taken, call: HeldCall) -> None:
        scopes = self._scopes(taken, call)
        for claim in taken.claims:
            if claim.scope in scopes and claim.score < taken.score:  # a lane before this one is waiting for the limit
                if await self._park(taken, claim.after_us, claim.scope, settled=True):
                    await settle_and_wake(self._setting, scopes, call.cancel)
                return
        while self._misses_cancellation:
            self._misses_cancellation = False
            if await self._backlog.keep(self.name, (taken.id,)):
                if await self._park(taken, 0, settled=True):
                    is_sent = taken.deliveries > 1  # perhaps, by the worker that died
                    await settle_and_wake(self._setting, scopes, call.settle_unknown if is_sent else call.cancel)
                return
        attempt = Attempt(self._setting, taken, call, scopes)
        task = asyncio.ensure_future(attempt.run())
        self._attempts[taken.id] = (attempt, task)
        task.add_done_callback(lambda _: self._ended(taken.id, attempt))

    def _ended(self, id: str, attempt: Attempt) -> None:
        if id in self._attempts and self._attempts[id][0] is attempt:
            del self._attempts[id]
        self._changed.set()

    async def _park(
        self, taken: Taken, after_us: int, scope: str = "", *, refused: bool = False, settled: bool = False
    ) -> bool:
        """Put a job back, or end it here if it was cancelled meanwhile. Return False where another worker has it."""
        if await self._backlog.park(self.name, taken, after_us, scope, refused=refused, settled=settled, failed=False):
            return True
        return await self._backlog.finish(self.name, taken, "cancelled", tokens=0) != "lost"

    async def _report_alive(self) -> None:
        """Report that this worker is alive; stop the jobs that it no longer has: those cancelled or taken over."""
        lease_us = self._backlog.lease_us
        while True:
            if await wait_for(self._cancelled, None if lease_us is None else lease_us / _LEASE_PARTS / 1e6):
                self._misses_cancellation = True
            if not self._attempts:
                continue
            try:
                stop_reasons = await self._backlog.keep(self.name, tuple(self._attempts))
            except StoreError as error:
                log.warning("a worker could not report that it is alive: %s", error)
                continue
            for id, reason in stop_reasons.items():
                if id in self._attempts:
                    self._attempts[id][0].stop(reason)
