"""Whether a front door stands before a service, and where the two meet."""

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
"""Of an event loop and its share in the listening sockets, at the most."""


class DoorWish(NamedTuple):
    """What is asked for before each process of a service."""

    threads: int
    """0 for no front door."""

    pinned: bool = False
    """Whether each thread, of all workers, is to run on a CPU of its own."""

    tls: CertificateFiles | None = None
    """What the door is to prove itself with; None serves without TLS."""


class DoorPlan(NamedTuple):
    """Whether a front door stands before each process of a service: its threads, or why there is none."""

    threads: int
    """0 for none."""

    why_not: str = ""
    """Empty where none was asked for."""

    certificate: ServerCertificate | None = None
    """What it proves itself with; None serves without TLS."""

    cpus: Sequence[tuple[int, ...]] = ()
    """The CPUs of each worker's threads; empty where the system chooses."""

    @property
    def scheme(self) -> str:
        """What the address of the service begins with."""
        return "http" if self.certificate is None else "https"

    @property
    def told(self) -> str:
        """What is said of it when the service begins."""
        if not self.threads:
            return f", answered by Python: {self.why_not}" if self.why_not else ""
        known = self.certificate is not None and self.certificate.files.client_ca is not None
        more = ", for clients with a certificate" if known else ""
        pinned = ", each on a CPU of its own" if self.cpus else ""
        return f", a front door of {self.threads} thread{'s' if self.threads > 1 else ''}{pinned}{more}"

    def within_descriptors(self, bounds: Bounds) -> Bounds:
        """The bounds, with no more connections than there are descriptors for; see `http.bounds`."""
        if not self.threads:
            return within_descriptors(bounds)
        return within_descriptors(bounds, passed_on=PASSED_ON, beside=self.threads * _DESCRIPTORS_OF_THREAD)


def plan_door(store: Store, wish: DoorWish, *, workers: int = 1) -> DoorPlan:
    """What stands before each process that decides on a store, as far as what is asked for can be had.

    Raises ConfigError for a certificate that cannot be used, where there is no door that could use it, and for threads
    that cannot be pinned.
    """
    plan = _plan(store, wish.threads)
    if wish.pinned:
        if wish.threads == 0:
            raise ConfigError("--pin-threads pins those of the front door, and --threads 0 has none")
        plan = plan._replace(cpus=cpus_of_threads(workers, wish.threads) if plan.threads else ())
    if wish.tls is None:
        return plan
    if not plan.threads:
        why = plan.why_not or "--threads 0 answers with Python alone"
        raise ConfigError(f"--tls-certificate: TLS needs the front door, and there is none: {why}")
    return plan._replace(certificate=ServerCertificate(wish.tls))


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
    """What answers on a listening socket, as planned."""
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
