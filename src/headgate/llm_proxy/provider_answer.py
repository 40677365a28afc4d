"""An answer of a provider while it arrives: parsed by llhttp, with a bounded buffer of its body.

The connection feeds it the bytes received, the exchange reads from it. See docs/decisions/0054-the-proxys-client.md.
"""

from __future__ import annotations

import asyncio
import zlib
from types import TracebackType
from typing import Protocol

from headgate.errors import MissingExtraError
from headgate.llm_proxy.inflating import Inflating

try:
    import httptools
except ImportError as error:
    raise MissingExtraError("the proxy of language models", extra="llm-proxy", why=error) from error

_MOST_HEAD_BYTES = 64 * 1024
_BUFFER_BYTES = 64 * 1024
"""How much of a body, as it is sent, is read ahead; the rest waits at the provider until the client reads on."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BrokenAnswer(ConnectionError):
    """An answer that is incomplete, and will stay so."""


class Link(Protocol):
    """What an answer needs of its connection."""

    def pause(self) -> None:
        """Stop reading."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def release(self, *, is_reusable: bool) -> None:
        """End the use by this answer: keep the connection for another call, or close it at once."""
        ...


class ProviderAnswer:
    """One answer; for `with`, at whose end its connection is free for another call, or closed.

    `status` and `headers` (names in lower case) are set after `head`.
    """

    __slots__ = ("_buffered_bytes", "_error", "_fed_bytes", "_has_head", "_head_bytes", "_inflating", "_is_closed",
                 "_is_complete", "_is_compressed", "_is_framed", "_is_interim", "_is_paused", "_is_reusable", "_link",
                 "_loop", "_parser", "_parts", "_unread", "_waiter", "headers", "status")  # fmt: skip

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._parts: list[bytes] = []
        self._unread = b""
        """The part of the body that `looks_like_json` has inspected, still to be returned by `read`."""

        self._buffered_bytes = self._fed_bytes = self._head_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        self._inflating: Inflating | None = None
        """Inflates a compressed body; None before its first bytes."""

        self._is_compressed = False
        self._is_framed = False
        """Whether the head states where the body ends; if not, it ends with the connection."""

        self._is_interim = False
        """Whether an answer of 1xx is being read, before the final one."""

        self._has_head = self._is_complete = self._is_reusable = self._is_paused = self._is_closed = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    @property
    def content_type(self) -> str:
        """The media type of the body, in lower case and without parameters; "" where none is stated."""
        for name, value in self.headers:
            if name == "content-type":
                return value.partition(";")[0].strip().lower()
        return ""

    @property
    def has_more(self) -> bool:
        """Whether more of the body was received than was read."""
        return bool(self._parts or self._unread) or (self._inflating is not None and self._inflating.has_more)

    @property
    def is_at_end(self) -> bool:
        """Whether the whole body was received and read."""
        is_read = self._is_complete and not self._parts and not self._unread
        return is_read and (self._inflating is None or self._inflating.is_at_end)

    async def head(self) -> None:
        """Wait until status and headers are received. Raises BrokenAnswer, TimeoutError."""
        while not self._has_head:
            await self._wait_for_more()

    async def read(self) -> bytes:
        """Return the next part of the body, b"" at its end. Raises BrokenAnswer, TimeoutError where none arrives."""
        while not (part := self._take_part()):
            if self._is_complete:
                if self.is_at_end:
                    return b""
                raise BrokenAnswer("a compressed body is incomplete")
            await self._wait_for_more()
        return part

    async def looks_like_json(self) -> bool:
        """Whether the body begins like JSON, as no event does. Raises as `read` does, which still returns it all."""
        received = b""
        while not (start := received.removeprefix(_BYTE_ORDER_MARK).lstrip()) and len(received) < _BUFFER_BYTES:
            part = await self.read()
            if not part:
                break
            received += part
        self._unread = received
        return start.startswith((b"{", b"["))

    def _take_part(self) -> bytes:
        """Take the part of the body that was received, b"" if there is none; of a compressed body one piece at most."""
        if self._unread:
            unread, self._unread = self._unread, b""
            return unread
        inflating = self._inflating
        if inflating is None:
            parts, self._parts, self._buffered_bytes = self._parts, [], 0
            part = parts[0] if len(parts) == 1 else b"".join(parts)
        else:
            try:
                part = inflating.read()
            except zlib.error as error:
                self._is_reusable = False
                raise BrokenAnswer("a body is not compressed as its head says") from error
            self._buffered_bytes = inflating.waiting
        if self._is_paused and self._buffered_bytes <= _BUFFER_BYTES:
            self._is_paused = False
            self._link.resume()
        return part

    async def read_body(self, most: int) -> bytes:
        """Return the complete body. Raises BrokenAnswer, also for more than `most` bytes, and TimeoutError."""
        body = bytearray()
        while part := await self.read():
            body += part
            if len(body) > most:
                raise BrokenAnswer(f"an answer has at most {most} bytes")
        return bytes(body)

    def __enter__(self) -> ProviderAnswer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End reading, and release the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._parser = None  # it refers to this answer
            self._link.release(is_reusable=self._is_complete and self._is_reusable and not self._is_paused)

    async def _wait_for_more(self) -> None:
        """Wait until more is received."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # Called by the connection.

    def feed(self, data: bytes) -> None:
        """Take bytes that were received."""
        if self._parser is None or self._error is not None:
            return
        if self._is_complete:  # bytes behind its end, which no request asked for
            self._is_reusable = False
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(BrokenAnswer("the bytes received are no answer of HTTP/1.1"))
            return
        if not self._has_head:
            self._fed_bytes += len(data)
            if self._fed_bytes > 2 * _MOST_HEAD_BYTES:  # without the end of a field
                self.fail(BrokenAnswer(f"the head of an answer has at most {_MOST_HEAD_BYTES} bytes"))
                return
        if self._buffered_bytes > _BUFFER_BYTES and not self._is_paused:
            self._is_paused = True
            self._link.pause()
        self._wake()

    def ended(self, error: Exception | None) -> None:
        """Note that the connection has ended; with an error it was lost."""
        if self._is_complete or self._error is not None:
            return
        if error is None and self._has_head and not self._is_framed:
            self._is_complete = True
        else:
            self._error = BrokenAnswer("the connection was lost")
        self._wake()

    def fail(self, error: OSError) -> None:
        """Give up the answer, with an error for its reader."""
        self._is_reusable = False
        if not self._is_complete and self._error is None:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self._is_complete:  # bytes behind its end, which no request asked for
            self._is_reusable = False

    def on_header(self, name: bytes, value: bytes | None) -> None:
        if not self._has_head:
            self._head_bytes += len(name) + len(value or b"")
            if self._head_bytes > _MOST_HEAD_BYTES:
                raise BrokenAnswer(f"the head of an answer has at most {_MOST_HEAD_BYTES} bytes")
            text = (value or b"").decode("utf-8", "surrogateescape")
            self.headers.append((name.decode("latin-1").lower(), text))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self._is_complete:
            return
        status = self._parser.get_status_code()
        self._is_interim = 100 <= status < 200
        if self._is_interim:
            self.headers.clear()
            return
        self.status = status
        self._is_framed = status in (204, 304)
        for name, value in self.headers:
            if name == "content-length":
                self._is_framed = True
            elif name == "transfer-encoding":
                if value.lower() != "chunked":
                    raise BrokenAnswer("an answer comes in chunks, or as it is")
                self._is_framed = True
            elif name == "content-encoding" and value.lower() != "identity":
                if value.lower() not in ("gzip", "x-gzip", "deflate"):
                    raise BrokenAnswer("an answer comes without compression")
                self._is_compressed = True
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        if self._is_complete:
            return
        if self._is_compressed:
            if self._inflating is None:
                self._inflating = Inflating()
            self._inflating.feed(body)
        else:
            self._parts.append(body)
        self._buffered_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
        elif not self._is_complete:
            assert self._parser is not None
            self._is_reusable = self._parser.should_keep_alive()
            self._is_complete = True
