"""Books of any size are read in bounded memory: settled calls are forgotten."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.llm.books import read_books, reconcile, report_of
from headgate.llm.books.database import SqliteFile
from headgate.llm.books.json_lines import JsonLinesFile
from headgate.llm.books.reading import ReadBooks
from headgate.llm.books.remembering import calls_to_remember
from headgate.llm.entry import Caller, Entry
from headgate.llm.usage import Usage

NOVEMBER_US = 1_793_491_200_000_000
ALWAYS = 20
"""The calls that are never settled, and those that are settled twice, in books of any size."""


def written(path: Path, calls: int) -> ReadBooks:
    """Write books of this number of calls within an hour, by five users."""
    file = SqliteFile(path) if path.suffix == ".db" else JsonLinesFile(path, daily=False)
    batch = []
    for number in range(calls):
        at_us = NOVEMBER_US + number * 3_600_000_000 // calls
        held = Entry("held", f"h1{number:026}", at_us, Caller(user=f"u{number % 5}"), "gpt-5", 100, 800, 8_000_000, 1)
        usage = Usage(90, 10)
        settled = held._replace(
            kind="settled", at_us=at_us + 1, lease_us=0, mode="exact", usage=usage, cost=1, admitted_us=at_us
        )
        batch += [held] if number < ALWAYS else [held, settled]
        batch += [settled._replace(cost=5)] if ALWAYS <= number < 2 * ALWAYS else []
        if len(batch) > 500:
            file.append([file.encode(entry) for entry in batch])
            batch.clear()
    file.append([file.encode(entry) for entry in batch])
    file.close()
    return read_books(path)


def peak_of(work: Callable[[], object]) -> int:
    """The peak of additional bytes in Python objects while `work` runs."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["jsonl", "db"])
def test_four_times_as_many_calls_take_no_more_memory(tmp_path: Path, form: str) -> None:
    peaks = []
    for calls in (1500, 6000):
        books = written(tmp_path / f"{calls}.{form}", calls)

        def work(books: ReadBooks = books, calls: int = calls) -> None:
            report = report_of([books], by=["user", "day"])
            found = reconcile([books], now_us=NOVEMBER_US * 2)
            assert (report.total.booked.calls, report.total.booked.cost) == (calls, calls - ALWAYS)
            assert len(found.unreconciled) == len(found.settled_again) == ALWAYS and not found.without_hold

        work()  # creates what is created only once
        peaks.append(peak_of(work))
        books.close()
    assert peaks[1] < peaks[0] + 64 * 1024, "6,000 ids alone are half a megabyte"


def test_calls_with_entries_after_their_settling_are_remembered(tmp_path: Path) -> None:
    held = Entry("held", "usual", 1, Caller(), "m", 1, 1, None)
    settled = held._replace(kind="settled", mode="unknown")
    entries: list[Entry] = [
        held, settled,
        held._replace(id="twice"), settled._replace(id="twice"), settled._replace(id="twice"),
        settled._replace(id="before"), held._replace(id="before"),
        settled._replace(id="extended"), held._replace(id="extended", kind="extended"),
        held._replace(id="open"), held._replace(id='a "quote" and é'), settled._replace(id='a "quote" and é'),
    ]  # fmt: skip
    for file in (JsonLinesFile(tmp_path / "b.jsonl", daily=False), SqliteFile(tmp_path / "b.db")):
        file.append([file.encode(entry) for entry in entries])
        file.close()
        books = read_books(file.path)
        remembered = calls_to_remember([books], ["corrected"])
        assert {id for _, id in books.ids()} == {entry.id for entry in entries}
        found = {id for id in [*(entry.id for entry in entries), "corrected", "none"] if id in remembered}
        assert found == {"twice", "before", "extended", "corrected"}
        both = calls_to_remember([books, books], [])
        ids = {entry.id for entry in entries}
        assert {id for id in ids if id in both} == ids - {"open"}, "their entries are repeated in the second books"
        books.close()


def test_lines_of_another_form_are_read_as_json(tmp_path: Path) -> None:
    lines = ['{"id": "a", "kind": "held"}', '{"kind":"held","id":"b","id":"c"}', '{"kind":"held","id":"\\u0064","x":1}']
    lines += ["[1]", "{", '{"kind":"settled","id":5}', '{"kind":"refused","id":"e"}', '{"kind":"settled","at_us":1}']
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n")
    books = read_books(tmp_path / "b.jsonl")
    assert list(books.ids()) == [(False, "a"), (False, "c"), (False, "d"), (True, "")]
    books.close()
