"""Holds that were made in this process in place of a store: their ids say so, and they are settled here.

Such an id has in its place a number that is no slot of a Redis: a bit that says so, and 15 random ones of the process.
So another process knows that it is none of its own, and answers "unknown". The hold itself is in the local store; what
is known of it besides is here, found by the 16 bytes that both ids of a named hold have.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from headgate.errors import ArgumentError
from headgate.forks import register_for_forks
from headgate.holding import Extension, Settlement
from headgate.stores.guard.fallback import Fallback

HERE = 1 << 15
"""The bit of a place that says that a hold was made in place of a store."""

_RANDOM = random.SystemRandom()

T = TypeVar("T")


class LocalHold(NamedTuple):
    """A hold made here: its id in the local store, and that in the store, where it may have been made too, else "".

    Of `groups` amounts those numbered in `local_groups` are held.
    """

    local_id: str
    lost_id: str
    groups: int
    local_groups: tuple[int, ...]


class LocalHolds:
    """What is known of the holds that were made here. Safe under threads; a forked process begins with none."""

    def __init__(self) -> None:
        self._begin()
        register_for_forks(self)

    def add(self, digest: bytes, hold: LocalHold, fallback: Fallback) -> None:
        """Take note of a hold; two of those that were noted longest ago go where the local store has forgotten them."""
        with self._lock:
            former = self._known.pop(digest, None)
            for oldest in list(islice(self._known, 2)):
                known = self._known.pop(oldest)
                if is_known(known, fallback):
                    self._known[oldest] = known
            self._known[digest] = hold if former is None else hold._replace(lost_id=former.lost_id or hold.lost_id)

    def find(self, digest: bytes, place: int, fallback: Fallback) -> LocalHold | None:
        """The hold of an id, that of the store for a named one, if it was made here and is remembered."""
        if not self._known:
            return None
        with self._lock:
            hold = self._known.get(digest)
            if hold is None or (place & HERE and place != self.place):
                return None
            if not is_known(hold, fallback):
                del self._known[digest]
                return None
            return hold

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._known.clear()

    def __len__(self) -> int:
        return len(self._known)

    def after_fork(self) -> None:
        """Know of no hold in a child process: the parent settles what it made."""
        self._begin()

    def _begin(self) -> None:
        self._known: dict[bytes, LocalHold] = {}
        self._lock = threading.Lock()
        self.place = HERE | _RANDOM.getrandbits(15)
        """What the ids of holds that are made here have for a place."""


def is_known(hold: LocalHold, fallback: Fallback) -> bool:
    """Whether the local store remembers a hold. Asking changes nothing: no lease is shortened."""
    return fallback.bound.extend(hold.local_id, 1, (0,)).outcome != "unknown"


def commit(hold: LocalHold, actuals: Sequence[int | None], fallback: Fallback, now_us: int | None) -> Settlement:
    """Settle a hold that was made here; an amount for each of its groups, or one for all."""
    own = fallback.bound.commit(hold.local_id, _of_groups(actuals, hold), now_us=now_us)
    if own.actuals is None:
        return own
    each = [0] * hold.groups
    for group, actual in zip(hold.local_groups, own.actuals, strict=True):
        each[group] = actual
    return Settlement(own.outcome, tuple(each), fallback.standings(own.after), "local")


def extend(hold: LocalHold, lease_us: int, more: Sequence[int], fallback: Fallback, now_us: int | None) -> Extension:
    """Extend a hold that was made here; an amount for each of its groups, or one for all."""
    own = fallback.bound.extend(hold.local_id, lease_us, _of_groups(more, hold), now_us=now_us)
    return Extension(own.outcome, fallback.standings(own.after), None, "local")


def _of_groups(amounts: Sequence[T], hold: LocalHold) -> list[T]:
    """The amounts of the groups that are held here."""
    if len(amounts) == 1:
        return list(amounts)
    if len(amounts) != hold.groups:
        raise ArgumentError(f"this hold has {hold.groups} amounts, not {len(amounts)}")
    return [amounts[group] for group in hold.local_groups]
