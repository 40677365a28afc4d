"""The report of books: sums by user, team, model, day and more, as they were when months were closed, and restated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.errors import ArgumentError
from headgate.llm.books.calls import Calls, Change, Periods, Subject
from headgate.llm.books.reading import ReadBooks, Unreadable
from headgate.llm.books.records import Closing, Correction
from headgate.llm.books.remembering import calls_to_remember
from headgate.llm.books.sums import NOTHING, Sums, total

CALLER = ("user", "team", "key", "organisation", "tier")
DIMENSIONS = ("day", "month", "model", "limit", *CALLER)
"""What reports are made by. `limit` is the one that refused."""

Watch = Callable[[int, Sums], None]
"""Is told what changes, and when the call was admitted or refused."""


class Row(NamedTuple):
    """Sums of one group.

    `booked` is what its periods came to, for closed months when they were closed; `later` what was written in its
    periods about months that were closed by then; `restated` what its periods come to by all that is known now.
    Over all rows of a report `booked` and `later` together are `restated`.
    """

    group: tuple[str, ...]
    booked: Sums
    later: Sums
    restated: Sums


class ClosedMonth(NamedTuple):
    """A month that was closed, with the sums that were kept, what its entries before that come to, and all of them.

    `kept` and `booked` differ only where entries were lost, or changed.
    """

    books: str
    closing: Closing
    kept: Sums
    booked: Sums
    restated: Sums


class LaterChange(NamedTuple):
    """What was written in a month about one that was closed."""

    written_in: str
    month: str
    delta: Sums


@dataclass(frozen=True, slots=True)
class Report:
    """What books tell, by groups. Rows by time are in its order, others begin with what cost most."""

    by: tuple[str, ...]
    zone: str
    rows: list[Row]
    total: Row
    closed: list[ClosedMonth]
    later: list[LaterChange]
    dropped: int
    """Entries that were lost before they were written, as the books tell themselves."""

    unreadable: Unreadable
    first_us: int | None
    last_us: int | None


@dataclass(slots=True)
class _Group:
    booked: list[int] = field(default_factory=lambda: [0] * len(NOTHING))
    later: list[int] = field(default_factory=lambda: [0] * len(NOTHING))
    moved: list[int] = field(default_factory=lambda: [0] * len(NOTHING))
    """What was written later about periods of this group."""


def report_of(
    books: Sequence[ReadBooks],
    *,
    by: Sequence[str] = (),
    zone: str | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    watch: Watch | None = None,
) -> Report:
    """The report of books by these DIMENSIONS, of what counts from `since_us` on and before `until_us`.

    Days and months are those of the `zone`; where that is None, of the zone in which months were closed, or UTC.
    """
    for name in by:
        if name not in DIMENSIONS:
            raise ArgumentError(f"a report is made by {', '.join(DIMENSIONS)}, not by {name!r:.40}")
    unreadable = Unreadable()
    closings, corrected = _look_ahead(books)
    used_zone = zone or _zone_of(closings)
    gathering = _Gathering(tuple(by), Periods(used_zone), since_us or 0, until_us, watch)
    calls = Calls(gathering.take, corrected, calls_to_remember(books, corrected))
    closed: list[ClosedMonth] = []
    for one, found in zip(books, closings, strict=True):
        calls.begin_books()
        gathering.begin_books(found)
        for record in one.records(unreadable):
            calls.add(record)
        calls.end()
        closed += gathering.closed_months(one.name)
    return gathering.report(used_zone, closed, calls.dropped, unreadable)


def zone_of(books: Sequence[ReadBooks]) -> str:
    """The zone in which months of these books were closed, or UTC."""
    return _zone_of(_look_ahead(books)[0])


def _zone_of(closings: Sequence[Mapping[str, Closing]]) -> str:
    return next((closing.zone for found in closings for closing in found.values()), "UTC")


def _look_ahead(books: Sequence[ReadBooks]) -> tuple[list[dict[str, Closing]], set[str]]:
    """(the closings of each books by their month, the first of each, and the ids of calls that are corrected)."""
    closings: list[dict[str, Closing]] = []
    corrected = set[str]()
    for one in books:
        found: dict[str, Closing] = {}
        for record in one.records(Unreadable(), manual_only=True):
            if isinstance(record, Closing):
                found.setdefault(record.month, record)
            elif isinstance(record, Correction):
                corrected.add(record.entry.id)
        closings.append(found)
    return closings, corrected


class _Gathering:
    """Adds changes to the groups that they belong to."""

    def __init__(
        self, by: tuple[str, ...], periods: Periods, since_us: int, until_us: int | None, watch: Watch | None
    ) -> None:
        self._by = by
        self._periods = periods
        self._since_us = since_us
        self._until_us = until_us
        self._watch = watch
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._later: dict[tuple[str, str], Sums] = {}
        self.begin_books({})

    def begin_books(self, closings: Mapping[str, Closing]) -> None:
        """Changes of these books follow, which close months so."""
        self._closings = closings
        self._closing_periods = Periods(next(iter(closings.values())).zone) if closings else None
        self._months = {month: [NOTHING, NOTHING] for month in closings}

    def take(self, change: Change) -> None:
        """Count a change."""
        subject, delta, made_us = change
        at_us = subject.at_us
        if self._closing_periods is not None:
            self._count_month(self._closing_periods, change)
        if self._is_asked(at_us):
            self._see(at_us, delta)
            group = self._group(subject, at_us)
            _add(group.moved if made_us else group.booked, delta)
        if made_us and self._is_asked(made_us):
            _add(self._group(subject, made_us).later, delta)
            assert self._closing_periods is not None
            pair = self._closing_periods.month(made_us), self._closing_periods.month(at_us)
            self._later[pair] = self._later.get(pair, NOTHING).plus(delta)

    def _count_month(self, periods: Periods, change: Change) -> None:
        sums = self._months.get(periods.month(change.subject.at_us))
        if sums is not None:
            place = 1 if change.made_us else 0
            sums[place] = sums[place].plus(change.delta)

    def _is_asked(self, at_us: int) -> bool:
        return at_us >= self._since_us and (self._until_us is None or at_us < self._until_us)

    def _see(self, at_us: int, delta: Sums) -> None:
        self._first_us = at_us if self._first_us is None else min(self._first_us, at_us)
        self._last_us = at_us if self._last_us is None else max(self._last_us, at_us)
        if self._watch is not None:
            self._watch(at_us, delta)

    def _group(self, subject: Subject, at_us: int) -> _Group:
        names = []
        for name in self._by:
            if name == "day":
                names.append(self._periods.day(at_us))
            elif name == "month":
                names.append(self._periods.month(at_us))
            elif name in CALLER:
                names.append(getattr(subject.caller, name))
            else:
                names.append(subject.model if name == "model" else subject.limit)
        key = tuple(names)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        return group

    def closed_months(self, books: str) -> list[ClosedMonth]:
        """The months that the books closed, in order."""
        return [
            ClosedMonth(books, closing, kept_sums(closing, booked), booked, booked.plus(later))
            for month, closing in sorted(self._closings.items())
            for booked, later in (self._months[month],)
        ]

    def report(self, zone: str, closed: list[ClosedMonth], dropped: int, unreadable: Unreadable) -> Report:
        rows = [_row(key, group) for key, group in self._groups.items()]
        places = [place for place, name in enumerate(self._by) if name in ("day", "month")]
        rows.sort(
            key=lambda row: (
                *(row.group[place] for place in places),
                -row.restated.cost,
                -row.restated.calls,
                row.group,
            )
        )
        later = [LaterChange(*pair, delta) for pair, delta in sorted(self._later.items()) if any(delta)]
        whole = Row(
            ("",) * len(self._by),
            total(row.booked for row in rows),
            total(row.later for row in rows),
            total(row.restated for row in rows),
        )
        return Report(self._by, zone, rows, whole, closed, later, dropped, unreadable, self._first_us, self._last_us)


def _add(sums: list[int], delta: Iterable[int]) -> None:
    for place, number in enumerate(delta):
        if number:
            sums[place] += number


def _row(key: tuple[str, ...], group: _Group) -> Row:
    booked = Sums(*group.booked)
    return Row(key, booked, Sums(*group.later), booked.plus(Sums(*group.moved)))


def kept_sums(closing: Closing, booked: Sums) -> Sums:
    """The sums that a closing kept; of what was not summed up then, what its entries come to."""
    return Sums(**{name: closing.sums.get(name, own) for name, own in booked._asdict().items()})
