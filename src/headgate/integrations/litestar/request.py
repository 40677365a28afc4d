"""A request of Litestar, as limits see it, and the name of its route."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from litestar.connection import ASGIConnection

from headgate.http.server.asgi_messages import Scope
from headgate.http.server.asgi_request import AsgiRequest, other_paths
from headgate.http.server.functions import request_of
from headgate.policy.request import one_of_values
from headgate.policy.sent_values import sent_text


class LitestarRequest(AsgiRequest):
    """A request as limits see it; `own` is Litestar's `Request` or `WebSocket`, which functions of limits are passed.

    Of a header that was sent several times, `request.headers.get` returns the first, and a handler's `headers` contain
    the last: as in a plain ASGI application, it is not known which one a handler reads.
    """

    __slots__ = ("_own",)

    native_reading = "framework"

    def __init__(self, scope: Scope, endpoint: str = "", own: Any = None) -> None:
        super().__init__(scope, endpoint)
        self._own = own

    @property
    def own(self) -> Any:
        """Litestar's request or websocket, of the application's own class if it has one."""
        if self._own is None:
            app = self.scope["litestar_app"]
            kind = app.websocket_class if self.scope["type"] == "websocket" else app.request_class
            self._own = kind(self.scope)
        return self._own

    def other_paths(self) -> tuple[str, ...]:
        """Return the other forms of the path as it was sent: Litestar replaces `path` by the one it routes by."""
        sent, root = self.scope.get("raw_path"), self.scope.get("root_path")
        path = unquote(sent.decode("latin-1")) if sent else self.scope["path"]
        return other_paths(path, root) if root else ()

    def cookie(self, name: str) -> str:
        """The cookie as `request.cookies.get` returns it, and as a handler's parameter has it."""
        return sent_text(self.own.cookies.get(name, ""))

    def query(self, name: str) -> str:
        """The value of a parameter, unless it was sent with several.

        Of several, `request.query_params.get` returns the first, and a handler gets the last.
        """
        values = [value for sent_name, value in self.own.query_params.multi_items() if sent_name == name]
        return one_of_values(values)


@request_of.register(ASGIConnection)
def _(connection: Any) -> LitestarRequest:
    scope = connection.scope
    return LitestarRequest(scope, template_of(scope) if "route_handler" in scope else "", connection)


def application_of(scope: Scope) -> Any:
    """Return an object that belongs to the application as long as it lives: it cannot be weakly referenced itself."""
    return scope["litestar_app"].registered_route_handler_ids


def template_of(scope: Scope) -> str:
    """Return `GET /api/items/{id}`: a route's whole path as it was written; for any path in a mount, the mount's."""
    handler = scope["route_handler"]
    if scope["type"] == "websocket":
        prefix = "WEBSOCKET "
    else:
        methods = sorted(getattr(handler, "http_methods", ()))
        prefix = f"{','.join(methods)} " if methods else ""
    if getattr(handler, "is_mount", False):
        return f"{prefix}{_mount_of(scope, handler)}"
    return f"{prefix}{scope['path_template']}"


def _mount_of(scope: Scope, handler: Any) -> str:
    """Return the path of a mount, which Litestar's own template does not contain."""
    sent = scope.get("raw_path") or b""
    path = unquote(sent.decode("latin-1")).removeprefix(scope.get("root_path", ""))
    routes = scope["litestar_app"].routes
    mounts: list[str] = [route.path for route in routes if getattr(route, "route_handler", None) is handler]
    within = [mount for mount in mounts if f"{path}/".startswith(f"{mount.rstrip('/')}/")]
    return max(within or mounts, key=len, default="")
