"""Limits of handlers and views of aiohttp's server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from inspect import isclass
from types import coroutine
from typing import Any, TypeVar, Unpack, cast

from aiohttp import web
from aiohttp.abc import AbstractView

from headgate.errors import ConfigError, check_flag
from headgate.http.server.options import RouteOptions, check_fallback
from headgate.http.server.routes import (
    DEPTH,
    MISSING_LIMITS,
    ApplicationEnforcers,
    AsyncRouteLimits,
    LimitsOfRoute,
    check_endpoint,
    exempt,
)
from headgate.integrations.aiohttp.exchange import Handler, answer
from headgate.integrations.aiohttp.placement import check_placement, watch
from headgate.integrations.aiohttp.request import endpoint_of

Limited = TypeVar("Limited", bound=Callable[..., Any])


class RateLimits(AsyncRouteLimits):
    """Limits of handlers. Options given here are the defaults of all of them.

    They count in one store, in memory if none is named. Raises ConfigError or TypeError.
    """

    def __call__(
        self,
        limits: LimitsOfRoute = MISSING_LIMITS,
        *,
        override: bool = False,
        fallback: Handler | None = None,
        **options: Unpack[RouteOptions],
    ) -> Callable[[Limited], Limited]:
        """Return a decorator of handlers, below the route: of functions, methods, class views and their methods.

        Each route counts by itself, under its whole path as it was written, with the prefixes of nested applications.
        Several limits apply together: a request that one refuses is charged in none. With `override` the limits of
        the application do not apply. `fallback` is a handler that answers a refusal.
        """
        check_flag("override", override)
        check_fallback(fallback)
        enforcers = self.routes.enforcers(limits, options)

        def decorate(handler: Limited) -> Limited:
            check_endpoint(handler)
            limited = _limited(handler, enforcers, fallback)
            watch(limited, handler)
            return cast(Limited, exempt(limited) if override else limited)

        return decorate


rate_limit = RateLimits()
"""Limits that count in the memory of each application."""


def _limited(handler: Any, enforcers: ApplicationEnforcers, fallback: Handler | None) -> Any:
    """Return a handler that calls the given one only when the limit lets a request pass."""
    if isclass(handler):
        if not issubclass(handler, AbstractView):
            raise ConfigError(f"{handler.__qualname__} is no view: limit views, their methods and functions")
        return _limited_view(handler, enforcers, fallback)

    depth = getattr(handler, DEPTH, 0)

    @wraps(handler)
    async def limited(*args: Any, **kwargs: Any) -> web.StreamResponse:
        request, in_view = _request(args)
        check_placement(request.match_info.apps[0])
        endpoint = endpoint_of(request, by_method=in_view)
        counted_as = f"{endpoint} ({depth + 1})" if depth else endpoint
        return await answer(
            enforcers, request, endpoint, lambda: handler(*args, **kwargs), fallback, limited, counted_as
        )

    setattr(limited, DEPTH, depth + 1)
    return limited


def _limited_view(
    view: type[AbstractView], enforcers: ApplicationEnforcers, fallback: Handler | None
) -> type[AbstractView]:
    """Return a view of the same name, whose objects are awaited only when the limit lets a request pass."""

    depth = getattr(view, DEPTH, 0)

    def awaited(self: AbstractView) -> Generator[Any, None, web.StreamResponse]:
        request = self.request
        check_placement(request.match_info.apps[0])
        endpoint = endpoint_of(request)
        counted_as = f"{endpoint} ({depth + 1})" if depth else endpoint
        return answer(
            enforcers, request, endpoint, lambda: _awaiting(view.__await__(self)), fallback, awaited, counted_as
        ).__await__()

    named = {name: getattr(view, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(view.__name__, (view,), {**named, "__await__": awaited, DEPTH: depth + 1})


@coroutine
def _awaiting(steps: Generator[Any, None, web.StreamResponse]) -> Generator[Any, None, web.StreamResponse]:
    return (yield from steps)


def _request(args: tuple[Any, ...]) -> tuple[web.Request, bool]:
    """Return the request that a handler was passed, and whether the handler is a view's method."""
    for argument in args:
        if isinstance(argument, AbstractView):
            return argument.request, True
        if isinstance(argument, web.Request):
            return argument, False
    raise ConfigError("a handler that is limited receives a request")
