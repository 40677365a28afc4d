"""What is read from a log: entries, and a tally of what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST_LINE = 65536
_MOST_SHOWN = 5


Entry = tuple[int, str, str, str, str, dict[str, str]]
"""One request of a log: (time_us, client, method, path, host, headers).

`client`, `method` and `path` are "" where the log has none; headers have names in lower case. A plain
tuple, for there are millions of them.
"""


class Unread(NamedTuple):
    """A line that could not be read."""

    source: str
    line: int
    reason: str
    text: str


@dataclass(slots=True)
class Tally:
    """Counts lines that could not be read, and keeps the first few."""

    count: int = 0
    shown: list[Unread] = field(default_factory=list)

    def add(self, source: str, line: int, reason: str, text: str) -> None:
        """Count a line."""
        self.count += 1
        if len(self.shown) < _MOST_SHOWN:
            self.shown.append(Unread(source, line, reason, text[:200]))


class Unreadable(ValueError):
    """A line that cannot be read; the text says why."""
