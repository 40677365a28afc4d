"""A request while it arrives: the number of its bytes so far, its dialect's family, and where it ends.

aiohttp's server parses the request. This reads only what is needed to bound it, and to detect bytes after its end.
"""

from __future__ import annotations

from aiohttp import web

from headgate.llm.dialects import Family, dialect_of

_MOST_LINE_BYTES = 512
_END = b"\r\n\r\n"


class ArrivingRequest:
    """The bytes of one request, passed to `add` as they are received."""

    __slots__ = ("_body_at", "_last", "_line", "received")

    def __init__(self) -> None:
        self.received = 0
        """The number of bytes received."""

        self._line = b""
        self._last = b""
        self._body_at: int | None = None

    def add(self, data: bytes) -> None:
        """Take the next bytes received."""
        if self._body_at is None:
            if len(self._line) < _MOST_LINE_BYTES:
                self._line += data[: _MOST_LINE_BYTES - len(self._line)]
            end = (self._last + data).find(_END)
            if end >= 0:
                self._body_at = self.received - len(self._last) + end + len(_END)
        self.received += len(data)
        self._last = data[-len(_END) :] if len(data) >= len(_END) else (self._last + data)[-len(_END) :]

    def family(self) -> Family:
        """The family of its path's dialect; OpenAI's as long as the request line is incomplete or unknown."""
        line, ended, _ = self._line.partition(b"\r\n")
        words = line.split(b" ")
        if not ended or len(words) != 3:
            return "openai"
        dialect = dialect_of(words[1].decode("latin-1"))
        return "openai" if dialect is None else dialect.family

    def is_followed(self, request: web.BaseRequest) -> bool:
        """Whether bytes of the next request were received behind this one, which must be complete."""
        if self._body_at is None:
            return False
        length = request.content_length
        if length is None and request.body_exists:  # in chunks: they end as a head does
            return self._last != _END
        return self.received > self._body_at + (length or 0)
