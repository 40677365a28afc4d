"""Reads server-sent events from chunks of bytes that are cut anywhere, each event with its own bytes.

The format is that of the HTML standard, section 9.2.6: lines end with LF, CRLF or CR, a blank line ends an event,
several `data` lines are joined, comments begin with a colon. The bytes of events are exactly those received.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_BYTES = 16 * 1024 * 1024
"""A longer event is passed on unparsed, so that no peer can determine how much is buffered."""

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(r"\r\n|\n|\r")


class ServerSentEvent(NamedTuple):
    """One event. `raw` are its bytes, with the blank line at its end; `data` is empty for a comment."""

    raw: bytes
    name: str
    data: str


class EventReader:
    """Reads events from chunks of bytes. All `raw`, together with what `end` returns, are the bytes that were fed."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        self._searched = 0
        """The length of the start of the buffer that contains no blank line."""

        self._skips_rest = False

    @property
    def is_between(self) -> bool:
        """Whether only whole events were fed."""
        return not self._buffer and not self._skips_rest

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that this chunk completes."""
        self._buffer += chunk
        events: list[ServerSentEvent] = []
        start = 0
        while (found := _BLANK_LINE.search(self._buffer, max(start, self._searched))) is not None:
            events.append(self._event(bytes(self._buffer[start : found.end()])))
            start = self._searched = found.end()
        del self._buffer[:start]
        if len(self._buffer) > self._most_bytes:
            events.append(ServerSentEvent(bytes(self._buffer), "", ""))
            self._buffer.clear()
            self._skips_rest = True
        self._searched = max(0, len(self._buffer) - 3)  # of two line ends, at most three bytes may have arrived
        return events

    def end(self) -> bytes:
        """The bytes after the last blank line: no event, by the standard."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return rest

    def _event(self, raw: bytes) -> ServerSentEvent:
        if self._skips_rest:  # the rest of an event that was too long
            self._skips_rest = False
            return ServerSentEvent(raw, "", "")
        name, data = "", []
        for line in _LINE_END.split(raw.decode("utf-8", "replace").removeprefix("\ufeff")):
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
            elif field == "event":
                name = value.removeprefix(" ")
        return ServerSentEvent(raw, name, "\n".join(data))
