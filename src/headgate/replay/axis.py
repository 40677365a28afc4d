"""The time axis of a chart: stretches with events; the empty time between them is cut out.

A log may have ten busy minutes in each of four weeks. Bars of equal length over all of it would be days long, and
hide the minutes; so empty time between stretches is a break that shows its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headgate.replay.series import STEPS_S, Series
from headgate.replay.times import clock_text

_SECOND_US = 1_000_000
_DAY_S = 86_400
_MOST_SLOTS = 150
_FEWEST_SLOTS = 12
_MOST_BREAKS = 6
_SHORTEST_BREAK = 12
"""The fewest empty bars that make a break."""

_BREAK_SHARE = 0.035
_TICK_DISTANCE = 0.1
_MAJOR_DISTANCE = 0.25
_TICKS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800,
    1209600, 2592000, 7776000, 31536000,
)  # fmt: skip


class Stretch(NamedTuple):
    """Bars without a break: the number of the first one since the epoch, their count, and the slot of the first."""

    first: int
    bars: int
    slot: float


class Break(NamedTuple):
    """Empty time that is cut out: its place, as shares of the width from 0 to 1, and its length."""

    start: float
    end: float
    length_us: int


class Tick(NamedTuple):
    """A time that is labelled below the axis. `day` is "" where it is the same as that of the tick before.

    Ticks that are not `major` are left out where there is little room.
    """

    place: float
    text: str
    day: str
    major: bool


@dataclass(frozen=True, slots=True)
class Axis:
    """The places of times: bars of `step_us` in slots of equal width."""

    step_us: int
    stretches: tuple[Stretch, ...]
    slots: float

    def slot(self, index: int) -> float | None:
        """The slot of a bar by its number since the epoch; None for one in a break."""
        for first, bars, slot in self.stretches:
            if first <= index < first + bars:
                return slot + index - first
        return None

    def breaks(self) -> list[Break]:
        """The breaks between the stretches."""
        return [
            Break(
                (before.slot + before.bars) / self.slots,
                after.slot / self.slots,
                (after.first - before.first - before.bars) * self.step_us,
            )
            for before, after in zip(self.stretches, self.stretches[1:], strict=False)
        ]

    def ticks(self) -> list[Tick]:
        """Ticks at round times, and at the beginning of each stretch, as many as have room."""
        bars = sum(stretch.bars for stretch in self.stretches)
        span_s = bars * self.step_us // _SECOND_US
        every_s = next((step for step in _TICKS_S if span_s <= 8 * step), _TICKS_S[-1])
        times_us: dict[float, int] = {}
        for stretch in self.stretches:  # the beginnings come first, so that they have room
            _add_if_room(times_us, self._place(stretch, stretch.first * self.step_us), stretch.first * self.step_us)
        for stretch in self.stretches:
            start_us, end_us = stretch.first * self.step_us, (stretch.first + stretch.bars) * self.step_us
            every_us = every_s * _SECOND_US
            for moment_us in range(-(-start_us // every_us) * every_us, end_us, every_us):
                _add_if_room(times_us, self._place(stretch, moment_us), moment_us)
        return list(_ticks(sorted(times_us.items()), by_day=every_s >= _DAY_S, seconds=every_s < 60))

    def _place(self, stretch: Stretch, moment_us: int) -> float:
        return (stretch.slot + moment_us / self.step_us - stretch.first) / self.slots


def axis_of(series: Series) -> Axis:
    """The axis with the shortest bars on which all events have room."""
    axis: Axis | None = None
    for step_s in STEPS_S:
        if step_s * _SECOND_US < series.step_us:
            continue
        axis = _axis(series, step_s * _SECOND_US)
        if axis.slots <= _MOST_SLOTS and len(axis.stretches) <= _MOST_BREAKS + 1:
            break
    assert axis is not None  # one of the steps is that of the series
    return axis


def _axis(series: Series, step_us: int) -> Axis:
    ratio = step_us // series.step_us
    indexes = sorted({index // ratio for index in series.counts})
    spans: list[tuple[int, int]] = []
    for index in indexes:
        if spans and index - spans[-1][1] <= _SHORTEST_BREAK:
            spans[-1] = (spans[-1][0], index)
        else:
            spans.append((index, index))
    bars = sum(last - first + 1 for first, last in spans)
    width = max(2.0, bars * _BREAK_SHARE)
    stretches = []
    slot = 0.0
    for first, last in spans:
        stretches.append(Stretch(first, last - first + 1, slot))
        slot += last - first + 1 + width
    return Axis(step_us, tuple(stretches), max(_FEWEST_SLOTS, slot - width if spans else 1))


def _add_if_room(times_us: dict[float, int], place: float, moment_us: int) -> None:
    if all(abs(place - other) >= _TICK_DISTANCE for other in times_us):
        times_us[place] = moment_us


def _ticks(times_us: list[tuple[float, int]], *, by_day: bool, seconds: bool) -> list[Tick]:
    ticks: list[Tick] = []
    day_before = major_day = ""
    major_place = -1.0
    for place, moment_us in times_us:
        text = clock_text(moment_us, seconds=True)
        day, shown = (text[:4], text[5:10]) if by_day else (text[:10], text[11 : 19 if seconds else 16])
        major = place - major_place >= _MAJOR_DISTANCE
        is_new = day != day_before or (major and day != major_day)
        ticks.append(Tick(place, shown, day if is_new else "", major))
        day_before = day
        if major:
            major_place, major_day = place, day
    return ticks


def length_text(length_us: int) -> str:
    """A duration in words, in the largest unit that it fills: `13 days`, `40 minutes`."""
    seconds = length_us // _SECOND_US
    for unit, length in (("day", _DAY_S), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = round(seconds / length)
            return f"1 {unit}" if count == 1 else f"{count:,} {unit}s"
    return f"{seconds} s"


def step_text(step_us: int) -> str:
    """The length of a bar in words."""
    text = length_text(step_us)
    if text.endswith(" s"):
        return "second" if text == "1 s" else f"{text}econds"
    return text.removeprefix("1 ")
