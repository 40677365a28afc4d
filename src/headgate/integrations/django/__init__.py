"""Rate limits of a Django site and of its views, sync and async.

    MIDDLEWARE = [..., "headgate.integrations.django.RateLimitMiddleware"]
    HEADGATE = {"limits": "100/minute", "store": "redis://10.0.0.5/0"}

    @rate_limit("5/minute", key=user)
    def search(request): ...

The middleware limits every request that reaches it, `rate_limit` the requests of one view. The store does not block an
event loop; the limit of a sync view is checked in its thread. Settings may import this package.
"""

from headgate.errors import MissingExtraError

try:
    import django.http  # type: ignore[import-untyped]  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("the integration of Django", extra="django") from error

from headgate.integrations.django.checks import HeadgateConfig, check_settings
from headgate.integrations.django.limits import exempt, rate_limit
from headgate.integrations.django.middleware import RateLimitMiddleware
from headgate.integrations.django.request import DjangoRequest, each_route, user
from headgate.integrations.django.routing import NO_ROUTE
from headgate.integrations.django.site import site

__all__ = [
    "NO_ROUTE",
    "DjangoRequest",
    "HeadgateConfig",
    "RateLimitMiddleware",
    "check_settings",
    "each_route",
    "exempt",
    "rate_limit",
    "site",
    "user",
]
