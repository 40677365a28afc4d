"""The leases of one key, by their ends: the places in use are a running sum, not counted anew."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from typing import NamedTuple


class Lease(NamedTuple):
    """A number of places, until a moment in microseconds. `number` distinguishes leases of the same end."""

    until: int
    number: int
    places: int


class KeyLeases:
    """Leases by their ends, and how many of them were over at the moment of the last query."""

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._over = 0
        self._in_use = 0

    def __len__(self) -> int:
        return len(self._leases)

    def used(self, now: int) -> int:
        """The places of the leases that are not over."""
        self._move_to(now)
        return self._in_use

    def last(self, now: int) -> int | None:
        """When the last of them is over; None where none is left."""
        self._move_to(now)
        return self._leases[-1].until if self._over < len(self._leases) else None

    def freed_at(self, now: int, needed: int) -> int:
        """When `needed` places, which are in use, will be free if none is extended or freed before."""
        self._move_to(now)
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
        """Remove a lease, if it is there."""
        index = bisect_left(self._leases, lease)
        if index == len(self._leases) or self._leases[index] != lease:
            return
        del self._leases[index]
        if index < self._over:
            self._over -= 1
        else:
            self._in_use -= lease.places

    def drop_over(self, now: int) -> None:
        """Drop the leases that are over."""
        self._move_to(now)
        del self._leases[: self._over]
        self._over = 0

    def _move_to(self, now: int) -> None:
        leases = self._leases
        while self._over < len(leases) and leases[self._over].until <= now:
            self._in_use -= leases[self._over].places
            self._over += 1
        while self._over and leases[self._over - 1].until > now:
            self._over -= 1
            self._in_use += leases[self._over].places


class LeaseRequest(NamedTuple):
    """The leases of a key as a decision sees them, and the end of the lease that it requests; None of a peek."""

    leases: KeyLeases | None
    until: int | None
