"""Places for requests in flight under real servers, whose clients vanish, stall, fail and send several at once."""

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
    """A connection on which this was sent."""
    port = client.base_url.port
    assert port is not None
    line = socket.create_connection(("127.0.0.1", port), timeout=20)
    line.sendall(text.replace("\n", "\r\n").encode())
    return line


def both_taken(client: httpx.Client) -> list[socket.socket]:
    """Two endless answers, once places for both are free."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        lines = [connected(client, "GET /endless HTTP/1.1\nHost: a\n\n") for _ in range(2)]
        if [line.recv(12) for line in lines] == [b"HTTP/1.1 200"] * 2:
            return lines
        for line in lines:
            line.close()
        time.sleep(0.05)
    raise AssertionError("places are not free again")


@pytest.mark.parametrize("server", SERVERS)
def test_clients_that_vanish_stall_or_fail_leave_no_place_taken(server: str) -> None:
    with served(SERVERS[server], HERE, unsaid=()) as client:
        for _ in range(2):
            streams = both_taken(client)
            assert client.get("/quick").status_code == 429
            for line in streams:
                line.close()  # in the middle of their streams
        for path in ("/fail", "/broken", "/nothing"):
            for _ in range(3):
                with contextlib.suppress(httpx.TransportError):  # the stream broke off
                    assert client.get(path).status_code in (200, 404, 429, 500)
        slow = [connected(client, "POST /upload HTTP/1.1\nHost: a\nContent-Length: 1000\n\nabc") for _ in range(4)]
        time.sleep(0.2)
        for line in slow:
            line.close()  # in the middle of their uploads
        for line in both_taken(client):
            line.close()


@pytest.mark.parametrize("server", SERVERS)
def test_requests_that_are_sent_at_once_on_one_connection_are_answered_one_after_another(server: str) -> None:
    with served(SERVERS[server], HERE, unsaid=()) as client:
        asked = "GET /quick HTTP/1.1\nHost: a\n\n" * 9 + "GET /quick HTTP/1.1\nHost: a\nConnection: close\n\n"
        line = connected(client, asked)
        came = b""
        while part := line.recv(65536):
            came += part
        line.close()
        assert came.count(b"HTTP/1.1 200") == 10
        for line in both_taken(client):
            line.close()
