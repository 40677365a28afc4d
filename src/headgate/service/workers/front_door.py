"""The port of a service with the native front door before it, which answers clients on threads of its own.

The door decides checks without Python, and forwards all other requests to the HTTP server of this process, on a private
socket. See docs/decisions/0061-the-front-doors-intake.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate import core
from headgate.observe.door_metrics import DoorCounts, DoorMetrics, TallyReader
from headgate.service.app import Service
from headgate.service.checks.check_batches import CheckBatches
from headgate.service.checks.native_checks import native_checks
from headgate.service.http.bounds import Bounds
from headgate.service.http.connections import Connections
from headgate.service.workers.certificate import ServerCertificate
from headgate.service.workers.port import FINISH_WITHIN_S, POLL_EVERY_S, REFUSE_BEFORE_S
from headgate.supervisor.listener import BACKLOG

log = logging.getLogger("headgate")

PASSED_ON = 2048
"""The most requests that Python handles at one time; others wait. Half of it is reserved for those that settle holds
or query health and metrics."""

MOST_WAITING = 1000
"""The most of the other half that may wait in line: the rest stays free for requests that do not wait."""

_STREAMS = 128
"""The most open requests of one HTTP/2 connection."""

_COUNT_EVERY_S = 0.1
_CUT_OFF_WITHIN_S = 1
_FOREVER_S = 1e9


class FrontDoor:
    """A listening socket that the native door serves; see `Port`."""

    _server: asyncio.AbstractServer

    def __init__(
        self,
        service: Service,
        listener: socket.socket,
        bounds: Bounds,
        *,
        private_socket: Path,
        threads: int,
        cpus: Sequence[int] = (),
        certificate: ServerCertificate | None = None,
    ) -> None:
        """`private_socket` is the path on which Python listens for the door; a file that exists there is replaced.

        Each thread runs on its own of the `cpus`; without them the operating system chooses.
        """
        self.connections = Connections(service, _behind(bounds), from_door=True)
        self._listener = listener
        self._bounds = bounds
        self._socket = private_socket
        self._threads = threads
        self._cpus = cpus
        self._certificate = certificate
        self._renewing = asyncio.Lock()
        self._renewals: set[asyncio.Task[None]] = set()
        self._door: Any = None
        self._ends = False
        self._service = service
        self._door_metrics = DoorMetrics(service.metrics.registered_in)
        assert core.native is not None
        self._tally = core.native.CheckTally()
        self._decisions = TallyReader(self._tally)
        self._batches = CheckBatches(service.gate) if service.gate.guarded_store.decides_batches else None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(FileNotFoundError):  # of a worker that was killed
            self._socket.unlink()
        self._server = await loop.create_unix_server(self.connections, str(self._socket), backlog=BACKLOG)
        assert core.native is not None
        self._door = core.native.Door(
            [self._listener.fileno()],
            str(self._socket),
            self._checks(),
            threads=self._threads,
            cpus=self._cpus,
            forwarded=PASSED_ON // 2,
            streams=_STREAMS,
            bounds=self._bounds,
            tls=None if self._certificate is None else self._certificate.load(),
        )
        self._listener.close()  # the door has a descriptor of its own
        if self._batches is not None:
            self._batches.open()
        if self._ends:
            self._door.announce_end()
        self._service.gate.bound_waiting(MOST_WAITING, "as many as may behind a front door (--threads 0 has none)")
        self._service.gate.reloaded.append(self._swap)
        self._service.gate.reloaded.append(self.reload)
        self._service.events.subscribed.append(self._swap)
        metrics = self._service.metrics
        metrics.before_exposition.append(self._count)
        if metrics.registered_in is None:  # other workers expose the counts of this one
            metrics.lag_s = 2 * _COUNT_EVERY_S
            self._counting = asyncio.create_task(self._keep_counting())

    def announce_end(self) -> None:
        self._ends = True
        if self._door is not None:
            self._door.announce_end()

    def reload(self) -> None:
        if self._certificate is not None and self._door is not None:
            renewal = asyncio.get_running_loop().create_task(self._renew(self._certificate))
            self._renewals.add(renewal)
            renewal.add_done_callback(self._renewals.discard)

    async def _renew(self, certificate: ServerCertificate) -> None:
        async with self._renewing:
            await certificate.renew(self._door.swap_tls)

    async def end(self, at_once: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FINISH_WITHIN_S
        is_over = False
        self._door.end(FINISH_WITHIN_S + _CUT_OFF_WITHIN_S)  # it is ended again when that time is over
        while not self._door.has_ended() and loop.time() < deadline + _CUT_OFF_WITHIN_S:
            if loop.time() > deadline - REFUSE_BEFORE_S:
                self.connections.stop_waiting()
            if not is_over and (at_once.is_set() or loop.time() > deadline):
                is_over = True
                still_open = DoorCounts(*self._door.figures()).open
                log.error("%d connections have not ended in their time: they are cut off", still_open)
                self._door.end(0)
            await asyncio.sleep(POLL_EVERY_S)
        if self._batches is not None:
            self._batches.close()
        self._count()
        self._server.close()
        self.connections.abort()

    def _checks(self) -> Any:
        """The native checks of the door; None where only Python can decide, or a subscriber needs an event of each."""
        service = self._service
        if service.events.each_decision:
            return None
        return native_checks(service.gate, self._tally) if self._batches is None else self._batches.checks(self._tally)

    def _swap(self) -> None:
        """Make the door decide by the policy that is in force now."""
        self._door.swap(self._checks())

    def _count(self) -> None:
        """Update the metrics of the service."""
        self._service.metrics.add(self._decisions.read())
        self._door_metrics.update(DoorCounts(*self._door.figures()))

    async def _keep_counting(self) -> None:
        while True:
            self._count()
            await asyncio.sleep(_COUNT_EVERY_S)


def _behind(bounds: Bounds) -> Bounds:
    """The bounds of the private socket: the door enforces those of its clients, and adds a field to their requests."""
    return bounds._replace(
        connections=1_000_000,
        held_bytes=1 << 40,
        head_bytes=bounds.head_bytes + 4096,
        fields=bounds.fields + 8,
        head_s=_FOREVER_S,
        body_s=_FOREVER_S,
        take_s=_FOREVER_S,
        idle_s=_FOREVER_S,
    )
