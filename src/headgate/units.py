"""Limits as integers of one unit of time, small enough that every implementation is exact.

Redis computes in doubles, so no intermediate result may exceed 2**52. Each limit is therefore counted in the
finest of microseconds, milliseconds and seconds in which its numbers stay below that, and every store
uses the same unit. Source: ../docs/algorithms.md#units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd, isqrt

from headgate.calendars import Calendar

LARGEST = 1 << 52
"""The largest integer of any computation: below it floor(a / b) is exact in doubles as well."""

UNITS_US = (1, 1_000, 1_000_000)
_MOST_TRIAL_DIVISORS = 1_000_000


@dataclass(frozen=True, slots=True)
class CompiledLimit:
    """The integers that a transition computes with.

    `unit_us` is the length of one unit of time in microseconds. `quota` is the limit or the
    capacity; `period` the window in units. For buckets `refill` and `period` are divided by their
    greatest common divisor, and one token is `period` scaled units of which `refill` flow in a unit
    of time, so that nothing is ever rounded. A bucket in steps has both undivided.

    Of a calendar window `period` is the number of its calendar; without `calendar`, as a store reads it, only a new
    window cannot be computed.
    """

    algorithm: str
    unit_us: int
    quota: int
    period: int
    refill: int = 0
    calendar: Calendar | None = field(default=None, compare=False)

    @property
    def full(self) -> int:
        """Scaled units of a full bucket."""
        return self.quota * self.period

    def same_scale(self, former: CompiledLimit) -> bool:
        """Whether a state under `former` means the same under this limit."""
        return (self.algorithm, self.period, self.refill, self.unit_us) == (
            former.algorithm,
            former.period,
            former.refill,
            former.unit_us,
        )


def compile_window(algorithm: str, limit: int, period_us: int, *, weighed: bool) -> CompiledLimit | None:
    """A window in its finest unit, or None where none fits; `weighed` windows multiply limit by period."""
    for unit_us in UNITS_US:
        period, rest = divmod(period_us, unit_us)
        if rest == 0 and (not weighed or limit * period <= LARGEST):
            return CompiledLimit(algorithm, unit_us, limit, period)
    return None


def compile_bucket(algorithm: str, capacity: int, refill: int, period_us: int) -> CompiledLimit | None:
    """A bucket in its finest unit, or None where none fits."""
    for unit_us in UNITS_US:
        period, rest = divmod(period_us, unit_us)
        if rest == 0 and _bucket_fits(capacity, refill, period):
            divisor = gcd(refill, period)
            return CompiledLimit(algorithm, unit_us, capacity, period // divisor, refill // divisor)
    return None


def compile_steps(algorithm: str, capacity: int, refill: int, period_us: int) -> CompiledLimit | None:
    """A bucket that is refilled in whole steps in its finest unit, or None where none fits."""
    for unit_us in UNITS_US:
        period, rest = divmod(period_us, unit_us)
        if rest == 0 and -(-capacity // refill) * period <= LARGEST:
            return CompiledLimit(algorithm, unit_us, capacity, period, refill)
    return None


def compile_calendar(algorithm: str, limit: int, calendar: Calendar) -> CompiledLimit:
    """A calendar window, whose unit is the microsecond."""
    return CompiledLimit(algorithm, 1, limit, calendar.number, calendar=calendar)


def nearest_window(period_us: int) -> int:
    """The greatest limit that fits a weighed window of this period."""
    return LARGEST // _coarsest(period_us)


def nearest_bucket(capacity: int, refill: int, period_us: int) -> tuple[int, int]:
    """The valid (capacity, refill) nearest to those that fit no unit: the pair with the smallest relative change.

    Only at the ends of the range both change, because a change of one is not enough.
    """
    period = _coarsest(period_us)
    divisor = gcd(refill, period)
    lower = (LARGEST - refill // divisor) // (period // divisor)
    candidates = [(abs(near - refill) / refill, (capacity, near)) for near in _refills(capacity, refill, period)]
    if lower > 0:
        candidates.append(((capacity - lower) / capacity, (lower, refill)))
    if not candidates:
        return 1, max(1, min(refill, LARGEST - 1) // period) * period
    return min(candidates)[1]


def nearest_steps(refill: int, period_us: int) -> int:
    """The greatest capacity of a bucket with this refill in each step."""
    return min(LARGEST, LARGEST // _coarsest(period_us) * refill)


def _refills(capacity: int, refill: int, period: int) -> Iterator[int]:
    """Refills near `refill` whose common divisor with the period is large enough for this capacity to fit."""
    for reduced in _divisors(period):
        step = period // reduced
        for near in (refill // step * step, (refill // step + 1) * step):
            if near > 0 and _bucket_fits(capacity, near, period):
                yield near


def _divisors(number: int) -> Iterator[int]:
    for small in range(1, min(isqrt(number), _MOST_TRIAL_DIVISORS) + 1):
        if number % small == 0:
            yield small
            yield number // small


def _bucket_fits(capacity: int, refill: int, period: int) -> bool:
    divisor = gcd(refill, period)
    return capacity * (period // divisor) + refill // divisor <= LARGEST


def _coarsest(period_us: int) -> int:
    """The period in the coarsest unit that divides it."""
    return min(period_us // unit_us for unit_us in UNITS_US if period_us % unit_us == 0)
