"""A path is the same with and without the root path of its application: both reach one route, and meet its rules."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import django_configured  # noqa: F401 - the imports below need its settings

# isort: split

from django.core.handlers.asgi import ASGIRequest  # type: ignore[import-untyped]
from django.core.handlers.wsgi import WSGIRequest  # type: ignore[import-untyped]
from django.test import RequestFactory  # type: ignore[import-untyped]
from fastapi import FastAPI
from litestar import Litestar, get
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from headgate import Gate
from headgate.http import wsgi
from headgate.http.asgi import RateLimitMiddleware
from headgate.http.wsgi import WsgiRequest
from headgate.integrations.django import DjangoRequest
from headgate.integrations.fastapi import RateLimitMiddleware as FastAPIMiddleware
from headgate.integrations.flask import RateLimitMiddleware as FlaskMiddleware
from headgate.integrations.litestar import RateLimitPlugin
from headgate.policy.subject import RootedPath
from headgate.testing import ManualClock

POLICY = {
    "version": 1,
    "rules": [
        {"name": "login", "match": {"path": "/login"}, "by": [], "limits": "1/minute"},
        {"name": "shop", "match": {"path": "/shop/search"}, "by": [], "limits": "1/minute"},
        {"name": "token", "match": {"path": "/token/{id}"}, "by": ["endpoint"], "limits": "1/minute"},
    ],
    "exempt": [{"path": "/shop/health"}],
}


def fastapi(**options: Any) -> FastAPI:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions recommend the root path of the server instead
        app = FastAPI(**options)
    for path in ("/login", "/search", "/health", "/token/{id}"):
        app.add_api_route(path, lambda: "here")
    return app


def inside(root_path: str) -> Any:
    app = fastapi(root_path=root_path)
    app.add_middleware(FastAPIMiddleware, policy=POLICY, clock=ManualClock())
    return app


def outside(root_path: str) -> Any:
    return RateLimitMiddleware(fastapi(root_path=root_path), policy=POLICY, clock=ManualClock())


def of_the_server(root_path: str) -> Any:
    """Return an application behind a server that adds its root path to no path: hypercorn, granian or gunicorn."""
    app = RateLimitMiddleware(fastapi(), policy=POLICY, clock=ManualClock())

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root_path}, receive, send)

    return served


def statuses(app: Any, *paths: str, root_path: str = "") -> list[int]:
    async def send() -> list[int]:
        transport = httpx.ASGITransport(app, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            return [(await client.get(path)).status_code for path in paths]

    return asyncio.run(send())


@pytest.mark.parametrize("build", [inside, outside, of_the_server])
def test_no_path_with_a_root_path_evades_its_rule(build: Callable[[str], Any]) -> None:
    spellings = "/login", "/shop/login", "/shop/%6Cogin", "/%73hop/login?a=1"
    assert statuses(build("/shop"), *spellings) == [200, 429, 429, 429]
    assert statuses(build("/shop"), "/shop/login", "/login", "/shop/shop/login") == [200, 429, 404]
    assert statuses(build("/api/v1"), "/api/v1/login", "/api/v1/login", "/api/login") == [200, 429, 404]


@pytest.mark.parametrize("build", [inside, outside, of_the_server])
def test_a_rule_and_an_exemption_can_name_the_root_path(build: Callable[[str], Any]) -> None:
    app = build("/shop")
    assert statuses(app, "/shop/search", "/shop/search", "/shop/health", "/shop/health") == [200, 429, 200, 200]
    assert statuses(build("/shop"), "/search", "/search", "/shop/search") == [200, 429, 429]


def test_the_attribute_root_path_of_quart_is_a_folder_and_is_ignored() -> None:
    class Folder:
        root_path = "/srv/shop"  # a folder in Quart

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert scope["root_path"] == ""
            await PlainTextResponse("here")(scope, receive, send)

    app = RateLimitMiddleware(Folder(), policy=POLICY, clock=ManualClock())
    assert statuses(app, "/login", "/srv/shop/login") == [200, 200]


def test_a_path_counts_under_one_template_with_and_without_the_root_path() -> None:
    assert statuses(inside("/shop"), "/token/1", "/shop/token/2") == [200, 429]


def test_a_path_that_only_begins_like_the_root_path_is_another_path() -> None:
    app = of_the_server("/shop")
    assert statuses(app, "/login", "/shopping/login", "/x/shopping") == [200, 404, 404]


def test_the_path_of_a_mount_is_not_a_root_path() -> None:
    async def login(request: object) -> PlainTextResponse:
        return PlainTextResponse("here")

    limited = [Middleware(RateLimitMiddleware, policy=POLICY, clock=ManualClock())]
    app = Starlette(routes=[Mount("/admin", routes=[Route("/login", login)], middleware=limited)])
    assert statuses(app, "/admin/login", "/admin/login") == [200, 200]


def test_litestar_finds_a_route_after_the_root_path_wherever_that_is_and_so_does_its_rule() -> None:
    @get("/login")
    async def login() -> str:
        return "here"

    for path in ("/login", "/shop/login", "/x/shop/login", "/shoplogin", "/%73hop//login"):
        app = Litestar([login], plugins=[RateLimitPlugin(policy=POLICY, clock=ManualClock())])
        assert statuses(app, path, path, root_path="/shop") == [200, 429], path
    for outer in ("/x/shop/login", "/shoplogin"):
        site: Any = Litestar([login])
        limited = RateLimitMiddleware(site, policy=POLICY, clock=ManualClock())
        assert statuses(limited, outer, outer, root_path="/shop") == [200, 429], outer


def test_django_on_asgi_finds_a_view_by_both_paths_and_so_does_its_rule() -> None:
    def hit(gate: Gate, path: str, root_path: str, **more: Any) -> bool:
        scope = {"type": "http", "method": "GET", "path": path, "root_path": root_path, "headers": [], **more}
        return bool(gate.hit(DjangoRequest(ASGIRequest(scope, None))))

    gate = Gate(POLICY, clock=ManualClock())
    passed = [hit(gate, path, "/shop") for path in ("/login", "/shop/login", "/shop/search", "/search")]
    assert passed == [True, False, True, False]
    gate = Gate(POLICY, clock=ManualClock())
    mounted = [hit(gate, "/admin/login", "/admin", app_root_path="") for _ in range(2)]
    assert mounted == [True, True], "a mount of Starlette has no root path"
    wsgi = [RequestFactory(SCRIPT_NAME="/shop").get("/login") for _ in range(2)]
    assert all(gate.hit(DjangoRequest(request)) for request in wsgi), "WSGI has the whole path: /shop/login"


@pytest.mark.parametrize("header", ["/a1", "/a1/", "/", "/other,/a1"])
def test_no_mount_in_a_header_evades_a_rule(header: str) -> None:
    """As in the environ of gunicorn behind a proxy that passes on SCRIPT_NAME."""
    mount = header.rpartition(",")[2]
    environ = {**RequestFactory().get("/").environ, "HTTP_SCRIPT_NAME": header, "SCRIPT_NAME": mount}
    path = "login" if mount.endswith("/") else "/login"

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        statuses_sent.append(status)

    def site(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [b"here"]

    for limited in (wsgi.RateLimitMiddleware, FlaskMiddleware):
        app = limited(site, policy=POLICY, clock=ManualClock())
        statuses_sent: list[str] = []
        for request_environ in (environ | {"PATH_INFO": path}, environ | {"PATH_INFO": path}):
            app(request_environ, start_response)
        assert statuses_sent == ["200 OK", "429 Too Many Requests"], limited
        inside = environ | {"SCRIPT_NAME": f"{mount}/shop", "PATH_INFO": "/search"}  # an application mounted further in
        app(inside, start_response)
        app(inside, start_response)
        assert statuses_sent[2:] == ["200 OK", "429 Too Many Requests"], limited
    gate = Gate(POLICY, clock=ManualClock())
    request_environ = environ | {"PATH_INFO": path}
    assert [bool(gate.hit(DjangoRequest(WSGIRequest(dict(request_environ))))) for _ in range(2)] == [True, False]


def test_a_header_that_is_not_a_mount_changes_no_path() -> None:
    gate = Gate(POLICY, clock=ManualClock())
    environ = {**RequestFactory().get("/login").environ, "SCRIPT_NAME": "/shop", "HTTP_SCRIPT_NAME": "/other"}
    assert all(gate.hit(WsgiRequest(dict(environ))) for _ in range(2))


def test_of_a_header_of_millions_of_mounts_only_the_end_is_read() -> None:
    """Checked one by one they would take minutes, and a client could cause that in any mounted application."""
    environ = {**RequestFactory().get("/login").environ, "SCRIPT_NAME": "/a1"}
    assert WsgiRequest(environ | {"HTTP_SCRIPT_NAME": "," * 4_000_000}).path == "/a1/login"
    path = WsgiRequest(environ | {"HTTP_SCRIPT_NAME": "," * 4_000_000 + "/a1"}).path
    assert isinstance(path, RootedPath)
    assert path.others == ("/login",)
