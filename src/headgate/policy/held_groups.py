"""What a gate's hold is made of, in its id: the unit of each group, and what one request takes of it.

A store remembers of a hold its groups, not their units, and a policy may be another one when the hold is settled. So
the id that a gate gives says both behind the store's own: `h1....requests.900tokens`. It settles through any gate on
the same store; where each group is of one request, it is the store's own id.
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
"""The id of what no limit applies to: it is settled without a store."""

_MOST_GROUPS = 1024
_UNITS_REMEMBERED = 4096
_LONGEST = 64 + _MOST_GROUPS * (LONGEST_UNIT + 17)
_GROUP = re.compile(r"([0-9]{0,16})([A-Za-z].*)", re.ASCII)


class HeldGroups(NamedTuple):
    """`units` and `each` of the groups of a hold: what one request takes, 0 where the caller said how much."""

    units: tuple[str, ...]
    each: tuple[int, ...]

    @classmethod
    def of(cls, units: Sequence[str], each: Sequence[int], cost: object) -> HeldGroups:
        """The groups of a hold of this cost, where `each` is what the rules say of one request."""
        named = cost if isinstance(cost, Mapping) else ()
        told = {unit_named(name) for name in named if isinstance(name, str)} - {REQUESTS}
        return cls(tuple(units), tuple([0 if unit in told else own for unit, own in zip(units, each, strict=True)]))

    def id(self, whole: str) -> str:
        """The id that a gate gives for the hold of this id in the store."""
        if whole == NOTHING_HELD or (set(self.units) <= {REQUESTS} and set(self.each) <= {1}):
            return whole
        texts = [f"{'' if own == 1 else own}{unit}" for unit, own in zip(self.units, self.each, strict=True)]
        return ".".join([whole, *texts])

    def actuals(self, actual: object, known: Collection[str]) -> Amounts:
        """What counts of each group in the end; None for as much as is held. `known` units may be named.

        A number is so many requests, each with what the rules say of it; 0 is nothing at all. In a mapping `requests`
        say that, and what it names of other units counts in place of what the rules say. What neither says anything
        of is as it was held. Raises ArgumentError.
        """
        if actual is None:
            return [None] * len(self.units) if self.units else None
        if not isinstance(actual, Mapping):
            times = check_cost(actual, "an amount")
            if not self.units:
                return times
            return self._counted(times) if times else [0] * len(self.units)
        told = self._read(actual, known)
        times = told.pop(REQUESTS, -1)
        if not self.units:
            return None if times < 0 else times
        each: Sequence[int | None] = self._counted(times) if times >= 0 else [None] * len(self.units)
        return [told.get(unit, own) for unit, own in zip(self.units, each, strict=True)]

    def more(self, more: object, known: Collection[str]) -> list[int]:
        """What is held of each group on top; nothing of what is not named. Raises ArgumentError."""
        told: dict[str, int] = {}
        if isinstance(more, Mapping):
            told = self._read(more, known)
            times = told.pop(REQUESTS, 0)
        else:
            times = check_cost(more, "an amount")
        if not self.units:
            return [times]
        return [told.get(unit, own or 0) for unit, own in zip(self.units, self._counted(times), strict=True)]

    def _read(self, amounts: Mapping[str, object], known: Collection[str]) -> dict[str, int]:
        """Amounts by units, which may be those of the hold, too. An error names them as the policy orders them."""
        if isinstance(amounts, ReadCosts):
            return dict(amounts)
        return read_units(amounts, dict.fromkeys((*known, *self.units)))  # type: ignore[arg-type]

    def _counted(self, times: int) -> list[int | None]:
        """What so many requests take of each group; None where the caller said how much."""
        return [min(own * times, LARGEST) if own else None for own in self.each]


@lru_cache(maxsize=_UNITS_REMEMBERED)
def made_of(units: tuple[str, ...]) -> str:
    """What follows the store's own id in that of a hold whose caller said how much it takes of each group."""
    return requests_alone(units).id("")


def requests_alone(units: tuple[str, ...]) -> HeldGroups:
    """Groups of which only those of requests are of one each, whatever rules say of the others."""
    return HeldGroups(units, tuple([1 if unit == REQUESTS else 0 for unit in units]))


def read_held(text: object) -> tuple[str, HeldGroups]:
    """(the id in the store, the groups) of an id that a gate gave; no groups where each is of one request.

    Raises ArgumentError for what is no such id.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"the id of a hold is text, as reserve and id_of give it, not {kind_of(text)}")
    whole, *texts = text.split(".", _MOST_GROUPS + 1) if len(text) <= _LONGEST else ["?", "?"]
    found = [_GROUP.fullmatch(each) for each in texts]
    pairs = [(match[2], int(match[1] or 1)) for match in found if match and _is_unit(match[2])]
    if len(pairs) != len(texts):
        raise ArgumentError("this is no id of a hold, as reserve and id_of of a gate give it")
    return whole, HeldGroups(tuple(unit for unit, _ in pairs), tuple(min(own, LARGEST) for _, own in pairs))


def _is_unit(name: str) -> bool:
    return len(name) <= LONGEST_UNIT and UNIT.fullmatch(name) is not None
