"""One attempt at a job that is held: its handler runs, its outcome is stored, its hold is settled, in this order.

A worker may die between any two steps. The worker that takes the job over does the rest: a job without an outcome runs
again under the same hold; for one whose outcome is stored only the hold is settled. So each job is charged once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, NamedTuple

from headgate.clock import Clock
from headgate.errors import StoreError, kind_of
from headgate.llm.entry import Caller
from headgate.llm.queue.backlog import Backlog, Finished, Taken
from headgate.llm.queue.failures import Failure, failure_of
from headgate.llm.queue.gate_access import HeldCall
from headgate.llm.queue.job import JobState
from headgate.llm.queue.pace import Pace, pause_of
from headgate.llm.usage import read_usage

log = logging.getLogger("headgate")

PAUSE_S = 1.0
"""The pause after an error of a store."""


class QueuedCall(NamedTuple):
    """A job as its handler receives it: `body` is sent to the provider's `path`; `attempt` counts from 1."""

    id: str
    caller: Caller
    model: str
    path: str
    body: dict[str, Any]
    attempt: int


Handler = Callable[[QueuedCall, Any], Awaitable[Any]]
"""Performs a job: receives the job and the call that is held for it, and returns an answer that fits JSON."""


class Setting(NamedTuple):
    """What all attempts of a worker share."""

    worker: str
    backlog: Backlog
    handler: Handler
    clock: Clock
    pace: Pace
    retries: int
    fails_when_lost: bool


class Attempt:
    """One attempt at a job. `run` never raises and must never be cancelled: `stop` ends its handler."""

    def __init__(self, setting: Setting, taken: Taken, call: HeldCall, scopes: tuple[str, ...]) -> None:
        self._setting = setting
        self._taken = taken
        self._call = call
        self._scopes = scopes
        self._handler: asyncio.Future[Any] | None = None
        self._stop_reason = ""
        self._sent_us = setting.clock.now_us()

    @property
    def hold(self) -> int:
        """The number of the hold under which it runs."""
        return self._taken.hold

    def stop(self, reason: str) -> None:
        """Cancel the handler: the job was "cancelled", is "lost" to another worker, or its worker "ends"."""
        self._stop_reason = self._stop_reason or reason
        if self._handler is not None:
            self._handler.cancel()

    async def run(self) -> None:
        """Run the handler, then store the outcome and settle the hold."""
        try:
            async with self._call:
                await self._run()
        except Exception:
            log.exception("a job of the queue could not be ended: %s", self._taken.id)

    async def _run(self) -> None:
        taken, setting = self._taken, self._setting
        job = QueuedCall(taken.id, taken.caller, taken.model, taken.path, body_of(taken), taken.attempts + 1)
        try:
            self._handler = asyncio.ensure_future(checked_awaitable(setting.handler(job, self._call)))
            if self._stop_reason:
                self._handler.cancel()
            answer = await self._handler
            encoded = _encoded(answer)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._stop_reason or (task is not None and task.cancelling()):
                await self._stopped()
            else:  # `stop` was not called: something that the handler awaits was cancelled, and would be again
                await self._failed(failure_of(error))
            return
        except Exception as error:
            await self._failed(failure_of(error))
            return
        setting.pace.succeeded()
        await self._answered(encoded)

    async def _answered(self, encoded: bytes) -> None:
        answer, max_bytes = json.loads(encoded), self._setting.backlog.bounds.answer_bytes
        usage = read_usage(answer)
        tokens = None if usage is None else usage.input + usage.output
        if len(encoded) > max_bytes:
            error = f"the answer has {len(encoded):,} bytes, and {max_bytes:,} are kept"
            finished = await self._finish("failed", error=error, tokens=tokens)
        else:
            finished = await self._finish("done", answer=encoded, tokens=tokens, settled=False)
        if finished != "lost":
            await settle(self._setting, self._taken, self._call, answer, self._scopes)
        else:
            self._leave_hold()

    async def _stopped(self) -> None:
        """End or park a job whose handler was cancelled; what the provider did with the call is unknown."""
        if self._stop_reason == "lost":
            self._leave_hold()
            return
        ends_job = self._stop_reason == "cancelled" or self._setting.fails_when_lost
        if not ends_job and await self._park(0, settled=False, failed=False):
            self._leave_hold()
            return
        finished = await self._finish("failed", error="its worker was stopped, and the provider may have been called")
        if ends_job or finished != "lost":
            await self._settled(self._call.settle_unknown)
        else:
            self._leave_hold()

    def _leave_hold(self) -> None:
        """Leave the hold open: it belongs to the worker that takes the job next."""
        self._call.settled = True

    async def _failed(self, failure: Failure) -> None:
        """Park the job, or end it; then settle its hold, so that no attempt is made under a settled hold."""
        now_us, pace, attempts = self._setting.clock.now_us(), self._setting.pace, self._taken.attempts
        after_us = pause_of(attempts + 1) if failure.retry_after_us is None else failure.retry_after_us
        if failure.busy:
            after_us = pace.busy(now_us, self._sent_us, failure.retry_after_us) - now_us
        is_again = failure.again and attempts < self._setting.retries
        is_own = is_again and await self._park(after_us, settled=True, failed=True)
        if not is_own:  # it has failed, or was cancelled meanwhile
            tokens = None if failure.held == "unknown" else 0
            is_own = await self._finish("failed", error=failure.message, tokens=tokens) != "lost"
        if is_own:
            call = self._call
            settled = {"refused": call.settle_failed, "not sent": call.cancel, "unknown": call.settle_unknown}
            await self._settled(settled[failure.held])
        else:
            self._leave_hold()

    async def _settled(self, settle: Callable[[], Awaitable[Any]]) -> None:
        await settle_and_wake(self._setting, self._scopes, settle)

    async def _finish(
        self, state: JobState, *, answer: bytes = b"", error: str = "", tokens: int | None = None, settled: bool = True
    ) -> Finished:
        setting = self._setting
        finished: Finished = await until_stored(
            lambda: setting.backlog.finish(
                setting.worker, self._taken, state,
                answer=answer, error=error, scopes=self._scopes if settled else (), tokens=tokens, settled=settled,
            )
        )  # fmt: skip
        return finished

    async def _park(self, after_us: int, *, settled: bool, failed: bool) -> bool:
        setting = self._setting
        is_own: bool = await until_stored(
            lambda: setting.backlog.park(
                setting.worker, self._taken, after_us, refused=False, settled=settled, failed=failed
            )
        )
        return is_own


async def settle(setting: Setting, taken: Taken, call: HeldCall, answer: Any, scopes: tuple[str, ...] = ()) -> None:
    """Settle the hold of a job whose outcome is stored, and release the job.

    If another worker takes the job over, it settles the same hold, which changes nothing.
    """
    await settle_and_wake(setting, scopes, lambda: call.settle(answer))
    await until_stored(lambda: setting.backlog.release(setting.worker, taken))


async def settle_and_wake(setting: Setting, scopes: tuple[str, ...], settle: Callable[[], Awaitable[Any]]) -> None:
    """Settle a hold, then wake the jobs that wait for what this gives back: its place in flight, perhaps more."""
    await until_stored(settle)
    if scopes:
        await until_stored(lambda: setting.backlog.wake(scopes))


async def until_stored(step: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat an idempotent step until its store answers."""
    while True:
        try:
            return await step()
        except StoreError as error:
            if not error.transient:
                raise
            log.warning("a job of the queue is ended later, its store does not answer: %s", error)
            await asyncio.sleep(PAUSE_S)


def checked_awaitable(returned: Any) -> Awaitable[Any]:
    """Return what a handler returned if it can be awaited; raise TypeError for anything else."""
    if not isawaitable(returned):
        kind = type(returned).__name__
        raise TypeError(f"a handler begins with async def, or is one of an LlmQueue: it returned a {kind}")
    return returned


def body_of(taken: Taken) -> dict[str, Any]:
    """Parse the body of the call."""
    body: dict[str, Any] = json.loads(taken.body)
    return body


def _encoded(answer: Any) -> bytes:
    """Encode an answer as JSON. An answer that was cut may end in the middle of a surrogate pair."""
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), default=_as_mapping)
    return text.encode("utf-8", "surrogatepass")


def _as_mapping(value: Any) -> Any:
    """Convert an answer's object to JSON values: those of the `openai` and `anthropic` packages do it themselves."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"an answer is a value that fits JSON, not {kind_of(value)}")
