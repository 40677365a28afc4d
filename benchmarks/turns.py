"""Waiting for a turn: the time of ten turns, their order, their spacing, and the cost of a waiter."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import aiolimiter
import limits
import pyrate_limiter
import tenacity
import throttled

from benchmarks.measuring import Section, Target
from headgate import AsyncLimiter, Limiter, MemoryStore
from headgate.clock import Clock
from headgate.decision import NamedLimit

TURNS = 10
PER_SECOND = 100
QUEUED = 1000
WAITERS = 1000

Wait = Callable[[], object]
"""Waits for a turn in its thread."""


BUCKET, QUEUE = "{}/second burst 1", "{}/second queue 100"
"""A bucket of one loses the refill until a waiter that wakes late asks again; a queue fixes the times of turns."""


def headgate(text: str, per_second: int) -> Wait:
    limiter = Limiter(text.format(per_second))
    return lambda: limiter.acquire("key")


def throttled_py(per_second: int) -> Wait:
    """throttled-py's token bucket, which waits up to its timeout."""
    quota = throttled.rate_limiter.per_sec(per_second, burst=1)
    return throttled.Throttled(key="key", using="token_bucket", quota=quota, timeout=10).limit


def pyrate(per_second: int) -> Wait:
    """pyrate-limiter, which blocks by itself; its periods are whole milliseconds."""
    limiter = pyrate_limiter.Limiter(pyrate_limiter.InMemoryBucket([pyrate_limiter.Rate(1, 1000 // per_second)]))
    return lambda: limiter.try_acquire("key")


def limits_with_tenacity(per_second: int) -> Wait:
    """limits, which does not wait: tenacity retries every hundredth of a second. It has no period below a second."""
    limiter, item = limits.strategies.MovingWindowRateLimiter(limits.storage.MemoryStorage()), limits.parse("1/second")
    assert per_second == 1
    retry = tenacity.retry(wait=tenacity.wait_fixed(0.01), retry=tenacity.retry_if_result(lambda passed: not passed))
    return retry(lambda: limiter.hit(item, "key"))


def in_threads(wait: Wait, waiters: int) -> list[tuple[int, float]]:
    """(waiter, seconds from the start until it passed); each starts to wait a little after the previous one."""
    passed: list[tuple[int, float]] = []
    start = time.perf_counter()

    def work(number: int) -> None:
        wait()
        passed.append((number, time.perf_counter() - start))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(waiters)]
    for thread in threads:
        thread.start()
        time.sleep(0.0002)
    for thread in threads:
        thread.join(60)
    return passed


async def in_tasks(wait: Callable[[], Awaitable[object]], waiters: int) -> list[tuple[int, float]]:
    """`in_threads` on an event loop."""
    passed: list[tuple[int, float]] = []
    start = time.perf_counter()

    async def work(number: int) -> None:
        await wait()
        passed.append((number, time.perf_counter() - start))

    async with asyncio.TaskGroup() as group:
        for number in range(waiters):
            group.create_task(work(number))
    return passed


def asyncio_headgate(text: str, per_second: int, waiters: int) -> list[tuple[int, float]]:
    async def run() -> list[tuple[int, float]]:
        limiter = AsyncLimiter(text.format(per_second))
        return await in_tasks(lambda: limiter.acquire("key"), waiters)

    return asyncio.run(run())


def asyncio_aiolimiter(per_second: int, waiters: int) -> list[tuple[int, float]]:
    async def run() -> list[tuple[int, float]]:
        limiter = aiolimiter.AsyncLimiter(1, 1 / per_second)
        return await in_tasks(limiter.acquire, waiters)

    return asyncio.run(run())


def inversions(passed: Sequence[tuple[int, float]]) -> int:
    """The number of pairs of waiters that passed in another order than they arrived."""
    order = [number for number, _ in passed]
    return sum(later < earlier for at, earlier in enumerate(order) for later in order[at + 1 :])


Run = Callable[[int, int], list[tuple[int, float]]]
"""Runs with (turns a second, waiters); returns (waiter, seconds until it passed)."""

RUNS: dict[str, Run] = {
    "Headgate, bucket, threads": lambda rate, waiters: in_threads(headgate(BUCKET, rate), waiters),
    "Headgate, bucket, asyncio": partial(asyncio_headgate, BUCKET),
    "Headgate, queue, threads": lambda rate, waiters: in_threads(headgate(QUEUE, rate), waiters),
    "Headgate, queue, asyncio": partial(asyncio_headgate, QUEUE),
    "throttled-py": lambda rate, waiters: in_threads(throttled_py(rate), waiters),
    "pyrate-limiter": lambda rate, waiters: in_threads(pyrate(rate), waiters),
    "limits with tenacity": lambda rate, waiters: in_threads(limits_with_tenacity(rate), waiters),
    "aiolimiter": asyncio_aiolimiter,
}
SLOW = ("throttled-py", "limits with tenacity")


def run(quick: bool) -> Section:
    """Measure turns in turns with the others, then spacing and what a waiter costs."""
    rounds = 2 if quick else 9
    ratios_by_name: dict[str, list[float]] = {name: [] for name in RUNS}
    inversion_counts: Counter[str] = Counter()
    for _ in range(rounds):
        for name, wait in RUNS.items():
            turns, rate = (3, 1) if name in SLOW else (TURNS, PER_SECOND)
            passed = wait(rate, turns)
            ratios_by_name[name].append(max(moment for _, moment in passed) / ((turns - 1) / rate))
            inversion_counts[name] += inversions(passed)
    rows = [
        (
            name,
            f"{1 if name in SLOW else PER_SECOND}/second",
            f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            str(inversion_counts[name]),
        )
        for name, ratios in ratios_by_name.items()
    ]
    targets = []
    for name in (name for name in RUNS if name.startswith("Headgate")):
        ratio = median(ratios_by_name[name])
        requirement = f"{name}: ten turns at {PER_SECOND} a second take at most 1.05 times the ideal 90 ms"
        targets.append(Target(requirement, f"{ratio:.3f} times", ratio <= 1.05))
        requirement = f"{name}: waiters that passed in another order than they came"
        targets.append(Target(requirement, f"{inversion_counts[name]}", not inversion_counts[name]))
    error = spacing(100 if quick else QUEUED)
    calls, timers = cost_of_waiters()
    targets.append(
        Target(f"{WAITERS:,} waiters on one key: timers at once, at most as many", f"{timers:,}", timers <= WAITERS)
    )
    return Section(
        "Waiting for a turn",
        f"{TURNS} callers ask for a key one after another and wait for their turns, in rounds with the others: the "
        "time until the last has passed, divided by the ideal, and how many pairs passed in another order than they "
        "came, of all rounds. Where one turn takes a second, three callers ask: limits knows no shorter period, and "
        "throttled-py waits for whole seconds. A queue of 1,000 a second lets its waiters out at moments that are off "
        f"by {error[0]:,.0f} us in the median and {error[1]:,.0f} us at the 99th percentile, in threads. "
        f"{WAITERS:,} tasks that wait for one key make {calls:.2f} calls of the store each.",
        ("limiter", "rate", "time by the ideal", "pairs in another order"),
        rows,
        targets,
    )


def spacing(waiters: int) -> tuple[float, float]:
    """The deviation of a queue's turns, relative to its first, in microseconds: median and 99th percentile."""
    limiter = Limiter(f"1000/second queue {waiters}")
    passed = in_threads(lambda: limiter.acquire("key"), waiters)
    moments = sorted(moment for _, moment in passed)
    errors = sorted(abs(moment - moments[0] - number / 1000) * 1e6 for number, moment in enumerate(moments))
    return median(errors), errors[len(errors) * 99 // 100]


class CountingStore(MemoryStore):
    """A memory store that counts the calls of its limits."""

    calls = 0

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> Any:
        store, bound = self, super().bind(limits, clock=clock)

        class CountingLimits:
            def __getattr__(self, name: str) -> Any:
                value = getattr(bound, name)
                if name not in ("decide", "read"):
                    return value

                def counting(*arguments: Any) -> Any:
                    store.calls += 1
                    return value(*arguments)

                return counting

        return CountingLimits()


def cost_of_waiters() -> tuple[float, int]:
    """With WAITERS tasks that wait for one key: calls of the store per task, and the most timers at one time."""
    store, most = CountingStore(), 0
    timers: list[asyncio.TimerHandle] = []

    def recording(call_at: Callable[..., asyncio.TimerHandle]) -> Callable[..., asyncio.TimerHandle]:
        def recorded(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
            timers.append(call_at(*arguments, **options))
            return timers[-1]

        return recorded

    async def run() -> None:
        nonlocal most
        loop = asyncio.get_running_loop()
        loop.call_at = recording(loop.call_at)  # type: ignore[assignment]
        limiter = AsyncLimiter("1000/second burst 1", store=store)
        waiting = asyncio.create_task(in_tasks(lambda: limiter.acquire("key", timeout=60), WAITERS))
        while not waiting.done():
            now = loop.time()
            most = max(most, sum(not timer.cancelled() and timer.when() > now for timer in timers))
            await asyncio.sleep(0.05)
        await waiting

    asyncio.run(run())
    return store.calls / WAITERS, most
