"""Limits on the layers of a Litestar application: handlers, controllers, routers, and the application."""

from __future__ import annotations

from typing import Any, Unpack

from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler

from headgate.decorator import is_being_decorated
from headgate.errors import ConfigError, check_flag
from headgate.http.server.asgi_messages import ASGIApp, Receive, Scope, Send, Watch, refuse
from headgate.http.server.client_watch import watching
from headgate.http.server.exchange import Judgement
from headgate.http.server.fallback_errors import error_with_fields, with_fields
from headgate.http.server.options import Response, RouteOptions, check_fallback
from headgate.http.server.routes import MISSING_LIMITS, ApplicationEnforcers, AsyncRouteLimits, LimitsOfRoute, is_exempt
from headgate.http.server.scope_exchange import ScopeExchange, exchange_at
from headgate.integrations.litestar.request import LitestarRequest, application_of, template_of


class RateLimits(AsyncRouteLimits):
    """Makes limits of routes. Options given here are the defaults of all of them.

    They count in one store, in memory if none is named. Raises ConfigError or TypeError.
    """

    def __call__(
        self,
        limits: LimitsOfRoute = MISSING_LIMITS,
        *,
        override: bool = False,
        fallback: ASGIApp | None = None,
        **options: Unpack[RouteOptions],
    ) -> RateLimit:
        """Return a middleware for a handler, or for all routes of a controller, a router or an application.

        Each route counts by itself, under its whole path as it was written; handshakes of websockets count, too.
        Several limits apply together: a request that one refuses is charged in none. With `override` the limits of
        outer layers do not apply. `fallback` is an ASGI application that answers a refusal.
        """
        _check_no_handler(limits)
        return RateLimit(self.routes.enforcers(limits, options), override=override, fallback=fallback)


rate_limit = RateLimits()
"""Limits that count in the memory of each application."""


class RateLimit:
    """A limit on a layer; made by a `RateLimits`. Litestar calls it once for each route of the layer."""

    def __init__(
        self,
        enforcers: ApplicationEnforcers,
        *,
        override: bool = False,
        fallback: ASGIApp | None = None,
        websockets: bool = True,
        counted_as: str = "",
    ) -> None:
        self.enforcers = enforcers
        self.override = check_flag("override", override)
        self.fallback = check_fallback(fallback)
        self.websockets = check_flag("websockets", websockets)
        self.counted_as = counted_as
        """The name under which all requests count; "" where each route counts by itself."""

    def __call__(self, app: Any) -> Any:
        _check_no_handler(app)
        return _Limited(app, self)

    def __deepcopy__(self, memory: Any) -> RateLimit:
        """Return this limit: Litestar copies handlers with all their attributes, and it remains one limit."""
        return self


def _check_no_handler(argument: object) -> None:
    """Raise ConfigError for a handler: the limit was written as a decorator."""
    if isinstance(argument, BaseRouteHandler) or is_being_decorated(argument):
        raise ConfigError(
            'rate_limit decorates no handler: it is a middleware, as in @get("/", middleware=[rate_limit("10/second")])'
        )


class _Limited:
    """Judges the requests of one route on one layer."""

    def __init__(self, app: ASGIApp, limit: RateLimit) -> None:
        self._app = app
        self._limit = limit
        self._template: str | None = None
        self._applies = True
        self._is_repeated = False
        """Whether the limit is on several layers of the route: it is checked once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._template is None:
            self._template = template_of(scope)
            self._applies = applies(self._limit, scope["route_handler"])
            self._is_repeated = limits_of(scope["route_handler"]).count(self._limit) > 1
        kind = scope["type"]
        judged = kind == "http" or (kind == "websocket" and self._limit.websockets)
        if not judged or not self._applies:
            await self._app(scope, receive, send)
            return
        exchange = exchange_at(scope, scope["route_handler"])
        limit = self._limit
        enforcer = limit.enforcers.of(application_of(scope))
        if self._is_repeated and exchange.has_passed(enforcer):
            await self._app(scope, receive, send)
            return
        if enforcer.waits:
            receive = watching(scope, receive)
        judged = exchange.judge_route(enforcer, scope, LitestarRequest, self._template, limit, limit.counted_as)
        judgement = judged if isinstance(judged, Judgement) else await judged
        if judgement.refusal is not None:
            try:
                await refuse(judgement.refusal, scope, receive, send, limit.fallback)
            except HTTPException as raised:
                raise error_with_fields(raised, judgement.refusal) from raised
        elif exchange.watched:
            await self._app(scope, receive, send)
        else:
            await self._watch(exchange, scope, receive, send)

    async def _watch(self, exchange: ScopeExchange, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application inside the outermost limit, add the fields, and end the exchange."""
        exchange.watched = True
        watch = Watch(send, exchange.encoded_fields, exchange, head=scope.get("method") == "HEAD")
        failed: Response | None = None
        try:
            await self._app(scope, receive, watch.send)
        except HTTPException as raised:  # by an inner middleware: Litestar answers it outside of all middlewares
            fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.encoded_fields()]
            error = with_fields(raised, fields)
            failed = Response(
                error.status_code, {name.lower(): value for name, value in (error.headers or {}).items()}, 0
            )
            raise error from raised
        finally:
            if exchange.settles:
                await exchange.end_async(failed or watch.response())


def limits_of(handler: Any) -> list[RateLimit]:
    """Return the limits of a handler, from those of the application to its own."""
    return [part for part in reversed(handler.resolve_middleware()) if isinstance(part, RateLimit)]


def applies(limit: RateLimit, handler: Any) -> bool:
    """Whether a limit applies to a handler: the handler is not exempt, and no narrower limit overrides it."""
    if is_exempt_handler(handler):
        return False
    outwards = limits_of(handler)[::-1]  # a limit on several layers counts on the innermost
    narrower = outwards[: outwards.index(limit)] if limit in outwards else []
    return not any(other.override for other in narrower)


def is_exempt_handler(handler: Any) -> bool:
    """Whether a handler is exempt.

    It is by an option of a layer, by its own mark (above its route decorator or below it), or by its controller's.
    """
    if handler.opt.get("headgate_exempt"):
        return True
    function = getattr(handler, "fn", None)
    return any(is_exempt(marked) for marked in (handler, function, getattr(function, "__self__", None)))
