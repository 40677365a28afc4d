"""Django with one view that answers a text: alone, behind Headgate, behind its peers."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import django  # type: ignore[import-untyped]
import throttled
from django.conf import settings  # type: ignore[import-untyped]
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped]
from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped]
from django.urls import path  # type: ignore[import-untyped]
from django_ratelimit.decorators import ratelimit  # type: ignore[import-untyped]
from django_ratelimit.exceptions import Ratelimited  # type: ignore[import-untyped]

from benchmarks.web_apps import TEXT
from benchmarks.web_apps.constant_headers import WsgiConstantHeaders
from benchmarks.web_apps.ten_rules import ten_rules
from headgate.http.wsgi import RateLimitMiddleware

View = Callable[..., HttpResponse]

urlpatterns: list[Any] = []


def bare(a_minute: int) -> Any:
    """The application alone."""
    return _application()


def constant_headers(a_minute: int) -> Any:
    """The application, and the two lines that a limiter adds, as constants."""
    return WsgiConstantHeaders(_application())


def headgate(a_minute: int) -> Any:
    """Headgate's middleware of WSGI."""
    return RateLimitMiddleware(_application(), limits=f"{a_minute}/minute")


def headgate_policy(a_minute: int) -> Any:
    """Headgate's middleware of WSGI with a policy."""
    return RateLimitMiddleware(_application(), policy=ten_rules(a_minute))


def headgate_django(a_minute: int) -> Any:
    """Headgate's middleware of Django with a policy."""
    policy = ten_rules(a_minute)
    return _application(middleware="headgate.integrations.django.RateLimitMiddleware", HEADGATE={"policy": policy})


def django_ratelimit(a_minute: int) -> Any:
    """django-ratelimit, by the decorator of a view, on the cache of the process; it writes no fields."""
    return _application(ratelimit(key="ip", rate=f"{a_minute}/m")(_hello))


def throttled_py(a_minute: int) -> Any:
    """throttled-py, by a middleware written here: it has none for Django."""
    return _application(middleware=f"{__name__}.throttled_middleware", A_MINUTE=a_minute)


def throttled_middleware(get_response: View) -> View:
    """A token bucket for each client address, with the fields that throttled-py's own integrations send."""
    limiter = throttled.Throttled(quota=f"{settings.A_MINUTE}/minute", store=throttled.MemoryStore())

    def middleware(request: HttpRequest) -> HttpResponse:
        result = limiter.limit(request.META["REMOTE_ADDR"])
        response = HttpResponse(b"too many requests", status=429) if result.limited else get_response(request)
        response["RateLimit-Limit"] = str(result.state.limit)
        response["RateLimit-Remaining"] = str(result.state.remaining)
        response["RateLimit-Reset"] = str(ceil(result.state.reset_after))
        return response

    return middleware


def handler403(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """The handler that django-ratelimit's documentation has for the status 429."""
    return HttpResponse(b"too many requests", status=429 if isinstance(exception, Ratelimited) else 403)


def _hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse(TEXT.encode())


def _application(view: View = _hello, middleware: str = "", **more_settings: Any) -> Any:
    if settings.configured:  # several applications with the same settings of Django
        return get_wsgi_application()
    urlpatterns.append(path("", view))
    settings.configure(
        ALLOWED_HOSTS=["*"],
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        MIDDLEWARE=[middleware] if middleware else [],
        ROOT_URLCONF=__name__,
        SILENCED_SYSTEM_CHECKS=["django_ratelimit.E003", "django_ratelimit.W001"],
        **more_settings,
    )
    django.setup()
    return get_wsgi_application()
