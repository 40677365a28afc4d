"""The limits that a server announces are read as they were meant, in every dialect; malformed fields are ignored."""

from __future__ import annotations

from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from headgate.http.client.limit_fields import AnnouncedLimit, AnnouncedLimits, read_limit_fields
from headgate.http.fields.dates import http_date_us, until_us
from headgate.http.fields.dialects import DIALECTS, fields_of
from headgate.http.fields.structured import parse_dictionary, parse_list
from headgate.http.refusal import answer_of
from headgate.limits import Limit
from headgate.testing import ManualClock
from strategies import SEVERAL_LIMITS, history_of
from subjects import START_US, make_limiter
from subjects import parse_list as parse_independently

NOW_US = START_US
DATE = "Fri, 15 Jan 2027 08:00:00 GMT"
"""The same moment."""

ANY_WAIT = 1e16


def read(*fields: tuple[str, str], now_us: int = NOW_US) -> AnnouncedLimits | None:
    return read_limit_fields(fields, now_us=now_us)


def wait_of(field: str, value: str) -> float | None:
    """Return the seconds of one reset field."""
    announced = read((field, value))
    assert announced is not None
    return announced.refused_for


# --- the fields that we write ourselves


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_the_fields_of_our_servers_are_read_as_written(limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    limiter = make_limiter("python", limits, clock)
    for wait_us, cost in data.draw(history_of(limits, max_size=6)):
        clock.advance(wait_us)
        decision = limiter.hit("key", cost)
        for dialect in DIALECTS:
            fields = dict(fields_of(dialect, clock)(decision))
            announced = read_limit_fields(fields, now_us=clock.now_us(), cap=ANY_WAIT)
            assert (announced.limits if announced else ()) == expected(dialect, fields, clock.now_us()), (
                dialect,
                fields,
            )


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_a_client_that_waits_as_announced_is_admitted(limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    limiter = make_limiter("python", limits, clock)
    for wait_us, cost in data.draw(history_of(limits, max_size=6)):
        clock.advance(wait_us)
        decision = limiter.hit("key", cost)
        announced = read_limit_fields(answer_of(decision).headers, now_us=clock.now_us(), cap=ANY_WAIT)
        if decision.allowed or decision.retry_after_us is None:
            assert announced is None or announced.retry_after_us is None
        else:
            assert announced is not None and announced.refused_for_us is not None
            assert decision.retry_after_us <= announced.refused_for_us < decision.retry_after_us + 1_000_001
            before_us = clock.now_us()
            if announced.refused_for_us > 10**15:
                return  # beyond the range of a clock
            clock.advance(announced.refused_for_us)
            assert limiter.peek("key", cost).allowed
            clock.set(before_us)


def expected(dialect: str, fields: dict[str, str], now_us: int) -> tuple[AnnouncedLimit, ...]:
    """Return the expected limits, by independent parsers."""
    if dialect in ("draft-11", "draft-next"):
        remaining, after = ("r", "t") if dialect == "draft-11" else ("a", "w")
        members = parse_independently(fields["RateLimit"]) if "RateLimit" in fields else []
        return tuple(
            AnnouncedLimit(name, parameters[remaining], parameters[after] * 1_000_000 if after in parameters else None)
            for name, parameters in members
        )
    if dialect == "draft-07" and fields:
        members_of: Any = http_sf.parse(fields["RateLimit"].encode(), tltype="dictionary")
        return (AnnouncedLimit("", members_of["remaining"][0], members_of["reset"][0] * 1_000_000),)
    if not fields:
        return ()
    start = "X-RateLimit" if dialect.startswith("x-") else "RateLimit"
    reset_us = int(fields[f"{start}-Reset"]) * 1_000_000
    # The same guess as the parser's: a number that large is a moment.
    reset_us = max(0, reset_us - now_us) if reset_us > 10**15 else reset_us
    return (AnnouncedLimit("", int(fields[f"{start}-Remaining"]), reset_us),)


# --- the fields that others write


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        # draft-11 and before, Cloudflare: a List of Strings
        ('RateLimit: "burst";r=0;t=2, "daily";r=4999;t=57600', [("burst", 0, 2), ("daily", 4999, 57600)]),
        ('RateLimit: "peruser";r=7;pk=:cHsdsRa894==:;t=10;acme-burst', [("peruser", 7, 10)]),  # pad bits, comments
        (r'RateLimit: "a \"b\", c;r=1";r=3;t=4', [('a "b", c;r=1', 3, 4)]),
        ('RateLimit: "conc";r=0', [("conc", 0, None)]),
        # the next one: Tokens too
        ("RateLimit: default;a=50;w=30;c=1", [("default", 50, 30)]),
        ('RateLimit: "api";a=0;w=60;pk=:R0VUH2FsaWNl:;c=1', [("api", 0, 60)]),
        # draft-07
        ("RateLimit: limit=100, remaining=50, reset=5", [("", 50, 5)]),
        # draft-06 and -03, and GitLab with a moment
        ("RateLimit-Limit: 10, 10;w=1, 50;w=60|RateLimit-Remaining: 0|RateLimit-Reset: 1", [("", 0, 1)]),
        ("RateLimit-Remaining: 3|RateLimit-Reset: 1800000060|RateLimit-Limit: 600", [("", 3, 60)]),
        # GitHub, X, Reddit
        ("x-ratelimit-remaining: 0|x-ratelimit-reset: 1800003600|x-ratelimit-used: 60", [("", 0, 3600)]),
        ("x-rate-limit-remaining: 12|x-rate-limit-reset: 1800000060|x-rate-limit-limit: 15", [("", 12, 60)]),
        ("x-ratelimit-remaining: 598.0|x-ratelimit-reset: 123|x-ratelimit-used: 2", [("", 598, 123)]),
        # Discord
        (
            "X-RateLimit-Remaining: 0|X-RateLimit-Reset: 1800000001.25"
            "|X-RateLimit-Reset-After: 1.2|X-RateLimit-Bucket: abcd1234",
            [("", 0, 1.2)],
        ),
        # OpenAI, Anthropic, Kong
        (
            "x-ratelimit-remaining-requests: 59|x-ratelimit-remaining-tokens: 0"
            "|x-ratelimit-reset-requests: 20ms|x-ratelimit-reset-tokens: 6m0s",
            [("requests", 59, 0.02), ("tokens", 0, 360)],
        ),
        (
            "anthropic-ratelimit-tokens-remaining: 0|anthropic-ratelimit-tokens-reset: 2027-01-15T08:01:00Z",
            [("tokens", 0, 60)],
        ),
        ("X-RateLimit-Remaining-Minute: 0|X-RateLimit-Reset: 30", [("minute", 0, 30), ("", None, 30)]),
        # the best of several; a reset alone; a remaining alone
        ('RateLimit: "a";r=0;t=1|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 100', [("a", 0, 1)]),
        ("RateLimit: nonsense=|RateLimit-Remaining: 1|RateLimit-Reset: 9", [("", 1, 9)]),
        ("X-RateLimit-Reset: 5", [("", None, 5)]),
        ("X-RateLimit-Remaining: 5", [("", 5, None)]),
        # lists of several limits, and a field that two servers write
        ("X-RateLimit-Remaining: 0, 14523|X-RateLimit-Reset: 1, 3600", [("", 0, 1), ("", 14523, 3600)]),
        ("X-RateLimit-Limit: 50, 0|X-RateLimit-Remaining: 49, 0|X-RateLimit-Reset: 1, 3600", [("", 49, 1)]),
        ("X-RateLimit-Limit: 0|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 9", [("", 0, 9)]),
        (
            "X-RateLimit-Remaining: 0|X-RateLimit-Remaining: 7|X-RateLimit-Reset: Fri, 15 Jan 2027 08:00:09 GMT",
            [("", 0, 9), ("", 7, None)],
        ),
    ],
)
def test_each_dialect_is_read(fields: str, limits: list[tuple[str, int | None, float | None]]) -> None:
    announced = read(*(pair(field) for field in fields.split("|")))
    assert announced is not None
    assert [(limit.name, limit.remaining, limit.reset_after) for limit in announced.limits] == limits
    assert announced.retry_after is None


def pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name, value


@pytest.mark.parametrize(
    "field",
    [
        'RateLimit: "a";r=1.5;t=1',
        'RateLimit: "a";r=-1;t=1',
        'RateLimit: "a";r=1;t=-1',
        'RateLimit: "a";r=1;t=1.5',
        'RateLimit: "a";r="1";t=1',
        'RateLimit: "a";r;t=1',
        'RateLimit: "a";t=1',
        'RateLimit: "a";R=1;t=1',
        'RateLimit: "café";r=1;t=1',
        'RateLimit: "a";r=1000000000000000;t=1',
        'RateLimit: "a";r=0;t=1,',
        'RateLimit: "a";r=0;t=1 "b";r=0;t=1',
        'RateLimit: ("a" "b");r=0;t=1',
        "RateLimit: limit=100, remaining=-1, reset=5",
        "RateLimit: remaining=1.0, reset=5",
        "RateLimit: ",
        "RateLimit-Remaining: -1",
        "RateLimit-Remaining: many",
        "X-RateLimit-Remaining: 0, many",
        "X-RateLimit-Remaining: 0,",
        "X-RateLimit-Remaining: ٣",
        "X-RateLimit-Reset: soon",
        "X-RateLimit-Reset: -5",
        "X-RateLimit-Reset: 1e3",
        "X-RateLimit-Reset: 5 minutes",
        "X-RateLimit-Reset: ",
        f"X-RateLimit-Reset: {'9' * 5000}",
        "X-RateLimit-Limit: 60",
        "Retry-After: -1",
        "Retry-After: soon",
        "Retry-After: ",
        "Retry-After: 1_000",
        "Retry-After: Sun, 31 Feb 2026 08:49:37 GMT",
        "Retry-After: Sun, 06 Nov 1994 08:49:37 CET",
        "Retry-After: Sun, 06 nov 1994 08:49:37 GMT",
        "Date: Sun, 06 Nov 1994 08:49:37 GMT",
        "Content-Type: text/plain",
    ],
)
def test_malformed_and_unrelated_fields_are_ignored(field: str) -> None:
    assert read(pair(field)) is None


def test_one_bad_member_does_not_take_the_others_with_it() -> None:
    announced = read(("RateLimit", '"a";r=1.5;t=1, "b";r=2;t=3'))
    assert announced == AnnouncedLimits(None, (AnnouncedLimit("b", 2, 3_000_000),))


def test_a_list_may_be_split_over_several_lines() -> None:
    lines = [("ratelimit", '"a";r=1;t=1'), ("RateLimit", '"b";r=2;t=3')]
    headers = CIMultiDict(lines)
    for announced in (read(*lines), read_limit_fields(headers, now_us=NOW_US)):
        assert announced is not None and [limit.name for limit in announced.limits] == ["a", "b"]


# --- Retry-After


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0), ("120", 120), (" 7 ", 7), ("0.65", 0.65), ("1, 3", 3),
        ("Fri, 15 Jan 2027 08:02:00 GMT", 120),
        ("Friday, 15-Jan-27 08:02:00 GMT", 120),
        ("Fri Jan 15 08:02:00 2027", 120),
        ("Fri, 15 Jan 2027 07:59:30 GMT", 0),  # past
        ("Fri, 15 Jan 2027 08:02:00 GMT, Fri, 15 Jan 2027 08:01:00 GMT", 120),  # each proxy may add one
        ("Friday, 15-Jan-27 08:02:00 GMT,7", 120), ("0.5 ,Fri Jan 15 08:02:00 2027, 240", 240), ("soon, 7", 7),
        ("86401", 86400), ("9" * 40, 86400), ("Fri, 31 Dec 9999 23:59:59 GMT", 86400),  # a day is believed
    ],
)  # fmt: skip
def test_retry_after_is_read_in_each_of_its_forms(value: str, seconds: float) -> None:
    announced = read(("Retry-After", value), ("Date", DATE))
    assert announced is not None and announced.retry_after == seconds


def test_a_date_is_relative_to_that_of_the_response_not_to_our_clock() -> None:
    later = "Fri, 15 Jan 2027 08:00:10 GMT"
    an_hour_off_us = NOW_US + 3600 * 10**6
    assert read_limit_fields({"Retry-After": later, "Date": DATE}, now_us=an_hour_off_us) == AnnouncedLimits(
        10_000_000, ()
    )
    assert read_limit_fields({"Retry-After": later}, now_us=NOW_US + 4_000_000) == AnnouncedLimits(6_000_000, ())
    assert read_limit_fields({"Retry-After": later, "Date": "today"}, now_us=NOW_US) == AnnouncedLimits(10_000_000, ())


def test_milliseconds_are_read_where_they_are_sent() -> None:
    announced = read_limit_fields({"retry-after": "2", "retry-after-ms": "1234"}, now_us=NOW_US)
    assert announced is not None and announced.retry_after == 1.234
    announced = read_limit_fields({"retry-after": "1", "retry-after-ms": "1234.5004"}, now_us=NOW_US)
    assert announced is not None and announced.retry_after_us == 1_234_501


def test_retry_after_takes_precedence_over_the_reset() -> None:
    announced = read_limit_fields({"Retry-After": "3", "RateLimit": '"a";r=0;t=100'}, now_us=NOW_US)
    assert announced is not None
    assert (announced.refused_for, announced.exhausted_for_us, announced.exhausted) == (3.0, 3_000_000, True)


def test_only_retry_after_counts_in_a_response_from_a_cache() -> None:
    assert read_limit_fields({"Age": "1", "RateLimit": '"a";r=0;t=100'}, now_us=NOW_US) is None
    assert read_limit_fields({"Age": "40", "Retry-After": "100", "RateLimit": '"a";r=0;t=9'}) == AnnouncedLimits(
        60_000_000, ()
    )
    assert read_limit_fields({"Age": "400", "Retry-After": "100"}) == AnnouncedLimits(0, ())
    for age in ("0", "old", ""):
        assert read_limit_fields({"Age": age, "RateLimit": '"a";r=0;t=100'}) is not None


def test_the_default_time_is_that_of_the_system_clock() -> None:
    assert read_limit_fields({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}) == AnnouncedLimits(0, ())


# --- how moments are written


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0), ("5", 5), ("2.5", 2.5), ("1000000000", 86400),  # no moment, and capped
        ("1800000060", 60), ("1800000060.5", 60.5), ("1800000060500", 60.5), ("1799999900", 0),
        ("1s", 1), ("6m0s", 360), ("20ms", 0.02), ("1.5s", 1.5), ("1h2m3s", 3723), ("17us", 0.000017), ("1d", 86400),
        ("2027-01-15T08:01:00Z", 60), ("2027-01-15t08:01:00.5+00:00", 60.5), ("2027-01-15T09:01:00+01:00", 60),
        (DATE, 0), ("Fri Jan 15 08:02:00 2027", 120),
    ],
)  # fmt: skip
def test_a_reset_is_a_duration_a_number_or_a_moment(value: str, seconds: float) -> None:
    assert wait_of("X-RateLimit-Reset", value) == seconds


def test_a_year_of_two_digits_is_never_more_than_fifty_years_ahead() -> None:
    now_us = NOW_US  # in 2027
    assert until_us("Sunday, 06-Nov-94 08:49:37 GMT", now_us) == 0  # 1994
    assert http_date_us("Monday, 06-Nov-28 08:49:37 GMT", now_us) == http_date_us("Mon, 06 Nov 2028 08:49:37 GMT", 0)
    assert http_date_us("Saturday, 06-Nov-77 08:49:37 GMT", now_us) == http_date_us("Sat, 06 Nov 2077 08:49:37 GMT", 0)
    assert http_date_us("Sunday, 06-Nov-78 08:49:37 GMT", now_us) == http_date_us("Mon, 06 Nov 1978 08:49:37 GMT", 0)


def test_a_leap_second_is_the_second_before_it() -> None:
    assert http_date_us("Sat, 31 Dec 2016 23:59:60 GMT", 0) == http_date_us("Sat, 31 Dec 2016 23:59:59 GMT", 0)


@given(st.text(max_size=40))
def test_no_text_in_a_field_raises(text: str) -> None:
    for name in ("RateLimit", "RateLimit-Reset", "RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After", "Date"):
        read_limit_fields({name: text, "Retry-After-Ms": text, "Age": text, "RateLimit-Limit": text}, now_us=NOW_US)


# --- structured fields, against an independent parser

_PIECES = st.sampled_from(
    ['"a"', '"b\\"c"', "tok", "*t", ";", "; ", ",", ", ", " ", "\t", "=", "r", "t", "r=5", "t=0", "q=1.5", "1.25",
     "x=?1", "?0", "-3", "y=:aGk=:", "z=@17", "-", "999999999999999", "1000000000000000", "(", ")", "R",
     "é", '%"a"', '"']
)  # fmt: skip


@given(st.lists(_PIECES, max_size=12).map("".join))
def test_lists_and_dictionaries_are_those_of_rfc_9651(text: str) -> None:
    for ours, kind in ((parse_list, "list"), (parse_dictionary, "dictionary")):
        ours_parsed: Any = ours(text)
        try:
            theirs_parsed: Any = http_sf.parse(text.encode(), tltype=kind)
        except (http_sf.StructuredFieldError, UnicodeEncodeError):
            assert ours_parsed is None, (kind, ours_parsed)
            continue
        if "(" in text:
            continue  # inner lists are no part of these fields
        if kind == "dictionary":
            assert integers(ours_parsed) == {
                name: value[0] for name, value in theirs_parsed.items() if type(value[0]) is int
            }
        else:
            parameters = [
                {name: value for name, value in given.items() if type(value) is int} for _, given in theirs_parsed
            ]
            assert [integers(given) for _, given in ours_parsed] == parameters


def integers(given: dict[str, Any] | None) -> dict[str, int]:
    assert given is not None
    return {name: value for name, value in given.items() if isinstance(value, int)}
