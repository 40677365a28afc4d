"""Calls of limits that are bound to a store, with the fields of their records as arguments."""

from __future__ import annotations

from typing import Any

from headgate.operation import Operation, Receipt


def decide(bound: Any, keys: tuple[Any, ...], costs: tuple[Any, ...], **options: Any) -> Any:
    """The decision of the limits on an operation with these fields; an awaitable on an event loop."""
    return bound.decide(Operation(keys, costs, **options))


def give_back(bound: Any, keys: tuple[Any, ...], costs: tuple[Any, ...], ago_us: Any, **fields: Any) -> Any:
    """Give back a charge whose receipt has these fields."""
    return bound.give_back(Receipt(keys, costs, **fields), ago_us)
