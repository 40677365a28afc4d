"""What one request takes of each unit that a rule's limits count, as the rule says.

A number is of the only unit, or of several in requests. A mapping names units; requests that it does not name are 1.
What a rule says nothing of is 0 unless the caller tells it. Amounts are integers, of money in billionths.
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
    """Given in place of a cost where the caller says what each group is charged."""

    __slots__ = ()


GROUP_COSTS: Any = GroupCosts()


class GroupAmounts(tuple[int | None, ...]):
    """Given in place of an amount: what counts, or is held on top, of each group; None for as much as is held."""

    __slots__ = ()


RuleCost = int | Mapping[str, int] | None
"""A rule's cost as its file says it: amounts by unit, or a number; None where it says none."""


def costs_of(cost: RuleCost, units: Sequence[str]) -> dict[str, int]:
    """The amounts of one request by unit; none for a number where several units are counted, and requests are not."""
    if isinstance(cost, Mapping):
        others = {unit: amount for unit, amount in cost.items() if unit in units}
        return {REQUESTS: 1, **others} if REQUESTS in units else others
    only = units[0] if len(units) == 1 else REQUESTS
    if only not in units:
        return {}
    return {only: read_amount(1 if cost is None else cost, only)}


def costs_of_calls(units: Sequence[str]) -> dict[str, int]:
    """What a rule says of a call that tells itself what it takes: that it is one request."""
    return {REQUESTS: 1} if REQUESTS in units else {}


def named_costs(costs: Mapping[str, int]) -> str:
    """What one request takes, for people: "2", "1 request and 900 tokens"; "" for the usual 1."""
    if list(costs) == [REQUESTS]:
        return "" if costs[REQUESTS] == 1 else str(costs[REQUESTS])
    texts = [_text(unit, amount) for unit, amount in costs.items()]
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)


def charged(usual: Operation, units: tuple[str, ...], cost: object, known: Collection[str]) -> Operation:
    """What is asked for a request that has a cost of its own, but for the keys.

    `usual` are the rules' own costs, `units` those of its groups. A number is so many such requests. In a mapping
    `requests` say that, 1 where they are not named; what it names of other units stands in place of the rules' own.
    No cost passes 2**52. Raises ArgumentError, also for a unit that is not known; without groups it is not looked at.
    """
    if not units:
        return usual
    if type(cost) is int or not isinstance(cost, Mapping):
        times = check_cost(cost)
        return Operation((), tuple([min(own * times, LARGEST) for own in usual.costs]))
    told = cost.copy() if isinstance(cost, ReadCosts) else read_units(cost, known)
    times = told.pop(REQUESTS, 1)
    return Operation(
        (),
        tuple([told.get(unit, min(own * times, LARGEST)) for unit, own in zip(units, usual.costs, strict=True)]),
    )


def _text(unit: str, amount: int) -> str:
    if unit == REQUESTS:
        return "1 request" if amount == 1 else f"{amount} requests"
    return amount_text(amount, unit)
