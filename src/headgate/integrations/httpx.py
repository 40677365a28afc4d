"""httpx clients that obey limits: their own before they send, and those that servers announce.

client = httpx.Client(transport=RateLimitTransport("10/second"))
client = httpx.AsyncClient(transport=AsyncRateLimitTransport("10/second"))
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Unpack

from headgate.drive import check_asyncio
from headgate.errors import MissingExtraError
from headgate.http.client.calls import FailureKind, OutgoingRequest, Sender, ServerResponse, run, run_async
from headgate.http.client.errors import library_errors
from headgate.http.client.held_call import HeldCall
from headgate.http.client.options import ClientLimits, Options

try:
    import httpx
except ModuleNotFoundError as error:
    raise MissingExtraError("the transport for httpx", extra="httpx") from error

_convert_error, _error_classes = library_errors(httpx.TransportError, __name__, lambda request: request)
globals().update(_error_classes)  # where pickle looks for them


class RateLimitTransport(httpx.BaseTransport):
    """Delays, sends and retries the requests of a `httpx.Client`.

    `limits` are checked before anything is sent; with None it waits only where a server asks for it. `transport` is
    the one that sends [httpx.HTTPTransport()]; pass options such as `verify`, `http2` and `proxy` to it, not to the
    client. `options` are those of `headgate.http.client.options`. Raises ConfigError for invalid options;
    a request raises RateLimited, Held or Throttled where nothing was sent, which are httpx.TransportErrors, too.
    """

    def __init__(
        self, limits: ClientLimits = None, transport: httpx.BaseTransport | None = None, **options: Unpack[Options]
    ) -> None:
        self._sender = Sender(limits, options, asynchronous=False, convert_error=_convert_error)
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with _Body(request) as body:
            adapter = _Adapter(lambda: self._transport.handle_request(request))
            steps = self._sender.steps(_call(self._sender, request, body))
            response: httpx.Response = run(steps, adapter, self._sender.limiter)
            return response

    def close(self) -> None:
        self._transport.close()
        self._close_limiter()

    def __enter__(self) -> RateLimitTransport:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(exc_type, exc_value, traceback)
        self._close_limiter()

    def _close_limiter(self) -> None:
        if self._sender.owned is not None:
            self._sender.owned.close()


class AsyncRateLimitTransport(httpx.AsyncBaseTransport):
    """`RateLimitTransport` for a `httpx.AsyncClient` on asyncio; a limiter passed as `limits` is an AsyncLimiter."""

    def __init__(
        self, limits: ClientLimits = None, transport: httpx.AsyncBaseTransport | None = None, **options: Unpack[Options]
    ) -> None:
        self._sender = Sender(limits, options, asynchronous=True, convert_error=_convert_error)
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        check_asyncio("AsyncRateLimitTransport is for asyncio, and no event loop of asyncio runs here")
        with _Body(request) as body:
            adapter = _AsyncAdapter(lambda: self._transport.handle_async_request(request))
            steps = self._sender.steps(_call(self._sender, request, body))
            response: httpx.Response = await run_async(steps, adapter, self._sender.limiter)
            return response

    async def aclose(self) -> None:
        await self._transport.aclose()
        await self._close_limiter()

    async def __aenter__(self) -> AsyncRateLimitTransport:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)
        await self._close_limiter()

    async def _close_limiter(self) -> None:
        if self._sender.owned is not None:
            await self._sender.owned.close()


def _call(sender: Sender, request: httpx.Request, body: _Body) -> OutgoingRequest:
    url = request.url
    origin = (url.scheme, url.host, url.port)
    return sender.call(
        request, method=request.method, origin=origin, headers=request.headers, can_resend=body.can_resend
    )


class _Adapter:
    """One request of a transport."""

    errors = (httpx.TransportError,)

    def __init__(self, send: Callable[[], Any]) -> None:
        self.send = send

    def buffer(self, response: httpx.Response) -> Any:
        if response.is_stream_consumed:
            return response  # a transport that responds from a cache, or in tests, has read it
        try:
            return _buffered(response, b"".join(response.iter_raw()))
        finally:
            response.close()

    def free_when_closed(self, response: httpx.Response, held: HeldCall) -> Any:
        if response.is_closed or response.is_stream_consumed:
            return held.free()
        response.stream = _HeldStream(response.stream, held)
        return None

    def read_response(self, response: httpx.Response) -> ServerResponse:
        return ServerResponse(response.status_code, response.headers, response)

    def failure_kind(self, error: Exception) -> FailureKind:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return "final" if _is_certificate_error(error) else "unsent"
        # A full pool is a local problem, and a wrong URL or proxy stays wrong.
        transient = httpx.TimeoutException | httpx.NetworkError | httpx.RemoteProtocolError
        return "lost" if isinstance(error, transient) and not isinstance(error, httpx.PoolTimeout) else "final"


class _HeldStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a response, which holds a place in flight until it is closed."""

    def __init__(self, stream: Any, held: HeldCall) -> None:
        self._stream = stream
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._held.free()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._held.free()


class _AsyncAdapter(_Adapter):
    async def buffer(self, response: httpx.Response) -> Any:
        if response.is_stream_consumed:
            return response
        try:
            return _buffered(response, b"".join([part async for part in response.aiter_raw()]))
        finally:
            await response.aclose()


def _buffered(response: httpx.Response, body: bytes) -> httpx.Response:
    """Return a read response as if it were unread: the client decodes it, and knows when it was closed."""
    return httpx.Response(
        response.status_code, headers=response.headers, stream=httpx.ByteStream(body), extensions=response.extensions
    )


def _is_certificate_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


class _Body:
    """Determines whether a request's body can be sent again; watches a stream that cannot be read twice, in a block."""

    def __init__(self, request: httpx.Request) -> None:
        self._request = request
        self._stream = request.stream
        self._watched: _WatchedStream | None = None

    def __enter__(self) -> _Body:
        if not _replays(self._stream):
            self._watched = self._request.stream = _WatchedStream(self._stream)
        return self

    def __exit__(self, *_: object) -> None:
        self._request.stream = self._stream

    def can_resend(self) -> bool:
        return self._watched is None or not self._watched.is_begun


class _WatchedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that records whether reading it has begun."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.is_begun = False

    def __iter__(self) -> Iterator[bytes]:
        self.is_begun = True
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_begun = True
        async for part in self._stream:
            yield part


def _replays(stream: Any) -> bool:
    """Whether a body can be read again: bytes, and a form whose files can be rewound, as it rewinds them itself."""
    if isinstance(stream, httpx.ByteStream):
        return True
    fields = getattr(stream, "fields", None)
    return isinstance(fields, list) and all(_rewinds(getattr(field, "file", b"")) for field in fields)


def _rewinds(file: Any) -> bool:
    if isinstance(file, str | bytes):
        return True
    seekable = getattr(file, "seekable", None)
    return callable(seekable) and bool(seekable())
