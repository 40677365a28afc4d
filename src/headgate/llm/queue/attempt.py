"""One attempt at a job that is held: its handler runs, its end is kept, its hold is settled, in this order.

A worker may die between any two steps. What it leaves is finished by the worker that takes the job over: a job without
an end is done again under the same hold, one whose end is kept has its hold settled, so that it is charged once.
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
from headgate.llm.queue.asking import HeldCall
from headgate.llm.queue.backlog import Backlog, Finished, Taken
from headgate.llm.queue.failures import Failure, failure_of
from headgate.llm.queue.job import JobState
from headgate.llm.queue.pace import Pace, pause_of
from headgate.llm.usage import read_usage

log = logging.getLogger("headgate")

PAUSE_S = 1.0
"""After an error of a store."""


class QueuedCall(NamedTuple):
    """A job as its handler sees it: `body` is to be sent to a provider's `path`; `attempt` counts from 1."""

    id: str
    caller: Caller
    model: str
    path: str
    body: dict[str, Any]
    attempt: int


Handler = Callable[[QueuedCall, Any], Awaitable[Any]]
"""Has a job done: given the job and the call that is held for it, gives the answer, which JSON can say."""


class Setting(NamedTuple):
    """What the attempts of a worker share."""

    worker: str
    backlog: Backlog
    handler: Handler
    clock: Clock
    pace: Pace
    retries: int
    fails_when_lost: bool


class Attempt:
    """An attempt at a job. `run` never raises, and is never to be cancelled: `stop` ends its handler."""

    def __init__(self, setting: Setting, taken: Taken, call: HeldCall, scopes: tuple[str, ...]) -> None:
        self._setting = setting
        self._taken = taken
        self._call = call
        self._scopes = scopes
        self._handler: asyncio.Future[Any] | None = None
        self._why = ""
        self._sent_us = setting.clock.now_us()

    def stop(self, why: str) -> None:
        """End its handler: the job was "cancelled", is "lost" to another worker, or its worker "ends"."""
        self._why = self._why or why
        if self._handler is not None:
            self._handler.cancel()

    async def run(self) -> None:
        """Have the job done."""
        try:
            async with self._call:
                await self._run()
        except Exception:
            log.exception("a job of the queue could not be ended: %s", self._taken.id)

    async def _run(self) -> None:
        taken, setting = self._taken, self._setting
        job = QueuedCall(taken.id, taken.caller, taken.model, taken.path, body_of(taken), taken.attempts + 1)
        try:
            self._handler = asyncio.ensure_future(awaitable(setting.handler(job, self._call)))
            if self._why:
                self._handler.cancel()
            answer = await self._handler
            written = _written(answer)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._why or (task is not None and task.cancelling()):
                await self._stopped()
            else:  # it was not told to stop: what its handler waits for was cancelled, and would be again
                await self._failed(failure_of(error))
            return
        except Exception as error:
            await self._failed(failure_of(error))
            return
        setting.pace.succeeded()
        await self._answered(written)

    async def _answered(self, written: bytes) -> None:
        answer, most = json.loads(written), self._setting.backlog.bounds.answer_bytes
        usage = read_usage(answer)
        tokens = None if usage is None else usage.input + usage.output
        if len(written) > most:
            error = f"the answer has {len(written):,} bytes, and {most:,} are kept"
            finished = await self._finish("failed", error=error, tokens=tokens)
        else:
            finished = await self._finish("done", answer=written, tokens=tokens, settled=False)
        if finished != "lost":
            await settle(self._setting, self._taken, self._call, answer, self._scopes)
        else:
            self._leave_hold()

    async def _stopped(self) -> None:
        """Its handler was cancelled; what the provider made of the call is unknown."""
        if self._why == "lost":
            self._leave_hold()
            return
        if self._why == "cancelled" or self._setting.fails_when_lost:
            await self._finish("failed", error="its worker was stopped, and the provider may have been asked")
            await self._settled(self._call.settle_unknown)
        else:
            await self._park(0, burnt=False, failed=False)
            self._leave_hold()

    def _leave_hold(self) -> None:
        """Leave the hold open: it is that of the worker that has the job next."""
        self._call.settled = True

    async def _failed(self, failure: Failure) -> None:
        """Put the job back, or end it. Its hold is settled after that: no attempt is made under one that is settled."""
        now_us, pace, attempts = self._setting.clock.now_us(), self._setting.pace, self._taken.attempts
        after_us = pause_of(attempts + 1) if failure.retry_after_us is None else failure.retry_after_us
        if failure.busy:
            after_us = pace.busy(now_us, self._sent_us, failure.retry_after_us) - now_us
        if failure.again and attempts < self._setting.retries:
            is_own = await self._park(after_us, burnt=True, failed=True)
        else:
            tokens = None if failure.held == "unknown" else 0
            is_own = await self._finish("failed", error=failure.message, tokens=tokens) != "lost"
        if is_own:
            call = self._call
            settled = {"refused": call.settle_failed, "not sent": call.cancel, "unknown": call.settle_unknown}
            await self._settled(settled[failure.held])
        else:
            self._leave_hold()

    async def _settled(self, settle: Callable[[], Awaitable[Any]]) -> None:
        await give_back(self._setting, self._scopes, settle)

    async def _finish(
        self, state: JobState, *, answer: bytes = b"", error: str = "", tokens: int | None = None, settled: bool = True
    ) -> Finished:
        setting = self._setting
        finished: Finished = await patiently(
            lambda: setting.backlog.finish(
                setting.worker, self._taken, state,
                answer=answer, error=error, scopes=self._scopes if settled else (), tokens=tokens, settled=settled,
            )
        )  # fmt: skip
        return finished

    async def _park(self, after_us: int, *, burnt: bool, failed: bool) -> bool:
        setting = self._setting
        is_own: bool = await patiently(
            lambda: setting.backlog.park(
                setting.worker, self._taken, after_us, refused=False, burnt=burnt, failed=failed
            )
        )
        return is_own


async def settle(setting: Setting, taken: Taken, call: HeldCall, answer: Any, scopes: tuple[str, ...] = ()) -> None:
    """Settle a job whose end is kept; a worker that takes it over settles the same hold, which changes nothing."""
    await give_back(setting, scopes, lambda: call.settle(answer))
    await patiently(lambda: setting.backlog.release(setting.worker, taken))


async def give_back(setting: Setting, scopes: tuple[str, ...], settle: Callable[[], Awaitable[Any]]) -> None:
    """Settle a hold, and let jobs ask that wait for what this gives back: its place in flight, perhaps more."""
    await patiently(settle)
    if scopes:
        await patiently(lambda: setting.backlog.wake(scopes))


async def patiently(step: Callable[[], Awaitable[Any]]) -> Any:
    """Do a step that may be repeated, again while its store does not answer."""
    while True:
        try:
            return await step()
        except StoreError as error:
            if not error.transient:
                raise
            log.warning("a job of the queue is ended later, its store does not answer: %s", error)
            await asyncio.sleep(PAUSE_S)


def awaitable(given: Any) -> Awaitable[Any]:
    """What a handler gives, to be awaited; raises TypeError for anything else."""
    if not isawaitable(given):
        kind = type(given).__name__
        raise TypeError(f"a handler begins with async def, or is one of an LlmQueue: it gave a {kind}")
    return given


def body_of(taken: Taken) -> dict[str, Any]:
    """The body that is to be sent."""
    body: dict[str, Any] = json.loads(taken.body)
    return body


def _written(answer: Any) -> bytes:
    """An answer as JSON. One that was cut may end in the middle of a pair of surrogates."""
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), default=_as_mapping)
    return text.encode("utf-8", "surrogatepass")


def _as_mapping(told: Any) -> Any:
    """What an answer's object is in JSON: those of the `openai` and `anthropic` packages tell it themselves."""
    if hasattr(told, "model_dump"):
        return told.model_dump(mode="json")
    raise TypeError(f"an answer is what JSON can say, not {kind_of(told)}")
