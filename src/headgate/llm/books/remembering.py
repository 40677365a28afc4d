"""The calls to remember while books are read: those with more than a hold and, after it, one settling.

All others are forgotten once they are settled, so that books of any size are read in bounded memory. A temporary
database on the disk finds the calls to remember by hashes of their ids: where two ids have the same hash, more is
remembered than needed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing

from headgate.errors import ConfigError
from headgate.llm.books.reading import ReadBooks, Unreadable
from headgate.llm.books.records import Correction

_CACHE_KIB = 8192
_SETTINGS = (
    f"PRAGMA cache_size = -{_CACHE_KIB}",
    "PRAGMA temp_store = FILE",
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
)
_TABLE = "CREATE TABLE entries (position INTEGER PRIMARY KEY, id INTEGER NOT NULL, settled INTEGER NOT NULL)"
_INSERT = "INSERT INTO entries (id, settled) VALUES (?, ?)"
_SELECT = """
SELECT id FROM entries GROUP BY id
HAVING sum(settled) > 1 OR max(CASE settled WHEN 0 THEN position END) > min(CASE settled WHEN 1 THEN position END)
"""


class Remembered:
    """The ids of calls to remember: `id in remembered`."""

    def __init__(self, corrected: Iterable[str], hashes: Iterable[int]) -> None:
        self._corrected = frozenset(corrected)
        self._hashes = frozenset(hashes)

    def __contains__(self, id: object) -> bool:
        return id in self._corrected or hash(id) in self._hashes


def corrected_in(books: Collection[ReadBooks]) -> set[str]:
    """The ids of calls that are corrected in any of these books."""
    return {
        record.entry.id
        for one in books
        for record in one.records(Unreadable(), manual_only=True)
        if isinstance(record, Correction)
    }


def calls_to_remember(books: Collection[ReadBooks], corrected: Iterable[str]) -> Remembered:
    """The calls to remember of these books, which are read in this order, and the `corrected` ones.

    Raises ConfigError where the disk has no space for the temporary database.
    """
    try:
        with closing(
            sqlite3.connect("", isolation_level=None)
        ) as database:  # on the disk, and deleted when it is closed
            for setting in _SETTINGS:
                database.execute(setting)
            database.execute(_TABLE)
            database.execute("BEGIN")
            for one in books:
                database.executemany(_INSERT, ((hash(id), settled) for settled, id in one.ids()))
            return Remembered(corrected, (hashed_id for (hashed_id,) in database.execute(_SELECT)))
    except sqlite3.Error as error:
        raise ConfigError(f"books cannot be read without space for temporary files: {error}") from error
