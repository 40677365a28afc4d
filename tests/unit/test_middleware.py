"""The middlewares in front of real applications, called without a server."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections import UserDict
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute

from asgi_requests import drive as drive_scope
from broken_store import BrokenStore
from headgate import AsyncGate, ConfigError, Gate, StoreTimeout, StoreUnavailable
from headgate import core as cores
from headgate.http import asgi, wsgi
from headgate.http.server.options import Refusal
from headgate.http.server.request_limits import RequestLimits
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import parse_list

POLICY = {
    "version": 1,
    "namespace": "api",
    "identities": {"user": {"header": "X-User-Id"}},
    "rules": [{"name": "items", "match": {"path": "/api/items/{id}"}, "by": ["user"], "limits": "2/minute"}],
}


async def _read(request: Any) -> PlainTextResponse:
    return PlainTextResponse("read")


async def _stream(request: Any) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            yield part

    return StreamingResponse(parts(), media_type="text/plain")


async def _own_fields(request: Any) -> JSONResponse:
    return JSONResponse({}, headers={"RateLimit": '"mine";r=1'})


async def _socket(websocket: Any) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def starlette() -> Starlette:
    inner = Starlette(routes=[Route("/items/{id}", _read)])
    return Starlette(
        routes=[
            Route("/", _read),
            Route("/stream", _stream),
            Route("/own", _own_fields),
            WebSocketRoute("/socket", _socket),
            Mount("/api", inner),
        ]
    )


def plain_wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/missing":
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"nothing"]
    headers = [("Content-Type", "text/plain")]
    if environ["PATH_INFO"] == "/own":
        headers.append(("RateLimit", '"mine";r=1'))
    start_response("200 OK", headers)
    return (part for part in (b"one ", b"two ", b"three"))


class Client:
    """Sends requests to an application of either kind."""

    def __init__(self, kind: str, policy: Any = None, **options: Any) -> None:
        self.app: Any
        if kind == "asgi":
            self.app = asgi.RateLimitMiddleware(starlette(), policy, **options)
        else:
            self.app = wsgi.RateLimitMiddleware(plain_wsgi, policy, **options)
        self.kind = kind

    def request(
        self, path: str = "/", method: str = "GET", client: str = "203.0.113.9", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.kind == "wsgi":
            transport = httpx.WSGITransport(self.app, remote_addr=client)
            with httpx.Client(transport=transport, base_url="http://shop.example") as session:
                return session.request(method, path, headers=named)

        async def send() -> httpx.Response:
            asgi_transport = httpx.ASGITransport(self.app, client=(client, 1234))
            async with httpx.AsyncClient(transport=asgi_transport, base_url="http://shop.example") as session:
                return await session.request(method, path, headers=named)

        return asyncio.run(send())


@pytest.fixture(params=["asgi", "wsgi"])
def kind(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


def statuses(client: Client, *requests: dict[str, Any]) -> list[int]:
    return [client.request(**request).status_code for request in requests]


def test_plain_limits_count_each_address(kind: str) -> None:
    client = Client(kind, limits="2/minute", clock=ManualClock())
    responses = [client.request() for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    [(name, parameters)] = parse_list(responses[0].headers["RateLimit"])
    assert (name, parameters["r"]) == ("default", 1)
    assert client.request(client="203.0.113.10").status_code == 200


def test_a_refusal_is_a_problem_with_the_exact_time_to_retry(kind: str) -> None:
    clock = ManualClock()
    client = Client(kind, limits="1/minute", clock=clock)
    client.request()
    refused = client.request()
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["content-length"]) == len(refused.content)
    body = refused.json()
    assert (body["status"], body["violated-policies"]) == (429, ["default"])
    clock.advance(int(refused.headers["Retry-After"]) * 1_000_000 - 1_000_000)
    assert client.request().status_code == 429
    clock.advance(1_000_000)
    assert client.request().status_code == 200


def test_every_response_has_the_fields_once(kind: str) -> None:
    client = Client(kind, limits="50/minute", headers=("draft-11", "x-delta"))
    for path in ("/", "/stream", "/missing", "/own"):
        response = client.request(path)
        assert len(response.headers.get_list("RateLimit-Policy")) == 1, path
        assert len(response.headers.get_list("RateLimit")) == 1, path
        assert len(response.headers.get_list("X-RateLimit-Remaining")) == 1, path
    assert client.request("/own").headers["RateLimit"] == '"mine";r=1', "the application's own field stays"
    assert client.request("/stream").text == "one two three"
    assert client.request("/missing").status_code == 404


def test_a_request_for_a_missing_path_is_counted_and_head_has_no_body(kind: str) -> None:
    client = Client(kind, limits="2/minute")
    assert statuses(client, {"path": "/missing"}, {"path": "/missing"}, {"path": "/missing"}) == [404, 404, 429]
    head = client.request(method="HEAD")
    assert (head.status_code, head.content) == (429, b"")
    assert int(head.headers["content-length"]) > 0


def test_the_preflight_of_a_browser_is_not_counted_and_other_options_are(kind: str) -> None:
    client = Client(kind, limits="1/minute")
    preflight = {"method": "OPTIONS", "Origin": "https://a.example", "Access_Control_Request_Method": "PUT"}
    for _ in range(3):
        assert client.request(**preflight).status_code != 429
    assert statuses(client, {"method": "OPTIONS"}, {"method": "OPTIONS"})[1] == 429


def test_a_key_a_cost_and_an_exemption_are_functions_of_the_request(kind: str) -> None:
    client = Client(
        kind,
        limits="10/minute",
        key=lambda request: request.headers.get("x-user"),
        cost=lambda request: int(request.headers.get("x-cost", "1")),
        exempt=lambda request: request.path == "/healthz",
    )
    assert statuses(client, {"x_user": "a", "x_cost": "9"}, {"x_user": "a", "x_cost": "2"}) == [200, 429]
    assert statuses(client, {"x_user": "b", "x_cost": "10"}) == [200]
    assert statuses(client, {"x_cost": "10"}, {}) == [200, 429], "a request without a key is counted by address"
    assert statuses(client, {"path": "/healthz", "x_user": "a"})[0] != 429


def test_limits_are_a_function_of_the_request(kind: str) -> None:
    tiers = {"pro": "3/minute", "free": "1/minute", "none": None}
    client = Client(
        kind,
        limits=lambda request: tiers[request.headers.get("x-tier", "free")],
        key=lambda request: ("user", request.headers["x-user"]),
    )
    assert statuses(client, *[{"x_user": "a"}] * 2) == [200, 429]
    assert statuses(client, *[{"x_user": "a", "x_tier": "pro"}] * 4) == [200, 200, 200, 429]
    assert statuses(client, *[{"x_user": "a", "x_tier": "none"}] * 5) == [200] * 5


def test_only_trusted_proxies_report_the_address(kind: str) -> None:
    client = Client(kind, limits="1/minute", trusted_proxies=["10.0.0.0/8"])
    forged = {"client": "10.0.0.1", "X_Forwarded_For": "1.2.3.4, 203.0.113.7"}
    assert statuses(client, forged, forged | {"X_Forwarded_For": "9.9.9.9, 203.0.113.7"}) == [200, 429]
    assert statuses(client, {"client": "198.51.100.1", "X_Forwarded_For": "203.0.113.8"}) == [200]
    assert statuses(client, {"client": "198.51.100.1", "X_Forwarded_For": "203.0.113.9"}) == [429]
    hops = Client(kind, limits="1/minute", trusted_hops=2)
    assert statuses(hops, *[{"X_Forwarded_For": f"{n}.1.1.1, 203.0.113.7, 10.0.0.9"} for n in range(1, 3)]) == [
        200,
        429,
    ]


def test_addresses_of_one_network_count_together_and_mapped_ones_as_the_address_that_they_map(kind: str) -> None:
    client = Client(kind, limits="1/minute")
    assert statuses(client, {"client": "2001:db8::1"}, {"client": "2001:db8::2"}) == [200, 429]
    assert statuses(client, {"client": "::ffff:192.0.2.1"}, {"client": "192.0.2.1"}) == [200, 429]
    assert statuses(client, {"client": "::ffff:192.0.2.2"}) == [200]


def test_a_policy_matches_the_whole_path_and_passes_paths_that_it_does_not_name(kind: str) -> None:
    client = Client(kind, POLICY)
    user = {"X_User_Id": "u1"}
    items = [{"path": "/api/items/1", **user}, {"path": "/api/items/2", **user}, {"path": "/api/items/3", **user}]
    assert [status == 429 for status in statuses(client, *items)] == [False, False, True]
    assert statuses(client, {"path": "/api/%69tems/4", **user}) == [429], "another spelling of the same path"
    assert client.request("/").headers.get("RateLimit") is None
    without_user = [{"path": f"/api/items/{number}"} for number in range(3)]
    assert [status == 429 for status in statuses(client, *without_user)] == [False, False, True], "no free pass"


def test_a_gate_of_the_right_colour_is_used_and_not_closed(kind: str) -> None:
    gate: Any = AsyncGate(POLICY) if kind == "asgi" else Gate(POLICY)
    other: Any = Gate(POLICY) if kind == "asgi" else AsyncGate(POLICY)
    client = Client(kind, gate)
    assert client.request("/api/items/1", X_User_Id="u").headers["RateLimit"].startswith('"items";r=1')
    assert client.app._enforcer._owned is None, "the caller who opened the gate closes it"
    with pytest.raises(ConfigError, match=r"this application needs an? (Async)?Gate, not an? (Async)?Gate"):
        Client(kind, other)


def test_the_response_to_a_refused_request_can_be_replaced(kind: str) -> None:
    def friendly(request: Request, decision: Any, usual: Refusal) -> Refusal | None:
        if request.path == "/plain":
            return None
        return Refusal(503, [("Retry-After", "7"), ("Content-Type", "text/html")], b"<p>slow down</p>")

    client = Client(kind, limits="1/minute", refusal=friendly)
    client.request()
    refused = client.request()
    assert (refused.status_code, refused.text, refused.headers["Retry-After"]) == (503, "<p>slow down</p>", "7")
    assert client.request("/plain").status_code == 429


def test_a_request_can_wait_for_units(kind: str) -> None:
    clock = ManualClock()
    client = Client(kind, limits="60/minute bucket", cost=60, wait=61.0, clock=clock)
    before = clock.now_us()
    assert statuses(client, {}, {}) == [200, 200]
    assert clock.now_us() - before == 60_000_000
    short = Client(kind, limits="60/minute bucket", cost=60, wait=0.5, clock=clock)
    assert statuses(short, {}, {}) == [200, 429]


def test_a_queue_spaces_requests(kind: str) -> None:
    for options in ({}, {"wait": 30.0}):
        clock = ManualClock()
        client = Client(kind, limits="1/second queue 5", clock=clock, **options)
        before = clock.now_us()
        assert statuses(client, *[{}] * 3) == [200] * 3
        assert clock.now_us() - before == 2_000_000, "each request waits for its turn, once"


def test_a_store_that_fails_never_causes_a_429(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate"):
        response = Client(kind, limits="1/minute", store=BrokenStore()).request()
    assert (response.status_code, response.headers["X-RateLimit-Degraded"]) == (200, "open")
    assert "no server is there" in caplog.text
    closed = Client(kind, limits="1/minute", store=BrokenStore(), on_store_error="closed").request()
    assert (closed.status_code, closed.headers["X-RateLimit-Degraded"]) == (503, "closed")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give a policy .* or limits; one of the two"),
        ({"policy": POLICY, "limits": "1/minute"}, "one of the two"),
        ({"policy": POLICY, "key": str}, "key goes with limits"),
        ({"policy": POLICY, "ruleset": "nope"}, "ruleset is one of the policy's, default, not 'nope'"),
        ({"policy": POLICY, "ruleset": None}, "ruleset is one of the policy's, default, not None"),
        ({"policy": POLICY, "ruleset": []}, r"ruleset is one of the policy's, default, not \[\]"),
        ({"limits": "5/minute", "ruleset": "default"}, "ruleset goes with a policy"),
        ({"policy": 5}, "a policy is the path of a file, its values or a Policy, not an int"),
        ({"policy": "5/minute"}, 'or a Policy; "5/minute" is no file .* limits="5/minute", or use Limiter'),
        (
            {"policy": "20 concurrent; 9 tokens/minit"},
            '; "20 concurrent; 9 tokens/minit" is no file and reads as limits',
        ),
        (
            {"policy": "version: 1\nrules: []\n"},
            "this text is that of a policy: write it to a file, or give its values",
        ),
        (
            {"limits": "5/minute", "trusted_proxies": None},
            "trusted_proxies are a list of networks, such as .*, not None",
        ),
        ({"limits": "5/minute", "trusted_proxies": iter(["10.0.0.0/8"])}, "trusted_proxies are a list of networks"),
        ({"limits": "1/minute", "address_header": "X-Real-IP"}, "address_header needs trusted_proxies"),
        ({"limits": "1/fortnight"}, "fortnight"),
        ({"limits": "1/minute", "headers": "draft-12"}, "draft-12"),
        ({"limits": "1/minute", "trusted_proxies": ["10.0.0.1/8"]}, "a network is written as"),
    ],
)
def test_invalid_options_raise_an_error(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Client(kind, **options)


def test_the_option_websockets_is_true_or_false() -> None:
    websockets: Any = "false"
    with pytest.raises(ConfigError, match="websockets is True or False, not 'false'"):
        asgi.RateLimitMiddleware(starlette(), limits="1/minute", websockets=websockets)


def test_an_unknown_option_raises_an_error(kind: str) -> None:
    with pytest.raises(TypeError, match=r"no option is named limit; did you mean limits\?"):
        Client(kind, limits="1/minute", limit=5)
    with pytest.raises(TypeError, match=r"no option is named trusted_hosts, x; did you mean trusted_hops\?"):
        Client(kind, limits="1/minute", trusted_hosts=1, x=2)
    with pytest.raises(TypeError, match=r"no option is named x$"):
        Client(kind, limits="1/minute", x=2)


def drive(app: Any, scope: dict[str, Any], *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what an application sends when it receives these messages."""
    sent: list[dict[str, Any]] = []
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()  # the client is still there
        return waiting.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def test_the_lifespan_reaches_the_application() -> None:
    received: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            received.append(message["type"])
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    middleware = asgi.RateLimitMiddleware(app, limits="1/minute")
    sent = drive(middleware, {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    assert received == ["lifespan.startup", "lifespan.shutdown"]
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize("options", [{"limits": "2/minute"}, {"limits": "2/minute", "store": "memory://"}, POLICY])
def test_counts_in_memory_outlive_a_lifespan(options: Any) -> None:
    all_options = {"policy": options} if options is POLICY else options
    client = Client("asgi", clock=ManualClock(), **all_options)
    passed = []
    for _ in range(5):
        passed += statuses(client, {"path": "/api/items/1", "x_user_id": "ann"})
        drive(client.app, {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    assert passed == [200, 200, 429, 429, 429]


def socket_scope(**extensions: Any) -> dict[str, Any]:
    return {
        "type": "websocket", "path": "/socket", "raw_path": b"/socket", "query_string": b"", "headers": [],
        "client": ("203.0.113.9", 1), "root_path": "", "scheme": "ws", "subprotocols": [], "extensions": extensions,
    }  # fmt: skip


def test_websockets_are_limited_where_that_is_configured() -> None:
    connect = {"type": "websocket.connect"}
    judged = asgi.RateLimitMiddleware(starlette(), limits="1/minute", websockets=True)
    accepted, text, _ = drive(judged, socket_scope(), connect)
    assert (accepted["type"], text["text"]) == ("websocket.accept", "hello")
    assert b"ratelimit" in dict(accepted["headers"])
    [closed] = drive(judged, socket_scope(), connect)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1013)
    start, body = drive(judged, socket_scope(**{"websocket.http.response": {}}), connect)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert b"quota-exceeded" in body["body"]
    free = asgi.RateLimitMiddleware(starlette(), limits="1/minute")
    for _ in range(3):
        assert drive(free, socket_scope(), connect)[0]["type"] == "websocket.accept"


def test_messages_that_are_not_heads_pass_as_they_are() -> None:
    """A stream's head is sent once, and its parts one by one."""
    middleware = asgi.RateLimitMiddleware(starlette(), limits="5/minute")
    scope = {"type": "http", "method": "GET", "path": "/stream", "raw_path": b"/stream", "headers": [],
             "client": ("203.0.113.9", 1), "query_string": b"", "root_path": "", "scheme": "http",
             "http_version": "1.1", "asgi": {"spec_version": "2.4"}}  # fmt: skip
    sent = drive(middleware, scope)
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * 4]
    assert b"".join(message["body"] for message in sent[1:]) == b"one two three"


def test_a_login_that_fails_counts_and_one_that_succeeds_does_not(kind: str) -> None:
    clock = ManualClock()
    client = Client(
        kind, limits="3/hour", clock=clock, counts=lambda request, response: response.status == 404, headers="none"
    )
    assert statuses(client, *[{"path": "/"}] * 9) == [200] * 9
    assert statuses(client, *[{"path": "/missing"}] * 4) == [404, 404, 404, 429]
    assert client.request("/").status_code == 429, "a refused request does not reach the application"


def test_a_cost_is_settled_when_the_response_is_complete(kind: str) -> None:
    clock = ManualClock()
    remaining: list[int | None] = []
    client = Client(
        kind,
        limits="100/hour",
        clock=clock,
        cost=20,
        counts=lambda request, response: response.body_bytes,
        on_decision=lambda request, decision: remaining.append(decision.remaining),
    )
    path = "/stream" if kind == "asgi" else "/"
    body = len(client.request(path).content)
    assert body == 13
    client.request(path)
    assert remaining == [80, 100 - body - 20]


def _counted(kind: str, app: Any, method: str = "GET") -> int:
    """Return the number of bytes of a body that `counts` gets."""
    counted_bytes: list[int] = []

    def count(request: Any, response: Any) -> bool:
        counted_bytes.append(response.body_bytes)
        return True

    options: Any = {"limits": "5/hour", "counts": count}
    if kind == "asgi":
        drive_scope(asgi.RateLimitMiddleware(app, **options), "/", method=method)
    else:
        client = Client(kind, limits="5/hour")
        client.app = wsgi.RateLimitMiddleware(app, **options)
        client.request(method=method)
    [body_bytes] = counted_bytes
    return body_bytes


def test_bytes_that_a_wsgi_application_writes_itself_count() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [])
        write(b"12345")
        return [b"678"]

    assert _counted("wsgi", app) == 8


@pytest.mark.parametrize("length", [None, b"1000", b"x"])
@pytest.mark.parametrize("how", ["pathsend", "zerocopysend", "some of it"])
def test_a_file_that_the_server_sends_counts(tmp_path: Path, how: str, length: bytes | None) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        fields = [] if length is None else [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        if how == "pathsend":
            await send({"type": "http.response.pathsend", "path": str(tmp_path / "file")})
            return
        with (tmp_path / "file").open("rb") as file:
            some = {"count": 10} if how == "some of it" else {}
            await send({"type": "http.response.zerocopysend", "file": file, "offset": 0, **some})

    assert _counted("asgi", app) == (10 if how == "some of it" else 1000)


def test_a_file_that_is_missing_counts_nothing(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.pathsend", "path": str(tmp_path / "gone")})

    assert _counted("asgi", app) == 0


def test_no_body_of_a_response_to_head_counts() -> None:
    assert _counted("asgi", starlette()) > 0
    assert _counted("asgi", starlette(), "HEAD") == 0


def test_a_cost_that_is_higher_than_its_estimate_consumes_the_remaining_units(kind: str) -> None:
    remaining: list[int | None] = []
    client = Client(
        kind,
        limits="100/hour",
        clock=ManualClock(),
        counts=lambda request, response: 70,
        on_decision=lambda request, decision: remaining.append(decision.remaining),
    )
    assert statuses(client, {}, {}, {}) == [200, 200, 429]
    assert remaining == [99, 29, 0]


def test_counts_that_fails_leaves_the_charge_and_is_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(kind, limits="2/hour", clock=ManualClock(), counts=lambda request, response: 1 // 0)
    assert statuses(client, {}, {}, {}) == [200, 200, 429]
    assert "the request counts as it was charged" in caplog.text


def test_an_application_that_raises_is_settled_as_a_500(kind: str) -> None:
    counted_statuses = []

    def counts(request: Request, response: Any) -> bool:
        counted_statuses.append(response.status)
        return False

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    client = Client(kind, limits="1/hour", clock=ManualClock(), counts=counts)
    client.app.app = broken
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            client.request()
    assert counted_statuses == [500] * 3


def test_concurrent_guesses_are_limited_like_consecutive_ones() -> None:
    reached = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal reached
        reached += 1
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    middleware = asgi.RateLimitMiddleware(
        app, limits="5/hour", clock=ManualClock(), counts=lambda request, response: response.status == 401
    )

    async def guess(session: httpx.AsyncClient) -> int:
        return (await session.get("http://shop.example/")).status_code

    async def main() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(middleware)) as session:
            return await asyncio.gather(*[guess(session) for _ in range(50)])

    assert sorted(asyncio.run(main())) == [401] * 5 + [429] * 45
    assert reached == 5


# Wrappers that add fields to a response, in both cores

ADDERS = [asgi.python_send_with_fields, *([cores.native.send_with_fields] if cores.native is not None else [])]
NATIVE_STARTERS = [cores.native.FieldStarter] if cores.native is not None else []
UNUSED: Any = None
OURS = [(b"ratelimit-policy", b"p"), (b"ratelimit", b"r")]


@pytest.mark.parametrize("send_with_fields", ADDERS)
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([], OURS),
        (None, OURS),
        ((), OURS),
        ([(b"a", b"1")], [(b"a", b"1"), *OURS]),
        (((b"a", b"1"), [b"b", b"2"]), [(b"a", b"1"), [b"b", b"2"], *OURS]),
        ([(b"ratelimit", b"mine")], [(b"ratelimit", b"mine"), OURS[0]]),
        ([(b"ratelimit-policy", b"mine"), (b"a", b"1")], [(b"ratelimit-policy", b"mine"), (b"a", b"1"), OURS[1]]),
        ([(b"ratelimit", b"x"), (b"ratelimit-policy", b"y")], [(b"ratelimit", b"x"), (b"ratelimit-policy", b"y")]),
        (
            [(b"RateLimit", b"mine"), [b"RATELIMIT-POLICY", b"y"]],
            [(b"RateLimit", b"mine"), [b"RATELIMIT-POLICY", b"y"]],
        ),
        ([("ratelimit", "text, which ASGI does not have")], [("ratelimit", "text, which ASGI does not have"), *OURS]),
    ],
)
@pytest.mark.parametrize("kind", ["http.response.start", "websocket.accept", "websocket.http.response.start"])
def test_fields_are_added_to_a_head_once(send_with_fields: Any, own: Any, expected: list[Any], kind: str) -> None:
    sent: list[Any] = []
    fields = list(OURS)

    def note(message: Any) -> Any:
        sent.append(message)
        return "awaitable"

    send = send_with_fields(note, fields)
    given = list(own) if isinstance(own, list) else own
    for again in range(2):  # an application can send the same list again
        assert send({"type": kind, "headers": given}) == "awaitable"
        assert sent[again] == {"type": kind, "headers": expected}
    assert given == own and fields == OURS
    send({"type": kind})
    assert sent[-1]["headers"] == OURS


@pytest.mark.parametrize("send_with_fields", ADDERS)
def test_other_messages_pass_as_they_are(send_with_fields: Any) -> None:
    sent: list[Any] = []
    send = send_with_fields(sent.append, list(OURS))
    messages = [{"type": "http.response.body", "body": b"x"}, {"type": "websocket.send", "headers": []}]
    for message in messages:
        send(message)
    assert [id(message) for message in sent] == [id(message) for message in messages]
    assert sent[1] == {"type": "websocket.send", "headers": []}
    with pytest.raises(KeyError):
        send({})
    generated = {"type": "http.response.start", "headers": (pair for pair in [(b"a", b"1")])}
    send(UserDict(generated))
    assert sent[-1] == {"type": "http.response.start", "headers": [(b"a", b"1"), *OURS]}


@pytest.mark.parametrize("send_with_fields", ADDERS)
def test_a_head_that_an_application_sends_again_is_not_changed(send_with_fields: Any) -> None:
    sent: list[Any] = []
    plain = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"1")]}
    for head in (plain, MappingProxyType(plain)):
        for remaining in (b"4", b"3"):
            send_with_fields(sent.append, [(b"ratelimit", remaining)])(head)
            assert sent[-1] == {**plain, "headers": [(b"a", b"1"), (b"ratelimit", remaining)]}
    assert plain == {"type": "http.response.start", "status": 200, "headers": [(b"a", b"1")]}


@pytest.mark.parametrize("counts", [{}, {"counts": lambda request, response: True}])
def test_each_client_gets_its_own_fields_from_an_application_with_one_head(counts: Any) -> None:
    head = {"type": "http.response.start", "status": 200, "headers": []}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(head)
        await send({"type": "http.response.body", "body": b""})

    middleware = asgi.RateLimitMiddleware(app, limits="5/hour", clock=ManualClock(), **counts)
    client = Client("asgi", limits="5/hour")
    client.app = middleware
    headers = [
        client.request(client=address).headers["ratelimit"] for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2")
    ]
    assert [fields.partition(";")[2].partition(";")[0] for fields in headers] == ["r=4", "r=3", "r=4"]


@pytest.mark.parametrize("header", [{}, {"trusted_hops": 1}])
@pytest.mark.parametrize("peer", ["", None, b"", b"/run/api.sock", "\udc80", "/run/\u00e4", 5])
def test_a_peer_without_an_address_is_counted_as_one(kind: str, peer: Any, header: Any) -> None:
    app: Any
    answered: list[Any] = []
    if kind == "wsgi":
        app = wsgi.RateLimitMiddleware(plain_wsgi, limits="2/minute", **header)
        for _ in range(3):
            app(
                {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": peer},
                lambda status, *_: answered.append(int(status[:3])),
            )
    else:

        async def send(message: Any) -> None:
            answered.extend([message["status"]] if "status" in message else [])

        app = asgi.RateLimitMiddleware(starlette(), limits="2/minute", **header)
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "client": (peer, 0)}
        for _ in range(3):
            asyncio.run(app(dict(scope), UNUSED, send))
    assert answered == [200, 200, 429]


@pytest.mark.parametrize("wrap", [*ADDERS, wsgi.python_start_with_fields, *NATIVE_STARTERS])
def test_a_wrapper_that_adds_fields_can_be_garbage_collected(wrap: Any) -> None:
    class Server:
        def send(self, *arguments: Any) -> None:
            pass

    server: Any = Server()
    server.scope = {"kept by the application": wrap(server.send, [])}
    reference = weakref.ref(server)
    del server
    gc.collect()
    assert reference() is None


STARTERS = [wsgi.python_start_with_fields, *NATIVE_STARTERS]
FIELDS = [("RateLimit-Policy", "p"), ("RateLimit", "r")]


@pytest.mark.parametrize("add_fields", STARTERS)
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([], FIELDS),
        ([("A", "1")], [("A", "1"), *FIELDS]),
        ((("A", "1"),), [("A", "1"), *FIELDS]),
        ([("ratelimit", "mine")], [("ratelimit", "mine"), FIELDS[0]]),
        ([("RATELIMIT-POLICY", "mine"), ["B", "2"]], [("RATELIMIT-POLICY", "mine"), ["B", "2"], FIELDS[1]]),
        ([("RateLimit", "x"), ("RateLimit-Policy", "y")], [("RateLimit", "x"), ("RateLimit-Policy", "y")]),
    ],
)
def test_fields_are_added_to_a_head_of_wsgi_once(add_fields: Any, own: Any, expected: list[Any]) -> None:
    heads: list[Any] = []

    def start_response(*arguments: Any) -> str:
        heads.append(arguments)
        return "write"

    start = add_fields(start_response, list(FIELDS))
    given = list(own) if isinstance(own, list) else own
    for error in ((), ("the error",)):
        assert start("200 OK", given, *error) == "write"
        assert heads[-1] == ("200 OK", expected, *error) and type(heads[-1][1]) is list
    assert given == own


@pytest.mark.skipif(cores.native is None, reason="there is no native gate")
@pytest.mark.parametrize("choice", ["open", "closed"])
def test_a_native_call_that_fails_is_not_repeated(kind: str, choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def late(*arguments: Any) -> Any:
        calls.append(arguments)
        raise StoreTimeout("another process holds the shard")

    gate = SimpleNamespace(decide=late, decide_environ=late)
    monkeypatch.setattr(RequestLimits, "web_gate", lambda self, kind, writes_fields, websockets: gate)
    client = Client(kind, limits="1/minute", on_store_error=choice)
    client.app._enforcer.decide = lambda request: pytest.fail("it is decided again")
    for number in range(1, 3):
        response = client.request()
        assert response.status_code == (200 if choice == "open" else 503)
        assert response.headers["X-RateLimit-Degraded"] == choice
        assert len(calls) == number


def test_an_error_of_the_application_is_not_handled_as_one_of_the_limiter() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise StoreUnavailable("the application's own store")

    app = asgi.RateLimitMiddleware(failing, limits="9/minute")
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("203.0.113.9", 1)}
    with pytest.raises(StoreUnavailable, match="own store"):
        asyncio.run(app(scope, UNUSED, UNUSED))


@pytest.mark.parametrize("host", ["shop.example", "user@Shop.example:80", "other.example:1@shop.example"])
def test_a_rule_for_a_host_matches_requests_that_name_it_after_a_user(host: str) -> None:
    rule = {"name": "shop", "by": ["host"], "match": {"host": "shop.example"}, "limits": "1/hour"}
    policy = {"version": 1, "exempt": [{"host": "user"}], "rules": [rule]}
    app = asgi.RateLimitMiddleware(Starlette(routes=[Route("/", _read)]), policy=policy)
    assert [drive_scope(app, "/", headers=[(b"host", host.encode())])[0]["status"] for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("by", ["ip", "method"])
def test_a_method_that_is_sent_in_small_letters_is_the_one_in_capitals(by: str) -> None:
    rule = {"name": "login", "by": [by], "match": {"method": "POST"}, "limits": "1/hour"}
    app = asgi.RateLimitMiddleware(Starlette(routes=[Route("/", _read)]), {"version": 1, "rules": [rule]})
    received = [drive_scope(app, "/", method=method)[0]["status"] for method in ("POST", "post", "Post", "pOST")]
    assert received == [405, 429, 429, 429]
