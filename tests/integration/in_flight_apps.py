"""Applications with two places for requests, which the tests of real servers run: quick, endless, failing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from headgate.http import asgi, wsgi

LIMITS = "2 concurrent; 100000/minute"
PART = b"part" * 1000


async def _quick(request: Any) -> PlainTextResponse:
    return PlainTextResponse("quick")


async def _upload(request: Any) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def _fail(request: Any) -> PlainTextResponse:
    raise KeyError


async def _endless(request: Any) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield PART
            await asyncio.sleep(0.01)

    return StreamingResponse(parts())


async def _broken(request: Any) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield PART
        raise KeyError

    return StreamingResponse(parts())


asgi_app = asgi.RateLimitMiddleware(
    Starlette(
        routes=[
            Route("/quick", _quick),
            Route("/upload", _upload, methods=["POST"]),
            Route("/fail", _fail),
            Route("/endless", _endless),
            Route("/broken", _broken),
        ]
    ),
    limits=LIMITS,
)

_flask = flask.Flask(__name__)


@_flask.get("/quick")
def quick() -> str:
    return "quick"


@_flask.post("/upload")
def upload() -> str:
    return str(len(flask.request.get_data()))


@_flask.get("/fail")
def fail() -> str:
    raise KeyError


@_flask.get("/endless")
def endless() -> flask.Response:
    def parts() -> Iterator[bytes]:
        while True:
            yield PART
            time.sleep(0.01)

    return flask.Response(parts())


@_flask.get("/broken")
def broken() -> flask.Response:
    def parts() -> Iterator[bytes]:
        yield PART
        raise KeyError

    return flask.Response(parts())


wsgi_app = wsgi.RateLimitMiddleware(_flask.wsgi_app, limits=LIMITS)
