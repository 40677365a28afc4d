"""One decision: `limiter.hit(key)` against the peers, for each algorithm, on one key and on many."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import limits
import pyrate_limiter

from benchmarks.measuring import Section, Target, Timed, in_turns, timed_loop
from benchmarks.peers import (
    MANY,
    Hit,
    aiolimiter_timed,
    limits_hit,
    loop_over,
    pyrate_hit,
    pyrate_log,
    pyrate_state,
    throttled_hit,
)
from headgate import AsyncLimiter, Limiter

ONE_KEY = ["user:42"] * 20_000
LOG_LIMIT = 100
"""Small, so that the logs of all subjects stay short; on one key nearly all of its requests are refused."""


def headgate_hit(text: str) -> Hit:
    return Limiter(text).hit


def headgate_async_timed(text: str, keys: Sequence[str]) -> Timed:
    limiter = AsyncLimiter(text)

    async def run() -> float:
        start = time.perf_counter_ns()
        for key in keys:
            await limiter.hit(key)
        return (time.perf_counter_ns() - start) / len(keys)

    runner = asyncio.Runner()
    return lambda: runner.run(run())


def subjects_of(algorithm: str, keys: Sequence[str]) -> dict[str, Timed]:
    """Headgate and every peer that has this algorithm."""
    strategies = limits.strategies
    makers: dict[str, Callable[[], Hit]] = {
        "fixed window": {
            "headgate": lambda: headgate_hit(f"{MANY}/hour fixed"),
            "limits": lambda: limits_hit(strategies.FixedWindowRateLimiter, MANY),
            "throttled-py": lambda: throttled_hit("fixed_window", MANY),
        },
        "sliding window log": {
            "headgate": lambda: headgate_hit(f"{LOG_LIMIT}/hour log"),
            "limits": lambda: limits_hit(strategies.MovingWindowRateLimiter, LOG_LIMIT),
            "pyrate-limiter": lambda: pyrate_hit(pyrate_log(LOG_LIMIT)),
        },
        "sliding window counter": {
            "headgate": lambda: headgate_hit(f"{10**9}/hour"),
            "limits": lambda: limits_hit(strategies.SlidingWindowCounterRateLimiter, MANY),
            "throttled-py": lambda: throttled_hit("sliding_window", MANY),
        },
        "token bucket": {
            "headgate": lambda: headgate_hit(f"{MANY}/hour bucket"),
            "throttled-py": lambda: throttled_hit("token_bucket", MANY),
            "pyrate-limiter": lambda: pyrate_hit(pyrate_state(pyrate_limiter.TokenBucket)),
        },
        "leaky bucket": {
            "headgate": lambda: headgate_hit(f"{MANY}/hour leaky {MANY}"),
            "throttled-py": lambda: throttled_hit("leaking_bucket", MANY),
            "throttled-py (GCRA)": lambda: throttled_hit("gcra", MANY),
            "pyrate-limiter (GCRA)": lambda: pyrate_hit(pyrate_state(pyrate_limiter.GCRA)),
        },
    }[algorithm]
    subjects = {name: timed_loop(loop_over(make(), keys), len(keys)) for name, make in makers.items()}
    if algorithm == "leaky bucket":
        subjects["headgate, awaited"] = headgate_async_timed(f"{MANY}/hour leaky {MANY}", keys)
        subjects["aiolimiter, awaited"] = aiolimiter_timed(keys)
    floor = dict.fromkeys(keys, 0)
    subjects["dict.get"] = timed_loop(loop_over(floor.get, keys), len(keys))
    return subjects


ALGORITHMS = ("fixed window", "sliding window log", "sliding window counter", "token bucket", "leaky bucket")


def run(quick: bool) -> Section:
    """Measure all algorithms."""
    many = [f"user:{number}" for number in range(10_000 if quick else 100_000)]
    random.Random(1).shuffle(many)
    rows = []
    ratios: dict[tuple[str, int], float] = {}
    slowest_hit_ns = 0.0
    for algorithm in ALGORITHMS:
        for keys in (ONE_KEY, many):
            kinds = len(set(keys))
            measured = in_turns(subjects_of(algorithm, keys), rounds=3 if quick else 9)
            ours = measured["headgate"]
            slowest_hit_ns = max(slowest_hit_ns, ours.median_ns if kinds == 1 else 0)
            peers = {name: one for name, one in measured.items() if "headgate" not in name and name != "dict.get"}
            ratios[algorithm, kinds] = min(one.median_ns for one in peers.values()) / ours.median_ns
            for name, one in measured.items():
                rows.append((algorithm, f"{kinds:,}", name, str(one), f"{one.median_ns / ours.median_ns:.1f}"))
    least = min(ratios, key=lambda name: ratios[name])
    without_leaky = {name: ratio for name, ratio in ratios.items() if name[0] != "leaky bucket"}
    return Section(
        "A decision",
        "`limiter.hit(key)` with the whole decision: the time of one call, and how many times as long as Headgate's "
        "`hit` each takes. Every library is called its own usual way on its memory store, in a plain loop over the "
        "keys; with 100,000 keys the loop goes through them in random order. The log's limit is small (100 an hour), "
        "so on one key nearly all of its requests are refused; all else is admitted. aiolimiter limits one thing at a "
        "time and answers nothing, so it is given a dict of limiters.",
        ("algorithm", "keys", "library", "a call", "times Headgate's"),
        rows,
        (
            Target(
                "at least 10 times as fast as the fastest of these for the same algorithm",
                f"{ratios[least]:.1f} times in the worst case ({least[0]}, {least[1]:,} keys); "
                f"without aiolimiter's algorithm {min(without_leaky.values()):.1f}",
                ratios[least] >= 10,
            ),
            Target(
                "at least 3 million hits a second in one thread",
                f"{1e3 / slowest_hit_ns:.1f} million for the slowest algorithm",
                slowest_hit_ns <= 1e9 / 3e6,
            ),
        ),
    )
