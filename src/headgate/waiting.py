"""Waiting for a turn: first come, first served for each key, without a thread or a timer of its own.

Callers that wait for one key stand in a line. Only the first of a line asks the store again, so a
small request never overtakes a big one; lines of different keys know nothing of each other. When
a caller joins, a plan tells when its turn will come: if that is too late, it is refused at once, with
nothing consumed. `hit` does not wait in line: it takes what is there.

The steps of waiting are a generator, which `run` and `run_async` drive.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.algorithms.table import ALGORITHMS, State
from headgate.algorithms.transition import Step, decide
from headgate.clock import US_PER_SECOND, Clock
from headgate.decision import Decision, NamedLimit, Reading, binding_of
from headgate.drive import drive, drive_async
from headgate.errors import ArgumentError
from headgate.keys import Key, encode_key
from headgate.operation import Operation
from headgate.stores.protocol import AsyncBoundLimits, BoundLimits

FOREVER_US = 1 << 51
"""No timeout: about 71 years."""


Costs = tuple[int, ...]
"""What is waited for: a cost for each group of the limits."""


class Read(NamedTuple):
    """A step: read the store's states; the answer is what `BoundLimits.read` gives."""

    keys: tuple[Key, ...]


class Sleep(NamedTuple):
    """A step: sleep for so many real seconds."""

    seconds: float


class Stand(NamedTuple):
    """A step: stand in line until called, or until so many seconds have passed."""

    ticket: Ticket
    seconds: float


WaitSteps = Generator[Operation | Read | Sleep | Stand, Any, Decision]


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in a line. `call` wakes its caller; until that waits, it only notes the call."""

    costs: Costs
    called: bool = False
    wake: Callable[[], object] | None = None

    def call(self) -> None:
        self.called = True
        if self.wake is not None:
            self.wake()


class Plan:
    """When the callers in line will pass, one after another, if no other request takes anything."""

    def __init__(self, limits: Sequence[NamedLimit], states: Sequence[State | None], now_us: int) -> None:
        self._limits = limits
        self._states = tuple(states)
        self._moment_us = now_us

    def turn_us(self, costs: Costs, now_us: int, *, join: bool) -> int | None:
        """The moment at which one more request may proceed, None for never; with `join` it stands last in line."""
        moment_us = max(self._moment_us, now_us)
        while True:
            steps = [
                Step(limit.limit.compiled, state, costs[limit.group], limit.shadow)
                for limit, state in zip(self._limits, self._states, strict=True)
            ]
            outcome = decide(steps, moment_us, commit=True)
            if outcome.allowed:
                break
            waits = [
                reading.retry_after_us
                for limit, reading in zip(self._limits, outcome.readings, strict=True)
                if not limit.shadow
            ]
            if None in waits:
                return None
            moment_us += max(wait for wait in waits if wait is not None)
        if join:
            self._states = tuple(new or old for new, old in zip(outcome.states, self._states, strict=True))
            self._moment_us = moment_us
        return moment_us + max(reading.delay_us for reading in outcome.readings)


@dataclass(slots=True)
class _Line:
    tickets: deque[Ticket] = field(default_factory=deque)
    plan: Plan | None = None


class WaitingLines:
    """The waiting lines of one limiter, one for each key that is waited for."""

    def __init__(self, limits: Sequence[NamedLimit], clock: Clock) -> None:
        self._limits = tuple(limits)
        self._clock = clock
        self._groups = max((limit.group + 1 for limit in self._limits), default=0)
        self._queues = any(ALGORITHMS[limit.limit.algorithm].queues for limit in limits)
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()

    def steps(self, key: Key, costs: Costs, timeout_us: int) -> WaitSteps:
        """Wait for a turn of `key`, at most `timeout_us`; the generator's result is the decision."""
        name, keys = encode_key(key), (key,) * self._groups
        deadline_us = self._clock.now_us() + timeout_us
        if name not in self._lines:
            decision: Decision = yield Operation(keys, costs, max_delay_us=timeout_us)
            if decision.allowed:
                return (yield from proceed(decision, self._clock))
            if _hopeless(decision, timeout_us):
                return (yield from self._late(keys, costs, decision))
        ticket, wait_us = self._join(name, costs, (yield Read(keys)), timeout_us)
        if ticket is None:
            return (yield from self._refuse(keys, costs, wait_us))
        admitted = False
        try:
            if not ticket.called:
                yield Stand(ticket, timeout_us / US_PER_SECOND)
            if not ticket.called:
                return (yield from self._refuse(keys, costs, (yield from self._alone_us(keys, costs))))
            while True:
                left_us = max(0, deadline_us - self._clock.now_us())
                decision = yield Operation(keys, costs, max_delay_us=left_us)
                admitted = decision.allowed
                if admitted or _hopeless(decision, left_us):
                    break
                self._drop_plan(name)
                yield Sleep(self._clock.let_pass(decision.retry_after_us or 0))
        finally:
            self._leave(name, ticket, as_planned=admitted)
        if not admitted:
            return (yield from self._late(keys, costs, decision))
        return (yield from proceed(decision, self._clock))

    def _late(self, keys: tuple[Key, ...], costs: Costs, decision: Decision) -> WaitSteps:
        """What is told to a request whose turn comes too late: when that would be.

        The refusal of a queue tells when the request could join it, and not when it would leave.
        """
        if not self._queues or decision.retry_after_us is None:
            return decision
        return (yield from self._refuse(keys, costs, (yield from self._alone_us(keys, costs))))

    def _alone_us(self, keys: tuple[Key, ...], costs: Costs) -> Generator[Read, Any, int | None]:
        """How long until a request would proceed if no caller were in line before it; None for never."""
        if not self._queues:
            return 1
        states = yield Read(keys)
        now_us = self._now_us(states)
        turn_us = Plan(self._limits, states, now_us).turn_us(costs, now_us, join=False)
        return None if turn_us is None else turn_us - now_us

    def _now_us(self, states: Sequence[State | None]) -> int:
        """The moment at which states were read, by the clock of their store."""
        read_us: int | None = getattr(states, "now_us", None)
        return self._clock.now_us() if read_us is None else read_us

    def _refuse(self, keys: tuple[Key, ...], costs: Costs, wait_us: int | None) -> WaitSteps:
        """The refusal of a request whose turn comes in `wait_us` (None: never): nothing was consumed."""
        untouched: Decision = yield Operation(keys, (0,) * self._groups, commit=False)
        asked: Decision = yield Operation(keys, costs, commit=False)
        readings = [
            Reading(
                reading.allowed,
                whole.remaining,
                whole.reset_after_us,
                reading.retry_after_us,
                whole.next_after_us,
                0,
            )
            for whole, reading in zip(untouched.limits, asked.limits, strict=True)
        ]
        each = [costs[limit.group] for limit in self._limits]
        speaking = binding_of(self._limits, readings, each, allowed=asked.allowed)
        if speaking is not None:
            own_us = readings[speaking].retry_after_us
            late_us = None if wait_us is None or own_us is None else max(wait_us, own_us, 1)
            readings[speaking] = readings[speaking]._replace(allowed=False, retry_after_us=late_us)
        return Decision(self._limits, readings, allowed=False, binding=speaking, degraded=asked.degraded)

    def _join(
        self, name: str, costs: Costs, states: Sequence[State | None], timeout_us: int
    ) -> tuple[Ticket | None, int | None]:
        """Join the line; a caller whose turn would come too late gets no ticket, and the wait."""
        now_us = self._now_us(states)
        with self._lock:
            line = self._lines.setdefault(name, _Line())
            if line.plan is None:
                line.plan = Plan(self._limits, states, now_us)
                for waiting in line.tickets:
                    line.plan.turn_us(waiting.costs, now_us, join=True)
            turn_us = line.plan.turn_us(costs, now_us, join=False)
            if turn_us is None or turn_us - now_us > timeout_us:
                if not line.tickets:
                    del self._lines[name]
                return None, None if turn_us is None else turn_us - now_us
            line.plan.turn_us(costs, now_us, join=True)
            ticket = Ticket(costs, called=not line.tickets)
            line.tickets.append(ticket)
            return ticket, turn_us - now_us

    def _leave(self, name: str, ticket: Ticket, *, as_planned: bool) -> None:
        """Step out of the line and call the next."""
        with self._lock:
            line = self._lines[name]
            line.tickets.remove(ticket)
            if not as_planned:
                line.plan = None
            if not line.tickets:
                del self._lines[name]
            elif not line.tickets[0].called:
                line.tickets[0].call()

    def _drop_plan(self, name: str) -> None:
        with self._lock:
            self._lines[name].plan = None


def proceed(decision: Decision, clock: Clock) -> WaitSteps:
    """Wait as long as a queue delays an admitted request."""
    if decision.allowed and decision.delay_us:
        yield Sleep(clock.let_pass(decision.delay_us))
    return decision


def run(steps: WaitSteps, bound: BoundLimits) -> Decision:
    """The decision that the steps come to, waited for in this thread."""
    return drive(steps, _doing(bound, time.sleep, _stand))


def run_async(steps: WaitSteps, bound: BoundLimits | AsyncBoundLimits) -> Coroutine[Any, Any, Decision]:
    """`run` on an event loop, which is never blocked; cancelling it leaves the line."""
    return drive_async(steps, _doing(bound, asyncio.sleep, _stand_async))


def _doing(
    bound: BoundLimits | AsyncBoundLimits, sleep: Callable[[float], Any], stand: Callable[[Ticket, float], Any]
) -> Callable[[Operation | Read | Sleep | Stand], Any]:
    """How a step is done; in asyncio it may give an awaitable."""

    def do(step: Operation | Read | Sleep | Stand) -> Any:
        match step:
            case Operation():
                return bound.decide(step)
            case Read(keys):
                return bound.read(keys)
            case Sleep(seconds):
                return sleep(seconds)
            case Stand(ticket, seconds):
                return stand(ticket, seconds)

    return do


def _stand(ticket: Ticket, seconds: float) -> None:
    event = threading.Event()
    ticket.wake = event.set
    if not ticket.called:
        event.wait(seconds if seconds < threading.TIMEOUT_MAX else None)


async def _stand_async(ticket: Ticket, seconds: float) -> None:
    called = asyncio.Event()
    loop = asyncio.get_running_loop()
    ticket.wake = lambda: loop.call_soon_threadsafe(called.set)
    if not ticket.called:
        try:
            async with asyncio.timeout(seconds):
                await called.wait()
        except TimeoutError:
            return


def timeout_us(timeout: float | None) -> int:
    """A timeout in seconds as microseconds, None as forever; raises ArgumentError for what is neither."""
    if timeout is None:
        return FOREVER_US
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise ArgumentError(f"a timeout is a number of seconds or None, not a {type(timeout).__name__}")
    if not timeout >= 0:  # not a number is refused here too
        raise ArgumentError(f"a timeout is at least 0 seconds, not {timeout}")
    return FOREVER_US if timeout * US_PER_SECOND >= FOREVER_US else int(timeout * US_PER_SECOND)


def _hopeless(decision: Decision, left_us: int) -> bool:
    """Whether a refused request should not wait: its turn comes too late, or never, or the store is away."""
    if decision.degraded == "closed" and any(limit.on_store_error == "closed" for limit in decision.definitions):
        return True
    return decision.retry_after_us is None or decision.retry_after_us > left_us
