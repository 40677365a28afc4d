"""Books are written in the background, never block or raise, are rotated, and can be read while they are written."""

from __future__ import annotations

import gzip
import os
import sqlite3
import stat
import threading
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConfigError
from headgate.llm.books import QueuedBooks, open_books, read_books, report_of
from headgate.llm.books.database import SqliteFile
from headgate.llm.books.json_lines import JsonLinesFile, older_files
from headgate.llm.books.reading import Unreadable
from headgate.llm.books.records import Dropped, Record
from headgate.llm.entry import Caller, Entry
from headgate.llm.usage import Usage
from until import until

DAY_US = 86_400_000_000
START_US = 1_793_491_200_000_000  # 2026-11-01
FORMS = ["books.jsonl", "books.db"]


def held(number: int, at_us: int = START_US, user: str = "anna") -> Entry:
    return Entry("held", f"call-{number}", at_us, Caller(user=user), "gpt-5", 100, 800, 8_125_000, 600_000_000)


def settled(number: int, at_us: int = START_US) -> Entry:
    entry = held(number)._replace(kind="settled", at_us=at_us + 1, lease_us=0, mode="exact", admitted_us=at_us)
    return entry._replace(usage=Usage(90, 10, 50), cost=162_500, price="v1")


def records_of(path: Path) -> list[Record]:
    unreadable = Unreadable()
    with closing(read_books(path)) as books:
        records = list(books.records(unreadable))
    assert unreadable.count == 0
    return records


@pytest.mark.parametrize("form", FORMS)
def test_added_entries_are_read_in_order_after_close(tmp_path: Path, form: str) -> None:
    entries = [held(1), held(2), settled(1), settled(2)]
    with open_books(tmp_path / form) as books:
        for entry in entries:
            books.add(entry)
    assert records_of(tmp_path / form) == entries


@pytest.mark.parametrize("form", FORMS)
def test_a_flush_writes_what_was_added_and_the_books_stay_open(tmp_path: Path, form: str) -> None:
    with open_books(tmp_path / form) as books:
        for number in range(3):
            books.add(held(number))
            assert books.flush()
            assert len(records_of(tmp_path / form)) == number + 1


@pytest.mark.parametrize("form", FORMS)
def test_books_are_readable_by_their_owner_alone_and_take_more_after_they_were_closed(
    tmp_path: Path, form: str
) -> None:
    books = open_books(tmp_path / form)
    books.add(held(1))
    assert books.close()
    books.add(held(2))
    assert books.close() and books.close()
    assert len(records_of(tmp_path / form)) == 2
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("form", FORMS)
def test_texts_of_any_kind_are_written(tmp_path: Path, form: str) -> None:
    with open_books(tmp_path / form) as books:
        for user in ("Zoë", 'a"b\n{', "\ud800", "\0", "\u202e"):
            books.add(held(1, user=user))
    users = [record.caller.user for record in records_of(tmp_path / form) if isinstance(record, Entry)]
    assert users == ["Zoë", 'a"b\n{', "\\ud800", "\0", "\u202e"]


def test_entries_that_a_database_cannot_store_are_dropped_and_counted_and_block_nothing(tmp_path: Path) -> None:
    with open_books(tmp_path / "books.db") as books:
        books.add(held(1)._replace(held_cost=1 << 70))
        books.add(held(2))
        assert books.flush()
        assert books.dropped == 1
    first, second = records_of(tmp_path / "books.db")
    assert first == held(2)
    assert isinstance(second, Dropped) and second.entries == 1


class Slow:
    """A file on a disk that writes nothing until it is `released`, and that may be full."""

    name = "a slow disk"

    def __init__(self) -> None:
        self.released = threading.Event()
        self.is_full = False
        self.append_called = threading.Event()
        self.written: list[Record] = []

    def encode(self, record: Record) -> Record:
        return record

    def append(self, encoded: Sequence[Any]) -> None:
        self.append_called.set()
        self.released.wait(30)
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.written.extend(encoded)

    def close(self) -> None:
        pass

    def after_fork(self) -> None:
        pass


def test_on_a_slow_disk_entries_beyond_the_bound_are_dropped_counted_and_recorded_in_the_books(
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = Slow()
    books = QueuedBooks(file, most_waiting=10)
    books.add(held(0))
    assert file.append_called.wait(10)
    for number in range(1, 31):
        books.add(held(number))  # never waits
    assert books.dropped == 20
    file.released.set()
    assert books.close()
    assert [record for record in file.written if isinstance(record, Entry)] == [held(number) for number in range(11)]
    assert sum(record.entries for record in file.written if isinstance(record, Dropped)) == 20
    assert [record.message for record in caplog.records] == [
        "books a slow disk: 20 entries were dropped, as too many waited"
    ]


def test_on_a_full_disk_entries_wait_and_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    file = Slow()
    file.is_full = True
    file.released.set()
    books = QueuedBooks(file)
    books.add(held(0))
    until(lambda: len(caplog.records) == 1)
    books.add(held(1))
    assert not books.flush(timeout=0.3)
    file.is_full = False
    assert books.close()
    assert file.written == [held(0), held(1)]
    assert [record.message for record in caplog.records] == [
        "books a slow disk: cannot be written, entries wait: [Errno 28] No space left on device",
        "books a slow disk: are written again",
    ]


def test_entries_wait_while_another_file_is_at_the_path_of_the_books(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, aside = tmp_path / "calls.db", tmp_path / "aside.db"
    books = open_books(place)
    place.rename(aside)
    with closing(sqlite3.connect(place)) as other:
        other.execute("CREATE TABLE others (name TEXT)")
    books.add(held(1))
    until(lambda: "cannot be written, entries wait" in caplog.text)
    aside.replace(place)
    books.add(held(2))
    assert books.flush(30) and books.dropped == 0
    books.close()
    assert records_of(place) == [held(1), held(2)]


def test_entries_that_cannot_be_written_are_dropped_when_the_books_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    file = Slow()
    file.is_full = True
    file.released.set()
    books = QueuedBooks(file)
    books.add(held(0))
    assert not books.close(timeout=0.2)
    assert "are not written" in caplog.text
    until(lambda: books.dropped == 1)
    file.is_full = False
    books.add(held(1))
    assert books.close()
    assert held(1) in file.written


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    books = open_books(tmp_path / "books.jsonl")

    def add(first: int) -> None:
        for number in range(first, first + 250):
            books.add(held(number))

    threads = [threading.Thread(target=add, args=(first,)) for first in range(0, 2000, 250)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert books.close()
    ids = [record.id for record in records_of(tmp_path / "books.jsonl") if isinstance(record, Entry)]
    assert sorted(ids) == sorted(f"call-{number}" for number in range(2000))


@pytest.mark.parametrize("form", FORMS)
def test_a_forked_process_writes_its_own_entries_and_not_those_of_its_parent(tmp_path: Path, form: str) -> None:
    books = open_books(tmp_path / form)
    books.add(held(1))
    assert books.flush()
    books.add(held(2))  # may still be waiting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python: other threads run, as in servers that fork
        child = os.fork()
    if child == 0:
        books.add(held(3))
        os._exit(0 if books.close() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert books.close()
    ids = [record.id for record in records_of(tmp_path / form) if isinstance(record, Entry)]
    assert sorted(ids) == ["call-1", "call-2", "call-3"]


def test_a_file_is_rotated_before_it_grows_too_large_and_all_are_read_in_order(tmp_path: Path) -> None:
    file = JsonLinesFile(tmp_path / "books.jsonl", most_bytes=4096)
    entries = [held(number) for number in range(100)]
    for entry in entries:
        file.append([file.encode(entry)])
    file.close()
    older = older_files(file.path)
    assert len(older) > 2
    assert all(one.suffix == ".gz" and stat.S_IMODE(one.stat().st_mode) == 0o600 for one in older)
    assert all(len(gzip.decompress(one.read_bytes())) <= 4096 for one in older)
    assert records_of(file.path) == entries
    assert records_of(older[0]) == entries[: len(records_of(older[0]))]


def test_a_record_of_a_later_day_begins_a_file_and_the_oldest_files_are_deleted(tmp_path: Path) -> None:
    file = JsonLinesFile(tmp_path / "books.jsonl", keep=2, compress=False)
    for day in range(5):
        for number in range(2):
            file.append([file.encode(held(number, START_US + day * DAY_US))])
    file.append([file.encode(held(9, START_US))])  # late: appended to the current file
    file.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "books-20261103-000003.jsonl",
        "books-20261104-000004.jsonl",
        "books.jsonl",
    ]
    assert len(records_of(file.path)) == 7


def test_books_behind_a_symbolic_link_are_rotated_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "books.jsonl"
    link.symlink_to(tmp_path / "disk" / "calls.jsonl")
    file = JsonLinesFile(link, most_bytes=4096)
    entries = [held(number) for number in range(60)]
    for entry in entries:
        file.append([file.encode(entry)])
    file.close()
    assert (link.is_symlink(), sorted(one.name for one in tmp_path.iterdir())) == (True, ["books.jsonl", "disk"])
    assert [one.parent for one in older_files(link)] == [tmp_path / "disk"] * 2
    assert records_of(link) == entries


def test_a_file_that_cannot_be_rotated_keeps_growing_and_that_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"{'b' * 240}.jsonl"  # with a day and a number its name is longer than the system allows
    file = JsonLinesFile(path, most_bytes=4096)
    entries = [held(number) for number in range(100)]
    for entry in entries:
        file.append([file.encode(entry)])
    file.close()
    assert records_of(path) == entries
    assert [record.message.partition(": ")[2][:32] for record in caplog.records] == ["cannot be rotated, so the file k"]


def test_the_oldest_files_are_deleted_even_where_no_file_can_be_compressed(tmp_path: Path) -> None:
    file = JsonLinesFile(tmp_path / "books.jsonl", keep=2)
    for day in range(5):
        (tmp_path / f"books-2026110{day + 1}-{day + 1:06}.jsonl.gz.part").mkdir()
        file.append([file.encode(held(day, START_US + day * DAY_US))])
    file.close()
    assert [one.name for one in older_files(file.path)] == [
        "books-20261103-000003.jsonl",
        "books-20261104-000004.jsonl",
    ]


def test_two_writers_of_a_file_follow_each_others_rotations(tmp_path: Path) -> None:
    one, other = (JsonLinesFile(tmp_path / "books.jsonl", most_bytes=4096) for _ in range(2))
    entries = [held(number) for number in range(80)]
    for number, entry in enumerate(entries):
        file = (one, other)[number % 2]
        file.append([file.encode(entry)])
    one.close()
    other.close()
    assert records_of(one.path) == entries


def test_a_truncated_line_is_reported_and_the_next_entry_begins_a_new_line(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    file = JsonLinesFile(path)
    file.append([file.encode(held(1))])
    with path.open("ab") as torn:
        torn.write(file.encode(held(2))[1][:40])
    unreadable = Unreadable()
    with closing(read_books(path)) as books:
        assert list(books.records(unreadable)) == [held(1)]
    assert [(line.line, line.reason) for line in unreadable.shown] == [(2, "the line is cut off")]
    file.append([file.encode(held(3))])
    file.close()
    unreadable = Unreadable()
    with closing(read_books(path)) as books:
        assert list(books.records(unreadable)) == [held(1), held(3)]
        assert report_of([books]).unreadable.count == unreadable.count == 1


def test_a_write_that_fails_in_the_middle_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JsonLinesFile(tmp_path / "books.jsonl")
    file.append([file.encode(held(1))])
    write = os.write
    full = iter([10])

    def nearly_full(descriptor: int, data: memoryview) -> int:
        room = next(full, None)
        if room is None:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:room])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", nearly_full)
        with pytest.raises(OSError, match="No space left"):
            file.append([file.encode(held(2))])
    file.append([file.encode(held(3))])
    file.close()
    assert records_of(file.path) == [held(1), held(3)]


def test_a_file_that_was_being_compressed_is_read_once(tmp_path: Path) -> None:
    file = JsonLinesFile(tmp_path / "books.jsonl", compress=False)
    for day in range(2):
        file.append([file.encode(held(day, START_US + day * DAY_US))])
    file.close()
    (older,) = older_files(file.path)
    (tmp_path / f"{older.name}.gz").write_bytes(gzip.compress(older.read_bytes()))  # and then the process was killed
    assert len(records_of(file.path)) == 2
    older.unlink()
    assert len(records_of(file.path)) == 2


def test_a_damaged_compressed_file_is_reported(tmp_path: Path) -> None:
    file = JsonLinesFile(tmp_path / "books.jsonl", compress=True)
    for day in range(2):
        file.append([file.encode(held(day, START_US + day * DAY_US))])
    file.close()
    (older,) = older_files(file.path)
    older.write_bytes(older.read_bytes()[:-12])
    unreadable = Unreadable()
    with closing(read_books(file.path)) as books:
        assert list(books.records(unreadable))[-1] == held(1, START_US + DAY_US)
    assert unreadable.count == 1 and "the rest of the file cannot be read" in unreadable.shown[0].reason


def test_books_are_read_as_they_were_when_they_were_opened(tmp_path: Path) -> None:
    for form in FORMS:
        with open_books(tmp_path / form) as writer:
            writer.add(held(1))
            assert writer.flush()
            with closing(read_books(tmp_path / form)) as books:
                writer.add(held(2))
                assert writer.flush()
                assert list(books.records(Unreadable())) == [held(1)]


def test_no_row_of_a_database_can_be_changed_or_deleted(tmp_path: Path) -> None:
    with open_books(f"sqlite://{tmp_path}/books.db") as books:
        books.add(held(1))
    with closing(sqlite3.connect(tmp_path / "books.db")) as connection:
        for change in ("UPDATE entries SET cost = 0", "DELETE FROM entries"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(change)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("books.txt", "books are named by a path that ends in"),
        ("mysql://h/books", "books are jsonl:///path or sqlite:///path, not mysql://"),
        ("jsonl://books.jsonl", "with three slashes"),
        ("jsonl:///tmp/b.jsonl?rotate=1KiB", "of at least 4KiB"),
        ("jsonl:///tmp/b.jsonl?keep=-1", "keep is a whole number"),
        ("jsonl:///tmp/b.jsonl?daily=maybe", "daily is yes or no"),
        ("jsonl:///tmp/b.jsonl?rotat=1MiB", "did you mean"),
        ("sqlite:///tmp/b.db?keep=1", 'one option after "?", queue'),
        ("sqlite:///tmp/b.db?queue=0", "at least 1"),
        ("/nowhere/at/all/books.jsonl", "there is no directory /nowhere/at/all"),
        ("/nowhere/at/all/books.db", "there is no directory /nowhere/at/all"),
        ("books.jsonl.gz", "can be read, not written"),
    ],
)
def test_books_that_cannot_be_opened_say_why(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        open_books(name)


@pytest.mark.parametrize("form", FORMS)
def test_reading_creates_no_books(tmp_path: Path, form: str) -> None:
    with pytest.raises(ConfigError, match="there are no such books"):
        read_books(tmp_path / form)
    assert not list(tmp_path.iterdir())


def test_a_database_of_another_program_is_rejected(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE people (name)")
        connection.commit()
    (tmp_path / "text.db").write_text("This is a text, and it is long enough to be one." * 20)
    for name, message in (("other.db", "a database of something else"), ("text.db", "is no database of SQLite")):
        with pytest.raises(ConfigError, match=message):
            open_books(tmp_path / name)
    for name in ("other.db", "text.db"):
        with pytest.raises(ConfigError):
            read_books(tmp_path / name)


def test_a_database_of_an_older_release_is_read_and_gets_its_missing_columns(tmp_path: Path) -> None:
    path = tmp_path / "books.db"
    SqliteFile(path).open()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE entries DROP COLUMN estimate")
        connection.execute("INSERT INTO entries (kind, id, at_us, model, held_input, held_output) "
                           "VALUES ('held', 'a', 1, 'm', 2, 3)")  # fmt: skip
        connection.commit()
    [held_before] = records_of(path)
    assert isinstance(held_before, Entry) and (held_before.id, held_before.estimate) == ("a", None)
    with open_books(path) as books:
        books.add(held_before._replace(kind="settled", mode="unknown", estimate=0))
    assert [getattr(record, "estimate", "none") for record in records_of(path)] == [None, 0]


def test_a_database_of_a_later_version_is_not_changed(tmp_path: Path) -> None:
    SqliteFile(tmp_path / "books.db").open()
    with closing(sqlite3.connect(tmp_path / "books.db")) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match="books of version 2"):
        open_books(tmp_path / "books.db")
