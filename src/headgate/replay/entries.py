"""The entries that are read from a log, and a tally of lines that could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple

from headgate.policy.client_address import UNIX

LONGEST_LINE = 65536
_MOST_SHOWN = 5

LogCost = int | dict[str, int]
"""The cost of a request by its log: a number, or the integers of each unit."""

Entry = tuple[int, str, str, str, str, dict[str, str], LogCost]
"""One request of a log: (time_us, client, method, path, host, headers, cost).

`client`, `method` and `path` are "" where the log has none; headers have names in lower case; the cost is 1
where none is read. A plain tuple, since there are millions of them.
"""

Block = Sequence[Entry]
"""Consecutive entries of a log: a list, or a native `LogBlock`, whose entries are not Python objects."""


def peer_of(client: str) -> str:
    """The client of a log in the form of a policy's peer: nginx writes `unix:` for the peer of a Unix socket."""
    return UNIX if client == "unix:" else client


class UnreadLine(NamedTuple):
    """A line that could not be read, or the first line of a part that could not be read."""

    source: str
    line: int
    reason: str
    text: str


@dataclass(slots=True)
class Tally:
    """Counts lines that could not be read, and keeps the first few, with other facts about logs for their reader."""

    count: int = 0
    shown: list[UnreadLine] = field(default_factory=list)
    damaged: list[UnreadLine] = field(default_factory=list)
    """Logs of which only a part could be decompressed: the first line after that part."""

    guessed: dict[str, date] = field(default_factory=dict)
    """The first day of each log whose times have no month or no date, guessed from the date of its file."""

    nothing_read: dict[str, UnreadLine] = field(default_factory=dict)
    """Logs of which no line could be read, and the first line of each."""

    empty: list[str] = field(default_factory=list)
    """Logs without lines."""

    first: dict[str, UnreadLine] = field(default_factory=dict)
    """The first line of each log that could not be read."""

    absent: dict[str, dict[str, str]] = field(default_factory=dict)
    """The configured fields that no line of a log has: by log, then by role."""

    def add(self, source: str, line: int, reason: str, text: str, lines: int = 1) -> None:
        """Count a line, or several that were read as one."""
        self.count += lines
        if source in self.first and len(self.shown) >= _MOST_SHOWN:
            return
        unread = UnreadLine(source, line, reason, text[:200])
        self.first.setdefault(source, unread)
        if len(self.shown) < _MOST_SHOWN:
            self.shown.append(unread)

    def add_unused(self, source: str) -> None:
        """Note that a log has no readable entry."""
        if source in self.first:
            self.nothing_read[source] = self.first[source]
        elif all(part.source != source for part in self.damaged):
            self.empty.append(source)


class Unreadable(ValueError):
    """A line that cannot be read; the text says why."""
