"""Books in real processes: several that write, one that is killed in the middle, one that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from headgate.llm.books import open_books, read_books
from headgate.llm.books.reading import Unreadable
from headgate.llm.entry import Caller, Entry

pytestmark = pytest.mark.integration

OCTOBER_US = 1_696_118_400_000_000
FORMS = ["books.jsonl", "books.db"]
WRITER = """
import sys
from headgate.llm.books import open_books
from headgate.llm.entry import Caller, Entry

name, path, many = sys.argv[1], sys.argv[2], int(sys.argv[3])
books = open_books(path)
for number in range(many):
    books.add(Entry("held", f"{name}-{number}", 1_696_118_400_000_000, Caller(), "gpt-5", 100, 800, 8_125_000))
    if number % 100 == 99:
        assert books.flush(60)
        print(number + 1, flush=True)
"""


def ids(path: Path) -> tuple[list[str], Unreadable]:
    unreadable = Unreadable()
    with closing(read_books(path)) as books:
        return [record.id for record in books.records(unreadable) if isinstance(record, Entry)], unreadable


def writer(name: str, path: str, many: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, name, path, str(many)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_writer_that_is_killed_loses_at_most_what_waited(tmp_path: Path, form: str) -> None:
    path = tmp_path / form
    process = writer("a", str(path), 10**9)
    assert process.stdout is not None
    flushed = 0
    while flushed < 500:
        flushed = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    flushed = max([flushed, *map(int, process.stdout.read().split())])
    process.wait()
    process.stdout.close()
    found, unreadable = ids(path)
    assert len(found) >= flushed
    assert found == [f"a-{number}" for number in range(len(found))]
    assert unreadable.count <= 1
    with open_books(path) as books:
        books.add(Entry("held", "after", OCTOBER_US, Caller(), "gpt-5", 1, 1, 1))
    assert ids(path)[0] == [*found, "after"]


@pytest.mark.parametrize("url", ["jsonl://{}/books.jsonl?rotate=16KiB", "sqlite://{}/books.db"])
def test_several_processes_write_the_same_books(tmp_path: Path, url: str) -> None:
    processes = [writer(name, url.format(tmp_path), 400) for name in "abc"]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    found, unreadable = ids(tmp_path / url.format("").partition("://")[2].partition("?")[0].lstrip("/"))
    assert unreadable.count == 0
    for name in "abc":
        assert [id for id in found if id[0] == name] == [f"{name}-{number}" for number in range(400)]


def test_a_program_that_ends_writes_what_waits(tmp_path: Path) -> None:
    process = writer("a", str(tmp_path / "books.jsonl"), 50)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(ids(tmp_path / "books.jsonl")[0]) == 50
