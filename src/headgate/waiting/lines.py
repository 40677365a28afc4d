"""The waiting lines of a process: callers that wait for a key, in the order in which they came.

Only the first of a line asks the store again, so a small request never overtakes a big one; lines of different keys
know nothing of each other. When a caller joins, a plan tells when its turn will come: if that is too late, it is
refused at once, with nothing consumed. It is not known ahead when places in flight will be free: a caller waits for
them until its timeout, and is called when one is. `hit` and `reserve` do not wait in line: they take what is there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from copy import copy
from functools import partial
from typing import Any

from headgate.algorithms.table import State
from headgate.clock import US_PER_SECOND, Clock
from headgate.decision import Decision, NamedLimit
from headgate.errors import StoreError
from headgate.holding import Hold
from headgate.keys import Key, encode_key
from headgate.stores.lines import StoreLine, Ticket
from headgate.stores.protocol import Store
from headgate.waiting.freed import FreedKeys, freed_places
from headgate.waiting.plan import AHEAD_US, Plan
from headgate.waiting.steps import (
    Answer,
    Extend,
    Holding,
    Leave,
    Read,
    Request,
    Sleep,
    Stand,
    WaitSteps,
    decision_in,
    is_held,
)
from headgate.waiting.store_lines import StoreLines
from headgate.waiting.tickets import Line, is_in_step, shared_lines
from headgate.waiting.verdicts import FULL, Verdicts

log = logging.getLogger("headgate")

MOST_WAITERS = 10_000
"""Callers that may stand in the lines of one limiter, unless it was given another bound."""

_NAME_BYTES = 16


class WaitingLines:
    """The waiting lines of one limiter, one for each key that is waited for.

    Limiters of the same limits on one store and clock share their lines. `bound` are the limits as they are bound;
    at most `most` callers wait at one time.
    """

    def __init__(
        self,
        limits: Sequence[NamedLimit],
        clock: Clock,
        store: Store,
        bound: Any,
        most: int = MOST_WAITERS,
    ) -> None:
        self._limits = tuple(limits)
        self._clock = clock
        self._bound = bound
        self._most = most
        self._verdicts = Verdicts(limits, clock)
        self._places = FreedKeys(bound, freed_places(store)) if self._verdicts.has_places else None
        self._shared = shared_lines(store, self._limits, clock)
        self._lines = self._shared.by_key
        self._in_store = StoreLines(self._verdicts, clock, most, self._places)
        self._answers = store.failure == "never" or bool(self._limits[0].on_store_error)
        """Whether what the store cannot decide is decided in its place."""

    def steps(self, key: Key, costs: tuple[int, ...], timeout_us: int, holding: Holding | None = None) -> WaitSteps:
        """Wait for a turn of `key`, at most `timeout_us`; the generator's result is the decision, or what is held."""
        asked = Request(encode_key(key), (key,) * self._verdicts.groups, costs, holding)
        answer = yield from self._turn(asked, timeout_us)
        yield from proceed(answer, self._clock, None if self._places is None else holding)
        return answer

    def asking(self, bound: Any) -> WaitingLines:
        """The same lines, where other limits are asked, bound to that store with a choice for its outages."""
        other = copy(self)
        other._bound, other._answers = bound, True
        return other

    def _line(self) -> StoreLine | None:
        """The lines that the store keeps for all processes, where it does, and answers."""
        line: StoreLine | None = getattr(self._bound, "line", None)
        return line

    def holding(self, key: Key, hold: Hold) -> Holding:
        """How what is waited for is held; a hold without a name gets one of its own."""
        own = hold._replace(name=os.urandom(_NAME_BYTES)) if hold.name is None else hold
        return Holding(own, self._bound.id_of(key, own.name or b""), hold.name is not None)

    def _turn(self, asked: Request, timeout_us: int) -> Generator[Any, Any, Answer]:
        """Wait in the line of the store, or where it has none or does not answer, in the one of this process."""
        line, start_us = self._line(), self._clock.now_us()
        if line is None:
            return (yield from self._turn_here(asked, timeout_us))
        try:
            return (yield from self._in_store.turn(line, asked, timeout_us))
        except StoreError:
            if not self._answers:
                raise
        yield Leave()
        return (yield from self._turn_here(asked, max(0, timeout_us - (self._clock.now_us() - start_us))))

    def _turn_here(self, asked: Request, timeout_us: int) -> Generator[Any, Any, Answer]:
        deadline_us = self._clock.now_us() + timeout_us
        if asked.name in self._lines:
            self._shared.call_abandoned(asked.name)
        if asked.name not in self._lines or (yield from is_held(asked)):
            answer: Answer = yield asked.asking(timeout_us)
            decision = decision_in(answer)
            if decision.allowed:
                return answer
            if self._verdicts.hopeless(decision, timeout_us):
                return (yield from self._verdicts.late(asked, decision))
        ticket, admitted = Ticket(asked.costs), False
        try:
            stands, wait_us = yield from self._join(asked, ticket, timeout_us)
            if not stands:
                return (yield from self._verdicts.refuse(asked, wait_us))
            if not ticket.called:
                yield Stand(ticket, timeout_us / US_PER_SECOND)
            if not ticket.called:
                return (yield from self._verdicts.refuse(asked, (yield from self._verdicts.alone_us(asked))))
            while True:
                ticket.called = False
                left_us = max(0, deadline_us - self._clock.now_us())
                answer = yield asked.asking(left_us)
                decision = decision_in(answer)
                admitted = decision.allowed
                if admitted or self._verdicts.hopeless(decision, left_us):
                    break
                yield from self._pause(asked, ticket, decision, left_us)
        finally:
            try:
                self._leave(asked, ticket, admitted=admitted)
            except BaseException:  # a signal's handler raised in the midst of it
                self._leave(asked, ticket, admitted=False)
                raise
        return answer if admitted else (yield from self._verdicts.late(asked, decision))

    def _pause(self, asked: Request, ticket: Ticket, decision: Decision, left_us: int) -> WaitSteps:
        """Wait, first in line, for the moment that a refusal promises.

        A place in flight may be free sooner: then the caller is called, and asks as soon as the rates admit it.
        """
        rates_us, places_us = self._verdicts.waits_us(decision)
        if rates_us:  # another caller took what the plan counted on
            self._drop_plan(asked.name)
        if self._places is None:
            yield Sleep(self._clock.let_pass(rates_us or 0))
            return
        ready_us = self._clock.now_us() + (rates_us or 0)
        wait_us = min(max(rates_us or 0, places_us or 0), left_us)
        yield Stand(ticket, self._clock.let_pass(wait_us))
        early_us = ready_us - self._clock.now_us()
        if early_us > 0:
            yield Sleep(self._clock.let_pass(early_us))

    def _join(self, asked: Request, ticket: Ticket, timeout_us: int) -> Generator[Read, Any, tuple[bool, int | None]]:
        """Join the line: (whether it stands there, the wait), None for never; one whose turn comes too late does not.

        The states are read only where there is no plan of the line.
        """
        if self._verdicts.never(asked):
            return False, None
        states: Sequence[State | None] | None = None if self._verdicts.has_rates else []
        while True:
            with self._shared.lock:
                line = self._lines.get(asked.name)
                if states is not None or (line is not None and line.plan is not None):
                    return self._join_planned(asked, ticket, states, timeout_us)
            states = yield Read(asked.keys)

    def _join_planned(
        self, asked: Request, ticket: Ticket, states: Sequence[State | None] | None, timeout_us: int
    ) -> tuple[bool, int | None]:
        line = self._lines.get(asked.name) or Line()
        if line.plan is None:
            states = states or [None] * len(self._limits)
            line.ahead_us = self._verdicts.now_us(states) - self._clock.now_us()
            plan = Plan(self._limits, states, self._verdicts.now_us(states))
            for waiting in line.tickets:
                waiting.turn_us = plan.turn_us(waiting.costs, self._verdicts.now_us(states), join=True) or 0
            line.plan = plan
        now_us = self._clock.now_us() + line.ahead_us
        turn_us = line.plan.turn_us(asked.costs, now_us, join=False)
        if turn_us is None or turn_us - now_us > timeout_us or self._is_full():
            return False, None if turn_us is None else turn_us - now_us
        ticket.turn_us, ticket.called = turn_us, not line.tickets
        ticket.abandon = partial(self._leave, asked, ticket, admitted=False)
        self._shared.tickets.add(ticket)
        self._lines[asked.name] = line
        if self._places is not None and not line.tickets:
            self._places.add(asked.keys[0], line.call_first)
        line.tickets.append(ticket)
        line.plan.turn_us(asked.costs, now_us, join=True)
        return True, turn_us - now_us

    def _is_full(self) -> bool:
        """Whether no more callers may wait; the log says it once."""
        if self._shared.waiting < self._most:
            return False
        if not self._shared.told_full:
            self._shared.told_full = True
            log.warning(FULL, self._most)
        return True

    def _leave(self, asked: Request, ticket: Ticket, *, admitted: bool) -> None:
        """Step out of the line and call the next. A plan that came true is still good for those behind.

        Done again after a signal's handler ended it midway, it finishes what was left.
        """
        shared = self._shared
        if ticket not in shared.tickets or is_in_step(
            shared.lock, partial(self._leave, asked, ticket, admitted=admitted)
        ):
            return
        following: Ticket | None = None
        with shared.lock:
            line = self._lines.get(asked.name)
            if line is not None:
                was_first = not line.tickets or line.tickets[0] is ticket
                if ticket in line.tickets:
                    line.tickets.remove(ticket)
                else:
                    was_first = True  # perhaps it was
                if not admitted or self._clock.now_us() + line.ahead_us < ticket.turn_us - AHEAD_US:
                    line.plan = None
                if not line.tickets:
                    if self._places is not None:
                        self._places.remove(asked.keys[0], line.call_first)
                    del self._lines[asked.name]
                elif was_first:
                    following = line.tickets[0]
        if following is not None:
            following.call()
        ticket.abandon = None
        shared.tickets.discard(ticket)

    def _drop_plan(self, name: str) -> None:
        with self._shared.lock:
            self._lines[name].plan = None


def proceed(answer: Answer, clock: Clock, holding: Holding | None = None) -> WaitSteps:
    """Wait as long as a queue delays an admitted request; places that it holds meanwhile stay held."""
    decision = decision_in(answer)
    left_us = decision.delay_us if decision.allowed else 0
    while left_us:
        slept_us = left_us if holding is None else min(left_us, max(1, holding.hold.lease_us // 3))
        yield Sleep(clock.let_pass(slept_us))
        left_us -= slept_us
        if holding is not None:
            yield Extend(holding.whole_id, holding.hold.lease_us)
