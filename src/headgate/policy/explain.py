"""Explains which limits a request meets: for each rule whether it applies, by which key, or why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.keys import encode_key
from headgate.limits import Limit
from headgate.policy.compiled import ALL_RULES, ANY_TIER, Conditions, Policy, Rule
from headgate.policy.frozen_map import FrozenMap
from headgate.policy.key_parts import hosts_of
from headgate.policy.matching import Candidate, ConditionsMatcher, Matcher, without_idle_defaults
from headgate.policy.path_tree import PathTree
from headgate.policy.subject import Subject

_NOTHING: FrozenMap[str, int] = FrozenMap()


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """The verdict of one rule on a request. `key` is None where it refuses the request, which lacks an identity."""

    name: str
    applies: bool
    reason: str
    shadow: bool = False
    costs: FrozenMap[str, int] = _NOTHING
    """The rule's own costs of one request, by unit."""

    wait_us: int = 0
    """How long a request may wait in line before the rule refuses it."""

    counted_by: tuple[str, ...] = ()
    key: str | None = None
    tier: str = ANY_TIER
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict of a policy on a request. `exempt` is why no rule applies; "" where the request is not exempt."""

    tier: str
    exempt: str
    verdicts: tuple[RuleVerdict, ...]


def explain(policy: Policy, request: Subject) -> Explanation:
    """Explain a request by all rules; nothing is counted."""
    matcher = Matcher(policy)
    exempt = _exemption(matcher, request)
    tier = matcher.tier_of(request)
    candidates = matcher.candidates(matcher.kind(request.method, request.host, request.path))
    matched = [possible for possible in candidates.rules if not possible.matcher.why_not(request)]
    applying = () if exempt else without_idle_defaults(matched)
    by_name = {candidate.rule.name: candidate for candidate in applying}
    verdicts = []
    for rule in policy.rules:
        if rule.name in by_name:
            verdicts.append(_applying(rule, by_name[rule.name], request, tier))
        else:
            reason = "the request is exempt" if exempt else _why_not(policy, rule, request, matched)
            verdicts.append(RuleVerdict(rule.name, False, reason, shadow=rule.shadow))
    return Explanation(tier, exempt, tuple(verdicts))


def _applying(rule: Rule, candidate: Candidate, request: Subject, tier: str) -> RuleVerdict:
    limits_tier = rule.tier(tier)
    parts = candidate.key.whole(request)
    return RuleVerdict(
        rule.name,
        True,
        "; ".join(_reasons(rule, limits_tier, tier)) or "it is for every request",
        shadow=rule.shadow,
        costs=rule.costs,
        wait_us=rule.wait_us,
        counted_by=rule.by,
        key=None if parts is None else encode_key(parts),
        tier=limits_tier,
        limits=tuple(named.limit for named in rule.limits[limits_tier]),
    )


def _reasons(rule: Rule, limits_tier: str, tier: str) -> Iterator[str]:
    conditions = rule.conditions
    if conditions.methods:
        yield f"method {' or '.join(sorted(conditions.methods))}"
    if conditions.paths:
        yield f"path {' or '.join(conditions.paths)}"
    if conditions.hosts or conditions.parent_hosts:
        yield "host"
    if conditions.headers:
        yield "headers"
    if conditions.entries is not None:
        yield f"entries {conditions.entries}"
    if conditions.models:
        yield f"model {' or '.join(conditions.models)}"
    if conditions.clients is not None:
        yield f"ip {conditions.clients}"
    if rule.default:
        yield "default: no other rule matched"
    if rule.is_tiered:
        yield (
            f"tier {limits_tier}"
            if limits_tier
            else f"the default tier, as {tier!r} is none of this rule's"
            if tier
            else "the default tier"
        )


def _why_not(policy: Policy, rule: Rule, request: Subject, matched: list[Candidate]) -> str:
    conditions = rule.conditions
    reason = _why_no_descriptor(conditions, request) or conditions.why_not(request.method, request.host)
    reason = reason or _why_not_path(conditions, request)
    reason = reason or ConditionsMatcher(conditions).why_not(request)
    if not reason and rule.name not in policy.rulesets[ALL_RULES]:
        return f"it is not in the ruleset {ALL_RULES}"
    others = [candidate.rule.name for candidate in matched if not (candidate.rule.default or candidate.rule.shadow)]
    return reason or f"it is a default, and {', '.join(others)} matched"


def _why_no_descriptor(conditions: Conditions, request: Subject) -> str:
    if not request.entries:
        return ""
    hosts = conditions.hosts or conditions.parent_hosts
    http_conditions = {
        "method": conditions.methods,
        "host": hosts,
        "path": conditions.paths,
        "header": conditions.headers,
    }
    return next((f"a descriptor has no {name}" for name, values in http_conditions.items() if values), "")


def _why_not_path(conditions: Conditions, request: Subject) -> str:
    if not conditions.paths or _tree(conditions).find(request.path):
        return ""
    return f"path {request.path.partition('?')[0]} does not match {' or '.join(conditions.paths)}"


def _exemption(policy: Matcher, request: Subject) -> str:
    for index, matcher in enumerate(policy.exempt):
        conditions, reason = matcher.conditions, matcher.why_not_surely(request)
        matches = not reason and conditions.is_surely_for(request.method, hosts_of(request.host))
        if matches and (not conditions.paths or _tree(conditions).find_surely(request.path)):
            return f"exempt[{index}] matches"
    return ""


def _tree(conditions: Conditions) -> PathTree:
    tree = PathTree()
    for template in conditions.paths:
        tree.add(template, 0)
    return tree
