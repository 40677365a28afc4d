"""Parses the moments and durations in headers: HTTP dates, RFC 3339, numbers of seconds, `6m0s`.

All results are whole microseconds, rounded up. Malformed text gives None, never an exception: a server must not be
able to break its client.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from headgate.clock import since_epoch_us, utc_moment

US = 1_000_000
_SECONDS_SINCE_EPOCH = 10**9
_MILLISECONDS_SINCE_EPOCH = 10**12

_NUMBER = re.compile(r"([0-9]{1,40})(?:\.([0-9]{1,40}))?")
_PART = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?)(ns|us|µs|ms|s|m|h|d)")
_UNITS_NS = {
    "ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9,
}  # fmt: skip

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH, _DAY = f"(?P<month>{'|'.join(_MONTHS)})", "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_WEEKDAY = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_HTTP_DATES = (
    re.compile(rf"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(rf"{_WEEKDAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(rf"{_DAY} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
)


def http_date_us(text: str, now_us: int) -> int | None:
    """Return the moment of an HTTP date in any of the three formats of RFC 9110, 5.6.7.

    `now_us` determines the century of a year with two digits: it is at most 50 years ahead.
    """
    for form in _HTTP_DATES:
        match = form.fullmatch(text)
        if match is None:
            continue
        year, second = int(match["year"]), min(int(match["second"]), 59)  # 60 is a leap second
        if len(match["year"]) == 2:
            this_year = utc_moment(now_us).year
            year += this_year // 100 * 100
            if year > this_year + 50:
                year -= 100
        month = _MONTHS.index(match["month"]) + 1
        return _moment_us(year, month, int(match["day"]), int(match["hour"]), int(match["minute"]), second)
    return None


def seconds_us(text: str) -> int | None:
    """Parse a number of seconds, perhaps with a fraction."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    fraction = match[2] or ""
    return int(match[1]) * US + int(fraction[:6].ljust(6, "0")) + bool(fraction[6:].strip("0"))


def until_us(text: str, now_us: int) -> int | None:
    """Return the time until the reset in a field: a duration, a number of seconds, or a moment.

    A number above 10**9 is seconds since the epoch, one above 10**12 milliseconds. A moment in the past gives 0.
    """
    number_us = seconds_us(text)
    if number_us is not None:
        if number_us > _MILLISECONDS_SINCE_EPOCH * US:
            return max(0, -(-number_us // 1000) - now_us)
        return max(0, number_us - now_us) if number_us > _SECONDS_SINCE_EPOCH * US else number_us
    duration_us = _duration_us(text)
    if duration_us is not None:
        return duration_us
    moment_us = http_date_us(text, now_us)
    if moment_us is None:
        moment_us = _rfc_3339_us(text.upper())
    return None if moment_us is None else max(0, moment_us - now_us)


def _duration_us(text: str) -> int | None:
    """Parse a duration as Go writes it: `6m0s`, `20ms`, `1.5s`."""
    total_ns = position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            return None
        whole, _, fraction = part[1].partition(".")
        scale = 10 ** len(fraction)
        total_ns += -(-int(whole + fraction) * _UNITS_NS[part[2]] // scale)
        position = part.end()
    return -(-total_ns // 1000) if text else None


def _rfc_3339_us(text: str) -> int | None:
    if _RFC_3339.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return since_epoch_us(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def _moment_us(*parts: int) -> int | None:
    try:
        year, month, day, hour, minute, second = parts
        return since_epoch_us(datetime(year, month, day, hour, minute, second, tzinfo=UTC))
    except ValueError:
        return None
