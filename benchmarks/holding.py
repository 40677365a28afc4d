"""Holds: `reserve` and `commit` in comparison with a hit, and with few and many open holds of the key."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Measured, Section, Target, Timed, in_turns, timed_loop
from headgate import Limiter, MemoryStore, SharedStore
from headgate import core as cores
from headgate.stores.protocol import Store

CALLS = 5_000
OPEN = (10, 10_000)
MANY = 10**7
TEXTS = {
    "fixed window": f"{MANY}/hour fixed",
    "sliding window counter": f"{MANY}/hour",
    "token bucket": f"{MANY}/hour bucket",
    "places in flight": f"{MANY} concurrent",
}


class Stores:
    """Makes stores of one kind: memory on the native core or on Python's, or a zone in a folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._count = 0

    def store(self, max_holds: int) -> Store:
        """A new store for so many holds."""
        self._count += 1
        if self._kind == "zone":
            return SharedStore(self._folder / f"zone-{self._count}", size=64 << 20, max_holds=max_holds)
        return MemoryStore(core=self._kind, max_holds=max_holds)  # type: ignore[arg-type]


def hits(stores: Stores, text: str) -> Timed:
    limiter = Limiter(text, store=stores.store(1_000))

    def work() -> None:
        for _ in range(CALLS):
            limiter.hit("user:42")

    return timed_loop(work, CALLS)


def holds(stores: Stores, text: str) -> Timed:
    """The time to hold and settle units of one key, in a store with as many holds as in a busy hour."""
    limiter = Limiter(text, store=stores.store(4 * CALLS))

    def work() -> None:
        for _ in range(CALLS):
            limiter.reserve("user:42", 9).commit(4)

    return timed_loop(work, CALLS)


def settling(stores: Stores, text: str, opened: int) -> Timed:
    """The time of a commit by id, on a key of which `opened` other holds are open."""
    limiter = Limiter(text, store=stores.store(opened + 4 * CALLS))
    for _ in range(opened):
        limiter.reserve("user:42", 1, lease=86_400)

    def timed() -> float:
        elapsed_ns = 0
        for number in range(CALLS):
            hold_id = limiter.reserve("user:42", 9, lease=1 + number % 3600).id
            start = time.perf_counter_ns()
            limiter.commit(hold_id, 4)
            elapsed_ns += time.perf_counter_ns() - start
        return elapsed_ns / CALLS

    return timed


def run(quick: bool) -> Section:
    """Measure all kinds of limits on the stores that are available."""
    rounds = 3 if quick else 9
    kinds = ("native", "zone", "python") if cores.native is not None else ("python",)
    rows, targets = [], []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            stores = Stores(kind, Path(folder))
            of_one: dict[str, Timed] = {"hit": hits(stores, TEXTS["token bucket"])}
            for name, text in TEXTS.items():
                of_one[name] = holds(stores, text)
                for opened in OPEN:
                    of_one[f"{name} {opened}"] = settling(stores, text, opened)
            measured = in_turns(of_one, rounds)
        hit = measured["hit"]
        for name in TEXTS:
            few, many = (measured[f"{name} {opened}"] for opened in OPEN)
            rows.append((kind, name, str(hit), str(measured[name]), str(few), str(many)))
            targets.append(at_most(f"{kind}, {name}: a reserve and its commit", measured[name], hit, 3))
            targets.append(at_most(f"{kind}, {name}: a commit with {OPEN[1]:,} open to {OPEN[0]}", many, few, 1.5))
    return Section(
        "Holds",
        "`limiter.reserve(key, 9).commit(4)` beside `limiter.hit(key)` of a token bucket in the same store: memory on "
        "the native core or on Python's, or a zone; and `limiter.commit(id, 4)` on a key of which ten or ten thousand "
        "others are open.",
        ("store", "limit", "hit", "reserve and commit", f"commit, {OPEN[0]} open", f"commit, {OPEN[1]:,} open"),
        rows,
        targets,
    )


def at_most(subject: str, measured: Measured, by: Measured, most: float) -> Target:
    """The target that one subject takes at most `most` times as long as another."""
    ratio = measured.median_ns / by.median_ns
    return Target(f"{subject} takes at most {most} times", f"{ratio:.2f} times", ratio <= most)
