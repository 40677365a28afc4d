"""Books as a table of an SQLite database, which other programs can query while it is written.

Several processes may write (WAL, one transaction for each batch). Triggers refuse to change or delete a row.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headgate.errors import ConfigError
from headgate.llm.books.records import FIELDS, Record, fields_of
from headgate.llm.usage import Usage

APPLICATION_ID = 0x48474C42
"""Marks a database as books: "HGLB"."""

VERSION = 1
_LOCK_TIMEOUT_S = 5.0
_INTEGERS = (
    "at_us", "held_input", "held_output", "held_cost", "lease_us", *Usage._fields, "cost", "admitted_us", "dropped",
    "estimate",
)  # fmt: skip
_TYPES = {name: "INTEGER" if name in _INTEGERS else "TEXT" for name in FIELDS}
_COLUMNS = ", ".join(f'"{name}" {kind}' for name, kind in _TYPES.items())
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS entries (seq INTEGER PRIMARY KEY, {_COLUMNS});
CREATE TRIGGER IF NOT EXISTS entries_are_not_changed BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'books are append-only: append a correction'); END;
CREATE TRIGGER IF NOT EXISTS entries_are_not_deleted BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'books are append-only: append a correction'); END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
COMMIT;
"""
_INSERT = "INSERT INTO entries ({}) VALUES ({})".format(
    ", ".join(f'"{name}"' for name in FIELDS), ", ".join("?" for _ in FIELDS)
)
_LARGEST = (1 << 63) - 1

Row = tuple[Any, ...]
"""The values of FIELDS."""


class SqliteFile:
    """The database at `path`. Of a process that is killed, only what it did not commit is lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    @property
    def name(self) -> str:
        return str(self.path)

    def open(self) -> None:
        """Create the database where there is none; raises OSError, or ConfigError where the file is something else."""
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise OSError(f"{self.path}: {error}") from error
            raise ConfigError(f"{self.path} is no database of SQLite: {error}") from error
        finally:
            self.close()

    def encode(self, record: Record) -> Row:
        fields = fields_of(record)
        if "sums" in fields:
            fields["sums"] = json.dumps(fields["sums"])
        if any(type(value) is int and value > _LARGEST for value in fields.values()):
            raise ValueError("a number is larger than a database's integers, 2**63 - 1")
        return tuple(map(fields.get, FIELDS))

    def append(self, encoded: Sequence[Row]) -> None:
        with self._transaction() as connection:
            connection.executemany(_INSERT, encoded)

    @contextmanager
    def exclusive(self) -> Iterator[Callable[[Record], None]]:
        """Yield a function that appends a record, while other processes wait."""
        with self._transaction() as connection:
            yield lambda record: self._insert(connection, record)

    def _insert(self, connection: sqlite3.Connection, record: Record) -> None:
        connection.execute(_INSERT, self.encode(record))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction; an error of the database is raised as OSError."""
        try:
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self.close()
            raise OSError(f"{self.path}: {error}") from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def after_fork(self) -> None:
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        # Created first, so that no other user can read it; SQLite gives the files beside it the same permissions.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            prepare(connection, self.path)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


_inherited: list[sqlite3.Connection] = []
"""Connections that a process inherited by a fork: closing one would release the parent's locks."""


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make books of an empty database; raises ConfigError for one that is something else, or of another version."""
    check(connection, path, may_be_empty=True)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
    for name in sorted(set(FIELDS) - columns_of(connection)):  # of an older release
        with suppress(sqlite3.OperationalError):  # where another process adds it at the same time
            connection.execute(f'ALTER TABLE entries ADD COLUMN "{name}" {_TYPES[name]}')


def columns_of(connection: sqlite3.Connection) -> set[str]:
    """The columns of the table of entries."""
    return {row[1] for row in connection.execute("PRAGMA table_info(entries)")}


def check(connection: sqlite3.Connection, path: Path, *, may_be_empty: bool = False) -> None:
    """Raise ConfigError for a database without books."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION_ID and version == VERSION:
        return
    if application == APPLICATION_ID:
        raise ConfigError(f"{path}: books of version {version}; this release of Headgate knows version {VERSION}")
    is_empty = version == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    if not (is_empty and may_be_empty):
        raise ConfigError(f"{path} is a database of something else, no books")
