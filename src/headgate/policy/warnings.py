"""Warnings about a valid policy that is hardly intended: limits that never refuse, rules that never apply.

Each warning is certain from the policy alone, whatever the requests are; a policy with warnings loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from headgate.limits import (
    CalendarWindow,
    Concurrent,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Limit,
    SlidingLog,
    SlidingWindow,
    StepwiseBucket,
    TokenBucket,
)
from headgate.policy.compiled import ALL_RULES, ANY_TIER
from headgate.policy.problems import Path, Problem
from headgate.policy.schema import MatchModel, PolicyModel, RuleModel
from headgate.policy.trust_warnings import trust_warnings
from headgate.policy.yaml_source import Document

_FOREIGN = re.compile(r":([A-Za-z_][A-Za-z0-9_]*)|<(?:[a-z]+:)?([A-Za-z_][A-Za-z0-9_]*)>")
"""A path segment that matches any value, in the syntax of other programs."""


_NO_RULE = "none"
"""The rule's name in metrics of requests to which no rule applies; see `headgate.observe.prometheus`."""

_WITHIN = {("day", "week"): 7, ("day", "month"): 31, ("day", "year"): 366, ("month", "year"): 12}
"""For two calendar periods, how many of the first are within one of the second, at most."""


def warnings_of(document: Document, policy: PolicyModel) -> list[Problem]:
    """The warnings about a policy that was read from a document, each with its line and column."""
    found = [*_idle_limits(policy), *_idle_rules(policy), *_idle_exemptions(policy), *_foreign_paths(policy)]
    found += _rules_like_no_rule(policy)
    found += trust_warnings(policy)
    return sorted(
        (document.problem(path, message) for path, message in found), key=lambda problem: (problem.line, problem.column)
    )


def _idle_limits(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Warn of each limit that refuses nothing that another limit of the same rule would let pass."""
    for index, rule in enumerate(policy.rules):
        for tier, limits in rule.limits.items():
            path: Path = ("rules", index, "limits", tier) if tier != ANY_TIER else ("rules", index, "limits")
            for place, limit in enumerate(limits):
                if limit in limits[:place]:
                    yield (
                        path,
                        f'"{limit}" is there twice: the second refuses nothing more, and costs a state of its own',
                    )
                    continue
                others = dict.fromkeys(other for other in limits if other != limit and other.of == limit.of)
                covering = next((other for other in others if _covers(other, limit)), None)
                if covering is not None:
                    verbs = ("would never refuse", "would refuse") if rule.shadow else ("never refuses", "refuses")
                    yield path, f'"{limit}" {verbs[0]}: "{covering}" {verbs[1]} first'


def _rules_like_no_rule(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Warn of each rule with the name that metrics use for requests to which no rule applies."""
    for index, rule in enumerate(policy.rules):
        if rule.name == _NO_RULE:
            yield (
                ("rules", index, "name"),
                f'in metrics the rule "{_NO_RULE}" stands for requests to which no rule applies: both are counted '
                "together; give the rule another name",
            )


def _covers(limit: Limit, other: Limit) -> bool:
    """Whether `other` never refuses a request that `limit` lets pass, both charged with the same requests."""
    if limit.quota == 0:
        return True
    match limit, other:
        case (FixedWindow(), FixedWindow()) | (SlidingLog(), SlidingLog() | FixedWindow()):
            # The ceiling below is how many periods of `limit` touch a period of `other`: aligned windows are nested.
            nested = not other.period_us % limit.period_us or not limit.period_us % other.period_us
            nested = nested or isinstance(limit, SlidingLog)
            return nested and other.quota >= limit.quota * -(-other.period_us // limit.period_us)
        case SlidingWindow(), SlidingWindow():
            return other.period_us == limit.period_us and other.quota >= limit.quota
        case (SlidingLog(), SlidingWindow()):
            # The estimate is at most what two windows of `other` can hold.
            return other.quota >= 2 * limit.quota * -(-other.period_us // limit.period_us)
        case CalendarWindow(), CalendarWindow():
            times = 1 if limit.period == other.period else _WITHIN.get((limit.period, other.period), 0)
            nested = times > 0 or (other.period, limit.period) in _WITHIN
            return nested and limit.zone == other.zone and other.limit >= limit.limit * max(1, times)
        case (StepwiseBucket(), _) | (_, StepwiseBucket()):
            return False  # what passes depends on when its steps began
        case (TokenBucket() | LeakyBucket(), TokenBucket() | LeakyBucket()):
            faster = other.refill * limit.period_us >= limit.refill * other.period_us
            return faster and other.capacity >= limit.capacity
        case Concurrent(), Concurrent():
            return other.limit >= limit.limit
        case LeakyQueue(), LeakyQueue():
            faster = other.refill * limit.period_us >= limit.refill * other.period_us
            return faster and other.queue >= limit.queue
        case _:
            return False


def _idle_rules(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Warn of each rule that never applies to a request, or that no request waits for."""
    for index, rule in enumerate(policy.rules):
        path: Path = ("rules", index)
        place = next((place for place, match in enumerate(policy.exempt) if _exempts(match, rule)), None)
        if condition := _http_condition_with_entries(rule.match):
            yield (*path, "match"), f"never applies: entries are of descriptors, and a descriptor has no {condition}"
        if rule.shadow and rule.wait is not None:
            yield (*path, "wait"), "no request waits for it: a shadow rule refuses nothing"
        if rule.default and (companion := _companion_for_all(rule, policy)) is not None:
            yield (*path, "default"), f"never applies: it is a default, and {companion.name} is for every request"
        elif place is not None:
            yield (*path, "match"), f"never applies: exempt[{place}] exempts all requests that it matches"


def _companion_for_all(rule: RuleModel, policy: PolicyModel) -> RuleModel | None:
    """A rule for every request, if each ruleset that contains `rule` contains such a rule, too; else None."""
    for_all = [other for other in policy.rules if not (other.default or other.shadow) and _is_empty(other.match)]
    rulesets = {ALL_RULES: [other.name for other in policy.rules]} | policy.rulesets
    containing = [members for members in rulesets.values() if rule.name in members]
    companions = [next((other for other in for_all if other.name in members), None) for members in containing]
    return companions[0] if companions and None not in companions else None


def _http_condition_with_entries(match: MatchModel | None) -> str:
    """A condition of HTTP requests next to conditions on entries, so that no subject meets both; "" for none."""
    if match is None or match.entries is None:
        return ""
    return next((name for name in ("method", "path", "host", "header") if getattr(match, name)), "")


def _is_empty(match: MatchModel | None) -> bool:
    return match is None or not any(match.model_dump(exclude_none=True).values())


def _exempts(match: MatchModel, rule: RuleModel) -> bool:
    """Whether an exemption with no condition but paths exempts each path of the rule; descriptors have no path."""
    conditions = {name for name, value in match.model_dump(exclude_none=True).items() if value}
    if conditions != {"path"} or match.path is None or (rule.match is not None and rule.match.entries is not None):
        return False
    return "/**" in match.path or bool(
        rule.match is not None and rule.match.path and set(rule.match.path) <= set(match.path)
    )


def _idle_exemptions(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Warn of each exemption that no subject meets."""
    for index, match in enumerate(policy.exempt):
        if condition := _http_condition_with_entries(match):
            yield ("exempt", index), f"never applies: entries are of descriptors, and a descriptor has no {condition}"


def _foreign_paths(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Warn of each path segment that is a parameter in other programs, and literal text here."""
    matches: list[tuple[Path, MatchModel | None]]
    matches = [(("rules", index, "match"), rule.match) for index, rule in enumerate(policy.rules)]
    matches += [(("exempt", index), match) for index, match in enumerate(policy.exempt)]
    for path, match in matches:
        for template in (match.path or ()) if match is not None else ():
            for segment in template.split("/"):
                if name := _FOREIGN.fullmatch(segment):
                    parameter = f"{{{name[1] or name[2]}}}"
                    yield (*path, "path"), f'"{segment}" matches only itself: for any one segment write "{parameter}"'
