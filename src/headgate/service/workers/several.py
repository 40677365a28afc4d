"""The service in several processes: one port, one store, one set of metrics, one policy file.

Errors are found before the first process is forked, and reported once. Each worker builds its own gate;
all share the store that the parent opened, and the files that it had read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headgate.errors import HeadgateError
from headgate.observe.events import PolicyRefused
from headgate.observe.locked_folder import METRICS, LockedFolder
from headgate.observe.worker_files import BYTES_PER_RULE, BYTES_PER_WORKER, Sharing, make_files
from headgate.policy.compiled import Policy
from headgate.policy.gate import AsyncGate
from headgate.policy.policy_file import is_read_once, read_again
from headgate.policy.problems import PolicyError
from headgate.service.app import Service
from headgate.service.http.bounds import Bounds
from headgate.service.workers.door_plan import DoorOptions, DoorPlan, plan_door, port_of, sockets_of
from headgate.service.workers.policy_watch import PolicyWatch, policy_of, store_change_error
from headgate.service.workers.port import FINISH_WITHIN_S
from headgate.service.workers.process import run
from headgate.stores.protocol import Store
from headgate.supervisor.last_good import LastGood
from headgate.supervisor.link import SupervisorLink
from headgate.supervisor.listener import address_of, listen_together
from headgate.supervisor.shared_store import open_shared
from headgate.supervisor.supervisor import Supervisor

log = logging.getLogger("headgate")

_GRACE_S = 5
"""How much longer than the usual time a worker may take to end."""


def serve_workers(
    text: bytes,
    *,
    policy_file: Path,
    workers: int,
    store: str | None,
    host: str,
    port: int,
    drain_s: float,
    hang_s: float,
    bounds: Bounds,
    door: DoorOptions,
    announce: Callable[[str, str, str], None],
) -> bool:
    """Serve the policy of a text, which the file has now, in several processes until a signal stops them.

    Return whether all of them ended without an error. `store` (a URL) replaces the policy's own; without both, the
    store is the zone of this user and namespace. A worker that hangs for `hang_s` seconds is replaced, with 0 never.
    `door` is the requested front door of each worker.
    `announce` gets the address, that zone's URL ("" where a store was named) and a text about the door, once all
    workers answer. Raises before anything starts: PolicyError and ConfigError for settings that cannot be used, such as
    a store in the memory of each process; OSError for files.
    """
    policy = policy_of(text, policy_file)
    opened, zone = open_shared(policy, store, file_name=str(policy_file), workers=workers)
    plan = plan_door(opened, door, workers=workers)
    bounds = plan.within_descriptors(bounds)
    listeners = listen_together(host, port, workers)
    folder = LockedFolder(METRICS, size=workers * (BYTES_PER_WORKER + len(policy.rules) * BYTES_PER_RULE))
    try:
        make_files(folder.path, workers, len(policy.rules))
        with sockets_of(plan) as sockets:
            doorway = _Doorway(plan, sockets, bounds)
            task = _WorkerTask(
                policy_file, text, policy, opened, doorway, uses_policy_store=store is None, drain_s=drain_s
            )
            address = address_of(listeners[0], plan.scheme)
            supervisor = Supervisor(
                listeners,
                lambda link: task.work(link, Sharing(folder.path, link.worker, supervisor.counts)),
                drain_s=drain_s,
                stop_within_s=FINISH_WITHIN_S + _GRACE_S,
                hang_s=hang_s,
                all_answer=lambda: announce(address, zone, plan.description),
            )
            return supervisor.run()
    finally:
        folder.remove()
        opened.close()


class _Doorway(NamedTuple):
    """The front door of each worker, and the bounds of its connections."""

    plan: DoorPlan
    sockets: Path | None
    bounds: Bounds


class _WorkerTask:
    """The work of each worker, with the policy file and the store that all of them share."""

    def __init__(
        self,
        file: Path,
        text: bytes,
        policy: Policy,
        store: Store,
        doorway: _Doorway,
        *,
        uses_policy_store: bool,
        drain_s: float,
    ) -> None:
        self._file = file
        self._first_text = text
        self._last_good = LastGood(text)
        self._store = store
        self._store_named = _store_named(policy) if uses_policy_store else None
        self._uses_policy_store = uses_policy_store
        self._doorway = doorway
        self._drain_s = drain_s

    def work(self, link: SupervisorLink, sharing: Sharing) -> None:
        """Run one worker: build a gate, and answer on the worker's socket until a signal stops it."""
        text, error, gate = self._make_gate()
        service = Service(gate, sharing, scheme=self._doorway.plan.scheme)
        if error is not None:
            service.events.publish(PolicyRefused(error))
            log.error("the policy is refused, the last good one stays:\n%s", error)
        watch = PolicyWatch(
            self._file,
            gate,
            service.events,
            self._parse,
            processed=text if error is None or isinstance(error, PolicyError) else None,
            refused=error is not None,
            applied=self._last_good.keep,
        )
        plan, sockets, bounds = self._doorway
        run(
            service,
            port_of(plan, service, link.listener, bounds, sockets=sockets, worker=link.worker),
            watch,
            drain_s=self._drain_s,
            announce=link.report_ready,
            heartbeat=link.beat,
            lifeline=link.lifeline,
        )

    def _make_gate(self) -> tuple[bytes | None, Exception | None, AsyncGate]:
        """(the file's text, its error, a gate for that text or else for the last good one)."""
        text: bytes | None = None
        try:
            text = (self._last_good.text() or self._first_text) if is_read_once(self._file) else read_again(self._file)
            gate = AsyncGate(self._parse(text), store=self._store)
        except (HeadgateError, OSError) as error:
            policy_in_force = policy_of(self._last_good.text() or self._first_text, self._file)
            return text, error, AsyncGate(policy_in_force, store=self._store)
        self._last_good.keep(text)
        return text, None, gate

    def _parse(self, text: bytes) -> Policy:
        policy = policy_of(text, self._file)
        if self._uses_policy_store and _store_named(policy) != self._store_named:
            raise store_change_error(self._file)
        return policy


def _store_named(policy: Policy) -> str | None:
    return policy.store if policy.names_store else None
