"""Long lists of checks: the service answers others between the requests of a list, and the list as it promises."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest
from redis_servers import Server
from running import RunningService, running_service

pytestmark = pytest.mark.integration

LISTS, QUOTA = {"memory": 200, "redis": 40}, 10_000_000
CHECKS = 50
"""A client that checks again and again is answered more often than that meanwhile."""

LONG = {"requests": [{"path": "/long", "client_ip": "203.0.113.1"}] * 1000}
"""Longer than what is decided in one go."""


@pytest.fixture(scope="module", params=LISTS)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def service(store: str, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    policy = tmp_path_factory.mktemp("lists") / "policy.yaml"
    policy.write_text(
        "version: 1\nrules:\n"
        + "".join(f"  - {{name: r{n}, by: [ip], limits: {QUOTA}/hour fixed}}\n" for n in range(10))
        + "  - {name: few, match: {path: /few}, by: [ip], limits: 700/hour fixed}\n"
        + "  - {name: held, match: {path: /held}, by: [ip], limits: 5 concurrent}\n"
    )
    patient = f"{server.url}?timeout=20s"  # on a slow machine, too, nothing is decided without the store
    options = ("--store", patient) if store == "redis" else ()
    with running_service(policy, *options) as service:
        yield service


def decisions(answer: httpx.Response) -> list[bool]:
    assert answer.status_code == 200, answer.text
    return [one["allowed"] for one in answer.json()["decisions"]]


def test_checks_are_answered_while_many_long_lists_are_decided(store: str, service: RunningService) -> None:
    lists = LISTS[store]
    body, at = json.dumps(LONG), urlsplit(service.url)
    look = {"request": LONG["requests"][0], "cost": 0}
    with ExitStack() as stack:
        clients = [HTTPConnection(at.netloc, timeout=60) for _ in range(lists)]
        for client in clients:
            stack.callback(client.close)
            client.request("POST", "/v1/check", body)
        waiting, checks, deadline = [client.sock for client in clients], 0, time.monotonic() + 60
        while waiting:
            assert time.monotonic() < deadline
            assert service.client.post("/v1/check", json=look).json()["allowed"]
            checks += 1
            told, _, _ = select.select(waiting, [], [], 0)
            waiting = [one for one in waiting if one not in told]
        assert checks > CHECKS
        for client in clients:
            response = client.getresponse()
            assert response.status == 200 and response.read().count(b'"headers": {') == 1000


def test_a_long_list_is_decided_in_its_order(service: RunningService) -> None:
    few = {"requests": [{"path": "/few", "client_ip": "203.0.113.2"}] * 1000}
    assert decisions(service.client.post("/v1/check", json=few)) == [True] * 700 + [False] * 300


@pytest.mark.parametrize("wrong", [{"uri": "/"}, {"path": "/held", "client_ip": "203.0.113.3"}], ids=["field", "held"])
def test_of_a_long_list_that_cannot_be_answered_nothing_is_charged(
    service: RunningService, wrong: dict[str, str]
) -> None:
    def remaining() -> int:
        one = {"request": {"path": "/", "client_ip": "203.0.113.3"}, "cost": 0}
        return int(service.client.post("/v1/check", json=one).json()["remaining"])

    before = remaining()
    good = {"path": "/", "client_ip": "203.0.113.3"}
    answer = service.client.post("/v1/check", json={"requests": [*[good] * 999, wrong]})
    if "uri" in wrong:
        assert (answer.status_code, remaining()) == (400, before)
    else:
        *passed, last = answer.json()["decisions"]
        assert "error" in last and not any(one.get("degraded") for one in passed)
        assert remaining() == before - 999


def test_a_list_is_known_however_it_is_spelled(service: RunningService) -> None:
    long = json.dumps(LONG)
    for body in (" \n" + long, long.replace('{"requests"', '{ "re\\u0071uests"', 1), "{\t" + long[1:]):
        assert len(decisions(service.client.post("/v1/check", content=body))) == 1000
