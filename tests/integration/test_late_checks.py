"""Checks on a real Redis, decided in batches: the bytes and the figures of the Python service, whatever is asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis_askers import Loop
from redis_servers import Cluster, Server

from headgate import core
from headgate.errors import ConfigError
from headgate.policy.compiled import Policy
from headgate.policy.gate import AsyncGate, read_policy
from headgate.service.app import Service
from headgate.service.checks.check_batches import CheckBatches
from headgate.service.http.messages import ServiceRequest, ServiceResponse
from headgate.stores.guard.store import GuardedStore
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from policies import policies
from service_requests import TIMED_REQUESTS, TimedRequest, decisions_of
from subjects import START_US

pytestmark = [pytest.mark.integration, pytest.mark.skipif(core.native is None, reason="it compares the native core")]
_prefixes = count()


class Late:
    """A service behind native checks on a Redis, as the front door has it."""

    def __init__(self, policy: Policy, url: str, clock: ManualClock | None = None, **guard: Any) -> None:
        assert core.native is not None
        self.store = GuardedStore(RedisStore(url, prefix=f"late{next(_prefixes)}"), **guard)
        self.service = Service(AsyncGate(policy, store=self.store, clock=clock))
        self.tally = core.native.CheckTally()
        self.batches = CheckBatches(self.service.gate)
        self.checks = self.batches.checks(self.tally)

    def begin(self, request: ServiceRequest) -> Any:
        """The native reply, as far as it is known; None where Python is to answer."""
        if request.body:
            return self.checks.described(request.body)
        _, place, rest = request.path.split("/", 2)
        ruleset, slash, path = rest.partition("/")
        path = (slash + path).encode("latin-1").decode("utf-8") or "/"
        bare = place == "check-403"
        return self.checks.forwarded(ruleset, path, bare, request.method, request.headers, request.peer)

    async def answer(self, requests: Sequence[ServiceRequest]) -> list[ServiceResponse]:
        """The responses to requests that are asked together, natively where that can be."""
        self.batches.open()
        begun = [self.begin(request) for request in requests]
        answers = []
        for request, reply in zip(requests, begun, strict=True):
            if reply is None:
                answers.append(await answer_of(self.service, request))
                continue
            while (parts := reply.parts()) is None:  # noqa: ASYNC110  # nothing else tells of it
                await asyncio.sleep(0.001)
            status, content_type, body, fields = parts
            answers.append(ServiceResponse(status, content_type, body, fields))
        return answers

    @property
    def decisions(self) -> dict[tuple[str, str], float]:
        counts = decisions_of(self.service)
        for name, number in self.tally.figures()[0].items():
            counts[name] = counts.get(name, 0) + number
        return counts

    async def close(self) -> None:
        self.batches.close()
        await self.service.gate.close()


async def answer_of(service: Service, request: ServiceRequest) -> ServiceResponse:
    reply = service.answer(request)
    return await reply if isinstance(reply, Awaitable) else reply


@pytest.fixture(scope="module")
def loop() -> Any:
    loop = Loop()
    yield loop
    loop.close()


def law(url: Callable[[], str], loop: Loop) -> Callable[[Policy, list[TimedRequest]], None]:
    """Both services answer a history alike, and count alike."""

    def check(policy: Policy, history: list[TimedRequest]) -> None:
        async def compare() -> None:
            clock = ManualClock(START_US)
            try:
                late = Late(policy, url(), clock)
            except ConfigError:  # a queue that may meet others does not fit a Cluster
                return
            store = GuardedStore(RedisStore(url(), prefix=f"late{next(_prefixes)}"))
            service = Service(AsyncGate(policy, store=store, clock=clock))
            try:
                await late.service.gate.warm_up()
                await service.gate.warm_up()
                for request, wait_us in history:
                    clock.advance(wait_us)
                    [one], other = await late.answer([request]), await answer_of(service, request)
                    assert (one.status, one.body, list(one.headers)) == (other.status, other.body, list(other.headers))
                    if one.body:
                        assert one.content_type == other.content_type
                assert late.decisions == decisions_of(service)
            finally:
                await late.close()
                await service.gate.close()

        loop.run(compare())

    return check


def test_the_door_answers_on_a_redis_as_the_service_does(server: Server, loop: Loop) -> None:
    check = law(lambda: f"{server.url}?timeout=20s", loop)

    @settings(max_examples=150)
    @given(policies(), st.lists(TIMED_REQUESTS, min_size=1, max_size=8))
    def holds(policy: dict[str, Any], history: list[TimedRequest]) -> None:
        check(read_policy(policy), history)

    holds()


def test_and_on_a_cluster(nodes: Cluster, loop: Loop) -> None:
    check = law(lambda: f"{nodes.url}?timeout=20s", loop)

    @settings(max_examples=25)
    @given(policies(), st.lists(TIMED_REQUESTS, min_size=1, max_size=4))
    def holds(policy: dict[str, Any], history: list[TimedRequest]) -> None:
        check(read_policy(policy), history)

    holds()


def test_and_where_the_redis_does_not_answer(loop: Loop) -> None:
    """Each decides by what the rules say for an outage, in its own process."""
    check = law(lambda: "redis://127.0.0.1:1/0?timeout=20s", loop)

    @settings(max_examples=60)
    @given(policies(), st.lists(TIMED_REQUESTS, min_size=1, max_size=6))
    def holds(policy: dict[str, Any], history: list[TimedRequest]) -> None:
        check(read_policy(policy), history)

    holds()


POLICY = read_policy(
    {
        "version": 1,
        "namespace": "late",
        "client_ip": {"header": "X-Forwarded-For", "trusted_proxies": ["127.0.0.0/8"]},
        "rules": [
            {"name": "budget", "match": {"path": "/month"}, "by": ["ip"], "limits": "9/month in Europe/Zurich"},
            {"name": "api", "match": {"path": "/api/**"}, "by": ["ip"], "limits": "3/hour bucket; 100/day"},
            {"name": "all", "by": ["ip"], "limits": "5/hour fixed"},
        ],
    }
)


def asked(path: str, client: str) -> ServiceRequest:
    fields = [(b"x-forwarded-for", client.encode())]
    return ServiceRequest("GET", f"/check/default{path}", fields, "127.0.0.1")


def rest(answer: ServiceResponse) -> tuple[int, bytes]:
    fields = dict(answer.headers)
    return answer.status, fields.get(b"ratelimit", b"").partition(b";t=")[0]


def run(loop: Loop, url: str, play: Callable[[Late], Awaitable[None]], **guard: Any) -> None:
    """Play on a service whose connection is open."""

    async def whole() -> None:
        late = Late(POLICY, url, **guard)
        try:
            await late.service.gate.warm_up()
            await play(late)
        finally:
            await late.close()

    loop.run(whole())


def writes_of(late: Late) -> int:
    """How often the connection was written to."""
    multiplexer = late.store.unguarded.async_link.multiplexer  # type: ignore[attr-defined]
    writes: int = multiplexer.writes
    return writes


def test_what_is_asked_together_is_one_write_in_its_order_whatever_rules_apply(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        paths = ["/a", "/api/1", "/month", "/a", "/api/1", "/a", "/month"]
        await late.answer([asked(path, "192.0.2.0") for path in paths])  # the server has all scripts
        before = writes_of(late)
        # The limit of all paths counts the whole course, also through rules that Python alone asks.
        answers = await late.answer([asked(path, "192.0.2.1") for path in paths])
        assert writes_of(late) == before + 1
        assert [answer.status for answer in answers] == [200] * 5 + [429] * 2
        others = await late.answer([asked("/a", f"192.0.2.{number}") for number in range(2, 100)])
        assert writes_of(late) == before + 2
        assert {rest(answer) for answer in others} == {(200, b'"all";r=4')}

    run(loop, f"{server.url}?timeout=20s", play)


def test_exactly_the_limit_passes_where_more_is_asked_at_once(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        answers = await late.answer([asked("/a", "192.0.2.1")] * 200)
        assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 195

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_key_that_is_too_long_for_a_name_is_decided_as_others_are(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        body = b'{"request": {"path": "/a", "client_ip": "192.0.2.1"}}'
        odd = [ServiceRequest("POST", "/v1/check", [], "127.0.0.1", body), asked("/api/" + "x" * 300, "192.0.2.1")]
        assert [answer.status for answer in await late.answer(odd)] == [200, 200]

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_refusal_is_remembered_and_costs_the_redis_nothing_more(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        await late.answer([asked("/a", "192.0.2.1")] * 6)
        before = writes_of(late)
        again = await late.answer([asked("/a", "192.0.2.1")] * 20)
        assert {answer.status for answer in again} == {429}
        assert writes_of(late) == before
        mixed = await late.answer([asked("/a", "192.0.2.1"), asked("/a", "192.0.2.2")])
        assert [answer.status for answer in mixed] == [429, 200]
        assert writes_of(late) == before + 1

    run(loop, f"{server.url}?timeout=20s", play)


def test_scripts_that_the_server_has_forgotten_are_sent_again_and_charge_once(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        await late.answer([asked("/a", "192.0.2.1")])
        server.cli("SCRIPT", "FLUSH")
        answers = await late.answer([asked("/a", "192.0.2.1"), asked("/api/1", "192.0.2.2"), asked("/a", "192.0.2.1")])
        assert [answer.status for answer in answers] == [200] * 3
        assert rest((await late.answer([asked("/a", "192.0.2.1")]))[0]) == (200, b'"all";r=1')

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_key_that_holds_something_else_is_decided_here_and_leaves_the_others_alone(
    server: Server, loop: Loop
) -> None:
    async def play(late: Late) -> None:
        prefix = late.store.unguarded.prefix  # type: ignore[attr-defined]
        await late.answer([asked("/a", "192.0.2.1")])
        [name] = server.cli("KEYS", f"{prefix}:*")
        server.cli("SET", name, "something else")
        answers = await late.answer([asked("/a", "192.0.2.2"), asked("/a", "192.0.2.1"), asked("/a", "192.0.2.3")])
        assert [dict(answer.headers).get(b"x-ratelimit-degraded") for answer in answers] == [None, b"local", None]
        assert late.store.breaker.state == "closed"

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_batch_whose_replies_do_not_come_in_time_is_decided_by_what_the_rules_say(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        await late.answer([asked("/a", "192.0.2.1")])
        server.cli("CLIENT", "PAUSE", 400)
        late_ones = await late.answer([asked("/a", f"192.0.2.{number}") for number in range(5)])
        assert {dict(answer.headers).get(b"x-ratelimit-degraded") for answer in late_ones} == {b"local"}
        assert late.store.breaker.state == "open"
        assert late.decisions["all", "allowed"] == 6

    run(loop, f"{server.url}?timeout=100ms", play, on_error="local")


def test_what_nobody_waits_for_any_more_is_not_asked(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        gone = late.begin(asked("/a", "192.0.2.1"))
        del gone
        before = writes_of(late)
        late.batches.take()
        assert writes_of(late) == before
        assert rest((await late.answer([asked("/a", "192.0.2.1")]))[0]) == (200, b'"all";r=4')

    run(loop, f"{server.url}?timeout=20s", play)


def test_what_was_asked_under_the_policy_before_is_decided_by_it(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        late.batches.open()
        before = late.begin(asked("/a", "192.0.2.1"))
        late.service.gate.reload(
            {
                "version": 1,
                "namespace": "late",
                "client_ip": {"header": "X-Forwarded-For", "trusted_proxies": ["127.0.0.0/8"]},
                "rules": [{"name": "all", "by": ["ip"], "limits": "50/hour fixed"}],
            }
        )
        late.checks = late.batches.checks(late.tally)
        [after] = await late.answer([asked("/a", "192.0.2.1")])
        status, _, _, fields = before.parts()
        assert status == 200 and dict(fields)[b"ratelimit"].startswith(b'"all";r=4')
        assert rest(after) == (200, b'"all";r=48')

    run(loop, f"{server.url}?timeout=20s", play)


def test_beyond_a_bound_of_what_waits_checks_are_left_to_python(server: Server, loop: Loop) -> None:
    async def play(late: Late) -> None:
        begun = [late.begin(asked("/a", "192.0.2.1")) for _ in range(16_385)]
        assert [reply is None for reply in begun].count(True) == 1
        del begun
        late.batches.take()
        assert late.begin(asked("/a", "192.0.2.1")) is not None

    run(loop, f"{server.url}?timeout=20s", play)


def test_the_event_is_set_once_for_all_that_waits(server: Server) -> None:
    late = Late(POLICY, server.url)
    begun = [late.begin(asked("/a", "192.0.2.1")) for _ in range(3)]
    assert os.eventfd_read(late.batches._event) == 1
    del begun
