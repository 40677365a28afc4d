"""The connections of clients: how many there may be, how long a head may take, and what all requests may occupy.

aiohttp's server, which reads the requests, bounds none of it. What comes over a connection reaches it through one of
these, so nothing of its inside is relied on. Where there are too many, the one that has waited longest for its client
is closed, so that a client that holds many open loses its own first (docs/decisions/0032-connections.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web

from headgate.llm.dialects import Problem, problem_answer
from headgate.llm_proxy.arrived_request import ArrivedRequest
from headgate.llm_proxy.arriving_request import ArrivingRequest

_LONGEST_LOOK_S = 1.0
_IDLE, _HEAD, _BODY, _BUSY, _ENDING, _REST = range(6)
"""What a connection waits for: a request, the rest of its head, its body; nothing, while it is answered; nothing, while
the end of the answer is written, after which the client may send the next request; the rest of a body that was answered
before it came, and that is not read."""

_PHRASES = {408: "Request Timeout", 503: "Service Unavailable"}


class ClientConnections:
    """All connections of a server; `watch` closes those on which a head does not come."""

    def __init__(
        self, new_handler: Callable[[], web.RequestHandler], *, most: int, head_s: float, arriving_bytes: int
    ) -> None:
        """`new_handler` makes what the server has for a connection: the `protocol` of its requests.

        `arriving_bytes` is what all requests may occupy that have not come whole, or that no provider has answered.
        """
        self._new_handler = new_handler
        self.most = most
        self.head_s = head_s
        self._most_arriving_bytes = arriving_bytes
        self.arriving_bytes = 0
        self.open: dict[object, ClientConnection] = {}
        """By what the server has for them."""

        self.waiting: dict[ClientConnection, None] = {}
        """Those that wait for their clients, the longest first."""

        self.arriving: dict[ClientConnection, None] = {}
        """Those on which a request has begun that has not come whole, the earliest first."""

        self.heads: dict[ClientConnection, float] = {}
        """Those on which a head has begun, and when, the earliest first."""

    def accept(self) -> ClientConnection:
        """What the event loop gives a new connection to."""
        return ClientConnection(self, self._new_handler())

    def has_room(self) -> bool:
        """Whether one more may be open; one that waits for its client gives way."""
        if len(self.open) < self.most:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        oldest.abort()
        return True

    def arrived(self, size: int) -> bool:
        """Note that so much of a request came; whether there is room, for which those that began first are refused."""
        self.arriving_bytes += size
        while self.arriving_bytes > self._most_arriving_bytes and self.arriving:
            next(iter(self.arriving)).refuse(Problem.TOO_MANY, "Too many requests are arriving.")
        return self.arriving_bytes <= self._most_arriving_bytes

    def head_came(self, request: web.BaseRequest) -> bool:
        """A request is being answered; whether its connection is open still."""
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.head_came(request)
        return connection is not None

    def may_read(self, request: web.BaseRequest, size: int) -> bool:
        """Whether there is room for what the body of a request takes once it is read: so much beside what came.

        It is kept with what came. Requests that have not come whole give way.
        """
        connection = self.open.get(request.protocol)
        return connection is None or connection.may_read(size)

    def body_dropped(self, request: web.BaseRequest) -> None:
        """The body of a request is kept no longer."""
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.free_bytes()

    def answer_ends(self, request: web.BaseRequest) -> None:
        """The last bytes of an answer are about to be written: from now on the next request may come."""
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.answer_ends()

    def answered(self, request: web.BaseRequest) -> None:
        """An answer was written."""
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.answered()

    async def watch(self) -> None:
        """Refuse clients whose heads do not come; runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_LONGEST_LOOK_S, self.head_s / 4))
            late_s = loop.time() - self.head_s
            for connection in [each for each, began_s in self.heads.items() if began_s <= late_s]:
                connection.refuse(Problem.LATE_HEAD, f"The head of a request has to come within {self.head_s:g} s.")


class ClientConnection(asyncio.Protocol):
    """One connection, in front of what the server has for it."""

    def __init__(self, connections: ClientConnections, handler: web.RequestHandler) -> None:
        self._connections = connections
        self._handler = handler
        self._phase = _IDLE
        self._is_refused = False
        self._arriving = ArrivingRequest()
        self._counted_bytes = 0
        self._request: web.BaseRequest | None = None
        """The one that is being answered."""

    def head_came(self, request: web.BaseRequest) -> None:
        """A request is being answered; the body of a call may not have come, or only in part."""
        self._request = request
        self.note(_BUSY if request.content.is_eof() or request.method != "POST" else _BODY)
        self.look_behind()

    def answer_ends(self) -> None:
        """The answer ends; what has not come of the body is still the request's."""
        if self._request is None:
            return
        if self._request.content.is_eof():
            self._end_request(_ENDING)
        else:
            self.free_bytes()
            self.note(_REST)

    def answered(self) -> None:
        """A request was answered."""
        self.answer_ends()
        if self._phase == _ENDING:
            self.note(_IDLE)

    def note(self, phase: int) -> None:
        """Note what it waits for from now on."""
        connections, self._phase = self._connections, phase
        connections.heads.pop(self, None)
        connections.waiting.pop(self, None)
        connections.arriving.pop(self, None)
        if phase not in (_BUSY, _ENDING):
            connections.waiting[self] = None
        if phase == _BODY:
            connections.arriving[self] = None

    def look_behind(self) -> None:
        """Close the connection after the answer where more came than the request that is being answered.

        No client that we know of sends a request before the last one was answered, so nothing keeps room for those.
        """
        request = self._request
        if request is not None and request.content.is_eof() and self._arriving.is_followed(request):
            self._handler.close()

    def may_read(self, size: int) -> bool:
        """Count what its body takes once it is read, if there is room for that."""
        connections = self._connections
        self._counted_bytes += size
        if connections.arrived(size):
            return True
        self._counted_bytes -= size
        connections.arriving_bytes -= size
        return False

    def free_bytes(self) -> None:
        """Count what came no longer: it is kept no longer."""
        self._connections.arriving_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def refuse(self, problem: Problem, message: str) -> None:
        """Answer a client that has not sent a whole request, and close its connection."""
        self._forget()
        self._is_refused = True
        answer = problem_answer(self._arriving.family(), problem, message)
        fields = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        head = f"HTTP/1.1 {answer.status} {_PHRASES[answer.status]}\r\n{fields}connection: close\r\n"
        self._transport.write(f"{head}content-length: {len(answer.body)}\r\n\r\n".encode() + answer.body)
        self._transport.close()

    def abort(self) -> None:
        """Cut it off."""
        self._forget()
        self._transport.abort()

    def _end_request(self, phase: int) -> None:
        self._request = None
        self._arriving = ArrivingRequest()
        self.free_bytes()
        self.note(phase)

    def _begin_head(self) -> None:
        connections, self._phase = self._connections, _HEAD
        connections.waiting[self] = connections.arriving[self] = None
        connections.heads[self] = asyncio.get_running_loop().time()

    def _forget(self) -> None:
        connections = self._connections
        self.free_bytes()
        connections.heads.pop(self, None)
        connections.waiting.pop(self, None)
        connections.arriving.pop(self, None)
        connections.open.pop(self._handler, None)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._handler_knows = self._connections.has_room()
        if not self._handler_knows:
            self.refuse(Problem.TOO_MANY, "Too many calls are under way.")
            return
        self._connections.open[self._handler] = self
        self.note(_IDLE)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._phase in (_BUSY, _REST):
            self._received_late(data)
            return
        if self._phase in (_IDLE, _ENDING):
            self._begin_head()
        self._count(data)
        if self._is_refused:
            return
        self._handler.data_received(data)
        if self._phase == _BODY and self._request is not None and self._request.content.is_eof():
            self.note(_BUSY)
            self.look_behind()

    def _received_late(self, data: bytes) -> None:
        """Take what comes while a request is answered: the rest of a body that was not waited for, or the next one."""
        request = self._request
        if request is None or request.content.is_eof():
            self._handler.close()
            return
        self._count(data)
        self._handler.data_received(data)
        if self._phase != _REST:
            self.look_behind()
        elif request.content.is_eof():  # and behind it the next one may have come, as the answer was written
            is_followed = self._arriving.is_followed(request)
            self._end_request(_IDLE)
            if is_followed:
                self._begin_head()

    def _count(self, data: bytes) -> None:
        self._arriving.add(data)
        if self._phase != _REST:  # which is read and forgotten
            self._counted_bytes += len(data)
            self._connections.arrived(len(data))

    def eof_received(self) -> None:
        if not self._is_refused:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler_knows:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler_knows:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if isinstance(self._request, ArrivedRequest):
            self._request.lost()
        if self._handler_knows:
            self._handler.connection_lost(exc)
