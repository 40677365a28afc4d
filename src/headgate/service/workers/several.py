"""The service in several processes: one port, one store, one set of figures, one policy file.

What can be wrong is found out before the first process is forked, and reported once. Each worker builds
its own gate; the store that the parent opened, and all that it had read, they share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headgate.errors import HeadgateError
from headgate.observe.events import PolicyRefused
from headgate.observe.locked_folder import METRICS, LockedFolder
from headgate.observe.worker_files import ROOM_OF_RULE, ROOM_OF_WORKER, Sharing, make_files
from headgate.policy.compiled import Policy
from headgate.policy.gate import AsyncGate
from headgate.policy.policy_file import is_read_once, read_again
from headgate.policy.problems import PolicyError
from headgate.service.app import Service
from headgate.service.http.bounds import Bounds
from headgate.service.workers.door_plan import DoorPlan, DoorWish, plan_door, port_of, sockets_of
from headgate.service.workers.policy_watch import PolicyWatch, other_store, policy_of
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
"""How much longer than it should take a worker may take to end."""


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
    door: DoorWish,
    announce: Callable[[str, str, str], None],
) -> bool:
    """Serve the policy of a text, which is that of the file now, in several processes until told to stop.

    Whether all of them ended well. `store` (a URL) stands in for the policy's own; where neither is, it is the
    zone of this user and namespace. A worker that hangs for `hang_s` seconds is replaced, with 0 never.
    `door` is what is to stand before each worker.
    `announce` gets the address, that zone's URL ("" where a store was named) and words about the door, once all workers
    answer. Raises before anything starts: PolicyError and ConfigError for what cannot be used, a store in the memory of
    each process among it; OSError for files.
    """
    policy = policy_of(text, policy_file)
    opened, zone = open_shared(policy, store, shown=str(policy_file), workers=workers)
    plan = plan_door(opened, door, workers=workers)
    bounds = plan.within_descriptors(bounds)
    listeners = listen_together(host, port, workers)
    folder = LockedFolder(METRICS, room=workers * (ROOM_OF_WORKER + len(policy.rules) * ROOM_OF_RULE))
    try:
        make_files(folder.path, workers, len(policy.rules))
        with sockets_of(plan) as sockets:
            doorway = _Doorway(plan, sockets, bounds)
            task = _WorkerTask(policy_file, text, policy, opened, doorway, own_store=store is None, drain_s=drain_s)
            address = address_of(listeners[0], plan.scheme)
            supervisor = Supervisor(
                listeners,
                lambda link: task.work(link, Sharing(folder.path, link.worker, supervisor.counts)),
                drain_s=drain_s,
                stop_within_s=FINISH_WITHIN_S + _GRACE_S,
                hang_s=hang_s,
                all_answer=lambda: announce(address, zone, plan.told),
            )
            return supervisor.run()
    finally:
        folder.remove()
        opened.close()


class _Doorway(NamedTuple):
    """What stands before each worker, and what its clients may take."""

    plan: DoorPlan
    sockets: Path | None
    bounds: Bounds


class _WorkerTask:
    """What each worker does, and what all of them know of the policy file and the store."""

    def __init__(
        self,
        file: Path,
        text: bytes,
        policy: Policy,
        store: Store,
        doorway: _Doorway,
        *,
        own_store: bool,
        drain_s: float,
    ) -> None:
        self._file = file
        self._first = text
        self._good = LastGood(text)
        self._store = store
        self._store_named = _store_named(policy) if own_store else None
        self._own_store = own_store
        self._doorway = doorway
        self._drain_s = drain_s

    def work(self, link: SupervisorLink, sharing: Sharing) -> None:
        """Be one worker: build a gate and answer on the worker's socket until told to stop."""
        text, error, gate = self._begin()
        service = Service(gate, sharing, scheme=self._doorway.plan.scheme)
        if error is not None:
            service.events.publish(PolicyRefused(error))
            log.error("the policy is refused, the last good one stays:\n%s", error)
        watch = PolicyWatch(
            self._file,
            gate,
            service.events,
            self._parse,
            judged=text if error is None or isinstance(error, PolicyError) else None,
            refused=error is not None,
            applied=self._good.keep,
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

    def _begin(self) -> tuple[bytes | None, Exception | None, AsyncGate]:
        """The file's text, what is wrong with it, and a gate for it or else for the last text that was good."""
        text: bytes | None = None
        try:
            text = (self._good.text() or self._first) if is_read_once(self._file) else read_again(self._file)
            gate = AsyncGate(self._parse(text), store=self._store)
        except (HeadgateError, OSError) as error:
            good = policy_of(self._good.text() or self._first, self._file)
            return text, error, AsyncGate(good, store=self._store)
        self._good.keep(text)
        return text, None, gate

    def _parse(self, text: bytes) -> Policy:
        policy = policy_of(text, self._file)
        if self._own_store and _store_named(policy) != self._store_named:
            raise other_store(self._file)
        return policy


def _store_named(policy: Policy) -> str | None:
    return policy.store if policy.names_store else None
