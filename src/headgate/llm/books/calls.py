"""The calls in books, entry by entry: what each one adds to sums at any time, and in which month that counts.

A call counts in the period of its admission. Once that month is closed, a change is a later change: it counts in the
period in which it was written, and in the restated sums of the call's own period.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple
from zoneinfo import ZoneInfo

from headgate.calendars import check_zone
from headgate.clock import utc_moment
from headgate.llm.books.records import Closing, Correction, Dropped, Record
from headgate.llm.books.sums import NOTHING, REFUSED, Sums, of_correction, of_hold, of_settling
from headgate.llm.entry import Caller, Entry

_QUARTER_US = 900_000_000
"""Clocks of zones change at whole quarters of an hour since the epoch, as offsets of this century are."""


class Periods:
    """Converts times to the days and months of a zone."""

    def __init__(self, zone: str) -> None:
        self.zone = check_zone(zone)
        self._zone = ZoneInfo(zone)
        self._days: dict[int, str] = {}

    def day(self, at_us: int) -> str:
        """`2026-11-23`."""
        quarter = at_us // _QUARTER_US
        day = self._days.get(quarter)
        if day is None:
            time = utc_moment(quarter * _QUARTER_US)
            day = self._days[quarter] = time.astimezone(self._zone).date().isoformat()
        return day

    def month(self, at_us: int) -> str:
        """`2026-11`."""
        return self.day(at_us)[:7]


class Subject(NamedTuple):
    """What a call is grouped by: the time it was admitted or refused, its caller and model, the limit that refused."""

    at_us: int
    caller: Caller
    model: str
    limit: str = ""


class Change(NamedTuple):
    """A change of a call's sums by `delta`.

    `counted_us` is 0 where the change counts in the period of the call's admission. Where that month was closed, it is
    the time in whose period the change counts.
    """

    subject: Subject
    delta: Sums
    counted_us: int = 0


TakeChange = Callable[[Change], None]


class Calls:
    """Reads the records of one or several books and passes on each change of what their calls add to sums.

    `corrected` are the ids that have corrections anywhere: the sums of these calls are remembered. `remembered` are
    those that may have records after they were settled; None for all.
    """

    def __init__(
        self, take_change: TakeChange, corrected: Iterable[str] = (), remembered: Container[str] | None = None
    ) -> None:
        self.dropped = 0
        self._take_change = take_change
        self._corrected = frozenset(corrected)
        self._remembered = remembered
        self._holds: dict[str, tuple[Subject, Sums]] = {}
        self._settled: set[str] = set()
        self._taken: dict[str, tuple[Subject, Sums]] = {}
        """The sums that were passed on, of calls that may still change."""

        self._closed: dict[str, int] = {}
        self._closing_periods: Periods | None = None

    def begin_books(self) -> None:
        """Begin other books, whose closings concern their own months."""
        self.end()
        self._closed, self._closing_periods = {}, None

    def end(self) -> None:
        """Count the amounts of holds that are not settled as held."""
        for id, (subject, held) in self._holds.items():
            if id not in self._taken:
                self._change(id, subject, held, subject.at_us, keep=True)

    def add(self, record: Record) -> None:
        """Take the next record."""
        if isinstance(record, Entry):
            self._entry(record)
        elif isinstance(record, Correction):
            self._correct(record)
        elif isinstance(record, Dropped):
            self.dropped += record.entries
        else:
            self._close(record)

    def _entry(self, entry: Entry) -> None:
        if entry.kind == "settled":
            self._settle(entry)
        elif entry.kind == "held":
            if entry.id not in self._holds and entry.id not in self._settled:
                self._holds[entry.id] = Subject(entry.at_us, entry.caller, entry.model), of_hold(entry)
        elif entry.kind == "extended":
            self._extend(entry)
        else:
            subject = Subject(entry.at_us, entry.caller, entry.model, entry.limit)
            self._change("", subject, REFUSED, entry.at_us, keep=False)

    def _extend(self, entry: Entry) -> None:
        """Take the amounts of the last extension as held."""
        if entry.id in self._settled:
            return
        held = self._holds.get(entry.id)
        subject = held[0] if held else Subject(entry.admitted_us or entry.at_us, entry.caller, entry.model)
        self._holds[entry.id] = subject, of_hold(entry)
        if entry.id in self._taken:  # its month was closed
            self._change(entry.id, subject, of_hold(entry), entry.at_us, keep=True)

    def _settle(self, entry: Entry) -> None:
        if entry.id in self._settled:
            return  # the first one counts, as it does in the limits
        if self._remembered is None or entry.id in self._remembered:
            self._settled.add(entry.id)
        held = self._holds.pop(entry.id, None)
        subject = held[0] if held else Subject(entry.admitted_us or entry.at_us, entry.caller, entry.model)
        self._change(entry.id, subject, of_settling(entry), entry.at_us, keep=entry.id in self._corrected)

    def _correct(self, correction: Correction) -> None:
        entry = correction.entry
        held = self._holds.pop(entry.id, None)
        subject, before = self._taken.get(entry.id) or held or (None, NOTHING)
        if subject is None:
            subject = Subject(entry.admitted_us or entry.at_us, entry.caller, entry.model)
        self._settled.add(entry.id)  # later entries of the call itself no longer count
        self._change(entry.id, subject, of_correction(correction, before), entry.at_us, keep=True)

    def _close(self, closing: Closing) -> None:
        if self._closing_periods is None:
            self._closing_periods = Periods(closing.zone)
        if closing.month in self._closed:
            return
        for id, (subject, held) in self._holds.items():
            if id not in self._taken and self._closing_periods.month(subject.at_us) == closing.month:
                self._change(id, subject, held, subject.at_us, keep=True)
        self._closed[closing.month] = closing.at_us

    def _change(self, id: str, subject: Subject, sums: Sums, at_us: int, *, keep: bool) -> None:
        before = self._taken.pop(id, None)
        if keep:
            self._taken[id] = subject, sums
        delta = sums if before is None else sums.minus(before[1])
        self._take_change(Change(subject, delta, self._counted_us(subject.at_us, at_us) if self._closed else 0))

    def _counted_us(self, admitted_us: int, at_us: int) -> int:
        """The time at which a change counts whose month is closed; 0 where it is not closed.

        A change that was written after a month was closed does not count before that, whatever its time.
        """
        assert self._closing_periods is not None
        closed_us = self._closed.get(self._closing_periods.month(admitted_us))
        if closed_us is None:
            return 0
        at_us = max(at_us, closed_us)
        while (later_us := self._closed.get(self._closing_periods.month(at_us), 0)) > at_us:
            at_us = later_us
        return at_us
