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

    What is being received when the wait ends is handed on, too: no call of the server's `receive` is cancelled.
    """

    __slots__ = ("_bytes", "_receive", "_received", "_waits", "_watching")

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive
        self._received: deque[Message] = deque()
        self._watching: asyncio.Future[None] | None = None
        self._waits = False
        self._bytes = 0

    def begin(self, call: Callable[[], object]) -> None:
        """A wait begins on this event loop."""
        super().begin(call)
        self._waits = True
        if self._watching is None and not self.gone:
            self._watching = begun(self._watch())

    def end(self) -> None:
        """The wait has ended; nothing more is received here."""
        super().end()
        self._waits = False

    async def receive(self) -> Message:
        """The next message, for the application."""
        while not self._received:
            watching = self._watching
            if watching is None:
                return await self._receive()
            await asyncio.shield(watching)
        return self._received.popleft()

    async def _watch(self) -> None:
        try:
            while self._waits and self._bytes < _MOST_BYTES:
                message = await self._receive()
                self._received.append(message)
                if message["type"] in _GONE:
                    self.leave()
                    return
                self._bytes += len(message.get("body") or b"") + 1
        finally:
            self._watching = None


def watching(scope: Scope, receive: Receive) -> Receive:
    """`receive` for an application whose request may wait first: its client is looked for while it does."""
    watch = scope[DEPARTURE] = ClientWatch(receive)
    return watch.receive
