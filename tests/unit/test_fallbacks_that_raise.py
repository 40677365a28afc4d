"""The fields for caches in the response that a framework creates for an exception of a fallback."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import fastapi
import flask
import httpx
import pytest
import werkzeug.exceptions as of_werkzeug
from aiohttp import web
from litestar import Litestar, Response, get
from litestar import exceptions as of_litestar
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

import django_configured  # noqa: F401 - the imports below need its settings

# isort: split

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from rest_framework.exceptions import NotFound
from rest_framework.response import Response as RestResponse
from rest_framework.views import APIView

from framework_apps import (
    MIDDLEWARE,
    ONE,
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
from headgate.http.server.options import Refusal
from headgate.integrations import aiohttp, litestar, starlette
from headgate.integrations import flask as flask_limits
from headgate.integrations.django import rate_limit
from headgate.testing import ManualClock

OwnFields = Mapping[str, str]
Send = Callable[[OwnFields], list[httpx.Response]]
"""Sends two requests to an application with a limit of one a minute, whose fallback raises 404 with these fields."""

CLIENTS = (ONE, ONE)


def raising(error: Exception) -> Callable[..., Any]:
    def old(*args: Any, **kwargs: Any) -> Any:
        raise error

    return old


def raising_async(error: BaseException) -> Callable[..., Any]:
    async def old(*args: Any, **kwargs: Any) -> Any:
        raise error

    return old


def in_starlette_s_decorator(own_fields: OwnFields) -> list[httpx.Response]:
    fallback = raising(HTTPException(404, "old", dict(own_fields)))
    limited = starlette.RateLimits()(**once(fallback=fallback))(read)
    return ask_asgi(Starlette(routes=[Route("/", limited)]), CLIENTS)


def in_starlette_s_middleware(own_fields: OwnFields) -> list[httpx.Response]:
    fallback = raising_async(HTTPException(404, headers=dict(own_fields)))
    limit = Middleware(starlette.RouteLimit, rate_limits=starlette.RateLimits(), **once(fallback=fallback))
    return ask_asgi(Starlette(routes=[Route("/", read, middleware=[limit])]), CLIENTS)


def in_fastapi(own_fields: OwnFields) -> list[httpx.Response]:
    app = fastapi.FastAPI()
    fallback = raising_async(fastapi.HTTPException(status_code=404, headers=dict(own_fields)))
    app.get("/")(starlette.RateLimits()(**once(fallback=fallback))(read_in_fastapi))
    return ask_asgi(app, CLIENTS)


async def read_in_fastapi(request: Request) -> fastapi.Response:
    return fastapi.Response("new")


def in_litestar(own_fields: OwnFields) -> list[httpx.Response]:
    fallback = raising_async(of_litestar.NotFoundException(headers=dict(own_fields)))
    limits = litestar.RateLimits()

    @get("/", middleware=[limits("9/minute"), limits(**once(fallback=fallback))])
    async def handler() -> str:
        return "new"

    return ask_asgi(Litestar([handler], openapi_config=None, logging_config=None), CLIENTS)


def not_found_in_flask(own_fields: OwnFields) -> of_werkzeug.HTTPException:
    return (
        of_werkzeug.NotFound(response=flask.Response("old", 404, own_fields)) if own_fields else of_werkzeug.NotFound()
    )


def in_flask(own_fields: OwnFields) -> list[httpx.Response]:
    app = flask.Flask(__name__)
    fallback = raising(not_found_in_flask(own_fields))
    app.add_url_rule("/", "read", flask_limits.RateLimits()(**once(fallback=fallback))(lambda: "new"))
    return ask_wsgi(app, CLIENTS)


def in_all_of_flask(own_fields: OwnFields) -> list[httpx.Response]:
    app = flask.Flask(__name__)
    app.add_url_rule("/", "read", lambda: "new")
    fallback = raising(not_found_in_flask(own_fields))
    flask_limits.RateLimits(app, default="1/minute", clock=ManualClock(), fallback=fallback)
    return ask_wsgi(app, CLIENTS)


def in_aiohttp(own_fields: OwnFields) -> list[httpx.Response]:
    fallback = raising_async(web.HTTPNotFound(headers=own_fields))
    return ask_aiohttp(aiohttp.RateLimits()(**once(fallback=fallback))(read_in_aiohttp), CLIENTS)


def in_all_of_aiohttp(own_fields: OwnFields) -> list[httpx.Response]:
    return ask_aiohttp(
        [aiohttp.middleware(**once(fallback=raising_async(web.HTTPNotFound(headers=own_fields))))], CLIENTS
    )


INTEGRATIONS: list[Send] = [
    in_starlette_s_decorator, in_starlette_s_middleware, in_fastapi, in_litestar, in_flask, in_all_of_flask,
    in_aiohttp, in_all_of_aiohttp,
]  # fmt: skip


@pytest.mark.parametrize("send", INTEGRATIONS, ids=lambda send: send.__name__)
@pytest.mark.parametrize(
    "own_fields",
    [{}, {"cache-CONTROL": "max-age=60"}, {"Expires": "Thu, 01 Dec 1994 16:00:00 GMT"}, {"Retry-After": "7"}],
    ids=["nothing", "cache-control", "expires", "another field"],
)
def test_the_error_of_a_fallback_is_not_stored_unless_its_headers_say_otherwise(
    send: Send, own_fields: OwnFields
) -> None:
    cache_control = [(name.lower(), value) for name, value in own_fields.items() if name != "Retry-After"]
    passed, refused = send(own_fields)
    assert (passed.status_code, passed.text, cache_fields(passed)) == (200, "new", [])
    assert (refused.status_code, cache_fields(refused)) == (404, cache_control or [("cache-control", "no-store")])
    assert refused.headers.get_list("Retry-After") == [own_fields.get("Retry-After", "60")]


def test_an_exception_that_is_shared_gets_no_cache_field() -> None:
    gone = HTTPException(404, headers={"X-Why": "gone"})
    limits = starlette.RateLimits()
    limited = limits(**once(fallback=raising(gone)))(read)
    app = Starlette(routes=[Route("/", limited), Route("/gone", raising(gone))])
    refused = ask_asgi(app, CLIENTS)[1]
    assert (refused.headers["X-Why"], cache_fields(refused)) == ("gone", [("cache-control", "no-store")])
    assert gone.headers == {"X-Why": "gone"}


class Teapot(of_litestar.HTTPException):
    """An exception with attributes beyond its arguments."""

    status_code = 418

    def __init__(self, brewed: int, **more: Any) -> None:
        super().__init__(detail=f"{brewed} cups", **more)
        self.brewed = brewed


def test_a_handler_of_the_application_gets_the_exception_with_its_attributes() -> None:
    handled: list[Any] = []

    def handle(request: Any, error: Teapot) -> Response[str]:
        handled.append((error.brewed, error.detail, error.extra, error.__cause__))
        return Response("tea", status_code=error.status_code, headers=error.headers)

    raised = Teapot(3, extra={"milk": True})
    limit = litestar.RateLimits()(**once(fallback=raising_async(raised)))

    @get("/", middleware=[limit], exception_handlers={Teapot: handle})
    async def handler() -> str:
        return "new"

    refused = ask_asgi(Litestar([handler], openapi_config=None, logging_config=None), CLIENTS)[1]
    assert (refused.status_code, cache_fields(refused)) == (418, [("cache-control", "no-store")])
    assert handled == [(3, "3 cups", {"milk": True}, raised)] and not raised.headers


def test_an_exception_gets_the_cache_fields_of_the_refusal() -> None:
    def refuse(request: Request, decision: Any, usual: Refusal) -> Refusal:
        return usual._replace(headers=[*usual.headers, ("Cache-Control", "private, max-age=5")])

    limited = starlette.RateLimits()(**once(fallback=raising(HTTPException(404)), refusal=refuse))(read)
    refused = ask_asgi(Starlette(routes=[Route("/", limited)]), CLIENTS)[1]
    assert (refused.status_code, cache_fields(refused)) == (404, [("cache-control", "private, max-age=5")])


DJANGO = [("cache-control", "no-store, private")]


@pytest.mark.parametrize(
    ("error", "status"), [(Http404(), 404), (PermissionDenied(), 403), (SuspiciousOperation(), 400)]
)
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("view", [read_in_django, read_later_in_django])
@pytest.mark.parametrize("old", [raising, raising_async])
@pytest.mark.filterwarnings("ignore:.*ASGI.*")
def test_the_error_of_a_fallback_of_django_is_not_stored_below_the_middleware(
    view: Any, old: Any, kind: str, error: Exception, status: int
) -> None:
    limited, site = rate_limit(**once(fallback=old(error)))(view), once(limits="9/minute")
    passed, refused = ask_django(limited, CLIENTS, kind=kind, MIDDLEWARE=[MIDDLEWARE], HEADGATE=site)
    assert (passed.text, cache_fields(passed)) == ("new", [])
    assert (refused.status_code, cache_fields(refused)) == (status, DJANGO)
    assert refused.headers["Retry-After"] == "60"


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("old", [raising, raising_async])
def test_the_error_of_the_fallback_of_django_s_middleware_is_not_stored(kind: str, old: Any) -> None:
    limits = once(fallback=old(Http404()))
    passed, refused = ask_django(read_in_django, CLIENTS, kind=kind, MIDDLEWARE=[MIDDLEWARE], HEADGATE=limits)
    assert (passed.text, cache_fields(passed)) == ("new", [])
    assert (refused.status_code, cache_fields(refused)) == (404, DJANGO)
    assert refused.headers["Retry-After"] == "60"


def test_a_page_for_404_of_django_with_cache_fields_is_unchanged() -> None:
    def busy(request: HttpRequest, exception: Exception) -> HttpResponse:
        return HttpResponse("busy", status=404, headers={"Cache-Control": "max-age=60"})

    limited = rate_limit(**once(fallback=raising(Http404())))(read_in_django)
    refused = ask_django(limited, CLIENTS, MIDDLEWARE=[MIDDLEWARE], not_found=busy)[1]
    assert (refused.text, cache_fields(refused)) == ("busy", [("cache-control", "max-age=60")])


@pytest.mark.parametrize("name", ["get", "dispatch"])
def test_the_error_of_a_fallback_of_a_rest_framework_view_is_not_stored(name: str) -> None:
    fallback = raising(NotFound() if name == "get" else Http404())

    @method_decorator(rate_limit(**once(fallback=fallback)), name=name)
    class Read(APIView):
        def get(self, request: Any) -> RestResponse:
            return RestResponse("new")

    passed, refused = ask_django(Read.as_view(), CLIENTS, MIDDLEWARE=[MIDDLEWARE])
    assert (passed.status_code, cache_fields(passed)) == (200, [])
    assert (refused.status_code, cache_fields(refused)) == (404, DJANGO)
