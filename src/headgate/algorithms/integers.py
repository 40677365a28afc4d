"""Integer division as the algorithms write it."""

from __future__ import annotations


def ceil_div(a: int, b: int) -> int:
    """The least integer not below a / b, for b > 0."""
    return -(-a // b)
