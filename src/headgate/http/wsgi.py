"""Rate limits in front of a WSGI application: Flask, Django, Pyramid, Bottle, or one of your own.

    app = RateLimitMiddleware(app, limits="100/minute")
    flask_app.wsgi_app = RateLimitMiddleware(flask_app.wsgi_app, policy="policy.yaml")

The middleware imports no framework, and returns the application's own iterable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Unpack

from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.http.server.callables import WsgiCallable
from headgate.http.server.counted_parts import CountedParts
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.exchange import Exchange
from headgate.http.server.inner_applications import is_before
from headgate.http.server.nested_enforcers import JUDGED_PLACES, nested, outer_exchanges, store_exchange
from headgate.http.server.options import Options, Response, check_fallback
from headgate.http.server.wsgi_messages import (
    Environ,
    StartResponse,
    WSGIApp,
    python_start_with_fields,
    send_refusal,
    start_with_fields,
    unstored,
)
from headgate.policy.gate import AnyPolicy, Gate
from headgate.policy.headers import Headers
from headgate.policy.request import Request, one_value, path_text, target_text
from headgate.policy.subject import RootedPath

__all__ = [
    "Environ",
    "RateLimitMiddleware",
    "StartResponse",
    "WSGIApp",
    "WsgiRequest",
    "python_start_with_fields",
    "start_with_fields",
]

_WITHOUT_HTTP = ("content-type", "content-length")


class RateLimitMiddleware(WsgiCallable):
    """Decides each request before `app` sees it; a refused one never reaches it.

    Pass a `policy` (a file's path, its values, a Policy or a Gate) or `limits`, and any other of
    `headgate.http.server.options.Options`. Rules see the whole path, including the prefix of a
    mount. `fallback` is an application that answers refused requests, perhaps from a cache.
    Raises ConfigError or PolicyError.
    """

    request_kind: ClassVar[type[WsgiRequest]]
    """The class of the request that limits see; an integration's wraps its framework's request."""

    def __init__(
        self,
        app: WSGIApp,
        policy: AnyPolicy | Gate | None = None,
        *,
        fallback: WSGIApp | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.app = app
        self._is_outer = policy is None and is_before(RateLimitMiddleware, app)
        self._enforcer = Enforcer(
            policy,
            options,
            asynchronous=False,
            keeps_charges=self._is_outer,
            kind=self.request_kind,
            owner_name=type(self).__name__,
        )
        self._nested = nested(self._enforcer, options, asynchronous=False)
        self._direct = self._enforcer if self._nested is None and not self._is_outer else None
        self._fallback = check_fallback(fallback)

    def _judge(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        enforcer: Enforcer = self._enforcer
        decided: Any = None
        if self._nested is not None:
            if JUDGED_PLACES not in environ:
                environ[JUDGED_PLACES] = self._nested.first_places
            else:
                enforcer = self._nested.enforcer(environ)
        if enforcer.decide_natively is not None and not self._is_outer:
            try:
                decided = enforcer.decide_natively(environ, start_response)
            except StoreError as error:
                decided = error
            if callable(decided):
                return self.app(environ, decided)
        return self._judge_rest(environ, start_response, enforcer, decided)

    def _judge_rest(
        self, environ: Environ, start_response: StartResponse, enforcer: Enforcer, decided: Any
    ) -> Iterable[bytes]:
        request = self.request_kind(environ)
        if not enforcer.settles and not self._is_outer:
            if decided is None:
                try:
                    decided = enforcer.decide(request)
                except StoreError as error:
                    decided = error
                if decided is None:
                    return self.app(environ, start_response)
            # Most requests pass at once, and nothing has to be settled: they need no exchange.
            fields = enforcer.passing_fields(decided) if type(decided) is Decision and decided.allowed else None
            if fields is not None:
                return self.app(environ, start_with_fields(start_response, fields) if fields else start_response)
        exchange = Exchange()
        judgement = exchange.judge(enforcer, request, self, "", decided, environ if self._is_outer else None)
        refusal = judgement.refusal
        if refusal is not None:
            for outer in outer_exchanges(environ, self):
                outer.take_back()
        elif self._is_outer:
            store_exchange(environ, exchange, self)
        if refusal is not None and self._fallback is None:
            return send_refusal(start_response, refusal, head=environ["REQUEST_METHOD"] == "HEAD")
        fields = exchange.fields() if judgement.fields is None else judgement.fields
        if refusal is not None and self._fallback is not None:
            return self._fallback(environ, start_with_fields(unstored(start_response), fields))
        start = start_with_fields(start_response, fields) if fields else start_response
        return _ending(exchange, self.app, environ, start) if enforcer.settles else self.app(environ, start)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._enforcer.close()


class WsgiRequest(Request):
    """The request of an environ; its headers are read when they are first accessed."""

    __slots__ = ("_environ", "_headers")

    native_reading: ClassVar[str] = "sent"
    """See `headgate.http.asgi.AsgiRequest`."""

    def __init__(self, environ: Environ, endpoint: str = "") -> None:
        self._environ = environ
        self._headers: EnvironHeaders | None = None
        self._cookies = None
        self._query = None
        self.method = environ["REQUEST_METHOD"].upper()
        path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1")
        query = environ.get("QUERY_STRING", "")
        self.path = path_text(path) or "/"
        if query:
            self.path += f"?{query if query.isascii() else target_text(query.encode('latin-1', 'replace'))}"
        inner = inner_path(environ)
        if inner:
            self.path = RootedPath(self.path, (inner,))
        self.client_ip = environ.get("REMOTE_ADDR", "")
        self.endpoint = endpoint  # a middleware stands before the routes, and knows none

    @property
    def environ(self) -> Environ:
        """The environ from the server."""
        return self._environ

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """The headers, by name in lower case; a look-up may use any case."""
        headers = self._headers
        if headers is None:
            headers = self._headers = EnvironHeaders(self._environ)
        return headers

    def header(self, name: str) -> str:
        """Return the value of a header; see `Request`."""
        return one_value(self.headers, name)

    @property
    def host(self) -> str:  # type: ignore[override]
        """The host that the request names."""
        host: str = self._environ.get("HTTP_HOST") or self._environ.get("SERVER_NAME", "")
        return host


RateLimitMiddleware.request_kind = WsgiRequest


def inner_path(environ: Environ) -> str:
    """Return the path without a mount that a header contains, percent-encoded; "" where no header does.

    gunicorn reads the mount from a header SCRIPT_NAME of a proxy, and some proxies pass on such a header of a client.
    """
    mount, sent = environ.get("SCRIPT_NAME"), environ.get("HTTP_SCRIPT_NAME")
    if not mount or not sent:
        return ""
    excess = len(sent) - len(mount)
    if excess > 0:  # of several lines gunicorn uses the last: the lines before it need not be read
        sent = sent[excess - 1 :].partition(",")[2]
    while not mount.startswith(sent):
        sent = sent.partition(",")[2]
    inner = mount[len(sent) :] + environ.get("PATH_INFO", "")
    return path_text(inner.encode("latin-1")) or "/" if sent else ""


class EnvironHeaders(Mapping[str, str]):
    """The headers of an environ, by name in lower case, looked up in any case; each look-up reads the environ."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Environ) -> None:
        self._environ = environ

    def __getitem__(self, name: str) -> str:
        value = self._environ.get(_environ_name(name)) if isinstance(name, str) else None
        # A server may set CONTENT_TYPE and CONTENT_LENGTH to empty text where there is none (PEP 3333).
        if not isinstance(value, str) or (not value and name.lower() in _WITHOUT_HTTP):
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        for name, value in self._environ.items():
            if name.startswith("HTTP_") and isinstance(value, str):
                yield name[5:].replace("_", "-").lower()
        yield from (name for name in _WITHOUT_HTTP if self._environ.get(_environ_name(name)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@lru_cache(1024)
def _environ_name(name: str) -> str:
    upper = name.upper().replace("-", "_")
    return upper if name.lower() in _WITHOUT_HTTP else f"HTTP_{upper}"


def _ending(exchange: Exchange, app: WSGIApp, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Run the application, and end the exchange with its response; one that fails has answered 500."""
    head: list[Any] = ["500 ", []]
    written_bytes = 0

    def watching(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        head[:] = status, headers
        write = start_response(status, headers, *error)

        def counting(part: bytes) -> Any:  # the interface of applications before iterables (PEP 3333)
            nonlocal written_bytes
            written_bytes += len(part)
            return write(part)

        return counting

    def end(body_bytes: int) -> None:
        headers = Headers({name.lower(): value for name, value in head[1]})
        exchange.end(Response(int(head[0].split(" ")[0]), headers, written_bytes + body_bytes))

    try:
        parts = app(environ, watching)
    except BaseException:
        end(0)
        raise
    return CountedParts(parts, end)
