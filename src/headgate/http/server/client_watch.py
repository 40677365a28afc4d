"""Looks whether the client of an ASGI request is still there while the request waits; what it sends is not lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headgate.drive import begun
from headgate.http.server.asgi_messages import Message, Receive, Scope
from headgate.waiting.departure import Departure

DEPARTURE = "headgate.departure"
"""Where a scope has what tells that its client is gone."""

_MOST_BYTES = 65_536
"""So much of a body is received while its request waits; the rest is left to the server until the request passes."""

_GONE = frozenset({"http.disconnect", "websocket.disconnect"})


class ClientWatch(Departure):
    """Receives what a client sends while its request waits in line, and hands it on to the application in order.

    What is being received when the wait ends is handed on, too: no call of the server's `receive` is cancelled. With
    `lets_go` it is, where others than the application go on to receive from the server itself, and would miss what is
    received here: so do responses of Starlette, which cancel such calls, too.
    """

    __slots__ = ("_bytes", "_lets_go", "_receive", "_received", "_waits", "_watching")

    def __init__(self, receive: Receive, *, lets_go: bool = False) -> None:
        super().__init__()
        self._receive = receive
        self._lets_go = lets_go
        self._received: deque[Message] = deque()
        self._watching: asyncio.Future[None] | None = None
        self._waits = False
        self._bytes = 0

    def begin(self, call: Callable[[], object]) -> None:
        """A wait begins on this event loop."""
        super().begin(call)
        self._waits = True
        before = self._watching
        if not self.gone and (before is None or before.done() or self._lets_go):
            self._watching = begun(self._watch(before))

    def end(self) -> None:
        """The wait has ended; nothing more is received here."""
        super().end()
        self._waits = False
        if self._lets_go and self._watching is not None:
            self._watching.cancel()

    async def receive(self) -> Message:
        """The next message, for the application."""
        while not self._received:
            watching = self._watching
            if watching is None or watching.done():
                return await self._receive()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()  # raises what the server raised
        return self._received.popleft()

    async def _watch(self, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        while self._waits and self._bytes < _MOST_BYTES:
            message = await self._receive()
            self._received.append(message)
            if message["type"] in _GONE:
                self.leave()
                return
            self._bytes += len(message.get("body") or b"") + 1


def watching(scope: Scope, receive: Receive) -> Receive:
    """`receive` for an application whose request may wait first: its client is looked for while it does."""
    watch = scope[DEPARTURE] = ClientWatch(receive)
    return watch.receive
