"""Draws the pictures of docs/algorithms.md: every algorithm under the same traffic, decided by the engine itself.

`make docs` runs this. The same code gives the same bytes: there is no date in the files, and their
ids come from a fixed salt. Colours are of middle lightness on no background, so that the pictures
read on light and on dark pages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headgate import Limiter, LimitReading
from headgate.testing import ManualClock

FOLDER = Path(__file__).parent / "pictures"
EPOCH_US = 1_800_000_000_000_000
"""Second 0 of the pictures; a border of all windows."""

SECOND_US = 1_000_000
WINDOW_S = 10
QUOTA = 10
FIRST_S, LAST_S = 6, 48

TEXT = "#6e7781"
PASSED = "#2f81c9"
REFUSED = "#d9641e"
LEAVING = "#1a9a7a"
RECENT = "#a05cc4"

STYLE: dict[Any, Any] = {  # matplotlib 3.11 has a type for these names, 3.10 has not
    "svg.hashsalt": "headgate",
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True, slots=True)
class Run:
    """What became of the traffic under one limit; times in microseconds, `levels` and `recent` at `times`.

    `leaves` are the moments at which admitted requests proceed, `recent` how many of those lie in
    the last ten seconds.
    """

    passed: tuple[int, ...]
    refused: tuple[int, ...]
    leaves: tuple[int, ...]
    times: tuple[int, ...]
    levels: tuple[float, ...]
    recent: tuple[int, ...]

    @property
    def most(self) -> int:
        """The most that proceeded within any ten seconds."""
        return max(self.recent)


Level = Callable[[LimitReading], float]


@dataclass(frozen=True, slots=True)
class Scene:
    """One algorithm: its limit as text, what to draw of its state, and what to say about it."""

    name: str
    limits: str
    level: Level
    level_name: str
    title: str
    windows: bool = False
    queues: bool = False


def remaining(reading: LimitReading) -> float:
    """Whole requests that would pass now."""
    return reading.remaining


def tokens(reading: LimitReading) -> float:
    """Tokens in the bucket, of which one flows in each second, with their fraction."""
    return QUOTA - reading.reset_after


def poured(reading: LimitReading) -> float:
    """What is in the leaky bucket, of which one leaks each second, with its fraction."""
    return reading.reset_after


SCENES = (
    Scene(
        "fixed window",
        "10 per 10 seconds fixed",
        remaining,
        "remaining",
        "A fixed window starts anew at each border: {most} requests pass within 10 seconds, twice the limit",
        windows=True,
    ),
    Scene(
        "sliding window log",
        "10 per 10 seconds",
        remaining,
        "remaining",
        "A sliding window log is exact: never more than {most} requests pass within 10 seconds",
    ),
    Scene(
        "sliding window counter",
        "10 per 10 seconds counter",
        remaining,
        "remaining",
        "A sliding window counter estimates from two windows: up to {most} requests pass within 10 seconds",
        windows=True,
    ),
    Scene(
        "token bucket",
        "1/second burst 10",
        tokens,
        "tokens left",
        "A token bucket lets its burst pass, then one request a second: up to {most} within 10 seconds",
    ),
    Scene(
        "leaky bucket",
        "1/second leaky 10",
        poured,
        "poured in, not leaked yet",
        "A leaky bucket counts what has not leaked out yet, and decides as a token bucket does",
    ),
    Scene(
        "leaky queue",
        "1/second queue 9",
        poured,
        "in the queue",
        "A leaky queue lets in what a token bucket would, and lets it leave one second apart",
        queues=True,
    ),
)


def every(gap_ms: int, start_ms: int, count: int) -> list[int]:
    """Moments in microseconds, evenly spaced."""
    return [(start_ms + gap_ms * index) * 1000 for index in range(count)]


def traffic() -> list[int]:
    """A burst on each side of a border, twice the rate for a while, silence, and one more burst."""
    return every(160, 8050, 12) + every(160, 10_100, 12) + every(500, 15_000, 29) + every(120, 36_000, 13)


def play(scene: Scene) -> Run:
    """Run the traffic through a limiter on a clock of its own, looking at the state on the way."""
    clock = ManualClock(EPOCH_US)
    limiter = Limiter(scene.limits, clock=clock)
    arrivals = set(traffic())
    looks = set(range(FIRST_S * SECOND_US, LAST_S * SECOND_US + 1, SECOND_US // 20))
    before = {moment - 1 for moment in arrivals | looks}
    passed: list[int] = []
    refused: list[int] = []
    leaves: list[int] = []
    levels: list[float] = []
    times = sorted(arrivals | looks | before)
    for moment in times:
        clock.set(EPOCH_US + moment)
        if moment in arrivals:
            decision = limiter.hit("client")
            (passed if decision else refused).append(moment)
            leaves += [moment + decision.delay_us] if decision else []
        levels.append(scene.level(limiter.peek("client", 0).limits[0]))
    return Run(
        passed=tuple(passed),
        refused=tuple(refused),
        leaves=tuple(leaves),
        times=tuple(times),
        levels=tuple(levels),
        recent=tuple(recent(leaves, times)),
    )


def recent(leaves: Sequence[int], times: Iterable[int]) -> list[int]:
    """How many of `leaves`, which are in order, lie within the last ten seconds of each time."""
    return [bisect_right(leaves, time) - bisect_right(leaves, time - WINDOW_S * SECOND_US) for time in times]


def seconds(times: Iterable[int]) -> list[float]:
    """Microseconds as the axis shows them."""
    return [time / SECOND_US for time in times]


def draw_ticks(axes: Axes, moments: Sequence[int], lane: float, colour: str, *, tall: float = 0.7) -> None:
    """Requests as upright strokes in a lane."""
    axes.vlines(seconds(moments), lane - tall / 2, lane + tall / 2, colors=colour, linewidth=1.6)


def draw_borders(axes: Axes) -> None:
    """Where one window ends and the next begins."""
    for border in range(FIRST_S // WINDOW_S * WINDOW_S + WINDOW_S, LAST_S, WINDOW_S):
        axes.axvline(border, color=TEXT, linewidth=1, linestyle=(0, (4, 3)), zorder=0)


def draw_requests(axes: Axes, scene: Scene, run: Run) -> None:
    """The upper panel: what passed, what was refused, and for a queue how each request waits."""
    lanes = {"passed": (run.passed, PASSED), "refused": (run.refused, REFUSED)}
    if scene.queues:
        lanes = {"let in": lanes["passed"], "leaves": (run.leaves, LEAVING), "refused": lanes["refused"]}
    heights = (2.5, 1, 0) if scene.queues else (1, 0)
    for (moments, colour), height in zip(lanes.values(), heights, strict=True):
        draw_ticks(axes, moments, height, colour)
    if scene.queues:
        for start_end in zip(run.passed, run.leaves, strict=True):
            axes.plot(seconds(start_end), (2.1, 1.4), color=LEAVING, linewidth=0.6)
    axes.set_yticks(list(heights), list(lanes))
    axes.set_ylim(-0.6, heights[0] + 0.6)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def draw_state(axes: Axes, scene: Scene, run: Run) -> None:
    """The lower panel: the state of the limit, and what proceeded within the last ten seconds."""
    colour = LEAVING if scene.queues else PASSED
    verb = "left" if scene.queues else "passed"
    times = seconds(run.times)
    axes.fill_between(times, run.levels, color=colour, alpha=0.35, linewidth=0, label=scene.level_name)
    axes.plot(times, run.recent, color=RECENT, linewidth=1.5, label=f"{verb} in the last 10 s")
    axes.axhline(QUOTA, color=TEXT, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_ylim(0, 21.5)
    axes.set_yticks([0, 5, 10, 15, 20])
    axes.set_ylabel("requests")
    axes.set_xlabel("time (s)")
    axes.set_title(scene.limits, loc="left", family="monospace", fontsize=9)
    axes.legend(loc="lower right", ncols=2, bbox_to_anchor=(1.0, 0.98), borderaxespad=0)


def picture(scene: Scene, run: Run) -> Figure:
    """One algorithm: its requests above, its state below."""
    figure = Figure(figsize=(9.2, 4.5 if scene.queues else 4.1), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.4 if scene.queues else 0.8, 1.6))
    draw_requests(upper, scene, run)
    draw_state(lower, scene, run)
    lower.set_xlim(FIRST_S, LAST_S)
    for axes in (upper, lower):
        if scene.windows:
            draw_borders(axes)
    figure.suptitle(scene.title.format(most=run.most), fontsize=12, x=0.01, ha="left")
    return figure


def overview(runs: Sequence[tuple[Scene, Run]]) -> Figure:
    """All algorithms under the same traffic, one above the other."""
    figure = Figure(figsize=(9.2, 6.2), layout="constrained")
    rows = figure.subplots(len(runs) + 1, 1, sharex=True)
    draw_ticks(rows[0], traffic(), 0.5, TEXT, tall=0.8)
    label_row(rows[0], "the traffic", f"{len(traffic())} requests")
    for axes, (scene, run) in zip(rows[1:], runs, strict=True):
        draw_ticks(axes, run.leaves, 1, LEAVING if scene.queues else PASSED)
        draw_ticks(axes, run.refused, 0, REFUSED, tall=0.5)
        verb = "leave" if scene.queues else "pass"
        label_row(axes, scene.name, f"{len(run.leaves)} {verb},\nat most {run.most} in 10 s", scene.limits)
        if scene.windows:
            draw_borders(axes)
    rows[-1].tick_params(axis="x", labelbottom=True, length=3)
    rows[-1].spines["bottom"].set_visible(True)
    rows[-1].set_xlabel("time (s)")
    rows[-1].set_xlim(FIRST_S, LAST_S)
    figure.suptitle("The same traffic passes each algorithm in its own way", fontsize=12, x=0.01, ha="left")
    return figure


def label_row(axes: Axes, name: str, result: str, limits: str = "") -> None:
    """A row of the overview: its name and limit on the left, its numbers on the right."""
    axes.set_ylim(-0.5, 1.6)
    axes.set_yticks([])
    axes.text(-0.015, 0.66 if limits else 0.5, name, transform=axes.transAxes, ha="right", va="center")
    axes.text(-0.015, 0.32, limits, transform=axes.transAxes, ha="right", va="center", family="monospace", fontsize=8)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.text(1.01, 0.5, result, transform=axes.transAxes, va="center", fontsize=9)


def save(figure: Figure, name: str) -> None:
    """Write a picture without anything in it that differs from run to run."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name.replace(' ', '-')}.svg"
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def main() -> None:
    """Draw everything."""
    with mpl.rc_context(STYLE):
        runs = [(scene, play(scene)) for scene in SCENES]
        for scene, run in runs:
            save(picture(scene, run), scene.name)
        save(overview(runs), "overview")


if __name__ == "__main__":
    main()
