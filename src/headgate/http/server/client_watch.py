"""Watches whether the client of an ASGI request is still connected while the request waits; its messages are kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headgate.drive import begun
from headgate.http.server.asgi_messages import Message, Receive, Scope
from headgate.waiting.departure import Departure

DEPARTURE = "headgate.departure"
"""The key in a scope of the object that signals that its client is gone."""

_MOST_BYTES = 65_536
"""How much of a body is received while its request waits; the server keeps the rest until the request passes."""

_GONE = frozenset({"http.disconnect", "websocket.disconnect"})


class ClientWatch(Departure):
    """Receives a client's messages while its request waits in line, and passes them on to the application in order.

    A message that is being received when the wait ends is passed on, too: no call of the server's `receive` is
    cancelled. With `cancels_receive` it is, for applications where other code receives from the server itself, and
    would miss messages that are received here: so do responses of Starlette, which cancel such calls, too.
    """

    __slots__ = ("_bytes", "_cancels_receive", "_receive", "_received", "_waits", "_watching")

    def __init__(self, receive: Receive, *, cancels_receive: bool = False) -> None:
        super().__init__()
        self._receive = receive
        self._cancels_receive = cancels_receive
        self._received: deque[Message] = deque()
        self._watching: asyncio.Future[None] | None = None
        self._waits = False
        self._bytes = 0

    def begin(self, call: Callable[[], object]) -> None:
        """Begin a wait on this event loop; `call` is called if the client leaves."""
        super().begin(call)
        self._waits = True
        previous = self._watching
        if not self.gone and (previous is None or previous.done() or self._cancels_receive):
            self._watching = begun(self._watch(previous))

    def end(self) -> None:
        """End the wait: nothing more is received here."""
        super().end()
        self._waits = False
        if self._cancels_receive and self._watching is not None:
            self._watching.cancel()

    async def receive(self) -> Message:
        """Return the next message for the application."""
        while not self._received:
            watching = self._watching
            if watching is None or watching.done():
                return await self._receive()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()  # raises the server's error, if any
        return self._received.popleft()

    async def _watch(self, previous: asyncio.Future[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        while self._waits and self._bytes < _MOST_BYTES:
            message = await self._receive()
            self._received.append(message)
            if message["type"] in _GONE:
                self.leave()
                return
            self._bytes += len(message.get("body") or b"") + 1


def watching(scope: Scope, receive: Receive) -> Receive:
    """Return the `receive` for an application whose request may wait first: its client is watched meanwhile."""
    watch = scope[DEPARTURE] = ClientWatch(receive)
    return watch.receive
