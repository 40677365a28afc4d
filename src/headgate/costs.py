"""Costs: what a request takes of each unit that limits count.

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
"""What a caller may give: a number, or a number for each unit."""


class Counted:
    """The units that a limiter's limits count. `written` are they in the order of the limits."""

    __slots__ = ("_one", "_places", "_requests", "is_plain", "units", "written")

    def __init__(self, written: Sequence[str]) -> None:
        self.written = tuple(written)
        self.units = tuple(sorted(self.written))
        """The unit of each group, as `groups_of` the limits tells."""

        self._places = tuple(map(self.units.index, self.written))
        """The group of each unit as it is written."""

        self._one = self.units[0] if len(self.units) == 1 else ""
        """The only unit."""

        self._requests = self.units.index(REQUESTS) if REQUESTS in self.units else None
        self.is_plain = bool(self._one) and not is_money(self._one)
        """Whether a number is its own cost: there is one unit, and it is no money."""

    def read(self, cost: object) -> tuple[int, ...]:
        """The cost of each group. Raises ArgumentError.

        A number is of the only unit; of several it is a number of requests, and takes nothing else. In a mapping
        `requests` are 1 where they are not named, so is the only unit, and all other units are 0.
        """
        if type(cost) is int or not isinstance(cost, Mapping):
            return self._of_number(cost)
        if isinstance(cost, ReadCosts):
            return self._of_read(cost)
        given = read_units(cost, self.written)
        if self._one:
            return (given[self._one] if given else read_amount(1, self._one),)
        return tuple([given.get(unit, 1 if unit == REQUESTS else 0) for unit in self.units])

    def read_part(self, cost: object) -> tuple[int, ...]:
        """`read` of a part of a cost, as what is given back: all that it does not name is 0."""
        if not isinstance(cost, Mapping):
            return self._of_number(cost)
        return self._of_read(cost if isinstance(cost, ReadCosts) else read_units(cost, self.written))

    def read_settled(self, cost: object, charged: Sequence[int]) -> tuple[int, ...]:
        """`read` of what counts in the end: of what it does not name as much as was charged."""
        if not isinstance(cost, Mapping):
            own = self._of_number(cost)
            return (
                own
                if self._one
                else tuple(
                    [
                        now if unit == REQUESTS else before
                        for unit, now, before in zip(self.units, own, charged, strict=True)
                    ]
                )
            )
        given = read_units(cost, self.written)
        return tuple([given.get(unit, before) for unit, before in zip(self.units, charged, strict=True)])

    def read_actuals(self, actual: object) -> tuple[int | None, ...]:
        """What counts of a hold for each group; None for as much as is held, where it is not named."""
        if actual is None:
            return (None,) * len(self.units)
        if type(actual) is int and actual == 0:  # it never happened, whatever it was
            return (0,) * len(self.units)
        if not isinstance(actual, Mapping):
            own = self._of_number(actual)
            return (
                own
                if self._one
                else tuple([now if unit == REQUESTS else None for unit, now in zip(self.units, own, strict=True)])
            )
        given = actual if isinstance(actual, ReadCosts) else read_units(actual, self.written)
        return tuple([given.get(unit) for unit in self.units])

    def as_read(self, costs: Sequence[int]) -> Cost:
        """A cost of each group as a limiter takes it."""
        return costs[0] if self.is_plain else ReadCosts(zip(self.units, costs, strict=True))

    @property
    def in_order(self) -> bool:
        """Whether the units are written in the order of their groups."""
        return self.units == self.written

    def as_written(self, amounts: tuple[int, ...]) -> tuple[int, ...]:
        """An amount of each group in the order in which the units are written; those of other groups as they are."""
        return tuple([amounts[place] for place in self._places]) if len(amounts) == len(self.units) else amounts

    def _of_read(self, cost: Mapping[str, int]) -> tuple[int, ...]:
        return tuple([cost.get(unit, 0) for unit in self.units])

    def _of_number(self, cost: object) -> tuple[int, ...]:
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
    """Integers of each unit, read already: of money billionths, where any other mapping has whole units."""

    __slots__ = ()


def read_units(cost: Mapping[str, Amount], known: Collection[str]) -> dict[str, int]:
    """The amounts of a mapping by units that are among those known. Raises ArgumentError for any other."""
    given: dict[str, int] = {}
    for name, amount in cost.items():
        unit = name if name in known else unit_named(name) if isinstance(name, str) else name
        if unit not in known:
            raise ArgumentError(_not_counted(name, known))
        if unit in given:
            raise ArgumentError(f"a cost in {unit} is given twice")
        given[unit] = read_amount(amount, unit)
    return given


def single_cost(definitions: Sequence[NamedLimit], cost: object) -> int:
    """The cost of limits that all count one unit. The native core asks for what is no plain number."""
    units = units_of(definition.limit for definition in definitions)
    if len(units) != 1:
        return check_cost(cost)
    if not isinstance(cost, Mapping):
        return check_cost(cost)
    return Counted(units).read(cost)[0]


def single_actual(definitions: Sequence[NamedLimit], actual: object) -> int | None:
    """What counts of a hold of limits that all count one unit, from a mapping; None for as much as is held."""
    units = units_of(definition.limit for definition in definitions)
    return Counted(units).read_actuals(actual)[0] if len(units) == 1 else check_cost(actual, "an amount")


def single_more(definitions: Sequence[NamedLimit], more: object) -> int:
    """What is held on top under limits that all count one unit, from a mapping."""
    units = units_of(definition.limit for definition in definitions)
    return Counted(units).read_part(more)[0] if len(units) == 1 else check_cost(more, "an amount")


def _not_counted(name: object, known: Collection[str]) -> str:
    shown = repr(name)[:60] if isinstance(name, str) else kind_of(name)
    close = get_close_matches(name, known, n=1) if isinstance(name, str) else ()
    hint = f'; did you mean "{close[0]}"?' if close else ""
    return f"no limit counts {shown}: they count {', '.join(known) or 'nothing'}{hint}"
