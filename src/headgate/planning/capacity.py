"""The capacity of Redis that a policy needs for users and requests: memory, decisions a second, and servers.

It is computed from measurements (`redis_costs`) with conservative assumptions, which are listed. See docs/capacity.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from headgate.holding import LEASE_S
from headgate.planning import redis_costs
from headgate.planning.decisions import (
    BUSY_SHARE,
    SERVER_BYTES,
    SharedKey,
    dearest_limits,
    planned_rate,
    seconds_of,
    shards_of,
    shared_key,
)
from headgate.planning.memory import (
    ADDRESS_BYTES,
    VALUE_BYTES,
    LimitNeeds,
    is_shared,
    needs_of,
    needs_of_holds,
)
from headgate.planning.requests import groups_by_key, left_out, requests_of
from headgate.policy.compiled import Policy
from headgate.policy.store_fit import cluster_obstacle

MEMORY_FACTOR = 1.5
"""Memory to give for each byte of states."""

Layout = Literal["single", "cluster"]


@dataclass(frozen=True, slots=True)
class Dearest:
    """The request that costs most, of all to which the policy's rules apply."""

    method: str
    path: str
    host: str
    rules: tuple[str, ...]
    limits: int
    calls: int
    """Round trips in a Cluster: one for each key. A single server needs one."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The needed capacity, and how it was computed."""

    users: int
    rate: float
    limits: tuple[LimitNeeds, ...]
    state_bytes: int
    memory_bytes: int
    request: Dearest
    saturated: int
    """Decisions a second on such requests, by one server that does nothing else."""

    planned: int
    layout: Layout
    shards: int
    round_trips: int
    shared_keys: tuple[SharedKey, ...]
    obstacle: str
    """Why a Cluster cannot store this policy's limits, though they need one; else empty."""

    assumptions: tuple[str, ...]


def capacity(policy: Policy, *, users: int, rate: float) -> Capacity:
    """The capacity for `users` that make `rate` requests a second in all."""
    needs = tuple(need for rule in policy.rules for need in needs_of(rule, users, rate))
    dearest, rules = max(
        requests_of(policy), key=lambda request: seconds_of(dearest_limits(request[1])), default=(("GET", "", "/"), ())
    )
    limits = dearest_limits(rules)
    if policy.in_flight:
        needs += (needs_of_holds(policy, rate, max(1, len(limits))),)
    state_bytes = sum(need.total_bytes for need in needs)
    memory_bytes = ceil(state_bytes * MEMORY_FACTOR)
    groups = groups_by_key(rules)
    shared = {index: shared_key(group, rate) for index, group in enumerate(groups) if is_shared(group[0])}
    unleased_groups = [group for index, group in enumerate(groups) if index not in shared or not shared[index].leased]
    seconds = seconds_of(limits)
    unleased_seconds = seconds_of([limit for group in unleased_groups for limit in dearest_limits(group)])
    single = (not unleased_seconds or rate <= planned_rate(unleased_seconds)) and memory_bytes <= SERVER_BYTES
    shards = (
        1
        if single
        else shards_of(sum(seconds_of(dearest_limits(group)) for group in unleased_groups), rate, memory_bytes)
    )
    method, host, path = dearest
    return Capacity(
        users=users,
        rate=rate,
        limits=needs,
        state_bytes=state_bytes,
        memory_bytes=memory_bytes,
        request=Dearest(method, path, host, tuple(rule.name for rule in rules), len(limits), len(groups)),
        saturated=int(1 / seconds) if seconds else 0,
        planned=planned_rate(seconds) if seconds else 0,
        layout="single" if single else "cluster",
        shards=shards,
        round_trips=1 if single else len(unleased_groups),
        shared_keys=tuple(shared.values()),
        obstacle="" if single else cluster_obstacle(policy),
        assumptions=_assumptions(policy),
    )


def _assumptions(policy: Policy) -> tuple[str, ...]:
    skipped = left_out(policy)
    has_unknown_cost = any(not rule.cost_in(unit) for rule in policy.rules for unit in rule.all_units)
    return (
        "all users ask alike and have a key in each rule; every request is of the dearest kind, and admitted",
        f"a user's name has {VALUE_BYTES} characters, an address {ADDRESS_BYTES}; all users are in the dearest tier",
        "a state lives until it is as none, an eighth of that time longer, and two seconds; "
        "a log holds its quota, if so many come",
        f"memory is {MEMORY_FACTOR:g} times the states, for fragmentation, expired ones, buffers, and copies when "
        f"saving; {SERVER_BYTES >> 30} GiB a server at the most; each replica needs as much again",
        f"a server computes {BUSY_SHARE * 100:.0f} % of the time; calls reach it several at a time, as from the "
        "async store",
        f"measured on {redis_costs.DAY} with {redis_costs.SERVER}, {redis_costs.MACHINE}",
        redis_costs.METHOD,
        *(
            (
                f"what is in flight is held for {LEASE_S} s, a hold and its settling each time; the record of each "
                "hold is kept for an hour after that, or for the longest period of the policy",
            )
            if policy.in_flight
            else ()
        ),
        *(
            (
                f"{skipped:,} combinations of methods, hosts and paths were not examined: a request of theirs may meet "
                "more limits",
            )
            if skipped
            else ()
        ),
        *(
            ("where a rule has no cost in a unit, one request may take the whole quota of that unit",)
            if has_unknown_cost
            else ()
        ),
    )
