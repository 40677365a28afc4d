"""Limits of a store that fails in parts, such as a shared zone: where it does not answer, what was written decides.

Holds that are made in its place are settled in this process, and settlements that cannot reach it wait, as they do for
a store behind a guard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headgate.clock import Clock
from headgate.costs import Cost, single_cost
from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.holding import (
    Amounts,
    Extension,
    Hold,
    Reserved,
    Settlement,
    amounts_of,
    check_amount,
    check_lease,
    read_id,
    whole_id,
    write_id,
)
from headgate.keys import Key, encode_key
from headgate.operation import Operation, Receipt
from headgate.stores.guard import local_holds
from headgate.stores.guard.breaker import Breaker
from headgate.stores.guard.fallback import MAX_LOCAL_KEYS, Fallback
from headgate.stores.guard.kept import Commit, KeptSettlements
from headgate.stores.guard.local_holds import HERE, LocalHold, LocalHolds
from headgate.stores.memory import MemoryStore
from headgate.stores.protocol import BoundLimits, Decisions, paired_costs
from headgate.stores.python_table import PythonDecisions


class Rescue:
    """What all limits of one store have in common where it fails: states and holds here, and settlements that wait.

    `settles` gives what settles any hold on the store itself, for limits on a clock.
    """

    def __init__(self, shown: str, settles: Commit) -> None:
        self.local = MemoryStore(max_keys=MAX_LOCAL_KEYS, max_holds=MAX_LOCAL_KEYS)
        self.holds = LocalHolds()
        self.kept = KeptSettlements(shown, settles, settles, _nothing_remembered)


class RescuedLimits:
    """Limits of a store that answers at once or not at all, such as a shared zone: where it fails, what was written.

    One part of such a store may fail while all others answer, so it is asked each time, and knows by itself which
    parts it need not wait for. `breaker` tells the log that some fail, and asks for them in the background until
    all answer.
    """

    def __init__(
        self,
        bound: BoundLimits,
        fallback: Fallback,
        breaker: Breaker,
        probe: Callable[[], object],
        rescue: Rescue | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.bound = bound
        """The limits on the store, which raise StoreError where it fails."""

        self._decide = bound.decide
        self._give_back = bound.give_back
        self._groups = fallback.groups
        self._fallback = fallback
        self._breaker = breaker
        self._probe = probe
        self._rescue = rescue or Rescue(breaker.shown, lambda _: bound.commit)
        self._clock = clock

    def decide(self, operation: Operation, /) -> Decision:
        try:
            return self._decide(operation)
        except StoreError as error:
            self._failed(error)
        return self._fallback.decide(operation)

    def give_back(self, receipt: Receipt, ago_us: int, /) -> None:
        if receipt.degraded == "local":
            self._fallback.give_back(receipt, ago_us)
            return
        try:
            self._give_back(receipt, ago_us)
        except StoreError as error:
            self._failed(error)

    def hit(self, key: Key, cost: Cost = 1) -> Decision:
        own = cost if type(cost) is int else single_cost(self._fallback.definitions, cost)
        return self.decide(Operation((key,) * self._groups, (own,) * self._groups))

    def peek(self, key: Key, cost: Cost = 1) -> Decision:
        own = cost if type(cost) is int else single_cost(self._fallback.definitions, cost)
        return self.decide(Operation((key,) * self._groups, (own,) * self._groups, commit=False))

    def hit_many(self, keys: Iterable[Key], costs: int | Iterable[int] | None = None) -> Decisions:
        every = list(keys)
        each = paired_costs(len(every), costs)
        try:
            return self.bound.hit_many(every, each)
        except StoreError as error:
            self._failed(error)
        pairs = zip(every, each, strict=True)
        return PythonDecisions(
            self._fallback.decide(Operation((key,) * self._groups, (cost,) * self._groups)) for key, cost in pairs
        )

    def reset(self, keys: tuple[Key, ...], /) -> bool:
        here = self._fallback.reset(keys)
        return self.bound.reset(keys) or here

    def read(self, keys: tuple[Key, ...], now_us: int | None = None, /) -> list[tuple[Any, ...] | None]:
        try:
            return self.bound.read(keys, now_us)
        except StoreError as error:
            self._failed(error)
        return self._fallback.read(keys, now_us)

    def reserve(self, operation: Operation, hold: Hold, /) -> Reserved:
        if hold.name is not None and self._rescue.holds and operation.keys:
            digest = _digest(operation.keys[0], hold.name)
            if self._rescue.holds.find(digest, 0, self._fallback) is not None:
                return self._reserve_here(operation, hold)  # repeated: it was held here before
        try:
            return self.bound.reserve(operation, hold)
        except StoreError as error:
            self._failed(error)
        return self._reserve_here(operation, hold)

    def commit(self, whole_id: str, actuals: Amounts = None, /, *, now_us: int | None = None) -> Settlement:
        digest, place = read_id(whole_id)
        given = amounts_of(actuals)
        hold = self._rescue.holds.find(digest, place, self._fallback)
        if hold is not None:
            return local_holds.commit(hold, given, self._fallback, now_us)
        if place & HERE:
            return Settlement("unknown", None, ())
        told = self._rescue.kept.find(whole_id)
        if told is None:
            try:
                return self.bound.commit(whole_id, given, now_us=now_us)
            except StoreError as error:
                self._failed(error)
            told = self._rescue.kept.add(whole_id, given, now_us, self._clock)
        self._rescue.kept.send_in_thread()
        return told

    def extend(self, whole_id: str, lease_us: int, more: Sequence[int], /, *, now_us: int | None = None) -> Extension:
        digest, place = read_id(whole_id)
        check_lease(lease_us)
        amounts = [check_amount(amount) for amount in more]
        hold = self._rescue.holds.find(digest, place, self._fallback)
        if hold is not None:
            return local_holds.extend(hold, lease_us, amounts, self._fallback, now_us)
        if place & HERE:
            return Extension("unknown", (), None)
        if self._rescue.kept.find(whole_id) is not None:
            return Extension("already settled", (), None)
        try:
            return self.bound.extend(whole_id, lease_us, amounts, now_us=now_us)
        except StoreError as error:
            self._failed(error)
        return Extension("refused", (), None, "closed")

    def id_of(self, key: Key, name: str | bytes, /) -> str:
        return self.bound.id_of(key, name)

    def _reserve_here(self, operation: Operation, hold: Hold) -> Reserved:
        """What is decided in place of the store, which has charged nothing where it failed."""
        is_named = hold.name is not None and bool(operation.keys)
        digest = _digest(operation.keys[0], hold.name or b"") if is_named else os.urandom(16)
        own = hold if hold.name is None else hold._replace(name=digest)
        decision, local_id, repeated = self._fallback.reserve(operation, own)
        if local_id:
            groups = tuple(self._fallback.local_groups)
            made = LocalHold(local_id, "", self._fallback.groups, groups)
            self._rescue.holds.add(digest, made, self._fallback)
        return Reserved(decision, write_id(digest, self._rescue.holds.place), repeated)

    def _failed(self, error: StoreError) -> None:
        self._breaker.failed(error)
        self._breaker.probe_in_thread(self._probe)


def _digest(key: Key, name: str | bytes) -> bytes:
    """What identifies the hold of a name within a key, wherever it is."""
    return read_id(whole_id(encode_key(key), name, 0))[0]


def _nothing_remembered(_: str) -> None:
    """A store that fails in parts has no refusals that a settlement would end."""
