"""A request to the service and its response, as the connection and the application exchange them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from headgate.http.refusal import PROBLEM_JSON

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"
PROBLEM = PROBLEM_JSON.encode()

HeaderFields = Sequence[tuple[bytes, bytes]]

PHRASES = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    414: "URI Too Long",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
"""The phrase of each status of the service, from RFC 9110 and RFC 6585: those of the standard library change."""


class ServiceRequest(NamedTuple):
    """A request to the service itself; the request to be checked is a `policy.request.Request`."""

    method: str
    path: str
    """The path as it was sent, without the query."""

    headers: list[tuple[bytes, bytes]]
    """Names are in lower case."""

    peer: str
    """The address of the peer, "unix" where it has none."""

    body: bytes = b""
    """Empty where the application does not want the body."""


class ServiceResponse(NamedTuple):
    """The response to a request to the service."""

    status: int
    content_type: bytes
    body: bytes
    headers: HeaderFields = ()


class Persistence(IntEnum):
    """Whether a connection stays open after a response (RFC 9112, 9.3); true where it does."""

    CLOSE = 0
    KEEP = 1
    KEEP_AND_ANNOUNCE = 2
    """The response has to say so, to a client of HTTP/1.0."""


class WaitingReply:
    """A reply to a request that may wait in line; `leave` ends the wait of a client that is gone."""

    __slots__ = ("_reply", "leave")

    def __init__(self, reply: Awaitable[ServiceResponse], leave: Callable[[], object]) -> None:
        self._reply = reply
        self.leave = leave

    def __await__(self) -> Generator[Any, Any, ServiceResponse]:
        return self._reply.__await__()


Reply = ServiceResponse | Awaitable[ServiceResponse]
"""A response, or an awaitable of it where the store waits for I/O; a WaitingReply if the request may wait in line."""


def replied_as(reply: Reply, later: Awaitable[ServiceResponse]) -> Awaitable[ServiceResponse]:
    """`later`, which is computed from a reply, as a WaitingReply if the reply is one."""
    return WaitingReply(later, reply.leave) if isinstance(reply, WaitingReply) else later


class Application(Protocol):
    """The application that a connection passes its requests to."""

    def wants_body(self, method: str, path: str) -> bool:
        """Whether the body of such a request is read; if not, it is discarded."""
        ...

    def answer(self, request: ServiceRequest) -> Reply:
        """The reply to a request. It raises nothing, not even when it is awaited."""
        ...
