"""The Redis store behind Sentinels and in a Cluster: the same decisions, during failovers and moves of slots."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis_askers import COLOURS, SLACK_S, Asker, Load, Loop, load, longest_s, tally, wait_for
from redis_servers import Cluster, Sentinels, Server
from stalls import timed
from tcp_proxy import HOST, hold_port

from headgate.decision import Decision, name_limits
from headgate.errors import StoreTimeout, StoreUnavailable
from headgate.limit_text import parse_limits
from headgate.operation import Operation, Receipt
from headgate.stores.redis.codec import read_state
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from vector_check import answer, read_limits, read_vectors

VECTORS = Path(__file__).parents[2] / "vectors"
HISTORIES = 30
pytestmark = pytest.mark.integration
DEADLINE_S = 0.1
FAILOVER_WITHIN_S = 30
_prefixes = count()


def raw(url: str, *, timeout_s: float = 10) -> RedisStore:
    return RedisStore(
        f"{url}?timeout={timeout_s}s&connect_timeout={timeout_s}s", prefix=f"n{os.getpid()}-{next(_prefixes)}"
    )


def guarded(url: str, **options: str) -> str:
    parameters = "".join(f"&{name}={value}" for name, value in options.items())
    return f"{url}?timeout={DEADLINE_S}s&prefix=n{os.getpid()}-{next(_prefixes)}{parameters}"


@pytest.fixture(params=["sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    fixture: Any = request.getfixturevalue("watched" if request.param == "sentinel" else "nodes")
    fixture.wait_ok()
    return str(fixture.url)


# The same answers


@pytest.mark.parametrize("colour", COLOURS)
def test_vectors_are_answered_exactly(url: str, colour: str) -> None:
    every = list(read_vectors(VECTORS))
    histories = [vector for vector in every if len(vector["steps"]) == 40]
    chosen = [vector for vector in every if vector not in histories] + histories[:HISTORIES]
    clock = ManualClock()
    store = raw(url)
    wrong, steps = [], 0
    loop = Loop() if colour == "async" else None
    for number, vector in enumerate(chosen):
        key = f"key {number}"
        definitions = name_limits(read_limits(vector), scope=f"v{number}", name="all")
        bound: Any = (
            store.bind(definitions, clock=clock) if loop is None else store.bind_async(definitions, clock=clock)
        )
        for step in vector["steps"]:
            clock.set(step["at_us"])
            outcome = getattr(bound, step["op"])(key, step["cost"])
            result = answer(outcome if loop is None else loop.run(outcome))
            steps += 1
            if result != {name: step[name] for name in result}:
                wrong.append((vector["id"], step, result))
    if loop is None:
        store.close()
    else:
        loop.run(store.aclose())
        loop.close()
    print({"colour": colour, "vectors": len(chosen), "steps": steps, "wrong": len(wrong)})
    assert wrong == [] and len(chosen) >= HISTORIES + 15


@pytest.mark.parametrize("colour", COLOURS)
def test_a_burst_passes_exactly_the_limit_and_script_flush_does_not_matter(
    url: str, colour: str, watched: Sentinels, nodes: Cluster
) -> None:
    with Asker(colour, "70/week; 90/week log; 80/week bucket", raw(url)) as asker:
        asker.hit("warm")
        for server in [*watched.servers, *nodes.servers]:
            server.cli("SCRIPT", "FLUSH")
        outcomes = tally(asker.at_once(["one", "two", "three"] * 100))
        left = [[limit.remaining for limit in asker.peek(key, 0).limits] for key in ("one", "two", "three")]
    assert outcomes == {"passed": 210, "refused": 90}
    assert left == [[0, 20, 10]] * 3


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", ["redis+sentinel", "redis+cluster"])
def test_unreachable_servers_are_reported_and_the_guard_decides(colour: str, kind: str) -> None:
    held = hold_port()
    url = f"{kind}://{HOST}:{held.getsockname()[1]}/" + ("mymaster" if kind == "redis+sentinel" else "")
    with Asker(colour, "3/week", raw(url, timeout_s=DEADLINE_S)) as asker:
        for call in (asker.hit, asker.peek, asker.reset):
            with timed() as own_s, pytest.raises(StoreUnavailable):
                call("key")
            assert own_s() < DEADLINE_S + SLACK_S
    with Asker(colour, "3/week", guarded(url)) as asker:
        decisions = [asker.hit("key") for _ in range(6)]
    held.close()
    assert [decision.allowed for decision in decisions] == [True] * 3 + [False] * 3
    assert {decision.degraded for decision in decisions} == {"local"}


# Failover, while traffic runs


def _fail_over(
    asker: Asker,
    limit: int,
    followers: list[Server],
    away: Callable[[], object],
    failed_over: Callable[[], Server],
    isolate: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Hit until the limit is used up, while the primary goes away: what was admitted, and where."""
    (name,) = asker.raw.commands(asker.limiter.definitions).names(("key",))
    with load(asker, ["key"] * (3 if asker.colour == "sync" else 12), pause_s=0.004) as running:
        wait_for(lambda: _admitted(running) >= limit // 4)
        if isolate is not None:
            isolate()
            before = _admitted(running)
            wait_for(lambda: _admitted(running) >= before + limit // 8)
        away()
        away_since = time.monotonic()
        replicated = {server.port: _used(server, name) for server in followers}
        new = failed_over()
        took_s = time.monotonic() - away_since
        running.wait_for(lambda answer: answer.decided_by == "store" and not answer.allowed, within_s=FAILOVER_WITHIN_S)
    used = _used(new, name)
    answers = running.answers
    # An answer of the old primary is there within the deadline; the new one is not before that.
    back = min(
        answer.at_s for answer in answers if answer.decided_by == "store" and answer.at_s > away_since + 2 * DEADLINE_S
    )
    admitted, after = _admitted(running), sum(answer.allowed for answer in answers if answer.at_s >= back)
    return {
        "colour": asker.colour,
        "limit": limit,
        "admitted": admitted,
        "by the old primary": admitted - after,
        "replicated by then": replicated[new.port],
        "not replicated": max(0, admitted - after - replicated[new.port]),
        "by the new primary": after,
        "used on the new primary": used,
        "failed": sum(answer.error is not None for answer in answers),
        "decided by": dict(Counter(answer.decided_by for answer in answers)),
        "longest, ms": round(1000 * longest_s(answers)),
        "new primary after": round(took_s, 1),
        "decisions again after": round(back - away_since, 1),
    }


def _admitted(running: Load) -> int:
    return sum(answer.allowed for answer in list(running.answers))


def _used(server: Server, name: bytes) -> int:
    """The used units of a sliding window on one server, which may be a replica."""
    client: Any = redis.Redis(port=server.port, protocol=2, socket_timeout=10, single_connection_client=True)
    with client:
        with suppress(redis.ResponseError):  # of a server without a Cluster
            client.readonly()
        value = client.hget(name, "w0")
    return 0 if value is None else sum(read_state("sliding_window", value)[1][1:])


@contextmanager
def _back(server: Server, how: str, settled: Callable[[], None]) -> Iterator[None]:
    """Restore a server that goes away in the block, for the next test."""
    try:
        yield
    finally:
        if how == "stopped":
            server.go_on()
        else:
            server.restart()
        settled()


def _check(counts: dict[str, Any]) -> None:
    assert counts["failed"] == 0, "a request failed"
    assert set(counts["decided by"]) <= {"store", "closed"}
    assert counts["longest, ms"] < 1000 * (DEADLINE_S + SLACK_S)
    assert counts["used on the new primary"] == counts["limit"]
    assert counts["by the new primary"] <= counts["limit"] - counts["replicated by then"]
    assert counts["admitted"] <= counts["limit"] + counts["not replicated"]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("how", ["killed", "stopped", "killed, with replicas behind"])
def test_sentinels_name_another_primary_while_traffic_runs(watched: Sentinels, colour: str, how: str) -> None:
    watched.wait_ok()
    limit = 1200
    primary = watched.primary
    followers = [server for server in watched.servers if server is not primary]

    def isolate() -> None:
        for server in followers:
            server.cli("REPLICAOF", HOST, held.getsockname()[1])

    with (
        hold_port() as held,
        Asker(colour, f"{limit}/week", guarded(watched.url, on_error="closed", remember="no")) as asker,
        _back(primary, how, watched.wait_ok),
    ):
        wait_for(lambda: asker.peek("key").degraded == "")
        counts = _fail_over(
            asker,
            limit,
            followers,
            primary.stop if how == "stopped" else primary.kill,
            lambda: watched.wait_failover(primary, within_s=FAILOVER_WITHIN_S),
            isolate if "behind" in how else None,
        )
    print({"sentinels": how, **counts})
    _check(counts)
    if "behind" in how:
        assert counts["not replicated"] >= limit // 10


@pytest.mark.parametrize("colour", COLOURS)
def test_a_call_to_a_stopped_primary_is_followed_by_calls_to_the_new_one(watched: Sentinels, colour: str) -> None:
    watched.wait_ok()
    primary = watched.primary
    with Asker(colour, "9/week", raw(watched.url, timeout_s=DEADLINE_S)) as asker:
        primary.stop()
        with _back(primary, "stopped", watched.wait_ok):
            with timed() as own_s, pytest.raises(StoreTimeout):
                asker.hit("key")
            assert own_s() < DEADLINE_S + SLACK_S
            watched.wait_failover(primary, within_s=FAILOVER_WITHIN_S)
            took_s = wait_for(lambda: _answers(asker), 5)
    print({"colour": colour, "decisions again after": round(took_s, 2)})


@pytest.mark.parametrize("colour", COLOURS)
def test_where_the_sentinels_are_stopped_too_no_call_takes_longer_than_its_deadline(
    watched: Sentinels, colour: str
) -> None:
    """This holds however many Sentinels are queried for the primary, one after another."""
    watched.wait_ok()
    everybody = [*watched.servers, *watched.watchers]
    deadline_s = 0.5
    with Asker(colour, "9/week", raw(watched.url, timeout_s=deadline_s)) as asker:
        wait_for(lambda: _answers(asker))
        for server in everybody:
            server.stop()
        times_s = [_took(asker) for _ in range(4)]
        for server in everybody:
            server.go_on()
        watched.wait_ok()
        took_s = wait_for(lambda: _answers(asker), 10)
    print({"colour": colour, "calls": [round(each, 3) for each in times_s], "decisions again after": round(took_s, 2)})
    assert max(times_s) < deadline_s + SLACK_S


@pytest.mark.parametrize("colour", COLOURS)
def test_a_call_to_a_stopped_server_of_a_cluster_is_followed_by_calls_to_its_replica(
    nodes: Cluster, colour: str
) -> None:
    """There is no other client that could notice it; and no call takes longer than its deadline."""
    nodes.wait_ok()
    with Asker(colour, "9/week", raw(nodes.url, timeout_s=DEADLINE_S)) as asker:
        asker.hit("key")
        primary = nodes.owner_of(_slot(asker, "key"))
        primary.stop()
        with _back(primary, "stopped", nodes.wait_ok):
            times_s = [_took(asker) for _ in range(3)]
            nodes.wait_ok(within_s=FAILOVER_WITHIN_S)
            time.sleep(1.5)  # longer than a connection may owe a reply
            times_s.append(_took(asker))
            took_s = wait_for(lambda: _answers(asker), 5)
    print({"colour": colour, "calls": [round(each, 3) for each in times_s], "decisions again after": round(took_s, 2)})
    assert max(times_s) < DEADLINE_S + SLACK_S


@pytest.mark.parametrize("colour", COLOURS)
def test_where_a_whole_cluster_is_stopped_no_call_takes_longer_than_its_deadline(nodes: Cluster, colour: str) -> None:
    """This holds however many servers are queried for the key's server, one after another."""
    nodes.wait_ok()
    deadline_s = 0.5
    with Asker(colour, "9/week", raw(nodes.url, timeout_s=deadline_s)) as asker:
        wait_for(lambda: _answers(asker))
        for server in nodes.servers:
            server.stop()
        times_s = [_took(asker) for _ in range(4)]
        for server in nodes.servers:
            server.go_on()
        nodes.wait_ok()
        took_s = wait_for(lambda: _answers(asker), 10)
    print({"colour": colour, "calls": [round(each, 3) for each in times_s], "decisions again after": round(took_s, 2)})
    assert max(times_s) < deadline_s + SLACK_S


def _took(asker: Asker) -> float:
    with timed() as own_s:
        _answers(asker)
    return own_s()


def _answers(asker: Asker) -> bool:
    try:
        return asker.hit("key").allowed
    except (StoreTimeout, StoreUnavailable):
        return False


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_replica_takes_over_in_a_cluster_while_traffic_runs(nodes: Cluster, colour: str, how: str) -> None:
    nodes.wait_ok()
    limit = 1200
    with Asker(colour, f"{limit}/week", guarded(nodes.url, on_error="closed", remember="no")) as asker:
        wait_for(lambda: asker.peek("key").degraded == "")
        slot = _slot(asker, "key")
        primary = nodes.owner_of(slot)

        def failed_over() -> Server:
            nodes.wait_ok(within_s=FAILOVER_WITHIN_S)
            return nodes.owner_of(slot)

        with _back(primary, how, nodes.wait_ok):
            away = primary.stop if how == "stopped" else primary.kill
            counts = _fail_over(asker, limit, nodes.replicas_of(primary), away, failed_over)
    print({"cluster": how, **counts})
    _check(counts)


def _slot(asker: Asker, key: str) -> int:
    (slot,) = {key_slot(name) for name in asker.raw.commands(asker.limiter.definitions).names((key,))}
    return slot


# Slots that move, while traffic runs


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("limits", ["{0}/week bucket", "{0}/week; {1}/week log; {1}/week bucket"], ids=["one", "three"])
def test_slots_move_while_traffic_runs_and_exactly_the_limit_passes(nodes: Cluster, colour: str, limits: str) -> None:
    nodes.wait_ok()
    limit = 900
    halves: list[int] = []
    with Asker(colour, limits.format(limit, limit + 40), raw(nodes.url)) as asker:
        asker.hit("warm")
        key = f"moves {next(_prefixes)}"  # alone in its slot: the states of all its limits are one hash
        slot = _slot(asker, key)
        turned_before = _errors(nodes)
        askers, pause_s = (3, 0.005) if colour == "sync" else (12, 0.02)
        with load(asker, [key] * askers, pause_s=pause_s) as running:

            def half() -> None:
                before = _errors(nodes)
                wait_for(lambda: _errors(nodes) - before != Counter())
                halves.append(_admitted(running))

            for _ in range(4):
                enough = _admitted(running) + 20
                wait_for(lambda enough=enough: _admitted(running) >= enough)  # type: ignore[misc]
                nodes.migrate_slot(slot, _other(nodes, nodes.owner_of(slot)), pause=half)
            running.wait_for(lambda answer: not answer.allowed)
        turned = _errors(nodes) - turned_before
        left = [reading.remaining for reading in asker.peek(key, 0).limits]
    nodes.wait_ok()
    outcomes = Counter("failed" if a.error else "passed" if a.allowed else "refused" for a in running.answers)
    print(
        {
            "colour": colour,
            "limits": len(left),
            "limit": limit,
            **outcomes,
            "turned away": dict(turned),
            "left": left,
            "admitted at half moved": halves,
        }
    )
    assert outcomes["failed"] == 0, Counter(str(answer.error) for answer in running.answers if answer.error)
    assert outcomes["passed"] == limit > max(halves)
    assert left == [0] + [40] * (len(left) - 1)
    assert turned["MOVED"] > 0 and turned["ASK"] > 0


class _Pair:
    """Two rules with one identity: a decision about two hashes in one slot, in either colour; close it."""

    def __init__(self, nodes: Cluster, colour: str, limit: int, **options: float) -> None:
        self.loop = Loop() if colour == "async" else None
        self.store = raw(nodes.url, **options)
        self.key = f"pair {next(_prefixes)}"
        definitions = [
            *name_limits(parse_limits(f"{limit}/week bucket"), scope="one", name="one"),
            *name_limits(parse_limits(f"{limit + 40}/week; {limit + 40}/week log"), scope="two", name="two"),
        ]
        self.names = sorted(set(self.store.commands(definitions).names((self.key,))))
        assert len(self.names) == 2
        (self.slot,) = {key_slot(name) for name in self.names}
        self._bound: Any = (self.store.bind if self.loop is None else self.store.bind_async)(definitions)

    def decide(self, cost: int = 1) -> Decision:
        result: Any = self._bound.decide(Operation((self.key,), (cost,)))
        return result if self.loop is None else self.loop.run(result)  # type: ignore[no-any-return]

    def left(self) -> list[int | None]:
        return [limit.remaining for limit in self.decide(0).limits]

    def close(self) -> None:
        if self.loop is None:
            self.store.close()
        else:
            self.loop.run(self.store.aclose())
            self.loop.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_decision_whose_keys_are_on_two_servers_while_their_slot_moves_is_made_and_charged_once(
    nodes: Cluster, colour: str
) -> None:
    """One key has moved and the other has not: neither server can decide until both have (TRYAGAIN)."""
    nodes.wait_ok()
    limit = 200
    pair = _Pair(nodes, colour, limit)
    assert pair.decide().allowed
    waited, halves = 0, []
    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            pending: list[Any] = []

            def half(pending: list[Any] = pending) -> None:
                before = _errors(nodes)
                pending += [threads.submit(pair.decide) for _ in range(20)]
                wait_for(lambda: (_errors(nodes) - before)["TRYAGAIN"] >= 20)
                halves.append(sum(future.done() for future in pending))

            nodes.migrate_slot(pair.slot, _other(nodes, nodes.owner_of(pair.slot)), pause=half)
            answers = [future.result(30) for future in pending]
            waited += sum(answer.allowed and answer.degraded == "" for answer in answers)
    left = pair.left()
    passed = sum(pair.decide().allowed for _ in range(limit))
    finished = pair.left()
    pair.close()
    nodes.wait_ok()
    print({"colour": colour, "decided while half moved": halves, "afterwards": waited, "left": left})
    assert halves == [0] * 4
    assert waited == 80
    assert left == [limit - 81, limit - 41, limit - 41]
    assert passed == limit - 81 and finished == [0, 40, 40]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_decision_whose_slot_moves_for_longer_than_its_deadline_is_an_error_and_charges_nothing(
    nodes: Cluster, colour: str
) -> None:
    nodes.wait_ok()
    deadline_s = 0.5
    pair = _Pair(nodes, colour, 9, timeout_s=deadline_s)
    wait_for(lambda: _decides(pair))
    before, turned = pair.left(), _errors(nodes)
    messages: list[str] = []

    def half() -> None:
        for _ in range(3):
            with timed() as elapsed_s, pytest.raises((StoreTimeout, StoreUnavailable)) as raised:
                pair.decide()
            assert elapsed_s() < deadline_s + SLACK_S
            assert raised.value.server, "other keys have nothing to do with it"
            messages.append(str(raised.value))

    nodes.migrate_slot(pair.slot, _other(nodes, nodes.owner_of(pair.slot)), pause=half)
    nodes.wait_ok()
    wait_for(lambda: _decides(pair, 0))
    after, turned = pair.left(), _errors(nodes) - turned
    pair.close()
    print({"colour": colour, "left": after, "turned away": dict(turned)})
    assert after == before
    assert turned["TRYAGAIN"] >= 3
    assert any("the key's slot is moving to another server; nothing was charged" in text for text in messages), messages


@pytest.mark.parametrize("colour", COLOURS)
def test_a_decision_that_is_redirected_between_the_servers_of_a_moving_slot_waits_until_it_has_moved(
    nodes: Cluster, colour: str
) -> None:
    """One key has moved and the other is new: the owner replies ASK, the importing server TRYAGAIN."""
    nodes.wait_ok()
    pair = _Pair(nodes, colour, 9, timeout_s=5)
    wait_for(lambda: _decides(pair))
    owner = nodes.owner_of(pair.slot)
    assert owner.cli("DEL", pair.names[1]) == 1
    left = pair.left()
    with ThreadPoolExecutor(1) as threads:
        pending: list[Any] = []

        def half() -> None:
            turned = _errors(nodes)
            pending.append(threads.submit(pair.decide))
            wait_for(lambda: (_errors(nodes) - turned)["TRYAGAIN"] >= 30)  # for far longer than 16 turns take

        nodes.migrate_slot(pair.slot, _other(nodes, owner), pause=half)
        assert pending[0].result(10).allowed
    assert left == [8, 49, 49] and pair.left() == [7, 48, 48]
    pair.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_decision_whose_script_looks_for_another_key_in_a_moving_slot_waits_until_it_has_moved(
    nodes: Cluster, colour: str
) -> None:
    """A new log looks for the list of version 0.1, which a server that moves the slot takes for one that has moved."""
    nodes.wait_ok()
    key = f"moves {next(_prefixes)}"
    with (
        Asker(colour, "9/week fixed; 9/day log", raw(nodes.url, timeout_s=5)) as asker,
        ThreadPoolExecutor(1) as threads,
    ):
        assert asker.hit(key).allowed
        slot = _slot(asker, key)
        owner = nodes.owner_of(slot)
        [name] = owner.cli("CLUSTER", "GETKEYSINSLOT", slot, 9)
        assert owner.cli("HDEL", name, "w0") == 1
        other = _other(nodes, owner)
        other.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", owner.cli("CLUSTER", "MYID"))
        owner.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", other.cli("CLUSTER", "MYID"))
        pending = threads.submit(asker.hit, key)
        time.sleep(0.3)
        assert not pending.done()
        nodes.migrate_slot(slot, other)
        decision = pending.result(10)
        assert decision.allowed and [reading.remaining for reading in decision.limits] == [7, 8]


def _decides(pair: _Pair, cost: int = 1) -> bool:
    try:
        return pair.decide(cost).allowed
    except (StoreTimeout, StoreUnavailable):
        return False


@pytest.mark.parametrize("colour", COLOURS)
def test_a_redirected_client_knows_the_server_from_then_on(nodes: Cluster, colour: str) -> None:
    nodes.wait_ok()
    with Asker(colour, "1000/hour", raw(nodes.url)) as asker:
        key = f"knows {next(_prefixes)}"
        asker.hit(key)
        slot = _slot(asker, key)
        nodes.migrate_slot(slot, _other(nodes, nodes.owner_of(slot)))
        before = _errors(nodes)
        for _ in range(50):
            assert asker.hit(key)
        assert 0 < (_errors(nodes) - before)["MOVED"] <= 3
    nodes.wait_ok()


def _errors(nodes: Cluster) -> Counter[str]:
    """How often the servers have redirected a call."""
    found: Counter[str] = Counter()
    for server in nodes.servers:
        stats = server.cli("INFO", "errorstats")
        for kind in ("MOVED", "ASK", "TRYAGAIN"):
            found[kind] += int(stats.get(f"errorstat_{kind}", {"count": 0})["count"])
    return found


def _other(nodes: Cluster, server: Server) -> Server:
    return next(other for other in nodes.primaries() if other is not server)


# Identities that are counted on different servers


APART = {
    "buckets": ("7/week bucket", "60/week bucket"),
    "a log and a window": ("7/week log", "60/week"),
    "a window and a log": ("7/week", "60/week log"),
    "several each": ("7/week; 9/week bucket", "60/week fixed; 70/week log"),
    "a queue and a bucket": ("7/week queue 6", "60/week bucket"),
}


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("kind", APART)
def test_what_identities_on_different_servers_were_charged_is_given_back(
    nodes: Cluster, colour: str, kind: str
) -> None:
    nodes.wait_ok()
    clock = ManualClock()
    own, shared = APART[kind]
    store = raw(nodes.url)
    definitions = [
        *name_limits(parse_limits(own), scope="own", name="own", group=0),
        *name_limits(parse_limits(shared), scope="all", name="all", group=1),
    ]
    loop = Loop() if colour == "async" else None
    bound: Any = store.bind(definitions, clock=clock) if loop is None else store.bind_async(definitions, clock=clock)

    def call(method: Callable[..., Any], *arguments: Any) -> Any:
        return method(*arguments) if loop is None else loop.run(method(*arguments))

    servers = set()
    for number in range(12):
        pair = (f"user {number}", f"group {number}")
        servers |= {nodes.owner_of(key_slot(name)) for name in store.commands(definitions).names(pair)}
        assert call(bound.decide, Operation(pair, (3, 5))).allowed
        clock.advance(1000)
        call(bound.give_back, Receipt(pair, (2, 5)), 1000)
        left = [reading.remaining for reading in call(bound.decide, Operation(pair, (0, 0))).limits]
        assert left == [limit.limit.quota - (limit.group == 0) for limit in definitions]
    assert len(servers) == 3
    if loop is None:
        store.close()
    else:
        loop.run(store.aclose())
        loop.close()


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("kind", "first"), [*((kind, "own") for kind in APART), ("buckets", "all"), ("a log and a window", "all")]
)
def test_identities_on_different_servers_are_never_over_admitted_and_refusals_leave_nothing(
    nodes: Cluster, colour: str, kind: str, first: str
) -> None:
    nodes.wait_ok()
    own, shared = APART[kind]
    users, each, own_limit, limit = 12, 14, 7, 60
    store = raw(nodes.url)
    definitions = [
        *name_limits(parse_limits(own), scope="own", name="own", group=0),
        *name_limits(parse_limits(shared), scope="all", name="all", group=1),
    ]
    definitions.sort(key=lambda definition: definition.scope.startswith("all") == (first == "own"))
    at = {scope: next(n for n, d in enumerate(definitions) if d.scope.startswith(scope)) for scope in ("own", "all")}
    commands = store.commands(definitions)
    keys = [(f"user {number}", "everybody") for number in range(users)]
    places = {nodes.owner_of(key_slot(name)) for pair in keys for name in commands.names(pair)}
    assert len(places) == 3, "all is on one server"
    pairs = [pair for _ in range(each) for pair in keys]
    loop = Loop() if colour == "async" else None
    bound: Any = store.bind(definitions) if loop is None else store.bind_async(definitions)

    def decide(pair: tuple[str, str], cost: int = 1) -> Decision:
        decision: Any = bound.decide(Operation(pair, (cost, cost)))
        return decision if loop is None else loop.run(decision)  # type: ignore[no-any-return]

    if loop is None:
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(decide, pairs))
    else:

        async def all_at_once() -> list[Decision]:
            return list(await asyncio.gather(*(bound.decide(Operation(pair, (1, 1))) for pair in pairs)))

        answers = loop.run(all_at_once())
    passed: Counter[str] = Counter()
    for (user, _), decision in zip(pairs, answers, strict=True):
        passed[user] += decision.allowed
    at_once = passed.total()
    left = {user: decide((user, everybody), 0) for user, everybody in keys}
    for user, everybody in keys:  # one by one, so that no call is refused too early
        while decide((user, everybody)).allowed:
            passed[user] += 1
    finished = {user: decide((user, everybody), 0) for user, everybody in keys}
    if loop is None:
        store.close()
    else:
        loop.run(store.aclose())
        loop.close()
    figures = {
        "colour": colour,
        "requested at once": len(pairs),
        "admitted at once": at_once,
        "in the end": passed.total(),
    }
    print({"limits": kind, "charged first": first, "limit of each": own_limit, "limit of all": limit, **figures})
    assert all(count <= own_limit for count in passed.values())
    assert at_once <= limit and passed.total() == limit
    everybodys = {decision.limits[at["all"]].remaining for decision in left.values()}
    assert everybodys == {limit - at_once}
    for user, decision in finished.items():
        assert decision.limits[at["own"]].remaining == own_limit - passed[user], user
        assert decision.limits[at["all"]].remaining == 0


def test_clear_forgets_the_states_on_every_server_and_nothing_else(nodes: Cluster) -> None:
    nodes.wait_ok()
    with Asker("sync", "9/week; 9/week log", raw(nodes.url)) as asker, Asker("sync", "9/week", raw(nodes.url)) as other:
        for number in range(30):
            asker.hit(f"key {number}")
        other.hit("key")
        asker.store.clear()
        assert {asker.peek(f"key {number}", 0).remaining for number in range(30)} == {9}
        assert other.peek("key", 0).remaining == 8
