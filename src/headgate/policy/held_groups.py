"""The groups of a gate's hold, written in its id: the unit of each group, and what one request takes of it.

A store remembers the groups of a hold, not their units, and the policy may have changed when the hold is settled. So
the id that a gate gives appends both to the store's own id: `h1....requests.900tokens`. It settles through any gate on
the same store. Where one request takes 1 of each group, all in requests, it is the store's own id.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from headgate.amounts import LONGEST_UNIT, REQUESTS, UNIT, unit_named
from headgate.costs import ReadCosts, read_units
from headgate.errors import ArgumentError, kind_of
from headgate.holding import Amounts
from headgate.keys import check_cost
from headgate.units import LARGEST

NOTHING_HELD = "h0"
"""The id of a hold that no limit applies to: it is settled without a store."""

_MOST_GROUPS = 1024
_CACHED_SUFFIXES = 4096
_LONGEST = 64 + _MOST_GROUPS * (LONGEST_UNIT + 17)
_GROUP = re.compile(r"([0-9]{0,16})([A-Za-z].*)", re.ASCII)


class HeldGroups(NamedTuple):
    """The groups of a hold: the unit of each, and the cost of one request; 0 where the caller stated the amount."""

    units: tuple[str, ...]
    unit_costs: tuple[int, ...]

    @classmethod
    def of(cls, units: Sequence[str], unit_costs: Sequence[int], cost: object) -> HeldGroups:
        """The groups of a hold of this cost, where `unit_costs` are the rules' own costs of one request."""
        named = cost if isinstance(cost, Mapping) else ()
        stated = {unit_named(name) for name in named if isinstance(name, str)} - {REQUESTS}
        return cls(
            tuple(units),
            tuple([0 if unit in stated else unit_cost for unit, unit_cost in zip(units, unit_costs, strict=True)]),
        )

    def id(self, store_id: str) -> str:
        """The id that a gate gives for the hold that has `store_id` in the store."""
        if store_id == NOTHING_HELD or (set(self.units) <= {REQUESTS} and set(self.unit_costs) <= {1}):
            return store_id
        texts = [
            f"{'' if unit_cost == 1 else unit_cost}{unit}"
            for unit, unit_cost in zip(self.units, self.unit_costs, strict=True)
        ]
        return ".".join([store_id, *texts])

    def actuals(self, actual: object, known: Collection[str]) -> Amounts:
        """The final amount of each group; None for the amount that is held. A mapping may name `known` units.

        A number is a number of requests, each at the rules' own costs; 0 is nothing at all. In a mapping, `requests` is
        that number, and amounts of other units replace the rules' costs. A group that neither states stays as it is
        held. Raises ArgumentError.
        """
        if actual is None:
            return [None] * len(self.units) if self.units else None
        if not isinstance(actual, Mapping):
            times = check_cost(actual, "an amount")
            if not self.units:
                return times
            return self._amounts_of(times) if times else [0] * len(self.units)
        stated = self._read(actual, known)
        times = stated.pop(REQUESTS, -1)
        if not self.units:
            return None if times < 0 else times
        unit_costs: Sequence[int | None] = self._amounts_of(times) if times >= 0 else [None] * len(self.units)
        return [stated.get(unit, unit_cost) for unit, unit_cost in zip(self.units, unit_costs, strict=True)]

    def more(self, more: object, known: Collection[str]) -> list[int]:
        """The additional amount to hold of each group; 0 for a unit that is not named. Raises ArgumentError."""
        stated: dict[str, int] = {}
        if isinstance(more, Mapping):
            stated = self._read(more, known)
            times = stated.pop(REQUESTS, 0)
        else:
            times = check_cost(more, "an amount")
        if not self.units:
            return [times]
        return [
            stated.get(unit, unit_cost or 0)
            for unit, unit_cost in zip(self.units, self._amounts_of(times), strict=True)
        ]

    def _read(self, amounts: Mapping[str, object], known: Collection[str]) -> dict[str, int]:
        """Amounts by unit, of known units or those of the hold. An error lists the units in the policy's order."""
        if isinstance(amounts, ReadCosts):
            return dict(amounts)
        return read_units(amounts, dict.fromkeys((*known, *self.units)))  # type: ignore[arg-type]

    def _amounts_of(self, times: int) -> list[int | None]:
        """The amount of `times` requests in each group; None where the caller stated the amount of one request."""
        return [min(unit_cost * times, LARGEST) if unit_cost else None for unit_cost in self.unit_costs]


@lru_cache(maxsize=_CACHED_SUFFIXES)
def groups_suffix(units: tuple[str, ...]) -> str:
    """The suffix of the store's own id for a hold whose caller stated the amount of each group."""
    return requests_alone(units).id("")


def requests_alone(units: tuple[str, ...]) -> HeldGroups:
    """Groups in which one request takes 1 of `requests`; the amounts of all others were stated by the caller."""
    return HeldGroups(units, tuple([1 if unit == REQUESTS else 0 for unit in units]))


def read_held(text: object) -> tuple[str, HeldGroups]:
    """(id in the store, groups) of an id that a gate gave; no groups where it is the store's own id.

    Raises ArgumentError for any other value.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"the id of a hold is text, as reserve and id_of give it, not {kind_of(text)}")
    store_id, *texts = text.split(".", _MOST_GROUPS + 1) if len(text) <= _LONGEST else ["?", "?"]
    matches = [_GROUP.fullmatch(group_text) for group_text in texts]
    pairs = [(match[2], int(match[1] or 1)) for match in matches if match and _is_unit(match[2])]
    if len(pairs) != len(texts):
        raise ArgumentError("this is no id of a hold, as reserve and id_of of a gate give it")
    return store_id, HeldGroups(
        tuple(unit for unit, _ in pairs), tuple(min(unit_cost, LARGEST) for _, unit_cost in pairs)
    )


def _is_unit(name: str) -> bool:
    return len(name) <= LONGEST_UNIT and UNIT.fullmatch(name) is not None
