"""Rate limits of aiohttp's server: of handlers and views, and of whole applications.

    @routes.get("/search")
    @rate_limit("10/second")
    async def search(request): ...

    setup(app, limits="100/minute")

With `setup`, streams and websockets have the rate limit fields, too, and stores are closed with the application.
This package is for asyncio: a store never blocks the event loop. For clients see
`headgate.integrations.aiohttp_client`.
"""

from headgate.errors import MissingExtraError

try:
    import aiohttp.web  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("headgate.integrations.aiohttp", extra="aiohttp") from error

from headgate.http.server.routes import exempt
from headgate.integrations.aiohttp.application import RateLimitMiddleware, middleware, setup
from headgate.integrations.aiohttp.limits import RateLimits, rate_limit
from headgate.integrations.aiohttp.request import AiohttpRequest

__all__ = ["AiohttpRequest", "RateLimitMiddleware", "RateLimits", "exempt", "middleware", "rate_limit", "setup"]
