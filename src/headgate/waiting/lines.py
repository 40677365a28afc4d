"""The waiting lines of a process: callers that wait for a key, in the order in which they arrived.

Only the first of a line tries again, so a small request never overtakes a big one. Lines of different keys
are independent. When a caller joins, a plan predicts its turn: if that is too late, the caller is refused at once, with
nothing consumed. It is not known beforehand when places in flight will be free: a caller waits for them until its
timeout, and is called when one is. `hit` and `reserve` do not wait in line: they take what is available.
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
"""The most callers in the lines of one limiter, unless it is given another bound."""

_RETRY_US = 3_000_000
"""How often the first in the line of a process tries whether its store, whose line it left, answers again."""

_NAME_BYTES = 16


class WaitingLines:
    """The waiting lines of one limiter, one for each key with waiting callers.

    Limiters of the same limits on one store and clock share their lines. `bound` are the limits bound to the store; at
    most `most` callers wait at one time.
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
        self._freed_keys = FreedKeys(bound, freed_places(store)) if self._verdicts.has_places else None
        self._shared = shared_lines(store, self._limits, clock)
        self._lines = self._shared.by_key
        self._in_store = StoreLines(self._verdicts, clock, most, self._freed_keys)
        self._decides_without_store = store.failure == "never" or bool(self._limits[0].on_store_error)
        """Whether requests are decided although the store does not answer."""

        self._rejoins = store.blocking and self._line() is not None
        """Whether they go back to the store's line once it answers again; in a zone, that is of a stopped process."""

    def steps(self, key: Key, costs: tuple[int, ...], timeout_us: int, holding: Holding | None = None) -> WaitSteps:
        """Wait for a turn of `key`, at most `timeout_us`; the result is the decision, or the reservation."""
        request = Request(encode_key(key), (key,) * self._verdicts.groups, costs, holding)
        answer = yield from self._turn(request, timeout_us)
        yield from proceed(answer, self._clock, None if self._freed_keys is None else holding)
        return answer

    def with_bound(self, bound: Any) -> WaitingLines:
        """The same lines with limits that are bound with a choice of what decides while the store is unavailable."""
        copied = copy(self)
        copied._bound, copied._decides_without_store = bound, True
        return copied

    def _line(self) -> StoreLine | None:
        """The lines in the store, common to all processes; None where the store has none or does not answer."""
        line: StoreLine | None = getattr(self._bound, "line", None)
        return line

    def holding(self, key: Key, hold: Hold) -> Holding:
        """How an admitted request is held; a hold without a name gets a random one."""
        named = hold._replace(name=os.urandom(_NAME_BYTES)) if hold.name is None else hold
        return Holding(named, self._bound.id_of(key, named.name or b""), hold.name is not None)

    def _turn(self, request: Request, timeout_us: int) -> Generator[Any, Any, Answer]:
        """Wait in the line of the store; where it has none or does not answer, in that of this process."""
        start_us, remaining_us, rejoins = self._clock.now_us(), timeout_us, self._rejoins
        while True:
            line = self._line()
            if line is not None:
                try:
                    return (yield from self._in_store.turn(line, request, remaining_us))
                except StoreError as error:
                    if not self._decides_without_store:
                        raise
                    rejoins = rejoins and error.transient
                yield Leave()
                remaining_us = max(0, timeout_us - (self._clock.now_us() - start_us))
            answer = yield from self._turn_in_process(request, remaining_us, rejoins=rejoins)
            if answer is not None:
                return answer
            remaining_us = max(0, timeout_us - (self._clock.now_us() - start_us))

    def _turn_in_process(
        self, request: Request, timeout_us: int, *, rejoins: bool
    ) -> Generator[Any, Any, Answer | None]:
        """Wait in the line of this process; None where the store answers again, and the request `rejoins` its line."""
        deadline_us = self._clock.now_us() + timeout_us
        if request.name in self._lines:
            self._shared.call_abandoned(request.name)
        if request.name not in self._lines or (yield from is_held(request)):
            answer: Answer = yield request.attempt(timeout_us)
            decision = decision_in(answer)
            if decision.allowed:
                return answer
            if self._verdicts.is_hopeless(decision, timeout_us):
                return (yield from self._verdicts.refuse_late(request, decision))
        ticket, admitted = Ticket(request.costs), False
        try:
            has_joined, wait_us = yield from self._join(request, ticket, timeout_us)
            if not has_joined:
                return (yield from self._verdicts.refuse(request, wait_us))
            has_waited = not ticket.called
            if has_waited:
                yield Stand(ticket, timeout_us / US_PER_SECOND)
            if not ticket.called:
                return (yield from self._verdicts.refuse(request, (yield from self._verdicts.wait_alone_us(request))))
            while True:
                ticket.called = False
                remaining_us = max(0, deadline_us - self._clock.now_us())
                answer = yield request.attempt(remaining_us)
                decision = decision_in(answer)
                admitted = decision.allowed
                if admitted or self._verdicts.is_hopeless(decision, remaining_us):
                    break
                if rejoins and has_waited and not decision.degraded and self._line() is not None:
                    return None
                yield from self._pause(
                    request, ticket, decision, remaining_us, at_most_us=_RETRY_US if rejoins else None
                )
                has_waited = True
        finally:
            try:
                self._leave(request, ticket, admitted=admitted)
            except BaseException:  # a signal handler raised during it
                self._leave(request, ticket, admitted=False)
                raise
        return answer if admitted else (yield from self._verdicts.refuse_late(request, decision))

    def _pause(
        self, request: Request, ticket: Ticket, decision: Decision, remaining_us: int, *, at_most_us: int | None
    ) -> WaitSteps:
        """Wait, first in line, for the moment that a refusal states, or for `at_most_us`.

        A place in flight may be free earlier: then the caller is called, and tries again as soon as the rates admit it.
        """
        rates_us, places_us = self._verdicts.waits_us(decision)
        if at_most_us is not None:
            rates_us, places_us = min(rates_us or 0, at_most_us), min(places_us or 0, at_most_us)
        if rates_us:  # another caller took what the plan counted on
            self._drop_plan(request.name)
        if self._freed_keys is None:
            yield Sleep(self._clock.let_pass(rates_us or 0))
            return
        ready_us = self._clock.now_us() + (rates_us or 0)
        wait_us = min(max(rates_us or 0, places_us or 0), remaining_us)
        yield Stand(ticket, self._clock.let_pass(wait_us))
        early_us = ready_us - self._clock.now_us()
        if early_us > 0:
            yield Sleep(self._clock.let_pass(early_us))

    def _join(self, request: Request, ticket: Ticket, timeout_us: int) -> Generator[Read, Any, tuple[bool, int | None]]:
        """Join the line, unless the turn comes too late: (whether it joined, the wait), where None is for never.

        The states are read only where the line has no plan.
        """
        if self._verdicts.can_never_pass(request):
            return False, None
        states: Sequence[State | None] | None = None if self._verdicts.has_rates else []
        while True:
            with self._shared.lock:
                line = self._lines.get(request.name)
                if states is not None or (line is not None and line.plan is not None):
                    return self._join_planned(request, ticket, states, timeout_us)
            states = yield Read(request.keys)

    def _join_planned(
        self, request: Request, ticket: Ticket, states: Sequence[State | None] | None, timeout_us: int
    ) -> tuple[bool, int | None]:
        line = self._lines.get(request.name) or Line()
        if line.plan is None:
            states = states or [None] * len(self._limits)
            line.ahead_us = self._verdicts.now_us(states) - self._clock.now_us()
            plan = Plan(self._limits, states, self._verdicts.now_us(states))
            for earlier in line.tickets:
                earlier.turn_us = plan.turn_us(earlier.costs, self._verdicts.now_us(states), join=True) or 0
            line.plan = plan
        now_us = self._clock.now_us() + line.ahead_us
        turn_us = line.plan.turn_us(request.costs, now_us, join=False)
        if turn_us is None or turn_us - now_us > timeout_us or self._is_full():
            return False, None if turn_us is None else turn_us - now_us
        ticket.turn_us, ticket.called = turn_us, not line.tickets
        ticket.abandon = partial(self._leave, request, ticket, admitted=False)
        self._shared.tickets.add(ticket)
        self._lines[request.name] = line
        if self._freed_keys is not None and not line.tickets:
            self._freed_keys.add(request.keys[0], line.call_first)
        line.tickets.append(ticket)
        line.plan.turn_us(request.costs, now_us, join=True)
        return True, turn_us - now_us

    def _is_full(self) -> bool:
        """Whether no more callers may wait; logged once."""
        if self._shared.waiting < self._most:
            return False
        if not self._shared.is_full_logged:
            self._shared.is_full_logged = True
            log.warning(FULL, self._most)
        return True

    def _leave(self, request: Request, ticket: Ticket, *, admitted: bool) -> None:
        """Leave the line and call the next. Where a turn came as planned, the plan still holds for the callers behind.

        Called again after a signal handler ended it midway, it does the rest.
        """
        shared = self._shared
        if ticket not in shared.tickets or is_in_step(
            shared.lock, partial(self._leave, request, ticket, admitted=admitted)
        ):
            return
        following: Ticket | None = None
        with shared.lock:
            line = self._lines.get(request.name)
            if line is not None:
                was_first = not line.tickets or line.tickets[0] is ticket
                if ticket in line.tickets:
                    line.tickets.remove(ticket)
                else:
                    was_first = True  # it may have been
                if not admitted or self._clock.now_us() + line.ahead_us < ticket.turn_us - AHEAD_US:
                    line.plan = None
                if not line.tickets:
                    if self._freed_keys is not None:
                        self._freed_keys.remove(request.keys[0], line.call_first)
                    del self._lines[request.name]
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
    """Wait as long as a queue delays an admitted request; the lease of its hold is extended meanwhile."""
    decision = decision_in(answer)
    remaining_us = decision.delay_us if decision.allowed else 0
    while remaining_us:
        sleep_us = remaining_us if holding is None else min(remaining_us, max(1, holding.hold.lease_us // 3))
        yield Sleep(clock.let_pass(sleep_us))
        remaining_us -= sleep_us
        if holding is not None:
            yield Extend(holding.whole_id, holding.hold.lease_us)
