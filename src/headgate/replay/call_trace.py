"""Traces of calls of language models: tables with a row for each call, as CSV or TSV, compressed or not."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.errors import ConfigError
from headgate.llm.entry import Caller
from headgate.llm.usage import MOST_TOKENS
from headgate.replay.compressed import Damaged, check_text, chunks_of
from headgate.replay.entries import Tally, UnreadLine
from headgate.replay.fielded_log import row_fault
from headgate.replay.times import TimeReader, UnknownTime

_COLUMN_NAMES = {
    "time": ("timestamp", "time", "arrived_at", "arrival_time", "start_time", "created"),
    "input": ("contexttokens", "input_tokens", "prompt_tokens", "num_prefill_tokens", "input_length", "request tokens"),
    "output": (
        "generatedtokens", "output_tokens", "completion_tokens", "num_decode_tokens", "output_length",
        "response tokens",
    ),
}  # fmt: skip
"""The usual names of the required columns, in lower case."""

ROLES = ("time", "input", "output", "model", "user", "team", "key", "organisation", "most", "duration")
"""The roles of columns. `most` is the maximum output requested, `duration` the seconds until the answer ended."""

_SECOND_US = 1_000_000
_LONGEST_S = 86_400 * 366


class TraceCall(NamedTuple):
    """A call of a trace: tokens, and microseconds; None for values that the trace does not have."""

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
    """Read the calls of a trace, in order of time; rows that cannot be read are counted in the tally.

    `columns` has the names of columns, by their ROLES, that have no usual name; `model` is the model of rows without
    one. Raises ConfigError where a column is missing.
    """
    calls: list[TraceCall] = []
    with path.open("rb") as raw:
        rows = _rows(_lines(raw, path, tally))
        head = next(rows, None)
        places = _columns_of_roles(head.columns if head else [], columns, path)
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
    rest = b""
    number = 0
    try:
        for chunk in chunks_of(raw, str(path)):
            if not (number or rest):
                check_text(chunk, str(path))
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                number += 1
                yield line.decode("utf-8-sig", "replace") + "\n"
        if rest:
            yield rest.decode("utf-8-sig", "replace")
    except Damaged as error:
        tally.damaged.append(_damaged(path, number + 1, str(error)))
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _damaged(path: Path, line: int, reason: str) -> UnreadLine:
    return UnreadLine(str(path), line, reason, "")


class _Row(NamedTuple):
    """A row: its first line, its number of lines, and its columns, or why it could not be parsed."""

    line: int
    lines: int
    columns: list[str]
    fault: str = ""


def _rows(lines: Iterator[str]) -> Iterator[_Row]:
    """Parse rows; the delimiter is the most frequent of tab, comma and semicolon in the first line."""
    first = next(lines, "")
    delimiter = max("\t,;", key=first.count)
    reader = csv.reader(_prepended(first, lines), delimiter=delimiter)
    while True:
        before = reader.line_num
        columns: list[str] = []
        fault = ""
        try:
            columns = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # such as an open quote, which includes the following lines, up to a bound
            fault = f"it is no row: {row_fault(error)}"
        yield _Row(before + 1, max(1, reader.line_num - before), columns, fault)


def _prepended(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _columns_of_roles(head: Sequence[str], columns: Mapping[str, str], path: Path) -> dict[str, int]:
    """The index of each role's column."""
    by_name = {name.strip().lower(): place for place, name in reversed(list(enumerate(head)))}
    places = {}
    for role in ROLES:
        candidates = (columns[role].strip().lower(),) if role in columns else _COLUMN_NAMES.get(role, ())
        place = next((by_name[name] for name in candidates if name in by_name), None)
        if place is not None:
            places[role] = place
        elif role in columns or role in _COLUMN_NAMES:
            available = ", ".join(name.strip() for name in head)[:200] or "none"
            missing = f"is called {columns[role]!r}" if role in columns else f"has the {_ROLE_TEXTS[role]} of a call"
            raise ConfigError(f"{path}: no column {missing}; its columns are {available}")
    return places


_ROLE_TEXTS = {"time": "time", "input": "tokens of input", "output": "tokens of output"}


def _call(row: Sequence[str], places: Mapping[str, int], model: str, read_time: TimeReader) -> TraceCall:
    def text(role: str) -> str:
        return row[places[role]].strip() if role in places else ""

    try:
        at_us = read_time(text("time"))
    except UnknownTime as error:
        raise ValueError(str(error)) from None
    model_name = text("model") or model
    if not model_name:
        raise ValueError("no model is named")
    caller = Caller(text("key"), text("user"), text("team"), text("organisation"))
    most = text("most")
    return TraceCall(
        at_us,
        model_name,
        caller,
        _tokens("input", text("input")),
        _tokens("output", text("output")),
        _tokens("most", most) if most else None,
        _duration_us(text("duration")),
    )


def _tokens(role: str, text: str) -> int:
    integer, _, rest = text.partition(".")
    if (
        not integer.isascii()
        or not integer.isdigit()
        or rest.strip("0")
        or len(integer) > 13
        or int(integer) > MOST_TOKENS
    ):
        raise ValueError(f"{role} is a whole number of tokens, not {text[:40]!r}")
    return int(integer)


def _duration_us(text: str) -> int | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_S:  # nan is outside any range
        raise ValueError(f"a duration is a number of seconds, not {text[:40]!r}")
    return round(seconds * _SECOND_US)
