"""Leaky bucket as a queue: requests leave evenly spaced, those admitted wait for their place.

The bucket of capacity queue + 1 decides which requests may join; the level before a request is the time that
the requests ahead of it still need. State is that of the token bucket. Pure.
See docs/algorithms.md#leaky-queue.
"""

from __future__ import annotations

from headgate.algorithms.integers import ceil_div
from headgate.algorithms.token_bucket import State, admit, charge, convert, fits, give_back, mark, measure, roll, settle
from headgate.units import CompiledLimit

__all__ = ["State", "admit", "charge", "convert", "delay", "fits", "give_back", "mark", "measure", "roll", "settle"]


def delay(limit: CompiledLimit, state: State, now: int) -> int:
    """How long a request admitted onto this state waits before it may proceed."""
    units, updated = state
    missing = limit.full - units
    return ceil_div(missing, limit.refill) + updated - now if missing else 0
