"""The lines of requests that several limits may hold up, in the order in which the requests came.

A line has a name: what is limited, and the key. A request stands in one line at a time, that of what holds it up, at
the place of its arrival. It asks when no request that came before it stands in a line of any of its names; one that
is held up elsewhere is not waited for. So of all that stand the one that came first always asks, and no request is
held up by one with which it has no name in common.
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
from headgate.forks import told_of_forks
from headgate.stores.lines import Ticket
from headgate.stores.protocol import Store
from headgate.waiting.plan import Plan
from headgate.waiting.tickets import is_in_step

LineName = tuple[str, ...]
"""What is limited, and the key that is counted."""

_AHEAD_US = 1_000
"""A request that passes so much sooner than planned, or so much later, shows a plan to be wrong."""


class Wanted(NamedTuple):
    """What a request takes of the rates of one line: their limits, and a cost for each group of these."""

    limits: tuple[NamedLimit, ...]
    costs: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Arrival(Ticket):
    """A request that waits. `number` is that of its arrival, `wants` has all lines in which it may have to stand.

    `at` is the line in which it stands, empty where it stands in none.
    """

    wants: Mapping[LineName, Wanted] = field(default_factory=dict)
    at: LineName = ()


@dataclass(slots=True)
class _Line:
    """The line of one name, and if it is known, the plan of the turns of all that stand in it."""

    arrivals: list[Arrival] = field(default_factory=list)
    plan: Plan | None = None
    limits: tuple[NamedLimit, ...] = ()
    ahead_us: int = 0
    """How far the clock of the store, which the plan is told in, is ahead of the callers' own."""


class ArrivalLines:
    """The lines of one store, by name; safe under threads. It is true where any request stands."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lines: dict[LineName, _Line] = {}
        self._numbers = count(1)
        told_of_forks(self)

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
        """The first of these names that has a line; None where a request with these names is held up by none."""
        return next((name for name in names if name in self._lines), None)

    def lacks_plan(self, name: LineName, wanted: Wanted) -> bool:
        """Whether the turns of a line are to be foretold from the store's states, before one more request enters it."""
        with self._lock:
            line = self._lines.get(name)
            return line is not None and line.plan is None and _agree(line, name, wanted)

    def plan(self, name: LineName, wanted: Wanted, states: Sequence[Any], states_us: int, now_us: int) -> None:
        """Foretell the turns of a line from states as they were at `states_us` of the store's clock, which is now."""
        with self._lock:
            line = self._lines.get(name)
            if line is None or not _agree(line, name, wanted):
                return
            plan = Plan(wanted.limits, states, states_us)
            for arrival in line.arrivals:
                arrival.turn_us = plan.turn_us(arrival.wants[name].costs, states_us, join=True) or 0
            line.ahead_us, line.limits = states_us - now_us, wanted.limits
            line.plan = plan

    def enter(self, arrival: Arrival, at: LineName, left_us: int, now_us: int) -> tuple[bool, int | None]:
        """Stand last in a line, and wherever it has to stand from now on at the place of this arrival.

        (whether it stands, in how many microseconds its turn comes, None for never): a request whose turn is known to
        come later than `left_us` does not.
        """
        with self._lock:
            line, wait_us = self._lines.get(at), 0
            if line is not None and line.plan is not None and line.limits == arrival.wants[at].limits:
                costs = arrival.wants[at].costs
                turn_us = line.plan.turn_us(costs, now_us + line.ahead_us, join=False)
                if turn_us is None:
                    return False, None
                wait_us = turn_us - line.ahead_us - now_us
                if wait_us > left_us:
                    return False, wait_us
                line.plan.turn_us(costs, now_us + line.ahead_us, join=True)
                arrival.turn_us = turn_us
            elif line is not None:
                line.plan = None
            arrival.number = next(self._numbers)
            self._stand(arrival, at)
        return True, wait_us

    def stands_behind(self, arrival: Arrival) -> bool:
        """Whether another request with one of its names came before it; then it stands in that line."""
        with self._lock:
            for name in arrival.wants:
                line = self._lines.get(name)
                if line is not None and line.arrivals and line.arrivals[0].number < arrival.number:
                    self._move(arrival, name)
                    return True
        return False

    def promised(self, arrival: Arrival, to: LineName, ready_us: int) -> bool:
        """Note that the limits of a line hold a request up until `ready_us`, which is 0 if that is not known.

        It stands there from now on, at the place of its arrival; whether it stood there already.
        """
        with self._lock:
            stood = arrival.at == to
            self._move(arrival, to)
            line = self._lines[to]
            if ready_us and abs(ready_us + line.ahead_us - arrival.turn_us) > _AHEAD_US:
                line.plan = None  # another request took what it counted on, or gave it back
        return stood

    def leave(self, arrival: Arrival, now_us: int, *, admitted: bool) -> None:
        """Step out of the line, and wake the next. A plan that came true is still good for those behind.

        Done again after a signal's handler ended it midway, it finishes what was left.
        """
        if is_in_step(self._lock, partial(self.leave, arrival, now_us, admitted=admitted)):
            return
        with self._lock:
            line = self._lines.get(arrival.at)
            late_us = 0 if line is None else now_us + line.ahead_us - arrival.turn_us
            self._step_out(arrival, as_planned=admitted and late_us >= -_AHEAD_US)

    def call_abandoned(self, names: Iterable[LineName]) -> None:
        """Have requests that stand first in these lines leave if they never run again: nothing else would call them."""
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
        self._step_out(arrival, as_planned=False)
        if to in self._lines:
            self._lines[to].plan = None
        self._stand(arrival, to)

    def _stand(self, arrival: Arrival, at: LineName) -> None:
        arrival.at = at
        insort(self._lines.setdefault(at, _Line()).arrivals, arrival, key=lambda each: each.number)

    def _step_out(self, arrival: Arrival, *, as_planned: bool) -> None:
        line = self._lines.get(arrival.at)
        if line is not None:
            was_first = arrival not in line.arrivals or line.arrivals[0] is arrival  # of one that is gone, perhaps
            if arrival in line.arrivals:
                line.arrivals.remove(arrival)
            if not as_planned:
                line.plan = None
            if not line.arrivals:
                del self._lines[arrival.at]
            elif was_first:
                line.arrivals[0].call()
        arrival.at = ()


def _agree(line: _Line, name: LineName, wanted: Wanted) -> bool:
    """Whether all that stand in a line are under the same limits. Of several tiers they are not."""
    return bool(wanted.limits) and all(each.wants[name].limits == wanted.limits for each in line.arrivals)


def arrival_lines(store: Store, clock: Clock) -> ArrivalLines:
    """The lines of all requests that wait for limits on a store, by this clock."""
    with _sharing:
        lines = _by_store.setdefault(store.unguarded, WeakValueDictionary())
        return lines.setdefault(id(clock), ArrivalLines())


_sharing = threading.Lock()
_by_store: WeakKeyDictionary[Store, WeakValueDictionary[int, ArrivalLines]] = WeakKeyDictionary()
