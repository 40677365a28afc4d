"""Limits as values: an algorithm with its numbers, checked once and then immutable.

`str(limit)` is the limit's text form, `headgate.limit_text.parse_limits` reads it back. docs/algorithms.md
defines the algorithms; `headgate.units` converts the numbers into integers of one unit. What stores need to
decide a limit is in `headgate.algorithms.table`.
"""

from __future__ import annotations

from headgate.limits.buckets import LeakyBucket, LeakyQueue, StepwiseBucket, TokenBucket
from headgate.limits.calendar_window import CalendarWindow
from headgate.limits.concurrent import Concurrent
from headgate.limits.limit import Limit, check_hits, check_rates, groups_of, never_ends, units_of
from headgate.limits.windows import EXACT_UP_TO, FixedWindow, SlidingLog, SlidingWindow, is_exact

__all__ = [
    "EXACT_UP_TO",
    "CalendarWindow",
    "Concurrent",
    "FixedWindow",
    "LeakyBucket",
    "LeakyQueue",
    "Limit",
    "SlidingLog",
    "SlidingWindow",
    "StepwiseBucket",
    "TokenBucket",
    "check_hits",
    "check_rates",
    "groups_of",
    "is_exact",
    "never_ends",
    "units_of",
]
