"""A refusal of status 204 or 304 has neither content nor a length, in every integration (RFC 9110, 6.4.1 and 8.6)."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
import httpx
import pytest
from fastapi import Depends, FastAPI
from litestar import Litestar, get
from starlette.applications import Starlette
from starlette.routing import Route

from framework_apps import ONE, ask_aiohttp, ask_asgi, ask_django, ask_wsgi, once, read, read_in_aiohttp, read_in_django
from headgate.decision import Decision
from headgate.http import asgi, wsgi
from headgate.http.server.options import Refusal
from headgate.integrations import aiohttp, fastapi, litestar, starlette
from headgate.integrations import flask as flask_limits
from headgate.integrations.django import rate_limit

TWICE = (ONE, ONE)


def in_asgi(options: dict[str, Any]) -> list[httpx.Response]:
    return ask_asgi(asgi.RateLimitMiddleware(Starlette(routes=[Route("/", read)]), **options), TWICE)


def in_wsgi(options: dict[str, Any]) -> list[httpx.Response]:
    app = flask.Flask(__name__)
    app.add_url_rule("/", "read", lambda: "new")
    return ask_wsgi(wsgi.RateLimitMiddleware(app, **options), TWICE)


def in_starlette(options: dict[str, Any]) -> list[httpx.Response]:
    return ask_asgi(Starlette(routes=[Route("/", starlette.RateLimits()(**options)(read))]), TWICE)


def in_fastapi(options: dict[str, Any]) -> list[httpx.Response]:
    limits, app = fastapi.RateLimits(), FastAPI()
    limits.install(app)
    app.get("/", dependencies=[Depends(limits(**options))])(lambda: "new")
    return ask_asgi(app, TWICE)


def in_litestar(options: dict[str, Any]) -> list[httpx.Response]:
    @get("/", middleware=[litestar.RateLimits()(**options)])
    async def handler() -> str:
        return "new"

    return ask_asgi(Litestar([handler], openapi_config=None, logging_config=None), TWICE)


def in_flask(options: dict[str, Any]) -> list[httpx.Response]:
    app = flask.Flask(__name__)
    app.add_url_rule("/", "read", flask_limits.RateLimits()(**options)(lambda: "new"))
    return ask_wsgi(app, TWICE)


def in_aiohttp(options: dict[str, Any]) -> list[httpx.Response]:
    return ask_aiohttp(aiohttp.RateLimits()(**options)(read_in_aiohttp), TWICE)


def in_django(options: dict[str, Any]) -> list[httpx.Response]:
    return ask_django(rate_limit(**options)(read_in_django), TWICE)


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize(
    "send", [in_asgi, in_wsgi, in_starlette, in_fastapi, in_litestar, in_flask, in_aiohttp, in_django]
)
def test_a_refusal_whose_status_excludes_content_has_none(
    send: Callable[[dict[str, Any]], list[httpx.Response]], status: int
) -> None:
    def refusal(request: Any, decision: Decision, usual: Refusal) -> Refusal:
        return usual._replace(status=status)

    passed, refused = send(once(refusal=refusal))
    assert (passed.status_code, refused.status_code, refused.content) == (200, status, b"")
    assert not {"content-length", "transfer-encoding"} & refused.headers.keys()
    assert int(refused.headers["Retry-After"]) >= 1
