"""The Python table with holds: charges that are settled later. It gives the same answers as the native one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.algorithms.leases import Lease, LeaseRequest
from headgate.algorithms.table import ALGORITHMS, State
from headgate.algorithms.transition import Outcome, Part, Step, fits, mark, measure_us, settle
from headgate.decision import Decision, NamedLimit, Reading
from headgate.errors import ArgumentError, brief_number
from headgate.holding import Extension, Settlement, Standing
from headgate.stores.python_holds import HeldLimit, HoldRecord, HoldRecords
from headgate.stores.python_table import PythonTable, StateKey, decision_of
from headgate.stores.repeated_holds import check_same, readings_again
from headgate.units import CompiledLimit

_BYTES_PER_HOLD = 1_000
"""Roughly the size of one hold in CPython."""


class HoldRequest(NamedTuple):
    """A requested hold, its times in microseconds; `digest` is the 16 bytes of its id."""

    digest: bytes
    lease_us: int
    remember_us: int
    at_once: bool


class HoldingTable(PythonTable):
    """A `PythonTable` with at most `max_holds` holds; each extension that holds more counts as one."""

    def __init__(self, *, max_keys: int, max_log_entries: int, max_holds: int, on_full: str) -> None:
        super().__init__(max_keys=max_keys, max_log_entries=max_log_entries, on_full=on_full)
        self._holds = HoldRecords(max_holds)

    def stats(self) -> dict[str, int]:
        stats = super().stats()
        with self._lock.free:
            stats["bytes"] += len(self._holds) * _BYTES_PER_HOLD
            return {**stats, "holds": len(self._holds)}

    def clear(self) -> None:
        super().clear()
        with self._lock.free:
            self._holds.clear()

    def reserve(
        self,
        limits: Sequence[NamedLimit],
        names: Sequence[StateKey],
        costs: tuple[int, ...],
        request: HoldRequest,
        now_us: int,
        max_delay_us: int | None,
    ) -> tuple[Decision, bool]:
        """(the decision, whether the request is repeated) for a hold; `costs` are those of the groups."""
        costs_of_limits = [costs[limit.group] for limit in limits]
        with self._lock.free:
            former = self._holds.find(request.digest, now_us)
            if former is not None:
                check_same(former, limits, names, costs, at_once=request.at_once)
                first = Outcome(True, readings_again(former, names), ())
                return decision_of(limits, costs_of_limits, first, former.degraded), True
            full_us = self._holds.make_room(now_us, forget_settled=self._on_full == "forget")
            if full_us is not None:
                return self._refuse_hold(limits, names, costs_of_limits, now_us, full_us), False
            until_us = now_us + request.lease_us
            outcome, degraded = self._decide(
                limits, names, costs_of_limits, now_us, commit=True, max_delay_us=max_delay_us, until_us=until_us
            )
            decision = decision_of(limits, costs_of_limits, outcome, degraded)
            if outcome.allowed:
                record = HoldRecord(
                    self._holds.next_number(),
                    request.digest,
                    costs,
                    costs,
                    [
                        HeldLimit(limit, name, self._holds.key_or_new(name))
                        for limit, name in zip(limits, names, strict=True)
                    ],
                    outcome.readings,
                    degraded,
                    request.at_once,
                    until_us,
                    request.remember_us,
                    until_us + request.remember_us,
                    costs if request.at_once else None,
                )
                self._charge_parts(record, limits, costs_of_limits, outcome, now_us)
                self._holds.add(record)
        return decision, False

    def commit(
        self, limits: Sequence[NamedLimit], digest: bytes, actuals: Sequence[int | None], now_us: int
    ) -> Settlement:
        """Settle a hold; the amounts are checked already, one for each of its groups or one for all."""
        with self._lock.free:
            record = self._holds.find(digest, now_us)
            if record is None:
                return Settlement("unknown", None, ())
            outcome: Any = "already settled"
            if record.actuals is None:
                actuals = _for_groups(actuals, len(record.held))
                settled = tuple(
                    [held if actual is None else actual for held, actual in zip(record.held, actuals, strict=True)]
                )
                self._settle(record, settled, now_us)
                outcome = "settled"
            return Settlement(outcome, record.actuals, self._standings(limits, record, now_us))

    def extend(
        self, limits: Sequence[NamedLimit], digest: bytes, lease_us: int, more: Sequence[int], now_us: int
    ) -> Extension:
        """Extend a hold; the amounts are checked already, one for each of its groups or one for all."""
        with self._lock.free:
            record = self._holds.find(digest, now_us)
            if record is None:
                return Extension("unknown", (), None)
            if record.actuals is not None:
                return Extension("already settled", self._standings(limits, record, now_us), None)
            if record.until_us <= now_us:
                return Extension("lapsed", self._standings(limits, record, now_us), None)
            amounts = _for_groups(more, len(record.held))
            scopes = [limit.definition.scope for limit in record.limits]
            current = {limit.scope: limit for limit in limits}
            held_limits = [limit.definition for limit in record.limits]
            if all(scope in current for scope in scopes):
                held_limits = [replace(current[limit.scope], group=limit.group) for limit in held_limits]
            decision = self._extend(record, held_limits, now_us + lease_us, amounts, now_us)
            outcome: Any = "extended" if decision.allowed else "refused"
            answer = None
            if current.keys() == set(scopes):
                places = [scopes.index(limit.scope) for limit in limits]
                costs = [amounts[held_limits[place].group] if record.limits[place].parts else 0 for place in places]
                readings = tuple([Reading(*decision.readings[place]) for place in places])
                answer = decision_of(limits, costs, Outcome(decision.allowed, readings, ()), decision.degraded)
            return Extension(outcome, self._standings(limits, record, now_us), answer)

    def reset(self, names: Sequence[StateKey], now_us: int) -> bool:  # type: ignore[override]
        found = super().reset(names, now_us)
        with self._lock.free:
            return self._holds.forget_keys(names, now_us) or found

    def _state_of(self, name: StateKey, limit: CompiledLimit, now_us: int, until_us: int | None) -> Any:
        if not ALGORITHMS[limit.algorithm].in_flight:
            return self._stored(name, limit, now_us)
        key = self._holds.key(name)
        return LeaseRequest(None if key is None else key.leases, until_us)

    def _note_refund(self, name: StateKey, limit: CompiledLimit, before: State, after: State | None) -> None:
        key = self._holds.key(name)
        if key is not None and limit.refill:
            key.refunds += (limit.full if after is None else after[0]) - before[0]

    def _refuse_hold(
        self, limits: Sequence[NamedLimit], names: Sequence[StateKey], costs: Sequence[int], now_us: int, full_us: int
    ) -> Decision:
        """The decision where no more holds can be remembered: that of `on_full`, and nothing is charged."""
        outcome, _ = self._decide(limits, names, [0] * len(costs), now_us, commit=False, max_delay_us=None)
        passes = self._on_full == "pass"
        self._counts["passed_full" if passes else "refused_full"] += 1
        readings = tuple(
            reading._replace(allowed=passes or limit.shadow, retry_after_us=0 if passes or limit.shadow else full_us)
            for limit, reading in zip(limits, outcome.readings, strict=True)
        )
        allowed = all(reading.allowed for reading in readings)
        return decision_of(limits, costs, Outcome(allowed, readings, ()), "open" if allowed else "closed")

    def _charge_parts(
        self, record: HoldRecord, limits: Sequence[NamedLimit], costs: Sequence[int], outcome: Outcome, now_us: int
    ) -> None:
        """Record what was just charged, and occupy its places in flight until the end of the lease."""
        extends = bool([limit for limit in record.limits if limit.parts])
        for number, limit in enumerate(record.limits):
            compiled, cost = limits[number].limit.compiled, costs[number]
            uncharged = not outcome.readings[number].allowed or (cost and outcome.states[number] is None)
            if uncharged or (extends and not cost):  # nothing is added for a limit that is not charged
                continue
            marked = mark(compiled, outcome.standing[number], now_us)
            limit.parts = (*limit.parts, Part(compiled, cost, marked, limit.key.refunds))
            if ALGORITHMS[compiled.algorithm].in_flight:
                self._lease(record, limit, now_us)

    def _lease(self, record: HoldRecord, limit: HeldLimit, now_us: int) -> None:
        """Occupy the limit's places until the end of the hold's lease."""
        leases = limit.key.leases
        if limit.lease is not None:
            leases.take(limit.lease)
        leases.drop_over(now_us)
        limit.lease = Lease(record.until_us, record.number, limit.cost) if limit.cost else None
        if limit.lease is not None:
            leases.add(limit.lease)

    def _extend(
        self, record: HoldRecord, limits: Sequence[NamedLimit], until_us: int, more: Sequence[int], now_us: int
    ) -> Decision:
        names = [limit.name for limit in record.limits]
        costs = [more[limit.group] if held.parts else 0 for limit, held in zip(limits, record.limits, strict=True)]
        until_us = max(until_us, record.until_us)
        if any(costs):
            full_us = self._holds.make_room(now_us, forget_settled=self._on_full == "forget")
            if full_us is not None:
                return self._refuse_hold(limits, names, costs, now_us, full_us)
        outcome, degraded = self._decide(
            limits, names, costs, now_us, commit=True, max_delay_us=None, until_us=until_us
        )
        if outcome.allowed:
            record.until_us = until_us
            record.forget_us = until_us + record.remember_us
            record.held = tuple([held + amount for held, amount in zip(record.held, more, strict=True)])
            if any(costs):
                self._holds.grow(record)
                self._charge_parts(record, limits, costs, outcome, now_us)
            for limit in record.limits:
                if limit.lease is not None:
                    self._lease(record, limit, now_us)
        return decision_of(limits, costs, outcome, degraded)

    def _settle(self, record: HoldRecord, actuals: tuple[int, ...], now_us: int) -> None:
        """Settle a hold under all its limits, or under none where one of them cannot have so much debt."""
        changes = []
        for limit in record.limits:
            if limit.parts and not ALGORITHMS[limit.definition.limit.algorithm].in_flight:
                changes.append((limit, *self._state_after(limit, actuals[limit.definition.group], now_us)))
        for limit, numbers, state, refunds in changes:
            limit.key.refunds = refunds
            if limit.name not in self._entries:
                if measure_us(numbers, state, now_us)[1] > 0:
                    self._store_debt(limit.name, numbers, state, now_us)
            elif state:
                self._store(limit.name, numbers, state)
            else:
                self._drop(limit.name)  # a log without entries
        for limit in record.limits:
            limit.parts = ()  # they are not needed any more, so the hold does not keep them
            if limit.lease is not None:
                limit.key.leases.take(limit.lease)
                limit.lease = None
        record.actuals = actuals
        record.forget_us = max(record.until_us, now_us) + record.remember_us
        self._holds.note_settled(record)

    def _state_after(self, held: HeldLimit, actual: int, now_us: int) -> tuple[CompiledLimit, State, int]:
        """(its numbers, the state, the refunds) of a limit after a hold of it is settled.

        A state stays in its numbers. Unused units are given back only where those count alike. A state in other
        numbers that has ended is dropped first, so that the result is the same whether or not it was dropped before.
        """
        numbers = held.parts[-1].limit
        entry = self._entries.get(held.name)
        other = None if entry is None or entry.limit is numbers or entry.limit == numbers else entry
        if other is not None and not measure_us(other.limit, other.state, now_us)[1]:
            self._drop(held.name)
            entry = None
        state = None
        if entry is not None:
            numbers, state = entry.limit, entry.state
        change = actual - held.cost
        standing, refunds = settle(numbers, state, now_us, held.parts, change, held.key.refunds)
        if change > 0 and not fits(numbers, standing):
            raise ArgumentError(
                f"{brief_number(actual)} for {held.definition.name!r} is so large a debt that its numbers pass 2**52"
            )
        return numbers, standing, refunds

    def _store_debt(self, name: StateKey, limit: CompiledLimit, state: State, now_us: int) -> None:
        """Store the debt of a key that was dropped: it needs room like a new key."""
        if self._reserve(Step(limit, None, 0), name, (), (), now_us) is not None:
            self._counts["passed_full"] += 1
        else:
            self._store(name, limit, state)

    def _standings(self, limits: Sequence[NamedLimit], record: HoldRecord, now_us: int) -> tuple[Standing, ...]:
        """The current standings of those of these limits that are limits of the hold."""
        held = {limit.definition.scope: limit.name for limit in record.limits}
        return tuple(
            [
                Standing(limit, *self._standing(limit.limit.compiled, held[limit.scope], now_us))
                for limit in limits
                if limit.scope in held
            ]
        )

    def _standing(self, limit: CompiledLimit, name: StateKey, now_us: int) -> tuple[int, int]:
        return measure_us(limit, self._state_of(name, limit, now_us, None), now_us)


def _for_groups(amounts: Sequence[Any], groups: int) -> Sequence[Any]:
    """An amount for each group, from one for each or one for all."""
    if len(amounts) == 1:
        return tuple(amounts) * groups
    if len(amounts) != groups:
        raise ArgumentError(f"this hold has {groups} amounts, not {len(amounts)}")
    return amounts
