"""One HTTP/1.1 connection, bounded in everything that a client can make it hold or wait for.

The parser is llhttp; what is here is what a parser cannot know: how large a request may be, how long its
client may take, whose turn it is when requests come one behind another, and when the connection ends.
`Connections` are all those of a process; where there are too many, the one that has waited longest for its
client gives way. See docs/decisions/0032-connections.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import NamedTuple, Protocol, cast

from headgate.errors import MissingExtraError
from headgate.service.http.messages import PHRASES, Question, Response, problem_response

try:
    import httptools
except ImportError as error:
    raise MissingExtraError("the service", extra="service") from error

_SLICE = 4096
"""So many bytes are parsed at once: what is asked for in one turn of the event loop is bounded by it."""

_SLOWEST_BODY = 16 * 1024
"""A body that comes with at least so many bytes a second is never too slow."""

_LINGER_S = 2.0
"""How long what a client still sends is thrown away, so that it reads the answer before the connection is reset."""

_LOOK_EVERY_S = 1.0

_IDLE, _HEAD, _BODY = range(3)
_TELLING = frozenset((b"content-length", b"transfer-encoding", b"expect", b"host"))
_LINES = {status: f"HTTP/1.1 {status} {phrase}\r\ndate: ".encode() for status, phrase in PHRASES.items()}


class Bounds(NamedTuple):
    """What one client can make the service hold and wait for."""

    connections: int = 8192
    """At the most, in one process."""

    held_bytes: int = 64 << 20
    """Of requests that have not come whole, on all connections of one process."""

    head_bytes: int = 64 << 10
    """The request line and all header fields."""

    target_bytes: int = 16 << 10
    fields: int = 256
    body_bytes: int = 1 << 20
    head_s: float = 10.0
    body_s: float = 30.0
    """A body that comes steadily may take longer."""

    take_s: float = 30.0
    """How long a client may take to read what it was answered."""

    idle_s: float = 180.0
    """Longer than gateways keep a connection that they do not use: so they close it, and never meet a closed one."""


class App(Protocol):
    """What a connection asks. `answer` raises nothing."""

    def wants_body(self, method: str, path: str) -> bool:
        """Whether the body is to be read; else it is thrown away."""
        ...

    def answer(self, question: Question) -> Response | Awaitable[Response]:
        """The answer, or an awaitable of it."""
        ...


class _Refused(Exception):
    """A request that is not read further."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class _Turn(NamedTuple):
    """A request whose answer is due, and how its connection goes on."""

    question: Question
    keep: bool
    says_keep: bool
    """A client of HTTP/1.0 has to be told that the connection stays."""


class Connections:
    """All connections of one process."""

    def __init__(self, app: App, bounds: Bounds) -> None:
        self.app = app
        self.bounds = bounds
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}
        """Those that wait for their client, in the order in which they began to."""

        self.held = 0
        """Bytes of requests that have not come whole."""

        self.closing = False
        """Every answer is the last of its connection."""

        self.date = b""

    def __call__(self) -> Connection:
        """A connection that is to be made: what the event loop's servers ask for."""
        return Connection(self, asyncio.get_running_loop())

    async def look_after(self, tick: Callable[[], None]) -> None:
        """End what takes too long, and keep the date, until cancelled; `tick` is called about once a second."""
        loop = asyncio.get_running_loop()
        while True:
            tick()
            self.date = formatdate(usegmt=True).encode()
            now = loop.time()
            for connection in [one for one in self.waiting if one.due <= now]:
                connection.expire(now)
            await asyncio.sleep(_LOOK_EVERY_S)

    def admit(self, newest: Connection) -> bool:
        """Take up one more, if need be in the place of another; False where all others are being answered."""
        self.open.add(newest)
        return len(self.open) <= self.bounds.connections or self._give_way(newest, lambda one: True)

    def hold(self, newest: Connection, count: int) -> None:
        """Count bytes of requests that have not come whole; where they are too many, others give way."""
        self.held += count
        while self.held > self.bounds.held_bytes and self._give_way(newest, lambda one: one.held > 0):
            pass

    def close_idle(self) -> None:
        """Close those on which nothing has begun."""
        for connection in [one for one in self.waiting if one.is_idle]:
            connection.give_way()

    def abort(self) -> None:
        """Cut off all of them."""
        for connection in list(self.open):
            connection.abort()

    def _give_way(self, newest: Connection, may: Callable[[Connection], bool]) -> bool:
        longest = next((one for one in self.waiting if one is not newest and may(one)), None)
        if longest is None:
            return False
        longest.give_way()
        return True


class Connection(asyncio.Protocol):
    """One connection. `due` is when its client has taken too long, by the event loop's clock."""

    _asked: bool
    _body: bytearray

    def __init__(self, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._connections = connections
        self._bounds = connections.bounds
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._pending: asyncio.Future[Response] | None = None
        self._turns: deque[_Turn] = deque()
        """Requests that have come and are answered after the one that is pending."""

        self._unfed = b""
        """What has come behind requests that are answered first."""

        self._last: Response | None = None
        """The answer to a request that is not read further, when all before it are answered."""

        self._reads = True
        """Whether what comes is read; else it is thrown away."""

        self._lingers = False
        """All is answered, and the client was told that no more comes."""

        self._paused = False
        self._stuck = False
        """The client does not take its answers."""

        self._served = 0
        self._phase = _HEAD
        self._waits_for: tuple[int, int] | None = None
        """In which phase of which request it waits for its client; None while it does not."""

        self.held = 0
        self.due = 0.0
        self._begin()

    @property
    def is_idle(self) -> bool:
        """Whether nothing has begun on it that could be finished."""
        begun = self._phase == _BODY or (self._phase == _HEAD and (self._unread or self._head))
        return self._lingers or not (begun or self._is_busy)

    @property
    def _is_busy(self) -> bool:
        """Whether something is to be answered before more is read."""
        return self._pending is not None or self._stuck or bool(self._turns)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else "unix"
        if self._connections.admit(self):
            self._wait()
        else:
            self._refuse(503, "too many connections are being answered; ask again")

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.open.discard(self)
        self._connections.waiting.pop(self, None)
        self._reads = False
        self._turns.clear()
        self._unfed = b""
        self._hold(0)

    def data_received(self, data: bytes) -> None:
        if not self._reads:
            return
        if self._unfed or self._is_busy:
            self._unfed += data
            self._pause()
        else:
            self._feed(data)
        self._wait()

    def eof_received(self) -> bool:
        """The client sends no more; what it has asked is still answered."""
        self._reads = False
        return self._is_busy and not self._lingers

    def pause_writing(self) -> None:
        self._stuck = True
        self._wait_until(self._bounds.take_s)

    def resume_writing(self) -> None:
        self._stuck = False
        self._waits_for = None
        self._go_on()

    # What those call that look after all connections.

    def expire(self, now: float) -> None:
        """The client has taken too long."""
        if self._stuck or self._lingers or self._transport.is_closing():
            self.abort()
        elif self.is_idle:
            self._close()
        elif self._phase == _HEAD:
            self._refuse(408, f"the head of a request has to come within {self._bounds.head_s:g} s")
        else:
            due = self._body_began + self._bounds.body_s + self._body_size / _SLOWEST_BODY
            if due > now:
                self.due = due
            else:
                self._refuse(408, f"a body has to come within {self._bounds.body_s:g} s, or steadily")

    def give_way(self) -> None:
        """End in favour of another connection."""
        if self._stuck or self._lingers or self._transport.is_closing():
            self.abort()
        elif self.is_idle:
            self._close()
        else:
            self._refuse(503, "too many connections are open, and this one has waited longest for its client")
            self._close()

    def abort(self) -> None:
        """Cut it off."""
        self._transport.abort()
        self.connection_lost(None)

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._begin()
        self._phase = _HEAD

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head += len(url)
        if len(self._url) > self._bounds.target_bytes:
            raise _Refused(414, f"a request target has at most {self._bounds.target_bytes} bytes")

    def on_header(self, name: bytes, value: bytes | None) -> None:
        if self._phase == _BODY:  # a trailer: what was asked is not changed any more
            return
        name, value = name.lower(), value or b""
        self._head += len(name) + len(value) + 4
        self._fields.append((name, value))
        if len(self._fields) > self._bounds.fields or self._head > self._bounds.head_bytes:
            raise self._too_large()
        if name not in _TELLING:
            return
        if name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or self._length < 0:
                raise _Refused(400, "a Transfer-Encoding is understood where it is chunked, and once")
            self._length = -1
        elif name == b"expect":
            self._expects = value.lower() == b"100-continue"
        elif name == b"host":
            self._hosts += 1

    def on_headers_complete(self) -> None:
        self._phase = _BODY
        self._unread = 0
        self._body_began = self._loop.time()
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _Refused(400, f"HTTP/{version} is not spoken here; use HTTP/1.1")
        if version == "1.0" and self._length < 0:
            raise _Refused(400, "HTTP/1.0 has no Transfer-Encoding; use HTTP/1.1")
        if self._hosts > 1:
            raise _Refused(400, "the field Host is given twice")
        self._path = _path_of(self._url)
        self._method = self._parser.get_method().decode("ascii")
        # An upgrade is not taken up. What comes behind it may be of either protocol, so it is not read.
        self._keep = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self._says_keep = version == "1.0" and self._keep
        self._wanted = self._connections.app.wants_body(self._method, self._path)
        if self._wanted:
            if self._length > self._bounds.body_bytes:
                raise self._body_too_large()
        elif self._length:
            # A client that waits to be asked for its body may send it all the same, or not: nobody can tell.
            self._keep = self._keep and not self._expects
            self._ask(b"")

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._body_size += len(body)
        if self._wanted:
            if self._body_size > self._bounds.body_bytes:
                raise self._body_too_large()
            self._body += body

    def on_message_complete(self) -> None:
        self._phase = _IDLE
        self._unread = self._head = 0
        if not self._asked:
            self._ask(bytes(self._body))
        self._body = bytearray()

    def _begin(self) -> None:
        """Forget the request before."""
        self._url = b""
        self._head = self._unread = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._length = 0
        """As it was declared; -1 for chunks."""

        self._body = bytearray()
        self._body_size = 0
        self._body_began = 0.0
        self._expects = False
        self._asked = False

    def _too_large(self) -> _Refused:
        bounds = self._bounds
        return _Refused(431, f"the head of a request has at most {bounds.head_bytes} bytes in {bounds.fields} fields")

    def _body_too_large(self) -> _Refused:
        return _Refused(413, f"a body has at most {self._bounds.body_bytes} bytes")

    # Reading and answering.

    def _feed(self, data: bytes) -> None:
        """Parse what has come, until something is to be answered first."""
        try:
            if len(data) <= _SLICE:
                self._parse(data)
            else:
                self._parse_in_turns(data)
        except httptools.HttpParserUpgrade:
            self._reads = False
        except _Refused as refused:
            self._refuse(refused.status, str(refused))
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _Refused):
                self._refuse(error.__context__.status, str(error.__context__))
            elif self._reads:
                self._refuse(400, "this is no request of HTTP/1.1 that can be read")
        self._hold((0, self._unread, self._head + len(self._body))[self._phase])

    def _parse(self, piece: bytes | memoryview) -> None:
        self._parser.feed_data(piece)
        self._unread += len(piece)
        if self._unread > self._bounds.head_bytes:
            raise self._too_large()
        if self._expects and self._phase == _BODY and self._wanted and not self._is_busy:
            self._expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _parse_in_turns(self, data: bytes) -> None:
        """Parse much of it; after some requests others have their turn."""
        view = memoryview(data)
        for start in range(0, len(data), _SLICE):
            begun = self._served
            self._parse(view[start : start + _SLICE])
            if not self._reads:
                return
            if start + _SLICE < len(data) and (self._is_busy or self._served > begun):
                self._unfed = data[start + _SLICE :]
                self._pause()
                if not self._is_busy:
                    self._loop.call_soon(self._go_on)
                return

    def _ask(self, body: bytes) -> None:
        self._asked = True
        if not self._reads:
            return
        turn = _Turn(Question(self._method, self._path, self._fields, self._peer, body), self._keep, self._says_keep)
        self._reads = self._keep
        if self._is_busy:
            self._turns.append(turn)
        else:
            self._take(turn)

    def _take(self, turn: _Turn) -> None:
        response = self._connections.app.answer(turn.question)
        if isinstance(response, Response):
            self._write(turn, response)
        else:
            self._connections.waiting.pop(self, None)
            self._waits_for = None
            self._pending = asyncio.ensure_future(response)
            self._pending.add_done_callback(lambda done: self._came(turn, done))

    def _came(self, turn: _Turn, done: asyncio.Future[Response]) -> None:
        self._pending = None
        if not done.cancelled():
            self._write(turn, done.result())
            self._go_on()

    def _write(self, turn: _Turn, response: Response) -> None:
        if self._transport.is_closing():
            return
        self._served += 1
        keep = turn.keep and not self._connections.closing
        self._transport.write(
            encode(
                response,
                self._connections.date,
                keep=keep,
                says_keep=turn.says_keep,
                head=turn.question.method == "HEAD",
            )
        )
        if not keep:
            self._reads = False
            self._turns.clear()
            if turn.keep or self._phase != _IDLE or self._unfed:  # the client may be sending more
                self._linger()
            else:
                self._close()

    def _go_on(self) -> None:
        """Answer what is due next, then read on."""
        while self._turns and self._pending is None and not self._stuck:
            self._take(self._turns.popleft())
        if not (self._is_busy or self._lingers or self._transport.is_closing()):
            if self._last is not None:
                self._write_last(self._last)
            elif self._reads:
                unfed, self._unfed = self._unfed, b""
                if unfed:
                    self._feed(unfed)
                if self._paused and not (self._unfed or self._is_busy or self._transport.is_closing()):
                    self._paused = False
                    self._transport.resume_reading()
            else:
                self._close()
        self._wait()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    # Ending.

    def _refuse(self, status: int, detail: str) -> None:
        """Read no more, and say why; if the request was answered already, only read no more."""
        self._reads = False
        self._unfed = b""
        answered = self._asked and self._phase != _HEAD
        self._last = None if answered else problem_response(status, detail)
        if self._is_busy:
            return
        if self._last is None:
            self._linger()
        else:
            self._write_last(self._last)

    def _write_last(self, response: Response) -> None:
        self._last = None
        if self._transport.is_closing():
            return
        self._transport.write(encode(response, self._connections.date, keep=False))
        self._linger()

    def _linger(self) -> None:
        """Say that no more comes, and throw away what still does: with it unread, the answer could be lost."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._lingers = True
        self._hold(0)
        self._transport.write_eof()
        self._wait_until(_LINGER_S)

    def _close(self) -> None:
        self._reads = False
        self._transport.close()
        self._wait_until(self._bounds.take_s)

    # Waiting for the client.

    def _wait(self) -> None:
        """Note since when and until when the client is waited for; nothing is noted of one that is being answered."""
        if self._stuck or self._lingers or self._transport.is_closing():
            return  # noted where it began
        if self._is_busy or self._unfed:
            self._waits_for = None
            self._connections.waiting.pop(self, None)
            return
        waits_for = (self._phase, self._served)
        if waits_for != self._waits_for:
            bounds = self._bounds
            self._wait_until((bounds.idle_s, bounds.head_s, bounds.body_s)[self._phase])
            self._waits_for = waits_for

    def _wait_until(self, seconds: float) -> None:
        self.due = self._loop.time() + seconds
        waiting = self._connections.waiting
        waiting.pop(self, None)
        waiting[self] = None

    def _hold(self, count: int) -> None:
        change, self.held = count - self.held, count
        if change:
            self._connections.hold(self, change)


def encode(response: Response, date: bytes, *, keep: bool, says_keep: bool = False, head: bool = False) -> bytes:
    """An answer as it goes over the wire; `head` without its body."""
    status, content_type, body, headers = response
    parts = [_LINES[status], date, b"\r\ncontent-length: %d\r\n" % len(body)]
    if body:
        parts += (b"content-type: ", content_type, b"\r\n")
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    if not keep:
        parts.append(b"connection: close\r\n")
    elif says_keep:
        parts.append(b"connection: keep-alive\r\n")
    parts.append(b"\r\n")
    if not head:
        parts.append(body)
    return b"".join(parts)


def _path_of(target: bytes) -> str:
    """The path of a request target, which may be absolute (RFC 9112, 3.2), without its query."""
    if not target.startswith(b"/"):
        try:
            target = httptools.parse_url(target).path or b"/"
        except httptools.HttpParserInvalidURLError:
            target = b""
        if not target.startswith(b"/"):
            raise _Refused(400, "a request target is a path, such as /check/default")
    return target.partition(b"?")[0].partition(b"#")[0].decode("latin-1")
