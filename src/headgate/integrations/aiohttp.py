"""Rate limits of aiohttp's server: of handlers and views, and of whole applications.

    @routes.get("/search")
    @rate_limit("10/second")
    async def search(request): ...

    setup(app, limits="100/minute")

`setup` completes an application: what remains is told on streams and websockets, too, and stores are closed with it.
What is here is asyncio's: a store is never waited for on the event loop. For clients see
`headgate.integrations.aiohttp_client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial, wraps
from inspect import isclass
from itertools import pairwise
from types import coroutine
from typing import Any, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from headgate.errors import ConfigError, MissingExtraError
from headgate.http.server.cors import is_cors, tell_outside_of_cors
from headgate.http.server.enforcer import judge_async
from headgate.http.server.functions import request_of
from headgate.http.server.options import AnyPolicy, Options, Refusal, Response, RouteOptions
from headgate.http.server.routes import (
    NONE_TOLD,
    Fronts,
    LimitsOfRoute,
    RouteLimits,
    application_fronts,
    check_endpoint,
    exempt,
    is_exempt,
)
from headgate.integrations.passed import Entry, Passed
from headgate.policy.gate import AsyncGate
from headgate.policy.request import Request

try:
    from aiohttp import web
    from aiohttp.abc import AbstractView
except ModuleNotFoundError as error:
    raise MissingExtraError("headgate.integrations.aiohttp", extra="aiohttp") from error

__all__ = ["AiohttpRequest", "RateLimitMiddleware", "RateLimits", "exempt", "middleware", "rate_limit", "setup"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Limited = TypeVar("Limited", bound=Callable[..., Any])

# Texts are fine as keys of a request before aiohttp 3.14, and discouraged from then on.
_KEY: Any = web.RequestKey("headgate", Passed) if hasattr(web, "RequestKey") else "headgate"


_DEPTH = "__headgate_depth__"
"""How many limits stand before a handler already."""


class RateLimits:
    """Limits of handlers. What is given here stands for all of them, unless one says otherwise.

    They count in one store, in memory if none is named. Raises ConfigError or TypeError.
    """

    def __init__(self, **defaults: Unpack[RouteOptions]) -> None:
        self._routes = RouteLimits(defaults, asynchronous=True)

    def __call__(
        self,
        limits: LimitsOfRoute = NONE_TOLD,
        *,
        override: bool = False,
        fallback: Handler | None = None,
        **options: Unpack[RouteOptions],
    ) -> Callable[[Limited], Limited]:
        """A decorator of handlers, below the route: of functions, of methods, of class views and of their methods.

        Each route counts by itself, under its whole path as it was written, with the prefixes of nested
        applications. Several limits apply together: what one of them refuses is charged in none. With
        `override` those of the application do not apply. `fallback` is a handler that answers a refusal.
        """
        fronts = self._routes.fronts(limits, options)

        def decorate(handler: Limited) -> Limited:
            check_endpoint(handler)
            limited = _limited(handler, fronts, fallback)
            return cast(Limited, exempt(limited) if override else limited)

        return decorate

    async def warm_up(self) -> None:
        """Have the stores that were opened here connect before the first request."""
        await self._routes.warm_up_async()

    async def aclose(self) -> None:
        """Close the stores that were opened here."""
        await self._routes.aclose()


rate_limit = RateLimits()
"""Limits that count in the memory of each application."""


class AppOptions(Options, total=False):
    """What limits of an application may be told: `Options`, and this."""

    scope: str | Callable[..., str]
    """What is counted together, where `limits` are given [all that the application answers]."""


class RateLimitMiddleware:
    """Judges each request before the handlers of an application, and of those nested in it; 404s among them.

    Handlers that are marked `exempt` are left out. Raises ConfigError or PolicyError; see `middleware`.
    """

    def __init__(
        self,
        policy: AnyPolicy | AsyncGate | None = None,
        *,
        fallback: Handler | None = None,
        **options: Unpack[AppOptions],
    ) -> None:
        # Limits are judged as those of one route: what a narrower one refuses is given back.
        self._fronts = application_fronts(policy, options)
        self._fallback = fallback

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if _is_left_out(request):
            return await handler(request)
        place = f"*{_application_of(self, request)}"
        return await _answer(
            self._fronts, request, endpoint_of(request), lambda: handler(request), self._fallback, self, place
        )

    async def aclose(self) -> None:
        """Close the store, if it was opened here."""
        await self._fronts.any.aclose()

    async def warm_up(self) -> None:
        """Have the store connect before the first request."""
        await self._fronts.any.warm_up_async()


def middleware(
    policy: AnyPolicy | AsyncGate | None = None,
    *,
    fallback: Handler | None = None,
    **options: Unpack[AppOptions],
) -> RateLimitMiddleware:
    """What goes into `web.Application(middlewares=[...])`; `setup` does more.

    Give a `policy` (a file's path, its values, a Policy or an AsyncGate) or `limits`, for each client together,
    and what else `AppOptions` has. `fallback` is a handler that answers what is refused. Alone it tells
    what remains on responses that a handler returns or raises, not on streams and websockets.
    """
    return web.middleware(RateLimitMiddleware(policy, fallback=fallback, **options))


def setup(
    app: web.Application,
    policy: AnyPolicy | AsyncGate | None = None,
    *,
    rate_limits: RateLimits = rate_limit,
    fallback: Handler | None = None,
    **options: Unpack[AppOptions],
) -> None:
    """Complete an application, before it runs: what remains is told on every response, and stores are closed with it.

    With a `policy` or `limits` its `middleware` comes first among those that are there. `rate_limits` are
    those of its handlers.
    """
    if policy is not None or "limits" in options:
        whole = middleware(policy, fallback=fallback, **options)
        app.middlewares.insert(0, whole)
        app.on_startup.append(partial(_look_for_cors, whole))
        app.on_startup.append(lambda app: whole.warm_up())
        app.on_cleanup.append(lambda app: whole.aclose())
    elif options or fallback is not None:
        raise ConfigError("options of an application go with its limits or its policy")
    app.on_response_prepare.append(_tell)
    app.on_startup.append(lambda app: rate_limits.warm_up())
    app.on_cleanup.append(lambda app: rate_limits.aclose())


async def _look_for_cors(limit: RateLimitMiddleware, app: web.Application) -> None:
    """Warn of a middleware for CORS that a refusal does not pass by: the first of a list is the outermost."""
    inside = list(app.middlewares)[list(app.middlewares).index(limit) + 1 :] if limit in app.middlewares else []
    found = next(filter(is_cors, inside), None)
    if found is not None:
        tell_outside_of_cors("the middleware of setup(limits=...)", found)


class AiohttpRequest(Request):
    """A request of aiohttp; its parts are read when they are first asked for."""

    __slots__ = ("_read", "aiohttp")

    aiohttp: web.Request
    """As aiohttp has it."""

    def __init__(self, request: web.Request, endpoint: str) -> None:
        self.aiohttp = request
        self.method = request.method.upper()
        # Not `raw_path`: a client may write a whole URL there.
        self.path = request.rel_url.raw_path_qs or "/"
        self.client_ip = request.remote or ""
        self.endpoint = endpoint
        self._read: Request | None = None
        self._cookies = self._query = None

    @property
    def own(self) -> web.Request:
        """aiohttp's, which functions of limits are given."""
        return self.aiohttp

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """By name in lower case; asked for in any."""
        return self._whole().headers

    def header(self, name: str) -> str:
        """As `request.headers.get`: the first, if a header was sent several times."""
        value = self.aiohttp.headers.get(name)
        return super().header(name) if value is None else value.strip()

    def cookie(self, name: str) -> str:
        """As `request.cookies.get`."""
        return self.aiohttp.cookies.get(name, "").strip()

    def query(self, name: str) -> str:
        """As `request.query.get`: the first, if a parameter was sent several times."""
        return self.aiohttp.query.get(name, "").strip()

    @property
    def host(self) -> str:  # type: ignore[override]
        """What the request names as its host."""
        return self._whole().host

    def _whole(self) -> Request:
        if self._read is None:
            self._read = Request(headers=list(self.aiohttp.headers.items()))
        return self._read


@request_of.register
def _(request: web.Request) -> AiohttpRequest:
    return AiohttpRequest(request, endpoint_of(request))


def endpoint_of(request: web.Request, *, by_method: bool = False) -> str:
    """`GET /api/items/{id}`: the route's whole path as it was written, "" where there is no route.

    A route for any method names none, unless `by_method` asks for the request's.
    """
    route = request.match_info.route
    if route.resource is None:
        return ""
    method = request.method if by_method and route.method == "*" else route.method
    prefix = {"*": "", "HEAD": "GET "}.get(method, f"{method} ")  # aiohttp answers HEAD where it answers GET
    return f"{prefix}{_path_of(route.resource, request.match_info.apps)}"


_paths: WeakKeyDictionary[web.AbstractResource, str] = WeakKeyDictionary()


def _path_of(resource: web.AbstractResource, apps: tuple[web.Application, ...]) -> str:
    """`shop.example/items/{id}`: a resource's path, with the domains of nested applications, which it does not tell."""
    path = _paths.get(resource)
    if path is None:
        domains = "".join(_rule_or_prefix(outer, inner)[0] for outer, inner in pairwise(apps))
        path = _paths[resource] = f"{domains}{resource.canonical}"
    return path


def _rule_or_prefix(outer: web.Application, inner: web.Application) -> tuple[str, str]:
    """The domain, or else the whole prefix, that leads from an application to one nested in it."""
    for nested in outer.router.resources():
        info = cast(Mapping[str, Any], nested.get_info())
        if info.get("app") is inner:
            return ("", info["prefix"]) if "prefix" in info else (info["rule"].canonical, "")
    return "", ""


def _application_of(middleware: RateLimitMiddleware, request: web.Request) -> str:
    """Where the nested application is that has the middleware; "" for the outermost one."""
    apps = request.match_info.apps
    if len(apps) == 1:
        return ""
    place = ""
    for outer, inner in pairwise(apps):
        if middleware in outer.middlewares:
            break
        rule, prefix = _rule_or_prefix(outer, inner)
        place = f"{place}{rule}" if rule else prefix
    return f" of {place}" if place else ""


def _limited(handler: Any, fronts: Fronts, fallback: Handler | None) -> Any:
    """A handler that is asked only when the limit lets a request pass."""
    if isclass(handler):
        if not issubclass(handler, AbstractView):
            raise ConfigError(f"{handler.__qualname__} is no view: limit views, their methods and functions")
        return _limited_view(handler, fronts, fallback)

    depth = getattr(handler, _DEPTH, 0)

    @wraps(handler)
    async def limited(*args: Any, **kwargs: Any) -> web.StreamResponse:
        request, in_view = _request(args)
        endpoint = endpoint_of(request, by_method=in_view)
        counted_as = f"{endpoint} ({depth + 1})" if depth else endpoint
        return await _answer(fronts, request, endpoint, lambda: handler(*args, **kwargs), fallback, limited, counted_as)

    setattr(limited, _DEPTH, depth + 1)
    return limited


def _limited_view(view: type[AbstractView], fronts: Fronts, fallback: Handler | None) -> type[AbstractView]:
    """A view of the same name, whose objects are awaited only when the limit lets a request pass."""

    depth = getattr(view, _DEPTH, 0)

    def awaited(self: AbstractView) -> Generator[Any, None, web.StreamResponse]:
        request = self.request
        endpoint = endpoint_of(request)
        counted_as = f"{endpoint} ({depth + 1})" if depth else endpoint
        return _answer(
            fronts, request, endpoint, lambda: _awaiting(view.__await__(self)), fallback, awaited, counted_as
        ).__await__()

    named = {name: getattr(view, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(view.__name__, (view,), {**named, "__await__": awaited, _DEPTH: depth + 1})


@coroutine
def _awaiting(steps: Generator[Any, None, web.StreamResponse]) -> Generator[Any, None, web.StreamResponse]:
    return (yield from steps)


def _request(args: tuple[Any, ...]) -> tuple[web.Request, bool]:
    """The request that a handler was given, and whether that is in a view's method."""
    for argument in args:
        if isinstance(argument, AbstractView):
            return argument.request, True
        if isinstance(argument, web.Request):
            return argument, False
    raise ConfigError("a handler that is limited receives a request")


async def _answer(
    fronts: Fronts,
    request: web.Request,
    endpoint: str,
    call: Callable[[], Awaitable[web.StreamResponse]],
    fallback: Handler | None,
    by: object,
    counted_as: str,
) -> web.StreamResponse:
    """What becomes of a request: it is handled, told and settled, or refused."""
    judged = AiohttpRequest(request, endpoint)
    passed = _passed(request)
    front = fronts.of(request.match_info.apps[0])
    passed.place(front, by, judged, counted_as)
    answer = await judge_async(front, judged)
    if answer.refusal is not None:
        for entry in reversed(passed.refuse(answer.refusal)):
            await entry.front.take_back_async(entry.request, entry.answer)
        return _told(passed, _refused(answer.refusal) if fallback is None else await fallback(request))
    passed.add(Entry(front, judged, answer, asynchronous=True))
    if not front.settles:
        return await _handled(passed, call)
    said = Response(500, {}, 0)
    try:
        response = await _handled(passed, call)
        if isinstance(response, web.StreamResponse):
            said = _said(response)
        return response
    except web.HTTPException as raised:
        said = _said(raised)
        raise
    finally:
        # The charge is settled even where the client is gone and the task is cancelled.
        await asyncio.shield(front.settle_async(judged, answer, said))


def _passed(request: web.Request) -> Passed:
    """What a request was let through by, a new record if there is none."""
    passed: Passed | None = request.get(_KEY)
    if passed is None:
        passed = request[_KEY] = Passed()
    return passed


async def _handled(passed: Passed, call: Callable[[], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    try:
        return _told(passed, await call())
    except web.HTTPException as raised:  # which is a response
        _told(passed, raised)
        raise


def _told(passed: Passed, response: web.StreamResponse) -> web.StreamResponse:
    """The response with what remains, where its head is not sent yet."""
    if isinstance(response, web.StreamResponse) and not response.prepared:
        passed.tell(response)
    return response


async def _tell(request: web.Request, response: web.StreamResponse) -> None:
    """Tell what remains before a head is sent: also that of a stream, of a websocket, of a fault."""
    passed = request.get(_KEY)
    if passed is not None:
        passed.tell(response)


def _refused(refusal: Refusal) -> web.Response:
    return web.Response(body=refusal.body, status=refusal.status, headers=refusal.headers)


def _said(response: web.StreamResponse) -> Response:
    """What a handler answered, for `counts`."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    body = getattr(response, "body", None)
    body_bytes = len(body) if isinstance(body, bytes | bytearray) else response.body_length
    return Response(response.status, headers, body_bytes)


def _is_left_out(request: web.Request) -> bool:
    handler = request.match_info.handler
    if is_exempt(handler):
        return True
    return isclass(handler) and is_exempt(getattr(handler, request.method.lower(), None))
