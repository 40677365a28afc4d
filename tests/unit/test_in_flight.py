"""Requests in flight in front of ASGI applications: a limited number, freed when a response has ended in any way."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest
from fastapi import APIRouter, Depends, FastAPI
from litestar import Litestar, get
from litestar.response import Stream
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

import django_configured  # noqa: F401 - what follows asks for its settings

# isort: split

from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path as route
from django.utils.functional import SimpleLazyObject

from headgate import AsyncGate, AsyncLimiter, ConfigError, Limiter, MemoryStore, StoreUnavailable
from headgate.http import asgi
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.held_request import HeldRequest
from headgate.integrations import django, fastapi, litestar, starlette
from headgate.policy.request import Request
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from subjects import REDIS, redis_url
from versions import is_older, needs

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class BlockingHandlers:
    """Handlers that wait until they are released, and the number of those that run."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.running = 0

    async def slow(self, request: Any = None) -> PlainTextResponse:
        self.running += 1
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        return PlainTextResponse("slow")

    async def parts(self) -> AsyncIterator[bytes]:
        self.running += 1
        try:
            yield b"first"
            await self.release.wait()
            yield b"last"
        finally:
            self.running -= 1

    async def stream(self, request: Any = None) -> StreamingResponse:
        return StreamingResponse(self.parts())

    async def failing_stream(self, request: Any = None) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            raise KeyError("in the middle")

        return StreamingResponse(parts())

    async def fail(self, request: Any = None) -> PlainTextResponse:
        raise KeyError("before the head")

    async def background(self, request: Any = None) -> PlainTextResponse:
        return PlainTextResponse("answered", background=BackgroundTask(self.slow))

    async def quick(self, request: Any = None) -> PlainTextResponse:
        return PlainTextResponse("quick")

    @property
    def by_path(self) -> dict[str, Any]:
        names = ("slow", "stream", "failing_stream", "fail", "background", "quick")
        return {f"/{name}": getattr(self, name) for name in names}


def _starlette(handlers: BlockingHandlers, **options: Any) -> Starlette:
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.by_path.items()], **options)


def limits_of_the_application(handlers: BlockingHandlers, limits: str) -> Asgi:
    return asgi.RateLimitMiddleware(_starlette(handlers), limits=limits)


def policy_of_the_application(handlers: BlockingHandlers, limits: str) -> Asgi:
    rules = [{"name": "user", "by": ["ip"], "limits": limits}, {"name": "other", "by": [], "limits": "9000/minute"}]
    return asgi.RateLimitMiddleware(_starlette(handlers), {"version": 1, "rules": rules})


def routes_of_starlette(handlers: BlockingHandlers, limits: str) -> Asgi:
    limit = Middleware(starlette.RouteLimit, limits=limits, scope="all")
    return _starlette(handlers, middleware=[limit])


def endpoints_of_starlette(handlers: BlockingHandlers, limits: str) -> Asgi:
    limited = starlette.RateLimits(scope="all")(limits)

    def of_request(handler: Any) -> Any:
        async def endpoint(request: StarletteRequest) -> Any:
            return await handler(request)

        return limited(endpoint)

    return Starlette(routes=[Route(path, of_request(handler)) for path, handler in handlers.by_path.items()])


def dependencies_of_fastapi(handlers: BlockingHandlers, limits: str) -> Asgi:
    limit = fastapi.RateLimits(scope="all")
    app, router = FastAPI(), APIRouter(dependencies=[Depends(limit(limits))])
    for path, handler in handlers.by_path.items():

        def endpoint(handler: Any = handler) -> Any:
            async def of() -> Any:
                return await handler()

            return of

        router.add_api_route(path, endpoint(), response_model=None)
    app.include_router(router)
    app.add_middleware(fastapi.RateLimitHeaders)
    return app


def layers_of_litestar(handlers: BlockingHandlers, limits: str) -> Asgi:
    @get("/slow")
    async def slow() -> str:
        return bytes((await handlers.slow()).body).decode()

    @get("/stream")
    async def stream() -> Stream:
        return Stream(handlers.parts())

    @get("/fail")
    async def fail() -> None:
        raise KeyError

    @get("/quick")
    async def quick() -> str:
        return "quick"

    limit = litestar.RateLimits(scope="all")
    return Litestar([slow, stream, fail, quick], middleware=[limit(limits)], openapi_config=None)


APPLICATIONS = [
    limits_of_the_application,
    policy_of_the_application,
    routes_of_starlette,
    endpoints_of_starlette,
    dependencies_of_fastapi,
    layers_of_litestar,
]


class SentRequest:
    """A request in progress: its messages so far, and its task."""

    def __init__(self, app: Asgi, path: str, method: str = "GET", headers: Sequence[Any] = ()) -> None:
        self.messages: list[Any] = []
        self.disconnected = asyncio.Event()
        self._has_body = False
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": list(headers),
            "client": ("203.0.113.9", 5000), "server": ("shop.example", 80), "state": {},
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._has_body:
            self._has_body = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(dict(message))
        if self.is_complete:
            self.disconnected.set()

    @property
    def is_complete(self) -> bool:
        last = self.messages[-1] if self.messages else {"type": ""}
        return bool(last["type"] == "http.response.body" and not last.get("more_body"))

    async def status(self) -> int:
        await asyncio.gather(self.task, return_exceptions=True)
        return next((m["status"] for m in self.messages if m["type"] == "http.response.start"), 0)


async def until(holds: Callable[[], object]) -> None:
    """Let the event loop run until a condition holds."""
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition never held")


def run(test: Callable[[BlockingHandlers], Awaitable[None]]) -> None:
    async def running() -> None:
        async with asyncio.timeout(30):
            await test(BlockingHandlers())

    asyncio.run(running())


@pytest.mark.parametrize("build", APPLICATIONS)
@pytest.mark.parametrize("path", ["/slow", "/stream"])
def test_no_more_requests_are_in_flight_than_the_limit_says(build: Any, path: str) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        app = build(handlers, "2 concurrent; 1000/minute")
        both = [SentRequest(app, path), SentRequest(app, path)]
        await until(lambda: handlers.running == 2)
        assert await SentRequest(app, "/quick").status() == 429
        handlers.release.set()
        assert [await sent.status() for sent in both] == [200, 200]
        assert [await SentRequest(app, "/quick").status() for _ in range(5)] == [200] * 5

    run(test)


@pytest.mark.parametrize("build", APPLICATIONS)
def test_a_request_that_fails_or_is_cancelled_is_freed(build: Any) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        app = build(handlers, "1 concurrent")
        for path in ("/fail", "/failing_stream", "/nothing"):
            await SentRequest(app, path).status()
            assert await SentRequest(app, "/quick").status() == 200, path
        for path in ("/slow", "/stream"):
            sent = SentRequest(app, path)
            await until(lambda: handlers.running == 1)
            sent.task.cancel()
            await sent.status()
            await until(lambda: handlers.running == 0)
            assert await SentRequest(app, "/quick").status() == 200, path

    run(test)


@pytest.mark.parametrize("build", APPLICATIONS)
def test_a_client_that_disconnects_during_a_stream_frees_its_place(build: Any) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        app = build(handlers, "1 concurrent")
        sent = SentRequest(app, "/stream")
        await until(lambda: handlers.running == 1)
        sent.disconnected.set()
        await sent.status()
        assert await SentRequest(app, "/quick").status() == 200

    run(test)


@pytest.mark.parametrize("build", APPLICATIONS[:-1])
def test_background_work_is_not_in_flight(build: Any) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        app = build(handlers, "1 concurrent")
        sent = SentRequest(app, "/background")
        await until(lambda: sent.is_complete and handlers.running == 1)
        assert not sent.task.done()
        assert await SentRequest(app, "/quick").status() == 200
        handlers.release.set()
        assert await sent.status() == 200

    run(test)


def test_an_inner_refusal_frees_the_holds_of_outer_limits() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        outer, inner = fastapi.RateLimits(), fastapi.RateLimits()
        app = FastAPI(dependencies=[Depends(outer("2 concurrent; 100/minute fixed", scope="outer"))])

        @app.get("/slow", dependencies=[Depends(inner("1 concurrent"))])
        async def slow() -> str:
            await handlers.slow()
            return "slow"

        @app.get("/quick")
        async def quick() -> str:
            return "quick"

        app.add_middleware(fastapi.RateLimitHeaders)
        first = SentRequest(app, "/slow")
        await until(lambda: handlers.running == 1)
        assert [await SentRequest(app, "/slow").status() for _ in range(3)] == [429] * 3
        assert await SentRequest(app, "/quick").status() == 200  # of the outer two places one is free
        handlers.release.set()
        assert await first.status() == 200
        last = SentRequest(app, "/quick")
        assert await last.status() == 200
        headers = dict(last.messages[0]["headers"])
        assert b"r=97" in headers[b"ratelimit"]  # refusals have charged nothing: three requests have passed

    run(test)


def test_a_nested_middleware_holds_its_own_places_and_all_are_freed() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        store = MemoryStore()
        inner = asgi.RateLimitMiddleware(_starlette(handlers), limits="1 concurrent", store=store)
        app = asgi.RateLimitMiddleware(inner, limits="2 concurrent", store=store)
        first = SentRequest(app, "/slow")
        await until(lambda: handlers.running == 1)
        assert [await SentRequest(app, "/quick").status() for _ in range(3)] == [429] * 3
        handlers.release.set()
        assert await first.status() == 200
        assert [await SentRequest(app, "/quick").status() for _ in range(3)] == [200] * 3

    run(test)


def test_the_actual_cost_is_settled_with_the_place() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        app = asgi.RateLimitMiddleware(
            _starlette(handlers),
            limits="1 concurrent; 10/hour fixed; 100 bytes/hour fixed",
            cost={"bytes": 50},
            counts=lambda request, response: {"bytes": response.body_bytes} if response.status == 200 else False,
            clock=ManualClock(),
        )
        assert await SentRequest(app, "/quick").status() == 200
        assert await SentRequest(app, "/nothing").status() == 404
        last = SentRequest(app, "/quick")
        assert await last.status() == 200
        headers = dict(last.messages[0]["headers"])[b"ratelimit"].decode()
        assert "r=8" in headers and "r=45" in headers  # 5 bytes counted of the first, nothing of the second

    run(test)


def test_a_failing_counts_function_frees_the_place(caplog: pytest.LogCaptureFixture) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        def counts(request: Any, response: Any) -> bool:
            raise KeyError

        app = asgi.RateLimitMiddleware(_starlette(handlers), limits="1 concurrent", counts=counts)
        with caplog.at_level(logging.CRITICAL, "headgate"):
            assert [await SentRequest(app, "/quick").status() for _ in range(3)] == [200] * 3

    run(test)


def test_tiers_may_have_places_or_none() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        tier = {"tier": "paid"}
        limits = {"default": "1 concurrent", "paid": "100/minute"}
        app = asgi.RateLimitMiddleware(_starlette(handlers), limits=limits, tier=lambda request: tier["tier"])
        paid = [SentRequest(app, "/slow") for _ in range(3)]
        await until(lambda: handlers.running == 3)
        tier["tier"] = "free"
        free = SentRequest(app, "/slow")
        await until(lambda: handlers.running == 4)
        assert await SentRequest(app, "/quick").status() == 429
        handlers.release.set()
        assert [await sent.status() for sent in (*paid, free)] == [200] * 4
        assert await SentRequest(app, "/quick").status() == 200

    run(test)


def test_a_reload_that_adds_or_removes_limits_in_flight_is_followed() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        rule = {"name": "user", "by": ["ip"], "limits": "100/minute"}
        gate = AsyncGate({"version": 1, "rules": [rule]}, store=MemoryStore())
        app = asgi.RateLimitMiddleware(_starlette(handlers), gate)
        assert await SentRequest(app, "/quick").status() == 200
        gate.reload({"version": 1, "rules": [{**rule, "limits": "1 concurrent"}]})
        first = SentRequest(app, "/slow")
        await until(lambda: handlers.running == 1)
        assert await SentRequest(app, "/quick").status() == 429
        gate.reload({"version": 1, "rules": [rule]})
        assert await SentRequest(app, "/quick").status() == 200
        gate.reload({"version": 1, "rules": [{**rule, "limits": "1 concurrent"}]})
        handlers.release.set()
        assert await first.status() == 200
        assert await SentRequest(app, "/quick").status() == 200

    run(test)


def test_requests_without_a_rule_in_flight_are_not_held() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        rules = [
            {"name": "slow", "by": ["ip"], "match": {"path": "/slow"}, "limits": "1 concurrent"},
            {"name": "all", "by": ["ip"], "limits": "100/minute"},
        ]
        store = MemoryStore()
        app = asgi.RateLimitMiddleware(_starlette(handlers), {"version": 1, "rules": rules}, store=store)
        assert [await SentRequest(app, "/quick").status() for _ in range(3)] == [200] * 3
        assert store.stats().holds == 0
        first = SentRequest(app, "/slow")
        await until(lambda: handlers.running == 1)
        assert store.stats().holds > 0
        assert await SentRequest(app, "/slow").status() == 429
        handlers.release.set()
        assert await first.status() == 200

    run(test)


def test_a_websocket_is_in_flight_until_it_is_closed() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        async def socket(websocket: Any) -> None:
            await websocket.accept()
            await handlers.slow()
            await websocket.close()

        app = asgi.RateLimitMiddleware(
            Starlette(routes=[WebSocketRoute("/", socket)]), limits="1 concurrent", websockets=True
        )

        async def connect() -> list[str]:
            sent: list[str] = []
            incoming: list[dict[str, Any]] = [{"type": "websocket.connect"}]

            async def receive() -> Any:
                if incoming:
                    return incoming.pop()
                await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.append(message["type"])

            scope = {"type": "websocket", "path": "/", "headers": [], "client": ("203.0.113.9", 1), "query_string": b""}
            await app(scope, receive, send)
            return sent

        first = asyncio.ensure_future(connect())
        await until(lambda: handlers.running == 1)
        assert await connect() == ["websocket.close"]
        handlers.release.set()
        assert await first == ["websocket.accept", "websocket.close"]
        assert await connect() == ["websocket.accept", "websocket.close"]

    run(test)


def test_leases_are_extended_while_a_response_streams_and_a_dropped_request_is_freed_at_once() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        store = MemoryStore()
        observer = AsyncLimiter("2 concurrent", store=store, name="n")

        async def free() -> int:
            return (await observer.peek("key", 0)).limits[0].remaining

        limits: dict[str, Any] = {"limits": "2 concurrent", "store": store, "name": "n", "key": lambda _: "key"}
        app = asgi.RateLimitMiddleware(_starlette(handlers), lease=0.2, **limits)
        sent = SentRequest(app, "/stream")
        await until(lambda: handlers.running == 1)
        for _ in range(8):
            await asyncio.sleep(0.1)
            assert await free() == 1  # several leases have passed
        handlers.release.set()
        assert await sent.status() == 200
        assert await free() == 2

        request = Request("GET", "/", client_ip="203.0.113.9")
        options: Any = {"lease": 3600, **limits}
        enforcer = Enforcer(None, options, asynchronous=True)
        pending: Any = enforcer.decide(request)
        assert (await pending).allowed
        assert await free() == 1
        del request, pending
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
        assert await free() == 2

    run(test)


def test_a_store_that_fails_at_the_end_fails_no_response(caplog: pytest.LogCaptureFixture) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        store = _FailsToSettle()
        app = asgi.RateLimitMiddleware(_starlette(handlers), limits="9 concurrent", store=store)
        with caplog.at_level(logging.CRITICAL, "headgate"):
            assert await SentRequest(app, "/quick").status() == 200

    run(test)


class _FailsToSettle(MemoryStore):
    """A memory store whose settlements fail."""

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        bound = super().bind(limits, clock=clock)

        class Bound:
            def __getattr__(self, name: str) -> Any:
                return getattr(bound, name)

            def commit(self, *_: Any, **__: Any) -> Any:
                raise StoreUnavailable("nobody is there")

        return Bound()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": "2 concurrent", "wait": 1}, "combined with wait"),
        ({"limits": "2 concurrent", "ipv6_wide": (48, 8)}, "combined with wait or ipv6_wide"),
        ({"limits": "2 concurrent", "lease": 0}, "lease is the number of seconds"),
        ({"limits": "2 concurrent", "lease": "60"}, "lease is the number of seconds"),
    ],
)
def test_options_that_exclude_holds_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asgi.RateLimitMiddleware(_starlette(BlockingHandlers()), **options)


def test_a_route_of_fastapi_without_a_middleware_that_sees_responses_raises_an_error() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        app = FastAPI()

        @app.get("/", dependencies=[Depends(fastapi.rate_limit("1 concurrent"))])
        async def read() -> str:
            return "read"

        sent = SentRequest(app, "/")
        with pytest.raises(ConfigError, match="in flight, need a middleware"):
            await sent.task

    run(test)


@pytest.mark.parametrize("kind", ["site", "views", "views in threads"])
def test_django_on_an_event_loop_holds_requests_until_their_responses_are_closed(kind: str) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        async def slow(request: Any) -> Any:
            await handlers.slow()
            return HttpResponse("slow")

        async def stream(request: Any) -> Any:
            return StreamingHttpResponse(handlers.parts())

        async def quick(request: Any) -> Any:
            return HttpResponse("quick")

        async def fail(request: Any) -> Any:
            raise KeyError

        def threaded(request: Any) -> Any:
            return HttpResponse("quick")

        views: dict[str, Any] = {"slow": slow, "stream": stream, "quick": quick, "fail": fail}
        if kind == "views in threads":
            views["quick"] = threaded
        if kind != "site":
            limited = django.rate_limit("1 concurrent", scope="all")
            views = {name: limited(view) for name, view in views.items()}
        urls: Any = type("Urls", (), {"urlpatterns": [route(name, view) for name, view in views.items()]})()
        site: dict[str, Any] = {"MIDDLEWARE": [], "HEADGATE": {"store": MemoryStore()}, "ROOT_URLCONF": urls}
        if kind == "site":
            site["MIDDLEWARE"] = ["headgate.integrations.django.RateLimitMiddleware"]
            site["HEADGATE"] = {"limits": "1 concurrent"}
        with override_settings(**site):
            app = ASGIHandler()
            for name in ("/slow", "/stream"):
                handlers.release.clear()
                first = SentRequest(app, name)
                await until(lambda: handlers.running == 1)
                if kind != "views in threads":  # there each colour counts by itself
                    assert await SentRequest(app, "/quick").status() == 429
                handlers.release.set()
                assert await first.status() == 200
                assert await SentRequest(app, "/quick").status() == 200
            handlers.release.clear()
            for name in ("/fail", "/nothing"):
                await SentRequest(app, name).status()
                assert await SentRequest(app, "/quick").status() == 200, name
            for name in ("/slow", "/stream") if not is_older("django", "5.0") else ():  # it cancels none before
                disconnecting = SentRequest(app, name)
                await until(lambda: handlers.running == 1)
                disconnecting.disconnected.set()
                await disconnecting.status()
                await until(lambda: handlers.running == 0)
                assert await SentRequest(app, "/quick").status() == 200, name
            if kind == "views in threads":
                return
            with warnings.catch_warnings():  # Django never closes what a server fails to send, nor its files
                warnings.simplefilter("ignore", ResourceWarning)
                dropped = _Unsendable(app, "/quick").task
                await asyncio.wait({dropped})
                said = str(dropped.exception())
                del dropped
                await asyncio.sleep(0)
                gc.collect()
            assert said == "the connection is closed"
            await asyncio.sleep(0)
            assert await SentRequest(app, "/quick").status() == 200

    run(test)


class InAThread:
    """A middleware that is only sync: Django has those around it be, too."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.user = SimpleLazyObject(lambda: request)  # as AuthenticationMiddleware, whose request keeps itself
        return self._get_response(request)


def _streamed(content: str) -> Any:
    return StreamingHttpResponse(iter([content]))


def _streamed_async(content: str) -> Any:
    async def parts() -> AsyncIterator[str]:
        yield content

    return StreamingHttpResponse(parts())


@needs("django", "5.0", "the task of a request is cancelled where its client disconnects")
@pytest.mark.parametrize("made", [HttpResponse, _streamed, _streamed_async], ids=["whole", "stream", "async stream"])
@pytest.mark.parametrize("kind", ["site", "views"])
def test_the_response_of_a_django_thread_to_a_disconnected_client_is_dropped_at_once(kind: str, made: Any) -> None:
    running, never = threading.Event(), threading.Event()

    def slow(request: Any) -> Any:
        running.set()
        never.wait(0.3)  # as long as it takes to cancel it: the loop itself waits for this thread then
        return made("slow")

    async def test(handlers: BlockingHandlers) -> None:
        limited = django.rate_limit("1 concurrent", lease=3600)(slow) if kind == "views" else slow
        urls: Any = type("Urls", (), {"urlpatterns": [route("slow", limited)]})()
        site: dict[str, Any] = {"HEADGATE": {}, "ROOT_URLCONF": urls, "MIDDLEWARE": [f"{__name__}.InAThread"]}
        if kind == "site":
            site["MIDDLEWARE"].insert(0, "headgate.integrations.django.RateLimitMiddleware")
            site["HEADGATE"] = {"limits": "1 concurrent", "lease": 3600}
        with override_settings(**site):
            disconnecting = SentRequest(ASGIHandler(), "/slow")
            await until(running.is_set)
            assert held_requests() == 1
            disconnecting.disconnected.set()
            await disconnecting.status()
            assert held_requests() == 0

    gc.collect()
    gc.disable()  # what keeps itself would stay until the collector comes by
    try:
        run(test)
    finally:
        gc.enable()
        with warnings.catch_warnings():  # Django does not close the files of such a request
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def held_requests() -> int:
    return sum(type(it) is HeldRequest for it in gc.get_objects())


@pytest.mark.parametrize("kind", ["site", "views"])
def test_a_stream_of_django_that_fails_on_an_event_loop_frees_its_request(kind: str) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        async def torn() -> AsyncIterator[bytes]:
            yield b"first"
            raise KeyError("the stream is torn")

        async def view(request: Any) -> Any:
            return StreamingHttpResponse(torn())

        limited = django.rate_limit("1 concurrent")(view) if kind == "views" else view
        urls: Any = type("Urls", (), {"urlpatterns": [route("torn", limited)]})()
        site: dict[str, Any] = {"MIDDLEWARE": [], "HEADGATE": {}, "ROOT_URLCONF": urls}
        if kind == "site":
            site["MIDDLEWARE"] = ["headgate.integrations.django.RateLimitMiddleware"]
            site["HEADGATE"] = {"limits": "1 concurrent"}
        with override_settings(**site):
            app = ASGIHandler()
            failed = [await _kept(SentRequest(app, "/torn")) for _ in range(3)]
            assert [messages[0]["status"] for messages, _ in failed] == [200] * 3

    with warnings.catch_warnings():  # Django does not close the files of such a request
        warnings.simplefilter("ignore", ResourceWarning)
        run(test)
        gc.collect()


def test_a_request_of_django_on_an_event_loop_is_freed_where_the_server_gets_the_exception() -> None:
    async def test(handlers: BlockingHandlers) -> None:
        async def fail(request: Any) -> Any:
            raise KeyError

        urls: Any = type("Urls", (), {"urlpatterns": [route("fail", fail)]})()
        site: dict[str, Any] = {"HEADGATE": {"limits": "1 concurrent"}, "ROOT_URLCONF": urls}
        site |= {"MIDDLEWARE": ["headgate.integrations.django.RateLimitMiddleware"], "DEBUG_PROPAGATE_EXCEPTIONS": True}
        with override_settings(**site):
            app = ASGIHandler()
            failed = [await _kept(SentRequest(app, "/fail")) for _ in range(3)]
            assert [type(error) for _, error in failed] == [KeyError] * 3

    with warnings.catch_warnings():  # Django does not close the files of such a request
        warnings.simplefilter("ignore", ResourceWarning)
        run(test)
        gc.collect()


@pytest.mark.parametrize("kind", ["site", "views"])
def test_a_request_of_django_on_an_event_loop_is_freed_with_another_response(kind: str) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        async def whole(request: Any) -> Any:
            return HttpResponse("whole", headers={"ETag": '"1"'})

        async def stream(request: Any) -> Any:
            return StreamingHttpResponse(handlers.parts(), headers={"ETag": '"1"'})

        views: dict[str, Any] = {"whole": whole, "stream": stream}
        if kind == "views":
            limited = django.rate_limit("1 concurrent", scope="all")
            views = {name: limited(view) for name, view in views.items()}
        urls: Any = type("Urls", (), {"urlpatterns": [route(name, view) for name, view in views.items()]})()
        site: dict[str, Any] = {"HEADGATE": {}, "ROOT_URLCONF": urls}
        site["MIDDLEWARE"] = ["django.middleware.http.ConditionalGetMiddleware"]
        if kind == "site":
            site["MIDDLEWARE"].append("headgate.integrations.django.RateLimitMiddleware")
            site["HEADGATE"] = {"limits": "1 concurrent"}
        with override_settings(**site):
            app = ASGIHandler()
            for name in ("/whole", "/stream"):
                for _ in range(3):
                    assert await SentRequest(app, name, headers=[(b"if-none-match", b'"1"')]).status() == 304

    run(test)


async def _kept(sent: SentRequest) -> tuple[list[Any], BaseException | None]:
    """Return the response to a request, and its error, which keeps all of the request alive."""
    await sent.status()
    return sent.messages, sent.task.exception()


class _Unsendable(SentRequest):
    """A request whose connection is closed when its response is sent."""

    async def _send(self, message: Any) -> None:
        raise RuntimeError("the connection is closed")


def test_a_hold_that_a_thread_drops_is_settled_when_its_lease_would_be_extended() -> None:
    limiter = Limiter("2 concurrent; 9/hour")
    held = HeldRequest(limiter.reserve("key", lease=3600), asynchronous=False)
    beat = held._beat
    beat.extend()
    assert [limit.remaining for limit in limiter.peek("key", 0).limits] == [1, 8]
    del held
    gc.collect()
    beat.extend()
    assert [limit.remaining for limit in limiter.peek("key", 0).limits] == [2, 8]
    assert beat.extend().outcome == "unknown"


@pytest.mark.parametrize("policy", [False, True])
@pytest.mark.parametrize("kind", REDIS)
def test_requests_are_held_on_a_redis_and_freed_whenever_they_are_cancelled(kind: str, policy: bool) -> None:
    async def test(handlers: BlockingHandlers) -> None:
        store = RedisStore(f"{redis_url(kind)}?timeout=5s", prefix=f"t{uuid4().hex}")
        rules = [{"name": "user", "by": ["ip"], "limits": "2 concurrent; 100000/minute"}]
        headers: dict[str, Any] = {"limits": "2 concurrent; 100000/minute"}
        if policy:
            headers = {"policy": {"version": 1, "rules": rules}}
        app = asgi.RateLimitMiddleware(_starlette(handlers), store=store, **headers)
        both = [SentRequest(app, "/slow"), SentRequest(app, "/stream")]
        await until(lambda: handlers.running == 2)
        assert await SentRequest(app, "/quick").status() == 429
        handlers.release.set()
        assert [await sent.status() for sent in both] == [200, 200]
        handlers.release.clear()
        for steps in range(24):  # at each await on its way, and in the handler
            sent = SentRequest(app, "/slow")
            for _ in range(steps):
                await asyncio.sleep(0)
            sent.task.cancel()
            await sent.status()
        await until(lambda: handlers.running == 0)
        handlers.release.set()
        for _ in range(200):
            both = [SentRequest(app, "/slow"), SentRequest(app, "/slow")]
            if [await sent.status() for sent in both] == [200, 200]:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("a place is taken by what was cancelled")
        await app.aclose()
        await store.aclose()

    run(test)
