"""Limits above the routes of their functions, where they limit nothing, are reported; no others are."""

# FastAPI could not resolve the local names of a test if annotations were text: so they are not postponed.

import asyncio
import gc
import html
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from asgi_requests import ask, statuses
from headgate import ConfigError
from headgate.integrations import aiohttp, starlette
from headgate.integrations.fastapi import RateLimits as FastAPILimits
from headgate.integrations.starlette import RateLimitHeaders

MESSAGE = r"is above the route of .*wrong, where it limits nothing: put it below"


@pytest.fixture
def limits() -> starlette.RateLimits:
    return starlette.RateLimits()


@pytest.fixture
def of_aiohttp() -> aiohttp.RateLimits:
    return aiohttp.RateLimits()


@contextmanager
def nothing_reported(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert "limits nothing" not in caplog.text


def statuses_of(app: web.Application, *paths: str, debug: bool = False) -> list[int]:
    async def run() -> list[int]:
        async with TestClient(TestServer(app)) as client:
            return [(await client.get(path)).status for path in paths]

    return asyncio.run(run(), debug=debug)


async def bare(request: web.Request) -> web.Response:
    return web.Response(text="bare")


async def endpoint(request: StarletteRequest) -> Response:
    return PlainTextResponse("bare")


def noting(handler: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(handler)
    async def outer(*args: Any, **kwargs: Any) -> Any:
        return await handler(*args, **kwargs)

    return outer


# aiohttp


def wrong_for_aiohttp(of_aiohttp: aiohttp.RateLimits) -> web.Application:
    """An application with a limit above its route, and another one below it."""
    routes = web.RouteTableDef()

    @of_aiohttp("1/minute")
    @routes.get("/wrong")
    async def wrong(request: web.Request) -> web.Response:
        return web.Response(text="free")

    @routes.get("/right")
    @of_aiohttp("1/minute")
    async def right(request: web.Request) -> web.Response:
        return web.Response(text="limited")

    app = web.Application()
    app.add_routes(routes)
    return app


def test_a_limit_above_its_route_is_logged_once(
    of_aiohttp: aiohttp.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    app = wrong_for_aiohttp(of_aiohttp)
    assert statuses_of(app, "/wrong", "/right", "/right", "/wrong") == [200, 200, 429, 200]
    assert caplog.text.count("wrong, where it limits nothing: put it below the route decorator") == 1


def test_a_limit_whose_function_was_collected_is_reported_as_well(
    of_aiohttp: aiohttp.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    app = wrong_for_aiohttp(of_aiohttp)
    gc.collect()
    assert statuses_of(app, "/right") == [200]
    assert "wrong, where it limits nothing" in caplog.text


def test_a_limit_above_its_route_is_reported_when_the_application_starts(of_aiohttp: aiohttp.RateLimits) -> None:
    app = wrong_for_aiohttp(of_aiohttp)
    aiohttp.setup(app, rate_limits=of_aiohttp)
    with pytest.raises(ConfigError, match=MESSAGE):
        asyncio.run(web.AppRunner(app).setup(), debug=True)


def test_a_limit_above_its_route_fails_a_request_of_an_application_in_debug_mode(
    of_aiohttp: aiohttp.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    app = wrong_for_aiohttp(of_aiohttp)
    assert statuses_of(app, "/right", "/right", "/right", debug=True) == [500, 200, 429], "it is reported once"
    assert "wrong, where it limits nothing" in caplog.text


def test_a_middleware_reports_a_limit_above_its_route(
    of_aiohttp: aiohttp.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    app = web.Application(middlewares=[aiohttp.middleware(limits="9/minute")])

    def routed(handler: Any) -> Any:
        app.router.add_get("/wrong", handler)
        return handler

    @of_aiohttp("1/minute")
    @routed
    async def wrong(request: web.Request) -> web.Response:
        return web.Response(text="free")

    assert statuses_of(app, "/wrong", "/wrong") == [200, 200]
    assert caplog.text.count("wrong, where it limits nothing") == 1


@pytest.mark.parametrize("completed", [False, True])
def test_a_limit_above_the_route_of_a_view_or_in_a_nested_application_is_reported(
    of_aiohttp: aiohttp.RateLimits, completed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    routes = web.RouteTableDef()

    @of_aiohttp("1/minute")
    @routes.view("/view")
    class Wrong(web.View):
        async def get(self) -> web.Response:
            return web.Response(text="free")

    @routes.view("/right")
    @of_aiohttp("1/minute")
    class Right(web.View):
        @of_aiohttp("2/minute")
        async def get(self) -> web.Response:
            return web.Response(text="limited")

    app, inner = web.Application(), web.Application()
    inner.add_routes(routes)
    app.add_subapp("/inner", inner)
    if completed:
        aiohttp.setup(app, rate_limits=of_aiohttp)
    assert statuses_of(app, "/inner/view", "/inner/right", "/inner/right") == [200, 200, 429]
    assert caplog.text.count("limits nothing") == caplog.text.count("Wrong, where it limits nothing") == 1


def test_limits_that_do_limit_are_not_reported(
    of_aiohttp: aiohttp.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    routes = web.RouteTableDef()

    @routes.get("/twice")
    @of_aiohttp("9/minute")
    @of_aiohttp("1/minute")
    async def twice(request: web.Request) -> web.Response:
        return web.Response(text="limited")

    @routes.get("/wrapped")
    @noting
    @of_aiohttp("1/minute")
    @noting
    async def wrapped(request: web.Request) -> web.Response:
        return web.Response(text="limited")

    @routes.get("/limited")
    @of_aiohttp("1/minute")
    @routes.get("/free")
    async def one_of_two(request: web.Request) -> web.Response:
        return web.Response(text="both")

    @of_aiohttp("1/minute")
    async def never_registered(request: web.Request) -> web.Response:
        return web.Response(text="never")

    class Handlers:
        @of_aiohttp("1/minute")
        async def method(self, request: web.Request) -> web.Response:
            return web.Response(text="limited")

    @routes.view("/view")
    @of_aiohttp("9/minute")
    @of_aiohttp("1/minute")
    class View(web.View):
        @of_aiohttp("9/minute")
        async def get(self) -> web.Response:
            return web.Response(text="limited")

    class Derived(of_aiohttp("1/minute")(View)):  # type: ignore[misc]
        pass

    app = web.Application()
    app.add_routes(routes)
    app.router.add_get("/method", Handlers().method)
    app.router.add_view("/derived", Derived)
    aiohttp.setup(app, limits="99/minute", rate_limits=of_aiohttp)
    paths = ("/twice", "/wrapped", "/limited", "/method", "/view", "/derived")
    with nothing_reported(caplog):
        assert statuses_of(app, *paths, *paths, "/free", "/free", debug=True) == [200] * 6 + [429] * 6 + [200] * 2


def test_a_bare_handler_of_an_application_beside_a_limited_one_is_not_reported(
    of_aiohttp: aiohttp.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    internal, public = web.RouteTableDef(), web.RouteTableDef()

    @public.get("/")
    @of_aiohttp("1/minute")
    @internal.get("/")
    async def decorated(request: web.Request) -> web.Response:
        return web.Response(text="decorated")

    limited = of_aiohttp("1/minute")(bare)

    apps = []
    for routes in (internal, public):
        app = web.Application()
        app.add_routes(routes)
        app.router.add_get("/by-hand", bare if routes is internal else limited)
        aiohttp.setup(app, rate_limits=of_aiohttp)
        apps.append(app)
    with nothing_reported(caplog):
        assert statuses_of(apps[0], "/", "/", "/by-hand", "/by-hand", debug=True) == [200, 200, 200, 200]
        assert statuses_of(apps[1], "/", "/", "/by-hand", "/by-hand", debug=True) == [200, 429, 200, 429]


def test_a_bare_handler_whose_limited_one_is_called_by_another_is_not_reported(
    of_aiohttp: aiohttp.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    limited = of_aiohttp("1/minute")(bare)

    async def by_tier(request: web.Request) -> web.StreamResponse:
        return await limited(request)

    app = web.Application()
    app.router.add_get("/free", bare)
    app.router.add_get("/by-tier", by_tier)
    with nothing_reported(caplog):
        assert statuses_of(app, "/free", "/by-tier", "/by-tier", debug=True) == [200, 200, 429]


def test_two_limits_above_a_route_are_reported_once(
    of_aiohttp: aiohttp.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    routes = web.RouteTableDef()

    @of_aiohttp("9/minute")
    @of_aiohttp("1/minute")
    @routes.get("/")
    async def wrong(request: web.Request) -> web.Response:
        return web.Response(text="free")

    for _ in range(2):
        app = web.Application()
        app.add_routes(routes)
        aiohttp.setup(app, rate_limits=of_aiohttp)
        assert statuses_of(app, "/", "/") == [200, 200]
    assert caplog.text.count("wrong, where it limits nothing") == 1


# FastAPI and Starlette


def wrong_for_fastapi(limits: starlette.RateLimits, app: FastAPI, router: APIRouter | None = None) -> FastAPI:
    routes = router or app.router

    @limits("1/minute")
    @routes.get("/wrong")
    async def wrong(request: Request) -> Response:
        return PlainTextResponse("free")

    @app.get("/right")
    @limits("1/minute")
    async def right(request: Request) -> Response:
        return PlainTextResponse("limited")

    return app


def test_a_decorator_above_a_route_of_fastapi_is_logged_once(
    limits: starlette.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    app = wrong_for_fastapi(limits, FastAPI())
    assert statuses(app, "/wrong", "/right", "/right", "/wrong") == [200, 200, 429, 200]
    assert caplog.text.count("wrong, where it limits nothing: put it below the route decorator") == 1


def test_a_decorator_above_a_route_of_fastapi_raises_in_debug_mode(limits: starlette.RateLimits) -> None:
    app = wrong_for_fastapi(limits, FastAPI(debug=True))
    failed = ask(app, "/right")
    assert failed.status_code == 500 and re.search(rf"ConfigError: .*{MESSAGE}", html.unescape(failed.text))
    assert statuses(app, "/right", "/right") == [200, 429], "it is reported once"


@pytest.mark.parametrize("installed", ["headers", "install"])
def test_a_decorator_above_the_only_route_is_reported_by_a_middleware(
    limits: starlette.RateLimits, installed: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, router = FastAPI(), APIRouter(prefix="/inner")
    wrong_for_fastapi(limits, app, router)
    app.include_router(router)
    if installed == "install":
        FastAPILimits().install(app)
    else:
        app.add_middleware(RateLimitHeaders)
    assert statuses(app, "/inner/wrong", "/inner/wrong") == [200, 200]
    assert caplog.text.count("wrong, where it limits nothing") == 1


def test_a_dependency_reports_a_decorator_above_a_route(
    limits: starlette.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    app = wrong_for_fastapi(limits, FastAPI(dependencies=[Depends(FastAPILimits()("9/minute"))]))
    assert statuses(app, "/wrong", "/wrong") == [200, 200]
    assert caplog.text.count("wrong, where it limits nothing") == 1


def registering(routes: list[Any], path: str) -> Callable[[Any], Any]:
    """A decorator of routes as older versions of Starlette have it."""

    def decorate(endpoint: Any) -> Any:
        routes.append(Route(path, endpoint))
        return endpoint

    return decorate


def test_a_limit_above_a_decorator_of_routes_of_starlette_is_reported(
    limits: starlette.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    routes: list[Any] = []

    @limits("1/minute")
    @registering(routes, "/wrong")
    async def wrong(request: StarletteRequest) -> Response:
        return PlainTextResponse("free")

    inner: list[Any] = [Route("/right", limits("1/minute")(endpoint)), Mount("/inner", routes=routes)]
    assert statuses(Starlette(routes=inner), "/inner/wrong", "/inner/wrong", "/right", "/right") == [200, 200, 200, 429]
    assert caplog.text.count("wrong, where it limits nothing") == 1


def test_decorators_that_do_limit_are_not_reported(
    limits: starlette.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI(debug=True)
    app.add_middleware(RateLimitHeaders)

    @app.get("/twice")
    @limits("9/minute")
    @limits("1/minute")
    async def twice(request: Request) -> Response:
        return PlainTextResponse("limited")

    @app.get("/wrapped")
    @noting
    @limits("1/minute")
    @noting
    async def wrapped(request: Request) -> Response:
        return PlainTextResponse("limited")

    @app.get("/limited")
    @limits("1/minute")
    @app.get("/free")
    async def one_of_two(request: Request) -> Response:
        return PlainTextResponse("both")

    @limits("1/minute")
    async def never_registered(request: Request) -> Response:
        return PlainTextResponse("never")

    paths = ("/twice", "/wrapped", "/limited")
    with nothing_reported(caplog):
        assert statuses(app, *paths, *paths, "/free", "/free") == [200] * 3 + [429] * 3 + [200] * 2


def test_a_bare_endpoint_of_an_application_beside_a_limited_one_is_not_reported(
    limits: starlette.RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    internal: list[Any] = []
    public: list[Any] = []

    @registering(public, "/")
    @limits("1/minute")
    @registering(internal, "/")
    async def decorated(request: StarletteRequest) -> Response:
        return PlainTextResponse("decorated")

    limited = limits("1/minute")(endpoint)
    internal.append(Route("/by-hand", endpoint))
    public.append(Route("/by-hand", limited))
    apps = [Starlette(debug=True, routes=routes) for routes in (internal, public)]
    for app in apps:
        app.add_middleware(RateLimitHeaders)
    with nothing_reported(caplog):
        assert statuses(apps[0], "/", "/", "/by-hand", "/by-hand") == [200, 200, 200, 200]
        assert statuses(apps[1], "/", "/", "/by-hand", "/by-hand") == [200, 429, 200, 429]
