"""Opening logs: plain, gzip, xz, bzip2, zstd or standard input, in any of the known formats."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, cast

from headgate.errors import ConfigError, MissingExtraError
from headgate.replay.common_log import FIELDS, common_reader, split_block
from headgate.replay.entries import LONGEST_LINE, Entry, Tally, Unreadable
from headgate.replay.fielded_log import FieldNames, json_reader, row_reader
from headgate.replay.times import TimeReader, UnknownTime

Format = Literal["auto", "common", "json", "csv", "tsv"]
FORMATS: tuple[Format, ...] = ("auto", "common", "json", "csv", "tsv")

_CHUNK = 1 << 20
_SAMPLE_LINES = 50
_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True, slots=True)
class Reading:
    """How logs are to be read. `headers` maps names of headers, in lower case, to fields of the log."""

    format: Format = "auto"
    fields: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    read_time: TimeReader = field(default_factory=TimeReader)
    needs_client: bool = True


class Log:
    """One log file. `progress` is told of each step in bytes of the file as it lies on the disk."""

    def __init__(self, path: Path, reading: Reading, name: str = "") -> None:
        self.path = path
        self.name = name or str(path)
        self.size = path.stat().st_size
        self._reading = reading

    def entries(self, tally: Tally, progress: Callable[[int], None]) -> Iterator[Entry]:
        """The entries, in the order of the file; what cannot be read is counted."""
        with self.path.open("rb") as raw:
            chunks = self._chunks(raw, progress)
            first = next(chunks, b"")
            kind = self._reading.format if self._reading.format != "auto" else detect_format(first)
            if kind is None:
                raise ConfigError(f"{self.name}: the format is not recognized; say which with --format")
            blocks = self._blocks(_chain(first, chunks), tally)
            if kind in ("csv", "tsv"):
                yield from self._rows(blocks, kind, first, tally)
            else:
                yield from self._read_lines(blocks, kind, tally)

    def _read_lines(self, blocks: Iterator[tuple[int, str]], kind: str, tally: Tally) -> Iterator[Entry]:
        read, split = self._line_reader(kind)
        for number, block in blocks:
            for offset, item in enumerate(split(block)):
                if type(item) is tuple:
                    yield item
                elif item:
                    try:
                        yield read(item)
                    except (Unreadable, UnknownTime) as error:
                        if item.strip():
                            tally.add(self.name, number + offset, str(error), item)

    def _line_reader(self, kind: str) -> tuple[Callable[[str], Entry], Callable[[str], Sequence[Any]]]:
        """(what reads a line, what splits a block into lines and entries)"""
        reading = self._reading
        if kind == "json":
            names = FieldNames(reading.fields, needs_client=reading.needs_client)
            return json_reader(names, reading.read_time, reading.headers), lambda block: block.split("\n")
        if reading.fields:
            raise ConfigError(f"{self.name}: a common log has fields of its own: --field is for json, csv and tsv")
        headers = _common_fields(reading.headers)
        return common_reader(reading.read_time, headers), partial(
            split_block, read_time=reading.read_time, headers=headers
        )

    def _rows(self, blocks: Iterator[tuple[int, str]], kind: str, first: bytes, tally: Tally) -> Iterator[Entry]:
        reading = self._reading
        delimiter = "\t" if kind == "tsv" else _csv_delimiter(first)
        flat = (line for _, block in blocks for line in block.split("\n"))
        rows = csv.reader(flat, delimiter=delimiter, quoting=csv.QUOTE_NONE if kind == "tsv" else csv.QUOTE_MINIMAL)
        columns = [name.strip() for name in next(rows, [])]
        try:
            read = row_reader(
                columns,
                FieldNames(reading.fields, needs_client=reading.needs_client),
                reading.read_time,
                reading.headers,
            )
        except Unreadable as error:
            raise ConfigError(f"{self.name}: {error}") from error
        row: list[str] = []
        while True:
            try:
                row = next(rows)
                if row:
                    yield read(row)
            except StopIteration:
                return
            except (Unreadable, UnknownTime) as error:
                tally.add(self.name, rows.line_num, str(error), delimiter.join(row))
            except csv.Error as error:
                tally.add(self.name, rows.line_num, f"it is no row: {error}", "")

    def _blocks(self, chunks: Iterator[bytes], tally: Tally) -> Iterator[tuple[int, str]]:
        """Blocks of whole lines, each with the number of its first. Only a line feed ends a line."""
        number = 1
        rest = b""
        for chunk in chunks:
            end = chunk.rfind(b"\n")
            if end < 0:
                rest += chunk
                if len(rest) > 4 * _CHUNK:
                    tally.add(self.name, number, f"the line is longer than {LONGEST_LINE} characters", "")
                    rest = b""
                continue
            block = rest + chunk[:end]
            rest = chunk[end + 1 :]
            yield number, _text(block)
            number += block.count(b"\n") + 1
        if rest:
            yield number, _text(rest)

    def _chunks(self, raw: IO[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
        stream, told = _decompressed(raw, self.name), 0
        while True:
            try:
                chunk = stream.read(_CHUNK)
            except (EOFError, OSError, lzma.LZMAError, _zstd_errors()) as error:
                raise ConfigError(f"{self.name}: the compressed data is damaged or cut off: {error}") from error
            at = raw.tell()
            progress(at - told)
            told = at
            if not chunk:
                return
            yield chunk


def open_logs(names: Sequence[str], reading: Reading, spool: Callable[[], Path]) -> list[Log]:
    """The logs of these names; `-` is standard input, which is first written to the file that `spool` makes."""
    logs = []
    for name in names:
        if name == "-":
            path = spool()
            with path.open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy, _CHUNK)
            logs.append(Log(path, reading, "standard input"))
        else:
            logs.append(Log(Path(name), reading))
    return logs


def detect_format(sample: bytes) -> Format | None:
    """The format of a log from its beginning; None where nothing fits."""
    lines = [line for line in _text(sample[:65536]).split("\n")[:_SAMPLE_LINES] if line.strip()]
    if not lines:
        return "common"
    if lines[0].lstrip().startswith("{"):
        return "json"
    readable = common_reader(TimeReader(), {})
    for line in lines:
        try:
            readable(line)
        except (Unreadable, UnknownTime):
            continue
        return "common"
    columns = FieldNames({}, needs_client=True).resolve(
        next(csv.reader([lines[0]], delimiter="\t" if "\t" in lines[0] else _csv_delimiter(sample)))
    )
    if "\t" in lines[0]:
        return "tsv"
    return "csv" if columns else None


def _decompressed(raw: IO[bytes], name: str) -> IO[bytes]:
    head = raw.peek(8) if isinstance(raw, io.BufferedReader) else b""
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if kind == "gzip":
        return cast(IO[bytes], gzip.open(raw))
    if kind == "xz":
        return lzma.open(raw)
    if kind == "bzip2":
        return bz2.open(raw)
    if kind == "zstd":
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtraError(f"reading {name}, which zstd compressed,", extra="replay") from error
        stream: Any = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return cast(IO[bytes], stream)
    return raw


def _zstd_errors() -> type[Exception]:
    """What zstandard raises, if it was ever loaded."""
    zstandard = sys.modules.get("zstandard")
    return zstandard.ZstdError if zstandard is not None else EOFError


def _text(block: bytes) -> str:
    """Bytes as text: what is no UTF-8 shows as such and spoils nothing else."""
    text = block.decode("utf-8", "replace")
    return text.replace("\r\n", "\n").removesuffix("\r") if "\r" in text else text


def _chain(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from chunks


def _csv_delimiter(sample: bytes) -> str:
    header = sample.split(b"\n", 1)[0]
    return ";" if header.count(b";") > header.count(b",") else ","


def _common_fields(headers: Mapping[str, str]) -> dict[str, str]:
    """The fields of the common format that stand for headers; raises ConfigError for one it does not have."""
    for name, named_field in headers.items():
        if named_field not in FIELDS:
            raise ConfigError(f"--header {name}={named_field}: the common format has the fields {', '.join(FIELDS)}")
    return dict(headers)
