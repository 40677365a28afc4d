"""Where a test stops the functions of `time`, as freezegun does, limiters still go by the system's clock."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import asyncio, sys, time

from headgate import AsyncLimiter, Limiter

for name in ("time", "monotonic", "perf_counter"):
    stopped = getattr(time, name)()
    setattr(time, name, lambda stopped=stopped: stopped)
    setattr(time, name + "_ns", lambda stopped=stopped: int(stopped * 10**9))


async def main():
    asyncio.get_running_loop().time = lambda: time.clock_gettime(time.CLOCK_MONOTONIC)  # freezegun's real_asyncio
    limiter = AsyncLimiter("20/second bucket")
    await limiter.hit("key", 20)
    return [bool(await limiter.acquire("key", timeout=5)) for _ in range(3)]


limiter = Limiter("20/second bucket")
limiter.hit("key", 20)
print([bool(limiter.acquire("key", timeout=5)) for _ in range(3)], asyncio.run(main()))
"""


def test_a_caller_that_waits_gets_its_turn_although_time_is_stopped(core: str) -> None:
    environment = {**os.environ, "HEADGATE_CORE": core}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[True, True, True] [True, True, True]\n"
