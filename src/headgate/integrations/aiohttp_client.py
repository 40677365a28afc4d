"""aiohttp sessions that obey limits: their own before they send, and those that servers announce.

async with ClientSession(middlewares=(RateLimitMiddleware("10/second"),)) as session: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from headgate.errors import ConfigError, MissingExtraError
from headgate.http.client.calls import FailureKind, Sender, ServerResponse, run_async
from headgate.http.client.errors import library_errors
from headgate.http.client.held_call import HeldCall
from headgate.http.client.options import ClientLimits, Options

try:
    import aiohttp
    from aiohttp.http import HttpProcessingError
except ModuleNotFoundError as error:
    raise MissingExtraError("the middleware for aiohttp's client", extra="aiohttp") from error

# A request of aiohttp cannot be pickled: it has an event loop.
_convert_error, _error_classes = library_errors(aiohttp.ClientError, __name__, lambda request: None)
globals().update(_error_classes)  # where pickle looks for them

if TYPE_CHECKING:
    from aiohttp import ClientHandlerType


class RateLimitMiddleware:
    """Delays, sends and retries the requests of a `ClientSession`, or of one call: both take `middlewares=`.

    `limits` are checked before anything is sent; with None it waits only where a server asks for it. A limiter passed
    as `limits` is an AsyncLimiter. `options` are those of `headgate.http.client.options`. Raises ConfigError for
    invalid options, and for an aiohttp before 3.12, which has no middlewares for clients; a request
    raises RateLimited, Held or Throttled where nothing was sent, which are aiohttp.ClientErrors, too.
    """

    def __init__(self, limits: ClientLimits = None, **options: Unpack[Options]) -> None:
        if not hasattr(aiohttp, "ClientHandlerType"):
            raise ConfigError(f"middlewares of a client need aiohttp 3.12 or later, this is {aiohttp.__version__}")
        self._sender = Sender(limits, options, asynchronous=True, convert_error=_convert_error)

    async def __call__(self, request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
        adapter = _Adapter(request, handler)
        url = request.url
        call = self._sender.call(
            request,
            method=request.method,
            origin=(url.scheme, url.host, url.port),
            headers=request.headers,
            can_resend=adapter.can_resend,
        )
        response: aiohttp.ClientResponse = await run_async(self._sender.steps(call), adapter, self._sender.limiter)
        return response

    async def close(self) -> None:
        """Close the limiter if it was made here; a session does not close it."""
        if self._sender.owned is not None:
            await self._sender.owned.close()


class _Adapter:
    """One request of a session."""

    errors = (aiohttp.ClientError,)

    def __init__(self, request: aiohttp.ClientRequest, handler: ClientHandlerType) -> None:
        self._request = request
        self._handler = handler
        self._tried = False

    def send(self) -> Any:
        if self._tried and "Expect" in self._request.headers:
            # The body waits for 100 (Continue) by a future, which ended with the attempt before.
            self._request.update_expect_continue()
        self._tried = True
        return self._handler(self._request)

    async def buffer(self, response: aiohttp.ClientResponse) -> Any:
        await response.read()
        return response

    def free_when_closed(self, response: aiohttp.ClientResponse, held: HeldCall) -> Any:
        if response.connection is None:
            return held.free()
        response.connection.add_callback(held.free_soon)
        return None

    def read_response(self, response: aiohttp.ClientResponse) -> ServerResponse:
        return ServerResponse(response.status, response.headers, response)

    def failure_kind(self, error: Exception) -> FailureKind:
        certificate = aiohttp.ClientSSLError | aiohttp.ServerFingerprintMismatch  # a retry gets the same certificate
        if isinstance(error, certificate):
            return "final"
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return "unsent"
        if isinstance(error.__cause__, HttpProcessingError):  # the response is malformed
            return "lost"
        return "lost" if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError) else "final"

    def can_resend(self) -> bool:
        """Whether the body was not used up; aiohttp rewinds files itself."""
        body: Any = self._request.body
        return not body or isinstance(body, bytes) or not getattr(body, "consumed", True)
