"""Server-sent events as they come: bytes in chunks cut anywhere, each event with the bytes that it came in.

The format is that of the HTML standard, section 9.2.6: lines end with LF, CRLF or CR, a blank line ends an event,
several `data` lines are joined, comments begin with a colon. What is passed on is what came, to the byte.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_BYTES = 16 * 1024 * 1024
"""An event that is longer is handed on unread, so that no peer decides how much is kept."""

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(r"\r\n|\n|\r")


class ServerSentEvent(NamedTuple):
    """One event. `raw` is what came, with the blank line at its end; `data` is empty for a comment."""

    raw: bytes
    name: str
    data: str


class EventReader:
    """Reads events out of chunks of bytes. All `raw` together, and what `end` gives, are all that was fed."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._left = bytearray()
        self._seen = 0
        """How much of what is left holds no blank line."""

        self._is_unread = False

    @property
    def is_between(self) -> bool:
        """Whether all that was fed are whole events."""
        return not self._left and not self._is_unread

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that this chunk completes."""
        self._left += chunk
        events: list[ServerSentEvent] = []
        start = 0
        while (found := _BLANK_LINE.search(self._left, max(start, self._seen))) is not None:
            events.append(self._event(bytes(self._left[start : found.end()])))
            start = self._seen = found.end()
        del self._left[:start]
        if len(self._left) > self._most_bytes:
            events.append(ServerSentEvent(bytes(self._left), "", ""))
            self._left.clear()
            self._is_unread = True
        self._seen = max(0, len(self._left) - 3)  # of two line ends, at the most three bytes are there already
        return events

    def end(self) -> bytes:
        """What came after the last blank line: no event, for the standard."""
        left = bytes(self._left)
        self._left.clear()
        self._seen = 0
        return left

    def _event(self, raw: bytes) -> ServerSentEvent:
        if self._is_unread:  # the rest of one that was too long
            self._is_unread = False
            return ServerSentEvent(raw, "", "")
        name, data = "", []
        for line in _LINE_END.split(raw.decode("utf-8", "replace").removeprefix("\ufeff")):
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
            elif field == "event":
                name = value.removeprefix(" ")
        return ServerSentEvent(raw, name, "\n".join(data))
