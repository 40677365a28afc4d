"""The front door and the Python service read alike what clients send: one table, both asked on the loopback."""

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
OK, GONE = (200, ""), (404, "")
LAST, BAD = (200, "close"), (400, "close")
Told = tuple[int, str]


def asked(line: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([line, b"Host: x", *fields, b"", body])


def check(target: bytes) -> bytes:
    return asked(b"GET " + target + b" HTTP/1.1")


BEHIND = asked(b"GET /healthz HTTP/1.1")
TARGETS: list[tuple[bytes, Told]] = [
    # Bytes that are no ASCII, of UTF-8 or not.
    (b"/check/default/" + KAESE, OK),
    (b"/check/default/" + KAESE + b"?q=" + KAESE, OK),
    (b"/check-403/default/\xff\xfe", OK),
    (b"/healthz?" + KAESE, OK),
    (b"/" + KAESE, GONE),
    (b"/\xff", GONE),
    (b"/check/" + KAESE, GONE),
    (b"http://h/check/default/" + KAESE, OK),
    (b"http://" + KAESE + b"/healthz", BAD),
    # What is typed, but no character of a URI.
    (b'/check/default/<b>`"', OK),
    (b'/check/default?<b>`"', OK),
    (b"/check/<b>", GONE),
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
    # A fragment, which some cut off, and others read as a part of the path.
    (b"/check/default/health#/../login", BAD),
    (b"/check/default#", BAD),
    (b"http://h/check/default/a#b?c", BAD),
    (b"/check/default?a#b", OK),
    (b"http://h/healthz?a#b", OK),
    (b"ftp://h/healthz", BAD),
    (b"ws://h/healthz", BAD),
    # What is none.
    (b"*", BAD),
    (b"h:80", BAD),
    (b"/a b", BAD),
    (b"/\x7f", BAD),
]
LENGTH, BODY = b"Content-Length: 15", b'{"request": {}}'
OTHERS: list[tuple[str, bytes, list[Told]]] = [
    ("a tunnel", asked(b"CONNECT h:80 HTTP/1.1") + BEHIND, [BAD]),
    ("a tunnel to a path", asked(b"CONNECT /check/default HTTP/1.1") + BEHIND, [BAD]),
    ("a tunnel to health", asked(b"CONNECT /healthz HTTP/1.1") + BEHIND, [BAD]),
    ("an upgrade that is not offered", asked(b"GET /check/default HTTP/1.1", b"Upgrade: h2c") + BEHIND, [OK, OK]),
    ("an upgrade passed on", asked(b"GET /nowhere HTTP/1.1", b"Upgrade: h2c") + BEHIND, [GONE, OK]),
    (
        "an upgrade to nothing",
        asked(b"GET /check/default HTTP/1.1", b"Connection: upgrade", b"Upgrade:") + BEHIND,
        [OK, OK],
    ),
    (
        "an upgrade that is offered",
        asked(b"GET /check/default HTTP/1.1", b"Connection: a, Upgrade", b"Upgrade: h2c") + BEHIND,
        [LAST],
    ),
    (
        "a body behind an upgrade that is not offered",
        asked(b"POST /v1/check HTTP/1.1", b"Upgrade: h2c", LENGTH, body=BODY) + BEHIND,
        [OK, OK],
    ),
    (
        "both words of a connection of HTTP/1.0",
        asked(b"GET /check/default HTTP/1.0", b"Connection: close, keep-alive") + BEHIND,
        [LAST],
    ),
    (
        "another's word of a connection of HTTP/1.0",
        asked(b"GET /check/default HTTP/1.0", b"Proxy-Connection: keep-alive") + BEHIND,
        [LAST],
    ),
    (
        "a connection of HTTP/1.0 that stays",
        asked(b"GET /check/default HTTP/1.0", b"Connection: a ,Keep-Alive") + BEHIND,
        [(200, "keep-alive"), OK],
    ),
    ("a length without end", asked(b"GET /check/default HTTP/1.1", b"Content-Length: " + b"9" * 19), [BAD]),
    ("a length of many zeros", asked(b"GET /check/default HTTP/1.1", b"Content-Length: " + b"0" * 19), [BAD]),
    (
        "a field that is no ASCII",
        asked(b"GET /check/default HTTP/1.1", b"A: " + KAESE) + check(b"/" + KAESE),
        [OK, GONE],
    ),
    (
        "a body that is no ASCII",
        asked(b"POST /v1/check HTTP/1.1", b"Content-Length: 30", body='{"request": {"path": "/ää"}}'.encode())
        + check(b"/check/default/" + KAESE)
        + BEHIND,
        [OK, OK, OK],
    ),
    (
        "chunks that are no ASCII",
        asked(b"POST /v1/check HTTP/1.1", b"Transfer-Encoding: chunked")
        + b"1f\r\n"
        + '{"request": {"path":\r\n\r\n"/ä"}}'.encode()
        + b"\r\n0\r\n\r\n"
        + check(b"/check/default/" + KAESE)
        + BEHIND,
        [OK, OK, OK],
    ),
    (
        "a body behind an upgrade, and no ASCII",
        asked(b"POST /v1/check HTTP/1.1", b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 30")
        + '{"request": {"path": "/ää"}}'.encode()
        + BEHIND,
        [LAST],
    ),
]
CASES = [*((f"{target!r}", check(target), [told]) for target, told in TARGETS), *OTHERS]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningService]]:
    """A service behind the front door, and one of Python alone."""
    file = tmp_path_factory.mktemp("alike") / "policy.yaml"
    file.write_text(POLICY)
    with running_service(file, *FRONTS["door"]) as door, running_service(file, *FRONTS["python"]) as python:
        yield [door, python]


def answers(service: RunningService, sent: bytes, pieces: int) -> list[tuple[int, str, bytes]]:
    """Status, `Connection` and body of each answer to what is sent, in pieces, until the connection ends."""
    host, port = service.url.removeprefix("http://").split(":")
    said = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(sent) // pieces)
        with suppress(BrokenPipeError, ConnectionResetError):  # behind the last request that it reads, it may have gone
            for start in range(0, len(sent), size):
                connection.sendall(sent[start : start + size])
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                said += piece
    told = []
    while said:
        head, _, said = said.partition(b"\r\n\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n"))}
        length = int(fields.get(b"content-length", b"0"))
        body = re.sub(
            rb'("(?:reset_after|retry_after)": |"remaining": |"retry-after-ms":)[^,}]+', rb"\1", said[:length]
        )
        told.append((int(head.split()[1]), fields.get(b"connection", b"").decode(), body))
        said = said[length:]
    return told


@pytest.mark.parametrize(("sent", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_both_give_the_same_answers(both: list[RunningService], sent: bytes, expected: list[Told]) -> None:
    for pieces in (1, len(sent)):  # byte by byte
        door, python = (answers(service, sent, pieces) for service in both)
        assert [one[:2] for one in door] == expected, "the front door"
        assert [one[:2] for one in python] == expected, "Python"
        if expected != [BAD]:  # in which words is for people
            assert door == python


def is_allowed(service: RunningService, request: dict[str, object]) -> bool:
    """Whether a request may pass that a body describes."""
    answer = service.client.post("/v1/check", json={"request": request})
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["allowed"])


def forwarded(service: RunningService, *fields: bytes) -> int:
    """The status that a gateway is told."""
    [answer] = answers(service, asked(b"GET /check/default HTTP/1.1", *fields), 1)
    return answer[0]


@pytest.mark.parametrize("target", ["/shop/käse".encode(), b"http://h/shop/k%C3%A4se"], ids=["bytes", "encoded"])
def test_a_path_is_the_same_however_it_is_sent(both: list[RunningService], target: bytes) -> None:
    for service in both:
        [first] = answers(service, check(b"/check/default/shop/k\xc3\xa4se"), 1)
        assert first[0] in (200, 429)  # by the second target it was asked before
        assert forwarded(service, b"X-Original-URI: " + target) == 429
        assert not is_allowed(service, {"path": "/shop/käse"})
        assert not is_allowed(service, {"path": "/shop/k%c3%a4se"})


@pytest.mark.parametrize("user", ["Jürgen", "Jolà", "JolÅ", "日本", "Größe\u2028"])
def test_a_user_is_the_same_however_the_name_is_told(both: list[RunningService], user: str) -> None:
    sent = user.encode()
    for service in both:
        assert forwarded(service, b"X-Forwarded-Uri: /users", b"X-User: " + sent) == 200
        assert forwarded(service, b"X-Forwarded-Uri: /users", b"X-User: \t" + sent + b" ") == 429
        assert not is_allowed(service, {"path": "/users", "headers": {"X-User": user}})
        assert not is_allowed(service, {"path": "/users", "headers": {"X-User": sent.decode("latin-1")}})


def test_a_name_in_bytes_of_latin_1_is_the_same_as_its_text(both: list[RunningService]) -> None:
    for service in both:
        assert forwarded(service, b"X-Forwarded-Uri: /users", b"X-User: Zo\xeb") == 200
        assert not is_allowed(service, {"path": "/users", "headers": {"X-User": "Zoë"}})


def test_a_policy_matches_what_gateways_send(both: list[RunningService]) -> None:
    for service in both:
        assert forwarded(service, b"X-Plan: " + GROESSE) == 200
        assert forwarded(service, b"X-Plan: " + GROESSE) == 429
        assert not is_allowed(service, {"headers": {"X-Plan": "größe"}})
