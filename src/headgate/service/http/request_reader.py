"""The requests in the data of a client: parsed by llhttp, bounded in size, and unambiguous.

The parser alone is lenient. This module refuses requests that are too large, and those that another server could
read as another request. See docs/decisions/0032-connections.md.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.errors import MissingExtraError
from headgate.service.http.bounds import Bounds
from headgate.service.http.messages import Persistence, ServiceRequest
from headgate.service.http.request_faults import MALFORMED, RequestRefused, fault_of, unknown_method
from headgate.service.http.targets import ascii_line, path_of

try:
    import httptools
except ImportError as error:
    raise MissingExtraError("the service", extra="service", why=error) from error

IDLE, HEAD, BODY = range(3)
"""Phases: between requests, in a request's head (or before the first byte of all), in its body."""

_SLOWEST_BODY = 16 * 1024
"""A body that arrives with at least so many bytes a second is never too slow."""

_CLOSE, _KEEP, _KEEP_AND_ANNOUNCE = Persistence
_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"expect", b"host", b"connection"))
"""Fields that determine how the request is read."""

_MOST_DIGITS = 18
"""Of a Content-Length."""

_PEER_OF_DOOR = b"headgate-door-peer"
"""The field in which the front door, and no other client, sends the address of its client."""

_CONNECTION_OF_DOOR = b"headgate-door-connection"
"""The field in which the front door sends the `Connection` field of its client."""


class RequestReader:
    """Reads the requests of one connection, and passes each to `receive` with the connection's persistence after it.

    Where the application does not read the body, the request is handed over as soon as its head is complete. `peer` is
    the client's address; None where the front door sends it in a field of each request.
    """

    _body: bytearray
    is_handed_over: bool
    """Whether the request that is being read was passed to `receive`."""

    expects_continue: bool
    """Whether the client waits for `100 Continue` before it sends the body."""

    def __init__(
        self,
        bounds: Bounds,
        peer: str | None,
        now_s: Callable[[], float],
        wants_body: Callable[[str, str], bool],
        receive: Callable[[ServiceRequest, Persistence], None],
    ) -> None:
        self._bounds = bounds
        self._by_door = peer is None
        self._peer = peer or "unix"
        self._now_s = now_s
        self._wants_body = wants_body
        self._receive = receive
        self._parser = httptools.HttpRequestParser(self)
        self._reads_body = False
        self._in_fields = False
        """Whether the current or next line follows the first line of a head."""

        self._tail = b""
        """The last two bytes that were parsed."""

        self._messages = 0

        self.on_message_begin()

    def feed(self, piece: bytes | memoryview) -> None:
        """Parse received data. Raises RequestRefused; after that, and after an upgrade, nothing more can be fed."""
        data, position = bytes(piece), 0
        is_ascii = data.isascii()
        while position < len(data):
            end = self._end_of_one_kind(data, position, is_ascii=is_ascii)
            part, position = data[position:end], end
            if self.phase != BODY and not (self._in_fields or part.isascii()):
                part = ascii_line(part)
            if not self._parse(part):
                return
            self._tail = (self._tail + part)[-2:]
            if part.endswith(b"\n"):
                self._in_fields = self.phase == HEAD and bool(self._url)

    def _end_of_one_kind(self, data: bytes, position: int, *, is_ascii: bool) -> int:
        """The end of the part that may be parsed at once: where not all is ASCII, a whole first line, or none of it."""
        if is_ascii or self.phase != BODY:
            return (data.rfind if is_ascii else data.find)(b"\n", position) + 1 or len(data)
        if self._length >= 0:
            return position + max(self._length - self._body_size, 1)
        # The end of the chunks, or of a part of them; it may have begun in the data that was parsed before.
        chunks_end = (self._tail + data[position : position + 2]).find(b"\n\r\n")
        if chunks_end >= 0:
            return position + chunks_end + 3 - len(self._tail)
        end = data.find(b"\n\r\n", position)
        return len(data) if end < 0 else end + 3

    def _parse(self, part: bytes) -> bool:
        """Parse a part of the received data; return whether more can be parsed."""
        before = None if self.has_begun else self._messages
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:  # the last request of its connection
            return not self.is_handed_over and self._read_body_of_upgrade(part[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, RequestRefused):
                raise error.__context__ from None
            is_beginning = before is not None and self._messages == before + 1
            raise RequestRefused(400, fault_of(error, part if is_beginning else b"")) from error
        self._unread += len(part)
        if self._unread > self._bounds.head_bytes:
            raise self._head_too_large()
        return True

    def _read_body_of_upgrade(self, part: bytes) -> bool:
        """Parse the body of a request that asks for an upgrade, which llhttp takes for data after the upgrade."""
        self._parser = httptools.HttpRequestParser(_BodyOnly(self))
        framing = b"Transfer-Encoding: chunked" if self._length < 0 else b"Content-Length: %d" % self._length
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        return self._parse(part) if part else True

    @property
    def has_begun(self) -> bool:
        """Whether a part of a request has arrived."""
        return self.phase == BODY or (self.phase == HEAD and bool(self._unread or self._head))

    @property
    def awaits_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends a body that is to be read."""
        return self.expects_continue and self.phase == BODY and self._reads_body

    @property
    def held_bytes(self) -> int:
        """Bytes of the incomplete request."""
        if self.phase == IDLE:
            return 0
        return self._unread if self.phase == HEAD else self._head + len(self._body)

    @property
    def body_due_s(self) -> float:
        """The time at which the body takes too long; the more of it has arrived, the later."""
        return self._body_start_s + self._bounds.body_s + self._body_size / _SLOWEST_BODY

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self._messages += 1
        self._url = b""
        self._head = self._unread = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._closes = self._keeps_alive = False
        self._length = 0
        """The declared length of the body; -1 for chunks."""

        self._body = bytearray()
        self._body_size = 0
        self._body_start_s = 0.0
        self.expects_continue = False
        self.is_handed_over = False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head += len(url)
        if len(self._url) > self._bounds.target_bytes:
            raise RequestRefused(414, f"a request target has at most {self._bounds.target_bytes} bytes")

    def on_header(self, name: bytes, value: bytes | None) -> None:
        if self.phase == BODY:  # a trailer: it no longer changes the request
            return
        name, value = name.lower(), value or b""
        if self._by_door and name == _PEER_OF_DOOR:
            self._peer = value.decode("ascii")
            return
        if self._by_door and name == _CONNECTION_OF_DOOR:
            name = b"connection"
        self._head += len(name) + len(value) + 4
        self._fields.append((name, value))
        if len(self._fields) > self._bounds.fields or self._head > self._bounds.head_bytes:
            raise self._head_too_large()
        if name not in _FRAMING:
            return
        value = value.rstrip(b" \t")  # no part of it (RFC 9110, 5.5), but llhttp keeps them
        if name == b"content-length":
            if len(value) > _MOST_DIGITS:
                raise RequestRefused(400, MALFORMED)
            self._length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or self._length < 0:
                raise RequestRefused(400, "a Transfer-Encoding is understood where it is chunked, and once")
            self._length = -1
        elif name == b"expect":
            self.expects_continue = value.lower() == b"100-continue"
        elif name == b"host":
            self._hosts += 1
        elif not self._by_door:
            options = [option.strip() for option in value.lower().split(b",")]
            self._closes |= b"close" in options
            self._keeps_alive |= b"keep-alive" in options

    def on_headers_complete(self) -> None:
        self.phase = BODY
        self._unread = 0
        self._body_start_s = self._now_s()
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RequestRefused(400, f"HTTP/{version} is not spoken here; use HTTP/1.1")
        if version == "1.0" and self._length < 0:
            raise RequestRefused(400, "HTTP/1.0 has no Transfer-Encoding; use HTTP/1.1")
        if self._hosts > 1:
            raise RequestRefused(400, "the field Host is given twice")
        self._method = self._parser.get_method().decode("ascii")
        if self._method == "CONNECT":
            raise RequestRefused(400, unknown_method("CONNECT"))  # it requests a tunnel
        path = path_of(self._url)
        if path is None:
            raise RequestRefused(400, "a request target is a path without #, such as /check/default")
        self._path = path
        self._persistence = self._persistence_of(version)
        self._reads_body = self._wants_body(self._method, self._path)
        if self._reads_body:
            if self._length > self._bounds.body_bytes:
                raise self._body_too_large()
        elif self._length:
            # A client that waits for `100 Continue` may or may not send its body all the same.
            if self.expects_continue:
                self._persistence = _CLOSE
            self._hand_over(b"")

    def _persistence_of(self, version: str) -> Persistence:
        # An upgrade is not accepted. Data behind it may be of either protocol, so it is not read.
        if self._closes or self._parser.should_upgrade() or not self._parser.should_keep_alive():
            return _CLOSE
        if version == "1.1":
            return _KEEP
        return _KEEP_AND_ANNOUNCE if self._keeps_alive else _CLOSE

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._body_size += len(body)
        if self._reads_body:
            if self._body_size > self._bounds.body_bytes:
                raise self._body_too_large()
            self._body += body

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade() and self._reads_body and self._length:
            return  # its body is still to be read
        self.phase = IDLE
        self._unread = self._head = 0
        if not self.is_handed_over:
            self._hand_over(bytes(self._body))
        self._body = bytearray()

    def _hand_over(self, body: bytes) -> None:
        self.is_handed_over = True
        self._receive(ServiceRequest(self._method, self._path, self._fields, self._peer, body), self._persistence)

    def _head_too_large(self) -> RequestRefused:
        bounds = self._bounds
        return RequestRefused(
            431, f"the head of a request has at most {bounds.head_bytes} bytes in {bounds.fields} fields"
        )

    def _body_too_large(self) -> RequestRefused:
        return RequestRefused(413, f"a body has at most {self._bounds.body_bytes} bytes")


class _BodyOnly:
    """The callbacks of a parser that reads only the body of a request; data behind the body is not read."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._is_complete = False

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._reader.on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self._reader.on_message_complete()
