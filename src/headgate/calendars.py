"""Calendars: when the days, weeks, months and years of a time zone begin.

No transition and no store knows time zones. They get numbers: all borders from 1969 to 2117, which no clock passes,
computed once per process for each period and zone. See docs/algorithms.md#calendar-window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from hashlib import blake2b
from zoneinfo import ZoneInfo, available_timezones

from headgate.errors import ConfigError, MissingExtraError
from headgate.made_once import made_once

CALENDAR_PERIODS = ("day", "week", "month", "year")

LONGEST_US = {
    "day": 25 * 3_600_000_000,
    "week": 169 * 3_600_000_000,
    "month": 745 * 3_600_000_000,
    "year": 8785 * 3_600_000_000,
}
"""The longest window of each period, in a zone that does no more than set its clocks back by an hour."""

MEAN_US = {
    "day": 86_400_000_000,
    "week": 604_800_000_000,
    "month": 2_629_746_000_000,
    "year": 31_556_952_000_000,
}
"""The mean length of a window: 400 years have 146,097 days."""

Run = tuple[int, int]
"""(moment_us, length_us): from this moment on, until the next run, windows have this length."""

_EPOCH = datetime(1970, 1, 1)
_FIRST_YEAR, _LAST_YEAR = 1969, 2117
"""Clocks give moments from 1970 to 2112 (2**52 microseconds), and a state may be two windows later."""

_US = timedelta(microseconds=1)
_MOST_SUGGESTED, _LONGEST_SHOWN = 3, 64


@dataclass(frozen=True, slots=True)
class Calendar:
    """The windows of a `period` in a `zone`, from one border to the next."""

    period: str
    zone: str

    @property
    def number(self) -> int:
        """A number in [1, 2**52] that distinguishes it from other calendars, the same in every process."""
        digest = blake2b(f"{self.period} in {self.zone}".encode(), digest_size=8).digest()
        return 1 + (int.from_bytes(digest, "little") >> 12)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All windows; consecutive ones of the same length form a run."""
        return _runs(self.period, self.zone)

    def prepare(self) -> None:
        """Compute its windows now, once per process, which takes a tenth of a second: else the first request does."""
        _runs(self.period, self.zone)

    def window(self, now_us: int) -> tuple[int, int]:
        """(start_us, end_us) of the window of a moment."""
        runs = _runs(self.period, self.zone)
        first, length = runs[max(0, bisect_right(runs, now_us, key=_moment) - 1)]
        start = now_us - (now_us - first) % length
        return start, start + length

    def latest(self, now_us: int) -> int:
        """The start of the latest window that a clock can have fallen behind: two after that of `now_us`."""
        return self.window(self.window(now_us)[1])[1]


def check_zone(zone: object) -> str:
    """Check the name of a time zone; raises ConfigError for an unknown one, with similar names."""
    if not isinstance(zone, str):
        raise ConfigError(f'a time zone is text such as "Europe/Zurich", not {zone!r}')
    if _is_zone(zone):
        return zone
    known, shown = _known_zones(), zone[:_LONGEST_SHOWN]
    if not known:
        raise MissingExtraError(f'the time zone "{shown}", on a system that knows none,', extra="zones")
    near = [known[name] for name in get_close_matches(shown.lower(), known, n=_MOST_SUGGESTED, cutoff=0.8)]
    quoted = " or ".join(f'"{name}"' for name in dict.fromkeys(near))
    raise ConfigError(f'no time zone is called "{shown}"' + (f"; did you mean {quoted}?" if quoted else ""))


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # KeyError: not found; else the name is no path of a zone
        return False
    return True


def _known_zones() -> dict[str, str]:
    """Names of zones, by their lower-case forms and by their last parts: "zurich" is "Europe/Zurich"."""
    names = sorted(available_timezones())
    return {name.lower().rpartition("/")[2]: name for name in names} | {name.lower(): name for name in names}


def _moment(run: Run) -> int:
    return run[0]


@made_once
def _runs(period: str, zone: str) -> tuple[Run, ...]:
    borders = _borders(period, ZoneInfo(zone))
    runs: list[Run] = []
    start = next(borders)
    for end in borders:
        if end == start:
            continue  # a day that was skipped, as west of the date line on 2011-12-30
        if not runs or runs[-1][1] != end - start:
            runs.append((start, end - start))
        start = end
    return tuple(runs)


def _borders(period: str, zone: ZoneInfo) -> Iterator[int]:
    for midnight in _midnights(period):
        yield _first_moment(midnight, zone)


def _midnights(period: str) -> Iterator[datetime]:
    """The local time at which each window begins by the calendar."""
    first, last = datetime(_FIRST_YEAR, 1, 1), datetime(_LAST_YEAR, 1, 1)
    if period in ("day", "week"):
        step = timedelta(days=7 if period == "week" else 1)
        if period == "week":
            first -= timedelta(days=first.weekday())
        while first <= last:
            yield first
            first += step
        return
    for year in range(_FIRST_YEAR, _LAST_YEAR + 1):
        for month in range(1, 13 if period == "month" else 2):
            yield datetime(year, month, 1)


def _first_moment(midnight: datetime, zone: ZoneInfo) -> int:
    """The first moment at which the clocks of a zone show this time or a later one.

    Of a midnight that occurs twice that is the first one, of one that is skipped it is the change of the clocks.
    """
    before, after = _offset(midnight, zone), _offset(midnight.replace(fold=1), zone)
    if before >= after:
        return _since_epoch(midnight - before)
    earlier, later = midnight - after, midnight - before  # the change is after `earlier`, at the latest at `later`
    while later - earlier > timedelta(seconds=1):
        middle = earlier + (later - earlier) // timedelta(seconds=2) * timedelta(seconds=1)
        if _offset(middle.replace(tzinfo=UTC).astimezone(zone), zone) == before:
            earlier = middle
        else:
            later = middle
    return _since_epoch(later)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    offset = zone.utcoffset(moment)
    assert offset is not None  # a named zone has an offset at any time
    return offset


def _since_epoch(utc: datetime) -> int:
    return (utc - _EPOCH) // _US
