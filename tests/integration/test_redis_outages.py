"""While a Redis is down, slow or silent, every request is decided in time, as configured, and charged once."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from redis_askers import COLOURS, SLACK_S, Answer, Asker, Load, load, longest_s, percentile, wait_for
from redis_servers import Server, single
from stalls import timed
from tcp_proxy import HOST, TcpProxy

from headgate import Limiter
from headgate.errors import StoreError, StoreTimeout, StoreUnavailable
from headgate.stores.guard.breaker import FAILURES
from headgate.stores.redis.store import RedisStore

pytestmark = pytest.mark.integration
DEADLINE_S = 0.1
BACK_WITHIN_S = 15
_prefixes = count()
UNREACHED = "1000000000/day bucket"
"""A limit that no load of a test reaches: every refusal is wrong."""


@pytest.fixture
def server() -> Iterator[Server]:
    with single("appendonly yes", "appendfsync always") as server:
        yield server


def url_of(port: int, **options: object) -> str:
    deadline = f"{int(DEADLINE_S * 1000)}ms"  # of a first connection, too, which test_redis_cold.py has
    parameters = {
        "timeout": deadline,
        "connect_timeout": deadline,
        "prefix": f"o{os.getpid()}-{next(_prefixes)}",
        **options,
    }
    return f"redis://{HOST}:{port}/0?" + "&".join(f"{name}={value}" for name, value in parameters.items())


def calls(server: Server) -> int:
    """How many decisions a server has executed."""
    stats = server.cli("INFO", "commandstats")
    return sum(stats[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "eval") if f"cmdstat_{name}" in stats)


def on_the_server(asker: Asker, server: Server, limits: str, key: str) -> int:
    """The remaining units of a key, read from the server by another client."""
    with Limiter(
        limits, store=RedisStore(f"redis://{HOST}:{server.port}?timeout=10s", prefix=asker.raw.prefix)
    ) as other:
        return other.peek(key, 0).limits[0].remaining


# Without a guard: deadlines are kept, and errors say what they mean


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("known", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("outage", ["stopped", "silent", "cut", "killed"])
def test_an_unavailable_store_is_reported_within_the_deadline(
    server: Server, proxy: TcpProxy, colour: str, known: bool, outage: str
) -> None:
    with Asker(
        colour, "9/week", RedisStore(url_of(proxy.port if outage in ("silent", "cut") else server.port))
    ) as asker:
        if known:
            wait_for(lambda: _answers(asker))
        away = {"stopped": server.stop, "silent": proxy.silence, "cut": proxy.cut, "killed": server.kill}
        back = {"stopped": server.go_on, "silent": proxy.mend, "cut": proxy.mend, "killed": server.restart}
        away[outage]()
        took = []
        errors = []
        for call in (asker.hit, asker.peek, asker.give_back, asker.reset) * 2:
            with timed() as elapsed_s, pytest.raises(StoreError) as raised:
                call("key")
            took.append(elapsed_s())
            errors.append(type(raised.value).__name__)
            assert raised.value.transient
        print({"colour": colour, "outage": outage, "longest_s": round(max(took), 3), **Counter(errors)})
        assert max(took) < DEADLINE_S + SLACK_S
        if outage in ("stopped", "silent"):
            assert "StoreTimeout" in errors
        back[outage]()
        wait_for(lambda: _answers(asker))


def _answers(asker: Asker) -> bool:
    try:
        asker.peek("key", 0)
    except (StoreTimeout, StoreUnavailable):
        return False
    return True


@pytest.mark.parametrize("colour", COLOURS)
def test_a_slow_name_lookup_delays_no_call_and_charges_none_later(
    server: Server, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, slow_s, looked_up = socket.getaddrinfo, 1.5, threading.Event()

    def slowly(*args: Any, **named: Any) -> Any:
        time.sleep(slow_s)
        looked_up.set()
        return look_up(*args, **named)

    url = url_of(server.port).replace(HOST, "localhost")
    with Asker(colour, "9/week", RedisStore(url)) as asker:
        monkeypatch.setattr(socket, "getaddrinfo", slowly)
        with timed() as own_s, pytest.raises(StoreTimeout):
            asker.hit("key")
        assert own_s() < DEADLINE_S + SLACK_S
        assert looked_up.wait(5 * slow_s)
        monkeypatch.undo()
        wait_for(lambda: _answers(asker))
        assert asker.hit("key").remaining == 8


# A reply that is lost


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("limits", ["9/week bucket", "9/week log; 9/week"])
def test_a_call_whose_reply_is_lost_is_charged_once_and_reported_as_unknown(
    server: Server, proxy: TcpProxy, colour: str, limits: str
) -> None:
    with Asker(colour, limits, RedisStore(url_of(proxy.port))) as asker:
        wait_for(lambda: _answers(asker))
        assert asker.hit("loads").allowed
        proxy.swallow_replies()
        before = calls(server)
        with pytest.raises(StoreTimeout, match="may have been charged"):
            asker.hit("key")
        wait_for(lambda: calls(server) > before)
        left = on_the_server(asker, server, limits, "key")
        proxy.mend()
        wait_for(lambda: _answers(asker))
        assert asker.hit("key").remaining == 7
    print({"colour": colour, "charged": 9 - left})
    assert left == 8


@pytest.mark.parametrize("colour", COLOURS)
def test_lost_replies_are_never_repeated_by_the_guard(server: Server, proxy: TcpProxy, colour: str) -> None:
    limits = "50/week bucket"
    with Asker(colour, limits, url_of(proxy.port)) as asker:
        wait_for(lambda: asker.peek("key").degraded == "" and asker.store.breaker.state == "closed")
        asker.hit("loads")
        before = calls(server)
        proxy.swallow_replies()
        decisions = [asker.hit("key") for _ in range(20)]
        sent = calls(server) - before
        state = asker.store.breaker.state
        proxy.mend()
        left = on_the_server(asker, server, limits, "key")
        wait_for(lambda: asker.peek("key").degraded == "", BACK_WITHIN_S)
    counts = {"asked": 20, "sent": sent, "charged": 50 - left, **Counter(decision.degraded for decision in decisions)}
    print({"colour": colour, **counts})
    assert state == "open"
    # A thread's connection is closed with what it lost, and the next one does not come about.
    assert sent == 50 - left == (1 if colour == "sync" else FAILURES), "each was sent once, and none to an open breaker"
    assert {decision.degraded for decision in decisions} == {"local"}
    assert all(decision.allowed for decision in decisions)
    assert [decision.remaining for decision in decisions] == list(range(49, 29, -1))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_late_reply_is_not_taken_for_the_next_one(server: Server, proxy: TcpProxy, colour: str) -> None:
    with Asker(colour, "1000/week bucket", RedisStore(url_of(proxy.port))) as asker:
        wait_for(lambda: _answers(asker))
        wrong = late = tries = 0
        for number in range(1, 8):
            proxy.delay(DEADLINE_S)  # each way: the reply comes after the deadline
            try:
                asker.hit(f"late {number}", number)
            except StoreTimeout:
                late += 1
            proxy.delay(0)

            def answer(number: int = number) -> bool:
                nonlocal wrong, tries
                tries += 1  # each on its own key: one whose reply does not come may have been charged
                try:
                    wrong += asker.hit(f"key {number} {tries}", 100 + number).remaining != 900 - number
                except (StoreTimeout, StoreUnavailable):
                    return False
                return True

            wait_for(answer)
    print({"colour": colour, "late": late, "wrong": wrong})
    assert late == 7 and wrong == 0


# Guarded, under load


@pytest.mark.parametrize("colour", COLOURS)
def test_a_connection_that_the_server_has_closed_while_it_was_idle_costs_no_decision(
    server: Server, colour: str
) -> None:
    with Asker(colour, UNREACHED, RedisStore(url_of(server.port, timeout="10s"))) as asker:
        for _ in range(3):
            assert asker.hit("key").allowed  # raises where the store does not answer
            server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            wait_for(lambda: int(server.cli("INFO", "clients")["connected_clients"]) == 1, 10)
            if asker.loop is not None:
                asker.loop.run(asyncio.sleep(0.01))  # after which the loop has seen what had come


OUTAGES = ("stopped", "silent", "cut", "restarted", "slow")


@contextmanager
def outage(kind: str, server: Server, proxy: TcpProxy) -> Iterator[None]:
    begin: dict[str, Callable[[], object]] = {
        "stopped": server.stop,
        "silent": proxy.silence,
        "cut": proxy.cut,
        "restarted": server.kill,
        "slow": lambda: proxy.delay(3 * DEADLINE_S),
    }
    end: dict[str, Callable[[], object]] = {
        "stopped": server.go_on,
        "silent": proxy.mend,
        "cut": proxy.mend,
        "restarted": server.restart,
        "slow": lambda: proxy.delay(0),
    }
    begin[kind]()
    try:
        yield
    finally:
        end[kind]()


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("kind", "choice", "seconds"),
    [
        ("stopped", "local", 2.0),
        ("stopped", "open", 2.0),
        ("silent", "local", 1.0),
        ("cut", "open", 1.0),
        ("restarted", "local", 1.0),
        ("slow", "open", 1.0),
    ],
)
def test_an_outage_under_load_harms_no_request(
    server: Server, proxy: TcpProxy, colour: str, kind: str, choice: str, seconds: float
) -> None:
    port = proxy.port if kind in ("silent", "cut", "slow") else server.port
    keys = [f"key {number}" for number in range(3 if colour == "sync" else 20)]
    with Asker(colour, UNREACHED, url_of(port, on_error=choice)) as asker:
        breaker = asker.store.breaker
        wait_for(lambda: asker.hit("warm").degraded == "" and breaker.state == "closed")
        with load(asker, keys) as running:
            running.wait_for(lambda answer: answer.decided_by == "store")
            begin = time.monotonic()
            with outage(kind, server, proxy):
                opened_after_s = running.wait_for(lambda answer: answer.decided_by == choice)
                time.sleep(seconds)
                end = time.monotonic()
            back_after_s = wait_for(lambda: breaker.state == "closed", BACK_WITHIN_S)
            running.wait_for(lambda answer: answer.decided_by == "store")
            wait_for(lambda: _is_calm(running), BACK_WITHIN_S)
        away = running.since(begin + opened_after_s, end)
        figures = _figures(running, away)
    print({"colour": colour, "outage": kind, "choice": choice, "back after": round(back_after_s, 2), **figures})
    assert figures["failed"] == figures["waited too long"] == figures["wrongly refused"] == 0
    assert {answer.decided_by for answer in running.answers} <= {"store", choice}
    assert len(away) > 200
    assert figures["held up while it was away"] <= len(keys) + 0.05 * len(away)
    assert figures["median while it was away, ms"] < 1000 * DEADLINE_S / 4


@pytest.mark.parametrize("colour", COLOURS)
def test_a_closed_store_is_not_probed(server: Server, colour: str) -> None:
    with Asker(colour, "9/week", url_of(server.port)) as asker:
        wait_for(lambda: asker.peek("key").degraded == "")
        server.kill()
        wait_for(lambda: asker.hit("key").degraded == "local" and asker.store.breaker.state == "open")
        asker.close_links()
        assert asker.store.breaker.state == "closed"
        wait_for(lambda: not _probes(), 10)
        server.restart()
        assert asker.hit("key").degraded == "", "it may be used again"


def _probes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headgate-probe"]


def _is_calm(running: Load) -> bool:
    """Whether the store decides again, except for a few late replies of a busy machine."""
    latest = running.answers[-200:]
    return sum(answer.decided_by == "store" for answer in latest) >= 0.9 * len(latest)


def _figures(running: Load, away: list[Answer]) -> dict[str, Any]:
    answers = running.answers
    waits = [answer.took_s for answer in away]
    return {
        "requests": len(answers),
        "failed": sum(answer.error is not None for answer in answers),
        "waited too long": sum(
            late.own_s > DEADLINE_S + SLACK_S for late in answers if late.took_s > DEADLINE_S + SLACK_S
        ),
        "wrongly refused": sum(not answer.allowed for answer in answers),
        "while it was away": len(away),
        "held up while it was away": sum(wait > DEADLINE_S / 2 for wait in waits),
        "median while it was away, ms": round(1000 * percentile(waits, 0.5), 3),
        "longest, ms": round(1000 * longest_s(answers), 1),
    }


@pytest.mark.parametrize("colour", COLOURS)
def test_charges_before_an_outage_count_after_it(server: Server, colour: str) -> None:
    with Asker(colour, "10/week", url_of(server.port, remember="no")) as asker:
        wait_for(lambda: asker.peek("key").degraded == "" and asker.store.breaker.state == "closed")
        assert [asker.hit("key").remaining for _ in range(4)] == [9, 8, 7, 6]
        server.stop()
        local = [asker.hit("other") for _ in range(12)]
        server.go_on()
        wait_for(lambda: asker.peek("key").degraded == "" and asker.store.breaker.state == "closed", BACK_WITHIN_S)
        decisions = [asker.hit("key") for _ in range(7)]
    assert [decision.allowed for decision in local] == [True] * 10 + [False] * 2, "a limit holds without the store too"
    assert [decision.allowed for decision in decisions] == [True] * 6 + [False]
    assert {decision.degraded for decision in decisions} == {""}


@pytest.mark.parametrize("colour", COLOURS)
def test_a_local_share_is_what_passes_of_each_key_while_the_store_is_away(server: Server, colour: str) -> None:
    with Asker(colour, "40/week; 80/week bucket", url_of(server.port, local_share="0.25", remember="no")) as asker:
        wait_for(lambda: asker.peek("key").degraded == "")
        server.kill()
        for key in ("one", "two"):
            decisions = [asker.hit(key) for _ in range(15)]
            assert [decision.allowed for decision in decisions] == [True] * 10 + [False] * 5
            assert {decision.degraded for decision in decisions} == {"local"}
            assert decisions[-1].retry_after is not None and decisions[-1].retry_after > 0


@pytest.mark.parametrize("colour", COLOURS)
def test_closed_refuses_with_a_time_to_retry_and_reopens_by_itself(server: Server, colour: str) -> None:
    with Asker(colour, UNREACHED, url_of(server.port, on_error="closed")) as asker:
        wait_for(lambda: asker.hit("key").allowed)
        server.stop()
        decisions = [asker.hit("key") for _ in range(30)]
        looked = asker.peek("key", 0)
        server.go_on()
        back_s = wait_for(lambda: asker.hit("key").allowed, BACK_WITHIN_S)
    waits = {decision.retry_after for decision in decisions}
    print({"colour": colour, "refused": len(decisions), "retry_after": waits, "back after": round(back_s, 2)})
    assert {(decision.allowed, decision.degraded) for decision in decisions} == {(False, "closed")}
    assert all(wait is not None and 0 < wait <= 10 for wait in waits)
    assert looked.allowed and looked.degraded == "closed", "nothing is asked for"


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_does_not_exist_yet_is_used_once_it_does(server: Server, colour: str) -> None:
    server.kill()
    with Asker(colour, "3/week", url_of(server.port, remember="no")) as asker:
        with timed() as own_s:
            decisions = [asker.hit("key") for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True] * 3 + [False]
        assert {decision.degraded for decision in decisions} == {"local"}
        assert own_s() < FAILURES * DEADLINE_S + SLACK_S
        server.restart()
        wait_for(lambda: asker.peek("key").degraded == "" and asker.store.breaker.state == "closed", BACK_WITHIN_S)
        assert asker.peek("key", 0).remaining == 3


@pytest.mark.parametrize("colour", COLOURS)
def test_callers_in_line_get_a_decision_during_an_outage_too(server: Server, colour: str) -> None:
    with Asker(colour, "10/second bucket", url_of(server.port)) as asker:
        wait_for(lambda: asker.peek("key").degraded == "")
        server.stop()
        start = time.monotonic()
        decisions = [asker.acquire("key", timeout=5) for _ in range(12)]
        took_s = time.monotonic() - start
        server.go_on()
    print({"colour": colour, "12 turns of 10 a second took": round(took_s, 2)})
    assert all(decisions) and {decision.degraded for decision in decisions} == {"local"}
    assert 0.15 < took_s < 5


def test_the_return_of_a_server_is_no_stampede(server: Server) -> None:
    """tests/unit/test_breaker.py checks how many calls pass at each moment; this test uses a real server."""
    with Asker("async", UNREACHED, url_of(server.port)) as asker:
        breaker = asker.store.breaker
        wait_for(lambda: asker.hit("warm").degraded == "" and breaker.state == "closed")
        keys = [f"key {number}" for number in range(50)]
        for _ in range(10):  # a busy machine may miss a deadline while it comes back; then it opens again
            with load(asker, keys, pause_s=0.01) as running:
                server.stop()
                running.wait_for(lambda answer: answer.decided_by == "local")
                server.go_on()
                wait_for(lambda: breaker.state != "open", BACK_WITHIN_S)
                half_open, opened = time.monotonic(), breaker.opened
                wait_for(lambda: breaker.state == "closed", BACK_WITHIN_S)
                closed = time.monotonic()
            if breaker.opened == opened:
                break
        half_s = (closed - half_open) / 2
        halves = [running.since(half_open + part * half_s, half_open + (part + 1) * half_s) for part in range(2)]
        sent_counts = [sum(answer.decided_by == "store" for answer in half) for half in halves]
        shares = [round(number / max(1, len(half)), 2) for number, half in zip(sent_counts, halves, strict=True)]
    print({"ramp_s": round(2 * half_s, 2), "share that asked the server": shares})
    assert breaker.opened == opened, "it never came back without another outage"
    assert shares[0] < 0.5 and shares[0] < shares[1]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_call_that_finds_no_connection_in_time_says_that_nothing_was_charged(server: Server, colour: str) -> None:
    tls = server.url.replace("redis:", "rediss:")  # which the server takes for a command that is not whole yet
    with Asker(colour, "9/week", RedisStore(f"{tls}?timeout=100ms")) as asker:
        for _ in range(2):  # the first connection has a deadline of its own
            with pytest.raises(StoreTimeout, match="no answer in time to a connection over TLS; nothing was charged"):
                asker.hit("key")


def test_idle_connections_that_a_network_has_forgotten_are_not_tried_one_by_one(
    server: Server, proxy: TcpProxy
) -> None:
    """They were dropped without notice to either end, as by a firewall or a host that died."""
    with single() as other, Asker("sync", UNREACHED, url_of(proxy.port, on_error="closed")) as asker:
        assert asker.hit("key").degraded == ""
        pool: Any = asker.raw.sync_link._open_connections()
        for connection in [pool._open_connection() for _ in range(20)]:
            pool._give_back(connection)
        server.stop()
        try:
            proxy.target_port = other.port
            wait_for(lambda: asker.hit("key").degraded == "", within_s=10)
        finally:
            server.go_on()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_primary_behind_the_same_address_is_found_after_a_failover(server: Server, colour: str) -> None:
    """As behind the name of a managed Redis, or a proxy: connections to the old primary stay open."""
    with single(f"replicaof {HOST} {server.port}") as other, TcpProxy(server.port) as proxy:
        asker = Asker(colour, "1000/week", url_of(proxy.port, timeout="5s", on_error="closed"))
        with asker:
            assert asker.hit("key").degraded == ""
            wait_for(lambda: other.cli("INFO", "replication")["master_link_status"] == "up", 10)
            other.cli("REPLICAOF", "NO", "ONE")
            server.cli("REPLICAOF", HOST, other.port)
            proxy.target_port = other.port
            try:
                wait_for(lambda: asker.hit("key").degraded == "", 5)
                assert all(asker.hit(f"key {number}").degraded == "" for number in range(9))
                assert proxy.accepted == 2
            finally:
                server.cli("REPLICAOF", "NO", "ONE")
