"""Starlette with one route that answers a text: alone, behind Headgate, behind its peers."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from throttled.asyncio import MemoryStore, Throttled

from benchmarks.web_apps import TEXT
from benchmarks.web_apps.constant_headers import AsgiConstantHeaders
from benchmarks.web_apps.ten_rules import ten_rules
from headgate.http.asgi import RateLimitMiddleware
from headgate.integrations.starlette import rate_limit


def bare(a_minute: int) -> Starlette:
    """The application alone."""
    return _application()


def constant_headers(a_minute: int) -> Starlette:
    """The application, and two header lines that are always the same."""
    return _application(Middleware(AsgiConstantHeaders))


def headgate(a_minute: int) -> Starlette:
    """Headgate's middleware."""
    return _application(Middleware(RateLimitMiddleware, limits=f"{a_minute}/minute"))


def headgate_policy(a_minute: int) -> Starlette:
    """Headgate's middleware with a policy."""
    return _application(Middleware(RateLimitMiddleware, policy=ten_rules(a_minute)))


def headgate_silent(a_minute: int) -> Starlette:
    """Headgate's middleware, which adds no headers."""
    return _application(Middleware(RateLimitMiddleware, limits=f"{a_minute}/minute", headers="none"))


def headgate_decorator(a_minute: int) -> Starlette:
    """Headgate's decorator of a route."""
    return _application(endpoint=rate_limit(f"{a_minute}/minute")(_hello))


def slowapi_middleware(a_minute: int) -> Starlette:
    """slowapi, by the faster of its two middlewares."""
    limiter = Limiter(get_remote_address, default_limits=[f"{a_minute}/minute"], headers_enabled=True)
    return _with_slowapi(_application(Middleware(SlowAPIASGIMiddleware)), limiter)


def slowapi_decorator(a_minute: int) -> Starlette:
    """slowapi, by the decorator of a route."""
    limiter = Limiter(get_remote_address, headers_enabled=True)
    return _with_slowapi(_application(endpoint=limiter.limit(f"{a_minute}/minute")(_hello)), limiter)


def throttled(a_minute: int) -> Starlette:
    """throttled-py, by a middleware written here: it has none for Starlette."""
    return _application(Middleware(ThrottledMiddleware, a_minute=a_minute))


class ThrottledMiddleware:
    """A token bucket for each client address, with the fields that throttled-py's own integrations send."""

    def __init__(self, app: ASGIApp, a_minute: int) -> None:
        self.app = app
        self.throttled = Throttled(quota=f"{a_minute}/m", store=MemoryStore())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        result = await self.throttled.limit(scope["client"][0])
        state: Any = result.state

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["RateLimit-Limit"] = str(state.limit)
                headers["RateLimit-Remaining"] = str(state.remaining)
                headers["RateLimit-Reset"] = str(ceil(state.reset_after))
            await send(message)

        app = PlainTextResponse("too many requests", 429) if result.limited else self.app
        await app(scope, receive, send_with_headers)


async def _hello(request: Request) -> Response:
    return PlainTextResponse(TEXT)


def _application(*middlewares: Middleware, endpoint: Callable[..., Any] = _hello) -> Starlette:
    return Starlette(routes=[Route("/", endpoint)], middleware=middlewares)


def _with_slowapi(application: Starlette, limiter: Limiter) -> Starlette:
    application.state.limiter = limiter
    handler: Any = _rate_limit_exceeded_handler
    application.add_exception_handler(RateLimitExceeded, handler)
    return application
