"""An answer of a provider as it comes: parsed by llhttp, its body kept until it is read, and no more of it than that.

What comes over a connection is fed to it, the exchange reads from it. See docs/decisions/0054-the-proxys-client.md.
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
"""So much of a body, as it comes, is read ahead; more waits at the provider until the client has taken it."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BrokenAnswer(ConnectionError):
    """An answer that has not come whole, and will not."""


class Link(Protocol):
    """The connection that an answer comes over, as far as the answer needs it."""

    def pause(self) -> None:
        """Read nothing for now."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def release(self, *, may_stay: bool) -> None:
        """The answer is done with: keep the connection for another one, or cut it off."""
        ...


class ProviderAnswer:
    """One answer; for `with`, at whose end its connection is free for another call, or cut off.

    `status` and `headers` (names in lower case) are there after `head`.
    """

    __slots__ = ("_again", "_error", "_fed", "_has_head", "_head_bytes", "_held", "_inflating", "_is_closed",
                 "_is_compressed", "_is_framed", "_is_interim", "_is_paused", "_is_whole", "_link", "_loop",
                 "_may_stay", "_parser", "_parts", "_waiter", "headers", "status")  # fmt: skip

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._parts: list[bytes] = []
        self._again = b""
        """What of the body was looked at, and is to be read."""

        self._held = self._fed = self._head_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        self._inflating: Inflating | None = None
        """What a compressed body is read by, once some of it has come."""

        self._is_compressed = False
        self._is_framed = False
        """Whether the head tells where the body ends; if not, it ends with the connection."""

        self._is_interim = False
        """Whether what is read is an answer of 1xx, before the one that counts."""

        self._has_head = self._is_whole = self._may_stay = self._is_paused = self._is_closed = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    @property
    def content_type(self) -> str:
        """The media type of the body, in lower case and without parameters; "" where none is told."""
        for name, value in self.headers:
            if name == "content-type":
                return value.partition(";")[0].strip().lower()
        return ""

    @property
    def has_more(self) -> bool:
        """Whether more of the body has come than was read."""
        return bool(self._parts or self._again) or (self._inflating is not None and self._inflating.has_more)

    @property
    def is_at_end(self) -> bool:
        """Whether all of the body has come and was read."""
        is_read = self._is_whole and not self._parts and not self._again
        return is_read and (self._inflating is None or self._inflating.is_at_end)

    async def head(self) -> None:
        """Wait until status and headers are there. Raises BrokenAnswer, TimeoutError."""
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """What of the body has come since, b"" at its end. Raises BrokenAnswer, TimeoutError where it does not come."""
        while not (part := self._taken()):
            if self._is_whole:
                if self.is_at_end:
                    return b""
                raise BrokenAnswer("a compressed body has not come whole")
            await self._more()
        return part

    async def looks_like_json(self) -> bool:
        """Whether the body begins as an object of JSON does, which no event does. Raises as `read` does."""
        seen = b""
        while not (begun := seen.removeprefix(_BYTE_ORDER_MARK).lstrip()) and len(seen) < _BUFFER_BYTES:
            part = await self.read()
            if not part:
                break
            seen += part
        self._again = seen
        return begun.startswith((b"{", b"["))

    def _taken(self) -> bytes:
        """What of the body has come, b"" where nothing has; of a compressed one no more than a piece."""
        if self._again:
            again, self._again = self._again, b""
            return again
        inflating = self._inflating
        if inflating is None:
            parts, self._parts, self._held = self._parts, [], 0
            part = parts[0] if len(parts) == 1 else b"".join(parts)
        else:
            try:
                part = inflating.read()
            except zlib.error as error:
                self._may_stay = False
                raise BrokenAnswer("a body is not compressed as its head says") from error
            self._held = inflating.waiting
        if self._is_paused and self._held <= _BUFFER_BYTES:
            self._is_paused = False
            self._link.resume()
        return part

    async def read_whole(self, most: int) -> bytes:
        """The body. Raises BrokenAnswer, also for more than so many bytes, and TimeoutError."""
        whole = bytearray()
        while part := await self.read():
            whole += part
            if len(whole) > most:
                raise BrokenAnswer(f"an answer has at most {most} bytes")
        return bytes(whole)

    def __enter__(self) -> ProviderAnswer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Read no more of it."""
        if not self._is_closed:
            self._is_closed = True
            self._parser = None  # it refers to this answer
            self._link.release(may_stay=self._is_whole and self._may_stay and not self._is_paused)

    async def _more(self) -> None:
        """Wait until more has come."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # What the connection calls.

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        if self._parser is None or self._error is not None:
            return
        if self._is_whole:  # behind its end: nothing was asked
            self._may_stay = False
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(BrokenAnswer("what came is no answer of HTTP/1.1"))
            return
        if not self._has_head:
            self._fed += len(data)
            if self._fed > 2 * _MOST_HEAD_BYTES:  # without an end of a field
                self.fail(BrokenAnswer(f"the head of an answer has at most {_MOST_HEAD_BYTES} bytes"))
                return
        if self._held > _BUFFER_BYTES and not self._is_paused:
            self._is_paused = True
            self._link.pause()
        self._wake()

    def ended(self, error: Exception | None) -> None:
        """The connection has ended; with an error it was lost."""
        if self._is_whole or self._error is not None:
            return
        if error is None and self._has_head and not self._is_framed:
            self._is_whole = True
        else:
            self._error = BrokenAnswer("the connection was lost")
        self._wake()

    def fail(self, error: OSError) -> None:
        """Nothing more is to be expected of it."""
        self._may_stay = False
        if not self._is_whole and self._error is None:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._is_whole:  # behind its end: nothing was asked
            self._may_stay = False

    def on_header(self, name: bytes, value: bytes | None) -> None:
        if not self._has_head:
            self._head_bytes += len(name) + len(value or b"")
            if self._head_bytes > _MOST_HEAD_BYTES:
                raise BrokenAnswer(f"the head of an answer has at most {_MOST_HEAD_BYTES} bytes")
            told = (value or b"").decode("utf-8", "surrogateescape")
            self.headers.append((name.decode("latin-1").lower(), told))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self._is_whole:
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
        if self._is_whole:
            return
        if self._is_compressed:
            if self._inflating is None:
                self._inflating = Inflating()
            self._inflating.feed(body)
        else:
            self._parts.append(body)
        self._held += len(body)

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
        elif not self._is_whole:
            assert self._parser is not None
            self._may_stay = self._parser.should_keep_alive()
            self._is_whole = True
