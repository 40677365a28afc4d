"""Generated limits and histories for the laws."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headgate.amounts import LONGEST_UNIT, RESERVED_WORDS, UNIT
from headgate.calendars import CALENDAR_PERIODS
from headgate.errors import ConfigError
from headgate.limits import (
    CalendarWindow,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Limit,
    SlidingLog,
    SlidingWindow,
    StepwiseBucket,
    TokenBucket,
)
from headgate.limits.limit import count_argument

PERIODS_US = st.one_of(
    st.integers(1, 50),
    st.integers(1, 10**7),
    st.sampled_from([1000, 10**6, 3 * 10**6, 60 * 10**6, 3_600 * 10**6, 86_400 * 10**6, 7 * 86_400 * 10**6]),
)
SMALL = st.integers(0, 12)
NUMBERS = st.one_of(SMALL, st.integers(0, 1000), st.integers(0, 10**9))
"""Small numbers refuse soon; large ones need milliseconds or seconds as their unit."""

ZONES = (
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "America/St_Johns",  # its clocks were set at 00:01
    "America/Havana",  # its clocks are set at midnight
    "America/Sao_Paulo",  # its clocks were set at midnight
    "Asia/Kathmandu",  # changed by 15 minutes in 1986
    "Asia/Beirut",
    "Australia/Lord_Howe",  # its clocks are set by half an hour
    "Pacific/Apia",  # left out a day in 2011
)
"""Zones with days of all lengths."""

REFILLS = st.one_of(st.integers(1, 12), st.integers(1, 10**6))


def fitting(kind: type[Limit], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Limit]:
    """Limits of a kind, without those that fit no unit."""

    def build(numbers: dict[str, Any]) -> Limit | None:
        try:
            return kind(**numbers)
        except ConfigError:
            return None

    return st.fixed_dictionaries(fields).map(build).filter(lambda limit: limit is not None)  # type: ignore[return-value]


ONE_OF_A_KIND: dict[type[Limit], st.SearchStrategy[Limit]] = {
    FixedWindow: fitting(FixedWindow, limit=NUMBERS, period_us=PERIODS_US),
    SlidingLog: fitting(SlidingLog, limit=NUMBERS, period_us=PERIODS_US),
    SlidingWindow: fitting(SlidingWindow, limit=NUMBERS, period_us=PERIODS_US),
    TokenBucket: fitting(TokenBucket, capacity=NUMBERS, refill=REFILLS, period_us=PERIODS_US),
    LeakyBucket: fitting(LeakyBucket, capacity=NUMBERS, refill=REFILLS, period_us=PERIODS_US),
    LeakyQueue: fitting(LeakyQueue, queue=NUMBERS, refill=REFILLS, period_us=PERIODS_US),
    StepwiseBucket: fitting(StepwiseBucket, capacity=NUMBERS, refill=REFILLS, period_us=PERIODS_US),
    CalendarWindow: fitting(
        CalendarWindow, limit=NUMBERS, period=st.sampled_from(CALENDAR_PERIODS), zone=st.sampled_from(ZONES)
    ),
}
ONE_LIMIT: st.SearchStrategy[Limit] = st.one_of(*ONE_OF_A_KIND.values())
SEVERAL_LIMITS = st.lists(ONE_LIMIT, min_size=1, max_size=4)
WAITS = st.one_of(st.just(0), st.integers(0, 100), st.integers(0, 10**8), st.integers(0, 10**12))


def _is_free(name: str) -> bool:
    """Whether a unit's name means nothing else, and is one word in any case."""
    return len(name) <= LONGEST_UNIT and len(name) != 3 and name.lower() not in (*RESERVED_WORDS, "request", "requests")


UNITS = st.one_of(
    st.sampled_from(["requests", "tokens", "bytes", "usd", "eur", "in-out_2", "x" * LONGEST_UNIT]),
    st.from_regex(UNIT, fullmatch=True).filter(_is_free),
)
"""What limits count. Of three letters only these currencies, whose names are one word in any case."""


def counting(limit: Limit, of: str) -> Limit:
    """The same numbers of another unit; of money they are billionths."""
    counts = {name: getattr(limit, name) for name in ("limit", "capacity", "refill", "queue") if hasattr(limit, name)}
    arguments: dict[str, Any] = {name: count_argument(count, of) for name, count in counts.items()}
    if isinstance(limit, CalendarWindow):
        return CalendarWindow(**arguments, period=limit.period, zone=limit.zone, of=of)
    return type(limit)(**arguments, period_us=limit.period_us, of=of)  # type: ignore[call-arg]


LONGEST_SCALE_US = 45 * 86_400_000_000
"""So that no history leads past the year 2112."""


def quota_of(limit: Limit) -> int:
    return limit.quota


def longest_us(limits: list[Limit]) -> int:
    """A time in which every one of these limits forgets."""
    return max(2 * limit.period_us * max(1, limit.quota) for limit in limits)


@st.composite
def history_of(
    draw: st.DrawFn, limits: list[Limit], *, max_size: int = 25, back: bool = False
) -> list[tuple[int, int]]:
    """Steps (wait_us, cost) at the scale of these limits; with `back` some waits are negative."""
    scale = min(LONGEST_SCALE_US, draw(st.sampled_from([limit.period_us for limit in limits])))
    quota = draw(st.sampled_from([limit.quota for limit in limits]))
    waits = st.one_of(st.just(0), st.integers(0, max(1, scale // 4)), st.integers(0, 3 * scale), st.just(scale))
    if back:
        waits = st.one_of(waits, st.integers(-scale, -1))
    costs = st.one_of(st.integers(0, 3), st.integers(0, quota + 1), st.just(quota), st.just(max(1, quota // 3)))
    return draw(st.lists(st.tuples(waits, costs), max_size=max_size))
