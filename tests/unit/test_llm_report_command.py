"""`headgate llm report`, `reconcile` and `correct`: what they print, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.cli.commands import headgate
from headgate.llm.books import open_books
from headgate.llm.entry import Caller, Entry
from headgate.llm.usage import Usage

OCTOBER_US = 1_696_118_400_000_000


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Ran]


@pytest.fixture
def run_llm(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `headgate llm` in this process."""

    def run(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            headgate(["llm", *arguments], prog_name="headgate")
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "books.db"
    with open_books(path) as books:
        for number, user in enumerate(["anna", "anna", "=bert()", "<b>eve\x1b[0m"]):
            entry = Entry(
                "held", f"c{number}", OCTOBER_US + number, Caller(user=user, team="red"), "gpt-5", 100, 800, 8_125_000
            )
            books.add(entry)
            usage, cost = Usage(90, 10 + number), 100_000_000 + number
            if number:
                entry = entry._replace(kind="settled", mode="exact", usage=usage, cost=cost, admitted_us=entry.at_us)
                entry = entry._replace(estimate=12)
                books.add(entry)
        books.add(entry._replace(kind="refused", limit="user: 20 usd/day", mode="", usage=None, cost=None))
    return path


def test_csv_says_which_lines_its_rows_leave_out(run_llm: Run, tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    with open_books(path) as books:
        for id in ("a", "b"):
            books.add(Entry("held", id, OCTOBER_US, Caller(user="anna"), "gpt-5", 100, 800, 8_125_000))
    complete = run_llm("report", str(path), "--format", "csv")
    assert complete.stderr == ""  # unsettled holds have columns of their own
    path.write_bytes(path.read_bytes()[:-20])
    cut = run_llm("report", str(path), "--format", "csv")
    assert cut.stderr == f"1 line could not be read; the first:\n  {path}:2: the line is cut off\n"
    assert len(cut.stdout.splitlines()) == 2
    out = tmp_path / "out.csv"
    assert "1 line could not be read" in run_llm("report", str(path), "--format", "csv", "--output", str(out)).stderr


@pytest.mark.parametrize("command", ["report", "report --format csv", "report --format html", "reconcile"])
def test_unreadable_books_are_a_failure(run_llm: Run, filled: Path, tmp_path: Path, command: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("no entry\n{}\n")
    for others in ([], [str(filled)]):
        done = run_llm(*command.split(), *others, str(path))
        assert done.returncode == 1
        assert done.stderr.endswith(
            f"headgate: {path}: no entry could be read; the first is line 1: the line is not JSON\n"
        )
        assert done.stdout, "readable entries are reported all the same"


def test_no_month_of_unreadable_books_is_closed(run_llm: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("no entry\n")
    done = run_llm("report", str(path), "--close", "2023-10")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no entry could be read, so no month is closed; line 1: the line is not JSON" in done.stderr
    assert path.read_text() == "no entry\n"


@pytest.mark.parametrize("name", ["books.db", "books.jsonl"])
@pytest.mark.parametrize("command", ["report", "reconcile"])
def test_books_without_an_entry_are_reported(run_llm: Run, tmp_path: Path, name: str, command: str) -> None:
    open_books(tmp_path / name).close()
    done = run_llm(command, str(tmp_path / name))
    assert (done.returncode, done.stderr) == (0, f"{tmp_path / name}: these books have no entries yet\n")


@pytest.mark.parametrize("name", ["books.db", "books.jsonl"])
def test_a_report_replaces_no_books(run_llm: Run, filled: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with open_books(path) as books:
        books.add(Entry("held", "c", OCTOBER_US, Caller(user="anna"), "gpt-5", 100, 800, 8_125_000))
    before = path.read_bytes()
    for source in (path, filled):
        done = run_llm("report", str(source), "--format", "csv", "--output", str(path))
        assert (done.returncode, path.read_bytes()) == (2, before)
        assert f"{path} is there, and holds books: name a new file, or an older report" in done.stderr
    older = tmp_path / "report"
    for form in ("csv", "json", "table", "html"):
        assert run_llm("report", str(filled), "--format", form, "--output", str(older)).returncode == 0


def test_a_report_is_a_table_csv_json_or_a_page(run_llm: Run, filled: Path, tmp_path: Path) -> None:
    table = run_llm("report", str(filled), "--by", "team")
    assert table.returncode == 0
    assert re.search(r"^red +4 +1 +270 +36 +0 +0\.300000006 +0\.008125 +0\.0 +100\.0 +66\.7 +0$", table.stdout, re.M)
    assert "held and not settled: 1 call, 100 tokens of input, 800 of output, 0.008125 usd" in table.stdout

    rows = list(csv.DictReader(io.StringIO(run_llm("report", str(filled), "--by", "user", "--format", "csv").stdout)))
    assert [(row["user"], row["cost_usd"]) for row in rows] == [
        ("<b>eve\x1b[0m", "0.100000003"), ("'=bert()", "0.100000002"), ("anna", "0.100000001"),
    ]  # fmt: skip

    report = json.loads(run_llm("report", str(filled), "--by", "user", "--format", "json").stdout)
    assert report["total"]["cost_usd"] == "0.300000006" and report["total"]["refused"] == 1
    assert (report["total"]["estimated"], report["total"]["covered"]) == (3, 2)
    assert [(row["estimated"], row["covered"]) for row in rows] == [("1", "0"), ("1", "1"), ("1", "1")]
    assert "\x1b" not in run_llm("report", str(filled), "--by", "user").stdout

    page = tmp_path / "report.html"
    done = run_llm("report", str(filled), "--by", "user", "--format", "html", "--output", str(page))
    assert done.returncode == 0 and done.stdout == ""
    text = page.read_text()
    assert "66.7 %" in text and "of calls made no more than was estimated" in text
    assert text.count("<svg") == 3 and "&lt;b&gt;eve" in text and "<b>eve" not in text
    assert "http" not in text and "<script" not in text


def test_the_commands_close_a_month_correct_it_and_report_both(run_llm: Run, filled: Path) -> None:
    closed = run_llm("report", str(filled), "--close", "2023-10", "--zone", "Europe/Zurich")
    assert closed.returncode == 0, closed.stderr
    assert closed.stderr == "closed 2023-10 in Europe/Zurich: 4 calls, 1 of them not settled, 0.300000006 usd\n"
    again = run_llm("report", str(filled), "--close", "2023-10")
    assert again.returncode == 1 and "2023-10 is closed already" in again.stderr
    corrected = run_llm("correct", str(filled), "--id", "c1", "--cost", "0.05", "--reason", "the bill")
    assert corrected.returncode == 0
    assert "0.100000001 to 0.05 usd; 2023-10 is closed, so the difference counts today" in corrected.stderr
    report = run_llm("report", str(filled), "--by", "month").stdout
    assert "2023-10 is closed, in Europe/Zurich: 4 calls, 0.300000006 usd" in report
    assert "restated 4 calls, 0.250000005 usd" in report
    assert "-0.050000001 usd of 2023-10" in report


def test_the_commands_say_what_is_wrong(run_llm: Run, filled: Path, tmp_path: Path) -> None:
    for arguments, status, message in (
        (["report", str(tmp_path / "none.db")], 1, "there are no such books"),
        (["report", str(filled), "--by", "price"], 2, "'price' is none of day, month"),
        (["report", str(filled), "--zone", "Zurich"], 2, "Europe/Zurich"),
        (["report", str(filled), "--since", "yesterday"], 2, "write 2026-11-01"),
        (["correct", str(filled), "--id", "none", "--cost", "1", "--reason", "x"], 1, "no call 'none' was admitted"),
        (["correct", str(filled), "--id", "c1", "--cost", "-1", "--reason", "x"], 2, "an amount in usd"),
        (["reconcile", str(filled), "--top", "0"], 2, "'--top'"),
    ):
        done = run_llm(*arguments)
        assert done.returncode == status and message in done.stderr, (arguments, done.stderr)


def test_reconcile_lists_unsettled_holds(run_llm: Run, filled: Path) -> None:
    found = run_llm("reconcile", str(filled))
    assert found.returncode == 0
    assert found.stdout == (
        "1 held, never settled, and the lease has ended; the charge stays: 0.008125 usd\n"
        "  c0  2023-10-01 00:00:00 UTC  red anna gpt-5  100 + 800 tokens  0.008125 usd\n"
    )
    report = json.loads(run_llm("reconcile", str(filled), "--json").stdout)
    assert [entry["id"] for entry in report["unreconciled"]] == ["c0"] and not report["clean"]
