"""Event loops that end after one request, as with `asyncio.run`: nothing is left open, and outages end."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
from redis_askers import wait_for
from redis_servers import Cluster, Server, single
from starlette.applications import Starlette
from starlette.testclient import TestClient

from headgate import AsyncLimiter
from headgate.http.asgi import RateLimitMiddleware
from headgate.stores.guard.breaker import FAILURES, OPEN
from headgate.stores.redis.store import RedisStore
from until import until_async

pytestmark = pytest.mark.integration
LOOPS = 20


@pytest.fixture
def server() -> Iterator[Server]:
    with single() as server:
        yield server


def limiter_on(server: Server, limits: str = "1000000/hour bucket; 1000 concurrent") -> AsyncLimiter:
    return AsyncLimiter(limits, store=f"redis://127.0.0.1:{server.port}/0?connect_timeout=100ms", name="loops")


async def hit(limiter: AsyncLimiter) -> str:
    async with await limiter.reserve("key", lease=60) as held:
        return held.decision.degraded


def _connections(server: Server) -> int:
    return int(server.cli("INFO", "clients")["connected_clients"])


def test_the_first_loop_alone_waits_for_a_seed_of_a_cluster_that_hangs(nodes: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        seeds = f"127.0.0.1:{hanging.getsockname()[1]},{nodes.url.removeprefix('redis+cluster://')}"
        limiter = AsyncLimiter("100/minute", store=RedisStore(f"redis+cluster://{seeds}?connect_timeout=10s"))

        async def hit() -> float:
            start = time.monotonic()
            assert await limiter.hit("key")
            took_s = time.monotonic() - start
            await limiter.close()
            return took_s

        first_s, *others_s = [asyncio.run(hit()) for _ in range(3)]
    assert first_s > 1 and max(others_s) < first_s / 2


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_loops_that_end_without_closing_their_store_leave_no_connection(server: Server) -> None:
    limiter = AsyncLimiter(
        "1000000/hour", store=RedisStore(f"redis://127.0.0.1:{server.port}/0?timeout=10s"), name="loops"
    )

    async def hit_once() -> bool:
        return bool(await limiter.hit("key"))

    before = _connections(server)
    gc.disable()  # what is closed is closed at once, not where the collector happens to come
    try:
        for _ in range(LOOPS):
            assert asyncio.run(hit_once())
        left = _connections(server) - before
    finally:
        gc.enable()
        gc.collect()
    assert left <= 1, "that of the last loop"


def test_each_lifespan_of_a_middleware_closes_what_it_opened(server: Server) -> None:
    opened: list[int] = []

    def lifespan(app: Any) -> Any:
        @asynccontextmanager
        async def lasting(_: Any) -> AsyncIterator[None]:
            yield
            opened.append(_connections(server))

        return lasting(app)

    store = f"redis://127.0.0.1:{server.port}/0"
    app = RateLimitMiddleware(Starlette(lifespan=lifespan), limits="2/minute", store=store)
    before = _connections(server)
    answers = []
    for _ in range(3):
        with TestClient(app) as client:
            answers.append(client.get("/").status_code)
        wait_for(lambda: _connections(server) == before, 10)
    assert answers == [404, 404, 429]
    assert [now > before for now in opened] == [True] * 3, "closed only when the application is done"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_outage_ends_although_no_loop_lasts_until_a_probe(server: Server) -> None:
    limiter = limiter_on(server)
    guard: Any = limiter.store
    assert asyncio.run(hit(limiter)) == ""
    server.stop()
    try:
        for _ in range(2 * FAILURES):
            assert asyncio.run(hit(limiter)) == "local"
        assert guard.breaker.state == OPEN
    finally:
        server.go_on()
    wait_for(lambda: asyncio.run(hit(limiter)) == "", 20)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stored_settlement_is_sent_although_its_loop_has_ended(server: Server) -> None:
    limiter = limiter_on(server, "3 concurrent")
    guard: Any = limiter.store

    async def reserve() -> str:
        return (await limiter.reserve("job", lease=600)).id

    async def free() -> int:
        return (await limiter.peek("job", 0)).limits[0].remaining

    held = asyncio.run(reserve())
    server.stop()
    try:

        async def commit() -> str:
            return (await limiter.commit(held)).degraded

        assert asyncio.run(commit()) == "later"  # one failure: the breaker is closed, no call looks for the store
        assert guard.stats().kept == 1
    finally:
        server.go_on()
    wait_for(lambda: guard.stats().kept == 0, 20)
    assert guard.stats().sent_later == 1 and asyncio.run(free()) == 3


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_to_tickets_are_received_after_a_loop_that_ended_with_a_caller_in_line(server: Server) -> None:
    store = RedisStore(redis.asyncio.Redis(port=server.port))

    async def waits(*, until_it_listens: bool) -> None:
        limiter = AsyncLimiter("1 concurrent", store=store, name="line")
        async with await limiter.acquire("key", timeout=1, lease=60):
            waiting = asyncio.create_task(limiter.acquire("key", timeout=60, lease=60))
            await until_async(lambda: store.turns._tickets)
            if until_it_listens:
                await until_async(lambda: server.cli("PUBSUB", "CHANNELS", "headgate:turn:*"))
            waiting.cancel()
            if until_it_listens:
                await asyncio.wait([waiting])

    asyncio.run(waits(until_it_listens=False))
    wait_for(lambda: not server.cli("PUBSUB", "CHANNELS", "headgate:turn:*"), 20)
    asyncio.run(waits(until_it_listens=True))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_ends_at_any_step_of_a_call(server: Server) -> None:
    code = """
import asyncio, sys
import redis.asyncio
from headgate import AsyncLimiter
from headgate.stores.redis.store import RedisStore

async def end_after(steps):
    client = redis.asyncio.Redis(port=int(sys.argv[1]), socket_timeout=30)
    limiter = AsyncLimiter("1000/hour", store=RedisStore(client), name="loops")
    await limiter.hit("key")
    call = asyncio.create_task(limiter.hit("key"))
    for _ in range(steps):
        await asyncio.sleep(0)

for steps in range(20):
    asyncio.run(end_after(steps))
"""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(server.port)], check=False, timeout=60)
    assert ended.returncode == 0
