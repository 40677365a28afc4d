"""The records of holds in a Python table: bounded, found by id, and dropped in time. They decide nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from headgate.algorithms.leases import KeyLeases, Lease
from headgate.algorithms.transition import Part
from headgate.decision import NamedLimit, Reading
from headgate.stores.python_table import StateKey

_EXPIRED_PER_HOLD = 2
"""Expired holds that may be dropped for each new one, so that they do not accumulate."""

_CLEANUP_EVERY = 64
"""After this many new holds, references to dropped ones are cleaned up if there are many."""


@dataclass(slots=True)
class KeyHolds:
    """The data of one limit on one key while holds of it are remembered.

    `refunds` are the scaled units that were given back so far, `numbers` those of the remembered holds.
    """

    refunds: int = 0
    numbers: set[int] = field(default_factory=set)
    leases: KeyLeases = field(default_factory=KeyLeases)


@dataclass(slots=True)
class HeldLimit:
    """One limit of a hold: its lease on places in flight, and its parts.

    It has no parts where it was not charged, and after the settlement.
    """

    definition: NamedLimit
    name: StateKey
    key: KeyHolds
    parts: tuple[Part, ...] = ()
    lease: Lease | None = None

    @property
    def cost(self) -> int:
        return sum([part.cost for part in self.parts])


@dataclass(slots=True)
class HoldRecord:
    """One hold. `costs` are those of each group at first, `held` those with additional units.

    `actuals` are the settled amounts, None while it is open. The lease ends at `until_us`; the hold is dropped
    `remember_us` after the later of that and its settlement.
    """

    number: int
    digest: bytes
    costs: tuple[int, ...]
    held: tuple[int, ...]
    limits: list[HeldLimit]
    readings: tuple[Reading, ...]
    """The readings of the first answer."""

    degraded: str
    at_once: bool
    until_us: int
    remember_us: int
    forget_us: int
    actuals: tuple[int, ...] | None = None
    weight: int = 1
    """The number of its parts: each counts towards the bound."""


class HoldRecords:
    """All holds of a table, with at most `max_parts` parts."""

    def __init__(self, max_parts: int) -> None:
        self._max_parts = max_parts
        self._by_digest: dict[bytes, HoldRecord] = {}
        self._by_number: dict[int, HoldRecord] = {}
        self._keys: dict[StateKey, KeyHolds] = {}
        self._by_end: list[tuple[int, int]] = []
        self._settled: deque[int] = deque()
        self._weight = 0
        self._numbers = count()

    def __len__(self) -> int:
        return self._weight

    def next_number(self) -> int:
        return next(self._numbers)

    def find(self, digest: bytes, now_us: int) -> HoldRecord | None:
        """The hold of this id, if it is remembered."""
        record = self._by_digest.get(digest)
        if record is not None and record.forget_us <= now_us:
            self._forget(record)
            return None
        return record

    def key(self, name: StateKey) -> KeyHolds | None:
        """The data of one limit on one key; None where no hold of it is remembered."""
        return self._keys.get(name)

    def key_or_new(self, name: StateKey) -> KeyHolds:
        """`key`, created for a hold that will be added."""
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = KeyHolds()
        return key

    def make_room(self, now_us: int, *, forget_settled: bool) -> int | None:
        """Make room for one more part; return None, or the microseconds until there may be room."""
        if self._by_end and self._by_end[0][0] <= now_us:
            for _ in range(_EXPIRED_PER_HOLD):
                self._drop_expired(now_us)
        while self._weight >= self._max_parts and self._drop_expired(now_us):
            pass
        while self._weight >= self._max_parts and forget_settled and self._settled:
            record = self._by_number.get(self._settled.popleft())
            if record is not None:
                self._forget(record)
        if self._weight < self._max_parts:
            return None
        return max(1, self._soonest_us() - now_us)

    def add(self, record: HoldRecord) -> None:
        self._by_digest[record.digest] = record
        self._by_number[record.number] = record
        heappush(self._by_end, (record.forget_us, record.number))
        for limit in record.limits:
            limit.key.numbers.add(record.number)
        self._weight += record.weight
        if not record.number % _CLEANUP_EVERY:
            self._clean_up()
        if record.actuals is not None:
            self._settled.append(record.number)

    def grow(self, record: HoldRecord) -> None:
        """Count one more part of a hold."""
        record.weight += 1
        self._weight += 1

    def note_settled(self, record: HoldRecord) -> None:
        """Record that a hold is settled: from now on a full store may drop it."""
        self._settled.append(record.number)

    def forget_keys(self, names: Iterable[StateKey], now_us: int) -> bool:
        """Drop all holds of these limits and keys; return whether any of their places was in use."""
        keys = [(name, key) for name in names if (key := self._keys.get(name)) is not None]
        in_use = any(key.leases.used(now_us) > 0 for _, key in keys)
        for name, key in keys:
            for number in tuple(key.numbers):
                self._forget(self._by_number[number])
            self._keys.pop(name, None)
        return in_use

    def clear(self) -> None:
        self._by_digest.clear()
        self._by_number.clear()
        self._keys.clear()
        self._by_end.clear()
        self._settled.clear()
        self._weight = 0

    def _soonest_us(self) -> int:
        """The moment at which the first hold is dropped; there is one."""
        while True:
            end_us, number = self._by_end[0]
            record = self._by_number.get(number)
            if record is None:
                heappop(self._by_end)
            elif record.forget_us != end_us:
                heapreplace(self._by_end, (record.forget_us, number))  # it was extended or settled since
            else:
                return end_us

    def _drop_expired(self, now_us: int) -> bool:
        """Drop the hold that expired first, if one did; return whether an entry was examined."""
        if not self._by_end or self._by_end[0][0] > now_us:
            return False
        _, number = heappop(self._by_end)
        record = self._by_number.get(number)
        if record is not None and record.forget_us <= now_us:
            self._forget(record)
        elif record is not None:
            heappush(self._by_end, (record.forget_us, number))  # it was extended or settled since
        return True

    def _clean_up(self) -> None:
        """Drop references to dropped holds, before there are as many as references to others."""
        threshold = 2 * len(self._by_number) + _CLEANUP_EVERY
        if len(self._by_end) > threshold:
            self._by_end = [(record.forget_us, record.number) for record in self._by_number.values()]
            heapify(self._by_end)
        if len(self._settled) > threshold:
            self._settled = deque(number for number in self._settled if number in self._by_number)

    def _forget(self, record: HoldRecord) -> None:
        del self._by_digest[record.digest], self._by_number[record.number]
        self._weight -= record.weight
        for limit in record.limits:
            if limit.lease is not None:
                limit.key.leases.take(limit.lease)
            limit.key.numbers.discard(record.number)
            if not limit.key.numbers and self._keys.get(limit.name) is limit.key:
                del self._keys[limit.name]
