"""The costs of requests in a log: the configured fields for the cost, or for each unit, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal

from headgate.amounts import is_money
from headgate.money import read_money
from headgate.replay.entries import LogCost, Unreadable
from headgate.units import LARGEST

PLAIN = ""
"""The unit of costs without a unit."""

_INTEGER = re.compile(r"([0-9]{1,16})(?:\.0*)?")


class CostFields:
    """The fields of a log with the cost of a request: several that are added up are written `input+output`.

    `fields` are those of each unit, or only of `PLAIN`; where there are none, every request costs 1.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(fields)
        self.has_money = any(is_money(unit) for unit in fields)

    def __bool__(self) -> bool:
        return bool(self._fields)

    def find(self, available: Iterable[str]) -> dict[str, list[str]]:
        """The log's names for the fields of each unit. Raises Unreadable for a missing one."""
        by_lower = {name.lower(): name for name in available}
        return {unit: _field_names(unit, field, by_lower) for unit, field in self._fields.items()}

    def read(self, names: Mapping[str, Collection[str]], value_of: Callable[[str], object]) -> LogCost:
        """Read the cost from the fields with these names. Raises Unreadable."""
        if not self._fields:
            return 1
        if PLAIN in names:
            return amount_of(PLAIN, map(value_of, names[PLAIN]))
        return {unit: amount_of(unit, map(value_of, field_names)) for unit, field_names in names.items()}


def amount_of(unit: str, values: Iterable[object]) -> int:
    """The amount of a unit that a request took, the sum of one or several fields; "-" is none. Raises Unreadable.

    Money is in billionths: values that a program computed in floats may be finer, and are rounded up.
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
        match = _INTEGER.fullmatch(text)
        if match is None:
            raise Unreadable(f"its {name} is {text[:40]!r}, which is no whole number")
        total += int(match[1])
    if total > LARGEST:
        raise Unreadable(f"its {name} is {total}, which is more than {LARGEST}")
    return total


def _field_names(unit: str, field: str, by_lower: Mapping[str, str]) -> list[str]:
    wanted = [field] if field.lower() in by_lower else field.split("+")
    for name in wanted:
        if name.strip().lower() not in by_lower:
            available = ", ".join(filter(None, by_lower))[:200]
            raise Unreadable(f"no field is named {name[:60]!r} for the {unit or 'cost'}: there are {available}")
    return [by_lower[name.strip().lower()] for name in wanted]
