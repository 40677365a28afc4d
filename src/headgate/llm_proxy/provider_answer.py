"""An answer of a provider as it comes: parsed by llhttp, its body kept until it is read, and no more of it than that.

What comes over a connection is fed to it, the exchange reads from it. See docs/decisions/0054-the-proxys-client.md.
"""

from __future__ import annotations

import asyncio
import zlib
from types import TracebackType
from typing import Protocol

from headgate.errors import MissingExtraError

try:
    import httptools
except ImportError as error:
    raise MissingExtraError("the proxy of language models", extra="llm-proxy", why=error) from error

_MOST_HEAD_BYTES = 64 * 1024
_BUFFER_BYTES = 64 * 1024
"""So much of a body is read ahead; more waits at the provider until the client has taken it."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_GZIP = b"\x1f"
"""What a part of a compressed body begins with that follows another one (RFC 1952, 2.2)."""


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

    __slots__ = ("_error", "_fed", "_has_head", "_head_bytes", "_held", "_inflate", "_is_closed", "_is_compressed",
                 "_is_framed", "_is_interim", "_is_paused", "_is_whole", "_link", "_loop", "_may_stay", "_parser",
                 "_parts", "_waiter", "headers", "status")  # fmt: skip

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._parts: list[bytes] = []
        self._held = self._fed = self._head_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        self._inflate: zlib._Decompress | None = None
        self._is_framed = False
        """Whether the head tells where the body ends; if not, it ends with the connection."""

        self._is_compressed = False
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
        return bool(self._parts)

    @property
    def is_at_end(self) -> bool:
        """Whether all of the body has come and was read."""
        return self._is_whole and not self._parts

    async def head(self) -> None:
        """Wait until status and headers are there. Raises BrokenAnswer, TimeoutError."""
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """What of the body has come since, b"" at its end. Raises BrokenAnswer, TimeoutError where it does not come."""
        while not self._parts:
            if self._is_whole:
                return b""
            await self._more()
        parts, self._parts, self._held = self._parts, [], 0
        if self._is_paused:
            self._is_paused = False
            self._link.resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)

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
            self._finish()
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
            body = self._inflated(body)
        if body:
            self._parts.append(body)
            self._held += len(body)

    def _inflated(self, body: bytes) -> bytes:
        """What a part of a compressed body says. What comes behind its end and is none is passed over."""
        inflate = self._inflate or zlib.decompressobj(_GZIP_OR_ZLIB)
        made = inflate.decompress(body)
        while inflate.eof and (more := inflate.unused_data).startswith(_GZIP):
            inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            made += inflate.decompress(more)
        self._inflate = inflate
        return made

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
        elif not self._is_whole:
            assert self._parser is not None
            self._may_stay = self._parser.should_keep_alive()
            self._finish()

    def _finish(self) -> None:
        if self._inflate is not None and not self._inflate.eof:
            self.fail(BrokenAnswer("a compressed body has not come whole"))
            return
        self._is_whole = True
