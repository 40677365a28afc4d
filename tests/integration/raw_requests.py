"""Requests that are written to a socket byte by byte, as an attacker would."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import httpx


def connected(url: httpx.URL | str, text: str) -> socket.socket:
    """Connect, send a text, and return the connection."""
    port = httpx.URL(url).port
    assert port is not None
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(text.replace("\n", "\r\n").encode())
    return connection


def request(port: int, target: bytes, lines: Sequence[bytes] = (), method: bytes = b"POST") -> tuple[int, str]:
    """Return the status and the body of the response; 0 where the server closes the connection without one."""
    head = [method + b" " + target + b" HTTP/1.1", b"Host: a", b"Connection: close", b"Content-Length: 0", *lines]
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(b"\r\n".join([*head, b"", b""]))
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass
    response_head, _, body = received.partition(b"\r\n\r\n")
    words = response_head.split(None, 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    if b"chunked" in response_head.lower():
        body = body.partition(b"\r\n")[2].partition(b"\r\n")[0]
    return status, body.decode("latin-1").strip()


def is_listening(port: int) -> bool:
    """Return whether a server listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
