"""requests sessions that obey limits: their own before they send, and those that servers announce.

session = requests.Session()
session.mount("https://", RateLimitAdapter("10/second"))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Unpack
from urllib.parse import urlsplit
from weakref import ref

from headgate.errors import MissingExtraError
from headgate.http.client.calls import FailureKind, Sender, ServerResponse, run
from headgate.http.client.errors import library_errors
from headgate.http.client.held_call import HeldCall
from headgate.http.client.options import ClientLimits, Options

try:
    import requests
    from requests.adapters import HTTPAdapter
    from requests.utils import rewind_body
    from urllib3.exceptions import NewConnectionError
except ModuleNotFoundError as error:
    raise MissingExtraError("the adapter for requests", extra="requests") from error


def _picklable_request(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return a copy that can be pickled, without a body that is a file or a generator, and without hooks."""
    copy = request.copy()
    copy.hooks = {}
    if not isinstance(copy.body, str | bytes):
        copy.body = None
    return copy


_convert_error, _error_classes = library_errors(requests.RequestException, __name__, _picklable_request)
globals().update(_error_classes)  # where pickle looks for them


class RateLimitAdapter(HTTPAdapter):
    """Delays, sends and retries the requests of a session for the URLs that it is mounted on.

    `limits` are checked before anything is sent; with None it waits only where a server asks for it.
    `pool_connections`, `pool_maxsize` and `pool_block` are those of requests. `options` are those of
    `headgate.http.client.options`. Raises ConfigError for invalid options; a request raises
    RateLimited, Held or Throttled where nothing was sent, which are requests.RequestExceptions, too.
    """

    def __init__(
        self,
        limits: ClientLimits = None,
        *,
        pool_connections: int = 10,
        pool_maxsize: int = 10,
        pool_block: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._sender = Sender(limits, options, asynchronous=False, convert_error=_convert_error)
        super().__init__(pool_connections, pool_maxsize, pool_block=pool_block)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request when its turn comes, and retry it where that is safe."""
        send = super().send
        adapter = _Adapter(request, lambda: send(request, stream, timeout, verify, cert, proxies))
        url = urlsplit(request.url or "")
        call = self._sender.call(
            request,
            method=request.method or "",
            origin=(str(url.scheme), str(url.hostname or ""), url.port),
            headers=request.headers,
            can_resend=adapter.can_resend,
        )
        response: requests.Response = run(self._sender.steps(call), adapter, self._sender.limiter)
        return response

    def __reduce__(self) -> Any:
        raise TypeError(
            "a RateLimitAdapter cannot be pickled or copied, as its limits would count anew: mount one on the "
            "session in each process"
        )

    def close(self) -> None:
        """Close the connections, and the limiter if it was made here."""
        super().close()
        if self._sender.owned is not None:
            self._sender.owned.close()


class _Adapter:
    """The `LibraryAdapter` of one request."""

    errors = (requests.RequestException,)

    def __init__(self, request: requests.PreparedRequest, send: Callable[[], Any]) -> None:
        self._request = request
        self._send = send
        self._tried = False

    def send(self) -> Any:
        if self._tried and isinstance(getattr(self._request, "_body_position", None), int):
            rewind_body(self._request)
        self._tried = True
        return self._send()

    def buffer(self, response: requests.Response) -> Any:
        try:
            _ = response.content
        finally:
            response.close()
        return response

    def free_when_closed(self, response: requests.Response, held: HeldCall) -> None:
        raw: Any = response.raw
        if getattr(raw, "length_remaining", None) == 0 or not hasattr(raw, "release_conn"):
            held.free()  # there is no body to read, or nothing that signals its end
            return
        reference = ref(raw)  # avoids a reference cycle: a response that is dropped closes its connection at once

        def ending(name: str) -> Callable[[], None]:
            def end_and_free() -> None:
                body = reference()
                try:
                    if body is not None:
                        getattr(type(body), name)(body)
                finally:
                    held.free()

            return end_and_free

        raw.release_conn = ending("release_conn")  # urllib3 calls it when the body has ended, requests when closed
        raw.close = ending("close")  # the reader of a file closes it, and io does when the file is dropped

    def read_response(self, response: requests.Response) -> ServerResponse:
        return ServerResponse(response.status_code, response.headers, response)

    def failure_kind(self, error: Exception) -> FailureKind:
        if isinstance(error, requests.exceptions.SSLError):
            return "final"
        if isinstance(error, requests.ConnectTimeout) or _is_connect_failure(error):
            return "unsent"
        lost = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
        return "lost" if isinstance(error, lost) else "final"

    def can_resend(self) -> bool:
        """Whether the body is bytes, a file that can be rewound, or a generator that was not started."""
        body: Any = self._request.body
        if body is None or isinstance(body, str | bytes):
            return True
        if inspect.isgenerator(body):
            return inspect.getgeneratorstate(body) == inspect.GEN_CREATED
        return isinstance(getattr(self._request, "_body_position", None), int)


def _is_connect_failure(error: Exception) -> bool:
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(error, requests.ConnectionError) and isinstance(reason, NewConnectionError)
