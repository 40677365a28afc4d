"""The calls that books tell of, entry by entry: what each one is worth at any moment, and in which month that counts.

A call counts in the period of its admission. Once the month of that is closed, what changes is a later change: it
counts in the period in which it was written, and in the restated sums of the call's own.
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
    """The days and months of moments by the clocks of a zone."""

    def __init__(self, zone: str) -> None:
        self.zone = check_zone(zone)
        self._zone = ZoneInfo(zone)
        self._days: dict[int, str] = {}

    def day(self, at_us: int) -> str:
        """`2026-11-23`."""
        quarter = at_us // _QUARTER_US
        day = self._days.get(quarter)
        if day is None:
            moment = utc_moment(quarter * _QUARTER_US)
            day = self._days[quarter] = moment.astimezone(self._zone).date().isoformat()
        return day

    def month(self, at_us: int) -> str:
        """`2026-11`."""
        return self.day(at_us)[:7]


class Subject(NamedTuple):
    """What a call is counted by: when it was admitted or refused, for whom, of which model, and which limit refused."""

    at_us: int
    caller: Caller
    model: str
    limit: str = ""


class Change(NamedTuple):
    """Sums change by `delta` for a call.

    `made_us` is 0 where that is a part of what its own period was; else its month was closed by then, and the change
    counts in the period of that moment.
    """

    subject: Subject
    delta: Sums
    made_us: int = 0


Take = Callable[[Change], None]


class Calls:
    """Reads the records of one or several books and gives each change of what their calls are worth.

    `corrected` are the ids that have corrections anywhere: what these calls are worth is remembered. `remembered` are
    those that may be told of after they were settled; None for all.
    """

    def __init__(self, take: Take, corrected: Iterable[str] = (), remembered: Container[str] | None = None) -> None:
        self.dropped = 0
        self._take = take
        self._corrected = frozenset(corrected)
        self._remembered = remembered
        self._held: dict[str, tuple[Subject, Sums]] = {}
        self._settled: set[str] = set()
        self._worth: dict[str, tuple[Subject, Sums]] = {}
        """What was taken of calls that may still change."""

        self._closed: dict[str, int] = {}
        self._closed_by: Periods | None = None

    def begin_books(self) -> None:
        """The records of other books follow, which close their own months."""
        self.end()
        self._closed, self._closed_by = {}, None

    def end(self) -> None:
        """What is still held is counted as that."""
        for id, (subject, held) in self._held.items():
            if id not in self._worth:
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
            if entry.id not in self._held and entry.id not in self._settled:
                self._held[entry.id] = Subject(entry.at_us, entry.caller, entry.model), of_hold(entry)
        elif entry.kind == "extended":
            self._extend(entry)
        else:
            subject = Subject(entry.at_us, entry.caller, entry.model, entry.limit)
            self._change("", subject, REFUSED, entry.at_us, keep=False)

    def _extend(self, entry: Entry) -> None:
        """Of what is held, as much as is told last."""
        if entry.id in self._settled:
            return
        held = self._held.get(entry.id)
        subject = held[0] if held else Subject(entry.admitted_us or entry.at_us, entry.caller, entry.model)
        self._held[entry.id] = subject, of_hold(entry)
        if entry.id in self._worth:  # its month was closed
            self._change(entry.id, subject, of_hold(entry), entry.at_us, keep=True)

    def _settle(self, entry: Entry) -> None:
        if entry.id in self._settled:
            return  # the first one counts, as it does in the limits
        if self._remembered is None or entry.id in self._remembered:
            self._settled.add(entry.id)
        held = self._held.pop(entry.id, None)
        subject = held[0] if held else Subject(entry.admitted_us or entry.at_us, entry.caller, entry.model)
        self._change(entry.id, subject, of_settling(entry), entry.at_us, keep=entry.id in self._corrected)

    def _correct(self, correction: Correction) -> None:
        entry = correction.entry
        held = self._held.pop(entry.id, None)
        subject, before = self._worth.get(entry.id) or held or (None, NOTHING)
        if subject is None:
            subject = Subject(entry.admitted_us or entry.at_us, entry.caller, entry.model)
        self._settled.add(entry.id)  # what the call itself says later counts no more
        self._change(entry.id, subject, of_correction(correction, before), entry.at_us, keep=True)

    def _close(self, closing: Closing) -> None:
        if self._closed_by is None:
            self._closed_by = Periods(closing.zone)
        if closing.month in self._closed:
            return
        for id, (subject, held) in self._held.items():
            if id not in self._worth and self._closed_by.month(subject.at_us) == closing.month:
                self._change(id, subject, held, subject.at_us, keep=True)
        self._closed[closing.month] = closing.at_us

    def _change(self, id: str, subject: Subject, worth: Sums, at_us: int, *, keep: bool) -> None:
        before = self._worth.pop(id, None)
        if keep:
            self._worth[id] = subject, worth
        delta = worth if before is None else worth.minus(before[1])
        self._take(Change(subject, delta, self._made_us(subject.at_us, at_us) if self._closed else 0))

    def _made_us(self, admitted_us: int, at_us: int) -> int:
        """When a change counts whose month is closed; 0 where it is not.

        A change that was written after a month was closed does not count before that, whatever its moment says.
        """
        assert self._closed_by is not None
        closed_us = self._closed.get(self._closed_by.month(admitted_us))
        if closed_us is None:
            return 0
        at_us = max(at_us, closed_us)
        while (later_us := self._closed.get(self._closed_by.month(at_us), 0)) > at_us:
            at_us = later_us
        return at_us
