"""Limits of a whole application of aiohttp's server: fields on every response, stores closed with the application."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isclass
from itertools import pairwise
from typing import Unpack

from aiohttp import web

from headgate.errors import ConfigError
from headgate.http.server.cors import is_cors, log_outside_of_cors
from headgate.http.server.options import Options, check_fallback
from headgate.http.server.routes import application_enforcers, is_exempt
from headgate.integrations.aiohttp.exchange import Handler, add_fields, answer
from headgate.integrations.aiohttp.limits import RateLimits, rate_limit
from headgate.integrations.aiohttp.placement import check_placement
from headgate.integrations.aiohttp.request import endpoint_of, rule_or_prefix
from headgate.policy.gate import AnyPolicy, AsyncGate


class AppOptions(Options, total=False):
    """Options of an application's limits: `Options` and `scope`."""

    scope: str | Callable[..., str]
    """The requests that are counted together, where `limits` are given [all of the application]."""


class RateLimitMiddleware:
    """Limits each request of an application, and of those nested in it, including 404s.

    Handlers marked `exempt` are not limited. Raises ConfigError or PolicyError; see `middleware`.
    """

    def __init__(
        self,
        policy: AnyPolicy | AsyncGate | None = None,
        *,
        fallback: Handler | None = None,
        **options: Unpack[AppOptions],
    ) -> None:
        # Limits are judged as those of one route: a refusal by a narrower limit gives back what these charged.
        self._enforcers = application_enforcers(policy, options, "RateLimitMiddleware")
        self._fallback = check_fallback(fallback)

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        check_placement(request.match_info.apps[0])
        if _is_excluded(request):
            return await handler(request)
        place = f"*{_application_of(self, request)}"
        return await answer(
            self._enforcers, request, endpoint_of(request), lambda: handler(request), self._fallback, self, place
        )

    async def aclose(self) -> None:
        """Close the store, if it was opened here."""
        await self._enforcers.any.aclose()

    async def warm_up(self) -> None:
        """Have the store connect before the first request."""
        await self._enforcers.any.warm_up_async()


def middleware(
    policy: AnyPolicy | AsyncGate | None = None,
    *,
    fallback: Handler | None = None,
    **options: Unpack[AppOptions],
) -> RateLimitMiddleware:
    """Return a middleware for `web.Application(middlewares=[...])`; `setup` does more.

    Pass a `policy` (a file's path, its values, a Policy or an AsyncGate) or `limits`, which count all requests of a
    client together, and any other of `AppOptions`. `fallback` is a handler that answers refused requests. Without
    `setup`, only responses that a handler returns or raises have the rate limit fields, not streams and websockets.
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
    """Complete an application before it runs: every response has the fields, and stores are closed with it.

    With a `policy` or `limits`, its `middleware` is inserted before all others. `rate_limits` are the limits of its
    handlers.
    """
    if policy is not None or "limits" in options:
        whole = middleware(policy, fallback=fallback, **options)
        app.middlewares.insert(0, whole)
        app.on_startup.append(partial(_check_cors, whole))
        app.on_startup.append(lambda app: whole.warm_up())
        app.on_cleanup.append(lambda app: whole.aclose())
    elif options or fallback is not None:
        raise ConfigError("options of an application go with its limits or its policy")
    app.on_response_prepare.append(add_fields)
    app.on_startup.append(_check_placement)
    app.on_startup.append(lambda app: rate_limits.warm_up())
    app.on_cleanup.append(lambda app: rate_limits.aclose())


async def _check_placement(app: web.Application) -> None:
    check_placement(app)


async def _check_cors(limit: RateLimitMiddleware, app: web.Application) -> None:
    """Warn of a CORS middleware inside the limit: refusals do not pass it. The first of the list is the outermost."""
    inside = list(app.middlewares)[list(app.middlewares).index(limit) + 1 :] if limit in app.middlewares else []
    cors = next(filter(is_cors, inside), None)
    if cors is not None:
        log_outside_of_cors("the middleware of setup(limits=...)", cors)


def _application_of(middleware: RateLimitMiddleware, request: web.Request) -> str:
    """Return the place of the nested application that has the middleware; "" for the outermost one."""
    apps = request.match_info.apps
    if len(apps) == 1:
        return ""
    place = ""
    for outer, inner in pairwise(apps):
        if middleware in outer.middlewares:
            break
        rule, prefix = rule_or_prefix(outer, inner)
        place = f"{place}{rule}" if rule else prefix
    return f" of {place}" if place else ""


def _is_excluded(request: web.Request) -> bool:
    handler = request.match_info.handler
    if is_exempt(handler):
        return True
    return isclass(handler) and is_exempt(getattr(handler, request.method.lower(), None))
