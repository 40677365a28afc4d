"""The front door before a Redis, in processes: at once, in an outage, at a reload, at the end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from redis_servers import Server, single, wait_until
from running import RunningService, running_service
from test_front_door import comparable, figures

pytestmark = pytest.mark.integration

POLICY = """\
version: 1
namespace: door
client_ip: {header: X-Forwarded-For, trusted_proxies: [127.0.0.0/8]}
rules:
  - {name: login, match: {path: /login}, by: [ip], limits: 5/hour fixed, on_store_error: closed}
  - {name: search, match: {path: /search}, by: [ip], limits: 8/hour fixed, on_store_error: local}
  - {name: budget, match: {path: /month}, by: [ip], limits: 100/month in UTC, on_store_error: open}
  - {name: all, by: [ip], limits: 1000000/hour fixed, default: true, on_store_error: open}
"""
REQUESTS = [
    ("GET", "/check/default/a", ""),
    ("POST", "/check/default/login", ""),
    ("GET", "/check-403/default/login", ""),
    ("HEAD", "/check/default/search", ""),
    ("GET", "/check/default/month", ""),
    ("GET", "/check/nosuch", ""),
    ("POST", "/v1/check", '{"request": {"path": "/a", "client_ip": "203.0.113.1"}}'),
    ("POST", "/v1/check", '{"requests": [{"path": "/a"}, {"path": "/login", "client_ip": "::1"}, {"path": "/month"}]}'),
    ("POST", "/v1/check", "{"),
    ("POST", "/v1/reserve", '{"request": {"path": "/a", "client_ip": "203.0.113.1"}, "id": "h"}'),
    ("GET", "/readyz", ""),
]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


@contextmanager
def door(policy: Path, server: Server, *options: str, timeout: str = "5s") -> Iterator[RunningService]:
    """A service behind a front door, on a Redis."""
    with running_service(policy, "--store", f"{server.url}?timeout={timeout}", *options) as service:
        assert "a front door of" in service.lines[0]
        yield service


class Load:
    """Clients that ask all the time, and count what they are answered."""

    def __init__(self, service: RunningService, clients: int = 4, path: str = "/check/default/a") -> None:
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        self._service, self._path = service, path
        self._counts = [self._pool.submit(self._ask) for _ in range(clients)]

    def _ask(self) -> Counter[tuple[int, str]]:
        answers: Counter[tuple[int, str]] = Counter()
        with httpx.Client(base_url=self._service.url, timeout=20) as client:
            while not self._over.is_set():
                try:
                    answer = client.get(self._path)
                except httpx.ConnectError:
                    break  # the port is closed
                answers[answer.status_code, answer.headers.get("x-ratelimit-degraded", "")] += 1
        return answers

    def end(self) -> Counter[tuple[int, str]]:
        self._over.set()
        with self._pool:
            return sum((count.result() for count in self._counts), Counter())


def test_a_client_cannot_tell_the_front_door_from_python(policy: Path) -> None:
    with (
        single() as one,
        single() as other,
        door(policy, one) as native,
        running_service(policy, "--threads", "0", "--store", f"{other.url}?timeout=5s") as python,
    ):
        for _ in range(4):
            for method, path, body in REQUESTS:
                answers = [
                    comparable(service.client.request(method, path, content=body)) for service in (native, python)
                ]
                assert answers[0] == answers[1], (method, path, body)


def test_all_checks_are_decided_in_batches_and_none_is_left_to_python(policy: Path, server: Server) -> None:
    server.cli("FLUSHALL")
    with door(policy, server) as service:
        for path in ("/check/default/a", "/check-403/default/month", "/check/default/login"):
            assert service.client.get(path).status_code == 200
        assert service.client.post("/v1/check", json={"requests": [{"path": "/a"}] * 3}).status_code == 200
        shown = figures(service)
        assert shown["headgate_checks_left_to_python_total",] == 0
        assert shown["headgate_decisions_total", "all", "allowed"] == 4
        assert shown["headgate_decisions_total", "allowed", "budget"] == 1
        assert shown["headgate_decision_seconds_count",] == 6


@pytest.mark.parametrize("options", [(), ("--threads", "2", "--workers", "2")])
def test_exactly_the_limit_passes_with_200_requests_at_once(
    policy: Path, server: Server, options: tuple[str, ...]
) -> None:
    server.cli("FLUSHALL")
    policy.write_text(POLICY.replace("5/hour", "100/hour"))
    with door(policy, server, *options) as service, ThreadPoolExecutor(200) as pool:
        start = threading.Barrier(200)

        def ask(_: int) -> int:
            with httpx.Client(base_url=service.url, timeout=20) as client:
                start.wait()
                return client.get("/check/default/login").status_code

        assert Counter(pool.map(ask, range(200))) == {200: 100, 429: 100}
        assert figures(service)["headgate_decisions_total", "allowed", "login"] == 100


def test_checks_and_holds_are_counted_in_one_place(policy: Path, server: Server) -> None:
    server.cli("FLUSHALL")
    body = {"request": {"path": "/login", "client_ip": "203.0.113.1"}}
    with door(policy, server) as service:
        assert service.client.post("/v1/check", json=body).json()["remaining"] == 4
        held = service.client.post("/v1/reserve", json=body).json()
        assert held["remaining"] == 3
        assert service.client.post("/v1/check", json=body).json()["remaining"] == 2
        assert service.client.post("/v1/cancel", json={"id": held["id"]}).status_code == 200
        assert service.client.post("/v1/check", json=body).json()["remaining"] == 2


def test_a_pipeline_is_answered_in_its_order(policy: Path, server: Server) -> None:
    server.cli("FLUSHALL")
    with door(policy, server) as service:
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(b"GET /check/default/search HTTP/1.1\r\nhost: a\r\n\r\n" * 10)
            answers = b""
            while answers.count(b"HTTP/1.1") < 10 or not answers.endswith((b"\r\n\r\n", b"}")):
                answers += client.recv(65536)
        statuses = [answer[1:4] for answer in answers.split(b"HTTP/1.1")[1:]]
        assert statuses == [b"200"] * 8 + [b"429"] * 2
        left = [answer.partition(b'"search";r=')[2][:1] for answer in answers.split(b"HTTP/1.1")[1:9]]
        assert left == [b"%d" % number for number in range(7, -1, -1)]


def test_an_outage_under_load_is_decided_as_each_rule_says_and_ends_by_itself(policy: Path) -> None:
    with single() as server, door(policy, server, timeout="500ms") as service:
        load = Load(service)
        time.sleep(0.3)
        server.kill()
        wait_until(lambda: "" if service.check("/a").headers.get("X-RateLimit-Degraded") else "no outage", within_s=20)
        closed = service.check("/login")
        assert (closed.status_code, closed.headers["X-RateLimit-Degraded"]) == (503, "closed")
        here = [service.check("/search") for _ in range(12)]
        assert [answer.status_code for answer in here] == [200] * 8 + [429] * 4
        assert {answer.headers["X-RateLimit-Degraded"] for answer in here} == {"local"}
        assert service.check("/month").headers["X-RateLimit-Degraded"] == "open"
        server.restart()
        wait_until(lambda: "its store" if "X-RateLimit-Degraded" in service.check("/a").headers else "", within_s=20)
        time.sleep(0.2)
        answers = load.end()
        assert set(answers) == {(200, ""), (200, "open")}
        shown = figures(service)
        assert shown["headgate_degraded_decisions_total", "local"] == 12
        assert shown["headgate_degraded_decisions_total", "closed"] == 1
        assert shown["headgate_degraded_decisions_total", "open"] >= answers[200, "open"]
        assert shown["headgate_decisions_total", "all", "allowed"] >= sum(answers.values())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_reload_under_load_loses_no_request_and_no_count(policy: Path, server: Server, workers: str) -> None:
    server.cli("FLUSHALL")
    with door(policy, server, "--workers", workers) as service:
        load = Load(service)
        for quota in (2_000_000, 3_000_000, 4_000_000):
            lines_before = len(service.lines)
            policy.write_text(POLICY.replace("1000000/", f"{quota}/"))
            service.wait_for("is in force", after=lines_before)
            time.sleep(0.1)
        answers = load.end()
        assert set(answers) == {(200, "")}
        requests = answers[200, ""]
        deadline = time.monotonic() + 10  # until every worker has the last policy
        while "q=4000000" not in service.client.get("/check/default/a").headers["ratelimit-policy"]:
            requests += 1
            assert time.monotonic() < deadline
        requests += 1
        left = service.client.get("/check/default/a").headers["ratelimit"]
        assert left.startswith(f'"all";r={4_000_000 - requests - 1};')
        assert figures(service)["headgate_decisions_total", "all", "allowed"] == requests + 1


def test_a_drain_under_load_answers_all_that_has_begun(policy: Path, server: Server) -> None:
    server.cli("FLUSHALL")
    with door(policy, server, "--drain", "0") as service:
        load = Load(service)
        time.sleep(0.3)
        assert service.stop(signal.SIGTERM) == 0
        assert set(load.end()) == {(200, "")}


def test_a_worker_that_is_killed_takes_nothing_of_the_others_along(policy: Path, server: Server) -> None:
    server.cli("FLUSHALL")
    with door(policy, server, "--workers", "2") as service:
        pid = service.process.pid
        worker, _ = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)
        service.wait_for("was killed by SIGKILL; started again")
        statuses = []
        for _ in range(12):
            with httpx.Client(base_url=service.url, timeout=20) as client:
                statuses.append(client.get("/check/default/login").status_code)
        assert Counter(statuses) == {200: 5, 429: 7}
