"""Checks on a real Redis, decided in batches: they give the bytes and counts of the Python service for any request."""

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
PREFIX_NUMBERS = count()


class NativeService:
    """A service behind native checks on a Redis, as behind the front door."""

    def __init__(self, policy: Policy, url: str, clock: ManualClock | None = None, **guard: Any) -> None:
        assert core.native is not None
        self.store = GuardedStore(RedisStore(url, prefix=f"late{next(PREFIX_NUMBERS)}"), **guard)
        self.service = Service(AsyncGate(policy, store=self.store, clock=clock))
        self.tally = core.native.CheckTally()
        self.batches = CheckBatches(self.service.gate)
        self.checks = self.batches.checks(self.tally)

    def begin(self, request: ServiceRequest) -> Any:
        """Return the native reply, which may still be pending; None where Python must answer."""
        if request.body:
            return self.checks.described(request.body)
        _, place, rest = request.path.split("/", 2)
        ruleset, slash, path = rest.partition("/")
        path = (slash + path).encode("latin-1").decode("utf-8") or "/"
        bare = place == "check-403"
        return self.checks.forwarded(ruleset, path, bare, request.method, request.headers, request.peer)

    async def answer(self, requests: Sequence[ServiceRequest]) -> list[ServiceResponse]:
        """Return the responses to requests of one batch, decided natively where that is possible."""
        self.batches.open()
        replies = [self.begin(request) for request in requests]
        responses = []
        for request, reply in zip(requests, replies, strict=True):
            if reply is None:
                responses.append(await response_of(self.service, request))
                continue
            while (parts := reply.parts()) is None:  # noqa: ASYNC110  # nothing else signals it
                await asyncio.sleep(0.001)
            status, content_type, body, fields = parts
            responses.append(ServiceResponse(status, content_type, body, fields))
        return responses

    @property
    def decisions(self) -> dict[tuple[str, str], float]:
        counts = decisions_of(self.service)
        for name, number in self.tally.figures()[0].items():
            counts[name] = counts.get(name, 0) + number
        return counts

    async def close(self) -> None:
        self.batches.close()
        await self.service.gate.close()


async def response_of(service: Service, request: ServiceRequest) -> ServiceResponse:
    reply = service.answer(request)
    return await reply if isinstance(reply, Awaitable) else reply


@pytest.fixture(scope="module")
def loop() -> Any:
    loop = Loop()
    yield loop
    loop.close()


def compare_services(url: Callable[[], str], loop: Loop) -> Callable[[Policy, list[TimedRequest]], None]:
    """Return a check that both services answer a history alike and count alike."""

    def check(policy: Policy, history: list[TimedRequest]) -> None:
        async def compare() -> None:
            clock = ManualClock(START_US)
            try:
                native = NativeService(policy, url(), clock)
            except ConfigError:  # a queue beside other limits does not fit a Cluster
                return
            store = GuardedStore(RedisStore(url(), prefix=f"late{next(PREFIX_NUMBERS)}"))
            service = Service(AsyncGate(policy, store=store, clock=clock))
            try:
                await native.service.gate.warm_up()
                await service.gate.warm_up()
                for request, wait_us in history:
                    clock.advance(wait_us)
                    [one], other = await native.answer([request]), await response_of(service, request)
                    assert (one.status, one.body, list(one.headers)) == (other.status, other.body, list(other.headers))
                    if one.body:
                        assert one.content_type == other.content_type
                assert native.decisions == decisions_of(service)
            finally:
                await native.close()
                await service.gate.close()

        loop.run(compare())

    return check


def test_the_door_answers_on_a_redis_as_the_service_does(server: Server, loop: Loop) -> None:
    check = compare_services(lambda: f"{server.url}?timeout=20s", loop)

    @settings(max_examples=150)
    @given(policies(), st.lists(TIMED_REQUESTS, min_size=1, max_size=8))
    def holds(policy: dict[str, Any], history: list[TimedRequest]) -> None:
        check(read_policy(policy), history)

    holds()


def test_the_door_answers_on_a_cluster_as_the_service_does(nodes: Cluster, loop: Loop) -> None:
    check = compare_services(lambda: f"{nodes.url}?timeout=20s", loop)

    @settings(max_examples=25)
    @given(policies(), st.lists(TIMED_REQUESTS, min_size=1, max_size=4))
    def holds(policy: dict[str, Any], history: list[TimedRequest]) -> None:
        check(read_policy(policy), history)

    holds()


def test_the_door_answers_without_a_redis_as_the_service_does(loop: Loop) -> None:
    """Each service decides by what the rules say for an outage, in its own process."""
    check = compare_services(lambda: "redis://127.0.0.1:1/0?timeout=20s", loop)

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


def forwarded_check(path: str, client: str) -> ServiceRequest:
    fields = [(b"x-forwarded-for", client.encode())]
    return ServiceRequest("GET", f"/check/default{path}", fields, "127.0.0.1")


def rest(response: ServiceResponse) -> tuple[int, bytes]:
    fields = dict(response.headers)
    return response.status, fields.get(b"ratelimit", b"").partition(b";t=")[0]


def run(loop: Loop, url: str, play: Callable[[NativeService], Awaitable[None]], **guard: Any) -> None:
    """Run `play` on a service whose connection is open."""

    async def run_play() -> None:
        native = NativeService(POLICY, url, **guard)
        try:
            await native.service.gate.warm_up()
            await play(native)
        finally:
            await native.close()

    loop.run(run_play())


def writes_of(native: NativeService) -> int:
    """Return how often the connection was written to."""
    multiplexer = native.store.unguarded.async_link.multiplexer  # type: ignore[attr-defined]
    writes: int = multiplexer.writes
    return writes


def test_the_checks_of_a_batch_are_sent_in_one_write_and_in_order_whatever_rules_apply(
    server: Server, loop: Loop
) -> None:
    async def play(native: NativeService) -> None:
        paths = ["/a", "/api/1", "/month", "/a", "/api/1", "/a", "/month"]
        await native.answer([forwarded_check(path, "192.0.2.0") for path in paths])  # the server has all scripts
        before = writes_of(native)
        # The limit of all paths counts every request, also those under a rule that only Python decides.
        responses = await native.answer([forwarded_check(path, "192.0.2.1") for path in paths])
        assert writes_of(native) == before + 1
        assert [response.status for response in responses] == [200] * 5 + [429] * 2
        others = await native.answer([forwarded_check("/a", f"192.0.2.{number}") for number in range(2, 100)])
        assert writes_of(native) == before + 2
        assert {rest(response) for response in others} == {(200, b'"all";r=4')}

    run(loop, f"{server.url}?timeout=20s", play)


def test_exactly_the_limit_passes_where_more_is_requested_at_once(server: Server, loop: Loop) -> None:
    async def play(native: NativeService) -> None:
        responses = await native.answer([forwarded_check("/a", "192.0.2.1")] * 200)
        assert sorted(response.status for response in responses) == [200] * 5 + [429] * 195

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_key_that_is_too_long_for_a_name_is_decided_as_others_are(server: Server, loop: Loop) -> None:
    async def play(native: NativeService) -> None:
        body = b'{"request": {"path": "/a", "client_ip": "192.0.2.1"}}'
        requests = [
            ServiceRequest("POST", "/v1/check", [], "127.0.0.1", body),
            forwarded_check("/api/" + "x" * 300, "192.0.2.1"),
        ]
        assert [response.status for response in await native.answer(requests)] == [200, 200]

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_refusal_is_remembered_and_costs_the_redis_nothing_more(server: Server, loop: Loop) -> None:
    async def play(native: NativeService) -> None:
        await native.answer([forwarded_check("/a", "192.0.2.1")] * 6)
        before = writes_of(native)
        again = await native.answer([forwarded_check("/a", "192.0.2.1")] * 20)
        assert {response.status for response in again} == {429}
        assert writes_of(native) == before
        mixed = await native.answer([forwarded_check("/a", "192.0.2.1"), forwarded_check("/a", "192.0.2.2")])
        assert [response.status for response in mixed] == [429, 200]
        assert writes_of(native) == before + 1

    run(loop, f"{server.url}?timeout=20s", play)


def test_scripts_that_the_server_has_forgotten_are_sent_again_and_charge_once(server: Server, loop: Loop) -> None:
    async def play(native: NativeService) -> None:
        await native.answer([forwarded_check("/a", "192.0.2.1")])
        server.cli("SCRIPT", "FLUSH")
        responses = await native.answer(
            [
                forwarded_check("/a", "192.0.2.1"),
                forwarded_check("/api/1", "192.0.2.2"),
                forwarded_check("/a", "192.0.2.1"),
            ]
        )
        assert [response.status for response in responses] == [200] * 3
        assert rest((await native.answer([forwarded_check("/a", "192.0.2.1")]))[0]) == (200, b'"all";r=1')

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_key_that_holds_something_else_is_decided_locally_and_leaves_the_others_alone(
    server: Server, loop: Loop
) -> None:
    async def play(native: NativeService) -> None:
        prefix = native.store.unguarded.prefix  # type: ignore[attr-defined]
        await native.answer([forwarded_check("/a", "192.0.2.1")])
        [name] = server.cli("KEYS", f"{prefix}:*")
        server.cli("SET", name, "something else")
        responses = await native.answer(
            [forwarded_check("/a", "192.0.2.2"), forwarded_check("/a", "192.0.2.1"), forwarded_check("/a", "192.0.2.3")]
        )
        assert [dict(response.headers).get(b"x-ratelimit-degraded") for response in responses] == [None, b"local", None]
        assert native.store.breaker.state == "closed"

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_batch_whose_replies_are_not_received_in_time_is_decided_by_what_the_rules_say(
    server: Server, loop: Loop
) -> None:
    async def play(native: NativeService) -> None:
        await native.answer([forwarded_check("/a", "192.0.2.1")])
        server.cli("CLIENT", "PAUSE", 400)
        late_responses = await native.answer([forwarded_check("/a", f"192.0.2.{number}") for number in range(5)])
        assert {dict(response.headers).get(b"x-ratelimit-degraded") for response in late_responses} == {b"local"}
        assert native.store.breaker.state == "open"
        assert native.decisions["all", "allowed"] == 6

    run(loop, f"{server.url}?timeout=100ms", play, on_error="local")


def test_a_check_that_no_client_waits_for_any_more_is_not_sent(server: Server, loop: Loop) -> None:
    async def play(native: NativeService) -> None:
        abandoned = native.begin(forwarded_check("/a", "192.0.2.1"))
        del abandoned
        before = writes_of(native)
        native.batches.take()
        assert writes_of(native) == before
        assert rest((await native.answer([forwarded_check("/a", "192.0.2.1")]))[0]) == (200, b'"all";r=4')

    run(loop, f"{server.url}?timeout=20s", play)


def test_a_check_that_began_under_the_previous_policy_is_decided_by_it(server: Server, loop: Loop) -> None:
    async def play(native: NativeService) -> None:
        native.batches.open()
        before = native.begin(forwarded_check("/a", "192.0.2.1"))
        native.service.gate.reload(
            {
                "version": 1,
                "namespace": "late",
                "client_ip": {"header": "X-Forwarded-For", "trusted_proxies": ["127.0.0.0/8"]},
                "rules": [{"name": "all", "by": ["ip"], "limits": "50/hour fixed"}],
            }
        )
        native.checks = native.batches.checks(native.tally)
        [after] = await native.answer([forwarded_check("/a", "192.0.2.1")])
        status, _, _, fields = before.parts()
        assert status == 200 and dict(fields)[b"ratelimit"].startswith(b'"all";r=4')
        assert rest(after) == (200, b'"all";r=48')

    run(loop, f"{server.url}?timeout=20s", play)


def test_checks_beyond_the_bound_of_pending_ones_are_left_to_python(server: Server, loop: Loop) -> None:
    async def play(native: NativeService) -> None:
        pending = [native.begin(forwarded_check("/a", "192.0.2.1")) for _ in range(16_385)]
        assert [reply is None for reply in pending].count(True) == 1
        del pending
        native.batches.take()
        assert native.begin(forwarded_check("/a", "192.0.2.1")) is not None

    run(loop, f"{server.url}?timeout=20s", play)


def test_the_event_is_set_once_for_all_pending_checks(server: Server) -> None:
    native = NativeService(POLICY, server.url)
    pending = [native.begin(forwarded_check("/a", "192.0.2.1")) for _ in range(3)]
    assert os.eventfd_read(native.batches._event) == 1
    del pending
