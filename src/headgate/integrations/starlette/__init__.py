"""Limits of single routes in Starlette: of endpoints, of routes, of mounts.

    from headgate.integrations.starlette import rate_limit

    @rate_limit("10/second")
    async def search(request): ...

    Mount("/api", routes=[...], middleware=[Middleware(RouteLimit, limits="100/minute")])

`RateLimitHeaders` as a middleware adds the rate limit fields to every response, also to those to exceptions.
This package is for asyncio: a store never blocks the event loop.
"""

from headgate.errors import MissingExtraError

try:
    import starlette.requests  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("headgate.integrations.starlette", extra="starlette") from error

from headgate.http.server.routes import exempt
from headgate.integrations.starlette.headers import RateLimitHeaders
from headgate.integrations.starlette.limits import RateLimits, RouteLimit, rate_limit
from headgate.integrations.starlette.request import RateLimitMiddleware, StarletteRequest

__all__ = [
    "RateLimitHeaders",
    "RateLimitMiddleware",
    "RateLimits",
    "RouteLimit",
    "StarletteRequest",
    "exempt",
    "rate_limit",
]
