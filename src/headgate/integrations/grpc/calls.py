"""A gRPC call as limits see it, and the metadata and status for its client; see `headgate.integrations.grpc.server`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

import grpc
from grpc import StatusCode

from headgate.decision import Decision
from headgate.http.server.exchange import Exchange
from headgate.http.server.options import Refusal, Response, detail_of
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
    """A call; its parts are read when they are first accessed."""

    __slots__ = ("_peer", "_read", "context", "message")

    context: Any
    """The `grpc.ServicerContext`; its `auth_context()` has the names in the client's certificate."""

    message: Any
    """The client's message; for a stream, its iterator: what a limit reads of it, the handler no longer gets."""

    def __init__(self, method: str, endpoint: str, message: Any, context: Any) -> None:
        self.method, self.path, self.endpoint, self.host = "POST", method, endpoint, ""
        self.message, self.context = message, context
        self._peer: str | None = None
        self._read: Request | None = None
        self._cookies = self._query = None

    def invocation_metadata(self) -> Any:
        """Return the metadata that the client sent with its message, as gRPC represents them."""
        return self.context.invocation_metadata()

    def peer(self) -> str:
        """Return the peer as gRPC writes it; "" where the client left before the first call of this method.

        The context of grpc.aio cannot be asked for it once the call has ended.
        """
        if self._peer is None:
            self._peer = str(self.context.peer())
        return self._peer

    @property
    def time_remaining(self) -> float | None:
        """Seconds for which the client still waits; None where it has no deadline."""
        remaining: float | None = self.context.time_remaining()
        return remaining

    @property
    def departure(self) -> Departure | None:
        """Signals to a thread that the client is gone; on an event loop the task is cancelled instead."""
        add_callback = getattr(self.context, "add_callback", None)
        if add_callback is None:
            return None
        departure = Departure()
        if add_callback(departure.leave) is False:  # the client is gone already
            departure.leave()
        return departure

    def auth_context(self) -> Any:
        """Return the names in the client's certificate, as gRPC represents them."""
        return self.context.auth_context()

    @property
    def client_ip(self) -> str:  # type: ignore[override]
        """The address of the peer; "" for a Unix socket."""
        return address_of(self.peer())

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """The metadata that are text, by name in lower case; a look-up may use any case."""
        if self._read is None:
            sent = self.context.invocation_metadata() or ()
            self._read = Request(headers=[(key, value) for key, value in sent if isinstance(value, str)])
        return self._read.headers


def address_of(peer: str) -> str:
    """Return the address in a gRPC peer: `ipv4:203.0.113.9:5123`, `ipv6:%5B2001:db8::1%5D:5123`, `unix:/a` ("")."""
    kind, _, rest = peer.partition(":")
    rest = unquote(rest)
    if kind == "ipv4":
        return rest.partition(":")[0]
    if kind == "ipv6":
        return rest.removeprefix("[").partition("]")[0]
    return "" if kind.startswith("unix") else peer


class CallContext:
    """A handler's context that adds fields to its trailing metadata, and records its status and the bytes it sends.

    Of several interceptors, the context of the outermost does so for all: they share one exchange.
    """

    def __init__(self, context: Any, exchange: Exchange) -> None:
        self._context = context
        self._fields: tuple[tuple[str, str], ...] = ()
        self._trailing: Metadata = ()
        self._code: int | None = None
        self._bytes = 0
        self.exchange = exchange
        self.outermost: CallContext = outermost_of(context) or self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def set_fields(self, fields: list[tuple[str, str]]) -> None:
        """Add these fields, in place of those that were added before."""
        replaced = self._fields
        self._fields = metadata_of(fields)
        if replaced or self._fields:
            self.set_trailing_metadata(self._trailing)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the handler's own trailing metadata, and the fields that they do not contain."""
        self._trailing = tuple(trailing_metadata) if trailing_metadata else ()
        keys = {key for key, _ in self._trailing}
        self._context.set_trailing_metadata(
            (*self._trailing, *[field for field in self._fields if field[0] not in keys])
        )

    def set_code(self, code: Any) -> None:
        self._code = _number(code)
        self._context.set_code(code)

    def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> Any:
        """End the call with a status; raises in a thread, is awaited in asyncio."""
        self._code = _number(code)
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        return self._context.abort(code, details)

    def abort_with_status(self, status: Any) -> Any:
        return self.abort(status.code, status.details, status.trailing_metadata)

    async def write(self, message: Any) -> None:
        self.count(message)
        await self._context.write(message)

    def count(self, message: Any) -> Any:
        """Count the bytes of a message on its way to the client; return the message."""
        size = getattr(message, "ByteSize", None)
        self._bytes += size() if size is not None else len(message) if isinstance(message, bytes) else 0
        return message

    def response(self, failure: BaseException | None) -> Response:
        """Return the response to the client, given the error with which the handler ended, if any."""
        code = self._code or _OK
        if failure is not None and not code:
            code = _CANCELLED if isinstance(failure, asyncio.CancelledError | GeneratorExit) else _UNKNOWN
        return Response(code, {key: value for key, value in self._trailing if isinstance(value, str)}, self._bytes)


cast(Any, grpc.ServicerContext).register(CallContext)  # so that it is an instance of ServicerContext


def outermost_of(context: Any) -> CallContext | None:
    """Return the context of the outermost interceptor that let the call pass; None where there is none yet."""
    outermost = getattr(context, "outermost", None)
    return outermost if isinstance(outermost, CallContext) else None


def refuse(context: Any, refusal: Refusal, decision: Decision | None) -> Any:
    """End a call that is refused; raises in a thread, is awaited in asyncio."""
    metadata = metadata_of(refusal.headers)
    if decision is not None and not decision.allowed:
        # A negative pushback says not to retry: waiting does not help.
        after_us = decision.retry_after_us
        after_ms = -1 if after_us is None else min(max(1, -(-after_us // 1000)), _LONGEST_PUSHBACK_MS)
        metadata = (*metadata, (_PUSHBACK, str(after_ms)))
    context.set_trailing_metadata(metadata)
    code = _CODES.get(refusal.status, StatusCode.RESOURCE_EXHAUSTED)
    detail = detail_of(refusal)
    return context.abort(code, refusal.body.decode("utf-8", "replace") if detail is None else detail)


def metadata_of(fields: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return header fields as metadata, without those that metadata cannot contain."""
    lower = [(name.lower(), value) for name, value in fields]
    return tuple(field for field in lower if _KEY.fullmatch(field[0]) and _VALUE.fullmatch(field[1]))


def _number(code: Any) -> int:
    """Return the number of a status code: 5 for `StatusCode.NOT_FOUND` or 5."""
    number: int = code.value[0] if isinstance(code, StatusCode) else int(code)
    return number
