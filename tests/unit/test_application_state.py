"""Counts in memory belong to an application: another one starts at zero, and the state ends with the application."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import flask
import httpx
import litestar
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from asgi_requests import ask
from headgate import MemoryStore
from headgate.http import asgi
from headgate.http.server.attached_values import Attached
from headgate.integrations import aiohttp as for_aiohttp
from headgate.integrations import fastapi as for_fastapi
from headgate.integrations import flask as for_flask
from headgate.integrations import litestar as for_litestar
from headgate.integrations import starlette as for_starlette
from versions import needs

LIMITS = "2/minute"
PASSES_TWICE = [200, 200, 429]

Statuses = Callable[[Any, int], list[int]]


def over_asgi(app: Any, times: int) -> list[int]:
    return [ask(app, "/x").status_code for _ in range(times)]


def over_wsgi(app: Any, times: int) -> list[int]:
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop.example") as session:
        return [session.get("/x").status_code for _ in range(times)]


def over_aiohttp(app: Any, times: int) -> list[int]:
    async def run() -> list[int]:
        async with TestClient(TestServer(app)) as client:
            statuses = []
            for _ in range(times):
                async with client.get("/x") as response:
                    statuses.append(response.status)
            return statuses

    return asyncio.run(run())


async def read(request: Any) -> PlainTextResponse:
    return PlainTextResponse("read")


def fastapi_bare(**options: Any) -> FastAPI:
    app = FastAPI()
    app.get("/x", dependencies=[Depends(for_fastapi.rate_limit(LIMITS, **options))])(lambda: "read")
    return app


ONE_OF_FASTAPI = for_fastapi.rate_limit(LIMITS)


def fastapi_of_the_module(**options: Any) -> FastAPI:
    limit = for_fastapi.rate_limit(LIMITS, **options) if options else ONE_OF_FASTAPI
    router = APIRouter(dependencies=[Depends(limit)])
    router.get("/x")(lambda: "read")
    app = FastAPI()
    app.include_router(router)
    return app


def fastapi_completed(**options: Any) -> FastAPI:
    limits = for_fastapi.RateLimits(**options)
    app = FastAPI()
    app.get("/x", dependencies=[Depends(limits(LIMITS))])(lambda: "read")
    limits.install(app)
    return app


def fastapi_mounted(**options: Any) -> FastAPI:
    app = FastAPI()
    app.mount("/", fastapi_of_the_module(**options))
    return app


def starlette_endpoint(**options: Any) -> Starlette:
    return Starlette(routes=[Route("/x", for_starlette.rate_limit(LIMITS, **options)(read))])


ONE_OF_STARLETTE = for_starlette.rate_limit(LIMITS)(read)
BEFORE = [Middleware(for_starlette.RouteLimit, limits=LIMITS)]


def starlette_of_the_module(**options: Any) -> Starlette:
    endpoint = for_starlette.rate_limit(LIMITS, **options)(read) if options else ONE_OF_STARLETTE
    return Starlette(routes=[Route("/x", endpoint)])


def starlette_middleware(**options: Any) -> Starlette:
    before = [Middleware(for_starlette.RouteLimit, limits=LIMITS, **options)] if options else BEFORE
    return Starlette(routes=[Route("/x", read)], middleware=before)


def starlette_mount(**options: Any) -> Starlette:
    before = [Middleware(for_starlette.RouteLimit, limits=LIMITS, **options)] if options else BEFORE
    return Starlette(routes=[Mount("/", routes=[Route("/x", read)], middleware=before)])


def asgi_middleware(**options: Any) -> Starlette:
    middleware = [Middleware(asgi.RateLimitMiddleware, limits=LIMITS, **options)]
    return Starlette(routes=[Route("/x", read)], middleware=middleware)


def flask_view(**options: Any) -> flask.Flask:
    app = flask.Flask("shop")
    app.get("/x")(for_flask.rate_limit(LIMITS, **options)(lambda: "read"))
    return app


def _flask_read() -> str:
    return "read"


ONE_OF_FLASK = for_flask.rate_limit(LIMITS)(_flask_read)


def flask_of_the_module(**options: Any) -> flask.Flask:
    app = flask.Flask("shop")
    app.get("/x")(for_flask.rate_limit(LIMITS, **options)(_flask_read) if options else ONE_OF_FLASK)
    return app


EXTENSION = for_flask.RateLimits(default=LIMITS)


def flask_extension(**options: Any) -> flask.Flask:
    app = flask.Flask("shop")
    app.get("/x")(_flask_read)
    (for_flask.RateLimits(default=LIMITS, **options) if options else EXTENSION).init_app(app)
    return app


def litestar_handler() -> Any:
    @litestar.get("/x")
    async def read() -> str:
        return "read"

    return read


ONE_OF_LITESTAR = for_litestar.rate_limit(LIMITS)
PLUGIN = for_litestar.RateLimitPlugin(limits=LIMITS)


def litestar_layer(**options: Any) -> Any:
    limit = for_litestar.rate_limit(LIMITS, **options) if options else ONE_OF_LITESTAR
    return litestar.Litestar([litestar_handler()], middleware=[limit], openapi_config=None, logging_config=None)


def litestar_plugin(**options: Any) -> Any:
    plugin = for_litestar.RateLimitPlugin(limits=LIMITS, **options) if options else PLUGIN
    return litestar.Litestar([litestar_handler()], plugins=[plugin], openapi_config=None, logging_config=None)


async def read_web(request: web.Request) -> web.Response:
    return web.Response(text="read")


ONE_OF_AIOHTTP = for_aiohttp.rate_limit(LIMITS)(read_web)
ONE_MIDDLEWARE = for_aiohttp.middleware(limits=LIMITS)


def aiohttp_handler(**options: Any) -> web.Application:
    app = web.Application()
    app.router.add_get("/x", for_aiohttp.rate_limit(LIMITS, **options)(read_web) if options else ONE_OF_AIOHTTP)
    return app


def aiohttp_middleware(**options: Any) -> web.Application:
    app = web.Application(middlewares=[for_aiohttp.middleware(limits=LIMITS, **options) if options else ONE_MIDDLEWARE])
    app.router.add_get("/x", read_web)
    return app


def aiohttp_set_up(**options: Any) -> web.Application:
    app = web.Application()
    app.router.add_get("/x", read_web)
    for_aiohttp.setup(app, limits=LIMITS, **options)
    return app


KINDS: list[tuple[Callable[..., Any], Statuses]] = [
    *[(build, over_asgi) for build in (fastapi_bare, fastapi_of_the_module, fastapi_completed, fastapi_mounted)],
    *[(build, over_asgi) for build in (starlette_endpoint, starlette_of_the_module, starlette_middleware)],
    *[(build, over_asgi) for build in (starlette_mount, asgi_middleware, litestar_layer, litestar_plugin)],
    *[(build, over_wsgi) for build in (flask_view, flask_of_the_module, flask_extension)],
    *[(build, over_aiohttp) for build in (aiohttp_handler, aiohttp_middleware, aiohttp_set_up)],
]
EACH = pytest.mark.parametrize(("build", "statuses"), KINDS, ids=[build.__name__ for build, _ in KINDS])


@EACH
def test_each_application_of_a_factory_starts_at_zero(build: Any, statuses: Statuses) -> None:
    assert [statuses(build(), 3) for _ in range(3)] == [PASSES_TWICE] * 3


@EACH
def test_two_applications_in_one_process_count_separately(build: Any, statuses: Statuses) -> None:
    one, other = build(), build()  # an application of aiohttp runs once, so each is used once
    assert [statuses(one, 3), statuses(other, 3)] == [PASSES_TWICE] * 2


@EACH
def test_a_named_store_is_shared(build: Any, statuses: Statuses) -> None:
    store = MemoryStore()
    one, other = build(store=store), build(store=store)
    assert statuses(one, 2) + statuses(other, 1) == PASSES_TWICE


CACHED_BY_AIOHTTP = (aiohttp_middleware, aiohttp_set_up)
"""Applications that aiohttp itself keeps alive: it caches the handlers that it built with their middlewares."""

LITESTAR_ENDS = needs("litestar", "2.25", "its routing cache does not keep applications alive")

ENDING = [
    pytest.param(build, how, marks=[LITESTAR_ENDS] if build in (litestar_layer, litestar_plugin) else [])
    for build, how in KINDS
    if build not in CACHED_BY_AIOHTTP
]


@pytest.mark.parametrize(("build", "statuses"), ENDING)
def test_the_state_ends_with_the_application(build: Any, statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[MemoryStore]] = []

    def open_and_record(url: str) -> MemoryStore:
        store = MemoryStore()
        opened.append(weakref.ref(store))
        return store

    monkeypatch.setattr("headgate.http.server.routes.open_store", open_and_record)
    monkeypatch.setattr("headgate.http.server.request_limits.open_store", open_and_record)
    app = build()
    assert statuses(app, 3) == PASSES_TWICE
    assert [keys_in(store()) for store in opened if keys_in(store())] == [1]
    del app
    for _ in range(3):  # the application's objects are garbage now, and some of them in reference cycles
        gc.collect()
    assert [keys_in(store()) for store in opened if keys_in(store())] == []


def keys_in(store: MemoryStore | None) -> int:
    return 0 if store is None else store.stats().keys


def test_limits_of_one_application_share_its_store() -> None:
    app = FastAPI()
    app.get("/x", dependencies=[Depends(for_fastapi.rate_limit(LIMITS, scope="all"))])(lambda: "read")
    app.get("/y", dependencies=[Depends(for_fastapi.rate_limit(LIMITS, scope="all"))])(lambda: "read")
    inner = FastAPI()
    inner.get("/x", dependencies=[Depends(for_fastapi.rate_limit(LIMITS, scope="all"))])(lambda: "read")
    app.mount("/inner", inner)
    assert [ask(app, path).status_code for path in ("/x", "/inner/x", "/y", "/inner/x")] == [200, 200, 429, 429]


def test_a_value_is_made_once_for_an_object_and_ends_with_it() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    attached: Attached[list[int]] = Attached()
    one, other = Unhashable(), Unhashable()
    value = attached.of(one, list)
    assert attached.of(one, list) is value and attached.of(other, list) is not value
    del one
    gc.collect()
    assert len(attached) == 1
