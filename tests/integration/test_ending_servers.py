"""Requests that a server ends while it stops: their places on Redis are free when the store is closed."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiohttp import ClientSession, web
from redis_servers import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headgate.integrations import aiohttp as for_aiohttp
from headgate.integrations import starlette as for_starlette

pytestmark = pytest.mark.integration
LIMITS = "1 concurrent"


def store_of(server: Server, prefix: str) -> str:
    return f"{server.url}?timeout=10s&prefix={prefix}"


@pytest.mark.parametrize("loop_turns", [0, 1, 5])
def test_a_request_that_is_cancelled_when_the_store_is_closed_is_freed(server: Server, loop_turns: int) -> None:
    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "client": ("203.0.113.9", 1)}

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def test() -> None:
        limits = for_starlette.RateLimits(store=store_of(server, f"cancelled{loop_turns}"), scope="all")
        entered, statuses = asyncio.Event(), []

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        @limits(LIMITS)
        async def wait(request: Request) -> Response:
            entered.set()
            await asyncio.Event().wait()
            return PlainTextResponse("never")

        @limits(LIMITS)
        async def read(request: Request) -> Response:
            return PlainTextResponse("read")

        app = Starlette(routes=[Route("/wait", wait), Route("/", read)])
        app.add_middleware(for_starlette.RateLimitHeaders, rate_limits=limits)
        serving = asyncio.create_task(app({**scope, "path": "/wait"}, receive, send))
        await entered.wait()
        await app({**scope, "path": "/"}, receive, send)
        assert statuses.pop(0) == 429
        serving.cancel()
        for _ in range(loop_turns):
            await asyncio.sleep(0)
        await limits.aclose()
        statuses.clear()
        await app({**scope, "path": "/"}, receive, send)
        await limits.aclose()
        assert statuses[0] == 200

    asyncio.run(test())


def test_a_request_that_is_cancelled_is_freed_before_the_lifespan_ends_where_nothing_closes_the_store(
    server: Server,
) -> None:
    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "client": ("203.0.113.9", 1)}

    async def statuses(path: str, limits: for_starlette.RateLimits, *, cancels: bool) -> list[Any]:
        sent_statuses: list[Any] = []
        entered = asyncio.Event()
        lifespan_events: asyncio.Queue[Any] = asyncio.Queue()
        lifespan_events.put_nowait({"type": "lifespan.startup"})

        async def send(message: Any) -> None:
            sent_statuses.append(message.get("status"))

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def ignore(message: Any) -> None:
            pass

        @limits(LIMITS)
        async def wait(request: Request) -> Response:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(5):  # the handler takes some turns of the loop to clean up
                    await asyncio.sleep(0)
            return PlainTextResponse("never")

        @limits(LIMITS)
        async def read(request: Request) -> Response:
            return PlainTextResponse("read")

        app = Starlette(routes=[Route("/wait", wait), Route("/", read)])
        app.add_middleware(for_starlette.RateLimitHeaders)
        lifespan = asyncio.create_task(app({"type": "lifespan"}, lifespan_events.get, ignore))
        serving = asyncio.create_task(app({**scope, "path": path}, receive, send))
        if cancels:
            await entered.wait()
            serving.cancel()
        else:
            await serving
        lifespan_events.put_nowait({"type": "lifespan.shutdown"})
        await lifespan
        return sent_statuses

    def make_limits() -> for_starlette.RateLimits:
        return for_starlette.RateLimits(store=store_of(server, "lifespan"), scope="all")

    async def read_elsewhere() -> list[Any]:
        limits = make_limits()
        try:
            return await statuses("/", limits, cancels=False)
        finally:
            await limits.aclose()

    async def test() -> None:
        limits = make_limits()
        assert await statuses("/wait", limits, cancels=True) == []
        with ThreadPoolExecutor() as pool:  # this loop stands still meanwhile, as if it had ended
            assert pool.submit(asyncio.run, read_elsewhere()).result()[:1] == [200]
        await limits.aclose()

    asyncio.run(test())


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_request_of_aiohttp_that_ends_as_its_server_stops_is_freed(server: Server, cut_off: bool) -> None:
    prefix = f"stopped{cut_off}"

    async def statuses(name: str, *, stops: bool) -> list[Any]:
        """Return the statuses of a server that stops during the request if `stops`."""
        limits = for_aiohttp.RateLimits(store=store_of(server, prefix), scope="all")
        entered, may_end = asyncio.Event(), asyncio.Event()

        @limits(LIMITS)
        async def wait(request: web.Request) -> web.Response:
            entered.set()
            await may_end.wait()
            return web.Response()

        @limits(LIMITS)
        async def read(request: web.Request) -> web.Response:
            return web.Response()

        async def let_requests_end(app: web.Application) -> None:
            if not cut_off:
                may_end.set()

        app = web.Application()
        app.router.add_get("/wait", wait)
        app.router.add_get("/", read)
        app.on_shutdown.append(let_requests_end)
        for_aiohttp.setup(app, rate_limits=limits)
        runner = web.AppRunner(app, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            request_task = asyncio.create_task(session.get(name))
            if stops:
                await entered.wait()
                await runner.cleanup()
            results = await asyncio.gather(request_task, return_exceptions=True)
            await runner.cleanup()
        return [getattr(result, "status", None) for result in results]

    assert asyncio.run(statuses("/wait", stops=True)) == [None if cut_off else 200]
    assert asyncio.run(statuses("/", stops=False)) == [200]
