"""Problems with the units that a policy's rules count, and with the costs that rules state for a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.amounts import REQUESTS, amount_text
from headgate.limits import units_of
from headgate.policy.compiled import ANY_TIER
from headgate.policy.llm_schema import rule_problems
from headgate.policy.problems import Path
from headgate.policy.rule_costs import costs_of
from headgate.policy.schema import PolicyModel


def cost_problems(policy: PolicyModel) -> Iterator[tuple[Path, str]]:
    """Yield problems with rules of calls and with costs: of a unit that no limit counts, or more than a limit admits.

    A limit of 0 is taken as intended: it admits nothing.
    """
    for index, rule in enumerate(policy.rules):
        path: Path = ("rules", index, "cost")
        units = units_of(limit for limits in rule.limits.values() for limit in limits)
        yield from rule_problems(("rules", index), rule, units, of_calls=policy.llm is not None)
        if policy.llm is not None:
            continue
        if isinstance(rule.cost, Mapping):
            for unit in rule.cost:
                if unit not in units:
                    yield (*path, unit), f"no limit of this rule counts {unit}: they count {', '.join(units)}"
        elif rule.cost is not None and len(units) > 1 and REQUESTS not in units:
            yield (
                path,
                f"is of what? The limits count {', '.join(units)}: name each, such as {{{units[0]}: {rule.cost}}}",
            )
        costs = costs_of(rule.cost, units)
        for tier, limits in rule.limits.items():
            for limit in limits:
                if 0 < limit.quota < costs.get(limit.of, 0):
                    place = f"limits.{tier}" if tier != ANY_TIER else "limits"
                    most = amount_text(limit.quota, limit.of)
                    at = (*path, limit.of) if isinstance(rule.cost, Mapping) and limit.of in rule.cost else path
                    yield at, f'can never pass {place}: "{limit}" admits {most} at most'
