"""Holds of a guarded Redis that is stopped, killed, or whose replies are lost: settled once, there or locally."""

from __future__ import annotations

import os
import random
import threading
import time
from asyncio import sleep, to_thread
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from redis.crc import key_slot
from redis_askers import COLOURS, SLACK_S, Asker, wait_for
from redis_servers import Server, cluster, sentinels, single
from stalls import timed
from tcp_proxy import HOST, TcpProxy

from headgate import Limiter
from headgate.stores.redis.store import RedisStore

pytestmark = pytest.mark.integration
DEADLINE_S = 0.1
BACK_WITHIN_S = 15
LIMITS = "100/week bucket; 50 concurrent"
_prefixes = count()


@pytest.fixture
def server() -> Iterator[Server]:
    with single("appendonly yes", "appendfsync always") as server:
        yield server


@pytest.fixture(params=COLOURS)
def asker(request: pytest.FixtureRequest, proxy: TcpProxy) -> Iterator[Asker]:
    with opened(request.param, proxy.port) as asker:
        wait_for(lambda: asker.peek("key", 0).degraded == "")
        yield asker


def opened(colour: str, port: int, **options: object) -> Asker:
    return Asker(colour, LIMITS, url_of(port, **options), name="held")


def url_of(port: int, **options: object) -> str:
    deadline = f"{int(DEADLINE_S * 1000)}ms"
    parameters = {
        "timeout": deadline,
        "connect_timeout": deadline,
        "prefix": f"h{os.getpid()}-{next(_prefixes)}",
        **options,
    }
    return f"redis://{HOST}:{port}/0?" + "&".join(f"{name}={value}" for name, value in parameters.items())


def on_the_server(asker: Asker, server: Server, key: str = "key") -> tuple[int, int]:
    """(units left, places free) of a key, read from the server by another client."""
    store = RedisStore(f"redis://{HOST}:{server.port}?timeout=10s", prefix=asker.raw.prefix)
    with Limiter(LIMITS, store=store, name="held") as other:
        units, places = other.peek(key, 0).limits
        return units.remaining, places.remaining


def counts(asker: Asker) -> tuple[int, ...]:
    """The numbers of (stored, later sent, lost) settlements."""
    stats = asker.store.stats()
    return stats.kept, stats.sent_later, stats.lost


def is_sent(asker: Asker, number: int) -> bool:
    return counts(asker)[:2] == (0, number)


def is_back(asker: Asker) -> bool:
    """Whether all calls go to the store again."""
    return asker.peek("other", 0).degraded == "" and asker.store.breaker.state == "closed"


@pytest.mark.parametrize("outage", ["stopped", "cut", "silent", "killed"])
def test_a_settlement_during_an_outage_is_sent_once_after_it(
    server: Server, proxy: TcpProxy, asker: Asker, outage: str
) -> None:
    away = {"stopped": server.stop, "cut": proxy.cut, "silent": proxy.silence, "killed": server.kill}
    back = {"stopped": server.go_on, "cut": proxy.mend, "silent": proxy.mend, "killed": server.restart}
    held = [asker.reserve("key", 3, lease=120) for _ in range(10)]
    assert on_the_server(asker, server) == (70, 20)
    away[outage]()
    took = []
    for number, reservation in enumerate(held):
        with timed() as own_s:
            settlement = asker.commit(reservation.id, 1)
        took.append(own_s())
        assert (settlement.outcome, settlement.actual, settlement.degraded) == ("settled", 1, "later"), number
        assert asker.commit(reservation.id, 3).outcome == "already settled"
    extension = asker.extend(asker.limiter.id_of("key", "of another process"))
    assert (extension.outcome, extension.degraded) == ("refused", "closed")
    assert counts(asker) == (10, 0, 0)
    back[outage]()
    wait_for(lambda: is_sent(asker, 10), BACK_WITHIN_S)
    print({"outage": outage, "longest_s": round(max(took), 3)})
    assert max(took) < DEADLINE_S + SLACK_S
    assert on_the_server(asker, server) == (90, 50)
    wait_for(lambda: is_back(asker), BACK_WITHIN_S)
    again = asker.commit(held[0].id, 3)
    assert (again.outcome, again.actual) == ("already settled", 1)


def test_a_hold_made_during_an_outage_stays_local(server: Server, asker: Asker) -> None:
    server.stop()
    held = [asker.reserve("key", 5, id=name) for name in (None, "a", "b", "c", None)]
    assert [reservation.decision.degraded for reservation in held] == ["local"] * 5
    assert asker.extend(held[4].id, lease=90).degraded == "local"
    server.go_on()
    wait_for(lambda: is_back(asker), BACK_WITHIN_S)
    assert asker.reserve("key", 5, id="b").repeated
    for reservation in held:
        assert asker.commit(reservation.id, 2).degraded == "local"
        assert asker.commit(reservation.id, 2).outcome == "already settled"
    # Those whose call was sent may have been made on the server, too, and are settled there with the same.
    wait_for(lambda: counts(asker)[0] == 0, BACK_WITHIN_S)
    sent = counts(asker)[1]
    units, places = on_the_server(asker, server)
    print({"sent": sent, "units": units})
    assert places == 50 and 100 - 2 * sent <= units <= 100 and sent <= 3


@pytest.mark.parametrize("name", [None, "a name"])
def test_a_hold_whose_reply_was_lost_is_settled_with_the_actual_cost_in_both_places(
    server: Server, proxy: TcpProxy, asker: Asker, name: str | None
) -> None:
    asker.reserve("load the scripts")
    proxy.swallow_replies()
    held = asker.reserve("key", 10, id=name)
    assert held.decision.degraded == "local"
    wait_for(lambda: on_the_server(asker, server) == (90, 40))
    proxy.mend()
    wait_for(lambda: is_back(asker), BACK_WITHIN_S)
    assert asker.commit(held.id, 4).degraded == "local"
    wait_for(lambda: on_the_server(asker, server) == (96, 50), BACK_WITHIN_S)
    assert asker.commit(held.id, 4).outcome == "already settled"
    if name is not None:
        whole_id = asker.limiter.id_of("key", name)
        store = RedisStore(f"redis://{HOST}:{server.port}?timeout=10s", prefix=asker.raw.prefix)
        with Limiter(LIMITS, store=store, name="held") as other:
            assert other.reserve("key", 10, id=name).repeated
            assert (other.commit(whole_id, 9).outcome, other.commit(whole_id, 9).actual) == ("already settled", 4)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_hold_that_was_refused_because_its_reply_was_lost_is_taken_back(
    server: Server, proxy: TcpProxy, colour: str
) -> None:
    with opened(colour, proxy.port, on_error="closed") as asker:
        wait_for(lambda: asker.peek("key", 0).degraded == "")
        asker.reserve("load the scripts")
        proxy.swallow_replies()
        refused = asker.reserve("key", 10)
        assert not refused and refused.decision.degraded == "closed"
        wait_for(lambda: on_the_server(asker, server) == (90, 40))
        proxy.mend()
        wait_for(lambda: on_the_server(asker, server) == (100, 50), BACK_WITHIN_S)


@pytest.mark.parametrize("on_error", ["closed", "local", "open"])
@pytest.mark.parametrize("colour", COLOURS)
def test_a_place_whose_acquire_got_no_reply_is_free_once_its_caller_is_done(
    server: Server, proxy: TcpProxy, colour: str, on_error: str
) -> None:
    with opened(colour, proxy.port, on_error=on_error) as asker:
        wait_for(lambda: asker.peek("key", 0).degraded == "")
        for name in ("load the scripts", "of both ways"):
            asker.commit(asker.acquire_place(name, timeout=5, lease=60).id)
            asker.commit(asker.reserve(name).id)
        proxy.swallow_replies()
        held = asker.acquire_place("key", 10, timeout=0.5, lease=600)
        assert (bool(held), held.decision.degraded) == (on_error != "closed", on_error)
        if held:
            assert on_the_server(asker, server) == (90, 40) or on_error == "open"
        proxy.mend()
        if held:
            asker.commit(held.id, 4)
        units = {"closed": (100,), "local": (96,), "open": (96, 100)}[on_error]
        wait_for(lambda: on_the_server(asker, server)[1] == 50, BACK_WITHIN_S)
        assert on_the_server(asker, server)[0] in units


def test_a_settlement_whose_reply_was_lost_is_repeated_and_changes_nothing(
    server: Server, proxy: TcpProxy, asker: Asker
) -> None:
    held = asker.reserve("key", 10)
    asker.commit(asker.reserve("load the scripts").id)
    proxy.swallow_replies()
    assert asker.commit(held.id, 4).degraded == "later"
    wait_for(lambda: on_the_server(asker, server) == (96, 50))
    proxy.mend()
    wait_for(lambda: is_sent(asker, 1), BACK_WITHIN_S)
    assert on_the_server(asker, server) == (96, 50)


def test_a_hold_that_was_reset_or_settled_by_another_meanwhile_changes_nothing(
    server: Server, proxy: TcpProxy, asker: Asker
) -> None:
    reset, settled = asker.reserve("reset", 10), asker.reserve("key", 10)
    proxy.cut()
    assert [asker.commit(reservation.id, 4).degraded for reservation in (reset, settled)] == ["later"] * 2
    store = RedisStore(f"redis://{HOST}:{server.port}?timeout=10s", prefix=asker.raw.prefix)
    with Limiter(LIMITS, store=store, name="held") as other:
        assert other.reset("reset")
        assert other.commit(settled.id, 7).outcome == "settled"
    proxy.mend()
    wait_for(lambda: is_sent(asker, 2), BACK_WITHIN_S)
    assert on_the_server(asker, server, "reset") == (100, 50)
    assert on_the_server(asker, server) == (93, 50)


def test_the_blocks_of_holds_are_left_and_their_leases_live_through_an_outage(server: Server, asker: Asker) -> None:
    if asker.loop is None:
        with asker.limiter.reserve("key", 10, lease=1):
            _outage(server, DEADLINE_S * 6)
            time.sleep(1.2)  # longer than the lease: it was extended since
            assert on_the_server(asker, server)[1] == 40
            server.stop()
    else:

        async def hold() -> None:
            async with await asker.limiter.reserve("key", 10, lease=1):
                await to_thread(lambda: _outage(server, DEADLINE_S * 6))
                await sleep(1.2)
                assert (await to_thread(lambda: on_the_server(asker, server)))[1] == 40
                await to_thread(server.stop)

        asker.loop.run(hold())
    server.go_on()
    wait_for(lambda: on_the_server(asker, server) == (90, 50), BACK_WITHIN_S)


def _outage(server: Server, seconds: float) -> None:
    server.stop()
    try:
        time.sleep(seconds)
    finally:
        server.go_on()


@pytest.mark.parametrize("colour", COLOURS)
def test_after_a_failover_stored_settlements_settle_once(colour: str) -> None:
    with sentinels() as watched:
        watched.wait_ok()
        url = f"{watched.url}?timeout=100ms&connect_timeout=100ms"
        with Asker(colour, LIMITS, url, name="held") as asker:
            wait_for(lambda: asker.peek("key", 0).degraded == "")
            held = [asker.reserve("key", 3, lease=300) for _ in range(5)]
            primary = watched.primary
            asker.raw.client.wait(1, 5000) if colour == "sync" else time.sleep(1)
            primary.kill()
            outcomes = [asker.commit(reservation.id, 1).degraded for reservation in held]
            watched.wait_failover(primary)
            wait_for(lambda: is_sent(asker, outcomes.count("later")), 60)
            wait_for(lambda: is_back(asker), 60)
            assert outcomes.count("later") == 5
            assert [reading.remaining for reading in asker.peek("key", 0).limits] == [95, 50]
            assert {asker.commit(reservation.id, 2).outcome for reservation in held} == {"already settled"}


def test_each_settlement_during_random_outages_counts_once(server: Server, proxy: TcpProxy, asker: Asker) -> None:
    own = random.Random(7)
    ended = threading.Event()

    faults: list[Callable[[], None]] = [proxy.cut, proxy.swallow_replies, lambda: proxy.delay(DEADLINE_S)]

    def disturb() -> None:
        while not ended.wait(own.uniform(0.05, 0.3)):
            own.choice(faults)()
            ended.wait(own.uniform(0.05, 0.3))
            proxy.delay(0)
            proxy.mend()

    thread = threading.Thread(target=disturb)
    thread.start()
    here = there = 0
    try:
        for number in range(60):
            held = asker.reserve("key", 1, id=f"job {number}" if number % 2 else None)
            if not held:
                continue
            settlement = asker.commit(held.id, 1 if number % 3 else 0)
            assert settlement.outcome == "settled", (number, settlement)
            here, there = here + (settlement.degraded == "local"), there + (settlement.degraded != "local")
            if number % 5 == 0:
                again = asker.commit(held.id, 1)
                assert again.outcome == "already settled" or again.degraded == "later"
    finally:
        ended.set()
        thread.join()
        proxy.delay(0)
        proxy.mend()
    wait_for(lambda: counts(asker)[0] == 0, BACK_WITHIN_S)
    units, places = on_the_server(asker, server)
    print({"here": here, "there": there, "units": units, "sent later": counts(asker)[1]})
    assert counts(asker)[2] == 0 and places == 50
    assert 100 - 40 <= units <= 100


def test_settlements_reach_the_answering_servers_of_a_cluster_although_another_is_dead() -> None:
    with cluster(replicas_each=0, options=["cluster-require-full-coverage no"]) as nodes:
        limiter = Limiter(LIMITS, store=f"{nodes.url}?timeout=500ms&remember=no", name="held")
        dead, *others = nodes.servers
        keys = {nodes.owner_of(key_slot(b"key%d" % number)): f"key{number}" for number in range(50)}
        held = [limiter.reserve(keys[server], cost=3, lease=600) for server in (dead, dead, dead, dead, *others)]
        for server in nodes.servers:
            server.stop()
        for hold in held:
            assert limiter.commit(hold.id, 1).degraded == "later"
        for server in others:
            server.go_on()
        dead.kill()
        wait_for(lambda: limiter.store.stats().sent_later == len(others), BACK_WITHIN_S)
        assert limiter.store.stats().kept == 4
        store = RedisStore(f"{nodes.url}?timeout=10s")
        with Limiter(LIMITS, store=store, name="held") as other:
            assert [other.peek(keys[server], 0).limits[0].remaining for server in others] == [99, 99]


@pytest.mark.parametrize("choice", ["local", "closed"])
@pytest.mark.parametrize("colour", COLOURS)
def test_a_hold_that_was_never_sent_leaves_nothing_to_settle_later(
    colour: str, choice: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(colour, 1, on_error=choice) as asker:
        for _ in range(5):
            held = asker.reserve("key", 2, lease=60)
            if held:
                assert asker.commit(held.id, 1).degraded == "local"
        assert counts(asker) == (0, 0, 0)
    assert not any("settlements are lost" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_hold_that_a_full_server_refused_leaves_nothing_to_settle_later(
    colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    with single() as full, opened(colour, full.port) as asker:
        settled = asker.reserve("key", 2, lease=60)
        assert asker.commit(settled.id, 1).degraded == ""
        full.cli("CONFIG", "SET", "maxmemory", "1mb")
        for _ in range(5):
            held = asker.reserve("key", 2, lease=60)
            assert asker.commit(held.id, 1).degraded == "local"
        assert counts(asker) == (0, 0, 0)
    assert not any("settlements are lost" in record.getMessage() for record in caplog.records)
