"""What requests cost, as a log says it: fields that are named for the cost, or for each unit, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal

from headgate.amounts import is_money
from headgate.money import read_money
from headgate.replay.entries import LogCost, Unreadable
from headgate.units import LARGEST

PLAIN = ""
"""Stands for a unit where a log says a cost without one."""

_WHOLE = re.compile(r"([0-9]{1,16})(?:\.0*)?")


class CostFields:
    """Which fields of a log say what a request cost: several, added up, are written `input+output`.

    `fields` are those of each unit, or of `PLAIN` alone; where there are none, every request costs 1.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(fields)
        self.has_money = any(is_money(unit) for unit in fields)

    def __bool__(self) -> bool:
        return bool(self._fields)

    def find(self, there: Iterable[str]) -> dict[str, list[str]]:
        """The log's own names for the fields of each unit. Raises Unreadable for one that is not there."""
        by_lower = {name.lower(): name for name in there}
        return {unit: _found(unit, field, by_lower) for unit, field in self._fields.items()}

    def read(self, names: Mapping[str, Collection[str]], value_of: Callable[[str], object]) -> LogCost:
        """The cost that the fields of these names say. Raises Unreadable."""
        if not self._fields:
            return 1
        if PLAIN in names:
            return amount_of(PLAIN, map(value_of, names[PLAIN]))
        return {unit: amount_of(unit, map(value_of, own)) for unit, own in names.items()}


def amount_of(unit: str, values: Iterable[object]) -> int:
    """How much of a unit a request took, whose log has it in one field or in several; "-" is none. Raises Unreadable.

    Of money in billionths: what a program has computed in floats may be finer, and is rounded up.
    """
    total = 0
    name = f"cost in {unit}" if unit else "cost"
    for value in values:
        text = f"{value:f}" if isinstance(value, Decimal) else str(value if value is not None else "").strip()
        if text in ("", "-"):
            continue
        if is_money(unit):
            try:
                total += read_money(text, unit, round_up=True)
            except ValueError as error:
                raise Unreadable(f"its {name}: {error}") from None
            continue
        match = _WHOLE.fullmatch(text)
        if match is None:
            raise Unreadable(f"its {name} is {text[:40]!r}, which is no whole number")
        total += int(match[1])
    if total > LARGEST:
        raise Unreadable(f"its {name} is {total}, which is more than {LARGEST}")
    return total


def _found(unit: str, field: str, by_lower: Mapping[str, str]) -> list[str]:
    wanted = [field] if field.lower() in by_lower else field.split("+")
    for name in wanted:
        if name.strip().lower() not in by_lower:
            there = ", ".join(filter(None, by_lower))[:200]
            raise Unreadable(f"no field is named {name[:60]!r} for the {unit or 'cost'}: there are {there}")
    return [by_lower[name.strip().lower()] for name in wanted]
