"""The service's responses where its store fails, without a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from headgate import Limiter, MemoryStore, SharedStore
from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit
from headgate.drive import answered
from headgate.errors import ConfigError, HeadgateError, StoreTimeout
from headgate.operation import Operation
from headgate.policy.gate import AsyncGate
from headgate.service.app import Service
from headgate.service.http.messages import ServiceRequest, ServiceResponse
from headgate.stores.protocol import BoundLimits, StoreStats
from subjects import ZONES

POLICY = {"version": 1, "rules": [{"name": "all", "by": [], "limits": "5/minute"}]}


class FailingStore(MemoryStore):
    """A store that binds limits, and whose every other call fails."""

    failure = "as a whole"

    def __init__(self, error: HeadgateError) -> None:
        super().__init__()
        self.error = error

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        return cast(BoundLimits, FailingLimits(self.error))

    def ping(self) -> None:
        raise self.error

    def stats(self) -> StoreStats:
        raise self.error


class FailingLimits:
    """Limits whose every decision fails."""

    def __init__(self, error: HeadgateError) -> None:
        self.error = error

    def decide(self, operation: Operation, /) -> Decision:
        raise self.error


def call(service: Service, method: str, path: str, body: bytes = b"") -> ServiceResponse:
    request = ServiceRequest(method, path, [], "127.0.0.1", body)

    async def main() -> ServiceResponse:
        return await answered(service.answer(request))

    return asyncio.run(main())


def problem_of(response: ServiceResponse) -> tuple[int, dict[str, Any]]:
    """The status and the problem, which is in a header for nginx."""
    return response.status, json.loads(response.body or dict(response.headers)[b"x-ratelimit-problem"])


ONE = json.dumps({"request": {"path": "/"}}).encode()
SEVERAL = json.dumps({"requests": [{"path": "/"}, {"path": "/"}]}).encode()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/readyz", b""),
        ("GET", "/metrics", b""),
        ("GET", "/", b""),
    ],
)
def test_a_store_that_does_not_answer_is_503_with_a_problem(method: str, path: str, body: bytes) -> None:
    service = Service(AsyncGate(POLICY, store=FailingStore(StoreTimeout("no answer within 50 ms"))))
    response = call(service, method, path, body)
    assert response.content_type == b"application/problem+json"
    assert problem_of(response) == (503, {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "the store does not answer: no answer within 50 ms",
    })  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", "/check/default", b""), ("GET", "/check-403/default", b""), ("POST", "/v1/check", ONE)],
)
def test_the_policy_decides_where_the_store_does_not_answer(method: str, path: str, body: bytes) -> None:
    store = FailingStore(StoreTimeout("no answer within 50 ms"))
    assert call(Service(AsyncGate(POLICY, store=store)), method, path, body).status == 200
    closed = call(Service(AsyncGate(POLICY, store=store, on_store_error="closed")), "GET", "/check/default", b"")
    assert closed.status == 503


def test_an_error_of_the_service_is_not_reported_as_a_fault_of_the_client() -> None:
    service = Service(AsyncGate(POLICY, store=FailingStore(ConfigError("more limits than a zone can charge at once"))))
    status, problem = problem_of(call(service, "GET", "/check/default"))
    assert status == 500
    assert problem["detail"] == "more limits than a zone can charge at once"


def test_a_service_is_alive_while_its_store_is_not() -> None:
    service = Service(AsyncGate(POLICY, store=FailingStore(StoreTimeout("no answer"))))
    assert call(service, "GET", "/healthz").status == 200


def test_the_response_to_several_requests_has_an_error_for_each() -> None:
    service = Service(AsyncGate(POLICY, store=FailingStore(ConfigError("more limits than a zone can charge at once"))))
    response = call(service, "POST", "/v1/check", SEVERAL)
    assert response.status == 200
    one = {
        "error": {
            "type": "about:blank",
            "title": "Internal Server Error",
            "status": 500,
            "detail": "more limits than a zone can charge at once",
        }
    }
    assert json.loads(response.body) == {"decisions": [one, one]}


COUNTED = {"version": 1, "rules": [{"name": "llm", "by": [], "limits": "60/minute; 900 tokens/minute; 5 usd/day"}]}


def test_a_check_charges_each_unit_that_it_names_and_the_response_reports_them() -> None:
    service = Service(AsyncGate(COUNTED))
    costs = [{"tokens": 400, "usd": "0.5"}, {"tokens": 501}, 2]
    bodies = {"requests": [{"request": {"path": "/"}, "cost": cost} for cost in costs]}
    response = call(service, "POST", "/v1/check", json.dumps(bodies).encode())
    first, refused, plain = json.loads(response.body)["decisions"]
    reported_limits = [(one["name"], one["unit"], one["limit"], one["remaining"]) for one in first["limits"]]
    assert reported_limits == [
        ("llm.minute", "requests", 60, 59), ("llm.tokens.minute", "tokens", 900, 500),
        ("llm.usd.day", "nano-usd", 5_000_000_000, 4_500_000_000),
    ]  # fmt: skip
    assert '"llm.tokens.minute";q=900;qu="tokens";w=60' in first["headers"]["RateLimit-Policy"]
    assert (refused["allowed"], refused["unit"], refused["remaining"]) == (False, "tokens", 500)
    assert [one["remaining"] for one in plain["limits"]] == [57, 500, 4_500_000_000]


UNKNOWN = "no limit counts 'token': they count requests, tokens, usd; did you mean \"tokens\"?"


@pytest.mark.parametrize(
    ("cost", "detail"),
    [({"token": 1}, UNKNOWN), ({"usd": "much"}, "usd"), ({"usd": "0.5", "USD": "0.5"}, "a cost in usd is given twice")],
)
def test_a_list_with_one_cost_that_cannot_be_counted_is_refused_whole(cost: dict[str, object], detail: str) -> None:
    service = Service(AsyncGate(COUNTED))
    bodies = {"requests": [{"path": "/"}, {"request": {"path": "/"}, "cost": cost}]}
    status, problem = problem_of(call(service, "POST", "/v1/check", json.dumps(bodies).encode()))
    assert status == 400 and problem["detail"].startswith("requests[1]: ") and detail in problem["detail"]
    status, alone = problem_of(call(service, "POST", "/v1/check", json.dumps({"request": {}, "cost": cost}).encode()))
    assert status == 400 and problem["detail"].endswith(alone["detail"])
    peeked = call(service, "POST", "/v1/check", json.dumps({"request": {}, "cost": 0}).encode())
    assert json.loads(peeked.body)["remaining"] == 60  # nothing was charged


@pytest.mark.skipif(not ZONES, reason="zones need the native core")
def test_a_zone_of_which_a_part_fails_is_ready_for_the_rest(tmp_path: Path) -> None:
    """Its list of limits is full: it decides those that it knows, and no further ones."""
    store = SharedStore(tmp_path / "zone", size=1 << 20)
    rules: list[Any] = [
        {"name": name, "match": {"path": f"/{name}"}, "by": [], "limits": "5/minute"} for name in ("known", "new")
    ]
    service = Service(AsyncGate({"version": 1, "rules": rules}, store=store))

    def check(path: str) -> Any:
        return json.loads(call(service, "POST", "/v1/check", json.dumps({"request": {"path": path}}).encode()).body)

    assert check("/known")["remaining"] == 4
    for number in range(255):
        Limiter("5/minute", store=store, name=f"limiter-{number}").hit("key")
    assert (check("/new")["degraded"], check("/known")["remaining"]) == ("local", 3)
    assert call(service, "GET", "/readyz").body == b"ready\n"
