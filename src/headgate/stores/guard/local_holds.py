"""Holds that this process made in place of a store: their ids show it, and they are settled in this process.

The place in such an id is no slot of a Redis: it has a bit that marks it, and 15 random bits of the process. So another
process recognizes that the hold is not its own, and answers "unknown". The hold itself is in the local store; this
module keeps the rest, by the 16 bytes that both ids of a named hold have.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from headgate.errors import ArgumentError
from headgate.forks import register_for_forks
from headgate.holding import Extension, Settlement, read_id
from headgate.stores.guard.fallback import Fallback

LOCAL_BIT = 1 << 15
"""The bit of a place that marks a hold made in place of a store."""

_RANDOM = random.SystemRandom()

T = TypeVar("T")


class LocalHold(NamedTuple):
    """A hold of this process: its id in the local store, and its id in the store, which may have made it too, else "".

    Of `groups` amounts those numbered in `local_groups` are held.
    """

    local_id: str
    lost_id: str
    groups: int
    local_groups: tuple[int, ...]


class LocalHolds:
    """The records of the holds that this process made. Safe under threads; a forked process begins with none."""

    def __init__(self) -> None:
        self._reset()
        register_for_forks(self)

    def add(self, digest: bytes, hold: LocalHold, fallback: Fallback) -> None:
        """Add a hold; of the two oldest, those that the local store has forgotten are dropped."""
        with self._lock:
            former = self._holds.pop(digest, None)
            for oldest in list(islice(self._holds, 2)):
                old = self._holds.pop(oldest)
                if is_known(old, fallback):
                    self._holds[oldest] = old
            self._holds[digest] = hold if former is None else hold._replace(lost_id=former.lost_id or hold.lost_id)

    def find(self, digest: bytes, place: int, fallback: Fallback) -> LocalHold | None:
        """The hold of an id (of the store's id, too, for a named one), if this process made and remembers it."""
        if not self._holds:
            return None
        with self._lock:
            hold = self._holds.get(digest)
            if hold is None or (place & LOCAL_BIT and place != self.place):
                return None
            if not is_known(hold, fallback):
                del self._holds[digest]
                return None
            return hold

    def settle_also(self, lost_id: str) -> bool:
        """Have a hold of this process settled in the store, too, where an earlier call may have made it by this id.

        Returns whether this process made one of that name.
        """
        digest, _ = read_id(lost_id)
        with self._lock:
            hold = self._holds.get(digest)
            if hold is not None:
                self._holds[digest] = hold._replace(lost_id=lost_id)
            return hold is not None

    def clear(self) -> None:
        """Forget all holds."""
        with self._lock:
            self._holds.clear()

    def __len__(self) -> int:
        return len(self._holds)

    def after_fork(self) -> None:
        """Have no hold in a child process: the parent settles those that it made."""
        self._reset()

    def _reset(self) -> None:
        self._holds: dict[bytes, LocalHold] = {}
        self._lock = threading.Lock()
        self.place = LOCAL_BIT | _RANDOM.getrandbits(15)
        """The place in the ids of holds that this process makes."""


def is_known(hold: LocalHold, fallback: Fallback) -> bool:
    """Whether the local store remembers a hold. The query changes nothing: no lease is shortened."""
    return fallback.bound.extend(hold.local_id, 1, (0,)).outcome != "unknown"


def commit(hold: LocalHold, actuals: Sequence[int | None], fallback: Fallback, now_us: int | None) -> Settlement:
    """Settle a hold of this process; an amount for each of its groups, or one for all."""
    local = fallback.bound.commit(hold.local_id, _local_amounts(actuals, hold), now_us=now_us)
    if local.actuals is None:
        return local
    actuals_of_groups = [0] * hold.groups
    for group, actual in zip(hold.local_groups, local.actuals, strict=True):
        actuals_of_groups[group] = actual
    return Settlement(local.outcome, tuple(actuals_of_groups), fallback.standings(local.after), "local")


def extend(hold: LocalHold, lease_us: int, more: Sequence[int], fallback: Fallback, now_us: int | None) -> Extension:
    """Extend a hold of this process; an amount for each of its groups, or one for all."""
    local = fallback.bound.extend(hold.local_id, lease_us, _local_amounts(more, hold), now_us=now_us)
    return Extension(local.outcome, fallback.standings(local.after), None, "local")


def _local_amounts(amounts: Sequence[T], hold: LocalHold) -> list[T]:
    """The amounts of the groups that are held in this process."""
    if len(amounts) == 1:
        return list(amounts)
    if len(amounts) != hold.groups:
        raise ArgumentError(f"this hold has {hold.groups} amounts, not {len(amounts)}")
    return [amounts[group] for group in hold.local_groups]
