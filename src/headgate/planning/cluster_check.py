"""Whether a policy can be kept by a store: in a Cluster, keys of different identities lie on different servers."""

from __future__ import annotations

from itertools import combinations

from headgate.errors import ConfigError
from headgate.policy.compiled import Policy, Rule
from headgate.stores.protocol import Store


def check_shape(policy: Policy, store: Store) -> None:
    """Raise ConfigError for a policy that the store cannot keep as it is written.

    A decision over several servers of a Cluster is charged server by server, and a refusal gives back what it
    took. A queue has told those behind it how long to wait, so its place cannot be given back.
    """
    if not getattr(getattr(store, "inner", store), "is_cluster", False):
        return
    for one, other in combinations(policy.rules, 2):
        if one.by == other.by or not _may_meet(one, other):
            continue
        for queue, beside in ((one, other), (other, one)):
            if not queue.shadow and _has_queue(queue):
                raise ConfigError(
                    f"rule {queue.name} is a queue and may meet rule {beside.name}, which counts by "
                    f"{_by(beside)} instead of {_by(queue)}: in a Cluster these lie on different servers, and a place "
                    "in a queue cannot be given back. Count both by the same identities, make the queue another "
                    "kind of limit, or use one server or Sentinels"
                )


def _has_queue(rule: Rule) -> bool:
    return any(limit.limit.algorithm == "leaky_queue" for limits in rule.limits.values() for limit in limits)


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
