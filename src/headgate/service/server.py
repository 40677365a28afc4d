"""Running the service in one process: a port, and a policy that is taken up when its file changes."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from headgate.errors import ConfigError, HeadgateError, MissingExtraError
from headgate.observe.metrics import leave_out_creation_times
from headgate.policy.gate import AsyncGate, read_policy
from headgate.policy.rules import Policy
from headgate.service.app import Service

try:
    import uvicorn
except ImportError as error:
    raise MissingExtraError("the service", extra="service") from error

log = logging.getLogger("headgate")

_LOOK_EVERY_S = 0.2
FINISH_WITHIN_S = 10
"""How long what has begun may take after SIGTERM."""

FileIdentity = tuple[int, ...]


class PolicyWatch:
    """Takes up a policy file when it changes; a broken one is refused, and the old one stays."""

    def __init__(self, path: Path, service: Service, read: Callable[[], Policy], *, seen: FileIdentity | None) -> None:
        """`read` gives what the file says now, or raises; `seen` is the file's identity when it was last read."""
        self._path = path
        self._service = service
        self._read = read
        self._seen = seen

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            seen = file_identity(self._path)
            if seen != self._seen:
                self._seen = seen
                await self.take_up()

    async def take_up(self) -> None:
        """Read the file and put it in force, whole or not at all."""
        try:
            policy = await asyncio.to_thread(self._read)
            self._service.gate.reload(policy)
        except (HeadgateError, OSError) as error:
            self._service.metrics.reloaded(taken_up=False)
            log.error("the changed policy is refused, the old one stays:\n%s", error)
        else:
            self._service.metrics.reloaded(taken_up=True)
            log.info("the changed policy is in force; its rules are %s", ", ".join(rule.name for rule in policy.rules))


class _Server(uvicorn.Server):
    """A server whose SIGTERM drains: not ready at once, closed when `drain_s` have passed.

    One that is supervised may hear every signal twice: a second SIGTERM does not end the drain, SIGINT
    does; and it returns when it has ended, where others die of the signal.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        drain_s: float,
        announce: Callable[[], None],
        *,
        supervised: bool,
    ) -> None:
        super().__init__(config)
        self._service = service
        self._drain_s = drain_s
        self._announce = announce
        self._supervised = supervised

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT or not self._drain_s:
            self._end(sig, frame)
        elif not self._service.draining:
            self._service.draining = True
            log.info("draining for %g s", self._drain_s)
            loop = asyncio.get_event_loop()
            loop.call_soon_threadsafe(loop.call_later, self._drain_s, self._end, sig, frame)
        elif not self._supervised:
            self._end(sig, frame)

    def _end(self, sig: int, frame: FrameType | None) -> None:
        if self._supervised:
            self.end()
        else:
            self._service.draining = True
            super().handle_exit(sig, frame)

    def end(self) -> None:
        """Finish what has begun, and end."""
        self._service.draining = True
        self.should_exit = True


def serve(
    gate: AsyncGate,
    *,
    policy_file: Path | None,
    own_store: bool,
    host: str,
    port: int,
    drain_s: float,
    announce: Callable[[str], None],
) -> None:
    """Serve in this process until told to stop. `announce` gets the address once requests are answered."""
    service = Service(gate)
    listener = listen(host, port)
    store = gate.policy.store

    def read(file: Path) -> Policy:
        policy = read_policy(file)
        if own_store and policy.store != store:
            raise other_store(file)
        return policy

    watch = None
    if policy_file:
        watch = PolicyWatch(policy_file, service, partial(read, policy_file), seen=file_identity(policy_file))
    run(service, listener, watch=watch, drain_s=drain_s, announce=lambda: announce(address_of(listener)))


def run(
    service: Service,
    listener: socket.socket,
    *,
    watch: PolicyWatch | None,
    drain_s: float,
    announce: Callable[[], None],
    lifeline: int | None = None,
) -> None:
    """Answer on a listening socket until told to stop; `announce` is called once requests are answered.

    `lifeline`, of a process that is supervised, is the reading end of a pipe: when its other end closes, what
    has begun is finished, and no more. Such a process returns when it was told to stop, others die of the signal.
    """
    leave_out_creation_times()
    config = uvicorn.Config(
        service,
        http="auto",
        loop="auto",
        lifespan="on",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # whom to believe is the policy's decision
        server_header=False,
        timeout_graceful_shutdown=FINISH_WITHIN_S,
    )
    server = _Server(config, service, drain_s, announce, supervised=lifeline is not None)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        watching = asyncio.create_task(watch.run()) if watch else None
        if watch:
            on_hangup = watch.take_up
            loop.add_signal_handler(signal.SIGHUP, lambda: asyncio.ensure_future(on_hangup()))
        if lifeline is not None:
            loop.add_reader(lifeline, abandoned, loop, lifeline)
        try:
            await server.serve(sockets=[listener])
        finally:
            if watching:
                watching.cancel()
            await service.gate.close()

    def abandoned(loop: asyncio.AbstractEventLoop, lifeline: int) -> None:
        loop.remove_reader(lifeline)
        log.error("the supervisor is gone: ending")
        server.end()

    asyncio.Runner(loop_factory=config.get_loop_factory()).run(main())


def other_store(file: Path) -> ConfigError:
    """What is wrong with a changed policy that names another store."""
    return ConfigError(f"{file}: store: cannot change while running; restart to use another store")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a port that is nobody else's; raises ConfigError that says what is wrong with the address.

    Port 0 takes a free one.
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


def file_identity(path: Path) -> FileIdentity | None:
    """What changes when a file is written, replaced or swapped under its name; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
