"""Holds behind a guard: where the store does not answer, they are made in its place, and settlements wait for it.

A hold that was made in this process in place of the store is settled and extended here, whatever state the store is in
by then. Any other is one of the store: while that does not answer, its settlement is kept, see `kept`, and an extension
is refused. A reserve whose answer was lost may have been made in both places; it is settled in both with the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from headgate.clock import Clock
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
    write_id,
)
from headgate.operation import Operation
from headgate.stores.guard import local_holds
from headgate.stores.guard.breaker import OPEN
from headgate.stores.guard.fallback import Fallback
from headgate.stores.guard.local_holds import HERE, LocalHold
from headgate.stores.guard.refusals import RefusalMemory

if TYPE_CHECKING:
    from headgate.stores.guard.store import GuardedStore

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]


class GuardedHolds:
    """The steps of holding, settling and extending, for limits of a guarded store; they yield what the store answers.

    `away` is called where the store does not answer: it sees to it that the end of the outage is noticed, and that what
    is kept is sent.
    """

    def __init__(
        self, store: GuardedStore, bound: Any, fallback: Fallback, memory: RefusalMemory, clock: Clock | None
    ) -> None:
        self._breaker = store.breaker
        self._kept = store.kept
        self._local = store.local_holds
        self._refusals = store.refusals
        self._bound = bound
        self._fallback = fallback
        self._memory = memory
        self._clock = clock

    def reserving(self, operation: Operation, hold: Hold, away: Callable[[], object]) -> Steps[Reserved]:
        """Hold on the store, or in its place."""
        name = hold.name
        if name is not None and self._local and operation.keys:
            digest, _ = read_id(self._bound.id_of(operation.keys[0], name))
            if self._local.find(digest, 0, self._fallback) is not None:
                return self._reserve_here(operation, hold, "")  # repeated: it was held here before
        lost_id = ""
        if self._breaker.lets_through():
            try:
                reserved: Reserved = yield self._bound.reserve(operation, hold)
            except StoreError as error:
                lost_id = error.hold_id
                self._breaker.failed(error)
                self._memory.charged(operation.keys)  # it may have been
            else:
                self._breaker.succeeded()
                if reserved.decision.allowed:
                    self._memory.held(reserved.id, operation.keys)
                return reserved
        reserved = self._reserve_here(operation, hold, lost_id)
        away()
        return reserved

    def committing(
        self, whole_id: str, actuals: Amounts, now_us: int | None, away: Callable[[], object]
    ) -> Steps[Settlement]:
        """Settle where the hold was made; what cannot reach the store is kept."""
        digest, place = read_id(whole_id)
        given = amounts_of(actuals)
        hold = self._local.find(digest, place, self._fallback)
        if hold is not None:
            settlement = local_holds.commit(hold, given, self._fallback, now_us)
            if hold.lost_id and settlement.outcome == "settled":
                self._kept.add(hold.lost_id, given, now_us, self._clock)
                away()
            return settlement
        if place & HERE:
            return Settlement("unknown", None, ())
        told = self._kept.find(whole_id)
        if told is None and self._breaker.state != OPEN:  # while it is half open, too: it can be settled nowhere else
            try:
                came: Settlement = yield self._bound.commit(whole_id, given, now_us=now_us)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                self._breaker.succeeded()
                return came
            finally:
                self._refusals.settled(whole_id)
        if told is None:
            told = self._kept.add(whole_id, given, now_us, self._clock)
        away()
        return told

    def extending(
        self, whole_id: str, lease_us: int, more: Sequence[int], now_us: int | None, away: Callable[[], object]
    ) -> Steps[Extension]:
        """Extend where the hold was made; while the store does not answer, one of the store is not extended."""
        digest, place = read_id(whole_id)
        check_lease(lease_us)
        amounts = [check_amount(amount) for amount in more]
        hold = self._local.find(digest, place, self._fallback)
        if hold is not None:
            return local_holds.extend(hold, lease_us, amounts, self._fallback, now_us)
        if place & HERE:
            return Extension("unknown", (), None)
        if self._kept.find(whole_id) is not None:
            away()
            return Extension("already settled", (), None)
        if self._breaker.state != OPEN:
            try:
                extension: Extension = yield self._bound.extend(whole_id, lease_us, amounts, now_us=now_us)
            except StoreError as error:
                self._breaker.failed(error)
            else:
                self._breaker.succeeded()
                return extension
            finally:
                if any(amounts) and self._refusals.known:
                    self._refusals.clear()
        away()
        return Extension("refused", (), None, "closed")

    def _reserve_here(self, operation: Operation, hold: Hold, lost_id: str) -> Reserved:
        """What is decided in place of the store; `lost_id` is that of a hold that the store may have made."""
        digest = self._digest(operation, hold, lost_id)
        own = hold if hold.name is None else hold._replace(name=digest)
        decision, local_id, repeated = self._fallback.reserve(operation, own)
        if local_id:
            groups = tuple(self._fallback.local_groups)
            made = LocalHold(local_id, "" if hold.at_once else lost_id, self._fallback.groups, groups)
            self._local.add(digest, made, self._fallback)
        elif decision.allowed and lost_id:
            return Reserved(decision, lost_id, repeated=False)  # nothing is held but what the store may hold
        elif lost_id and hold.name is None:
            self._kept.add(lost_id, (0,), None, self._clock)  # refused: no caller ever settles it
        return Reserved(decision, write_id(digest, self._local.place), repeated)

    def _digest(self, operation: Operation, hold: Hold, lost_id: str) -> bytes:
        """What identifies a hold, in an id of the store and in one of this process alike."""
        if lost_id:
            return read_id(lost_id)[0]
        if hold.name is None or not operation.keys:
            return os.urandom(16)
        return read_id(self._bound.id_of(operation.keys[0], hold.name))[0]
