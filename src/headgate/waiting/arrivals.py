"""The lines of requests that several limits may hold up, in the order in which the requests arrived.

A line has a name: the rule and the key. A request waits in one line at a time, that of the limit that holds it
up, ordered by its arrival. It asks when no earlier request is in a line of any of its names; earlier requests in other
lines do not matter. So of all waiting requests the earliest always asks, and no request is held up by one with which
it has no name in common.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.forks import register_for_forks
from headgate.stores.lines import Ticket
from headgate.stores.protocol import Store
from headgate.waiting.plan import Plan
from headgate.waiting.tickets import is_in_step

LineName = tuple[str, ...]
"""(namespace, generation of the policy, rule, key)."""

_TOLERANCE_US = 1_000
"""A request that passes earlier or later than planned by more than this shows that the plan is wrong."""


class Demand(NamedTuple):
    """The demand of a request on the rates of one line: their limits, and a cost for each group of these."""

    limits: tuple[NamedLimit, ...]
    costs: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Arrival(Ticket):
    """A request that waits. `number` is the number of its arrival, `demands` has all lines in which it may wait.

    `at` is the line in which it waits, empty where it waits in none.
    """

    demands: Mapping[LineName, Demand] = field(default_factory=dict)
    at: LineName = ()


@dataclass(slots=True)
class _ArrivalLine:
    """The line of one name, and the plan of the turns of all requests in it, None where it is not known."""

    arrivals: list[Arrival] = field(default_factory=list)
    plan: Plan | None = None
    limits: tuple[NamedLimit, ...] = ()
    ahead_us: int = 0
    """How far the clock of the store, which the plan's times are in, is ahead of the callers' own."""


class ArrivalLines:
    """The lines of one store, by name; safe under threads. True in a boolean context if any request waits."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lines: dict[LineName, _ArrivalLine] = {}
        self._numbers = count(1)
        register_for_forks(self)

    def after_fork(self) -> None:
        """See `headgate.forks`."""
        self._lock = threading.RLock()
        for line in self._lines.values():
            for arrival in line.arrivals:
                arrival.at = ()
        self._lines.clear()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def first_of(self, names: Iterable[LineName]) -> LineName | None:
        """The first of these names that has a line; None where no request waits in a line of these names."""
        return next((name for name in names if name in self._lines), None)

    def needs_plan(self, name: LineName, demand: Demand) -> bool:
        """Whether the turns of a line must be predicted from the store's states before one more request enters it."""
        with self._lock:
            line = self._lines.get(name)
            return line is not None and line.plan is None and _have_same_limits(line, name, demand)

    def plan(self, name: LineName, demand: Demand, states: Sequence[Any], states_us: int, now_us: int) -> None:
        """Predict the turns of a line from states read at `states_us` (store's clock) or `now_us` (callers' clock)."""
        with self._lock:
            line = self._lines.get(name)
            if line is None or not _have_same_limits(line, name, demand):
                return
            plan = Plan(demand.limits, states, states_us)
            for arrival in line.arrivals:
                arrival.turn_us = plan.turn_us(arrival.demands[name].costs, states_us, join=True) or 0
            line.ahead_us, line.limits = states_us - now_us, demand.limits
            line.plan = plan

    def enter(self, arrival: Arrival, at: LineName, remaining_us: int, now_us: int) -> tuple[bool, int | None]:
        """Enter a line at its end; in other lines the request is ordered by this arrival from now on.

        Returns (whether it entered, in how many microseconds its turn comes, None for never). A request whose turn is
        known to come later than `remaining_us` does not enter.
        """
        with self._lock:
            line, wait_us = self._lines.get(at), 0
            if line is not None and line.plan is not None and line.limits == arrival.demands[at].limits:
                costs = arrival.demands[at].costs
                turn_us = line.plan.turn_us(costs, now_us + line.ahead_us, join=False)
                if turn_us is None:
                    return False, None
                wait_us = turn_us - line.ahead_us - now_us
                if wait_us > remaining_us:
                    return False, wait_us
                line.plan.turn_us(costs, now_us + line.ahead_us, join=True)
                arrival.turn_us = turn_us
            elif line is not None:
                line.plan = None
            arrival.number = next(self._numbers)
            self._insert(arrival, at)
        return True, wait_us

    def stands_behind(self, arrival: Arrival) -> bool:
        """Whether an earlier request waits in a line of one of its names; then this one moves to that line."""
        with self._lock:
            for name in arrival.demands:
                line = self._lines.get(name)
                if line is not None and line.arrivals and line.arrivals[0].number < arrival.number:
                    self._move(arrival, name)
                    return True
        return False

    def record_delay(self, arrival: Arrival, to: LineName, ready_us: int) -> bool:
        """Note that the limits of a line hold a request up until `ready_us`, which is 0 if that is not known.

        The request waits in that line from now on, ordered by its arrival. Returns whether it was in that line already.
        """
        with self._lock:
            had_entered = arrival.at == to
            self._move(arrival, to)
            line = self._lines[to]
            if ready_us and abs(ready_us + line.ahead_us - arrival.turn_us) > _TOLERANCE_US:
                line.plan = None  # another request took what the plan counted on, or gave it back
        return had_entered

    def leave(self, arrival: Arrival, now_us: int, *, admitted: bool) -> None:
        """Leave the line and wake the next. Where a turn came as planned, the plan still holds for those behind.

        Called again after a signal handler ended it midway, it does the rest.
        """
        if is_in_step(self._lock, partial(self.leave, arrival, now_us, admitted=admitted)):
            return
        with self._lock:
            line = self._lines.get(arrival.at)
            lateness_us = 0 if line is None else now_us + line.ahead_us - arrival.turn_us
            self._remove(arrival, as_planned=admitted and lateness_us >= -_TOLERANCE_US)

    def call_abandoned(self, names: Iterable[LineName]) -> None:
        """Have requests that are first in these lines leave if they never run again: nothing else would call them."""
        for name in names:
            while (arrival := self._abandoned(name)) is not None:
                arrival.call()

    def _abandoned(self, name: LineName) -> Arrival | None:
        with self._lock:
            line = self._lines.get(name)
            return line.arrivals[0] if line is not None and line.arrivals and line.arrivals[0].is_abandoned else None

    def call(self, names: Iterable[LineName]) -> None:
        """Wake the first of each of these lines."""
        with self._lock:
            for name in names:
                line = self._lines.get(name)
                if line is not None and line.arrivals:
                    line.arrivals[0].call()

    def _move(self, arrival: Arrival, to: LineName) -> None:
        if arrival.at == to:
            return
        self._remove(arrival, as_planned=False)
        if to in self._lines:
            self._lines[to].plan = None
        self._insert(arrival, to)

    def _insert(self, arrival: Arrival, at: LineName) -> None:
        arrival.at = at
        insort(self._lines.setdefault(at, _ArrivalLine()).arrivals, arrival, key=lambda waiting: waiting.number)

    def _remove(self, arrival: Arrival, *, as_planned: bool) -> None:
        line = self._lines.get(arrival.at)
        if line is not None:
            was_first = arrival not in line.arrivals or line.arrivals[0] is arrival  # perhaps, if removed before
            if arrival in line.arrivals:
                line.arrivals.remove(arrival)
            if not as_planned:
                line.plan = None
            if not line.arrivals:
                del self._lines[arrival.at]
            elif was_first:
                line.arrivals[0].call()
        arrival.at = ()


def _have_same_limits(line: _ArrivalLine, name: LineName, demand: Demand) -> bool:
    """Whether all requests in a line are under the same limits, which those of several tiers are not."""
    return bool(demand.limits) and all(arrival.demands[name].limits == demand.limits for arrival in line.arrivals)


def arrival_lines(store: Store, clock: Clock) -> ArrivalLines:
    """The lines of all requests that wait for limits on a store by this clock."""
    with _sharing:
        lines = _by_store.setdefault(store.unguarded, WeakValueDictionary())
        return lines.setdefault(id(clock), ArrivalLines())


_sharing = threading.Lock()
_by_store: WeakKeyDictionary[Store, WeakValueDictionary[int, ArrivalLines]] = WeakKeyDictionary()
