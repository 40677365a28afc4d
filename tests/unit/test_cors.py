"""Refusals to pages of other origins: which order of middlewares lets a browser read them; others log a warning."""

import asyncio
import logging
from typing import Any

import flask
import httpx
import litestar
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import Depends, FastAPI
from litestar.config.cors import CORSConfig
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from asgi_requests import ask
from headgate.http import asgi
from headgate.integrations import aiohttp as for_aiohttp
from headgate.integrations import fastapi as for_fastapi
from headgate.integrations import flask as for_flask
from headgate.integrations import litestar as for_litestar
from headgate.integrations import starlette as for_starlette

ORIGIN = "https://page.example"
FIELDS = ["RateLimit", "RateLimit-Policy", "Retry-After"]
CORS: dict[str, Any] = {"allow_origins": [ORIGIN], "expose_headers": FIELDS}
PREFLIGHT = {"Origin": ORIGIN, "Access-Control-Request-Method": "GET"}


async def read(request: Any) -> PlainTextResponse:
    return PlainTextResponse("read")


def answers(app: Any) -> list[httpx.Response]:
    """Return the responses to another origin: three preflights, one that passes, a refusal, and one more preflight."""
    preflights = [ask(app, "/", "OPTIONS", headers=PREFLIGHT) for _ in range(3)]
    passed_and_refused = [ask(app, "/", headers={"Origin": ORIGIN}) for _ in range(2)]
    return [*preflights, *passed_and_refused, ask(app, "/", "OPTIONS", headers=PREFLIGHT)]


def check_readable(responses: list[httpx.Response]) -> None:
    assert [answer.status_code // 100 for answer in responses] == [2, 2, 2, 2, 4, 2]
    passed, refused = responses[3:5]
    assert refused.status_code == 429
    for answer in (passed, refused):
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
        exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
        assert {name for name in FIELDS if name in answer.headers} <= set(exposed)
    assert "Retry-After" in refused.headers


def outermost(app: Any, kind: Any, **options: Any) -> Any:
    app.add_middleware(kind, **options)
    return app


def starlette(*middleware: Middleware) -> Starlette:
    return Starlette(routes=[Route("/", read)], middleware=middleware)


def fastapi_with_a_dependency() -> FastAPI:
    limits = for_fastapi.RateLimits()
    app = FastAPI()
    app.get("/", dependencies=[Depends(limits("1/minute"))])(lambda: "read")
    limits.install(app)
    return outermost(app, CORSMiddleware, **CORS)  # type: ignore[no-any-return]


def fastapi_with_the_middleware() -> FastAPI:
    app = FastAPI()
    app.get("/")(lambda: "read")
    outermost(app, asgi.RateLimitMiddleware, limits="1/minute")
    return outermost(app, CORSMiddleware, **CORS)  # type: ignore[no-any-return]


def litestar_app(**options: Any) -> Any:
    @litestar.get("/")
    async def read() -> str:
        return "read"

    cors = CORSConfig(**CORS)
    return litestar.Litestar([read], cors_config=cors, openapi_config=None, logging_config=None, **options)


LIMIT = Middleware(asgi.RateLimitMiddleware, limits="1/minute")
ROUTE_LIMIT = Middleware(for_starlette.RouteLimit, limits="1/minute")
OUTSIDE = Middleware(CORSMiddleware, **CORS)
RIGHT = {
    "Starlette, the middleware": lambda: starlette(OUTSIDE, LIMIT),
    "Starlette, RouteLimit": lambda: starlette(OUTSIDE, ROUTE_LIMIT),
    "Starlette, served within": lambda: CORSMiddleware(
        asgi.RateLimitMiddleware(starlette(), limits="1/minute"), **CORS
    ),
    "FastAPI, a dependency": fastapi_with_a_dependency,
    "FastAPI, the middleware": fastapi_with_the_middleware,
    "Litestar, a layer": lambda: litestar_app(middleware=[for_litestar.RateLimits()("1/minute")]),
    "Litestar, the plugin": lambda: litestar_app(plugins=[for_litestar.RateLimitPlugin(limits="1/minute")]),
}
WRONG = {
    "Starlette, the middleware": lambda: starlette(LIMIT, OUTSIDE),
    "Starlette, RouteLimit": lambda: starlette(ROUTE_LIMIT, Middleware(for_starlette.RateLimitHeaders), OUTSIDE),
    "Starlette, served within": lambda: asgi.RateLimitMiddleware(starlette(OUTSIDE), limits="1/minute"),
    "FastAPI, the middleware": lambda: outermost(
        outermost(FastAPI(), CORSMiddleware, **CORS), asgi.RateLimitMiddleware, limits="1/minute"
    ),
    "Litestar, served within": lambda: asgi.RateLimitMiddleware(litestar_app(), limits="1/minute"),
}


@pytest.mark.parametrize("build", RIGHT.values(), ids=RIGHT)
def test_inside_of_cors_a_page_reads_refusals_and_preflights_are_free(
    build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headgate"):
        check_readable(answers(build()))
    assert caplog.records == []


@pytest.mark.parametrize("build", WRONG.values(), ids=WRONG)
def test_a_limit_outside_of_cors_logs_one_warning(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate"):
        app = build()
        responses = answers(app)
    assert "Access-Control-Allow-Origin" not in responses[4].headers
    [record] = caplog.records
    assert "is outside of CORS" in record.getMessage()
    assert "no page of another origin can read them" in record.getMessage()


def test_a_middleware_of_litestar_is_inside(caplog: pytest.LogCaptureFixture) -> None:
    limit = DefineMiddleware(asgi.RateLimitMiddleware, limits="1/minute")  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "headgate"):
        check_readable(answers(litestar_app(middleware=[limit])))
    assert caplog.records == []


# Flask: a function after each request answers other origins


def test_limits_of_flask_are_inside_of_functions_after_requests() -> None:
    app = flask.Flask("shop")
    for_flask.RateLimits(app, "1/minute")
    app.get("/")(lambda: "read")

    @app.after_request
    def allow(response: flask.Response) -> flask.Response:
        response.headers["Access-Control-Allow-Origin"] = ORIGIN
        return response

    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop.example") as session:
        responses = [
            session.options("/", headers=PREFLIGHT),
            *[session.get("/", headers={"Origin": ORIGIN}) for _ in "12"],
        ]
    assert [answer.status_code for answer in responses] == [200, 200, 429]
    assert all(answer.headers["Access-Control-Allow-Origin"] == ORIGIN for answer in responses)


# aiohttp: the first of the list is the outermost


@web.middleware
async def cors_middleware(request: web.Request, handler: Any) -> web.StreamResponse:
    response: web.StreamResponse = web.Response() if request.method == "OPTIONS" else await handler(request)
    response.headers["Access-Control-Allow-Origin"] = ORIGIN
    return response


def responses_of_aiohttp(app: web.Application) -> list[tuple[int, bool]]:
    async def passed_and_refused() -> list[tuple[int, bool]]:
        async with TestClient(TestServer(app)) as client:
            responses = []
            for method, headers in (("OPTIONS", PREFLIGHT), ("GET", {"Origin": ORIGIN}), ("GET", {"Origin": ORIGIN})):
                async with client.request(method, "/", headers=headers) as response:
                    responses.append((response.status, "Access-Control-Allow-Origin" in response.headers))
            return responses

    return asyncio.run(passed_and_refused())


@pytest.mark.parametrize("right", [True, False])
def test_a_middleware_of_aiohttp_that_is_first_sees_refusals(
    right: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = web.Application(middlewares=[] if right else [cors_middleware])
    app.router.add_get("/", read_web)
    for_aiohttp.setup(app, limits="1/minute")
    if right:
        app.middlewares.insert(0, cors_middleware)
    with caplog.at_level(logging.WARNING, "headgate"):
        assert responses_of_aiohttp(app) == [(200, True), (200, True), (429, right)]
    assert ["is outside of cors_middleware" in record.getMessage() for record in caplog.records] == [True] * (not right)


async def read_web(request: web.Request) -> web.Response:
    return web.Response(text="read")
