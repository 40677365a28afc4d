"""Rate limits before a WSGI application: Flask, Django, Pyramid, Bottle, or one of your own.

    app = RateLimitMiddleware(app, limits="100/minute")
    flask_app.wsgi_app = RateLimitMiddleware(flask_app.wsgi_app, policy="policy.yaml")

A pure class: it imports no framework, and hands on the application's own iterable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from threading import Event
from typing import Any, Unpack, cast
from urllib.parse import quote

from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.http.front import AnyPolicy, Front, Options, Refusal
from headgate.policy.gate import Gate
from headgate.policy.request import Request

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]

_IN_A_PATH = "/%:@!$&'()*+,;=~"


class RateLimitMiddleware:
    """Judges each request before `app` sees it; one that is refused never gets there.

    Give a `policy` (a file's path, its values, a Policy or a Gate) or `limits`, and what else
    `headgate.http.front.Options` has. Requests are counted by their whole path, with the part that a
    mount took off. Raises ConfigError or PolicyError.
    """

    def __init__(self, app: WSGIApp, policy: AnyPolicy | Gate | None = None, **options: Unpack[Options]) -> None:
        self.app = app
        self._front = Front(policy, options, asynchronous=False)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        front, request = self._front, WsgiRequest(environ)
        try:
            decision = cast(Decision | None, front.ask(request))
        except StoreError as error:
            refusal, fields, delay_us = front.without_store(error)
        else:
            if decision is None:
                return self.app(environ, start_response)
            refusal, fields, delay_us = front.answer(request, decision)
        if delay_us:
            Event().wait(front.clock.let_pass(delay_us))
        if refusal is None:
            return self.app(environ, _telling(start_response, fields) if fields else start_response)
        return _answer(start_response, refusal, head=request.method == "HEAD")

    def close(self) -> None:
        """Close the store, if it was opened here."""
        for each in self._front.close():
            each.close()


class WsgiRequest(Request):
    """The request of an environ; its headers are read when somebody asks for them."""

    __slots__ = ("_environ", "_read")

    def __init__(self, environ: Environ) -> None:
        self._environ = environ
        self._read: Request | None = None
        self._cookies = None
        self._query = None
        self.method = environ["REQUEST_METHOD"].upper()
        # What a server has decoded is encoded again: the policy decodes it, once.
        path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1")
        asked = environ.get("QUERY_STRING", "")
        self.path = quote(path, safe=_IN_A_PATH.replace("%", "")) or "/"
        if asked:
            self.path += f"?{asked}"
        self.client_ip = environ.get("REMOTE_ADDR", "")
        self.endpoint = ""

    @property
    def environ(self) -> Environ:
        """The environ as the server gave it."""
        return self._environ

    @property
    def headers(self) -> Any:  # type: ignore[override]
        """By name in lower case."""
        return self._whole().headers

    @property
    def host(self) -> str:  # type: ignore[override]
        """What the request names as its host."""
        return self._whole().host or self._environ.get("SERVER_NAME", "")

    def _whole(self) -> Request:
        if self._read is None:
            pairs = [
                (name[5:].replace("_", "-"), value)
                for name, value in self._environ.items()
                if name.startswith("HTTP_") and isinstance(value, str)
            ]
            for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
                if self._environ.get(name):
                    pairs.append((name.replace("_", "-"), self._environ[name]))
            self._read = Request(headers=pairs)
        return self._read


def _telling(start_response: StartResponse, fields: list[tuple[str, str]]) -> StartResponse:
    """Add fields to the head of the response; one that the application wrote itself stays as it is."""

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        names = {name.lower() for name, _ in headers}
        return start_response(status, headers + [field for field in fields if field[0].lower() not in names], *error)

    return start


def _answer(start_response: StartResponse, refusal: Refusal, *, head: bool) -> Iterable[bytes]:
    headers = list(refusal.headers)
    if not any(name.lower() == "content-length" for name, _ in headers):
        headers.append(("Content-Length", str(len(refusal.body))))
    try:
        phrase = HTTPStatus(refusal.status).phrase
    except ValueError:
        phrase = "Refused"
    start_response(f"{refusal.status} {phrase}", headers)
    return [b"" if head else refusal.body]
