"""The table in Python, for systems without the native core. The rules and answers are the same; it is slower.

Only what no decision shows differs: keys are stored as text, and a full table examines other states.
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

_MAX_SWEPT = 32
"""The states that a full table examines for one new key."""

_SWEPT_PER_KEY = 2
"""The states that are examined for every new key, so that expired ones do not accumulate."""

_BYTES_PER_STATE = 400
"""Roughly the size of one entry in CPython, with its key text and state."""

StateKey = tuple[str, str]
"""Identifies a state: the scope of its limit and the text of its key."""


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
    """There is no room for a check, at least until one of the examined states expires."""

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
        """Begin with a new lock in a child process, which continues with its parent's states."""
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
        """(outcome, degraded) of `apply`; places in flight are requested until `until_us`."""
        if commit:
            for limit, name in zip(limits, names, strict=True):
                self._adopt(name, limit.limit.compiled, now_us)
        steps = [
            Step(limit.limit.compiled, self._state_of(name, limit.limit.compiled, now_us, until_us), cost, limit.shadow)
            for limit, name, cost in zip(limits, names, costs, strict=True)
        ]
        outcome = decide(steps, now_us, commit=commit, max_delay_us=max_delay_us)
        degraded = ""
        if commit and outcome.allowed:
            outcome, degraded = self._make_room(steps, names, outcome, now_us)
            for name, step, state in zip(names, steps, outcome.states, strict=True):
                if state is not None and not ALGORITHMS[step.limit.algorithm].in_flight:
                    self._store(name, step.limit, state)
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
        """Forget these states; return whether any of them was different from no state."""
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

    def _state_of(self, name: StateKey, limit: CompiledLimit, now_us: int, until_us: int | None) -> Any:
        """The state that a decision is based on: the stored one."""
        return self._stored(name, limit, now_us)

    def _note_refund(self, name: StateKey, limit: CompiledLimit, before: State, after: State | None) -> None:
        """Called after part of a state was given back."""

    def _stored(self, name: StateKey, limit: CompiledLimit, now_us: int) -> State | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.limit is limit or entry.limit == limit:
            return entry.state
        return convert(limit, entry.state, now_us, entry.limit)

    def _adopt(self, name: StateKey, limit: CompiledLimit, now_us: int) -> None:
        """Convert a state that another version of this limit wrote into the numbers of this one, permanently.

        Later waits are computed in these. A state from a clock that was once far ahead is moved to the present.
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
            self._drop(name)  # nothing of it counts any more, also permanently

    def _store(self, name: StateKey, limit: CompiledLimit, state: State) -> None:
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
        """Find room for the new states of an admitted decision, or let `on_full` decide."""
        states = list(outcome.states)
        degraded = ""
        admitted: list[StateKey] = []
        for index, (step, name) in enumerate(zip(steps, names, strict=True)):
            if states[index] is None or ALGORITHMS[step.limit.algorithm].in_flight:
                continue
            full = self._reserve(step, name, names, admitted, now_us)
            if full is None:
                admitted.append(name)
            elif step.shadow or self._on_full == "pass":
                self._counts["passed_full"] += 1
                states[index] = None
                degraded = degraded if step.shadow else "open"
            else:
                self._counts["refused_full"] += 1
                return self._refusal(steps, index, full, now_us), "closed"
        return outcome._replace(states=tuple(states)), degraded

    def _refusal(self, steps: Sequence[Step], index: int, full: _Full, now_us: int) -> Outcome:
        """The decision where the store has no room for one check: nothing is charged."""
        untouched = decide([step._replace(cost=0) for step in steps], now_us, commit=False)
        waits = decide(steps, now_us, commit=False)
        readings = [
            reading._replace(allowed=wait.allowed, retry_after_us=wait.retry_after_us)
            for reading, wait in zip(untouched.readings, waits.readings, strict=True)
        ]
        readings[index] = readings[index]._replace(allowed=False, retry_after_us=max(1, full.soonest_us))
        return Outcome(False, tuple(readings), (None,) * len(steps))

    def _reserve(
        self, step: Step, name: StateKey, own_names: Sequence[StateKey], admitted: Sequence[StateKey], now_us: int
    ) -> _Full | None:
        """Make room for one more state, or one more log entry, beside the `admitted` ones; None if there is room.

        An admitted state that has expired may be dropped meanwhile, and needs room again.
        """
        if name not in self._entries:
            self._sweep(_SWEPT_PER_KEY, now_us, own_names)
            while len(self._entries) + sum(other not in self._entries for other in admitted) >= self._max_keys:
                full = self._free_one(now_us, own_names)
                if full is not None:
                    return full
        if ALGORITHMS[step.limit.algorithm].is_log and self._log_entries >= self._max_log_entries:
            soonest_us, _ = self._sweep(_MAX_SWEPT, now_us, own_names)
            if self._log_entries >= self._max_log_entries:
                return _Full(soonest_us)
        return None

    def _free_one(self, now_us: int, own_names: Sequence[StateKey]) -> _Full | None:
        before = len(self._entries)
        soonest_us, victim = self._sweep(_MAX_SWEPT, now_us, own_names)
        if len(self._entries) < before:
            return None
        if victim is None or self._on_full != "forget":
            return _Full(soonest_us)
        self._drop(victim)
        self._counts["evicted"] += 1
        return None

    def _sweep(self, max_states: int, now_us: int, own_names: Sequence[StateKey]) -> tuple[int, StateKey | None]:
        """Examine up to `max_states` states, from where the last sweep ended, and drop expired ones.

        Returns how soon the first of the others expires, and the one that resets soonest among those not blocked.
        """
        soonest_us = 0
        victim: tuple[int, StateKey] | None = None
        for _ in range(min(max_states, len(self._entries))):
            name, entry = next(iter(self._entries.items()))
            remaining, reset_after_us = measure_us(entry.limit, entry.state, now_us)
            if reset_after_us == 0:
                self._drop(name)
                self._counts["expired"] += 1
                continue
            self._entries.move_to_end(name)
            soonest_us = min(soonest_us or reset_after_us, reset_after_us)
            blocked = entry.refused or remaining <= 0 or name in own_names
            if not blocked and (victim is None or reset_after_us < victim[0]):
                victim = (reset_after_us, name)
        return max(1, soonest_us), victim[1] if victim else None


def decision_of(limits: Sequence[NamedLimit], costs: Sequence[int], outcome: Outcome, degraded: str) -> Decision:
    """The decision with this outcome."""
    binding = binding_of(limits, outcome.readings, costs, allowed=outcome.allowed)
    return Decision(tuple(limits), outcome.readings, allowed=outcome.allowed, binding=binding, degraded=degraded)


class PythonDecisions(list[Decision]):
    """The decisions for many requests at once, in the order of the keys."""

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
        units = cost if type(cost) is int else single_cost(self._limits, cost)
        operation = Operation((key,) * self._groups, (units,) * self._groups)
        return self.decide(operation) if id is None else self.reserve(operation, Hold(id, 0, at_once=True)).decision

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        units = cost if type(cost) is int else single_cost(self._limits, cost)
        return self.decide(Operation((key,) * self._groups, (units,) * self._groups, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> PythonDecisions:
        texts = [encode_key(key) for key in keys]
        all_costs = paired_costs(len(texts), costs)
        now_us = check_now(self._now_us())
        return PythonDecisions(
            self._apply((text,) * self._groups, (cost,) * self._groups, now_us)
            for text, cost in zip(texts, all_costs, strict=True)
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
        texts, units, ago_us = read_receipt(self._limits, receipt, ago_us)
        now_us = check_now(self._now_us())
        if not receipt.degraded:  # else nothing, or not everything, was charged here
            self._table.give_back(self._limits, self._names(texts), units, now_us, ago_us)

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
