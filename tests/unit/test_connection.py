"""A connection answers what was sent, however the network has cut it into pieces."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.service.http.bounds import Bounds
from headgate.service.http.connections import Connections
from headgate.service.http.messages import TEXT, Reply, ServiceRequest, ServiceResponse

PIECES = [
    b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /later?q=/#f HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n",
    b"HEAD /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET /a HTTP/1.0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /later HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;e\r\nab\r\n1\r\nc\r\n0\r\nT: t\r\n\r\n",
    b"PUT /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n" + b"GET /a HTTP/1.1\r\n" + b"x" * 13,
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"GET /a HTTP/1.1\r\n" + b"A: b\r\n" * 20 + b"\r\n",
    b"GET /" + b"a" * 300 + b" HTTP/1.1\r\n\r\n",
    b"\r\n",
    b"GARBAGE\r\n\r\n",
    b"GET ",
    b"\x00\xff",
]


class Wire:
    """The transport of a connection, which stores all written bytes."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str) -> object:
        return ("203.0.113.9", 5)

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class Echo:
    """Responds with the request, at once or later."""

    def wants_body(self, method: str, path: str) -> bool:
        return method == "POST"

    def answer(self, request: ServiceRequest) -> Reply:
        response = ServiceResponse(
            200, TEXT, f"{request.method} {request.path} {len(request.headers)} ".encode() + request.body
        )
        return self._later(response) if request.path == "/later" else response

    async def _later(self, response: ServiceResponse) -> ServiceResponse:
        for _ in range(3):
            await asyncio.sleep(0)
        return response


async def responses_to(data: list[bytes]) -> tuple[bytes, bool]:
    """(written bytes, whether the connection was ended) after these pieces were received."""
    bounds = Bounds(head_bytes=4096, target_bytes=256, fields=16, body_bytes=1000)
    connections = Connections(Echo(), bounds)
    connection, wire = connections(), Wire()
    connection.connection_made(cast(Any, wire))
    for piece in data:
        if wire.closed:
            break
        connection.data_received(piece)
        await asyncio.sleep(0)
    for _ in range(400):
        await asyncio.sleep(0)
    ended = wire.closed or (connection in connections.waiting and not connection._reads)
    connection.connection_lost(None)
    assert (connections.open, connections.waiting, connections.held) == (set(), {}, 0)
    return wire.written, ended


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_answers_do_not_depend_on_how_requests_are_cut(requests: list[bytes], cuts: list[int]) -> None:
    data = b"".join(requests)
    pieces, position, turn = [], 0, 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        pieces.append(data[position : position + size])
        position, turn = position + size, turn + 1
    expected = asyncio.run(responses_to([data] if data else []))
    assert asyncio.run(responses_to(pieces)) == expected


@pytest.mark.parametrize(
    "head", [b"Content-Length: 1001\r\n\r\n" + b"x" * 1001, b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001]
)
def test_a_body_that_is_too_large_ends_the_connection_and_nothing_after_it_is_answered(head: bytes) -> None:
    data = b"POST /a HTTP/1.1\r\nHost: x\r\n" + head + b"\r\nGET /after HTTP/1.1\r\nHost: x\r\n\r\n"
    answered, ended = asyncio.run(responses_to([data]))
    assert answered.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in answered.lower()
    assert ended
    assert answered.count(b"HTTP/1.1 ") == 1
