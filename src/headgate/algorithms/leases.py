"""The leases of one key, by their ends: what is in use is a sum that is kept, not counted anew."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from typing import NamedTuple


class Lease(NamedTuple):
    """So many places, until a moment in microseconds. `number` tells those of one end from each other."""

    until: int
    number: int
    places: int


class KeyLeases:
    """Leases, the soonest over first, and how many of the first are over at the moment that was last asked for."""

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._over = 0
        self._in_use = 0

    def __len__(self) -> int:
        return len(self._leases)

    def used(self, now: int) -> int:
        """The places of those that are not over."""
        self._move(now)
        return self._in_use

    def last(self, now: int) -> int | None:
        """When the last of them is over; None where none is left."""
        self._move(now)
        return self._leases[-1].until if self._over < len(self._leases) else None

    def freed_at(self, now: int, needed: int) -> int:
        """When so many places, which are in use, will be free if none is extended or freed before."""
        self._move(now)
        for lease in islice(self._leases, self._over, None):
            needed -= lease.places
            if needed <= 0:
                return lease.until
        raise ValueError("so many places are not in use")

    def add(self, lease: Lease) -> None:
        if bisect_left(self._leases, lease) < self._over:
            self._over += 1
        else:
            self._in_use += lease.places
        insort(self._leases, lease)

    def take(self, lease: Lease) -> None:
        """Take a lease away; nothing happens where it is not there."""
        place = bisect_left(self._leases, lease)
        if place == len(self._leases) or self._leases[place] != lease:
            return
        del self._leases[place]
        if place < self._over:
            self._over -= 1
        else:
            self._in_use -= lease.places

    def drop_over(self, now: int) -> None:
        """Forget those that are over."""
        self._move(now)
        del self._leases[: self._over]
        self._over = 0

    def _move(self, now: int) -> None:
        leases = self._leases
        while self._over < len(leases) and leases[self._over].until <= now:
            self._in_use -= leases[self._over].places
            self._over += 1
        while self._over and leases[self._over - 1].until > now:
            self._over -= 1
            self._in_use += leases[self._over].places


class AskedLeases(NamedTuple):
    """The leases of a key as a decision sees them, and the end of the one that it asks for; None of a peek."""

    leases: KeyLeases | None
    until: int | None
