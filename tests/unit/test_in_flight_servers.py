"""Requests in flight in WSGI, Flask, Django, REST framework, aiohttp and gRPC: freed however a response ends."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import grpc
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

import django_configured  # noqa: F401 - the imports below read its settings

# isort: split

from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path as route
from rest_framework.decorators import api_view, throttle_classes
from rest_framework.response import Response as RestResponse

from headgate import Gate, MemoryStore
from headgate.http import wsgi
from headgate.integrations import aiohttp as limited_aiohttp
from headgate.integrations import flask as limited_flask
from headgate.integrations.django import rate_limit
from headgate.integrations.drf import RateLimitThrottle
from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from until import until

MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"
LIMITS = "1 concurrent; 1000/minute"
POLICY = {"version": 1, "rules": [{"name": "user", "by": ["ip"], "limits": LIMITS}]}
Wsgi = Callable[[Any, Any], Iterable[bytes]]


class ServedRequest:
    """The status and the body of a WSGI application's response, as a server gets them."""

    def __init__(self, app: Wsgi, path: str = "/", method: str = "GET", **fields: str) -> None:
        self.status = 0
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": "", "SCRIPT_NAME": "",
            "SERVER_NAME": "shop.example", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "203.0.113.9", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(), "wsgi.version": (1, 0),
            "wsgi.errors": None, "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
            **fields,
        }  # fmt: skip
        self.body: Any = app(environ, self._start)

    def _start(self, status: str, headers: Any, error: Any = None) -> Any:
        self.status = int(status.split()[0])
        return lambda part: None

    def end(self) -> int:
        """Read the body to its end and close it, as a server does."""
        for _ in self.body:
            pass
        self.close()
        return self.status

    def close(self) -> None:
        close = getattr(self.body, "close", None)
        if close is not None:
            close()


def plain(**options: Any) -> Wsgi:
    def app(environ: Any, start: Any) -> Any:
        if environ["PATH_INFO"] == "/fail":
            raise KeyError
        start("200 OK", [])
        if environ["PATH_INFO"] == "/stream":
            return _parts()
        return [b"whole"]

    return wsgi.RateLimitMiddleware(app, **options)


def _parts() -> Iterator[bytes]:
    yield b"first"
    yield b"last"


def of_limits() -> Wsgi:
    return plain(limits=LIMITS)


def of_policy() -> Wsgi:
    return plain(policy=POLICY)


def of_flask() -> Wsgi:
    app = flask.Flask(__name__)
    limits = limited_flask.RateLimits(app, LIMITS, scope="all")
    app.testing = False
    app.add_url_rule("/", view_func=lambda: "whole", endpoint="whole")
    app.add_url_rule("/stream", view_func=lambda: flask.Response(_parts()), endpoint="stream")
    app.add_url_rule("/file", view_func=lambda: flask.send_file(__file__), endpoint="file")

    @app.get("/fail")
    def fail() -> str:
        raise KeyError

    assert limits is not None
    return app.wsgi_app


class Urls:
    """Django's views."""

    def __init__(self, *, decorated: bool = False, throttled: bool = False) -> None:
        limited: Any = rate_limit(LIMITS, scope="all") if decorated else lambda view: view

        def whole(request: Any) -> Any:
            return HttpResponse("whole")

        def stream(request: Any) -> Any:
            return StreamingHttpResponse(_parts())

        def fail(request: Any) -> Any:
            raise KeyError

        self.urlpatterns = [
            route("", limited(whole)), route("stream", limited(stream)), route("fail", limited(fail)),
        ]  # fmt: skip
        if throttled:

            class Places(RateLimitThrottle):
                limits = LIMITS
                scope = "all"

            def by_throttle(view: Any) -> Any:
                def rest(request: Any) -> Any:
                    view(request)
                    return RestResponse("whole")

                return api_view(["GET"])(throttle_classes([Places])(rest))

            self.urlpatterns = [route("", by_throttle(whole)), route("fail", by_throttle(fail))]


def _django(urls: Urls, **settings: Any) -> Iterator[Wsgi]:
    all_settings: dict[str, Any] = {
        "MIDDLEWARE": [], "HEADGATE": {}, "DEBUG_PROPAGATE_EXCEPTIONS": False, "ROOT_URLCONF": urls,
        "REST_FRAMEWORK": {
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"], "UNAUTHENTICATED_USER": None,
        },
    }  # fmt: skip
    with override_settings(**(all_settings | settings)):
        yield WSGIHandler()


@pytest.fixture(params=["limits", "policy", "flask", "django", "views of django", "throttles"])
def app(request: pytest.FixtureRequest) -> Iterator[Wsgi]:
    kind = request.param
    if kind == "django":
        yield from _django(Urls(), MIDDLEWARE=[MIDDLEWARE], HEADGATE={"limits": LIMITS})
    elif kind == "views of django":
        yield from _django(Urls(decorated=True))
    elif kind == "throttles":
        yield from _django(Urls(throttled=True), MIDDLEWARE=[MIDDLEWARE])
    else:
        yield {"limits": of_limits, "policy": of_policy, "flask": of_flask}[kind]()


@pytest.mark.parametrize("path", ["/", "/stream"])
def test_a_request_is_in_flight_until_its_body_is_closed(app: Wsgi, path: str) -> None:
    first = ServedRequest(app, path)
    if first.status == 404:  # throttles have no streams
        return
    parts = iter(first.body)
    next(parts)
    assert ServedRequest(app).end() == 429
    assert (first.end(), ServedRequest(app).end()) == (200, 200)
    abandoned = ServedRequest(app, path)
    next(iter(abandoned.body))
    abandoned.close()  # the client disconnects before the body has ended
    assert [ServedRequest(app).end() for _ in range(3)] == [200] * 3
    assert ServedRequest(app, path, "HEAD").end() in (200, 405)
    assert ServedRequest(app).end() == 200


def test_a_request_that_fails_is_freed(app: Wsgi) -> None:
    for path in ("/fail", "/nothing"):
        with contextlib.suppress(KeyError):
            ServedRequest(app, path).end()
        assert ServedRequest(app).end() == 200, path


def test_a_request_of_django_is_freed_where_the_server_gets_the_exception() -> None:
    options = {"MIDDLEWARE": [MIDDLEWARE], "HEADGATE": {"limits": LIMITS}, "DEBUG_PROPAGATE_EXCEPTIONS": True}
    for app in _django(Urls(), **options):
        with pytest.raises(KeyError):
            ServedRequest(app, "/fail")
        assert ServedRequest(app).end() == 200


CONDITIONAL = "django.middleware.http.ConditionalGetMiddleware"


@pytest.mark.parametrize("kind", ["site", "views"])
def test_a_request_of_django_is_freed_with_another_response_that_a_middleware_gives(kind: str) -> None:
    tagged = {"ETag": '"1"'}

    def whole(request: Any) -> Any:
        return HttpResponse("whole", headers=tagged)

    def stream(request: Any) -> Any:
        return StreamingHttpResponse(_parts(), headers=tagged)

    views = {"whole": whole, "stream": stream}
    if kind == "views":
        views = {name: rate_limit(LIMITS, scope="all")(view) for name, view in views.items()}
    urls: Any = type("Urls", (), {"urlpatterns": [route(name, view) for name, view in views.items()]})()
    options = {"limits": LIMITS} if kind == "site" else {}
    for app in _django(urls, MIDDLEWARE=[CONDITIONAL, MIDDLEWARE] if options else [CONDITIONAL], HEADGATE=options):
        for name in ("/whole", "/stream"):
            known = ServedRequest(app, name, HTTP_IF_NONE_MATCH='"1"')
            assert ServedRequest(app, name).end() == 429, "it is in flight until its own response has ended"
            assert (known.end(), ServedRequest(app, name).end()) == (304, 200)


@pytest.mark.parametrize("build", [of_limits, of_policy])
def test_a_body_that_no_server_closes_is_freed_when_it_was_read_or_dropped(build: Any) -> None:
    app = build()
    read = ServedRequest(app, "/stream")
    assert b"".join(read.body) == b"firstlast"
    assert ServedRequest(app).end() == 200
    dropped = ServedRequest(app, "/stream")
    parts = iter(dropped.body)
    next(parts)
    assert ServedRequest(app).end() == 429
    del dropped, parts
    assert ServedRequest(app).end() == 200


def test_a_file_that_flask_sends_is_in_flight_until_it_is_sent() -> None:
    app = of_flask()
    first = ServedRequest(app, "/file")
    assert ServedRequest(app).end() == 429
    first.close()
    assert ServedRequest(app).end() == 200


@pytest.mark.parametrize("propagates", [False, True])
@pytest.mark.parametrize("failures", [1, 2])
def test_a_request_of_flask_is_freed_where_a_function_after_it_fails(*, failures: int, propagates: bool) -> None:
    app, left = flask.Flask("shop", static_folder=None), [0]
    statuses: list[int] = []
    app.config["PROPAGATE_EXCEPTIONS"] = propagates

    def counts(request: Any, response: Any) -> bool:
        statuses.append(response.status)
        return True

    @app.after_request
    def save(response: flask.Response) -> flask.Response:
        if left[0]:
            left[0] -= 1
            raise KeyError("the session is not saved")
        return response

    @app.get("/")
    @limited_flask.rate_limit("1 concurrent", counts=counts)
    def well() -> str:
        return "well"

    assert ServedRequest(app).end() == 200
    left[0] = failures
    with contextlib.suppress(KeyError):
        assert ServedRequest(app).end() == 500
    left[0] = 0
    assert ServedRequest(app).end() == 200
    assert statuses == [200, 500, 200]


@pytest.mark.parametrize("where", ["teardown_request", "teardown_appcontext"])
def test_a_request_of_flask_is_freed_where_a_function_that_tears_it_down_fails(where: str) -> None:
    app = flask.Flask("shop", static_folder=None)
    passed: list[str] = []

    @app.get("/")
    @limited_flask.rate_limit("1 concurrent", lease=3600)
    def well() -> str:
        passed.append("well")
        return "well"

    def fail(error: BaseException | None) -> None:
        raise KeyError("the session is not closed")

    def passed_count() -> int:
        with pytest.raises(KeyError):
            ServedRequest(app)
        return len(passed)

    getattr(app, where)(fail)
    assert passed_count() == 1
    until(lambda: passed_count() == 2)


@pytest.mark.parametrize("is_reused", [False, True], ids=["a new one each time", "always the same one"])
def test_a_request_of_flask_ends_with_the_response_that_a_function_after_it_returns(*, is_reused: bool) -> None:
    app = flask.Flask("shop", static_folder=None)
    same = flask.Response("other", 202)
    responses: list[tuple[int, int]] = []

    def counts(request: Any, response: Any) -> bool:
        responses.append((response.status, response.body_bytes))
        return True

    @app.after_request
    def replace(response: flask.Response) -> flask.Response:
        if response.status_code == 429:
            return response
        return same if is_reused else flask.Response("other", 202)

    @app.get("/")
    @limited_flask.rate_limit("1 concurrent", counts=counts)
    def well() -> str:
        return "well"

    @app.get("/counted")
    @limited_flask.rate_limit("9/minute", counts=counts)
    def counted() -> str:
        return "counted"

    first = ServedRequest(app)
    if not is_reused:
        assert ServedRequest(app).end() == 429, "it is in flight until it is sent"
    assert [first.end(), ServedRequest(app).end(), ServedRequest(app).end(), ServedRequest(app, "/counted").end()] == [
        202
    ] * 4
    assert responses == [(202, 5)] * 4
    assert len(same._on_close) <= 1


def test_a_request_is_freed_that_ends_under_a_policy_which_counts_nothing_in_flight() -> None:
    rule = {"name": "user", "by": ["ip"], "limits": "1 concurrent; 100/minute"}
    gate = Gate({"version": 1, "rules": [rule]})
    app = plain(policy=gate)
    first = ServedRequest(app, "/stream")
    gate.reload({"version": 1, "rules": [{**rule, "limits": "100/minute"}]})
    assert first.end() == 200
    gate.reload({"version": 1, "rules": [rule]})
    assert [ServedRequest(app).end() for _ in range(2)] == [200, 200]


def test_a_wsgi_gate_holds_the_requests_of_its_policy() -> None:
    store = MemoryStore()
    app = plain(policy=Gate(POLICY, store=store))
    first = ServedRequest(app, "/stream")
    assert store.stats().holds > 0 and ServedRequest(app).end() == 429
    first.close()
    assert ServedRequest(app).end() == 200


# aiohttp, in a real server


@web.middleware
async def _in_a_task(request: web.Request, handler: Any) -> Any:
    """Runs a handler in a task of its own, as `asyncio.wait_for` does before Python 3.12."""
    return await asyncio.create_task(handler(request))


def _aiohttp(kind: str, entered: asyncio.Event, release: asyncio.Event) -> web.Application:
    async def slow(request: web.Request) -> web.Response:
        entered.set()
        await release.wait()
        return web.Response(text="slow")

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        entered.set()
        while not release.is_set():
            await response.write(b"part" * 10_000)
            await asyncio.sleep(0.01)
        await response.write_eof()
        return response

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 40_000_000)

    async def fail(request: web.Request) -> web.Response:
        raise KeyError

    async def quick(request: web.Request) -> web.Response:
        return web.Response(text="quick")

    app = web.Application(middlewares=[_in_a_task] if kind == "tasks" else [])
    handlers: list[Any] = [slow, stream, large, fail, quick]
    if kind in ("handlers", "tasks"):
        limit = limited_aiohttp.RateLimits(scope="all")(LIMITS)
        handlers = [limit(handler) for handler in handlers]
    for handler, name in zip(handlers, ("slow", "stream", "large", "fail", "quick"), strict=True):
        app.router.add_get(f"/{name}", handler)
    if kind == "limits":
        limited_aiohttp.setup(app, limits=LIMITS)
    elif kind == "policy":
        limited_aiohttp.setup(app, POLICY)
    return app


@pytest.mark.parametrize("kind", ["handlers", "tasks", "limits", "policy"])
def test_requests_of_aiohttp_are_in_flight_until_their_responses_are_sent(kind: str) -> None:
    async def test() -> None:
        entered, release = asyncio.Event(), asyncio.Event()
        async with TestClient(TestServer(_aiohttp(kind, entered, release))) as client:

            async def status(name: str) -> int:
                async with client.get(f"/{name}") as response:
                    await response.read()
                    return response.status

            async def soon_free() -> None:
                for _ in range(500):
                    if await status("quick") == 200:
                        return
                    await asyncio.sleep(0.01)
                raise AssertionError("it is never free again")

            for name in ("slow", "stream"):
                release.clear()
                entered.clear()
                first = asyncio.ensure_future(status(name))
                await entered.wait()
                assert await status("quick") == 429
                release.set()
                assert await first == 200
                await soon_free()
            assert await status("fail") == 500
            await soon_free()
            release.clear()
            entered.clear()
            async with ClientSession() as other:
                response = await other.get(client.make_url("/stream"))
                await entered.wait()
                response.close()  # the client disconnects in the middle
                await soon_free()
                reading = await other.get(client.make_url("/large"))
                assert await status("quick") == 429  # the client does not read the body, so it is still being sent
                reading.close()
                await soon_free()

    asyncio.run(asyncio.wait_for(test(), 60))


# gRPC, in real servers


class Calls:
    """Handlers for threads that wait until they are released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def slow(self, message: bytes, context: Any) -> bytes:
        self.entered.set()
        self.release.wait(30)
        return b"slow"

    def stream(self, message: bytes, context: Any) -> Iterator[bytes]:
        while not self.release.is_set() and context.is_active():
            yield b"part"
            self.entered.set()
            time.sleep(0.01)

    def crash(self, message: bytes, context: Any) -> bytes:
        raise ValueError

    def quick(self, message: bytes, context: Any) -> bytes:
        return b"quick"

    def generic(self) -> Any:
        kinds: dict[str, Any] = {
            "Slow": grpc.unary_unary_rpc_method_handler(self.slow),
            "Stream": grpc.unary_stream_rpc_method_handler(self.stream),
            "Crash": grpc.unary_unary_rpc_method_handler(self.crash),
            "Quick": grpc.unary_unary_rpc_method_handler(self.quick),
        }
        return grpc.method_handlers_generic_handler("shop.Shop", kinds)


class AsyncCalls(Calls):
    """The same handlers for an event loop."""

    async def slow(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        self.entered.set()
        await asyncio.to_thread(self.release.wait, 30)
        return b"slow"

    async def stream(self, message: bytes, context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]
        while not self.release.is_set():
            yield b"part"
            self.entered.set()
            await asyncio.sleep(0.01)

    async def crash(self, message: bytes, context: Any) -> bytes:  # type: ignore[override]
        raise ValueError


def _check_calls(address: str, calls: Calls) -> None:
    channel: Any
    with grpc.insecure_channel(address) as channel:
        slow, crash, quick = (channel.unary_unary(f"/shop.Shop/{name}") for name in ("Slow", "Crash", "Quick"))
        stream = channel.unary_stream("/shop.Shop/Stream")

        def status(method: Any) -> grpc.StatusCode:
            try:
                method(b"", timeout=20)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
            return grpc.StatusCode.OK

        def soon_free() -> None:
            for _ in range(500):
                if status(quick) is grpc.StatusCode.OK:
                    return
                time.sleep(0.01)
            raise AssertionError("it is never free again")

        first = slow.future(b"", timeout=20)
        assert calls.entered.wait(20)
        assert status(quick) is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls.release.set()
        assert first.result() == b"slow"
        soon_free()
        assert status(crash) is grpc.StatusCode.UNKNOWN
        soon_free()
        calls.release.clear()
        calls.entered.clear()
        streaming = stream(b"", timeout=20)
        next(streaming)
        assert calls.entered.wait(20)
        assert status(quick) is grpc.StatusCode.RESOURCE_EXHAUSTED
        streaming.cancel()  # the client disconnects in the middle
        soon_free()


@pytest.mark.parametrize("options", [{"limits": LIMITS}, {"policy": POLICY}, {"methods": {"/shop.Shop/*": LIMITS}}])
def test_calls_of_a_threaded_server_are_in_flight_until_they_have_ended(options: dict[str, Any]) -> None:
    if "methods" in options:
        options = {**options, "limits": LIMITS, "methods": {}}
    calls = Calls()
    server = grpc.server(ThreadPoolExecutor(8), interceptors=[RateLimitInterceptor(**options)])
    server.add_generic_rpc_handlers((calls.generic(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        _check_calls(f"127.0.0.1:{port}", calls)
    finally:
        calls.release.set()
        server.stop(None).wait(20)


@pytest.mark.parametrize("options", [{"limits": LIMITS}, {"policy": POLICY}])
def test_calls_of_an_asyncio_server_are_in_flight_until_they_have_ended(options: dict[str, Any]) -> None:
    async def test() -> None:
        calls = AsyncCalls()
        pool = ThreadPoolExecutor(8)
        server = grpc.aio.server(migration_thread_pool=pool, interceptors=[AsyncRateLimitInterceptor(**options)])
        server.add_generic_rpc_handlers((calls.generic(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await asyncio.to_thread(_check_calls, f"127.0.0.1:{port}", calls)
        finally:
            calls.release.set()
            await server.stop(None)
            pool.shutdown()

    asyncio.run(asyncio.wait_for(test(), 60))
