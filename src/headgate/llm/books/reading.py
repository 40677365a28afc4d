"""Reading books, in the order in which their records were written, while others write them."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from headgate.errors import ConfigError
from headgate.llm.books.database import check, columns_of
from headgate.llm.books.json_lines import older_files
from headgate.llm.books.opening import books_path
from headgate.llm.books.records import FIELDS, Record, record_of

_MOST_SHOWN = 20
_ROWS_PER_QUERY = 500
_SELECT = "SELECT seq, {} FROM entries WHERE {}seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
_MANUAL_ONLY = "kind IN ('corrected', 'closed') AND "
_CALL_KINDS = ("held", "extended", "settled")
_SELECT_IDS = (
    f"SELECT seq, kind = 'settled', id FROM entries WHERE kind IN {_CALL_KINDS} "
    "AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
)
_LINE_START = re.compile(rb'\{"kind":"([a-z]+)","id":"([^"\\]*)",')
"""The start of a line as Headgate writes it; other lines are parsed as JSON."""


class UnreadableLine(NamedTuple):
    """A line or row that is no record, such as the last line of a process that was killed."""

    source: str
    line: int
    reason: str


class Unreadable:
    """The number of lines or rows that could not be read, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.shown: list[UnreadableLine] = []

    def add(self, source: str, line: int, reason: str) -> None:
        self.count += 1
        if len(self.shown) < _MOST_SHOWN:
            self.shown.append(UnreadableLine(source, line, reason))


def first_fault(books: ReadBooks) -> tuple[bool, UnreadableLine | None]:
    """(whether any record can be read, if none the first line or row that cannot, else None)"""
    unreadable = Unreadable()
    for _ in books.records(unreadable):
        return True, None
    return False, unreadable.shown[0] if unreadable.shown else None


class ReadBooks(Protocol):
    """Books as of the time they were opened, which may be read several times."""

    name: str

    def records(self, unreadable: Unreadable, *, manual_only: bool = False) -> Iterator[Record]:
        """Each record, in order, or only corrections and closings; other lines are counted as unreadable."""
        ...

    def ids(self) -> Iterator[tuple[bool, str]]:
        """(whether it is a settling, its call's id) of each hold, extension and settling, in order.

        They may include those of unreadable lines.
        """
        ...

    def close(self) -> None:
        """Close all files; nothing can be read any more."""
        ...


def read_books(books: str | os.PathLike[str], *, waits: bool = True) -> ReadBooks:
    """Open books by their URL or path, to read all that is in them now; raises ConfigError where there are none.

    Of books in JSON lines the older files are read first. The path of an older file reads only that file. `waits` is
    whether to wait for the end of a batch that is being written; false where the caller has locked the books.
    """
    kind, path = books_path(books)
    if kind == "sqlite":
        return _Database(path)
    return _JsonLines(path, waits=waits)


class _JsonLines:
    """JSON lines: older files, then the current one, up to its size when it was opened."""

    def __init__(self, path: Path, *, waits: bool) -> None:
        self.name = str(path)
        self._files: list[IO[bytes] | Path] = []
        current = _open(path)
        if current is not None and waits:
            fcntl.flock(current, fcntl.LOCK_SH)  # not in the middle of a batch
        older = older_files(path) if path.parent.is_dir() and not path.name.endswith(".gz") else []
        # A file that is not compressed yet may be replaced, so it is opened now.
        self._files = [file if file.suffix == ".gz" else _open(file) or _compressed(file) for file in older]
        self._size: int | None = None
        if current is not None:
            if not any(_is_same(current, file) for file in self._files):
                self._files.append(current)
                self._size = os.fstat(current.fileno()).st_size
            fcntl.flock(current, fcntl.LOCK_UN)
        if not self._files:
            raise ConfigError(f"{path}: there are no such books")

    def close(self) -> None:
        for file in self._files:
            if not isinstance(file, Path):
                file.close()

    def records(self, unreadable: Unreadable, *, manual_only: bool = False) -> Iterator[Record]:
        for file in self._files:
            name = str(file) if isinstance(file, Path) else str(file.name)
            for number, line in enumerate(self._lines(file, name, unreadable), 1):
                if manual_only and b'"corrected"' not in line and b'"closed"' not in line:
                    continue
                try:
                    fields = json.loads(line)
                    if not isinstance(fields, dict):
                        raise ValueError("a line is one object")
                    record = record_of(fields)
                except (ValueError, RecursionError) as error:
                    unreadable.add(name, number, _reason(line, error))
                    continue
                yield record

    def ids(self) -> Iterator[tuple[bool, str]]:
        for file in self._files:
            name = str(file) if isinstance(file, Path) else str(file.name)
            for line in self._lines(file, name, Unreadable()):
                kind, id = _kind_and_id(line)
                if kind in _CALL_KINDS:
                    yield kind == "settled", id

    def _lines(self, file: IO[bytes] | Path, name: str, unreadable: Unreadable) -> Iterator[bytes]:
        if isinstance(file, Path) or name.endswith(".gz"):
            lines_read = 0
            try:
                with gzip.open(file if isinstance(file, Path) else file.name) as compressed:
                    for line in compressed:
                        lines_read += 1
                        yield line
            except (OSError, EOFError, zlib.error) as error:
                unreadable.add(name, lines_read + 1, f"the rest of the file cannot be read: {error}")
            return
        file.seek(0)
        remaining = self._size if file is self._files[-1] else None
        for line in file:
            if remaining is not None:
                if remaining <= 0:
                    return
                remaining -= len(line)
            yield line


def _reason(line: bytes, error: Exception) -> str:
    """Why a line is no record."""
    if line.startswith(b"{") and not line.endswith((b"}\n", b"}")):
        return "the line is cut off"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "the line is not JSON"
    return str(error)


def _kind_and_id(line: bytes) -> tuple[str, str]:
    """The kind and the id of a line, ("", "") where it has none."""
    start = _LINE_START.match(line)
    try:
        if start is not None and line.count(b'"kind":') == 1 and line.count(b'"id":') == 1:
            return start[1].decode(), start[2].decode()
        fields = json.loads(line)
        kind, id = fields.get("kind"), fields.get("id") or ""
    except (ValueError, RecursionError, AttributeError):
        return "", ""
    return (kind, id) if isinstance(kind, str) and isinstance(id, str) else ("", "")


def _open(path: Path) -> IO[bytes] | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"books at {path} cannot be read: {error.strerror or error}") from error


def _compressed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def _is_same(one: IO[bytes], other: IO[bytes] | Path) -> bool:
    return not isinstance(other, Path) and os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))


class _Database:
    """A database: rows in the order in which they were committed, up to the last one when it was opened."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        if not path.exists():
            raise ConfigError(f"{path}: there are no such books")
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                check(connection, path)
                self._last: int = connection.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()[0]
        except sqlite3.Error as error:
            raise ConfigError(f"books at {path} cannot be read: {error}") from error

    def close(self) -> None:
        """Do nothing: no file stays open between readings."""

    def records(self, unreadable: Unreadable, *, manual_only: bool = False) -> Iterator[Record]:
        seq = 0
        with closing(sqlite3.connect(self._uri, uri=True)) as connection:
            existing = columns_of(connection)  # an older release wrote fewer
            columns = ", ".join(f'"{name}"' if name in existing else "NULL" for name in FIELDS)
            select = _SELECT.format(columns, _MANUAL_ONLY if manual_only else "")
            # In pieces, so that no long transaction keeps writers from checkpointing.
            while rows := connection.execute(select, (seq, self._last, _ROWS_PER_QUERY)).fetchall():
                seq = rows[-1][0]
                for number, *values in rows:
                    try:
                        record = record_of(_fields(values))
                    except ValueError as error:
                        unreadable.add(self.name, number, str(error))
                        continue
                    yield record

    def ids(self) -> Iterator[tuple[bool, str]]:
        seq = 0
        with closing(sqlite3.connect(self._uri, uri=True)) as connection:
            while rows := connection.execute(_SELECT_IDS, (seq, self._last, _ROWS_PER_QUERY)).fetchall():
                seq = rows[-1][0]
                yield from ((bool(settled), id or "") for _, settled, id in rows if isinstance(id, str | None))


def _fields(values: list[Any]) -> dict[str, Any]:
    fields = dict(zip(FIELDS, values, strict=True))
    if fields["sums"] is not None:
        fields["sums"] = json.loads(fields["sums"])
    return fields
