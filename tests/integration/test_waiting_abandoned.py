"""Callers whose event loop was closed while they waited block no other caller, whether or not they are collected."""

from __future__ import annotations

import subprocess
import sys

import pytest

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

LEFT_IN_LINE = """
import asyncio, gc, logging
from headgate import AsyncGate, AsyncLimiter, Gate, Limiter, MemoryStore, Request

logging.disable()
store = MemoryStore()

def abandoned(acquire, callers):
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(acquire()) for _ in range(callers)]
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return tasks  # somebody keeps them: the garbage collector never ends them

rule = {"name": "slow", "by": ["ip"], "limits": "100/second burst 1", "wait": "10s"}
policy = {"version": 1, "max_waiting": 2, "rules": [rule]}
gate, waiting = (kind(policy, store=store) for kind in (Gate, AsyncGate))
request = Request("GET", "/", client_ip="192.0.2.1")
kept = abandoned(lambda: waiting.acquire(request), 3)
assert gate.acquire(request)  # whom three stand before that never ask again
assert asyncio.run(waiting.acquire(request)), "nor do they count towards max_waiting"

limiter, held_up = (kind("1 concurrent", store=store) for kind in (Limiter, AsyncLimiter))
held = limiter.reserve("key", lease=1)  # and is not given back
kept += abandoned(lambda: held_up.acquire("key", timeout=60, lease=30), 3)
assert limiter.acquire("key", timeout=10, lease=30)
print("passed")
"""


@pytest.mark.parametrize("script", [ABANDONED, LEFT_IN_LINE], ids=["collected", "left in line"])
def test_callers_whose_event_loop_was_closed_block_no_other_caller(script: str) -> None:
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.stdout == "passed\n", ended.stderr
