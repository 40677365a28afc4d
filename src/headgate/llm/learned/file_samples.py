"""The samples of all processes of a host, in a small SQLite file in a directory beside the zone that they share.

`/dev/shm/zone` has `/dev/shm/zone.learned/samples.sqlite`. Only the user can access the directory, so that no other
user can put files there that SQLite would read; that of a zone shared with a group is shared with that group.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.errors import StoreError, StoreUnavailable
from headgate.llm.learned.samples import MOST, halved
from headgate.llm.learned.shared import GIVE_UP_AFTER_S, Addition

MOST_SERIES = 20_000
"""The most series in the file; those that changed least recently are deleted."""

_TIMEOUT_S = 1.0
_TABLES = """
CREATE TABLE IF NOT EXISTS samples (name TEXT PRIMARY KEY, counts TEXT NOT NULL, at_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS added (process TEXT PRIMARY KEY, number INTEGER, at_us INTEGER NOT NULL) WITHOUT ROWID;
"""


class FileSamples:
    """The samples of all processes that use a zone."""

    def __init__(self, zone: Path) -> None:
        self._zone = zone
        self.path = zone.with_name(f"{zone.name}.learned") / "samples.sqlite"

    def merge(self, process: str, number: int, additions: list[Addition]) -> list[dict[int, int]]:
        try:
            with self._transaction() as database:
                if any(added_counts for _, added_counts in additions):
                    _add(database, process, number, additions)
                return [_read(database, name) for name, _ in additions]
        except (OSError, sqlite3.Error, StoreError) as error:
            raise StoreUnavailable(f"{self.path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all or nothing of it takes effect."""
        self._prepare()
        with closing(sqlite3.connect(self.path, timeout=_TIMEOUT_S, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = OFF")  # a zone does not outlive the system either
            database.execute("BEGIN IMMEDIATE")
            for table in _TABLES.strip().split("\n"):
                database.execute(table)
            yield database
            database.execute("COMMIT")

    def _prepare(self) -> None:
        """Create directory and file, if they do not exist; raise StoreError if another user could change them."""
        zone = self._zone.stat() if self._zone.exists() else None
        group = zone.st_gid if zone is not None and zone.st_mode & 0o020 else None
        directory = self.path.parent
        if not directory.exists():
            directory.mkdir(mode=0o700, exist_ok=True)
            if group is not None:
                os.chown(directory, -1, group)
                directory.chmod(0o2770)
        status = directory.lstat()
        is_trusted = status.st_uid in (os.geteuid(), 0) or (group is not None and status.st_gid == group)
        if (
            not stat.S_ISDIR(status.st_mode)
            or not is_trusted
            or status.st_mode & (0o002 if group is not None else 0o022)
        ):
            raise StoreError("its directory is not a directory, or another user may write to it")
        mode = 0o600 if group is None else 0o660
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                os.fchmod(descriptor, mode)  # whatever the umask is
        finally:
            os.close(descriptor)


def _add(database: sqlite3.Connection, process: str, number: int, additions: list[Addition]) -> None:
    """Add the additions with this number, unless they were added before."""
    now_us = SYSTEM_CLOCK.now_us()
    database.execute("DELETE FROM added WHERE at_us < ?", (now_us - 2 * GIVE_UP_AFTER_S * US_PER_SECOND,))
    last = database.execute("SELECT number FROM added WHERE process = ?", (process,)).fetchone()
    if last is not None and last[0] == number:
        return
    database.execute("INSERT OR REPLACE INTO added VALUES (?, ?, ?)", (process, number, now_us))
    for name, added_counts in additions:
        if added_counts:
            counts = _read(database, name)
            for bucket, count in added_counts.items():
                counts[bucket] = counts.get(bucket, 0) + count
            while sum(counts.values()) > MOST:
                counts = halved(counts)
            database.execute("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", (name, json.dumps(counts), now_us))
    [series] = database.execute("SELECT count(*) FROM samples").fetchone()
    if series > MOST_SERIES:
        oldest = "DELETE FROM samples WHERE name IN (SELECT name FROM samples ORDER BY at_us LIMIT ?)"
        database.execute(oldest, (series - MOST_SERIES,))


def _read(database: sqlite3.Connection, name: str) -> dict[int, int]:
    row = database.execute("SELECT counts FROM samples WHERE name = ?", (name,)).fetchone()
    if row is None:
        return {}
    try:
        return {int(bucket): int(count) for bucket, count in json.loads(row[0]).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"the samples {name} are damaged: {error}; delete the file") from error
