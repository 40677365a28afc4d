"""A process that serves a queue until it is killed: `queue_worker.py URL NAME`. It notes each job that it asks for."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import redis.asyncio

from headgate import AsyncLimiter
from headgate.llm.queue import AsyncLlmQueue, Pace, QueuedCall
from headgate.stores.redis.store import RedisStore


async def main(url: str, name: str) -> None:
    from llm_gates import LimiterGate, answer_of

    notes: Any = redis.asyncio.Redis.from_url(url.partition("?")[0])
    gate = LimiterGate(AsyncLimiter("1000000 tokens/day", store=RedisStore(url), name=name))

    async def provider(job: QueuedCall, call: Any) -> Any:
        await notes.rpush(f"asked:{name}", job.id)
        await asyncio.sleep(random.random() / 4)
        return answer_of(40, of=job.body["n"])

    queue = AsyncLlmQueue(gate, url, name=name, lease=0.5)
    await queue.worker(provider, pace=Pace(2, 4)).run()


if __name__ == "__main__":
    sys.path.insert(0, __file__.rpartition("/integration/")[0])
    asyncio.run(main(*sys.argv[1:]))
