"""Requests that are written to a socket byte by byte, as an attacker would."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import httpx


def connected(url: httpx.URL | str, text: str) -> socket.socket:
    """A connection on which this was sent."""
    port = httpx.URL(url).port
    assert port is not None
    line = socket.create_connection(("127.0.0.1", port), timeout=20)
    line.sendall(text.replace("\n", "\r\n").encode())
    return line


def ask(port: int, target: bytes, lines: Sequence[bytes] = (), method: bytes = b"POST") -> tuple[int, str]:
    """The status and the body of the answer; 0 where the server hangs up."""
    head = [method + b" " + target + b" HTTP/1.1", b"Host: a", b"Connection: close", b"Content-Length: 0", *lines]
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(b"\r\n".join([*head, b"", b""]))
            while part := connection.recv(65536):
                said += part
        except ConnectionError:
            pass
    told, _, body = said.partition(b"\r\n\r\n")
    words = told.split(None, 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    if b"chunked" in told.lower():
        body = body.partition(b"\r\n")[2].partition(b"\r\n")[0]
    return status, body.decode("latin-1").strip()


def answers(port: int) -> bool:
    """Whether a server listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
