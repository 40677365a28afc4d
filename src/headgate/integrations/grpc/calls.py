"""A call of gRPC as limits see it, and what its client is told; see `headgate.integrations.grpc.server`."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

import grpc
from grpc import StatusCode

from headgate.decision import Decision
from headgate.http.refusal import PROBLEM_JSON
from headgate.http.server.exchange import Exchange
from headgate.http.server.options import Refusal, Response
from headgate.policy.request import Request
from headgate.waiting.departure import Departure

Metadata = tuple[tuple[str, str | bytes], ...]

_KEY = re.compile(r"(?!grpc-|content-)[0-9a-z_.-]+(?<!-bin)")
_VALUE = re.compile(r"[\x20-\x7e]*")
_PUSHBACK = "grpc-retry-pushback-ms"
_LONGEST_PUSHBACK_MS = 2**31 - 1
_CODES = {401: StatusCode.UNAUTHENTICATED, 403: StatusCode.PERMISSION_DENIED, 503: StatusCode.UNAVAILABLE}
_OK, _CANCELLED, _UNKNOWN = 0, 1, 2


class GrpcRequest(Request):
    """A call; its parts are read when they are first asked for."""

    __slots__ = ("_peer", "_read", "context", "message")

    context: Any
    """The `grpc.ServicerContext`; its `auth_context()` has the names in the client's certificate."""

    message: Any
    """What was sent, or where that is a stream, its iterator: reading it takes it from the handler."""

    def __init__(self, method: str, endpoint: str, message: Any, context: Any) -> None:
        self.method, self.path, self.endpoint, self.host = "POST", method, endpoint, ""
        self.message, self.context = message, context
        self._peer: str | None = None
        self._read: Request | None = None
        self._cookies = self._query = None

    def invocation_metadata(self) -> Any:
        """What the client sent beside its message, as gRPC has it."""
        return self.context.invocation_metadata()

    def peer(self) -> str:
        """Where the call comes from, as gRPC has it; "" where its client left before this was first asked for.

        Of grpc.aio's context it cannot be read once a call has ended.
        """
        if self._peer is None:
            self._peer = str(self.context.peer())
        return self._peer

    @property
    def time_remaining(self) -> float | None:
        """For how many seconds its client waits; None for ever."""
        remaining: float | None = self.context.time_remaining()
        return remaining

    @property
    def departure(self) -> Departure | None:
        """What tells a thread that the client is gone; on an event loop the task is cancelled then."""
        tell = getattr(self.context, "add_callback", None)
        if tell is None:
            return None
        departure = Departure()
        if tell(departure.leave) is False:  # it is gone already
            departure.leave()
        return departure

    def auth_context(self) -> Any:
        """The names in the client's certificate, as gRPC has them."""
        return self.context.auth_context()

    @property
    def client_ip(self) -> str:  # type: ignore[override]
        """The address of the peer; "" for a Unix socket."""
        return address_of(self.peer())

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """The metadata that are text; asked for in any case."""
        if self._read is None:
            sent = self.context.invocation_metadata() or ()
            self._read = Request(headers=[(key, value) for key, value in sent if isinstance(value, str)])
        return self._read.headers


def address_of(peer: str) -> str:
    """The address in what gRPC calls a peer: `ipv4:203.0.113.9:5123`, `ipv6:%5B2001:db8::1%5D:5123`, `unix:/a`."""
    kind, _, rest = peer.partition(":")
    rest = unquote(rest)
    if kind == "ipv4":
        return rest.partition(":")[0]
    if kind == "ipv6":
        return rest.removeprefix("[").partition("]")[0]
    return "" if kind.startswith("unix") else peer


class CallContext:
    """A handler's context, which adds fields to what the handler says at the end, and sees how that is.

    Of several interceptors the outermost one's does so for all of them: their exchange is one.
    """

    def __init__(self, context: Any, exchange: Exchange) -> None:
        self._context = context
        self._fields: tuple[tuple[str, str], ...] = ()
        self._said: Metadata = ()
        self._code: int | None = None
        self._bytes = 0
        self.exchange = exchange
        self.outermost: CallContext = outermost_of(context) or self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def tell(self, fields: list[tuple[str, str]]) -> None:
        """Add these fields, in place of those that were added before."""
        told = self._fields
        self._fields = metadata_of(fields)
        if told or self._fields:
            self.set_trailing_metadata(self._said)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._said = tuple(trailing_metadata) if trailing_metadata else ()
        said = {key for key, _ in self._said}
        self._context.set_trailing_metadata((*self._said, *[field for field in self._fields if field[0] not in said]))

    def set_code(self, code: Any) -> None:
        self._code = _number(code)
        self._context.set_code(code)

    def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> Any:
        """Of a context of threads it raises, of asyncio it is awaited."""
        self._code = _number(code)
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        return self._context.abort(code, details)

    def abort_with_status(self, status: Any) -> Any:
        return self.abort(status.code, status.details, status.trailing_metadata)

    async def write(self, message: Any) -> None:
        self.saw(message)
        await self._context.write(message)

    def saw(self, message: Any) -> Any:
        """Note a message on its way to the client."""
        size = getattr(message, "ByteSize", None)
        self._bytes += size() if size is not None else len(message) if isinstance(message, bytes) else 0
        return message

    def response(self, failure: BaseException | None) -> Response:
        """What the client is told, where the handler ended so."""
        code = self._code or _OK
        if failure is not None and not code:
            code = _CANCELLED if isinstance(failure, asyncio.CancelledError | GeneratorExit) else _UNKNOWN
        return Response(code, {key: value for key, value in self._said if isinstance(value, str)}, self._bytes)


cast(Any, grpc.ServicerContext).register(CallContext)  # so that isinstance() of a context holds


def outermost_of(context: Any) -> CallContext | None:
    """The context of the outermost interceptor that let the call pass; None where there is none yet."""
    outermost = getattr(context, "outermost", None)
    return outermost if isinstance(outermost, CallContext) else None


def refuse(context: Any, refusal: Refusal, decision: Decision | None) -> Any:
    """End a call that is refused; of a context of threads it raises, of asyncio it is awaited."""
    told = metadata_of(refusal.headers)
    if decision is not None and not decision.allowed:
        # Negative: waiting does not help, so do not try again.
        after_us = decision.retry_after_us
        after_ms = -1 if after_us is None else min(max(1, -(-after_us // 1000)), _LONGEST_PUSHBACK_MS)
        told = (*told, (_PUSHBACK, str(after_ms)))
    context.set_trailing_metadata(told)
    code = _CODES.get(refusal.status, StatusCode.RESOURCE_EXHAUSTED)
    return context.abort(code, _details(refusal.body, dict(refusal.headers).get("Content-Type", "")))


def metadata_of(fields: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Header fields as metadata; those are left out that metadata cannot have."""
    lower = [(name.lower(), value) for name, value in fields]
    return tuple(field for field in lower if _KEY.fullmatch(field[0]) and _VALUE.fullmatch(field[1]))


def _details(body: bytes, content_type: str) -> str:
    if content_type == PROBLEM_JSON:
        detail: str = json.loads(body).get("detail", "")
        return detail
    return body.decode("utf-8", "replace")


def _number(code: Any) -> int:
    """`StatusCode.NOT_FOUND`, or 5."""
    number: int = code.value[0] if isinstance(code, StatusCode) else int(code)
    return number
