"""The part of a policy that a log can judge: its rates. A log has the times of requests, but not their durations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headgate.errors import ConfigError
from headgate.policy.compiled import ANY_TIER, Policy, Rule
from headgate.policy.frozen_map import FrozenMap

LEFT_OUT = "left out, since a log does not say how long a request took"
"""The text that precedes the names of limits that were left out."""


def rates_of(policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """A policy without its concurrency limits, and texts of the limits that were left out.

    A rule that has only such limits stays, since others may be defaults beside it, and refuses nothing. Raises
    ConfigError for a policy of only such limits.
    """
    if not policy.in_flight:
        return policy, ()
    if not any(named.limit.is_rate for rule in policy.rules for limits in rule.limits.values() for named in limits):
        raise ConfigError(
            "the policy limits nothing but what is in flight: a log does not say how long a request took, so there is "
            "nothing to replay"
        )
    left_out = tuple(text for rule in policy.rules for text in _left_out(rule))
    return replace(policy, rules=tuple(map(_with_rates, policy.rules))), left_out


def _with_rates(rule: Rule) -> Rule:
    if not rule.in_flight:
        return rule
    limits = {tier: tuple(named for named in limits if named.limit.is_rate) for tier, limits in rule.limits.items()}
    return replace(rule, limits=FrozenMap(limits))


def _left_out(rule: Rule) -> Iterator[str]:
    for tier, limits in rule.limits.items():
        if tier == ANY_TIER and rule.is_tiered:
            continue
        for named in limits:
            if not named.limit.is_rate:
                yield f"{rule.name}{f' ({tier})' if tier else ''}: {named.limit}"


def limits_text(rule: Rule) -> str:
    """A short text of a rule's limits, for each tier with limits of its own."""
    texts = {tier: "; ".join(str(named.limit) for named in limits) for tier, limits in rule.limits.items()}
    if not rule.is_tiered:
        return texts[ANY_TIER]
    return ", ".join(f"{tier}: {text}" for tier, text in texts.items() if text and tier != ANY_TIER)
