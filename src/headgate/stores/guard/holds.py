"""Holds of a store that may fail: where it does not answer, this process makes them, and keeps settlements for it.

A hold that this process made in place of the store is settled and extended here, whether the store answers by then or
not. Any other hold is one of the store: while that does not answer, `pending_settlements` keeps its settlement, and an
extension is refused. A hold whose `reserve` got no answer may exist in both places; it is settled alike in both.
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
from headgate.stores.guard.local_holds import LOCAL_BIT, LocalHold, LocalHolds
from headgate.stores.guard.pending_settlements import PendingSettlements

T = TypeVar("T")
Steps: TypeAlias = Generator[Any, Any, T]


class Access(Protocol):
    """Decides whether a call goes to the store, and records its outcome: a breaker, or one that always allows it."""

    @property
    def state(self) -> str: ...
    def lets_through(self) -> bool: ...
    def succeeded(self) -> None: ...
    def failed(self, error: Exception) -> None: ...


class RefusalNotes(Protocol):
    """Is notified of changes that may end a remembered refusal."""

    def charged(self, keys: tuple[Key, ...]) -> None: ...
    def held(self, whole_id: str, keys: tuple[Key, ...]) -> None: ...
    def settled(self, whole_id: str) -> None: ...
    def extended(self) -> None: ...


class GuardedHolds:
    """The steps of holding, settling and extending; they yield calls to the store.

    `local` and `pending_settlements` are those of the store, `bound` and `fallback` the limits on it and in its place.
    Each method calls its `on_outage` where the store does not answer: that starts to probe for the end of the outage,
    and to send pending settlements.
    """

    def __init__(
        self,
        access: Access,
        bound: Any,
        fallback: Fallback,
        local: LocalHolds,
        pending_settlements: PendingSettlements,
        refusal_notes: RefusalNotes,
        clock: Clock | None,
    ) -> None:
        self._access = access
        self._bound = bound
        self._fallback = fallback
        self._local = local
        self._pending_settlements = pending_settlements
        self._refusal_notes = refusal_notes
        self._clock = clock

    def reserving(self, operation: Operation, hold: Hold, on_outage: Callable[[], object]) -> Steps[Reserved]:
        """Hold on the store, or in its place."""
        name = hold.name
        if (
            name is not None
            and self._local
            and operation.keys
            and self._local.find(_digest(operation.keys[0], name), 0, self._fallback) is not None
        ):
            return self._reserve_locally(operation, hold, "")  # repeated: this process made it before
        lost_id = ""
        if self._access.lets_through():
            try:
                reserved: Reserved = yield self._bound.reserve(operation, hold)
            except StoreError as error:
                lost_id = error.hold_id if error.was_sent else ""
                self._access.failed(error)
                self._refusal_notes.charged(operation.keys)  # the store may have charged it
            else:
                self._access.succeeded()
                if reserved.decision.allowed:
                    self._refusal_notes.held(reserved.id, operation.keys)
                return reserved
        reserved = self._reserve_locally(operation, hold, lost_id)
        on_outage()
        return reserved

    def committing(
        self, whole_id: str, actuals: Amounts, now_us: int | None, on_outage: Callable[[], object]
    ) -> Steps[Settlement]:
        """Settle where the hold was made; keep a settlement that cannot reach the store."""
        digest, place = read_id(whole_id)
        amounts = amounts_of(actuals)
        hold = self._local.find(digest, place, self._fallback)
        if hold is not None:
            settlement = local_holds.commit(hold, amounts, self._fallback, now_us)
            if hold.lost_id and settlement.outcome == "settled":
                self._pending_settlements.add(hold.lost_id, amounts, now_us, self._clock)
                on_outage()
            return settlement
        if place & LOCAL_BIT:
            return Settlement("unknown", None, ())
        pending = self._pending_settlements.find(whole_id)
        if pending is None and self._access.state != OPEN:  # also while it is half open: only the store can settle it
            try:
                reply: Settlement = yield self._bound.commit(whole_id, amounts, now_us=now_us)
            except StoreError as error:
                self._access.failed(error)
            else:
                self._access.succeeded()
                return reply
            finally:
                self._refusal_notes.settled(whole_id)
        if pending is None:
            pending = self._pending_settlements.add(whole_id, amounts, now_us, self._clock)
        on_outage()
        return pending

    def extending(
        self, whole_id: str, lease_us: int, more: Sequence[int], now_us: int | None, on_outage: Callable[[], object]
    ) -> Steps[Extension]:
        """Extend where the hold was made; a hold of the store is not extended while the store does not answer."""
        digest, place = read_id(whole_id)
        check_lease(lease_us)
        amounts = [check_amount(amount) for amount in more]
        hold = self._local.find(digest, place, self._fallback)
        if hold is not None:
            return local_holds.extend(hold, lease_us, amounts, self._fallback, now_us)
        if place & LOCAL_BIT:
            return Extension("unknown", (), None)
        if self._pending_settlements.find(whole_id) is not None:
            on_outage()
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
                    self._refusal_notes.extended()
        on_outage()
        return Extension("refused", (), None, "closed")

    def _reserve_locally(self, operation: Operation, hold: Hold, lost_id: str) -> Reserved:
        """Reserve in place of the store; `lost_id` is the id of a hold that the store may have made."""
        digest = self._digest_of(operation, hold, lost_id)
        local_hold = hold if hold.name is None else hold._replace(name=digest)
        decision, local_id, repeated = self._fallback.reserve(operation, local_hold)
        if local_id:
            groups = tuple(self._fallback.local_groups)
            record = LocalHold(local_id, "" if hold.at_once else lost_id, self._fallback.groups, groups)
            self._local.add(digest, record, self._fallback)
        elif decision.allowed and lost_id:
            return Reserved(decision, lost_id, repeated=False)  # only the store may have made a hold
        elif lost_id and hold.name is None:
            self._pending_settlements.add(lost_id, (0,), None, self._clock)  # refused here: no caller settles it
        elif lost_id:
            return Reserved(decision, lost_id, repeated=False)  # its name finds it in the store
        return Reserved(decision, write_id(digest, self._local.place), repeated)

    def _digest_of(self, operation: Operation, hold: Hold, lost_id: str) -> bytes:
        """The bytes that identify a hold, in an id of the store and in one of this process alike."""
        if lost_id:
            return read_id(lost_id)[0]
        if hold.name is None or not operation.keys:
            return os.urandom(16)
        return _digest(operation.keys[0], hold.name)


def _digest(key: Key, name: str | bytes) -> bytes:
    """The bytes that identify the hold of a name within a key, wherever it is."""
    return read_id(whole_id(encode_key(key), name, 0))[0]
