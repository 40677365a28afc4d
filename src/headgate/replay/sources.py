"""Reads logs: files, compressed or not, in any of the known formats."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Literal

from headgate.errors import ConfigError
from headgate.replay.common_log import FIELDS, common_reader, read_block, words_before_clients
from headgate.replay.compressed import CHUNK, Damaged, check_text, chunks_of
from headgate.replay.entries import LONGEST_LINE, Block, Entry, Tally, Unreadable, UnreadLine
from headgate.replay.fielded_log import FieldNames, json_reader, row_fault, row_reader
from headgate.replay.holes import without_holes
from headgate.replay.log_costs import PLAIN, CostFields
from headgate.replay.times import Calendar, TimeReader, UnknownTime
from headgate.replay.w3c_log import is_w3c, w3c_reader

Format = Literal["auto", "common", "json", "csv", "tsv", "w3c"]
FORMATS: tuple[Format, ...] = ("auto", "common", "json", "csv", "tsv", "w3c")

ReadLine = Callable[[str], Entry | None]
"""Reads a line; returns None for one that is no request."""

_LONGEST_LINE_BYTES = 4 * CHUNK
_TOO_LONG = f"the line is longer than {LONGEST_LINE} characters"
_SAMPLE_LINES = 50
_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Reading:
    """The options for reading logs. `headers` maps names of headers, as `header_name` has them, to its fields."""

    format: Format = "auto"
    fields: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    """The fields with the cost of a request, by unit, in place of the cost of `fields`."""

    headers: Mapping[str, str] = field(default_factory=dict)
    read_time: TimeReader = field(default_factory=TimeReader)
    needs_client: bool = True
    calendar: Callable[[], Calendar] | None = None
    """Makes the calendar for times without a date; without it, the date of the file decides."""


class Log:
    """One log file. `progress` is called with each step in bytes of the file on the disk."""

    def __init__(self, path: Path, reading: Reading, name: str = "") -> None:
        self.path = path
        self.name = name or str(path)
        self.size = path.stat().st_size
        self._reading = reading

    @property
    def costs(self) -> tuple[str, ...]:
        """The units in which its entries have costs: `PLAIN` for costs without a unit."""
        return tuple(self._reading.units) or ((PLAIN,) if "cost" in self._reading.fields else ())

    def entries(self, tally: Tally, progress: Callable[[int], None]) -> Iterator[Block]:
        """The entries in blocks, in the order of the file; lines that cannot be read are counted."""
        read = 0
        try:
            for block in self._entries(tally, progress):
                read = read or len(block)
                yield block
        except OSError as error:
            error.filename = error.filename or self.name
            raise
        if not read:
            tally.add_unused(self.name)

    def _entries(self, tally: Tally, progress: Callable[[int], None]) -> Iterator[Block]:
        calendar = self._calendar()
        reading = replace(self._reading, read_time=self._reading.read_time.of_log(calendar))
        with self.path.open("rb") as raw:
            chunks = without_holes(self._chunks(raw, progress))
            try:
                first = self._first_chunk(chunks)
                # A short first chunk may end within the first line, which the format is detected from.
                while len(first) < CHUNK and b"\n" not in first and (more := next(chunks, b"")):
                    first += more
            except Damaged as error:
                tally.damaged.append(UnreadLine(self.name, 1, str(error), ""))
                return
            if not first:
                return
            kind = reading.format if reading.format != "auto" else detect_format(first)
            if kind is None:
                raise ConfigError(
                    f"{self.name}: the format is not recognized; say which with --format"
                    + (" (the log is taken for UTF-8 text, and holds NUL bytes)" if b"\0" in first[:4096] else "")
                )
            if kind == "common" and (words := words_before_clients(_sample(first))):
                raise ConfigError(f"{self.name}: lines begin with {words!r:.80} before the client: cut that off")
            blocks = self._blocks(chain([first], chunks), tally)
            if kind in ("csv", "tsv"):
                rows = self._rows(reading, blocks, kind, first, tally)
                while block := list(islice(rows, _ROWS)):
                    yield block
            else:
                yield from self._read_lines(reading, blocks, kind, tally)
        if calendar.guessed is not None:
            tally.guessed[self.name] = calendar.guessed

    def _calendar(self) -> Calendar:
        if self._reading.calendar is not None:
            return self._reading.calendar()
        return Calendar(last=datetime.fromtimestamp(self.path.stat().st_mtime, self._reading.read_time.zone).date())

    def _first_chunk(self, chunks: Iterator[bytes]) -> bytes:
        """The first chunk, without the byte order mark that some programs write before UTF-8."""
        first = next(chunks, b"")
        check_text(first, self.name)
        return first.removeprefix(codecs.BOM_UTF8)

    def _read_lines(
        self, reading: Reading, blocks: Iterator[tuple[int, str]], kind: str, tally: Tally
    ) -> Iterator[Block]:
        names = FieldNames(reading.fields, needs_client=reading.needs_client, units=reading.units)
        read, by_head = self._line_reader(reading, kind, names)
        for first, block in blocks:
            read_line = partial(self._entry, read, tally, first)
            yield read_block(block, reading.read_time, read_line, by_head=by_head)
        if kind == "json" and names.absent:
            tally.absent[self.name] = names.absent

    def _entry(self, read: ReadLine, tally: Tally, first: int, number: int, line: str) -> Entry | None:
        """The entry of a line, `number` lines after the `first` of its block; one that cannot be read is counted."""
        if line:
            try:
                return read(line)
            except (Unreadable, UnknownTime) as error:
                if line.strip():
                    tally.add(self.name, first + number, str(error), line)
        return None

    def _line_reader(self, reading: Reading, kind: str, names: FieldNames) -> tuple[ReadLine, bool]:
        """(the reader of a line, whether a plain line needs only its head to be read)"""
        if kind == "json":
            return json_reader(names, reading.read_time, reading.headers), False
        if kind == "w3c":
            return w3c_reader(self.name, names, reading.read_time, reading.headers), False
        if set(reading.fields) - {"cost"}:
            raise ConfigError(
                f"{self.name}: a common log has fixed fields: except for costs, --field is for json, csv, tsv and w3c"
            )
        headers = _common_fields("header", reading.headers)
        cost_fields = _common_fields("field", reading.units or reading.fields)
        costs = CostFields(reading.units or ({PLAIN: cost_fields["cost"]} if cost_fields else {}))
        return common_reader(reading.read_time, headers, costs), not (headers or cost_fields)

    def _rows(
        self, reading: Reading, blocks: Iterator[tuple[int, str]], kind: str, first: bytes, tally: Tally
    ) -> Iterator[Entry]:
        delimiter = "\t" if kind == "tsv" else _csv_delimiter(first)
        flat = (line for _, block in blocks for line in block.split("\n"))
        rows = csv.reader(flat, delimiter=delimiter, quoting=csv.QUOTE_NONE if kind == "tsv" else csv.QUOTE_MINIMAL)
        try:
            columns = [name.strip() for name in next(rows, [])]
            names = FieldNames(reading.fields, needs_client=reading.needs_client, units=reading.units)
            read = row_reader(columns, names, reading.read_time, reading.headers)
        except Unreadable as error:
            raise ConfigError(f"{self.name}: {error}") from error
        except csv.Error as error:
            raise ConfigError(f"{self.name}:1: the names of the columns cannot be read: {row_fault(error)}") from error
        row: list[str] = []
        while True:
            before = rows.line_num
            try:
                row = next(rows)
                if row:
                    yield read(row)
            except StopIteration:
                return
            except (Unreadable, UnknownTime, csv.Error) as error:
                # An open quote includes the following lines, up to a bound: those lines are lost as well.
                lost = max(1, rows.line_num - before)
                reason, text = str(error), delimiter.join(row)
                if isinstance(error, csv.Error):
                    reason, text = f"it is no row: {row_fault(error)}", ""
                tally.add(self.name, before + 1, reason, text, lost)

    def _blocks(self, chunks: Iterator[bytes], tally: Tally) -> Iterator[tuple[int, str]]:
        """Blocks of whole lines, each with the number of its first line. Only a line feed ends a line."""
        number = 1
        rest = b""
        is_too_long = False
        try:
            for chunk in chunks:
                end = chunk.rfind(b"\n")
                if end < 0:
                    rest = b"" if is_too_long else rest + chunk
                    if len(rest) > _LONGEST_LINE_BYTES:
                        tally.add(self.name, number, _TOO_LONG, _text(rest[:200]))
                        rest, is_too_long = b"", True
                    continue
                start = 0
                if is_too_long:
                    yield number, ""  # in place of the line that was skipped
                    start = chunk.index(b"\n") + 1
                    number += 1
                    is_too_long = False
                if start <= end:
                    block = rest + chunk[start:end]
                    yield number, _text(block)
                    number += block.count(b"\n") + 1
                rest = chunk[end + 1 :]
        except Damaged as error:
            # The last line of the data is not complete, even if it looks so.
            tally.damaged.append(UnreadLine(self.name, number, str(error), ""))
            return
        if rest:
            yield number, _text(rest)

    def _chunks(self, raw: IO[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
        reported = 0
        for chunk in chunks_of(raw, self.name):
            position = raw.tell()
            progress(position - reported)
            reported = position
            yield chunk
        progress(raw.tell() - reported)


def detect_format(sample: bytes) -> Format | None:
    """Detect the format of a log from its beginning; None where no format fits."""
    if not (lines := _sample(sample)):
        return "common"
    if lines[0].lstrip().startswith("{"):
        return "json"
    if is_w3c(lines):
        return "w3c"
    readable = common_reader(TimeReader(calendar=Calendar(date(1970, 1, 4))), {})
    for line in lines:
        try:
            readable(line)
        except (Unreadable, UnknownTime):
            continue
        return "common"
    if "\t" in lines[0]:
        return "tsv"
    try:
        columns = next(csv.reader([lines[0]], delimiter=_csv_delimiter(sample)))
    except csv.Error:
        return None
    return "csv" if FieldNames({}, needs_client=True).resolve(columns) else None


def _sample(first: bytes) -> list[str]:
    """The first lines of a log."""
    return [line for line in _text(first[:65536]).split("\n")[:_SAMPLE_LINES] if line.strip()]


def _text(block: bytes) -> str:
    """Decode bytes as text: invalid UTF-8 becomes replacement characters and affects nothing else."""
    text = block.decode("utf-8", "replace")
    return text.replace("\r\n", "\n").removesuffix("\r") if "\r" in text else text


def _csv_delimiter(sample: bytes) -> str:
    header = sample.split(b"\n", 1)[0]
    return ";" if header.count(b";") > header.count(b",") else ","


def _common_fields(option: str, fields: Mapping[str, str]) -> dict[str, str]:
    """Check that fields are those of the common format; raises ConfigError for one that it does not have."""
    for name, named_field in fields.items():
        if named_field not in FIELDS:
            raise ConfigError(f"--{option} {name}={named_field}: the common format has the fields {', '.join(FIELDS)}")
    return dict(fields)
