"""The rate at which a Redis server decides a policy's rules, and the number of servers that are needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from headgate.decision import NamedLimit
from headgate.planning.redis_costs import COSTS, HELD_FACTOR
from headgate.policy.compiled import Rule

BUSY_SHARE = 0.6
"""The planned share of its time that a server computes."""

SERVER_BYTES = 16 << 30
"""The most memory of one server: more takes too long to load and to copy."""

LEAST_SHARDS = 3


@dataclass(frozen=True, slots=True)
class SharedKey:
    """Limits on one key that all requests share: one shard decides them, however many shards there are."""

    rules: tuple[str, ...]
    ceiling: int
    """The planned decisions a second of a shard on it."""

    leased: bool
    """Whether that is too few, so that processes must lease parts of the limits in advance."""


def dearest_limits(rules: Iterable[Rule]) -> list[NamedLimit]:
    """The limits of these rules, each in the tier that takes longest to decide."""
    return [limit for rule in rules for limit in max(rule.limits.values(), key=seconds_of)]


def planned_rate(seconds: float) -> int:
    """The planned decisions a second of a server, for decisions that take `seconds` each."""
    return int(BUSY_SHARE / seconds)


def seconds_of(limits: Sequence[NamedLimit]) -> float:
    """The seconds that a server computes for one decision of these limits: those of a call, and of each limit.

    With concurrency limits, a decision is a hold and its settling.
    """
    costs = [COSTS[named.limit.algorithm] for named in limits]
    if not costs:
        return 0.0
    limit_seconds = [max(0.0, 1 / cost.three - 1 / cost.one) / 2 for cost in costs]
    if any(not named.limit.is_rate for named in limits):  # all of them are held, and settled
        pairs = list(zip(limits, costs, limit_seconds, strict=True))
        call_s = max(1 / cost.one - cost_s for named, cost, cost_s in pairs if not named.limit.is_rate)
        return call_s + sum(cost_s * (HELD_FACTOR if named.limit.is_rate else 1) for named, _, cost_s in pairs)
    return max(1 / cost.one - cost_s for cost, cost_s in zip(costs, limit_seconds, strict=True)) + sum(limit_seconds)


def shared_key(group: Sequence[Rule], rate: float) -> SharedKey:
    """The needs of rules that count all requests on one key, at `rate` requests a second."""
    ceiling = planned_rate(seconds_of(dearest_limits(group)))
    return SharedKey(tuple(rule.name for rule in group), ceiling, leased=rate > ceiling)


def shards_of(seconds: float, rate: float, memory_bytes: int) -> int:
    """The number of shards of a Cluster. One that has a shared key is given fewer slots of the others."""
    return max(LEAST_SHARDS, ceil(rate * seconds / BUSY_SHARE), ceil(memory_bytes / SERVER_BYTES))
