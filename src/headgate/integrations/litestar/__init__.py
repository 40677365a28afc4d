"""Rate limits of Litestar's handlers, controllers, routers and whole applications.

    @get("/search", middleware=[rate_limit("10/second")])
    async def search() -> str: ...

    app = Litestar([search], plugins=[RateLimitPlugin(limits="100/minute")])

A limit is a middleware on any layer; it limits each route of that layer by itself. The plugin limits a whole
application, including requests without a route; it shows 429 in OpenAPI, and closes stores with the application.
"""

from headgate.errors import MissingExtraError

try:
    import litestar.exceptions  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("headgate.integrations.litestar", extra="litestar") from error

from headgate.http.server.routes import exempt
from headgate.integrations.litestar.limits import RateLimit, RateLimits, rate_limit
from headgate.integrations.litestar.plugin import EXEMPT, REFUSED, RateLimitPlugin
from headgate.integrations.litestar.request import LitestarRequest

__all__ = [
    "EXEMPT",
    "REFUSED",
    "LitestarRequest",
    "RateLimit",
    "RateLimitPlugin",
    "RateLimits",
    "exempt",
    "rate_limit",
]
