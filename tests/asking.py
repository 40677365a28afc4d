"""Limits that are bound to a store, asked with the fields of a record written out."""

from __future__ import annotations

from typing import Any

from headgate.operation import Operation, Receipt


def decide(bound: Any, keys: tuple[Any, ...], costs: tuple[Any, ...], **how: Any) -> Any:
    """What the limits decide of an operation with these fields; an awaitable where they are asked on an event loop."""
    return bound.decide(Operation(keys, costs, **how))


def give_back(bound: Any, keys: tuple[Any, ...], costs: tuple[Any, ...], ago_us: Any, **told: Any) -> Any:
    """Give back what a receipt with these fields tells."""
    return bound.give_back(Receipt(keys, costs, **told), ago_us)
