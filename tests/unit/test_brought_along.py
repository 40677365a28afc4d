"""Functions that people bring along from other limiters and from their frameworks' docs, on the real frameworks."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

# FastAPI could not resolve the names that stand in a test, if annotations were text: so they are not postponed.

import asyncio
import contextvars
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import django_configured  # noqa: F401 - the imports below read its settings

# isort: split

import django_ratelimit.core
import fastapi_limiter.identifier
import flask
import flask_limiter.util
import litestar.middleware.rate_limit
import slowapi.util
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from asgiref.sync import markcoroutinefunction
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject
from fastapi import Depends, FastAPI, Request, WebSocket
from litestar import Litestar, get
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request as RestRequest
from rest_framework.response import Response as RestResponse
from rest_framework.throttling import BaseThrottle, ScopedRateThrottle
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import headgate.integrations.aiohttp as of_aiohttp
import headgate.integrations.django as of_django
import headgate.integrations.fastapi as of_fastapi
import headgate.integrations.flask as of_flask
import headgate.integrations.litestar as of_litestar
import headgate.integrations.starlette as of_starlette
from asgi_requests import ask, drive
from headgate import ConfigError, MemoryStore
from headgate.errors import ArgumentError
from headgate.http import asgi, wsgi
from headgate.http.keys import all_of, api_key, cookie, endpoint, first_of, header, portable, query, request_of
from headgate.integrations.drf import RateLimitThrottle
from headgate.integrations.grpc.calls import GrpcRequest
from headgate.policy.request import Request as Seen
from headgate.testing import ManualClock
from versions import FromPath, needs

USERS = ("ann", "bob")
ADDRESSES = {"ann": "203.0.113.1", "bob": "203.0.113.2"}
Statuses = Callable[[str], int]
"""Returns the status of one request of a user. The requests of two users differ in every field."""


def sent_by(user: str) -> tuple[str, dict[str, str]]:
    """The path and the headers of a user's request."""
    return f"/users/{user}?token={user}", {"X-User": user, "X-API-Key": f"k-{user}", "Cookie": f"session={user}"}


def check_users_are_distinguished(statuses: Callable[[Any], Statuses], key: Any) -> None:
    """Each user has one request, whatever others sent; a key that is missing or the same for all would not do."""
    status = statuses(key)
    decided = [(user, status(user)) for user in ("ann", "ann", "bob", "bob", "ann")]
    assert decided == [("ann", 200), ("ann", 429), ("bob", 200), ("bob", 429), ("ann", 429)]


class Looking:
    """A key function that is an object."""

    async def __call__(self, request: Any) -> str:
        await asyncio.sleep(0)
        return str(request.headers["x-user"])


async def by_header_later(request: Any) -> Any:
    await asyncio.sleep(0)
    return request.headers.get("X-User")


def by_header_of(name: str, request: Any) -> Any:
    return request.headers.get(name)


@dataclass
class Named:
    """A key function that is an object, and cannot be hashed as it can be compared."""

    name: str

    def __call__(self, request: Any) -> Any:
        return request.headers.get(self.name)

    def of_headgate(self, request: Any) -> Any:
        return request.header(self.name)

    async def of_headgate_later(self, request: Any) -> Any:
        return self.of_headgate(request)


ANYWHERE: dict[str, Any] = {
    "an object": Named("X-User"),
    "a header in any case": lambda request: request.headers.get("X-USER"),
    "a header by item": lambda request: request.headers["X-User"] if "x-user" in request.headers else None,
    "a partial": functools.partial(by_header_of, "x-User"),
    "a function of Headgate's request": portable(lambda request: request.client_ip),
    "a method of Headgate's request": portable(Named("X-User").of_headgate),
    "who.header": header("X-User"),
    "who.api_key": api_key(),
    "who.cookie": cookie("session"),
    "who.query": query("token"),
    "who, called by a function": lambda request: header("X-User")(request) or api_key()(request),
    "first_of with a function": first_of(api_key("X-Nothing"), lambda request: request.headers.get("X-User")),
    "all_of with a function": all_of(cookie("session"), lambda request: request.headers["X-User"]),
}
LATER: dict[str, Any] = {
    "a coroutine function": by_header_later,
    "an object that is awaited": Looking(),
    "a partial of a coroutine function": functools.partial(by_header_later),
    "a coroutine method of Headgate's request": portable(Named("X-User").of_headgate_later),
    "first_of with a coroutine function": first_of(api_key("X-Nothing"), by_header_later),
}


# FastAPI and Starlette: functions of slowapi and fastapi-limiter, and those that their docs show.

CURRENT: contextvars.ContextVar[str] = contextvars.ContextVar("user")


def of_a_user(request: Request) -> str:
    return str(request.state.user)


OF_STARLETTE: dict[str, Any] = {
    **ANYWHERE,
    **LATER,
    "slowapi's get_remote_address": slowapi.util.get_remote_address,
    "slowapi's get_ipaddr": slowapi.util.get_ipaddr,
    "fastapi-limiter's identifier": fastapi_limiter.identifier.default_identifier,
    "client": lambda request: request.client.host,
    "state": of_a_user,
    "cookies": lambda request: request.cookies["session"],
    "query": lambda request: request.query_params.get("token"),
    "path": lambda request: request.path_params["user"],
    "url": lambda request: str(request.url),
    "its class": lambda request: request.headers["x-user"] if isinstance(request, StarletteRequest) else None,
    "a function of nothing": CURRENT.get,
}


def status_of(app: Any, user: str) -> int:
    where, headers = sent_by(user)
    return ask(app, where, client=ADDRESSES[user], headers=headers).status_code


async def authenticated(request: Request) -> None:
    request.state.user = request.headers["x-user"]
    CURRENT.set(request.state.user)


def in_fastapi(key: Any) -> Statuses:
    limits = of_fastapi.RateLimits(clock=ManualClock())
    app = FastAPI()

    @app.get("/users/{user}", dependencies=[Depends(authenticated), Depends(limits("1/minute", key=key, scope="all"))])
    async def read(user: str) -> str:
        return user

    return functools.partial(status_of, app)


class SetsUserInScope:
    """A middleware that sets the user, as in Starlette's docs."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["user"] = StarletteRequest(scope).headers["x-user"]
            CURRENT.set(scope["state"]["user"])
        await self.app(scope, receive, send)


async def answer(request: Any) -> PlainTextResponse:
    return PlainTextResponse("read")


def at_an_endpoint(key: Any) -> Statuses:
    limited = of_starlette.RateLimits(clock=ManualClock())("1/minute", key=key, scope="all")(answer)
    app = Starlette(routes=[Route("/users/{user}", limited)], middleware=[Middleware(SetsUserInScope)])
    return functools.partial(status_of, app)


def before_a_route(key: Any) -> Statuses:
    own = of_starlette.RateLimits(clock=ManualClock())
    limit = Middleware(of_starlette.RouteLimit, limits="1/minute", key=key, scope="all", rate_limits=own)
    app = Starlette(
        routes=[Route("/users/{user}", answer, middleware=[limit])], middleware=[Middleware(SetsUserInScope)]
    )
    return functools.partial(status_of, app)


def before_an_application(key: Any) -> Statuses:
    app = FastAPI()
    app.get("/users/{user}")(authenticated)
    app.add_middleware(of_fastapi.RateLimitMiddleware, limits="1/minute", key=key, clock=ManualClock())
    app.add_middleware(SetsUserInScope)
    return functools.partial(status_of, app)


@pytest.mark.parametrize("place", [in_fastapi, at_an_endpoint, before_a_route])
@pytest.mark.parametrize("name", OF_STARLETTE)
def test_functions_for_starlette_distinguish_users(name: str, place: Any) -> None:
    check_users_are_distinguished(place, OF_STARLETTE[name])


@pytest.mark.parametrize("name", [name for name in OF_STARLETTE if name != "path"])
def test_in_front_of_a_starlette_application_only_path_parameters_are_missing(name: str) -> None:
    check_users_are_distinguished(before_an_application, OF_STARLETTE[name])


def test_a_function_gets_the_same_request_object_as_the_endpoint() -> None:
    seen: list[Any] = []
    limits = of_fastapi.RateLimits(clock=ManualClock(), key=seen.append)
    app = FastAPI()

    @app.post("/", dependencies=[Depends(limits("9/minute"))])
    async def read(request: Request, body: dict[str, str]) -> str:
        seen.append(request)
        return body["user"]

    assert ask(app, method="POST", json={"user": "ann"}).json() == "ann"
    assert seen[0] is seen[1]


def test_a_function_may_read_the_body_that_fastapi_has_read() -> None:
    async def by_body(request: Request) -> str:
        return str((await request.json())["user"])

    limits = of_fastapi.RateLimits(clock=ManualClock(), key=by_body)
    app = FastAPI()

    @app.post("/", dependencies=[Depends(limits("1/minute"))])
    async def read(body: dict[str, str]) -> str:
        return body["user"]

    answers = [ask(app, method="POST", json={"user": user}).status_code for user in ("ann", "ann", "bob")]
    assert answers == [200, 429, 200]


def test_a_function_of_a_websocket_gets_the_websocket() -> None:
    seen: list[Any] = []

    async def key(socket: Any) -> str:
        seen.append(type(socket))
        return str(await fastapi_limiter.identifier.default_identifier(socket))

    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(of_fastapi.RateLimits(clock=ManualClock(), key=key)("1/minute"))])
    async def read(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    assert [drive(app, "/", "websocket")[0]["type"] for _ in range(2)] == ["websocket.accept", "websocket.close"]
    limited = of_starlette.RateLimitMiddleware(app, limits="9/minute", key=key, websockets=True)
    drive(limited, "/", "websocket")
    assert seen[0] is WebSocket and set(seen) == {WebSocket}


# Flask: Flask-Limiter.


def of_the_current_request() -> Any:
    return flask.request.headers.get("X-User")


OF_FLASK: dict[str, Any] = {
    **ANYWHERE,
    "Flask-Limiter's get_remote_address": flask_limiter.util.get_remote_address,
    "flask.request": of_the_current_request,
    "flask.g": lambda: flask.g.user,
    "its address": lambda request: request.remote_addr,
    "its arguments": lambda request: request.args["token"],
    "its cookies": lambda request: request.cookies.get("session"),
    "its view's arguments": lambda request: request.view_args["user"],
    "its class": lambda request: request.headers["x-user"] if isinstance(request, flask.Request) else None,
    "the current one itself": lambda request: request.path if request == flask.request else None,
}


def flask_status(app: Any, user: str) -> int:
    where, headers = sent_by(user)
    transport = httpx.WSGITransport(app, remote_addr=ADDRESSES[user])
    with httpx.Client(transport=transport, base_url="http://shop.example") as session:
        return session.get(where, headers=headers).status_code


def flask_application() -> flask.Flask:
    app = flask.Flask("shop", static_folder=None)

    @app.before_request
    def authenticate() -> None:
        flask.g.user = flask.request.headers["x-user"]

    return app


def at_a_view(key: Any) -> Statuses:
    app = flask_application()

    @app.get("/users/<user>")
    @of_flask.RateLimits(clock=ManualClock())("1/minute", key=key, scope="all")
    def read(user: str) -> str:
        return user

    return functools.partial(flask_status, app)


def by_default(key: Any) -> Statuses:
    app = flask_application()
    of_flask.RateLimits(app, default="1/minute", key=key, scope="all", clock=ManualClock())
    app.get("/users/<user>")(lambda user: user)
    return functools.partial(flask_status, app)


def before_flask(key: Any) -> Statuses:
    app = flask_application()
    app.get("/users/<user>")(lambda user: user)
    app.wsgi_app = of_flask.RateLimitMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, limits="1/minute", key=key, clock=ManualClock()
    )
    return functools.partial(flask_status, app)


@pytest.mark.parametrize("place", [at_a_view, by_default])
@pytest.mark.parametrize("name", OF_FLASK)
def test_functions_for_flask_distinguish_users(name: str, place: Any) -> None:
    check_users_are_distinguished(place, OF_FLASK[name])


AFTER_ROUTING = {"Flask-Limiter's get_remote_address", "flask.request", "flask.g", "its view's arguments"}


@pytest.mark.parametrize(
    "name", [name for name in OF_FLASK if name not in AFTER_ROUTING and name != "the current one itself"]
)
def test_in_front_of_flask_a_function_gets_a_request_of_flask(name: str) -> None:
    check_users_are_distinguished(before_flask, OF_FLASK[name])


# Django: django-ratelimit, in both colours; and REST framework.


@async_unsafe
def load_user(request: Any) -> Any:
    """A user from a database, which Django queries in threads only."""
    return SimpleNamespace(is_authenticated=True, pk=request.headers["X-User"])


class LazyUser:
    """Like AuthenticationMiddleware: the user is loaded when it is first read."""

    sync_capable = async_capable = True

    def __new__(cls, get_response: Any) -> Any:
        def set_user(request: Any) -> None:
            request.user = SimpleLazyObject(lambda: load_user(request))
            request.session = {"user": request.headers["X-User"]}

        if asyncio.iscoroutinefunction(get_response):

            async def later(request: Any) -> Any:
                set_user(request)
                return await get_response(request)

            markcoroutinefunction(later)
            return later

        def now(request: Any) -> Any:
            set_user(request)
            return get_response(request)

        return now


def by_group(group: str, request: HttpRequest) -> str:
    assert group in ("", f"{__name__}.read_django"), "there is no view before the URL is resolved"
    return str(request.user.pk)


OF_DJANGO: dict[str, Any] = {
    **ANYWHERE,
    "django-ratelimit's ip": django_ratelimit.core._SIMPLE_KEYS["ip"],
    "django-ratelimit's user": django_ratelimit.core._SIMPLE_KEYS["user"],
    "django-ratelimit's user_or_ip": django_ratelimit.core.user_or_ip,
    "django-ratelimit's header:x-user": lambda request: django_ratelimit.core.get_header(request, "x-user"),
    "django-ratelimit's get:token": lambda group, request: request.GET.get("token"),
    "a function of group and request": by_group,
    "a function of group and a request with a default": lambda group, request=None: request.GET.get("token"),
    "META": lambda request: request.META["HTTP_X_USER"],
    "COOKIES": lambda request: request.COOKIES["session"],
    "session": lambda request: request.session["user"],
    "its class": lambda request: request.path if isinstance(request, HttpRequest) else None,
    "Headgate's user": of_django.user,
}


def read_django(request: HttpRequest, user: str) -> HttpResponse:
    return HttpResponse(user)


async def read_django_later(request: HttpRequest, user: str) -> HttpResponse:
    return HttpResponse(user)


read_django_later.__qualname__ = "read_django"


class DjangoSite:
    """A site with one view; the settings are in force during a request."""

    def __init__(self, colour: str, view: Any, **settings: Any) -> None:
        self.urlpatterns = [path("users/<user>", view)]
        self._colour = colour
        self._settings = {"MIDDLEWARE": [f"{__name__}.LazyUser"], "HEADGATE": {}} | settings

    def status(self, user: str) -> int:
        where, headers = sent_by(user)
        client = ADDRESSES[user]
        with override_settings(ROOT_URLCONF=self, **self._settings):
            if self._colour == "asgi":
                return ask(ASGIHandler(), where, client=client, headers=headers).status_code
            transport = httpx.WSGITransport(WSGIHandler(), remote_addr=client)
            with httpx.Client(transport=transport, base_url="http://shop.example") as session:
                return session.get(where, headers=headers).status_code


def at_a_django_view(colour: str, key: Any) -> Statuses:
    view = read_django if colour == "wsgi" else read_django_later
    limit = of_django.rate_limit("1/minute", key=key, scope="all", store=MemoryStore())
    return DjangoSite(colour, limit(view)).status


def in_django_settings(colour: str, key: Any) -> Statuses:
    settings = {"limits": "1/minute", "key": key, "store": MemoryStore()}
    middleware = [f"{__name__}.LazyUser", "headgate.integrations.django.RateLimitMiddleware"]
    view = read_django if colour == "wsgi" else read_django_later
    return DjangoSite(colour, view, HEADGATE=settings, MIDDLEWARE=middleware).status


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
@pytest.mark.parametrize("place", [at_a_django_view, in_django_settings])
@pytest.mark.parametrize("name", OF_DJANGO)
def test_functions_for_django_distinguish_users(name: str, place: Any, colour: str) -> None:
    check_users_are_distinguished(functools.partial(place, colour), OF_DJANGO[name])


async def by_group_later(group: str, request: HttpRequest) -> str:
    assert group == f"{__name__}.read_django"
    return str(request.headers["X-User"])


class LookingByGroup:
    async def __call__(self, group: str, request: HttpRequest) -> str:
        return await by_group_later(group, request)


LATER_IN_DJANGO: dict[str, Any] = {
    **LATER,
    "a coroutine function of group and request": by_group_later,
    "an object that is awaited with group and request": LookingByGroup(),
}


def by_the_key_of_the_settings(colour: str, key: Any) -> Statuses:
    """A limit of an async view, whose key the settings have."""
    settings = {"key": key, "store": MemoryStore()}
    with override_settings(HEADGATE=settings):
        limited = of_django.rate_limit("1/minute", scope="all")(read_django_later)
    return DjangoSite(colour, limited, HEADGATE=settings).status


def at_an_async_view(colour: str, key: Any) -> Statuses:
    limit = of_django.rate_limit("1/minute", key=key, scope="all", store=MemoryStore())
    return DjangoSite(colour, limit(read_django_later)).status


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
@pytest.mark.parametrize("place", [at_an_async_view, by_the_key_of_the_settings])
@pytest.mark.parametrize("name", LATER_IN_DJANGO)
def test_functions_that_are_awaited_distinguish_users_of_async_views(name: str, place: Any, colour: str) -> None:
    check_users_are_distinguished(functools.partial(place, colour), LATER_IN_DJANGO[name])


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
def test_each_of_several_functions_may_query_the_database(colour: str) -> None:
    by_user = {
        "key": lambda request: request.user.pk,
        "tier": lambda request: request.user.pk,
        "cost": lambda request: len(request.user.pk) - 2,
        "exempt": lambda request: request.user.pk == "nobody",
        "limits": {"default": "1/minute"},
        "store": MemoryStore(),
    }
    middleware = [f"{__name__}.LazyUser", "headgate.integrations.django.RateLimitMiddleware"]
    view = read_django if colour == "wsgi" else read_django_later
    site = DjangoSite(colour, view, HEADGATE=by_user, MIDDLEWARE=middleware)
    assert [site.status(user) for user in ("ann", "ann", "bob")] == [200, 429, 200]


class ByHeader(BaseAuthentication):
    def authenticate(self, request: Any) -> Any:
        return SimpleNamespace(is_authenticated=True, pk=request.headers["X-User"]), None


def by_cache_key(self: Any, request: Any, view: Any) -> Any:
    """As a throttle of REST framework writes it."""
    assert isinstance(view, APIView)
    return f"throttle_{type(view).__name__}_{request.user.pk}"


OF_REST: dict[str, Any] = {
    **ANYWHERE,
    "get_ident": BaseThrottle().get_ident,
    "get_cache_key": by_cache_key,
    "get_cache_key of a throttle": lambda self, request, view: keyed_by_rest(request, view),
    "a function of request and view": lambda request, view: (type(view).__name__, request.user.pk),
    "user": lambda request: request.user.pk,
    "query_params": lambda request: request.query_params["token"],
    "its class": lambda request: request.user.pk if isinstance(request, RestRequest) else None,
    "Headgate's user": of_django.user,
}


def keyed_by_rest(request: Any, view: Any) -> Any:
    throttle = ScopedRateThrottle()
    throttle.scope = "reads"
    return throttle.get_cache_key(request, view)


def at_a_rest_view(key: Any) -> Statuses:
    own = key if name_of(key) in ("by_cache_key", "<lambda of three>") else staticmethod(key)
    attributes = {"limits": "1/minute", "key": own, "scope": "all", "options": {"store": MemoryStore()}}

    def get(self: Any, request: Any, user: str) -> RestResponse:
        return RestResponse(user)

    throttle = type("Throttle", (RateLimitThrottle,), attributes)
    view: Any = type(
        "Read", (APIView,), {"throttle_classes": [throttle], "authentication_classes": [ByHeader], "get": get}
    )
    rest = {"DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"]}
    return DjangoSite("wsgi", view.as_view(), REST_FRAMEWORK=rest, MIDDLEWARE=[]).status


def name_of(function: Any) -> str:
    count = getattr(getattr(function, "__code__", None), "co_argcount", 0)
    return "<lambda of three>" if count == 3 else getattr(function, "__name__", "")


@pytest.mark.parametrize("name", OF_REST)
def test_functions_for_rest_framework_distinguish_users(name: str) -> None:
    check_users_are_distinguished(at_a_rest_view, OF_REST[name])


# Litestar: functions of its own limiter, and those that its docs show.

OF_LITESTAR: dict[str, Any] = {
    **ANYWHERE,
    **LATER,
    "Litestar's get_remote_address": getattr(litestar.middleware.rate_limit, "get_remote_address", None),
    "client": lambda request: request.client.host,
    "cookies": lambda request: request.cookies.get("session"),
    "query": lambda request: request.query_params["token"],
    "path": lambda request: request.path_params["user"],
    "state": lambda request: request.state["user"],
    "its class": lambda request: request.headers["x-user"] if isinstance(request, litestar.Request) else None,
}


@get("/users/{user:str}")
async def read_litestar(user: FromPath[str]) -> str:
    return user


class SetsUser:
    """An ASGI middleware that sets the user."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["user"] = dict(scope["headers"])[b"x-user"].decode()
        await self.app(scope, receive, send)


def in_litestar(key: Any) -> Statuses:
    limit = of_litestar.RateLimits(clock=ManualClock())("1/minute", key=key, scope="all")
    app = Litestar([read_litestar], middleware=[SetsUser, limit], openapi_config=None, logging_config=None)
    return functools.partial(status_of, app)


def in_litestars_plugin(key: Any) -> Statuses:
    plugin = of_litestar.RateLimitPlugin(limits="1/minute", key=key, clock=ManualClock())
    app = Litestar([read_litestar], plugins=[plugin], openapi_config=None, logging_config=None)
    return functools.partial(status_of, app)


NEW_IN_LITESTAR = {"Litestar's get_remote_address": needs("litestar", "2.18", "its limiter has functions for keys")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=NEW_IN_LITESTAR.get(name, ())) for name in OF_LITESTAR])
def test_functions_for_litestar_distinguish_users(name: str) -> None:
    check_users_are_distinguished(in_litestar, OF_LITESTAR[name])
    if name != "state":
        check_users_are_distinguished(in_litestars_plugin, OF_LITESTAR[name])


# aiohttp.

OF_AIOHTTP: dict[str, Any] = {
    **ANYWHERE,
    **LATER,
    "its cookies": lambda request: request.cookies.get("session"),
    "its query": lambda request: request.query["token"],
    "its route": lambda request: request.match_info["user"],
    "its storage": lambda request: request.get("user"),
    "its address and more": lambda request: (request.remote, request.headers["X-User"]),
    "its class": lambda request: request.headers["x-user"] if isinstance(request, web.Request) else None,
}
del OF_AIOHTTP["a function of Headgate's request"]  # all clients of the loopback have one address


def in_aiohttp(key: Any) -> list[tuple[str, int]]:
    async def read(request: web.Request) -> web.Response:
        return web.Response(text="read")

    @web.middleware
    async def authenticate(request: web.Request, handler: Any) -> web.StreamResponse:
        request["user"] = request.headers["X-User"]
        response: web.StreamResponse = await handler(request)
        return response

    limited = of_aiohttp.RateLimits(clock=ManualClock())("1/minute", key=key, scope="all")(read)
    app = web.Application(middlewares=[authenticate])
    app.router.add_get("/users/{user}", limited)

    async def run() -> list[tuple[str, int]]:
        async with TestClient(TestServer(app)) as session:
            answers = []
            for user in ("ann", "ann", "bob", "bob", "ann"):
                where, headers = sent_by(user)
                async with session.get(where, headers=headers) as response:
                    answers.append((user, response.status))
            return answers

    return asyncio.run(run())


@pytest.mark.filterwarnings("ignore::aiohttp.web_exceptions.NotAppKeyWarning")
@pytest.mark.filterwarnings("ignore:It is recommended to use")
@pytest.mark.parametrize("name", OF_AIOHTTP)
def test_functions_for_aiohttp_distinguish_users(name: str) -> None:
    assert in_aiohttp(OF_AIOHTTP[name]) == [("ann", 200), ("ann", 429), ("bob", 200), ("bob", 429), ("ann", 429)]


# gRPC has no request: Headgate's has what a handler's context has.


def test_a_function_of_a_call_reads_the_context() -> None:
    context: Any = SimpleNamespace(
        peer=lambda: "ipv4:203.0.113.9:5123",
        invocation_metadata=lambda: (("x-user", "ann"),),
        auth_context=lambda: {"x509_common_name": [b"shop"]},
    )
    call = GrpcRequest("/shop.Shop/Read", "/shop.Shop/Read", b"", context)
    assert dict(call.invocation_metadata())["x-user"] == call.headers["X-User"] == "ann"
    assert (call.peer(), call.auth_context()) == (context.peer(), context.auth_context())
    assert call.own is call


# Without a framework: Headgate's request, with headers in any case.


@pytest.mark.parametrize("module", ["asgi", "wsgi"])
@pytest.mark.parametrize("name", [*ANYWHERE, "a function of nothing", "client_ip"])
def test_in_front_of_any_application_functions_get_headgates_request(name: str, module: str) -> None:
    user_now = contextvars.ContextVar[str]("user_now")
    known = ANYWHERE | {"a function of nothing": user_now.get, "client_ip": lambda request: request.client_ip}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("read")(scope, receive, send)

    def site(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"read"]

    def place(key: Any) -> Statuses:
        limited: Any
        if module == "asgi":
            limited = asgi.RateLimitMiddleware(app, limits="1/minute", key=key, clock=ManualClock())
        else:
            limited = wsgi.RateLimitMiddleware(site, limits="1/minute", key=key, clock=ManualClock())

        def status(user: str) -> int:
            user_now.set(user)
            return status_of(limited, user) if module == "asgi" else flask_status(limited, user)

        return status

    check_users_are_distinguished(place, known[name])


def test_headers_are_looked_up_in_any_case() -> None:
    scope = {"type": "http", "headers": [(b"x-user", b"ann"), (b"content-type", b"a/b")], "path": "/", "method": "GET"}
    environ = {"REQUEST_METHOD": "GET", "HTTP_X_USER": "ann", "CONTENT_TYPE": "a/b", "CONTENT_LENGTH": ""}
    for request in (
        Seen(headers={"X-User": "ann", "content-TYPE": "a/b"}),
        Seen(headers=[("x-USER", "ann"), ("Content-type", "a/b")]),
        asgi.AsgiRequest(scope), wsgi.WsgiRequest(environ),
    ):  # fmt: skip
        headers = request.headers
        for name in ("X-User", "x-user", "X-USER"):
            assert headers[name] == headers.get(name) == "ann" and name in headers, (type(request), name)
        assert headers["Content-Type"] == headers.get("CONTENT-TYPE") == "a/b"
        assert headers.get("X-Nothing") is None and headers.get("X-Nothing", "none") == "none"
        assert "X-Nothing" not in headers and "Content-Length" not in headers
        nothing: Any = 7
        assert nothing not in headers
        assert sorted(headers) == ["content-type", "x-user"]
        with pytest.raises(KeyError):
            headers["X-Nothing"]


# All functions that are given a request, not only keys.


def test_every_function_of_a_request_gets_the_frameworks_own() -> None:
    seen: dict[str, Any] = {}

    def note(name: str, value: Any) -> Callable[..., Any]:
        def noted(request: Any, *rest: Any) -> Any:
            seen[name] = type(request)
            return value

        return noted

    options: dict[str, Any] = {name: note(name, value) for name, value in {
        "key": "ann", "cost": 1, "exempt": False, "tier": "free", "scope": "all", "counts": True,
        "on_decision": None, "refusal": None,
    }.items()}  # fmt: skip
    limits = of_fastapi.RateLimits(clock=ManualClock())
    app = FastAPI()
    tiers = {"default": "1/minute", "free": "1/minute"}
    app.get("/", dependencies=[Depends(limits(tiers, **options))])(lambda: "read")
    app.add_middleware(of_fastapi.RateLimitHeaders)
    assert [ask(app).status_code for _ in range(2)] == [200, 429]
    assert seen == dict.fromkeys(options, Request)
    function = of_fastapi.RateLimits(clock=ManualClock())(lambda request: f"{request.query_params['n']}/minute")
    app.get("/limits", dependencies=[Depends(function)])(lambda: "read")
    assert [ask(app, f"/limits?n={n}").status_code for n in (1, 1, 2)] == [200, 429, 200]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": lambda request, view: "a"}, r"key is a function of the request alone, not .*\(request, view\)"),
        ({"cost": lambda *, units: units}, r"cost is a function of the request alone, not .*\(\*, units\)"),
        ({"counts": lambda response: True}, r"counts is a function of the request and the response, not .*\(resp"),
        ({"refusal": lambda request: None}, "refusal is a function of the request and the decision and usual"),
        ({"on_decision": lambda: None}, "on_decision is a function of the request and the decision, not"),
        ({"key": first_of}, None),
    ],
)  # fmt: skip
def test_a_function_with_other_parameters_raises_an_error(options: dict[str, Any], message: str | None) -> None:
    if message is None:
        of_fastapi.RateLimits()("1/minute", **options)
        return
    with pytest.raises(ConfigError, match=message):
        of_fastapi.RateLimits()("1/minute", **options)


def test_an_object_that_is_no_request_raises_an_error_with_its_type() -> None:
    with pytest.raises(ArgumentError, match="a dict is not a request that Headgate knows"):
        header("X-User")({})


def test_headgates_view_of_a_frameworks_request_has_its_route() -> None:
    views: list[tuple[str, str, str]] = []

    def note(request: Any) -> None:
        seen = request_of(request)
        views.append((seen.client_ip, seen.path, endpoint(request)))

    app = FastAPI()
    limits = of_fastapi.RateLimits(clock=ManualClock())
    app.get("/users/{user}", dependencies=[Depends(limits("9/minute", key=note))])(authenticated)
    assert status_of(app, "ann") == 200
    site = flask_application()
    site.get("/users/<user>")(of_flask.RateLimits(clock=ManualClock())("9/minute", key=note)(lambda user: user))
    assert flask_status(site, "ann") == 200
    with override_settings():
        assert at_a_django_view("wsgi", note)("ann") == 200
    handler = get("/users/{user:str}", middleware=[of_litestar.rate_limit("9/minute", key=note)])(read_litestar.fn)
    assert status_of(Litestar([handler], openapi_config=None, logging_config=None), "ann") == 200
    sent = ("203.0.113.1", "/users/ann?token=ann")
    assert views == [
        (*sent, "GET /users/{user}"), (*sent, "GET /users/<user>"), (*sent, "* /users/<user>"),
        (*sent, "GET /users/{user}"),
    ]  # fmt: skip
