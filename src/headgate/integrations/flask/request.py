"""A request of Flask, as limits see it."""

from __future__ import annotations

from typing import Any, cast

import flask

from headgate.errors import ConfigError
from headgate.http import wsgi
from headgate.http.server.functions import request_of
from headgate.http.wsgi import Environ, WsgiRequest
from headgate.integrations.flask.routing import template_of
from headgate.policy.sent_values import sent_text


class FlaskRequest(WsgiRequest):
    """A request as limits see it; `own` is Flask's request, which functions of limits are passed.

    Servers join a header that was sent several times into one line; Flask reads that line, and so does this class.
    """

    __slots__ = ("_own",)

    native_reading = "framework"

    def __init__(self, environ: Environ, endpoint: str = "", own: flask.Request | None = None) -> None:
        super().__init__(environ, endpoint)
        self._own = own

    @property
    def own(self) -> flask.Request:
        """Flask's current request, if it has this environ; before the application, a request made of the environ."""
        if self._own is None:
            proxy = cast(Any, flask.request)
            is_current = flask.has_request_context() and proxy.environ is self.environ
            self._own = proxy._get_current_object() if is_current else _WithoutBody(self.environ)
        return cast(flask.Request, self._own)

    def cookie(self, name: str) -> str:
        """The cookie as `request.cookies.get` returns it: the first, if it was sent several times."""
        return sent_text(self.own.cookies.get(name, ""))

    def query(self, name: str) -> str:
        """The parameter as `request.args.get` returns it: the first, if it was sent several times."""
        return self.own.args.get(name, "").strip()


class _WithoutBody(flask.Request):
    """A request before the application: it refuses to read the body, which the application could not read again."""

    @property
    def stream(self) -> Any:
        raise ConfigError(
            "a function of RateLimitMiddleware reads no body, of which the application would find nothing left: "
            "limit the view by @rate_limit(...), whose functions may read it"
        )


@request_of.register
def _(request: flask.Request) -> FlaskRequest:
    current = flask.has_request_context() and flask.request.environ is request.environ
    return FlaskRequest(request.environ, template_of() if current else "", request)


class RateLimitMiddleware(wsgi.RateLimitMiddleware):
    """`headgate.http.wsgi.RateLimitMiddleware` whose functions are passed a request of Flask."""

    request_kind = FlaskRequest
