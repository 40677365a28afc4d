"""Limits of endpoints, routes and mounts of Starlette."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Unpack

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from headgate import core
from headgate.decorator import is_coroutine_function
from headgate.errors import ConfigError, StoreError, kind_of
from headgate.http.server.asgi_messages import (
    ASGIApp,
    Receive,
    Scope,
    Send,
    encode_fields,
    refuse,
)
from headgate.http.server.client_watch import watching
from headgate.http.server.cors import warn_outside_of_cors
from headgate.http.server.exchange import Judgement
from headgate.http.server.fallback_errors import error_with_fields
from headgate.http.server.options import Refusal, Response, RouteOptions, check_fallback, without_content
from headgate.http.server.routes import (
    DEPTH,
    MISSING_LIMITS,
    ApplicationEnforcers,
    AsyncRouteLimits,
    LimitsOfRoute,
    RoutePlace,
    check_endpoint,
    is_exempt,
    route_place,
)
from headgate.http.server.scope_exchange import RoutePassed, ScopeExchange, exchange_at, exchange_of, new_exchange
from headgate.integrations.starlette.placement import watch
from headgate.integrations.starlette.places import Places, places
from headgate.integrations.starlette.request import StarletteRequest
from headgate.integrations.starlette.responses import (
    FallbackResponse,
    RefusalResponse,
    refuse_or_close,
    sends_its_fields,
    with_fields,
    with_fields_of,
)
from headgate.integrations.starlette.routing import Found, application_of
from headgate.integrations.starlette.websockets import connected

Endpoint = Callable[..., Any]

_ROUTE = "route"


class RateLimits(AsyncRouteLimits):
    """Makes limits of routes. Options given here are the defaults of all of them.

    They count in one store, in memory if none is named. Raises ConfigError or TypeError.
    """

    def __call__(
        self,
        limits: LimitsOfRoute = MISSING_LIMITS,
        *,
        fallback: Endpoint | None = None,
        **options: Unpack[RouteOptions],
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator of endpoints: of functions of a request or a websocket, or methods of an HTTPEndpoint.

        A plain function runs in a thread, as it does in Starlette. `fallback` is another endpoint that answers a
        refusal.
        """
        check_fallback(fallback)
        enforcers = self.routes.enforcers(limits, options)

        def decorate(endpoint: Endpoint) -> Endpoint:
            check_endpoint(endpoint)
            limited = _limited(endpoint, enforcers, fallback)
            watch(limited, endpoint)
            return limited

        return decorate


class RouteLimit:
    """A limit of a route, a mount or an application: `middleware=[Middleware(RouteLimit, limits="10/second")]`.

    Each route inside it counts by itself; requests without a route count together. `rate_limits` has the defaults and
    the store. `fallback` is an application that answers refused requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: LimitsOfRoute = MISSING_LIMITS,
        *,
        rate_limits: RateLimits | None = None,
        fallback: ASGIApp | None = None,
        **options: Unpack[RouteOptions],
    ) -> None:
        self.app = app
        warn_outside_of_cors(self, app)
        self._enforcers = (rate_limits or rate_limit).routes.enforcers(limits, options)
        self._places: Places[Found] = places(_found, inside=False)
        self._fallback = check_fallback(fallback)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        found = self._places.of(scope)
        if _is_excluded(found.endpoint, scope):
            await self.app(scope, receive, send)
            return
        layer = _layer(scope, found)
        if layer == _ROUTE:
            exchange = exchange_at(scope, found.endpoint, self)
        elif (exchange := exchange_of(scope)).has_judged(self):  # the application calls itself
            exchange = new_exchange(scope)
        place = f"{layer}: {found.template}"
        enforcer = self._enforcers.of(application_of(scope))
        if enforcer.waits:
            receive = watching(scope, receive)
        judged = exchange.judge_route(enforcer, scope, StarletteRequest, found.template, self, place)
        judgement = judged if isinstance(judged, Judgement) else await judged
        if judgement.refusal is None:
            await exchange.run(self.app, scope, receive, send)
            return
        try:
            await refuse(judgement.refusal, scope, receive, send, self._fallback)
        except HTTPException as raised:
            raise error_with_fields(raised, judgement.refusal) from raised


def _found(scope: Scope, found: Found) -> Found:
    return found


def _is_excluded(endpoint: Any, scope: Scope) -> bool:
    """Whether an endpoint is exempt, or the method of its class that answers the request."""
    if is_exempt(endpoint):
        return True
    if not inspect.isclass(endpoint) or scope["type"] != "http":
        return False
    method = "get" if scope["method"] == "HEAD" and not hasattr(endpoint, "head") else scope["method"].lower()
    return is_exempt(getattr(endpoint, method, None))


def _layer(scope: Scope, found: Found) -> str:
    """Return what a RouteLimit is a middleware of: "application", "mount" or "route"."""
    if "router" not in scope:
        return "application"
    return "mount" if found.endpoint is None or found.endpoint is not scope.get("endpoint") else _ROUTE


def _limited(endpoint: Endpoint, enforcers: ApplicationEnforcers, fallback: Endpoint | None) -> Endpoint:
    """Return an endpoint that calls the given one only when the limit lets the request pass."""
    if inspect.isclass(endpoint):
        raise ConfigError(
            f"{endpoint.__qualname__} is a class: limit its methods, "
            'or its route with middleware=[Middleware(RouteLimit, limits="10/second")]'
        )

    depth = getattr(endpoint, DEPTH, 0)
    call = endpoint if is_coroutine_function(endpoint) else partial(run_in_threadpool, endpoint)

    def place(scope: Scope, found: Found) -> RoutePlace:
        counted_as = f"{found.template} ({depth + 1})" if depth else ""
        return route_place(
            enforcers.of(application_of(scope)), found.template, limited, counted_as, endpoint=found.endpoint
        )

    def add_in_python(passed: Any, response: Any, connection: HTTPConnection) -> Any:
        if isinstance(connection, WebSocket):
            return response
        _check_response(endpoint, response)
        if passed.exchange is not None:  # inner limits have continued it
            return with_fields_of(response, passed.exchange)
        return with_fields(response, passed.fields)

    of_routes = places(place, inside=True, by_method=True)
    add: Any = None if core.native is None else core.native.FieldAdder(sends_its_fields, add_in_python).add_fields

    @wraps(endpoint)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        connection = args[0] if args and type(args[0]) is Request else _connection(args, kwargs)
        scope = connection.scope
        outcome: Any
        try:
            outcome = of_routes.decide(scope)
        except StoreError as error:
            outcome = error, None
        if type(outcome) is RoutePassed:
            try:
                # The response gets no name: one without another reference need not be copied.
                return add(outcome, await call(*args, **kwargs), connection)
            except BaseException as raised:
                if outcome.exchange is not None:
                    await _end_failed(outcome.exchange, raised)
                raise
        at = of_routes.of(scope)
        exchange = exchange_at(scope, at.endpoint, limited)
        judged = exchange.judge_route(
            at.enforcer, scope, StarletteRequest, at.template, limited, at.counted_as, connection, outcome
        )
        judgement = judged if isinstance(judged, Judgement) else await judged
        if judgement.refusal is not None:
            return await _refuse(connection, judgement.refusal, fallback, args, kwargs)
        if exchange.watched:
            return await call(*args, **kwargs)
        if isinstance(connection, WebSocket):
            return await connected(exchange, connection, call, args, kwargs)
        exchange.watched = True
        try:
            response = await call(*args, **kwargs)
            _check_response(endpoint, response)
        except BaseException as raised:
            await _end_failed(exchange, raised)
            raise
        return with_fields_of(response, exchange)

    setattr(limited, DEPTH, depth + 1)
    return limited


async def _refuse(
    connection: HTTPConnection,
    refusal: Refusal,
    fallback: Endpoint | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return the response to a refused request; None where a websocket was closed."""
    if isinstance(connection, WebSocket):
        await refuse_or_close(connection, refusal)
        return None
    if fallback is None:
        return RefusalResponse(refusal, head=connection.scope["method"] == "HEAD")
    fields = encode_fields(without_content(refusal))
    try:
        response = await _call(fallback, args, kwargs)
    except HTTPException as raised:
        raise error_with_fields(raised, refusal) from raised
    _check_response(fallback, response)
    return FallbackResponse(response, lambda: fields)


def _check_response(endpoint: Endpoint, response: object) -> None:
    """Raise ConfigError for an object that is no response: FastAPI makes one of it, but outside of the limit."""
    if not callable(response):
        name = getattr(endpoint, "__qualname__", type(endpoint).__qualname__)
        raise ConfigError(
            f"{name} is limited, so it returns a response of Starlette, not {kind_of(response)}; in FastAPI "
            "limit it by dependencies=[Depends(rate_limit(...))], of headgate.integrations.fastapi"
        )


async def _end_failed(exchange: ScopeExchange, raised: BaseException) -> None:
    """End the exchange of an endpoint that failed: there is no response to end it."""
    status = raised.status_code if isinstance(raised, HTTPException) else 500
    await exchange.end_async(Response(status, {}, 0))


def _connection(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HTTPConnection:
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, HTTPConnection):
            return argument
    raise ConfigError("an endpoint that is limited receives a request or a websocket")


async def _call(endpoint: Endpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an endpoint as Starlette does: a plain function in a thread."""
    if is_coroutine_function(endpoint):
        return await endpoint(*args, **kwargs)
    return await run_in_threadpool(endpoint, *args, **kwargs)


rate_limit = RateLimits()
"""Limits that count in the memory of each application."""
