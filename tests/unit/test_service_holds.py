"""Holds over HTTP: the responses of `/v1/reserve`, `/v1/commit`, `/v1/cancel` and `/v1/extend`."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from broken_store import NO_REDIS
from headgate import AsyncGate, ConfigError, MemoryStore
from headgate.drive import answered
from headgate.observe.events import DecisionEvent
from headgate.service.app import Service
from headgate.service.http.bounds import Bounds
from headgate.service.http.messages import ServiceRequest
from headgate.service.workers.door_plan import DoorOptions
from headgate.service.workers.several import serve_workers
from headgate.testing import ManualClock

RULES: list[dict[str, Any]] = [
    {"name": "user", "by": ["ip"], "limits": "2 concurrent; 60/minute bucket; 20 usd/day fixed"},
    {"name": "models", "by": [], "match": {"path": "/chat"}, "cost": {"tokens": 5}, "limits": "900 tokens/hour fixed"},
]
REQUEST = {"path": "/chat", "client_ip": "203.0.113.9"}


class HoldClient:
    """A service, and a client that calls it without a connection."""

    def __init__(self, *, store: MemoryStore | None = None, **policy: Any) -> None:
        self.clock = ManualClock()
        values = {"version": 1, "rules": RULES, **policy}
        self.service = Service(AsyncGate(values, store=store or MemoryStore(), clock=self.clock))

    def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def call() -> Any:
            return await answered(self.service.answer(ServiceRequest("POST", path, [], "127.0.0.1", raw)))

        response = asyncio.run(call())
        reply: dict[str, Any] = json.loads(response.body)
        return response.status, reply

    def reserve(self, **more: Any) -> dict[str, Any]:
        status, reply = self.post("/v1/reserve", {"request": REQUEST, **more})
        assert status == 200
        return reply

    def remaining(self) -> list[int]:
        status, reply = self.post("/v1/check", {"request": REQUEST, "cost": 0})
        assert status == 200
        return [limit["remaining"] for limit in reply["limits"]]


def test_a_hold_is_answered_like_a_check_and_settled_in_units() -> None:
    service = HoldClient()
    reply = service.reserve(cost={"tokens": 500, "usd": "0.5"})
    assert reply["allowed"] and not reply["repeated"] and reply["headers"]["RateLimit"]
    assert [limit["remaining"] for limit in reply["limits"]] == [1, 59, 19_500_000_000, 400]
    status, settled = service.post("/v1/commit", {"id": reply["id"], "actual": {"tokens": 412, "usd": "0.25"}})
    assert (status, settled) == (
        200,
        {
            "outcome": "settled",
            "actuals": [
                {"unit": "requests", "amount": 1},
                {"unit": "nano-usd", "amount": 250_000_000},
                {"unit": "tokens", "amount": 412},
            ],
            "degraded": "",
        },
    )
    assert service.remaining() == [2, 59, 19_750_000_000, 488]
    assert service.post("/v1/cancel", {"id": reply["id"]})[1]["outcome"] == "already settled"


def test_a_refusal_holds_nothing_and_a_cancel_frees() -> None:
    service = HoldClient()
    first, _ = service.reserve(), service.reserve()
    refused = service.reserve()
    assert (refused["allowed"], refused["id"], refused["rule"]) == (False, None, "user")
    assert service.post("/v1/cancel", {"id": first["id"]})[1]["outcome"] == "settled"
    assert service.reserve()["allowed"]


def test_a_lease_ends_unless_it_is_extended() -> None:
    service = HoldClient()
    reply = service.reserve(lease=10.5)
    service.clock.advance(10_000_000)
    assert service.post("/v1/extend", {"id": reply["id"], "lease": 10, "more": {"tokens": 3}})[1] == {
        "outcome": "extended",
        "degraded": "",
    }
    assert service.post("/v1/extend", {"id": reply["id"], "more": {"tokens": 9000}})[1]["outcome"] == "refused"
    service.clock.advance(9_999_999)
    assert service.remaining()[0] == 1
    service.clock.advance(1)
    assert service.remaining()[0] == 2
    assert service.post("/v1/extend", {"id": reply["id"]})[1]["outcome"] == "lapsed"
    assert service.post("/v1/commit", {"id": reply["id"]})[1]["outcome"] == "settled"


def test_a_name_is_held_once_and_is_409_for_another_cost() -> None:
    service = HoldClient()
    reply = service.reserve(id="request-7", remember=7200)
    again = service.reserve(id="request-7", remember=7200)
    assert again["repeated"] and again["id"] == reply["id"]
    status, problem = service.post("/v1/reserve", {"request": REQUEST, "cost": 2, "id": "request-7"})
    assert (status, problem["title"]) == (409, "Conflict")


def test_an_unknown_hold_is_404() -> None:
    service = HoldClient()
    for path in ("/v1/commit", "/v1/cancel", "/v1/extend"):
        status, problem = service.post(path, {"id": "h1" + "A" * 24})
        assert (status, problem["title"]) == (404, "Not Found")


def test_a_request_without_rules_is_held_and_settled() -> None:
    service = HoldClient(exempt=[{"path": "/chat"}])
    reply = service.reserve()
    assert reply["allowed"] and reply["limits"] == []
    assert service.post("/v1/extend", {"id": reply["id"]}) == (200, {"outcome": "extended", "degraded": ""})
    assert service.post("/v1/commit", {"id": reply["id"], "actual": 3}) == (
        200,
        {"outcome": "settled", "actuals": [], "degraded": ""},
    )


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/reserve", b"", "the body is empty"),
        ("/v1/reserve", [], 'must be a map with "request"'),
        ("/v1/reserve", {}, '"request" is missing'),
        ("/v1/reserve", {"request": REQUEST, "leas": 1}, "no such field 'leas'"),
        ("/v1/reserve", {"request": {"path": 5}}, "request.path must be text"),
        ("/v1/reserve", {"request": REQUEST, "lease": "60"}, "lease must be a number of seconds, not text"),
        ("/v1/reserve", {"request": REQUEST, "lease": True}, "lease must be a number of seconds, not true"),
        ("/v1/reserve", {"request": REQUEST, "lease": 0}, "a lease is from 1 us to 31 days, not 0 s"),
        ("/v1/reserve", {"request": REQUEST, "lease": 1e300}, "a lease is a time in seconds"),
        ("/v1/reserve", {"request": REQUEST, "id": 7}, "id must be text"),
        ("/v1/reserve", {"request": REQUEST, "id": ""}, "1 to 1024 bytes"),
        ("/v1/reserve", {"request": REQUEST, "id": "a" * 1025}, "1 to 1024 bytes"),
        ("/v1/reserve", {"request": REQUEST, "lease": 10**400}, "a lease is a time in seconds"),
        ("/v1/reserve", {"request": REQUEST, "remember": -1}, "up to 366 days"),
        ("/v1/reserve", {"request": REQUEST, "remember": 10**400}, "how long to remember is a time in seconds"),
        ("/v1/reserve", {"request": REQUEST, "cost": {"usd": "1" * 65}}, "usd is text of at most 64 characters"),
        ("/v1/reserve", {"request": REQUEST, "cost": -1}, "a cost is at least 0"),
        ("/v1/reserve", {"request": REQUEST, "cost": {"bytes": 1}}, "no limit counts 'bytes'"),
        ("/v1/commit", {"actual": 1}, '"id" is missing'),
        ("/v1/commit", {"id": None}, "id must be text"),
        ("/v1/commit", {"id": "my-own"}, "no id of a hold"),
        ("/v1/commit", {"id": "HELD", "actual": 1.5}, "actual: a cost must be a whole number"),
        ("/v1/commit", {"id": "HELD", "actual": -1}, "actual: a cost is at least 0"),
        ("/v1/commit", {"id": "HELD", "actual": {"tokens": 2**53}}, "actual: a cost in tokens is at most"),
        ("/v1/cancel", {"id": "HELD", "actual": 0}, "no such field 'actual'"),
        ("/v1/extend", {"id": "HELD", "more": True}, "more: a cost must be a whole number"),
        ("/v1/extend", {"id": "HELD", "lease": 32 * 86400}, "a lease is from 1 us to 31 days, not 2764800 s"),
    ],
)
def test_a_bad_body_is_400_names_the_place_and_changes_nothing(path: str, body: Any, message: str) -> None:
    service = HoldClient()
    reply = service.reserve()
    before = service.remaining()
    if isinstance(body, dict) and body.get("id") == "HELD":
        body = {**body, "id": reply["id"]}
    status, problem = service.post(path, body)
    assert status == 400 and message in problem["detail"], problem
    assert service.remaining() == before
    assert service.post("/v1/commit", {"id": reply["id"]})[1]["outcome"] == "settled"


def test_an_id_that_names_other_groups_than_its_hold_is_400_before_and_after_it_is_settled() -> None:
    service = HoldClient()
    reply = service.reserve()
    forged = reply["id"].split(".")[0] + ".requests.usd"
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/cancel", {"id": forged}),
        ("/v1/commit", {"id": forged}),
        ("/v1/commit", {"id": forged, "actual": 1}),
    ]
    for path, body in bodies:
        assert service.post(path, body)[0] == 400
    assert service.post("/v1/cancel", {"id": reply["id"]})[1]["outcome"] == "settled"
    for path, body in bodies:
        status, problem = service.post(path, body)
        assert status == 400 and "3 amounts" in problem["detail"]


@pytest.mark.parametrize("path", ["/v1/check", "/check/default/chat", "/check-403/default/chat"])
def test_a_check_of_a_concurrent_limit_is_400_and_names_reserve(path: str) -> None:
    service = HoldClient(rulesets={"rates": ["models"]})
    raw = json.dumps({"request": REQUEST}).encode()

    async def call(path: str) -> Any:
        return await answered(service.service.answer(ServiceRequest("POST", path, [], "127.0.0.1", raw)))

    response = asyncio.run(call(path))
    text = response.body + b"".join(value for _, value in response.headers)
    assert response.status == 400 and b"/v1/reserve" in text
    assert asyncio.run(call("/check/rates/chat")).status == 200


def test_the_log_names_rules_that_cannot_be_checked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate"):
        service = HoldClient()
    assert "user counts what is in flight" in caplog.text
    caplog.clear()
    service.service.gate.reload({"version": 1, "rules": RULES[1:]})
    assert not caplog.text
    service.service.gate.reload({"version": 1, "rules": RULES})
    assert "user counts what is in flight" in caplog.text


def test_a_hold_is_published_as_a_decision() -> None:
    service = HoldClient()
    events: list[Any] = []

    class Subscriber:
        def handle(self, event: Any) -> None:
            events.append(event)

    service.service.events.subscribe(Subscriber())
    service.reserve()
    assert [type(event) for event in events] == [DecisionEvent]


def test_the_schema_accepts_valid_bodies_and_refuses_invalid_ones() -> None:
    service = HoldClient()
    answer: Any = service.service.answer(ServiceRequest("GET", "/v1/holds/schema", [], "127.0.0.1"))
    schema = json.loads(answer.body)
    validator = jsonschema.Draft202012Validator(schema)
    for body in (
        {"request": REQUEST, "cost": {"tokens": 5}, "lease": 0.5, "id": "a", "remember": 3600},
        {"id": "h0"},
        {"id": "h0", "actual": {"usd": "0.1"}},
        {"id": "h0", "lease": 60, "more": 2},
    ):
        assert validator.is_valid(body), body
    for invalid in ({}, {"request": REQUEST, "lease": 0}, {"id": 5}, {"id": "h0", "actual": -1}, {"id": "h0", "x": 1}):
        assert not validator.is_valid(invalid), invalid


def test_several_workers_refuse_concurrent_limits_on_a_zone_without_holds_before_they_start(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="rule user counts what is in flight"):
        serve_workers(
            json.dumps({"version": 1, "rules": RULES}).encode(),
            policy_file=tmp_path / "policy.json",
            workers=2,
            store=f"shared://{tmp_path}/zone?size=1MiB&max_holds=0",
            host="127.0.0.1",
            port=0,
            drain_s=0,
            hang_s=10,
            bounds=Bounds(),
            door=DoorOptions(threads=1),
            announce=lambda address, zone, door: None,
        )


def test_a_settlement_while_redis_does_not_answer_reports_what_decided_instead() -> None:
    rules = [{**RULES[0], "on_store_error": "local"}]

    async def run() -> None:
        gate = AsyncGate({"version": 1, "rules": rules}, store=f"{NO_REDIS}?timeout=200ms")
        service = Service(gate)

        async def post(path: str, body: Any) -> Any:
            raw = ServiceRequest("POST", path, [], "127.0.0.1", json.dumps(body).encode())
            return json.loads((await answered(service.answer(raw))).body)

        reply = await post("/v1/reserve", {"request": REQUEST})
        assert (reply["allowed"], reply["degraded"]) == (True, "local")
        settled = await post("/v1/commit", {"id": reply["id"]})
        assert (settled["outcome"], settled["degraded"]) == ("settled", "local")
        await gate.close()

    asyncio.run(run())
