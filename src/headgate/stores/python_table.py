"""The table in Python: for where the native core is not at hand. Same rules, same answers, slower.

What differs is only what no decision shows: keys are kept as text, and which 32
states a full table looks at.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.algorithms.table import ALGORITHMS, State
from headgate.algorithms.transition import Outcome, Step, convert, decide, give_back, measure_us, to_present
from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.costs import Cost, single_cost
from headgate.decision import Decision, NamedLimit, Reading, binding_of
from headgate.forks import register_for_forks
from headgate.holding import Hold
from headgate.keys import Key, check_cost, check_now, encode_key
from headgate.operation import Operation, Receipt
from headgate.stores.protocol import BoundLimits, paired_costs, read_receipt
from headgate.stores.python_lock import TableLock
from headgate.units import CompiledLimit

_SWEEP = 32
"""States that a full table looks at for one new key."""

_TIDY = 2
"""States that every new key looks at, so that what has expired does not pile up."""

_BYTES_PER_STATE = 400
"""About what one entry takes in CPython, its key text and state included."""

StateKey = tuple[str, str]
"""What a state is found by: the scope of its limit and the text of its key."""


@dataclass(slots=True)
class _Entry:
    limit: CompiledLimit
    state: State
    refused: bool = False

    @property
    def log_entries(self) -> int:
        return len(self.state) if ALGORITHMS[self.limit.algorithm].is_log else 0


@dataclass(frozen=True, slots=True)
class _Full:
    """There is no room for a check; until some state that was looked at has expired."""

    soonest_us: int


class PythonTable:
    """A bounded table of states, safe under threads."""

    def __init__(self, *, max_keys: int, max_log_entries: int, on_full: str) -> None:
        self._max_keys = max_keys
        self._max_log_entries = max_log_entries
        self._on_full = on_full
        self._entries: OrderedDict[StateKey, _Entry] = OrderedDict()
        self._log_entries = 0
        self._lock = TableLock()
        self._counts = {"expired": 0, "evicted": 0, "refused_full": 0, "passed_full": 0}
        register_for_forks(self)

    def after_fork(self) -> None:
        """Begin with a new lock in a child process, which goes on with its parent's states."""
        self._lock = TableLock()

    def stats(self) -> dict[str, int]:
        with self._lock.free:
            size = sys.getsizeof(self._entries) + len(self._entries) * _BYTES_PER_STATE + self._log_entries * 100
            return {"keys": len(self._entries), "bytes": size, **self._counts}

    def clear(self) -> None:
        with self._lock.free:
            self._entries.clear()
            self._log_entries = 0

    def apply(
        self,
        limits: Sequence[NamedLimit],
        names: Sequence[StateKey],
        costs: Sequence[int],
        now_us: int,
        *,
        commit: bool,
        max_delay_us: int | None,
    ) -> Decision:
        """Decide the checks of one request at one instant: all enforced ones are charged, or none."""
        with self._lock.free:
            outcome, degraded = self._decide(limits, names, costs, now_us, commit=commit, max_delay_us=max_delay_us)
        return decision_of(limits, costs, outcome, degraded)

    def _decide(
        self,
        limits: Sequence[NamedLimit],
        names: Sequence[StateKey],
        costs: Sequence[int],
        now_us: int,
        *,
        commit: bool,
        max_delay_us: int | None,
        until_us: int | None = None,
    ) -> tuple[Outcome, str]:
        """(what is decided, what decided in place of the limits) of `apply`; places are asked for until `until_us`."""
        if commit:
            for limit, name in zip(limits, names, strict=True):
                self._adopt(name, limit.limit.compiled, now_us)
        steps = [
            Step(limit.limit.compiled, self._asked(name, limit.limit.compiled, now_us, until_us), cost, limit.shadow)
            for limit, name, cost in zip(limits, names, costs, strict=True)
        ]
        outcome = decide(steps, now_us, commit=commit, max_delay_us=max_delay_us)
        degraded = ""
        if commit and outcome.allowed:
            outcome, degraded = self._make_room(steps, names, outcome, now_us)
            for name, step, state in zip(names, steps, outcome.states, strict=True):
                if state is not None and not ALGORITHMS[step.limit.algorithm].in_flight:
                    self._keep(name, step.limit, state)
        elif commit:
            self._mark_refused(names, outcome.readings)
        return outcome, degraded

    def give_back(
        self, limits: Sequence[NamedLimit], names: Sequence[StateKey], costs: Sequence[int], now_us: int, ago_us: int
    ) -> None:
        """Give back what one decision charged up to `ago_us` ago, as far as it still counts."""
        earliest_us = max(0, now_us - ago_us)
        with self._lock.free:
            for limit, name, cost in zip(limits, names, costs, strict=True):
                entry = self._entries.get(name)
                if entry is None:
                    continue
                state = give_back(limit.limit.compiled, entry.state, now_us, cost, earliest_us, entry.limit)
                self._note_refund(name, entry.limit, entry.state, state)
                if state is None:
                    self._drop(name)
                else:
                    self._log_entries -= entry.log_entries
                    entry.state = state
                    self._log_entries += entry.log_entries

    def reset(self, names: Iterable[StateKey], now_us: int) -> bool:
        """Forget these states; whether one was anything but the same as none."""
        with self._lock.free:
            live = False
            for name in names:
                entry = self._entries.get(name)
                if entry is not None:
                    live |= measure_us(entry.limit, entry.state, now_us)[1] > 0
                    self._drop(name)
            return live

    def read(self, name: StateKey, limit: CompiledLimit, now_us: int) -> State | None:
        with self._lock.free:
            return self._stored(name, limit, now_us)

    def _asked(self, name: StateKey, limit: CompiledLimit, now_us: int, until_us: int | None) -> Any:
        """What is decided on: the state that is stored."""
        return self._stored(name, limit, now_us)

    def _note_refund(self, name: StateKey, limit: CompiledLimit, before: State, after: State | None) -> None:
        """Something of a state was given back."""

    def _stored(self, name: StateKey, limit: CompiledLimit, now_us: int) -> State | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.limit is limit or entry.limit == limit:
            return entry.state
        return convert(limit, entry.state, now_us, entry.limit)

    def _adopt(self, name: StateKey, limit: CompiledLimit, now_us: int) -> None:
        """Bring what another version of this limit wrote into the numbers of this one, for good.

        A wait that is told from here on is counted in them. What a clock once far ahead wrote comes to the present.
        """
        entry = self._entries.get(name)
        if entry is None:
            return
        if entry.limit is limit or entry.limit == limit:
            present = to_present(limit, entry.state, now_us)
            if present is not None:
                self._log_entries -= entry.log_entries
                entry.state = present
                self._log_entries += entry.log_entries
            return
        state = self._stored(name, limit, now_us)
        if state is not None:
            self._log_entries -= entry.log_entries
            entry.limit, entry.state = limit, to_present(limit, state, now_us) or state
            self._log_entries += entry.log_entries
        else:
            self._drop(name)  # nothing of it counts any more, for good too

    def _keep(self, name: StateKey, limit: CompiledLimit, state: State) -> None:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry(limit, state)
        else:
            self._log_entries -= entry.log_entries
            entry.limit, entry.state, entry.refused = limit, state, False
        self._log_entries += entry.log_entries

    def _drop(self, name: StateKey) -> None:
        self._log_entries -= self._entries.pop(name).log_entries

    def _mark_refused(self, names: Sequence[StateKey], readings: Sequence[Reading]) -> None:
        for name, reading in zip(names, readings, strict=True):
            entry = self._entries.get(name)
            if entry is not None and reading.retry_after_us:
                entry.refused = True

    def _make_room(
        self, steps: Sequence[Step], names: Sequence[StateKey], outcome: Outcome, now_us: int
    ) -> tuple[Outcome, str]:
        """Find room for the new states of an admitted decision, or let the written choice decide."""
        states = list(outcome.states)
        degraded = ""
        new = 0
        for index, (step, name) in enumerate(zip(steps, names, strict=True)):
            if states[index] is None or ALGORITHMS[step.limit.algorithm].in_flight:
                continue
            full = self._reserve(step, name, names, new, now_us)
            if full is None:
                new += name not in self._entries
            elif step.shadow or self._on_full == "pass":
                self._counts["passed_full"] += 1
                states[index] = None
                degraded = degraded if step.shadow else "open"
            else:
                self._counts["refused_full"] += 1
                return self._refusal(steps, index, full, now_us), "closed"
        return outcome._replace(states=tuple(states)), degraded

    def _refusal(self, steps: Sequence[Step], index: int, full: _Full, now_us: int) -> Outcome:
        """The decision as it is when the store has no room for one check: nothing is charged."""
        untouched = decide([step._replace(cost=0) for step in steps], now_us, commit=False)
        waits = decide(steps, now_us, commit=False)
        readings = [
            reading._replace(allowed=wait.allowed, retry_after_us=wait.retry_after_us)
            for reading, wait in zip(untouched.readings, waits.readings, strict=True)
        ]
        readings[index] = readings[index]._replace(allowed=False, retry_after_us=max(1, full.soonest_us))
        return Outcome(False, tuple(readings), (None,) * len(steps))

    def _reserve(self, step: Step, name: StateKey, ours: Sequence[StateKey], new: int, now_us: int) -> _Full | None:
        """Make sure that one more state, or one more log entry, has room; None if it has."""
        if name not in self._entries:
            self._sweep(_TIDY, now_us, ours)
            if len(self._entries) + new >= self._max_keys:
                full = self._free_one(now_us, ours)
                if full is not None:
                    return full
        if ALGORITHMS[step.limit.algorithm].is_log and self._log_entries >= self._max_log_entries:
            soonest_us, _ = self._sweep(_SWEEP, now_us, ours)
            if self._log_entries >= self._max_log_entries:
                return _Full(soonest_us)
        return None

    def _free_one(self, now_us: int, ours: Sequence[StateKey]) -> _Full | None:
        before = len(self._entries)
        soonest_us, victim = self._sweep(_SWEEP, now_us, ours)
        if len(self._entries) < before:
            return None
        if victim is None or self._on_full != "forget":
            return _Full(soonest_us)
        self._drop(victim)
        self._counts["evicted"] += 1
        return None

    def _sweep(self, most: int, now_us: int, ours: Sequence[StateKey]) -> tuple[int, StateKey | None]:
        """Look at up to `most` states, going on where the last sweep ended, and drop what has expired.

        Returns how soon one of the others will have, and the one that resets soonest among those not blocked.
        """
        soonest_us = 0
        victim: tuple[int, StateKey] | None = None
        for _ in range(min(most, len(self._entries))):
            name, entry = next(iter(self._entries.items()))
            remaining, reset_after_us = measure_us(entry.limit, entry.state, now_us)
            if reset_after_us == 0:
                self._drop(name)
                self._counts["expired"] += 1
                continue
            self._entries.move_to_end(name)
            soonest_us = min(soonest_us or reset_after_us, reset_after_us)
            blocked = entry.refused or remaining <= 0 or name in ours
            if not blocked and (victim is None or reset_after_us < victim[0]):
                victim = (reset_after_us, name)
        return max(1, soonest_us), victim[1] if victim else None


def decision_of(limits: Sequence[NamedLimit], costs: Sequence[int], outcome: Outcome, degraded: str) -> Decision:
    """What is answered where this was decided."""
    binding = binding_of(limits, outcome.readings, costs, allowed=outcome.allowed)
    return Decision(tuple(limits), outcome.readings, allowed=outcome.allowed, binding=binding, degraded=degraded)


class PythonDecisions(list[Decision]):
    """The answers for many requests at once, in the order of the keys."""

    @property
    def allowed(self) -> list[bool]:
        return [decision.allowed for decision in self]

    @property
    def allowed_count(self) -> int:
        return sum(decision.allowed for decision in self)


class PythonBoundLimits(BoundLimits):
    """Limits bound to a Python table and a clock; see `headgate.stores.protocol.BoundLimits`."""

    def __init__(self, table: PythonTable, limits: tuple[NamedLimit, ...], clock: Clock | None = None) -> None:
        self._table = table
        self._limits = limits
        self._groups = max((limit.group + 1 for limit in limits), default=0)
        self._now_us: Callable[[], int] = (clock or SYSTEM_CLOCK).now_us

    def hit(self, key: Key, cost: Cost = 1, *, id: str | bytes | None = None) -> Decision:
        own = cost if type(cost) is int else single_cost(self._limits, cost)
        operation = Operation((key,) * self._groups, (own,) * self._groups)
        return self.decide(operation) if id is None else self.reserve(operation, Hold(id, 0, at_once=True)).decision

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        own = cost if type(cost) is int else single_cost(self._limits, cost)
        return self.decide(Operation((key,) * self._groups, (own,) * self._groups, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        texts = [encode_key(key) for key in keys]
        each = paired_costs(len(texts), costs)
        now_us = check_now(self._now_us())
        return PythonDecisions(
            self._apply((text,) * self._groups, (cost,) * self._groups, now_us)
            for text, cost in zip(texts, each, strict=True)
        )

    def decide(self, operation: Operation, /) -> Decision:
        keys, costs, now_us = operation.keys, operation.costs, operation.now_us
        if len(keys) != self._groups or len(costs) != self._groups:
            raise ValueError(f"these limits take {self._groups} keys and costs")
        texts = tuple(encode_key(key) for key in keys)
        checked = tuple(check_cost(cost) for cost in costs)
        moment = check_now(self._now_us() if now_us is None else now_us)
        return self._apply(texts, checked, moment, commit=operation.commit, max_delay_us=operation.max_delay_us)

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        texts, each, ago_us = read_receipt(self._limits, receipt, ago_us)
        now_us = check_now(self._now_us())
        if not receipt.degraded:  # else nothing was charged here, or not all
            self._table.give_back(self._limits, self._names(texts), each, now_us, ago_us)

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        return self._table.reset(self._names([encode_key(key) for key in keys]), check_now(self._now_us()))

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        moment = check_now(self._now_us() if now_us is None else now_us)
        names = self._names([encode_key(key) for key in keys])
        return [
            self._table.read(name, limit.limit.compiled, moment)
            for name, limit in zip(names, self._limits, strict=True)
        ]

    def _apply(
        self,
        texts: Sequence[str],
        costs: Sequence[int],
        now_us: int,
        *,
        commit: bool = True,
        max_delay_us: int | None = None,
    ) -> Decision:
        return self._table.apply(
            self._limits,
            self._names(texts),
            [costs[limit.group] for limit in self._limits],
            now_us,
            commit=commit,
            max_delay_us=max_delay_us,
        )

    def _names(self, texts: Sequence[str]) -> list[StateKey]:
        return [(limit.scope, texts[limit.group]) for limit in self._limits]
