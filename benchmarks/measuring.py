"""How benchmarks measure: with a warm-up, in turns, repeatedly; results are the median and the spread."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Timed = Callable[[], float]
"""Does its work once and returns the nanoseconds that one unit of it took."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Nanoseconds a unit: the median of all rounds, the least and the most."""

    median_ns: float
    least_ns: float
    most_ns: float

    def __str__(self) -> str:
        return f"{self.median_ns:,.0f} ns ({self.least_ns:,.0f} to {self.most_ns:,.0f})"

    @property
    def per_second(self) -> float:
        return 1e9 / self.median_ns


def in_turns(subjects: Mapping[str, Timed], rounds: int = 9) -> dict[str, Measured]:
    """Measure subjects in turns, so that a noisy neighbour disturbs all of them alike. One round warms up."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for round_number in range(rounds + 1):
        for name, timed in subjects.items():
            gc.collect()
            gc.disable()
            try:
                took_ns = timed()
            finally:
                gc.enable()
            if round_number:
                times[name].append(took_ns)
    return {name: Measured(median(times_ns), min(times_ns), max(times_ns)) for name, times_ns in times.items()}


def timed_loop(work: Callable[[], object], units: int) -> Timed:
    """Time a loop that does `units` units of work."""

    def timed() -> float:
        start = time.perf_counter_ns()
        work()
        return (time.perf_counter_ns() - start) / units

    return timed


@dataclass(frozen=True, slots=True)
class Target:
    """A requirement (`asked`), what was measured, and whether it was met."""

    asked: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: a title, the method, a table, and the targets that it answers."""

    title: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    targets: Sequence[Target] = ()
