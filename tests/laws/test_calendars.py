"""Calendar windows begin by the local clocks, and no more than the limit passes in any of them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter
from headgate.calendars import CALENDAR_PERIODS, Calendar
from headgate.limits import CalendarWindow
from headgate.testing import ManualClock
from headgate.units import LARGEST
from strategies import ZONES
from subjects import make_limiter

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
PERIODS = st.sampled_from(CALENDAR_PERIODS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

each_zone = pytest.mark.parametrize("zone", ZONES)


def us(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    """A moment of UTC."""
    return int((datetime(year, month, day, hour, minute, tzinfo=UTC) - EPOCH).total_seconds()) * 10**6


def first_day(period: str, day: date) -> date:
    """The first day of the period of a day."""
    match period:
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "year":
            return day.replace(month=1, day=1)
    return day


@cache
def first_minute(day: date, zone: str) -> int:
    """The first moment at which the clocks show this day or a later one, searched minute by minute."""
    info, minute = ZoneInfo(zone), us(day.year, day.month, day.day) - 30 * HOUR_US
    while datetime.fromtimestamp(minute // 10**6, info).date() < day:
        minute += 60 * 10**6
    return minute


def brute_window(period: str, zone: str, now_us: int) -> tuple[int, int]:
    """The window of a moment: between the last border before it and the first after it."""
    today = datetime.fromtimestamp(now_us // 10**6, ZoneInfo(zone)).date()
    first = first_day(period, today - timedelta(days=1))
    days = [first]
    while days[-1] <= today + timedelta(days=1):
        days.append(
            first_day(period, days[-1] + timedelta(days=1 if period == "day" else 7 if period == "week" else 32))
        )
        if period == "year":
            days[-1] = date(days[-2].year + 1, 1, 1)
    borders = sorted({first_minute(day, zone) for day in days})
    return max(at for at in borders if at <= now_us), min(at for at in borders if at > now_us)


@st.composite
def moments(draw: st.DrawFn, zone: str) -> int:
    """Moments of all times, many of them near a midnight, or near a change of the clocks."""
    any_us = draw(st.integers(2 * DAY_US, LARGEST))
    runs = Calendar("day", zone).runs
    change_us = draw(st.sampled_from([run for run, _ in runs if 2 * DAY_US < run < LARGEST] or [any_us]))
    near_us = draw(st.sampled_from([0, 1, -1, HOUR_US, -HOUR_US, DAY_US, -DAY_US]))
    midnight_us = Calendar(draw(PERIODS), zone).window(any_us)[0]
    moment_us = draw(st.sampled_from([any_us, change_us + near_us, midnight_us + near_us]))
    return min(LARGEST, max(DAY_US, moment_us))


@given(zone=st.sampled_from(ZONES), period=PERIODS, data=st.data())
def test_a_window_follows_the_local_clocks(zone: str, period: str, data: st.DataObject) -> None:
    now_us = data.draw(moments(zone))
    assert Calendar(period, zone).window(now_us) == brute_window(period, zone, now_us)


@each_zone
@pytest.mark.parametrize("period", CALENDAR_PERIODS)
def test_windows_follow_each_other_from_the_first_moment_of_clocks_to_the_last(zone: str, period: str) -> None:
    calendar, ends = Calendar(period, zone), []
    start, end = calendar.window(0)
    assert start <= 0
    while start <= LARGEST:
        assert start < end and calendar.window(start) == calendar.window(end - 1) == (start, end)
        ends.append(end)
        start, end = calendar.window(end)
    days = {"day": (1, 1.25), "week": (6, 7.25), "month": (27, 31.25), "year": (364, 366.25)}
    least, most = days[period]
    assert all(least * DAY_US - 2 * HOUR_US <= later - earlier <= most * DAY_US for earlier, later in pairwise(ends))
    if period != "day":  # each window begins with a day
        assert all(Calendar("day", zone).window(at)[0] == at for at in ends)


LENGTHS = [
    ("day", "Europe/Zurich", us(2028, 3, 26, 12), 23),
    ("day", "Europe/Zurich", us(2028, 10, 29, 12), 25),
    ("day", "Australia/Lord_Howe", us(2028, 10, 1, 5), 23.5),
    ("day", "Australia/Lord_Howe", us(2028, 4, 2, 5), 24.5),
    ("day", "America/Havana", us(2028, 3, 12, 15), 23),
    ("day", "America/Havana", us(2028, 11, 5, 15), 25),
    ("day", "Pacific/Apia", us(2011, 12, 30, 5), 24),
    ("day", "UTC", us(2028, 2, 29, 5), 24),
    ("week", "America/New_York", us(2028, 3, 9), 7 * 24 - 1),
    ("week", "Pacific/Apia", us(2011, 12, 30), 6 * 24),
    ("month", "UTC", us(2028, 2, 10), 29 * 24),
    ("month", "UTC", us(2029, 2, 10), 28 * 24),
    ("month", "UTC", us(2100, 2, 10), 28 * 24),
    ("month", "Europe/Zurich", us(2028, 3, 10), 31 * 24 - 1),
    ("year", "Asia/Kathmandu", us(2028, 6, 1), 366 * 24),
    ("year", "Europe/Zurich", us(2029, 6, 1), 365 * 24),
]


@pytest.mark.parametrize(("period", "zone", "now_us", "hours"), LENGTHS)
def test_days_of_all_lengths_leap_years_and_a_week_without_a_day(
    period: str, zone: str, now_us: int, hours: float
) -> None:
    start, end = Calendar(period, zone).window(now_us)
    assert end - start == hours * HOUR_US


BORDERS = [
    ("Europe/Zurich", us(2027, 12, 31, 23)),
    ("America/New_York", us(2028, 1, 1, 5)),
    ("America/St_Johns", us(2028, 1, 1, 3, 30)),
    ("Asia/Kathmandu", us(2027, 12, 31, 18, 15)),
    ("Pacific/Apia", us(2027, 12, 31, 11)),
    ("UTC", us(2028, 1, 1)),
]


@pytest.mark.parametrize(("zone", "border_us"), BORDERS)
def test_a_years_end_in_several_zones(store_kind: str, zone: str, border_us: int) -> None:
    clock = ManualClock(border_us - 1)
    limiter = make_limiter(store_kind, f"2/year in {zone}; 2/month in {zone}; 2/day in {zone}", clock)
    assert limiter.hit("key", 2)
    refused = limiter.hit("key")
    assert not refused and refused.retry_after_us == 1
    assert [reading.reset_after_us for reading in refused.limits] == [1, 1, 1]
    clock.advance(1)
    assert limiter.hit("key", 2).remaining == 0


def test_a_skipped_midnight_is_the_change_of_the_clocks_and_a_repeated_one_is_its_first() -> None:
    havana = Calendar("day", "America/Havana")  # from 00:00 to 01:00 in March, from 01:00 back to 00:00 in November
    assert havana.window(us(2028, 3, 12, 12))[0] == us(2028, 3, 12, 5)
    assert havana.window(us(2028, 11, 5, 12))[0] == us(2028, 11, 5, 4)
    st_johns = Calendar("day", "America/St_Johns")  # from 00:01 back to 23:01 in November 2010
    assert st_johns.window(us(2010, 11, 7, 12))[0] == us(2010, 11, 7, 2, 30)
    assert st_johns.window(us(2010, 11, 7, 3))[0] == us(2010, 11, 7, 2, 30)


@given(period=PERIODS, zone=st.sampled_from(ZONES), limit=st.integers(0, 9), data=st.data())
def test_no_more_than_the_limit_passes_in_any_window(
    store_kind: str, period: str, zone: str, limit: int, data: st.DataObject
) -> None:
    clock = ManualClock(data.draw(moments(zone)) // 2)
    limiter = make_limiter(store_kind, CalendarWindow(limit=limit, period=period, zone=zone), clock)
    passed: Counter[tuple[int, int]] = Counter()
    for _ in range(data.draw(st.integers(1, 20))):
        window = Calendar(period, zone).window(clock.now_us())
        near = st.sampled_from([window[1] - 1, window[1], window[1] + 1, window[1] + HOUR_US, window[0] + DAY_US])
        clock.set(max(clock.now_us(), data.draw(st.one_of(near, st.just(clock.now_us())))))
        cost = data.draw(st.integers(1, 4))
        window_now = brute_window(period, zone, clock.now_us())
        assert bool(limiter.hit("key", cost)) == (passed[window_now] + cost <= limit)
        if passed[window_now] + cost <= limit:
            passed[window_now] += cost
        assert limiter.peek("key", 0).reset_after_us == (window_now[1] - clock.now_us() if passed[window_now] else 0)


@given(period=PERIODS, zone=st.sampled_from(ZONES), back_us=st.integers(1, 2 * DAY_US), data=st.data())
def test_a_clock_that_goes_back_stays_in_the_later_window(
    store_kind: str, period: str, zone: str, back_us: int, data: st.DataObject
) -> None:
    calendar = Calendar(period, zone)
    start, end = calendar.window(calendar.window(data.draw(moments(zone)) // 2)[1])
    clock = ManualClock(start)
    limiter = make_limiter(store_kind, f"3/{period} in {zone}", clock)
    limiter.hit("key", 3)
    clock.set(max(0, start - min(back_us, DAY_US)))
    assert limiter.hit("key").retry_after_us == end - clock.now_us()
    clock.set(end - 1)
    assert not limiter.hit("key")
    clock.set(end)
    assert limiter.hit("key")


def test_another_zone_or_period_takes_over_the_usage_of_a_live_window(store_kind: str) -> None:
    clock = ManualClock(us(2028, 1, 31, 23, 30))  # half past midnight of February in Zurich
    limiter = make_limiter(store_kind, "10/month in Europe/Zurich", clock, name="budget")
    limiter.hit("key", 4)

    def changed(text: str) -> tuple[int | None, int | None]:
        decision = make_changed(text).peek("key", 0)
        return decision.remaining, decision.reset_after_us

    def make_changed(text: str) -> Limiter:
        return Limiter(text, store=limiter.store, name="budget", clock=clock)

    assert changed("7/month in Europe/Zurich") == (3, us(2028, 2, 29, 23) - clock.now_us())
    assert changed("10/month in UTC") == (6, HOUR_US // 2)
    assert changed("10/day in Asia/Kathmandu") == (6, us(2028, 2, 1, 18, 15) - clock.now_us())
    assert make_changed("10/month in UTC").hit("key", 6)
    clock.advance(HOUR_US // 2)
    assert changed("10/month in UTC") == (10, 0)
    assert changed("10/month in Europe/Zurich") == (10, 0), "it was counted by the other calendar, and has ended"
