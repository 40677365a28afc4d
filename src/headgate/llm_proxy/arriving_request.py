"""What is known of a request while it arrives: how much of it has come, whose words it speaks, where it ended.

aiohttp's server reads it. This looks at no more than is needed to bound it, and to see whether more came than it.
"""

from __future__ import annotations

from aiohttp import web

from headgate.llm.dialects import Family, dialect_of

_MOST_LINE = 512
_END = b"\r\n\r\n"


class ArrivingRequest:
    """The bytes of one request; `add` takes them as they come."""

    __slots__ = ("_body_at", "_last", "_line", "came")

    def __init__(self) -> None:
        self.came = 0
        """How many bytes came."""

        self._line = b""
        self._last = b""
        self._body_at: int | None = None

    def add(self, data: bytes) -> None:
        """Take what came."""
        if self._body_at is None:
            if len(self._line) < _MOST_LINE:
                self._line += data[: _MOST_LINE - len(self._line)]
            end = (self._last + data).find(_END)
            if end >= 0:
                self._body_at = self.came - len(self._last) + end + len(_END)
        self.came += len(data)
        self._last = data[-len(_END) :] if len(data) >= len(_END) else (self._last + data)[-len(_END) :]

    def family(self) -> Family:
        """Whose words its path speaks; OpenAI's where that has not come."""
        line, ended, _ = self._line.partition(b"\r\n")
        words = line.split(b" ")
        if not ended or len(words) != 3:
            return "openai"
        dialect = dialect_of(words[1].decode("latin-1"))
        return "openai" if dialect is None else dialect.family

    def is_followed(self, request: web.BaseRequest) -> bool:
        """Whether more came than this request, which has come whole: a part of the next one."""
        if self._body_at is None:
            return False
        length = request.content_length
        if length is None and request.body_exists:  # in chunks: they end as a head does
            return self._last != _END
        return self.came > self._body_at + (length or 0)
