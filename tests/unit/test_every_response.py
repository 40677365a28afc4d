"""Which responses have the rate limit fields where only a limit is configured, as the docs of the frameworks say."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import flask
import httpx
import litestar
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from litestar.exceptions import PermissionDeniedException
from litestar.response import Redirect, Stream
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from asgi_requests import ask
from headgate.http import asgi
from headgate.integrations import aiohttp as for_aiohttp
from headgate.integrations import fastapi as for_fastapi
from headgate.integrations import flask as for_flask
from headgate.integrations import litestar as for_litestar
from headgate.integrations import starlette as for_starlette
from versions import FromQuery

LIMITS = "9/minute"
HasFields = Callable[[str], bool]


def over_asgi(app: Any) -> HasFields:
    return lambda path: "ratelimit" in ask(app, path).headers


async def parts() -> AsyncIterator[bytes]:
    yield b"part"


# FastAPI


def fastapi_routes(app: FastAPI, limit: Any) -> FastAPI:
    limited = [Depends(limit)]

    @app.get("/value", dependencies=limited)
    def value() -> dict[str, str]:
        return {"read": "yes"}

    @app.get("/response", dependencies=limited)
    def response() -> JSONResponse:
        return JSONResponse("read")

    @app.get("/stream", dependencies=limited)
    def stream() -> StreamingResponse:
        return StreamingResponse(parts())

    @app.get("/redirect", dependencies=limited)
    def redirect() -> RedirectResponse:
        return RedirectResponse("/value")

    @app.get("/error", dependencies=limited)
    def error() -> None:
        raise HTTPException(404)

    @app.get("/invalid", dependencies=limited)
    def invalid(number: int) -> int:
        return number

    @app.get("/crash", dependencies=limited)
    def crash() -> None:
        raise ValueError("a fault of the handler")

    @app.get("/refused", dependencies=[Depends(for_fastapi.rate_limit("1/minute", cost=2))])
    def refused() -> None:
        raise AssertionError("a refused request reached the handler")

    return app


def fastapi_bare() -> HasFields:
    return over_asgi(fastapi_routes(FastAPI(), for_fastapi.RateLimits()(LIMITS)))


def fastapi_installed() -> HasFields:
    limits = for_fastapi.RateLimits()
    app = fastapi_routes(FastAPI(), limits(LIMITS))
    limits.install(app)
    return over_asgi(app)


def fastapi_served_within() -> HasFields:
    return over_asgi(for_fastapi.RateLimitHeaders(fastapi_routes(FastAPI(), for_fastapi.RateLimits()(LIMITS))))


def fastapi_middleware() -> HasFields:
    app = fastapi_routes(FastAPI(), lambda: None)
    app.add_middleware(asgi.RateLimitMiddleware, limits=LIMITS)
    return over_asgi(app)


def fastapi_within_a_middleware() -> HasFields:
    return over_asgi(asgi.RateLimitMiddleware(fastapi_routes(FastAPI(), lambda: None), limits=LIMITS))


# Starlette


def starlette_routes(limited: Callable[[Any], Any], **options: Any) -> Starlette:
    async def value(request: Any) -> Any:
        return PlainTextResponse("read")

    async def stream(request: Any) -> Any:
        return StreamingResponse(parts())

    async def redirect(request: Any) -> Any:
        return RedirectResponse("/value")

    async def error(request: Any) -> Any:
        raise StarletteHTTPException(404)

    async def crash(request: Any) -> Any:
        raise ValueError("a fault of the handler")

    endpoints = (value, stream, redirect, error, crash)
    routes = [Route(f"/{endpoint.__name__}", limited(endpoint)) for endpoint in endpoints]
    refused = for_starlette.rate_limit("1/minute", cost=2)(value)
    return Starlette(routes=[*routes, Route("/refused", refused)], **options)


def starlette_bare() -> HasFields:
    return over_asgi(starlette_routes(for_starlette.rate_limit(LIMITS)))


def starlette_with_headers() -> HasFields:
    app = starlette_routes(for_starlette.rate_limit(LIMITS))
    app.add_middleware(for_starlette.RateLimitHeaders)
    return over_asgi(app)


def starlette_application() -> HasFields:
    app = starlette_routes(lambda endpoint: endpoint)
    app.add_middleware(for_starlette.RouteLimit, limits=LIMITS)
    return over_asgi(app)


# Flask


def flask_app() -> HasFields:
    app = flask.Flask("shop")
    limited = for_flask.rate_limit(LIMITS)

    def value() -> str:
        return "read"

    def response() -> flask.Response:
        return flask.jsonify("read")

    def stream() -> flask.Response:
        def own() -> Iterator[bytes]:
            yield b"part"

        return flask.Response(own())

    def redirect() -> Any:
        return flask.redirect("/value")

    def error() -> None:
        flask.abort(404)

    def crash() -> None:
        raise ValueError("a fault of the view")

    views: list[Any] = [value, response, stream, redirect, error, crash]
    for view in views:
        app.add_url_rule(f"/{view.__name__}", view_func=limited(view))
    app.add_url_rule("/refused", "refused", for_flask.rate_limit("1/minute", cost=2)(value))

    def has_fields(path: str) -> bool:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop.example") as session:
            return "ratelimit" in session.get(path).headers

    return has_fields


# Litestar


def litestar_app() -> HasFields:
    limited = [for_litestar.RateLimits()(LIMITS)]

    @litestar.get("/value")
    async def value() -> str:
        return "read"

    @litestar.get("/response")
    async def response() -> litestar.Response[str]:
        return litestar.Response("read")

    @litestar.get("/stream")
    async def stream() -> Stream:
        return Stream(parts())

    @litestar.get("/redirect")
    async def redirect() -> Redirect:
        return Redirect("/value")

    @litestar.get("/error")
    async def error() -> None:
        raise PermissionDeniedException("not you")

    @litestar.get("/invalid")
    async def invalid(number: FromQuery[int]) -> int:
        return number

    @litestar.get("/crash")
    async def crash() -> None:
        raise ValueError("a fault of the handler")

    @litestar.get("/refused", middleware=[for_litestar.rate_limit("1/minute", cost=2)])
    async def refused() -> None:
        raise AssertionError("a refused request reached the handler")

    handlers = [value, response, stream, redirect, error, invalid, crash, refused]
    return over_asgi(litestar.Litestar(handlers, middleware=limited, openapi_config=None, logging_config=None))


# aiohttp


def aiohttp_app(*, complete: bool) -> HasFields:
    limited = for_aiohttp.rate_limit(LIMITS)

    async def value(request: web.Request) -> web.StreamResponse:
        return web.Response(text="read")

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"part")
        await response.write_eof()
        return response

    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/value")

    async def error(request: web.Request) -> web.StreamResponse:
        raise web.HTTPNotFound

    async def crash(request: web.Request) -> web.StreamResponse:
        raise ValueError("a fault of the handler")

    def build() -> web.Application:
        app = web.Application()
        for handler in (value, stream, redirect, error, crash):
            app.router.add_get(f"/{handler.__name__}", limited(handler))
        app.router.add_get("/refused", for_aiohttp.rate_limit("1/minute", cost=2)(value))
        if complete:
            for_aiohttp.setup(app)
        return app

    async def paths(path: str) -> bool:
        async with (
            TestClient(TestServer(build())) as client,
            client.get(path, allow_redirects=False) as response,
        ):
            return "ratelimit" in response.headers

    return lambda path: asyncio.run(paths(path))


def aiohttp_bare() -> HasFields:
    return aiohttp_app(complete=False)


def aiohttp_set_up() -> HasFields:
    return aiohttp_app(complete=True)


ALL = {"value", "response", "stream", "redirect", "error", "invalid", "crash", "refused"}
WITHOUT_VALIDATION = ALL - {"response", "invalid"}
CASES: dict[str, tuple[Callable[[], HasFields], set[str], set[str]]] = {
    "FastAPI": (fastapi_bare, ALL, {"value", "refused"}),
    "FastAPI with install": (fastapi_installed, ALL, ALL - {"crash"}),
    "FastAPI within RateLimitHeaders": (fastapi_served_within, ALL, ALL),
    "FastAPI with the middleware": (fastapi_middleware, ALL, ALL - {"crash"}),
    "FastAPI within the middleware": (fastapi_within_a_middleware, ALL, ALL),
    "Starlette": (starlette_bare, WITHOUT_VALIDATION, {"value", "stream", "redirect", "refused"}),
    "Starlette with RateLimitHeaders": (starlette_with_headers, WITHOUT_VALIDATION, WITHOUT_VALIDATION - {"crash"}),
    "Starlette with RouteLimit": (starlette_application, WITHOUT_VALIDATION, WITHOUT_VALIDATION - {"crash"}),
    "Flask": (flask_app, ALL - {"invalid"}, ALL - {"invalid"}),
    "Litestar": (litestar_app, ALL, ALL),
    "aiohttp": (aiohttp_bare, WITHOUT_VALIDATION, {"value", "redirect", "error", "refused"}),
    "aiohttp with setup": (aiohttp_set_up, WITHOUT_VALIDATION, WITHOUT_VALIDATION),
}


@pytest.mark.parametrize(("build", "paths", "paths_with_fields"), CASES.values(), ids=CASES)
def test_exactly_these_responses_have_the_rate_limit_fields(
    build: Callable[[], HasFields], paths: set[str], paths_with_fields: set[str]
) -> None:
    has_fields = build()
    assert {path for path in paths if has_fields(f"/{path}")} == paths_with_fields
