"""Limits that count requests within a window of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from headgate.amounts import REQUESTS, Amount, is_money
from headgate.limits.limit import (
    Limit,
    count_argument,
    rate_text,
    read_count,
    read_period_us,
    read_unit,
    repr_of,
    set_fields,
    too_fine,
    too_large_a_counter,
)
from headgate.units import CompiledLimit, compile_window, nearest_window

EXACT_UP_TO = 100
"""The greatest N for which the text `N/period` means the exact log; a greater N means the counter."""


def is_exact(count: int, of: str) -> bool:
    """Whether the text of `count` in a period, without a word, means the exact log; of money it always does.

    A counter multiplies its limit, in billionths, by its period: 53 usd a day do not fit.
    """
    return is_money(of) or count <= EXACT_UP_TO


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Window(Limit):
    limit: int
    period_us: int = field()  # pyright: ignore[reportIncompatibleMethodOverride] - a frozen field is read-only too
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    of: str
    weighed: ClassVar[bool] = False
    """Whether counts are multiplied by times, and so must fit together."""

    def __init__(
        self, *, limit: Amount, period: str | None = None, period_us: int | None = None, of: str = REQUESTS
    ) -> None:
        of = read_unit(self, of)
        count = read_count(self, "limit", limit, least=0, of=of)
        period_us = read_period_us(self, period, period_us)
        compiled = compile_window(self.algorithm, count, period_us, weighed=self.weighed)
        if compiled is None:
            nearest = self._with_count(nearest_window(period_us), period_us, of)
            raise too_large_a_counter(count, nearest) if is_money(of) else too_fine(nearest)
        set_fields(self, limit=count, period_us=period_us, compiled=compiled, of=of)

    def _with_count(self, count: int, period_us: int, of: str) -> Limit:
        """A limit of this class with a count in integers of its unit."""
        return type(self)(limit=count_argument(count, of), period_us=period_us, of=of)

    @property
    def quota(self) -> int:
        return self.limit

    def scaled(self, share: Fraction) -> Limit:
        if share == 1 or self.limit == 0:
            return self
        return self._with_count(max(1, int(self.limit * share)), self.period_us, self.of)

    def __repr__(self) -> str:
        return repr_of(self, self.period_us, limit=self.limit)


class FixedWindow(_Window):
    """At most `limit` units in each window of `period_us`, windows aligned to the Unix epoch.

    Up to twice the limit can pass around a border between two windows.
    """

    __slots__ = ()
    algorithm = "fixed_window"
    on_the_clock = True

    def border_us(self, near_us: int) -> int:
        return (near_us + self.period_us // 2) // self.period_us * self.period_us

    def __str__(self) -> str:
        return f"{rate_text(self.limit, self.of, self.period_us)} fixed"


class _Sliding(_Window):
    """Counts the last period, exactly or as an estimate. Text without a word means either, depending on its number."""

    __slots__ = ()

    @property
    def family(self) -> str:
        return "sliding"


class SlidingLog(_Sliding):
    """Never more than `limit` units in any interval of `period_us`: every admitted request is remembered.

    Exact, at the price of an entry for each instant at which requests passed.
    """

    __slots__ = ()
    algorithm = "sliding_log"

    def __str__(self) -> str:
        rate = rate_text(self.limit, self.of, self.period_us)
        return rate if is_exact(self.limit, self.of) else f"{rate} log"


class SlidingWindow(_Sliding):
    """At most `limit` units a `period_us`, estimated from this window's and the last window's counts.

    The last window is weighted by the share of it that still overlaps the sliding period. Up to twice the
    limit can pass in the worst interval; for steady traffic the estimate is close.
    """

    __slots__ = ()
    algorithm = "sliding_window"
    weighed = True

    def life_us(self, cost: int) -> int:
        return 2 * self.period_us

    def __str__(self) -> str:
        rate = rate_text(self.limit, self.of, self.period_us)
        return f"{rate} counter" if is_exact(self.limit, self.of) else rate
