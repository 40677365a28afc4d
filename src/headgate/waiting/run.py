"""The steps of waiting, done in threads and on event loops.

A caller that is interrupted or cancelled while it is admitted gives back what it took, before the next in line asks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.drive import answered, answered_in_any_case, drive, drive_async
from headgate.errors import HeadgateError
from headgate.operation import Operation, Receipt
from headgate.stores.lines import Ticket
from headgate.waiting import loop_timer
from headgate.waiting.bell import Bell
from headgate.waiting.departure import Departure
from headgate.waiting.steps import (
    Answer,
    AskFirst,
    Extend,
    IsHeld,
    Join,
    Leave,
    LineStep,
    Read,
    Reserve,
    Sleep,
    Stand,
    WaitSteps,
    decision_in,
)


def run(steps: WaitSteps, bound: Any, clock: Clock = SYSTEM_CLOCK, departure: Departure | None = None) -> Any:
    """The answer that the steps come to, waited for in this thread. Raises ClientLeft as a `departure` tells."""
    doing = _Doing(bound, clock)
    doing.departure = departure
    try:
        try:
            return drive(steps, doing.do)
        finally:
            try:
                doing.leave()
            except BaseException:
                doing.leave()
                raise
    except HeadgateError:
        raise
    except BaseException:  # the thread was interrupted, also by an Exception: a signal's handler raises what it likes
        doing.undo()
        raise


async def run_async(steps: WaitSteps, bound: Any, clock: Clock = SYSTEM_CLOCK) -> Any:
    """`run` on an event loop, which is never blocked; cancelling it leaves the line."""
    doing = _AsyncDoing(bound, clock)
    try:
        came = await drive_async(steps, doing.do)
        await doing.leave()
    except asyncio.CancelledError:
        try:
            await doing.undo()
        finally:
            await doing.leave()
        raise
    except Exception:
        await doing.leave()
        raise
    return came


class _Taking:
    """What one caller takes: what was asked for last, when, and what came of it."""

    def __init__(self, bound: Any, clock: Clock) -> None:
        self._bound = bound
        self._clock = clock
        self._asked: Operation | Reserve | None = None
        self._asked_us = 0
        self._came: list[Any] = []
        self._undoes = False
        self._leaving: Callable[[], Any] | None = None

    def _asks(self, step: Operation | Reserve | AskFirst) -> Callable[[Any], Any]:
        """How to ask for a step that takes something, which is noted."""
        asked = step.asking if isinstance(step, AskFirst) else step
        self._asked, self._asked_us, self._came = asked, self._clock.now_us(), []
        self._undoes = False
        if isinstance(step, AskFirst):
            return _ask_first
        return self._bound.decide if isinstance(step, Operation) else self._reserve

    def _reserve(self, step: Reserve) -> Any:
        return self._bound.reserve(step.operation, step.hold)

    def _giving_back(self) -> Any:
        """Give back what was asked for last, if it was taken; the same is not given back twice.

        Where no answer came, a hold of a name that no other hold has is settled by its id: if it is unknown, it was
        never made.
        """
        asked, came, self._asked = self._asked, self._came, None
        if asked is None or (came and (came[0] is None or not decision_in(came[0]))):
            return None
        if isinstance(asked, Operation):
            ago_us = max(0, self._clock.now_us() - self._asked_us)
            return self._bound.give_back(Receipt.of(asked, came[0]), ago_us) if came else None
        if (came and came[0].repeated) or (not came and asked.is_named):
            return None
        return self._bound.commit(asked.whole_id, 0)


class _Doing(_Taking):
    """How steps are done in a thread."""

    departure: Departure | None = None

    def do(self, step: Any) -> Any:
        match step:
            case Operation() if not step.commit:
                return self._bound.decide(step)
            case Operation() | Reserve() | AskFirst():
                return self._interruptible(self._take, step)
            case IsHeld(whole_id):
                return self._bound.extend(whole_id, 1, (0,)).outcome != "unknown"
            case Extend(whole_id, lease_us):
                return self._bound.extend(whole_id, lease_us, (0,))
            case Read(keys):
                return self._bound.read(keys)
            case Sleep(seconds):
                sleep = time.sleep if self.departure is None else partial(self.departure.wait, Bell())
                return self._interruptible(sleep, seconds)
            case Stand(ticket, seconds):
                return _stand(ticket, seconds, self.departure)
            case Join(join, leave):
                self._leaving = leave
                return join()
            case LineStep(ask):
                return ask()
            case Leave():
                return self.leave()

    def _take(self, step: Operation | Reserve | AskFirst) -> Answer:
        asks, came = self._asks(step), self._came
        try:
            came.extend(map(asks, (step,)))  # of a native store an interrupt comes before or after both, not between
        except HeadgateError:
            self._asked = None
            raise
        answer: Answer = came[0]
        return answer

    def _interruptible(self, do: Callable[[Any], Any], what: Any) -> Any:
        try:
            return do(what)
        except HeadgateError:
            raise
        except BaseException:
            self.undo()
            raise

    def leave(self) -> None:
        """Leave the line of the store, if one was joined and is not left yet."""
        if self._leaving is not None:
            with suppress(HeadgateError):
                self._leaving()
            self._leaving = None

    def undo(self) -> None:
        """Give back what was taken, as far as the store answers."""
        with suppress(HeadgateError):
            self._giving_back()


class _AsyncDoing(_Taking):
    """How steps are done on an event loop; where the store answers at once, without giving it up."""

    _joining: asyncio.Future[Any] | None = None

    def do(self, step: Any) -> Any:
        match step:
            case Operation() if not step.commit:
                return self._bound.decide(step)
            case Operation() | Reserve() | AskFirst():
                return self._take(step)
            case IsHeld(whole_id):
                return self._is_held(whole_id)
            case Extend(whole_id, lease_us):
                return self._bound.extend(whole_id, lease_us, (0,))
            case Read(keys):
                return self._bound.read(keys)
            case Sleep(seconds):
                return self._sleep(seconds)
            case Stand(ticket, seconds):
                return _stand_async(ticket, seconds)
            case Join(join, leave):
                self._leaving = leave
                return self._join(join)
            case LineStep(ask):
                return ask()
            case Leave():
                return self.leave()

    def _take(self, step: Operation | Reserve | AskFirst) -> Any:
        answer = self._asks(step)(step)
        if hasattr(answer, "__await__"):
            return self._await(asyncio.ensure_future(answer))
        self._came.append(answer)
        return answer

    async def _await(self, answer: asyncio.Future[Answer]) -> Answer:
        """The answer; a caller that is cancelled meanwhile learns of it before it gives back."""
        try:
            came = await asyncio.shield(answer)
        except asyncio.CancelledError:
            await self.undo(answer)
            raise
        except Exception:
            self._asked = None
            raise
        self._came.append(came)
        return came

    def _join(self, join: Callable[[], Any]) -> Any:
        joined = join()
        return self._joined(joined) if hasattr(joined, "__await__") else joined

    async def _joined(self, join: Awaitable[Any]) -> Any:
        joining = self._joining = asyncio.ensure_future(join)
        return await asyncio.shield(joining)

    async def leave(self) -> None:
        """Leave the line of the store, if one was joined and is not left yet, cancelled or not."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            await answered_in_any_case(self._leave(leaving))

    async def _leave(self, leaving: Callable[[], Any]) -> None:
        if self._joining is not None:
            with suppress(HeadgateError):
                await self._joining
        with suppress(HeadgateError):
            await answered(leaving())

    async def _is_held(self, whole_id: str) -> bool:
        extension = await answered(self._bound.extend(whole_id, 1, (0,)))
        return bool(extension.outcome != "unknown")

    async def _sleep(self, seconds: float) -> None:
        try:
            await loop_timer.sleep(seconds)
        except asyncio.CancelledError:
            await self.undo()
            raise

    async def undo(self, answer: asyncio.Future[Answer] | None = None) -> None:
        """Give back what was taken, as far as the store answers, and not left undone if cancelled again."""
        if self._asked is None or self._undoes:
            return
        self._undoes = True
        await answered_in_any_case(self._undo(answer))

    async def _undo(self, answer: asyncio.Future[Answer] | None) -> None:
        if answer is not None:
            with suppress(HeadgateError):
                self._came.append(await answer)
        with suppress(HeadgateError):
            await answered(self._giving_back())


def _ask_first(step: AskFirst) -> Any:
    asking = step.asking
    return step.ask(asking, None) if isinstance(asking, Operation) else step.ask(asking.operation, asking.hold)


def _stand(ticket: Ticket, seconds: float, departure: Departure | None = None) -> None:
    bell = Bell()
    ticket.wake = bell.set
    if not ticket.called:
        wait = bell.wait if departure is None else partial(departure.wait, bell)
        wait(seconds if seconds < threading.TIMEOUT_MAX else None)


async def _stand_async(ticket: Ticket, seconds: float) -> None:
    called = asyncio.Event()
    loop = asyncio.get_running_loop()
    ticket.loop, ticket.wake = loop, lambda: loop.call_soon_threadsafe(called.set)
    if not ticket.called:
        try:
            async with asyncio.timeout(seconds):
                await called.wait()
        except TimeoutError:
            return
