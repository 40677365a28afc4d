"""A request of Starlette or FastAPI, as limits see it."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from headgate.http import asgi
from headgate.http.server.asgi_messages import Scope
from headgate.http.server.asgi_request import AsgiRequest
from headgate.http.server.client_watch import DEPARTURE, ClientWatch
from headgate.http.server.functions import request_of
from headgate.integrations.starlette.places import Places, places
from headgate.policy.sent_values import sent_text


class StarletteRequest(AsgiRequest):
    """A request as limits see it; `own` is Starlette's `Request` or `WebSocket`, which functions of limits get."""

    __slots__ = ("_own",)

    native_reading = "framework"

    def __init__(self, scope: Scope, endpoint: str = "", own: HTTPConnection | None = None) -> None:
        super().__init__(scope, endpoint)
        self._own = own

    @property
    def own(self) -> HTTPConnection:
        """Starlette's request or websocket: the endpoint's own object, where that exists already."""
        if self._own is None:
            is_websocket = self.scope["type"] == "websocket"
            self._own = WebSocket(self.scope, _no_receive, _no_send) if is_websocket else Request(self.scope)
        return self._own

    @property
    def departure(self) -> Any:
        """Signals that the client is gone; where no middleware watches for that, the endpoint's own object does."""
        departure, own = self.scope.get(DEPARTURE), self._own
        if departure is None and isinstance(own, Request | WebSocket):
            departure = self.scope[DEPARTURE] = ClientWatch(own._receive, cancels_receive=True)
            own._receive = departure.receive
        return departure

    def header(self, name: str) -> str:
        """The header as `request.headers.get` returns it: the first, if it was sent several times."""
        wanted, similar = name.encode("latin-1", "replace"), ""
        for sent_name, value in self.scope["headers"]:
            if sent_name == wanted:
                return sent_text(value.decode("latin-1"))
            if not similar and len(sent_name) == len(wanted) and sent_name.replace(b"_", b"-") == wanted:
                similar = sent_text(value.decode("latin-1"))
        return similar

    def cookie(self, name: str) -> str:
        """The cookie as `request.cookies.get` returns it: the last, if it was sent several times."""
        return sent_text(self.own.cookies.get(name, ""))

    def query(self, name: str) -> str:
        """The parameter as `request.query_params.get` returns it: the last, if it was sent several times."""
        return self.own.query_params.get(name, "").strip()


async def _no_receive() -> Any:
    raise RuntimeError("a function of a limit reads no messages of a websocket")


async def _no_send(message: Any) -> None:
    raise RuntimeError("a function of a limit sends no messages to a websocket")


_templates: Places[str] = places(lambda scope, found: found.template, inside=True)


@request_of.register
def _(connection: HTTPConnection) -> StarletteRequest:
    scope = connection.scope
    return StarletteRequest(scope, _templates.of(scope), connection)


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """`headgate.http.asgi.RateLimitMiddleware` whose functions are passed Starlette's request."""

    request_kind = StarletteRequest
