"""The service in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headgate.policy.compiled import Policy
from headgate.policy.gate import AsyncGate
from headgate.service.app import Service
from headgate.service.http.bounds import Bounds
from headgate.service.workers.door_plan import DoorOptions, plan_door, port_of, sockets_of
from headgate.service.workers.policy_watch import PolicyWatch, policy_of, store_change_error
from headgate.service.workers.process import run
from headgate.supervisor.listener import address_of, listen


def serve(
    text: bytes,
    *,
    policy_file: Path,
    store: str | None,
    host: str,
    port: int,
    drain_s: float,
    bounds: Bounds,
    door: DoorOptions,
    announce: Callable[[str, str], None],
) -> None:
    """Serve the policy of a text, which the file has now, in this process until a signal stops it.

    `store` (a URL) replaces the policy's own. `door` is the requested front door. `announce` gets the address and a
    text about the door, once requests are answered.
    """
    policy = policy_of(text, policy_file)
    gate = AsyncGate(policy, store=store)
    plan = plan_door(gate.store, door)
    bounds = plan.within_descriptors(bounds)
    service = Service(gate, scheme=plan.scheme)
    listener = listen(host, port)

    def parse(text: bytes) -> Policy:
        changed = policy_of(text, policy_file)
        if store is None and changed.store != policy.store:
            raise store_change_error(policy_file)
        return changed

    watch = PolicyWatch(policy_file, gate, service.events, parse, processed=text)
    address = address_of(listener, plan.scheme)
    with sockets_of(plan) as sockets:
        answering = port_of(plan, service, listener, bounds, sockets=sockets)
        run(service, answering, watch, drain_s=drain_s, announce=lambda: announce(address, plan.description))
