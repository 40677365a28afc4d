"""Which calls have to be remembered while books are read: those with more than a hold and, after it, one settling.

Of all others nothing need be kept once they are settled, so that books of any size are read in the same memory. Which
they are is found in a temporary database on the disk, by numbers that stand for ids: where two ids have the same one,
more is remembered than needed.
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
_TABLE = "CREATE TABLE told (place INTEGER PRIMARY KEY, id INTEGER NOT NULL, settled INTEGER NOT NULL)"
_INSERT = "INSERT INTO told (id, settled) VALUES (?, ?)"
_SELECT = """
SELECT id FROM told GROUP BY id
HAVING sum(settled) > 1 OR max(CASE settled WHEN 0 THEN place END) > min(CASE settled WHEN 1 THEN place END)
"""


class Remembered:
    """Ids of calls that are to be remembered: `id in remembered`."""

    def __init__(self, corrected: Iterable[str], others: Iterable[int]) -> None:
        self._corrected = frozenset(corrected)
        self._others = frozenset(others)

    def __contains__(self, id: object) -> bool:
        return id in self._corrected or hash(id) in self._others


def corrected_in(books: Collection[ReadBooks]) -> set[str]:
    """The ids of calls that are corrected in any of these books."""
    return {
        record.entry.id
        for one in books
        for record in one.records(Unreadable(), manual_only=True)
        if isinstance(record, Correction)
    }


def calls_to_remember(books: Collection[ReadBooks], corrected: Iterable[str]) -> Remembered:
    """Those of calls in these books, which are read in this order, and those that are corrected.

    Raises ConfigError where the disk has no room for what is looked up.
    """
    try:
        with closing(sqlite3.connect("", isolation_level=None)) as database:  # on the disk, and gone when it is closed
            for setting in _SETTINGS:
                database.execute(setting)
            database.execute(_TABLE)
            database.execute("BEGIN")
            for one in books:
                database.executemany(_INSERT, ((hash(id), settled) for settled, id in one.ids()))
            return Remembered(corrected, (number for (number,) in database.execute(_SELECT)))
    except sqlite3.Error as error:
        raise ConfigError(f"books cannot be read without room for temporary files: {error}") from error
