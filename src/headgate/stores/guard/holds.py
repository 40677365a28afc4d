"""Holds of a store that may fail: where it does not answer, they are made in its place, and settlements wait for it.

A hold that was made in this process in place of the store is settled and extended here, whatever state the store is in
by then. Any other is one of the store: while that does not answer, its settlement is kept, see `kept`, and an extension
is refused. A reserve whose answer was lost may have been made in both places; it is settled in both with the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

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
    whole_id,
    write_id,
)
from headgate.keys import Key, encode_key
from headgate.operation import Operation
from headgate.stores.guard import local_holds
from headgate.stores.guard.breaker import OPEN
from headgate.stores.guard.fallback import Fallback
from headgate.stores.guard.kept import KeptSettlements
from headgate.stores.guard.local_holds import HERE, LocalHold, LocalHolds

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]


class Access(Protocol):
    """Whether the store is asked, and what is noted of its answers: a breaker, or what asks each time."""

    @property
    def state(self) -> str: ...
    def lets_through(self) -> bool: ...
    def succeeded(self) -> None: ...
    def failed(self, error: Exception) -> None: ...


class Remembered(Protocol):
    """What is told of changes that may end a refusal that is remembered."""

    def charged(self, keys: tuple[Key, ...]) -> None: ...
    def held(self, whole_id: str, keys: tuple[Key, ...]) -> None: ...
    def settled(self, whole_id: str) -> None: ...
    def extended(self) -> None: ...


class GuardedHolds:
    """The steps of holding, settling and extending; they yield what the store answers.

    `local` and `kept` are those of the store, `bound` and `fallback` the limits on it and in its place. `away`, which
    each is given, is called where the store does not answer: it sees to it that the end of the outage is noticed, and
    that what is kept is sent.
    """

    def __init__(
        self,
        access: Access,
        bound: Any,
        fallback: Fallback,
        local: LocalHolds,
        kept: KeptSettlements,
        remembered: Remembered,
        clock: Clock | None,
    ) -> None:
        self._access = access
        self._bound = bound
        self._fallback = fallback
        self._local = local
        self._kept = kept
        self._remembered = remembered
        self._clock = clock

    def reserving(self, operation: Operation, hold: Hold, away: Callable[[], object]) -> Steps[Reserved]:
        """Hold on the store, or in its place."""
        name = hold.name
        if (
            name is not None
            and self._local
            and operation.keys
            and self._local.find(_digest(operation.keys[0], name), 0, self._fallback) is not None
        ):
            return self._reserve_here(operation, hold, "")  # repeated: it was held here before
        lost_id = ""
        if self._access.lets_through():
            try:
                reserved: Reserved = yield self._bound.reserve(operation, hold)
            except StoreError as error:
                lost_id = error.hold_id if error.was_sent else ""
                self._access.failed(error)
                self._remembered.charged(operation.keys)  # it may have been
            else:
                self._access.succeeded()
                if reserved.decision.allowed:
                    self._remembered.held(reserved.id, operation.keys)
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
        if told is None and self._access.state != OPEN:  # while it is half open, too: it can be settled nowhere else
            try:
                came: Settlement = yield self._bound.commit(whole_id, given, now_us=now_us)
            except StoreError as error:
                self._access.failed(error)
            else:
                self._access.succeeded()
                return came
            finally:
                self._remembered.settled(whole_id)
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
        if self._access.state != OPEN:
            try:
                extension: Extension = yield self._bound.extend(whole_id, lease_us, amounts, now_us=now_us)
            except StoreError as error:
                self._access.failed(error)
            else:
                self._access.succeeded()
                return extension
            finally:
                if any(amounts):
                    self._remembered.extended()
        away()
        return Extension("refused", (), None, "closed")

    def _reserve_here(self, operation: Operation, hold: Hold, lost_id: str) -> Reserved:
        """What is decided in place of the store; `lost_id` is that of a hold that the store may have made."""
        digest = self._digest_of(operation, hold, lost_id)
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

    def _digest_of(self, operation: Operation, hold: Hold, lost_id: str) -> bytes:
        """What identifies a hold, in an id of the store and in one of this process alike."""
        if lost_id:
            return read_id(lost_id)[0]
        if hold.name is None or not operation.keys:
            return os.urandom(16)
        return _digest(operation.keys[0], hold.name)


def _digest(key: Key, name: str | bytes) -> bytes:
    """What identifies the hold of a name within a key, wherever it is."""
    return read_id(whole_id(encode_key(key), name, 0))[0]
