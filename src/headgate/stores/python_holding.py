"""The Python table that holds: what is charged now and settled later. The same answers as the native one's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.algorithms.leases import AskedLeases, Lease
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
"""About what one hold takes in CPython."""


class Asked(NamedTuple):
    """A hold that is asked for, its times in microseconds; `digest` is the 16 bytes of its id."""

    digest: bytes
    lease_us: int
    remember_us: int
    at_once: bool


class HoldingTable(PythonTable):
    """A `PythonTable` that holds; at most `max_holds`, each extension that holds more counted as one."""

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
        asked: Asked,
        now_us: int,
        max_delay_us: int | None,
    ) -> tuple[Decision, bool]:
        """(the decision, whether it was made before) of a hold; `costs` are those of the groups."""
        each = [costs[limit.group] for limit in limits]
        with self._lock.free:
            former = self._holds.find(asked.digest, now_us)
            if former is not None:
                check_same(former, limits, names, costs, at_once=asked.at_once)
                first = Outcome(True, readings_again(former, names), ())
                return decision_of(limits, each, first, former.degraded), True
            full_us = self._holds.make_room(now_us, forget_settled=self._on_full == "forget")
            if full_us is not None:
                return self._refuse_hold(limits, names, each, now_us, full_us), False
            until_us = now_us + asked.lease_us
            outcome, degraded = self._decide(
                limits, names, each, now_us, commit=True, max_delay_us=max_delay_us, until_us=until_us
            )
            decision = decision_of(limits, each, outcome, degraded)
            if outcome.allowed:
                record = HoldRecord(
                    self._holds.next_number(),
                    asked.digest,
                    costs,
                    costs,
                    [
                        HeldLimit(limit, name, self._holds.key_or_new(name))
                        for limit, name in zip(limits, names, strict=True)
                    ],
                    outcome.readings,
                    degraded,
                    asked.at_once,
                    until_us,
                    asked.remember_us,
                    until_us + asked.remember_us,
                    costs if asked.at_once else None,
                )
                self._charge_parts(record, limits, each, outcome, now_us)
                self._holds.add(record)
        return decision, False

    def commit(
        self, asked: Sequence[NamedLimit], digest: bytes, actuals: Sequence[int | None], now_us: int
    ) -> Settlement:
        """Settle a hold; the amounts are checked already, one for each group of it or one for all."""
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
            return Settlement(outcome, record.actuals, self._after(asked, record, now_us))

    def extend(
        self, asked: Sequence[NamedLimit], digest: bytes, lease_us: int, more: Sequence[int], now_us: int
    ) -> Extension:
        """Extend a hold; the amounts are checked already, one for each group of it or one for all."""
        with self._lock.free:
            record = self._holds.find(digest, now_us)
            if record is None:
                return Extension("unknown", (), None)
            if record.actuals is not None:
                return Extension("already settled", self._after(asked, record, now_us), None)
            if record.until_us <= now_us:
                return Extension("lapsed", self._after(asked, record, now_us), None)
            amounts = _for_groups(more, len(record.held))
            own = [limit.definition.scope for limit in record.limits]
            now = {limit.scope: limit for limit in asked}
            limits = [limit.definition for limit in record.limits]
            if all(scope in now for scope in own):
                limits = [replace(now[limit.scope], group=limit.group) for limit in limits]  # as they are now
            decision = self._extend(record, limits, now_us + lease_us, amounts, now_us)
            outcome: Any = "extended" if decision.allowed else "refused"
            told = None
            if now.keys() == set(own):
                places = [own.index(limit.scope) for limit in asked]
                each = [amounts[limits[place].group] if record.limits[place].parts else 0 for place in places]
                readings = tuple([Reading(*decision.readings[place]) for place in places])
                told = decision_of(asked, each, Outcome(decision.allowed, readings, ()), decision.degraded)
            return Extension(outcome, self._after(asked, record, now_us), told)

    def reset(self, names: Sequence[StateKey], now_us: int) -> bool:  # type: ignore[override]
        found = super().reset(names, now_us)
        with self._lock.free:
            return self._holds.forget_keys(names, now_us) or found

    def _asked(self, name: StateKey, limit: CompiledLimit, now_us: int, until_us: int | None) -> Any:
        if not ALGORITHMS[limit.algorithm].in_flight:
            return self._stored(name, limit, now_us)
        key = self._holds.key(name)
        return AskedLeases(None if key is None else key.leases, until_us)

    def _note_refund(self, name: StateKey, limit: CompiledLimit, before: State, after: State | None) -> None:
        key = self._holds.key(name)
        if key is not None and limit.refill:
            key.refunds += (limit.full if after is None else after[0]) - before[0]

    def _refuse_hold(
        self, limits: Sequence[NamedLimit], names: Sequence[StateKey], costs: Sequence[int], now_us: int, full_us: int
    ) -> Decision:
        """The decision where no more can be remembered: the written choice, and nothing is charged."""
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
        """Remember what was just charged, and take the places of it until the end of the lease."""
        extends = bool([limit for limit in record.limits if limit.parts])
        for number, limit in enumerate(record.limits):
            compiled, cost = limits[number].limit.compiled, costs[number]
            uncharged = not outcome.readings[number].allowed or (cost and outcome.states[number] is None)
            if uncharged or (extends and not cost):  # nothing is added to a limit that it does not charge
                continue
            marked = mark(compiled, outcome.standing[number], now_us)
            limit.parts = (*limit.parts, Part(compiled, cost, marked, limit.key.refunds))
            if ALGORITHMS[compiled.algorithm].in_flight:
                self._lease(record, limit, now_us)

    def _lease(self, record: HoldRecord, limit: HeldLimit, now_us: int) -> None:
        """Let its places be in use until the end of the hold's lease."""
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
        each = [more[limit.group] if held.parts else 0 for limit, held in zip(limits, record.limits, strict=True)]
        until_us = max(until_us, record.until_us)
        if any(each):
            full_us = self._holds.make_room(now_us, forget_settled=self._on_full == "forget")
            if full_us is not None:
                return self._refuse_hold(limits, names, each, now_us, full_us)
        outcome, degraded = self._decide(limits, names, each, now_us, commit=True, max_delay_us=None, until_us=until_us)
        if outcome.allowed:
            record.until_us = until_us
            record.forget_us = until_us + record.remember_us
            record.held = tuple([held + amount for held, amount in zip(record.held, more, strict=True)])
            if any(each):
                self._holds.grow(record)
                self._charge_parts(record, limits, each, outcome, now_us)
            for limit in record.limits:
                if limit.lease is not None:
                    self._lease(record, limit, now_us)
        return decision_of(limits, each, outcome, degraded)

    def _settle(self, record: HoldRecord, actuals: tuple[int, ...], now_us: int) -> None:
        """Settle a hold: all its limits, or none where one of them cannot be in so much debt."""
        changes = []
        for limit in record.limits:
            if limit.parts and not ALGORITHMS[limit.definition.limit.algorithm].in_flight:
                changes.append((limit, *self._settled(limit, actuals[limit.definition.group], now_us)))
        for limit, numbers, state, refunds in changes:
            limit.key.refunds = refunds
            if limit.name not in self._entries:
                if measure_us(numbers, state, now_us)[1] > 0:
                    self._keep_debt(limit.name, numbers, state, now_us)
            elif state:
                self._keep(limit.name, numbers, state)
            else:
                self._drop(limit.name)  # a log without entries
        for limit in record.limits:
            limit.parts = ()  # nothing asks for them any more: they need not be remembered with the hold
            if limit.lease is not None:
                limit.key.leases.take(limit.lease)
                limit.lease = None
        record.actuals = actuals
        record.forget_us = max(record.until_us, now_us) + record.remember_us
        self._holds.note_settled(record)

    def _settled(self, held: HeldLimit, actual: int, now_us: int) -> tuple[CompiledLimit, State, int]:
        """(the numbers that it is in, the state, the refunds) of a limit after a hold of it is settled.

        A state stays in its numbers. What is unused goes back only where those count alike. One that has ended in other
        numbers is forgotten first: what is settled comes to the same whether or not it was before.
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

    def _keep_debt(self, name: StateKey, limit: CompiledLimit, state: State, now_us: int) -> None:
        """Keep the debt of a key that was forgotten: it needs room like a new key."""
        if self._reserve(Step(limit, None, 0), name, (), 0, now_us) is not None:
            self._counts["passed_full"] += 1
        else:
            self._keep(name, limit, state)

    def _after(self, asked: Sequence[NamedLimit], record: HoldRecord, now_us: int) -> tuple[Standing, ...]:
        """What the limits that are asked have now, of those of the hold."""
        held = {limit.definition.scope: limit.name for limit in record.limits}
        return tuple(
            [
                Standing(limit, *self._standing(limit.limit.compiled, held[limit.scope], now_us))
                for limit in asked
                if limit.scope in held
            ]
        )

    def _standing(self, limit: CompiledLimit, name: StateKey, now_us: int) -> tuple[int, int]:
        return measure_us(limit, self._asked(name, limit, now_us, None), now_us)


def _for_groups(amounts: Sequence[Any], groups: int) -> Sequence[Any]:
    """An amount for each group, from one for each or one for all."""
    if len(amounts) == 1:
        return tuple(amounts) * groups
    if len(amounts) != groups:
        raise ArgumentError(f"this hold has {groups} amounts, not {len(amounts)}")
    return amounts
