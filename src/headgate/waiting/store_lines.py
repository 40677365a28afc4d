"""Waiting in a line that the store keeps: one order for the callers of all processes.

Each caller has a ticket in the store. The server calls the first of a line when the one before it leaves, and when a
place in flight is freed. The first caller of each process in a line also asks every few seconds whether its turn has
come, so that a process that died is noticed. Only the first of the whole line attempts its request.
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
from headgate.forks import register_for_forks
from headgate.stores.lines import Joined, LinePlace, StoreLine, Ticket, Tickets
from headgate.waiting.freed import FreedKeys
from headgate.waiting.plan import AHEAD_US, Plan
from headgate.waiting.steps import (
    Answer,
    Join,
    Leave,
    LineCall,
    Read,
    Request,
    Sleep,
    Stand,
    WaitSteps,
    attempt_if_no_line,
    decision_in,
    is_held,
)
from headgate.waiting.tickets import KnownLine, Snapshot, is_in_step
from headgate.waiting.verdicts import FULL, Verdicts

log = logging.getLogger("headgate")


class StoreLines:
    """The waiting lines of one limiter in the store, as this process knows them."""

    def __init__(self, verdicts: Verdicts, clock: Clock, most: int, freed: FreedKeys | None) -> None:
        self._verdicts = verdicts
        self._freed = freed
        self._clock = clock
        self._most = most
        self._lock = threading.RLock()
        self._known: dict[str, KnownLine] = {}
        self._tickets: set[Ticket] = set()
        self._is_full_logged = False
        register_for_forks(self)

    def after_fork(self) -> None:
        """See `headgate.forks`."""
        self._lock = threading.RLock()
        for ticket in self._tickets:
            ticket.abandon = None
        self._tickets.clear()
        self._known.clear()

    @property
    def waiting(self) -> int:
        """The number of callers of this limiter that wait."""
        return len(self._tickets)

    def turn(self, line: StoreLine, request: Request, timeout_us: int) -> Generator[Any, Any, Answer]:
        """Wait for a turn, at most `timeout_us`. Raises StoreError where the store does not answer."""
        deadline_us = self._clock.now_us() + timeout_us
        place = line.place(request.keys)
        first: Answer | None = None
        if request.name not in self._known:
            first = yield from attempt_if_no_line(line, place, request, timeout_us)
        if first is None and (yield from is_held(request)):
            first = yield request.attempt(timeout_us)
        if first is not None:
            decision = decision_in(first)
            if decision.allowed:
                return first
            if self._verdicts.is_hopeless(decision, timeout_us):
                return (yield from self._verdicts.refuse_late(request, decision))
        if self._verdicts.can_never_pass(request):
            return (yield from self._verdicts.refuse(request, None))
        if self._is_full():
            return (yield from self._verdicts.refuse(request, 1))
        ticket = Ticket(request.costs)
        try:
            self._enter(line, request, ticket)
            late_us = yield from self._join(line, place, request, ticket, timeout_us)
            if late_us is not None:
                yield Leave()
                return (yield from self._verdicts.refuse(request, late_us or None))
            remaining_us = max(0, deadline_us - self._clock.now_us())
            answer = yield from self._wait(line, place, request, ticket, remaining_us)
            yield Leave()
        finally:
            try:
                self._exit(line, request, ticket)
            except BaseException:  # a signal handler raised during it
                self._exit(line, request, ticket)
                raise
        if answer is None:
            return (yield from self._verdicts.refuse(request, (yield from self._verdicts.wait_alone_us(request))))
        decision = decision_in(answer)
        return answer if decision.allowed else (yield from self._verdicts.refuse_late(request, decision))

    def _join(
        self, line: StoreLine, place: LinePlace, request: Request, ticket: Ticket, timeout_us: int
    ) -> Generator[Any, Any, int | None]:
        """Join the line at its end; return None if the turn comes in time, else how long until it, 0 for never."""
        with self._lock:
            known = self._known[request.name]
            snapshot = known.snapshot
        joined: Joined | None = yield Join(
            partial(line.join, place, ticket, snapshot.order, snapshot.generation),
            lambda: line.leave(place, ticket, as_planned=ticket.passed),
        )
        if joined is None:
            ticket.passed = True  # no plan counts it
            return 1
        ticket.order, ticket.is_first = joined.order, joined.is_first or ticket.is_first
        states: Sequence[State | None] | None = None
        if (not snapshot.order or joined.generation != known.generation) and self._verdicts.has_rates:
            states = yield Read(request.keys)
        with self._lock:
            insort(known.tickets, (joined.order, ticket), key=lambda entry: entry[0])
            turn_us = self._predict(known, snapshot, ticket, joined, states, timeout_us)
            now_us = self._clock.now_us() + known.ahead_us
        if turn_us is None:
            return 0
        ticket.turn_us = turn_us
        return turn_us - now_us if turn_us - now_us > timeout_us else None

    def _predict(
        self,
        known: KnownLine,
        snapshot: Snapshot,
        ticket: Ticket,
        joined: Joined,
        states: Sequence[State | None] | None,
        timeout_us: int,
    ) -> int | None:
        """Predict the turn of a request that has joined a line, None for never; a late one is not added to the plan."""
        now_us = self._clock.now_us()
        if known.plan is None or joined.generation != known.generation:
            if snapshot.order and joined.generation == known.generation:  # another caller has just dropped the plan
                return now_us + known.ahead_us
            states_read = states or [None] * len(self._verdicts.limits)
            known.ahead_us = self._verdicts.now_us(states_read) - now_us
            known.plan = Plan(self._verdicts.limits, states_read, now_us + known.ahead_us)
            known.order, known.generation, known.counted = 0, joined.generation, 0
            snapshot = known.snapshot
        now_us += known.ahead_us
        uncounted = known.uncounted(snapshot, joined.ahead)
        if joined.order <= known.order or uncounted is None:  # another caller's answer counted this one, or will
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
        self, line: StoreLine, place: LinePlace, request: Request, ticket: Ticket, timeout_us: int
    ) -> Generator[Any, Any, Answer | None]:
        """Wait for the turn and return the answer of the last attempt; None where the time was up before the turn."""
        waited_us, deadline_us = 0, self._clock.now_us() + timeout_us
        while True:
            remaining_us = max(0, min(deadline_us - self._clock.now_us(), timeout_us - waited_us))
            if ticket.is_first:
                ticket.called = False
                answer: Answer = yield request.attempt(remaining_us)
                decision = decision_in(answer)
                ticket.passed = decision.allowed and self._is_as_planned(request, ticket)
                if decision.allowed or self._verdicts.is_hopeless(decision, remaining_us):
                    return answer
                yield from self._pause(line, place, request, ticket, decision, remaining_us)
            elif not remaining_us:
                return None
            else:
                leads = self._leads(request, ticket)
                wait_us = min(remaining_us, line.turns.keepalive_us) if leads else remaining_us
                yield Stand(ticket, wait_us / US_PER_SECOND)
                waited_us += 0 if ticket.called else wait_us
                if not ticket.is_first and (leads or ticket.called):
                    ticket.called = False
                    yield from self._check_turn(line, place, request, ticket)

    def _pause(
        self,
        line: StoreLine,
        place: LinePlace,
        request: Request,
        ticket: Ticket,
        decision: Decision,
        remaining_us: int,
    ) -> WaitSteps:
        """Wait, first in line, for the moment that a refusal states, or until a place is freed."""
        rates_us, places_us = self._verdicts.waits_us(decision)
        if rates_us:  # another caller took what the plan counted on
            with self._lock:
                self._known[request.name].plan = None
        start_us = self._clock.now_us()
        ready_us, end_us = start_us + (rates_us or 0), start_us + min(max(rates_us or 0, places_us or 0), remaining_us)
        while ticket.is_first:
            now_us = self._clock.now_us()
            freed = ticket.called and self._verdicts.has_places
            if now_us >= (ready_us if freed else end_us):
                return
            sleep_us = min((ready_us if freed else end_us) - now_us, line.turns.keepalive_us)
            if freed:
                yield Sleep(self._clock.let_pass(sleep_us))
            else:
                ticket.called = False
                yield Stand(ticket, self._clock.let_pass(sleep_us))
            if sleep_us == line.turns.keepalive_us and not (ticket.called and self._verdicts.has_places):
                order = ticket.order
                yield from self._check_turn(line, place, request, ticket)
                if ticket.order != order:  # the store has lost the line, and perhaps the state that caused the refusal
                    return

    def _check_turn(self, line: StoreLine, place: LinePlace, request: Request, ticket: Ticket) -> WaitSteps:
        """Ask the store whether the turn has come; a ticket that it removed joins again, behind all others."""
        is_first: bool | None = yield LineCall(partial(line.turn, place, ticket))
        if is_first is None:
            joined: Joined | None = yield LineCall(partial(line.join, place, ticket, 0, b""))
            is_first = joined is not None and joined.is_first
            with self._lock:
                known = self._known[request.name]
                known.plan = None
                known.tickets = [entry for entry in known.tickets if entry[1] is not ticket]
                if joined is not None:
                    ticket.order = joined.order
                    insort(known.tickets, (joined.order, ticket), key=lambda entry: entry[0])
        ticket.is_first = is_first

    def _is_as_planned(self, request: Request, ticket: Ticket) -> bool:
        """Whether the plan that predicted this moment still holds for the callers behind."""
        with self._lock:
            known = self._known[request.name]
            return self._clock.now_us() + known.ahead_us >= ticket.turn_us - AHEAD_US

    def _leads(self, request: Request, ticket: Ticket) -> bool:
        """Whether a ticket is the first of this process in its line."""
        with self._lock:
            tickets = self._known[request.name].tickets
            return bool(tickets) and tickets[0][1] is ticket

    def _is_full(self) -> bool:
        """Whether no more callers of this limiter may wait; logged once."""
        if self.waiting < self._most:
            return False
        if not self._is_full_logged:
            self._is_full_logged = True
            log.warning(FULL, self._most)
        return True

    def _enter(self, line: StoreLine, request: Request, ticket: Ticket) -> None:
        with self._lock:
            ticket.abandon = partial(self._exit, line, request, ticket)
            self._tickets.add(ticket)
            known = self._known.setdefault(request.name, KnownLine())
            if self._freed is not None and not line.turns.receives_calls and not known.entered:
                known.call_freed = known.call_freed or partial(_call_first, line.turns, known)
                self._freed.add(request.keys[0], known.call_freed)
            known.entered.add(ticket)
        line.turns.add(ticket)

    def _exit(self, line: StoreLine, request: Request, ticket: Ticket) -> None:
        """Forget a ticket. The next of this process asks for its turn from now on. See `WaitingLines._leave`."""
        line.turns.remove(ticket)
        if ticket not in self._tickets or is_in_step(self._lock, partial(self._exit, line, request, ticket)):
            return
        with self._lock:
            known = self._known.get(request.name)
            leading = None if known is None else known.forget(ticket)
            if known is not None and not known.entered:
                if self._freed is not None and known.call_freed is not None:
                    self._freed.remove(request.keys[0], known.call_freed)
                del self._known[request.name]
        if leading is not None:
            leading.call()
        ticket.abandon = None
        self._tickets.discard(ticket)


def _call_first(turns: Tickets, known: KnownLine) -> None:
    """Wake the first caller of this process in a line, as a place was freed here and no message may report that."""
    tickets = known.tickets
    if tickets and not turns.receives_calls:
        tickets[0][1].call()
