"""The shared store: its cost in comparison with the memory store, scaling with processes, and peers."""

from __future__ import annotations

import mmap
import os
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import limits
import pyrate_limiter

from benchmarks.measuring import Section, Target, Timed, in_turns, timed_loop
from benchmarks.peers import Hit, loop_over, pyrate_hit
from benchmarks.servers import nginx_requests_per_second, program, redis_server
from headgate import Limiter, SharedStore

FORMS = {
    "fixed window": "1000000000/hour fixed",
    "sliding window counter": "1000000000/hour",
    "token bucket": "1000000/hour bucket",
    "sliding window log": "100/hour log",
    "three limits": "1000000/hour bucket; 1000000000/hour fixed; 1000000000/day",
}
ONE_KEY = ["user:42"] * 20_000
SLOW_LIMIT = 100


@contextmanager
def zone(size: int = 64 << 20) -> Iterator[SharedStore]:
    """A zone that is removed at the end of the block."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield SharedStore(Path(folder, "zone"), size=size)


def run(quick: bool) -> Section:
    """Measure all of it."""
    rows: list[tuple[str, ...]] = []
    targets = [_alone(rows, quick), *_together(rows, quick)]
    _peers(rows, quick)
    return Section(
        "A zone that processes share",
        "The shared store beside the memory store in one process; two processes that decide at once for a second, on "
        "keys of their own and on one key; and what else shares a limit between processes, each called its own usual "
        "way. pyrate-limiter's buckets are logs, so its limit is small (100 an hour), as is that of Headgate's log. "
        "nginx judges the same kind of keys in shared memory too, in C, inside a whole HTTP request: its requests a "
        "second, with a load on the same two cores, are what any gateway can use of this.",
        ("what", "keys", "store", "a decision", "in comparison"),
        rows,
        targets,
    )


def _alone(rows: list[tuple[str, ...]], quick: bool) -> Target:
    many = [f"user:{number}" for number in range(10_000 if quick else 100_000)]
    random.Random(1).shuffle(many)
    worst = ("", 0, 0.0)
    with zone() as store:
        for name, text in FORMS.items():
            for keys in (ONE_KEY, many):
                stores = {"memory": Limiter(text), "shared": Limiter(text, store=store)}
                subjects = {
                    kind: timed_loop(loop_over(limiter.hit, keys), len(keys)) for kind, limiter in stores.items()
                }
                measured = in_turns(subjects, rounds=3 if quick else 9)
                ratio = measured["shared"].median_ns / measured["memory"].median_ns
                kinds = len(set(keys))
                for kind, one in measured.items():
                    ratio_text = "1.00" if kind == "memory" else f"{ratio:.2f}"
                    rows.append((name, f"{kinds:,}", f"headgate, {kind}", str(one), f"{ratio_text} times memory"))
                worst = max(worst, (name, kinds, ratio), key=lambda one: one[2])
    return Target(
        "a hit costs at most 1.5 times that of the memory store",
        f"{worst[2]:.2f} times in the worst case ({worst[0]}, {worst[1]:,} keys)",
        worst[2] <= 1.5,
    )


def _together(rows: list[tuple[str, ...]], quick: bool) -> list[Target]:
    """Decisions a second of one process and of two, on separate keys and on one key."""
    apart = [[f"process {process} user {number}" for number in range(1000)] for process in range(2)]
    crowds = {
        "one process": apart[:1],
        "two, keys of their own": apart,
        "two, one key": [["user:42"], ["user:42"]],
    }
    unshared: list[float] = []
    rates: dict[str, list[float]] = {name: [] for name in crowds}
    with zone() as store:
        for _ in range(5 if quick else 31):  # many short ones: a busy machine slows down neighbours in time alike
            for name, keys_of_each in crowds.items():
                rates[name].append(decisions_per_second(store, keys_of_each, 0.2))
            alone, both = (decisions_per_second(None, keys, 0.2) for keys in (apart[:1], apart))
            unshared.append(both / alone)
    middle = {name: median(samples) for name, samples in rates.items()}
    scaled = median(two / one for one, two in zip(rates["one process"], rates["two, keys of their own"], strict=True))
    for name, samples in rates.items():
        spread = f"{median(samples) / 1e6:.1f} M/s ({min(samples) / 1e6:.1f} to {max(samples) / 1e6:.1f})"
        keys = "1" if "one key" in name else "1,000 each"
        compared = f"{middle[name] / middle['one process']:.2f} times one process"
        rows.append((f"sliding window counter, {name}", keys, "headgate, shared", spread, compared))
    ceiling = f"{median(unshared):.2f} times one process ({min(unshared):.2f} to {max(unshared):.2f})"
    rows.append(("sliding window counter, two that share nothing", "1,000 each", "headgate, memory", "", ceiling))
    return [
        Target(
            "two processes on different keys do at least 1.8 times what one does",
            f"{scaled:.2f} times (median of the rounds' ratios); two that share nothing do {median(unshared):.2f}",
            scaled >= 1.8,
        ),
        Target(
            "two processes on one key do at least 2 million decisions a second together",
            f"{middle['two, one key'] / 1e6:.1f} million",
            middle["two, one key"] >= 2e6,
        ),
    ]


def decisions_per_second(store: SharedStore | None, keys_of_each: Sequence[Sequence[str]], seconds: float) -> float:
    """The number of decisions that several processes make together within `seconds`, starting at the same time.

    Without a store each process has one of its own, in memory.
    """
    start_s = time.monotonic() + 0.1
    results = mmap.mmap(-1, 16 * len(keys_of_each))
    pids = []
    for index, keys in enumerate(keys_of_each):
        pid = os.fork()
        if pid == 0:
            process_store = "memory://" if store is None else SharedStore.existing(store.path)
            hit = Limiter("1000000000/hour", store=process_store).hit
            decided = 0
            for key in keys:  # warm-up: first accesses of a new process are not measured
                hit(key)
            while time.monotonic() < start_s:
                pass
            start = time.perf_counter()
            while time.perf_counter() - start < seconds:
                for _ in range(max(1, 2000 // len(keys))):
                    for key in keys:
                        hit(key)
                decided += max(1, 2000 // len(keys)) * len(keys)
            struct.pack_into("=qd", results, 16 * index, decided, time.perf_counter() - start)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    total = 0.0
    for index in range(len(pids)):
        decided, took_s = struct.unpack_from("=qd", results, 16 * index)
        total += decided / took_s
    return total


def _peers(rows: list[tuple[str, ...]], quick: bool) -> None:
    """Peers that share a limit between the processes of a host."""
    calls = 200 if quick else 1000
    keys = ["user:42"] * calls
    rates = [pyrate_limiter.Rate(SLOW_LIMIT, pyrate_limiter.Duration.HOUR)]
    makers: dict[str, Callable[[], Hit]] = {}
    with ExitStack() as stack:
        store = stack.enter_context(zone())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        makers["headgate, shared"] = lambda: Limiter(f"{SLOW_LIMIT}/hour log", store=store).hit
        database = str(Path(folder, "pyrate.sqlite"))
        makers["pyrate-limiter, SQLite with file lock"] = lambda: pyrate_hit(
            lambda: pyrate_limiter.SQLiteBucket.init_from_file(rates, db_path=database, use_file_lock=True)
        )
        makers["pyrate-limiter, multiprocess bucket"] = lambda: pyrate_hit(
            lambda: pyrate_limiter.buckets.mp_bucket.MultiprocessBucket.init(rates)
        )
        if program("redis-server"):
            port = stack.enter_context(redis_server())
            storage = limits.storage.RedisStorage(f"redis://127.0.0.1:{port}/0")
            window = limits.RateLimitItemPerHour(SLOW_LIMIT)
            for name, strategy in {
                "log": limits.strategies.MovingWindowRateLimiter,
                "window counter": limits.strategies.SlidingWindowCounterRateLimiter,
            }.items():
                limiter = strategy(storage)
                makers[f"limits on a local Redis, {name}"] = lambda limiter=limiter, name=name: (  # type: ignore[misc]
                    lambda key: limiter.hit(window, name, key)
                )
        subjects: dict[str, Timed] = {name: timed_loop(loop_over(make(), keys), calls) for name, make in makers.items()}
        measured = in_turns(subjects, rounds=3 if quick else 7)
    ours = measured["headgate, shared"]
    for name, one in measured.items():
        times = f"{one.median_ns / ours.median_ns:,.0f} times Headgate's"
        rows.append(("a log between processes", "1", name, str(one), times))
    if program("nginx") and program("wrk"):
        rate = nginx_requests_per_second(1 if quick else 5)
        rows.append(
            ("requests with a limit each", "100,000", "nginx limit_req, two workers", f"{rate:,.0f} requests/s", "")
        )
