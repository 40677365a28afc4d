"""Checks whether a store can hold a policy: the servers of a Cluster, and the size of a shared zone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headgate.algorithms.table import ALGORITHMS
from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.errors import ConfigError, StoreError
from headgate.policy.compiled import ALL_RULES, ANY_TIER, Conditions, Policy, Rule
from headgate.stores.protocol import Store

_ZONE_CHARGES, _LOG_COUNTS_AS = 256, 7
"""The most limits that a shared zone charges at once, and the number of limits that a log counts as."""


def check_fit(policy: Policy, store: Store, *, clock: Clock | None = None) -> None:
    """Raise ConfigError for a policy that the store cannot hold."""
    check_cluster(policy, store)
    limits = [limit for rule in policy.rules for limits in rule.limits.values() for limit in limits]
    store.check_room(limits, clock=clock)
    for together in _beyond_a_zone(policy):
        try:
            store.bind(tuple(replace(limit, group=0) for limit in together), clock=clock)
        except ConfigError as error:
            raise ConfigError(_too_many(together)) from error


def check_holds(policy: Policy, bind: Callable[[tuple[NamedLimit, ...]], Any]) -> None:
    """Raise ConfigError for a policy that counts requests in flight, on a store without holds.

    `bind` binds limits to the store in the same way as for decisions.
    """
    rule = next((rule for rule in policy.rules if rule.in_flight), None)
    if rule is None:
        return
    limits = next(limits for limits in rule.limits.values() if any(not named.limit.is_rate for named in limits))
    try:
        bind(tuple(replace(limit, group=0) for limit in limits)).id_of(("anyone",), "any")
    except ConfigError as error:
        raise ConfigError(f"rule {rule.name} counts what is in flight: {error}") from error
    except StoreError:
        return  # whether the store has holds is not known before it answers


def check_cluster(policy: Policy, store: Store) -> None:
    """Raise ConfigError for a policy that a Cluster cannot hold, where the store is one."""
    if store.is_cluster:
        obstacle = cluster_obstacle(policy)
        if obstacle:
            raise ConfigError(obstacle)


def cluster_obstacle(policy: Policy) -> str:
    """The reason why a Cluster cannot hold a policy as it is written; "" where it can.

    In a Cluster, keys of different identities are on different servers. A decision over several servers is charged
    server by server, and a refusal gives back what was charged. A place in a queue cannot be given back, because the
    requests behind it already have their delays.
    """
    for queue in policy.rules:
        if queue.shadow or not _has_queue(queue):
            continue
        for other in policy.rules:
            if other.by != queue.by and _may_apply_together(queue, other):
                return (
                    f"rule {queue.name} is a queue and may meet rule {other.name}, which counts by "
                    f"{_by(other)} instead of {_by(queue)}: in a Cluster these are on different servers, and a place "
                    "in a queue cannot be given back. Count both by the same identities, make the queue another "
                    "kind of limit, or use one server or Sentinels"
                )
    return ""


def zone_obstacle(policy: Policy) -> str:
    """Why a shared zone cannot decide some requests of a policy; "" where nothing certain prevents it."""
    return next((_too_many(limits) for limits in _beyond_a_zone(policy)), "")


def _too_many(limits: tuple[NamedLimit, ...]) -> str:
    first, *others = dict.fromkeys(limit.rule for limit in limits)
    rules = f"rule {first}" if not others else f"rule {first} and {len(others)} more"
    logs = sum(map(_is_log, limits))
    return (
        f"{rules} apply to the same request with {len(limits)} limits, {logs} of them sliding logs: a shared zone "
        f"charges at most {_ZONE_CHARGES} limits at once, where a log counts as {_LOG_COUNTS_AS}. Use fewer limits for "
        "one request, or another store"
    )


def _beyond_a_zone(policy: Policy) -> Iterator[tuple[NamedLimit, ...]]:
    """Yield the limits that certainly apply together, and are more than a shared zone charges at once."""
    if sum(len(limits) for rule in policy.rules for limits in rule.limits.values()) * _LOG_COUNTS_AS > _ZONE_CHARGES:
        for limits in _limits_together(policy):
            if sum(_LOG_COUNTS_AS if _is_log(limit) else 1 for limit in limits) > _ZONE_CHARGES:
                yield limits


def _limits_together(policy: Policy) -> Iterator[tuple[NamedLimit, ...]]:
    """Yield, for each set of conditions of a ruleset and each tier, the limits of the rules that certainly apply."""
    rulesets = {name: members for name, members in policy.rulesets.items() if name != ALL_RULES} or policy.rulesets
    for members in map(frozenset, rulesets.values()):
        rules = [rule for rule in policy.rules if rule.name in members and not rule.default]
        anything = [rule for rule in rules if rule.conditions == Conditions()]
        by_conditions: dict[Conditions, list[Rule]] = {}
        for rule in rules:
            by_conditions.setdefault(rule.conditions, []).append(rule)
        for conditions, rules_alike in by_conditions.items():
            together = rules_alike if conditions == Conditions() else [*anything, *rules_alike]
            for tier in dict.fromkeys((ANY_TIER, *(tier for rule in together for tier in rule.limits))):
                yield tuple(limit for rule in together for limit in rule.limits[rule.tier(tier)])


def _is_log(limit: NamedLimit) -> bool:
    return ALGORITHMS[limit.limit.algorithm].is_log


def _has_queue(rule: Rule) -> bool:
    return any(ALGORITHMS[limit.limit.algorithm].queues for limits in rule.limits.values() for limit in limits)


def _may_apply_together(rule: Rule, other: Rule) -> bool:
    """Whether both rules may apply to one request; true where that is not certain."""
    if rule.default != other.default:  # a default rule applies where no other rule does
        return False
    first, second = rule.conditions, other.conditions
    if first.methods and second.methods and not first.methods & second.methods:
        return False
    if first.hosts and second.hosts and not (first.parent_hosts or second.parent_hosts or first.hosts & second.hosts):
        return False
    plain = all(path and not set(path) & set("*{}") for path in (*first.paths, *second.paths))
    return not (first.paths and second.paths and plain and not set(first.paths) & set(second.paths))


def _by(rule: Rule) -> str:
    return " and ".join(rule.by) or "nothing"
