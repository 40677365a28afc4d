"""Units as people use them: checks over HTTP, the command line on a log, and an application's middleware."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from redis_servers import single
from running import RunningService, run_headgate, running_service

pytestmark = pytest.mark.integration

POLICY = """\
version: 1
identities: {user: {header: X-User}}
rules:
  - name: llm
    match: {path: /v1/**}
    by: [user]
    limits: 60/minute; 9000 tokens/minute bucket; 2.5 usd/day
    cost: {tokens: 500, usd: "0.02"}
  - {name: sent, by: [ip], limits: 1000 bytes/minute fixed}
exempt: [{path: /health}]
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("units") / "policy.yaml"
    file.write_text(POLICY)
    return file


@pytest.fixture(scope="module")
def service(policy: Path) -> Iterator[RunningService]:
    with running_service(policy) as running:
        yield running


def check(service: RunningService, user: str, cost: object) -> tuple[int, dict[str, object]]:
    request = {"path": "/v1/chat", "headers": {"X-User": user}, "client_ip": "203.0.113.9"}
    response = service.client.post("/v1/check", json={"request": request, "cost": cost})
    return response.status_code, response.json()


def remaining(response: dict[str, object]) -> dict[str, int]:
    limits = response["limits"]
    assert isinstance(limits, list)
    return {limit["unit"]: limit["remaining"] for limit in limits if limit["rule"] == "llm"}


def test_a_check_charges_the_units_it_names_and_the_cost_of_the_rule_for_the_others(service: RunningService) -> None:
    user = uuid4().hex  # a new user has spent nothing, also where the test is run again
    start_s = time.monotonic()
    status, response = check(service, user, {"tokens": 1200})
    assert status == 200 and remaining(response) == {"requests": 59, "tokens": 7800, "nano-usd": 2_480_000_000}
    _, response = check(service, user, {"requests": 0, "usd": "2.48"})
    left = remaining(response)
    filled = (time.monotonic() - start_s) * 150  # the bucket fills by 9000 a minute
    assert 7800 <= left.pop("tokens") <= 7800 + filled
    assert left == {"requests": 59, "nano-usd": 0}
    _, response = check(service, user, {"tokens": 1})
    assert (response["allowed"], response["rule"], response["unit"], response["limit"]) == (
        False,
        "llm",
        "nano-usd",
        2_500_000_000,
    )
    headers = response["headers"]
    assert (
        isinstance(headers, dict) and '"llm.usd.day";q=2500000000;qu="nano-usd";w=86400' in headers["RateLimit-Policy"]
    )


def test_a_bad_cost_is_400_and_nothing_is_charged(service: RunningService) -> None:
    for cost, reason in (
        ({"token": 1}, "no limit counts 'token': they count requests, tokens, usd, bytes"),
        ({"usd": 0.5}, "a cost in usd must be a whole number, or of money text"),
        ({"tokens": -1}, "a cost in tokens is at least 0, not -1"),
    ):
        status, problem = check(service, "bob", cost)
        assert status == 400 and reason in str(problem["detail"])
    assert remaining(check(service, "bob", 0)[1]) == {"requests": 60, "tokens": 9000, "nano-usd": 2_500_000_000}


@pytest.mark.parametrize("call", ["check", "reserve"])
def test_a_bad_cost_is_400_where_no_rule_applies_too(service: RunningService, call: str) -> None:
    for cost, reason in (({"reqests": 5}, 'did you mean "requests"?'), ({"usd": "a"}, "an amount in usd")):
        body = {"request": {"path": "/health"}, "cost": cost}
        response = service.client.post(f"/v1/{call}", json=body)
        assert response.status_code == 400 and reason in response.json()["detail"]
    assert service.client.post(f"/v1/{call}", json=body | {"cost": {"tokens": 5}}).json()["rule"] is None


def test_a_gateway_that_sends_no_cost_is_charged_the_cost_of_the_rule(service: RunningService) -> None:
    headers = {"X-User": "eve", "X-Forwarded-Uri": "/v1/chat"}
    statuses = [service.client.get("/check/default", headers=headers).status_code for _ in range(19)]
    assert statuses == [200] * 18 + [429], "18 times 500 tokens are 9000"
    refused = service.client.get("/check/default", headers=headers)
    assert "over the limit of llm.tokens.minute (9000 tokens/minute bucket)" in refused.json()["detail"]


def test_replay_reads_each_unit_from_a_field_of_the_log(policy: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls.json"
    lines = [
        {"ts": 1768467600 + number, "ip": "192.0.2.1", "path": "/v1/chat", "user": "ann",
         "usage": {"in": 2000, "out": 1000}, "price": 0.0625, "size": 10}
        for number in range(5)
    ]  # fmt: skip
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = [
        "replay", str(log), "--policy", str(policy), "--header", "X-User=user", "--field", "tokens=usage.in+usage.out",
        "--field", "usd=price", "--field", "bytes=size",
    ]  # fmt: skip
    completed = run_headgate(*arguments)
    assert completed.returncode == 0, completed.stderr
    assert "5 requests, 3 passed, 2 refused (40.00 %)" in completed.stdout
    assert "their cost in tokens is 15,000: 9,000 passed, 6,000 refused (40.00 %)" in completed.stdout
    assert "their cost in usd is 0.3125: 0.1875 passed, 0.125 refused (40.00 %)" in completed.stdout
    as_json = json.loads(run_headgate(*arguments, "--json").stdout)
    assert as_json["cost_allowed"] == {"tokens": 9000, "usd": "0.1875", "bytes": 30}
    assert [rule["denied"] for rule in as_json["rules"]] == [2, 0]
    wrong = run_headgate("replay", str(log), "--policy", str(policy), "--field", "token=x")
    assert wrong.returncode == 2 and "host, cost, requests, tokens, usd, bytes" in " ".join(wrong.stderr.split())
    both = run_headgate("replay", str(log), "--policy", str(policy), "--field", "tokens=size", "--field", "cost=size")
    assert both.returncode == 2 and "give the cost, or what it is by its units, not both" in both.stderr


def test_explain_and_capacity_print_the_units(policy: Path) -> None:
    output = run_headgate("explain", str(policy), "--path", "/v1/chat", "--header", "X-User:ann").stdout
    assert "key ann, cost 1 request, 500 tokens and 0.02 usd" in output
    needs = json.loads(run_headgate("capacity", str(policy), "--users", "100", "--rate", "10", "--json").stdout)
    assert [need["limit"] for need in needs["limits"]] == [
        "60/minute", "9000 tokens/minute bucket", "2.5 usd/day", "1000 bytes/minute fixed",
    ]  # fmt: skip


def test_the_state_in_a_redis_is_shown_in_its_units_and_reset_with_them(policy: Path) -> None:
    with single() as server:
        with running_service(policy, "--store", server.url) as service:
            check(service, "ann", {"tokens": 1200, "usd": "0.0123"})
        output = run_headgate("inspect", str(policy), "user=ann", "--store", server.url).stdout
        assert "60/minute: 59 of 60 left" in output
        assert "9000 tokens/minute bucket: 7," in output or "9000 tokens/minute bucket: 8," in output
        assert "2.5 usd/day: 2.4877 of 2.5 usd left, all in" in output
        run_headgate("reset", str(policy), "user=ann", "--store", server.url)
        output_after_reset = run_headgate("inspect", str(policy), "user=ann", "--store", server.url).stdout
        assert output_after_reset.count("nothing is held") == 3 and "all 2.5 usd left" in output_after_reset
