"""Bytes per key, and the cost of a hit among ten million keys."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from statistics import median

from benchmarks.measuring import Section, Target
from headgate import Limiter, MemoryStore

TEXTS = {
    "fixed window": "1000/hour fixed",
    "sliding window counter": "1000/hour",
    "token bucket": "1000/hour bucket",
    "leaky bucket": "1000/hour leaky 1000",
    "leaky queue": "1000/hour queue 1000",
    "sliding window log": "1000/hour log",
}
BATCH = 100_000
LOG_ENTRIES = (1, 2, 3, 10, 30, 100)
"""The requests of each key of a log; each is an entry, as each has a time of its own."""

CHILD = """
import resource, sys
from headgate import Limiter, MemoryStore
text, keys, hits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
limiter = Limiter(text, store=MemoryStore(max_keys=keys + keys // 8, max_log_entries=(hits + 16) * keys))
names = [f"warm:{number}" for number in range(10_000)]
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
limiter.hit_many(names)
limiter.reset("nobody")
before = resident()
for _ in range(hits):
    for start in range(0, keys, 1000):
        limiter.hit_many([f"user:{number}" for number in range(start, start + 1000)])
print(limiter.store.stats().bytes / keys, (resident() - before) / keys)
"""


def bytes_a_key(text: str, keys: int, hits: int = 1) -> tuple[float, float]:
    """(size by the table's own count, growth of the process) in bytes per key, in a process of its own."""
    command = [sys.executable, "-c", CHILD, text, str(keys), str(hits)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    table, grown = done.stdout.split()
    return float(table), float(grown)


def run(quick: bool) -> Section:
    """Measure the memory of every algorithm at several sizes."""
    rows = []
    most = 0.0
    for algorithm, text in TEXTS.items():
        for keys in (100_000,) if quick else (100_000, 300_000, 1_000_000):
            table, grown = bytes_a_key(text, keys)
            rows.append((algorithm, f"{keys:,}", f"{table:.1f}", f"{grown:.1f}"))
            most = max(most, table, grown)
    for entries in LOG_ENTRIES[1:]:
        table, grown = bytes_a_key(f"{max(LOG_ENTRIES)}/hour log", 100_000, entries)
        rows.append((f"sliding window log, {entries} entries", "100,000", f"{table:.1f}", f"{grown:.1f}"))
    return Section(
        "Memory",
        "Bytes a key, in a process of its own: what the table says it holds, and what the process really grew by. "
        "Each key was hit once, so a log has one entry; the last rows have logs of more, up to a key at its limit of "
        "a hundred.",
        ("algorithm", "keys", "bytes a key (table)", "bytes a key (process)"),
        rows,
        (Target("at most 64 bytes a key, a log of one entry included", f"{most:.1f} at the most", most <= 64),),
    )


def hits_ns(limiter: Limiter, keys: int, rounds: int) -> tuple[float, float]:
    """(a single hit, a key of a batch) in nanoseconds, on random keys of so many, in turns."""
    chooser = random.Random(7)
    single, batch = [], []
    for _ in range(rounds):
        names = [f"user:{chooser.randrange(keys)}" for _ in range(2000)]
        start = time.perf_counter_ns()
        for name in names:
            limiter.hit(name)
        single.append((time.perf_counter_ns() - start) / len(names))
        names = [f"user:{chooser.randrange(keys)}" for _ in range(20_000)]
        start = time.perf_counter_ns()
        limiter.hit_many(names)
        batch.append((time.perf_counter_ns() - start) / len(names))
    return median(single), median(batch)


def run_sizes(quick: bool) -> Section:
    """Measure a hit among ten thousand keys and among ten million."""
    sizes = (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000, 10_000_000)
    times: dict[int, tuple[float, float, float]] = {}
    floors: dict[int, float] = {}
    for keys in sizes:
        limiter = Limiter("1000000/hour", store=MemoryStore(max_keys=keys))
        for start in range(0, keys, BATCH):
            limiter.hit_many([f"user:{number}" for number in range(start, min(keys, start + BATCH))])
        times[keys] = (*hits_ns(limiter, keys, 10 if quick else 60), limiter.store.stats().bytes / 1e6)
        limiter.close()
    for keys in sizes[:-1]:
        floor = {f"user:{number}": 0 for number in range(keys)}
        chooser = random.Random(7)
        times_ns = []
        for _ in range(10 if quick else 60):
            names = [f"user:{chooser.randrange(keys)}" for _ in range(2000)]
            start = time.perf_counter_ns()
            for name in names:
                floor.get(name)
            times_ns.append((time.perf_counter_ns() - start) / len(names))
        floors[keys] = median(times_ns)
    first, last = times[sizes[0]], times[sizes[-1]]
    rows = [
        (
            f"{keys:,}",
            f"{single:,.0f} ns",
            f"{batch:,.0f} ns",
            f"{megabytes:,.1f} MB",
            f"{floors[keys]:,.0f} ns" if keys in floors else "",
        )
        for keys, (single, batch, megabytes) in times.items()
    ]
    return Section(
        "Many keys",
        "A hit on a random key of so many, the key's text just made: one call each, and 20,000 in a call of "
        "`hit_many`. The table of ten million keys is far larger than any cache, so a single hit waits for memory "
        "once; a batch fetches ahead. Beside it, `dict.get` on a dict of as many texts.",
        ("keys", "`hit`", "`hit_many`, a key", "table", "`dict.get`"),
        rows,
        (
            Target(
                "ten million keys cost at most twice a hit of ten thousand keys",
                f"{last[0] / first[0]:.2f} times for `hit`, {last[1] / first[1]:.2f} times for `hit_many`",
                last[0] <= 2 * first[0],
            ),
        ),
    )
