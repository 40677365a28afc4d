"""A process whose threads or tasks wait for a key in a line of many processes: it prints those that passed, in order.

Arguments: the URL, the limits, the colour, the offset in microseconds and the speed of the clock of its host, a seed,
the number of callers, and how often each waits. A line of the output is [order number in line, units that remain of the
last limit, cost]; order 0 is a caller that found no line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from random import Random
from typing import Any

import headgate.clock
from headgate import AsyncLimiter, Limiter
from headgate.stores.protocol import Store
from headgate.stores.redis.store import RedisStore
from headgate.stores.url import open_store

LEASE_S = 3
TIMEOUT_S = 120


def skew(offset_us: int, speed: float) -> None:
    """Set the clock of this host ahead, and let it run at another speed."""
    true_us, start_us = headgate.clock.now_us, headgate.clock.now_us()
    headgate.clock.now_us = lambda: start_us + offset_us + int((true_us() - start_us) * speed)


def store_at(url: str) -> Store:
    """Return the store of a zone, or of a Redis without a guard."""
    return open_store(url) if url.startswith("shared:") else RedisStore(f"{url}?timeout=10s")


class OrderNumbers:
    """The order numbers that callers of this process received."""

    def __init__(self, line: Any, current_caller: Any) -> None:
        self._join, self._current_caller = line.join, current_caller
        self.by_caller: dict[Any, int] = {}
        line.join = self.join

    def join(self, *arguments: Any) -> Any:
        caller, place = self._current_caller(), self._join(*arguments)
        if hasattr(place, "__await__"):
            return self._await_join(caller, place)
        self.by_caller[caller] = place.order
        return place

    async def _await_join(self, caller: Any, joining: Any) -> Any:
        place = await joining
        self.by_caller[caller] = place.order
        return place

    def report(self, caller: Any, held: Any, cost: int) -> None:
        order = self.by_caller.pop(caller, 0)
        if held:
            sys.stdout.write(json.dumps([order, held.decision.limits[-1].remaining, cost]) + "\n")
            sys.stdout.flush()


def in_threads(url: str, limits: str, seed: int, callers: int, times: int) -> None:
    limiter = Limiter(limits, store=store_at(url), name="line")
    order_numbers = OrderNumbers(limiter.bound.line, threading.get_ident)

    def wait(random: Random) -> None:
        for _ in range(times):
            cost = random.choice([1, 1, 1, 2, 3])
            timeout = random.choice([0.03, TIMEOUT_S, TIMEOUT_S, TIMEOUT_S])
            held = limiter.acquire("key", cost, timeout=timeout, lease=LEASE_S)
            order_numbers.report(threading.get_ident(), held, cost)
            if held:
                time.sleep(random.random() / 500)
                held.commit()

    threads = [threading.Thread(target=wait, args=(Random(seed + number),)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def in_tasks(url: str, limits: str, seed: int, callers: int, times: int) -> None:
    limiter = AsyncLimiter(limits, store=store_at(url), name="line")
    order_numbers = OrderNumbers(limiter.bound.line, asyncio.current_task)

    async def once(random: Random, cost: int) -> None:
        held = await limiter.acquire("key", cost, timeout=TIMEOUT_S, lease=LEASE_S)
        order_numbers.report(asyncio.current_task(), held, cost)
        if held:
            await asyncio.sleep(random.random() / 500)
            await held.commit()

    async def wait(random: Random) -> None:
        for _ in range(times):
            task = asyncio.create_task(once(random, random.choice([1, 1, 1, 2, 3])))
            if random.random() < 0.25:
                await asyncio.sleep(random.random() / 20)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(wait(Random(seed + number)) for number in range(callers)))
    await limiter.store.aclose()


if __name__ == "__main__":
    url, limits, colour, offset_us, speed, seed, callers, times = sys.argv[1:]
    skew(int(offset_us), float(speed))
    numbers = (int(seed), int(callers), int(times))
    if colour == "sync":
        in_threads(url, limits, *numbers)
    else:
        asyncio.run(in_tasks(url, limits, *numbers))
