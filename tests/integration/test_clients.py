"""Clients that keep to limits, against a real server that really refuses requests and counts them."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import httpx
import pytest
import requests
import uvicorn
from stalls import stalled_s
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headgate import AsyncLimiter, ConfigError, Limiter, RateLimited
from headgate.errors import Held, Throttled
from headgate.http.asgi import RateLimitMiddleware as Refusing
from headgate.http.server.options import Refusal
from headgate.integrations.aiohttp_client import RateLimitMiddleware
from headgate.integrations.httpx import AsyncRateLimitTransport, RateLimitTransport
from headgate.integrations.requests import RateLimitAdapter
from versions import CLIENT_MIDDLEWARES, is_older

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[2] / "examples"
OF_AIOHTTP = pytest.param("aiohttp", marks=CLIENT_MIDDLEWARES)
LIBRARIES = ("httpx", "httpx, async", "requests", *([] if is_older("aiohttp", "3.12") else ["aiohttp"]))


# --- a server that counts


class Exchange(NamedTuple):
    """A request as the server received it, with its response."""

    method: str
    path: str
    status: int
    started: float
    ended: float
    port: int
    headers: dict[str, str]
    """Of the response."""


class Counting:
    """The outermost application of the server, which records every request."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.exchanges: list[Exchange] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        started = time.monotonic()
        head: dict[str, Any] = {}

        async def watched_send(message: Any) -> None:
            head.update(message if message["type"] == "http.response.start" else {})
            await send(message)

        await self.app(scope, receive, watched_send)
        headers = {name.decode(): value.decode() for name, value in head["headers"]}
        port = scope["client"][1]
        self.exchanges.append(
            Exchange(scope["method"], scope["path"], head["status"], started, time.monotonic(), port, headers)
        )

    def statuses(self) -> Counter[int]:
        return Counter(exchange.status for exchange in self.exchanges)


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def unwell(request: Request) -> Response:
    return PlainTextResponse("unwell", 503, {"Retry-After": "1", "Retry-After-Ms": "2"})


async def bad_gateway(request: Request) -> Response:
    return PlainTextResponse("bad gateway", 502)


class FirstRefused:
    """Reads the body of the first request of every path `/once/...`, then answers with 429; echoes later bodies."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        path = request.url.path
        if path in self.seen:
            return Response(body)
        self.seen.add(path)
        return PlainTextResponse("later", 429, {"Retry-After": "1", "Retry-After-Ms": "20"})


def in_milliseconds(request: Any, decision: Any, usual: Refusal) -> Refusal:
    """The usual refusal with the wait in milliseconds, so that tests need not wait for whole seconds."""
    exactly = ("Retry-After-Ms", str(-(-(decision.retry_after_us or 0) // 1000)))
    return Refusal(usual.status, [*usual.headers, exactly], usual.body)


def cost_of(request: Any) -> int:
    return int(request.headers.get("x-cost", "1"))


class Serving(NamedTuple):
    url: str
    counting: Counting

    @property
    def exchanges(self) -> list[Exchange]:
        return self.counting.exchanges


@contextmanager
def serving(limits: str | None = None, **options: Any) -> Iterator[Serving]:
    """A server on a free port that refuses above `limits`."""
    app: Any = Starlette(
        routes=[
            Route("/", hello),
            Route("/unwell", unwell, methods=["GET", "POST"]),
            Route("/bad-gateway", bad_gateway),
            Route("/once/{name}", FirstRefused().answer, methods=["GET", "POST", "PUT"]),
        ]
    )
    counting = Counting(app if limits is None else Refusing(app, limits=limits, **options))
    config = uvicorn.Config(counting, port=0, lifespan="off", ws="none", log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield Serving(f"http://127.0.0.1:{listening.getsockname()[1]}", counting)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def running() -> Iterator[Serving]:
    """A server that refuses nothing."""
    with serving() as server:
        yield server


@pytest.fixture
def server(running: Serving) -> Serving:
    running.exchanges.clear()
    return running


# --- four clients with one interface


class Call(NamedTuple):
    path: str = "/"
    method: str = "GET"
    body: Callable[[bool], Any] | None = None
    """Makes a body; the argument says whether it is for an asynchronous library."""

    headers: dict[str, str] | None = None


class Reply(NamedTuple):
    status: int
    text: str


Result = Reply | Exception
Options = dict[str, Any]


class Plan(NamedTuple):
    """The requests to send: some one after another, then others all at once."""

    url: str
    in_turn: list[Call]
    at_once: list[Call]


def send_all(
    library: str, url: str, calls: list[Call], *, first: list[Call] | None = None, at_once: bool = False, **options: Any
) -> list[Result]:
    """Send requests with one client of this library, one after another, or all at once after the `first`."""
    plan = Plan(url, first or [], calls) if at_once else Plan(url, [*(first or []), *calls], [])
    if library == "httpx":
        return send_with_httpx(plan, options)
    if library == "requests":
        return send_with_requests(plan, options)
    return asyncio.run(
        send_with_aiohttp(plan, options) if library == "aiohttp" else send_with_async_httpx(plan, options)
    )


def send_with_httpx(plan: Plan, options: Options) -> list[Result]:
    with httpx.Client(transport=RateLimitTransport(**options), base_url=plan.url) as client:

        def send(call: Call) -> Result:
            body = call.body(False) if call.body else None
            try:
                response = client.request(call.method, call.path, content=body, headers=call.headers)
            except Exception as error:
                return error
            return Reply(response.status_code, response.text)

        return in_threads(send, plan)


def send_with_requests(plan: Plan, options: Options) -> list[Result]:
    with requests.Session() as session:
        session.mount("http://", RateLimitAdapter(pool_maxsize=20, **options))

        def send(call: Call) -> Result:
            body = call.body(False) if call.body else None
            try:
                response = session.request(
                    call.method, plan.url + call.path, data=body, headers=call.headers, timeout=10
                )
            except Exception as error:
                return error
            return Reply(response.status_code, response.text)

        return in_threads(send, plan)


def in_threads(send: Callable[[Call], Result], plan: Plan) -> list[Result]:
    results = [send(call) for call in plan.in_turn]
    with ThreadPoolExecutor(len(plan.at_once) or 1) as pool:
        return results + list(pool.map(send, plan.at_once))


async def send_with_async_httpx(plan: Plan, options: Options) -> list[Result]:
    async with httpx.AsyncClient(transport=AsyncRateLimitTransport(**options), base_url=plan.url) as client:

        async def send(call: Call) -> Result:
            body = call.body(True) if call.body else None
            try:
                response = await client.request(call.method, call.path, content=body, headers=call.headers)
            except Exception as error:
                return error
            return Reply(response.status_code, response.text)

        return await in_tasks(send, plan)


async def send_with_aiohttp(plan: Plan, options: Options) -> list[Result]:
    middleware = RateLimitMiddleware(**options)
    async with aiohttp.ClientSession(plan.url, middlewares=(middleware,)) as session:

        async def send(call: Call) -> Result:
            body = call.body(True) if call.body else None
            try:
                async with session.request(call.method, call.path, data=body, headers=call.headers) as response:
                    return Reply(response.status, await response.text())
            except Exception as error:
                return error

        results = await in_tasks(send, plan)
    await middleware.close()
    return results


async def in_tasks(send: Callable[[Call], Any], plan: Plan) -> list[Result]:
    results = [await send(call) for call in plan.in_turn]
    return results + list(await asyncio.gather(*map(send, plan.at_once)))


@pytest.fixture(params=["httpx", "httpx, async", "requests", OF_AIOHTTP])
def library(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


HELLO = Reply(200, "hello")


# --- a server that refuses


def with_each_library(check: Callable[[str], None]) -> None:
    """Run a check that takes seconds with all libraries at the same time."""
    with ThreadPoolExecutor(len(LIBRARIES)) as pool:
        for library, checked in [(library, pool.submit(check, library)) for library in LIBRARIES]:
            try:
                checked.result()
            except BaseException as error:
                error.add_note(f"with {library}")
                raise


def test_a_refused_client_waits_for_retry_after_and_gets_its_response() -> None:
    def check(library: str) -> None:
        with serving("2 per 2 seconds fixed", headers="none") as server:
            assert send_all(library, server.url, [Call()] * 5) == [HELLO] * 5
            refused = [exchange for exchange in server.exchanges if exchange.status == 429]
            assert len(refused) in (1, 2), (
                "five requests exceed two windows; a second is refused only if a window ended just then"
            )
            for refusal in refused:
                retry = server.exchanges[server.exchanges.index(refusal) + 1]
                assert retry.started - refusal.ended >= int(refusal.headers["retry-after"])
            assert len({exchange.port for exchange in server.exchanges}) == 1, (
                "a discarded response frees its connection"
            )

    with_each_library(check)


def test_a_client_that_reads_what_remains_is_never_refused() -> None:
    def check(library: str) -> None:
        with serving("3/second fixed") as server:
            assert send_all(library, server.url, [Call()] * 5) == [HELLO] * 5
            assert server.counting.statuses() == {200: 5}

    with_each_library(check)


def test_twelve_concurrent_calls_wait_after_one_refusal(library: str) -> None:
    with serving("12 per second log", headers="none", cost=cost_of, refusal=in_milliseconds) as server:
        httpx.get(server.url, headers={"X-Cost": "12"})
        results = send_all(library, server.url, [Call()] * 12, first=[Call()], at_once=True, retries=0)
        assert [result.status for result in results if isinstance(result, Reply)] == [429] + [200] * 12
        refused = next(exchange for exchange in server.exchanges if exchange.status == 429)
        later = server.exchanges[server.exchanges.index(refused) + 1 :]
        assert len(later) == 12
        wait_s = int(refused.headers["retry-after-ms"]) / 1000
        assert all(exchange.started - refused.ended >= wait_s for exchange in later)


def test_limits_of_the_client_apply_before_anything_is_sent(library: str) -> None:
    with serving() as server:
        started = time.monotonic()
        results = send_all(library, server.url, [Call()] * 20, at_once=True, limits="5 per 100 ms log")
        assert time.monotonic() - started >= 0.3
        assert results == [HELLO] * 20
        assert server.counting.statuses() == {200: 20}


def test_a_call_that_would_wait_too_long_is_refused_by_the_client(library: str, server: Serving) -> None:
    results = send_all(library, server.url, [Call()] * 3, limits="2/minute", timeout=1)
    assert results[:2] == [HELLO] * 2
    assert isinstance(results[2], RateLimited) and results[2].decision.retry_after is not None
    assert len(server.exchanges) == 2


def test_a_call_keeps_to_its_deadline(library: str) -> None:
    with serving("1/minute", headers="none") as server:
        started = time.monotonic()
        served, refused, held = send_all(library, server.url, [Call()] * 3, timeout=5)
        ended = time.monotonic()
        assert ended - started - stalled_s(started, ended) < 2
        assert served == HELLO
        assert isinstance(refused, Reply) and refused.status == 429 and "retry in" in refused.text
        assert isinstance(held, Held) and 50 < held.retry_after <= 120
        assert len(server.exchanges) == 2, "a request that cannot wait is not sent"


def test_a_response_whose_retry_is_given_up_can_still_be_read(library: str, server: Serving) -> None:
    (result,) = send_all(library, server.url, [Call("/bad-gateway")], limits="1/minute", timeout=2)
    assert result == Reply(502, "bad gateway")
    assert len(server.exchanges) == 1


def at_once() -> float:
    """Replaces the random number: no pause."""
    return 0.0


# --- bodies


def a_generator(asynchronous: bool) -> Any:
    async def parts() -> AsyncIterator[bytes]:
        yield b"once "
        yield b"only"

    return parts() if asynchronous else iter_parts()


def iter_parts() -> Iterator[bytes]:
    yield b"once "
    yield b"only"


def some_bytes(asynchronous: bool) -> bytes:
    return b"as often as you like"


def a_file(asynchronous: bool) -> Any:
    file = io.BytesIO(b"skipped, and rewound")
    file.seek(9)
    return file


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_consumed_body_is_not_sent_again(library: str, method: str, server: Serving) -> None:
    (result,) = send_all(library, server.url, [Call(f"/once/generator {method} {library}", method, a_generator)])
    assert result == Reply(429, "later")
    assert server.counting.statuses() == {429: 1}


def test_a_body_of_bytes_is_sent_again_completely(library: str, server: Serving) -> None:
    (result,) = send_all(library, server.url, [Call(f"/once/bytes {library}", "POST", some_bytes)])
    assert result == Reply(200, "as often as you like")
    assert server.counting.statuses() == {429: 1, 200: 1}


@pytest.mark.parametrize("library", ["requests", OF_AIOHTTP])
def test_a_file_is_rewound_to_its_first_position(library: str, server: Serving) -> None:
    (result,) = send_all(library, server.url, [Call(f"/once/file {library}", "POST", a_file)])
    assert result == Reply(200, "and rewound")


def test_a_form_of_httpx_is_sent_again_if_its_files_can_be_rewound(server: Serving) -> None:
    class OneWay(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with httpx.Client(transport=RateLimitTransport(), base_url=server.url) as client:
        response = client.post("/once/form", data={"a": "b"}, files={"file": io.BytesIO(b"contents")})
        assert (response.status_code, response.content.count(b"contents")) == (200, 1)
        response = client.post("/once/one-way", files={"file": OneWay(b"contents")})
        assert response.status_code == 429


def test_a_body_that_was_never_read_can_still_be_sent(library: str) -> None:
    with closed_port() as url:
        started = time.monotonic()
        (result,) = send_all(library, url, [Call("/", "POST", a_generator)], random=lambda: 1.0)
        assert isinstance(result, httpx.ConnectError | requests.ConnectionError | aiohttp.ClientConnectorError)
        assert time.monotonic() - started >= 0.3, "0.1 and 0.2 seconds between three tries"


# --- servers that fail


def test_retries_of_a_server_that_always_fails_are_bounded(library: str, server: Serving) -> None:
    results = send_all(library, server.url, [Call("/unwell")] * 40, random=at_once)
    assert results == [Reply(503, "unwell")] * 40
    assert 50 <= len(server.exchanges) <= 40 + 10 + 4 + 1
    one_way = send_all(library, server.url, [Call("/unwell", "POST")], random=at_once)
    assert one_way == [Reply(503, "unwell")]
    assert server.exchanges[-2].method == "GET", "a request that is not idempotent is sent once"


def test_adaptive_throttling_takes_load_off_a_server_that_fails(library: str, server: Serving) -> None:
    results = send_all(library, server.url, [Call("/unwell")] * 60, adaptive=True, retries=0)
    throttled = [result for result in results if isinstance(result, Throttled)]
    assert len(throttled) + len(server.exchanges) == 60
    assert len(server.exchanges) <= 30
    assert isinstance(send_all(library, server.url, [Call()], adaptive=True)[0], Reply)


@contextmanager
def closed_port() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: refused
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def hanging_up(response: bytes = b"") -> Iterator[tuple[str, list[bytes]]]:
    """A server that reads a request, sends `response`, and closes the connection."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    received.append(connection.recv(65536))
                    connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", received
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


LOST = httpx.RemoteProtocolError | httpx.ReadError | requests.ConnectionError | aiohttp.ClientConnectionError


def test_a_call_that_may_have_succeeded_is_repeated_only_if_idempotent(library: str) -> None:
    with hanging_up() as (url, received):
        (result,) = send_all(library, url, [Call(method="POST")], random=at_once)
        assert isinstance(result, LOST)
        assert len(received) == 1
        (result,) = send_all(
            library, url, [Call(method="POST", headers={"Idempotency-Key": "8e03978e"})], random=at_once
        )
        assert isinstance(result, LOST)
        assert len(received) == 4
        (result,) = send_all(library, url, [Call()], random=at_once)
        assert isinstance(result, LOST)
        # aiohttp itself repeats an idempotent request once, which is another call here
        assert len(received) == 4 + (6 if library == "aiohttp" else 3)


@contextmanager
def refusing_before_the_body() -> Iterator[tuple[str, list[bytes]]]:
    """A server that refuses the first request by its head alone, and says to the second to go on."""
    bodies: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for is_first in (True, False):
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(5)
                    connection.recv(65536)
                    if not is_first:
                        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                        bodies.append(connection.recv(65536))
                    status = b"429 Too Many Requests" if is_first else b"200 OK"
                    fields = b"Retry-After: 0\r\nConnection: close\r\nContent-Length: 0"
                    connection.sendall(b"HTTP/1.1 %s\r\n%s\r\n\r\n" % (status, fields))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", bodies
        finally:
            thread.join()


@CLIENT_MIDDLEWARES
def test_a_body_that_waited_for_100_is_sent_with_the_retry_of_aiohttp() -> None:
    async def post(url: str) -> int:
        async with (
            aiohttp.ClientSession(middlewares=(RateLimitMiddleware(random=at_once),)) as session,
            session.post(url, data=b"body", expect100=True) as response,
        ):
            return response.status

    with refusing_before_the_body() as (url, bodies):
        assert asyncio.run(post(url)) == 200
    assert bodies == [b"body"]


@pytest.mark.parametrize("response", [b"nonsense\r\n\r\n", b"HTTP/1.1 20x OK\r\n\r\n"])
def test_a_malformed_response_is_treated_as_a_lost_one(library: str, response: bytes) -> None:
    with hanging_up(response) as (url, received):
        (result,) = send_all(library, url, [Call(method="POST")], random=at_once)
        assert isinstance(result, LOST | aiohttp.ClientResponseError)
        assert len(received) == 1
        (result,) = send_all(library, url, [Call()], random=at_once)
        assert isinstance(result, LOST | aiohttp.ClientResponseError)
        assert len(received) == 4


def test_a_wrong_certificate_is_not_tried_again() -> None:
    from ssl import SSLCertVerificationError

    def refuse(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        try:
            raise SSLCertVerificationError("self-signed certificate")
        except SSLCertVerificationError as error:
            raise httpx.ConnectError("certificate verify failed") from error

    sent: list[httpx.Request] = []
    with httpx.Client(transport=RateLimitTransport(transport=httpx.MockTransport(refuse))) as client:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                client.get("https://example.com/")
    assert len(sent) == 2


# --- transports and adapters


def test_a_transport_may_return_responses_that_are_already_read() -> None:
    def buffered(*statuses: int) -> httpx.MockTransport:
        remaining = list(statuses)
        return httpx.MockTransport(lambda request: httpx.Response(remaining.pop(0), text="unwell"))

    transport = RateLimitTransport("2/minute", buffered(429, 502), timeout=1)
    with httpx.Client(transport=transport) as client:
        response = client.get("https://example.com/")
        assert (response.status_code, response.text) == (502, "unwell")

    async def main() -> None:
        transport = AsyncRateLimitTransport(None, buffered(429, 502), retries=1)
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.get("https://example.com/")).text == "unwell"

    asyncio.run(main())


def test_a_streamed_response_stays_streamed(server: Serving) -> None:
    with httpx.Client(transport=RateLimitTransport("9/second")) as client:
        with client.stream("GET", f"{server.url}/once/stream-1") as response:
            assert response.status_code == 200 and b"".join(response.iter_raw()) == b""
        with client.stream("GET", server.url) as response:
            assert b"".join(response.iter_raw()) == b"hello"
        assert client.get(server.url).elapsed.total_seconds() > 0
    with requests.Session() as session:
        session.mount("http://", RateLimitAdapter("9/second"))
        with session.get(server.url, stream=True) as streamed:
            assert streamed.raw.read() == b"hello"


def test_a_limiter_may_be_shared_and_is_left_open(server: Serving) -> None:
    limiter = Limiter("3/minute")
    with httpx.Client(transport=RateLimitTransport(limiter, key=lambda request: "all", timeout=1)) as client:
        client.get(server.url)
    with requests.Session() as session:
        session.mount("http://", RateLimitAdapter(limiter, key=lambda request: "all", timeout=1))
        session.get(server.url, timeout=5)
    assert limiter.peek("all", 0).remaining == 1


@CLIENT_MIDDLEWARES
def test_a_limiter_of_aiohttp_is_left_open(server: Serving) -> None:
    async def main() -> None:
        async_limiter = AsyncLimiter("1/minute")
        middleware = RateLimitMiddleware(async_limiter, key=lambda request: request.url.path, timeout=0)
        async with aiohttp.ClientSession(server.url, middlewares=(middleware,)) as session:
            async with session.get("/") as response:
                assert response.status == 200
            with pytest.raises(RateLimited):
                await session.get("/")
        await middleware.close()
        assert (await async_limiter.peek("/", 0)).remaining == 0

    asyncio.run(main())


def test_transports_close_what_they_opened(server: Serving) -> None:
    transport = RateLimitTransport("1/minute", key=lambda request: "all")
    with httpx.Client(transport=transport) as client:
        client.get(server.url)
        limiter = transport._sender.limiter
        assert limiter.peek("all", 0).remaining == 0
    assert limiter.peek("all", 0).remaining == 1, "a memory store that is closed has forgotten everything"
    transport.close()

    async def main() -> None:
        transport = AsyncRateLimitTransport("1/minute")
        async with httpx.AsyncClient(transport=transport):
            pass
        await transport.aclose()

    asyncio.run(main())


def test_an_aiohttp_without_client_middlewares_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(aiohttp, "ClientHandlerType", raising=False)
    monkeypatch.setattr(aiohttp, "__version__", "3.11.18")
    with pytest.raises(ConfigError, match=r"need aiohttp 3\.12 or later, this is 3\.11\.18"):
        RateLimitMiddleware()


def test_waiting_does_not_block_the_event_loop(server: Serving) -> None:
    async def main() -> float:
        longest = 0.0

        async def ticking() -> None:
            nonlocal longest
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                after = time.monotonic()
                longest = max(longest, after - before - stalled_s(before, after))

        ticker = asyncio.create_task(ticking())
        async with httpx.AsyncClient(
            transport=AsyncRateLimitTransport("1 per 400 ms log"), base_url=server.url
        ) as client:
            await asyncio.gather(*(client.get("/") for _ in range(2)))
        ticker.cancel()
        return longest

    assert asyncio.run(main()) < 0.3


@CLIENT_MIDDLEWARES
def test_the_examples_run_as_they_are() -> None:
    examples = sorted(path.name for path in EXAMPLES.glob("*_client.py"))
    assert len(examples) == 3
    with serving("5/second bucket", key=lambda request: request.headers["user-agent"], headers="none") as server:
        environment = {**os.environ, "URL": server.url}
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "error", example],
                cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for example in examples
        ]  # fmt: skip
        for process in started:
            stdout, stderr = process.communicate(timeout=30)
            assert (process.returncode, stdout.split()) == (0, ["200"] * 8), stderr
