"""A question and its answer, as the connection and the service hand them to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.http.refusal import PROBLEM_JSON, plain_problem, problem_json

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
PROBLEM = PROBLEM_JSON.encode()

Fields = Sequence[tuple[bytes, bytes]]

PHRASES = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
"""All that the service answers, in the words of RFC 9110 and RFC 6585: those of the standard library change."""


class Question(NamedTuple):
    """A request to the service. `path` is as it was sent, without the query; names of `headers` are in lower case."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    peer: str
    """The address of the peer, "unix" where it has none."""

    body: bytes = b""
    """Only where the service asked for it."""


class Response(NamedTuple):
    """What to send back."""

    status: int
    content_type: bytes
    body: bytes
    headers: Fields = ()


def problem_response(status: int, detail: str, headers: Fields = ()) -> Response:
    """An error of the service's own: a problem body that is only its status, and what is wrong."""
    return Response(status, PROBLEM, problem_json(plain_problem(status, PHRASES[status], detail)), headers)
