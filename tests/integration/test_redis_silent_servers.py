"""A Cluster in which one server does not answer: its keys are decided without it, all others by their servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from redis.crc import key_slot
from redis_askers import COLOURS, Asker, wait_for
from redis_servers import SERVICE, Cluster, Server, cluster, sentinels
from stalls import timed
from tcp_proxy import HOST, TcpProxy

from headgate import AsyncLimiter

pytestmark = pytest.mark.integration
OPTIONS = ("cluster-require-full-coverage no", "maxmemory-policy noeviction")
DEADLINE_S = 0.1


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    with cluster(replicas_each=0, options=OPTIONS) as nodes:
        yield nodes


@pytest.fixture(params=COLOURS)
def asker(request: pytest.FixtureRequest, nodes: Cluster) -> Iterator[Asker]:
    url = f"{nodes.url}?timeout={int(DEADLINE_S * 1000)}ms&remember=no"
    with Asker(request.param, "1000/week bucket; 100 concurrent", url, name="held") as asker:
        wait_for(lambda: {asker.peek(key, 0).degraded for key in keys_of(nodes).values()} == {""})
        yield asker


def keys_of(nodes: Cluster) -> dict[Server, str]:
    """A key of each server."""
    return {nodes.owner_of(key_slot(b"key%d" % number)): f"key{number}" for number in range(30)}


def decided(asker: Asker, key: str) -> str:
    """What decided instead of the store."""
    place: str = asker.reserve(key, lease=60).decision.degraded
    return place


@pytest.mark.parametrize("outage", ["killed", "stopped"])
def test_keys_of_other_servers_are_decided_there_and_no_call_waits_for_the_silent_one(
    nodes: Cluster, asker: Asker, outage: str
) -> None:
    keys = keys_of(nodes)
    away, *others = nodes.servers
    (away.kill if outage == "killed" else away.stop)()
    with timed() as took_s:
        assert {decided(asker, keys[away]) for _ in range(60)} == {"local"}
    assert [decided(asker, keys[other]) for other in others] == ["", ""]
    assert decided(asker, keys[away]) == "local"
    assert asker.store.breaker.opened == 0
    assert took_s() < 30 * DEADLINE_S
    if outage == "killed":
        away.launch()
        away.wait_ready()
    else:
        away.go_on()
    wait_for(lambda: decided(asker, keys[away]) == "", 20)


@pytest.mark.parametrize("colour", COLOURS)
def test_of_many_keys_those_of_a_silent_server_are_decided_without_it(nodes: Cluster, colour: str) -> None:
    keys = keys_of(nodes)
    away, *others = nodes.servers
    all_keys = [keys[server] for server in (others[0], away, others[1])]
    with Asker(colour, "1000/week bucket", f"{nodes.url}?timeout={int(DEADLINE_S * 1000)}ms") as asker:
        wait_for(lambda: {decision.degraded for decision in asker.hit_many(all_keys)} == {""})
        charged = 1000 - (asker.peek(all_keys[0], 0).remaining or 0)
        away.kill()
        with timed() as took_s:
            decisions = asker.hit_many(all_keys * 20)
        assert [decision.degraded for decision in decisions] == ["", "local", ""] * 20
        assert [decision.remaining for decision in decisions[-3:]] == [980 - charged, 980, 980 - charged]
        assert took_s() < 20 * DEADLINE_S
        assert asker.store.breaker.opened == 0


def test_holds_that_were_not_sent_to_a_silent_server_are_settled_locally(nodes: Cluster, asker: Asker) -> None:
    key, away = keys_of(nodes)[nodes.servers[0]], nodes.servers[0]
    away.kill()
    for _ in range(50):
        held = asker.reserve(key, 2, lease=60)
        assert asker.commit(held.id, 1).degraded == "local"
    assert asker.store.stats().kept < 20, "those that may have reached it"


def test_a_full_server_does_not_keep_others_from_deciding(nodes: Cluster, asker: Asker) -> None:
    keys = keys_of(nodes)
    full, *others = nodes.servers
    full.cli("CONFIG", "SET", "maxmemory", 1)
    degraded = [decided(asker, keys[full]) for _ in range(30)]
    assert set(degraded) == {"local"}
    assert [decided(asker, keys[other]) for other in others] == ["", ""]
    full.cli("CONFIG", "SET", "maxmemory", 0)
    wait_for(lambda: decided(asker, keys[full]) == "", 20)


def test_an_unavailable_cluster_opens_the_breaker_and_is_back_with_its_first_servers(
    nodes: Cluster, asker: Asker
) -> None:
    keys = keys_of(nodes)
    dead, *others = nodes.servers
    for server in nodes.servers:
        server.stop()
    wait_for(lambda: decided(asker, keys[others[0]]) == "local" and asker.store.breaker.state == "open", 20)
    for server in others:
        server.go_on()
    wait_for(lambda: [decided(asker, keys[other]) for other in others] == ["", ""], 20)
    dead.go_on()


def test_event_loops_that_each_serve_one_request_share_which_servers_are_silent(nodes: Cluster) -> None:
    keys, away = keys_of(nodes), nodes.servers[0]
    limiter = AsyncLimiter("100/week bucket", store=f"{nodes.url}?timeout=100ms&connect_timeout=500ms&remember=no")

    async def hit(key: str) -> str:
        try:
            return (await limiter.hit(key)).degraded
        finally:
            await limiter.store.aclose()  # the connections of this loop

    asyncio.run(hit(keys[away]))
    away.stop()
    with timed() as took_s:
        degraded = [asyncio.run(hit(keys[away])) for _ in range(30)]
    assert set(degraded) == {"local"}
    assert took_s() < 15 * 0.3
    away.go_on()


@contextmanager
def behind_a_silent_one(kind: str) -> Iterator[str]:
    """The URL of a Cluster or of Sentinels whose first server does not answer, with equal deadlines."""
    with ExitStack() as running:
        if kind == "sentinel":
            ports, path = running.enter_context(sentinels()).sentinel_ports, f"{SERVICE}/0"
        else:
            ports, path = [server.port for server in running.enter_context(cluster(replicas_each=0)).servers], ""
        first = running.enter_context(TcpProxy(ports[0]))
        first.silence()
        places = ",".join(f"{HOST}:{port}" for port in (first.port, *ports[1:]))
        yield f"redis+{kind}://{places}/{path}?timeout=2s&connect_timeout=2s"


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_first_server_that_does_not_answer_leaves_time_for_the_next_one(kind: str, colour: str) -> None:
    with behind_a_silent_one(kind) as url, Asker(colour, "7/minute log", url) as asker:
        assert asker.hit("key").degraded == ""
