"""Limits on every layer of real Litestar applications, without a server."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from litestar import Controller, Litestar, Request, Response, Router, WebSocket, asgi, get, post, websocket
from litestar.config.cors import CORSConfig
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException, WebSocketDisconnect
from litestar.middleware import DefineMiddleware
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Stream
from litestar.static_files import create_static_files_router
from litestar.testing import TestClient

from broken_store import NO_REDIS, BrokenStore
from headgate import AsyncGate, ConfigError, Gate, MemoryStore, MissingExtraError
from headgate.decision import Decision
from headgate.http.asgi import RateLimitMiddleware
from headgate.http.keys import endpoint, header, portable
from headgate.http.server.options import Refusal
from headgate.http.server.options import Response as SentResponse
from headgate.integrations.litestar import EXEMPT, REFUSED, RateLimitPlugin, RateLimits, exempt, rate_limit
from headgate.policy.request import Request as PolicyRequest
from headgate.testing import ManualClock
from subjects import parse_list
from versions import FromPath

POLICY = {
    "version": 1,
    "identities": {"user": {"header": "X-User-Id"}},
    "rules": [
        {"name": "items", "match": {"path": "/api/items/{id}"}, "by": ["user"], "limits": "2/minute"},
    ],
}


@get("/")
async def read() -> str:
    return "read"


@get("/stream")
async def stream() -> Stream:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            yield part

    return Stream(parts())


@get("/own")
async def own_fields() -> Response[str]:
    return Response("own", headers={"RateLimit": '"mine";r=1'})


@get("/forbidden")
async def forbidden() -> None:
    raise PermissionDeniedException("not you")


@get("/crash")
async def crash() -> None:
    raise ValueError("a fault of the handler")


@get("/items/{item_id:int}")
async def item(item_id: FromPath[int]) -> str:
    return f"item {item_id}"


@websocket("/socket")
async def socket(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


def application(*handlers: Any, **options: Any) -> Litestar:
    chosen = handlers or (
        read, stream, own_fields, forbidden, crash, socket, Router("/api", route_handlers=[item]),
    )  # fmt: skip
    return Litestar([*chosen], **{"openapi_config": None, "logging_config": None, **options})


def limited(policy: Any = None, **options: Any) -> Litestar:
    """An application with limits for all of its requests."""
    if not isinstance(policy, AsyncGate):
        options.setdefault("clock", ManualClock())
    return application(plugins=[RateLimitPlugin(policy, **options)])


def responses_to(app: Any, *requests: dict[str, Any]) -> list[httpx.Response]:
    """Send requests one after another and return the responses; `client` is the address of a client."""

    async def send_request(
        path: str = "/", method: str = "GET", client: str = "203.0.113.9", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.ASGITransport(app, client=(client, 1234), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as session:
            return await session.request(method, path, headers=named)

    async def run() -> list[httpx.Response]:
        return [await send_request(**request) for request in requests]

    return asyncio.run(run())


def statuses(app: Any, *requests: dict[str, Any]) -> list[int]:
    return [response.status_code for response in responses_to(app, *requests)]


def has_once(response: httpx.Response, *names: str) -> bool:
    return all(len(response.headers.get_list(name)) == 1 for name in names)


def fresh_limits() -> RateLimits:
    return RateLimits(clock=ManualClock())


# Layers.


def test_a_limit_goes_on_every_layer_and_each_route_counts_by_itself() -> None:
    clock = ManualClock()

    def routes(limit: Any, layer: str) -> Litestar:
        def on(one: str) -> list[Any]:
            return [limit] if layer == one else []

        class Both(Controller):
            path = "/c"
            middleware = on("controller")

            @get("/a", middleware=on("handler"))
            async def one(self) -> str:
                return "a"

            @get("/b/{name:str}", middleware=on("handler"))
            async def other(self, name: FromPath[str]) -> str:
                return name

        router = Router("/api", route_handlers=[Both], middleware=on("router"))
        return application(router, middleware=on("application"))

    for layer in ("handler", "controller", "router", "application"):
        app = routes(RateLimits(clock=clock)("1/minute"), layer)
        paths = ["/api/c/a", "/api/c/b/x", "/api/c/b/y", "/api/c/a"]
        responses = responses_to(app, *[{"path": path} for path in paths])
        assert [response.status_code for response in responses] == [200, 200, 429, 429], layer
        assert all(has_once(response, "RateLimit", "RateLimit-Policy") for response in responses)


def test_methods_of_one_path_count_apart_and_a_scope_together() -> None:
    def app(**options: Any) -> Litestar:
        limits = fresh_limits()

        @get("/", middleware=[limits("1/minute", **options)])
        async def reading() -> str:
            return "read"

        @post("/", middleware=[limits("1/minute", **options)], status_code=200)
        async def writing() -> str:
            return "written"

        return application(reading, writing)

    requests = [{}, {"method": "POST"}, {}, {"method": "POST"}]
    assert statuses(app(), *requests) == [200, 200, 429, 429]
    assert statuses(app(scope="all"), *requests) == [200, 429, 429, 429]


def test_an_endpoint_is_the_whole_template_with_its_method() -> None:
    endpoints: list[str] = []
    limits = RateLimits(on_decision=portable(lambda request, decision: endpoints.append(request.endpoint)))

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"mounted"})

    one = asgi("/one", is_mount=True, copy_scope=True)(mounted)
    two = asgi(["/two", "/three"], is_mount=True, copy_scope=True)(mounted)
    inner = Router("/v1", route_handlers=[item, two])
    app = application(read, one, Router("/api", route_handlers=[inner]), middleware=[limits("99/minute")])
    paths = ["/", "/api/v1/items/7", "/api/v1/items/8", "/one", "/one/a/b", "/api/v1/two/x", "/api/v1/three/x"]
    assert statuses(app, *[{"path": path} for path in paths]) == [200] * 7
    assert endpoints == [
        "GET /", "GET /api/v1/items/{item_id}", "GET /api/v1/items/{item_id}", "/one", "/one", "/api/v1/two",
        "/api/v1/three",
    ]  # fmt: skip


def test_two_mounts_and_two_folders_of_files_do_not_share_a_limit(tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("a")
    limits = fresh_limits()
    folders = [
        create_static_files_router(path, directories=[tmp_path], middleware=[limits("1/minute")])
        for path in ("/static", "/media")
    ]
    requests = [{"path": path} for path in ("/static/a.txt", "/media/a.txt", "/static/a.txt")]
    assert statuses(application(*folders), *requests) == [200, 200, 429]


def test_limits_of_several_layers_apply_together_and_the_narrower_one_is_reported() -> None:
    limits = fresh_limits()

    @get("/", middleware=[limits("2/minute", name="own")])
    async def narrow() -> str:
        return "read"

    app = application(narrow, middleware=[limits("9/minute")])
    responses = responses_to(app, {}, {})
    assert [response.headers["RateLimit-Policy"] for response in responses] == ['"own";q=2;w=60'] * 2
    assert all(has_once(response, "RateLimit", "RateLimit-Policy") for response in responses)


def test_a_limit_that_overrides_replaces_those_of_outer_layers() -> None:
    limits = fresh_limits()

    @get("/", middleware=[limits("3/minute", override=True)])
    async def narrow() -> str:
        return "read"

    @get("/both", middleware=[limits("3/minute")])
    async def both() -> str:
        return "both"

    app = application(
        Router("/api", route_handlers=[narrow, both], middleware=[limits("1/minute")]),
        plugins=[RateLimitPlugin(limits="1/minute", rate_limits=limits)],
    )
    assert statuses(app, *[{"path": "/api"}] * 4) == [200, 200, 200, 429]
    assert statuses(app, {"path": "/api/both"}) == [200]


def test_a_limit_inside_of_an_override_applies_although_it_is_outside_of_it_too() -> None:
    limits = fresh_limits()
    once = limits("1/minute")

    @get("/both", middleware=[once])
    async def both() -> str:
        return "both"

    router = Router("/api", route_handlers=[both, read], middleware=[limits("2/minute", override=True)])
    app = application(router, middleware=[once])
    assert statuses(app, *[{"path": "/api/both"}] * 2) == [200, 429]
    assert statuses(app, *[{"path": "/api"}] * 3) == [200, 200, 429]


def test_exempt_handlers_are_not_limited() -> None:
    limits = fresh_limits()

    @get("/marked")
    @exempt
    async def marked() -> str:
        return "marked"

    @get("/told", opt=dict(EXEMPT))
    async def with_option() -> str:
        return "told"

    @exempt
    @get("/above")
    async def above() -> str:
        return "above"

    class Inside(Controller):
        path = "/inside"

        @exempt
        @get("/")
        async def above(self) -> str:
            return "above"

    @exempt
    class Whole(Controller):
        path = "/whole"

        @get("/")
        async def one(self) -> str:
            return "one"

    health = Router("/health", route_handlers=[read], opt=dict(EXEMPT))
    plugin = RateLimitPlugin(limits="1/minute", rate_limits=limits)
    app = application(
        marked, with_option, above, Inside, Whole, health, plugins=[plugin], middleware=[limits("1/minute")]
    )
    for path in ("/marked", "/told", "/above", "/inside", "/whole", "/health"):
        assert statuses(app, *[{"path": path}] * 3) == [200] * 3


# Responses.


@pytest.mark.parametrize("path", ["/", "/stream", "/own", "/forbidden", "/crash", "/nothing", "/api/items/1"])
def test_every_response_has_the_fields_once(path: str) -> None:
    [response] = responses_to(limited(limits="9/minute", headers=("draft-11", "x-delta")), {"path": path})
    assert has_once(response, "RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining")
    if path == "/own":
        assert response.headers["RateLimit"] == '"mine";r=1', "the handler's own fields stay"
    if path == "/stream":
        assert response.text == "one two three"
    if path == "/forbidden":
        assert (response.status_code, response.json()["detail"]) == (403, "not you")


def test_the_response_to_an_exception_of_a_middleware_has_the_fields() -> None:
    def authorised(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            raise NotAuthorizedException("who are you?", headers={"WWW-Authenticate": "Bearer"})

        return middleware

    app = application(read, middleware=[fresh_limits()("1/minute"), authorised])
    responses = responses_to(app, {}, {})
    assert [response.status_code for response in responses] == [401, 429]
    assert all(has_once(response, "RateLimit", "RateLimit-Policy") for response in responses)
    assert responses[0].headers["WWW-Authenticate"] == "Bearer"


def test_an_exception_object_that_a_middleware_raises_again_has_the_fields_of_each_client() -> None:
    unknown = NotAuthorizedException("who are you?")

    def authorised(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            raise unknown

        return middleware

    app = application(read, middleware=[fresh_limits()("3/minute"), authorised])
    responses = responses_to(app, {}, {}, {"client": "203.0.113.77"})
    assert [response.status_code for response in responses] == [401] * 3
    assert [parse_list(response.headers["RateLimit"])[0][1]["r"] for response in responses] == [2, 1, 2]
    assert not unknown.headers


def test_a_refusal_is_a_problem_document_with_the_exact_time_to_retry() -> None:
    clock = ManualClock()

    def handle(request: Request[Any, Any, Any], raised: Exception) -> Response[str]:
        raise AssertionError("a refusal is a response, not an exception")

    app = application(read, middleware=[RateLimits(clock=clock)("1/minute")], exception_handlers={429: handle})
    refused = responses_to(app, {}, {})[1]
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["content-length"]) == len(refused.content)
    assert (refused.json()["status"], refused.json()["violated-policies"]) == (429, ["default"])
    clock.advance(int(refused.headers["Retry-After"]) * 1_000_000 - 1_000_000)
    assert statuses(app, {}) == [429]
    clock.advance(1_000_000)
    assert statuses(app, {}) == [200]


def test_a_browser_page_of_another_origin_can_read_a_refusal() -> None:
    cors = CORSConfig(allow_origins=["https://a.example"])
    for path in ("/", "/nothing"):
        app = application(cors_config=cors, plugins=[RateLimitPlugin(limits="1/minute", clock=ManualClock())])
        refused = responses_to(app, *[{"path": path, "Origin": "https://a.example"}] * 2)[1]
        assert refused.status_code == 429
        assert refused.headers["access-control-allow-origin"] == "https://a.example"
        preflight = {"method": "OPTIONS", "Origin": "https://a.example", "Access_Control_Request_Method": "PUT"}
        assert all(status != 429 for status in statuses(app, *[{"path": path, **preflight}] * 3))


def test_a_fallback_responds_to_a_refused_request() -> None:
    async def stale(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"stale"})

    for app in (
        limited(limits="1/minute", fallback=stale),
        application(read, middleware=[fresh_limits()("1/minute", fallback=stale)]),
    ):
        first, second = responses_to(app, {}, {})
        assert (first.text, second.text, second.status_code) == ("read", "stale", 200)
        assert has_once(second, "Retry-After", "RateLimit", "content-type")


def test_the_response_to_a_refused_request_can_be_customized() -> None:
    def friendly(request: PolicyRequest, decision: Decision, usual: Refusal) -> Refusal:
        return Refusal(503, [("Retry-After", "7"), ("Content-Type", "text/html")], b"<p>slow down</p>")

    for path in ("/", "/nothing"):
        refused = responses_to(limited(limits="1/minute", refusal=friendly), {"path": path}, {"path": path})[1]
        assert (refused.status_code, refused.text, refused.headers["Retry-After"]) == (503, "<p>slow down</p>", "7")


def test_openapi_documents_the_refusal_of_a_limit() -> None:
    limits = fresh_limits()

    @get("/a", middleware=[limits("1/minute")])
    async def one() -> str:
        return "a"

    @get("/b", responses={429: ResponseSpec(None, description="our own word")}, middleware=[limits("1/minute")])
    async def own() -> str:
        return "b"

    @get("/c")
    async def free() -> str:
        return "c"

    @get("/d", responses={**REFUSED})
    async def documented() -> str:
        return "d"

    app = Litestar([one, own, free], plugins=[RateLimitPlugin(rate_limits=limits)], logging_config=None)
    schema = app.openapi_schema.to_schema()
    refused = schema["paths"]["/a"]["get"]["responses"]["429"]
    assert refused["description"] == "Too Many Requests"
    [(media, _)] = refused["content"].items()
    assert media == "application/problem+json"
    [problem] = [one for name, one in schema["components"]["schemas"].items() if name.endswith("Problem")]
    assert {"type", "title", "status", "detail", "violated-policies"} == set(problem["required"])
    assert schema["paths"]["/b"]["get"]["responses"]["429"]["description"] == "our own word"
    assert "429" not in schema["paths"]["/c"]["get"]["responses"]
    documented_schema = Litestar([documented], logging_config=None).openapi_schema.to_schema()
    assert "429" in documented_schema["paths"]["/d"]["get"]["responses"]
    plugin_schema = Litestar(
        [free], plugins=[RateLimitPlugin(limits="9/minute")], logging_config=None
    ).openapi_schema.to_schema()
    assert "429" in plugin_schema["paths"]["/c"]["get"]["responses"]


# Whole applications.


def test_limits_of_an_application_count_each_client_over_all_responses() -> None:
    paths = ["/", "/api/items/1", "/nothing", "/api/items/x", "/"]
    requests = [{"path": path} for path in paths]
    responses = responses_to(limited(limits="4/minute"), *requests, {"client": "203.0.113.10"})
    assert [response.status_code for response in responses] == [200, 200, 404, 404, 429, 200]
    remaining = [parse_list(response.headers["RateLimit"])[0][1]["r"] for response in responses]
    assert remaining == [3, 2, 1, 0, 0, 3]


def test_requests_without_a_route_are_refused_with_the_usual_response() -> None:
    app = limited(limits="2/minute")
    responses = responses_to(app, {"path": "/nothing"}, {"method": "DELETE"}, {"path": "/nothing"}, {})
    assert [response.status_code for response in responses] == [404, 405, 429, 429]
    assert responses[2].content == responses[3].content
    assert {name: responses[2].headers[name] for name in responses[3].headers} == dict(responses[3].headers)
    head = responses_to(app, {"path": "/nothing", "method": "HEAD"})[0]
    assert (head.status_code, head.content) == (429, b"") and int(head.headers["content-length"]) > 0


def test_a_scope_of_an_application_counts_each_route_by_itself() -> None:
    app = limited(limits="1/minute", scope=endpoint)
    requests = [{"path": path} for path in ("/", "/api/items/1", "/api/items/2", "/nothing", "/nothing/else")]
    assert statuses(app, *requests) == [200, 200, 429, 404, 429]


def test_a_policy_matches_the_whole_path_and_passes_paths_that_it_does_not_name() -> None:
    app = limited(POLICY)
    ann = {"X_User_Id": "ann"}
    assert statuses(app, *[{"path": f"/api/items/{number}", **ann} for number in range(3)]) == [200, 200, 429]
    assert statuses(app, {"path": "/api/%69tems/4", **ann}) == [429], "another spelling of the same path"
    [free] = responses_to(app, {})
    assert (free.status_code, "RateLimit" in free.headers) == (200, False)


def test_a_gate_is_used_and_not_closed() -> None:
    gate = AsyncGate(POLICY)
    with TestClient(limited(gate)) as client:
        responses = [client.get("/api/items/1", headers={"X-User-Id": "u"}) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert gate.stats().keys == 1
    with pytest.raises(ConfigError, match="this application needs a AsyncGate"):
        RateLimitPlugin(Gate(POLICY))  # type: ignore[arg-type]


def test_the_asgi_middleware_in_litestar_counts_each_route_apart_and_the_plugin_does_not() -> None:
    """The reason for the plugin: Litestar creates a middleware for each route, each with its own store."""
    plain: Any = RateLimitMiddleware
    apart = application(read, own_fields, middleware=[DefineMiddleware(plain, limits="1/minute")])
    assert statuses(apart, {}, {"path": "/own"}) == [200, 200]
    together = application(read, own_fields, plugins=[RateLimitPlugin(limits="1/minute")])
    assert statuses(together, {}, {"path": "/own"}) == [200, 429]


def test_functions_receive_the_request_of_litestar() -> None:
    def key(request: Any) -> str:
        assert isinstance(request, Request)
        return str(request.path_params.get("item_id", "none"))

    requests = [{"path": f"/api/items/{number}"} for number in (1, 1, 2)]
    assert statuses(limited(limits="1/minute", key=key), *requests) == [200, 429, 200]


def test_only_trusted_proxies_can_set_the_address_of_the_client() -> None:
    app = limited(limits="1/minute", trusted_proxies=["10.0.0.0/8"])
    requests = [{"client": "10.0.0.1", "X_Forwarded_For": f"{number}.1.1.1, 203.0.113.7"} for number in (1, 2)]
    assert statuses(app, *requests) == [200, 429]


def test_a_request_can_wait_for_units_and_a_queue_spaces_requests() -> None:
    cases: dict[str, dict[str, Any]] = {"60/minute bucket": {"wait": 61.0, "cost": 60}, "1/minute queue 5": {}}
    for limits, options in cases.items():
        clock = ManualClock()
        before = clock.now_us()
        assert statuses(limited(limits=limits, clock=clock, **options), {}, {}) == [200, 200]
        assert clock.now_us() - before == 60_000_000


def test_websockets_are_limited_on_their_own_route_and_by_the_plugin_if_that_is_chosen() -> None:
    limits = fresh_limits()

    @websocket("/socket", middleware=[limits("1/minute")])
    async def own(socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    refused_by = [application(own)]
    refused_by.append(application(plugins=[RateLimitPlugin(limits="1/minute", websockets=True, clock=ManualClock())]))
    for app in refused_by:
        with TestClient(app) as client:
            with client.websocket_connect("/socket") as session:
                assert session.receive_text() == "hello"
            with pytest.raises(WebSocketDisconnect) as refused, client.websocket_connect("/socket") as session:
                session.receive_text()
            assert refused.value.code == 1013
    with TestClient(limited(limits="1/minute")) as client:
        for _ in range(3):
            with client.websocket_connect("/socket") as session:
                assert session.receive_text() == "hello"


def test_a_store_that_fails_never_causes_a_429(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate"):
        for path, status in (("/", 200), ("/nothing", 404)):
            [passed] = responses_to(limited(limits="1/minute", store=BrokenStore()), {"path": path})
            [refused] = responses_to(
                limited(limits="1/minute", store=BrokenStore(), on_store_error="closed"), {"path": path}
            )
            assert (passed.status_code, passed.headers["X-RateLimit-Degraded"]) == (status, "open")
            assert (refused.status_code, refused.headers["X-RateLimit-Degraded"]) == (503, "closed")


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503)])
def test_without_redis_the_option_chooses_the_status(choice: Any, status: int) -> None:
    [response] = responses_to(limited(limits="1/minute", store=NO_REDIS, on_store_error=choice), {"path": "/"})
    assert (response.status_code, response.headers["X-RateLimit-Degraded"]) == (status, choice)


def test_stores_that_were_opened_here_are_closed_with_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[BrokenStore] = []

    def open_store(url: str) -> BrokenStore:
        opened.append(BrokenStore())
        return opened[-1]

    monkeypatch.setattr("headgate.http.server.routes.open_store", open_store)
    monkeypatch.setattr("headgate.http.server.request_limits.open_store", open_store)
    given = BrokenStore()
    limits = RateLimits(store="redis://a")
    app = application(
        read,
        middleware=[limits("1/minute"), limits("1/minute", store=given)],
        plugins=[RateLimitPlugin(limits="1/minute", store="redis://b", rate_limits=limits)],
    )
    with TestClient(app) as client:
        client.get("/")
    assert [store.closed for store in opened] == [1, 1] and given.closed == 0


def test_exactly_the_limit_passes_when_more_requests_arrive_at_once() -> None:
    app: Any = limited(limits="20/minute")

    async def run() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as session:
            responses = await asyncio.gather(*[session.get("/nothing" if n % 2 else "/") for n in range(60)])
            return [response.status_code for response in responses]

    statuses_of_all = asyncio.run(run())
    assert statuses_of_all.count(429) == 40 and statuses_of_all.count(200) + statuses_of_all.count(404) == 20


def test_a_head_is_sent_once_and_the_parts_of_a_stream_pass_one_by_one() -> None:
    sent: list[Any] = []
    ended = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            ended.set()

    async def receive() -> Any:
        await ended.wait()
        return {"type": "http.disconnect"}

    scope: Any = {
        "type": "http", "method": "GET", "path": "/stream", "raw_path": b"/stream", "query_string": b"", "headers": [],
        "client": ("203.0.113.9", 1), "root_path": "", "scheme": "http", "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(limited(limits="9/minute")(scope, receive, send))
    assert [message["type"] for message in sent].count("http.response.start") == 1
    assert [message["body"] for message in sent[1:] if message["body"]] == [b"one ", b"two ", b"three"]


class WaitingStore(MemoryStore):
    """A store that waits for I/O and only works in threads."""

    blocking = True


def test_a_store_that_would_block_the_event_loop_is_told_at_once() -> None:
    for create in (
        lambda store: rate_limit("1/minute", store=store),
        lambda store: RateLimitPlugin(limits="1/minute", store=store),
    ):
        with pytest.raises(ConfigError, match="waits for I/O in threads alone"):
            create(WaitingStore())


# Requests that count by their response.


def test_counts_receives_the_response() -> None:
    counted: dict[str, SentResponse] = {}

    @portable
    def count(request: PolicyRequest, response: SentResponse) -> bool:
        counted[request.path] = response
        return True

    paths = ["/", "/stream", "/forbidden", "/crash", "/nothing"]
    responses_to(limited(limits="99/minute", counts=count), *[{"path": path} for path in paths])
    assert {path: response.status for path, response in counted.items()} == {
        "/": 200, "/stream": 200, "/forbidden": 403, "/crash": 500, "/nothing": 404,
    }  # fmt: skip
    assert [counted[path].body_bytes for path in ("/", "/stream")] == [4, 13]


def test_counts_receives_the_response_to_an_exception_of_a_middleware() -> None:
    counted: list[int] = []

    def authorised(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            raise NotAuthorizedException

        return middleware

    @portable
    def count(request: PolicyRequest, response: SentResponse) -> bool:
        counted.append(response.status)
        return True

    responses_to(application(read, middleware=[fresh_limits()("9/minute", counts=count), authorised]), {})
    assert counted == [401]


def test_the_charge_of_a_request_that_does_not_count_is_returned() -> None:
    app = limited(limits="2/minute", counts=lambda request, response: response.status not in (403, 404))
    requests = [{"path": "/forbidden"}] * 5 + [{"path": "/nothing"}] * 5 + [{}] * 3
    assert statuses(app, *requests) == [403] * 5 + [404] * 5 + [200, 200, 429]


def test_a_request_that_one_limit_refuses_is_charged_in_none() -> None:
    limits = fresh_limits()

    @get("/", middleware=[limits("1/minute")])
    async def narrow() -> str:
        return "read"

    app = application(narrow, own_fields, plugins=[RateLimitPlugin(limits="3/minute", clock=ManualClock())])
    requests = [{}, {}, {}, {}, {"path": "/own"}, {"path": "/own"}, {"path": "/own"}]
    assert statuses(app, *requests) == [200, 429, 429, 429, 200, 200, 429]


# Wrong options.


async def never_called(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("the fallback must not be called")


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: RateLimitPlugin(key=header("X-User")), "give a policy .* or limits; one of the two"),
        (lambda: RateLimitPlugin(POLICY, limits="1/minute"), "one of the two"),
        (lambda: RateLimitPlugin(POLICY, key=header("X-User")), "key goes with limits"),
        (lambda: RateLimitPlugin(limits="1/fortnight"), "fortnight"),
        (lambda: RateLimitPlugin(websockets=True), "options of an application go with its limits"),
        (lambda: RateLimitPlugin(fallback=never_called), "options of an application go with its limits"),
        (lambda: rate_limit("1/fortnight"), "fortnight"),
        (lambda: rate_limit(None), "not None"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_raise_at_once(create: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create()


def test_an_unknown_option_raises() -> None:
    makers: list[Any] = [RateLimitPlugin, lambda **options: rate_limit("1/minute", **options), RateLimits]
    for make in makers:
        with pytest.raises(TypeError, match="no option is named limit"):
            make(limit=5)


def test_a_missing_library_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litestar", None)
    monkeypatch.setitem(sys.modules, "litestar.exceptions", None)
    monkeypatch.delitem(sys.modules, "headgate.integrations.litestar")
    with pytest.raises(MissingExtraError, match=r"pip install 'headgate\[litestar\]'"):
        importlib.import_module("headgate.integrations.litestar")


def test_a_request_of_an_application_to_itself_returns_no_charge_of_the_outer_request() -> None:
    limits = RateLimits(clock=ManualClock())

    @get("/inner", middleware=[limits("2/minute")])
    async def inner() -> str:
        return "inner"

    @get("/batch", middleware=[limits("3/minute")])
    async def batch(request: Request[Any, Any, Any]) -> list[int]:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        for _ in range(2):
            scope: Any = {**request.scope, "path": "/inner", "raw_path": b"/inner"}
            await app(scope, request.receive, send)
        return statuses

    app = Litestar([inner, batch])
    with TestClient(app) as client:
        responses = [client.get("/batch") for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429]
    assert [response.json() for response in responses[:3]] == [[200, 200], [429, 429], [429, 429]]
