"""Waiting in a line that the store keeps: one order for the callers of all processes.

Each caller has a ticket in the store. The server calls the first of a line when the one before it leaves, and when a
place in flight is freed; the first caller that a process has in a line also asks every few seconds, so that a process
that died is noticed. Only the first of the whole line asks for what it waits for.
"""

from __future__ import annotations

import logging
import threading
from bisect import insort
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from headgate.algorithms.table import State
from headgate.clock import US_PER_SECOND, Clock
from headgate.decision import Decision
from headgate.forks import told_of_forks
from headgate.stores.lines import Joined, LinePlace, StoreLine, Ticket, Tickets
from headgate.waiting.freed import FreedKeys
from headgate.waiting.plan import AHEAD_US, Plan
from headgate.waiting.steps import (
    Answer,
    Join,
    Leave,
    LineStep,
    Read,
    Request,
    Sleep,
    Stand,
    WaitSteps,
    ask_first,
    decision_in,
    is_held,
)
from headgate.waiting.tickets import Known, KnownLine, is_in_step
from headgate.waiting.verdicts import FULL, Verdicts

log = logging.getLogger("headgate")


class StoreLines:
    """The waiting lines of one limiter that are in the store, as this process sees them."""

    def __init__(self, verdicts: Verdicts, clock: Clock, most: int, freed: FreedKeys | None) -> None:
        self._verdicts = verdicts
        self._freed = freed
        self._clock = clock
        self._most = most
        self._lock = threading.RLock()
        self._known: dict[str, KnownLine] = {}
        self._tickets: set[Ticket] = set()
        self._told_full = False
        told_of_forks(self)

    def after_fork(self) -> None:
        """See `headgate.forks`."""
        self._lock = threading.RLock()
        for ticket in self._tickets:
            ticket.abandon = None
        self._tickets.clear()
        self._known.clear()

    @property
    def waiting(self) -> int:
        """How many callers of this limiter wait."""
        return len(self._tickets)

    def turn(self, line: StoreLine, asked: Request, timeout_us: int) -> Generator[Any, Any, Answer]:
        """Wait for a turn, at most `timeout_us`. Raises StoreError where the store does not answer."""
        deadline_us = self._clock.now_us() + timeout_us
        place = line.place(asked.keys)
        first: Answer | None = None
        if asked.name not in self._known:
            first = yield from ask_first(line, place, asked, timeout_us)
        if first is None and (yield from is_held(asked)):
            first = yield asked.asking(timeout_us)
        if first is not None:
            decision = decision_in(first)
            if decision.allowed:
                return first
            if self._verdicts.hopeless(decision, timeout_us):
                return (yield from self._verdicts.late(asked, decision))
        if self._verdicts.never(asked):
            return (yield from self._verdicts.refuse(asked, None))
        if self._is_full():
            return (yield from self._verdicts.refuse(asked, 1))
        ticket = Ticket(asked.costs)
        try:
            self._enter(line, asked, ticket)
            late_us = yield from self._join(line, place, asked, ticket, timeout_us)
            if late_us is not None:
                yield Leave()
                return (yield from self._verdicts.refuse(asked, late_us or None))
            left_us = max(0, deadline_us - self._clock.now_us())
            answer = yield from self._wait(line, place, asked, ticket, left_us)
            yield Leave()
        finally:
            try:
                self._exit(line, asked, ticket)
            except BaseException:  # a signal's handler raised in the midst of it
                self._exit(line, asked, ticket)
                raise
        if answer is None:
            return (yield from self._verdicts.refuse(asked, (yield from self._verdicts.alone_us(asked))))
        decision = decision_in(answer)
        return answer if decision.allowed else (yield from self._verdicts.late(asked, decision))

    def _join(
        self, line: StoreLine, place: LinePlace, asked: Request, ticket: Ticket, timeout_us: int
    ) -> Generator[Any, Any, int | None]:
        """Stand last in line; how long until the turn where that is too late, 0 for never, None if it is in time."""
        with self._lock:
            known = self._known[asked.name]
            knew = known.now
        joined: Joined | None = yield Join(
            partial(line.join, place, ticket, knew.order, knew.generation),
            lambda: line.leave(place, ticket, as_planned=ticket.passed),
        )
        if joined is None:
            ticket.passed = True  # no plan knows of it
            return 1
        ticket.order, ticket.is_first = joined.order, joined.is_first or ticket.is_first
        states: Sequence[State | None] | None = None
        if (not knew.order or joined.generation != known.generation) and self._verdicts.has_rates:
            states = yield Read(asked.keys)
        with self._lock:
            insort(known.tickets, (joined.order, ticket), key=lambda each: each[0])
            turn_us = self._foresee(known, knew, ticket, joined, states, timeout_us)
            now_us = self._clock.now_us() + known.ahead_us
        if turn_us is None:
            return 0
        ticket.turn_us = turn_us
        return turn_us - now_us if turn_us - now_us > timeout_us else None

    def _foresee(
        self,
        known: KnownLine,
        knew: Known,
        ticket: Ticket,
        joined: Joined,
        states: Sequence[State | None] | None,
        timeout_us: int,
    ) -> int | None:
        """When the turn of a request comes that has joined a line; None for never. One that is late is not planned."""
        now_us = self._clock.now_us()
        if known.plan is None or joined.generation != known.generation:
            if knew.order and joined.generation == known.generation:  # another caller has just dropped the plan
                return now_us + known.ahead_us
            read = states or [None] * len(self._verdicts.limits)
            known.ahead_us = self._verdicts.now_us(read) - now_us
            known.plan = Plan(self._verdicts.limits, read, now_us + known.ahead_us)
            known.order, known.generation, known.counted = 0, joined.generation, 0
            knew = known.now
        now_us += known.ahead_us
        uncounted = known.uncounted(knew, joined.ahead)
        if joined.order <= known.order or uncounted is None:  # another caller's answer told of this one, or will
            return known.plan.turn_us(ticket.costs, now_us, join=False)
        for costs in uncounted:
            known.plan.turn_us(costs, now_us, join=True)
        turn_us = known.plan.turn_us(ticket.costs, now_us, join=False)
        ticket.planned = turn_us is not None and turn_us - now_us <= timeout_us
        if ticket.planned:
            known.plan.turn_us(ticket.costs, now_us, join=True)
        known.order = joined.order
        known.counted += len(uncounted) + ticket.planned
        return turn_us

    def _wait(
        self, line: StoreLine, place: LinePlace, asked: Request, ticket: Ticket, timeout_us: int
    ) -> Generator[Any, Any, Answer | None]:
        """What came when the turn had come; None where the time was up before."""
        stood_us, deadline_us = 0, self._clock.now_us() + timeout_us
        while True:
            left_us = max(0, min(deadline_us - self._clock.now_us(), timeout_us - stood_us))
            if ticket.is_first:
                ticket.called = False
                answer: Answer = yield asked.asking(left_us)
                decision = decision_in(answer)
                ticket.passed = decision.allowed and self._is_as_planned(asked, ticket)
                if decision.allowed or self._verdicts.hopeless(decision, left_us):
                    return answer
                yield from self._pause(line, place, asked, ticket, decision, left_us)
            elif not left_us:
                return None
            else:
                leads = self._leads(asked, ticket)
                standing_us = min(left_us, line.turns.keep_us) if leads else left_us
                yield Stand(ticket, standing_us / US_PER_SECOND)
                stood_us += 0 if ticket.called else standing_us
                if not ticket.is_first and (leads or ticket.called):
                    ticket.called = False
                    yield from self._ask_turn(line, place, asked, ticket)

    def _pause(
        self,
        line: StoreLine,
        place: LinePlace,
        asked: Request,
        ticket: Ticket,
        decision: Decision,
        left_us: int,
    ) -> WaitSteps:
        """Wait, first in line, for the moment that a refusal promises, or until a place is freed."""
        rates_us, places_us = self._verdicts.waits_us(decision)
        if rates_us:  # another caller took what the plan counted on
            with self._lock:
                self._known[asked.name].plan = None
        start_us = self._clock.now_us()
        ready_us, end_us = start_us + (rates_us or 0), start_us + min(max(rates_us or 0, places_us or 0), left_us)
        while ticket.is_first:
            now_us = self._clock.now_us()
            freed = ticket.called and self._verdicts.has_places
            if now_us >= (ready_us if freed else end_us):
                return
            slept_us = min((ready_us if freed else end_us) - now_us, line.turns.keep_us)
            if freed:
                yield Sleep(self._clock.let_pass(slept_us))
            else:
                ticket.called = False
                yield Stand(ticket, self._clock.let_pass(slept_us))
            if slept_us == line.turns.keep_us and not (ticket.called and self._verdicts.has_places):
                order = ticket.order
                yield from self._ask_turn(line, place, asked, ticket)
                if ticket.order != order:  # the store has lost the line, and perhaps what the refusal was for
                    return

    def _ask_turn(self, line: StoreLine, place: LinePlace, asked: Request, ticket: Ticket) -> WaitSteps:
        """Ask whether the turn has come; a ticket that was passed over joins again, behind all others."""
        is_first: bool | None = yield LineStep(partial(line.turn, place, ticket))
        if is_first is None:
            joined: Joined | None = yield LineStep(partial(line.join, place, ticket, 0, b""))
            is_first = joined is not None and joined.is_first
            with self._lock:
                known = self._known[asked.name]
                known.plan = None
                known.tickets = [each for each in known.tickets if each[1] is not ticket]
                if joined is not None:
                    ticket.order = joined.order
                    insort(known.tickets, (joined.order, ticket), key=lambda each: each[0])
        ticket.is_first = is_first

    def _is_as_planned(self, asked: Request, ticket: Ticket) -> bool:
        """Whether a plan that foretold this moment is still good for those behind."""
        with self._lock:
            known = self._known[asked.name]
            return self._clock.now_us() + known.ahead_us >= ticket.turn_us - AHEAD_US

    def _leads(self, asked: Request, ticket: Ticket) -> bool:
        """Whether a ticket is the first that this process has in its line."""
        with self._lock:
            tickets = self._known[asked.name].tickets
            return bool(tickets) and tickets[0][1] is ticket

    def _is_full(self) -> bool:
        """Whether no more callers of this limiter may wait; the log says it once."""
        if self.waiting < self._most:
            return False
        if not self._told_full:
            self._told_full = True
            log.warning(FULL, self._most)
        return True

    def _enter(self, line: StoreLine, asked: Request, ticket: Ticket) -> None:
        with self._lock:
            ticket.abandon = partial(self._exit, line, asked, ticket)
            self._tickets.add(ticket)
            known = self._known.setdefault(asked.name, KnownLine())
            if self._freed is not None and not line.turns.hears and not known.entered:
                known.call_freed = known.call_freed or partial(_call_first, line.turns, known)
                self._freed.add(asked.keys[0], known.call_freed)
            known.entered.add(ticket)
        line.turns.add(ticket)

    def _exit(self, line: StoreLine, asked: Request, ticket: Ticket) -> None:
        """Forget a ticket; the next of this process asks for its turn from now on. See `WaitingLines._leave`."""
        line.turns.remove(ticket)
        if ticket not in self._tickets or is_in_step(self._lock, partial(self._exit, line, asked, ticket)):
            return
        with self._lock:
            known = self._known.get(asked.name)
            leading = None if known is None else known.forget(ticket)
            if known is not None and not known.entered:
                if self._freed is not None and known.call_freed is not None:
                    self._freed.remove(asked.keys[0], known.call_freed)
                del self._known[asked.name]
        if leading is not None:
            leading.call()
        ticket.abandon = None
        self._tickets.discard(ticket)


def _call_first(turns: Tickets, known: KnownLine) -> None:
    """A place was freed in this process, which no message may tell: the first that it has in the line asks."""
    tickets = known.tickets
    if tickets and not turns.hears:
        tickets[0][1].call()
