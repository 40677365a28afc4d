"""Whether a store can keep a policy: the servers of a Cluster, and the room of a shared zone."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from headgate.algorithms.table import ALGORITHMS
from headgate.clock import Clock
from headgate.errors import ConfigError, StoreUnavailable
from headgate.policy.compiled import Policy, Rule
from headgate.stores.protocol import Store
from headgate.stores.shared.store import SharedStore

_LOOKS_FOR_ROOM = 8
"""How often a zone is asked for room for a policy, which another process may take back before it is used."""


def check_fit(policy: Policy, store: Store, *, clock: Clock | None = None) -> None:
    """Raise ConfigError for a policy that the store cannot keep."""
    check_cluster(policy, store)
    if isinstance(store, SharedStore):
        _check_zone(policy, store, clock)


def check_cluster(policy: Policy, store: Store) -> None:
    """Raise ConfigError for a policy that a Cluster cannot keep, where the store is one."""
    if getattr(getattr(store, "inner", store), "is_cluster", False):
        obstacle = cluster_obstacle(policy)
        if obstacle:
            raise ConfigError(obstacle)


def cluster_obstacle(policy: Policy) -> str:
    """Why a Cluster cannot keep a policy as it is written, "" where it can.

    There keys of different identities lie on different servers. A decision over several servers is charged server
    by server, and a refusal gives back what it took. A queue has told those behind it how long to wait, so its
    place cannot be given back.
    """
    for one, other in combinations(policy.rules, 2):
        if one.by == other.by or not _may_meet(one, other):
            continue
        for queue, beside in ((one, other), (other, one)):
            if not queue.shadow and _has_queue(queue):
                return (
                    f"rule {queue.name} is a queue and may meet rule {beside.name}, which counts by "
                    f"{_by(beside)} instead of {_by(queue)}: in a Cluster these lie on different servers, and a place "
                    "in a queue cannot be given back. Count both by the same identities, make the queue another "
                    "kind of limit, or use one server or Sentinels"
                )
    return ""


def _has_queue(rule: Rule) -> bool:
    return any(ALGORITHMS[limit.limit.algorithm].queues for limits in rule.limits.values() for limit in limits)


def _may_meet(one: Rule, other: Rule) -> bool:
    """Whether one request may fall under both; where that cannot be told, it may."""
    if one.default != other.default:  # a default rule is for requests that no other is for
        return False
    ours, theirs = one.conditions, other.conditions
    if ours.methods and theirs.methods and not ours.methods & theirs.methods:
        return False
    if ours.hosts and theirs.hosts and not (ours.parent_hosts or theirs.parent_hosts or ours.hosts & theirs.hosts):
        return False
    plain = all(path and not set(path) & set("*{}") for path in (*ours.paths, *theirs.paths))
    return not (ours.paths and theirs.paths and plain and not set(ours.paths) & set(theirs.paths))


def _by(rule: Rule) -> str:
    return " and ".join(rule.by) or "nothing"


def _check_zone(policy: Policy, store: SharedStore, clock: Clock | None) -> None:
    """A shared zone has a list of the limits that it knows, of a fixed length."""
    limits = [limit for rule in policy.rules for limits in rule.limits.values() for limit in limits]
    missing = wanted = {(limit.scope, str(limit.limit)): limit for limit in limits}
    most = store.info()["max_limits"]
    for _ in range(_LOOKS_FOR_ROOM if len(wanted) <= most else 0):
        try:
            for limit in missing.values():
                store.bind((replace(limit, group=0),), clock=clock)
        except StoreUnavailable as error:
            raise ConfigError(f"the store cannot keep the {len(limits)} limits of this policy: {error}") from error
        # One that holds no state yet makes room for another: of this policy, or of another process just now.
        known = set(store.known_limits())
        missing = {name: limit for name, limit in wanted.items() if name not in known}
        if not missing:
            return
    raise ConfigError(
        f"the store cannot keep the {len(limits)} limits of this policy: a zone of this size knows up to "
        f"{most}, fewer where their names are long; a larger one knows more"
    )
