"""Charts of a replay: bars as inline SVG that fill any width, with labels beside them that are never scaled.

They have no scripts and fetch nothing. Colours are CSS variables of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from headgate.replay.axis import Axis, length_text
from headgate.replay.series import Series
from headgate.replay.times import clock_text

_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
_UNIT = 10
"""The width of a slot in the picture."""

_HEIGHT = 1000
_CLOSEST = 0.08
"""The smallest distance of two labels of a scale, as a share of its height."""


class Bar(NamedTuple):
    """The requests that passed and were refused in one step of time, and the slot of the bar."""

    start_us: int
    slot: float
    passed: int
    refused: int


def bars_of(series: Series, axis: Axis) -> list[Bar]:
    """The bars of a series on an axis; none lies in a break, as the axis was made of a series that includes it."""
    sums: dict[int, list[int]] = {}
    for index, (passed, refused) in series.counts.items():
        counts = sums.setdefault(index * series.step_us // axis.step_us, [0, 0])
        counts[0] += passed
        counts[1] += refused
    placed = [(index, axis.slot(index), counts) for index, counts in sorted(sums.items())]
    return [Bar(index * axis.step_us, slot, *counts) for index, slot, counts in placed if slot is not None]


def time_chart(
    series: Series,
    axis: Axis,
    *,
    height: int,
    label: str,
    names: tuple[str, str] = ("passed", "refused"),
    number: Callable[[int], str] = "{:,}".format,
    level: Callable[[float], str] | None = None,
) -> str:
    """A chart of passed requests and, on top of them, refused ones, over time.

    `names` are those of the two counts, `number` formats a count, and `level` a value of the scale.
    """
    bars = bars_of(series, axis)
    top = _round_up(max((bar.passed + bar.refused for bar in bars), default=0))
    scale = _HEIGHT / top
    groups = []
    for bar in bars:
        passed, refused = bar.passed * scale, _least(bar.refused * scale, bar.refused, height)
        first, second = f"{number(bar.passed)} {names[0]}", f"{number(bar.refused)} {names[1]}"
        title = f"{clock_text(bar.start_us, seconds=True)} UTC: {first}, {second}"
        groups.append(
            _group(bar, title, ("passed", _HEIGHT - passed, passed), ("refused", _HEIGHT - passed - refused, refused))
        )
    levels = [(0.0, top), (0.5, top / 2), (1.0, 0)]
    return _figure(axis, groups, levels, height=height, label=label, level=level or _short)


def difference_chart(series: Series, axis: Axis, *, height: int, label: str) -> str:
    """A chart of newly refused requests above a line, and newly passed ones below it, over time."""
    bars = bars_of(series, axis)
    up = max((bar.refused for bar in bars), default=0)
    down = max((bar.passed for bar in bars), default=0)
    up_top, down_top = (_round_up(most) if most else 0 for most in (up, down))
    scale = _HEIGHT / max(1, up_top + down_top)
    zero = up_top * scale
    groups = []
    for bar in bars:
        above, below = (_least(count * scale, count, height) for count in (bar.refused, bar.passed))
        title = (
            f"{clock_text(bar.start_us, seconds=True)} UTC: {bar.refused:,} newly refused, {bar.passed:,} newly passed"
        )
        groups.append(_group(bar, title, ("refused", zero - above, above), ("passed", zero, below)))
    middle = zero / _HEIGHT
    labels = [(place, count) for place, count in ((0.0, up_top), (1.0, down_top)) if abs(place - middle) > _CLOSEST]
    return _figure(axis, groups, [*labels, (middle, 0)], height=height, label=label, level=_short)


def key_bars(counts: Sequence[tuple[str, int]], *, css_class: str, number: Callable[[int], str] = "{:,}".format) -> str:
    """Keys with their counts, which `number` formats, as rows with bars."""
    most = max(1, *(count for _, count in counts)) if counts else 1
    rows = "".join(
        f'<tr><td class="key">{escape(key)}</td>'
        f'<td class="bar"><i class="{css_class}" style="width:{100 * count / most:.1f}%"></i></td>'
        f'<td class="num">{number(count)}</td></tr>'
        for key, count in counts
    )
    return f'<table class="keys">{rows}</table>'


def _group(bar: Bar, title: str, *boxes: tuple[str, float, float]) -> str:
    rects = "".join(
        f'<rect class="{css_class}" x="{bar.slot * _UNIT:.1f}" y="{y:.1f}" width="{_UNIT}" height="{height:.1f}"/>'
        for css_class, y, height in boxes
        if height
    )
    return f"<g>{rects}<title>{title}</title></g>"


def _figure(
    axis: Axis,
    groups: Sequence[str],
    levels: Sequence[tuple[float, float]],
    *,
    height: int,
    label: str,
    level: Callable[[float], str],
) -> str:
    width = axis.slots * _UNIT
    grid = "".join(
        f'<line x1="0" x2="{width:.1f}" y1="{place * _HEIGHT:.1f}" y2="{place * _HEIGHT:.1f}"/>' for place, _ in levels
    )
    scale = "".join(f'<span style="top:{100 * place:.1f}%">{level(value)}</span>' for place, value in levels)
    breaks = "".join(
        f'<span class="break" style="left:{100 * start:.2f}%;width:{100 * (end - start):.2f}%">'
        f"<b>{length_text(length_us)}</b></span>"
        for start, end, length_us in axis.breaks()
    )
    ticks = "".join(
        f'<span class="{_tick_class(tick.place, major=tick.major)}" style="left:{100 * tick.place:.2f}%">{tick.text}'
        f"<small>{tick.day}</small></span>"
        for tick in axis.ticks()
    )
    return (
        f'<div class="chart" style="--height:{height}px" role="img" aria-label="{escape(label)}">'
        f'<div class="scale">{scale}</div><div class="plot">'
        f'<svg viewBox="0 0 {width:.1f} {_HEIGHT}" preserveAspectRatio="none">'
        f'<g class="grid">{grid}</g>\n' + "\n".join(groups) + f"</svg>{breaks}</div>"
        f'<div class="ticks">{ticks}</div></div>'
    )


def _tick_class(place: float, *, major: bool) -> str:
    names = ["major"] if major else []
    if place < 0.04:
        names.append("first")
    elif place > 0.94:
        names.append("last")
    return " ".join(names)


def _least(size: float, count: int, height: int) -> float:
    """A size that is visible if the count is not 0: at least two pixels."""
    return max(size, 2 * _HEIGHT / height) if count else 0


def _round_up(value: int) -> int:
    """The next round number that is at least `value`."""
    unit = 1
    while True:
        for factor in _ROUND:
            if factor * unit >= value and factor * unit == int(factor * unit):
                return max(2, int(factor * unit))
        unit *= 10


def _short(value: float) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
