"""The native checks and the Python service agree: the same bytes, the same state afterwards, the same figures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from headgate import core
from headgate.drive import answered
from headgate.policy.compiled import Policy
from headgate.policy.descriptor import Descriptor
from headgate.policy.gate import AsyncGate, read_policy
from headgate.service.app import Service
from headgate.service.checks.native_checks import native_checks
from headgate.service.http.messages import Reply, ServiceRequest, ServiceResponse
from headgate.testing import ManualClock
from policies import descriptors, policies
from service_requests import TIMED_REQUESTS, TimedRequest, decisions_of, forwarded
from subjects import START_US, make_store

pytestmark = pytest.mark.skipif(core.native is None, reason="the law compares the native core")


class Door:
    """The service behind native checks, as the front door has it."""

    def __init__(self, policy: Policy, clock: ManualClock, kind: str) -> None:
        assert core.native is not None
        self.tally = core.native.CheckTally()
        self.service = Service(AsyncGate(policy, store=make_store(kind), clock=clock))
        self.checks = native_checks(self.service.gate, self.tally)
        assert self.checks is not None

    def answer(self, request: ServiceRequest) -> ServiceResponse:
        """The response, from the native core where it can give one."""
        reply_parts = self.native_reply(request)
        event("answered natively" if reply_parts else "left to Python")
        if reply_parts is None:
            return answer_of(self.service.answer(request))
        status, content_type, body, fields = reply_parts
        return ServiceResponse(status, content_type, body, fields)

    def native_reply(self, request: ServiceRequest) -> Any:
        """The reply of the native core, or None where it leaves the request to Python."""
        if request.body:
            return self.checks.described(request.body)
        _, place, rest = request.path.split("/", 2)
        ruleset, slash, path = rest.partition("/")
        path = (slash + path).encode("latin-1").decode("utf-8") or "/"
        bare = place == "check-403"
        return self.checks.forwarded(ruleset, path, bare, request.method, request.headers, request.peer)

    @property
    def decisions(self) -> dict[tuple[str, str], float]:
        """How often each rule had which result, natively and in Python."""
        counts = decisions_of(self.service)
        for name, count in self.tally.figures()[0].items():
            counts[name] = counts.get(name, 0) + count
        return counts


def answer_of(reply: Reply) -> ServiceResponse:
    """A reply, awaited where it has to be."""
    return asyncio.run(_awaited(reply)) if isinstance(reply, Awaitable) else reply


async def _awaited(reply: Awaitable[ServiceResponse]) -> ServiceResponse:
    return await answered(reply)


def is_plain(request: ServiceRequest) -> bool:
    """Whether no part of a gateway's request is left to Python: ASCII text, names without `_`, each once."""
    names = [name for name, _ in request.headers]
    return (
        request.path.split("/")[2] in ("default", "some")
        and all(value.isascii() for _, value in request.headers)
        and not any(b"_" in name for name in names)
        and len(set(names)) == len(names)
    )


def check_alike(policy: Policy, history: list[TimedRequest], kind: str) -> None:
    clock = ManualClock(START_US)
    door, service = Door(policy, clock, kind), Service(AsyncGate(policy, store=make_store(kind), clock=clock))
    for request, wait_us in history:
        clock.advance(wait_us)
        one, other = door.answer(request), answer_of(service.answer(request))
        assert (one.status, one.body, list(one.headers)) == (other.status, other.body, list(other.headers))
        if one.body:
            assert one.content_type == other.content_type
    one_stats, other_stats = door.service.gate.stats(), service.gate.stats()
    if not (one_stats.expired or other_stats.expired):  # the moment at which a store finds an expired state is chance
        assert one_stats.keys == other_stats.keys
    assert door.decisions == decisions_of(service)


@given(policies(), st.lists(TIMED_REQUESTS, min_size=1, max_size=10))
def test_native_checks_respond_as_the_service_does_and_leave_the_same_state(
    policy: dict[str, Any], history: list[TimedRequest]
) -> None:
    check_alike(read_policy(policy), history, "native")


@given(policies(), st.lists(TIMED_REQUESTS, min_size=1, max_size=4))
def test_native_checks_on_a_shared_store_respond_as_the_service_does(
    policy: dict[str, Any], history: list[TimedRequest]
) -> None:
    check_alike(read_policy(policy), history, "shared")


@given(policies(), forwarded())
def test_a_plain_request_is_answered_natively(policy: dict[str, Any], request: ServiceRequest) -> None:
    door = Door(read_policy(policy), ManualClock(START_US), "native")
    if is_plain(request):
        assert door.native_reply(request) is not None


@given(policies(), descriptors())
def test_a_plain_descriptor_is_answered_natively(policy: dict[str, Any], descriptor: Descriptor) -> None:
    door = Door(read_policy(policy), ManualClock(START_US), "native")
    entries = [{"key": key, "value": value} for key, value in descriptor.entries]
    body = json.dumps({"request": {"entries": entries}}).encode()
    if all(text.isascii() for entry in descriptor.entries for text in entry):
        assert door.native_reply(ServiceRequest("POST", "/v1/check", [], "127.0.0.1", body)) is not None
