"""The connections of clients: how many there may be, and how long each may take for the head of a request.

aiohttp's server, which reads the requests, bounds neither. What comes over a connection reaches it through one of
these, so nothing of its inside is relied on. Where there are too many, the one that has waited longest for its client
is closed, so that a client that holds many open loses its own first (docs/decisions/0032-connections.md).
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from aiohttp import web

log = logging.getLogger("headgate")

_OTHER_DESCRIPTORS = 64
"""What a process has open beside connections, at the most: files, pipes, connections to a store."""

_LONGEST_LOOK_S = 1.0
_IDLE, _HEAD, _BODY, _BUSY = range(4)
"""What a connection waits for: a request, the rest of its head, its body; nothing, while it is answered."""

_PHRASES = {408: "Request Timeout", 503: "Service Unavailable"}


class ClientConnections:
    """All connections of a server; `watch` closes those on which a head does not come."""

    def __init__(self, new_handler: Callable[[], asyncio.Protocol], *, most: int, head_s: float) -> None:
        """`new_handler` makes what the server has for a connection: the `protocol` of its requests."""
        self._new_handler = new_handler
        self.most = most
        self.head_s = head_s
        self.open: dict[object, ClientConnection] = {}
        """By what the server has for them."""

        self.waiting: dict[ClientConnection, None] = {}
        """Those that wait for their clients, the longest first."""

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

    def head_came(self, request: web.BaseRequest) -> None:
        """A request is being answered."""
        self._note(request, _BUSY)

    def awaits_body(self, request: web.BaseRequest) -> None:
        """A request waits for its body; tell with `head_came` that it came."""
        self._note(request, _BODY)

    def answered(self, request: web.BaseRequest) -> None:
        """The next request of the connection may come."""
        self._note(request, _IDLE)

    async def watch(self) -> None:
        """Refuse clients whose heads do not come; runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_LONGEST_LOOK_S, self.head_s / 4))
            late_s = loop.time() - self.head_s
            for connection in [each for each, began_s in self.heads.items() if began_s <= late_s]:
                connection.refuse(408, f"The head of a request has to come within {self.head_s:g} s.")

    def _note(self, request: web.BaseRequest, phase: int) -> None:
        connection = self.open.get(request.protocol)
        if connection is not None:
            connection.note(phase)


class ClientConnection(asyncio.Protocol):
    """One connection, in front of what the server has for it."""

    def __init__(self, connections: ClientConnections, handler: asyncio.Protocol) -> None:
        self._connections = connections
        self._handler = handler
        self._phase = _IDLE
        self._is_refused = False

    def note(self, phase: int) -> None:
        """Note what it waits for from now on."""
        connections, self._phase = self._connections, phase
        connections.heads.pop(self, None)
        connections.waiting.pop(self, None)
        if phase != _BUSY:
            connections.waiting[self] = None

    def refuse(self, status: int, message: str) -> None:
        """Answer a client that has not sent a request, and close its connection."""
        self._forget()
        self._is_refused = True
        told = {"message": message, "type": "invalid_request_error" if status == 408 else "server_error", "code": None}
        body = json.dumps({"error": told}).encode()
        head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self._transport.close()

    def abort(self) -> None:
        """Cut it off."""
        self._forget()
        self._transport.abort()

    def _forget(self) -> None:
        connections = self._connections
        connections.heads.pop(self, None)
        connections.waiting.pop(self, None)
        connections.open.pop(self._handler, None)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._handler_knows = self._connections.has_room()
        if not self._handler_knows:
            self.refuse(503, "Too many calls are under way.")
            return
        self._connections.open[self._handler] = self
        self.note(_IDLE)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._phase == _IDLE:
            self._phase = _HEAD
            self._connections.heads[self] = asyncio.get_running_loop().time()
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._is_refused else self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler_knows:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler_knows:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self._handler_knows:
            self._handler.connection_lost(exc)


def within_descriptors(connections: int) -> int:
    """As many connections as there are descriptors for: each may need a second one, to a provider.

    Raises the soft limit on descriptors where it may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _OTHER_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(1, min(connections, (soft - _OTHER_DESCRIPTORS) // 2))
    if most < connections:
        log.warning("at most %d connections, for lack of descriptors (ulimit -n)", most)
    return most
