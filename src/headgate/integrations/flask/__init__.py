"""Rate limits of Flask's views, blueprints and whole applications.

    @app.get("/search")
    @rate_limit("10/second")
    def search(): ...

    limits = RateLimits(app, default="100/minute", store="redis://10.0.0.5/0")

A view's limit is checked in the worker's own thread, that of an async view before its event loop begins: no event loop
is ever blocked. The fields of a response are stored with its request, so no setup is needed.
"""

from headgate.errors import MissingExtraError

try:
    import flask  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("the integration of Flask", extra="flask") from error

from headgate.integrations.flask.limits import RateLimits, exempt, rate_limit
from headgate.integrations.flask.request import FlaskRequest, RateLimitMiddleware
from headgate.integrations.flask.routing import NO_ROUTE

__all__ = ["NO_ROUTE", "FlaskRequest", "RateLimitMiddleware", "RateLimits", "exempt", "rate_limit"]
