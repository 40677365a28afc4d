"""Limits of websockets' endpoints end with them, with no middleware that sees what they send."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.endpoints import WebSocketEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from headgate.integrations.starlette import RateLimits
from headgate.testing import ManualClock

CONNECTS = {"type": "websocket.connect"}
SAYS = {"type": "websocket.receive", "text": "hello"}
LEAVES = {"type": "websocket.disconnect", "code": 1000}
ACCEPTED, REFUSED = "websocket.accept", 429


@pytest.fixture(autouse=True)
def _no_garbage_collection() -> Iterator[None]:
    """What a circle of references keeps is kept for the whole of a test."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def limits() -> RateLimits:
    return RateLimits(clock=ManualClock())


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def settled() -> None:
    """What follows the end of a request has been done."""
    for _ in range(5):
        await asyncio.sleep(0)


async def talk(app: Any, *messages: dict[str, Any], until: asyncio.Event | None = None) -> Any:
    """What a client is told first; the client leaves at the end, or stays until then."""
    coming = [CONNECTS, *messages]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if coming:
            return coming.pop(0)
        if until is not None:
            await until.wait()
        return LEAVES

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("status", message["type"]))

    extensions: dict[str, Any] = {"websocket.http.response": {}}
    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "client": ("203.0.113.9", 1)}
    serving = asyncio.create_task(app({**scope, "extensions": extensions}, receive, send))  # as servers do
    with suppress(OSError):
        await serving
    await settled()
    return sent[0] if sent else None


def one(endpoint: Any) -> Starlette:
    return Starlette(routes=[WebSocketRoute("/", endpoint)])


async def accept(websocket: WebSocket) -> None:
    await websocket.accept()


async def close(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


async def fail(websocket: WebSocket) -> None:
    await websocket.accept()
    raise OSError("the endpoint fails")


async def listen(websocket: WebSocket) -> None:
    await websocket.accept()
    async for _ in websocket.iter_text():
        pass


@pytest.mark.parametrize("endpoint", [accept, close, fail, listen])
@on_a_loop
async def test_a_place_is_given_back_when_the_endpoint_of_a_websocket_has_ended(
    limits: RateLimits, endpoint: Any
) -> None:
    app = one(limits("1 concurrent")(endpoint))
    assert [await talk(app, SAYS) for _ in range(3)] == [ACCEPTED] * 3


@on_a_loop
async def test_a_place_is_held_while_a_websocket_is_open(limits: RateLimits) -> None:
    app, end = one(limits("1 concurrent")(listen)), asyncio.Event()
    first = asyncio.create_task(talk(app, SAYS, until=end))
    await asyncio.sleep(0)
    assert await talk(app) == REFUSED
    end.set()
    assert await first == ACCEPTED
    assert await talk(app) == ACCEPTED


@on_a_loop
async def test_a_place_is_given_back_when_the_endpoint_of_a_websocket_is_cancelled(limits: RateLimits) -> None:
    app = one(limits("1 concurrent")(listen))
    first = asyncio.create_task(talk(app, until=asyncio.Event()))
    await asyncio.sleep(0)
    assert await talk(app) == REFUSED
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await talk(app) == ACCEPTED


@on_a_loop
async def test_a_websocket_whose_connecting_is_limited_holds_its_place_until_it_is_closed(limits: RateLimits) -> None:
    class Chat(WebSocketEndpoint):
        encoding = "text"

        @limits("1 concurrent")
        async def on_connect(self, websocket: WebSocket) -> None:
            await websocket.accept()

    app, end = one(Chat), asyncio.Event()
    first = asyncio.create_task(talk(app, SAYS, until=end))
    await asyncio.sleep(0)
    assert await talk(app) == REFUSED
    end.set()
    assert await first == ACCEPTED
    assert [await talk(app) for _ in range(2)] == [ACCEPTED] * 2


@on_a_loop
async def test_a_place_is_given_back_where_a_websocket_endpoint_fails_after_connecting(limits: RateLimits) -> None:
    class Failing(WebSocketEndpoint):
        encoding = "text"

        @limits("1 concurrent")
        async def on_connect(self, websocket: WebSocket) -> None:
            await websocket.accept()

        async def on_receive(self, websocket: WebSocket, data: str) -> None:
            raise OSError("the endpoint fails")

    app = one(Failing)
    assert [await talk(app, SAYS) for _ in range(3)] == [ACCEPTED] * 3


@on_a_loop
async def test_what_a_websocket_counts_is_asked_when_its_endpoint_has_ended(limits: RateLimits) -> None:
    seen = []

    def counts(websocket: WebSocket, response: Any) -> bool:
        seen.append(response.status)
        return bool(response.status == 403)

    @limits("1/minute", counts=counts)
    async def login(websocket: WebSocket) -> None:
        if len(seen) < 3:
            await websocket.accept()
        else:
            await websocket.send_denial_response(PlainTextResponse("no", 403))

    app = one(login)
    assert [await talk(app) for _ in range(5)] == [ACCEPTED] * 3 + [403, REFUSED]
    assert seen == [101, 101, 101, 403]


@on_a_loop
async def test_a_place_is_given_back_with_a_response_that_is_never_sent(limits: RateLimits) -> None:
    limited = limits("1 concurrent")(_well)

    async def instead(request: Request) -> PlainTextResponse:
        """A decorator above the limit that has a response of its own."""
        return PlainTextResponse(str((await limited(request)).status_code))

    app = Starlette(routes=[Route("/", instead)])
    told = []

    async def send(message: dict[str, Any]) -> None:
        told.append(message.get("body"))

    for _ in range(3):
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        await app({**scope, "client": ("203.0.113.9", 1)}, _nothing, send)  # type: ignore[arg-type]
        await settled()
    assert told[1::2] == [b"200"] * 3


async def _well(request: Request) -> PlainTextResponse:
    return PlainTextResponse("well")


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request"}
