"""Calls of bound limits, with the fields of their records as arguments."""

from __future__ import annotations

from typing import Any

from headgate.operation import Operation, Receipt


def decide(bound: Any, keys: tuple[Any, ...], costs: tuple[Any, ...], **options: Any) -> Any:
    """Decide an operation with these fields; on an event loop an awaitable."""
    return bound.decide(Operation(keys, costs, **options))


def give_back(bound: Any, keys: tuple[Any, ...], costs: tuple[Any, ...], ago_us: Any, **fields: Any) -> Any:
    """Give back the charge of a receipt with these fields."""
    return bound.give_back(Receipt(keys, costs, **fields), ago_us)
