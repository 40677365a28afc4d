"""Places for requests in flight on real servers, whose clients disconnect, stall, fail and send several at once."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import httpx
import pytest
from served import served

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent
SERVERS = {
    "uvicorn": ["uvicorn", "in_flight_apps:asgi_app", "--log-level", "critical", "--port", "PORT"],
    "gunicorn, threads": [
        "gunicorn", "in_flight_apps:wsgi_app", "--threads", "8", "--log-level", "critical", "-b", "127.0.0.1:PORT",
        "--graceful-timeout", "3",
    ],
}  # fmt: skip


def connected(client: httpx.Client, text: str) -> socket.socket:
    """Connect, send a text, and return the connection."""
    port = client.base_url.port
    assert port is not None
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(text.replace("\n", "\r\n").encode())
    return connection


def both_taken(client: httpx.Client) -> list[socket.socket]:
    """Return the connections of two endless responses, once places for both are free."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        connections = [connected(client, "GET /endless HTTP/1.1\nHost: a\n\n") for _ in range(2)]
        if [connection.recv(12) for connection in connections] == [b"HTTP/1.1 200"] * 2:
            return connections
        for connection in connections:
            connection.close()
        time.sleep(0.05)
    raise AssertionError("places are not free again")


@pytest.mark.parametrize("server", SERVERS)
def test_clients_that_disconnect_stall_or_fail_leave_no_place_taken(server: str) -> None:
    with served(SERVERS[server], HERE, unsaid=()) as client:
        for _ in range(2):
            streams = both_taken(client)
            assert client.get("/quick").status_code == 429
            for connection in streams:
                connection.close()  # in the middle of their streams
        for path in ("/fail", "/broken", "/nothing"):
            for _ in range(3):
                with contextlib.suppress(httpx.TransportError):  # the stream broke off
                    assert client.get(path).status_code in (200, 404, 429, 500)
        slow = [connected(client, "POST /upload HTTP/1.1\nHost: a\nContent-Length: 1000\n\nabc") for _ in range(4)]
        time.sleep(0.2)
        for connection in slow:
            connection.close()  # in the middle of their uploads
        for connection in both_taken(client):
            connection.close()


@pytest.mark.parametrize("server", SERVERS)
def test_requests_that_are_sent_at_once_on_one_connection_are_answered_one_after_another(server: str) -> None:
    with served(SERVERS[server], HERE, unsaid=()) as client:
        requests = "GET /quick HTTP/1.1\nHost: a\n\n" * 9 + "GET /quick HTTP/1.1\nHost: a\nConnection: close\n\n"
        connection = connected(client, requests)
        received = b""
        while part := connection.recv(65536):
            received += part
        connection.close()
        assert received.count(b"HTTP/1.1 200") == 10
        for connection in both_taken(client):
            connection.close()
