"""Corrections and closed months: appended, never rewritten, and reported together with the sums before."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headgate.errors import ArgumentError
from headgate.llm.books import open_books, read_books, reconcile, report_of
from headgate.llm.books.calls import Periods
from headgate.llm.books.closing import Corrected, bounds_us, close_month, correct
from headgate.llm.books.json_lines import JsonLinesFile
from headgate.llm.books.records import Closing, Correction, Dropped, Record
from headgate.llm.books.report import Report
from headgate.llm.entry import Caller, Entry
from headgate.llm.usage import Usage

DAY_US = 86_400_000_000
OCTOBER_US, NOVEMBER_US = 1_790_812_800_000_000, 1_793_491_200_000_000
FORMS = ["books.jsonl", "books.db"]


def held(id: str, at_us: int, user: str = "anna") -> Entry:
    return Entry("held", id, at_us, Caller(user=user), "gpt-5", 100, 800, 8_000_000, 600_000_000)


def settled(id: str, at_us: int, *, cost: int = 1_000_000, late_us: int = 1) -> Entry:
    entry = held(id, at_us)._replace(kind="settled", at_us=at_us + late_us, lease_us=0, mode="exact")
    return entry._replace(usage=Usage(90, 10, 50), cost=cost, admitted_us=at_us)


def write(path: Path, *entries: Entry) -> None:
    with open_books(path) as books:
        for entry in entries:
            books.add(entry)


def read(path: Path, *by: str) -> Report:
    with closing(read_books(path)) as books:
        return report_of([books], by=by)


def close(path: Path, month: str, *, zone: str | None = None, now_us: int = NOVEMBER_US + DAY_US) -> None:
    close_month(str(path), month, zone=zone, author="carla", now_us=now_us)


def corrected(path: Path, id: str, *, cost: int | None, now_us: int, input: int | None = None) -> Corrected:
    with closing(read_books(path)) as books:
        return correct(
            str(path), books, id, cost=cost, input=input, reason="the bill says so", author="carla", now_us=now_us
        )


@pytest.mark.parametrize("form", FORMS)
def test_changes_of_a_closed_month_count_in_the_month_of_writing_and_in_restated_sums(
    tmp_path: Path, form: str
) -> None:
    path = tmp_path / form
    write(path, held("a", OCTOBER_US), settled("a", OCTOBER_US), held("b", OCTOBER_US), held("c", NOVEMBER_US))
    close(path, "2026-10")
    write(path, settled("b", OCTOBER_US, cost=3_000_000, late_us=33 * DAY_US), settled("c", NOVEMBER_US))
    result = corrected(path, "a", cost=500_000, now_us=NOVEMBER_US + 20 * DAY_US)
    assert (result.before.cost, result.after.cost, result.closed_month) == (1_000_000, 500_000, "2026-10")

    report = read(path, "month")
    october, november = report.rows
    assert (october.booked.cost, october.booked.unsettled_cost, october.later.cost) == (1_000_000, 8_000_000, 0)
    assert (october.restated.cost, october.restated.unsettled_cost) == (3_500_000, 0)
    assert (november.booked.cost, november.later.cost, november.restated.cost) == (1_000_000, 2_500_000, 1_000_000)
    assert (november.later.unsettled_cost, november.later.corrected) == (-8_000_000, 1)
    (month,) = report.closed
    assert month.recorded == month.booked == october.booked and month.restated == october.restated
    (change,) = report.later
    assert (change.written_in, change.month, change.delta.cost) == ("2026-11", "2026-10", 2_500_000)
    assert report.total.booked.plus(report.total.later) == report.total.restated


def test_a_month_is_closed_once_when_it_is_over_and_in_one_zone(tmp_path: Path) -> None:
    path = tmp_path / "books.db"
    write(path, held("a", OCTOBER_US))
    with pytest.raises(ArgumentError, match="2026-11 is not over yet in UTC"):
        close(path, "2026-11")
    with pytest.raises(ArgumentError, match="a month is written 2026-10, not '2026-13'"):
        close(path, "2026-13")
    midnight_us = bounds_us("2026-10", "Europe/Zurich")[1]
    assert midnight_us == NOVEMBER_US - 3_600_000_000
    with pytest.raises(ArgumentError, match="not over yet"):
        close(path, "2026-10", zone="Europe/Zurich", now_us=midnight_us - 1)
    close(path, "2026-10", zone="Europe/Zurich", now_us=midnight_us)
    with pytest.raises(ArgumentError, match="2026-10 is closed already"):
        close(path, "2026-10")
    with pytest.raises(ArgumentError, match="its months are closed in Europe/Zurich, and so is 2026-09, not in UTC"):
        close(path, "2026-09", zone="UTC")
    close(path, "2026-09")
    assert [(month.closing.month, month.closing.zone) for month in read(path).closed] == [
        ("2026-09", "Europe/Zurich"),
        ("2026-10", "Europe/Zurich"),
    ]


def test_entries_that_vanish_from_a_closed_month_show(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    write(path, held("a", OCTOBER_US), settled("a", OCTOBER_US), held("b", OCTOBER_US), settled("b", OCTOBER_US))
    close(path, "2026-10")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"id":"b"' not in line))
    (month,) = read(path).closed
    assert (month.recorded.calls, month.booked.calls) == (2, 1)


def test_a_correction_of_an_unsettled_hold_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    write(path, held("a", NOVEMBER_US))
    corrected(path, "a", cost=0, input=95, now_us=NOVEMBER_US + DAY_US)
    sums = read(path).total.booked
    assert (sums.calls, sums.unsettled, sums.cost, sums.input, sums.output, sums.corrected) == (1, 0, 0, 95, 800, 1)
    with closing(read_books(path)) as books:
        assert reconcile([books], now_us=NOVEMBER_US + DAY_US).is_clean


def test_a_correction_needs_a_call_a_truth_and_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    write(path, held("a", NOVEMBER_US), held("r", NOVEMBER_US)._replace(kind="refused", limit="user"))
    with pytest.raises(ArgumentError, match="a correction says what is true"):
        corrected(path, "a", cost=None, now_us=NOVEMBER_US)
    for id in ("b", "r"):
        with pytest.raises(ArgumentError, match=f"no call '{id}' was admitted"):
            corrected(path, id, cost=1, now_us=NOVEMBER_US)
    with closing(read_books(path)) as books, pytest.raises(ArgumentError, match="a correction has a reason"):
        correct(str(path), books, "a", cost=1, reason=" ", author="", now_us=NOVEMBER_US)
    assert len(path.read_text().splitlines()) == 2


def test_a_later_correction_replaces_an_earlier_one_and_both_stay_in_the_books(tmp_path: Path) -> None:
    path = tmp_path / "books.db"
    write(path, held("a", NOVEMBER_US), settled("a", NOVEMBER_US))
    corrected(path, "a", cost=7, now_us=NOVEMBER_US + 1)
    corrected(path, "a", cost=9, now_us=NOVEMBER_US + 2)
    sums = read(path).total.booked
    assert (sums.cost, sums.input, sums.cache_read, sums.corrected) == (9, 90, 50, 2)


def test_reconciling_lists_inconsistencies(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    now_us = NOVEMBER_US + DAY_US
    records: list[Record] = [
        held("lost", NOVEMBER_US),
        held("flying", now_us - 1),
        held("fine", NOVEMBER_US),
        settled("fine", NOVEMBER_US),
        settled("fine", NOVEMBER_US, cost=5, late_us=9),
        settled("orphan", NOVEMBER_US),
        Correction(settled("ghost", NOVEMBER_US)._replace(kind="corrected", mode=""), "a bill"),
        Dropped(now_us, 3),
        Closing(now_us, "2026-10", "UTC", {"calls": 0}),
    ]
    file = JsonLinesFile(path)
    file.append([file.encode(record) for record in records])
    file.close()
    with closing(read_books(path)) as books:
        found = reconcile([books], now_us=now_us)
    assert [entry.id for entry in found.unreconciled] == ["lost"]
    assert [entry.id for entry in found.in_flight] == ["flying"]
    assert [entry.id for entry in found.without_hold] == ["orphan"]
    assert [(entry.id, entry.cost) for entry in found.settled_again] == [("fine", 5)]
    assert [entry.id for entry in found.corrected_unknown] == ["ghost"]
    assert found.dropped == 3 and not found.is_clean
    sums = read(path).total.booked
    assert (sums.calls, sums.unsettled, sums.cost) == (5, 2, 3_000_000)


def test_an_extended_hold_is_reconciled_after_its_last_lease_with_its_last_amounts(
    tmp_path: Path,
) -> None:
    """Held for ten minutes, extended after five and after seven: the last lease ends after seventeen."""
    path, minute_us = tmp_path / "books.db", 60_000_000
    first = held("a", NOVEMBER_US)
    later = [
        first._replace(
            kind="extended", at_us=NOVEMBER_US + minutes * minute_us, held_output=entries, held_cost=entries,
            admitted_us=NOVEMBER_US,
        )
        for minutes, entries in ((5, 1000), (7, 1200))
    ]  # fmt: skip
    write(path, first, *later, held("b", NOVEMBER_US), later[0]._replace(id="b"), settled("b", NOVEMBER_US))
    with closing(read_books(path)) as books:
        found = reconcile([books], now_us=NOVEMBER_US + 17 * minute_us - 1)
        assert [entry.id for entry in found.in_flight] == ["a"] and found.is_clean
        found = reconcile([books], now_us=NOVEMBER_US + 17 * minute_us)
    [entry] = found.unreconciled
    assert (entry.at_us, entry.lease_us) == (NOVEMBER_US, 17 * minute_us)
    assert (entry.held_output, entry.held_cost) == (1200, 1200)
    sums = read(path).total.booked
    assert (sums.calls, sums.unsettled, sums.unsettled_output, sums.unsettled_cost) == (2, 1, 1200, 1200)


def test_a_hold_and_its_settling_in_two_books_fit_together_in_either_order(tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", held("a", NOVEMBER_US))
    write(tmp_path / "other.db", settled("a", NOVEMBER_US))
    for names in (["one.jsonl", "other.db"], ["other.db", "one.jsonl"]):
        books = [read_books(tmp_path / name) for name in names]
        sums = report_of(books).total.booked
        assert (sums.calls, sums.unsettled, sums.cost) == (1, 0, 1_000_000)
        assert reconcile(books, now_us=NOVEMBER_US + DAY_US).is_clean
        for one in books:
            one.close()


def test_an_unknown_price_is_not_zero_dollars(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    unknown = settled("a", NOVEMBER_US)._replace(cost=None, held_cost=None)
    write(
        path, held("a", NOVEMBER_US)._replace(held_cost=None), unknown, held("b", NOVEMBER_US)._replace(held_cost=None)
    )
    sums = read(path).total.booked
    assert (sums.unpriced, sums.cost, sums.unsettled_cost) == (2, 0, 0)


def test_days_are_those_of_the_zone_when_its_clocks_change(tmp_path: Path) -> None:
    periods = Periods("Europe/Zurich")
    start_us, end_us = bounds_us("2026-10-25", "Europe/Zurich")
    assert end_us - start_us == 25 * 3_600_000_000
    assert [periods.day(at_us) for at_us in (start_us - 1, start_us, end_us - 1, end_us)] == [
        "2026-10-24",
        "2026-10-25",
        "2026-10-25",
        "2026-10-26",
    ]


def test_since_and_until_bound_what_counts(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    write(path, *[settled(str(day), OCTOBER_US + day * DAY_US) for day in range(40)])
    with closing(read_books(path)) as books:
        between = report_of([books], by=["day"], since_us=NOVEMBER_US, until_us=NOVEMBER_US + 3 * DAY_US)
        with pytest.raises(ArgumentError, match="not by 'price'"):
            report_of([books], by=["price"])
    assert [row.group for row in between.rows] == [("2026-11-01",), ("2026-11-02",), ("2026-11-03",)]
