"""Limits of FastAPI routes, without a server; this file also runs with older versions of FastAPI."""

# Annotations are not postponed: FastAPI could not resolve names that are local to a test from their text.

import asyncio
import copy
import importlib
import inspect
import json
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, Security, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Host, Mount, Route, WebSocketRoute

from asgi_requests import CALL_STYLES, ask, drive, options_of, record_scopes, statuses
from broken_store import NO_REDIS, BrokenStore
from headgate import ConfigError, Decision, MemoryStore, MissingExtraError
from headgate.http.asgi import RateLimitMiddleware
from headgate.http.server.options import Refusal
from headgate.integrations.fastapi import (
    RateLimitExceeded,
    RateLimitHeaders,
    RateLimits,
    exempt,
    rate_limit,
)
from headgate.integrations.starlette import rate_limit as decorator
from headgate.testing import ManualClock
from subjects import parse_list

PLAIN_ROUTES_IN_ROUTERS = hasattr(FastAPI, "frontend")
"""Newer versions include mounts and other routes of Starlette with their router."""


class Limits(RateLimits):
    """Limits on a manual clock, which record the scope under which each request was counted."""

    def __init__(self, scopes: list[str], **defaults: Any) -> None:
        self.clock = ManualClock()
        self.scopes = scopes
        super().__init__(clock=self.clock, **defaults)


@pytest.fixture(params=CALL_STYLES)
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Limits:
    return Limits(record_scopes(monkeypatch), **options_of(request.param))


async def read() -> dict[str, str]:
    return {"read": "yes"}


def app_with(*dependencies: Any, path: str = "/", endpoint: Callable[..., Any] = read, **options: Any) -> FastAPI:
    """An application with one route."""
    app = FastAPI(**options)
    app.get(path, dependencies=[Depends(dependency) for dependency in dependencies])(endpoint)
    return app


# Requests to one route template count together


def api(limits: RateLimits, **options: Any) -> APIRouter:
    """Nested routers with prefixes."""
    items = APIRouter(prefix="/items")
    items.get("/{item_id}", dependencies=[Depends(limits("9/minute", **options))])(read)
    v1 = APIRouter(prefix="/v1")
    v1.include_router(items)
    return v1


def nested_routers(limits: RateLimits) -> Any:
    app = FastAPI()
    app.include_router(api(limits), prefix="/api")
    return app


def router_included_twice(limits: RateLimits) -> Any:
    app, router = FastAPI(), api(limits)
    app.include_router(router, prefix="/a")
    app.include_router(router, prefix="/b")
    return app


def prefix_with_a_parameter(limits: RateLimits) -> Any:
    app = FastAPI()
    app.include_router(api(limits), prefix="/{tenant}")
    return app


def mounted(limits: RateLimits) -> Any:
    app = FastAPI()
    for path in ("/one", "/two"):
        inner = FastAPI()
        inner.include_router(api(limits))
        app.mount(path, inner)
    return app


def mount_within_mount(limits: RateLimits) -> Any:
    return Starlette(routes=[Mount("/outer", routes=[Mount("/inner", app=mounted(limits))])])


def mount_with_a_parameter(limits: RateLimits) -> Any:
    app = FastAPI()
    app.mount("/{tenant}/{item_id}", nested_routers(limits))
    return app


def mount_behind_a_middleware(limits: RateLimits) -> Any:
    class Plain:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

    return Starlette(routes=[Mount("/{tenant}", app=Plain(nested_routers(limits)))])


def mount_at_the_root(limits: RateLimits) -> Any:
    app = FastAPI()
    app.mount("/", nested_routers(limits))
    return app


def mounted_router(limits: RateLimits) -> Any:
    app = FastAPI()
    app.mount("/one", api(limits))
    return app


def hosts(limits: RateLimits) -> Any:
    return Starlette(routes=[Host("{shop}.example", app=nested_routers(limits))])


def converter(limits: RateLimits) -> Any:
    return app_with(limits("9/minute"), path="/files/{p:path}")


def several_methods(limits: RateLimits) -> Any:
    app = FastAPI()
    app.api_route("/x", methods=["POST", "GET"], dependencies=[Depends(limits("9/minute"))])(read)
    return app


def one_path_for_two_routes(limits: RateLimits) -> Any:
    app = app_with(limits("9/minute"), path="/x")
    app.post("/x", dependencies=[Depends(limits("9/minute"))])(read)
    return app


def behind_a_proxy(limits: RateLimits) -> Any:
    """A proxy that removes the prefix; this way to configure it is deprecated and still used."""
    with warnings.catch_warnings(action="ignore"):
        app = FastAPI(root_path="/proxy")
    app.include_router(api(limits))
    return app


TEMPLATES = [
    (nested_routers, "/api/v1/items/7", "GET /api/v1/items/{item_id}"),
    (router_included_twice, "/a/v1/items/7", "GET /a/v1/items/{item_id}"),
    (router_included_twice, "/b/v1/items/7", "GET /b/v1/items/{item_id}"),
    (prefix_with_a_parameter, "/acme/v1/items/7", "GET /{tenant}/v1/items/{item_id}"),
    (mounted, "/one/v1/items/7", "GET /one/v1/items/{item_id}"),
    (mounted, "/two/v1/items/7", "GET /two/v1/items/{item_id}"),
    (mount_within_mount, "/outer/inner/two/v1/items/7", "GET /outer/inner/two/v1/items/{item_id}"),
    (mount_with_a_parameter, "/acme/5/api/v1/items/7", "GET /{tenant}/{item_id}/api/v1/items/{item_id}"),
    (mount_behind_a_middleware, "/acme/api/v1/items/7", "GET /{tenant}/api/v1/items/{item_id}"),
    (mount_at_the_root, "/api/v1/items/7", "GET /api/v1/items/{item_id}"),
    (mounted_router, "/one/v1/items/7", "GET /one/v1/items/{item_id}"),
    (hosts, "/api/v1/items/7", "GET {shop}.example/api/v1/items/{item_id}"),
    (converter, "/files/a/b.txt", "GET /files/{p:path}"),
    (several_methods, "/x", "GET,POST /x"),
    (behind_a_proxy, "/v1/items/7", "GET /v1/items/{item_id}"),
]


@pytest.mark.parametrize(("build", "path", "template"), TEMPLATES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_route_counts_under_its_whole_template(build: Any, path: str, template: str, limits: Limits) -> None:
    app = build(limits)
    for _ in range(2):  # what is remembered is the same
        assert ask(app, path).status_code == 200
    assert limits.scopes == [template] * 2


@pytest.mark.parametrize(("build", "path", "template"), TEMPLATES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_prefix_that_a_proxy_removed_is_no_part_of_the_scope(
    build: Any, path: str, template: str, limits: Limits
) -> None:
    if build is behind_a_proxy:
        path = f"/proxy{path}"  # the prefix of the proxy, which some proxies do not remove
        assert ask(build(limits), path).status_code == 200
    else:
        assert ask(build(limits), f"/edge{path}", root_path="/edge").status_code == 200
    assert limits.scopes == [template]


def test_the_error_of_a_limit_without_depends_names_the_right_code(limits: Limits) -> None:
    without: Any = [limits("5/minute")]
    with pytest.raises(ConfigError, match=r"write Depends\(rate_limit\(...\)\)"):
        FastAPI().get("/", dependencies=without)(lambda: None)
    with pytest.raises(ConfigError, match=r"write Depends\(rate_limit\(...\)\)"):
        FastAPI(dependencies=without).get("/")(lambda: None)


async def read_async() -> dict[str, str]:
    return {"read": "yes"}


@pytest.mark.parametrize("endpoint", [read, read_async, lambda: None, FastAPI().get("/")(read)])
def test_the_error_of_a_limit_as_a_decorator_names_the_right_code(limits: Limits, endpoint: Any) -> None:
    decorate: Any = limits("5/minute")
    with pytest.raises(ConfigError, match=r"decorates no endpoint, .* write Depends\(rate_limit\(...\)\), as in @app"):
        decorate(endpoint)


def test_concrete_paths_are_no_keys(limits: Limits) -> None:
    app = app_with(limits("3/minute"), path="/u/{user}")
    assert statuses(app, "/u/1", "/u/2", "/u/3", "/u/4") == [200, 200, 200, 429]


def test_two_routes_count_apart_unless_they_have_one_scope(limits: Limits) -> None:
    app_with_two_routes = one_path_for_two_routes(limits)
    assert ask(app_with_two_routes, "/x").status_code == ask(app_with_two_routes, "/x", "POST").status_code == 200
    assert limits.scopes == ["GET /x", "POST /x"]
    app = mounted(limits)
    assert statuses(app, *["/one/v1/items/1"] * 10)[-1] == 429
    assert statuses(app, "/two/v1/items/1") == [200]
    shared = FastAPI()
    for path in ("/a", "/b"):
        shared.get(path, dependencies=[Depends(limits("2/minute", scope="both"))])(read)
    assert statuses(shared, "/a", "/b", "/a", "/b") == [200, 200, 429, 429]


def test_a_mount_without_known_routes_adds_no_concrete_path(limits: Limits) -> None:
    inner = nested_routers(limits)

    async def opaque(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    app = Starlette(routes=[Mount("/{tenant}", app=opaque), Mount("/fixed/x", app=opaque)])
    assert statuses(app, "/acme/api/v1/items/1", "/other/api/v1/items/2") == [200, 200]
    [scope, second] = limits.scopes
    assert scope == second and "acme" not in scope and "{tenant}" in scope and f"{read.__qualname__}" in scope


def test_routes_that_are_added_later_are_known(limits: Limits) -> None:
    app = nested_routers(limits)
    assert statuses(app, "/api/v1/items/1") == [200]
    app.include_router(api(limits), prefix="/later")
    app.mount("/{tenant}", nested_routers(limits))
    assert statuses(app, "/later/v1/items/1", "/acme/api/v1/items/1") == [200, 200]
    assert limits.scopes[1:] == ["GET /later/v1/items/{item_id}", "GET /{tenant}/api/v1/items/{item_id}"]


@pytest.mark.skipif(not PLAIN_ROUTES_IN_ROUTERS, reason="this FastAPI drops mounts of a router that is included")
def test_mounts_and_hosts_of_an_included_router_are_part_of_it(limits: Limits) -> None:
    router = APIRouter()
    router.mount("/sub/{part}", nested_routers(limits))
    app = FastAPI()
    app.include_router(router, prefix="/{area}")
    assert statuses(app, "/north/sub/4/api/v1/items/1") == [200]
    assert limits.scopes == ["GET /{area}/sub/{part}/api/v1/items/{item_id}"]


@pytest.mark.skipif(not PLAIN_ROUTES_IN_ROUTERS, reason="this FastAPI serves no files by itself")
def test_files_of_a_frontend_count_together(limits: Limits, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    app: Any = FastAPI(dependencies=[Depends(limits("3/minute"))])
    app.frontend("/", directory=tmp_path)
    app.frontend("/docs/ui", directory=tmp_path)
    received = statuses(app, "/", "/index.html", "//index.html", "///nothing", "/docs/ui/")
    assert [status == 429 for status in received] == [False, False, False, True, False]
    assert set(limits.scopes) == {"GET /{path:path}", "GET /docs/ui/{path:path}"}


def test_routes_of_an_included_router_are_limited_and_what_no_route_finds_is_the_middlewares(
    limits: Limits,
) -> None:
    app = FastAPI(dependencies=[Depends(limits("1/minute"))])
    app.include_router(api(limits), prefix="/api")
    inner = FastAPI()
    inner.get("/x")(read)
    app.mount("/mounted", inner)
    assert statuses(app, *["/api/v1/items/1"] * 2) == [200, 429]
    assert statuses(app, *["/mounted/x"] * 2, *["/nothing"] * 2) == [200, 200, 404, 404], (
        "dependencies do not apply there"
    )
    with_middleware = RateLimitMiddleware(app, limits="3/minute", clock=limits.clock)
    assert statuses(with_middleware, "/nothing", "/mounted/x", "/nothing", "/nothing", "/mounted/x") == [
        404,
        200,
        404,
        429,
        429,
    ]


# Places of a limit


def test_a_limit_can_belong_to_a_route_a_router_or_an_application(limits: Limits) -> None:
    for where in ("route", "router", "include", "application", "endpoint"):
        limit = Depends(limits("1/minute"))
        app = FastAPI(dependencies=[limit] if where == "application" else [])
        router = APIRouter(dependencies=[limit] if where == "router" else [])
        if where == "endpoint":

            @router.get("/x")
            def with_decision(decision: Annotated[Decision, limit]) -> int | None:
                return decision.remaining
        else:
            router.get("/x", dependencies=[limit] if where == "route" else [])(read)
        app.include_router(router, prefix=f"/{where}", dependencies=[limit] if where == "include" else [])
        assert statuses(app, *[f"/{where}/x"] * 2) == [200, 429], where


def test_a_plain_endpoint_runs_in_its_thread_and_the_decision_is_a_value(limits: Limits) -> None:
    def plain(decision: Annotated[Decision | None, Depends(limits("5/minute"))]) -> dict[str, Any]:
        assert decision is not None
        return {"left": decision.remaining, "here": threading.current_thread() is threading.main_thread()}

    assert ask(app_with(endpoint=plain)).json() == {"left": 4, "here": False}


def test_a_limit_has_no_parameters(limits: Limits) -> None:
    """The limit requires no parameters and adds none to the documentation."""
    app = app_with(limits("5/minute"))
    operation = app.openapi()["paths"]["/"]["get"]
    assert "parameters" not in operation and "422" not in operation["responses"]
    assert ask(app).status_code == 200


def test_invalid_requests_count_too(limits: Limits) -> None:
    async def number(number: Annotated[int, Query()]) -> int:
        return number

    app = app_with(limits("2/minute"), endpoint=number)
    assert statuses(app, "/?number=a", "/?number=a", "/?number=1") == [422, 422, 429]


def test_a_body_that_cannot_be_parsed_is_rejected_before_any_dependency(limits: Limits) -> None:
    """As the page of the documentation says, the middleware limits these requests."""

    async def body(body: dict[str, int]) -> None: ...

    app = FastAPI()
    app.post("/", dependencies=[Depends(limits("2/minute"))])(body)
    as_json = {"headers": {"Content-Type": "application/json"}, "method": "POST"}
    assert statuses(app, *["/"] * 3, content=b"{", **as_json) == [422] * 3
    assert statuses(app, *["/"] * 3, content=b'{"a": "b"}', **as_json) == [422, 422, 429]


def test_all_limits_of_a_route_are_checked_from_the_outside_in(limits: Limits) -> None:
    order: list[str] = []

    def recorded(name: str) -> Any:
        return Depends(limits("9/minute", name=name, on_decision=lambda request, decision: order.append(name)))

    app = FastAPI(dependencies=[recorded("application")])
    router = APIRouter(dependencies=[recorded("router")])
    router.get("/x", dependencies=[recorded("route")])(read)
    app.include_router(router, dependencies=[recorded("include")])
    assert ask(app, "/x").status_code == 200
    assert order == ["application", "include", "router", "route"]


def test_what_a_narrower_limit_refuses_is_charged_in_none(limits: Limits) -> None:
    app = FastAPI(dependencies=[Depends(limits("5/minute", name="wide", scope="all"))])
    app.get("/narrow", dependencies=[Depends(limits("1/minute"))])(read)
    app.get("/other")(read)
    assert statuses(app, *["/narrow"] * 5) == [200, 429, 429, 429, 429]
    assert statuses(app, *["/other"] * 5) == [200, 200, 200, 200, 429]


def test_a_request_that_a_wider_limit_refuses_is_not_charged_in_the_narrower_one(limits: Limits) -> None:
    app = app_with(limits("1/minute", name="narrow"), dependencies=[Depends(limits("1/hour", name="wide"))])
    assert statuses(app, "/", "/") == [200, 429]
    limits.clock.advance(120_000_000)
    refused = ask(app)
    assert refused.json()["violated-policies"] == ["wide"]


def test_a_limit_that_overrides_replaces_wider_limits(limits: Limits) -> None:
    app = FastAPI(dependencies=[Depends(limits("1/minute"))])
    router = APIRouter(dependencies=[Depends(limits("2/minute"))])
    router.get("/own", dependencies=[Depends(limits("4/minute", override=True)), Depends(limits("3/minute"))])(read)
    router.get("/wide")(read)
    app.include_router(router, prefix="/x")
    assert statuses(app, *["/x/own"] * 4) == [200, 200, 200, 429], "limits after it apply, too"
    assert statuses(app, *["/x/wide"] * 2) == [200, 429]


def test_a_limit_of_a_router_that_overrides_replaces_the_one_of_the_application(limits: Limits) -> None:
    app = FastAPI(dependencies=[Depends(limits("1/minute"))])
    router = APIRouter(dependencies=[Depends(limits("3/minute", override=True))])
    router.get("/x")(read)
    router.websocket("/socket")(hello)
    app.include_router(router, prefix="/v1")
    assert statuses(app, *["/v1/x"] * 4) == [200, 200, 200, 429]
    assert [drive(app, "/v1/socket", "websocket")[0]["type"] for _ in range(4)][2:] == [
        "websocket.accept",
        "websocket.close",
    ]


def test_a_limit_inside_of_an_override_applies_although_an_equal_one_is_outside_of_it(limits: Limits) -> None:
    app = FastAPI(dependencies=[Depends(limits("1/minute"))])
    router = APIRouter(dependencies=[Depends(limits("2/minute", override=True))])
    router.get("/both", dependencies=[Depends(limits("1/minute"))])(read)
    router.get("/wide")(read)
    app.include_router(router)
    assert statuses(app, *["/both"] * 2) == [200, 429]
    assert statuses(app, *["/wide"] * 3) == [200, 200, 429]


def test_equal_limits_are_charged_once(limits: Limits) -> None:
    app = app_with(limits("2/minute"), dependencies=[Depends(limits("2/minute"))])
    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert limits("2/minute", cost=2) != limits("2/minute") != Limits([])("2/minute")
    assert limits("1/minute", trusted_proxies=["10.0.0.0/8"]) != limits("1/minute", trusted_proxies=["10.0.0.0/8"])
    mapping = {"default": "1/minute"}
    assert limits(mapping, tier=str) != limits(mapping, tier=str), "a mapping can change later"


@pytest.mark.parametrize(
    "repeat", [lambda limit: Depends(limit, use_cache=False), lambda limit: Security(limit, scopes=["b"])]
)
def test_equal_limits_that_fastapi_calls_again_charge_once(limits: Limits, repeat: Callable[[Any], Any]) -> None:
    repeated = Annotated[Any, repeat(limits("2/minute"))]

    def first(decision: repeated) -> Any:
        return decision

    def second(decision: repeated) -> Any:
        return decision

    app = FastAPI(dependencies=[Security(limits("2/minute"), scopes=["a"])])

    @app.get("/")
    def remaining(one: Annotated[Any, Depends(first)], other: Annotated[Any, Depends(second)]) -> list[int]:
        return [one.remaining, other.remaining]

    responses = [ask(app, "/") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [response.json() for response in responses[:2]] == [[1, 1], [0, 0]]


@pytest.mark.parametrize("has_middleware", [False, True])
def test_an_endpoint_that_requests_itself_is_charged_each_time(limits: Limits, has_middleware: bool) -> None:
    app = FastAPI(dependencies=[Depends(limits("9/minute", scope="all"))])
    if has_middleware:
        app.add_middleware(RateLimitHeaders)

    @app.get("/{left}", dependencies=[Depends(limits("3/minute"))])
    async def descend(left: int, request: Request) -> Any:
        if not left:
            return 0
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        path = f"/{left - 1}"
        await app({**request.scope, "path": path, "raw_path": path.encode()}, request.receive, send)
        return sent[0]["status"]

    assert [ask(app, "/2").json(), ask(app, "/2").status_code] == [200, 429]


def test_an_exempt_endpoint_is_not_limited(limits: Limits) -> None:
    app = FastAPI(dependencies=[Depends(limits("1/minute", scope="all"))])

    @app.get("/health")
    @exempt
    def health(decision: Annotated[Decision | None, Depends(limits("1/minute"))]) -> bool:
        return decision is None

    app.get("/x")(read)
    responses = [ask(app, "/health") for _ in range(3)]
    assert [response.json() for response in responses] == [True] * 3
    assert "RateLimit" not in responses[0].headers
    assert statuses(app, "/x", "/x") == [200, 429]


@pytest.mark.parametrize("name", ["health", "health_async"])
def test_a_method_of_one_object_can_be_exempt(limits: Limits, name: str) -> None:
    class Shop:
        def __init__(self, shop: str) -> None:
            self.shop = shop

        def health(self, detail: str = "well") -> str:
            return f"{self.shop} is {detail}"

        async def health_async(self, detail: str = "well") -> str:
            return self.health(detail)

    app = FastAPI(dependencies=[Depends(limits("1/minute"))])
    app.get("/first")(exempt(getattr(Shop("the first"), name)))
    app.get("/second")(getattr(Shop("the second"), name))
    assert [ask(app, "/first?detail=fine").json() for _ in range(2)] == ["the first is fine"] * 2
    assert statuses(app, "/second", "/second") == [200, 429], "the method of another object is limited"


def test_a_copied_router_has_the_limits_of_the_router(limits: Limits) -> None:
    router = APIRouter(dependencies=[Depends(limits("1/minute"))])
    router.get("/x")(read)
    app = FastAPI()
    app.include_router(router)
    app.include_router(copy.deepcopy(router), prefix="/copied")
    assert statuses(app, "/x", "/copied/x", "/x", "/copied/x") == [200, 200, 429, 429], "each route counts by itself"
    app.dependency_overrides[limits("1/minute")] = lambda: None
    assert statuses(app, "/x", "/copied/x") == [200, 200]


def test_dependency_overrides_work(limits: Limits) -> None:
    app = app_with(limits("1/minute"))
    app.dependency_overrides[limits("1/minute")] = lambda: None
    assert statuses(app, "/", "/", "/") == [200, 200, 200]
    app.dependency_overrides.clear()
    assert statuses(app, "/", "/") == [200, 429]


def test_a_limit_in_a_dependency_of_the_application_works(limits: Limits) -> None:
    async def user(request: Request, decision: Annotated[Any, Depends(limits("2/minute"))]) -> str:
        return str(decision is None)

    app = FastAPI(dependencies=[Depends(limits("1/minute", name="wide"))])

    @app.get("/")
    async def endpoint(
        skipped: Annotated[str, Depends(user)], again: Annotated[Any, Depends(limits("9/minute", override=True))]
    ) -> str:
        return skipped

    responses = [ask(app) for _ in range(3)]
    assert [response.json() for response in responses] == ["True"] * 3, "the last decision replaces those before it"
    assert responses[0].headers["RateLimit"].startswith('"default";r=8')


# Keys and costs


def test_options_are_functions_of_the_request_with_its_scope(limits: Limits) -> None:
    async def authenticated(request: Request) -> None:
        request.state.user = request.headers.get("x-user")

    async def key(request: Any) -> Any:
        await asyncio.sleep(0)
        return request.scope["state"].get("user")

    app = app_with(authenticated, limits("2/minute", key=key, cost=lambda r: int(r.scope["path_params"]["n"])),
                   path="/{n}")  # fmt: skip
    assert statuses(app, "/2", "/1", headers={"X-User": "a"}) == [200, 429]
    assert statuses(app, "/1", headers={"X-User": "b"}) == [200]


def test_an_empty_identity_is_no_free_pass(limits: Limits) -> None:
    app = app_with(limits("1/minute", key=lambda request: request.headers.get("x-user")))
    assert statuses(app, "/", "/") == [200, 429]
    assert statuses(app, "/", headers={"X-User": ""}) == [429]
    assert statuses(app, "/", headers={"X-User": "a"}) == [200]
    assert statuses(app, "/", client="203.0.113.10") == [200]


def test_tiers_choose_among_limits(limits: Limits) -> None:
    tiers = {"default": "1/minute", "pro": "2/minute", "staff": None}
    app = app_with(limits(tiers, tier=lambda request: request.headers.get("x-tier")))
    assert statuses(app, "/", "/") == [200, 429]
    assert statuses(app, "/", "/", "/", headers={"X-Tier": "pro"}) == [200, 200, 429]
    assert statuses(app, "/", "/", "/", headers={"X-Tier": "staff"}) == [200] * 3


def test_defaults_apply_to_all_limits_and_the_options_of_a_limit_take_precedence() -> None:
    limits = Limits([], key=lambda request: "everybody", headers="x-delta")
    app = app_with(limits("1/minute"))
    assert ask(app).headers["X-RateLimit-Remaining"] == "0"
    assert statuses(app, "/", client="203.0.113.10") == [429]
    own = app_with(limits("1/minute", headers="draft-11", name="own"))
    assert "X-RateLimit-Remaining" not in ask(own).headers


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"limits": "1/fortnight"}, ConfigError, "fortnight"),
        ({"limits": "1/minute", "headers": "draft-12"}, ConfigError, "draft-12"),
        ({"limits": "1/minute", "limit": 1}, TypeError, "no option is named limit"),
        ({"limits": None}, ConfigError, "not None"),
    ],
)
def test_wrong_options_raise_at_once(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rate_limit(**options)
    with pytest.raises(TypeError, match="no option is named limit"):
        RateLimits(limit=1)  # type: ignore[call-arg]


def test_a_store_that_only_works_in_threads_raises() -> None:
    class Blocking(MemoryStore):
        blocking = True

    with pytest.raises(ConfigError, match="waits for I/O in threads alone"):
        rate_limit("1/minute", store=Blocking())


# Responses


def messages_of_the_middleware(clock: ManualClock, method: str = "GET") -> list[dict[str, Any]]:
    app = RateLimitMiddleware(app_with(), limits="1/minute", clock=clock)
    drive(app, "/")
    return drive(app, "/", method=method)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_refusal_is_byte_by_byte_the_one_of_the_middleware(limits: Limits, method: str) -> None:
    app = FastAPI()
    app.api_route("/", methods=["GET", "HEAD"], dependencies=[Depends(limits("1/minute"))])(read)
    drive(app, "/")
    start, body = drive(app, "/", method=method)
    expected_start, expected_body = messages_of_the_middleware(limits.clock, method)
    assert (start["status"], start["headers"]) == (429, expected_start["headers"])
    assert body["body"] == expected_body["body"]
    if method == "GET":
        assert json.loads(body["body"])["violated-policies"] == ["default"]
    else:
        assert body["body"] == b"" and (b"content-length", b"0") not in start["headers"]


def test_an_exception_handler_of_the_application_takes_precedence(limits: Limits) -> None:
    def handle(request: Request, refused: Any) -> Response:
        return JSONResponse({"own": refused.detail}, refused.status_code, headers=refused.headers)

    for kind in (RateLimitExceeded, 429):
        app = app_with(limits("1/minute"))
        app.exception_handler(kind)(handle)
        _, refused = ask(app), ask(app)
        assert refused.status_code == 429
        assert refused.json() == {"own": f"over the limit of 1/minute; retry in {refused.headers['Retry-After']} s"}
        assert refused.headers.get_list("content-type") == ["application/json"]
        assert "RateLimit" in refused.headers
        limits = Limits([])


def test_a_handler_of_all_http_exceptions_does_not_replace_a_refusal(limits: Limits) -> None:
    app = app_with(limits("1/minute"))
    app.exception_handler(StarletteHTTPException)(lambda request, error: PlainTextResponse("no", error.status_code))
    ask(app)
    assert ask(app).headers["content-type"] == "application/problem+json"
    assert ask(app, "/nothing").text == "no"


def test_a_handler_can_send_the_usual_response_and_the_response_can_be_customized(limits: Limits) -> None:
    decisions: list[Decision | None] = []
    app = app_with(limits("1/minute"))

    @app.exception_handler(RateLimitExceeded)
    async def record(request: Request, refused: RateLimitExceeded) -> Response:
        decisions.append(refused.decision)
        return refused.response()

    ask(app)
    assert ask(app).headers["content-type"] == "application/problem+json"
    assert decisions and decisions[0] is not None and not decisions[0].allowed

    def page(request: Any, decision: Decision, usual: Refusal) -> Refusal:
        return Refusal(503, [("Content-Type", "text/html"), ("Retry-After", "7")], b"<p>slow down</p>")

    customized = app_with(limits("1/hour", refusal=page))
    ask(customized)
    refused = ask(customized)
    assert (refused.status_code, refused.text, refused.headers["Retry-After"]) == (503, "<p>slow down</p>", "7")
    assert refused.headers["content-type"] == "text/html"


@pytest.mark.parametrize("body", [b"", b"slow down", b"[]", b'{"detail":7}', b"\xff"])
def test_a_refusal_may_keep_the_headers_of_a_problem_and_have_another_body(limits: Limits, body: bytes) -> None:
    details: list[str] = []
    app = app_with(limits("1/minute", refusal=lambda request, decision, usual: usual._replace(body=body)))

    @app.exception_handler(RateLimitExceeded)
    async def record(request: Request, refused: RateLimitExceeded) -> Response:
        details.append(refused.detail)
        return refused.response()

    ask(app)
    refused = ask(app)
    assert (refused.status_code, refused.content, refused.headers["Retry-After"]) == (429, body, "60")
    assert details == ["Too Many Requests"]


def test_a_store_that_fails_never_causes_a_429() -> None:
    response = ask(app_with(rate_limit("1/minute", store=BrokenStore())))
    assert (response.status_code, response.headers["X-RateLimit-Degraded"]) == (200, "open")
    closed = ask(app_with(rate_limit("1/minute", store=BrokenStore(), on_store_error="closed")))
    assert (closed.status_code, closed.headers["X-RateLimit-Degraded"]) == (503, "closed")
    assert closed.headers["content-type"] == "application/problem+json"


def test_without_redis_the_option_chooses_the_status() -> None:
    for choice, status in (("open", 200), ("closed", 503)):
        options: Any = {"store": NO_REDIS, "on_store_error": choice}
        response = ask(app_with(rate_limit("1/minute", **options)))
        assert (response.status_code, response.headers["X-RateLimit-Degraded"]) == (status, choice)


def test_an_allowed_response_has_the_fields_without_further_configuration(limits: Limits) -> None:
    response = ask(app_with(limits("5/minute")))
    [(name, parameters)] = parse_list(response.headers["RateLimit"])
    assert (name, parameters["r"]) == ("default", 4)


def various(limits: RateLimits) -> FastAPI:
    """All kinds of responses."""
    app = FastAPI(
        dependencies=[Depends(limits("50/hour", name="wide")), Depends(limits("40/minute", headers="x-delta"))]
    )
    router = APIRouter(dependencies=[Depends(limits("9/minute", name="narrow"))])

    @router.get("/value")
    async def value(response: Response) -> dict[str, str]:
        response.headers["X-Own"] = "yes"
        return {}

    @router.get("/response")
    def response() -> Response:
        return PlainTextResponse("mine", headers={"X-Own": "yes"})

    @router.get("/own")
    def own() -> Response:
        return PlainTextResponse("mine", headers={"RateLimit": '"mine";r=1'})

    @router.get("/missing")
    async def missing() -> None:
        raise HTTPException(404, headers={"X-Own": "yes"})

    @router.get("/handled")
    async def handled() -> None:
        raise KeyError("x")

    @router.get("/broken")
    async def broken() -> None:
        raise RuntimeError("broken")

    @router.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for part in (b"one ", b"two ", b"three"):
                yield part

        return StreamingResponse(parts())

    app.include_router(router)
    app.exception_handler(KeyError)(lambda request, error: PlainTextResponse("handled", 400))
    return app


def test_every_response_has_the_fields_once_and_those_of_the_route_before_those_of_the_middleware(
    limits: Limits,
) -> None:
    app = various(limits)
    app.add_middleware(RateLimitHeaders)
    app.add_middleware(RateLimitMiddleware, limits="1000/day", clock=limits.clock)
    for path in ("/value", "/response", "/missing", "/handled", "/stream"):
        response = ask(app, path)
        for name in ("RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining"):
            assert len(response.headers.get_list(name)) == 1, (path, name)
        assert '"narrow"' in response.headers["RateLimit"], path
    assert ask(app, "/own").headers.get_list("RateLimit") == ['"mine";r=1'], "the application's own fields stay"
    assert ask(app, "/stream").text == "one two three"
    assert ask(app, "/response").headers["X-Own"] == "yes"


def test_a_stream_begins_once(limits: Limits) -> None:
    app = various(limits)
    app.add_middleware(RateLimitHeaders)
    sent = drive(app, "/stream")
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * 4]


def test_the_middleware_around_the_whole_application_adds_fields_to_errors_too(limits: Limits) -> None:
    response = ask(RateLimitHeaders(various(limits)), "/broken")
    assert response.status_code == 500
    assert '"narrow";r=8' in response.headers["RateLimit"]


def test_a_refusal_has_no_fields_of_limits_that_allowed_the_request(limits: Limits) -> None:
    app = app_with(limits("1/minute", name="narrow"), dependencies=[Depends(limits("9/minute", headers="x-delta"))])
    limits.install(app)
    ask(app)
    refused = ask(app)
    assert refused.status_code == 429
    assert "X-RateLimit-Remaining" not in refused.headers, "what it was charged is given back"


# Requests that count by their response


def login(limits: RateLimits) -> FastAPI:
    failed = limits("2/minute", counts=lambda request, response: response.status == 401)

    async def check(password: str) -> Response:
        if password == "none":
            raise KeyError(password)
        if password != "right":
            raise HTTPException(401)
        return PlainTextResponse("welcome")

    app = app_with(failed, endpoint=check)
    app.exception_handler(KeyError)(lambda request, error: PlainTextResponse("handled", 401))
    return app


def test_the_response_can_decide_whether_a_request_counts(limits: Limits) -> None:
    app = login(limits)
    app.add_middleware(RateLimitHeaders)
    right, wrong, none = "/?password=right", "/?password=wrong", "/?password=none"
    assert statuses(app, right, right, right, wrong, right, none, right) == [200, 200, 200, 401, 200, 401, 429]


def test_counts_without_the_middleware_raises_and_names_the_line_to_add(limits: Limits) -> None:
    with pytest.raises(ConfigError, match=r"app\.add_middleware\(RateLimitHeaders\)"):
        drive(login(limits), "/")


# OpenAPI and the lifespan


def test_openapi_skips_routes_that_are_hidden_or_have_no_methods(limits: Limits) -> None:
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()

    limit = limits("9/minute")
    app = FastAPI(dependencies=[Depends(limit)])
    inner = FastAPI()
    inner.websocket("/talk", dependencies=[Depends(limit)])(talk)
    router = APIRouter(prefix="/r", dependencies=[Depends(limit)])
    for routes in (app, router):
        routes.get("/x")(read)
        routes.websocket("/talk")(talk)
        routes.websocket("/x")(talk)
        routes.get("/hidden", include_in_schema=False)(read)
        routes.post("/hidden")(read)
    app.include_router(router)
    app.mount("/inner", inner)
    app.router.routes.append(WebSocketRoute("/plain", talk))
    app.router.routes.append(Host("{shop}.example.net", app=inner))
    app.router.routes.append(Mount("/mount", routes=[Route("/x", read), WebSocketRoute("/talk", talk)]))
    limits.install(app)
    response = ask(app, "/openapi.json")
    assert response.status_code == 200
    documented = {
        f"{method} {path}"
        for path, operations in response.json()["paths"].items()
        for method, operation in operations.items()
        if "429" in operation["responses"]
    }
    assert documented == {"get /x", "post /hidden", "get /r/x", "post /r/hidden"}


def test_openapi_documents_429_where_the_application_adds_it(limits: Limits) -> None:
    app = FastAPI(responses=limits.responses)
    app.get("/x", dependencies=[Depends(limits("1/minute"))])(read)
    check_documented(app.openapi()["paths"]["/x"]["get"]["responses"]["429"])
    plain = app_with(limits("1/minute"))
    assert "429" not in plain.openapi()["paths"]["/"]["get"]["responses"]


def check_documented(documented: Any, *names: str) -> None:
    assert set(documented["headers"]) == {"Retry-After", *(names or ("RateLimit", "RateLimit-Policy"))}
    schema = documented["content"]["application/problem+json"]["schema"]
    assert {"type", "title", "status", "detail", "violated-policies"} <= set(schema["properties"])


def test_an_application_with_installed_limits_documents_429_of_all_limited_routes(limits: Limits) -> None:
    app = FastAPI()
    app.include_router(api(limits), prefix="/api")
    app.post("/other", dependencies=[Depends(limits("1/minute", headers="x-delta"))])(read)
    app.get("/free")(read)
    app.get("/own", dependencies=[Depends(limits("1/minute"))], responses={429: {"description": "mine"}})(read)
    app.get("/exempt", dependencies=[Depends(limits("1/minute"))])(exempt(lambda: None))
    app.get("/hidden", dependencies=[Depends(limits("1/minute"))], include_in_schema=False)(read)
    limits.install(app)
    for _ in range(2):
        paths = ask(app, "/openapi.json").json()["paths"]
        check_documented(paths["/api/v1/items/{item_id}"]["get"]["responses"]["429"])
        named = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
        check_documented(paths["/other"]["post"]["responses"]["429"], *named)
        assert paths["/own"]["get"]["responses"]["429"] == {"description": "mine"}
        assert "429" not in paths["/free"]["get"]["responses"]
        assert "429" not in paths["/exempt"]["get"]["responses"]
        assert "/hidden" not in paths


def test_stores_that_were_opened_are_closed_with_the_lifespan(limits: Limits, monkeypatch: Any) -> None:
    closed: list[str] = []

    async def aclose() -> None:
        closed.append("closed")

    monkeypatch.setattr(limits, "aclose", aclose)
    app = app_with(limits("1/minute"))
    limits.install(app)
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        assert bool(closed) == (message["type"] == "lifespan.shutdown.complete")

    asyncio.run(app({"type": "lifespan", "state": {}}, receive, send))
    assert closed == ["closed"]


# Websockets


async def hello(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def socket_app(limits: RateLimits) -> FastAPI:
    app = FastAPI()
    router = APIRouter(prefix="/{room}", dependencies=[Depends(limits("1/minute"))])
    router.websocket("/socket")(hello)
    app.include_router(router, prefix="/chat")
    return app


def test_a_websocket_is_limited_before_it_is_accepted(limits: Limits) -> None:
    app = socket_app(limits)
    app.add_middleware(RateLimitHeaders)
    accepted, text, _ = drive(app, "/chat/1/socket", "websocket")
    assert (accepted["type"], text["text"]) == ("websocket.accept", "hello")
    assert b"ratelimit" in dict(accepted["headers"])
    [closed] = drive(app, "/chat/2/socket", "websocket")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1013)
    start, body = drive(app, "/chat/3/socket", "websocket", extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert b"quota-exceeded" in body["body"]
    assert set(limits.scopes) == {"WEBSOCKET /chat/{room}/socket"}


def test_a_websocket_that_was_accepted_before_is_closed(limits: Limits) -> None:
    async def first(websocket: WebSocket) -> None:
        await websocket.accept()

    app = FastAPI(dependencies=[Depends(first), Depends(limits("1/minute", cost=2))])

    @app.websocket("/socket")
    async def never(websocket: WebSocket) -> None:
        raise AssertionError

    accepted, closed = drive(app, "/socket", "websocket", extensions={"websocket.http.response": {}})
    assert (accepted["type"], closed["type"], closed["code"]) == ("websocket.accept", "websocket.close", 1013)


# The module


def test_every_version_of_fastapi_can_read_the_dependency() -> None:
    """No version of FastAPI resolves annotations that are text in a method of an object."""
    for parameter in inspect.signature(rate_limit("1/minute")).parameters.values():
        assert isinstance(parameter.annotation, type)


def test_only_an_application_is_installed(limits: Limits) -> None:
    with pytest.raises(ConfigError, match="takes the application, a FastAPI, not a value of type APIRouter"):
        limits.install(APIRouter())  # type: ignore[arg-type]


def test_a_missing_fastapi_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "headgate.integrations.fastapi")
    with pytest.raises(MissingExtraError, match=r"pip install 'headgate\[fastapi\]'"):
        importlib.import_module("headgate.integrations.fastapi")


@pytest.mark.parametrize("style", CALL_STYLES)
def test_the_limit_with_the_fewest_remaining_units_is_reported_also_that_of_a_decorator(style: str) -> None:
    limits = RateLimits(clock=ManualClock(), **options_of(style))
    app = FastAPI(dependencies=[Depends(limits("9/minute"))])
    limits.install(app)

    @app.get("/", dependencies=[Depends(limits("7/minute"))])
    @decorator("3/minute", clock=ManualClock())
    async def values(request: Request) -> dict[str, int]:
        return {"a": 1}

    responses = [ask(app) for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429]
    assert [parse_list(response.headers["RateLimit"])[0][1]["r"] for response in responses] == [2, 1, 0, 0]
    assert all(len(response.headers.get_list("RateLimit")) == 1 for response in responses)


@pytest.mark.parametrize("style", CALL_STYLES)
@pytest.mark.parametrize("installed", [True, False])
def test_a_request_of_an_application_to_itself_returns_no_charge_of_the_outer_request(
    style: str, installed: bool
) -> None:
    limits = RateLimits(clock=ManualClock(), **options_of(style))
    app = FastAPI()
    if installed:
        limits.install(app)

    @app.get("/inner", dependencies=[Depends(limits("2/minute"))])
    async def inner() -> None: ...

    @app.get("/batch", dependencies=[Depends(limits("3/minute"))])
    async def batch(request: Request) -> list[int]:
        inner_statuses: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                inner_statuses.append(message["status"])

        for _ in range(2):
            await app({**request.scope, "path": "/inner", "raw_path": b"/inner"}, request.receive, send)
        return inner_statuses

    responses = [ask(app, "/batch") for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429]
    assert [response.json() for response in responses[:3]] == [[200, 200], [429, 429], [429, 429]]
