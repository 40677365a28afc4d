"""Limits as values: an algorithm with its numbers, checked once, frozen for good.

`str(limit)` is the limit's text form, `headgate.limit_text.parse_limits` reads it back. What the
algorithms mean is in docs/algorithms.md; how the numbers become integers of one unit is in
`headgate.units`. What a limit needs to be decided and kept is in `headgate.algorithms.table`.
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
