"""The Redis store on one real server: exact under any load, one call a decision, and with clear errors."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_askers import COLOURS, SLACK_S, Asker, tally, wait_for
from redis_servers import Server, single
from sockets import open_sockets
from stalls import stalled_s, timed
from tcp_proxy import HOST, TcpProxy

from headgate import AsyncLimiter, Limiter
from headgate.calendars import Calendar
from headgate.clock import SYSTEM_CLOCK
from headgate.errors import ConfigError, StoreError, StoreTimeout, StoreUnavailable
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from vector_check import answer, read_limits, read_vectors

HERE = Path(__file__).parent
VECTORS = HERE.parents[1] / "vectors"
pytestmark = pytest.mark.integration
_prefixes = count()
EVERY_LIMIT = (
    "9/week fixed", "9/week log", "9/week", "9/week bucket", "9/week leaky 9", "9/week queue 9",
    "9/week bucket stepwise", "9/year in Europe/Zurich",
)  # fmt: skip
FIVE = "100/minute; 1000/hour; 5000/day fixed; 900/hour log; 70/second bucket"


def raw(url: str, *, timeout: str = "10s") -> RedisStore:
    """A store with its own prefix on a shared server."""
    return RedisStore(f"{url}{'&' if '?' in url else '?'}timeout={timeout}", prefix=f"t{os.getpid()}-{next(_prefixes)}")


def guarded(url: str, *, timeout: str = "10s", **options: str) -> str:
    """The URL of a guarded store with its own prefix."""
    parameters = "".join(f"&{name}={value}" for name, value in options.items())
    mark = "&" if "?" in url else "?"
    return f"{url}{mark}timeout={timeout}&prefix=t{os.getpid()}-{next(_prefixes)}{parameters}"


def names(asker: Asker, key: str) -> list[bytes]:
    """The Redis keys of the limits of a key."""
    return asker.raw.commands(asker.limiter.definitions).names((key,))


def calls(server: Server, command: str) -> int:
    """How often a server has executed a command, in scripts or not."""
    stats = server.cli("INFO", "commandstats").get(f"cmdstat_{command}")
    return stats["calls"] if stats else 0


def clock_s(client: redis.Redis) -> float:
    """The wall clock of a server, in seconds."""
    seconds, microseconds = client.time()
    return seconds + microseconds / 1_000_000


@contextmanager
def watching(server: Server) -> Iterator[list[str]]:
    """The commands that clients send until the end of the block, without those of scripts."""
    seen: list[str] = []
    client: Any = redis.Redis(port=server.port, protocol=2, decode_responses=True, encoding_errors="replace")
    with client, client.monitor() as monitor:

        def read() -> None:
            for one in monitor.listen():
                command = str(one["command"])
                if command == "ECHO the-end":
                    return
                if one["client_type"] != "lua" and not command.startswith("CLIENT "):
                    seen.append(command.partition(" ")[0])

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield seen
        finally:
            server.cli("ECHO", "the-end")
            thread.join(10)


# Vectors


@pytest.mark.parametrize("part", ["by_hand", "found", "histories"])
def test_every_vector_is_answered_exactly_on_an_event_loop(server: Server, part: str) -> None:
    async def check() -> dict[str, Any]:
        wrong, steps = [], 0
        vectors = [v for v in read_vectors(VECTORS) if v["id"] in _ids(part)]
        for vector in vectors:
            clock = ManualClock()
            limiter = AsyncLimiter(read_limits(vector), store=raw(server.url), clock=clock)
            for step in vector["steps"]:
                clock.set(step["at_us"])
                result = answer(await getattr(limiter, step["op"])("key", step["cost"]))
                steps += 1
                if result != {name: step[name] for name in result}:
                    wrong.append(vector["id"])
            await limiter.close()
        return {"vectors": len(vectors), "steps": steps, "wrong": wrong}

    counts = asyncio.run(check())
    print(counts)
    assert counts["wrong"] == [] and counts["steps"] > 0


def _ids(part: str) -> set[str]:
    return {json.loads(line)["id"] for line in (VECTORS / f"{part}.jsonl").read_text().splitlines()}


# One call a decision


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("limits", ["10000/minute", FIVE], ids=["one limit", "five limits"])
def test_a_decision_is_one_call_however_many_limits(server: Server, colour: str, limits: str) -> None:
    decisions = 50
    with Asker(colour, limits, raw(server.url)) as asker:
        asker.hit("warm")
        with watching(server) as seen:
            for number in range(decisions):
                asker.hit(f"key {number % 3}", 2)
                asker.peek(f"key {number % 3}")
    print({"colour": colour, "limits": limits.count(";") + 1, "decisions": 2 * decisions, "sent": _counted(seen)})
    assert seen == ["EVALSHA"] * 2 * decisions


@pytest.mark.parametrize("colour", COLOURS)
def test_a_refusal_is_one_call_and_so_is_a_reset(server: Server, colour: str) -> None:
    with Asker(colour, "1/week; 5/week log", raw(server.url)) as asker:
        assert asker.hit("key").allowed
        assert asker.reset("key") and asker.hit("key").allowed  # loads the scripts
        with watching(server) as seen:
            assert not asker.hit("key").allowed
            assert asker.reset("key")
    assert seen == ["EVALSHA", "EVALSHA"]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_charge_is_given_back_in_one_call_by_the_servers_clock(server: Server, colour: str) -> None:
    with Asker(colour, "; ".join(EVERY_LIMIT), raw(server.url)) as asker:
        asker.hit("key", 5)
        asker.hit("other", 5)
        asker.give_back("other", 1)  # loads the script
        with watching(server) as seen:
            asker.give_back("key", 2, 20_000_000)
        left = [reading.remaining for reading in asker.peek("key", 0).limits]
    assert seen == ["EVALSHA"]
    # What may have flowed back into buckets in 20 s is taken off the two units: of the one in steps, a whole step.
    assert left == [6, 6, 6, 5, 5, 6, 4, 6]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_caller_whose_clock_is_in_another_window_repeats_its_call_once(
    server: Server, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = SYSTEM_CLOCK.now_us()
    window = Calendar("day", "Asia/Kathmandu").window(now_us)
    monkeypatch.setattr("headgate.stores.redis.borders.SYSTEM_CLOCK", ManualClock(now_us - 5 * 86_400_000_000))
    text = "4/day in Asia/Kathmandu"
    for limits in (text, f"{text}; 9/week", f"{text}; 9/week; 9/week log; 9/hour bucket; 9/day queue 9; 9/day fixed"):
        with Asker(colour, limits, raw(server.url)) as asker:
            asker.hit("first")  # loads the script
            server_clock = asker.limiter._bound._commands.server_clock
            server_clock._ahead_us = 0
            with watching(server) as seen:
                decision = asker.hit("key")
            assert seen == ["EVALSHA", "EVALSHA"]
            assert decision.limits[0].remaining == 3
            assert decision.limits[0].reset_after_us == pytest.approx(window[1] - now_us, abs=60_000_000)
            with watching(server) as seen:
                assert asker.peek("key", 3).allowed and not asker.peek("key", 4).allowed
                assert asker.hit("key").limits[0].remaining == 2
            assert [command for command in seen if command != "EVAL"] == ["EVALSHA"] * 3
            server_clock._ahead_us = 0
            assert [decision.limits[0].remaining for decision in asker.hit_many(["key", "other", "key"])] == [1, 3, 0]


def _counted(seen: list[str]) -> dict[str, int]:
    return {command: seen.count(command) for command in sorted(set(seen))}


# Scripts that are forgotten, servers that restart


@pytest.mark.parametrize("colour", COLOURS)
def test_decisions_continue_after_script_flush(server: Server, colour: str) -> None:
    with Asker(colour, "5/week; 7/week log", raw(server.url)) as asker:
        for left in (4, 3, 2):
            server.cli("SCRIPT", "FLUSH")
            assert asker.hit("key").remaining == left
        with watching(server) as seen:
            server.cli("SCRIPT", "FLUSH")
            assert asker.hit("key").remaining == 1
            assert asker.hit("key").remaining == 0
        server.cli("SCRIPT", "FLUSH")
        assert not asker.hit("key").allowed
        server.cli("SCRIPT", "FLUSH")
        assert asker.reset("key")
        assert asker.peek("key", 0).remaining == 5
    sent = [command for command in seen if command in ("EVAL", "EVALSHA")]
    assert sent == ["EVALSHA", "EVAL", "EVALSHA"], "it is loaded once"


@pytest.mark.parametrize("colour", COLOURS)
def test_script_flush_inside_a_burst_loses_and_repeats_nothing(server: Server, colour: str) -> None:
    limit, requests, ended = 700, 1500, threading.Event()
    with Asker(colour, f"{limit}/week bucket; {limit + 50}/week log", raw(server.url)) as asker:
        asker.hit("warm")
        flushes = 0

        def flush() -> None:
            nonlocal flushes
            while not ended.is_set():
                server.cli("SCRIPT", "FLUSH")
                flushes += 1

        before, evals, bursts = calls(server, "eval"), 0, 0
        thread = threading.Thread(target=flush)
        thread.start()
        try:
            while evals < 3 and bursts < 50:  # a burst may be over before the first flush
                bursts += 1
                outcomes = tally(asker.at_once([f"key {bursts}"] * requests))
                assert outcomes == {"passed": limit, "refused": requests - limit}
                assert asker.peek(f"key {bursts}", 0).limits[1].remaining == 50
                evals = calls(server, "eval") - before
        finally:
            ended.set()
            thread.join()
    print({"colour": colour, "asked": requests, "bursts": bursts, "flushes": flushes, "scripts sent whole": evals})
    assert flushes > 0 and evals >= 3


@pytest.mark.parametrize("colour", COLOURS)
def test_decisions_continue_after_a_restart_with_the_states_that_the_server_stored(colour: str) -> None:
    with (
        single("appendonly yes", "appendfsync always") as server,
        Asker(colour, "5/week; 7/week log", raw(server.url)) as asker,
    ):
        assert [asker.hit("key").remaining for _ in range(2)] == [4, 3]
        server.restart()
        assert asker.raw.timeout_s == 10
        errors = []

        def answered() -> bool:
            try:
                return asker.peek("key", 0).remaining == 3
            except StoreUnavailable as error:  # of a connection that was lost
                errors.append(error)
                return False

        wait_for(answered)
        assert len(errors) <= 1
        assert [asker.hit("key").allowed for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_lost_all_states_at_a_restart_starts_afresh_without_an_error_behind_a_guard(colour: str) -> None:
    with single() as server, Asker(colour, "3/week", guarded(server.url, remember="no")) as asker:
        assert [asker.hit("key").allowed for _ in range(4)] == [True, True, True, False]
        server.restart()
        wait_for(lambda: asker.peek("key").degraded == "")
        decisions = [asker.hit("key") for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert {decision.degraded for decision in decisions} == {""}


# Load


def test_20_processes_on_one_key_pass_exactly_the_limit(server: Server) -> None:
    server.cli("SCRIPT", "FLUSH")
    done = subprocess.run(
        [sys.executable, HERE / "redis_crowd.py", f"{server.url}?timeout=20s&prefix=crowd", "5"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for result in results:
        print(result)
    assert len(results) == 4
    for result in results:
        assert result["ended_well"], done.stderr[-2000:]
        assert result["exact"] == result["rounds"] > 0, result
        assert result["shared_by_several"] > 0, "no two processes shared a round"


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("limits", [*EVERY_LIMIT, "9/week; 11/week log; 30/week bucket"])
def test_a_burst_on_one_key_passes_exactly_the_limit(server: Server, colour: str, limits: str) -> None:
    with Asker(colour, limits, raw(server.url)) as asker:
        outcomes = tally(asker.at_once(["key"] * 60))
    assert outcomes["passed"] == (10 if "queue" in limits else 9)
    assert sum(outcomes.values()) == 60 and set(outcomes) == {"passed", "refused"}


def test_ten_thousand_concurrent_calls_pass_exactly_the_limit_in_few_writes(server: Server) -> None:
    requests, limit = 10_000, 1_234
    store = raw(server.url, timeout="60s")

    async def run() -> dict[str, Any]:
        limiter = AsyncLimiter(f"{limit}/week bucket", store=store)
        await limiter.hit("warm")
        multiplexer, before, clients = _multiplexer(store), _multiplexer(store).writes, calls(server, "evalsha")
        answers = await asyncio.gather(*(limiter.hit("key") for _ in range(requests)), return_exceptions=True)
        outcomes = tally(answers)  # type: ignore[arg-type]
        writes = multiplexer.writes - before
        alone = multiplexer.writes
        for _ in range(20):
            await limiter.hit("warm")
        alone = multiplexer.writes - alone
        await limiter.close()
        return {
            **outcomes,
            "writes": writes,
            "evalsha": calls(server, "evalsha") - clients,
            "writes of 20 alone": alone,
        }

    counts = asyncio.run(run())
    print(counts)
    assert (counts["passed"], counts["refused"]) == (limit, requests - limit)
    assert counts["evalsha"] == requests + 20
    assert counts["writes"] <= 100
    assert counts["writes of 20 alone"] == 20


def _multiplexer(store: RedisStore) -> Any:
    return next(iter(store.async_link._connections_here()._multiplexers.values()))


@pytest.mark.parametrize("moment", ["before they are sent", "after they are sent", "one by one"])
def test_cancelled_calls_do_not_break_the_others(server: Server, moment: str) -> None:
    requests = 2_000
    costs = [number % 97 + 1 for number in range(requests)]

    async def run(proxy: TcpProxy) -> dict[str, Any]:
        store = raw(f"redis://{HOST}:{proxy.port}/0", timeout="60s")
        limiter = AsyncLimiter("1000/week bucket", store=store)
        await limiter.hit("warm")
        multiplexer = _multiplexer(store)
        proxy.delay(0.1)
        tasks = [asyncio.create_task(limiter.hit(f"key {number}", costs[number])) for number in range(requests)]
        await asyncio.sleep(0)  # each call is pending, and nothing is written yet
        assert len(multiplexer._pending) == requests
        if moment == "after they are sent":
            async with asyncio.timeout(30):
                while len(multiplexer._sent) < requests:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.001)
        for number, task in enumerate(tasks):
            if number % 2:
                task.cancel()
            if moment == "one by one" and number % 100 == 0:
                await asyncio.sleep(0.001)
        answers: Any = await asyncio.gather(*tasks, return_exceptions=True)
        proxy.delay(0)
        right = sum(
            not isinstance(answers[number], BaseException) and answers[number].remaining == 1000 - costs[number]
            for number in range(0, requests, 2)
        )
        cancelled = sum(isinstance(answers[number], asyncio.CancelledError) for number in range(1, requests, 2))
        states = await asyncio.gather(*(limiter.peek(f"key {number}", 0) for number in range(requests)))
        left = [state.remaining for state in states]
        charged = sum(left[number] == 1000 - costs[number] for number in range(1, requests, 2))
        untouched = sum(left[number] == 1000 for number in range(1, requests, 2))
        repeated = [(await limiter.hit(f"key {number}", costs[number])).remaining for number in range(0, 40, 2)]
        await limiter.close()
        return {
            "moment": moment,
            "right": right,
            "cancelled": cancelled,
            "charged though cancelled": charged,
            "untouched": untouched,
            "right afterwards": sum(
                remaining == 1000 - 2 * cost for remaining, cost in zip(repeated, costs[:40:2], strict=True)
            ),
        }

    with TcpProxy(server.port) as proxy:
        counts = asyncio.run(run(proxy))
    print(counts)
    assert counts["right"] == requests // 2
    assert counts["right afterwards"] == 20
    assert counts["charged though cancelled"] + counts["untouched"] == requests // 2
    if moment == "before they are sent":
        assert counts["untouched"] == counts["cancelled"] == requests // 2
    if moment == "after they are sent":
        assert counts["charged though cancelled"] == counts["cancelled"] == requests // 2


# Refusals of a server


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("limits", ["5/week bucket", "5/week log", "5/week; 5/week log; 5/week bucket"])
def test_a_full_memory_is_reported_and_charges_nothing(colour: str, limits: str) -> None:
    with (
        single("maxmemory-policy noeviction") as server,
        Asker(colour, limits, raw(server.url)) as asker,
    ):
        for _ in range(5):
            asker.hit("used up")
        asker.hit("used", 2)
        server.cli("CONFIG", "SET", "maxmemory", "1")
        for key in ("used", "new"):
            with pytest.raises(StoreUnavailable, match=r"maxmemory.*\(OOM\)"):
                asker.hit(key)
        assert not asker.hit("used up").allowed, "a refusal needs no memory"
        assert [reading.remaining for reading in asker.peek("used", 0).limits] == [3] * len(asker.limiter.limits)
        assert asker.peek("new").allowed
        server.cli("CONFIG", "SET", "maxmemory", "0")
        assert asker.hit("used").remaining == 2
        assert asker.hit("new").remaining == 4


@pytest.mark.parametrize("colour", COLOURS)
def test_a_guarded_store_with_a_full_memory_decides_locally_until_there_is_room(colour: str) -> None:
    with (
        single("maxmemory-policy noeviction") as server,
        Asker(colour, "5/week", guarded(server.url, remember="no")) as asker,
    ):
        for _ in range(5):
            asker.hit("used up")
        server.cli("CONFIG", "SET", "maxmemory", "1")
        hits = [asker.hit("new") for _ in range(8)]
        decisions = [(asker.peek("used up"), asker.hit("used up")) for _ in range(3)]
        print({"new": [(hit.allowed, hit.degraded) for hit in hits], "used up": [h.degraded for _, h in decisions]})
        assert [hit.allowed for hit in hits] == [True] * 5 + [False] * 3
        assert {hit.degraded for hit in hits} == {"local"}
        server.cli("CONFIG", "SET", "maxmemory", "0")
        took_s = wait_for(lambda: asker.store.breaker.state == "closed" or asker.hit("again").degraded == "", 10)
        wait_for(lambda: asker.hit("other").degraded == "" and asker.store.breaker.state == "closed", 10)
        print({"back after": round(took_s, 2)})
        assert not asker.hit("used up").allowed
        assert asker.peek("new", 0).remaining == 5, "local decisions are not charged in the store"


@pytest.mark.parametrize("colour", COLOURS)
def test_a_replica_in_the_url_is_reported_and_may_be_peeked_at(server: Server, colour: str) -> None:
    server.cli("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with single(f"replicaof {HOST} {server.port}") as replica:
        wait_for(lambda: replica.cli("INFO", "replication")["master_link_status"] == "up", 30)
        with Asker(colour, "5/week", raw(replica.url)) as asker:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"replica: name the primary.*\(READONLY\)"):
                    asker.hit("key")
            assert asker.peek("key").allowed
        with Asker(colour, "5/week", guarded(replica.url)) as asker:
            decisions = [asker.hit("key") for _ in range(7)]
            assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 2
            assert {decision.degraded for decision in decisions} == {"local"}


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("limits", "command", "message"),
    [
        ("5/week bucket", ("RPUSH", "other"), "WRONGTYPE"),
        ("5/week log", ("SET", "other"), "WRONGTYPE"),
        ("5/week", ("SET", "other"), "WRONGTYPE"),
        ("5/week", ("HSET", "w0", "other"), "refused|another program"),
        ("5/week log", ("RPUSH", "other"), "refused|another program"),
    ],
)
def test_a_key_of_another_program_is_reported_and_left_unchanged(
    server: Server, colour: str, limits: str, command: tuple[str, ...], message: str
) -> None:
    with Asker(colour, f"9/week fixed; {limits}", raw(server.url)) as asker:
        foreign_name, own_name = names(asker, "key")[1], names(asker, "key")[0]
        kind, *value = command
        server.cli(kind, foreign_name, *value)
        for call in (asker.hit, asker.peek, asker.give_back):
            with pytest.raises(StoreError, match=message):
                call("key")
        if own_name != foreign_name or kind == "HSET":
            assert server.cli("HGET", own_name, "f0") is None, "the other limit was charged"
        assert asker.hit("another key").allowed
        assert server.cli("TYPE", foreign_name) == {"RPUSH": "list", "SET": "string", "HSET": "hash"}[kind]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_key_of_another_program_does_not_cut_off_the_other_keys(server: Server, colour: str) -> None:
    with Asker(colour, "1000/week log", guarded(server.url, remember="no")) as asker:
        server.cli("SET", names(asker, "bad")[0], "other")
        degraded = [(asker.hit("bad").degraded, asker.hit("good").degraded) for _ in range(5)]
        degraded += [(asker.hit("bad").degraded, "") for _ in range(20)]
        degraded += [("local", asker.hit("good").degraded) for _ in range(20)]
        together = [decision.degraded for decision in asker.hit_many(["good", "bad", "another"])]
    assert {bad for bad, _ in degraded} == {"local"}
    assert {good for _, good in degraded} == {""}
    assert together == ["", "local", ""]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("credentials", "message"),
    [
        (":Wr0ng-Passw0rd@", "WRONGPASS"),
        ("somebody:Wr0ng-Passw0rd@", "WRONGPASS"),
        (":Wr0ng%2FPassw0rd%40@", "WRONGPASS"),
        ("", "NOAUTH"),
    ],
)
def test_a_wrong_password_is_reported_and_never_shown(
    colour: str, credentials: str, message: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with single(password="right-Passw0rd") as server:
        url = f"redis://{credentials}{HOST}:{server.port}/0"
        shown = []
        with Asker(colour, "5/week", raw(url)) as asker:
            for call in (asker.hit, asker.peek, asker.give_back, asker.reset):
                with pytest.raises(StoreError, match=message) as raised:
                    call("key")
                assert not raised.value.transient
                shown += ["".join(traceback.format_exception(raised.value)), repr(raised.value.args)]
            shown += [repr(asker.store), repr(asker.limiter)]
        with Asker(colour, "5/week", guarded(url)) as asker:
            decisions = [asker.hit("key") for _ in range(7)]
            shown += [repr(asker.store), repr(asker.limiter), repr(decisions)]
        assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 2
        assert {decision.degraded for decision in decisions} == {"local"}
    assert any("headgate" in record.name for record in caplog.records)
    captured = capsys.readouterr()
    everything = "\n".join([*shown, caplog.text, captured.out, captured.err])
    for secret in ("Passw0rd", "Wr0ng"):
        assert secret not in everything


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://127.0.0.1:1", "Connection refused"),
        ("redis://localhost:1", "Connection refused"),  # of each of its addresses
        ("redis+cluster://127.0.0.1:1", "Connection refused"),
        ("unix:///nowhere/redis.sock", "No such file or directory"),
        ("redis://nowhere.invalid", "resolution|not known|No address"),
        ("redis+sentinel://127.0.0.1:1/mymaster", "no Sentinel that answers knows"),
    ],
)
def test_the_reason_why_a_server_cannot_be_reached_is_reported(colour: str, url: str, reason: str) -> None:
    with (
        Asker(colour, "5/week", RedisStore(f"{url}?timeout=10s")) as asker,
        pytest.raises(StoreUnavailable, match=f"cannot be reached: .*({reason})"),
    ):
        asker.hit("key")


@pytest.mark.parametrize("colour", COLOURS)
def test_a_certificate_that_is_not_accepted_is_reported(colour: str) -> None:
    with single(tls=True) as server:
        url = f"rediss://127.0.0.1:{server.port}?timeout=10s"
        with (
            Asker(colour, "5/week", RedisStore(url)) as asker,
            pytest.raises(StoreUnavailable, match=r"certificate is not accepted: .*(issuer|self.signed)"),
        ):
            asker.hit("key")


# Rights of a user of the server


RIGHTS = (
    "evalsha", "eval", "time", "hget", "hmget", "hset", "hdel", "lrange", "ttl", "expireat", "unlink",
)  # fmt: skip
"""All rights that a user needs for decisions and resets, including the guard's probes."""


def _use_everything(asker: Asker, clock: ManualClock) -> None:
    """Use every operation of a store, until every branch that writes has written."""
    for key in ("one", "two"):
        for at_ms in (0, 300, 300, 600, 900, 1050, 1950, 2000, 2000, 4000):
            clock.set(1_800_000_000_000_000 + at_ms * 1000)
            asker.hit(key)
            asker.peek(key)
            asker.hit(key, 4)
    asker.give_back("two", 2, 400_000)
    clock.advance(60_000_000)
    asker.hit("one")
    assert asker.reset("one")


@contextmanager
def _user(server: Server, rights: tuple[str, ...], prefix: str) -> Iterator[str]:
    server.cli(
        "ACL", "SETUSER", "limiter", "reset", "on", ">limiter-pass", f"~{prefix}:*", "-@all",
        *(f"+{right}" for right in rights),
    )  # fmt: skip
    try:
        yield f"redis://limiter:limiter-pass@{HOST}:{server.port}/0?timeout=10s"
    finally:
        server.cli("ACL", "DELUSER", "limiter")


def _with_rights(server: Server, colour: str, rights: tuple[str, ...]) -> None:
    server.cli("SCRIPT", "FLUSH")
    prefix = f"acl{next(_prefixes)}"
    with _user(server, rights, prefix) as url:
        clock = ManualClock()
        for limits in (
            "4/second log",
            "4/second bucket",
            "4/second; 9/second bucket",
            "4/second; 9/second log; 7/second queue 2",
        ):
            with Asker(colour, limits, RedisStore(url, prefix=prefix), clock=clock) as asker:
                _use_everything(asker, clock)
        with Asker(colour, "4/second log", RedisStore(url, prefix=prefix)) as asker:
            asker.hit("one")
            _probe(asker)


def _probe(asker: Asker) -> None:
    if asker.loop is None:
        asker.raw.probe()
    else:
        asker.loop.run(asker.raw.probe_async())


@pytest.mark.parametrize("colour", COLOURS)
def test_a_user_needs_these_rights(server: Server, colour: str) -> None:
    _with_rights(server, colour, RIGHTS)


@pytest.mark.parametrize("missing", RIGHTS)
def test_a_user_needs_each_of_these_rights(server: Server, missing: str) -> None:
    with pytest.raises(StoreError) as raised:
        _with_rights(server, "async", tuple(right for right in RIGHTS if right != missing))
    assert "NOPERM" in str(raised.value) or "permission" in str(raised.value).lower(), raised.value


def test_clearing_needs_one_more_right_which_the_error_names(server: Server) -> None:
    prefix = f"acl{next(_prefixes)}"
    with _user(server, RIGHTS, prefix) as url, Limiter("5/week", store=RedisStore(url, prefix=prefix)) as limiter:
        limiter.hit("key")
        with pytest.raises(StoreError, match=r"\+scan"):
            limiter.store.clear()
        server.cli("ACL", "SETUSER", "limiter", "+scan")
        limiter.store.clear()
        assert limiter.peek("key", 0).remaining == 5


@pytest.mark.parametrize("colour", COLOURS)
def test_a_probe_fails_where_decisions_would_fail_for_a_missing_right(server: Server, colour: str) -> None:
    for missing in RIGHTS:
        if missing == "lrange":  # for logs that version 0.1 wrote
            continue
        prefix = f"probe{next(_prefixes)}"
        server.cli("SCRIPT", "FLUSH")
        with (
            _user(server, (*(right for right in RIGHTS if right != missing), "set"), prefix) as url,
            Asker(colour, "4/second", RedisStore(url, prefix=prefix)) as asker,
            pytest.raises(StoreError, match="NOPERM"),
        ):
            _probe(asker)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_user_without_access_to_the_keys_gets_an_error_or_the_guards_decisions(server: Server, colour: str) -> None:
    with _user(server, RIGHTS, "elsewhere") as url:
        with (
            Asker(colour, "5/week", RedisStore(url, prefix="here")) as asker,
            pytest.raises(StoreError, match="NOPERM"),
        ):
            asker.hit("key")
        with Asker(colour, "2/week", f"{url}&prefix=here") as asker:
            decisions = [asker.hit("key") for _ in range(3)]
    assert [(decision.allowed, decision.degraded) for decision in decisions] == [
        (True, "local"), (True, "local"), (False, "local"),
    ]  # fmt: skip


# Stored states and their expiry


@pytest.mark.parametrize("colour", COLOURS)
def test_a_hash_lives_as_long_as_its_longest_state(server: Server, colour: str) -> None:
    """A client that knows only the short limit of a rule neither shortens its key's life nor alters the other state."""
    both, short = "2/second bucket; 90/day bucket", "2/second bucket"
    store = raw(server.url)
    prefix = store.prefix
    with Asker(colour, both, store, name="api") as asker:
        assert asker.hit("key").allowed
        (name,) = set(names(asker, "key"))
        assert server.cli("TYPE", name) == "hash"
        assert server.cli("HLEN", name) == 2
        day_s = server.cli("TTL", name)
        assert 86_400 / 90 <= day_s <= 1.125 * 86_400 / 90 + 3
    with Asker(colour, short, RedisStore(server.url, prefix=prefix), name="api") as other:
        for _ in range(3):  # each after the last one's own time has passed
            time.sleep(1.6)
            assert other.hit("key").allowed
        assert day_s - 9 <= server.cli("TTL", name) <= day_s
        assert other.reset("key")
        assert (server.cli("HLEN", name), day_s - 9 <= server.cli("TTL", name)) == (1, True)
    with Asker(colour, both, RedisStore(server.url, prefix=prefix), name="api") as asker:
        assert [reading.remaining for reading in asker.peek("key", 0).limits] == [2, 89]
        assert asker.hit("key").allowed
        assert asker.reset("key") and server.cli("EXISTS", name) == 0


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("text", ["7/day", "7/day log", "7/day fixed; 8/day; 9/day bucket", "9/day; 9/day log"])
def test_nothing_is_kept_without_an_expiry(server: Server, colour: str, text: str) -> None:
    store = raw(server.url)
    with Asker(colour, text, store) as asker:
        for cost in (1, 2, 100):
            asker.hit("key", cost)
        for name in set(names(asker, "key")):
            assert 3600 < server.cli("TTL", name) < 3 * 86_400


# Clocks


def test_clients_whose_clocks_differ_by_minutes_are_one_limit(server: Server) -> None:
    limit, requests = 30, 20  # in less time than their clocks differ by
    url = f"{server.url}?timeout=20s&prefix=clocks"
    program = (
        "import json, sys, time\n"
        "from headgate import Limiter, clock\n"
        "clock._ANCHOR_US += int(sys.argv[2]) * 60_000_000\n"
        "crowd = Limiter(sys.argv[3], store=sys.argv[1], name='crowd')\n"
        "patient = Limiter('1/second bucket', store=sys.argv[1], name='patient')\n"
        "told = [crowd.hit('key') for _ in range(int(sys.argv[4]))]\n"
        "assert patient.hit(('patient', sys.argv[2])).allowed\n"
        "start = time.monotonic()\n"
        "turn = patient.acquire(('patient', sys.argv[2]), timeout=5)\n"
        "print(json.dumps({'minutes': int(sys.argv[2]), 'now_us': clock.SYSTEM_CLOCK.now_us(),"
        " 'passed': sum(map(bool, told)), 'degraded': sorted({d.degraded for d in told}), 'turn': turn.allowed,"
        " 'waited_s': round(time.monotonic() - start, 2)}))\n"
    )
    for limits in (f"{limit}/5 minutes", f"{limit}/5 minutes log; {limit + 1}/week bucket"):
        server.cli("FLUSHALL")
        running = [
            subprocess.Popen(
                [sys.executable, "-c", program, url, str(minutes), limits, str(requests)],
                env={**os.environ, "HEADGATE_CORE": "python"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for minutes in (-7, 0, 7)
        ]
        results = []
        for process in running:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            results.append(json.loads(out))
        print({"limits": limits, "passed": sum(result["passed"] for result in results)}, *results, sep="\n  ")
        moments_us = [result["now_us"] for result in results]
        assert max(moments_us) - min(moments_us) > 13 * 60_000_000, "their clocks do not differ"
        assert sum(result["passed"] for result in results) == limit
        for result in results:
            assert result["degraded"] == [""]
            assert result["turn"] and 0.8 <= result["waited_s"] <= 1 + 4 * SLACK_S


# Remembered refusals


@pytest.mark.parametrize("colour", COLOURS)
def test_a_hammering_client_costs_the_server_a_call_a_second_and_passes_on_time(server: Server, colour: str) -> None:
    period_s = 1.6
    with Asker(colour, "1/1600ms bucket", guarded(server.url)) as asker, redis.Redis.from_url(server.url) as client:
        asker.hit("warm")
        server_start, start = clock_s(client), time.monotonic()
        assert asker.hit("key").allowed
        taken = time.monotonic()
        before, refused, moments = calls(server, "evalsha"), 0, []
        while not (decision := asker.hit("key")).allowed:
            refused += 1
            assert decision.retry_after is not None
            moments.append(time.monotonic() + decision.retry_after)
            assert time.monotonic() < taken + 10
        passed, server_passed = time.monotonic(), clock_s(client)
        sent = calls(server, "evalsha") - before
        degraded = decision.degraded
    # The server decides by its wall clock, and this test waits by another, which is not corrected as that one is.
    on_server_s = server_passed - server_start
    corrected_s = on_server_s - (passed - start)
    figures = {
        "refused": refused,
        "calls": sent,
        "passed after": round(passed - start, 3),
        "on the server": round(on_server_s, 3),
        "told moments": (round(min(moments) - start, 3), round(max(moments) - taken, 3)),
    }
    print({"colour": colour, **figures})
    assert degraded == ""
    assert refused > 100
    assert sent <= 4  # refused, refused again after a second, and passed; one to spare
    assert period_s <= on_server_s
    assert passed - start <= period_s - min(corrected_s, 0) + SLACK_S + stalled_s(start, passed)
    assert min(moments) >= start + period_s - max(corrected_s, 0) - 0.001
    assert max(moments) <= taken + period_s - min(corrected_s, 0) + SLACK_S + stalled_s(start, passed)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_call_that_might_pass_is_sent_although_a_refusal_is_remembered(server: Server, colour: str) -> None:
    with Asker(colour, "10/week bucket", guarded(server.url)) as asker:
        assert asker.hit("key", 7).allowed
        assert not asker.hit("key", 4).allowed
        assert asker.hit("key", 3).allowed, "less than what was refused"
        assert asker.hit("other key", 4).allowed
        assert not asker.hit("key", 4).allowed
        assert asker.reset("key")
        assert asker.hit("key", 4).allowed, "the refusal was forgotten with the state"


@pytest.mark.parametrize(
    "text",
    ["10/second burst 10", "30/minute", "30/minute log", "30/minute fixed; 7/second", "10/second queue 9; 40/hour"],
)
def test_remembered_refusals_do_not_change_any_decision(server: Server, text: str) -> None:
    chance, clock = random.Random(text), ManualClock(1_800_000_000_000_000)
    remembers, forgets = (
        Limiter(text, store=guarded(server.url, remember=remember), clock=clock, name="one")
        for remember in ("yes", "no")
    )
    before = calls(server, "evalsha")
    for number in range(400):
        clock.advance(chance.choice([0, 0, 0, 1, 1000, 100_000, 300_000, 999_999]))
        key, cost = chance.choice("ab"), chance.choice([1, 1, 1, 2, 5, 8])
        decision, expected = remembers.hit(key, cost), forgets.hit(key, cost)
        assert (decision.degraded, answer(decision)) == (expected.degraded, answer(expected)), (text, number)
        if number % 50 == 49:
            assert remembers.reset(key) == forgets.reset(key)
    assert calls(server, "evalsha") - before < 2 * (400 + 8), "none was remembered"
    remembers.close()
    forgets.close()


# Other ways to a server


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_with_tls_is_used_once_its_certificate_is_known(colour: str) -> None:
    with single(tls=True) as server:
        with Asker(colour, "2/week", guarded(f"{server.url}?ssl_ca_certs={server.ca_file}")) as asker:
            decisions = [asker.hit("key") for _ in range(3)]
            assert [decision.allowed for decision in decisions] == [True, True, False]
            assert {decision.degraded for decision in decisions} == {""}
        with (
            Asker(colour, "2/week", raw(server.url)) as asker,
            pytest.raises(StoreUnavailable, match="cannot be reached"),
        ):
            asker.hit("key")


@pytest.mark.parametrize("stopped", [False, True], ids=["there", "stopped"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_closed_store_has_no_open_socket_though_the_event_loop_ends_right_after(tls: bool, stopped: bool) -> None:
    """Over TLS a server has to agree to the end of a connection; closing does not wait for a stopped one."""

    async def ask_and_close(server: Server) -> set[str]:
        options = {"ssl_ca_certs": str(server.ca_file)} if tls else {}
        store = raw(f"{server.url}?{urlencode(options)}" if tls else server.url, timeout="1s")
        limiter = AsyncLimiter("2/week", store=store)
        assert await limiter.hit("key")
        before = open_sockets()
        if stopped:
            server.stop()
        await limiter.close()
        return before - open_sockets()

    with single(tls=tls) as server:
        try:
            assert len(asyncio.run(ask_and_close(server))) == 1
        finally:
            if stopped:
                server.go_on()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_unix_socket_and_a_password_of_special_characters(colour: str) -> None:
    password = "a b/@:?#%&+ü"
    with single(password=password, unixsocket=True) as server:
        credentials = f":{quote(password, safe='')}@"
        assert credentials in server.url
        for url in (server.url, server.unix_url, f"redis://default{credentials}{HOST}:{server.port}/0"):
            with Asker(colour, "2/week", raw(url)) as asker:
                assert [asker.hit("key").allowed for _ in range(3)] == [True, True, False]
                for secret in (password, quote(password, safe="")):
                    assert secret not in repr(asker.store)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("decodes", [False, True], ids=["bytes", "decode_responses"])
def test_a_client_that_the_caller_made(server: Server, colour: str, decodes: bool) -> None:
    kind: Any = redis.Redis if colour == "sync" else redis.asyncio.Redis
    client = kind(
        host=HOST, port=server.port, socket_timeout=10, retry=Retry(NoBackoff(), 0), decode_responses=decodes
    ) if colour == "sync" else kind(host=HOST, port=server.port, decode_responses=decodes)  # fmt: skip
    store = RedisStore(client, prefix=f"own{next(_prefixes)}")
    with Asker(colour, "2/second bucket; 300/minute log; 400/minute", store) as asker:
        assert asker.hit("key", 2).allowed
        assert not asker.hit("key").allowed
        assert asker.acquire("key", timeout=5).allowed  # reads the states to plan the turn
        assert asker.reset("key")
        assert asker.peek("key", 0).limits[1].remaining == 300
        asker.close_links()
        assert asker.hit("key").limits[2].remaining == 399
        if asker.loop is not None:
            asker.loop.run(client.aclose())
    if colour == "sync":
        client.close()


def test_a_client_of_the_other_colour_is_refused_with_a_hint(server: Server) -> None:
    with redis.Redis(port=server.port) as client, pytest.raises(ConfigError, match="use Limiter or Gate"):
        AsyncLimiter("1/week", store=RedisStore(client))
    with pytest.raises(ConfigError, match="use AsyncLimiter or AsyncGate"):
        Limiter("1/week", store=RedisStore(redis.asyncio.Redis(port=server.port)))


def test_a_limiter_of_one_store_serves_several_event_loops(server: Server) -> None:
    limiter = AsyncLimiter("6/week", store=raw(server.url))

    async def hit_three() -> list[bool]:
        allowed = [decision.allowed for decision in await asyncio.gather(*(limiter.hit("key") for _ in range(3)))]
        await limiter.close()
        return allowed

    assert [asyncio.run(hit_three()) for _ in range(3)] == [[True] * 3, [True] * 3, [False] * 3]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_call_that_times_out_reports_that_it_may_have_been_charged(server: Server, colour: str) -> None:
    with (
        TcpProxy(server.port) as proxy,
        Asker(colour, "5/week", raw(f"redis://{HOST}:{proxy.port}", timeout="500ms")) as asker,
    ):
        asker.hit("warm")
        proxy.delay(1)
        with timed() as elapsed_s, pytest.raises(StoreTimeout, match="may have been charged"):
            asker.hit("key")
        assert elapsed_s() < 0.5 + SLACK_S
        proxy.delay(0)
