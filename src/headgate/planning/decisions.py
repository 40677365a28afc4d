"""Decisions of a policy's rules that a server of Redis makes, and the servers that so many need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from headgate.decision import NamedLimit
from headgate.planning.redis_costs import COSTS, HELD_FACTOR
from headgate.policy.compiled import Rule

BUSY_SHARE = 0.6
"""How much of its time a server is planned to compute."""

SERVER_BYTES = 16 << 30
"""Memory of one server at the most: a larger one takes too long to load and to copy."""

LEAST_SHARDS = 3


@dataclass(frozen=True, slots=True)
class SharedKey:
    """Limits on one key that all requests count on: one shard decides them, however many there are."""

    rules: tuple[str, ...]
    ceiling: int
    """Decisions a second that a shard is planned to make on it."""

    leased: bool
    """Whether that is too few, so that processes must take parts of it in advance."""


def dearest_limits(rules: Iterable[Rule]) -> list[NamedLimit]:
    """The limits of these rules, each in the tier that takes longest to decide."""
    return [limit for rule in rules for limit in max(rule.limits.values(), key=seconds_of)]


def planned_rate(seconds: float) -> int:
    """Decisions a second that a server is planned to make, each of so many seconds."""
    return int(BUSY_SHARE / seconds)


def seconds_of(limits: Sequence[NamedLimit]) -> float:
    """How long a server computes for one decision of these limits: what a call takes, and each limit in it.

    Beside what is in flight it is a hold and its settling.
    """
    costs = [COSTS[named.limit.algorithm] for named in limits]
    if not costs:
        return 0.0
    each = [max(0.0, 1 / cost.three - 1 / cost.one) / 2 for cost in costs]
    if any(not named.limit.is_rate for named in limits):  # all of them are held, and settled
        pairs = list(zip(limits, costs, each, strict=True))
        shell = max(1 / cost.one - own for named, cost, own in pairs if not named.limit.is_rate)
        return shell + sum(own * (HELD_FACTOR if named.limit.is_rate else 1) for named, _, own in pairs)
    return max(1 / cost.one - own for cost, own in zip(costs, each, strict=True)) + sum(each)


def shared_key(group: Sequence[Rule], rate: float) -> SharedKey:
    """What rules that count on one key of all requests need, at so many requests a second."""
    ceiling = planned_rate(seconds_of(dearest_limits(group)))
    return SharedKey(tuple(rule.name for rule in group), ceiling, leased=rate > ceiling)


def shards_of(seconds: float, rate: float, memory_bytes: int) -> int:
    """Shards of a Cluster. One that has a shared key is given fewer slots of the others."""
    return max(LEAST_SHARDS, ceil(rate * seconds / BUSY_SHARE), ceil(memory_bytes / SERVER_BYTES))
