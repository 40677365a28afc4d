"""The cost that a rule states for one request, in each unit that the rule's limits count.

A number is an amount of the rule's only unit, or of `requests` where it has several. A mapping names units; `requests`
is 1 if it is not named. A unit that the rule does not state costs 0 unless the caller states it. Amounts are integers,
of money in billionths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headgate.amounts import REQUESTS, amount_text, read_amount
from headgate.costs import ReadCosts, read_units
from headgate.keys import check_cost
from headgate.operation import Operation
from headgate.units import LARGEST


class GroupCosts:
    """Passed in place of a cost where the caller states the charge of each group."""

    __slots__ = ()


GROUP_COSTS: Any = GroupCosts()


class GroupAmounts(tuple[int | None, ...]):
    """Passed in place of an amount: the final or additional amount of each group; None for the amount that is held."""

    __slots__ = ()


RuleCost = int | Mapping[str, int] | None
"""A rule's cost as the policy file states it: amounts by unit, or a number; None where it states none."""


def costs_of(cost: RuleCost, units: Sequence[str]) -> dict[str, int]:
    """The amounts of one request by unit; empty for a number where several units are counted, and not requests."""
    if isinstance(cost, Mapping):
        others = {unit: amount for unit, amount in cost.items() if unit in units}
        return {REQUESTS: 1, **others} if REQUESTS in units else others
    only = units[0] if len(units) == 1 else REQUESTS
    if only not in units:
        return {}
    return {only: read_amount(1 if cost is None else cost, only)}


def costs_of_calls(units: Sequence[str]) -> dict[str, int]:
    """The rule's own costs of a call that states its costs itself: one request."""
    return {REQUESTS: 1} if REQUESTS in units else {}


def named_costs(costs: Mapping[str, int]) -> str:
    """The cost of one request as text: "2", "1 request and 900 tokens"; "" for the usual 1."""
    if list(costs) == [REQUESTS]:
        return "" if costs[REQUESTS] == 1 else str(costs[REQUESTS])
    texts = [_text(unit, amount) for unit, amount in costs.items()]
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)


def charged(usual: Operation, units: tuple[str, ...], cost: object, known: Collection[str]) -> Operation:
    """The operation, without keys, for a request with a cost of its own.

    `usual` has the rules' own costs, `units` the unit of each group. A number is a number of such requests. In a
    mapping, `requests` is that number, 1 if it is not named; amounts of other units replace the rules' own costs.
    No cost exceeds 2**52. Raises ArgumentError, also for an unknown unit; without groups `cost` is not checked.
    """
    if not units:
        return usual
    if type(cost) is int or not isinstance(cost, Mapping):
        times = check_cost(cost)
        return Operation((), tuple([min(unit_cost * times, LARGEST) for unit_cost in usual.costs]))
    stated = cost.copy() if isinstance(cost, ReadCosts) else read_units(cost, known)
    times = stated.pop(REQUESTS, 1)
    return Operation(
        (),
        tuple(
            [
                stated.get(unit, min(unit_cost * times, LARGEST))
                for unit, unit_cost in zip(units, usual.costs, strict=True)
            ]
        ),
    )


def _text(unit: str, amount: int) -> str:
    if unit == REQUESTS:
        return "1 request" if amount == 1 else f"{amount} requests"
    return amount_text(amount, unit)
