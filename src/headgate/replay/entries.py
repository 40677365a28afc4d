"""What is read from a log: entries, and a tally of what could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple

from headgate.policy.client_address import UNIX

LONGEST_LINE = 65536
_MOST_SHOWN = 5

LogCost = int | dict[str, int]
"""What a log says that a request cost: a number, or the integers of each unit."""

Entry = tuple[int, str, str, str, str, dict[str, str], LogCost]
"""One request of a log: (time_us, client, method, path, host, headers, cost).

`client`, `method` and `path` are "" where the log has none; headers have names in lower case; the cost is 1
where the log was not asked for it. A plain tuple, for there are millions of them.
"""

Block = Sequence[Entry]
"""Entries of a log that follow one another: a list, or a native `LogBlock`, whose lines are no objects of Python."""


def peer_of(client: str) -> str:
    """The client that a log names, as policies have a peer: nginx writes `unix:` for that of a Unix socket."""
    return UNIX if client == "unix:" else client


class Unread(NamedTuple):
    """A line that could not be read, or the first line of a part that could not be."""

    source: str
    line: int
    reason: str
    text: str


@dataclass(slots=True)
class Tally:
    """Counts lines that could not be read, and keeps the first few; and what else there is to say about logs."""

    count: int = 0
    shown: list[Unread] = field(default_factory=list)
    damaged: list[Unread] = field(default_factory=list)
    """Logs of which only a part could be unpacked: the line that the part ends before."""

    guessed: dict[str, date] = field(default_factory=dict)
    """The first day of each log whose times name no month, as far as its file tells."""

    nothing_read: dict[str, Unread] = field(default_factory=dict)
    """Logs of which no line could be read, and the first line of each."""

    empty: list[str] = field(default_factory=list)
    """Logs without a line to read."""

    first: dict[str, Unread] = field(default_factory=dict)
    """The first line of each log that could not be read."""

    absent: dict[str, dict[str, str]] = field(default_factory=dict)
    """The fields that were named for a role, and that no line of a log has: by log, then by role."""

    def add(self, source: str, line: int, reason: str, text: str, lines: int = 1) -> None:
        """Count a line, or several that were read as one."""
        self.count += lines
        if source in self.first and len(self.shown) >= _MOST_SHOWN:
            return
        unread = Unread(source, line, reason, text[:200])
        self.first.setdefault(source, unread)
        if len(self.shown) < _MOST_SHOWN:
            self.shown.append(unread)

    def add_unused(self, source: str) -> None:
        """Note that a log has given no entry."""
        if source in self.first:
            self.nothing_read[source] = self.first[source]
        elif all(part.source != source for part in self.damaged):
            self.empty.append(source)


class Unreadable(ValueError):
    """A line that cannot be read; the text says why."""
