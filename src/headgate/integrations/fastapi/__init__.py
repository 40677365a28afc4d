"""Limits of routes in FastAPI, as dependencies: of a route, of a router, or of the application.

    from headgate.integrations.fastapi import rate_limit

    @app.get("/search", dependencies=[Depends(rate_limit("10/second"))])

Nothing else is needed: no handler, no `app.state`, no parameter of the endpoint. Each route counts by itself
under its whole template; see `headgate.integrations.starlette.routing`.
"""

from headgate.errors import MissingExtraError

try:
    import fastapi  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("headgate.integrations.fastapi", extra="fastapi") from error

from headgate.http.server.routes import exempt
from headgate.integrations.fastapi.limits import RateLimit, RateLimitExceeded, RateLimits, rate_limit
from headgate.integrations.starlette.headers import RateLimitHeaders
from headgate.integrations.starlette.request import RateLimitMiddleware

__all__ = [
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitHeaders",
    "RateLimitMiddleware",
    "RateLimits",
    "exempt",
    "rate_limit",
]
