"""Limits of the same text at two places on the way of a request: each has its own counter, in every framework.

An arrangement builds an application with a limit at an outer and at an inner place; the tests are the same for all.
"""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import httpx
import pytest

import django_configured  # noqa: F401 - the imports below need its settings

# isort: split

import flask
import grpc
import litestar
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path as django_path
from django.utils.decorators import method_decorator
from django.views import View
from fastapi import APIRouter, Depends, FastAPI
from flask.views import MethodView
from rest_framework.response import Response as RestResponse
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router

from asgi_requests import ask
from headgate import MemoryStore
from headgate.http import asgi, wsgi
from headgate.integrations import aiohttp as for_aiohttp
from headgate.integrations import django as for_django
from headgate.integrations import fastapi as for_fastapi
from headgate.integrations import flask as for_flask
from headgate.integrations import grpc as for_grpc
from headgate.integrations import litestar as for_litestar
from headgate.integrations import starlette as for_starlette
from headgate.integrations.drf import RateLimitThrottle
from headgate.testing import ManualClock

LIMITS = "4/minute"


class Options(NamedTuple):
    """The options of an arrangement."""

    outer: dict[str, Any]
    inner: dict[str, Any]
    shared: dict[str, Any]
    """The clock and the store of both."""

    same: bool
    """Whether both places have one object, where a limit is one."""

    def pair(self, make: Callable[..., Any]) -> tuple[Any, Any]:
        """Return the outer and the inner limit."""
        outer = make(LIMITS, **self.outer)
        return outer, outer if self.same else make(LIMITS, **self.inner)


Ask = Callable[[], int]
Arrangement = Callable[[Options, ExitStack], Ask]


def over_asgi(app: Any) -> Ask:
    return lambda: ask(app, "/a/b/x").status_code


def over_wsgi(app: Any) -> Ask:
    def request_status() -> int:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop.example") as session:
            return session.get("/a/b/x").status_code

    return request_status


# Starlette


async def read(request: Any) -> PlainTextResponse:
    return PlainTextResponse("read")


def before(given: Options, options: dict[str, Any]) -> list[Middleware]:
    limits = for_starlette.RateLimits(**given.shared)
    return [Middleware(for_starlette.RouteLimit, limits=LIMITS, rate_limits=limits, **options)]


def starlette_application_and_mount(given: Options, _: ExitStack) -> Ask:
    mount = Mount("/a/b", routes=[Route("/x", read)], middleware=before(given, given.inner))
    return over_asgi(Starlette(routes=[mount], middleware=before(given, given.outer)))


def starlette_application_and_route(given: Options, _: ExitStack) -> Ask:
    route = Route("/a/b/x", read, middleware=before(given, given.inner))
    return over_asgi(Starlette(routes=[route], middleware=before(given, given.outer)))


def starlette_mount_and_mount(given: Options, _: ExitStack) -> Ask:
    inner = Mount("/{b}", app=Router([Route("/x", read)]), middleware=before(given, given.inner))
    return over_asgi(Starlette(routes=[Mount("/a", routes=[inner], middleware=before(given, given.outer))]))


def starlette_application_and_endpoint(given: Options, _: ExitStack) -> Ask:
    inner = for_starlette.RateLimits(**given.shared)(LIMITS, **given.inner)(read)
    return over_asgi(Starlette(routes=[Route("/a/b/x", inner)], middleware=before(given, given.outer)))


def starlette_application_twice(given: Options, _: ExitStack) -> Ask:
    both = [*before(given, given.outer), *before(given, given.inner)]
    return over_asgi(Starlette(routes=[Route("/a/b/x", read)], middleware=both))


def starlette_endpoint_twice(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_starlette.RateLimits(**given.shared))
    return over_asgi(Starlette(routes=[Route("/a/b/x", outer(inner(read)))]))


def starlette_method_and_the_one_it_replaces(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_starlette.RateLimits(**given.shared))

    class Base(HTTPEndpoint):
        @inner
        async def get(self, request: Any) -> PlainTextResponse:
            return PlainTextResponse("read")

    class Own(Base):
        @outer
        async def get(self, request: Any) -> Any:
            return await super().get(request)

    return over_asgi(Starlette(routes=[Route("/a/b/x", Own)]))


# FastAPI


async def read_value() -> str:
    return "read"


def fastapi(given: Options, **options: Any) -> FastAPI:
    app = FastAPI(**options)
    app.add_middleware(for_fastapi.RateLimitHeaders)
    return app


def fastapi_application_and_route(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_fastapi.RateLimits(**given.shared))
    app = fastapi(given, dependencies=[Depends(outer)])
    app.get("/a/b/x", dependencies=[Depends(inner)])(read_value)
    return over_asgi(app)


def fastapi_router_and_route(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_fastapi.RateLimits(**given.shared))
    app, router = fastapi(given), APIRouter(prefix="/a", dependencies=[Depends(outer)])
    router.get("/b/x", dependencies=[Depends(inner)])(read_value)
    app.include_router(router)
    return over_asgi(app)


def fastapi_router_and_router(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_fastapi.RateLimits(**given.shared))
    app, router = fastapi(given), APIRouter(dependencies=[Depends(inner)])
    router.get("/x")(read_value)
    app.include_router(router, prefix="/a/b", dependencies=[Depends(outer)])
    return over_asgi(app)


def fastapi_route_and_parameter(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_fastapi.RateLimits(**given.shared))
    app = fastapi(given)

    async def endpoint(decision: Any = Depends(inner)) -> str:  # noqa: B008  # so FastAPI has it
        return "read"

    app.get("/a/b/x", dependencies=[Depends(outer)])(endpoint)
    return over_asgi(app)


def fastapi_middleware_and_route(given: Options, _: ExitStack) -> Ask:
    inner = for_fastapi.RateLimits(**given.shared)(LIMITS, **given.inner)
    app = FastAPI()
    [outer] = before(given, given.outer)
    app.add_middleware(outer.cls, *outer.args, **outer.kwargs)
    app.add_middleware(for_fastapi.RateLimitHeaders)
    app.get("/a/b/x", dependencies=[Depends(inner)])(read_value)
    return over_asgi(app)


# Flask


def read_page(**_: Any) -> str:
    return "read"


def flask_application_and_view(given: Options, _: ExitStack) -> Ask:
    app = flask.Flask("shop")
    for_flask.RateLimits(app, LIMITS, **given.shared, **given.outer)
    app.get("/a/b/x")(for_flask.RateLimits(**given.shared)(LIMITS, **given.inner)(read_page))
    return over_wsgi(app)


def flask_blueprint_and_view(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_flask.RateLimits(**given.shared))
    app, blueprint = flask.Flask("shop"), flask.Blueprint("a", "a", url_prefix="/a")
    blueprint.get("/b/x")(inner(read_page))
    app.register_blueprint(outer(blueprint))
    return over_wsgi(app)


def flask_blueprint_and_blueprint(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_flask.RateLimits(**given.shared))
    app, blueprint = flask.Flask("shop"), flask.Blueprint("a", "a", url_prefix="/a")
    nested = flask.Blueprint("b", "b", url_prefix="/b")
    nested.get("/x")(read_page)
    blueprint.register_blueprint(inner(nested))
    app.register_blueprint(outer(blueprint))
    return over_wsgi(app)


def flask_view_twice(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_flask.RateLimits(**given.shared))
    app = flask.Flask("shop")
    app.get("/a/b/x")(outer(inner(read_page)))
    return over_wsgi(app)


def flask_class_and_method(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_flask.RateLimits(**given.shared))

    class Page(MethodView):
        decorators = [outer]  # noqa: RUF012  # so Flask has it

        @inner
        def get(self) -> str:
            return "read"

    app = flask.Flask("shop")
    app.add_url_rule("/a/b/x", view_func=Page.as_view("page"))
    return over_wsgi(app)


def flask_method_and_the_one_it_replaces(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_flask.RateLimits(**given.shared))

    class Base(MethodView):
        @inner
        def get(self) -> str:
            return "read"

    class Own(Base):
        @outer
        def get(self) -> Any:
            return super().get()

    app = flask.Flask("shop")
    app.add_url_rule("/a/b/x", view_func=Own.as_view("page"))
    return over_wsgi(app)


# Django, and its REST framework


class Urls:
    def __init__(self, view: Any) -> None:
        self.urlpatterns = [django_path("a/b/x", view)]


MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"


def django_site(
    view: Any, exit: ExitStack, headgate: dict[str, Any], *, times: int = 1, handler: Any = WSGIHandler
) -> Ask:
    settings: dict[str, Any] = {"ROOT_URLCONF": Urls(view), "MIDDLEWARE": [MIDDLEWARE] * times, "HEADGATE": headgate}
    settings["REST_FRAMEWORK"] = {
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"], "UNAUTHENTICATED_USER": None,
    }  # fmt: skip
    exit.enter_context(override_settings(**settings))
    return over_wsgi(handler()) if handler is WSGIHandler else over_asgi(handler())


def read_view(request: Any) -> HttpResponse:
    return HttpResponse("read")


def django_each_route_and_view(given: Options, exit: ExitStack) -> Ask:
    options = {"limits": LIMITS, "scope": for_django.each_route, **given.shared, **given.outer}
    return django_site(for_django.rate_limit(LIMITS, **given.inner)(read_view), exit, options)


def django_each_route_and_view_on_a_loop(given: Options, exit: ExitStack) -> Ask:
    options = {"limits": LIMITS, "scope": for_django.each_route, **given.shared, **given.outer}

    async def read_async(request: Any) -> HttpResponse:
        return HttpResponse("read")

    return django_site(for_django.rate_limit(LIMITS, **given.inner)(read_async), exit, options, handler=ASGIHandler)


def django_site_and_view_that_says_each_route(given: Options, exit: ExitStack) -> Ask:
    options = {"limits": LIMITS, "scope": for_django.each_route, **given.shared, **given.outer}
    view = for_django.rate_limit(LIMITS, scope=for_django.each_route, **given.inner)(read_view)
    return django_site(view, exit, options)


def django_view_twice(given: Options, exit: ExitStack) -> Ask:
    outer, inner = given.pair(for_django.rate_limit)
    return django_site(outer(inner(read_view)), exit, given.shared)


def django_class_and_method(given: Options, exit: ExitStack) -> Ask:
    outer, inner = given.pair(for_django.rate_limit)

    @method_decorator(outer, name="dispatch")
    class Page(View):
        @method_decorator(inner)
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse("read")

    return django_site(Page.as_view(), exit, given.shared)


def django_class_and_the_one_it_extends(given: Options, exit: ExitStack) -> Ask:
    outer, inner = given.pair(for_django.rate_limit)

    @method_decorator(inner, name="dispatch")
    class Base(View):
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse("read")

    @method_decorator(outer, name="dispatch")
    class Own(Base):
        pass

    return django_site(Own.as_view(), exit, given.shared)


def django_view_of_a_class_and_its_dispatch(given: Options, exit: ExitStack) -> Ask:
    outer, inner = given.pair(for_django.rate_limit)

    @method_decorator(inner, name="dispatch")
    class Page(View):
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse("read")

    return django_site(outer(Page.as_view()), exit, given.shared)


def throttles(*classes: Any, **attributes: Any) -> Any:
    class Page(APIView):
        throttle_classes = classes

        def get(self, request: Any) -> RestResponse:
            return RestResponse("read")

    for name, value in attributes.items():
        setattr(Page, name, value)
    return Page.as_view()


def throttle(limits: str, *, scope: str = "", **options: Any) -> Any:
    class Own(RateLimitThrottle):
        pass

    Own.limits, Own.options, Own.cost = limits, options, options.pop("cost", 1)  # type: ignore[assignment]
    return Own


def rest_throttle_and_throttle(given: Options, exit: ExitStack) -> Ask:
    return django_site(throttles(*given.pair(throttle)), exit, given.shared)


def rest_each_route_and_throttle(given: Options, exit: ExitStack) -> Ask:
    options = {"limits": LIMITS, "scope": for_django.each_route, **given.shared, **given.outer}
    return django_site(throttles(throttle(LIMITS, **given.inner)), exit, options)


def rest_decorator_and_throttle(given: Options, exit: ExitStack) -> Ask:
    view = throttles(throttle(LIMITS, **given.inner))
    return django_site(for_django.rate_limit(LIMITS, **given.outer)(view), exit, given.shared)


def rest_scope_of_a_view_in_two_classes(given: Options, exit: ExitStack) -> Ask:
    class Own(RateLimitThrottle):
        pass

    class Other(RateLimitThrottle):
        pass

    for kind, given_options in ((Own, given.outer), (Other, given.inner)):
        options = dict(given_options)
        kind.cost, kind.options = options.pop("cost", 1), options  # type: ignore[assignment]
    exit.enter_context(override_settings(HEADGATE_THROTTLE_RATES={"uploads": LIMITS}))
    return django_site(throttles(Own, Other, throttle_scope="uploads"), exit, given.shared)


# Litestar


@litestar.get("/b/x")
async def read_handler() -> str:
    return "read"


def litestar_application(handler: Any, **options: Any) -> Ask:
    return over_asgi(litestar.Litestar([handler], openapi_config=None, logging_config=None, **options))


def litestar_handler(**options: Any) -> Any:
    @litestar.get("/b/x", **options)
    async def read() -> str:
        return "read"

    return read


def litestar_application_and_handler(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_litestar.RateLimits(**given.shared))
    router = litestar.Router("/a", route_handlers=[litestar_handler(middleware=[inner])])
    return litestar_application(router, middleware=[outer])


def litestar_router_and_handler(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_litestar.RateLimits(**given.shared))
    handler = litestar_handler(middleware=[inner])
    return litestar_application(litestar.Router("/a", route_handlers=[handler], middleware=[outer]))


def litestar_router_and_controller(given: Options, _: ExitStack) -> Ask:
    outer, inner = given.pair(for_litestar.RateLimits(**given.shared))

    class Pages(litestar.Controller):
        path = "/b"
        middleware = [inner]  # noqa: RUF012  # so Litestar has it

        @litestar.get("/x")
        async def read(self) -> str:
            return "read"

    return litestar_application(litestar.Router("/a", route_handlers=[Pages], middleware=[outer]))


def litestar_plugin_and_handler(given: Options, _: ExitStack) -> Ask:
    plugin = for_litestar.RateLimitPlugin(limits=LIMITS, **given.shared, **given.outer)
    inner = for_litestar.RateLimits(**given.shared)(LIMITS, **given.inner)
    router = litestar.Router("/a", route_handlers=[litestar_handler(middleware=[inner])])
    return litestar_application(router, plugins=[plugin])


def litestar_two_plugins(given: Options, _: ExitStack) -> Ask:
    kinds = [type(name, (for_litestar.RateLimitPlugin,), {}) for name in ("Outer", "Inner")]
    options = (given.inner, given.outer)  # the one that is initialised last stands first
    plugins = [kind(limits=LIMITS, **given.shared, **own) for kind, own in zip(kinds, options, strict=True)]
    return litestar_application(litestar.Router("/a", route_handlers=[litestar_handler()]), plugins=plugins)


# aiohttp


async def read_web(request: web.Request) -> web.Response:
    return web.Response(text="read")


def asking_aiohttp(app: web.Application, exit: ExitStack) -> Ask:
    runner = exit.enter_context(asyncio.Runner())
    client = runner.run(_client(app))
    exit.callback(lambda: runner.run(client.close()))

    async def request_status() -> int:
        async with client.get("/a/b/x") as response:
            return response.status

    return lambda: runner.run(request_status())


async def _client(app: web.Application) -> "TestClient[Any, Any]":  # that of aiohttp 3.10 is not generic
    client: TestClient[Any, Any] = TestClient(TestServer(app))
    await client.start_server()
    return client


def aiohttp_application_and_handler(given: Options, exit: ExitStack) -> Ask:
    app = web.Application()
    for_aiohttp.setup(app, limits=LIMITS, **given.shared, **given.outer)
    app.router.add_get("/a/b/x", for_aiohttp.RateLimits(**given.shared)(LIMITS, **given.inner)(read_web))
    return asking_aiohttp(app, exit)


def aiohttp_application_and_nested_one(given: Options, exit: ExitStack) -> Ask:
    app, nested = web.Application(), web.Application()
    nested.router.add_get("/x", read_web)
    for_aiohttp.setup(nested, limits=LIMITS, **given.shared, **given.inner)
    for_aiohttp.setup(app, limits=LIMITS, **given.shared, **given.outer)
    app.add_subapp("/a/b", nested)
    return asking_aiohttp(app, exit)


def aiohttp_application_twice(given: Options, exit: ExitStack) -> Ask:
    both = [for_aiohttp.middleware(limits=LIMITS, **given.shared, **options) for options in (given.outer, given.inner)]
    app = web.Application(middlewares=both)
    app.router.add_get("/a/b/x", read_web)
    return asking_aiohttp(app, exit)


def aiohttp_handler_twice(given: Options, exit: ExitStack) -> Ask:
    outer, inner = given.pair(for_aiohttp.RateLimits(**given.shared))
    app = web.Application()
    app.router.add_get("/a/b/x", outer(inner(read_web)))
    return asking_aiohttp(app, exit)


def aiohttp_class_and_method(given: Options, exit: ExitStack) -> Ask:
    outer, inner = given.pair(for_aiohttp.RateLimits(**given.shared))

    @outer
    class Page(web.View):
        @inner
        async def get(self) -> web.Response:
            return web.Response(text="read")

    app = web.Application()
    app.router.add_get("/a/b/x", Page)
    return asking_aiohttp(app, exit)


def aiohttp_class_and_the_one_it_extends(given: Options, exit: ExitStack) -> Ask:
    outer, inner = given.pair(for_aiohttp.RateLimits(**given.shared))

    @inner
    class Base(web.View):
        async def get(self) -> web.Response:
            return web.Response(text="read")

    @outer
    class Own(Base):
        pass

    app = web.Application()
    app.router.add_view("/a/b/x", Own)
    return asking_aiohttp(app, exit)


# gRPC


METHOD = "/shop.Shop/Read"


def read_message(message: bytes, context: Any) -> bytes:
    return b"read"


def grpc_handlers() -> Any:
    return grpc.method_handlers_generic_handler(
        "shop.Shop", {"Read": grpc.unary_unary_rpc_method_handler(read_message)}
    )


@contextmanager
def called(server: Any, method: str = METHOD) -> Iterator[Ask]:
    server.add_generic_rpc_handlers((grpc_handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(method)

        def request_status() -> int:
            try:
                call(b"", timeout=10)
            except grpc.RpcError as error:
                return 429 if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else 500
            return 200

        yield request_status
    server.stop(None).wait()


def grpc_two_interceptors(given: Options, exit: ExitStack) -> Ask:
    interceptors = [
        for_grpc.RateLimitInterceptor(limits=LIMITS, **given.shared, **options)
        for options in (given.outer, given.inner)
    ]
    return exit.enter_context(called(grpc.server(ThreadPoolExecutor(2), interceptors=[*interceptors])))


def grpc_two_interceptors_of_methods(given: Options, exit: ExitStack) -> Ask:
    interceptors = [
        for_grpc.RateLimitInterceptor(methods={method: LIMITS}, **given.shared, **options)
        for method, options in ((METHOD, given.outer), ("/shop.Shop/*", given.inner))
    ]
    return exit.enter_context(called(grpc.server(ThreadPoolExecutor(2), interceptors=[*interceptors])))


def grpc_two_interceptors_on_a_loop(given: Options, exit: ExitStack) -> Ask:
    runner = exit.enter_context(asyncio.Runner())

    async def start() -> Any:
        interceptors = [
            for_grpc.AsyncRateLimitInterceptor(limits=LIMITS, **given.shared, **options)
            for options in (given.outer, given.inner)
        ]
        server = grpc.aio.server(interceptors=[*interceptors])
        server.add_generic_rpc_handlers((grpc_handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    server, channel = runner.run(start())
    exit.callback(lambda: runner.run(server.stop(None)))
    exit.callback(lambda: runner.run(channel.close()))

    async def request_status() -> int:
        try:
            await channel.unary_unary(METHOD)(b"", timeout=10)
        except grpc.aio.AioRpcError as error:
            return 429 if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else 500
        return 200

    return lambda: runner.run(request_status())


# Middlewares of our own


def asgi_twice(given: Options, _: ExitStack) -> Ask:
    app = Starlette(routes=[Route("/a/b/x", read)])
    for options in (given.inner, given.outer):
        app.add_middleware(asgi.RateLimitMiddleware, limits=LIMITS, **given.shared, **options)
    return over_asgi(app)


def asgi_application_and_mount(given: Options, _: ExitStack) -> Ask:
    inner = asgi.RateLimitMiddleware(Router([Route("/x", read)]), limits=LIMITS, **given.shared, **given.inner)
    app = Starlette(routes=[Mount("/a/b", app=inner)])
    app.add_middleware(asgi.RateLimitMiddleware, limits=LIMITS, **given.shared, **given.outer)
    return over_asgi(app)


def wsgi_twice(given: Options, _: ExitStack) -> Ask:
    app = flask.Flask("shop")
    app.get("/a/b/x")(read_page)
    whole: Any = app
    for options in (given.inner, given.outer):
        whole = wsgi.RateLimitMiddleware(whole, limits=LIMITS, **given.shared, **options)
    return over_wsgi(whole)


def wsgi_and_flask(given: Options, _: ExitStack) -> Ask:
    app = flask.Flask("shop")
    for_flask.RateLimits(app, LIMITS, **given.shared, **given.inner)
    app.get("/a/b/x")(read_page)
    return over_wsgi(wsgi.RateLimitMiddleware(app, limits=LIMITS, **given.shared, **given.outer))


FRAMEWORKS = (
    "starlette_",
    "fastapi_",
    "flask_",
    "django_",
    "rest_",
    "litestar_",
    "aiohttp_",
    "grpc_",
    "asgi_",
    "wsgi_",
)
ARRANGEMENTS: dict[str, Arrangement] = {
    name: function
    for name, function in list(globals().items())
    if name.startswith(FRAMEWORKS) and list(getattr(function, "__annotations__", ()))[:1] == ["given"]
}
ONE_OBJECT = [
    "starlette_endpoint_twice", "starlette_method_and_the_one_it_replaces",
    "fastapi_application_and_route", "fastapi_router_and_route", "fastapi_router_and_router",
    "fastapi_route_and_parameter",
    "flask_blueprint_and_view", "flask_blueprint_and_blueprint", "flask_view_twice", "flask_class_and_method",
    "django_view_twice", "django_class_and_method", "django_view_of_a_class_and_its_dispatch",
    "django_class_and_the_one_it_extends", "flask_method_and_the_one_it_replaces",
    "aiohttp_class_and_the_one_it_extends",
    "rest_throttle_and_throttle",
    "litestar_application_and_handler", "litestar_router_and_handler", "litestar_router_and_controller",
    "aiohttp_handler_twice", "aiohttp_class_and_method",
]  # fmt: skip
OVERRIDING = [
    "fastapi_application_and_route", "fastapi_router_and_route", "fastapi_router_and_router",
    "flask_application_and_view", "flask_blueprint_and_view", "flask_blueprint_and_blueprint",
    "django_each_route_and_view",
    "litestar_application_and_handler", "litestar_router_and_handler", "litestar_router_and_controller",
    "litestar_plugin_and_handler", "aiohttp_application_and_handler",
]  # fmt: skip
USUAL: dict[str, dict[str, Any]] = {
    "text": {},
    "counts": {"counts": lambda request, response: True},
    "exempt": {"exempt": lambda request: False},
    "refusal": {"refusal": lambda request, decision, refusal: None},
    "key": {"key": lambda request: "ann"},
    "on_decision": {"on_decision": lambda request, decision: None},
}
"""What leaves a limit what it is."""

PLACES = pytest.mark.parametrize("place", ["outer", "inner"])
EVERYWHERE = pytest.mark.parametrize("arrange", ARRANGEMENTS.values(), ids=ARRANGEMENTS)


def passing(
    arrange: Arrangement,
    times: int,
    places: dict[str, dict[str, Any]],
    *,
    same: bool = False,
    store: bool = True,
) -> list[int]:
    """Return the statuses of so many requests, with these options at the places."""
    shared = {"clock": ManualClock(), **({"store": MemoryStore()} if store else {})}
    with ExitStack() as exit:
        request_status = arrange(Options(places.get("outer", {}), places.get("inner", {}), shared, same), exit)
        return [request_status() for _ in range(times)]


@EVERYWHERE
@PLACES
@pytest.mark.parametrize("option", USUAL)
def test_limits_of_the_same_text_at_two_places_admit_what_one_of_them_admits(
    arrange: Arrangement, place: str, option: str
) -> None:
    assert passing(arrange, 5, {place: USUAL[option]}) == [200] * 4 + [429]


@EVERYWHERE
def test_limits_at_two_places_on_their_default_store_admit_what_one_of_them_admits(arrange: Arrangement) -> None:
    assert passing(arrange, 5, {}, store=False) == [200] * 4 + [429]


@EVERYWHERE
@PLACES
def test_common_options_of_both_places_do_not_matter(arrange: Arrangement, place: str) -> None:
    options = {**USUAL["key"], **USUAL["exempt"], "name": "shop"}
    assert passing(arrange, 5, {"outer": options, "inner": options}) == [200] * 4 + [429]


@EVERYWHERE
def test_applications_that_are_built_alike_share_their_counters_on_one_store(arrange: Arrangement) -> None:
    shared = {"clock": ManualClock(), "store": MemoryStore()}
    with ExitStack() as one, ExitStack() as other:
        request_status = [arrange(Options({}, {}, shared, same=False), exit) for exit in (one, other)]
        assert [ask() for ask in request_status * 3] == [200] * 4 + [429] * 2


@EVERYWHERE
@PLACES
def test_a_cost_is_charged_where_it_is_configured(arrange: Arrangement, place: str) -> None:
    left: dict[str, list[int]] = {"outer": [], "inner": []}
    options: dict[str, dict[str, Any]] = {
        where: {"on_decision": lambda request, decision, where=where: left[where].append(decision.remaining)}
        for where in left
    }
    options[place]["cost"] = 2
    other = "inner" if place == "outer" else "outer"
    assert passing(arrange, 3, options) == [200, 200, 429]
    assert left[place] == [2, 0, 0]
    assert left[other][:2] == [3, 2]


@pytest.mark.parametrize("name", [name for name in ARRANGEMENTS if name.startswith("grpc_")])
def test_a_call_that_the_inner_interceptor_refuses_takes_nothing_from_the_outer_one(name: str) -> None:
    outer: list[bool] = []
    observed = {"on_decision": lambda request, decision: outer.append(decision.allowed)}
    assert passing(ARRANGEMENTS[name], 6, {"outer": observed, "inner": {"cost": 2}}) == [200] * 2 + [429] * 4
    assert outer == [True] * 6


@EVERYWHERE
@PLACES
def test_a_dry_run_takes_nothing_from_the_live_limit(arrange: Arrangement, place: str) -> None:
    assert passing(arrange, 5, {place: {"shadow": True}}) == [200] * 4 + [429]


@pytest.mark.parametrize("name", ONE_OBJECT)
@pytest.mark.parametrize("option", USUAL)
def test_one_object_at_two_places_admits_its_limit(name: str, option: str) -> None:
    assert passing(ARRANGEMENTS[name], 5, {"outer": USUAL[option]}, same=True) == [200] * 4 + [429]


@pytest.mark.parametrize("name", OVERRIDING)
def test_a_limit_that_overrides_is_the_only_one(name: str) -> None:
    answers = passing(ARRANGEMENTS[name], 5, {"outer": {"cost": 4}, "inner": {"override": True}})
    assert answers == [200] * 4 + [429]


@pytest.mark.parametrize("name", sorted({*OVERRIDING} & {*ONE_OBJECT}))
def test_one_object_that_overrides_at_two_places_still_limits(name: str) -> None:
    assert passing(ARRANGEMENTS[name], 5, {"outer": {"override": True}}, same=True) == [200] * 4 + [429]


def test_the_same_middleware_of_django_twice_is_one() -> None:
    with ExitStack() as exit:
        options = {"limits": LIMITS, "clock": ManualClock()}
        request_status = django_site(read_view, exit, options, times=2)
        assert [request_status() for _ in range(5)] == [200] * 4 + [429]


def test_nested_applications_side_by_side_count_separately() -> None:
    store, clock = MemoryStore(), ManualClock()
    app = web.Application()
    for prefix in ("/a/b", "/c"):
        nested = web.Application()
        nested.router.add_get("/x", read_web)
        for_aiohttp.setup(nested, limits=LIMITS, store=store, clock=clock)
        app.add_subapp(prefix, nested)
    with ExitStack() as exit:
        runner = exit.enter_context(asyncio.Runner())
        client = runner.run(_client(app))
        exit.callback(lambda: runner.run(client.close()))

        async def request_status(path: str) -> int:
            async with client.get(path) as response:
                return response.status

        assert [runner.run(request_status("/a/b/x")) for _ in range(5)] == [200] * 4 + [429]
        assert runner.run(request_status("/c/x")) == 200


def test_a_method_that_is_not_there_names_no_endpoint_to_either_interceptor() -> None:
    seen: list[str] = []
    interceptors = [
        for_grpc.RateLimitInterceptor(limits=LIMITS, on_decision=lambda request, _: seen.append(request.endpoint))
        for _ in range(2)
    ]
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[*interceptors])
    with called(server, "/shop.Shop/Nothing") as request_status:
        assert request_status() == 500
    assert seen == ["", ""]
