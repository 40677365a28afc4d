"""The result of a replay as JSON values."""

from __future__ import annotations

from typing import Any

from headgate.amounts import is_money, number_text
from headgate.replay.log_costs import PLAIN
from headgate.replay.replay import Difference, Outcome
from headgate.replay.results import Result, RuleResult
from headgate.replay.times import iso_time


def summary(outcome: Outcome, top: int) -> dict[str, Any]:
    """`requests`, `allowed`, `denied`, `unparsed`, `first`, `last` and `rules`; with two policies, `compare` too."""
    first = _result(outcome.results[0], outcome, top)
    if outcome.difference is not None:
        first["compare"] = {
            **_result(outcome.results[1], outcome, top),
            **_difference(outcome.difference, top),
        }
    first["unparsed_lines"] = [unread._asdict() for unread in outcome.unread.shown]
    first["damaged"] = [
        {"source": part.source, "line": part.line, "reason": part.reason} for part in outcome.unread.damaged
    ]
    return first


def _difference(difference: Difference, top: int) -> dict[str, Any]:
    names = ("newly_denied", "newly_allowed")
    return {
        "newly_denied": difference.newly_denied,
        "newly_allowed": difference.newly_allowed,
        "by_rule": [
            {"name": name, **dict(zip(names, counts, strict=True))} for name, counts in sorted(difference.rules.items())
        ],
        "top_newly_denied": [{"key": key, "requests": count} for key, count in difference.most(top, denied=True)],
        "top_newly_allowed": [{"key": key, "requests": count} for key, count in difference.most(top, denied=False)],
    }


def _result(result: Result, outcome: Outcome, top: int) -> dict[str, Any]:
    return {
        "policy": result.name,
        "requests": result.requests,
        "allowed": result.allowed,
        "denied": result.denied,
        **_costs(result, outcome),
        **({"left_out": list(result.left_out)} if result.left_out else {}),
        "outside": outcome.outside,
        "unparsed": outcome.unread.count,
        "first": None if outcome.first_us is None else iso_time(outcome.first_us),
        "last": None if outcome.last_us is None else iso_time(outcome.last_us),
        "rules": [_rule(rule, top) for rule in result.rules],
    }


def _costs(result: Result, outcome: Outcome) -> dict[str, Any]:
    """Sums of the log's costs; by unit where the log has units, money as text."""
    sums = {"cost_allowed": result.cost_allowed, "cost_denied": result.cost_denied}
    if not outcome.costs:
        return {}
    if PLAIN in outcome.costs:
        return {name: costs[PLAIN] for name, costs in sums.items()}
    return {
        name: {unit: number_text(costs[unit], unit) if is_money(unit) else costs[unit] for unit in outcome.costs}
        for name, costs in sums.items()
    }


def _rule(rule: RuleResult, top: int) -> dict[str, Any]:
    worst = rule.worst_minute()
    return {
        "name": rule.name,
        "shadow": rule.shadow,
        "limits": rule.limits,
        "matched": rule.matched,
        "allowed": rule.allowed,
        "denied": rule.refused,
        "keys": rule.keys,
        "top": [{"key": key, "denied": count} for key, count in rule.most_refused(top)],
        "busiest": [{"key": key, "requests": count} for key, count in rule.busiest(top)],
        "worst_minute": None if worst is None else {"start": iso_time(worst[0]), "denied": worst[1]},
    }
