"""Callers whose event loop was closed while they waited end when the garbage collector finds them, wherever that is."""

from __future__ import annotations

import subprocess
import sys

ABANDONED = """
import asyncio, gc, logging
from headgate import AsyncLimiter, Limiter, MemoryStore
from headgate.clock import SystemClock

class Clock(SystemClock):
    # Collects the garbage when it has been read `left` times.
    left = 0
    def now_us(self):
        self.left -= 1
        if self.left == 0:
            gc.collect()
        return super().now_us()

logging.disable()
gc.disable()
store, clock = MemoryStore(), Clock()
limiter, waiting = (made("1 concurrent", store=store, clock=clock) for made in (Limiter, AsyncLimiter))
for reading in range(1, 12):
    held = limiter.reserve("key", lease=60)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(waiting.acquire("key", timeout=30, lease=30)) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    cycle = [tasks]
    cycle.append(cycle)
    del tasks, cycle, loop
    held.commit()
    held = limiter.reserve("key", lease=60)
    clock.left = reading
    assert not limiter.acquire("key", timeout=0.01, lease=30)
    held.commit()
    assert limiter.acquire("key", timeout=10, lease=30).commit()
print("passed")
"""


def test_callers_that_the_garbage_collector_ends_in_a_step_of_another_block_nobody() -> None:
    command = [sys.executable, "-c", ABANDONED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.stdout == "passed\n", ended.stderr
