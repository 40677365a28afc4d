"""The fields for caches in the responses of fallbacks, in every integration."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import flask
import httpx
import pytest
from aiohttp import web
from litestar import Litestar, get
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import django_configured  # noqa: F401 - the imports below need its settings

# isort: split

from django.http import FileResponse, HttpRequest, HttpResponse
from django.views.decorators.cache import cache_page

from framework_apps import (
    MIDDLEWARE,
    ONE,
    Clients,
    Fields,
    ask_aiohttp,
    ask_asgi,
    ask_django,
    ask_wsgi,
    cache_fields,
    once,
    read,
    read_in_aiohttp,
    read_in_django,
    read_later_in_django,
)
from headgate.http import asgi, wsgi
from headgate.http.server.asgi_messages import refuse
from headgate.http.server.options import Refusal
from headgate.integrations import aiohttp, litestar, starlette
from headgate.integrations import flask as flask_limits
from headgate.integrations.django import rate_limit
from headgate.testing import ManualClock
from versions import needs

ASYNC_CACHE_PAGE = needs("django", "5.0", "cache_page takes asynchronous views")
Send = Callable[[Fields, Clients], list[httpx.Response]]
"""Sends requests to an application with a limit of one a minute, whose fallback responds with these fields."""


def asgi_app(text: str, fields: Fields) -> Any:
    encoded = [(name.encode(), value.encode()) for name, value in fields]
    start = {"type": "http.response.start", "status": 200, "headers": tuple(encoded)}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start)
        await send({"type": "http.response.body", "body": text.encode()})

    return app


def wsgi_app(text: str, fields: Fields) -> Any:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", fields)
        return [text.encode()]

    return app


def in_asgi(fields: Fields, clients: Clients) -> list[httpx.Response]:
    old = asgi_app("old", fields)
    return ask_asgi(asgi.RateLimitMiddleware(asgi_app("new", []), **once(fallback=old)), clients)


def in_wsgi(fields: Fields, clients: Clients) -> list[httpx.Response]:
    old = wsgi_app("old", fields)
    return ask_wsgi(wsgi.RateLimitMiddleware(wsgi_app("new", []), **once(fallback=old)), clients)


def in_starlette_s_decorator(fields: Fields, clients: Clients) -> list[httpx.Response]:
    same = PlainTextResponse("old", headers=dict(fields))
    limited = starlette.RateLimits()(**once(fallback=lambda request: same))(read)
    return ask_asgi(Starlette(routes=[Route("/", limited)]), clients)


def in_starlette_s_middleware(fields: Fields, clients: Clients) -> list[httpx.Response]:
    limit = Middleware(
        starlette.RouteLimit, rate_limits=starlette.RateLimits(), **once(fallback=asgi_app("old", fields))
    )
    return ask_asgi(Starlette(routes=[Route("/", read, middleware=[limit])]), clients)


def in_litestar(fields: Fields, clients: Clients) -> list[httpx.Response]:
    limit = litestar.RateLimits()(**once(fallback=asgi_app("old", fields)))

    @get("/", middleware=[limit])
    async def handler() -> str:
        return "new"

    return ask_asgi(Litestar([handler], openapi_config=None, logging_config=None), clients)


def in_flask(fields: Fields, clients: Clients) -> list[httpx.Response]:
    app = flask.Flask(__name__)
    same = flask.Response("old", headers=fields)
    app.add_url_rule("/", "read", flask_limits.RateLimits()(**once(fallback=lambda: same))(lambda: "new"))
    return ask_wsgi(app, clients)


def in_all_of_flask(fields: Fields, clients: Clients) -> list[httpx.Response]:
    app = flask.Flask(__name__)
    app.add_url_rule("/", "read", lambda: "new")
    flask_limits.RateLimits(app, default="1/minute", clock=ManualClock(), fallback=lambda: ("old", fields))
    return ask_wsgi(app, clients)


def in_aiohttp(fields: Fields, clients: Clients) -> list[httpx.Response]:
    async def old(request: web.Request) -> web.Response:
        return web.Response(text="old", headers=fields)

    return ask_aiohttp(aiohttp.RateLimits()(**once(fallback=old))(read_in_aiohttp), clients)


def in_all_of_aiohttp(fields: Fields, clients: Clients) -> list[httpx.Response]:
    async def old(request: web.Request) -> web.Response:
        return web.Response(text="old", headers=fields)

    return ask_aiohttp([aiohttp.middleware(**once(fallback=old))], clients)


def fallback_of_django(fields: Fields) -> Callable[[HttpRequest], HttpResponse]:
    same = HttpResponse("old", headers=dict(fields))
    return lambda request: same


def in_django(fields: Fields, clients: Clients) -> list[httpx.Response]:
    return ask_django(rate_limit(**once(fallback=fallback_of_django(fields)))(read_in_django), clients)


def in_async_django(fields: Fields, clients: Clients) -> list[httpx.Response]:
    view = rate_limit(**once(fallback=fallback_of_django(fields)))(read_later_in_django)
    return ask_django(view, clients, kind="asgi")


def in_all_of_django(fields: Fields, clients: Clients) -> list[httpx.Response]:
    limits = once(fallback=fallback_of_django(fields))
    return ask_django(read_in_django, clients, MIDDLEWARE=[MIDDLEWARE], HEADGATE=limits)


INTEGRATIONS: list[Send] = [
    in_asgi, in_wsgi, in_starlette_s_decorator, in_starlette_s_middleware, in_litestar, in_flask, in_all_of_flask,
    in_aiohttp, in_all_of_aiohttp, in_django, in_async_django, in_all_of_django,
]  # fmt: skip


@pytest.mark.parametrize("send", INTEGRATIONS, ids=lambda send: send.__name__)
@pytest.mark.parametrize(
    "own_fields",
    [
        [],
        [("Cache-Control", "max-age=60")],
        [("cache-CONTROL", "public")],
        [("Expires", "Thu, 01 Dec 1994 16:00:00 GMT")],
    ],
    ids=["nothing", "cache-control", "in other letters", "expires"],
)
def test_the_response_of_a_fallback_is_not_stored_unless_its_headers_say_otherwise(
    send: Send, own_fields: Fields
) -> None:
    added = "no-store, private" if "django" in send.__name__ else "no-store"
    fields = [(name.lower(), value) for name, value in own_fields] or [("cache-control", added)]
    passed, *refused = send(own_fields, (ONE,) * 3)
    assert (passed.text, cache_fields(passed)) == ("new", [])
    assert [(response.status_code, response.text, cache_fields(response)) for response in refused] == [
        (200, "old", fields)
    ] * 2
    assert all(int(response.headers["Retry-After"]) >= 1 for response in refused)


def refusing(*fields: tuple[str, str]) -> Callable[..., Refusal]:
    """Return a function for `refusal=` that adds these fields."""
    return lambda request, decision, usual: usual._replace(headers=[*usual.headers, *fields])


@pytest.mark.parametrize("fallback_fields", [[], [("Cache-Control", "max-age=60")]], ids=["nothing", "cache-control"])
@pytest.mark.parametrize(
    ("own_fields", "expected"),
    [
        ([("Cache-Control", "private, max-age=5")], [("cache-control", "private, max-age=5")]),
        (
            [("Expires", "0")],
            [("cache-control", "no-store, private"), ("expires", "0")],
        ),  # a field that Django's caches ignore
        ([("Cache-Control", "no-store, max-age=0")], [("cache-control", "no-store, max-age=0, private")]),
    ],
    ids=["cache-control", "expires", "no-store"],
)
@pytest.mark.parametrize("placement", ["view", "async view", "middleware"])
def test_a_fallback_of_django_gets_the_cache_fields_of_the_refusal(
    placement: str, own_fields: Fields, expected: Fields, fallback_fields: Fields
) -> None:
    limits = once(fallback=fallback_of_django(fallback_fields), refusal=refusing(*own_fields))
    if placement == "middleware":
        responses = ask_django(read_in_django, (ONE,) * 3, MIDDLEWARE=[MIDDLEWARE], HEADGATE=limits)
    elif placement == "view":
        responses = ask_django(rate_limit(**limits)(read_in_django), (ONE,) * 3)
    else:
        responses = ask_django(rate_limit(**limits)(read_later_in_django), (ONE,) * 3, kind="asgi")
    if fallback_fields:  # the field of the fallback stays, beside the refusal's field of another name
        expected = sorted({**dict(expected), "cache-control": "max-age=60"}.items())
    assert [(response.text, sorted(cache_fields(response))) for response in responses[1:]] == [("old", expected)] * 2


def test_a_fallback_gets_the_cache_fields_of_the_refusal() -> None:
    options = once(fallback=asgi_app("old", []), refusal=refusing(("Cache-Control", "private, max-age=5")))
    refused = ask_asgi(asgi.RateLimitMiddleware(asgi_app("new", []), **options), (ONE, ONE))[1]
    assert (refused.text, cache_fields(refused)) == ("old", [("cache-control", "private, max-age=5")])


def test_a_cache_of_django_stores_the_response_of_a_fallback_only_as_the_refusal_says() -> None:
    def texts(cache_control: str) -> list[str]:
        limits = once(fallback=fallback_of_django([]), refusal=refusing(("Cache-Control", cache_control)))
        cached = cache_page(60)(rate_limit(**limits, key=lambda request: request.META["REMOTE_ADDR"])(read_in_django))
        uncached = cache_page(0)(cached.__wrapped__)
        pages = iter([uncached, cached, cached])

        def page(request: HttpRequest) -> Any:
            return next(pages)(request)

        return [response.text for response in ask_django(page, (ONE, ONE, "203.0.113.10"))]

    assert texts("private, max-age=5") == texts("no-store") == ["new", "old", "new"]
    assert texts("max-age=60") == ["new", "old", "old"]


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("middlewares", [[], [MIDDLEWARE]], ids=["alone", "below the middleware"])
@pytest.mark.parametrize("view", [read_in_django, pytest.param(read_later_in_django, marks=ASYNC_CACHE_PAGE)])
def test_a_cache_of_django_gives_no_other_client_the_response_of_a_fallback(
    kind: str, middlewares: list[str], view: Any
) -> None:
    def old(request: HttpRequest) -> HttpResponse:
        return HttpResponse("old")

    limited = rate_limit(**once(key=lambda request: request.META["REMOTE_ADDR"], fallback=old))(view)
    cached, uncached = cache_page(60)(limited), cache_page(0)(limited)
    pages = iter([uncached, cached, cached])  # the first response is not stored, so the second request is refused

    def page(request: HttpRequest) -> Any:
        return next(pages)(request)

    async def page_later(request: HttpRequest) -> Any:
        return await next(pages)(request)

    options = {"MIDDLEWARE": middlewares, "HEADGATE": {}}
    site = page if view is read_in_django else page_later
    responses = ask_django(site, (ONE, ONE, "203.0.113.10"), kind=kind, **options)
    assert [response.text for response in responses] == ["new", "old", "new"]


def test_a_cache_of_the_site_gives_no_other_client_the_response_of_a_fallback() -> None:
    limits = once(fallback=fallback_of_django([]))
    above = "django.middleware.cache.UpdateCacheMiddleware"
    below = "django.middleware.cache.FetchFromCacheMiddleware"
    clients = (ONE, ONE, "203.0.113.10")

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("new", headers={"Cache-Control": "private"})

    responses = ask_django(view, clients, MIDDLEWARE=[above, below, MIDDLEWARE], HEADGATE=limits)
    assert [response.text for response in responses] == ["new", "old", "new"]


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_a_response_that_a_view_of_django_shares_is_unchanged(kind: str) -> None:
    same = HttpResponse("same")
    view = rate_limit(**once(fallback=lambda request: same))(lambda request: same)
    responses = ask_django(view, (ONE, ONE, "203.0.113.10"), kind=kind)
    assert [cache_fields(response) for response in responses] == [[], [("cache-control", "no-store, private")], []]
    assert "Cache-Control" not in same.headers


def test_a_file_in_the_response_of_a_fallback_of_django_is_closed() -> None:
    file = BytesIO(b"old")
    view = rate_limit(**once(fallback=lambda request: FileResponse(file)))(read_in_django)
    refused = ask_django(view, (ONE, ONE))[1]
    assert (refused.text, cache_fields(refused)) == ("old", [("cache-control", "no-store, private")])
    assert file.closed


def test_a_response_that_a_view_of_flask_shares_gets_no_cache_field() -> None:
    app = flask.Flask(__name__)
    same = flask.Response("same")
    app.add_url_rule("/", "read", flask_limits.RateLimits()(**once(fallback=lambda: same))(lambda: same))
    responses = ask_wsgi(app, (ONE, ONE, "203.0.113.10"))
    assert [cache_fields(response) for response in responses] == [[], [("cache-control", "no-store")], []]


def test_the_usual_refusal_has_no_cache_field() -> None:
    app = asgi.RateLimitMiddleware(asgi_app("new", []), **once())
    refused = ask_asgi(app, (ONE, ONE))[1]
    assert (refused.status_code, cache_fields(refused)) == (429, [])


def test_only_the_start_of_a_response_is_changed_and_no_message_of_the_application() -> None:
    refusal = Refusal(429, [("Retry-After", "1"), ("Content-Type", "text/plain")], b"")
    messages: list[Any] = [
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "websocket.http.response.start", "status": 200},
        {"type": "websocket.accept", "headers": []},
        {"type": "http.response.body", "body": b"old"},
    ]
    before = [dict(message) for message in messages]
    sent: list[Any] = []

    async def old(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body must not be read")

    async def run() -> None:
        await refuse(refusal, {"type": "http", "method": "GET"}, receive, send, old)

    asyncio.run(run())
    assert messages == before and messages[0]["headers"] == []
    retry, no_store = (b"retry-after", b"1"), (b"cache-control", b"no-store")
    assert [message.get("headers") for message in sent] == [[retry, no_store], [retry, no_store], [retry], None]
