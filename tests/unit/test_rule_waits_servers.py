"""Rules that let requests wait, in front of sync and async frameworks: client messages, deadlines and disconnects."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from grpc import aio
from litestar import Litestar, get
from starlette import requests
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

import django_configured  # noqa: F401 - the imports below read its settings

# isort: split

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path as route

from headgate import AsyncGate, Gate, Request
from headgate.http import asgi, wsgi
from headgate.http.server.client_watch import ClientWatch
from headgate.integrations import aiohttp as limited_aiohttp
from headgate.integrations import fastapi as limited_fastapi
from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from headgate.integrations.litestar import RateLimitPlugin
from headgate.integrations.starlette import RateLimits, RouteLimit
from headgate.service.app import Service
from headgate.service.http.messages import ServiceRequest, ServiceResponse, WaitingReply
from headgate.testing import ManualClock
from until import until, until_async

MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"


def policy(limits: str, wait: str, **rule: Any) -> dict[str, Any]:
    return {"version": 1, "rules": [{"name": "all", "by": [], "limits": limits, "wait": wait, **rule}]}


RATE = policy("20/second bucket", "20s")
NEVER = policy("1/hour", "1h")
PLACE = policy("1 concurrent", "1h")


def scope(kind: str = "http", **more: Any) -> dict[str, Any]:
    fields = {
        "type": kind, "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": [],
        "client": ("203.0.113.9", 1), "server": ("shop.example", 80), "root_path": "", "scheme": "http",
        "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.4"}, "subprotocols": [],
    }  # fmt: skip
    return {**fields, **more}


class AsgiClient:
    """A client of an ASGI application that sends messages at chosen moments and records the reply."""

    def __init__(self, app: Any, kind: str = "http", **more: Any) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.task = asyncio.ensure_future(app(scope(kind, **more), self.messages.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(dict(message))

    def send_body(self, body: bytes, *, more: bool = False) -> None:
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def disconnect(self, kind: str = "http") -> None:
        self.messages.put_nowait({"type": f"{kind}.disconnect"})

    async def status(self) -> int:
        await asyncio.wait_for(self.task, 30)
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Reply with the parts of the received body, one for each message, joined by `|`."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        assert message["type"] == "http.request", message
        parts.append(message["body"])
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"|".join(parts)})


def test_messages_that_arrive_while_a_request_waits_are_passed_on_in_order() -> None:
    async def main() -> None:
        gate = AsyncGate(PLACE)
        app = asgi.RateLimitMiddleware(echo, policy=gate)
        held = await gate.reserve(Request(), lease=600)
        client = AsgiClient(app)
        client.send_body(b"a", more=True)
        await until_async(lambda: gate._waits.waiting == 1)
        client.send_body(b"b", more=True)
        await until_async(client.messages.empty)
        await held.commit()
        await asyncio.sleep(0.05)
        client.send_body(b"c", more=True)
        client.send_body(b"d")
        assert await client.status() == 200 and client.body == b"a|b|c|d"
        quick = AsgiClient(app)
        quick.send_body(b"whole")
        assert await quick.status() == 200 and quick.body == b"whole"

    asyncio.run(main())


def test_only_a_bounded_part_of_a_body_is_received_while_its_request_waits() -> None:
    async def main() -> None:
        gate = AsyncGate(PLACE)
        held = await gate.reserve(Request(), lease=600)
        client = AsgiClient(asgi.RateLimitMiddleware(echo, policy=gate))
        for _ in range(40):
            client.send_body(b"x" * 10_000, more=True)
        client.send_body(b"")
        await until_async(lambda: gate._waits.waiting == 1)
        await asyncio.sleep(0.05)
        assert client.messages.qsize() > 30
        await held.commit()
        assert await client.status() == 200 and client.body.count(b"x") == 400_000

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_client_that_disconnects_is_refused_and_never_reaches_the_application(kind: str) -> None:
    async def main() -> None:
        gate = AsyncGate(NEVER)
        assert await gate.hit(Request())
        decided: list[bool] = []
        app = asgi.RateLimitMiddleware(
            echo, policy=gate, websockets=True, on_decision=lambda _, decision: decided.append(decision.allowed)
        )
        client = AsgiClient(app, kind)
        if kind == "http":
            client.send_body(b"")
        else:
            client.messages.put_nowait({"type": "websocket.connect"})
        await until_async(lambda: gate._waits.waiting == 1)
        client.disconnect(kind)
        await asyncio.wait_for(client.task, 30)
        assert decided == [False] and not gate._waits.lines

    asyncio.run(main())


def of_asgi(**options: Any) -> Any:
    return asgi.RateLimitMiddleware(echo, **options)


def of_starlette(**options: Any) -> Any:
    return RouteLimit(echo, rate_limits=RateLimits(), **options)


def of_litestar(**options: Any) -> Any:
    @get("/", sync_to_thread=False)
    def read() -> str:
        return "read"

    return Litestar([read], plugins=[RateLimitPlugin(**options)])


def of_endpoint(**options: Any) -> Any:
    @RateLimits()(**options)
    async def read(request: requests.Request) -> Response:
        return Response(await request.body())

    return Starlette(routes=[Route("/", read)])


def of_fastapi(**options: Any) -> Any:
    limit = Depends(limited_fastapi.RateLimits()(**options))

    async def read(request: requests.Request) -> Response:
        return Response(await request.body())

    return FastAPI(routes=[APIRoute("/", read, dependencies=[limit])])


@pytest.mark.parametrize("make", [of_asgi, of_starlette, of_litestar, of_endpoint, of_fastapi])
def test_clients_that_disconnect_while_they_wait_for_plain_limits_are_refused(make: Any) -> None:
    async def main() -> None:
        decided: list[bool] = []
        app = make(
            limits="1/hour bucket", wait=7200.0, on_decision=lambda _, decision: decided.append(decision.allowed)
        )
        first = AsgiClient(app)
        first.send_body(b"")
        assert await first.status() == 200
        abandoned = [AsgiClient(app) for _ in range(5)]
        for client in abandoned:
            client.disconnect()
        assert [await client.status() for client in abandoned] == [429] * 5
        assert decided == [True] + [False] * 5

    asyncio.run(main())


@pytest.mark.parametrize("make", [of_endpoint, of_fastapi])
def test_bodies_are_passed_on_to_endpoints_that_are_called_after_a_wait(make: Any) -> None:
    async def main() -> None:
        app = make(limits="20/second bucket", wait=20.0)
        clients = [AsgiClient(app) for _ in range(40)]
        for client in clients:
            client.send_body(b"a", more=True)
            await asyncio.sleep(0)
            client.send_body(b"b", more=True)
            client.send_body(b"c")
        assert [(await client.status(), client.body) for client in clients] == [(200, b"abc")] * 40

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["endpoint", "dependency"])
def test_streams_after_a_wait_end_when_their_client_disconnects(kind: str) -> None:
    async def main() -> None:
        async def parts() -> Any:
            while True:
                yield b"part"
                await asyncio.sleep(0.001)

        async def read(request: requests.Request) -> Response:
            return StreamingResponse(parts())

        app: Any
        if kind == "endpoint":
            endpoint = RateLimits()("20/second burst 1", wait=20.0)(read)
            app = Starlette(routes=[Route("/", endpoint)])
        else:
            limit = Depends(limited_fastapi.RateLimits()("20/second burst 1", wait=20.0))
            app = FastAPI(routes=[APIRoute("/", read, dependencies=[limit])])
        # In an older version of ASGI, a send to a client that has disconnected does not fail.
        clients = [AsgiClient(app, asgi={"version": "3.0", "spec_version": "2.3"}) for _ in range(3)]
        for client in clients:
            client.send_body(b"")
            await until_async(lambda: len(client.sent) > 2)  # noqa: B023 - the wait ends before the next iteration
            client.disconnect()
            await asyncio.wait_for(client.task, 30)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["endpoint", "dependency"])
def test_websockets_that_disconnect_while_their_endpoint_waits_are_refused(kind: str) -> None:
    async def main() -> None:
        decided: list[bool] = []
        options: Any = {"wait": 7200.0, "on_decision": lambda _, decision: decided.append(decision.allowed)}

        async def echo_text(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.send_text(await websocket.receive_text())

        app: Any
        if kind == "endpoint":
            endpoint = RateLimits()("1/hour bucket", **options)(echo_text)
            app = Starlette(routes=[WebSocketRoute("/", endpoint)])
        else:
            app = FastAPI()
            limit = Depends(limited_fastapi.RateLimits()("1/hour bucket", **options))
            app.add_api_websocket_route("/", echo_text, dependencies=[limit])
        for _ in range(4):
            client = AsgiClient(app, "websocket")
            client.messages.put_nowait({"type": "websocket.connect"})
            if not decided:
                client.messages.put_nowait({"type": "websocket.receive", "text": "well"})
                await asyncio.wait_for(client.task, 30)
                assert [message.get("text") for message in client.sent] == [None, "well"]
            else:
                client.disconnect("websocket")
                await asyncio.wait_for(client.task, 30)
                assert client.sent[0]["type"] == "websocket.close"
        assert decided == [True] + [False] * 3

    asyncio.run(main())


def test_a_cancelled_request_leaves_the_line_of_plain_limits() -> None:
    async def main() -> None:
        app = asgi.RateLimitMiddleware(echo, limits="1/hour bucket", wait=7200.0)
        first = AsgiClient(app)
        first.send_body(b"")
        assert await first.status() == 200
        for turns in range(6):  # it is cancelled before it begins to wait, and while it waits
            client = AsgiClient(app)
            for _ in range(turns):
                await asyncio.sleep(0)
            client.task.cancel()
            await asyncio.wait([client.task])
            assert client.task.cancelled()
            client.disconnect()  # for a task that may still receive
        await until_async(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(main())


def test_a_cancelled_request_leaves_the_line() -> None:
    async def main() -> None:
        gate = AsyncGate(NEVER)
        assert await gate.hit(Request())
        client = AsgiClient(asgi.RateLimitMiddleware(echo, policy=gate))
        await until_async(lambda: gate._waits.waiting == 1)
        client.task.cancel()
        await asyncio.wait([client.task])
        assert not gate._waits.lines

    asyncio.run(main())


def test_a_server_that_fails_to_receive_fails_for_the_application() -> None:
    async def main() -> None:
        async def fail() -> Any:
            raise OSError("the connection is gone")

        watch = ClientWatch(fail)
        watch.begin(lambda: None)
        await asyncio.sleep(0.01)
        watch.end()
        with pytest.raises(OSError, match="gone"):
            await watch.receive()

    asyncio.run(main())


def test_the_numbers_reported_after_a_wait_are_those_of_the_last_decision() -> None:
    async def main() -> None:
        gate = AsyncGate(policy("2/second burst 2", "20s"), clock=ManualClock())
        app = asgi.RateLimitMiddleware(echo, policy=gate)
        reported = []
        for _ in range(4):
            client = AsgiClient(app)
            client.send_body(b"")
            assert await client.status() == 200
            reported.append(dict(client.sent[0]["headers"])[b"ratelimit"])
        assert [each.split(b";")[1] for each in reported] == [b"r=1", b"r=0", b"r=0", b"r=0"]

    asyncio.run(main())


def test_a_reload_may_allow_or_end_waiting() -> None:
    async def main() -> None:
        gate = AsyncGate(policy("4/second bucket", "20s"))
        app = asgi.RateLimitMiddleware(echo, policy=gate)
        plain: dict[str, Any] = {"version": 1, "rules": [{"name": "all", "by": [], "limits": "4/second bucket"}]}

        async def statuses() -> set[int]:
            clients = [AsgiClient(app) for _ in range(8)]
            for client in clients:
                client.send_body(b"")
            return {await client.status() for client in clients}

        assert await statuses() == {200}
        gate.reload(plain)
        assert await statuses() == {200, 429} or await statuses() == {429}
        gate.reload(policy("4/second bucket", "20s"))
        assert await statuses() == {200}

    asyncio.run(main())


# Other frameworks.


class Urls:
    """Django's views."""

    def __init__(self) -> None:
        self.urlpatterns = [route("", lambda request: HttpResponse("whole"))]


def status_of(app: Any) -> int:
    """The status with which a WSGI application replies."""
    statuses: list[int] = []
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": "", "SCRIPT_NAME": "",
        "SERVER_NAME": "shop.example", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "203.0.113.9", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(), "wsgi.version": (1, 0),
        "wsgi.errors": None, "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
    }  # fmt: skip

    def start(status: str, headers: Any, error: Any = None) -> Any:
        statuses.append(int(status.split()[0]))
        return lambda part: None

    body = app(environ, start)
    b"".join(body)
    getattr(body, "close", lambda: None)()
    return statuses[0]


def flask_app() -> Any:
    app = flask.Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "whole", endpoint="whole")
    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, policy=RATE)  # type: ignore[method-assign]
    return app.wsgi_app


@pytest.fixture(params=["flask", "django"])
def wsgi_app(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "flask":
        yield flask_app()
        return
    with override_settings(MIDDLEWARE=[MIDDLEWARE], HEADGATE={"policy": RATE}, ROOT_URLCONF=Urls()):
        yield WSGIHandler()


def test_requests_wait_in_their_threads(wsgi_app: Any) -> None:
    with ThreadPoolExecutor(16) as threads:
        pending = [threads.submit(lambda: status_of(wsgi_app)) for _ in range(40)]
        assert {each.result(60) for each in pending} == {200}


@pytest.mark.parametrize("kind", ["django", "litestar"])
def test_requests_wait_on_event_loops(kind: str) -> None:
    @get("/")
    async def whole() -> str:
        return "whole"

    async def main() -> None:
        app: Any = ASGIHandler() if kind == "django" else Litestar([whole], plugins=[RateLimitPlugin(RATE)])
        clients = [AsgiClient(app) for _ in range(40)]
        for client in clients:
            client.send_body(b"")
        assert {await client.status() for client in clients} == {200}

    with override_settings(MIDDLEWARE=[MIDDLEWARE], HEADGATE={"policy": RATE}, ROOT_URLCONF=Urls()):
        asyncio.run(main())


def test_a_client_of_litestar_that_disconnects_leaves_the_line() -> None:
    async def main() -> None:
        gate = AsyncGate(NEVER)
        assert await gate.hit(Request())

        @get("/")
        async def whole() -> str:
            return "whole"

        client = AsgiClient(Litestar([whole], plugins=[RateLimitPlugin(gate)]))
        client.send_body(b"")
        await until_async(lambda: gate._waits.waiting == 1)
        client.disconnect()
        assert await client.status() == 429

    asyncio.run(main())


def test_requests_of_aiohttp_wait_and_leave_when_they_are_cancelled() -> None:
    async def main() -> None:
        gate = AsyncGate(PLACE)
        entered, release = asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> web.Response:
            entered.set()
            await release.wait()
            return web.Response(text="slow")

        app = web.Application()
        app.router.add_get("/", slow)
        limited_aiohttp.setup(app, gate)
        async with TestClient(TestServer(app, handler_cancellation=True)) as client:
            first = asyncio.ensure_future(client.get("/"))
            await entered.wait()
            abandoned = asyncio.ensure_future(client.get("/"))
            await until_async(lambda: gate._waits.waiting == 1)
            abandoned.cancel()
            await until_async(lambda: gate._waits.waiting == 0)
            second = asyncio.ensure_future(client.get("/"))
            await until_async(lambda: gate._waits.waiting == 1)
            release.set()
            assert [(await first).status, (await second).status] == [200, 200]

    asyncio.run(asyncio.wait_for(main(), 60))


# gRPC, in real servers.


class Calls:
    """Handlers for threads, one of which waits until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def slow(self, message: bytes, context: Any) -> bytes:
        self.entered.set()
        self.release.wait(60)
        return b"slow"

    def quick(self, message: bytes, context: Any) -> bytes:
        return b"quick"

    def generic(self) -> Any:
        kinds: dict[str, Any] = {
            "Slow": grpc.unary_unary_rpc_method_handler(self.slow),
            "Quick": grpc.unary_unary_rpc_method_handler(self.quick),
        }
        return grpc.method_handlers_generic_handler("shop.Shop", kinds)


class AsyncCalls(Calls):
    """The same handlers on an event loop."""

    async def slow(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        self.entered.set()
        await asyncio.to_thread(self.release.wait, 60)
        return b"slow"

    async def quick(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        return b"quick"


def _calls_wait(address: str, calls: Calls, gate: Gate | AsyncGate) -> None:
    channel: Any
    with grpc.insecure_channel(address) as channel:
        slow, quick = (channel.unary_unary(f"/shop.Shop/{name}") for name in ("Slow", "Quick"))
        first = slow.future(b"", timeout=60)
        assert calls.entered.wait(20)
        abandoned = quick.future(b"", timeout=600)
        until(lambda: gate._waits.waiting == 1)
        abandoned.cancel()
        until(lambda: gate._waits.waiting == 0)
        with pytest.raises(grpc.RpcError) as late:  # its deadline passes first
            quick(b"", timeout=0.3)
        assert late.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
        until(lambda: gate._waits.waiting == 0)
        second = quick.future(b"", timeout=60)
        until(lambda: gate._waits.waiting == 1)
        calls.release.set()
        assert (first.result(), second.result()) == (b"slow", b"quick")


def test_calls_in_threads_wait_no_longer_than_their_clients() -> None:
    gate, calls = Gate(PLACE), Calls()
    server = grpc.server(ThreadPoolExecutor(8), interceptors=[RateLimitInterceptor(gate)])
    server.add_generic_rpc_handlers((calls.generic(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        _calls_wait(f"127.0.0.1:{port}", calls, gate)
    finally:
        calls.release.set()
        server.stop(None).wait(20)


def test_calls_on_an_event_loop_wait_no_longer_than_their_clients() -> None:
    async def main() -> None:
        gate, calls = AsyncGate(PLACE), AsyncCalls()
        server = aio.server(interceptors=[AsyncRateLimitInterceptor(gate)])
        server.add_generic_rpc_handlers((calls.generic(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await asyncio.to_thread(_calls_wait, f"127.0.0.1:{port}", calls, gate)
        finally:
            calls.release.set()
            await server.stop(None)

    asyncio.run(asyncio.wait_for(main(), 90))


# The service, without a connection.


async def _await_reply(reply: WaitingReply) -> ServiceResponse:
    async with asyncio.timeout(30):
        return await reply


def test_a_waiting_reply_can_be_abandoned() -> None:
    async def main() -> None:
        service = Service(AsyncGate(NEVER))
        body = json.dumps({"request": {"path": "/a"}}).encode()
        for path in ("/v1/check", "/check/default", "/check-403/default", "/v1/reserve"):
            request = ServiceRequest("POST", path, [], "127.0.0.1", body)
            reply = service.answer(request)
            assert isinstance(reply, WaitingReply)
            if service.gate._waits.lines or path != "/v1/check":
                reply.leave()
            assert (await _await_reply(reply)).status in (200, 429, 403)
        assert not service.gate._waits.lines

    asyncio.run(main())


def test_threads_that_wait_end_when_their_time_is_over() -> None:
    gate = Gate(policy("1 concurrent", "200ms"))
    gate.reserve(Request(), lease=600)
    with ThreadPoolExecutor(8) as threads:
        pending = [threads.submit(lambda: gate.acquire(Request(), lease=60)) for _ in range(8)]
        assert not any(each.result(60) for each in pending)
    assert not gate._waits.lines
    assert threading.active_count() < 50
