"""Leases that extend themselves in real time: as long as the work goes on, and no longer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from headgate import AsyncLimiter, Limiter, MemoryStore
from headgate import core as cores

LEASE = 0.3


def test_a_block_keeps_its_place_for_longer_than_its_lease_and_then_frees_it() -> None:
    for core in ("native", "python") if cores.native is not None else ("python",):
        limiter = Limiter("2 concurrent", store=MemoryStore(core=core))
        with limiter.reserve("key", lease=LEASE):
            with limiter.reserve("key", lease=3600):
                for _ in range(8):
                    time.sleep(LEASE / 3)
                    assert limiter.peek("key", 0).remaining == 0
            assert limiter.peek("key", 0).remaining == 1
        assert limiter.peek("key", 0).remaining == 2


def test_a_lease_that_is_not_extended_ends() -> None:
    limiter = Limiter("1 concurrent")
    assert limiter.reserve("key", lease=0.05)
    assert not limiter.peek("key")
    time.sleep(0.06)
    assert limiter.peek("key")


def test_one_task_extends_all_leases_of_an_event_loop() -> None:
    limiter = AsyncLimiter("50 concurrent")

    async def work() -> None:
        async with await limiter.reserve("key", lease=LEASE):
            await asyncio.sleep(3 * LEASE)

    async def main() -> None:
        tasks = [asyncio.create_task(work()) for _ in range(50)]
        await asyncio.sleep(2 * LEASE)
        assert len(asyncio.all_tasks()) == 52  # these, this one, and the one that extends
        assert limiter.bound.peek("key", 0).remaining == 0
        await asyncio.gather(*tasks)
        assert limiter.bound.peek("key", 0).remaining == 50

    asyncio.run(main())


_WITHOUT_ROOM = """
import resource, threading, time
from headgate import Limiter

limiter = Limiter("2 concurrent")
most = resource.getrlimit(resource.RLIMIT_AS)
with open("/proc/self/statm") as sizes:
    pages = int(sizes.read().split()[0])
threading.stack_size(256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), most[1]))
with limiter.reserve("key", lease=0.3):
    assert limiter.peek("key", 0).remaining == 1
assert limiter.peek("key", 0).remaining == 2

with limiter.reserve("key", lease=0.6):
    threading.stack_size(0)
    resource.setrlimit(resource.RLIMIT_AS, most)
    with limiter.reserve("other", lease=0.3):
        time.sleep(1)
        assert (limiter.peek("key", 0).remaining, limiter.peek("other", 0).remaining) == (1, 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is bounded and read as on Linux")
def test_a_process_that_may_start_no_thread_holds_places_and_extends_leases_once_it_may() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_ROOM], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "leases are not extended until a thread can be started: can't start new thread" in done.stderr


_PATCHED_LATE = """
import warnings
from headgate import Limiter

limiter = Limiter("2 concurrent")
warnings.simplefilter("ignore")  # gevent's, of modules that are there already
import gevent.monkey

gevent.monkey.patch_all()
import gevent, time

start = time.monotonic()
with limiter.reserve("key", lease=60):
    gevent.sleep(0.01)
assert time.monotonic() - start < 10
with limiter.reserve("key", lease=0.3):
    time.sleep(1)
    assert limiter.peek("key", 0).remaining == 1
"""


def test_leases_hold_up_no_process_that_gevent_has_patched_late() -> None:
    """As a worker of `gunicorn --preload -k gevent` is: the application is there before the fork, gevent after it."""
    done = subprocess.run(
        [sys.executable, "-c", _PATCHED_LATE], check=False, capture_output=True, text=True, timeout=90
    )
    assert (done.returncode, done.stderr) == (0, "")
