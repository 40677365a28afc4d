"""Charts of a replay as inline SVG: no script, no font, nothing fetched. Colours are CSS variables of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from headgate.replay.judging import STEPS_S, Series
from headgate.replay.times import iso_time

_MOST_BARS = 150
_WIDTH = 960
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 10, 26
_SECOND_US = 1_000_000
_TICKS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800,
)  # fmt: skip
_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)


class Bar(NamedTuple):
    """What passed and what was refused in one stretch of time."""

    start_us: int
    passed: int
    refused: int


def bars_of(series: Series, start_us: int, end_us: int) -> tuple[list[Bar], int]:
    """The bars of a series from `start_us` to `end_us`, and the length of one in microseconds."""
    step_us = _step_us(series, start_us, end_us)
    first = start_us // step_us
    sums = [[0, 0] for _ in range((end_us // step_us) - first + 1)]
    for index, (passed, refused) in series.counts.items():
        place = index * series.step_us // step_us - first
        if 0 <= place < len(sums):
            sums[place][0] += passed
            sums[place][1] += refused
    return [Bar((first + place) * step_us, *both) for place, both in enumerate(sums)], step_us


def time_chart(bars: Sequence[Bar], step_us: int, *, height: int, label: str) -> str:
    """What passed and, on top of it, what was refused, over time."""
    most = max((bar.passed + bar.refused for bar in bars), default=0) or 1
    top = _round_up(most)
    plot_width, plot_height = _WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    slot = plot_width / max(1, len(bars))
    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">']
    for share in (0, 0.5, 1):
        y = _TOP + plot_height * (1 - share)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(top * share)}</text>'
        )
    for place, bar in enumerate(bars):
        if bar.passed + bar.refused:
            parts.append(_bar(bar, _LEFT + place * slot, max(1.0, slot - 1), top, plot_height))
    parts.extend(_time_ticks(bars, step_us, slot, height))
    return "\n".join([*parts, "</svg>"])


def key_bars(counts: Sequence[tuple[str, int]], *, css_class: str) -> str:
    """Keys with their counts, as bars of text rows."""
    most = max((count for _, count in counts), default=1)
    rows = "".join(
        f'<tr><td class="key" title="{escape(key)}">{escape(_clip(key))}</td>'
        f'<td class="bar"><i class="{css_class}" style="width:{100 * count / most:.1f}%"></i></td>'
        f'<td class="num">{count:,}</td></tr>'
        for key, count in counts
    )
    return f'<table class="keys">{rows}</table>'


def step_text(step_us: int) -> str:
    """The length of a bar in words."""
    seconds = step_us // _SECOND_US
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds % length == 0 and seconds >= length:
            count = seconds // length
            return unit if count == 1 else f"{count} {unit}s"
    return f"{seconds} seconds"


def _bar(bar: Bar, x: float, width: float, top: int, plot_height: float) -> str:
    passed = plot_height * bar.passed / top
    refused = plot_height * bar.refused / top
    floor = _TOP + plot_height
    title = f"{iso_time(bar.start_us)}: {bar.passed:,} passed, {bar.refused:,} refused"
    rects = ""
    if bar.passed:
        rects += (
            f'<rect class="passed" x="{x:.1f}" y="{floor - passed:.1f}" width="{width:.1f}" height="{passed:.1f}"/>'
        )
    if bar.refused:
        y = floor - passed - refused
        rects += f'<rect class="refused" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(refused, 1.5):.1f}"/>'
    return f"<g>{rects}<title>{title}</title></g>"


def _time_ticks(bars: Sequence[Bar], step_us: int, slot: float, height: int) -> list[str]:
    if not bars:
        return []
    span_s = len(bars) * step_us // _SECOND_US
    every_s = next((step for step in _TICKS_S if span_s / step <= 9), _TICKS_S[-1] * (1 + span_s // (9 * _TICKS_S[-1])))
    ticks = []
    tick_us = -(-bars[0].start_us // (every_s * _SECOND_US)) * every_s * _SECOND_US
    end_us = bars[-1].start_us + step_us
    while tick_us < end_us:
        x = _LEFT + (tick_us - bars[0].start_us) / step_us * slot
        text = iso_time(tick_us)
        shown = (
            text[:10]
            if every_s >= 86400
            else f"{text[5:10]} {text[11:16]}"
            if span_s > 86400
            else text[11 : 16 if every_s >= 60 else 19]
        )
        if x < _WIDTH - 40:
            ticks.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{shown}</text>')
        tick_us += every_s * _SECOND_US
    return ticks


def _step_us(series: Series, start_us: int, end_us: int) -> int:
    """A round length for the bars: a multiple of the series' own step, and few enough of them."""
    least_us = max((end_us - start_us) // _MOST_BARS, series.step_us)
    return next((step * _SECOND_US for step in STEPS_S if step * _SECOND_US >= least_us), STEPS_S[-1] * _SECOND_US)


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


def _clip(key: str) -> str:
    return key if len(key) <= 44 else key[:41] + "..."
