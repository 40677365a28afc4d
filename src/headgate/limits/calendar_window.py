"""The limit that counts requests since the beginning of a day, week, month or year of a time zone."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from headgate.amounts import REQUESTS, Amount
from headgate.calendars import CALENDAR_PERIODS, LONGEST_US, MEAN_US, Calendar, check_zone
from headgate.errors import ConfigError
from headgate.limits.limit import Limit, count_argument, count_text, read_count, read_unit, repr_of, set_fields
from headgate.units import CompiledLimit, compile_calendar


@dataclass(frozen=True, slots=True, init=False, repr=False)
class CalendarWindow(Limit):
    """At most `limit` units in each `period` ("day", "week", "month" or "year") of the calendar in a time `zone`.

    A window begins with the first moment of the local day, of the week's Monday, of the month's or the year's first
    day, and ends where the next begins. `zone` is a name such as "Europe/Zurich". `period_us` is its mean length.
    """

    limit: int
    period: str
    zone: str
    of: str
    period_us: int = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride] - frozen
    compiled: CompiledLimit = field(compare=False)  # pyright: ignore[reportIncompatibleMethodOverride]
    algorithm: ClassVar[str] = "calendar_window"
    on_the_clock: ClassVar[bool] = True

    def __init__(self, *, limit: Amount, period: str, zone: str, of: str = REQUESTS) -> None:
        of = read_unit(self, of)
        count = read_count(self, "limit", limit, least=0, of=of)
        if period not in CALENDAR_PERIODS:
            raise ConfigError(f"CalendarWindow: period is one of {', '.join(CALENDAR_PERIODS)}, not {period!r}")
        calendar = Calendar(period, check_zone(zone))
        calendar.prepare()
        compiled = compile_calendar(self.algorithm, count, calendar)
        set_fields(self, limit=count, period=period, zone=zone, of=of, period_us=MEAN_US[period], compiled=compiled)

    @property
    def quota(self) -> int:
        return self.limit

    @property
    def period_name(self) -> str:
        return self.period

    def life_us(self, cost: int) -> int:
        return LONGEST_US[self.period]

    def border_us(self, near_us: int) -> int:
        if self.compiled.calendar is None:
            return near_us
        start_us, end_us = self.compiled.calendar.window(near_us)
        return start_us if near_us - start_us < end_us - near_us else end_us

    def scaled(self, share: Fraction) -> Limit:
        if share == 1 or self.limit == 0:
            return self
        count = count_argument(max(1, int(self.limit * share)), self.of)
        return CalendarWindow(limit=count, period=self.period, zone=self.zone, of=self.of)

    def __repr__(self) -> str:
        return repr_of(self, None, {"period": self.period, "zone": self.zone}, limit=self.limit)

    def __str__(self) -> str:
        return f"{count_text(self.limit, self.of)}/{self.period} in {self.zone}"
