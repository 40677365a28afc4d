"""Litestar, aiohttp and gRPC on real servers: the examples, as a user runs them; and on a real Redis."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import uvicorn
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from litestar import Litestar, get
from redis_servers import single
from served import answers_http, running
from test_several_workers import free_port

from headgate.http.keys import header
from headgate.integrations.aiohttp import rate_limit as aiohttp_limit
from headgate.integrations.aiohttp import setup
from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from headgate.integrations.litestar import RateLimitPlugin
from subjects import parse_list

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = {
    "litestar": ["-m", "uvicorn", "litestar_app:app", "--log-level", "warning", "--port", "PORT"],
    "aiohttp": ["aiohttp_app.py", "PORT"],
    "grpc": ["grpc_server.py", "PORT"],
}


def answers_grpc(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=1)
        except grpc.FutureTimeoutError:
            return False
    return True


@pytest.mark.parametrize("server", ["litestar", "aiohttp"])
def test_exactly_the_limit_passes_and_every_response_reports_what_remains(server: str) -> None:
    with (
        running(SERVERS[server], answers_http) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client,
    ):
        responses = [client.get("/", headers={"X-User-Id": "u1"}) for _ in range(7)]
        assert [response.status_code for response in responses] == [200] * 5 + [429] * 2
        remaining = [parse_list(response.headers["RateLimit"])[0][1]["r"] for response in responses]
        assert remaining == [4, 3, 2, 1, 0, 0, 0]
        assert all(response.text == "hello\n" for response in responses[:5])
        assert all(len(response.headers.get_list("RateLimit")) == 1 for response in responses)
        assert responses[-1].headers["content-type"] == "application/problem+json"
        assert 1 <= int(responses[-1].headers["Retry-After"]) <= 120
        assert client.get("/", headers={"X-User-Id": "u2"}).status_code == 200
        missing = client.get("/nothing")
        assert missing.status_code == 404 and "RateLimit" in missing.headers
        with ThreadPoolExecutor(8) as pool:
            counts = Counter(
                response.status_code
                for response in pool.map(lambda _: client.get("/", headers={"X-User-Id": "u3"}), range(40))
            )
        assert counts == {200: 5, 429: 35}


def test_exactly_the_limit_of_a_method_passes_and_every_call_receives_what_remains() -> None:
    with running(SERVERS["grpc"], answers_grpc) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        hello: Any = channel.unary_unary("/shop.Shop/Hello")

        def call_hello(user: str) -> tuple[str, dict[str, Any]]:
            call: Any
            try:
                _, call = hello.with_call(b"you", metadata=[("x-user-id", user)], timeout=10)
            except grpc.RpcError as error:
                call = error
            return call.code().name, dict(call.trailing_metadata())

        responses = [call_hello("u1") for _ in range(7)]
        assert [code for code, _ in responses] == ["OK"] * 5 + ["RESOURCE_EXHAUSTED"] * 2
        assert [parse_list(metadata["ratelimit"])[0][1]["r"] for _, metadata in responses] == [4, 3, 2, 1, 0, 0, 0]
        assert 1 <= int(responses[-1][1]["retry-after"]) <= 120
        assert call_hello("u2")[0] == "OK"
        with ThreadPoolExecutor(8) as pool:
            counts = Counter(code for code, _ in pool.map(lambda _: call_hello("u3"), range(40)))
        assert counts == {"OK": 5, "RESOURCE_EXHAUSTED": 35}


@contextmanager
def grpc_server(colour: str, **options: Any) -> Iterator[tuple[str, Any]]:
    """Yield the address of a server with handlers for asyncio or for threads, and its interceptor."""

    def read(message: bytes, context: Any) -> bytes:
        return b"read"

    async def read_async(message: bytes, context: Any) -> bytes:
        return b"read"

    handler: Any = grpc.unary_unary_rpc_method_handler(read_async if colour == "asyncio" else read)
    generic = grpc.method_handlers_generic_handler("shop.Shop", {"Read": handler})
    if colour == "threads":
        interceptor = RateLimitInterceptor(**options)
        server = grpc.server(ThreadPoolExecutor(8), handlers=[generic], interceptors=[interceptor])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}", interceptor
        finally:
            server.stop(None).wait(10)
            interceptor.close()
        return
    started = threading.Event()
    running_server: dict[str, Any] = {}

    async def serve() -> None:
        interceptor = AsyncRateLimitInterceptor(**options)
        pool = ThreadPoolExecutor(8)
        server = grpc.aio.server(pool, interceptors=[interceptor])
        server.add_generic_rpc_handlers((generic,))
        running_server["port"], running_server["interceptor"] = server.add_insecure_port("127.0.0.1:0"), interceptor
        await server.start()
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        running_server["stop"] = lambda: loop.call_soon_threadsafe(stop.set)
        started.set()
        await stop.wait()
        await server.stop(None)
        await asyncio.to_thread(pool.shutdown)  # a thread that ends a call still needs the loop
        await interceptor.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield f"127.0.0.1:{running_server['port']}", running_server["interceptor"]
    finally:
        running_server["stop"]()
        thread.join(10)


COLOURS = ["threads", "asyncio", "asyncio, handlers of threads"]


def code_of(channel: Any, user: str = "a") -> str:
    try:
        channel.unary_unary("/shop.Shop/Read")(b"", metadata=[("x-user-id", user)], timeout=20)
    except grpc.RpcError as error:
        failed: Any = error
        return str(failed.code().name)
    return "OK"


@pytest.mark.parametrize("colour", COLOURS)
def test_no_other_call_waits_while_a_call_stands_in_line(colour: str) -> None:
    with (
        grpc_server(colour, limits="1/second queue 3", key=header("x-user-id")) as (address, _),
        grpc.insecure_channel(address) as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        assert code_of(channel) == "OK"
        waiting = pool.submit(code_of, channel)
        others = 0
        while not waiting.done():
            assert code_of(channel, user=f"other{others}") == "OK"
            others += 1
        assert waiting.result() == "OK"
        assert others > 20, "a second is long enough for many calls of others"


@pytest.mark.parametrize("colour", COLOURS)
def test_clients_of_grpc_try_again_after_the_time_in_the_metadata(colour: str) -> None:
    """gRPC itself retries: 4 attempts, which without the metadata would end after some milliseconds."""
    policy = {"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
              "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}  # fmt: skip
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
    decisions: list[bool] = []
    options: dict[str, Any] = {"on_decision": lambda request, decision: decisions.append(decision.allowed)}
    with (
        grpc_server(colour, limits="1/second bucket", **options) as (address, _),
        grpc.insecure_channel(address, options=[("grpc.service_config", config)]) as channel,
    ):
        before = time.monotonic()
        assert [code_of(channel) for _ in range(3)] == ["OK"] * 3
        assert time.monotonic() - before >= 2
        assert decisions.count(True) == 3 and 2 <= decisions.count(False) <= 4


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_of_grpc_counts_in_redis(colour: str) -> None:
    with (
        single() as redis,
        grpc_server(colour, limits="20/hour", store=url_with_timeout(redis.url)) as (address, _),
        grpc.insecure_channel(address) as channel,
        ThreadPoolExecutor(8) as pool,
    ):
        assert Counter(pool.map(lambda _: code_of(channel), range(60))) == {"OK": 20, "RESOURCE_EXHAUSTED": 40}


def test_aiohttp_counts_in_redis_and_closes_its_connections() -> None:
    async def read(request: web.Request) -> web.Response:
        return web.Response()

    async def request_all(url: str) -> Counter[int]:
        app = web.Application()
        app.router.add_get("/", aiohttp_limit("20/hour", store=url)(read))
        setup(app, limits="1000/minute", store=url)
        async with TestClient(TestServer(app)) as session:

            async def get_status() -> int:
                async with session.get("/") as response:
                    return response.status

            return Counter(await asyncio.gather(*[get_status() for _ in range(60)]))

    with single() as redis:
        assert asyncio.run(request_all(url_with_timeout(redis.url))) == {200: 20, 429: 40}
        assert asyncio.run(request_all(url_with_timeout(redis.url))) == {429: 60}, (
            "another application of the same process, the same counts"
        )


def test_litestar_counts_in_redis_and_closes_its_connections() -> None:
    @get("/")
    async def read() -> str:
        return "read"

    with single() as redis:
        app: Any = Litestar(
            [read], logging_config=None, plugins=[RateLimitPlugin(limits="20/hour", store=url_with_timeout(redis.url))]
        )
        with LiveServer(app) as url, httpx.Client(base_url=url) as client, ThreadPoolExecutor(8) as pool:
            paths = ["/", "/nothing"] * 30
            counts = Counter(response.status_code for response in pool.map(client.get, paths))
        assert counts[429] == 40 and counts[200] + counts[404] == 20


def url_with_timeout(url: str) -> str:
    """Return the URL of a Redis with a long timeout: a busy machine is no outage."""
    return f"{url}?timeout=10s"


class LiveServer(uvicorn.Server):
    """uvicorn in a thread, until the end of the block."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, port=free_port(), log_level="warning"))
        self._thread = threading.Thread(target=self.run)

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self.started:
            assert self._thread.is_alive() and time.monotonic() < deadline
            time.sleep(0.02)
        return f"http://127.0.0.1:{self.config.port}"

    def __exit__(self, *_: object) -> None:
        self.should_exit = True
        self._thread.join(20)
