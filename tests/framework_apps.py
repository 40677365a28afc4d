"""Applications of each framework with a limit of one request a minute, called without a server."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import django_configured  # noqa: F401 - the imports below need its settings

# isort: split

from django.core.cache import caches
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.views.defaults import page_not_found

from headgate.testing import ManualClock

Fields = list[tuple[str, str]]
Clients = tuple[str, ...]

ONE = "203.0.113.9"
"""The address of a client."""

MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"


def once(**more: Any) -> dict[str, Any]:
    """Return the options of a limit of one request a minute, on a clock that stands still."""
    return {"limits": "1/minute", "clock": ManualClock(), **more}


def ask_asgi(app: Any, clients: Clients) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        answers = []
        for client in clients:
            transport = httpx.ASGITransport(app, client=(client, 1234))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as session:
                answers.append(await session.get("/"))
        return answers

    return asyncio.run(run())


def ask_wsgi(app: Any, clients: Clients) -> list[httpx.Response]:
    answers = []
    for client in clients:
        transport = httpx.WSGITransport(app, remote_addr=client)
        with httpx.Client(transport=transport, base_url="http://shop.example") as session:
            answers.append(session.get("/"))
    return answers


async def read(request: Request) -> Response:
    return PlainTextResponse("new")


async def read_in_aiohttp(request: web.Request) -> web.Response:
    return web.Response(text="new")


def ask_aiohttp(limited: Any, clients: Clients) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        answers = []
        app = web.Application(middlewares=limited if isinstance(limited, list) else [])
        app.router.add_get("/", read_in_aiohttp if isinstance(limited, list) else limited)
        async with TestClient(TestServer(app)) as session:
            for _ in clients:
                async with session.get("/") as received:
                    fields, content = [*received.headers.items()], await received.read()
                    answers.append(httpx.Response(received.status, headers=fields, content=content))
        return answers

    return asyncio.run(run())


def read_in_django(request: HttpRequest) -> HttpResponse:
    return HttpResponse("new")


async def read_later_in_django(request: HttpRequest) -> HttpResponse:
    return HttpResponse("new")


def ask_django(
    view: Any, clients: Clients, *, kind: str = "wsgi", not_found: Any = page_not_found, **settings: Any
) -> list[httpx.Response]:
    class Urls:
        urlpatterns = [path("", view)]  # noqa: RUF012 - as Django has it
        handler404 = staticmethod(not_found)

    caches["default"].clear()
    with override_settings(ROOT_URLCONF=Urls, **({"MIDDLEWARE": [], "HEADGATE": {}} | settings)):
        return ask_wsgi(WSGIHandler(), clients) if kind == "wsgi" else ask_asgi(ASGIHandler(), clients)


def cache_fields(response: httpx.Response) -> Fields:
    named = [(name.lower(), value) for name, value in response.headers.multi_items()]
    return [field for field in named if field[0] in ("cache-control", "expires")]
