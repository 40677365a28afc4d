"""Parses the times of logs, to microseconds since the Unix epoch.

The forms are `17/May/2015:10:05:03 +0000`, ISO 8601 and its variants with a space, seconds, milli-, micro- or
nanoseconds since the epoch with or without a fraction, the three forms of HTTP, and those of Python's `ctime`.
A time without a zone is in the reader's zone. Times may also lack their month, `29:23:53:25`, or their date,
`23:53:25`.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_to_datetime

from headgate.clock import since_epoch_us, utc_moment

_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_FRACTION = r"(?:[.,](\d{1,9}))?"
_OFFSET = r"(?: ?(Z|UTC|GMT|[+-]\d\d:?\d\d|[+-]\d\d))?"
_CLF = re.compile(rf"(\d{{1,2}})/([A-Z][a-z]{{2}})/(\d{{4}})[: ](\d\d?):(\d\d):(\d\d){_FRACTION}{_OFFSET}", re.ASCII)
_ISO = re.compile(rf"(\d{{4}})([-/]?)(\d\d)\2(\d\d)[T ](\d\d?):(\d\d):(\d\d){_FRACTION}{_OFFSET}", re.ASCII)
_NUMBER = re.compile(r"(\d{1,20})(?:[.,](\d{1,9}))?", re.ASCII)
_CTIME = re.compile(
    rf"[A-Z][a-z]{{2}} ([A-Z][a-z]{{2}}) {{1,2}}(\d{{1,2}}) (\d\d):(\d\d):(\d\d){_FRACTION} (\d{{4}})", re.ASCII
)
_DAY_AND_CLOCK = re.compile(rf"(?:(\d{{1,2}}):)?(\d\d?):(\d\d):(\d\d){_FRACTION}{_OFFSET}", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d\d)(?:-(\d\d))?", re.ASCII)
_LATEST_US = 1 << 52
_MOST_MINUTES = 4096


_HALF_A_DAY_S = 43_200
_EARLIER_DAYS = 3
"""The number of days that a log may go back before its first line, where lines are out of order."""


class UnknownTime(ValueError):
    """A text that is not a time in any known form."""


class TimeReader:
    """Parses times; those without a zone are in `zone` (UTC).

    The reader caches minutes, since most lines of a log share theirs with others. `calendar` gives the dates of times
    without one; each log has its own. Of an hour that the end of summer time repeats, a time is the one that is nearer
    to the time before it in the log, and the first one at the start of a log.
    """

    def __init__(self, zone: tzinfo | None = None, calendar: Calendar | None = None) -> None:
        self._given_zone = zone
        self._zone = zone or UTC
        self.naive_is_utc = zone is None
        self._minutes: dict[str, int] = {}
        self._calendar = calendar or Calendar()
        self._before_us: int | None = None
        self._is_repeated = False

    @property
    def zone(self) -> tzinfo:
        """The zone of times without one."""
        return self._zone

    def of_log(self, calendar: Calendar) -> TimeReader:
        """A reader of the same zone for a log whose times may lack their date."""
        return TimeReader(self._given_zone, calendar)

    def __call__(self, text: str) -> int:
        """Microseconds since the epoch; raises UnknownTime."""
        # The forms of nearly all logs, with all their digits.
        if len(text) == 26 and text[2] == "/" and text[17] == ":":
            head, seconds, zone = text[:17], text[18:20], text[20:]
            if seconds.isascii() and seconds.isdecimal() and seconds < "60":
                return self._minute(head, zone, text) + int(seconds) * 1_000_000
        elif len(text) == 26 and text[4] == "-" and text[16] == ":" and text[19] == ".":
            seconds, fraction = text[17:19], text[20:]
            digits = seconds + fraction
            if digits.isascii() and digits.isdecimal() and seconds < "60":
                return self._minute(text[:16], "", text) + int(seconds) * 1_000_000 + int(fraction)
        elif len(text) == 19 and text[4] == "-" and text[16] == ":":
            seconds = text[17:]
            if seconds.isascii() and seconds.isdecimal() and seconds < "60":
                return self._minute(text[:16], "", text) + int(seconds) * 1_000_000
        return self._parse_any(text)

    def _minute(self, head: str, zone: str, text: str) -> int:
        """The start of the minute of a text whose seconds are between `head` and `zone`."""
        name = head + zone
        base = self._minutes.get(name)
        if base is None:
            try:
                base = self._parse_any(f"{head}:00{zone}")
            except UnknownTime:
                self._parse_any(text)  # raises the same of the time as it is written
                raise
            if self._is_repeated:
                return base
            if len(self._minutes) >= _MOST_MINUTES:
                self._minutes.clear()
            self._minutes[name] = base
        self._before_us = base
        return base

    def _parse_any(self, text: str) -> int:
        text = text.strip()
        self._is_repeated = False
        try:
            time_us = self._parse_numbers(text)
            if time_us is None:
                time_us = _microseconds(parsedate_to_datetime(text))
        except UnknownTime as error:
            raise UnknownTime(f"{text[:40]!r} {error}") from error
        except (ValueError, TypeError, OverflowError, LookupError) as error:
            raise UnknownTime(f"{text[:40]!r} is no time that can be read") from error
        if not 0 <= time_us <= _LATEST_US:
            raise UnknownTime(f"{text[:40]!r} lies before 1970 or after 2112")
        self._before_us = time_us
        return time_us

    def _parse_numbers(self, text: str) -> int | None:
        """Parse a time of one of the numeric forms; None for the others."""
        if match := _CLF.fullmatch(text):
            day, month, year, hour, minute, second, fraction, zone = match.groups()
            numbers = (int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second))
        elif match := _ISO.fullmatch(text):
            year, _, *parts, fraction, zone = match.groups()
            month_, day_, hour_, minute_, second_ = map(int, parts)
            numbers = (int(year), month_, day_, hour_, minute_, second_)
        elif match := _CTIME.fullmatch(text):
            month, day, hour, minute, second, fraction, year = match.groups()
            numbers = (int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second))
            zone = None
        elif match := _NUMBER.fullmatch(text):
            return _since_epoch(match[1], match[2] or "")
        elif match := _DAY_AND_CLOCK.fullmatch(text):
            day, hour, minute, second, fraction, zone = match.groups()
            clock_s = int(hour) * 3600 + int(minute) * 60 + int(second)
            date_ = self._calendar.day(int(day)) if day else self._calendar.day_of_clock(clock_s)
            numbers = (date_.year, date_.month, date_.day, int(hour), int(minute), int(second))
        else:
            return None
        return self._time_us(numbers, fraction or "", zone)

    def _time_us(self, numbers: tuple[int, int, int, int, int, int], fraction: str, zone: str | None) -> int:
        year, month, day, hour, minute, second = numbers
        # A leap second is the first of the next minute: 23:59:60 is 00:00:00.
        leap = second == 60
        date_time = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=_zone(zone) or self._zone)
        start_us = _microseconds(date_time) if zone or self.naive_is_utc else self._nearer(date_time)
        return start_us + leap * 1_000_000 + int(fraction[:6].ljust(6, "0"))

    def _nearer(self, date_time: datetime) -> int:
        """Of a time that the end of summer time repeats, the one that is nearer to the time before it in the log."""
        first_us, second_us = _microseconds(date_time), _microseconds(date_time.replace(fold=1))
        self._is_repeated = second_us > first_us
        if not self._is_repeated or self._before_us is None:
            return first_us
        return second_us if second_us - self._before_us <= self._before_us - first_us else first_us


class Calendar:
    """Gives the dates of times in one log that lack them: times with only a day of the month, or only a clock time.

    `first` is the log's first day if the user stated it, and `month` is whether only the month was stated. Without
    `first` the log is assumed to have ended when its file was written, on `last`.
    """

    def __init__(self, first: date | None = None, *, month: bool = False, last: date | None = None) -> None:
        self._first = first
        self._earlier = timedelta(days=0 if month else _EARLIER_DAYS)
        self._last = last
        self._days: dict[int, date] = {}
        self._clock_s = -1
        self._days_after = 0
        self.guessed: date | None = None
        """The first day, where none was stated and the date of the file decided."""

    def day(self, number: int) -> date:
        """The date of a day of the month: the first one with this number since the log's beginning."""
        date_ = self._days.get(number)
        if date_ is None:
            if not 1 <= number <= 31:
                raise UnknownTime(f"has a day {number}, which no month has")
            first = self._first_day(number)
            date_ = self._days[number] = next(
                day
                for day in (first - self._earlier + timedelta(days=after) for after in range(62))
                if day.day == number
            )
        return date_

    def day_of_clock(self, clock_s: int) -> date:
        """The date of a clock time: the next day where the clock has gone back by more than half a day."""
        first = self._first_day(None)
        step = clock_s - self._clock_s if self._clock_s >= 0 else 0
        if step < -_HALF_A_DAY_S:
            self._days_after += 1
        elif step > _HALF_A_DAY_S and self._days_after:
            self._days_after -= 1
        self._clock_s = clock_s
        return first + timedelta(days=self._days_after)

    def _first_day(self, number: int | None) -> date:
        """The log's first day. `number` is its day of the month, if its first time has one."""
        if self._first is None:
            if self._last is None:
                raise UnknownTime("has no date")
            back = (self._last - timedelta(days=days) for days in range(62))
            self._first = self.guessed = next(day for day in back if number in (None, day.day))
        return self._first


def read_date(text: str) -> tuple[date, bool]:
    """Parse a date, `1995-08-29`, or a month, `1995-08`, as its first day; and whether it is only a month."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise UnknownTime(f"{text[:40]!r} is no date: write 1995-08-29, or 1995-08")
    try:
        date_ = date(int(match[1]), int(match[2]), int(match[3] or 1))
    except ValueError as error:
        raise UnknownTime(f"{text[:40]!r} is no date: {error}") from error
    return date_, match[3] is None


def is_clock(text: str) -> bool:
    """Whether a text is a clock time without a date."""
    match = _DAY_AND_CLOCK.fullmatch(text)
    return match is not None and match[1] is None


def _since_epoch(digits: str, fraction: str) -> int:
    """Parse seconds, or a smaller unit by the number of digits: 11 digits of seconds last until the year 5138."""
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


def _microseconds(date_time: datetime) -> int:
    if date_time.tzinfo is None:
        date_time = date_time.replace(tzinfo=UTC)
    return since_epoch_us(date_time)


def iso_time(time_us: int) -> str:
    """A time as ISO 8601 in UTC, `2015-09-02T10:42:51.003372Z`."""
    date_time = utc_moment(time_us)
    return date_time.strftime("%Y-%m-%dT%H:%M:%S") + (f".{time_us % 1_000_000:06d}Z" if time_us % 1_000_000 else "Z")


def clock_text(time_us: int, *, seconds: bool = False) -> str:
    """A time for people, in UTC: `2015-09-02 10:42`, or with its seconds."""
    return iso_time(time_us)[: 19 if seconds else 16].replace("T", " ")


def span_text(first_us: int, last_us: int) -> str:
    """A span of time for people, with its zone: `2015-09-02 10:42:51 to 11:03:07 UTC`."""
    first, last = clock_text(first_us, seconds=True), clock_text(last_us, seconds=True)
    return f"{first} to {last[11:] if last[:10] == first[:10] else last} UTC"
