"""The steps by which a request waits in line for its rules, instead of being refused.

A request is decided by all its rules at once, and consumes nothing until all admit it. If all rules that refuse it let
it wait, and the time that they promise comes soon enough, it enters the line of the rule that holds it up for longest
(`headgate.waiting.arrivals`), sleeps once until that time, and is decided again. When a place in flight will be free is
not known in advance: the request waits until one is freed in this process, until a lease ends, or until its own time
is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from headgate.clock import US_PER_SECOND, Clock
from headgate.decision import Decision
from headgate.forks import register_for_forks
from headgate.operation import Operation
from headgate.policy.compiled import Policy, Rule
from headgate.policy.resolver import Resolved
from headgate.policy.rule_lines import demand_of, rates_of, refused, rule_of, waiting_lines
from headgate.stores.protocol import Store
from headgate.waiting.arrivals import Arrival, LineName, arrival_lines
from headgate.waiting.departure import Departure
from headgate.waiting.steps import Answer, Holding, Read, Request, Reserve, Stand, WaitSteps, decision_in, is_held

log = logging.getLogger("headgate")

_FULL = "%d requests wait in line already, %s: more are refused"
_BY_POLICY = "which is max_waiting of the policy"


@dataclass(slots=True)
class Waiting:
    """A request that may wait: its resolved limits and operation, its policy, and the longest time that it may wait.

    `departure` reports that its client has disconnected.
    """

    policy: Policy
    resolved: Resolved
    timeout_us: int
    holding: Holding | None = None
    departure: Departure = field(default_factory=Departure)
    start_us: int = 0
    lines: dict[LineName, Rule] = field(default_factory=dict)

    @property
    def operation(self) -> Operation:
        """The operation on the store: a key and a cost for each group."""
        return self.resolved[1]

    @property
    def request(self) -> Request:
        """The same as a `Request`, which other callers that wait have."""
        return Request("", self.operation.keys, self.operation.costs, self.holding)

    def charge_step(self) -> Operation | Reserve:
        """The step that decides the request now, and charges it if it is admitted."""
        return self.operation if self.holding is None else Reserve(self.operation, *self.holding)

    def peek_step(self) -> Operation:
        """The step that peeks: it decides the request now, and changes nothing."""
        return Operation(self.operation.keys, self.operation.costs, commit=False)

    def remaining_us(self, name: LineName, now_us: int) -> int:
        """How long the request may still wait in a line."""
        return min(self.lines[name].wait_us, self.timeout_us) - (now_us - self.start_us)


class HeldUp(NamedTuple):
    """What a request waits for: rates for exactly `wait_us`, or places in flight for at most `wait_us`.

    `remaining_us` is how long the request may still wait in the line.
    """

    by_rates: bool
    wait_us: int
    remaining_us: int
    line: LineName


class RuleWaits:
    """The requests that wait for one gate. `listeners` are called with their number whenever it changes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._clock = clock
        self.lines = arrival_lines(store, clock)
        self._arrivals: set[Arrival] = set()
        self._logged_full = False
        self._bound: tuple[int, str] | None = None
        self.listeners: list[Callable[[int], object]] = []
        register_for_forks(self)

    def after_fork(self) -> None:
        """See `headgate.forks`."""
        self._arrivals.clear()

    def bound(self, most: int, why: str) -> None:
        """Let at most `most` requests wait, whatever a policy says; `why` is for the log."""
        self._bound = most, why

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        return len(self._arrivals)

    def steps(self, waiting: Waiting, first_answer: Answer | None = None) -> WaitSteps:
        """Decide a request, in line where its rules let it wait; return the decision, or the reserved hold.

        `first_answer` is the answer of the store, if the request was decided already because no request waits.
        """
        waiting.start_us = now_us = self._clock.now_us()
        waiting.lines = waiting_lines(waiting.policy, waiting.resolved)
        if self.lines:
            self.lines.call_abandoned(waiting.lines)
        ahead = self.lines.first_of(waiting.lines) if first_answer is None else None
        if ahead is not None and (yield from is_held(waiting.request)):
            ahead = None
        if ahead is None:
            answer: Answer = first_answer if first_answer is not None else (yield waiting.charge_step())
        else:
            peeked: Decision = yield waiting.peek_step()
            answer = waiting.request.answer(peeked)
        decision, held_up = decision_in(answer), None
        if decision.allowed and ahead is None:
            return answer
        if not decision.allowed:
            held_up = self._held_up(waiting, decision, now_us)
            if held_up is None:
                return answer
        ready_us = now_us + held_up.wait_us if held_up is not None and held_up.by_rates else 0
        at = ahead if held_up is None or ahead is not None else held_up.line
        if at is None:
            raise AssertionError("a request waits behind others, or because it was refused")
        if self._is_full(waiting.policy.max_waiting):
            return answer if not decision.allowed else (yield from self._refuse(waiting, at, 1))
        arrival = Arrival(
            (),
            demands={
                name: demand_of(decision.definitions, rule.name, waiting.operation.costs)
                for name, rule in waiting.lines.items()
            },
        )
        return (yield from self._wait(waiting, arrival, at, decision, ready_us))

    def _enter(
        self, waiting: Waiting, arrival: Arrival, at: LineName, decision: Decision
    ) -> Generator[Any, Any, tuple[bool, int | None]]:
        """Enter the line unless the turn is known to come too late; see `ArrivalLines.enter`."""
        if self.lines.needs_plan(at, arrival.demands[at]):
            states = yield Read(waiting.operation.keys)
            now_us = self._clock.now_us()
            read_us: int | None = getattr(states, "now_us", None)
            rates_states = [states[number] for number in rates_of(decision.definitions, rule_of(at))[0]]
            self.lines.plan(at, arrival.demands[at], rates_states, now_us if read_us is None else read_us, now_us)
        now_us = self._clock.now_us()
        return self.lines.enter(arrival, at, waiting.remaining_us(at, now_us), now_us)

    def _wait(
        self, waiting: Waiting, arrival: Arrival, at: LineName, decision: Decision, ready_us: int
    ) -> Generator[Any, Any, Answer]:
        """Wait in line, and leave it however the wait ends."""
        admitted = False
        arrival.abandon = partial(self._leave, waiting, arrival, admitted=False)
        try:
            entered, wait_us = yield from self._enter(waiting, arrival, at, decision)
            if not entered:
                return (yield from self._refuse(waiting, at, wait_us))
            self._arrivals.add(arrival)
            self._notify()
            waiting.departure.begin(arrival.call)
            answer = yield from self._attempt_until_answered(waiting, arrival, ready_us)
            admitted = decision_in(answer).allowed
        finally:
            try:
                self._leave(waiting, arrival, admitted=admitted)
            except BaseException:  # a signal handler raised during it
                self._leave(waiting, arrival, admitted=False)
                raise
        return answer

    def _leave(self, waiting: Waiting, arrival: Arrival, *, admitted: bool) -> None:
        """Leave the line, unless it was left already on behalf of this request."""
        if arrival.abandon is None:
            return
        self.lines.leave(arrival, self._clock.now_us(), admitted=admitted)
        if arrival in self._arrivals:
            waiting.departure.end()
            self._arrivals.discard(arrival)
            self._notify()
        arrival.abandon = None

    def _attempt_until_answered(self, waiting: Waiting, arrival: Arrival, ready_us: int) -> Generator[Any, Any, Answer]:
        """Ask the store at the promised times, but only while no request is ahead; return the last answer."""
        clock, lines = self._clock, self.lines
        while True:
            arrival.called = False
            now_us = clock.now_us()
            if waiting.departure.gone:
                return (yield from self._refuse(waiting, arrival.at, 1))
            if lines.stands_behind(arrival):
                remaining_us = waiting.remaining_us(arrival.at, now_us)
                if remaining_us > 0:
                    yield Stand(arrival, remaining_us / US_PER_SECOND)
                if remaining_us <= 0 or not arrival.called:
                    return (yield from self._refuse(waiting, arrival.at, 1))
                continue
            if ready_us > now_us:
                yield Stand(arrival, clock.let_pass(ready_us - now_us))
                continue
            answer: Answer = yield waiting.charge_step()
            decision = decision_in(answer)
            held_up = None if decision.allowed else self._held_up(waiting, decision, now_us)
            if held_up is None:
                return answer
            ready_us = clock.now_us() + held_up.wait_us if held_up.by_rates else 0
            if lines.record_delay(arrival, held_up.line, ready_us) and not held_up.by_rates:
                yield Stand(arrival, clock.let_pass(held_up.wait_us))

    def _held_up(self, waiting: Waiting, decision: Decision, decided_us: int) -> HeldUp | None:
        """What holds a refused request up for longest; None where it must not wait (any longer).

        Rates come before places, whose turn is not known in advance. The waits that a decision promises count from
        `decided_us`, when it was requested: a thread that is delayed after that does not make a turn come too late.
        """
        if decision.degraded == "closed":
            return None
        longest = None
        lines = {rule.name: name for name, rule in waiting.lines.items()}
        for reading in decision.limits:
            if reading.allowed or reading.shadow:
                continue
            line, retry_us = lines.get(reading.rule), reading.retry_after_us
            if line is None or retry_us is None:
                return None
            by_rates, remaining_us = reading.definition.limit.is_rate, waiting.remaining_us(line, decided_us)
            if remaining_us <= 0 or (by_rates and retry_us > remaining_us):
                return None
            retry_us = max(retry_us, 1)
            held_up = HeldUp(by_rates, retry_us if by_rates else min(retry_us, remaining_us), remaining_us, line)
            if longest is None or held_up[:2] > longest[:2]:
                longest = held_up
        return longest

    def _refuse(self, waiting: Waiting, at: LineName, wait_us: int | None) -> Generator[Any, Any, Answer]:
        """The refusal of a request whose turn in a line comes too late, in `wait_us` (None: never)."""
        operation = waiting.operation
        no_costs = (0,) * len(operation.costs)
        untouched: Decision = yield Operation(operation.keys, no_costs, commit=False)
        peeked: Decision = yield waiting.peek_step()
        return waiting.request.answer(refused(operation, rule_of(at), wait_us, untouched, peeked))

    def _is_full(self, most: int) -> bool:
        """Whether no more requests may wait; this is logged once."""
        why = _BY_POLICY
        if self._bound is not None and self._bound[0] < most:
            most, why = self._bound
        if len(self._arrivals) < most:
            return False
        if not self._logged_full:
            self._logged_full = True
            log.warning(_FULL, most, why)
        return True

    def _notify(self) -> None:
        for listener in self.listeners:
            listener(len(self._arrivals))
