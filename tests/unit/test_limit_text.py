"""The text form of limits: parsing and printing are inverse, and an error points at the place."""

from __future__ import annotations

import pickle
from fractions import Fraction
from math import ceil
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import (
    CalendarWindow,
    Concurrent,
    ConfigError,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Limit,
    LimitSyntaxError,
    MissingExtraError,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    parse_limits,
)
from headgate.algorithms.table import ALGORITHMS
from headgate.amounts import RESERVED_WORDS
from headgate.periods import _UNITS, LONGEST_TEXT
from headgate.units import LARGEST, compile_bucket, nearest_bucket
from strategies import ONE_LIMIT, UNITS, counting

EXAMPLES = {
    "100/minute": SlidingLog(limit=100, period="minute"),
    "101/minute": SlidingWindow(limit=101, period="minute"),
    "5 per 30 seconds": SlidingLog(limit=5, period_us=30_000_000),
    "1_000_000/hour": SlidingWindow(limit=1_000_000, period="hour"),
    "100/minute fixed": FixedWindow(limit=100, period="minute"),
    "100/minute log": SlidingLog(limit=100, period="minute"),
    "1000/minute log": SlidingLog(limit=1000, period="minute"),
    "100/minute counter": SlidingWindow(limit=100, period="minute"),
    "1000/minute COUNTER": SlidingWindow(limit=1000, period="minute"),
    "10/second burst 100": TokenBucket(capacity=100, refill=10, period="second"),
    "10/second bucket": TokenBucket(capacity=10, refill=10, period="second"),
    "10/minute burst 30 stepwise": TokenBucket(capacity=30, refill=10, period="minute", stepwise=True),
    "10/minute BUCKET Stepwise": TokenBucket(capacity=10, refill=10, period="minute", stepwise=True),
    "1000/month in Europe/Zurich": CalendarWindow(limit=1000, period="month", zone="Europe/Zurich"),
    "7 per YR In America/Argentina/Buenos_Aires": CalendarWindow(
        limit=7, period="year", zone="America/Argentina/Buenos_Aires"
    ),
    "3/d in Etc/GMT+5": CalendarWindow(limit=3, period="day", zone="Etc/GMT+5"),
    "3/weeks in UTC;": CalendarWindow(limit=3, period="week", zone="UTC"),
    "50/second leaky 200": LeakyBucket(capacity=200, refill=50, period="second"),
    "50/second queue 200": LeakyQueue(queue=200, refill=50, period="second"),
    "20 concurrent": Concurrent(limit=20),
    "7/90min": SlidingLog(limit=7, period="90 minutes"),
    "3 PER 2 Weeks FIXED": FixedWindow(limit=3, period="2 weeks"),
    "  1 / ms  ": SlidingLog(limit=1, period_us=1000),
    "250/us": SlidingWindow(limit=250, period_us=1),
    "0/day": SlidingLog(limit=0, period="day"),
    "4503599627370496/us fixed": FixedWindow(limit=LARGEST, period="us"),
    "90000 tokens/minute bucket": TokenBucket(capacity=90000, refill=90000, period="minute", of="tokens"),
    "90000 tokens/minute": SlidingWindow(limit=90000, period="minute", of="tokens"),
    "5 in-out_2 per 30 seconds": SlidingLog(limit=5, period_us=30_000_000, of="in-out_2"),
    "60 requests/minute": SlidingLog(limit=60, period="minute"),
    "1 request/second": SlidingLog(limit=1, period="second"),
    "1_000 bytes per 2 seconds queue 5000": LeakyQueue(queue=5000, refill=1000, period="2 seconds", of="bytes"),
    "100 tokens concurrent": Concurrent(limit=100, of="tokens"),
    "1000 usd/day": SlidingLog(limit=1000, period="day", of="usd"),
    "0.50 USD/hour fixed": FixedWindow(limit="0.5", period="hour", of="usd"),
    "10 eur/day burst 2.5": TokenBucket(capacity="2.5", refill=10, period="day", of="eur"),
    "0.000000001 usd/second counter": SlidingWindow(limit="1e-9", period="second", of="usd"),
}


@pytest.mark.parametrize(("text", "limit"), EXAMPLES.items())
def test_a_text_is_read_as_this_limit(text: str, limit: Limit) -> None:
    assert parse_limits(text) == (limit,)


@pytest.mark.parametrize("unit", ["s", "sec", "secs", "second", "seconds"])
def test_units_have_their_usual_short_forms(unit: str) -> None:
    assert parse_limits(f"3/{unit}") == (SlidingLog(limit=3, period="second"),)


def test_several_limits_are_read_in_order() -> None:
    limits = parse_limits("10/second burst 100; 1000/hour;")
    assert limits == (
        TokenBucket(capacity=100, refill=10, period="second"),
        SlidingWindow(limit=1000, period="hour"),
    )


PRINTED = {
    SlidingLog(limit=5, period="minute"): "5/minute",
    SlidingLog(limit=100, period="minute"): "100/minute",
    SlidingLog(limit=101, period="minute"): "101/minute log",
    SlidingWindow(limit=5, period="minute"): "5/minute counter",
    SlidingWindow(limit=100, period="minute"): "100/minute counter",
    SlidingWindow(limit=101, period="minute"): "101/minute",
}


@pytest.mark.parametrize(("limit", "text"), PRINTED.items(), ids=PRINTED.values())
def test_a_sliding_window_is_printed_with_a_word_only_where_its_number_does_not_imply_its_kind(
    limit: Limit, text: str
) -> None:
    assert str(limit) == text


@given(
    limits=st.lists(st.one_of(ONE_LIMIT, st.builds(Concurrent, limit=st.integers(0, 10**9))), min_size=1, max_size=5)
)
def test_parsing_and_printing_are_inverse(limits: list[Limit]) -> None:
    text = "; ".join(str(limit) for limit in limits)
    assert parse_limits(text) == tuple(limits)
    assert "; ".join(str(limit) for limit in parse_limits(text)) == text


@given(limits=st.lists(st.builds(counting, ONE_LIMIT, UNITS), min_size=1, max_size=5))
def test_parsing_and_printing_are_inverse_whatever_is_counted(limits: list[Limit]) -> None:
    text = "; ".join(str(limit) for limit in limits)
    assert parse_limits(text) == tuple(limits)
    assert "; ".join(str(limit) for limit in parse_limits(text)) == text
    assert [eval(repr(limit), vars(__import__("headgate"))) for limit in limits] == limits


@given(text=st.text(max_size=40) | st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3})? ?[a-z]{1,4}[/ ][a-z0-9. ]{0,12}"))
def test_any_text_is_read_or_refused_with_a_position_in_it(text: str) -> None:
    position = 0
    try:
        parse_limits(text)
    except LimitSyntaxError as error:
        position = error.position
    assert 0 <= position <= len(text)


ERRORS = [
    ("", 0, 'expected a number such as 100 in "100/minute"'),
    ("   ", 3, 'expected a number such as 100 in "100/minute"'),
    ("abc", 0, "expected a number"),
    ("-5/minute", 0, "expected a number"),
    ("10/fortnight", 3, "units are ms, second, minute, hour, day, week"),
    ("10/minut", 3, 'did you mean "minute"?'),
    ("10/mont in UTC", 3, 'did you mean "month"?'),
    ("10/month", 8, 'expected a time zone after "month", as in "month in Europe/Zurich"; other units are ms, second'),
    ("10/years fixed", 9, 'expected a time zone after "year"'),
    ("10/2 months in UTC", 5, "a month has no length of its own: units are ms, second"),
    ("10/month in", 11, 'expected a time zone such as "Europe/Zurich" after "in"'),
    ("10/month in ; 5/s", 12, 'expected a time zone such as "Europe/Zurich" after "in"'),
    ("10/month in Europe/Zurch", 12, 'no time zone is called "Europe/Zurch"; did you mean "Europe/Zurich"'),
    ("10/month in zurich", 12, 'no time zone is called "zurich"; did you mean "Europe/Zurich"?'),
    ("10/month in ../../etc/passwd", 12, 'no time zone is called "../../etc/passwd"'),
    ("10/month in Europe", 12, 'no time zone is called "Europe"'),
    ("10/2 days in UTC", 10, '"in" and a time zone come after a day, week, month or year'),
    ("10/hour in UTC", 8, '"in" and a time zone come after a day, week, month or year'),
    ("10/day in UTC fixed", 14, 'expected ";" and another limit'),
    ("10/minute stepwise", 10, '"stepwise" comes after "bucket" or "burst", such as "10/minute burst 30 stepwise"'),
    ("10/minute burst 30 stepwize", 19, 'did you mean "stepwise"?'),
    ("10/minute leaky 30 stepwise", 19, 'expected ";"'),
    ("10/minute log fixed", 14, 'expected ";" and another limit\n'),
    ("10 concurrent per minute", 14, 'expected ";" and another limit\n'),
    ("10/minute bucket log", 17, 'expected ";" and another limit, or "stepwise"\n'),
    ("10/minute log; 5/s fixd", 19, 'counter, bucket, burst, leaky, queue, in; did you mean "fixed"?'),
    ("10 per 0.5 seconds", 8, 'the number of a period is whole: half a second is "500 ms"'),
    ("10", 2, '"/" or "per" and a unit, or "concurrent"'),
    ("10 per", 6, "units are"),
    ("10//minute", 3, "units are"),
    ("1.5/second", 1, "a number is whole, such as 90000 or 90_000: a fraction is for money, such as 0.50 usd"),
    ("90,000 tokens/minute", 2, "a number is whole, such as 90000 or 90_000"),
    ("1/s; $5/day", 5, "money is a number with the name of its currency, such as 5 usd"),
    ("5€/day", 1, "money is a number with the name of its currency"),
    ("1.5 tokens/second", 0, "tokens are counted whole: a fraction is for money, such as 0.50 usd"),
    ("10 tokens", 9, '"/" or "per" and a unit, or "concurrent"'),
    ("10 minute", 3, '"/" or "per" and a unit, or "concurrent"'),
    ("10 m/minute", 3, '"/" or "per" and a unit, or "concurrent"'),
    ("10 fixed/minute", 3, '"/" or "per" and a unit, or "concurrent"'),
    ("10k/minute", 2, 'write the number in full, such as 10000; a unit called "k" has a space before it'),
    ("1e3/minute", 1, 'a unit called "e3" has a space before it'),
    ("5/second; 2M tokens/hour", 11, "write the number in full"),
    ("1_000K tokens/minute bucket", 5, 'a unit called "K" has a space before it'),
    ("10r/s", 2, 'requests are called "requests", or nothing at all, not "r"'),
    ("100 req/minute", 4, 'requests are called "requests", or nothing at all, not "req"'),
    (f"10 {'x' * 65}/minute", 3, "the name of what is counted has at most 64 characters"),
    ("5000000 usd/day", 0, "must be at most 4503599.627370496 usd (2**52 billionths), not 5000000 usd"),
    ("0.0000000001 usd/day", 0, "usd is counted in billionths, and 0.0000000001 is finer"),
    ("1000 usd/day counter", 0, 'write "1000 usd/day", which remembers each request, or "1000 usd/day fixed"'),
    ("10/second burst 2.5", 17, 'expected ";"'),
    ("10/second burst", 15, 'the capacity after "burst"'),
    ("10/second queue x", 16, "how many may wait"),
    ("10/second brst 4", 10, 'did you mean "burst"?'),
    ("5/minute;;", 9, "expected a number"),
    ("5/0 s", 4, "a period is at least 1"),
    ("0/second bucket", 0, "refill must be at least 1"),
    ("99999999999999999999/day", 0, "numbers go up to 4503599627370496"),
    ("5 per 9999999999 weeks", 17, "at most 4503599627370496 microseconds"),
    ("999999999999/day", 0, 'the nearest limit that fits is "52124995687/day"'),
    ("٣/minute", 0, "expected a number"),
    ("10/sec\n\x00", 7, 'expected ";"'),
    ("; ".join(["1/s"] * 17), 80, "at most 16 limits"),
    ("1/s" + " " * 5000, 0, "at most 4096 characters"),
]


@pytest.mark.parametrize(("text", "position", "reason"), ERRORS)
def test_an_error_points_at_the_character_and_says_what_would_be_right(text: str, position: int, reason: str) -> None:
    with pytest.raises(LimitSyntaxError) as caught:
        parse_limits(text)
    assert caught.value.position == position
    assert reason in str(caught.value)
    assert str(caught.value).endswith("^")


def test_a_unit_has_any_name_of_its_own_with_a_space_before_it() -> None:
    assert [limit.of for limit in parse_limits("10 k/minute; 10tokens/minute; 5usd/day")] == ["k", "tokens", "usd"]


def test_a_word_that_is_like_no_unit_is_not_taken_for_one() -> None:
    with pytest.raises(LimitSyntaxError) as caught:
        parse_limits("10/haus")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "window_us", "life_us"),
    [
        (FixedWindow(limit=9, period="second"), 1_000_000, 1_000_000),
        (SlidingLog(limit=9, period="second"), 1_000_000, 1_000_000),
        (SlidingWindow(limit=9, period="second"), 1_000_000, 2_000_000),
        (TokenBucket(capacity=10, refill=3, period="second"), 3_333_334, 666_667),
        (LeakyBucket(capacity=10, refill=3, period="second"), 3_333_334, 666_667),
        (LeakyQueue(queue=9, refill=3, period="second"), 3_333_334, 666_667),
        (TokenBucket(capacity=10, refill=3, period="second", stepwise=True), 4_000_000, 1_000_000),
        (CalendarWindow(limit=9, period="day", zone="UTC"), 86_400_000_000, 90_000_000_000),
        (CalendarWindow(limit=9, period="month", zone="UTC"), 2_629_746_000_000, 2_682_000_000_000),
    ],
    ids=str,
)
def test_a_limit_knows_how_long_all_of_it_and_a_request_of_two_count(
    limit: Limit, window_us: int, life_us: int
) -> None:
    assert (limit.window_us, limit.life_us(2)) == (window_us, life_us)


@pytest.mark.parametrize(
    "text",
    [
        'FixedWindow(limit=5, period="minute")',
        "SlidingLog(limit=5, period_us=30000000)",
        'TokenBucket(capacity=9, refill=5, period="day")',
        'LeakyQueue(queue=9, refill=5, period="ms")',
        'SlidingLog(limit=5, period="minute", of="tokens")',
        'Concurrent(limit=5, of="tokens")',
        'TokenBucket(capacity="2.5", refill="10", period="day", of="usd")',
        'TokenBucket(capacity=9, refill=5, period="day", stepwise=True)',
        'CalendarWindow(limit=9, period="month", zone="Europe/Zurich")',
        'CalendarWindow(limit="1000", period="month", zone="Europe/Zurich", of="usd")',
    ],
)
def test_a_limit_is_shown_as_it_is_made(text: str) -> None:
    assert repr(eval(text)) == text


def test_an_error_shows_the_place_on_a_line_of_its_own() -> None:
    with pytest.raises(LimitSyntaxError) as caught:
        parse_limits("10/fortnight")
    assert str(caught.value) == (
        'cannot read "10/fortnight": units are ms, second, minute, hour, day, week\n  10/fortnight\n     ^'
    )


@pytest.mark.parametrize("value", [None, 5, b"5/minute", ["5/minute"]])
def test_a_limit_that_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="limits are text"):
        parse_limits(value)  # type: ignore[arg-type]


@given(limit=ONE_LIMIT)
def test_limits_are_values(limit: Limit) -> None:
    assert pickle.loads(pickle.dumps(limit)) == limit
    assert eval(repr(limit), vars(__import__("headgate"))) == limit
    assert hash(limit) == hash(parse_limits(str(limit))[0])
    with pytest.raises(AttributeError):
        limit.period_us = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    "value", [-1, True, 1.0, "5", None, LARGEST + 1, 10**5000], ids=lambda value: type(value).__name__
)
def test_invalid_numbers_of_a_limit_are_refused_by_name_and_value(value: object) -> None:
    with pytest.raises(ConfigError, match=r"SlidingWindow: limit must be"):
        SlidingWindow(limit=value, period="minute")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"TokenBucket: refill must be"):
        TokenBucket(capacity=5, refill=value, period="minute")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Concurrent: limit must be"):
        Concurrent(limit=value)  # type: ignore[arg-type]


def test_an_invalid_calendar_window_or_bucket_in_steps_is_refused_by_name_and_value() -> None:
    with pytest.raises(ConfigError, match="CalendarWindow: period is one of day, week, month, year, not 'hour'"):
        CalendarWindow(limit=1, period="hour", zone="UTC")
    with pytest.raises(ConfigError, match="CalendarWindow: period is one of day, week, month, year, not 5"):
        CalendarWindow(limit=1, period=5, zone="UTC")  # type: ignore[arg-type]
    for zone in ("Mars/Olympus", "", "Europe", "/etc/passwd", "\0", "\ud800", "x" * 5000):
        with pytest.raises(ConfigError, match="no time zone is called"):
            CalendarWindow(limit=1, period="day", zone=zone)
    with pytest.raises(ConfigError, match='a time zone is text such as "Europe/Zurich", not None'):
        CalendarWindow(limit=1, period="day", zone=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="TokenBucket: stepwise is True or False, not 1"):
        TokenBucket(capacity=1, refill=1, period="day", stepwise=1)  # type: ignore[arg-type]


def test_the_error_on_a_system_without_time_zones_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(name: str) -> object:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr("headgate.calendars.ZoneInfo", find_none)
    monkeypatch.setattr("headgate.calendars.available_timezones", set)
    with pytest.raises(MissingExtraError, match=r"knows none, needs .*: pip install 'headgate\[zones\]'"):
        CalendarWindow(limit=1, period="day", zone="Europe/Berlin")


def test_a_period_is_given_once_as_text_or_in_microseconds() -> None:
    for arguments in ({}, {"period": "minute", "period_us": 5}):
        with pytest.raises(ConfigError, match="give one of period"):
            FixedWindow(limit=1, **arguments)  # type: ignore[arg-type]
    for period in ("", "0 minutes", "minute minute", "fortnight", "5"):
        with pytest.raises(ConfigError, match="cannot read"):
            FixedWindow(limit=1, period=period)
    with pytest.raises(ConfigError, match="expected nothing more: a period is a number and a unit, such as"):
        FixedWindow(limit=1, period="minute minute")
    with pytest.raises(ConfigError, match="period must be text"):
        FixedWindow(limit=1, period=5)  # type: ignore[arg-type]


TOO_FINE = [
    lambda: SlidingWindow(limit=10**12, period="day"),
    lambda: SlidingWindow(limit=10**9, period_us=86_400_000_001),
    lambda: TokenBucket(capacity=10**11, refill=999_983, period="week"),
    lambda: LeakyQueue(queue=10**12, refill=7, period="day"),
    lambda: LeakyBucket(capacity=4 * 10**15, refill=3, period_us=86_400_000_001),
    lambda: LeakyQueue(queue=5, refill=2, period_us=LARGEST - 1),
    lambda: TokenBucket(capacity=LARGEST, refill=LARGEST, period_us=3),
    lambda: TokenBucket(capacity=LARGEST, refill=2, period_us=LARGEST - 1),
    lambda: TokenBucket(capacity=LARGEST, refill=2, period="week", stepwise=True),
    lambda: TokenBucket(capacity=7, refill=2, period_us=LARGEST, stepwise=True),
]


@pytest.mark.parametrize("build", TOO_FINE)
def test_a_limit_that_fits_no_unit_names_the_nearest_that_does(build: object) -> None:
    with pytest.raises(ConfigError, match=r"^these numbers are too fine for exact arithmetic") as caught:
        build()  # type: ignore[operator]
    nearest = str(caught.value).rsplit('"', 2)[1]
    (limit,) = parse_limits(nearest)
    assert limit.quota > 0


NEAREST = [
    ((10**12, 7, 86_400), (52_124_995_687, 7)),
    ((6 * 10**10, 100_003, 86_400), (6 * 10**10, 100_002)),
    ((10**14, 1_000, 97), (10**14, 970)),
    ((10**14, 1_040, 97), (10**14, 1_067)),
    ((10**15, 5, 6), (10**15, 4)),
    ((2 * 10**15, 7, 6), (2 * 10**15, 6)),
    ((5 * 10**13, 30, 97), (46_428_862_137_839, 30)),
    ((5 * 10**13, 65, 97), (46_428_862_137_839, 65)),
    ((LARGEST, 1, 1), (LARGEST - 1, 1)),
    ((LARGEST // 2, 4, 3), (LARGEST // 2, 3)),
    ((6, 1, LARGEST - 1), (1, 1)),
    ((6, 2, LARGEST - 1), (6, 15)),
]


@pytest.mark.parametrize(("numbers", "nearest"), NEAREST, ids=str)
def test_the_nearest_bucket_is_the_one_whose_number_changes_relatively_least(
    numbers: tuple[int, int, int], nearest: tuple[int, int]
) -> None:
    (capacity, refill, seconds), (near_capacity, near_refill) = numbers, nearest
    period_us = seconds if seconds == LARGEST - 1 else seconds * 1_000_000

    def fits(capacity: int, refill: int) -> bool:
        return compile_bucket("token_bucket", capacity, refill, period_us) is not None

    assert not fits(capacity, refill)
    assert nearest_bucket(capacity, refill, period_us) == nearest
    assert fits(near_capacity, near_refill)
    change = abs(near_refill - refill) / refill + (capacity - near_capacity) / capacity
    for other in range(1, max(2 * refill, near_refill)):
        assert abs(other - refill) / refill >= change or not fits(capacity, other)
    assert not fits(max(0, ceil(capacity * (1 - change))) + 1, refill)


@pytest.mark.parametrize(
    ("text", "unit_us"),
    [("100/minute", 1), ("999983/day burst 999983", 1_000), ("99999830/day", 1_000_000), ("7/second bucket", 1)],
)
def test_each_limit_is_counted_in_the_finest_unit_that_fits(text: str, unit_us: int) -> None:
    (limit,) = parse_limits(text)
    assert limit.compiled.unit_us == unit_us


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"queue": -1, "refill": 1, "period": "second"}, "LeakyQueue: queue must be at least 0, not -1"),
        ({"queue": "x", "refill": 1, "period": "second"}, "LeakyQueue: queue must be a whole number, not 'x'"),
        ({"queue": 1, "refill": 0, "period": "second"}, "LeakyQueue: refill must be at least 1, not 0"),
        (
            {"queue": 1, "refill": 1},
            'LeakyQueue: give one of period (such as "minute" or "5 minutes") and period_us',
        ),
    ],
)
def test_an_invalid_number_of_a_queue_is_refused_by_its_name(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        LeakyQueue(**numbers)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("queue", "refill", "period", "nearest"),
    [
        (10**12, 7, "day", "7/day queue 52124995686"),
        (5 * 10**13, 30, "97 seconds", "30 per 97 seconds queue 46428862137838"),
        (46_428_862_137_839, 30, "97 seconds", "30 per 97 seconds queue 46428862137838"),
    ],
)
def test_the_error_of_a_queue_too_long_for_its_rate_names_the_longest_that_fits(
    queue: int, refill: int, period: str, nearest: str
) -> None:
    with pytest.raises(ConfigError) as error:
        LeakyQueue(queue=queue, refill=refill, period=period)
    assert str(error.value).endswith(f'the nearest limit that fits is "{nearest}"')
    (fits,) = parse_limits(nearest)
    assert str(fits) == nearest
    if refill != 7:
        assert fits == LeakyQueue(queue=46_428_862_137_838, refill=refill, period=period)


def test_a_bucket_of_one_rate_is_written_without_its_burst() -> None:
    assert str(TokenBucket(capacity=10, refill=10, period="second")) == "10/second bucket"
    assert str(TokenBucket(capacity=11, refill=10, period="second")) == "10/second burst 11"


def test_a_text_may_have_the_stated_length_and_no_more() -> None:
    text = "5/minute".ljust(LONGEST_TEXT)
    assert parse_limits(text) == parse_limits("5/minute")
    with pytest.raises(ConfigError, match=f"at most {LONGEST_TEXT} characters"):
        parse_limits(text + " ")


def test_every_word_of_a_period_or_a_shape_is_no_unit() -> None:
    shapes = {shape.word for algorithm in ALGORITHMS.values() for shape in algorithm.shapes}
    assert {*_UNITS, *shapes, "per"} - {"µs"} <= RESERVED_WORDS
    for word in RESERVED_WORDS:
        with pytest.raises(ConfigError, match=f'of: "{word}" has a meaning of its own in limits'):
            SlidingLog(limit=5, period="minute", of=word)


@pytest.mark.parametrize("name", ["", "2fa", "a b", "ä", "x" * 65, "-x", 5, None, "a\n"])
def test_an_invalid_unit_is_refused_by_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="FixedWindow: of: a unit is a letter and up to 63 more letters, digits, _"):
        FixedWindow(limit=5, period="minute", of=name)


def test_limits_of_different_units_are_different_limits() -> None:
    limits = {
        SlidingLog(limit=5, period="minute", of=of) for of in ("requests", "Requests", "tokens", "Tokens", "USD", "usd")
    }
    assert len(limits) == 4


@pytest.mark.parametrize("share", [Fraction(1, 3), Fraction(1, 7), Fraction(999, 1000), Fraction(3)])
@pytest.mark.parametrize("text", ["1000 usd/day bucket", "123.45 usd/day queue 10", "33333 tokens/hour burst 10000000"])
def test_a_share_of_a_limit_fits_and_is_never_more_than_the_share(text: str, share: Fraction) -> None:
    (limit,) = parse_limits(text)
    scaled = limit.scaled(share)
    assert scaled.of == limit.of
    assert isinstance(limit, TokenBucket | LeakyQueue) and isinstance(scaled, TokenBucket | LeakyQueue)
    assert Fraction(scaled.refill, scaled.period_us) <= Fraction(limit.refill, limit.period_us) * share
    assert Fraction(scaled.refill, scaled.period_us) > Fraction(limit.refill, limit.period_us) * share * Fraction(9, 10)
