"""Whether a service has a front door, and the socket that connects the two."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headgate import core
from headgate.errors import ConfigError
from headgate.observe.locked_folder import LockedFolder
from headgate.service.app import Service
from headgate.service.http.bounds import Bounds, within_descriptors
from headgate.service.workers.certificate import CertificateFiles, ServerCertificate
from headgate.service.workers.cpus import cpus_of_threads
from headgate.service.workers.front_door import PASSED_ON, FrontDoor
from headgate.service.workers.port import Port
from headgate.service.workers.public_port import PublicPort
from headgate.stores.protocol import Store

_SOCKETS = "headgate-door-"
"""The prefix of the folder of private sockets."""

_DESCRIPTORS_OF_THREAD = 8
"""The most descriptors of an event loop and its share of the listening sockets."""


class DoorOptions(NamedTuple):
    """The front door that is requested for each process of a service."""

    threads: int
    """0 for no front door."""

    pinned: bool = False
    """Whether each thread, of all workers, is to run on a CPU of its own."""

    tls: CertificateFiles | None = None
    """The certificate files of the door; None serves without TLS."""


class DoorPlan(NamedTuple):
    """The front door of each process of a service: its threads, or why there is none."""

    threads: int
    """0 for none."""

    reason: str = ""
    """Why there is no front door; empty where none was requested."""

    certificate: ServerCertificate | None = None
    """The certificate of the door; None serves without TLS."""

    cpus: Sequence[tuple[int, ...]] = ()
    """The CPUs of each worker's threads; empty where the system chooses."""

    @property
    def scheme(self) -> str:
        """The scheme of the service's URL."""
        return "http" if self.certificate is None else "https"

    @property
    def description(self) -> str:
        """The text about the door that is printed when the service starts."""
        if not self.threads:
            return f", answered by Python: {self.reason}" if self.reason else ""
        checks_clients = self.certificate is not None and self.certificate.files.client_ca is not None
        more = ", for clients with a certificate" if checks_clients else ""
        pinned = ", each on a CPU of its own" if self.cpus else ""
        return f", a front door of {self.threads} thread{'s' if self.threads > 1 else ''}{pinned}{more}"

    def within_descriptors(self, bounds: Bounds) -> Bounds:
        """The bounds, with no more connections than there are descriptors for; see `http.bounds`."""
        if not self.threads:
            return within_descriptors(bounds)
        return within_descriptors(bounds, passed_on=PASSED_ON, extra=self.threads * _DESCRIPTORS_OF_THREAD)


def plan_door(store: Store, options: DoorOptions, *, workers: int = 1) -> DoorPlan:
    """The front door of each process that decides on a store, as far as the options can be met.

    Raises ConfigError for a certificate that cannot be used, for one without a door that could use it, and for threads
    that cannot be pinned.
    """
    plan = _plan(store, options.threads)
    if options.pinned:
        if options.threads == 0:
            raise ConfigError("--pin-threads pins those of the front door, and --threads 0 has none")
        plan = plan._replace(cpus=cpus_of_threads(workers, options.threads) if plan.threads else ())
    if options.tls is None:
        return plan
    if not plan.threads:
        why = plan.reason or "--threads 0 answers with Python alone"
        raise ConfigError(f"--tls-certificate: TLS needs the front door, and there is none: {why}")
    return plan._replace(certificate=ServerCertificate(options.tls))


def _plan(store: Store, threads: int) -> DoorPlan:
    if threads == 0:
        return DoorPlan(0)
    if getattr(core.native, "Door", None) is None:
        return DoorPlan(0, "the front door needs the native core")
    if (store.blocking and not store.decides_batches) or getattr(store, "core", "") == "python":
        return DoorPlan(0, "the front door does not decide on this store")
    return DoorPlan(threads)


@contextmanager
def sockets_of(plan: DoorPlan) -> Iterator[Path | None]:
    """A folder that only this user may enter, for the private sockets of a service; None where there is no door."""
    if not plan.threads:
        yield None
        return
    folder = LockedFolder(_SOCKETS)
    try:
        yield folder.path
    finally:
        folder.remove()


def port_of(
    plan: DoorPlan, service: Service, listener: socket.socket, bounds: Bounds, *, sockets: Path | None, worker: int = 1
) -> Port:
    """The port that answers on a listening socket, as planned."""
    if sockets is None:
        return PublicPort(service, listener, bounds)
    return FrontDoor(
        service,
        listener,
        bounds,
        private_socket=sockets / str(worker),
        threads=plan.threads,
        cpus=plan.cpus[worker - 1] if plan.cpus else (),
        certificate=plan.certificate,
    )
