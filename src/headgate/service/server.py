"""Running the service: one process, one port, a policy that is taken up when its file changes."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from headgate.errors import ConfigError, HeadgateError, MissingExtraError
from headgate.observe.metrics import leave_out_creation_times
from headgate.policy.gate import Gate, read_policy
from headgate.service.app import Service

try:
    import uvicorn
except ImportError as error:
    raise MissingExtraError("the service", extra="service") from error

log = logging.getLogger("headgate")

_LOOK_EVERY_S = 0.2
_FINISH_WITHIN_S = 10


class PolicyWatch:
    """Takes up a policy file when it changes; a broken one is refused, and the old one stays."""

    def __init__(self, path: Path, service: Service, *, own_store: bool) -> None:
        self._path = path
        self._service = service
        self._store = service.gate.policy.store if own_store else None
        self._seen = _identity(path)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            seen = _identity(self._path)
            if seen != self._seen:
                self._seen = seen
                await self.take_up()

    async def take_up(self) -> None:
        """Read the file and put it in force, whole or not at all."""
        try:
            policy = await asyncio.to_thread(read_policy, self._path)
            if self._store is not None and policy.store != self._store:
                raise ConfigError(f"{self._path}: store: cannot change while running; restart to use another store")
            self._service.gate.reload(policy)
        except (HeadgateError, OSError) as error:
            self._service.metrics.reloaded(taken_up=False)
            log.error("the changed policy is refused, the old one stays:\n%s", error)
        else:
            self._service.metrics.reloaded(taken_up=True)
            log.info("the changed policy is in force; its rules are %s", ", ".join(rule.name for rule in policy.rules))


class _Server(uvicorn.Server):
    """A server whose SIGTERM drains: not ready at once, closed when `drain_s` have passed."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_s: float, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._drain_s = drain_s
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.draining or sig == signal.SIGINT or not self._drain_s:
            self._service.draining = True
            super().handle_exit(sig, frame)
            return
        self._service.draining = True
        log.info("draining for %g s", self._drain_s)
        loop = asyncio.get_event_loop()
        loop.call_soon_threadsafe(loop.call_later, self._drain_s, super().handle_exit, sig, frame)


def serve(
    gate: Gate,
    *,
    policy_file: Path | None,
    own_store: bool,
    host: str,
    port: int,
    drain_s: float,
    announce: Callable[[str], None],
) -> None:
    """Serve until told to stop. `announce` gets the address once requests are answered."""
    leave_out_creation_times()
    service = Service(gate)
    listener = listen(host, port)
    config = uvicorn.Config(
        service,
        http="auto",
        loop="auto",
        lifespan="on",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # whom to believe is the policy's decision
        server_header=False,
        timeout_graceful_shutdown=_FINISH_WITHIN_S,
    )
    server = _Server(config, service, drain_s, lambda: announce(_address(listener)))

    async def main() -> None:
        watch = PolicyWatch(policy_file, service, own_store=own_store) if policy_file else None
        watching = asyncio.create_task(watch.run()) if watch else None
        if watch:
            on_hangup = watch.take_up
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: asyncio.ensure_future(on_hangup()))
        try:
            await server.serve(sockets=[listener])
        finally:
            if watching:
                watching.cancel()
            gate.close()

    asyncio.Runner(loop_factory=config.get_loop_factory()).run(main())


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError that says what is wrong with the address."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048, reuse_port=False)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    listener.setblocking(False)
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _identity(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written, replaced or swapped under its name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
