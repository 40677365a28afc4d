"""The port of a service without a front door: Python's event loop accepts, reads and writes."""

from __future__ import annotations

import asyncio
import logging
import socket

from headgate.service.app import Service
from headgate.service.http.bounds import Bounds
from headgate.service.http.connections import Connections
from headgate.service.workers.port import FINISH_WITHIN_S, POLL_EVERY_S, REFUSE_BEFORE_S
from headgate.supervisor.listener import BACKLOG, stop_listening

log = logging.getLogger("headgate")

_QUIET_S = 0.5
"""How long idle connections outlive the port: a request may be on its way."""


class PublicPort:
    """A listening socket whose connections are answered on the event loop; see `Port`."""

    _server: asyncio.AbstractServer

    def __init__(self, service: Service, listener: socket.socket, bounds: Bounds) -> None:
        self.connections = Connections(service, bounds)
        self._listener = listener

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.connections, sock=self._listener, backlog=BACKLOG)

    def announce_end(self) -> None:
        self.connections.closing = True

    def reload(self) -> None:
        """Do nothing: there is no certificate, as TLS needs the front door."""

    async def end(self, at_once: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        connections = self.connections
        for accepted in await stop_listening(self._server, self._listener):
            await loop.connect_accepted_socket(connections, accepted)
        deadline = loop.time() + FINISH_WITHIN_S
        quiet_until = loop.time() + _QUIET_S
        await asyncio.sleep(POLL_EVERY_S)  # accepted sockets become connections
        while connections.open and not at_once.is_set() and loop.time() < deadline:
            if loop.time() > quiet_until:
                connections.close_idle()
            if loop.time() > deadline - REFUSE_BEFORE_S:
                connections.stop_waiting()
            await asyncio.sleep(POLL_EVERY_S)
        if connections.open:
            log.error("%d connections have not ended in their time: they are cut off", len(connections.open))
            connections.abort()
