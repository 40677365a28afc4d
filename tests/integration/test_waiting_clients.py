"""Requests that wait for rules, on real servers: clients that disconnect leave the line, and no body is lost."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from raw_requests import connected
from running import RunningService, running_service
from served import served

from until import until

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent
UVICORN = ["uvicorn", "waiting_apps:asgi_app", "--log-level", "error", "--port", "PORT"]
SERVERS = {
    "uvicorn, httptools": [*UVICORN, "--http", "httptools"],
    "uvicorn, h11": [*UVICORN, "--http", "h11"],
}
THREADS = [
    "gunicorn", "waiting_apps:wsgi_app", "--threads", "8", "--log-level", "error", "-b", "127.0.0.1:PORT",
]  # fmt: skip


def waiting(client: httpx.Client) -> int:
    return int(client.get("/waiting").text)


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_that_disconnects_while_it_waits_leaves_the_line(server: str) -> None:
    with served(SERVERS[server], HERE) as client, ThreadPoolExecutor() as threads:
        held = client.get("/hold", params={"user": "ann"}).text
        abandoned = [connected(client.base_url, "GET /slow HTTP/1.1\nHost: a\nX-User: ann\n\n") for _ in range(3)]
        until(lambda: waiting(client) == 3)
        waiting_request = threads.submit(client.get, "/slow", headers={"X-User": "ann"})
        until(lambda: waiting(client) == 4)
        for connection in abandoned:
            connection.close()
        until(lambda: waiting(client) == 1)
        assert client.get("/slow", headers={"X-User": "bob"}).status_code == 200  # other users do not wait
        assert client.get("/free", params={"id": held}).text == "settled"
        assert waiting_request.result(20).status_code == 200
        assert client.get("/slow", headers={"X-User": "ann"}).status_code == 200


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("size", [0, 10, 1_000_000])
def test_a_body_that_arrives_while_its_request_waits_is_not_lost(server: str, size: int) -> None:
    with served(SERVERS[server], HERE) as client:
        held = client.get("/hold", params={"user": "ann"}).text
        head = f"POST /slow HTTP/1.1\nHost: a\nX-User: ann\nContent-Length: {size}\nConnection: close\n\n"
        connection = connected(client.base_url, head)
        until(lambda: waiting(client) == 1)
        with ThreadPoolExecutor() as threads:
            sent = threads.submit(connection.sendall, b"x" * size)
            time.sleep(0.1)
            assert client.get("/free", params={"id": held}).text == "settled"
            sent.result(20)
        received = b""
        while part := connection.recv(65536):
            received += part
        connection.close()
        assert received.startswith(b"HTTP/1.1 200") and received.endswith(b"\r\n\r\n" + str(size).encode())


@pytest.mark.parametrize("server", SERVERS)
def test_requests_that_are_sent_at_once_on_one_connection_wait_one_after_another(server: str) -> None:
    with served(SERVERS[server], HERE) as client:
        requests = "GET /rate HTTP/1.1\nHost: a\nX-User: ann\n\n" * 8
        last = "GET /rate HTTP/1.1\nHost: a\nX-User: ann\nConnection: close\n\n"
        connection = connected(client.base_url, requests + last)
        received = b""
        while part := connection.recv(65536):
            received += part
        connection.close()
        assert received.count(b"HTTP/1.1 200") == 9


def test_requests_wait_in_the_threads_of_a_wsgi_server() -> None:
    with served(THREADS, HERE) as client, ThreadPoolExecutor(8) as threads:
        pending = [threads.submit(client.get, "/slow", headers={"X-User": "ann"}) for _ in range(5)]
        assert [request.result(30).status_code for request in pending] == [200] * 5
        pending = [threads.submit(client.get, "/rate", headers={"X-User": "ann"}) for _ in range(8)]
        assert [request.result(30).status_code for request in pending] == [200] * 8


POLICY = {
    "version": 1,
    "rules": [
        {"name": "place", "match": {"path": "/place"}, "by": ["ip"], "limits": "1 concurrent", "wait": "1h"},
        {"name": "rate", "match": {"path": "/rate"}, "by": ["ip"], "limits": "4/second bucket", "wait": "10s"},
        {"name": "never", "match": {"path": "/never"}, "by": ["ip"], "limits": "1/hour", "wait": "1h"},
    ],
}


def check_body(path: str, client: str = "203.0.113.9", **more: object) -> dict[str, object]:
    return {"request": {"path": path, "client_ip": client}, **more}


def post_text(path: str, body: object) -> str:
    text = json.dumps(body)
    return f"POST {path} HTTP/1.1\nHost: a\nContent-Length: {len(text)}\n\n{text}"


def waiting_in(service: RunningService) -> int:
    metrics = service.client.get("/metrics").text
    return int(
        float(
            next(metric for metric in metrics.splitlines() if metric.startswith("headgate_waiting_requests")).split()[1]
        )
    )


@pytest.fixture
def service(front: str, tmp_path: Path) -> object:
    path = tmp_path / "policy.yaml"
    path.write_text(json.dumps(POLICY))
    with running_service(path) as service:
        yield service


def test_a_check_waits_and_other_requests_continue(service: RunningService) -> None:
    with ThreadPoolExecutor(16) as threads:
        checks = [threads.submit(service.client.post, "/v1/check", json=check_body("/rate")) for _ in range(10)]
        assert service.client.post("/v1/check", json=check_body("/rate", "203.0.113.10")).json()["allowed"]
        assert all(check.result(30).json()["allowed"] for check in checks)
    assert [service.check("/rate").status_code for _ in range(6)] == [200] * 6  # a check of a gateway waits, too
    several = service.client.post("/v1/check", json={"requests": [check_body("/rate") for _ in range(8)]})
    assert not all(each["allowed"] for each in several.json()["decisions"])  # a batch of checks never waits


@pytest.mark.parametrize("how", ["close", "half"])
def test_a_client_of_the_service_that_disconnects_leaves_the_line(service: RunningService, how: str) -> None:
    held = service.client.post("/v1/reserve", json=check_body("/place", lease=600)).json()["id"]
    connections = [connected(service.url, post_text("/v1/reserve", check_body("/place", lease=600))) for _ in range(3)]
    until(lambda: waiting_in(service) == 3)
    for connection in connections[:2]:
        connection.close() if how == "close" else connection.shutdown(socket.SHUT_WR)
    until(lambda: waiting_in(service) == 1)
    assert service.client.post("/v1/commit", json={"id": held}).status_code == 200
    received = connections[2].recv(65536)
    assert b'"allowed": true' in received
    for connection in connections:
        connection.close()
    assert waiting_in(service) == 0


def test_a_gateway_that_gives_up_leaves_the_line(service: RunningService) -> None:
    def forwarded(path: str) -> str:
        return f"GET /check/default HTTP/1.1\nHost: a\nX-Forwarded-Uri: {path}\nX-Forwarded-For: 203.0.113.9\n\n"

    with connected(service.url, forwarded("/never")) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
    connection = connected(service.url, forwarded("/never"))
    until(lambda: waiting_in(service) == 1)
    connection.close()
    until(lambda: waiting_in(service) == 0)


def test_a_service_ends_while_requests_wait(service: RunningService) -> None:
    service.client.post("/v1/reserve", json=check_body("/place", lease=600))
    connection = connected(service.url, post_text("/v1/reserve", check_body("/place", lease=600)))
    until(lambda: waiting_in(service) == 1)
    assert service.stop() == 0
    assert b'"allowed": false' in connection.recv(65536)  # the service answers before it ends
    connection.close()
