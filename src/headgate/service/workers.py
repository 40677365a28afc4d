"""The service in several processes: one port, one store, one set of figures, one policy file.

What can be wrong is found out before the first process is forked, and told once. Each worker builds
its own gate; the store that the parent opened, and all that it had read, they share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from headgate.errors import ConfigError, HeadgateError
from headgate.observe.metrics import Sharing, make_files
from headgate.observe.metrics_folder import MetricsFolder
from headgate.policy.gate import AsyncGate, read_policy
from headgate.policy.rules import Policy
from headgate.policy.shape import check_shape
from headgate.service.app import Service
from headgate.service.server import (
    FINISH_WITHIN_S,
    PolicyWatch,
    address_of,
    file_identity,
    listen_together,
    other_store,
    run,
)
from headgate.service.supervisor import Seat, Supervisor
from headgate.stores.contract import Store
from headgate.stores.memory import MemoryStore
from headgate.stores.opening import open_store
from headgate.stores.shared import default_zone_url

log = logging.getLogger("headgate")

_GRACE_S = 5
"""How much longer than it should take a worker may take to end."""


def serve_workers(
    policy_file: Path,
    *,
    workers: int,
    store: str | None,
    host: str,
    port: int,
    drain_s: float,
    announce: Callable[[str, str], None],
) -> bool:
    """Serve in several processes until told to stop; whether all of them ended well.

    `store` (a URL) stands in for the policy's own; where neither is, it is the zone of this user and
    namespace. `announce` gets the address and that zone's URL ("" where a store was named), once all
    workers answer. Raises before anything starts: PolicyError and ConfigError for what cannot be used,
    a store in the memory of each process among it; OSError for files.
    """
    policy = read_policy(policy_file)
    zone = default_zone_url(policy.namespace) if store is None and not policy.names_store else ""
    opened = open_store(zone or (policy.store if store is None else store))
    if isinstance(opened, MemoryStore):
        place = f"{policy_file}: store" if store is None else "--store"
        raise ConfigError(
            f"{place}: memory counts for each process alone, so {workers} workers would let {workers} times as much "
            "pass; name a shared:// store, or leave it out to get one"
        )
    check_shape(policy, opened)
    listeners = listen_together(host, port, workers)
    folder = MetricsFolder()
    try:
        make_files(folder.path, workers)
        duty = _Duty(policy_file, policy, opened, own_store=store is None, drain_s=drain_s)
        address = address_of(listeners[0])
        supervisor = Supervisor(
            listeners,
            lambda seat: duty.work(seat, Sharing(folder.path, seat.number, supervisor.counts)),
            drain_s=drain_s,
            stop_within_s=FINISH_WITHIN_S + _GRACE_S,
            all_answer=lambda: announce(address, zone),
            news=duty.remember_policy,
        )
        return supervisor.run()
    finally:
        folder.remove()
        opened.close()


class _Duty:
    """What each worker does, and the policy that holds where the file cannot be used."""

    def __init__(self, policy_file: Path, policy: Policy, store: Store, *, own_store: bool, drain_s: float) -> None:
        self._file = policy_file
        self._policy = policy
        self._store = store
        self._store_named = _store_named(policy) if own_store else None
        self._own_store = own_store
        self._drain_s = drain_s

    def work(self, seat: Seat, sharing: Sharing) -> None:
        """Be one worker: build a gate and answer on the seat's socket until told to stop."""
        seen = file_identity(self._file)
        refused: Exception | None = None
        try:
            policy = self._read()
        except (HeadgateError, OSError) as error:
            refused, policy = error, self._policy
        service = Service(AsyncGate(policy, store=self._store), sharing)
        if refused is not None:
            service.metrics.reloaded(taken_up=False)
            log.error("the policy is refused, the last good one stays:\n%s", refused)
        run(
            service,
            seat.listener,
            watch=PolicyWatch(self._file, service, partial(self._read_and_tell, seat), seen=seen),
            drain_s=self._drain_s,
            announce=seat.answers,
            lifeline=seat.lifeline,
        )

    def remember_policy(self) -> None:
        """In the parent: workers have taken up the file as it is now, so it is what later ones fall back to."""
        with suppress(HeadgateError, OSError):  # it was changed again meanwhile: the workers tell of it
            self._policy = self._read()

    def _read_and_tell(self, seat: Seat) -> Policy:
        policy = self._read()
        seat.news()
        return policy

    def _read(self) -> Policy:
        policy = read_policy(self._file)
        if self._own_store and _store_named(policy) != self._store_named:
            raise other_store(self._file)
        return policy


def _store_named(policy: Policy) -> str | None:
    return policy.store if policy.names_store else None
