"""Clients of the caller's own in a Cluster, in both colours, of each protocol, decoding or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis
import redis.asyncio
from redis_servers import Cluster, cluster
from tcp_proxy import HOST

from headgate import AsyncLimiter, Limiter
from headgate.stores.redis.store import RedisStore

pytestmark = pytest.mark.integration
LIMITS = "5 concurrent; 1000/minute"
_names = count()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(replicas_each=0) as nodes:
        yield nodes


@pytest.fixture(params=[(2, False), (2, True), (3, False), (3, True)])
def options(request: pytest.FixtureRequest, nodes: Cluster) -> dict[str, Any]:
    protocol, decodes = request.param
    return {"host": HOST, "port": nodes.servers[0].port, "protocol": protocol, "decode_responses": decodes}


def test_a_client_of_a_cluster_for_threads_does_all_that_a_store_does(options: dict[str, Any]) -> None:
    with redis.RedisCluster(**options) as client:
        store = RedisStore(client)
        store.warm_up()
        store.ping()
        store.probe()
        limiter = Limiter(LIMITS, store=store, name=f"own{next(_names)}")
        with limiter.acquire("key", timeout=1, lease=60) as held:
            assert held.commit(0).outcome == "settled"
        limiter.reset("key")


def test_a_client_of_a_cluster_for_asyncio_does_all_that_a_store_does(options: dict[str, Any]) -> None:
    async def run() -> None:
        async with redis.asyncio.RedisCluster(**options) as client:
            store = RedisStore(client)
            await store.warm_up_async()
            await store.ping_async()
            await store.probe_async()
            limiter = AsyncLimiter(LIMITS, store=store, name=f"own{next(_names)}")
            async with await limiter.acquire("key", timeout=1, lease=60) as held:
                assert (await held.commit(0)).outcome == "settled"
            await limiter.reset("key")
            await store.aclose()

    asyncio.run(run())
