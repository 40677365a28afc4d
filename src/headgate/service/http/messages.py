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
"""Every status of the service, in the words of RFC 9110 and RFC 6585: those of the standard library change."""


class ServiceRequest(NamedTuple):
    """A request to the service; the request that it asks about is a `policy.request.Request`."""

    method: str
    path: str
    """As it was sent, without the query."""

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
    KEEP_AND_SAY = 2
    """A client of HTTP/1.0 has to be told."""


class WaitingReply:
    """A reply to a request that may wait in line; `leave` tells that its client is gone, and lets it wait no longer."""

    __slots__ = ("_reply", "leave")

    def __init__(self, reply: Awaitable[ServiceResponse], leave: Callable[[], object]) -> None:
        self._reply = reply
        self.leave = leave

    def __await__(self) -> Generator[Any, Any, ServiceResponse]:
        return self._reply.__await__()


Reply = ServiceResponse | Awaitable[ServiceResponse]
"""A response, or an awaitable of it where the store waits for I/O, or the request in line: then a WaitingReply."""


def replied_as(reply: Reply, later: Awaitable[ServiceResponse]) -> Awaitable[ServiceResponse]:
    """What is made of a reply later, which waits as that does."""
    return WaitingReply(later, reply.leave) if isinstance(reply, WaitingReply) else later


class Application(Protocol):
    """What a connection hands its requests to."""

    def wants_body(self, method: str, path: str) -> bool:
        """Whether the body of such a request is read; if not, it is thrown away."""
        ...

    def answer(self, request: ServiceRequest) -> Reply:
        """The reply to a request; it does not raise, neither when awaited."""
        ...
