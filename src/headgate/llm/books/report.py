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
"""The dimensions by which reports are grouped. `limit` is the one that refused."""

Watch = Callable[[int, Sums], None]
"""Is called with the time at which a call was admitted or refused, and each change of its sums."""


class Row(NamedTuple):
    """Sums of one group.

    `booked` are the sums of its periods, for closed months when they were closed; `later` are changes written in its
    periods about months that were closed by then; `restated` are the sums of its periods with all that is known now.
    Over all rows of a report `booked` plus `later` is `restated`.
    """

    group: tuple[str, ...]
    booked: Sums
    later: Sums
    restated: Sums


class ClosedMonth(NamedTuple):
    """A closed month, with the sums recorded by its closing, of its entries before that, and of all of them.

    `recorded` and `booked` differ only where entries were lost, or changed.
    """

    books: str
    closing: Closing
    recorded: Sums
    booked: Sums
    restated: Sums


class LaterChange(NamedTuple):
    """The changes written in a month about one that was closed."""

    written_in: str
    month: str
    delta: Sums


@dataclass(frozen=True, slots=True)
class Report:
    """A report of books, by groups. Rows by time are in its order, others begin with the highest cost."""

    by: tuple[str, ...]
    zone: str
    rows: list[Row]
    total: Row
    closed: list[ClosedMonth]
    later: list[LaterChange]
    dropped: int
    """The number of entries that were lost before they were written, as the books record it."""

    unreadable: Unreadable
    first_us: int | None
    last_us: int | None


@dataclass(slots=True)
class _Group:
    booked: list[int] = field(default_factory=lambda: [0] * len(NOTHING))
    later: list[int] = field(default_factory=lambda: [0] * len(NOTHING))
    moved: list[int] = field(default_factory=lambda: [0] * len(NOTHING))
    """The changes that were written later about periods of this group."""


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

    Days and months are those of the `zone`; where that is None, of the zone in which months were closed, or of UTC.
    """
    for name in by:
        if name not in DIMENSIONS:
            raise ArgumentError(f"a report is made by {', '.join(DIMENSIONS)}, not by {name!r:.40}")
    unreadable = Unreadable()
    closings, corrected = _closings_and_corrections(books)
    used_zone = zone or _zone_of(closings)
    gathering = _Gathering(tuple(by), Periods(used_zone), since_us or 0, until_us, watch)
    calls = Calls(gathering.take, corrected, calls_to_remember(books, corrected))
    closed: list[ClosedMonth] = []
    for one, month_closings in zip(books, closings, strict=True):
        calls.begin_books()
        gathering.begin_books(month_closings)
        for record in one.records(unreadable):
            calls.add(record)
        calls.end()
        closed += gathering.closed_months(one.name)
    return gathering.report(used_zone, closed, calls.dropped, unreadable)


def zone_of(books: Sequence[ReadBooks]) -> str:
    """The zone in which months of these books were closed, or UTC."""
    return _zone_of(_closings_and_corrections(books)[0])


def _zone_of(closings: Sequence[Mapping[str, Closing]]) -> str:
    return next((closing.zone for month_closings in closings for closing in month_closings.values()), "UTC")


def _closings_and_corrections(books: Sequence[ReadBooks]) -> tuple[list[dict[str, Closing]], set[str]]:
    """(for each of the books, the first closing of each month, by month; the ids of corrected calls)."""
    closings: list[dict[str, Closing]] = []
    corrected = set[str]()
    for one in books:
        month_closings: dict[str, Closing] = {}
        for record in one.records(Unreadable(), manual_only=True):
            if isinstance(record, Closing):
                month_closings.setdefault(record.month, record)
            elif isinstance(record, Correction):
                corrected.add(record.entry.id)
        closings.append(month_closings)
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
        """Begin other books, with their closings by month."""
        self._closings = closings
        self._closing_periods = Periods(next(iter(closings.values())).zone) if closings else None
        self._months = {month: [NOTHING, NOTHING] for month in closings}

    def take(self, change: Change) -> None:
        """Add a change to its groups."""
        subject, delta, counted_us = change
        at_us = subject.at_us
        if self._closing_periods is not None:
            self._count_month(self._closing_periods, change)
        if self._is_in_range(at_us):
            self._note(at_us, delta)
            group = self._group(subject, at_us)
            _add(group.moved if counted_us else group.booked, delta)
        if counted_us and self._is_in_range(counted_us):
            _add(self._group(subject, counted_us).later, delta)
            assert self._closing_periods is not None
            pair = self._closing_periods.month(counted_us), self._closing_periods.month(at_us)
            self._later[pair] = self._later.get(pair, NOTHING).plus(delta)

    def _count_month(self, periods: Periods, change: Change) -> None:
        sums = self._months.get(periods.month(change.subject.at_us))
        if sums is not None:
            place = 1 if change.counted_us else 0
            sums[place] = sums[place].plus(change.delta)

    def _is_in_range(self, at_us: int) -> bool:
        return at_us >= self._since_us and (self._until_us is None or at_us < self._until_us)

    def _note(self, at_us: int, delta: Sums) -> None:
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
            ClosedMonth(books, closing, recorded_sums(closing, booked), booked, booked.plus(later))
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
        total_row = Row(
            ("",) * len(self._by),
            total(row.booked for row in rows),
            total(row.later for row in rows),
            total(row.restated for row in rows),
        )
        return Report(
            self._by, zone, rows, total_row, closed, later, dropped, unreadable, self._first_us, self._last_us
        )


def _add(sums: list[int], delta: Iterable[int]) -> None:
    for place, number in enumerate(delta):
        if number:
            sums[place] += number


def _row(key: tuple[str, ...], group: _Group) -> Row:
    booked = Sums(*group.booked)
    return Row(key, booked, Sums(*group.later), booked.plus(Sums(*group.moved)))


def recorded_sums(closing: Closing, booked: Sums) -> Sums:
    """The sums that a closing recorded; of what was not summed up then, the sums of its entries."""
    return Sums(**{name: closing.sums.get(name, booked_sum) for name, booked_sum in booked._asdict().items()})
