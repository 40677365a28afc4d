"""Books under any sequence of entries: exact sums in both formats, and closed months stay as they were."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.cli.llm_report_text import json_text
from headgate.llm.books.database import SqliteFile
from headgate.llm.books.json_lines import JsonLinesFile
from headgate.llm.books.reading import ReadBooks, Unreadable, read_books
from headgate.llm.books.records import FIELDS, Closing, Correction, Dropped, Record, fields_of, record_of
from headgate.llm.books.report import Report, report_of
from headgate.llm.entry import Caller, Entry, EntryKind, SettleMode
from headgate.llm.usage import Usage

DAY_US = 86_400_000_000
OCTOBER_US, NOVEMBER_US, DECEMBER_US = 1_790_812_800_000_000, 1_793_491_200_000_000, 1_796_083_200_000_000

COSTS = st.one_of(st.none(), st.integers(0, 10**13))
TOKENS = st.integers(0, 1 << 40)
MODES: list[SettleMode] = ["exact", "at least", "cancelled", "failed", "unknown"]
KINDS: list[EntryKind] = ["held", "held", "extended", "settled", "settled", "refused", "corrected"]
MOMENTS = st.integers(OCTOBER_US, DECEMBER_US + 20 * DAY_US)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    sent, output = draw(TOKENS), draw(TOKENS)
    return Usage(sent, output, draw(st.integers(0, sent)), 0, 0, draw(st.integers(0, output)), draw(st.integers(0, 3)))


@st.composite
def entries(draw: st.DrawFn) -> Record:
    """A record of one of a few calls: settled before it is held, twice or never, refused, or corrected."""
    kind = draw(st.sampled_from(KINDS))
    number = draw(st.integers(0, 5))
    admitted_us = OCTOBER_US + number * 13 * DAY_US  # of October, November and December
    caller = Caller(user=f"u{number % 2}", team="red")
    at_us = admitted_us if kind in ("held", "refused") else draw(MOMENTS)
    entry = Entry(
        kind, f"call-{number}", at_us, caller, f"m{number % 3}", draw(st.integers(0, 2000)), draw(st.integers(0, 2000)),
        draw(COSTS), 60_000_000 if kind in ("held", "extended") else 0,
    )  # fmt: skip
    if kind == "extended":
        return entry._replace(admitted_us=admitted_us)
    if kind == "settled":
        mode = draw(st.sampled_from(MODES))
        usage = draw(st.one_of(st.none(), usages()))
        return entry._replace(mode=mode, usage=usage, cost=draw(COSTS), price="p1", admitted_us=admitted_us)
    if kind == "corrected":
        entry = entry._replace(usage=draw(st.one_of(st.none(), usages())), cost=draw(COSTS), admitted_us=admitted_us)
        return Correction(entry, "the bill says so", "carla")
    return entry._replace(limit="user: 20 usd/day") if kind == "refused" else entry


class Listed:
    """Books that are a list."""

    name = "a list"

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def records(self, unreadable: Unreadable, *, manual_only: bool = False) -> Iterator[Record]:
        yield from self._records

    def ids(self) -> Iterator[tuple[bool, str]]:
        for record in self._records:
            if isinstance(record, Entry) and record.kind in ("held", "extended", "settled"):
                yield record.kind == "settled", record.id

    def close(self) -> None:
        pass


def by_brute_force(records: Sequence[Record]) -> dict[tuple[str, str], list[int]]:
    """[calls, refused, input, output, cost, held cost] by user and model."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * 6)
    calls: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        entry = record.entry if isinstance(record, Correction) else record
        assert isinstance(entry, Entry)
        if entry.kind == "refused":
            sums[entry.caller.user, entry.model][1] += 1
        else:
            calls[entry.id].append(record)
    for found in calls.values():
        first = found[0].entry if isinstance(found[0], Correction) else found[0]
        assert isinstance(first, Entry)
        sent = output = held_sent = held_output = cost = held_cost = 0
        is_done = is_held = False
        for record in found:
            if isinstance(record, Correction):
                entry = record.entry
                sent, output = (sent + held_sent, output + held_output) if entry.usage is None else entry.usage[:2]
                cost = cost + held_cost if entry.cost is None else entry.cost
                held_sent = held_output = held_cost = 0
                is_done = True
            elif isinstance(record, Entry) and record.kind in ("held", "extended") and not is_done:
                if record.kind == "extended" or not is_held:
                    held_sent, held_output, held_cost = record.held_input, record.held_output, record.held_cost or 0
                is_held = True
            elif isinstance(record, Entry) and record.kind == "settled" and not is_done:
                void = record.mode in ("cancelled", "failed")
                as_held = (0, 0) if void else (record.held_input, record.held_output)
                sent, output = as_held if record.usage is None else record.usage[:2]
                cost, held_sent, held_output, held_cost, is_done = record.cost or 0, 0, 0, 0, True
        group = sums[first.caller.user, first.model]
        for place, number in enumerate((1, 0, sent, output, cost, held_cost)):
            group[place] += number
    return {key: found for key, found in sums.items() if any(found)}


def summed(report: Report) -> dict[tuple[str, ...], list[int]]:
    found = {}
    for row in report.rows:
        sums = row.restated
        found[row.group] = [sums.calls, sums.refused, sums.input, sums.output, sums.cost, sums.unsettled_cost]
    return {key: numbers for key, numbers in found.items() if any(numbers)}


@given(st.lists(entries(), max_size=30))
def test_sums_are_those_of_every_call_counted_once_as_it_was_settled_first_and_corrected_last(
    records: list[Record],
) -> None:
    report = report_of([Listed(records)], by=["user", "model"])
    assert summed(report) == by_brute_force(records)
    assert report.total.booked == report.total.restated


@given(st.lists(entries(), max_size=12), st.lists(entries(), max_size=12), st.lists(entries(), max_size=12))
def test_a_closed_month_stays_as_it_was_and_changes_are_reported_as_later_ones(
    before: list[Record], between: list[Record], after: list[Record]
) -> None:
    def sums_of(month: str, records: list[Record]) -> dict[str, int]:
        rows = report_of([Listed(records)], by=["month"]).rows
        return next((row.booked._asdict() for row in rows if row.group == (month,)), {})

    october = Closing(NOVEMBER_US + DAY_US, "2026-10", "UTC", sums_of("2026-10", before))
    so_far = [*before, october, *between]
    november = Closing(DECEMBER_US + DAY_US, "2026-11", "UTC", sums_of("2026-11", so_far))
    records = [*so_far, november, *after]
    report = report_of([Listed(records)], by=["month", "user"])
    assert [month.booked for month in report.closed] == [month.recorded for month in report.closed]
    assert report.total.booked.plus(report.total.later) == report.total.restated
    plain = [record for record in records if not isinstance(record, Closing)]
    restated = report_of([Listed(plain)], by=["month", "user"])
    assert {row.group: row.restated for row in report.rows if any(row.restated)} == {
        row.group: row.restated for row in restated.rows if any(row.restated)
    }
    for month in report.closed:
        later = [change.delta for change in report.later if change.month == month.closing.month]
        total = month.booked
        for delta in later:
            total = total.plus(delta)
        assert total == month.restated
    assert all(change.written_in > change.month for change in report.later)


@given(st.lists(st.one_of(entries(), st.builds(Dropped, MOMENTS, st.integers(1, 9))), min_size=1, max_size=8))
def test_a_record_is_read_as_it_was_written(records: list[Record]) -> None:
    lines, rows = JsonLinesFile(Path("unused")), SqliteFile(Path("unused"))
    for record in records:
        assert record_of(json.loads(lines.encode(record)[1])) == record
        assert record_of(dict(zip(FIELDS, rows.encode(record), strict=True))) == record


@given(st.dictionaries(st.sampled_from(FIELDS), st.one_of(st.none(), st.integers(-5, 1 << 60), st.text(), st.just([]))))
def test_fields_of_any_kind_are_a_record_or_a_value_error(fields: dict[str, object]) -> None:
    record = None
    with suppress(ValueError):  # and no other error
        record = record_of(fields)
    assert record is None or record_of(fields_of(record)) == record


@settings(max_examples=max(15, settings().max_examples // 10))
@given(st.lists(entries(), min_size=1, max_size=30))
def test_both_forms_give_the_same_report(records: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reports = []
        for file in (JsonLinesFile(Path(folder, "b.jsonl"), daily=False), SqliteFile(Path(folder, "b.db"))):
            for start in range(0, len(records), 7):
                file.append([file.encode(record) for record in records[start : start + 7]])
            file.close()
            books: ReadBooks = read_books(file.path)
            reports.append(json_text(report_of([books], by=["month", "user", "model", "limit"])))
            books.close()
    assert reports[0] == reports[1] == json_text(report_of([Listed(records)], by=["month", "user", "model", "limit"]))
