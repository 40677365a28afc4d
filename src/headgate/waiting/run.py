"""Performs the steps of waiting, in threads and on event loops.

A caller that is interrupted or cancelled while it is admitted gives back its charge before the next in line tries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.drive import answered, answered_in_any_case, as_future, drive, drive_async
from headgate.errors import HeadgateError
from headgate.operation import Operation
from headgate.waiting import loop_timer
from headgate.waiting.departure import Departure
from headgate.waiting.performer import Performer
from headgate.waiting.standing import stand, stand_async
from headgate.waiting.steps import (
    Answer,
    AttemptIfNoLine,
    Extend,
    IsHeld,
    Join,
    Leave,
    LineCall,
    Read,
    Reserve,
    Sleep,
    Stand,
    WaitSteps,
)
from headgate.waiting.wake_signal import WakeSignal


def run(steps: WaitSteps, bound: Any, clock: Clock = SYSTEM_CLOCK, departure: Departure | None = None) -> Any:
    """Perform the steps in this thread and return their answer. Raises ClientLeft where the `departure` reports one."""
    performer = _ThreadPerformer(bound, clock)
    performer.departure = departure
    try:
        try:
            answer = drive(steps, performer.perform)
            performer.cancel_lost(answer)
            return answer
        finally:
            try:
                performer.leave()
            except BaseException:
                performer.leave()
                raise
    except HeadgateError:
        raise
    except BaseException:  # the thread was interrupted, perhaps by an Exception: a signal handler may raise anything
        performer.undo()
        raise


async def run_async(steps: WaitSteps, bound: Any, clock: Clock = SYSTEM_CLOCK) -> Any:
    """`run` on an event loop, which is never blocked; cancelling it leaves the line."""
    performer = _AsyncPerformer(bound, clock)
    try:
        answer = await drive_async(steps, performer.perform)
        await performer.cancel_lost(answer)
        await performer.leave()
    except asyncio.CancelledError:
        try:
            await performer.undo()
        finally:
            await performer.leave()
        raise
    except Exception:
        await performer.leave()
        raise
    return answer


class _ThreadPerformer(Performer):
    """Performs steps in a thread."""

    departure: Departure | None = None

    def perform(self, step: Any) -> Any:
        match step:
            case Operation() if not step.commit:
                return self._bound.decide(step)
            case Operation() | Reserve() | AttemptIfNoLine():
                return self._interruptible(self._charge, step)
            case IsHeld(whole_id):
                return self._bound.extend(whole_id, 1, (0,)).outcome != "unknown"
            case Extend(whole_id, lease_us):
                return self._bound.extend(whole_id, lease_us, (0,))
            case Read(keys):
                return self._bound.read(keys)
            case Sleep(seconds):
                sleep = time.sleep if self.departure is None else partial(self.departure.wait, WakeSignal())
                return self._interruptible(sleep, seconds)
            case Stand(ticket, seconds):
                return stand(ticket, seconds, self.departure)
            case Join(join, leave):
                self._leave_line = leave
                return join()
            case LineCall(ask):
                return ask()
            case Leave():
                return self.leave()

    def _charge(self, step: Operation | Reserve | AttemptIfNoLine) -> Answer:
        ask, answers = self._record(step), self._answers
        try:
            answers.extend(map(ask, (step,)))  # with a native store an interrupt arrives before or after both
        except HeadgateError as error:
            self._note_failure(error)
            raise
        answer: Answer = answers[0]
        self._note_answer(answer)
        return answer

    def _interruptible(self, call: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return call(argument)
        except HeadgateError:
            raise
        except BaseException:
            self.undo()
            raise

    def leave(self) -> None:
        """Leave the line of the store, if one was joined and has not been left."""
        if self._leave_line is not None:
            with suppress(HeadgateError):
                self._leave_line()
            self._leave_line = None

    def cancel_lost(self, answer: Answer | None) -> None:
        """See `_cancel_lost`; an error of the store is ignored."""
        if self._lost_id:
            with suppress(HeadgateError):
                self._cancel_lost(answer)

    def undo(self) -> None:
        """Give back what was charged; an error of the store is ignored."""
        with suppress(HeadgateError):
            self._give_back()
        self.cancel_lost(None)


class _AsyncPerformer(Performer):
    """Performs steps on an event loop; where the store answers at once, without yielding to the loop."""

    _joining: asyncio.Future[Any] | None = None

    def perform(self, step: Any) -> Any:
        match step:
            case Operation() if not step.commit:
                return self._bound.decide(step)
            case Operation() | Reserve() | AttemptIfNoLine():
                return self._charge(step)
            case IsHeld(whole_id):
                return self._is_held(whole_id)
            case Extend(whole_id, lease_us):
                return self._bound.extend(whole_id, lease_us, (0,))
            case Read(keys):
                return self._bound.read(keys)
            case Sleep(seconds):
                return self._sleep(seconds)
            case Stand(ticket, seconds):
                return stand_async(ticket, seconds)
            case Join(join, leave):
                self._leave_line = leave
                return self._join(join)
            case LineCall(ask):
                return ask()
            case Leave():
                return self.leave()

    def _charge(self, step: Operation | Reserve | AttemptIfNoLine) -> Any:
        answer = self._record(step)(step)
        if hasattr(answer, "__await__"):
            return self._await(as_future(answer))
        self._answers.append(answer)
        self._note_answer(answer)
        return answer

    async def _await(self, answering: asyncio.Future[Answer]) -> Answer:
        """Wait for the answer; where the caller is cancelled meanwhile, wait for it still, and give back the charge."""
        try:
            answer = await asyncio.shield(answering)
        except asyncio.CancelledError:
            await self.undo(answering)
            raise
        except Exception as error:
            self._note_failure(error)
            raise
        self._answers.append(answer)
        self._note_answer(answer)
        return answer

    def _join(self, join: Callable[[], Any]) -> Any:
        joined = join()
        return self._await_joined(joined) if hasattr(joined, "__await__") else joined

    async def _await_joined(self, joining: Awaitable[Any]) -> Any:
        future = self._joining = asyncio.ensure_future(joining)
        return await asyncio.shield(future)

    async def leave(self) -> None:
        """Leave the line of the store, if one was joined and has not been left; cancelling does not stop this."""
        leave_line, self._leave_line = self._leave_line, None
        if leave_line is not None:
            await answered_in_any_case(self._leave(leave_line))

    async def _leave(self, leave_line: Callable[[], Any]) -> None:
        if self._joining is not None:
            with suppress(HeadgateError):
                await self._joining
        with suppress(HeadgateError):
            await answered(leave_line())

    async def _is_held(self, whole_id: str) -> bool:
        extension = await answered(self._bound.extend(whole_id, 1, (0,)))
        return bool(extension.outcome != "unknown")

    async def _sleep(self, seconds: float) -> None:
        try:
            await loop_timer.sleep(seconds)
        except asyncio.CancelledError:
            await self.undo()
            raise

    async def cancel_lost(self, answer: Answer | None) -> None:
        """See `_cancel_lost`; an error of the store is ignored, and cancelling does not stop this."""
        if self._lost_id:
            await answered_in_any_case(self._cancel_lost_async(answer))

    async def _cancel_lost_async(self, answer: Answer | None) -> None:
        with suppress(HeadgateError):
            await answered(self._cancel_lost(answer))

    async def undo(self, answering: asyncio.Future[Answer] | None = None) -> None:
        """Give back what was charged; an error of the store is ignored. Cancelling again does not stop this."""
        if (self._attempt is None and not self._lost_id) or self._is_undoing:
            return
        self._is_undoing = True
        await answered_in_any_case(self._undo(answering))

    async def _undo(self, answering: asyncio.Future[Answer] | None) -> None:
        if answering is not None:
            with suppress(HeadgateError):
                self._answers.append(await answering)
        with suppress(HeadgateError):
            await answered(self._give_back())
        await self._cancel_lost_async(None)
