"""Many processes that ask one Redis at once, for more than the limit.

Run as a program it prints one JSON object a limit: `python redis_crowd.py URL ROUNDS`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

from headgate.decision import name_limits
from headgate.limit_text import parse_limits
from headgate.stores.redis.store import RedisStore

PROCESSES = 20
LIMIT = 50
EACH = 5
"""What each process asks for in a round: together twice the limit."""

LIMITS = {
    "token bucket": f"{LIMIT}/week bucket",
    "sliding window counter": f"{LIMIT}/week",
    "sliding window log": f"{LIMIT}/week log",
    "three at once": f"{LIMIT + 7}/week; {LIMIT}/week log; {LIMIT + 3}/week bucket",
}
CONTEXT = multiprocessing.get_context("fork")


def main() -> None:
    url, rounds = sys.argv[1], int(sys.argv[2])
    barrier = CONTEXT.Barrier(PROCESSES)
    counts = CONTEXT.RawArray("i", len(LIMITS) * rounds * PROCESSES)
    pids = [_fork(lambda number=number: _ask(url, number, rounds, barrier, counts)) for number in range(PROCESSES)]  # type: ignore[misc]
    ended = [os.waitpid(pid, 0)[1] for pid in pids]
    for number, name in enumerate(LIMITS):
        start = number * rounds * PROCESSES
        each = [list(counts[start + at * PROCESSES : start + (at + 1) * PROCESSES]) for at in range(rounds)]
        print(
            json.dumps(
                {
                    "limit": name,
                    "rounds": rounds,
                    "processes": PROCESSES,
                    "asked": PROCESSES * EACH,
                    "admitted": sorted({sum(passed) for passed in each}),
                    "exact": sum(sum(passed) == LIMIT for passed in each),
                    "shared_by_several": sum(sum(count > 0 for count in passed) > 1 for passed in each),
                    "ended_well": ended == [0] * PROCESSES,
                }
            ),
            flush=True,
        )


def _ask(url: str, process: int, rounds: int, barrier: Any, counts: Any) -> None:
    """Every second process asks from an event loop."""
    if process % 2:
        asyncio.run(_ask_async(url, process, rounds, barrier, counts))
        return
    store = RedisStore(url)
    for number, text in enumerate(LIMITS.values()):
        bound = store.bind(name_limits(parse_limits(text), scope=f"crowd-{number}", name="all"))
        bound.peek("warm")
        for at in range(rounds):
            barrier.wait(60)
            passed = sum(bound.hit(f"round {at}").allowed for _ in range(EACH))
            counts[(number * rounds + at) * PROCESSES + process] = passed
    store.close()


async def _ask_async(url: str, process: int, rounds: int, barrier: Any, counts: Any) -> None:
    store = RedisStore(url)
    for number, text in enumerate(LIMITS.values()):
        bound = store.bind_async(name_limits(parse_limits(text), scope=f"crowd-{number}", name="all"))
        await bound.peek("warm")
        for at in range(rounds):
            barrier.wait(60)
            answers = await asyncio.gather(*(bound.hit(f"round {at}") for _ in range(EACH)))
            passed = sum(answer.allowed for answer in answers)
            counts[(number * rounds + at) * PROCESSES + process] = passed
    await store.aclose()


def _fork(work: Callable[[], None]) -> int:
    """A process that does this and ends."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


if __name__ == "__main__":
    main()
