"""Slow or numerous clients of the proxy: each is bounded, and the others do not stall."""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from provider import Provider, running_provider
from running_proxy import RunningProxy, at, running_proxy, wait_until

from headgate.llm.inputs import InputCount, count_input
from headgate.llm_proxy import app
from headgate.llm_proxy.client_connections import ClientConnections
from headgate.llm_proxy.descriptors import within_descriptors

pytestmark = pytest.mark.integration

WIDE = [{"name": "all", "by": ["model"], "limits": "100000/minute"}]
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


def post_chat(proxy: RunningProxy, **fields: Any) -> httpx.Response:
    """Send a chat call on a connection of its own."""
    return httpx.post(f"{proxy.url}/v1/chat/completions", json={**BODY, **fields}, timeout=30)


def request_of(body: bytes) -> bytes:
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


@contextmanager
def connected(proxy: RunningProxy, number: int = 1) -> Iterator[list[socket.socket]]:
    """Open so many connections, one after another."""
    url = httpx.URL(proxy.url)
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((url.host, url.port or 0), 30)) for _ in range(number)]


def rest(connection: socket.socket) -> bytes:
    """Receive everything until the connection is closed."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def test_an_incomplete_head_is_refused_and_others_are_answered(provider: Provider, tmp_path: Path) -> None:
    with (
        running_proxy(tmp_path, WIDE, [at(provider)], head_s=1.0) as proxy,
        connected(proxy, 50) as slow,
        connected(proxy) as [silent],
    ):
        for connection in slow:
            connection.sendall(HEAD)
        for byte in b"x-slow: 1":  # more bytes give no more time
            for connection in slow:
                connection.sendall(bytes([byte]))
        assert post_chat(proxy).status_code == 200
        for connection in slow:
            received = rest(connection)
            assert received.startswith(b"HTTP/1.1 408 ") and b"has to come within 1 s" in received
        silent.sendall(request_of(json.dumps(BODY).encode()))  # no head had begun on it
        assert silent.recv(20).startswith(b"HTTP/1.1 200 ")
        assert post_chat(proxy).status_code == 200 and proxy.count("held") == 3


def test_of_too_many_connections_the_one_that_was_idle_longest_is_closed(provider: Provider, tmp_path: Path) -> None:
    with running_proxy(tmp_path, WIDE, [at(provider)], connections=10) as proxy, connected(proxy, 30) as idle:
        assert post_chat(proxy).status_code == 200
        assert [rest(connection) for connection in idle[:20]] == [b""] * 20
        idle[-1].sendall(request_of(json.dumps(BODY).encode()))
        assert idle[-1].recv(20).startswith(b"HTTP/1.1 200 ")
        assert len(proxy.server.proxy.connections.open) <= 10


def test_a_new_connection_is_refused_while_all_others_are_busy(provider: Provider, tmp_path: Path) -> None:
    provider.behave("slow", first_delay_s=2.0)
    with running_proxy(tmp_path, WIDE, [at(provider)], connections=3) as proxy, connected(proxy, 3) as busy:
        for connection in busy:
            connection.sendall(request_of(json.dumps({**BODY, "model": "slow"}).encode()))
        wait_until(lambda: proxy.count("held") == 3)
        refused = post_chat(proxy)
        assert refused.status_code == 503 and refused.json()["error"]["message"] == "Too many calls are under way."
        for connection in busy:
            assert connection.recv(20).startswith(b"HTTP/1.1 200 ")
        assert post_chat(proxy).status_code == 200 and proxy.count("held") == 4


def test_an_incomplete_body_is_refused_and_holds_nothing(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with (
        running_proxy(tmp_path, WIDE, [at(provider)], body_s=0.5, connections=5) as proxy,
        connected(proxy, 3) as slow,
        connected(proxy) as [leaving],
    ):
        for connection in slow:
            connection.sendall(HEAD + b'content-length: 500\r\n\r\n{"model": ')
        leaving.sendall(HEAD + b'content-length: 500\r\n\r\n{"model": ')
        leaving.close()
        assert post_chat(proxy).status_code == 200
        for connection in slow:
            received = connection.recv(65536)
            assert received.startswith(b"HTTP/1.1 400 ") and b"did not arrive within 0.5 s" in received
        assert proxy.count("held") == 1 and len(provider.requests) >= 1
    assert not caplog.records


def test_an_idle_connection_is_closed(provider: Provider, tmp_path: Path) -> None:
    with (
        running_proxy(tmp_path, WIDE, [at(provider)], idle_s=0.5) as proxy,
        connected(proxy) as [unused],
        connected(proxy) as [used],
    ):
        used.sendall(request_of(json.dumps(BODY).encode()))
        assert rest(used).startswith(b"HTTP/1.1 200 ")
        assert rest(unused) == b""


def test_a_client_that_reads_nothing_is_given_up_and_others_are_answered(provider: Provider, tmp_path: Path) -> None:
    provider.behave("long", words=("word " * 2000,) * 1500)
    with (
        running_proxy(tmp_path, WIDE, [at(provider)], stalled_s=0.5, read_on=0) as proxy,
        connected(proxy, 3) as stalled,
    ):
        for connection in stalled:
            connection.sendall(request_of(json.dumps({**BODY, "model": "long", "stream": True}).encode()))
        assert post_chat(proxy, stream=True).status_code == 200
        started = time.monotonic()
        assert {entry.mode for entry in proxy.settled(4)} == {"exact", "at least"}
        assert time.monotonic() - started < 30


def test_connections_are_bounded_by_the_descriptors_for_them_and_a_provider() -> None:
    assert within_descriptors(10) == 10
    assert 1 <= within_descriptors(1 << 40) < 1 << 40


def unfinished(body: bytes, path: str = "/v1/chat/completions") -> bytes:
    """A request whose body lacks its last byte."""
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body) + 1}\r\n\r\n".encode() + body


def body_of(size: int) -> bytes:
    """A body of about so many bytes."""
    return json.dumps({**BODY, "messages": [{"role": "user", "content": "word " * (size // 5)}]}).encode()


def are_arriving(connections: ClientConnections, number: int, size: int) -> bool:
    """Whether so many requests are arriving, of which so many bytes have been received."""
    return (len(connections.arriving), connections.arriving_bytes) == (number, size)


def has_held(proxy: RunningProxy, calls: int) -> bool:
    return proxy.count("held") == calls


def test_unfinished_bodies_share_a_bound_and_the_oldest_is_refused(provider: Provider, tmp_path: Path) -> None:
    with (
        running_proxy(tmp_path, WIDE, [at(provider)], arriving_bytes=1_000_000, most_body_bytes=500_000) as proxy,
        connected(proxy, 20) as slow,
    ):
        connections = proxy.server.proxy.connections
        part = unfinished(body_of(190_000))
        for number, connection in enumerate(slow, 1):
            connection.sendall(part)
            unfinished_requests = min(number, 5)
            wait_until(partial(are_arriving, connections, unfinished_requests, unfinished_requests * len(part)))
        for connection in slow[:15]:
            received = rest(connection)
            assert (
                received.startswith(b"HTTP/1.1 503 ") or received == b""
            )  # a reset, if more of the body was on its way
        assert post_chat(proxy).status_code == 200
        slow[15].sendall(b" ")  # reading it needs twice as much again, and the two next oldest are refused
        assert slow[15].recv(20).startswith(b"HTTP/1.1 200 ")
        for connection in slow[16:18]:
            assert rest(connection).startswith(b"HTTP/1.1 503 ")
        for connection in slow[18:]:
            connection.sendall(b" ")
            assert connection.recv(20).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: connections.arriving_bytes == 0)
        assert proxy.count("held") == 4


def test_a_body_whose_values_exceed_the_memory_bound_is_refused_before_it_is_read(
    provider: Provider, tmp_path: Path
) -> None:
    body = json.dumps({**BODY, "metadata": [[]] * 20_000}).encode()
    with running_proxy(tmp_path, WIDE, [at(provider)], arriving_bytes=1_000_000, most_body_bytes=500_000) as proxy:
        refused = httpx.post(f"{proxy.url}/v1/chat/completions", content=body, timeout=30)
        assert len(body) < 100_000 and refused.status_code == 503
        assert refused.json()["error"]["message"] == "There is no room to read the body now: try again later."
        assert proxy.server.proxy.connections.arriving_bytes == 0 and proxy.count("held") == 0
        assert post_chat(proxy).status_code == 200


def test_unfinished_heads_count_against_the_same_bound(provider: Provider, tmp_path: Path) -> None:
    with (
        running_proxy(tmp_path, WIDE, [at(provider)], arriving_bytes=500_000, most_body_bytes=400_000) as proxy,
        connected(proxy, 40) as slow,
    ):
        connections = proxy.server.proxy.connections
        for connection in slow:
            connection.sendall(b"POST /v1/messages HTTP/1.1\r\nx: " + b"x" * 30_000)
        received = rest(slow[0])
        assert received.startswith(b"HTTP/1.1 503 ") and b'"overloaded_error"' in received
        assert connections.arriving_bytes <= 500_000
        assert post_chat(proxy).status_code == 200


def test_bodies_of_calls_count_until_the_provider_answers(provider: Provider, tmp_path: Path) -> None:
    provider.behave("m", first_delay_s=1.5, words=("word ",) * 200, delay_s=0.02)
    body = json.dumps({**json.loads(body_of(450_000)), "stream": True}).encode()
    with (
        running_proxy(tmp_path, WIDE, [at(provider)], arriving_bytes=3_000_000, most_body_bytes=500_000) as proxy,
        connected(proxy, 2) as busy,
    ):
        connections = proxy.server.proxy.connections
        for connection in busy:
            connection.sendall(request_of(body))
        wait_until(lambda: proxy.count("held") == 2)
        assert 2_700_000 < connections.arriving_bytes < 3_000_000, "the received bytes, and twice as many to read them"
        refused = httpx.post(f"{proxy.url}/v1/chat/completions", content=body_of(150_000), timeout=30)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "overloaded"
        for connection in busy:
            assert connection.recv(20).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: connections.arriving_bytes == 0)
        assert proxy.server.proxy.under_way == 2  # their responses are still arriving
    provider.behave("m")


def test_very_long_bodies_do_not_keep_shorter_ones_waiting(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, longest_short = threading.Event(), 200_000

    def count_slowly(body: dict[str, Any], model: str) -> InputCount:
        if len(body["messages"][0]["content"]) > longest_short:
            assert goes_on.wait(60)
        return count_input(body, model)

    monkeypatch.setattr(app, "count_input", count_slowly)
    number = 40  # more than the threads of an event loop
    with (
        running_proxy(tmp_path, WIDE, [at(provider)]) as proxy,
        connected(proxy, number) as long,
        connected(proxy) as short,
    ):
        try:
            for connection in long:
                connection.sendall(request_of(body_of(300_000)))
            wait_until(lambda: proxy.server.proxy.under_way == number)
            short[0].sendall(request_of(body_of(100_000)))
            short[0].settimeout(20)
            assert short[0].recv(20).startswith(b"HTTP/1.1 200 ")
        finally:
            goes_on.set()
        for connection in long:
            assert connection.recv(20).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("next_request", [HEAD, request_of(json.dumps(BODY).encode()), HEAD + b"x: " + b"x" * 20_000])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_during_another_one_closes_the_connection(
    provider: Provider, tmp_path: Path, next_request: bytes, at_once: bool
) -> None:
    provider.behave("m", first_delay_s=0.5)
    body = json.dumps(BODY).encode()
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with running_proxy(tmp_path, WIDE, [at(provider)], idle_s=100, head_s=100) as proxy:
        for first in (request_of(body), chunked):
            held = proxy.count("held")
            with connected(proxy) as [connection]:
                connection.settimeout(20)
                if at_once:
                    connection.sendall(first + next_request)
                else:
                    connection.sendall(first)
                    wait_until(partial(has_held, proxy, held + 1))
                    connection.sendall(next_request)
                received = rest(connection)
                assert (
                    received.count(b"HTTP/1.1 ") == 1
                    and received.startswith(b"HTTP/1.1 200 ")
                    and b"Hello world" in received
                )
            assert proxy.count("held") == held + 1
    provider.behave("m")


def test_an_unread_body_does_not_close_its_connection(provider: Provider, tmp_path: Path) -> None:
    with running_proxy(tmp_path, WIDE, [at(provider)], head_s=0.5) as proxy, connected(proxy) as [connection]:
        connection.sendall(b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345")
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"67890")
        time.sleep(1.5)  # no head has begun
        connection.sendall(request_of(json.dumps(BODY).encode()))
        assert connection.recv(20).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("line", "is_anthropic"),
    [(b"POST /v1/messages HTTP/1.1", True), (b"POST /messages?beta=true HTTP/1.1", True), (b"POST /v1/mess", False),
     (b"POST /v1/responses HTTP/1.1", False), (b"GET /v1/models HTTP/1.1", False)],
)  # fmt: skip
def test_an_incomplete_head_is_refused_in_the_dialect_of_its_path(
    provider: Provider, tmp_path: Path, line: bytes, is_anthropic: bool
) -> None:
    with running_proxy(tmp_path, WIDE, [at(provider)], head_s=0.4) as proxy, connected(proxy) as [connection]:
        for byte in line + (b"\r\nhost: x\r\n" if line.endswith(b"1.1") else b""):
            connection.sendall(bytes([byte]))
        received = rest(connection)
        head, _, body = received.partition(b"\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 408 ")
        document = json.loads(body)
        assert (
            document["error"]["type"] == "invalid_request_error" and (document.get("type") == "error") == is_anthropic
        )
        assert (b"\r\nrequest-id: " in head) == is_anthropic


def test_a_client_may_send_a_request_as_soon_as_a_response_ends(provider: Provider, tmp_path: Path) -> None:
    with running_proxy(tmp_path, WIDE, [at(provider)]) as proxy, connected(proxy) as [connection]:
        for number in range(300):
            body = json.dumps({**BODY, "stream": number % 2 == 0}).encode()
            connection.sendall(request_of(body))
            received = b""
            while not received.endswith((b"\r\n0\r\n\r\n", b"}}", b'"}]}')):
                part = connection.recv(65536)
                assert part, f"closed after {number} responses"
                received += part
            assert received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_whose_body_was_refused_unread_may_send_it_and_the_next_request(
    provider: Provider, tmp_path: Path, chunked: bool
) -> None:
    length, body = b"content-length: 2000", b"x" * 2000
    if chunked:
        length, body = b"transfer-encoding: chunked", b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n"
    with running_proxy(tmp_path, WIDE, [at(provider)]) as proxy, connected(proxy) as [connection]:
        connection.settimeout(20)
        for _ in range(3):
            connection.sendall(b"POST /v1/files HTTP/1.1\r\nhost: x\r\n" + length + b"\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
            connection.sendall(body + request_of(json.dumps(BODY).encode()))  # both arrive in one piece
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_clients_that_disconnect_after_their_request_leave_nothing_behind(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request, long = request_of(json.dumps(BODY).encode()), request_of(body_of(30_000))
    with running_proxy(tmp_path, WIDE, [at(provider)]) as proxy:
        for number in range(200):
            with connected(proxy) as [connection]:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
                connection.sendall(request if number % 2 else long[: 100 * number])
        assert post_chat(proxy).status_code == 200
        server = proxy.server.proxy
        wait_until(lambda: not server.under_way and not server.connections.arriving_bytes)
        assert proxy.count("held") == proxy.count("settled")
        assert not server._clients
    assert "failed in the proxy itself" not in caplog.text
