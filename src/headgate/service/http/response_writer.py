"""A response as the bytes that go over the wire."""

from __future__ import annotations

from headgate.service.http.messages import PHRASES, Persistence, ServiceResponse

_STATUS_LINES = {status: f"HTTP/1.1 {status} {phrase}\r\ndate: ".encode() for status, phrase in PHRASES.items()}


def encode_response(
    response: ServiceResponse, date: bytes, persistence: Persistence, *, head_only: bool = False
) -> bytes:
    """The bytes of a response; `head_only` leaves out the body, but not its length."""
    status, content_type, body, headers = response
    parts = [_STATUS_LINES[status], date, b"\r\ncontent-length: %d\r\n" % len(body)]
    if body:
        parts += (b"content-type: ", content_type, b"\r\n")
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    if not persistence:
        parts.append(b"connection: close\r\n")
    elif persistence is Persistence.KEEP_AND_ANNOUNCE:
        parts.append(b"connection: keep-alive\r\n")
    parts.append(b"\r\n")
    if not head_only:
        parts.append(body)
    return b"".join(parts)
