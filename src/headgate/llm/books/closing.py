"""The records that users append to books: corrections of a call, and closings of a month. Nothing is rewritten."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from headgate.calendars import check_zone
from headgate.errors import ArgumentError
from headgate.llm.books.calls import Calls, Change, Periods, Subject
from headgate.llm.books.opening import books_file
from headgate.llm.books.reading import ReadBooks, Unreadable, first_fault, read_books
from headgate.llm.books.records import Closing, Correction, Record
from headgate.llm.books.report import ClosedMonth, report_of
from headgate.llm.books.sums import NOTHING, Sums
from headgate.llm.entry import Entry
from headgate.llm.usage import Usage

_MONTH = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
_LONGEST_REASON = 1000


class Corrected(NamedTuple):
    """The sums of a call before a correction and after it, and the closed month that it belongs to, or ""."""

    before: Sums
    after: Sums
    closed_month: str


def correct(
    books: str,
    read: ReadBooks,
    id: str,
    *,
    cost: int | None,
    input: int | None = None,
    output: int | None = None,
    reason: str,
    author: str,
    now_us: int,
) -> Corrected:
    """Append what a call actually used and cost, in tokens and billionths of a dollar; None leaves a number as it was.

    Raises ArgumentError for a call that is not in the books, and where no number or no reason is given.
    """
    if cost is None and input is None and output is None:
        raise ArgumentError("a correction says what is true: a cost, or tokens of input or output")
    if not reason.strip() or len(reason) > _LONGEST_REASON:
        raise ArgumentError(f"a correction has a reason, a text of up to {_LONGEST_REASON} characters")
    call = _CallSums(id)
    for record in read.records(Unreadable()):
        call.add(record)
    call.calls.end()
    subject, before = call.subject, call.sums
    if subject is None or not before.calls:
        raise ArgumentError(f"{read.name}: no call {id[:80]!r} was admitted")
    usage = None
    if input is not None or output is not None:
        input_tokens = before.input + before.unsettled_input if input is None else input
        output_tokens = before.output + before.unsettled_output if output is None else output
        usage = Usage(input_tokens, output_tokens, cache_read=min(before.cache_read, input_tokens))
    entry = Entry(
        "corrected", id, now_us, subject.caller, subject.model, call.held_input, call.held_output, call.held_cost,
        usage=usage, cost=cost, admitted_us=subject.at_us,
    )  # fmt: skip
    correction = Correction(entry, reason.strip(), author)
    with _exclusive_append(books) as append:
        append(correction)
    call.add(correction)
    return Corrected(before, call.sums, call.closed_month)


class _CallSums:
    """Picks the records of one call, and adds up its sums."""

    def __init__(self, id: str) -> None:
        self._id = id
        self.calls = Calls(self._take_change, (id,))
        self.subject: Subject | None = None
        self.sums = NOTHING
        self.held_input = self.held_output = 0
        self.held_cost: int | None = None
        self._closings: dict[str, Closing] = {}

    def add(self, record: Record) -> None:
        if isinstance(record, Closing):
            self._closings.setdefault(record.month, record)
        else:
            entry = record.entry if isinstance(record, Correction) else record
            if not isinstance(entry, Entry) or entry.id != self._id:
                return
            self.held_input, self.held_output = entry.held_input, entry.held_output
            self.held_cost = entry.held_cost
        self.calls.add(record)

    def _take_change(self, change: Change) -> None:
        self.subject = change.subject
        self.sums = self.sums.plus(change.delta)

    @property
    def closed_month(self) -> str:
        if self.subject is None or not self._closings:
            return ""
        month = Periods(next(iter(self._closings.values())).zone).month(self.subject.at_us)
        return month if month in self._closings else ""


def close_month(books: str, month: str, *, zone: str | None, author: str, now_us: int) -> ClosedMonth:
    """Close a month of the zone, once it is over: its sums are recorded, and later changes are reported as such.

    Without a zone it is that of the months closed before, or UTC. Writers of the books wait meanwhile, so that the sums
    are those of all records before the closing. Raises ArgumentError for a month that is not over, is closed, or is of
    another zone than those closed before.
    """
    if not _MONTH.fullmatch(month):
        raise ArgumentError(f"a month is written 2026-10, not {month[:20]!r}")
    with _exclusive_append(books) as append, closing(read_books(books, waits=False)) as read:
        fault = first_fault(read)[1]
        if fault is not None:
            raise ArgumentError(
                f"{fault.source}: no entry could be read, so no month is closed; line {fault.line}: {fault.reason}"
            )
        for one in report_of([read]).closed:
            if one.closing.month == month:
                raise ArgumentError(f"{read.name}: {month} is closed already; what is wrong in it can be corrected")
            if zone not in (None, one.closing.zone):
                raise ArgumentError(
                    f"{read.name}: its months are closed in {one.closing.zone}, and so is {month}, not in {zone}"
                )
            zone = one.closing.zone
        zone = check_zone(zone or "UTC")
        since_us, until_us = bounds_us(month, zone)
        if now_us < until_us:
            raise ArgumentError(f"{month} is not over yet in {zone}, and only a month that is over can be closed")
        sums = report_of([read], zone=zone, since_us=since_us, until_us=until_us).total.booked
        record = Closing(now_us, month, zone, sums._asdict(), author)
        append(record)
        return ClosedMonth(read.name, record, sums, sums, sums)


def bounds_us(period: str, zone: str) -> tuple[int, int]:
    """(from, until) in microseconds of a month, `2026-10`, or a day, `2026-10-31`, by the clocks of a zone."""
    clocks = ZoneInfo(check_zone(zone))
    try:
        first = datetime.fromisoformat(f"{period}-01" if _MONTH.fullmatch(period) else period)
        last = (first.replace(day=28) + timedelta(days=4)).replace(day=1) if len(period) == 7 else first + timedelta(1)
        if len(period) not in (7, 10):
            raise ValueError("no day")
    except (ValueError, OverflowError):
        raise ArgumentError(f"a month is written 2026-10 and a day 2026-10-31, not {period[:20]!r}") from None
    return _moment_us(first, clocks), _moment_us(last, clocks)


def _moment_us(local: datetime, zone: ZoneInfo) -> int:
    return int(local.replace(tzinfo=zone).timestamp()) * 1_000_000


@contextmanager
def _exclusive_append(books: str) -> Iterator[Callable[[Record], None]]:
    """Yield a function that appends a record, while no other process writes."""
    file = books_file(books)
    try:
        with file.exclusive() as append:
            yield append
    finally:
        file.close()
