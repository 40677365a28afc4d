"""Traces of calls of language models: tables with a row a call, as CSV or TSV, compressed or not."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.errors import ConfigError
from headgate.llm.entry import Caller
from headgate.llm.usage import MOST_TOKENS
from headgate.replay.compressed import Damaged, chunks_of
from headgate.replay.entries import Tally, Unread
from headgate.replay.fielded_log import row_fault
from headgate.replay.times import TimeReader, UnknownTime

_NAMES = {
    "time": ("timestamp", "time", "arrived_at", "arrival_time", "start_time", "created"),
    "input": ("contexttokens", "input_tokens", "prompt_tokens", "num_prefill_tokens", "input_length", "request tokens"),
    "output": (
        "generatedtokens", "output_tokens", "completion_tokens", "num_decode_tokens", "output_length",
        "response tokens",
    ),
}  # fmt: skip
"""The names by which a column is known that must be there, in lower case."""

ROLES = ("time", "input", "output", "model", "user", "team", "key", "organisation", "most", "duration")
"""What a column can tell. `most` is the most output that was asked for, `duration` seconds until the answer ended."""

_SECOND_US = 1_000_000
_LONGEST_S = 86_400 * 366


class TraceCall(NamedTuple):
    """A call of a trace: tokens, and microseconds; None for what the trace does not tell."""

    at_us: int
    model: str
    caller: Caller
    input: int
    output: int
    most: int | None = None
    duration_us: int | None = None


def read_trace(
    path: Path, *, model: str, columns: Mapping[str, str], read_time: TimeReader, tally: Tally
) -> list[TraceCall]:
    """The calls of a trace in order of time; rows that cannot be read are counted in the tally.

    `columns` names those of ROLES that have other names than the usual ones, or none; `model` is that of calls whose
    row names none. Raises ConfigError where a column is missing.
    """
    calls: list[TraceCall] = []
    with path.open("rb") as raw:
        rows = _rows(_lines(raw, path, tally))
        head = next(rows, None)
        places = _places(head.columns if head else [], columns, path)
        for row in rows:
            if row.fault:
                tally.add(str(path), row.line, row.fault, "", row.lines)
                continue
            if not any(row.columns):
                continue
            try:
                calls.append(_call(row.columns, places, model, read_time))
            except (ValueError, IndexError) as error:
                reason = "the row has too few columns" if isinstance(error, IndexError) else str(error)
                tally.add(str(path), row.line, reason, ",".join(row.columns), row.lines)
    calls.sort(key=lambda call: call.at_us)
    return calls


def _lines(raw: io.BufferedReader, path: Path, tally: Tally) -> Iterator[str]:
    left = b""
    number = 0
    try:
        for chunk in chunks_of(raw, str(path)):
            *whole, left = (left + chunk).split(b"\n")
            for line in whole:
                number += 1
                yield line.decode("utf-8-sig", "replace") + "\n"
        if left:
            yield left.decode("utf-8-sig", "replace")
    except Damaged as error:
        tally.damaged.append(_damaged(path, number + 1, str(error)))


def _damaged(path: Path, line: int, reason: str) -> Unread:
    return Unread(str(path), line, reason, "")


class _Row(NamedTuple):
    """A row: its first line, how many lines it takes, and its columns, or why it has none."""

    line: int
    lines: int
    columns: list[str]
    fault: str = ""


def _rows(lines: Iterator[str]) -> Iterator[_Row]:
    """Rows; tabs part what has tabs in its first line, else commas or semicolons."""
    first = next(lines, "")
    delimiter = max("\t,;", key=first.count)
    reader = csv.reader(_with(first, lines), delimiter=delimiter)
    while True:
        before = reader.line_num
        columns: list[str] = []
        fault = ""
        try:
            columns = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # such as an open quote, which takes in what follows, up to a bound
            fault = f"it is no row: {row_fault(error)}"
        yield _Row(before + 1, max(1, reader.line_num - before), columns, fault)


def _with(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _places(head: Sequence[str], columns: Mapping[str, str], path: Path) -> dict[str, int]:
    """Where each role's column is."""
    named = {name.strip().lower(): place for place, name in reversed(list(enumerate(head)))}
    places = {}
    for role in ROLES:
        wanted = (columns[role].strip().lower(),) if role in columns else _NAMES.get(role, ())
        place = next((named[name] for name in wanted if name in named), None)
        if place is not None:
            places[role] = place
        elif role in columns or role in _NAMES:
            there = ", ".join(name.strip() for name in head)[:200] or "none"
            which = f"is called {columns[role]!r}" if role in columns else f"tells the {_TOLD[role]} of a call"
            raise ConfigError(f"{path}: no column {which}; its columns are {there}")
    return places


_TOLD = {"time": "time", "input": "tokens of input", "output": "tokens of output"}


def _call(row: Sequence[str], places: Mapping[str, int], model: str, read_time: TimeReader) -> TraceCall:
    def text(role: str) -> str:
        return row[places[role]].strip() if role in places else ""

    try:
        at_us = read_time(text("time"))
    except UnknownTime as error:
        raise ValueError(str(error)) from None
    named = text("model") or model
    if not named:
        raise ValueError("no model is named")
    caller = Caller(text("key"), text("user"), text("team"), text("organisation"))
    most = text("most")
    return TraceCall(
        at_us,
        named,
        caller,
        _tokens("input", text("input")),
        _tokens("output", text("output")),
        _tokens("most", most) if most else None,
        _duration_us(text("duration")),
    )


def _tokens(role: str, text: str) -> int:
    whole, _, rest = text.partition(".")
    if not whole.isascii() or not whole.isdigit() or rest.strip("0") or len(whole) > 13 or int(whole) > MOST_TOKENS:
        raise ValueError(f"{role} is a whole number of tokens, not {text[:40]!r}")
    return int(whole)


def _duration_us(text: str) -> int | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_S:  # nan is in no range
        raise ValueError(f"a duration is a number of seconds, not {text[:40]!r}")
    return round(seconds * _SECOND_US)
