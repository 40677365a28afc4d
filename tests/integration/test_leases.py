"""Leases that extend themselves in real time: as long as the work goes on, and no longer."""

from __future__ import annotations

import asyncio
import time

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


def test_a_lease_that_nobody_extends_ends() -> None:
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
