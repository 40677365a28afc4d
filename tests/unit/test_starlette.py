"""Limits of Starlette routes, without a server."""

from __future__ import annotations

import asyncio
import gc
import importlib
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket

from asgi_requests import CALL_STYLES, ask, drive, options_of, record_scopes, statuses
from broken_store import NO_REDIS
from headgate import ConfigError, MemoryStore, MissingExtraError, StoreTimeout
from headgate import core as cores
from headgate.http.asgi import RateLimitMiddleware
from headgate.http.server.request_limits import RequestLimits
from headgate.integrations.starlette import RateLimitHeaders, RateLimits, RouteLimit, exempt, rate_limit
from headgate.testing import ManualClock


class Limits(RateLimits):
    """Limits on a manual clock, which record the scope under which each request was counted."""

    def __init__(self, scopes: list[str], **defaults: Any) -> None:
        self.clock = ManualClock()
        self.scopes = scopes
        super().__init__(clock=self.clock, **defaults)


@pytest.fixture(params=CALL_STYLES)
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Limits:
    return Limits(record_scopes(monkeypatch), **options_of(request.param))


async def read(request: Request) -> Response:
    return PlainTextResponse("read")


def app_with(endpoint: Any, path: str = "/", **options: Any) -> Starlette:
    return Starlette(routes=[Route(path, endpoint, **options)])


# Requests to one route template count together


def test_methods_of_a_class_count_together_however_a_client_spells_them(limits: Limits) -> None:
    class Items(HTTPEndpoint):
        @limits("1/hour")
        async def post(self, request: Request) -> Response:
            return PlainTextResponse("made")

        async def dispatch(self) -> None:  # as Starlette has it before 1.3
            response = await self.post(Request(self.scope, self.receive))
            await response(self.scope, self.receive, self.send)

    app = Starlette(routes=[Route("/", Items)])
    responses = [drive(app, "/", method=method)[0]["status"] for method in ("POST", "post", "pOsT", "POST")]
    assert responses == [200, 429, 429, 429]


def test_an_endpoint_counts_under_its_whole_template(limits: Limits) -> None:
    limited = limits("9/minute")(read)

    class Items(HTTPEndpoint):
        @limits("9/minute")
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("got")

        @limits("9/minute")
        def post(self, request: Request) -> Response:
            return PlainTextResponse("posted")

    inner = Starlette(routes=[Route("/items/{id:int}", limited, methods=["POST", "GET"]), Route("/class/{id}", Items)])
    app = Starlette(
        routes=[
            Route("/f/{p:path}", limited),
            Mount("/api", routes=[Mount("/v1", app=inner)]),
            Mount("/{tenant}/x", app=inner),
            Host("{shop}.example", app=Router([Mount("/host", app=inner)])),
        ]
    )
    scopes_by_path = {
        "/f/a/b": "GET /f/{p:path}",
        "/api/v1/items/7": "GET,POST /api/v1/items/{id:int}",
        "/api/v1/class/7": "GET /api/v1/class/{id}",
        "/acme/x/items/7": "GET,POST /{tenant}/x/items/{id:int}",
        "/host/items/7": "GET,POST {shop}.example/host/items/{id:int}",
    }
    assert statuses(app, *scopes_by_path) == [200] * len(scopes_by_path)
    assert limits.scopes == [*scopes_by_path.values()]
    limits.scopes.clear()
    assert statuses(app, *[f"/edge{path}" for path in scopes_by_path], root_path="/edge") == [200] * len(scopes_by_path)
    assert limits.scopes == [*scopes_by_path.values()]
    limits.scopes.clear()
    assert ask(app, "/api/v1/class/7", "POST").text == "posted"
    assert ask(app, "/api/v1/class/7", "HEAD").status_code == 200
    assert limits.scopes == ["POST /api/v1/class/{id}", "GET /api/v1/class/{id}"]


@pytest.mark.parametrize("peer", [("203.0.113.9", 1), ("2001:db8::7", 1), ["203.0.113.9", 1], ("", 0), None])
def test_both_call_styles_count_the_same_keys(peer: Any) -> None:
    clock, store = ManualClock(), MemoryStore()
    option_sets: list[dict[str, Any]] = [{}, {"scope": "all"}, {"scope": ""}]
    for options in option_sets:
        apps = [
            app_with(RateLimits(clock=clock, store=store, **options_of(style))("9/minute", name="x", **options)(read))
            for style in CALL_STYLES
        ]
        fields = [dict(drive(app, "/", client=peer)[0]["headers"])[b"ratelimit"] for app in apps * 2]
        assert [re.match(rb'"x";r=(\d)', field)[1] for field in fields] == [b"8", b"7", b"6", b"5"]  # type: ignore[index]


@pytest.mark.skipif(cores.native is None, reason="there is no native call")
@pytest.mark.parametrize("choice", ["open", "closed"])
def test_a_native_call_that_fails_is_not_repeated(choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = []

    def time_out(scope: Any, template: str) -> Any:
        templates.append(template)
        raise StoreTimeout("another process holds the shard")

    gate = SimpleNamespace(decide=None, decide_route=time_out)
    monkeypatch.setattr(RequestLimits, "web_gate", lambda self, kind, writes_fields, websockets: gate)
    monkeypatch.setattr(
        RequestLimits, "_decide", lambda self, request: pytest.fail("the limit is checked a second time")
    )
    response = ask(app_with(RateLimits()("1/minute", on_store_error=choice)(read)))
    assert response.status_code == (200 if choice == "open" else 503)
    assert response.headers["X-RateLimit-Degraded"] == choice
    assert templates == ["GET /"]


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503)])
def test_without_redis_the_option_chooses_the_status(choice: Any, status: int) -> None:
    response = ask(app_with(RateLimits(store=NO_REDIS)("1/minute", on_store_error=choice)(read)))
    assert (response.status_code, response.headers["X-RateLimit-Degraded"]) == (status, choice)


def test_requests_leave_nothing_for_the_garbage_collector(limits: Limits) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        pass

    async def garbage(app: Any) -> int:
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "root_path": ""}
        gc.collect()
        for _ in range(100):
            await app({**scope, "client": ("203.0.113.9", 1)}, receive, send)
        return gc.collect()

    limited = app_with(limits("1000/minute")(limits("2000/minute", key=lambda request: "all")(read)))
    asyncio.run(garbage(limited))  # creates what is created once
    gc.disable()
    gc.freeze()
    try:
        # Garbage of requests is found in each round, garbage of other threads of the process is not.
        assert min(asyncio.run(garbage(limited)) for _ in range(5)) <= 50
    finally:
        gc.unfreeze()
        gc.enable()


def test_concrete_paths_are_no_keys(limits: Limits) -> None:
    app = app_with(limits("2/minute")(read), "/u/{user}")
    assert statuses(app, "/u/1", "/u/2", "/u/3") == [200, 200, 429]


def test_a_limit_before_a_mount_counts_each_route_and_requests_without_a_route(limits: Limits) -> None:
    class Counter(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("got")

    @exempt
    async def health(request: Request) -> Response:
        return PlainTextResponse("well")

    middleware = [Middleware(RouteLimit, limits="2/minute", rate_limits=limits)]
    routes = [Route("/a/{id}", read), Route("/class", Counter), Route("/health", health)]
    app = Starlette(routes=[Mount("/{tenant}", routes=routes, middleware=middleware)])
    assert statuses(app, "/t/a/1", "/t/a/2", "/t/a/3") == [200, 200, 429]
    assert statuses(app, "/t/nothing", "/t/else", "/other/nothing") == [404, 404, 429]
    assert [ask(app, "/t/class", method).status_code for method in ("X1", "X2", "GET")] == [405, 405, 429]
    assert statuses(app, *["/t/health"] * 3) == [200] * 3
    assert set(limits.scopes) == {"GET /{tenant}/a/{id}", "/{tenant}/{path:path}", "/{tenant}/class"}


@pytest.mark.parametrize("placement", ["before the route", "before the application"])
def test_a_limit_does_not_count_the_exempt_methods_of_a_class(limits: Limits, placement: str) -> None:
    class Status(HTTPEndpoint):
        @exempt
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("well")

        async def post(self, request: Request) -> Response:
            return PlainTextResponse("posted")

    limited = [Middleware(RouteLimit, limits="1/minute", rate_limits=limits)]
    on_route = placement == "before the route"
    routes = [Route("/", Status, middleware=limited if on_route else None)]
    app = Starlette(routes=routes, middleware=None if on_route else limited)
    assert [ask(app, "/", method).status_code for method in ("GET", "GET", "HEAD", "HEAD")] == [200] * 4
    assert [ask(app, "/", method).status_code for method in ("POST", "POST", "GET")] == [200, 429, 200]


def test_a_limit_before_an_application_counts_all_of_its_routes(limits: Limits) -> None:
    app = Starlette(
        routes=[Route("/a/{id}", read), Mount("/m", routes=[Route("/b", read)])],
        middleware=[Middleware(RouteLimit, limits="1/minute", rate_limits=limits)],
    )
    assert statuses(app, "/a/1", "/a/2", "/m/b", "/m/b", "/nothing", "/m/nothing") == [200, 429, 200, 429, 404, 404]
    assert statuses(app, "/else", method="POST") == [429]


def test_a_limit_before_a_route_counts_under_that_route(limits: Limits) -> None:
    app = app_with(read, "/a/{id}", middleware=[Middleware(RouteLimit, limits="1/minute", rate_limits=limits)])
    assert statuses(app, "/a/1", "/a/2") == [200, 429]
    assert limits.scopes == ["GET /a/{id}"] * 2
    default = app_with(
        read, middleware=[Middleware(RouteLimit, limits="1/minute", clock=ManualClock(), scope=repr(limits))]
    )
    assert statuses(default, "/", "/") == [200, 429]


# Endpoints of all kinds


def test_plain_functions_run_in_their_threads(limits: Limits) -> None:
    @limits("1/minute")
    def endpoint(request: Request) -> Response:
        return JSONResponse(threading.current_thread() is threading.main_thread())

    app = app_with(endpoint)
    assert [ask(app).text, ask(app).status_code] == ["false", 429]


def test_a_class_is_limited_by_its_methods_or_its_route(limits: Limits) -> None:
    with pytest.raises(ConfigError, match="Items is a class: limit its methods, or its route"):

        @limits("1/minute")
        class Items(HTTPEndpoint):
            pass

    with pytest.raises(ConfigError, match="receives a request or a websocket"):
        asyncio.run(limits("1/minute")(read)("nothing"))


def test_a_limited_endpoint_keeps_its_name_and_its_marks(limits: Limits) -> None:
    assert limits("1/minute")(read).__name__ == "read"
    app = app_with(partial(limits("1/minute")(read)))
    assert statuses(app, "/", "/") == [200, 429]

    class Called:
        async def __call__(self, request: Request) -> Response:
            return PlainTextResponse("called")

    assert ask(app_with(limits("1/minute")(Called()), "/called"), "/called").text == "called"


def converse(app: Any, *texts: str, disconnects: bool = True) -> list[dict[str, Any]]:
    """The messages that an application sends to a client that sends these texts, then disconnects or waits."""
    incoming: list[dict[str, Any]] = [{"type": "websocket.receive", "text": text} for text in texts]
    incoming = [
        {"type": "websocket.connect"},
        *incoming,
        *[{"type": "websocket.disconnect", "code": 1000}] * disconnects,
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        assert incoming, "the client sends nothing more: this would wait forever"
        return incoming.pop(0) if sent[-1:] != [CLOSED] else {"type": "websocket.disconnect", "code": 1013}

    async def send(message: dict[str, Any]) -> None:
        assert message != CLOSED or message not in sent, "the websocket is closed once"
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "client": ("203.0.113.9", 1)}
    asyncio.run(app(scope, receive, send))
    return sent


CLOSED = {"type": "websocket.close", "code": 1013, "reason": "over the limit"}


def test_a_websocket_that_is_open_is_closed_by_the_limit_of_its_messages(limits: Limits) -> None:
    close_codes: list[int] = []

    class Echo(WebSocketEndpoint):
        encoding = "text"

        @limits("2/minute", scope="messages")
        async def on_receive(self, websocket: WebSocket, data: str) -> None:
            await websocket.send_text(data)

        @limits("1/minute", scope="ends")
        async def on_disconnect(self, websocket: WebSocket, code: int) -> None:
            close_codes.append(code)

    app = Starlette(routes=[WebSocketRoute("/", Echo)])
    assert [message.get("text", message) for message in converse(app, "a", "b", "c", "d")][1:] == ["a", "b", CLOSED]
    assert [message["type"] for message in converse(app)] == ["websocket.accept"]
    assert close_codes == [1013], "a client that has disconnected receives no close message"


def test_a_websocket_whose_handshake_was_received_is_closed(limits: Limits) -> None:
    @limits("1/minute")
    async def hello(websocket: WebSocket) -> None:
        await websocket.accept()

    async def receive_first(websocket: WebSocket) -> None:
        await websocket.receive()
        await hello(websocket)

    app = Starlette(routes=[WebSocketRoute("/", receive_first)])
    assert [message["type"] for message in converse(app, disconnects=False)] == ["websocket.accept"]
    assert converse(app, disconnects=False) == [CLOSED]


def test_a_websocket_is_limited_before_it_is_accepted(limits: Limits) -> None:
    @limits("1/minute")
    async def hello(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    app = Starlette(routes=[WebSocketRoute("/{room}", hello)])
    assert drive(app, "/1", "websocket")[0]["type"] == "websocket.accept"
    [closed] = drive(app, "/2", "websocket")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1013)
    start, body = drive(app, "/3", "websocket", extensions={"websocket.http.response": {}})
    assert (start["status"], b"quota-exceeded" in body["body"]) == (429, True)
    assert set(limits.scopes) == {"WEBSOCKET /{room}"}

    async def free(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    middleware = [Middleware(RouteLimit, limits="1/minute", rate_limits=limits)]
    wide = Starlette(routes=[Mount("/m", routes=[WebSocketRoute("/{room}", free)], middleware=middleware)])
    accepted, _ = drive(wide, "/m/1", "websocket")
    assert b"ratelimit" in dict(accepted["headers"])
    assert drive(wide, "/m/2", "websocket")[0]["type"] == "websocket.close"


# Responses


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_refusal_is_byte_by_byte_the_one_of_the_middleware(limits: Limits, method: str) -> None:
    behind = RateLimitMiddleware(app_with(read), limits="1/minute", clock=limits.clock)
    before = app_with(read, middleware=[Middleware(RouteLimit, limits="1/minute", rate_limits=limits)])
    for app in (app_with(limits("1/minute", name="default")(read)), before):
        drive(app, "/")
        drive(behind, "/")
        refused, expected = drive(app, "/", method=method), drive(behind, "/", method=method)
        assert [message["type"] for message in refused] == ["http.response.start", "http.response.body"]
        assert refused[0]["headers"] == expected[0]["headers"]
        assert refused[0]["status"] == 429 and refused[1]["body"] == expected[1]["body"]


def various(limits: RateLimits) -> Starlette:
    """All kinds of responses."""
    same = PlainTextResponse("the same each time")
    limited = limits("50/minute")

    @limited
    async def stream(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for part in (b"one ", b"two ", b"three"):
                yield part

        return StreamingResponse(parts())

    @limited
    async def missing(request: Request) -> Response:
        raise HTTPException(404)

    @limited
    def own(request: Request) -> Response:
        return PlainTextResponse("mine", headers={"RateLimit": '"mine";r=1'})

    @limited
    async def application(request: Request) -> Any:
        return PlainTextResponse("another").__call__

    @limited
    async def constant(request: Request) -> Response:
        return same

    endpoints = (stream, missing, own, application, constant)
    return Starlette(routes=[Route(f"/{endpoint.__name__}", endpoint) for endpoint in endpoints])


def test_every_response_has_the_fields_once(limits: Limits) -> None:
    bare, watched = various(limits), various(limits)
    watched.add_middleware(RateLimitHeaders)
    for app in (bare, watched, RateLimitMiddleware(watched, limits="100/minute")):
        for path in ("/stream", "/own", "/application", "/constant", "/constant"):
            response = ask(app, path)
            assert len(response.headers.get_list("RateLimit")) == 1, path
            assert len(response.headers.get_list("RateLimit-Policy")) == 1, path
        assert ask(app, "/own").headers["RateLimit"] == '"mine";r=1', "the application's own fields stay"
        assert ask(app, "/stream").text == "one two three"
    assert "RateLimit" in ask(watched, "/missing").headers
    assert [message["type"] for message in drive(bare, "/stream")].count("http.response.start") == 1


def test_a_response_object_that_is_returned_again_has_current_fields(limits: Limits) -> None:
    app = various(limits)
    remaining = [ask(app, "/constant").headers["RateLimit"].split(";")[1] for _ in range(2)]
    assert remaining == ["r=49", "r=48"]


def test_fields_are_added_in_place_only_to_a_response_without_other_references(limits: Limits) -> None:
    stored: list[Response] = []
    common = [(b"x-own", b"1")]
    policy_counts: list[int] = []

    def with_common_headers() -> Response:
        response = PlainTextResponse("common")
        response.raw_headers = common
        return response

    def with_view() -> Response:
        response = PlainTextResponse("view")
        response.headers["X-Own"] = "1"
        return response

    def store_response() -> Response:
        stored.append(PlainTextResponse("kept", headers={"X-Own": "1"}))
        return stored[-1]

    factories: dict[str, Callable[[], Response]] = {
        "fresh": lambda: PlainTextResponse("fresh", headers={"X-Own": "1"}),
        "kept": store_response,
        "again": lambda: stored[0],
        "common": with_common_headers,
        "view": with_view,
        "told": lambda: PlainTextResponse("told", headers={"X-Own": "1", "RateLimit": '"mine";r=1'}),
        "json": lambda: JSONResponse(["fresh"], headers={"X-Own": "1"}),
    }

    @limits("90/minute")
    async def endpoint(request: Request) -> Response:
        return factories[request.query_params["way"]]()

    async def outer(request: Request) -> Response:
        response: Response = await endpoint(request)
        policy_counts.append(sum(name == b"ratelimit-policy" for name, _ in response.raw_headers))
        return response

    app = Starlette(routes=[Route("/", endpoint), Route("/outer", outer)])
    remaining_units = {"/": 90, "/outer": 90}
    for path in ("/", "/outer", "/", "/outer"):
        for factory in factories:
            remaining_units[path] -= 1
            response = ask(app, f"{path}?way={factory}")
            policies, remaining = (response.headers.get_list(name) for name in ("RateLimit-Policy", "RateLimit"))
            assert len(policies) == 1, factory
            assert [field.split(";")[1] for field in remaining] == [
                "r=1" if factory == "told" else f"r={remaining_units[path]}"
            ], factory
            assert response.headers.get_list("X-Own") == ["1"], factory
    assert set(policy_counts) == {1}
    assert common == [(b"x-own", b"1")]
    assert all(set(response.headers) == {"x-own", "content-length", "content-type"} for response in stored)


def test_a_response_with_a_weak_reference_is_not_changed(limits: Limits) -> None:
    cache: WeakValueDictionary[str, Response] = WeakValueDictionary()
    remaining: list[list[str]] = []

    @limits("9/minute")
    async def endpoint(request: Request) -> Response:
        page: Response | None = cache.get("page")
        if page is None:
            page = cache["page"] = PlainTextResponse("page", headers={"X-Own": "1"})
        return page

    async def twice(request: Request) -> Response:
        first: Response = await endpoint(request)
        assert "page" not in cache or "RateLimit" not in cache["page"].headers
        second: Response = await endpoint(request)
        remaining.extend(response.headers.getlist("RateLimit") for response in (first, second))
        return first

    app = app_with(twice)
    for _ in range(2):
        ask(app)
    assert [[field.split(";")[1] for field in each] for each in remaining] == [["r=8"], ["r=7"], ["r=6"], ["r=5"]]


@pytest.mark.skipif(cores.native is None, reason="the native core adds fields in place")
def test_fields_are_added_in_place_to_a_new_response_of_a_known_class() -> None:
    class Own(PlainTextResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)

    kinds: dict[str, Callable[[], Response]] = {
        "own": lambda: Own("x"),
        "html": lambda: HTMLResponse("x"),
        "text": lambda: PlainTextResponse("x"),
        "json": lambda: JSONResponse({}),
    }
    response_ids: list[int] = []
    has_route: list[bool] = []

    @RateLimits()("90/minute")
    async def endpoint(request: Request) -> Response:
        response = kinds[request.query_params["kind"]]()
        response_ids.append(id(response))
        return response

    async def outer(request: Request) -> Response:
        response: Response = await endpoint(request)
        response_ids.append(id(response))
        has_route.append("route" in request.scope)
        return response

    app = app_with(outer)
    for kind in (*kinds, *kinds):
        response_ids.clear()
        assert "RateLimit" in ask(app, f"/?kind={kind}").headers
        # An older Starlette has no route in the scope, so there is no native call.
        assert (response_ids[0] == response_ids[1]) is (kind != "own" and has_route[0]), kind


def test_cookies_and_background_tasks_of_a_response_are_kept(limits: Limits) -> None:
    done: list[str] = []

    @limits("5/minute")
    async def endpoint(request: Request) -> Response:
        response = PlainTextResponse("x", background=BackgroundTask(done.append, "background"))
        response.set_cookie("a", "b")
        return response

    async def outer(request: Request) -> Response:
        response: Response = await endpoint(request)
        assert isinstance(response, Response) and response.status_code == 200
        response.headers["X-Outer"] = "yes"
        return response

    response = ask(app_with(outer))
    assert done == ["background"]
    assert (response.headers["X-Outer"], response.cookies["a"]) == ("yes", "b")
    assert "RateLimit" in response.headers


def test_several_limits_of_one_endpoint_are_checked_from_the_outside_in(limits: Limits) -> None:
    outer, inner = limits("9/minute", headers="x-delta"), limits("1/minute", name="inner")
    bare = app_with(outer(inner(read)))
    wrapped = app_with(
        inner(read), middleware=[Middleware(RouteLimit, limits="9/minute", rate_limits=limits, headers="x-delta")]
    )
    for app in (bare, wrapped):
        limits.clock.advance(120_000_000)
        allowed, refused = ask(app), ask(app)
        assert allowed.headers["X-RateLimit-Remaining"] and allowed.headers["RateLimit"]
        assert refused.json()["violated-policies"] == ["inner"]
        assert "X-RateLimit-Remaining" not in refused.headers, "the charge of the outer limit is returned"


def test_a_fallback_responds_to_a_refused_request(limits: Limits) -> None:
    def cached(request: Request) -> Response:
        return PlainTextResponse("from a cache", headers={"Content-Type": "text/x"})

    decorated = app_with(limits("1/minute", fallback=cached)(read))
    wrapped = app_with(read, middleware=[
        Middleware(RouteLimit, limits="1/hour", rate_limits=limits, fallback=PlainTextResponse("from a cache"))
    ])  # fmt: skip
    for app in (decorated, wrapped):
        assert ask(app).text == "read"
        response = ask(app)
        assert (response.status_code, response.text) == (200, "from a cache")
        assert int(response.headers["Retry-After"]) > 0
        assert response.headers["content-type"].startswith("text/")


# Requests that count by their response


def test_the_response_can_decide_whether_a_request_counts(limits: Limits) -> None:
    async def login(request: Request) -> Response:
        match request.query_params["password"]:
            case "right":
                return PlainTextResponse("welcome")
            case "stream":
                return StreamingResponse(iter([b"12", b"345"]))
            case "raised":
                raise HTTPException(401)
        return PlainTextResponse("no", 401)

    def failed(request: Any, response: Any) -> bool:
        return bool(response.status == 401 or response.body_bytes == 5)

    option: Any = {"counts": failed, "clock": limits.clock}
    watched = app_with(limits("3/minute", **option)(login), "/c")
    watched.add_middleware(RateLimitHeaders)
    wrapped = app_with(
        login, "/b", middleware=[Middleware(RouteLimit, limits="3/minute", rate_limits=limits, **option)]
    )
    passwords = ["right", "right", "wrong", "right", "raised", "right", "stream", "right"]
    for path, app in (("/a", app_with(limits("3/minute", **option)(login), "/a")), ("/b", wrapped), ("/c", watched)):
        received_statuses = statuses(app, *[f"{path}?password={password}" for password in passwords])
        assert received_statuses == [200, 200, 401, 200, 401, 200, 200, 429], path


def test_a_request_that_a_narrower_limit_refuses_is_charged_in_none(limits: Limits) -> None:
    app = Starlette(
        routes=[Route("/narrow", limits("1/minute")(read)), Route("/other", read)],
        middleware=[Middleware(RouteLimit, limits="5/minute", rate_limits=limits, name="wide", scope="all")],
    )
    assert statuses(app, *["/narrow"] * 5) == [200, 429, 429, 429, 429]
    assert statuses(app, *["/other"] * 5) == [200, 200, 200, 200, 429]


# The module


def test_stores_that_were_opened_are_warmed_up_and_closed_with_the_lifespan() -> None:
    calls: list[str] = []

    class Opened:
        async def warm_up(self) -> None:
            calls.append("warm")

        async def aclose(self) -> None:
            calls.append("closed")

    app = Starlette(middleware=[Middleware(RateLimitHeaders, rate_limits=Opened())])
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        assert ("closed" in calls) == (message["type"] == "lifespan.shutdown.complete")

    asyncio.run(app({"type": "lifespan", "state": {}}, receive, send))
    assert calls == ["warm", "closed"]
    asyncio.run(rate_limit.aclose())


@pytest.mark.parametrize("style", CALL_STYLES)
@pytest.mark.parametrize("limits", ["9/minute", "1 concurrent; 9/minute"])
def test_an_endpoint_that_returns_no_response_raises(style: str, limits: str) -> None:
    @rate_limit(limits, **options_of(style))
    async def values(request: Request) -> dict[str, int]:
        return {"a": 1}

    app: Any = Starlette(routes=[Route("/", values)])
    for _ in range(2):  # a request that failed is no longer in flight
        with pytest.raises(ConfigError, match=r"values is limited, so it returns a response .* not a dict; in FastAPI"):
            drive(app, "/")


def test_a_missing_starlette_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    for name in [name for name in sys.modules if name.startswith("starlette.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "headgate.integrations.starlette")
    with pytest.raises(MissingExtraError, match=r"pip install 'headgate\[starlette\]'"):
        importlib.import_module("headgate.integrations.starlette")


def test_a_method_of_a_class_and_the_limit_before_its_route_are_charged_together_or_not_at_all(limits: Limits) -> None:
    class Items(HTTPEndpoint):
        @limits("2/minute", name="method")
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("got")

        async def post(self, request: Request) -> Response:
            return PlainTextResponse("posted")

    before = Middleware(RouteLimit, limits="5/minute", rate_limits=limits, name="route")
    app = Starlette(routes=[Route("/items", Items, middleware=[before])])
    assert [ask(app, "/items").status_code for _ in range(4)] == [200, 200, 429, 429]
    assert '"route";r=2' in ask(app, "/items", "POST").headers["RateLimit"]


@pytest.mark.parametrize("placement", ["decorator", "route", "mount", "application"])
def test_a_request_of_an_application_to_itself_returns_no_charge_of_the_outer_request(
    limits: Limits, placement: str
) -> None:
    async def batch(request: Request) -> Response:
        inner_statuses = [
            await status_from(app, {**request.scope, "path": "/inner", "raw_path": b"/inner"}) for _ in range(2)
        ]
        return JSONResponse(inner_statuses)

    def limit(text: str) -> list[Middleware]:
        return [Middleware(RouteLimit, limits=text, rate_limits=limits)]

    if placement == "decorator":
        app = Starlette(routes=[Route("/inner", limits("2/minute")(read)), Route("/batch", limits("3/minute")(batch))])
    elif placement == "route":
        inner = Route("/inner", read, middleware=limit("2/minute"))
        app = Starlette(routes=[inner, Route("/batch", batch, middleware=limit("3/minute"))])
    elif placement == "mount":
        inner = Route("/inner", limits("2/minute")(read))
        app = Starlette(routes=[Mount("/", routes=[inner, Route("/batch", batch)], middleware=limit("9/minute"))])
    else:
        inner = Route("/inner", limits("2/minute")(read))
        app = Starlette(routes=[inner, Route("/batch", batch)], middleware=limit("9/minute"))
    allowed = 3 if placement in ("decorator", "route") else 9
    responses = [ask(app, "/batch") for _ in range(allowed + 1)]
    assert [response.status_code for response in responses] == [200] * allowed + [429]
    assert [response.json() for response in responses[:3]] == [[200, 200], [429, 429], [429, 429]]


async def status_from(app: Starlette, scope: Any) -> int:
    """The status of the response of an application to a scope."""
    statuses_sent: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses_sent.append(message["status"])

    await app(scope, receive, send)
    return statuses_sent[0]
