"""Costs: the amount that a request takes of each unit that limits count.

A cost is a number, or a mapping from unit to number: {"requests": 1, "tokens": 900}. Limits are decided with one
cost for each group, and a unit is a group; `Counted` turns the one into the other. See docs/units.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from headgate.amounts import REQUESTS, Amount, is_money, read_amount, unit_named
from headgate.decision import NamedLimit
from headgate.errors import ArgumentError, kind_of
from headgate.keys import check_cost
from headgate.limits import units_of

Cost = Amount | Mapping[str, Amount]
"""A cost as a caller passes it: a number, or a number for each unit."""


class Counted:
    """The units that a limiter's limits count; `written` has them in the order of the limits."""

    __slots__ = ("_one", "_places", "_requests", "is_plain", "units", "written")

    def __init__(self, written: Sequence[str]) -> None:
        self.written = tuple(written)
        self.units = tuple(sorted(self.written))
        """The unit of each group, as in `groups_of`."""

        self._places = tuple(map(self.units.index, self.written))
        """The group of each unit in `written`."""

        self._one = self.units[0] if len(self.units) == 1 else ""
        """The only unit; empty where there are several."""

        self._requests = self.units.index(REQUESTS) if REQUESTS in self.units else None
        self.is_plain = bool(self._one) and not is_money(self._one)
        """Whether a plain number is a cost as it is: there is one unit, and it is no money."""

    def read(self, cost: object) -> tuple[int, ...]:
        """The cost of each group. Raises ArgumentError.

        A number counts the only unit; where there are several it counts requests, and nothing else. In a mapping
        `requests` are 1 where they are not named, so is the only unit, and all other units are 0.
        """
        if type(cost) is int or not isinstance(cost, Mapping):
            return self._from_number(cost)
        if isinstance(cost, ReadCosts):
            return self._from_mapping(cost)
        amounts = read_units(cost, self.written)
        if self._one:
            return (amounts[self._one] if amounts else read_amount(1, self._one),)
        return tuple([amounts.get(unit, 1 if unit == REQUESTS else 0) for unit in self.units])

    def read_part(self, cost: object) -> tuple[int, ...]:
        """`read` for a part of a cost, such as an amount to give back: units that it does not name are 0."""
        if not isinstance(cost, Mapping):
            return self._from_number(cost)
        return self._from_mapping(cost if isinstance(cost, ReadCosts) else read_units(cost, self.written))

    def read_settled(self, cost: object, charged: Sequence[int]) -> tuple[int, ...]:
        """`read` for a settled cost: of units that it does not name as much as was charged."""
        if not isinstance(cost, Mapping):
            costs = self._from_number(cost)
            return (
                costs
                if self._one
                else tuple(
                    [
                        now if unit == REQUESTS else before
                        for unit, now, before in zip(self.units, costs, charged, strict=True)
                    ]
                )
            )
        amounts = read_units(cost, self.written)
        return tuple([amounts.get(unit, before) for unit, before in zip(self.units, charged, strict=True)])

    def read_actuals(self, actual: object) -> tuple[int | None, ...]:
        """The settled amount of a hold for each group; None, for as much as is held, where it is not named."""
        if actual is None:
            return (None,) * len(self.units)
        if type(actual) is int and actual == 0:  # a cancelled hold, of any units
            return (0,) * len(self.units)
        if not isinstance(actual, Mapping):
            costs = self._from_number(actual)
            return (
                costs
                if self._one
                else tuple([now if unit == REQUESTS else None for unit, now in zip(self.units, costs, strict=True)])
            )
        amounts = actual if isinstance(actual, ReadCosts) else read_units(actual, self.written)
        return tuple([amounts.get(unit) for unit in self.units])

    def as_read(self, costs: Sequence[int]) -> Cost:
        """The costs of the groups as a cost that a limiter takes."""
        return costs[0] if self.is_plain else ReadCosts(zip(self.units, costs, strict=True))

    @property
    def in_order(self) -> bool:
        """Whether the units are written in the order of their groups."""
        return self.units == self.written

    def as_written(self, amounts: tuple[int, ...]) -> tuple[int, ...]:
        """The amounts of the groups in the order of `written`; amounts of other groups unchanged."""
        return tuple([amounts[place] for place in self._places]) if len(amounts) == len(self.units) else amounts

    def _from_mapping(self, cost: Mapping[str, int]) -> tuple[int, ...]:
        return tuple([cost.get(unit, 0) for unit in self.units])

    def _from_number(self, cost: object) -> tuple[int, ...]:
        if self._one:
            return (read_amount(cost, self._one),)
        if self._requests is None:
            raise ArgumentError(
                f"these limits count {' and '.join(self.written)}: a cost says how much of each, "
                f'such as {{"{self.written[0]}": 1}}'
            )
        costs = [0] * len(self.units)
        costs[self._requests] = check_cost(cost)
        return tuple(costs)


class ReadCosts(dict[str, int]):
    """Amounts by unit that are read already: of money billionths, where any other mapping has whole units."""

    __slots__ = ()


def read_units(cost: Mapping[str, Amount], known: Collection[str]) -> dict[str, int]:
    """Read the amounts of a mapping by known units. Raises ArgumentError for any other unit."""
    amounts: dict[str, int] = {}
    for name, amount in cost.items():
        unit = name if name in known else unit_named(name) if isinstance(name, str) else name
        if unit not in known:
            raise ArgumentError(_not_counted(name, known))
        if unit in amounts:
            raise ArgumentError(f"a cost in {unit} is given twice")
        amounts[unit] = read_amount(amount, unit)
    return amounts


def single_cost(definitions: Sequence[NamedLimit], cost: object) -> int:
    """The cost for limits that all count one unit. The native core calls this for anything but a plain number."""
    units = units_of(definition.limit for definition in definitions)
    if len(units) != 1:
        return check_cost(cost)
    if not isinstance(cost, Mapping):
        return check_cost(cost)
    return Counted(units).read(cost)[0]


def single_actual(definitions: Sequence[NamedLimit], actual: object) -> int | None:
    """The settled amount for limits that all count one unit, from a mapping; None for as much as is held."""
    units = units_of(definition.limit for definition in definitions)
    return Counted(units).read_actuals(actual)[0] if len(units) == 1 else check_cost(actual, "an amount")


def single_more(definitions: Sequence[NamedLimit], more: object) -> int:
    """The additional amount for limits that all count one unit, from a mapping."""
    units = units_of(definition.limit for definition in definitions)
    return Counted(units).read_part(more)[0] if len(units) == 1 else check_cost(more, "an amount")


def _not_counted(name: object, known: Collection[str]) -> str:
    shown = repr(name)[:60] if isinstance(name, str) else kind_of(name)
    close = get_close_matches(name, known, n=1) if isinstance(name, str) else ()
    hint = f'; did you mean "{close[0]}"?' if close else ""
    return f"no limit counts {shown}: they count {', '.join(known) or 'nothing'}{hint}"
