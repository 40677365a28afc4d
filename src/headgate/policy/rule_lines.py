"""The lines in which a request may wait, its demand there, and its refusal where its turn comes too late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from headgate.decision import Decision, NamedLimit, Reading, binding_of
from headgate.keys import encode_key
from headgate.operation import Operation
from headgate.policy.compiled import Policy, Rule
from headgate.policy.resolver import Resolved
from headgate.waiting.arrivals import Demand, LineName


def waiting_lines(policy: Policy, resolved: Resolved) -> dict[LineName, Rule]:
    """The line of each rule that lets a request wait; the name of a line contains the key of the request."""
    return {name: rule for name, rule in _lines(policy, resolved) if rule.wait_us}


def place_lines(policy: Policy, resolved: Resolved) -> tuple[LineName, ...]:
    """The lines in which other requests may wait for the places in flight that this one holds."""
    return tuple(dict(line for line in _lines(policy, resolved) if line[1].wait_us and line[1].in_flight))


def _lines(policy: Policy, resolved: Resolved) -> Iterator[tuple[LineName, Rule]]:
    _, operation, rules, _ = resolved
    for key, rule in zip(operation.keys, rules, strict=True):
        yield (policy.namespace, str(policy.generation), rule.name, encode_key(key)), rule


def rule_of(name: LineName) -> str:
    """The name of the rule that a line belongs to."""
    return name[2]


def demand_of(definitions: tuple[NamedLimit, ...], rule: str, costs: Sequence[int]) -> Demand:
    """The demand of a request on the rates of a rule; `costs` has a cost for each group of the request."""
    _, limits, groups = rates_of(definitions, rule)
    return Demand(limits, tuple([costs[group] for group in groups]))


@lru_cache(1024)
def rates_of(
    definitions: tuple[NamedLimit, ...], rule: str
) -> tuple[tuple[int, ...], tuple[NamedLimit, ...], tuple[int, ...]]:
    """The rates of a rule: (indexes among all limits, the limits with renumbered groups, their former groups)."""
    numbers = tuple(
        number
        for number, limit in enumerate(definitions)
        if limit.rule == rule and limit.limit.is_rate and not limit.shadow
    )
    groups = tuple(dict.fromkeys(definitions[number].group for number in numbers))
    limits = tuple(replace(definitions[number], group=groups.index(definitions[number].group)) for number in numbers)
    return numbers, limits, groups


def refused(operation: Operation, rule: str, wait_us: int | None, untouched: Decision, peeked: Decision) -> Decision:
    """The refusal of a request whose turn in the line of a rule comes in `wait_us` (None: never); nothing is consumed.

    `untouched` is a peek at cost 0, which gives the limits as they are, `peeked` one at the request's own costs.
    """
    definitions = peeked.definitions
    readings = [
        Reading(
            tested.allowed,
            unchanged.remaining,
            unchanged.reset_after_us,
            tested.retry_after_us,
            unchanged.next_after_us,
            0,
        )
        for unchanged, tested in zip(untouched.limits, peeked.limits, strict=True)
    ]
    costs = [operation.costs[limit.group] for limit in definitions]
    rule_limits = [number for number, limit in enumerate(definitions) if limit.rule == rule and not limit.shadow]
    if rule_limits and all(readings[number].allowed for number in rule_limits):
        nearest = min(rule_limits, key=lambda number: readings[number].remaining // max(costs[number], 1))
        late_us = None if wait_us is None else max(wait_us, 1)
        readings[nearest] = readings[nearest]._replace(allowed=False, retry_after_us=late_us)
    elif rule_limits:
        for number in rule_limits:
            retry_us = readings[number].retry_after_us
            if not readings[number].allowed and retry_us is not None:
                late_us = None if wait_us is None else max(wait_us, retry_us)
                readings[number] = readings[number]._replace(retry_after_us=late_us)
    binding = binding_of(definitions, readings, costs, allowed=False)
    return Decision(definitions, readings, allowed=False, binding=binding, degraded=peeked.degraded)
