"""The field `cost` of a rule in a policy file: a number, or a map from units that its limits count to amounts."""

from __future__ import annotations

from headgate.amounts import check_unit, read_amount
from headgate.errors import ArgumentError
from headgate.policy.problems import FieldFaults, shown

MOST_COST = 1_000_000_000
"""The greatest number of requests that one may count as."""

COST_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MOST_COST},
        {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]},
            "minProperties": 1,
            "examples": [{"requests": 1, "tokens": 500}, {"usd": "0.02"}],
        },
    ]
}


def read_cost(value: object) -> int | dict[str, int]:
    """Read a number, or a map from unit to amount; raises ValueError."""
    if not isinstance(value, dict):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {shown(value)}")
        if not 1 <= value <= MOST_COST:
            raise ValueError(f"must be at {'least 1' if value < 1 else f'most {MOST_COST}'}, not {shown(value)}")
        return value
    costs: dict[str, int] = {}
    faults: dict[str, str] = {}
    for name, amount in value.items():
        try:
            unit, parsed_amount = _named_cost(name, amount)
        except ValueError as error:
            faults[str(name)] = str(error)
        else:
            if unit in costs:
                faults[name] = f"{unit} is there twice"
            costs[unit] = parsed_amount
    if not value:
        raise ValueError("must be a whole number, or a map from what is counted to a number, such as {tokens: 500}")
    if faults:
        raise FieldFaults(faults)
    return costs


def _named_cost(name: object, amount: object) -> tuple[str, int]:
    """Read one unit and its amount from the map of a file. Raises ValueError with what would be right."""
    unit = check_unit(name)
    if isinstance(amount, float):
        raise ValueError(f"{amount!r} has no exact value: a cost is a whole number, of money text, in quotes")
    try:
        return unit, read_amount(amount, unit)
    except ArgumentError as error:
        raise ValueError(str(error)) from None
