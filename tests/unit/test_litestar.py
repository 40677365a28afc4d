"""Limits on every layer of real Litestar applications, asked without a server."""

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
from litestar.params import FromPath
from litestar.response import Stream
from litestar.static_files import create_static_files_router
from litestar.testing import TestClient

from broken_store import NO_REDIS, BrokenStore
from headgate import AsyncGate, ConfigError, Gate, MemoryStore, MissingExtraError
from headgate.decision import Decision
from headgate.http.asgi import RateLimitMiddleware
from headgate.http.keys import endpoint, header, portable
from headgate.http.server.options import Refusal
from headgate.http.server.options import Response as Said
from headgate.integrations.litestar import EXEMPT, REFUSED, RateLimitPlugin, RateLimits, exempt, rate_limit
from headgate.policy.request import Request as Asked
from headgate.testing import ManualClock
from subjects import parse_list

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
    told = handlers or (
        read, stream, own_fields, forbidden, crash, socket, Router("/api", route_handlers=[item]),
    )  # fmt: skip
    return Litestar([*told], **{"openapi_config": None, "logging_config": None, **options})


def limited(policy: Any = None, **options: Any) -> Litestar:
    """An application of which everything is limited."""
    if not isinstance(policy, AsyncGate):
        options.setdefault("clock", ManualClock())
    return application(plugins=[RateLimitPlugin(policy, **options)])


def asking(app: Any, *asks: dict[str, Any]) -> list[httpx.Response]:
    """Ask one after another; each `client` has an address of its own."""

    async def ask(path: str = "/", method: str = "GET", client: str = "203.0.113.9", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.ASGITransport(app, client=(client, 1234), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as session:
            return await session.request(method, path, headers=named)

    async def run() -> list[httpx.Response]:
        return [await ask(**one) for one in asks]

    return asyncio.run(run())


def statuses(app: Any, *asks: dict[str, Any]) -> list[int]:
    return [answer.status_code for answer in asking(app, *asks)]


def has_once(answer: httpx.Response, *names: str) -> bool:
    return all(len(answer.headers.get_list(name)) == 1 for name in names)


def fresh() -> RateLimits:
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
        answers = asking(app, *[{"path": path} for path in paths])
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429], layer
        assert all(has_once(answer, "RateLimit", "RateLimit-Policy") for answer in answers)


def test_methods_of_one_path_count_apart_and_a_scope_together() -> None:
    def app(**options: Any) -> Litestar:
        limits = fresh()

        @get("/", middleware=[limits("1/minute", **options)])
        async def reading() -> str:
            return "read"

        @post("/", middleware=[limits("1/minute", **options)], status_code=200)
        async def writing() -> str:
            return "written"

        return application(reading, writing)

    asks = [{}, {"method": "POST"}, {}, {"method": "POST"}]
    assert statuses(app(), *asks) == [200, 200, 429, 429]
    assert statuses(app(scope="all"), *asks) == [200, 429, 429, 429]


def test_an_endpoint_is_the_whole_template_with_its_method() -> None:
    seen: list[str] = []
    limits = RateLimits(on_decision=portable(lambda request, decision: seen.append(request.endpoint)))

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"mounted"})

    one = asgi("/one", is_mount=True, copy_scope=True)(mounted)
    two = asgi(["/two", "/three"], is_mount=True, copy_scope=True)(mounted)
    inner = Router("/v1", route_handlers=[item, two])
    app = application(read, one, Router("/api", route_handlers=[inner]), middleware=[limits("99/minute")])
    paths = ["/", "/api/v1/items/7", "/api/v1/items/8", "/one", "/one/a/b", "/api/v1/two/x", "/api/v1/three/x"]
    assert statuses(app, *[{"path": path} for path in paths]) == [200] * 7
    assert seen == [
        "GET /", "GET /api/v1/items/{item_id}", "GET /api/v1/items/{item_id}", "/one", "/one", "/api/v1/two",
        "/api/v1/three",
    ]  # fmt: skip


def test_two_mounts_and_two_folders_of_files_do_not_share_a_limit(tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("a")
    limits = fresh()
    folders = [
        create_static_files_router(path, directories=[tmp_path], middleware=[limits("1/minute")])
        for path in ("/static", "/media")
    ]
    asks = [{"path": path} for path in ("/static/a.txt", "/media/a.txt", "/static/a.txt")]
    assert statuses(application(*folders), *asks) == [200, 200, 429]


def test_limits_of_several_layers_apply_together_and_the_narrower_speaks() -> None:
    limits = fresh()

    @get("/", middleware=[limits("2/minute", name="own")])
    async def narrow() -> str:
        return "read"

    app = application(narrow, middleware=[limits("9/minute")])
    answers = asking(app, {}, {})
    assert [answer.headers["RateLimit-Policy"] for answer in answers] == ['"own";q=2;w=60'] * 2
    assert all(has_once(answer, "RateLimit", "RateLimit-Policy") for answer in answers)


def test_a_limit_that_overrides_takes_the_place_of_those_of_outer_layers() -> None:
    limits = fresh()

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


def test_a_limit_inside_of_an_override_stands_although_it_is_outside_of_it_too() -> None:
    limits = fresh()
    once = limits("1/minute")

    @get("/both", middleware=[once])
    async def both() -> str:
        return "both"

    router = Router("/api", route_handlers=[both, read], middleware=[limits("2/minute", override=True)])
    app = application(router, middleware=[once])
    assert statuses(app, *[{"path": "/api/both"}] * 2) == [200, 429]
    assert statuses(app, *[{"path": "/api"}] * 3) == [200, 200, 429]


def test_what_is_exempt_is_not_limited() -> None:
    limits = fresh()

    @get("/marked")
    @exempt
    async def marked() -> str:
        return "marked"

    @get("/told", opt=dict(EXEMPT))
    async def told() -> str:
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
    app = application(marked, told, above, Inside, Whole, health, plugins=[plugin], middleware=[limits("1/minute")])
    for path in ("/marked", "/told", "/above", "/inside", "/whole", "/health"):
        assert statuses(app, *[{"path": path}] * 3) == [200] * 3


# Answers.


@pytest.mark.parametrize("path", ["/", "/stream", "/own", "/forbidden", "/crash", "/nothing", "/api/items/1"])
def test_every_response_has_the_fields_once(path: str) -> None:
    [answer] = asking(limited(limits="9/minute", headers=("draft-11", "x-delta")), {"path": path})
    assert has_once(answer, "RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining")
    if path == "/own":
        assert answer.headers["RateLimit"] == '"mine";r=1', "the handler's own word stands"
    if path == "/stream":
        assert answer.text == "one two three"
    if path == "/forbidden":
        assert (answer.status_code, answer.json()["detail"]) == (403, "not you")


def test_what_a_middleware_between_raises_is_told_too() -> None:
    def authorised(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            raise NotAuthorizedException("who are you?", headers={"WWW-Authenticate": "Bearer"})

        return middleware

    app = application(read, middleware=[fresh()("1/minute"), authorised])
    answers = asking(app, {}, {})
    assert [answer.status_code for answer in answers] == [401, 429]
    assert all(has_once(answer, "RateLimit", "RateLimit-Policy") for answer in answers)
    assert answers[0].headers["WWW-Authenticate"] == "Bearer"


def test_an_exception_that_a_middleware_raises_again_and_again_tells_each_client_what_it_has_left() -> None:
    unknown = NotAuthorizedException("who are you?")

    def authorised(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            raise unknown

        return middleware

    app = application(read, middleware=[fresh()("3/minute"), authorised])
    answers = asking(app, {}, {}, {"client": "203.0.113.77"})
    assert [answer.status_code for answer in answers] == [401] * 3
    assert [parse_list(answer.headers["RateLimit"])[0][1]["r"] for answer in answers] == [2, 1, 2]
    assert not unknown.headers


def test_a_refusal_is_a_problem_with_a_true_moment() -> None:
    clock = ManualClock()

    def handle(request: Request[Any, Any, Any], raised: Exception) -> Response[str]:
        raise AssertionError("a refusal is an answer, not an exception")

    app = application(read, middleware=[RateLimits(clock=clock)("1/minute")], exception_handlers={429: handle})
    refused = asking(app, {}, {})[1]
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["content-length"]) == len(refused.content)
    assert (refused.json()["status"], refused.json()["violated-policies"]) == (429, ["default"])
    clock.advance(int(refused.headers["Retry-After"]) * 1_000_000 - 1_000_000)
    assert statuses(app, {}) == [429]
    clock.advance(1_000_000)
    assert statuses(app, {}) == [200]


def test_a_browser_of_another_origin_may_read_a_refusal() -> None:
    cors = CORSConfig(allow_origins=["https://a.example"])
    for path in ("/", "/nothing"):
        app = application(cors_config=cors, plugins=[RateLimitPlugin(limits="1/minute", clock=ManualClock())])
        refused = asking(app, *[{"path": path, "Origin": "https://a.example"}] * 2)[1]
        assert refused.status_code == 429
        assert refused.headers["access-control-allow-origin"] == "https://a.example"
        preflight = {"method": "OPTIONS", "Origin": "https://a.example", "Access_Control_Request_Method": "PUT"}
        assert all(status != 429 for status in statuses(app, *[{"path": path, **preflight}] * 3))


def test_a_fallback_answers_what_is_refused() -> None:
    async def stale(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"stale"})

    for app in (
        limited(limits="1/minute", fallback=stale),
        application(read, middleware=[fresh()("1/minute", fallback=stale)]),
    ):
        first, second = asking(app, {}, {})
        assert (first.text, second.text, second.status_code) == ("read", "stale", 200)
        assert has_once(second, "Retry-After", "RateLimit", "content-type")


def test_the_answer_can_be_another() -> None:
    def friendly(request: Asked, decision: Decision, usual: Refusal) -> Refusal:
        return Refusal(503, [("Retry-After", "7"), ("Content-Type", "text/html")], b"<p>slow down</p>")

    for path in ("/", "/nothing"):
        other = asking(limited(limits="1/minute", refusal=friendly), {"path": path}, {"path": path})[1]
        assert (other.status_code, other.text, other.headers["Retry-After"]) == (503, "<p>slow down</p>", "7")


def test_openapi_shows_what_a_limit_may_answer() -> None:
    limits = fresh()

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
    async def told() -> str:
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
    by_hand = Litestar([told], logging_config=None).openapi_schema.to_schema()
    assert "429" in by_hand["paths"]["/d"]["get"]["responses"]
    whole = Litestar(
        [free], plugins=[RateLimitPlugin(limits="9/minute")], logging_config=None
    ).openapi_schema.to_schema()
    assert "429" in whole["paths"]["/c"]["get"]["responses"]


# Whole applications.


def test_limits_of_an_application_count_each_client_over_all_that_it_answers() -> None:
    paths = ["/", "/api/items/1", "/nothing", "/api/items/x", "/"]
    asks = [{"path": path} for path in paths]
    answers = asking(limited(limits="4/minute"), *asks, {"client": "203.0.113.10"})
    assert [answer.status_code for answer in answers] == [200, 200, 404, 404, 429, 200]
    left = [parse_list(answer.headers["RateLimit"])[0][1]["r"] for answer in answers]
    assert left == [3, 2, 1, 0, 0, 3]


def test_what_finds_no_route_is_refused_with_the_usual_answer() -> None:
    app = limited(limits="2/minute")
    answers = asking(app, {"path": "/nothing"}, {"method": "DELETE"}, {"path": "/nothing"}, {})
    assert [answer.status_code for answer in answers] == [404, 405, 429, 429]
    assert answers[2].content == answers[3].content
    assert {name: answers[2].headers[name] for name in answers[3].headers} == dict(answers[3].headers)
    head = asking(app, {"path": "/nothing", "method": "HEAD"})[0]
    assert (head.status_code, head.content) == (429, b"") and int(head.headers["content-length"]) > 0


def test_a_scope_of_an_application_counts_each_route_by_itself() -> None:
    app = limited(limits="1/minute", scope=endpoint)
    asks = [{"path": path} for path in ("/", "/api/items/1", "/api/items/2", "/nothing", "/nothing/else")]
    assert statuses(app, *asks) == [200, 200, 429, 404, 429]


def test_a_policy_sees_the_whole_path_and_passes_what_it_does_not_name() -> None:
    app = limited(POLICY)
    ann = {"X_User_Id": "ann"}
    assert statuses(app, *[{"path": f"/api/items/{number}", **ann} for number in range(3)]) == [200, 200, 429]
    assert statuses(app, {"path": "/api/%69tems/4", **ann}) == [429], "another spelling of the same path"
    [free] = asking(app, {})
    assert (free.status_code, "RateLimit" in free.headers) == (200, False)


def test_a_gate_is_used_and_not_closed() -> None:
    gate = AsyncGate(POLICY)
    with TestClient(limited(gate)) as client:
        answers = [client.get("/api/items/1", headers={"X-User-Id": "u"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert gate.stats().keys == 1
    with pytest.raises(ConfigError, match="this application needs a AsyncGate"):
        RateLimitPlugin(Gate(POLICY))  # type: ignore[arg-type]


def test_a_middleware_that_litestar_makes_for_each_route_is_none_for_an_application() -> None:
    """Why there is a plugin: Litestar makes a middleware anew for each route, and each would have a store."""
    plain: Any = RateLimitMiddleware
    apart = application(read, own_fields, middleware=[DefineMiddleware(plain, limits="1/minute")])
    assert statuses(apart, {}, {"path": "/own"}) == [200, 200]
    together = application(read, own_fields, plugins=[RateLimitPlugin(limits="1/minute")])
    assert statuses(together, {}, {"path": "/own"}) == [200, 429]


def test_functions_see_the_scope_of_litestar() -> None:
    def key(request: Any) -> str:
        assert isinstance(request, Request)
        return str(request.path_params.get("item_id", "none"))

    asks = [{"path": f"/api/items/{number}"} for number in (1, 1, 2)]
    assert statuses(limited(limits="1/minute", key=key), *asks) == [200, 429, 200]


def test_who_may_say_what_the_address_is() -> None:
    app = limited(limits="1/minute", trusted_proxies=["10.0.0.0/8"])
    told = [{"client": "10.0.0.1", "X_Forwarded_For": f"{number}.1.1.1, 203.0.113.7"} for number in (1, 2)]
    assert statuses(app, *told) == [200, 429]


def test_a_request_may_stand_in_line_and_a_queue_spaces_requests() -> None:
    lines: dict[str, dict[str, Any]] = {"60/minute bucket": {"wait": 61.0, "cost": 60}, "1/minute queue 5": {}}
    for limits, options in lines.items():
        clock = ManualClock()
        before = clock.now_us()
        assert statuses(limited(limits=limits, clock=clock, **options), {}, {}) == [200, 200]
        assert clock.now_us() - before == 60_000_000


def test_websockets_are_judged_on_their_own_route_and_by_the_plugin_where_that_is_chosen() -> None:
    limits = fresh()

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


def test_a_store_that_fails_never_looks_like_the_clients_fault(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate"):
        for path, status in (("/", 200), ("/nothing", 404)):
            [passed] = asking(limited(limits="1/minute", store=BrokenStore()), {"path": path})
            [refused] = asking(limited(limits="1/minute", store=BrokenStore(), on_store_error="closed"), {"path": path})
            assert (passed.status_code, passed.headers["X-RateLimit-Degraded"]) == (status, "open")
            assert (refused.status_code, refused.headers["X-RateLimit-Degraded"]) == (503, "closed")


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503)])
def test_a_redis_that_is_gone_is_what_the_option_says(choice: Any, status: int) -> None:
    [answer] = asking(limited(limits="1/minute", store=NO_REDIS, on_store_error=choice), {"path": "/"})
    assert (answer.status_code, answer.headers["X-RateLimit-Degraded"]) == (status, choice)


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


def test_exactly_the_limit_passes_when_more_is_asked_at_once() -> None:
    app: Any = limited(limits="20/minute")

    async def run() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as session:
            answers = await asyncio.gather(*[session.get("/nothing" if n % 2 else "/") for n in range(60)])
            return [answer.status_code for answer in answers]

    told = asyncio.run(run())
    assert told.count(429) == 40 and told.count(200) + told.count(404) == 20


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
    """Waits for I/O, in threads alone."""

    blocking = True


def test_a_store_that_would_block_the_event_loop_is_told_at_once() -> None:
    for made in (
        lambda store: rate_limit("1/minute", store=store),
        lambda store: RateLimitPlugin(limits="1/minute", store=store),
    ):
        with pytest.raises(ConfigError, match="waits for I/O in threads alone"):
            made(WaitingStore())


# What counts by the response.


def test_what_counts_is_told_what_was_answered() -> None:
    seen: dict[str, Said] = {}

    @portable
    def count(request: Asked, response: Said) -> bool:
        seen[request.path] = response
        return True

    paths = ["/", "/stream", "/forbidden", "/crash", "/nothing"]
    asking(limited(limits="99/minute", counts=count), *[{"path": path} for path in paths])
    assert {path: response.status for path, response in seen.items()} == {
        "/": 200, "/stream": 200, "/forbidden": 403, "/crash": 500, "/nothing": 404,
    }  # fmt: skip
    assert [seen[path].body_bytes for path in ("/", "/stream")] == [4, 13]


def test_what_a_middleware_between_raises_is_what_was_answered() -> None:
    seen: list[int] = []

    def authorised(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            raise NotAuthorizedException

        return middleware

    @portable
    def count(request: Asked, response: Said) -> bool:
        seen.append(response.status)
        return True

    asking(application(read, middleware=[fresh()("9/minute", counts=count), authorised]), {})
    assert seen == [401]


def test_what_does_not_count_is_given_back() -> None:
    app = limited(limits="2/minute", counts=lambda request, response: response.status not in (403, 404))
    asks = [{"path": "/forbidden"}] * 5 + [{"path": "/nothing"}] * 5 + [{}] * 3
    assert statuses(app, *asks) == [403] * 5 + [404] * 5 + [200, 200, 429]


def test_what_one_limit_refuses_is_charged_in_none() -> None:
    limits = fresh()

    @get("/", middleware=[limits("1/minute")])
    async def narrow() -> str:
        return "read"

    app = application(narrow, own_fields, plugins=[RateLimitPlugin(limits="3/minute", clock=ManualClock())])
    asks = [{}, {}, {}, {}, {"path": "/own"}, {"path": "/own"}, {"path": "/own"}]
    assert statuses(app, *asks) == [200, 429, 429, 429, 200, 200, 429]


# What cannot be used.


async def unasked(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: RateLimitPlugin(key=header("X-User")), "give a policy .* or limits; one of the two"),
        (lambda: RateLimitPlugin(POLICY, limits="1/minute"), "one of the two"),
        (lambda: RateLimitPlugin(POLICY, key=header("X-User")), "key goes with limits"),
        (lambda: RateLimitPlugin(limits="1/fortnight"), "fortnight"),
        (lambda: RateLimitPlugin(websockets=True), "options of an application go with its limits"),
        (lambda: RateLimitPlugin(fallback=unasked), "options of an application go with its limits"),
        (lambda: rate_limit("1/fortnight"), "fortnight"),
        (lambda: rate_limit(None), "not None"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_told_at_once(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made()


def test_an_option_that_there_is_not_is_no_silent_wish() -> None:
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


def test_what_an_application_asks_itself_gives_nothing_back_of_its_own_request() -> None:
    limits = RateLimits(clock=ManualClock())

    @get("/inner", middleware=[limits("2/minute")])
    async def inner() -> str:
        return "inner"

    @get("/batch", middleware=[limits("3/minute")])
    async def batch(request: Request[Any, Any, Any]) -> list[int]:
        told: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                told.append(message["status"])

        for _ in range(2):
            scope: Any = {**request.scope, "path": "/inner", "raw_path": b"/inner"}
            await app(scope, request.receive, send)
        return told

    app = Litestar([inner, batch])
    with TestClient(app) as client:
        answers = [client.get("/batch") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.json() for answer in answers[:3]] == [[200, 200], [429, 429], [429, 429]]
