"""Reads a streamed answer as it passes: its usage, and when a further slice of output is to be held."""

from __future__ import annotations

import json
from typing import Any

from headgate.llm.events import EventReader
from headgate.llm.streams import StreamUsage
from headgate.llm.tokens import count_text

_COUNTED_CHARACTERS = 200
"""Characters that are counted together."""

_BYTES_PER_TOKEN = 3


class StreamReading:
    """Reads one stream, as objects or as bytes, without a store.

    `needs_more` is true when less than half a slice remains of what is held, and after a refusal when nothing remains:
    then a further slice must be held before more is passed on.
    """

    __slots__ = ("_counted", "_events", "_margin", "_model", "_remaining", "_text", "answer", "has_begun", "usage")

    def __init__(self, model: str, held_output: int | None, slice_tokens: int) -> None:
        self._model = model
        self._remaining = held_output
        self._margin = slice_tokens // 2
        self._counted = 0
        self._text = ""
        self._events: EventReader | None = None
        self.usage = StreamUsage()
        self.has_begun = False
        """Whether an object of the stream was read."""

        self.answer: Any = None
        """The whole answer, where a server sent one in JSON as if it were a stream; known after `rest`."""

    @property
    def is_counted(self) -> bool:
        """Whether output is counted as it passes, since a rule holds slices."""
        return self._remaining is not None

    @property
    def needs_more(self) -> bool:
        """Whether a further slice must be held; never, where no rule holds slices."""
        if self._remaining is None:
            return False
        uncounted = len(self._text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN
        return self._remaining - self._counted - uncounted < self._margin

    def refused_more(self) -> bool:
        """Note that no more can be held; return whether everything held is used up."""
        is_used_up = self._margin == 0
        self._margin = 0
        return is_used_up

    def held_more(self, tokens: int) -> None:
        """Note that further tokens are held."""
        if self._remaining is not None:
            self._remaining += tokens

    def read(self, event: Any) -> None:
        """Read an object of a stream, as clients' packages yield them."""
        self.has_begun = True
        self.usage.read(event)
        self._count()

    def feed(self, chunk: bytes, *, strip_usage: bool = False) -> list[bytes]:
        """Read bytes of server-sent events, and return those to pass on, each a whole event as it arrived.

        With `strip_usage` an event that reports only usage is left out: a client that did not request it does not
        expect it.
        """
        if self._events is None:
            self._events = EventReader()
        if self._remaining is None and chunk.endswith(b"\n\n") and self._events.is_between and self.usage.defer(chunk):
            return [chunk]
        passed = [event.raw for event in self._events.feed(chunk) if not (self.usage.read_event(event) and strip_usage)]
        self._count()
        return passed

    def rest(self) -> bytes:
        """The bytes after the last whole event, at the end of the stream: all of an answer in JSON."""
        rest = self._events.end() if self._events is not None else b""
        if rest.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            self.answer = self._whole(rest)
        return rest

    def _whole(self, rest: bytes) -> Any:
        """Parse an answer in JSON; None where it is none, or where events were before it."""
        if self.usage.has_ended or self.usage.usage is not None or self.usage.text:
            return None
        try:
            return json.loads(rest)
        except (ValueError, RecursionError):
            return None

    def _count(self) -> None:
        """Count new output. Words arrive in parts, each in its own event, so several events are counted together."""
        if self._remaining is None:
            return
        self._text += self.usage.take_text()
        if len(self._text) >= _COUNTED_CHARACTERS:
            self._counted += count_text(self._text, self._model).tokens
            self._text = ""
