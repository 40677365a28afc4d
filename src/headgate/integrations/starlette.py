"""Limits of single routes in Starlette: of endpoints, of routes, of mounts.

    from headgate.integrations.starlette import rate_limit

    @rate_limit("10/second")
    async def search(request): ...

    Mount("/api", routes=[...], middleware=[Middleware(RouteLimit, limits="100/minute")])

`RateLimitHeaders` before an application tells what remains on every response, those of exceptions among them.
What is here is asyncio's: a store is never waited for on the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Unpack

from headgate.decorator import is_coroutine_function
from headgate.errors import ConfigError, MissingExtraError
from headgate.http import asgi
from headgate.http.asgi import (
    ASGIApp,
    AsgiRequest,
    Receive,
    Scope,
    Send,
    refuse_websocket,
    send_refusal,
    settling,
    telling,
)
from headgate.http.server.cors import warn_outside_of_cors
from headgate.http.server.functions import request_of
from headgate.http.server.options import Refusal, Response, RouteOptions
from headgate.http.server.routes import NONE_TOLD, Fronts, LimitsOfRoute, RouteLimits, check_endpoint, exempt, is_exempt
from headgate.integrations.passed import without_content
from headgate.integrations.starlette_record import Passed, RateLimitHeaders, Record
from headgate.integrations.starlette_routes import Found, application_of, find_route

try:
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response as StarletteResponse
    from starlette.websockets import WebSocket
except ModuleNotFoundError as error:
    raise MissingExtraError("headgate.integrations.starlette", extra="starlette") from error

__all__ = ["RateLimitHeaders", "RateLimitMiddleware", "RateLimits", "RouteLimit", "exempt", "rate_limit"]

Endpoint = Callable[..., Any]

_DEPTH = "__headgate_depth__"
"""How many limits stand before an endpoint already."""


class StarletteRequest(AsgiRequest):
    """A request as limits see it; its `own` is Starlette's `Request` or `WebSocket`, given to their functions."""

    __slots__ = ("_own",)

    def __init__(self, scope: Scope, endpoint: str = "", own: HTTPConnection | None = None) -> None:
        super().__init__(scope, endpoint)
        self._own = own

    @property
    def own(self) -> HTTPConnection:
        """The one that the endpoint is given, too, where there is one already."""
        if self._own is None:
            is_websocket = self.scope["type"] == "websocket"
            self._own = WebSocket(self.scope, _no_receive, _no_send) if is_websocket else Request(self.scope)
        return self._own

    def header(self, name: str) -> str:
        """As `request.headers.get`: the first, if a header was sent several times."""
        wanted, alike = name.encode("latin-1", "replace"), ""
        for own, value in self.scope["headers"]:
            if own == wanted:
                return str(value.decode("latin-1").strip())
            if not alike and len(own) == len(wanted) and own.replace(b"_", b"-") == wanted:
                alike = value.decode("latin-1").strip()
        return alike

    def cookie(self, name: str) -> str:
        """As `request.cookies.get`: the last, if a cookie was sent several times."""
        return self.own.cookies.get(name, "").strip()

    def query(self, name: str) -> str:
        """As `request.query_params.get`: the last, if a parameter was sent several times."""
        return self.own.query_params.get(name, "").strip()


async def _no_receive() -> Any:
    raise RuntimeError("a function of a limit reads no messages of a websocket")


async def _no_send(message: Any) -> None:
    raise RuntimeError("a function of a limit sends no messages to a websocket")


@request_of.register
def _(connection: HTTPConnection) -> StarletteRequest:
    scope = connection.scope
    return StarletteRequest(scope, find_route(scope, endpoint=scope.get("endpoint")).template, connection)


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """`headgate.http.asgi.RateLimitMiddleware` whose functions are given Starlette's request."""

    request_kind = StarletteRequest


class RateLimits:
    """Makes limits of routes. What is given here stands for all of them, unless one says otherwise.

    They count in one store, in memory if none is named. Raises ConfigError or TypeError.
    """

    def __init__(self, **defaults: Unpack[RouteOptions]) -> None:
        self.routes = RouteLimits(defaults, asynchronous=True)

    def __call__(
        self, limits: LimitsOfRoute = NONE_TOLD, *, fallback: Endpoint | None = None, **options: Unpack[RouteOptions]
    ) -> Callable[[Endpoint], Endpoint]:
        """Limit an endpoint: a function of a request or a websocket, or a method of an HTTPEndpoint.

        The function may be a plain one, which then runs in a thread as Starlette has it. A refusal is
        answered by `fallback`, another endpoint, if there is one.
        """
        fronts = self.routes.fronts(limits, options)

        def decorate(endpoint: Endpoint) -> Endpoint:
            check_endpoint(endpoint)
            return _limited(endpoint, fronts, fallback)

        return decorate

    async def warm_up(self) -> None:
        """Have the stores that were opened here connect before the first request."""
        await self.routes.warm_up_async()

    async def aclose(self) -> None:
        """Close the stores that were opened here."""
        await self.routes.aclose()


class RouteLimit:
    """A limit before a route, a mount or an application: `middleware=[Middleware(RouteLimit, limits="10/second")]`.

    Each route behind it counts by itself; what finds no route there counts together. `rate_limits` has the
    defaults and the store. `fallback` is an application that answers what is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: LimitsOfRoute = NONE_TOLD,
        *,
        rate_limits: RateLimits | None = None,
        fallback: ASGIApp | None = None,
        **options: Unpack[RouteOptions],
    ) -> None:
        self.app = app
        warn_outside_of_cors(self, app)
        self._fronts = (rate_limits or rate_limit).routes.fronts(limits, options)
        self._fallback = fallback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        found = find_route(scope)
        if is_exempt(found.endpoint):
            await self.app(scope, receive, send)
            return
        record = Record.of(scope)
        place = f"{_place(scope, found)}: {found.template}"
        front = self._fronts.of(application_of(scope))
        passed = await record.judge(front, scope, found.template, self, place, kind=StarletteRequest)
        refusal = passed.refusal
        if refusal is None:
            await _run(self.app, passed, record, scope, receive, send)
        elif scope["type"] == "websocket":
            await refuse_websocket(scope, receive, send, refusal)
        elif self._fallback is not None:
            await self._fallback(scope, receive, telling(send, without_content(refusal)))
        else:
            await send_refusal(send, refusal, "http", head=scope["method"] == "HEAD")


def _place(scope: Scope, found: Found) -> str:
    """Before what a RouteLimit stands."""
    if "router" not in scope:
        return "application"
    return "mount" if found.endpoint is None or found.endpoint is not scope.get("endpoint") else "route"


def _limited(endpoint: Endpoint, fronts: Fronts, fallback: Endpoint | None) -> Endpoint:
    """An endpoint that is asked only when the limit lets a request pass."""
    if inspect.isclass(endpoint):
        raise ConfigError(
            f"{endpoint.__qualname__} is a class: limit its methods, "
            'or its route with middleware=[Middleware(RouteLimit, limits="10/second")]'
        )

    depth = getattr(endpoint, _DEPTH, 0)
    call = endpoint if is_coroutine_function(endpoint) else partial(run_in_threadpool, endpoint)

    @wraps(endpoint)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        connection = _connection(args, kwargs)
        scope = connection.scope
        found = find_route(scope, endpoint=scope.get("endpoint"), by_method=True)
        record = Record.of(scope)
        counted_as = f"{found.template} ({depth + 1})" if depth else ""
        front = fronts.of(application_of(scope))
        passed = await record.judge(
            front, scope, found.template, limited, counted_as, kind=StarletteRequest, own=connection
        )
        refusal = passed.refusal
        if refusal is None:
            if isinstance(connection, WebSocket) or record.watched:
                return await call(*args, **kwargs)
            if front.settles:
                return await _settled(call(*args, **kwargs), passed, record, scope)
            return Wrapped(await call(*args, **kwargs), record.telling)
        if isinstance(connection, WebSocket):
            await refuse_websocket(scope, connection.receive, connection.send, refusal)
            return None
        if fallback is not None:
            told = without_content(refusal)
            return Wrapped(await _call(fallback, args, kwargs), lambda send: telling(send, told))
        return RefusalResponse(refusal, head=scope["method"] == "HEAD")

    setattr(limited, _DEPTH, depth + 1)
    return limited


def _connection(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HTTPConnection:
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, HTTPConnection):
            return argument
    raise ConfigError("an endpoint that is limited receives a request or a websocket")


async def _call(endpoint: Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As Starlette calls it: a plain function in a thread."""
    if is_coroutine_function(endpoint):
        return await endpoint(*args, **kwargs)
    return await run_in_threadpool(endpoint, *args, **kwargs)


async def _settled(answer: Awaitable[Any], passed: Passed, record: Record, scope: Scope) -> Any:
    """What an endpoint answers, with what remains, and settled when it is sent, where no RateLimitHeaders does it."""
    try:
        response = await answer
    except Exception as raised:
        status = raised.status_code if isinstance(raised, HTTPException) else 500
        await asyncio.shield(passed.front.settle_async(passed.request(scope), passed.answer, Response(status, {}, 0)))
        raise
    return Wrapped(response, record.telling, passed)


async def _run(app: ASGIApp, passed: Passed, record: Record, scope: Scope, receive: Receive, send: Send) -> None:
    """Run what a limit let pass, and tell and settle what nobody else does."""
    if record.watched:
        await app(scope, receive, send)
        return
    told = record.telling(send)
    if passed.front.settles:
        await settling(passed.front, passed.request(scope), passed.answer, app, receive, told)
    else:
        await app(scope, receive, told)


class Wrapped(StarletteResponse):
    """A response that says more, and is not changed itself: an endpoint may return the same one again.

    It has the attributes of the response it stands for. `settled` is what is settled when it is sent.
    """

    __slots__ = ("_response", "_settled", "_telling")

    def __init__(self, response: Any, telling: Callable[[Send], Send], settled: Passed | None = None) -> None:
        self.__dict__ = getattr(response, "__dict__", {})
        self._response = response
        self._telling = telling
        self._settled = settled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = self._telling(send)
        settled = self._settled
        if settled is None:
            await self._response(scope, receive, send)
        else:
            await settling(settled.front, settled.request(scope), settled.answer, self._response, receive, send)


class RefusalResponse(StarletteResponse):
    """A refusal as the middleware sends it, byte by byte."""

    def __init__(self, refusal: Refusal, *, head: bool) -> None:
        super().__init__(refusal.body, refusal.status)
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
        named = {name for name, _ in headers}
        self.raw_headers = [*headers, *[field for field in self.raw_headers if field[0] not in named]]
        if head:
            self.body = b""


rate_limit = RateLimits()
"""Limits that count in the memory of each application."""
