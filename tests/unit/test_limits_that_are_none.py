"""A value that is no limit raises where it is written, in every framework, and the error names the right form."""

# mypy: disable-error-code="untyped-decorator"

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import flask
import litestar
import pytest
from aiohttp import web
from django.views.decorators.csrf import csrf_exempt  # type: ignore[import-untyped]
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

import django_configured  # noqa: F401 - Django needs its settings
from asgi_requests import drive
from headgate import AsyncLimiter, ConfigError, Limiter, TokenBucket
from headgate.http import asgi, wsgi
from headgate.integrations import aiohttp as for_aiohttp
from headgate.integrations import django as for_django
from headgate.integrations import fastapi as for_fastapi
from headgate.integrations import flask as for_flask
from headgate.integrations import litestar as for_litestar
from headgate.integrations import starlette as for_starlette
from headgate.integrations.django.site import Site
from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from headgate.integrations.httpx import RateLimitTransport


def never_called(scope: Any, receive: Any, send: Any = None) -> Any:
    raise AssertionError("it must not be called")


DECORATORS: dict[str, Callable[..., Any]] = {
    "fastapi": for_fastapi.rate_limit,
    "starlette": for_starlette.rate_limit,
    "starlette, a middleware": lambda *limits: for_starlette.RouteLimit(never_called, *limits),
    "flask": for_flask.rate_limit,
    "litestar": for_litestar.rate_limit,
    "aiohttp": for_aiohttp.rate_limit,
}
PLACES: dict[str, Callable[..., Any]] = {
    **DECORATORS,
    "flask, an application": lambda limits: for_flask.RateLimits(flask.Flask("shop"), limits),
    "litestar, an application": lambda limits: for_litestar.RateLimitPlugin(limits=limits),
    "aiohttp, an application": lambda limits: for_aiohttp.middleware(limits=limits),
    "django": lambda limits: Site({"limits": limits}).site_enforcer(asynchronous=False),
    "grpc": lambda limits: RateLimitInterceptor(limits=limits),
    "grpc, a method": lambda limits: AsyncRateLimitInterceptor(methods={"/a.B/C": limits}),
    "asgi": lambda limits: asgi.RateLimitMiddleware(never_called, limits=limits),
    "wsgi": lambda limits: wsgi.RateLimitMiddleware(never_called, limits=limits),
}


@pytest.mark.parametrize("make", DECORATORS.values(), ids=DECORATORS)
@pytest.mark.parametrize("limits", [(), (None,), ("",), (" ",)])
def test_the_error_of_a_missing_limit_names_the_right_form(make: Any, limits: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=re.escape('no limit is given, such as rate_limit("10/second")')):
        make(*limits)


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("limits", [5, 3.5, True, b"1/minute", [], (), [5]])
def test_the_error_of_a_wrong_limit_names_its_value_and_the_right_form(make: Any, limits: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        make(limits)
    assert str(raised.value).endswith(f"not {limits!r:.60}")
    assert 'limits are text such as "10/second"' in str(raised.value)


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_the_error_of_a_list_of_texts_names_the_one_text(make: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape("one text with \";\" between them, '1/second; 9/hour'")):
        make(["1/second", "9/hour"])


TEXTS: Any = ["1/second", "9/hour"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Limiter(TEXTS),
        lambda: AsyncLimiter(tuple(TEXTS)),
        lambda: RateLimitTransport(TEXTS),
        lambda: asgi.RateLimitMiddleware(never_called, limits={"default": TEXTS}, tier=lambda request: None),
    ],
)
def test_the_error_of_a_list_of_texts_names_the_one_text_outside_of_routes_too(make: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape("one text with \";\" between them, '1/second; 9/hour'")):
        make()


def test_the_error_of_a_limiter_names_the_kind_that_is_wrong() -> None:
    mixed: Any = ["1/second", TokenBucket(capacity=5, refill=1, period="second")]
    with pytest.raises(ConfigError, match="or limit values, not a list with a str"):
        Limiter(mixed)
    mapping: Any = {"default": "1/second"}
    with pytest.raises(ConfigError, match="limit values or a list of those, not a dict"):
        Limiter(mapping)


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_limits_of_every_kind_are_accepted(make: Any) -> None:
    bucket = TokenBucket(capacity=5, refill=1, period="second")
    for limits in ("1/second; 9/hour", bucket, [bucket, bucket], lambda request: "1/second"):
        make(limits)


ROUTES: dict[str, Callable[[Any], Any]] = {  # each returns the decorator that makes a view a route
    "fastapi": lambda _: FastAPI().get("/"),
    "starlette": lambda _: FastAPI().get("/"),
    "flask": lambda _: flask.Flask("shop").get("/"),
    "litestar": lambda _: litestar.get("/"),
    "aiohttp": lambda _: web.RouteTableDef().get("/"),
    "django": lambda _: csrf_exempt,
}
BARE: dict[str, Any] = {name: DECORATORS[name] for name in DECORATORS if name in ROUTES} | {
    "django": for_django.rate_limit
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_decorator_without_its_limit_raises_where_it_is_written(name: str) -> None:
    rate_limit, route = BARE[name], ROUTES[name](None)
    message = re.escape(
        {"fastapi": "Depends(rate_limit(", "litestar": "middleware=[rate_limit("}.get(name, "@rate_limit(")
    )

    with pytest.raises(ConfigError, match=message):

        @rate_limit
        @route
        async def above(request: Any) -> str:
            return "limited by nothing"

    with pytest.raises(ConfigError, match=message):

        @route
        @rate_limit
        async def below(request: Any) -> str:
            return "limited by nothing"

    with pytest.raises(ConfigError, match=message):

        class View:
            @rate_limit
            def get(self, request: Any) -> str:
                return "limited by nothing"


@pytest.mark.parametrize("name", ROUTES)
def test_a_function_that_returns_limits_is_not_taken_for_a_decorated_one(name: str) -> None:
    rate_limit = BARE[name]

    def plan(request: Any) -> str:
        return "1/second"

    rate_limit(plan)
    [rate_limit(each) for each in (plan, lambda request: "1/second")]

    def own_decorator(
        limits: Any,
    ) -> Any:  # a decorator of the application, which passes the decorated function as limits
        return rate_limit(limits)

    @own_decorator
    def other(request: Any) -> str:
        return "1/second"


def test_the_error_of_a_limit_as_a_decorator_in_litestar_names_the_middleware() -> None:
    limit = for_litestar.rate_limit("5/minute")
    with pytest.raises(ConfigError, match=re.escape("middleware=[rate_limit(")):

        @litestar.get("/")
        @limit
        async def read() -> str:
            return "read"


def test_a_decorator_with_a_view_in_place_of_limits_raises_at_the_first_request() -> None:
    async def read(request: Request) -> Any:
        raise AssertionError("it must not be called")

    app = Starlette(routes=[Route("/", for_starlette.rate_limit(read))])
    with pytest.raises(ConfigError, match=re.escape('as @rate_limit("10/second")')):
        drive(app, "/")


@pytest.mark.parametrize("shadow", ["false", 0, None, lambda request: False])
def test_shadow_is_true_or_false_and_no_other_value(shadow: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"shadow is True or False, not {shadow!r:.40}")):
        Limiter("1/minute", shadow=shadow)


@pytest.mark.parametrize(
    "limit",
    [
        for_fastapi.rate_limit,
        for_flask.rate_limit,
        for_litestar.rate_limit,
        for_aiohttp.rate_limit,
        for_django.rate_limit,
    ],
    ids=["fastapi", "flask", "litestar", "aiohttp", "django"],
)
@pytest.mark.parametrize("override", ["false", 0, None])
def test_override_is_true_or_false_and_no_other_value(limit: Any, override: Any) -> None:
    with pytest.raises(ConfigError, match=f"override is True or False, not {override!r}"):
        limit("1/minute", override=override)


@pytest.mark.parametrize("limit", [for_fastapi.rate_limit, for_flask.rate_limit, for_litestar.rate_limit])
@pytest.mark.parametrize("scope", [None, 5, b"all"])
def test_a_scope_is_text_or_a_function(limit: Any, scope: Any) -> None:
    with pytest.raises(ConfigError, match=f"scope is text or a function of the request, not {scope!r}"):
        limit("1/minute", scope=scope)


@pytest.mark.parametrize("limit", [for_fastapi.rate_limit, for_flask.rate_limit, for_litestar.rate_limit])
def test_a_scope_is_no_coroutine_function(limit: Any) -> None:
    async def scope(request: Any) -> str:
        return "all"

    with pytest.raises(ConfigError, match="scope cannot be a coroutine function"):
        limit("1/minute", scope=scope)


@pytest.mark.parametrize("options", [{"limits": "1/minute"}, {}])
def test_websockets_of_the_litestar_plugin_is_true_or_false(options: Any) -> None:
    websockets: Any = "false"
    with pytest.raises(ConfigError, match="websockets is True or False, not 'false'"):
        for_litestar.RateLimitPlugin(websockets=websockets, **options)


def test_static_in_flask_is_true_or_false() -> None:
    static: Any = "false"
    with pytest.raises(ConfigError, match="static is True or False, not 'false'"):
        for_flask.RateLimits(static=static)


@pytest.mark.parametrize(
    "limit",
    [
        for_starlette.rate_limit,
        partial(for_starlette.RouteLimit, never_called),
        for_flask.rate_limit,
        for_flask.RateLimits,
        for_litestar.rate_limit,
        for_aiohttp.rate_limit,
        for_django.rate_limit,
        partial(asgi.RateLimitMiddleware, never_called),
        partial(wsgi.RateLimitMiddleware, never_called),
    ],
    ids=["starlette", "starlette, before", "flask", "flask, all", "litestar", "aiohttp", "django", "asgi", "wsgi"],
)
def test_a_fallback_must_be_callable(limit: Any) -> None:
    options = {"default" if limit is for_flask.RateLimits else "limits": "1/minute"}
    with pytest.raises(ConfigError, match="fallback is a function or an application that answers, not 'slow down'"):
        limit(**options, fallback="slow down")
