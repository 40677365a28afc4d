"""The connections of clients: bounds on their number, on the time of a head, and on the memory of all requests.

aiohttp's server, which parses the requests, bounds none of these. The bytes of a connection reach it through a
`ClientConnection`, so the proxy relies on none of its internals. Where there are too many connections, the one that has
waited longest for its client is closed: a client that holds many open loses its own first
(docs/decisions/0032-connections.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web

from headgate.llm.dialects import Problem, problem_answer
from headgate.llm_proxy.arrived_request import ArrivedRequest
from headgate.llm_proxy.arriving_request import ArrivingRequest

_LONGEST_CHECK_S = 1.0
_IDLE, _HEAD, _BODY, _BUSY, _ENDING, _REST = range(6)
"""The phases of a connection, by what it waits for: a request; the rest of its head; its body; nothing, while it is
answered; nothing, while the end of the answer is written, after which the client may send the next request; the rest of
a body whose request was answered before it arrived, and that is discarded."""

_PHRASES = {408: "Request Timeout", 503: "Service Unavailable"}


class ClientConnections:
    """All connections of a server; `watch` closes those on which no request, or not all of a head, arrives in time."""

    def __init__(
        self, new_handler: Callable[[], web.RequestHandler], *, most: int, idle_s: float, head_s: float,
        arriving_bytes: int,
    ) -> None:  # fmt: skip
        """`new_handler` makes the server's own handler of a connection: the `protocol` of its requests.

        `arriving_bytes` bounds the memory of all requests that are incomplete, or that no provider has answered.
        """
        self._new_handler = new_handler
        self.most = most
        self.idle_s, self.head_s = idle_s, head_s
        self._most_arriving_bytes = arriving_bytes
        self.arriving_bytes = 0
        self.open: dict[object, ClientConnection] = {}
        """Open connections by the server's handler of each."""

        self.waiting: dict[ClientConnection, None] = {}
        """Connections that wait for their clients, the longest first."""

        self.arriving: dict[ClientConnection, None] = {}
        """Connections on which an incomplete request has begun, the earliest first."""

        self.heads: dict[ClientConnection, float] = {}
        """Connections with an incomplete head, and the loop's time at which it began, the earliest first."""

        self.unused: dict[ClientConnection, float] = {}
        """Connections without a first request, and when they began; aiohttp closes them only since 3.14.5."""

    def accept(self) -> ClientConnection:
        """Make the protocol of a new connection, for the event loop."""
        return ClientConnection(self, self._new_handler())

    def make_room(self) -> bool:
        """Return whether one more connection may be open; if there are too many, close one that waits for a client."""
        if len(self.open) < self.most:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        oldest.abort()
        return True

    def add_bytes(self, size: int) -> bool:
        """Count `size` more bytes of requests, refusing the earliest incomplete ones; return whether the bytes fit."""
        self.arriving_bytes += size
        while self.arriving_bytes > self._most_arriving_bytes and self.arriving:
            next(iter(self.arriving)).refuse(Problem.TOO_MANY, "Too many requests are arriving.")
        return self.arriving_bytes <= self._most_arriving_bytes

    def head_received(self, request: web.BaseRequest) -> bool:
        """Note that a request is being answered; return whether its connection is still open."""
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.head_received(request)
        return connection is not None

    def may_read(self, request: web.BaseRequest, size: int) -> bool:
        """Count `size` more bytes for the parsed body of a request, besides those received; whether there is room.

        They are counted until the body is dropped. Incomplete requests are refused for them.
        """
        connection = self.open.get(request.protocol)
        return connection is None or connection.may_read(size)

    def body_dropped(self, request: web.BaseRequest) -> None:
        """Release the bytes of a request whose body is no longer stored."""
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.release_bytes()

    def answer_ends(self, request: web.BaseRequest) -> None:
        """Note that the last bytes of an answer are about to be written: from now on the next request may arrive."""
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.answer_ends()

    def answered(self, request: web.BaseRequest) -> None:
        """Note that an answer was written."""
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.answered()

    async def watch(self) -> None:
        """Refuse clients whose heads do not arrive in time, and close unused connections; runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_LONGEST_CHECK_S, self.head_s / 4, self.idle_s / 4))
            now_s = loop.time()
            for connection in [late for late, start_s in self.heads.items() if start_s <= now_s - self.head_s]:
                connection.refuse(Problem.LATE_HEAD, f"The head of a request has to come within {self.head_s:g} s.")
            for connection in [unused for unused, start_s in self.unused.items() if start_s <= now_s - self.idle_s]:
                connection.abort()


class ClientConnection(asyncio.Protocol):
    """One connection, in front of the server's handler of it."""

    def __init__(self, connections: ClientConnections, handler: web.RequestHandler) -> None:
        self._connections = connections
        self._handler = handler
        self._phase = _IDLE
        self._is_refused = False
        self._arriving = ArrivingRequest()
        self._counted_bytes = 0
        self._request: web.BaseRequest | None = None
        """The request that is being answered."""

    def head_received(self, request: web.BaseRequest) -> None:
        """Note that a request is being answered; the body of a call may be missing yet, or incomplete."""
        self._request = request
        self.set_phase(_BUSY if request.content.is_eof() or request.method != "POST" else _BODY)
        self.close_if_followed()

    def answer_ends(self) -> None:
        """Note that the answer ends; bytes of the body that are still missing belong to this request."""
        if self._request is None:
            return
        if self._request.content.is_eof():
            self._end_request(_ENDING)
        else:
            self.release_bytes()
            self.set_phase(_REST)

    def answered(self) -> None:
        """Note that the request was answered."""
        self.answer_ends()
        if self._phase == _ENDING:
            self.set_phase(_IDLE)

    def set_phase(self, phase: int) -> None:
        """Set what the connection waits for, and move it to the matching collections."""
        connections, self._phase = self._connections, phase
        connections.heads.pop(self, None)
        connections.waiting.pop(self, None)
        connections.arriving.pop(self, None)
        if phase not in (_BUSY, _ENDING):
            connections.waiting[self] = None
        if phase == _BODY:
            connections.arriving[self] = None

    def close_if_followed(self) -> None:
        """Close the connection after the answer where the client has sent more than the request being answered.

        No known client sends a request before the last one was answered, so pipelined requests are not buffered.
        """
        request = self._request
        if request is not None and request.content.is_eof() and self._arriving.is_followed(request):
            self._handler.close()

    def may_read(self, size: int) -> bool:
        """Count `size` bytes for its parsed body if there is room for them."""
        connections = self._connections
        self._counted_bytes += size
        if connections.add_bytes(size):
            return True
        self._counted_bytes -= size
        connections.arriving_bytes -= size
        return False

    def release_bytes(self) -> None:
        """Count the bytes of the request no longer: they are no longer stored."""
        self._connections.arriving_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def refuse(self, problem: Problem, message: str) -> None:
        """Answer a client whose request is incomplete with a problem, and close its connection."""
        self._forget()
        self._is_refused = True
        answer = problem_answer(self._arriving.family(), problem, message)
        fields = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        head = f"HTTP/1.1 {answer.status} {_PHRASES[answer.status]}\r\n{fields}connection: close\r\n"
        self._transport.write(f"{head}content-length: {len(answer.body)}\r\n\r\n".encode() + answer.body)
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._forget()
        self._transport.abort()

    def _end_request(self, phase: int) -> None:
        self._request = None
        self._arriving = ArrivingRequest()
        self.release_bytes()
        self.set_phase(phase)

    def _begin_head(self) -> None:
        connections, self._phase = self._connections, _HEAD
        connections.waiting[self] = connections.arriving[self] = None
        connections.heads[self] = asyncio.get_running_loop().time()
        connections.unused.pop(self, None)

    def _forget(self) -> None:
        connections = self._connections
        self.release_bytes()
        for collection in (connections.heads, connections.waiting, connections.arriving, connections.unused):
            collection.pop(self, None)
        connections.open.pop(self._handler, None)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_handled = self._connections.make_room()
        if not self._is_handled:
            self.refuse(Problem.TOO_MANY, "Too many calls are under way.")
            return
        self._connections.open[self._handler] = self
        self._connections.unused[self] = asyncio.get_running_loop().time()
        self.set_phase(_IDLE)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._phase in (_BUSY, _REST):
            self._receive_while_answered(data)
            return
        if self._phase in (_IDLE, _ENDING):
            self._begin_head()
        self._count(data)
        if self._is_refused:
            return
        self._handler.data_received(data)
        if self._phase == _BODY and self._request is not None and self._request.content.is_eof():
            self.set_phase(_BUSY)
            self.close_if_followed()

    def _receive_while_answered(self, data: bytes) -> None:
        """Take bytes received while a request is answered: the rest of its body, not awaited, or the next request."""
        request = self._request
        if request is None or request.content.is_eof():
            self._handler.close()
            return
        self._count(data)
        self._handler.data_received(data)
        if self._phase != _REST:
            self.close_if_followed()
        elif request.content.is_eof():  # the answer was written: the next request may have arrived behind the body
            is_followed = self._arriving.is_followed(request)
            self._end_request(_IDLE)
            if is_followed:
                self._begin_head()

    def _count(self, data: bytes) -> None:
        self._arriving.add(data)
        if self._phase != _REST:  # whose bytes are discarded
            self._counted_bytes += len(data)
            self._connections.add_bytes(len(data))

    def eof_received(self) -> None:
        if not self._is_refused:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._is_handled:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._is_handled:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if isinstance(self._request, ArrivedRequest):
            self._request.connection_lost()
        if self._is_handled:
            self._handler.connection_lost(exc)
