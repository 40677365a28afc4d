"""One line for the callers of all processes that wait for a key on Redis."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis_servers import Sentinels, Server, single

from headgate import AsyncLimiter, Limiter, StoreError
from headgate.stores.guard.store import GuardedStore
from headgate.stores.lines import Ticket
from headgate.stores.redis import line as redis_line
from headgate.stores.redis.store import RedisStore
from until import in_thread, until, until_async

pytestmark = pytest.mark.integration
CALLERS = str(Path(__file__).with_name("line_callers.py"))
LONG_S = 60
NEVER_US = 3_600 * 1_000_000
_prefixes = count()


@pytest.fixture(params=["single", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    servers = request.getfixturevalue({"single": "server", "sentinel": "watched", "cluster": "nodes"}[request.param])
    servers_url: str = servers.url
    return servers_url


def prefix() -> str:
    return f"line{next(_prefixes)}"


def store_at(url: str, own: str, *, only_messages: bool = True) -> RedisStore:
    """A store like that of another process; with `only_messages` only a message wakes its callers in time."""
    store = RedisStore(f"{url}?timeout=10s", prefix=own)
    if only_messages:
        store.turns.keepalive_us, store.turns.alive_ms = NEVER_US, 600_000
    return store


def in_line(limiter: Limiter | AsyncLimiter) -> int:
    """How many callers of all processes wait in the line of the key."""
    [line, *_] = limiter.bound.line.place(("key",)).keys
    number: int = limiter.store.unguarded.client.zcard(line)  # type: ignore[attr-defined]
    return number


def listening(store: Any) -> bool:
    hears: bool = store.turns.receives_calls
    return hears


def _one_waits(limiter: Limiter, store: Any) -> bool:
    return in_line(limiter) == 1 and listening(store)


def test_a_place_freed_by_one_process_calls_the_caller_of_another_at_once(url: str) -> None:
    own = prefix()
    first, second = (Limiter("1 concurrent; 9000/hour", store=store_at(url, own), name="jobs") for _ in range(2))
    for _ in range(3):
        held = first.reserve("key", lease=LONG_S)
        with in_thread(lambda: second.acquire("key", timeout=LONG_S, lease=LONG_S)) as decisions:
            until(lambda: in_line(first) == 1 and listening(second.store))
            first.commit(held.id)
        assert decisions[0] and in_line(first) == 0
        decisions[0].commit()


def test_a_caller_does_not_pass_those_of_other_processes_but_hits_do(url: str) -> None:
    own = prefix()
    first, second = (Limiter("2 concurrent; 9000/hour", store=store_at(url, own), name="jobs") for _ in range(2))
    held = first.reserve("key", lease=LONG_S)
    with in_thread(lambda: first.acquire("key", 2, timeout=LONG_S, lease=LONG_S)) as big:
        until(lambda: in_line(first) == 1)
        with in_thread(lambda: second.acquire("key", 1, timeout=LONG_S, lease=LONG_S)) as small:
            until(lambda: in_line(first) == 2)
            assert (
                second.reserve("key", lease=1).cancel().outcome == "settled"
            )  # there is a place, and it does not wait
            assert second.peek("key").allowed and not small
            until(lambda: listening(first.store) and listening(second.store))
            held.commit()
            until(lambda: big)
            assert not small
            big[0].commit()
        assert small[0]


def test_a_caller_without_a_line_before_it_makes_one_call(server: Server) -> None:
    limiter = Limiter("5/hour; 9/hour bucket", store=store_at(server.url, prefix()))
    assert limiter.acquire("other") and limiter.acquire("other", lease=5)  # the server has the scripts from then on
    server.cli("CONFIG", "RESETSTAT")
    assert limiter.acquire("key") and limiter.acquire("key", lease=5)
    ran = {name: stat["calls"] for name, stat in limiter.store.client.info("commandstats").items()}  # type: ignore[attr-defined]
    assert ran["cmdstat_evalsha"] == 2 and "cmdstat_eval" not in ran
    assert limiter.peek("key", 0).remaining == 3


def test_a_repeated_hold_is_returned_without_waiting(server: Server) -> None:
    own = prefix()
    first, second = (Limiter("1 concurrent", store=store_at(server.url, own), name="jobs") for _ in range(2))
    held = first.acquire("key", lease=LONG_S, id="mine")
    with in_thread(lambda: first.acquire("key", timeout=LONG_S, lease=LONG_S)) as decisions:
        until(lambda: in_line(first) == 1 and listening(first.store))
        for limiter in (first, second):
            again = limiter.acquire("key", timeout=LONG_S, lease=LONG_S, id="mine")
            assert again.repeated and again.id == held.id
        held.commit()
    assert decisions[0]


def test_too_many_limits_for_their_own_script_wait_in_line_too(server: Server) -> None:
    own, limits = prefix(), "; ".join(["10/second bucket", *(f"{n}00000/{n} hours fixed" for n in range(1, 8))])
    first, second = (Limiter(limits, store=store_at(server.url, own), name="jobs") for _ in range(2))
    first.hit("key", 10)
    with in_thread(lambda: first.acquire("key", 5, timeout=LONG_S)) as big:
        until(lambda: in_line(first) == 1 and listening(first.store))
        assert second.acquire("key", timeout=LONG_S)
        until(lambda: big)
        assert second.peek("key", 0).limits[1].remaining == 100_000 - 16
    assert big[0] and in_line(first) == 0


def test_callers_beyond_the_most_of_a_limiter_are_refused(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter("1 concurrent", store=store_at(server.url, prefix()), max_waiters=1)
    held = limiter.reserve("key", lease=LONG_S)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)):
        until(lambda: in_line(limiter) == 1 and listening(limiter.store))
        assert not limiter.acquire("key", timeout=LONG_S, lease=LONG_S)
        assert not limiter.acquire("key", timeout=LONG_S, lease=LONG_S)
        assert [record.getMessage() for record in caplog.records] == [
            "1 callers wait already, which is the most that may: more are refused"
        ]
        held.commit()


@pytest.mark.parametrize("limits", ["3 concurrent; 1000000/day fixed", "300/second bucket; 1000000/day fixed"])
def test_callers_of_several_hosts_pass_in_the_order_of_their_arrival_at_the_server(server: Server, limits: str) -> None:
    url = server.url
    hosts = [  # the first is killed before it has made so many calls
        ("sync", 0, 1.0, 1_000),
        ("async", 3_600_000_000, 1.01, 12),
        ("sync", -3_600_000_000, 0.99, 12),
        ("async", 40_000, 1.0, 12),
    ]
    limiter = Limiter(limits, store=RedisStore(f"{url}?timeout=10s"), name="line")
    limiter.reset("key")
    held = limiter.reserve("key", min(limit.quota for limit in limiter.limits), lease=4)
    limiter.commit(held.id) if "bucket" in limits else None
    processes = [
        subprocess.Popen(
            [sys.executable, CALLERS, url, limits, colour, str(offset), str(speed), str(number), "15", str(times)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, (colour, offset, speed, times) in enumerate(hosts)
    ]
    try:
        until(lambda: in_line(limiter) > 5)
        time.sleep(0.5)
        processes[0].send_signal(signal.SIGKILL)  # with callers in line, at whatever they were doing
        rows = [row for process in processes for row in process.communicate(timeout=120)[0].split("\n")]
        results = [json.loads(row) for row in rows if row.endswith("]")]  # the last one of the killed may be cut off
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0, 0, 0]
    passed = sorted(
        results, key=lambda result: -result[1]
    )  # what is left of a fixed window tells who was admitted first
    orders = [order for order, _, _ in passed if order]
    assert len(orders) > 100
    assert orders == sorted(orders), "no caller passed an earlier one"
    assert len({cost for _, _, cost in passed}) == 3
    until(lambda: in_line(limiter) == 0)


@pytest.mark.parametrize("kind", ["one connection", "cluster"])
def test_a_client_that_cannot_listen_notices_at_once_what_its_own_process_frees(
    kind: str, request: pytest.FixtureRequest
) -> None:
    servers = request.getfixturevalue("nodes" if kind == "cluster" else "server")

    async def main() -> None:
        mine: Any
        if kind == "cluster":
            mine = redis.asyncio.RedisCluster("127.0.0.1", servers.servers[0].port)
        else:
            mine = redis.asyncio.Redis(port=servers.port, max_connections=1)
        store = RedisStore(mine, prefix=prefix())
        store.turns.keepalive_us, store.turns.alive_ms = NEVER_US, 600_000
        limiter = AsyncLimiter("1 concurrent", store=store)
        held = await limiter.acquire("key", timeout=LONG_S, lease=LONG_S)
        tasks = {asyncio.create_task(_held(limiter.acquire("key", timeout=LONG_S, lease=LONG_S))) for _ in range(3)}
        await until_async(lambda: [len(known.tickets) for known in limiter._lines._in_store._known.values()] == [3])
        while tasks:
            await held.commit()
            [decisions], tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            held = await decisions
        await held.commit()
        await store.aclose()
        await mine.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("colour", ["threads", "tasks"])
def test_a_caller_that_gives_up_leaves_the_line(server: Server, colour: str) -> None:
    own = prefix()
    limiter = Limiter("1 concurrent", store=store_at(server.url, own), name="jobs")
    held = limiter.reserve("key", lease=LONG_S)
    if colour == "threads":
        assert not limiter.acquire("key", timeout=0.05, lease=LONG_S)
        assert in_line(limiter) == 0
        return

    async def main() -> None:
        waiting = AsyncLimiter("1 concurrent", store=store_at(server.url, own), name="jobs")
        tasks = [asyncio.create_task(_held(waiting.acquire("key", lease=LONG_S))) for _ in range(20)]
        await until_async(lambda: in_line(limiter) == 20)
        for task in tasks[:19]:
            task.cancel()
        await asyncio.gather(*tasks[:19], return_exceptions=True)
        assert in_line(limiter) == 1
        await until_async(lambda: listening(waiting.store))
        held.commit()
        assert await tasks[19]
        assert in_line(limiter) == 0
        await waiting.store.aclose()

    asyncio.run(main())


async def _held(acquiring: Awaitable[Any]) -> Any:
    return await acquiring


def test_a_lost_message_delays_its_caller_only_briefly(server: Server) -> None:
    own = prefix()
    first, deaf = (Limiter("1 concurrent", store=store_at(server.url, own), name="jobs") for _ in range(2))
    deaf.store.turns._client = None  # type: ignore[attr-defined]
    deaf.store.turns.keepalive_us = 100_000  # type: ignore[attr-defined]
    held = first.reserve("key", lease=LONG_S)
    with in_thread(lambda: deaf.acquire("key", timeout=LONG_S, lease=LONG_S)) as decisions:
        until(lambda: in_line(first) == 1)
        with in_thread(lambda: deaf.acquire("key", timeout=LONG_S, lease=LONG_S)) as behind:
            until(lambda: in_line(first) == 2)
            first.commit(held.id)
            until(lambda: decisions or deaf.peek("key", 0).remaining == 0)
            until(lambda: decisions)
            decisions[0].commit()
        assert behind[0]


def test_tickets_of_a_dead_process_are_skipped(server: Server) -> None:
    own = prefix()
    dead, alive = (Limiter("9/second bucket", store=store_at(server.url, own), name="jobs") for _ in range(2))
    dead.store.turns.alive_ms = 700  # type: ignore[attr-defined]
    alive.store.turns.keepalive_us = 100_000  # type: ignore[attr-defined]
    line = dead.bound.line
    for number in range(3):
        ticket = Ticket((1,))
        line.turns.add(ticket)
        assert line.join(line.place(("key",)), ticket, 0, b"").is_first is (number == 0)
    alive.hit("key", 9)
    start = time.monotonic()
    assert alive.acquire("key", 3, timeout=LONG_S)
    assert time.monotonic() - start > 0.4
    assert in_line(alive) == 0
    dead.store.turns._tickets.clear()  # type: ignore[attr-defined]


def test_a_process_that_died_before_the_servers_clock_went_back_does_not_block_the_line(server: Server) -> None:
    own = prefix()
    dead, alive = (Limiter("9/second bucket", store=store_at(server.url, own), name="jobs") for _ in range(2))
    alive.store.turns.keepalive_us, alive.store.turns.alive_ms = 50_000, 100  # type: ignore[attr-defined]
    line, ticket = dead.bound.line, Ticket((1,))
    place = line.place(("key",))
    line.turns.add(ticket)
    assert line.join(place, ticket, 0, b"").is_first
    # As the clock of the primary before this one had it, which was an hour ahead:
    server.cli("HSET", place.keys[1], line.turns.process, int(time.time() * 1000) + 3_600_000)
    assert alive.acquire("key", timeout=10)
    assert in_line(alive) == 0
    dead.store.turns._tickets.clear()  # type: ignore[attr-defined]


def test_a_ticket_that_was_skipped_while_its_process_was_stopped_joins_again(server: Server) -> None:
    own = prefix()
    limiter = Limiter("1 concurrent", store=store_at(server.url, own, only_messages=False), name="jobs")
    limiter.store.turns.keepalive_us = 100_000  # type: ignore[attr-defined]
    held = limiter.reserve("key", lease=LONG_S)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as decisions:
        until(lambda: in_line(limiter) == 1)
        limiter.store.client.delete(*limiter.bound.line.place(("key",)).keys)  # type: ignore[attr-defined]
        until(lambda: in_line(limiter) == 1)
        held.commit()
    assert decisions[0]


@pytest.mark.parametrize("text", ["1 concurrent", "1/minute bucket"])
def test_the_first_caller_joins_again_where_the_server_has_lost_all_states(server: Server, text: str) -> None:
    own = prefix()
    limiter = Limiter(text, store=store_at(server.url, own, only_messages=False), name="jobs")
    limiter.store.turns.keepalive_us = 100_000  # type: ignore[attr-defined]
    assert limiter.reserve("key", lease=LONG_S)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as decisions:
        until(lambda: in_line(limiter) == 1)
        start = time.monotonic()
        server.cli("FLUSHALL")
    assert decisions[0] and time.monotonic() - start < LONG_S / 2


def test_a_ticket_that_its_process_does_not_know_any_more_blocks_no_caller(server: Server) -> None:
    own = prefix()
    limiter = Limiter("9/second bucket", store=store_at(server.url, own), name="jobs")
    line = limiter.bound.line
    ticket = Ticket((1,))
    line.turns.add(ticket)
    line.join(line.place(("key",)), ticket, 0, b"")
    line.turns.remove(ticket)  # as if the reply to joining was lost
    assert limiter.acquire("key", timeout=LONG_S)
    assert in_line(limiter) == 0


def test_a_caller_whose_turn_comes_too_late_is_refused_at_once_by_what_others_wait_for(server: Server) -> None:
    own = prefix()
    first, second = (Limiter("30/minute bucket", store=store_at(server.url, own), name="jobs") for _ in range(2))
    first.hit("key", 30)
    with in_thread(lambda: first.acquire("key", 2, timeout=LONG_S)):
        until(lambda: in_line(first) == 1)
        late = second.acquire("key", 1, timeout=4.5)
        assert not late and late.retry_after is not None and 4.5 < late.retry_after <= 6
        assert in_line(first) == 1


def test_callers_that_join_a_line_at_once_are_in_its_plan_once_each(server: Server) -> None:
    own = prefix()

    async def main() -> None:
        limiters = [
            AsyncLimiter("100/second burst 1", store=store_at(server.url, own, only_messages=False), name="jobs")
            for _ in range(2)
        ]
        decisions = await asyncio.gather(*[limiters[n % 5 == 0].acquire("key", timeout=20) for n in range(200)])
        for limiter in limiters:
            await limiter.store.aclose()
        assert [decision.allowed for decision in decisions] == [True] * 200

    asyncio.run(main())


def test_a_caller_that_gave_up_behind_others_is_in_no_plan(server: Server) -> None:
    own = prefix()
    limiter = Limiter("30/minute bucket", store=store_at(server.url, own), name="jobs")
    limiter.hit("key", 30)

    async def main() -> None:
        waiting = AsyncLimiter("30/minute bucket", store=store_at(server.url, own), name="jobs")
        one = asyncio.create_task(waiting.acquire("key", 1, timeout=LONG_S))
        await until_async(lambda: in_line(limiter) == 1)
        big = asyncio.create_task(waiting.acquire("key", 20, timeout=LONG_S))
        await until_async(lambda: in_line(limiter) == 2)
        await asyncio.sleep(0.05)
        big.cancel()
        await asyncio.gather(big, return_exceptions=True)
        behind = asyncio.create_task(waiting.acquire("key", 1, timeout=30))
        await until_async(lambda: in_line(limiter) == 2)
        await asyncio.sleep(0.05)
        assert not behind.done()
        for task in (one, behind):
            task.cancel()
        await asyncio.gather(one, behind, return_exceptions=True)
        await waiting.store.aclose()

    asyncio.run(main())
    assert in_line(limiter) == 0


def test_a_full_line_refuses(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_line, "MOST_TICKETS", 1)
    own = prefix()
    first, second = (Limiter("1 concurrent", store=store_at(server.url, own), name="jobs") for _ in range(2))
    held = first.reserve("key", lease=LONG_S)
    with in_thread(lambda: first.acquire("key", timeout=LONG_S, lease=LONG_S)):
        until(lambda: in_line(first) == 1 and listening(first.store))
        assert not second.acquire("key", timeout=LONG_S, lease=LONG_S)
        held.commit()


@pytest.mark.parametrize("decodes", [False, True], ids=["bytes", "decode_responses"])
def test_clients_that_the_caller_made_receive_the_calls_to_tickets(server: Server, decodes: bool) -> None:
    own, where = prefix(), {"host": "127.0.0.1", "port": server.port, "decode_responses": decodes}
    client = redis.Redis(**where)  # type: ignore[arg-type]
    store = RedisStore(client, prefix=own)
    store.turns.keepalive_us = NEVER_US
    limiter = Limiter("1 concurrent", store=store, name="jobs")
    held = limiter.reserve("key", lease=LONG_S)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as decisions:
        until(lambda: listening(store))
        held.commit()
    decisions[0].commit()

    async def main() -> None:
        mine = redis.asyncio.Redis(**where)  # type: ignore[arg-type]
        other = RedisStore(mine, prefix=own)
        other.turns.keepalive_us = NEVER_US
        waiting = AsyncLimiter("1 concurrent", store=other, name="jobs")
        again = await waiting.reserve("key", lease=LONG_S)
        task = asyncio.create_task(_held(waiting.acquire("key", timeout=LONG_S, lease=LONG_S)))
        await until_async(lambda: listening(other))
        await again.commit()
        await (await task).commit()
        await until_async(lambda: not listening(other))
        await other.aclose()
        await mine.aclose()

    asyncio.run(main())
    until(lambda: not listening(store))
    client.close()


def test_a_client_of_one_connection_waits_without_receiving_messages(server: Server) -> None:
    client = redis.Redis(port=server.port, max_connections=1)
    with closing(client):
        limiter = Limiter("20/second bucket", store=RedisStore(client, prefix=prefix()))
        assert all(limiter.acquire("key", timeout=LONG_S) for _ in range(23))

    async def main() -> None:
        async with redis.asyncio.Redis(port=server.port, max_connections=1) as mine:
            store = RedisStore(mine, prefix=prefix())
            limiter = AsyncLimiter("20/second bucket", store=store)
            assert all([await limiter.acquire("key", timeout=LONG_S) for _ in range(23)])
            await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("colour", ["threads", "tasks"])
def test_an_outage_sends_callers_to_the_line_of_their_process(colour: str) -> None:
    with single() as server:
        inner = RedisStore(f"{server.url}?timeout=1s", prefix=prefix())
        inner.turns.keepalive_us = 100_000
        store = GuardedStore(inner, on_error="local")
        Limiter("2/hour", store=store).hit("key", 2)
        if colour == "threads":
            limiter = Limiter("2/hour", store=store)
            with in_thread(lambda: limiter.acquire("key", timeout=7_200)) as decisions:
                until(lambda: in_line(limiter) == 1)
                server.kill()
            assert decisions[0].allowed and decisions[0].degraded == "local"
            store.close()
            return

        async def main() -> None:
            limiter = AsyncLimiter("2/hour", store=store)
            task = asyncio.create_task(limiter.acquire("key", timeout=7_200))
            await until_async(lambda: in_line(limiter) == 1)
            server.kill()
            decision = await task
            assert decision.allowed and decision.degraded == "local"
            await store.aclose()

        asyncio.run(main())


@pytest.mark.parametrize("colour", ["threads", "tasks"])
def test_after_an_outage_callers_are_back_in_the_line_and_notice_what_others_free(colour: str) -> None:
    with single() as server:
        own = prefix()
        first = Limiter("1 concurrent", store=store_at(server.url, own), name="jobs")
        held = first.reserve("key", lease=600)
        inner = RedisStore(f"{server.url}?timeout=200ms", prefix=own)
        inner.turns.keepalive_us = 100_000
        store = GuardedStore(inner, on_error="closed")

        async def wait() -> Any:
            waiting = AsyncLimiter("1 concurrent", store=store, name="jobs")
            limiters.append(waiting)
            place = await waiting.acquire("key", timeout=LONG_S, lease=LONG_S)
            await waiting.close()
            return place

        def wait_in_thread() -> Any:
            waiting = Limiter("1 concurrent", store=store, name="jobs")
            limiters.append(waiting)
            return waiting.acquire("key", timeout=LONG_S, lease=LONG_S)

        limiters: list[Any] = []
        start = time.monotonic()
        with in_thread(wait_in_thread if colour == "threads" else lambda: asyncio.run(wait())) as places:
            until(lambda: in_line(first) == 1)
            server.stop()
            until(lambda: limiters[0]._lines._lines)  # the line of its process
            server.go_on()
            until(lambda: not limiters[0]._lines._lines and in_line(first) == 1)
            held.commit()
        assert places[0] and time.monotonic() - start < LONG_S / 2
        store.close()


RIGHTS = (
    "evalsha", "eval", "time", "hget", "hmget", "hset", "hdel", "lrange", "ttl", "expireat", "unlink", "set", "ping",
    "get", "setrange", "hincrby", "zadd", "zcount", "zrange", "zrangebyscore", "zrem",
    "exists", "zcard", "zscore", "sadd", "srem", "smembers", "pexpire", "publish", "subscribe", "unsubscribe",
    "hgetall",
)  # fmt: skip
"""All rights that a user needs to hold and to wait, according to docs/redis.md."""


def test_the_rights_in_the_docs_suffice_to_wait(server: Server) -> None:
    own, rights = prefix(), [f"+{right}" for right in RIGHTS]
    server.cli("SCRIPT", "FLUSH")
    keys = (f"~{own}:*", "resetchannels", "&headgate:turn:*")
    server.cli("ACL", "SETUSER", "waiter", "reset", "on", ">waiter-pass", *keys, "-@all", *rights)
    url = server.url.replace("redis://", "redis://waiter:waiter-pass@")
    for limits in ("1 concurrent; 9000/hour", "1 concurrent"):
        limiter = Limiter(limits, store=store_at(url, own), name="jobs")
        admin = Limiter(limits, store=store_at(server.url, own), name="jobs")
        held = limiter.reserve("key", lease=LONG_S)
        with in_thread(partial(limiter.acquire, "key", timeout=LONG_S, lease=LONG_S)) as decisions:
            until(partial(_one_waits, admin, limiter.store))
            held.commit()
        decisions[0].commit()
        limiter.reset("key")
    until(lambda: not listening(limiter.store))
    server.cli("ACL", "DELUSER", "waiter")


def test_without_a_guard_an_outage_is_an_error_of_the_caller() -> None:
    with single() as server:
        store = RedisStore(f"{server.url}?timeout=1s", prefix=prefix())
        store.turns.keepalive_us = 100_000
        limiter = Limiter("2/hour", store=store)
        limiter.hit("key", 2)

        def wait() -> str:
            try:
                limiter.acquire("key", timeout=7_200)
            except StoreError:
                return "an error"
            return "no error"

        with in_thread(wait) as decisions:
            until(lambda: in_line(limiter) == 1)
            server.kill()
        assert decisions == ["an error"]


def test_the_line_moves_on_with_a_new_primary(watched: Sentinels) -> None:
    limiter = Limiter("1 concurrent", store=store_at(watched.url, prefix(), only_messages=False), name="jobs")
    limiter.store.turns.keepalive_us = 200_000  # type: ignore[attr-defined]
    answers: list[Any] = []

    def wait() -> None:
        while not answers:
            try:
                answers.append(limiter.acquire("key", timeout=LONG_S, lease=LONG_S))
            except StoreError:
                time.sleep(0.2)

    limiter.reserve("key", lease=3)
    with in_thread(wait):
        until(lambda: in_line(limiter) == 1)
        before = watched.primary
        before.kill()
        watched.wait_failover(before)
    assert answers[0]
    before.restart()
    watched.wait_ok()


def test_threads_of_a_child_that_wait_at_once_get_a_ticket_each() -> None:
    code = """
import os, sys, threading
from headgate.stores.lines import Ticket
from headgate.stores.redis.turns import Turns

sys.setswitchinterval(1e-6)
turns, lost = Turns(None), 0
for _ in range(100):
    child = os.fork()
    if not child:
        tickets = [Ticket((1,)) for _ in range(8)]
        at_once = threading.Barrier(len(tickets))
        threads = [threading.Thread(target=lambda t=t: (at_once.wait(), turns.add(t))) for t in tickets]
        for thread in threads: thread.start()
        for thread in threads: thread.join(30)
        os._exit(len({ticket.number for ticket in tickets}) != 8 or len(turns._tickets) != 8)
    lost += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(lost)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr
