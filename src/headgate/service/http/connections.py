"""All connections of one process: how many there may be, which one gives way, and which has taken too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate

from headgate.service.http.bounds import Bounds
from headgate.service.http.connection import Connection
from headgate.service.http.messages import Application

_CHECK_EVERY_S = 1.0


class Connections:
    """The connections of one process to one application, within bounds.

    Where all of them come from the front door (`from_door`), a header field carries the client's address.
    """

    def __init__(self, app: Application, bounds: Bounds, *, from_door: bool = False) -> None:
        self.app = app
        self.bounds = bounds
        self.from_door = from_door
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}
        """Connections that wait for their client, in the order in which they began to wait."""

        self.held = 0
        """Bytes of incomplete requests and of unread responses."""

        self.closing = False
        """Whether every response is the last of its connection."""

        self.date = b""

    def __call__(self) -> Connection:
        """A new connection; this is the protocol factory of the event loop's servers."""
        return Connection(self, asyncio.get_running_loop())

    async def maintain(self, tick: Callable[[], None]) -> None:
        """Expire connections and update the date until cancelled; `tick` is called about once a second."""
        loop = asyncio.get_running_loop()
        checked, stood_still = loop.time(), False
        while True:
            tick()
            self.date = formatdate(usegmt=True).encode()
            now = loop.time()
            # What arrived while the process stood still is read first.
            checked, stood_still = now, not stood_still and now - checked > 2 * _CHECK_EVERY_S
            for connection in [] if stood_still else [one for one in self.waiting if one.due <= now]:
                connection.expire(now)
            await asyncio.sleep(_CHECK_EVERY_S)

    def admit(self, newest: Connection) -> bool:
        """Add a connection, if need be in place of another; False where all others are being answered."""
        self.open.add(newest)
        return len(self.open) <= self.bounds.connections or self._give_way(newest, lambda one: True)

    def hold(self, newest: Connection, count: int) -> None:
        """Count bytes of unfinished requests and unread responses; if they become too many, other connections give way.

        A connection that gives way calls this itself with a negative count, for which no other gives way.
        """
        self.held += count
        while count > 0 and self.held > self.bounds.held_bytes and self._give_way(newest, lambda one: one.held > 0):
            pass

    def close_idle(self) -> None:
        """Close connections on which no request has begun, and which have nothing left to send."""
        for connection in [one for one in self.waiting if one.is_idle and not one.has_unsent]:
            connection.give_way()

    def stop_waiting(self) -> None:
        """Refuse all requests that wait in line."""
        for connection in list(self.open):
            connection.stop_waiting()

    def abort(self) -> None:
        """Close all connections at once."""
        for connection in list(self.open):
            connection.abort()

    def _give_way(self, newest: Connection, may: Callable[[Connection], bool]) -> bool:
        longest = next((one for one in self.waiting if one is not newest and may(one)), None)
        if longest is None:
            return False
        longest.give_way()
        return True
