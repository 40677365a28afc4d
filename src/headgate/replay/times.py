"""Times as logs write them, in microseconds since the Unix epoch.

`17/May/2015:10:05:03 +0000`, ISO 8601 and its kin with a space, seconds, milli-, micro- or nanoseconds
since the epoch with or without a fraction, the three forms of HTTP, and what Python's `ctime` prints.
A time without a zone is in the zone that the reader was given.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_to_datetime

_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_CLF = re.compile(
    r"(\d{1,2})/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?([+-]\d{4}|[+-]\d\d:\d\d|Z))?"
)
_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))? ?(Z|UTC|GMT|[+-]\d\d:?\d\d|[+-]\d\d)?"
)
_NUMBER = re.compile(r"(\d{1,20})(?:[.,](\d{1,9}))?")
_CTIME = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? (\d{4})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_US = 1 << 52
_MOST_MINUTES = 4096


class UnknownTime(ValueError):
    """A text that is no time in any known form."""


class TimeReader:
    """Reads times, those without a zone in `zone` (UTC).

    Remembers the minutes it has met, for most lines of a log share theirs with others.
    """

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone or UTC
        self.naive_is_utc = zone is None
        self._minutes: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Microseconds since the epoch; raises UnknownTime."""
        # The two forms that nearly all logs use, when they have all their digits.
        if len(text) == 26 and text[2] == "/" and text[17] == ":":
            head, seconds, zone = text[:17], text[18:20], text[20:]
            if seconds.isdigit():
                return self._minute(head, zone) + int(seconds) * 1_000_000
        elif len(text) == 26 and text[4] == "-" and text[16] == ":" and text[19] == ".":
            seconds, fraction = text[17:19], text[20:]
            if seconds.isdigit() and fraction.isdigit():
                return self._minute(text[:16], "") + int(seconds) * 1_000_000 + int(fraction)
        return self._any(text)

    def _minute(self, head: str, zone: str) -> int:
        name = head + zone
        base = self._minutes.get(name)
        if base is None:
            base = self._any(f"{head}:00{zone}")
            if len(self._minutes) >= _MOST_MINUTES:
                self._minutes.clear()
            self._minutes[name] = base
        return base

    def _any(self, text: str) -> int:
        text = text.strip()
        try:
            time_us = self._numbers(text)
            if time_us is None:
                time_us = _microseconds(parsedate_to_datetime(text))
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            raise UnknownTime(f"{text[:40]!r} is no time that can be read") from error
        if not 0 <= time_us <= _LATEST_US:
            raise UnknownTime(f"{text[:40]!r} lies before 1970 or after 2112")
        return time_us

    def _numbers(self, text: str) -> int | None:
        """A time of one of the forms made of numbers; None for the others."""
        if match := _CLF.fullmatch(text):
            day, month, year, hour, minute, second, fraction, zone = match.groups()
            numbers = (int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second))
        elif match := _ISO.fullmatch(text):
            *parts, fraction, zone = match.groups()
            year_, month_, day_, hour_, minute_, second_ = map(int, parts)
            numbers = (year_, month_, day_, hour_, minute_, second_)
        elif match := _CTIME.fullmatch(text):
            month, day, hour, minute, second, fraction, year = match.groups()
            numbers = (int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second))
            zone = None
        elif match := _NUMBER.fullmatch(text):
            return _since_epoch(match[1], match[2] or "")
        else:
            return None
        return self._moment(numbers, fraction or "", zone)

    def _moment(self, numbers: tuple[int, int, int, int, int, int], fraction: str, zone: str | None) -> int:
        year, month, day, hour, minute, second = numbers
        # A leap second is the first of the next minute: 23:59:60 is 00:00:00.
        leap = second == 60
        moment = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=_zone(zone) or self._zone)
        return _microseconds(moment) + leap * 1_000_000 + int(fraction[:6].ljust(6, "0"))


def _since_epoch(digits: str, fraction: str) -> int:
    """A number of seconds, or of whatever unit its length says: 11 digits of seconds last until the year 5138."""
    for most, in_us in ((11, 1_000_000), (14, 1_000), (17, 1)):
        if len(digits) <= most:
            rest = int(fraction[:9].ljust(9, "0")) * in_us // 10**9 if fraction else 0
            return int(digits) * in_us + rest
    return int(digits) // 1000


def _zone(text: str | None) -> tzinfo | None:
    if text is None:
        return None
    if text in ("Z", "UTC", "GMT"):
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def iso_time(time_us: int) -> str:
    """A moment as ISO 8601 in UTC, `2015-09-02T10:42:51.003372Z`."""
    moment = _EPOCH + timedelta(microseconds=time_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{time_us % 1_000_000:06d}Z" if time_us % 1_000_000 else "Z")
