"""The limiters that Headgate is measured with: each takes a hit its own usual way, all of them admitting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiolimiter
import limits
import pyrate_limiter
import throttled

from benchmarks.measuring import Timed

MANY = 1_000_000_000
HOUR_S = 3600

Hit = Callable[[str], object]


def loop_over(hit: Hit, keys: Sequence[str]) -> Callable[[], None]:
    """A loop that hits each key once."""

    def run() -> None:
        for key in keys:
            hit(key)

    return run


def limits_hit(strategy: type[limits.strategies.RateLimiter], limit: int) -> Hit:
    """limits, on its memory storage."""
    limiter = strategy(limits.storage.MemoryStorage())
    item = limits.parse(f"{limit}/hour")
    return lambda key: limiter.hit(item, key)


def throttled_hit(kind: str, limit: int) -> Hit:
    """throttled-py, on its memory store."""
    limiter = throttled.Throttled(
        using=kind,
        quota=throttled.rate_limiter.per_hour(limit),
        store=throttled.store.MemoryStore(options={"MAX_SIZE": 200_000}),
    )
    return limiter.limit


def pyrate_hit(make_bucket: Callable[[], Any]) -> Hit:
    """pyrate-limiter, with a bucket for each key, which is how it limits by key."""

    class PerKey(pyrate_limiter.BucketFactory):
        def __init__(self) -> None:
            self.buckets: dict[str, Any] = {}
            self.clock = pyrate_limiter.MonotonicClock()

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return pyrate_limiter.RateItem(name, self.clock.now(), weight=weight)

        def get(self, item: Any) -> Any:
            bucket = self.buckets.get(item.name)
            if bucket is None:
                bucket = self.buckets[item.name] = make_bucket()
            return bucket

    limiter = pyrate_limiter.Limiter(PerKey())
    return lambda key: limiter.try_acquire(key, blocking=False)


def pyrate_state(algorithm: Any) -> Callable[[], Any]:
    """A pyrate-limiter bucket of constant size."""
    rates = [pyrate_limiter.Rate(MANY, pyrate_limiter.Duration.HOUR)]
    return lambda: pyrate_limiter.StateBucket(rates, algorithm())


def pyrate_log(limit: int) -> Callable[[], Any]:
    """A pyrate-limiter bucket that remembers every request."""
    rates = [pyrate_limiter.Rate(limit, pyrate_limiter.Duration.HOUR)]
    return lambda: pyrate_limiter.InMemoryBucket(rates)


def aiolimiter_timed(keys: Sequence[str]) -> Timed:
    """aiolimiter, which has no keys: one limiter for each, taken from a dict."""
    limiters = {key: aiolimiter.AsyncLimiter(MANY, HOUR_S) for key in set(keys)}

    async def run() -> float:
        start = time.perf_counter_ns()
        for key in keys:
            await limiters[key].acquire()
        return (time.perf_counter_ns() - start) / len(keys)

    runner = asyncio.Runner()
    return lambda: runner.run(run())
