"""Clients that the caller made for a Cluster, in both colours, of each protocol, decoding or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis_askers import COLOURS, Asker, wait_for
from redis_servers import Cluster, Server, cluster
from tcp_proxy import HOST

from headgate import AsyncLimiter, GuardedStore, Limiter
from headgate.stores.redis.store import RedisStore
from versions import is_older

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


def test_a_cluster_client_for_threads_supports_all_operations_of_a_store(options: dict[str, Any]) -> None:
    with redis.RedisCluster(**options) as client:
        store = RedisStore(client)
        store.warm_up()
        store.ping()
        store.probe()
        limiter = Limiter(LIMITS, store=store, name=f"own{next(_names)}")
        with limiter.acquire("key", timeout=1, lease=60) as held:
            assert held.commit(0).outcome == "settled"
        limiter.reset("key")


def test_a_cluster_client_for_asyncio_supports_all_operations_of_a_store(options: dict[str, Any]) -> None:
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


NEVER = redis.retry.Retry(NoBackoff(), 0)


def warned(caplog: pytest.LogCaptureFixture, client: Any) -> bool:
    """Whether the log warns of a client that would charge twice."""
    caplog.clear()
    RedisStore(client)
    return any("retry=Retry(NoBackoff(), 0)" in record.getMessage() for record in caplog.records)


def test_a_client_that_would_repeat_a_lost_call_is_reported(nodes: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    port = nodes.servers[0].port
    with redis.Redis(port=port) as client, redis.RedisCluster(HOST, port) as in_cluster:
        assert warned(caplog, client)
        assert warned(caplog, in_cluster)
    with redis.Redis(port=port, retry=NEVER) as client, redis.RedisCluster(HOST, port, retry=NEVER) as in_cluster:
        assert not warned(caplog, client)
        assert not warned(caplog, in_cluster)
    assert warned(caplog, redis.asyncio.RedisCluster(HOST, port))
    assert not warned(caplog, redis.asyncio.Redis(port=port))  # whose calls go over a connection of ours


@pytest.fixture
def partial_nodes() -> Iterator[Cluster]:
    """Servers that continue when one of them is down."""
    with cluster(replicas_each=0, options=("cluster-require-full-coverage no",)) as nodes:
        yield nodes


@pytest.fixture(params=COLOURS)
def own(request: pytest.FixtureRequest, partial_nodes: Cluster) -> Iterator[Asker]:
    """A limiter on a client that never repeats a call, behind a guard."""
    options: dict[str, Any] = {
        "host": HOST,
        "port": partial_nodes.servers[1].port,
        "socket_timeout": 0.1,
        "socket_connect_timeout": 0.1,
        "require_full_coverage": False,
    }
    make: Any = partial(redis.RedisCluster, retry=NEVER)
    if request.param == "async":
        make = partial(redis.asyncio.RedisCluster, retry=redis.asyncio.retry.Retry(NoBackoff(), 0))
    client: Any = make(**options)
    with Asker(request.param, "1000/week bucket", GuardedStore(RedisStore(client)), name=f"own{next(_names)}") as asker:
        yield asker
        if asker.loop is None:
            client.close()
        else:
            asker.loop.run(client.aclose())


def keys_of(nodes: Cluster) -> dict[Server, str]:
    """A key of each server."""
    return {nodes.owner_of(key_slot(b"key%d" % number)): f"key{number}" for number in range(30)}


@pytest.mark.parametrize("outage", ["killed", "stopped"])
def test_a_server_that_a_client_does_not_reach_does_not_keep_others_from_deciding(
    partial_nodes: Cluster, own: Asker, outage: str
) -> None:
    if own.loop is not None and is_older("redis", "8"):
        pytest.skip("the client of a Cluster for asyncio asks other servers while one is away: since redis 8")
    keys = keys_of(partial_nodes)
    away, *others = partial_nodes.servers
    wait_for(lambda: {own.peek(key, 0).degraded for key in keys.values()} == {""})
    (away.kill if outage == "killed" else away.stop)()
    assert {own.hit(keys[away]).degraded for _ in range(12)} == {"local"}
    assert [own.hit(keys[other]).degraded for other in others] == ["", ""]
    assert own.store.breaker.opened == 0
    if outage == "killed":
        away.launch()
        away.wait_ready()
    else:
        away.go_on()
    wait_for(lambda: own.hit(keys[away]).degraded == "", 20)


def test_a_cluster_that_a_client_does_not_reach_at_all_opens_the_breaker(partial_nodes: Cluster, own: Asker) -> None:
    keys = keys_of(partial_nodes)
    wait_for(lambda: {own.peek(key, 0).degraded for key in keys.values()} == {""})
    for server in partial_nodes.servers:
        server.kill()
    wait_for(lambda: {own.hit(key).degraded for key in keys.values()} == {"local"} and own.store.breaker.opened == 1)
    for server in partial_nodes.servers:
        server.launch()
    for server in partial_nodes.servers:
        server.wait_ready()
    wait_for(lambda: {own.hit(key).degraded for key in keys.values()} == {""}, 30)
