"""Running the service in one process: a port, its connections, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headgate.errors import ConfigError, MissingExtraError
from headgate.observe.prometheus import leave_out_creation_times
from headgate.policy.compiled import Policy
from headgate.policy.gate import AsyncGate
from headgate.service.app import Service
from headgate.service.http.connection import Bounds, Connections
from headgate.service.workers.policy_watch import PolicyWatch, other_store, policy_of

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
_OTHER_DESCRIPTORS = 64
"""What a process has open beside its connections, at the most: files, pipes, connections to a store."""

_BACKLOG = 2048


class _Ending:
    """What the signals say: to drain, to finish what has begun, to end at once.

    A process that is supervised may hear every signal twice, from its group and from its supervisor: there a
    second SIGTERM does not end the drain, SIGINT does.
    """

    def __init__(self, service: Service, connections: Connections, drain_s: float, *, supervised: bool) -> None:
        self._service = service
        self._connections = connections
        self._drain_s = drain_s
        self._supervised = supervised
        self._loop = asyncio.get_running_loop()
        self.told = asyncio.Event()
        self.at_once = asyncio.Event()

    def hear(self) -> None:
        """Listen to the signals from now on."""
        self._loop.add_signal_handler(signal.SIGTERM, self._on_term)
        self._loop.add_signal_handler(signal.SIGINT, self._on_interrupt)

    def end(self) -> None:
        """Finish what has begun, and end."""
        self._drain()
        self.told.set()

    def _drain(self) -> None:
        self._service.draining = self._connections.closing = True

    def _on_term(self) -> None:
        if not self._drain_s:
            self.end()
        elif not self._service.draining:
            self._drain()
            log.info("draining for %g s", self._drain_s)
            self._loop.call_later(self._drain_s, self.end)
        elif not self._supervised:
            self.end()

    def _on_interrupt(self) -> None:
        if self.told.is_set() and not self._supervised:
            self.at_once.set()
        self.end()


def serve(
    text: bytes,
    *,
    policy_file: Path,
    store: str | None,
    host: str,
    port: int,
    drain_s: float,
    bounds: Bounds,
    announce: Callable[[str], None],
) -> None:
    """Serve the policy of a text, which is that of the file now, in this process until told to stop.

    `store` (a URL) stands in for the policy's own. `announce` gets the address once requests are answered.
    """
    bounds = fitting(bounds)
    policy = policy_of(text, policy_file)
    gate = AsyncGate(policy, store=store)
    service = Service(gate)
    listener = listen(host, port)

    def understand(text: bytes) -> Policy:
        changed = policy_of(text, policy_file)
        if store is None and changed.store != policy.store:
            raise other_store(policy_file)
        return changed

    watch = PolicyWatch(policy_file, service, understand, judged=text)
    run(service, listener, watch, bounds=bounds, drain_s=drain_s, announce=lambda: announce(address_of(listener)))


def run(
    service: Service,
    listener: socket.socket,
    watch: PolicyWatch,
    *,
    bounds: Bounds,
    drain_s: float,
    announce: Callable[[], None],
    beat: Callable[[], None] = lambda: None,
    lifeline: int | None = None,
) -> None:
    """Answer on a listening socket until told to stop; `announce` is called once requests are answered.

    `beat` is called about once a second, for as long as the event loop turns. `lifeline`, of a process that is
    supervised, is the reading end of a pipe: when its other end closes, what has begun is finished, and no more.
    """
    leave_out_creation_times()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        connections = Connections(service, bounds)
        ending = _Ending(service, connections, drain_s, supervised=lifeline is not None)
        tasks = [asyncio.create_task(connections.look_after(beat)), asyncio.create_task(watch.run())]
        loop.add_signal_handler(signal.SIGHUP, watch.take_up_again)
        ending.hear()
        if lifeline is not None:
            loop.add_reader(lifeline, abandoned, loop, lifeline, ending)
        try:
            await asyncio.sleep(0)  # the tasks have begun: there is a date
            await service.gate.warm_up()
            server = await loop.create_server(connections, sock=listener, backlog=_BACKLOG)
            announce()
            await ending.told.wait()
            await _end(connections, server, listener, ending)
        finally:
            for task in tasks:
                task.cancel()
            await service.gate.close()

    def abandoned(loop: asyncio.AbstractEventLoop, lifeline: int, ending: _Ending) -> None:
        loop.remove_reader(lifeline)
        log.error("the supervisor is gone: ending")
        ending.end()

    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())


async def _end(
    connections: Connections, server: asyncio.AbstractServer, listener: socket.socket, ending: _Ending
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
    while connections.open and not ending.at_once.is_set() and loop.time() < deadline:
        connections.close_idle()
        await asyncio.sleep(_LOOK_EVERY_S)
    if connections.open:
        log.error("%d connections have not ended in their time: they are cut off", len(connections.open))
        connections.abort()


def fitting(bounds: Bounds) -> Bounds:
    """So many connections, or as many as this process and those it forks may each have descriptors for.

    Raises ConfigError where there are too few to serve at all.
    """
    connections = bounds.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= _OTHER_DESCRIPTORS:
        raise ConfigError(f"ulimit -n: {soft} descriptors are too few to serve; let it have {wanted}")
    most = min(connections, soft - _OTHER_DESCRIPTORS)
    if most < connections:
        log.warning("at most %d connections of each process, for lack of descriptors (ulimit -n)", most)
    return bounds._replace(connections=most)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a port of its own. Port 0 takes a free one.

    Raises ConfigError that says what is wrong with the address.
    """
    return _listener(host, port, shared=False)


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """So many listening sockets on one port, over which the system spreads the connections; raises as `listen`.

    Sockets that share a port would share it with any other service of this user: so it is first taken alone.
    """
    with listen(host, port) as alone:
        host, port = alone.getsockname()[:2]
    return [_listener(host, port, shared=True) for _ in range(count)]


def _listener(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048, reuse_port=shared)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Where a listening socket is reached, as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
