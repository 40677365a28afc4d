"""Reads a streamed answer as it passes: its usage, and when a further slice of output is to be held."""

from __future__ import annotations

from typing import Any

from headgate.llm.events import EventReader
from headgate.llm.streams import StreamUsage
from headgate.llm.tokens import count_text

_COUNTED_TOGETHER = 200
"""Characters that are counted together."""

_BYTES_PER_TOKEN = 3


class StreamReading:
    """What is read of one stream, as objects or as bytes; it asks nothing of a store.

    `needs_more` tells that less than half a slice is left of what is held, and after a refusal that nothing is: hold a
    further slice before more is passed on.
    """

    __slots__ = ("_events", "_left", "_made", "_margin", "_model", "_text", "has_begun", "usage")

    def __init__(self, model: str, held_output: int | None, slice_tokens: int) -> None:
        self._model = model
        self._left = held_output
        self._margin = slice_tokens // 2
        self._made = 0
        self._text = ""
        self._events: EventReader | None = None
        self.usage = StreamUsage()
        self.has_begun = False
        """Whether an object of the stream was read."""

    @property
    def is_counted(self) -> bool:
        """Whether what is made is counted as it passes, since a rule holds slices."""
        return self._left is not None

    @property
    def needs_more(self) -> bool:
        """Whether a further slice is to be held; never, where no rule holds slices."""
        if self._left is None:
            return False
        uncounted = len(self._text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN
        return self._left - self._made - uncounted < self._margin

    def refused_more(self) -> bool:
        """Note that no more can be held; whether all that is held is used up."""
        is_used_up = self._margin == 0
        self._margin = 0
        return is_used_up

    def held_more(self, tokens: int) -> None:
        """Note that so much more is held."""
        if self._left is not None:
            self._left += tokens

    def read(self, told: Any) -> None:
        """Read an object of a stream, as clients' packages give them."""
        self.has_begun = True
        self.usage.read(told)
        self._count()

    def feed(self, chunk: bytes, *, strip_usage: bool = False) -> list[bytes]:
        """Read bytes of server-sent events; those to be passed on, each a whole event as it came.

        With `strip_usage` an event that tells usage alone is left out: a client that did not ask does not expect it.
        """
        if self._events is None:
            self._events = EventReader()
        if self._left is None and chunk.endswith(b"\n\n") and self._events.is_between and self.usage.defer(chunk):
            return [chunk]
        passed = [event.raw for event in self._events.feed(chunk) if not (self.usage.read_event(event) and strip_usage)]
        self._count()
        return passed

    def rest(self) -> bytes:
        """What came after the last whole event, at the end of the stream."""
        return self._events.end() if self._events is not None else b""

    def _count(self) -> None:
        """Count what was made. Words come in parts of one event each, so a few are counted together."""
        if self._left is None:
            return
        self._text += self.usage.take_text()
        if len(self._text) >= _COUNTED_TOGETHER:
            self._made += count_text(self._text, self._model).tokens
            self._text = ""
