"""The front door and the Python service read requests alike: one table of requests, sent to both on the loopback."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from fronts import FRONTS
from running import RunningService, running_service

pytestmark = pytest.mark.integration

POLICY = """\
version: 1
identities:
  user: {header: X-User}
rules:
  - {name: paths, match: {path: /shop/käse}, by: [], limits: 1/hour fixed}
  - {name: users, match: {path: /users}, by: [user], limits: 1/hour fixed}
  - {name: golden, match: {header: {X-Plan: größe}}, by: [], limits: 1/hour fixed}
"""
KAESE, GROESSE = "käse".encode(), "größe".encode()
OK, NOT_FOUND = (200, ""), (404, "")
LAST, BAD = (200, "close"), (400, "close")
Expected = tuple[int, str]


def request_bytes(line: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([line, b"Host: x", *fields, b"", body])


def check(target: bytes) -> bytes:
    return request_bytes(b"GET " + target + b" HTTP/1.1")


NEXT_REQUEST = request_bytes(b"GET /healthz HTTP/1.1")
TARGETS: list[tuple[bytes, Expected]] = [
    # Bytes that are not ASCII, in UTF-8 or not.
    (b"/check/default/" + KAESE, OK),
    (b"/check/default/" + KAESE + b"?q=" + KAESE, OK),
    (b"/check-403/default/\xff\xfe", OK),
    (b"/healthz?" + KAESE, OK),
    (b"/" + KAESE, NOT_FOUND),
    (b"/\xff", NOT_FOUND),
    (b"/check/" + KAESE, NOT_FOUND),
    (b"http://h/check/default/" + KAESE, OK),
    (b"http://" + KAESE + b"/healthz", BAD),
    # Characters that people type, but that a URI may not contain.
    (b'/check/default/<b>`"', OK),
    (b'/check/default?<b>`"', OK),
    (b"/check/<b>", NOT_FOUND),
    (b"http://h/check/default/`", OK),
    (b'http://h/check/default/<b>"', OK),
    (b'http://h/healthz?<b>`"', OK),
    (b"http://h`/healthz", BAD),
    (b'http://"/healthz', BAD),
    # Targets that begin with a host.
    (b"HTTP://h/healthz", OK),
    (b"https://h/healthz", OK),
    (b"http://h_1.a-b/healthz", OK),
    (b"http://h?a", OK),
    (b"http://[::1]/healthz", OK),
    (b"http://[::1]:80/healthz", OK),
    (b"http://h:/healthz", OK),
    (b"http://h:65535/healthz", OK),
    (b"http://h:65536/healthz", BAD),
    (b"http://h:99999/check", BAD),
    (b"http://h:x/check", BAD),
    (b"http://h:+1/healthz", BAD),
    (b"http://h:1:2/healthz", BAD),
    (b"http://user@h/healthz", BAD),
    (b"http://a@b@c/healthz", BAD),
    (b"http://h%41/healthz", BAD),
    (b"http://*/healthz", BAD),
    (b"http:///healthz", BAD),
    (b"http://[::1/healthz", BAD),
    (b"http://h#a", BAD),
    # A fragment, which some servers cut off and others read as a part of the path.
    (b"/check/default/health#/../login", BAD),
    (b"/check/default#", BAD),
    (b"http://h/check/default/a#b?c", BAD),
    (b"/check/default?a#b", OK),
    (b"http://h/healthz?a#b", OK),
    (b"ftp://h/healthz", BAD),
    (b"ws://h/healthz", BAD),
    # Targets that are malformed.
    (b"*", BAD),
    (b"h:80", BAD),
    (b"/a b", BAD),
    (b"/\x7f", BAD),
]
LENGTH, BODY = b"Content-Length: 15", b'{"request": {}}'
OTHER_CASES: list[tuple[str, bytes, list[Expected]]] = [
    ("a tunnel", request_bytes(b"CONNECT h:80 HTTP/1.1") + NEXT_REQUEST, [BAD]),
    ("a tunnel to a path", request_bytes(b"CONNECT /check/default HTTP/1.1") + NEXT_REQUEST, [BAD]),
    ("a tunnel to health", request_bytes(b"CONNECT /healthz HTTP/1.1") + NEXT_REQUEST, [BAD]),
    (
        "an upgrade that is not offered",
        request_bytes(b"GET /check/default HTTP/1.1", b"Upgrade: h2c") + NEXT_REQUEST,
        [OK, OK],
    ),
    ("an upgrade passed on", request_bytes(b"GET /nowhere HTTP/1.1", b"Upgrade: h2c") + NEXT_REQUEST, [NOT_FOUND, OK]),
    (
        "an upgrade to nothing",
        request_bytes(b"GET /check/default HTTP/1.1", b"Connection: upgrade", b"Upgrade:") + NEXT_REQUEST,
        [OK, OK],
    ),
    (
        "an upgrade that is offered",
        request_bytes(b"GET /check/default HTTP/1.1", b"Connection: a, Upgrade", b"Upgrade: h2c") + NEXT_REQUEST,
        [LAST],
    ),
    (
        "a body behind an upgrade that is not offered",
        request_bytes(b"POST /v1/check HTTP/1.1", b"Upgrade: h2c", LENGTH, body=BODY) + NEXT_REQUEST,
        [OK, OK],
    ),
    (
        "both words of a connection of HTTP/1.0",
        request_bytes(b"GET /check/default HTTP/1.0", b"Connection: close, keep-alive") + NEXT_REQUEST,
        [LAST],
    ),
    (
        "another's word of a connection of HTTP/1.0",
        request_bytes(b"GET /check/default HTTP/1.0", b"Proxy-Connection: keep-alive") + NEXT_REQUEST,
        [LAST],
    ),
    (
        "a connection of HTTP/1.0 that stays",
        request_bytes(b"GET /check/default HTTP/1.0", b"Connection: a ,Keep-Alive") + NEXT_REQUEST,
        [(200, "keep-alive"), OK],
    ),
    (
        "chunks announced with a blank behind the word",
        request_bytes(b"POST /v1/check HTTP/1.1", b"Transfer-Encoding: chunked ", b"Connection: keep-alive ")
        + b"f\r\n"
        + BODY
        + b"\r\n0\r\n\r\n"
        + NEXT_REQUEST,
        [OK, OK],
    ),
    (
        "a length with blanks behind it",
        request_bytes(b"POST /v1/check HTTP/1.1", LENGTH + b" " * 20, body=BODY) + NEXT_REQUEST,
        [OK, OK],
    ),
    ("a length without end", request_bytes(b"GET /check/default HTTP/1.1", b"Content-Length: " + b"9" * 19), [BAD]),
    ("a length of many zeros", request_bytes(b"GET /check/default HTTP/1.1", b"Content-Length: " + b"0" * 19), [BAD]),
    (
        "a field that is no ASCII",
        request_bytes(b"GET /check/default HTTP/1.1", b"A: " + KAESE) + check(b"/" + KAESE),
        [OK, NOT_FOUND],
    ),
    (
        "a body that is no ASCII",
        request_bytes(b"POST /v1/check HTTP/1.1", b"Content-Length: 30", body='{"request": {"path": "/ää"}}'.encode())
        + check(b"/check/default/" + KAESE)
        + NEXT_REQUEST,
        [OK, OK, OK],
    ),
    (
        "chunks that are no ASCII",
        request_bytes(b"POST /v1/check HTTP/1.1", b"Transfer-Encoding: chunked")
        + b"1f\r\n"
        + '{"request": {"path":\r\n\r\n"/ä"}}'.encode()
        + b"\r\n0\r\n\r\n"
        + check(b"/check/default/" + KAESE)
        + NEXT_REQUEST,
        [OK, OK, OK],
    ),
    (
        "a body behind an upgrade, and no ASCII",
        request_bytes(b"POST /v1/check HTTP/1.1", b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 30")
        + '{"request": {"path": "/ää"}}'.encode()
        + NEXT_REQUEST,
        [LAST],
    ),
]
CASES = [*((f"{target!r}", check(target), [expected]) for target, expected in TARGETS), *OTHER_CASES]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningService]]:
    """A service behind the front door, and one of Python alone."""
    file = tmp_path_factory.mktemp("alike") / "policy.yaml"
    file.write_text(POLICY)
    with running_service(file, *FRONTS["door"]) as door, running_service(file, *FRONTS["python"]) as python:
        yield [door, python]


def responses_of(service: RunningService, sent: bytes, pieces: int) -> list[tuple[int, str, bytes]]:
    """Send bytes in pieces; return the status, `Connection` and body of each response until the connection ends."""
    host, port = service.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(sent) // pieces)
        # The server may close behind the last request that it reads.
        with suppress(BrokenPipeError, ConnectionResetError):
            for start in range(0, len(sent), size):
                connection.sendall(sent[start : start + size])
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
    responses = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n"))}
        length = int(fields.get(b"content-length", b"0"))
        body = re.sub(
            rb'("(?:reset_after|retry_after)": |"remaining": |"retry-after-ms":)[^,}]+', rb"\1", received[:length]
        )
        responses.append((int(head.split()[1]), fields.get(b"connection", b"").decode(), body))
        received = received[length:]
    return responses


@pytest.mark.parametrize(("sent", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_both_services_give_the_same_responses(
    services: list[RunningService], sent: bytes, expected: list[Expected]
) -> None:
    for pieces in (1, len(sent)):  # byte by byte
        door, python = (responses_of(service, sent, pieces) for service in services)
        assert [response[:2] for response in door] == expected, "the front door"
        assert [response[:2] for response in python] == expected, "Python"
        if expected != [BAD]:  # the words of a refusal are for people, and may differ
            assert door == python


def is_allowed(service: RunningService, request: dict[str, object]) -> bool:
    """Return whether a request described by a body may pass."""
    response = service.client.post("/v1/check", json={"request": request})
    assert response.status_code == 200, response.text
    return bool(response.json()["allowed"])


def forwarded(service: RunningService, *fields: bytes) -> int:
    """Return the status that a gateway receives."""
    [response] = responses_of(service, request_bytes(b"GET /check/default HTTP/1.1", *fields), 1)
    return response[0]


@pytest.mark.parametrize("target", ["/shop/käse".encode(), b"http://h/shop/k%C3%A4se"], ids=["bytes", "encoded"])
def test_a_path_is_the_same_however_it_is_sent(services: list[RunningService], target: bytes) -> None:
    for service in services:
        [first] = responses_of(service, check(b"/check/default/shop/k\xc3\xa4se"), 1)
        assert first[0] in (200, 429)  # a request with the other target may have spent it
        assert forwarded(service, b"X-Original-URI: " + target) == 429
        assert not is_allowed(service, {"path": "/shop/käse"})
        assert not is_allowed(service, {"path": "/shop/k%c3%a4se"})


@pytest.mark.parametrize("user", ["Jürgen", "Jolà", "JolÅ", "日本", "Größe\u2028"])
def test_a_user_is_the_same_however_the_name_is_sent(services: list[RunningService], user: str) -> None:
    sent = user.encode()
    for service in services:
        assert forwarded(service, b"X-Forwarded-Uri: /users", b"X-User: " + sent) == 200
        assert forwarded(service, b"X-Forwarded-Uri: /users", b"X-User: \t" + sent + b" ") == 429
        assert not is_allowed(service, {"path": "/users", "headers": {"X-User": user}})
        assert not is_allowed(service, {"path": "/users", "headers": {"X-User": sent.decode("latin-1")}})


def test_a_name_in_bytes_of_latin_1_is_the_same_as_its_text(services: list[RunningService]) -> None:
    for service in services:
        assert forwarded(service, b"X-Forwarded-Uri: /users", b"X-User: Zo\xeb") == 200
        assert not is_allowed(service, {"path": "/users", "headers": {"X-User": "Zoë"}})


def test_a_policy_matches_what_gateways_send(services: list[RunningService]) -> None:
    for service in services:
        assert forwarded(service, b"X-Plan: " + GROESSE) == 200
        assert forwarded(service, b"X-Plan: " + GROESSE) == 429
        assert not is_allowed(service, {"headers": {"X-Plan": "größe"}})
