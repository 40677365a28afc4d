"""Clients with a bound on their requests in flight: httpx, requests and aiohttp, before a real server."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import aiohttp
import httpx
import pytest
import requests
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headgate import AsyncLimiter, Limiter, RateLimited
from headgate.integrations.aiohttp_client import RateLimitMiddleware
from headgate.integrations.httpx import AsyncRateLimitTransport, RateLimitTransport
from headgate.integrations.requests import RateLimitAdapter
from until import until, until_async
from versions import CLIENT_MIDDLEWARES

pytestmark = pytest.mark.integration


class CountingServer:
    """A server that counts its requests: in flight now, the most in flight, and all that it received."""

    def __init__(self) -> None:
        self.now = self.most = self.received = 0

    async def slow(self, request: Any) -> PlainTextResponse:
        self.now, self.received = self.now + 1, self.received + 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        self.now -= 1
        return PlainTextResponse("slow")

    async def refused_once(self, request: Any) -> PlainTextResponse:
        self.received += 1
        return PlainTextResponse("", 429 if self.received % 2 else 200, {"Retry-After": "0"})

    async def stream(self, request: Any) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"part" * 1000
                await asyncio.sleep(0.01)

        return StreamingResponse(parts())


@pytest.fixture
def counting_server() -> CountingServer:
    return CountingServer()


@pytest.fixture
def url(counting_server: CountingServer) -> Iterator[str]:
    routes = [
        Route("/", counting_server.slow, methods=["GET", "HEAD", "POST"]),
        Route("/refused", counting_server.refused_once),
        Route("/stream", counting_server.stream),
        Route("/nothing", lambda request: Response()),
        Route("/gone", lambda request: Response(status_code=204), methods=["DELETE"]),
    ]
    config = uvicorn.Config(Starlette(routes=routes), lifespan="off", ws="none", log_level="critical")
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def free(limiter: Limiter) -> int:
    remaining: int = limiter.peek("api", 0).limits[0].remaining
    return remaining


def key(request: Any) -> str:
    return "api"


def session_of(limiter: Limiter, **options: Any) -> requests.Session:
    session = requests.Session()
    session.mount("http://", RateLimitAdapter(limiter, key=key, pool_maxsize=20, **options))
    return session


def client_of(limiter: Limiter, **options: Any) -> httpx.Client:
    return httpx.Client(transport=RateLimitTransport(limiter, key=key, **options), timeout=20)


@pytest.mark.parametrize("make", [session_of, client_of])
def test_clients_of_threads_have_no_more_requests_in_flight_than_the_limit(
    make: Any, url: str, counting_server: CountingServer
) -> None:
    limiter = Limiter("2 concurrent; 1000/minute")
    with make(limiter) as client, ThreadPoolExecutor(8) as threads:
        methods = ["GET", "HEAD", "POST"] * 4
        responses = list(threads.map(lambda method: client.request(method, f"{url}/"), methods))
        assert {response.status_code for response in responses} == {200}
        assert counting_server.most == 2
        until(lambda: free(limiter) == 2)
        assert client.get(f"{url}/refused").status_code == 200  # tried again, each attempt with its own place
        assert client.get(f"{url}/unknown").status_code == 404
        assert free(limiter) == 2
        assert limiter.peek("api", 0).limits[1].remaining == 1000 - 12 - 2 - 1


def test_a_stream_of_requests_holds_its_place_until_it_is_closed(url: str) -> None:
    limiter = Limiter("1 concurrent")
    with session_of(limiter, timeout=0.2) as client:
        response = client.get(f"{url}/stream", stream=True)
        parts = response.iter_content(10)
        next(parts)
        with pytest.raises(RateLimited):
            client.get(f"{url}/")
        response.close()
        assert client.get(f"{url}/").status_code == 200
        assert free(limiter) == 1
        with pytest.raises(requests.ConnectionError):
            client.get("http://127.0.0.1:1/")
        assert free(limiter) == 1


def test_a_stream_of_requests_that_is_closed_as_a_file_frees_its_place(url: str) -> None:
    limiter = Limiter("1 concurrent")
    with session_of(limiter, timeout=0.2) as client:
        response = client.get(f"{url}/stream", stream=True)
        with response.raw as file:
            assert file.read(4) == b"part"
            assert free(limiter) == 0
        assert free(limiter) == 1
        assert client.get(f"{url}/").status_code == 200


@pytest.mark.parametrize(("method", "path"), [("HEAD", "/"), ("GET", "/nothing"), ("DELETE", "/gone")])
def test_a_response_of_requests_without_a_body_holds_no_place(method: str, path: str, url: str) -> None:
    limiter = Limiter("1 concurrent")
    with session_of(limiter, timeout=0.2) as client:
        first = client.request(method, f"{url}{path}", stream=True)
        assert free(limiter) == 1
        assert first.content == b""
        first.close()
        assert free(limiter) == 1


def test_a_stream_of_requests_that_is_dropped_closes_its_connection_at_once(url: str) -> None:
    with session_of(Limiter("1 concurrent")) as client:
        response = client.get(f"{url}/stream", stream=True)
        connection = ref(response.raw)
        gc.disable()
        try:
            del response
            assert connection() is None
        finally:
            gc.enable()


def test_a_stream_of_httpx_holds_its_place_until_it_is_closed(url: str) -> None:
    limiter = Limiter("1 concurrent")
    with client_of(limiter, timeout=0.2) as client:
        with client.stream("GET", f"{url}/stream") as response:
            parts = response.iter_raw()
            next(parts)
            with pytest.raises(RateLimited):
                client.get(f"{url}/")
        assert client.get(f"{url}/").status_code == 200
        with pytest.raises(httpx.ConnectError):
            client.get("http://127.0.0.1:1/")
        assert free(limiter) == 1
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=b"whole"))
    with httpx.Client(transport=RateLimitTransport(limiter, transport, key=key)) as client:
        assert [client.get("http://a/").text for _ in range(3)] == ["whole"] * 3


async def places_of(limiter: AsyncLimiter) -> int:
    remaining: int = (await limiter.peek("api", 0)).limits[0].remaining
    return remaining


@pytest.mark.parametrize("library", ["httpx", pytest.param("aiohttp", marks=CLIENT_MIDDLEWARES)])
def test_clients_of_an_event_loop_have_no_more_requests_in_flight_than_the_limit(
    library: str, url: str, counting_server: CountingServer
) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("2 concurrent; 1000/minute")
        client: Any
        if library == "httpx":
            client = httpx.AsyncClient(transport=AsyncRateLimitTransport(limiter, key=key), timeout=20)
        else:
            client = aiohttp.ClientSession(middlewares=(RateLimitMiddleware(limiter, key=key),))

        async def get_status(path: str) -> int:
            if library == "httpx":
                return int((await client.get(f"{url}{path}")).status_code)
            async with client.get(f"{url}{path}") as response:
                await response.read()
                return int(response.status)

        async def open_stream() -> Any:
            if library == "httpx":
                request = client.build_request("GET", f"{url}/stream")
                return await client.send(request, stream=True)
            return await client.get(f"{url}/stream")

        async def close(stream: Any) -> None:
            await stream.aclose() if library == "httpx" else stream.close()

        async def all_free() -> None:
            for _ in range(3000):
                if await places_of(limiter) == 2:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("places are not free again")

        async with client:
            assert set(await asyncio.gather(*[get_status("/") for _ in range(12)])) == {200}
            assert counting_server.most == 2
            assert await get_status("/refused") == 200
            await all_free()
            streams = [await open_stream() for _ in range(2)]
            assert await places_of(limiter) == 0
            waiting = [asyncio.ensure_future(get_status("/")) for _ in range(3)]
            await until_async(lambda: limiter._lines._shared.waiting == 3)
            waiting[0].cancel()
            for stream in streams:
                await close(stream)
            assert await asyncio.gather(*waiting[1:]) == [200, 200]
            cancelled = asyncio.ensure_future(get_status("/"))
            await asyncio.sleep(0.02)
            cancelled.cancel()  # while it is in flight
            await asyncio.wait([cancelled])
            await all_free()

    asyncio.run(asyncio.wait_for(main(), 90))


@CLIENT_MIDDLEWARES
def test_a_response_of_aiohttp_that_ends_in_another_thread_frees_its_place_without_a_warning(
    url: str, recwarn: pytest.WarningsRecorder
) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("1 concurrent")
        async with aiohttp.ClientSession(middlewares=(RateLimitMiddleware(limiter, key=key),)) as session:
            response = await session.get(f"{url}/stream")
            assert await places_of(limiter) == 0
            await asyncio.to_thread(response.close)  # as the garbage collector does
            assert await limiter.acquire("api", timeout=30, lease=60)

    asyncio.run(main())
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []
