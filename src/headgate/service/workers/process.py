"""One process that answers: its event loop, its connections, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from headgate.errors import MissingExtraError
from headgate.observe.prometheus import leave_out_creation_times
from headgate.service.app import Service
from headgate.service.http.bounds import Bounds
from headgate.service.http.connections import Connections
from headgate.service.workers.policy_watch import PolicyWatch
from headgate.service.workers.shutdown import Shutdown
from headgate.supervisor.listener import BACKLOG
from headgate.supervisor.reloading import reload_when_told

try:
    import uvloop
except ImportError as error:
    raise MissingExtraError("the service", extra="service") from error

log = logging.getLogger("headgate")

FINISH_WITHIN_S = 10
"""How long what has begun may take after SIGTERM."""

_QUIET_S = 0.1
"""How long connections on which nothing has begun outlive the port: a request may be on its way."""

_LOOK_EVERY_S = 0.05

_REFUSE_BEFORE_S = 2
"""So long before the end of that time requests that wait in line are refused, so that they are answered."""


def run(
    service: Service,
    listener: socket.socket,
    watch: PolicyWatch,
    *,
    bounds: Bounds,
    drain_s: float,
    announce: Callable[[], None],
    heartbeat: Callable[[], None] = lambda: None,
    lifeline: int | None = None,
) -> None:
    """Answer on a listening socket until told to stop; `announce` is called once requests are answered.

    `heartbeat` is called about once a second, for as long as the event loop turns. `lifeline`, of a process that is
    supervised, is the reading end of a pipe: when its other end closes, what has begun is finished, and no more.
    """
    leave_out_creation_times()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        connections = Connections(service, bounds)
        shutdown = Shutdown(service, connections, drain_s, supervised=lifeline is not None)
        tasks = [asyncio.create_task(connections.maintain(heartbeat)), asyncio.create_task(watch.run())]
        reload_when_told(watch.reload)
        shutdown.handle_signals()
        if lifeline is not None:
            loop.add_reader(lifeline, abandoned, loop, lifeline, shutdown)
        try:
            await asyncio.sleep(0)  # the tasks have begun: there is a date
            await service.gate.warm_up()
            server = await loop.create_server(connections, sock=listener, backlog=BACKLOG)
            announce()
            await shutdown.begun.wait()
            await _end(connections, server, listener, shutdown)
        finally:
            for task in tasks:
                task.cancel()
            await service.gate.close()

    def abandoned(loop: asyncio.AbstractEventLoop, lifeline: int, shutdown: Shutdown) -> None:
        loop.remove_reader(lifeline)
        log.error("the supervisor is gone: ending")
        shutdown.begin()

    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())


async def _end(
    connections: Connections, server: asyncio.AbstractServer, listener: socket.socket, shutdown: Shutdown
) -> None:
    """Close the port, answer what is on its way and what has begun, and close the connections."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):  # those that wait to be accepted were connected: they are answered, too
        while True:
            accepted, _ = listener.accept()
            await loop.connect_accepted_socket(connections, accepted)
    server.close()
    deadline = loop.time() + FINISH_WITHIN_S
    await asyncio.sleep(_QUIET_S)
    while connections.open and not shutdown.at_once.is_set() and loop.time() < deadline:
        connections.close_idle()
        if loop.time() > deadline - _REFUSE_BEFORE_S:
            connections.wait_in_line_no_longer()
        await asyncio.sleep(_LOOK_EVERY_S)
    if connections.open:
        log.error("%d connections have not ended in their time: they are cut off", len(connections.open))
        connections.abort()
