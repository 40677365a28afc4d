"""Whether a store can keep a policy: the servers of a Cluster, and the room of a shared zone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

from headgate.algorithms.table import ALGORITHMS
from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.errors import ConfigError, StoreError
from headgate.policy.compiled import Policy, Rule
from headgate.stores.protocol import Store


def check_fit(policy: Policy, store: Store, *, clock: Clock | None = None) -> None:
    """Raise ConfigError for a policy that the store cannot keep."""
    check_cluster(policy, store)
    limits = [limit for rule in policy.rules for limits in rule.limits.values() for limit in limits]
    store.check_room(limits, clock=clock)


def check_holds(policy: Policy, bind: Callable[[tuple[NamedLimit, ...]], Any]) -> None:
    """Raise ConfigError for a policy that counts what is in flight, on a store that does not hold it.

    `bind` binds limits to the store as they will be asked.
    """
    rule = next((rule for rule in policy.rules if rule.in_flight), None)
    if rule is None:
        return
    limits = next(limits for limits in rule.limits.values() if any(not each.limit.is_rate for each in limits))
    try:
        bind(tuple(replace(limit, group=0) for limit in limits)).id_of(("anyone",), "any")
    except ConfigError as error:
        raise ConfigError(f"rule {rule.name} counts what is in flight: {error}") from error
    except StoreError:
        return  # it is not known before the store answers


def check_cluster(policy: Policy, store: Store) -> None:
    """Raise ConfigError for a policy that a Cluster cannot keep, where the store is one."""
    if store.is_cluster:
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
