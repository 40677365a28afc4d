"""Limits in real aiohttp servers, on the loopback interface and on Unix sockets."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from broken_store import NO_REDIS, BrokenStore
from headgate import AsyncGate, ConfigError, Gate, MemoryStore, MissingExtraError
from headgate.decision import Decision
from headgate.http.keys import endpoint, header, portable
from headgate.http.server.options import Refusal, Response
from headgate.integrations.aiohttp import RateLimits, exempt, middleware, rate_limit, setup
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import parse_list

POLICY = {
    "version": 1,
    "identities": {"user": {"header": "X-User-Id"}},
    "rules": [
        {"name": "items", "match": {"path": "/api/items/{id}"}, "by": ["user"], "limits": "2/minute"},
        {"name": "each", "match": {"path": "/each/**"}, "by": ["endpoint"], "limits": "1/minute"},
    ],
}
TRUST_LOOPBACK = {"trusted_proxies": ["127.0.0.0/8"]}


class ReceivedResponse:
    """A response that a client received."""

    def __init__(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = body

    def has_once(self, *names: str) -> bool:
        return all(len(self.headers.getall(name, [])) == 1 for name in names)


Send = Callable[..., Awaitable[ReceivedResponse]]


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[Send]:
    """Serve an application and yield a function that sends requests; `client` is the address of a client."""
    async with TestClient(TestServer(app)) as session:

        async def send(
            path: str = "/", method: str = "GET", client: str = "203.0.113.9", **headers: str
        ) -> ReceivedResponse:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with session.request(method, path, headers={"X-Forwarded-For": client, **named}) as response:
                return ReceivedResponse(response, await response.read())

        yield send


def responses_to(app: web.Application, *requests: dict[str, Any]) -> list[ReceivedResponse]:
    async def run() -> list[ReceivedResponse]:
        async with serving(app) as send:
            return [await send(**request) for request in requests]

    return asyncio.run(run())


def statuses(app: web.Application, *requests: dict[str, Any]) -> list[int]:
    return [response.status for response in responses_to(app, *requests)]


async def read(request: web.Request) -> web.Response:
    return web.Response(text="read")


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for part in (b"one ", b"two ", b"three"):
        await response.write(part)
    await response.write_eof()
    return response


async def socket(request: web.Request) -> web.StreamResponse:
    response = web.WebSocketResponse()
    await response.prepare(request)
    await response.send_str("hello")
    await response.close()
    return response


async def own_fields(request: web.Request) -> web.Response:
    return web.Response(headers={"RateLimit": '"mine";r=1'})


async def forbidden(request: web.Request) -> web.Response:
    raise web.HTTPForbidden(text="not you")


async def crash(request: web.Request) -> web.Response:
    raise ValueError("a fault of the handler")


class Items(web.View):
    async def get(self) -> web.Response:
        return web.Response(text=f"item {self.request.match_info['id']}")

    async def post(self) -> web.Response:
        return web.Response(text="saved")


def application(**handlers: Any) -> web.Application:
    """An application with a nested one; these handlers replace the default ones of their routes."""
    chosen = {"read": read, "stream": stream, "socket": socket, "own": own_fields, "forbidden": forbidden,
              "crash": crash, **handlers}  # fmt: skip
    inner = web.Application()
    inner.router.add_view("/items/{id}", chosen.pop("items", Items))
    app = web.Application()
    app.router.add_get("/", chosen["read"])
    app.router.add_post("/", chosen.pop("read"))
    for name, handler in chosen.items():
        app.router.add_get(f"/{name}", handler)
    app.add_subapp("/api", inner)
    return app


def limited(policy: Any = None, **options: Any) -> web.Application:
    app = application()
    if not isinstance(policy, AsyncGate):
        options.setdefault("clock", ManualClock())
    setup(app, policy, **options)
    return app


# Applications.


def test_limits_count_each_client_over_the_whole_application() -> None:
    app = limited(limits="4/minute", **TRUST_LOOPBACK)
    paths = ["/", "/api/items/1", "/nothing", "/api/nothing", "/"]
    responses = responses_to(app, *[{"path": path} for path in paths], {"client": "203.0.113.10"})
    assert [response.status for response in responses] == [200, 200, 404, 404, 429, 200]
    remaining = [parse_list(response.headers["RateLimit"])[0][1]["r"] for response in responses]
    assert remaining == [3, 2, 1, 0, 0, 3]


def test_a_refusal_is_a_problem_document_with_the_exact_time_to_retry() -> None:
    clock = ManualClock()
    app = limited(limits="1/minute", clock=clock)

    async def run() -> None:
        async with serving(app) as send:
            await send()
            refused = await send()
            assert refused.headers["Content-Type"] == "application/problem+json"
            assert int(refused.headers["Content-Length"]) == len(refused.body)
            assert b'"violated-policies":["default"]' in refused.body
            assert refused.has_once("RateLimit", "RateLimit-Policy", "Retry-After", "Content-Type", "Content-Length")
            clock.advance(int(refused.headers["Retry-After"]) * 1_000_000 - 1_000_000)
            assert (await send()).status == 429
            head = await send(method="HEAD")
            assert (head.status, head.body) == (429, b"") and int(head.headers["Content-Length"]) > 0
            clock.advance(1_000_000)
            assert (await send()).status == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    "path", ["/", "/stream", "/socket", "/own", "/forbidden", "/crash", "/nothing", "/api/items/1"]
)
def test_every_response_has_the_fields_once(path: str, caplog: pytest.LogCaptureFixture) -> None:
    [response] = responses_to(limited(limits="9/minute", headers=("draft-11", "x-delta")), {"path": path})
    assert response.has_once("RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining")
    if path == "/own":
        assert response.headers["RateLimit"] == '"mine";r=1', "the handler's own fields stay"
    if path == "/stream":
        assert response.body == b"one two three"


def test_a_websocket_has_the_fields_in_its_handshake_and_is_refused_like_any_request() -> None:
    app = limited(limits="1/minute")

    async def run() -> None:
        async with TestClient(TestServer(app)) as session:
            async with session.ws_connect("/socket") as websocket:
                assert parse_list(websocket._response.headers["RateLimit"])[0][1]["r"] == 0
                assert await websocket.receive_str() == "hello"
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect("/socket")
            assert refused.value.status == 429

    asyncio.run(run())


def test_a_middleware_alone_adds_fields_to_responses_that_handlers_return_or_raise() -> None:
    app = web.Application(middlewares=[middleware(limits="9/minute")])
    for path, handler in (("/", read), ("/forbidden", forbidden), ("/stream", stream)):
        app.router.add_get(path, handler)
    responses = responses_to(app, {}, {"path": "/forbidden"}, {"path": "/nothing"}, {"path": "/stream"})
    assert [response.status for response in responses] == [200, 403, 404, 200]
    assert [response.has_once("RateLimit") for response in responses] == [True, True, True, False]
    assert responses[1].body == b"not you"


def test_a_policy_matches_the_whole_path_and_passes_paths_that_it_does_not_name() -> None:
    app = limited(POLICY)
    ann = {"X_User_Id": "ann"}
    assert statuses(app, *[{"path": f"/api/items/{number}", **ann} for number in range(3)]) == [200, 200, 429]
    app = limited(POLICY)
    [_, _, spelt, free] = responses_to(
        app, *[{"path": "/api/items/1", **ann}] * 2, {"path": "/api/%69tems/1", **ann}, {"path": "/"}
    )
    assert (spelt.status, free.status, "RateLimit" in free.headers) == (429, 200, False)


def test_of_an_absolute_url_in_the_request_line_the_path_counts() -> None:
    paths_and_hosts: list[tuple[str, str]] = []
    app = limited(
        limits="9/minute",
        on_decision=portable(lambda request, decision: paths_and_hosts.append((request.path, request.host))),
    )

    async def run() -> None:
        async with TestServer(app) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for line in (b"GET http://other.example/api/items/1?a=b", b"GET /api/items/1?a=b"):
                writer.write(line + b" HTTP/1.1\r\nHost: shop.example\r\n\r\n")
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(6)
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())
    assert [path for path, _ in paths_and_hosts] == ["/api/items/1?a=b"] * 2


def test_a_gate_is_used_and_not_closed() -> None:
    gate = AsyncGate(POLICY)
    assert statuses(limited(gate), *[{"path": "/api/items/1", "X_User_Id": "u"}] * 3) == [200, 200, 429]
    assert gate.stats().keys == 1
    with pytest.raises(ConfigError, match="this application needs a AsyncGate"):
        middleware(Gate(POLICY))  # type: ignore[arg-type]


def test_a_scope_counts_each_route_by_itself_and_requests_without_a_route_together() -> None:
    app = limited(limits="1/minute", scope=endpoint)
    requests = [{"path": path} for path in ("/", "/api/items/1", "/api/items/2", "/nothing", "/nothing/else")]
    assert statuses(app, *requests) == [200, 200, 429, 404, 429]


def test_an_endpoint_is_the_whole_template_with_its_method() -> None:
    endpoints: list[str] = []
    inner, deeper = web.Application(), web.Application()
    deeper.router.add_get("/items/{id:\\d+}", read)
    deeper.router.add_view("/view", Items)
    inner.add_subapp("/v1", deeper)
    app = web.Application()
    app.router.add_route("*", "/any", read)
    app.router.add_static("/static", Path(__file__).parent)
    app.add_subapp("/api", inner)
    setup(app, limits="99/minute", on_decision=portable(lambda request, decision: endpoints.append(request.endpoint)))
    responses_to(
        app,
        {"path": "/api/v1/items/7"},
        {"path": "/api/v1/items/7", "method": "HEAD"},
        {"path": "/api/v1/items/7", "method": "DELETE"},
        {"path": "/any", "method": "PUT"},
        {"path": "/static/test_paths.py"},
        {"path": "/api/nothing"},
    )
    assert endpoints == ["GET /api/v1/items/{id}"] * 2 + ["", "/any", "GET /static", ""]


def test_applications_of_two_domains_do_not_share_a_route() -> None:
    app = web.Application()
    for domain in ("one.example", "two.example"):
        nested = web.Application()
        nested.router.add_get("/", rate_limit("1/minute", clock=ManualClock())(read))
        app.add_domain(domain, nested)
    assert statuses(app, *[{"Host": domain} for domain in ("one.example", "two.example", "one.example")]) == [
        200,
        200,
        429,
    ]


def test_one_application_under_two_domains_counts_for_both_together() -> None:
    app, nested = web.Application(), web.Application()
    nested.router.add_get("/", rate_limit("1/minute", clock=ManualClock())(read))
    app.add_domain("one.example", nested)
    app.add_domain("two.example", nested)
    assert statuses(app, *[{"Host": domain} for domain in ("two.example", "one.example")]) == [200, 429]


def test_only_trusted_proxies_can_set_the_address_of_the_client() -> None:
    app = limited(limits="1/minute", **TRUST_LOOPBACK)
    assert statuses(app, {"client": "1.2.3.4, 203.0.113.7"}, {"client": "9.9.9.9, 203.0.113.7"}) == [200, 429]
    assert statuses(limited(limits="1/minute"), {"client": "203.0.113.7"}, {"client": "203.0.113.8"}) == [200, 429]


def test_peers_of_a_unix_socket_have_no_address_and_can_be_trusted(tmp_path: Path) -> None:
    addresses: list[str] = []

    def app(**options: Any) -> web.Application:
        return limited(
            limits="1/minute",
            on_decision=portable(lambda request, decision: addresses.append(request.client_ip)),
            **options,
        )

    async def statuses_of(app: web.Application, *clients: str) -> list[int]:
        runner = web.AppRunner(app)
        await runner.setup()
        path = str(tmp_path / "server")
        await web.UnixSite(runner, path).start()
        try:
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
                responses = [
                    await session.get("http://server/", headers={"X-Forwarded-For": client}) for client in clients
                ]
                return [response.status for response in responses]
        finally:
            await runner.cleanup()

    assert asyncio.run(statuses_of(app(), "203.0.113.7", "203.0.113.8")) == [200, 429]
    assert asyncio.run(statuses_of(app(trusted_proxies=["unix"]), "203.0.113.7", "203.0.113.8", "203.0.113.7")) == [
        200,
        200,
        429,
    ]
    assert set(addresses) == {""}


def test_functions_receive_the_request_of_aiohttp() -> None:
    def key(request: web.Request) -> str:
        assert isinstance(request, web.Request)
        return str(request.match_info.get("id", "none"))

    requests = [{"path": f"/api/items/{number}"} for number in (1, 1, 2)]
    assert statuses(limited(limits="1/minute", key=key), *requests) == [200, 429, 200]


def test_the_preflight_of_a_browser_is_not_counted() -> None:
    preflight = {"method": "OPTIONS", "Origin": "https://a.example", "Access_Control_Request_Method": "PUT"}
    assert statuses(limited(limits="1/minute"), *[preflight] * 3, {}) == [405] * 3 + [200]


def test_a_fallback_responds_to_a_refused_request() -> None:
    async def stale(request: web.Request) -> web.Response:
        return web.Response(text="stale")

    first, second = responses_to(limited(limits="1/minute", fallback=stale), {}, {})
    assert (first.body, second.body, second.status) == (b"read", b"stale", 200)
    assert second.headers["Content-Type"].startswith("text/plain")
    assert second.has_once("Retry-After", "RateLimit", "Content-Type")


def test_the_response_to_a_refused_request_can_be_customized() -> None:
    def friendly(request: Request, decision: Decision, usual: Refusal) -> Refusal:
        return Refusal(503, [("Retry-After", "7"), ("Content-Type", "text/html")], b"<p>slow down</p>")

    _, refused = responses_to(limited(limits="1/minute", refusal=friendly), {}, {})
    assert (refused.status, refused.body, refused.headers["Retry-After"]) == (503, b"<p>slow down</p>", "7")


def test_a_request_can_wait_for_units_and_a_queue_spaces_requests() -> None:
    cases: dict[str, dict[str, Any]] = {"60/minute bucket": {"wait": 61.0, "cost": 60}, "1/minute queue 5": {}}
    for limits, options in cases.items():
        clock = ManualClock()
        before = clock.now_us()
        assert statuses(limited(limits=limits, clock=clock, **options), {}, {}) == [200, 200]
        assert clock.now_us() - before == 60_000_000


def test_a_store_that_fails_never_causes_a_429(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate"):
        [passed] = responses_to(limited(limits="1/minute", store=BrokenStore()), {})
        [refused] = responses_to(limited(limits="1/minute", store=BrokenStore(), on_store_error="closed"), {})
    assert (passed.status, passed.headers["X-RateLimit-Degraded"]) == (200, "open")
    assert (refused.status, refused.headers["X-RateLimit-Degraded"]) == (503, "closed")


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503)])
def test_without_redis_the_option_chooses_the_status(choice: Any, status: int) -> None:
    [response] = responses_to(limited(limits="1/minute", store=NO_REDIS, on_store_error=choice), {})
    assert (response.status, response.headers["X-RateLimit-Degraded"]) == (status, choice)


def test_stores_that_were_opened_here_are_closed_with_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[BrokenStore] = []

    def open_store(url: str) -> BrokenStore:
        opened.append(BrokenStore())
        return opened[-1]

    monkeypatch.setattr("headgate.http.server.routes.open_store", open_store)
    monkeypatch.setattr("headgate.http.server.request_limits.open_store", open_store)
    given = BrokenStore()
    limits = RateLimits(store="redis://a")
    app = application(read=limits("1/minute")(limits("1/minute", store=given)(read)))
    setup(app, limits="1/minute", store="redis://b", rate_limits=limits)
    responses_to(app, {})
    assert [store.closed for store in opened] == [1, 1] and given.closed == 0


# Handlers.


def test_each_route_counts_by_itself_and_reports_the_remaining_units() -> None:
    limits = RateLimits(clock=ManualClock())
    app = application(read=limits("1/minute")(read), items=limits("1/minute")(Items))
    requests = [{}, {"method": "POST"}, {"path": "/api/items/1"}, {"path": "/api/items/2"}, {}, {"path": "/stream"}]
    responses = responses_to(app, *requests)
    assert [response.status for response in responses] == [200, 200, 200, 429, 429, 200]
    assert [response.has_once("RateLimit") for response in responses] == [True] * 5 + [False]
    assert responses[2].body == b"item 1"


def test_handlers_with_one_scope_count_together() -> None:
    limits = RateLimits(clock=ManualClock())
    app = application(read=limits("2/minute", scope="all")(read), forbidden=limits("2/minute", scope="all")(forbidden))
    assert statuses(app, {}, {"path": "/forbidden"}, {}) == [200, 403, 429]


def test_methods_of_a_view_count_apart_and_a_view_as_a_whole_together() -> None:
    limits = RateLimits(clock=ManualClock())

    class Apart(Items):
        get = limits("1/minute")(Items.get)
        post = limits("1/minute")(Items.post)

    class Whole(Items):
        pass

    requests = [{"path": "/api/items/1", "method": method} for method in ("GET", "POST", "POST", "GET")]
    assert statuses(application(items=Apart), *requests) == [200, 200, 429, 429]
    decorated = limits("1/minute")(Whole)
    assert (decorated.__name__, decorated.__qualname__) == (Whole.__name__, Whole.__qualname__)
    assert statuses(application(items=decorated), *requests) == [200, 429, 429, 429]
    assert statuses(application(items=Whole), *requests) == [200] * 4, "the decorated class itself is not limited"


def test_methods_of_any_object_can_be_limited_handlers() -> None:
    limits = RateLimits(clock=ManualClock())

    class Shop:
        name = "the shop"

        @limits("1/minute")
        async def read(self, request: web.Request) -> web.Response:
            return web.Response(text=self.name)

        async def health(self, request: web.Request) -> web.Response:
            return web.Response(text=f"{self.name} is well")

    first, second = responses_to(application(read=Shop().read), {}, {})
    assert (first.body, second.status) == (b"the shop", 429)
    app = application(read=exempt(Shop().health))
    setup(app, limits="1/minute", clock=ManualClock())
    assert [response.body for response in responses_to(app, {}, {})] == [b"the shop is well"] * 2


def test_streams_of_a_handler_have_the_fields_after_setup() -> None:
    limits = RateLimits(clock=ManualClock())
    app = application(stream=limits("1/minute")(stream), crash=limits("1/minute")(crash))
    setup(app, rate_limits=limits)
    responses = responses_to(app, *[{"path": "/stream"}] * 2, {"path": "/crash"})
    assert [response.status for response in responses] == [200, 429, 500]
    assert all(response.has_once("RateLimit", "RateLimit-Policy") for response in responses)
    assert responses[0].body == b"one two three"


def test_limits_of_an_application_and_of_a_handler_apply_together_and_the_narrower_one_is_reported() -> None:
    clock = ManualClock()
    limits = RateLimits(clock=clock)
    app = application(read=limits("9/minute")(limits("2/minute", name="own")(read)))
    setup(app, limits="5/minute", clock=clock)
    responses = responses_to(app, *[{}] * 2, {"path": "/own"})
    assert [parse_list(response.headers["RateLimit-Policy"])[0][1]["q"] for response in responses[:2]] == [2, 2]
    assert all(response.has_once("RateLimit", "RateLimit-Policy") for response in responses)


def test_an_exempt_handler_is_not_limited_and_one_that_overrides_has_only_its_own_limits() -> None:
    clock = ManualClock()
    limits = RateLimits(clock=clock)

    class Health(web.View):
        @exempt
        async def get(self) -> web.Response:
            return web.Response(text="well")

        async def post(self) -> web.Response:
            return web.Response(text="well")

    @exempt
    async def free(request: web.Request) -> web.StreamResponse:
        return await stream(request)

    app = application(read=limits("3/minute", override=True)(read), stream=free, items=Health)
    setup(app, limits="1/minute", clock=clock)
    requests = [*[{}] * 4, *[{"path": "/stream"}] * 3, *[{"path": "/api/items/1"}] * 3]
    statuses_of_all = statuses(app, *requests, *[{"path": "/api/items/1", "method": "POST"}] * 2)
    assert statuses_of_all == [200, 200, 200, 429, *[200] * 6, 200, 429]


def test_a_handler_can_have_its_own_fallback() -> None:
    async def stale(request: web.Request) -> web.Response:
        return web.Response(text="stale")

    limits = RateLimits(clock=ManualClock())
    first, second = responses_to(application(read=limits("1/minute", fallback=stale)(read)), {}, {})
    assert (first.body, second.body, second.has_once("Retry-After")) == (b"read", b"stale", True)


# Requests that count by their response.


def test_files_and_generated_bodies_count_by_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    counted_bytes: dict[tuple[str, str], int] = {}

    def count(request: Request, response: Response) -> bool:
        counted_bytes[request.method, request.path] = response.body_bytes
        return True

    async def send_file(request: web.Request) -> web.FileResponse:
        return web.FileResponse(tmp_path / "file")

    async def send_file_object(request: web.Request) -> web.Response:
        return web.Response(body=BytesIO(b"y" * 700))

    async def generate(request: web.Request) -> web.Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"a" * 400
            yield b"b" * 400

        return web.Response(body=parts())

    async def send_opened(request: web.Request) -> web.Response:
        return web.Response(body=(tmp_path / "file").open("rb"))

    limit = RateLimits()("99/minute; 1 concurrent", counts=count)
    app = web.Application()
    for path, handler in (("/file", send_file), ("/opened", send_file_object), ("/generated", generate), ("/", read)):
        app.router.add_get(path, limit(handler))
    app.router.add_get("/closed", limit(send_opened))  # aiohttp closes this file once it is sent
    requests = [{"path": path, "method": method} for path in ("/file", "/opened", "/") for method in ("GET", "HEAD")]
    requests += [{"path": "/generated"}, *[{"path": "/closed"}] * 2]
    assert set(statuses(app, *requests)) == {200}
    assert counted_bytes.pop(("GET", "/generated")) >= 800
    assert counted_bytes.pop(("GET", "/closed")) == 1000
    assert counted_bytes == {
        ("GET", "/file"): 1000, ("GET", "/opened"): 700, ("GET", "/"): 4,
        ("HEAD", "/file"): 0, ("HEAD", "/opened"): 0, ("HEAD", "/"): 0,
    }  # fmt: skip


def test_counts_receives_the_response(caplog: pytest.LogCaptureFixture) -> None:
    counted: dict[str, Response] = {}

    def count(request: Request, response: Response) -> bool:
        counted[request.path] = response
        return True

    paths = ["/", "/stream", "/socket", "/forbidden", "/crash", "/nothing", "/own"]
    responses_to(limited(limits="99/minute", counts=count), *[{"path": path} for path in paths])
    assert {path: response.status for path, response in counted.items()} == {
        "/": 200, "/stream": 200, "/socket": 400, "/forbidden": 403, "/crash": 500, "/nothing": 404, "/own": 200,
    }  # fmt: skip
    assert [counted[path].body_bytes for path in ("/", "/forbidden", "/crash")] == [4, 7, 0]
    assert counted["/stream"].body_bytes >= 13
    assert counted["/"].headers["content-type"].startswith("text/plain")


def test_the_charge_of_a_request_that_does_not_count_is_returned() -> None:
    app = limited(limits="2/minute", counts=lambda request, response: response.status != 403)
    assert statuses(app, *[{"path": "/forbidden"}] * 5, {}, {}, {}) == [403] * 5 + [200, 200, 429]


def test_a_request_that_one_limit_refuses_is_charged_in_none() -> None:
    clock = ManualClock()
    limits = RateLimits(clock=clock)
    app = application(read=limits("1/minute")(read))
    setup(app, limits="3/minute", clock=clock)
    requests = [{}, {}, {}, {}, {"path": "/own"}, {"path": "/own"}, {"path": "/own"}]
    assert statuses(app, *requests) == [200, 429, 429, 429, 200, 200, 429]


# Several requests of one client.


def test_a_request_of_an_application_to_itself_returns_no_charge_of_the_outer_request() -> None:
    limits, clock = RateLimits(clock=ManualClock()), ManualClock()

    @limits("1/minute")
    async def inner(request: web.Request) -> web.Response:
        return web.Response()

    @limits("5/minute")
    async def batch(request: web.Request) -> web.Response:
        app = request.app
        inner_responses = [await app._handle(request.clone(rel_url="/inner")) for _ in range(2)]
        return web.json_response([response.status for response in inner_responses])

    @web.middleware
    async def cloning(request: web.Request, handler: Any) -> Any:
        return await handler(request.clone())

    app = web.Application(middlewares=[middleware(limits="3/minute", clock=clock), cloning])
    app.add_routes([web.get("/inner", inner), web.get("/batch", batch)])
    setup(app, rate_limits=limits)
    first, *later = responses_to(app, *[{"path": "/batch"}] * 3)
    assert first.body == b"[200, 429]"
    assert [response.status for response in later] == [200, 429], "the first batch counts two, each later batch one"


def test_exactly_the_limit_passes_when_more_requests_arrive_at_once() -> None:
    async def run() -> Counter[int]:
        async with serving(limited(limits="20/minute")) as send:
            return Counter(response.status for response in await asyncio.gather(*[send() for _ in range(60)]))

    assert asyncio.run(run()) == {200: 20, 429: 40}


class WaitingStore(MemoryStore):
    """A store that waits for I/O and only works in threads."""

    blocking = True


# Wrong options.


class NoView:
    pass


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (middleware, "give a policy .* or limits; one of the two"),
        (lambda: middleware(POLICY, limits="1/minute"), "one of the two"),
        (lambda: middleware(POLICY, key=header("X-User")), "key goes with limits"),
        (lambda: middleware(limits="1/fortnight"), "fortnight"),
        (lambda: setup(web.Application(), key=header("X-User")), "options of an application go with its limits"),
        (lambda: rate_limit("1/fortnight"), "fortnight"),
        (lambda: rate_limit(None), "not None"),  # type: ignore[arg-type]
        (lambda: rate_limit("1/minute")(NoView), "NoView is no view"),
        (lambda: rate_limit("1/minute", store=WaitingStore()), "waits for I/O in threads alone"),
        (lambda: middleware(limits="1/minute", store=WaitingStore()), "waits for I/O in threads alone"),
    ],
)
def test_wrong_options_raise_at_once(create: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create()


def test_an_unknown_option_raises() -> None:
    makers: list[Any] = [middleware, lambda **options: rate_limit("1/minute", **options), RateLimits]
    for make in makers:
        with pytest.raises(TypeError, match="no option is named limit"):
            make(limit=5)


def test_a_handler_that_receives_no_request_raises() -> None:
    async def wrong() -> web.Response:
        return web.Response()

    with pytest.raises(ConfigError, match="receives a request"):
        asyncio.run(rate_limit("1/minute")(wrong)())


def test_a_missing_library_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "headgate.integrations.aiohttp")
    with pytest.raises(MissingExtraError, match=r"pip install 'headgate\[aiohttp\]'"):
        importlib.import_module("headgate.integrations.aiohttp")
