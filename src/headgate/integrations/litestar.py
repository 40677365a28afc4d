"""Rate limits of Litestar's handlers, controllers, routers and whole applications.

    @get("/search", middleware=[rate_limit("10/second")])
    async def search() -> str: ...

    app = Litestar([search], plugins=[RateLimitPlugin(limits="100/minute")])

A limit is a middleware: on any layer, and for each route beneath it by itself. The plugin is for all that an
application answers, what finds no route among it; it shows 429 in OpenAPI, and closes stores with the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict, Unpack
from urllib.parse import unquote

from headgate.errors import MissingExtraError
from headgate.http.asgi import (
    ASGIApp,
    AsgiRequest,
    Message,
    Receive,
    Scope,
    Send,
    Watch,
    refuse_websocket,
    send_refusal,
    telling,
)
from headgate.http.refusal import PROBLEM_JSON
from headgate.http.server.functions import request_of
from headgate.http.server.options import AnyPolicy, Options, Refusal, Response, RouteOptions
from headgate.http.server.routes import (
    NONE_TOLD,
    Fronts,
    LimitsOfRoute,
    RouteLimits,
    application_fronts,
    exempt,
    is_exempt,
)
from headgate.integrations.starlette_record import Passed, Record
from headgate.policy.gate import AsyncGate
from headgate.policy.request import one_of_values

try:
    from litestar.connection import ASGIConnection
    from litestar.exceptions import HTTPException
    from litestar.openapi.datastructures import ResponseSpec
    from litestar.plugins import InitPlugin, ReceiveRoutePlugin
except ModuleNotFoundError as error:
    raise MissingExtraError("headgate.integrations.litestar", extra="litestar") from error

__all__ = ["EXEMPT", "REFUSED", "RateLimit", "RateLimitPlugin", "RateLimits", "exempt", "rate_limit"]

EXEMPT: Mapping[str, Any] = {"headgate_exempt": True}
"""What is not limited, on any layer: `Router("/health", route_handlers=[...], opt=EXEMPT)`."""

Problem = TypedDict(
    "Problem",
    {
        "type": str,
        "title": str,
        "status": int,
        "detail": str,
        "retry-after-ms": NotRequired[int],
        "violated-policies": list[str],
    },
)
"""The body of a refusal (RFC 9457)."""

REFUSED: dict[int, ResponseSpec] = {
    429: ResponseSpec(Problem, generate_examples=False, description="Too Many Requests", media_type=PROBLEM_JSON)
}
"""What a refusal looks like: `responses=REFUSED` shows it in OpenAPI where no RateLimitPlugin does."""


class LitestarRequest(AsgiRequest):
    """A request as limits see it; its `own` is Litestar's `Request` or `WebSocket`, given to their functions.

    Of a header that was sent several times, `request.headers.get` gives the first, and a handler's `headers` are the
    last: as in a plain ASGI application, it is not known which is read.
    """

    __slots__ = ("_own",)

    def __init__(self, scope: Scope, endpoint: str = "", own: Any = None) -> None:
        super().__init__(scope, endpoint)
        self._own = own

    @property
    def own(self) -> Any:
        """Of the class that the application says, if it says one."""
        if self._own is None:
            app = self.scope["litestar_app"]
            kind = app.websocket_class if self.scope["type"] == "websocket" else app.request_class
            self._own = kind(self.scope)
        return self._own

    def cookie(self, name: str) -> str:
        """As `request.cookies.get`, and as a handler's parameter."""
        value: str = self.own.cookies.get(name, "")
        return value.strip()

    def query(self, name: str) -> str:
        """The one value of a parameter; of several, `request.query_params.get` is the first, a handler's the last."""
        values = [value for own, value in self.own.query_params.multi_items() if own == name]
        return one_of_values(values)


@request_of.register(ASGIConnection)
def _(connection: Any) -> LitestarRequest:
    scope = connection.scope
    return LitestarRequest(scope, template_of(scope) if "route_handler" in scope else "", connection)


class RateLimits:
    """Makes limits of routes. What is given here stands for all of them, unless one says otherwise.

    They count in one store, in memory if none is named. Raises ConfigError or TypeError.
    """

    def __init__(self, **defaults: Unpack[RouteOptions]) -> None:
        self._routes = RouteLimits(defaults, asynchronous=True)

    def __call__(
        self,
        limits: LimitsOfRoute = NONE_TOLD,
        *,
        override: bool = False,
        fallback: ASGIApp | None = None,
        **options: Unpack[RouteOptions],
    ) -> RateLimit:
        """A middleware for a handler, or for all routes of a controller, a router or an application.

        Each route counts by itself, under its whole path as it was written; handshakes of websockets count,
        too. Several limits apply together: what one of them refuses is charged in none. With `override`
        those of outer layers do not apply. `fallback` is an ASGI application that answers a refusal.
        """
        return RateLimit(self._routes.fronts(limits, options), override=override, fallback=fallback)

    async def warm_up(self) -> None:
        """Have the stores that were opened here connect before the first request."""
        await self._routes.warm_up_async()

    async def aclose(self) -> None:
        """Close the stores that were opened here."""
        await self._routes.aclose()


rate_limit = RateLimits()
"""Limits that count in the memory of each application."""


class RateLimit:
    """A limit on a layer; made by a `RateLimits`. Litestar calls it once for each route beneath."""

    def __init__(
        self,
        fronts: Fronts,
        *,
        override: bool = False,
        fallback: ASGIApp | None = None,
        websockets: bool = True,
        counted_as: str = "",
    ) -> None:
        self.fronts = fronts
        self.override = override
        self.fallback = fallback
        self.websockets = websockets
        self.counted_as = counted_as
        """What all requests count under; "" for each route by itself."""

    def __call__(self, app: Any) -> Any:
        return _Limited(app, self)

    def __deepcopy__(self, memory: Any) -> RateLimit:
        """The same one: Litestar copies handlers with all that they have, and it is one limit."""
        return self


class PluginOptions(Options, total=False):
    """What limits of an application may be told: `Options`, and this."""

    scope: str | Callable[..., str]
    """What is counted together, where `limits` are given [all that the application answers]."""


class RateLimitPlugin(InitPlugin, ReceiveRoutePlugin):
    """Judges all that an application answers, and completes it: OpenAPI, and stores that are closed with it.

    Give a `policy` (a file's path, its values, a Policy or an AsyncGate) or `limits`, for each client together,
    or neither of them. What finds no route (404, 405) is judged, too. `websockets` judges handshakes.
    `rate_limits` are those of its routes. Raises ConfigError or PolicyError.
    """

    def __init__(
        self,
        policy: AnyPolicy | AsyncGate | None = None,
        *,
        rate_limits: RateLimits = rate_limit,
        websockets: bool = False,
        fallback: ASGIApp | None = None,
        **options: Unpack[PluginOptions],
    ) -> None:
        self._rate_limits = rate_limits
        self._limit: RateLimit | None = None
        if policy is not None or options:
            # Limits are judged as those of one route: what a narrower one refuses is given back.
            fronts = application_fronts(policy, options)
            self._limit = RateLimit(fronts, fallback=fallback, websockets=websockets, counted_as=_ALL)

    def on_app_init(self, app_config: Any) -> Any:
        """Called by Litestar."""
        if self._limit is not None:
            app_config.middleware.insert(0, self._limit)
            app_config.before_send.append(_Unrouted(self._limit.fronts))
            app_config.on_startup.append(self._limit.fronts.any.warm_up_async)
            app_config.on_shutdown.append(self._limit.fronts.any.aclose)
        app_config.on_startup.append(self._rate_limits.warm_up)
        app_config.on_shutdown.append(self._rate_limits.aclose)
        return app_config

    def receive_route(self, route: Any) -> None:
        """Called by Litestar."""
        for handler in getattr(route, "route_handlers", ()):
            applying = [limit for limit in _limits_of(handler) if not _is_left_out(handler)]
            if applying and hasattr(handler, "responses"):
                handler.responses = {**REFUSED, **(handler.responses or {})}


class _Limited:
    """What judges the requests of one route on one layer."""

    def __init__(self, app: ASGIApp, limit: RateLimit) -> None:
        self._app = app
        self._limit = limit
        self._template: str | None = None
        self._applies = True
        self._is_repeated = False
        """Whether the limit is on several layers of the route: it is asked once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._template is None:
            self._template = template_of(scope)
            self._applies = _applies(self._limit, scope["route_handler"])
            self._is_repeated = _limits_of(scope["route_handler"]).count(self._limit) > 1
        kind = scope["type"]
        judged = kind == "http" or (kind == "websocket" and self._limit.websockets)
        if not judged or not self._applies:
            await self._app(scope, receive, send)
            return
        record = Record.of(scope)
        limit = self._limit
        front = limit.fronts.of(_application_of(scope))
        if self._is_repeated and record.has_judged(front):
            await self._app(scope, receive, send)
            return
        passed = await record.judge(front, scope, self._template, limit, limit.counted_as, kind=LitestarRequest)
        refusal = passed.refusal
        if refusal is None:
            await self._run(passed, record, scope, receive, send)
        elif kind == "websocket":
            await refuse_websocket(scope, receive, send, refusal)
        elif self._limit.fallback is not None:
            await self._limit.fallback(scope, receive, telling(send, _without_content(refusal)))
        else:
            await send_refusal(send, refusal, "http", head=scope["method"] == "HEAD")

    async def _run(self, passed: Passed, record: Record, scope: Scope, receive: Receive, send: Send) -> None:
        front = passed.front
        watch = Watch(record.telling(send))
        said: Response | None = None
        try:
            await self._app(scope, receive, watch.send)
        except HTTPException as raised:  # by a middleware between: Litestar answers it outside of all of them
            told = {name.decode("latin-1"): value.decode("latin-1") for name, value in record.fields()}
            raised.headers = {**told, **(raised.headers or {})}
            said = Response(raised.status_code, {name.lower(): value for name, value in raised.headers.items()}, 0)
            raise
        finally:
            if front.settles:
                # The charge is settled even where the client is gone and the task is cancelled.
                await asyncio.shield(front.settle_async(passed.request(scope), passed.answer, said or watch.response()))


class _Unrouted:
    """Judges what finds no route: it is answered before any middleware is asked, so its answer is replaced."""

    def __init__(self, fronts: Fronts) -> None:
        self._fronts = fronts

    async def __call__(self, message: Message, scope: Scope) -> None:
        if "route_handler" in scope or scope["type"] != "http":
            return
        if message["type"] == "http.response.start":
            record = Record.of(scope)
            front = self._fronts.of(_application_of(scope))
            passed = await record.judge(front, scope, "", self, _ALL, kind=LitestarRequest)
            refusal = passed.refusal
            if refusal is None:
                await self._tell(passed, scope, message)
            else:
                scope[_REFUSED] = _replace(message, refusal, head=scope["method"] == "HEAD")
        elif message["type"] == "http.response.body" and _REFUSED in scope:
            message["body"] = scope[_REFUSED]

    async def _tell(self, passed: Passed, scope: Scope, message: Message) -> None:
        watch = Watch(_swallow)
        await telling(watch.send, passed.answer.fields)(message)
        if passed.front.settles:
            await passed.front.settle_async(passed.request(scope), passed.answer, watch.response())


_ALL = "*"
"""What all requests of an application count under."""

_REFUSED = "headgate.refused"


async def _swallow(message: Message) -> None:
    return None


def _replace(message: Message, refusal: Refusal, *, head: bool) -> bytes:
    """Make the head of a refusal of another's; what tells browsers who may read it stays. Gives its body."""
    kept = [
        (name, value) for name, value in message["headers"] if name.startswith(b"access-control-") or name == b"vary"
    ]
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
    length = (b"content-length", b"%d" % len(refusal.body))
    message["status"] = refusal.status
    message["headers"] = [*kept, *headers, *([] if any(name == length[0] for name, _ in headers) else [length])]
    return b"" if head else refusal.body


def _application_of(scope: Scope) -> Any:
    """A part that the application alone has and never replaces: no weak reference to itself is possible."""
    return scope["litestar_app"].registered_route_handler_ids


def template_of(scope: Scope) -> str:
    """`GET /api/items/{id}`: a route's whole path as it was written, a mount's own path for all that is in it."""
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
    """The path of a mount, which Litestar's own template does not tell."""
    sent = scope.get("raw_path") or b""
    path = unquote(sent.decode("latin-1")).removeprefix(scope.get("root_path", ""))
    routes = scope["litestar_app"].routes
    mounts: list[str] = [route.path for route in routes if getattr(route, "route_handler", None) is handler]
    within = [mount for mount in mounts if f"{path}/".startswith(f"{mount.rstrip('/')}/")]
    return max(within or mounts, key=len, default="")


def _limits_of(handler: Any) -> list[RateLimit]:
    """The limits of a handler, from those of the application to its own."""
    return [each for each in reversed(handler.resolve_middleware()) if isinstance(each, RateLimit)]


def _applies(limit: RateLimit, handler: Any) -> bool:
    """Whether a limit applies to a handler: nothing exempts that, and no narrower limit takes its place."""
    if _is_left_out(handler):
        return False
    limits = _limits_of(handler)
    narrower = limits[limits.index(limit) + 1 :] if limit in limits else []
    return not any(other.override and other is not limit for other in narrower)


def _is_left_out(handler: Any) -> bool:
    return bool(handler.opt.get("headgate_exempt")) or is_exempt(getattr(handler, "fn", None))


def _without_content(refusal: Refusal) -> list[tuple[str, str]]:
    return [field for field in refusal.headers if not field[0].lower().startswith("content-")]
