"""Requests in flight before ASGI applications: so many at a time, freed when a response has ended, however it ends."""

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

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class House:
    """Handlers that wait at a door, and what they saw."""

    def __init__(self) -> None:
        self.door = asyncio.Event()
        self.inside = 0

    async def slow(self, request: Any = None) -> PlainTextResponse:
        self.inside += 1
        try:
            await self.door.wait()
        finally:
            self.inside -= 1
        return PlainTextResponse("slow")

    async def parts(self) -> AsyncIterator[bytes]:
        self.inside += 1
        try:
            yield b"first"
            await self.door.wait()
            yield b"last"
        finally:
            self.inside -= 1

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
    def handlers(self) -> dict[str, Any]:
        names = ("slow", "stream", "failing_stream", "fail", "background", "quick")
        return {f"/{name}": getattr(self, name) for name in names}


def _starlette(house: House, **options: Any) -> Starlette:
    return Starlette(routes=[Route(path, handler) for path, handler in house.handlers.items()], **options)


def whole(house: House, limits: str) -> Asgi:
    return asgi.RateLimitMiddleware(_starlette(house), limits=limits)


def by_policy(house: House, limits: str) -> Asgi:
    rules = [{"name": "user", "by": ["ip"], "limits": limits}, {"name": "other", "by": [], "limits": "9000/minute"}]
    return asgi.RateLimitMiddleware(_starlette(house), {"version": 1, "rules": rules})


def routes_of_starlette(house: House, limits: str) -> Asgi:
    limit = Middleware(starlette.RouteLimit, limits=limits, scope="all")
    return _starlette(house, middleware=[limit])


def endpoints_of_starlette(house: House, limits: str) -> Asgi:
    limited = starlette.RateLimits(scope="all")(limits)

    def named(handler: Any) -> Any:
        async def endpoint(request: StarletteRequest) -> Any:
            return await handler(request)

        return limited(endpoint)

    return Starlette(routes=[Route(path, named(handler)) for path, handler in house.handlers.items()])


def dependencies_of_fastapi(house: House, limits: str) -> Asgi:
    limit = fastapi.RateLimits(scope="all")
    app, router = FastAPI(), APIRouter(dependencies=[Depends(limit(limits))])
    for path, handler in house.handlers.items():

        def endpoint(handler: Any = handler) -> Any:
            async def of() -> Any:
                return await handler()

            return of

        router.add_api_route(path, endpoint(), response_model=None)
    app.include_router(router)
    app.add_middleware(fastapi.RateLimitHeaders)
    return app


def layers_of_litestar(house: House, limits: str) -> Asgi:
    @get("/slow")
    async def slow() -> str:
        return bytes((await house.slow()).body).decode()

    @get("/stream")
    async def stream() -> Stream:
        return Stream(house.parts())

    @get("/fail")
    async def fail() -> None:
        raise KeyError

    @get("/quick")
    async def quick() -> str:
        return "quick"

    limit = litestar.RateLimits(scope="all")
    return Litestar([slow, stream, fail, quick], middleware=[limit(limits)], openapi_config=None)


APPLICATIONS = [
    whole,
    by_policy,
    routes_of_starlette,
    endpoints_of_starlette,
    dependencies_of_fastapi,
    layers_of_litestar,
]


class Ask:
    """A request on its way: its messages so far, and how it goes on."""

    def __init__(self, app: Asgi, path: str, method: str = "GET", headers: Sequence[Any] = ()) -> None:
        self.messages: list[Any] = []
        self.gone = asyncio.Event()
        self._begun = False
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": list(headers),
            "client": ("203.0.113.9", 5000), "server": ("shop.example", 80), "state": {},
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(dict(message))
        if self.is_complete:
            self.gone.set()

    @property
    def is_complete(self) -> bool:
        last = self.messages[-1] if self.messages else {"type": ""}
        return bool(last["type"] == "http.response.body" and not last.get("more_body"))

    async def status(self) -> int:
        await asyncio.gather(self.task, return_exceptions=True)
        return next((m["status"] for m in self.messages if m["type"] == "http.response.start"), 0)


async def until(holds: Callable[[], object]) -> None:
    """Let everything go on until something holds."""
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to that")


def run(test: Callable[[House], Awaitable[None]]) -> None:
    async def running() -> None:
        async with asyncio.timeout(30):
            await test(House())

    asyncio.run(running())


@pytest.mark.parametrize("build", APPLICATIONS)
@pytest.mark.parametrize("path", ["/slow", "/stream"])
def test_no_more_requests_are_in_flight_than_the_limit_says(build: Any, path: str) -> None:
    async def test(house: House) -> None:
        app = build(house, "2 concurrent; 1000/minute")
        asks = [Ask(app, path), Ask(app, path)]
        await until(lambda: house.inside == 2)
        assert await Ask(app, "/quick").status() == 429
        house.door.set()
        assert [await ask.status() for ask in asks] == [200, 200]
        assert [await Ask(app, "/quick").status() for _ in range(5)] == [200] * 5

    run(test)


@pytest.mark.parametrize("build", APPLICATIONS)
def test_a_request_that_fails_or_is_cancelled_is_freed(build: Any) -> None:
    async def test(house: House) -> None:
        app = build(house, "1 concurrent")
        for path in ("/fail", "/failing_stream", "/nothing"):
            await Ask(app, path).status()
            assert await Ask(app, "/quick").status() == 200, path
        for path in ("/slow", "/stream"):
            ask = Ask(app, path)
            await until(lambda: house.inside == 1)
            ask.task.cancel()
            await ask.status()
            await until(lambda: house.inside == 0)
            assert await Ask(app, "/quick").status() == 200, path

    run(test)


@pytest.mark.parametrize("build", APPLICATIONS)
def test_a_client_that_disconnects_during_a_stream_frees_its_place(build: Any) -> None:
    async def test(house: House) -> None:
        app = build(house, "1 concurrent")
        ask = Ask(app, "/stream")
        await until(lambda: house.inside == 1)
        ask.gone.set()
        await ask.status()
        assert await Ask(app, "/quick").status() == 200

    run(test)


@pytest.mark.parametrize("build", APPLICATIONS[:-1])
def test_background_work_is_not_in_flight(build: Any) -> None:
    async def test(house: House) -> None:
        app = build(house, "1 concurrent")
        ask = Ask(app, "/background")
        await until(lambda: ask.is_complete and house.inside == 1)
        assert not ask.task.done()
        assert await Ask(app, "/quick").status() == 200
        house.door.set()
        assert await ask.status() == 200

    run(test)


def test_an_inner_refusal_frees_the_holds_of_outer_limits() -> None:
    async def test(house: House) -> None:
        outer, inner = fastapi.RateLimits(), fastapi.RateLimits()
        app = FastAPI(dependencies=[Depends(outer("2 concurrent; 100/minute fixed", scope="outer"))])

        @app.get("/slow", dependencies=[Depends(inner("1 concurrent"))])
        async def slow() -> str:
            await house.slow()
            return "slow"

        @app.get("/quick")
        async def quick() -> str:
            return "quick"

        app.add_middleware(fastapi.RateLimitHeaders)
        first = Ask(app, "/slow")
        await until(lambda: house.inside == 1)
        assert [await Ask(app, "/slow").status() for _ in range(3)] == [429] * 3
        assert await Ask(app, "/quick").status() == 200  # of the outer two places one is free
        house.door.set()
        assert await first.status() == 200
        last = Ask(app, "/quick")
        assert await last.status() == 200
        told = dict(last.messages[0]["headers"])
        assert b"r=97" in told[b"ratelimit"]  # refusals have charged nothing: three requests have passed

    run(test)


def test_a_nested_middleware_holds_its_own_places_and_all_are_freed() -> None:
    async def test(house: House) -> None:
        store = MemoryStore()
        inner = asgi.RateLimitMiddleware(_starlette(house), limits="1 concurrent", store=store)
        app = asgi.RateLimitMiddleware(inner, limits="2 concurrent", store=store)
        first = Ask(app, "/slow")
        await until(lambda: house.inside == 1)
        assert [await Ask(app, "/quick").status() for _ in range(3)] == [429] * 3
        house.door.set()
        assert await first.status() == 200
        assert [await Ask(app, "/quick").status() for _ in range(3)] == [200] * 3

    run(test)


def test_the_actual_cost_is_settled_with_the_place() -> None:
    async def test(house: House) -> None:
        app = asgi.RateLimitMiddleware(
            _starlette(house),
            limits="1 concurrent; 10/hour fixed; 100 bytes/hour fixed",
            cost={"bytes": 50},
            counts=lambda request, response: {"bytes": response.body_bytes} if response.status == 200 else False,
            clock=ManualClock(),
        )
        assert await Ask(app, "/quick").status() == 200
        assert await Ask(app, "/nothing").status() == 404
        last = Ask(app, "/quick")
        assert await last.status() == 200
        told = dict(last.messages[0]["headers"])[b"ratelimit"].decode()
        assert "r=8" in told and "r=45" in told  # 5 bytes counted of the first, nothing of the second

    run(test)


def test_a_failing_counts_function_frees_the_place(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        def counts(request: Any, response: Any) -> bool:
            raise KeyError

        app = asgi.RateLimitMiddleware(_starlette(house), limits="1 concurrent", counts=counts)
        with caplog.at_level(logging.CRITICAL, "headgate"):
            assert [await Ask(app, "/quick").status() for _ in range(3)] == [200] * 3

    run(test)


def test_tiers_may_have_places_or_none() -> None:
    async def test(house: House) -> None:
        tier = {"tier": "paid"}
        limits = {"default": "1 concurrent", "paid": "100/minute"}
        app = asgi.RateLimitMiddleware(_starlette(house), limits=limits, tier=lambda request: tier["tier"])
        many = [Ask(app, "/slow") for _ in range(3)]
        await until(lambda: house.inside == 3)
        tier["tier"] = "free"
        one = Ask(app, "/slow")
        await until(lambda: house.inside == 4)
        assert await Ask(app, "/quick").status() == 429
        house.door.set()
        assert [await ask.status() for ask in (*many, one)] == [200] * 4
        assert await Ask(app, "/quick").status() == 200

    run(test)


def test_a_reload_that_adds_or_removes_limits_in_flight_is_followed() -> None:
    async def test(house: House) -> None:
        rule = {"name": "user", "by": ["ip"], "limits": "100/minute"}
        gate = AsyncGate({"version": 1, "rules": [rule]}, store=MemoryStore())
        app = asgi.RateLimitMiddleware(_starlette(house), gate)
        assert await Ask(app, "/quick").status() == 200
        gate.reload({"version": 1, "rules": [{**rule, "limits": "1 concurrent"}]})
        first = Ask(app, "/slow")
        await until(lambda: house.inside == 1)
        assert await Ask(app, "/quick").status() == 429
        gate.reload({"version": 1, "rules": [rule]})
        assert await Ask(app, "/quick").status() == 200
        gate.reload({"version": 1, "rules": [{**rule, "limits": "1 concurrent"}]})
        house.door.set()
        assert await first.status() == 200
        assert await Ask(app, "/quick").status() == 200

    run(test)


def test_requests_without_a_rule_in_flight_are_not_held() -> None:
    async def test(house: House) -> None:
        rules = [
            {"name": "slow", "by": ["ip"], "match": {"path": "/slow"}, "limits": "1 concurrent"},
            {"name": "all", "by": ["ip"], "limits": "100/minute"},
        ]
        store = MemoryStore()
        app = asgi.RateLimitMiddleware(_starlette(house), {"version": 1, "rules": rules}, store=store)
        assert [await Ask(app, "/quick").status() for _ in range(3)] == [200] * 3
        assert store.stats().holds == 0
        first = Ask(app, "/slow")
        await until(lambda: house.inside == 1)
        assert store.stats().holds > 0
        assert await Ask(app, "/slow").status() == 429
        house.door.set()
        assert await first.status() == 200

    run(test)


def test_a_websocket_is_in_flight_until_it_is_closed() -> None:
    async def test(house: House) -> None:
        async def socket(websocket: Any) -> None:
            await websocket.accept()
            await house.slow()
            await websocket.close()

        app = asgi.RateLimitMiddleware(
            Starlette(routes=[WebSocketRoute("/", socket)]), limits="1 concurrent", websockets=True
        )

        async def connect() -> list[str]:
            sent: list[str] = []
            coming: list[dict[str, Any]] = [{"type": "websocket.connect"}]

            async def receive() -> Any:
                if coming:
                    return coming.pop()
                await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.append(message["type"])

            scope = {"type": "websocket", "path": "/", "headers": [], "client": ("203.0.113.9", 1), "query_string": b""}
            await app(scope, receive, send)
            return sent

        first = asyncio.ensure_future(connect())
        await until(lambda: house.inside == 1)
        assert await connect() == ["websocket.close"]
        house.door.set()
        assert await first == ["websocket.accept", "websocket.close"]
        assert await connect() == ["websocket.accept", "websocket.close"]

    run(test)


def test_leases_are_extended_while_a_response_streams_and_a_dropped_request_is_freed_at_once() -> None:
    async def test(house: House) -> None:
        store = MemoryStore()
        watching = AsyncLimiter("2 concurrent", store=store, name="n")

        async def free() -> int:
            return (await watching.peek("key", 0)).limits[0].remaining

        limits: dict[str, Any] = {"limits": "2 concurrent", "store": store, "name": "n", "key": lambda _: "key"}
        app = asgi.RateLimitMiddleware(_starlette(house), lease=0.2, **limits)
        ask = Ask(app, "/stream")
        await until(lambda: house.inside == 1)
        for _ in range(8):
            await asyncio.sleep(0.1)
            assert await free() == 1  # several leases have passed
        house.door.set()
        assert await ask.status() == 200
        assert await free() == 2

        request = Request("GET", "/", client_ip="203.0.113.9")
        options: Any = {"lease": 3600, **limits}
        enforcer = Enforcer(None, options, asynchronous=True)
        asked: Any = enforcer.decide(request)
        assert (await asked).allowed
        assert await free() == 1
        del request, asked
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
        assert await free() == 2

    run(test)


def test_a_store_that_fails_at_the_end_fails_no_response(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        store = _FailsToSettle()
        app = asgi.RateLimitMiddleware(_starlette(house), limits="9 concurrent", store=store)
        with caplog.at_level(logging.CRITICAL, "headgate"):
            assert await Ask(app, "/quick").status() == 200

    run(test)


class _FailsToSettle(MemoryStore):
    """A memory store whose settlings fail."""

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
        asgi.RateLimitMiddleware(_starlette(House()), **options)


def test_a_route_of_fastapi_without_a_middleware_that_sees_responses_raises_an_error() -> None:
    async def test(house: House) -> None:
        app = FastAPI()

        @app.get("/", dependencies=[Depends(fastapi.rate_limit("1 concurrent"))])
        async def read() -> str:
            return "read"

        ask = Ask(app, "/")
        with pytest.raises(ConfigError, match="in flight, need a middleware"):
            await ask.task

    run(test)


@pytest.mark.parametrize("kind", ["site", "views", "views in threads"])
def test_django_on_an_event_loop_holds_requests_until_their_responses_are_closed(kind: str) -> None:
    async def test(house: House) -> None:
        async def slow(request: Any) -> Any:
            await house.slow()
            return HttpResponse("slow")

        async def stream(request: Any) -> Any:
            return StreamingHttpResponse(house.parts())

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
                house.door.clear()
                first = Ask(app, name)
                await until(lambda: house.inside == 1)
                if kind != "views in threads":  # there each colour counts by itself
                    assert await Ask(app, "/quick").status() == 429
                house.door.set()
                assert await first.status() == 200
                assert await Ask(app, "/quick").status() == 200
            house.door.clear()
            for name in ("/fail", "/nothing"):
                await Ask(app, name).status()
                assert await Ask(app, "/quick").status() == 200, name
            for name in ("/slow", "/stream"):
                gone = Ask(app, name)
                await until(lambda: house.inside == 1)
                gone.gone.set()
                await gone.status()
                await until(lambda: house.inside == 0)
                assert await Ask(app, "/quick").status() == 200, name
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
            assert await Ask(app, "/quick").status() == 200

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


@pytest.mark.parametrize("made", [HttpResponse, _streamed, _streamed_async], ids=["whole", "stream", "async stream"])
@pytest.mark.parametrize("kind", ["site", "views"])
def test_the_response_of_a_django_thread_to_a_disconnected_client_is_dropped_at_once(kind: str, made: Any) -> None:
    inside, never = threading.Event(), threading.Event()

    def slow(request: Any) -> Any:
        inside.set()
        never.wait(0.3)  # as long as it takes to cancel it: the loop itself waits for this thread then
        return made("slow")

    async def test(house: House) -> None:
        limited = django.rate_limit("1 concurrent", lease=3600)(slow) if kind == "views" else slow
        urls: Any = type("Urls", (), {"urlpatterns": [route("slow", limited)]})()
        site: dict[str, Any] = {"HEADGATE": {}, "ROOT_URLCONF": urls, "MIDDLEWARE": [f"{__name__}.InAThread"]}
        if kind == "site":
            site["MIDDLEWARE"].insert(0, "headgate.integrations.django.RateLimitMiddleware")
            site["HEADGATE"] = {"limits": "1 concurrent", "lease": 3600}
        with override_settings(**site):
            gone = Ask(ASGIHandler(), "/slow")
            await until(inside.is_set)
            assert held_requests() == 1
            gone.gone.set()
            await gone.status()
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
    async def test(house: House) -> None:
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
            failed = [await _kept(Ask(app, "/torn")) for _ in range(3)]
            assert [messages[0]["status"] for messages, _ in failed] == [200] * 3

    with warnings.catch_warnings():  # Django does not close the files of such a request
        warnings.simplefilter("ignore", ResourceWarning)
        run(test)
        gc.collect()


def test_a_request_of_django_on_an_event_loop_is_freed_where_the_server_gets_the_exception() -> None:
    async def test(house: House) -> None:
        async def fail(request: Any) -> Any:
            raise KeyError

        urls: Any = type("Urls", (), {"urlpatterns": [route("fail", fail)]})()
        site: dict[str, Any] = {"HEADGATE": {"limits": "1 concurrent"}, "ROOT_URLCONF": urls}
        site |= {"MIDDLEWARE": ["headgate.integrations.django.RateLimitMiddleware"], "DEBUG_PROPAGATE_EXCEPTIONS": True}
        with override_settings(**site):
            app = ASGIHandler()
            failed = [await _kept(Ask(app, "/fail")) for _ in range(3)]
            assert [type(error) for _, error in failed] == [KeyError] * 3

    with warnings.catch_warnings():  # Django does not close the files of such a request
        warnings.simplefilter("ignore", ResourceWarning)
        run(test)
        gc.collect()


@pytest.mark.parametrize("kind", ["site", "views"])
def test_a_request_of_django_on_an_event_loop_is_freed_with_another_response(kind: str) -> None:
    async def test(house: House) -> None:
        async def whole(request: Any) -> Any:
            return HttpResponse("whole", headers={"ETag": '"1"'})

        async def stream(request: Any) -> Any:
            return StreamingHttpResponse(house.parts(), headers={"ETag": '"1"'})

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
                    assert await Ask(app, name, headers=[(b"if-none-match", b'"1"')]).status() == 304

    run(test)


async def _kept(ask: Ask) -> tuple[list[Any], BaseException | None]:
    """What a request was answered, and why it failed, which keeps all that it had."""
    await ask.status()
    return ask.messages, ask.task.exception()


class _Unsendable(Ask):
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
    async def test(house: House) -> None:
        store = RedisStore(f"{redis_url(kind)}?timeout=5s", prefix=f"t{uuid4().hex}")
        rules = [{"name": "user", "by": ["ip"], "limits": "2 concurrent; 100000/minute"}]
        told: dict[str, Any] = {"limits": "2 concurrent; 100000/minute"}
        if policy:
            told = {"policy": {"version": 1, "rules": rules}}
        app = asgi.RateLimitMiddleware(_starlette(house), store=store, **told)
        asks = [Ask(app, "/slow"), Ask(app, "/stream")]
        await until(lambda: house.inside == 2)
        assert await Ask(app, "/quick").status() == 429
        house.door.set()
        assert [await ask.status() for ask in asks] == [200, 200]
        house.door.clear()
        for steps in range(24):  # at each await on its way, and in the handler
            ask = Ask(app, "/slow")
            for _ in range(steps):
                await asyncio.sleep(0)
            ask.task.cancel()
            await ask.status()
        await until(lambda: house.inside == 0)
        house.door.set()
        for _ in range(200):
            both = [Ask(app, "/slow"), Ask(app, "/slow")]
            if [await ask.status() for ask in both] == [200, 200]:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("a place is taken by what was cancelled")
        await app.aclose()
        await store.aclose()

    run(test)
