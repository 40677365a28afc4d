"""The field `wait` of a rule in a policy file: a time such as "500ms"."""

from __future__ import annotations

import re

from headgate.periods import parse_period, period_text
from headgate.policy.problems import shown

LONGEST_WAIT_US = 3_600_000_000
"""The longest that a request may wait in line, an hour."""

WAIT_SCHEMA = {"type": "string", "examples": ["500ms", "2s"]}

_NOT_ABOVE_0 = re.compile(r"\s*(-|0[0_]*(?![0-9_.]))")
_SHORT = {"second": "s", "minute": "m", "hour": "h"}


def read_wait(value: object) -> int:
    """Read a time, in microseconds, in [1, LONGEST_WAIT_US]. Raises ValueError with what would be right."""
    if not isinstance(value, str):
        raise ValueError(f'must be a time such as "500ms" or "2s", not {shown(value)}')
    if _NOT_ABOVE_0.match(value):
        raise ValueError(f"must be above 0, not {shown(value)}: a rule without wait refuses at once")
    wait_us = parse_period(value)
    if wait_us > LONGEST_WAIT_US:
        raise ValueError(f"must be at most an hour, not {shown(value)}")
    return wait_us


def wait_text(wait_us: int) -> str:
    """A wait in the notation of a policy: 500000 is "500ms"."""
    count, unit = period_text(wait_us)
    return f"{count}{_SHORT.get(unit, unit)}"
