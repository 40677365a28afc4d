"""token-throttle holding and settling calls under two limits: prints the nanoseconds of each call.

A program of its own, since its package needs Python 3.12: `python measure_token_throttle.py CALLS`.
"""

from __future__ import annotations

import asyncio
import sys
import time

from token_throttle import (  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
    MemoryBackendBuilder,
    PerModelConfig,
    Quota,
    RateLimiter,
    UsageQuotas,
)


async def main(calls: int) -> None:
    quotas = [
        Quota(metric="requests", limit=10**9, per_seconds=60),
        Quota(metric="tokens", limit=10**12, per_seconds=60),
    ]
    limiter = RateLimiter(PerModelConfig(quotas=UsageQuotas(quotas)), backend=MemoryBackendBuilder())

    async def call() -> None:
        held = await limiter.acquire_capacity(model="m", usage={"requests": 1, "tokens": 900})
        await limiter.refund_capacity(reservation=held, actual_usage={"requests": 1, "tokens": 290})

    for _ in range(calls // 10):
        await call()
    start = time.perf_counter_ns()
    for _ in range(calls):
        await call()
    print((time.perf_counter_ns() - start) / calls)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
