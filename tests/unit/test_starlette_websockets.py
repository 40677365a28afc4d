"""Limits of websocket endpoints end with them, without a middleware that sees their messages."""

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
SENDS_TEXT = {"type": "websocket.receive", "text": "hello"}
DISCONNECTS = {"type": "websocket.disconnect", "code": 1000}
ACCEPTED, REFUSED = "websocket.accept", 429


@pytest.fixture(autouse=True)
def _no_garbage_collection() -> Iterator[None]:
    """Objects in a cycle of references stay alive for the whole test."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def limits() -> RateLimits:
    return RateLimits(clock=ManualClock())


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on its own event loop."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def let_tasks_finish() -> None:
    """Let the tasks run that follow the end of a request."""
    for _ in range(5):
        await asyncio.sleep(0)


async def first_reply(app: Any, *messages: dict[str, Any], until: asyncio.Event | None = None) -> Any:
    """The first reply to a client, which disconnects after its messages, or when `until` is set."""
    incoming = [CONNECTS, *messages]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop(0)
        if until is not None:
            await until.wait()
        return DISCONNECTS

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("status", message["type"]))

    extensions: dict[str, Any] = {"websocket.http.response": {}}
    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "client": ("203.0.113.9", 1)}
    serving = asyncio.create_task(app({**scope, "extensions": extensions}, receive, send))  # as servers do
    with suppress(OSError):
        await serving
    await let_tasks_finish()
    return sent[0] if sent else None


def app_with(endpoint: Any) -> Starlette:
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
async def test_a_place_is_released_when_the_endpoint_of_a_websocket_has_ended(
    limits: RateLimits, endpoint: Any
) -> None:
    app = app_with(limits("1 concurrent")(endpoint))
    assert [await first_reply(app, SENDS_TEXT) for _ in range(3)] == [ACCEPTED] * 3


@on_a_loop
async def test_a_place_is_held_while_a_websocket_is_open(limits: RateLimits) -> None:
    app, end = app_with(limits("1 concurrent")(listen)), asyncio.Event()
    first = asyncio.create_task(first_reply(app, SENDS_TEXT, until=end))
    await asyncio.sleep(0)
    assert await first_reply(app) == REFUSED
    end.set()
    assert await first == ACCEPTED
    assert await first_reply(app) == ACCEPTED


@on_a_loop
async def test_a_place_is_released_when_the_endpoint_of_a_websocket_is_cancelled(limits: RateLimits) -> None:
    app = app_with(limits("1 concurrent")(listen))
    first = asyncio.create_task(first_reply(app, until=asyncio.Event()))
    await asyncio.sleep(0)
    assert await first_reply(app) == REFUSED
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await first_reply(app) == ACCEPTED


@on_a_loop
async def test_a_websocket_with_a_limited_on_connect_holds_its_place_until_it_is_closed(limits: RateLimits) -> None:
    class Chat(WebSocketEndpoint):
        encoding = "text"

        @limits("1 concurrent")
        async def on_connect(self, websocket: WebSocket) -> None:
            await websocket.accept()

    app, end = app_with(Chat), asyncio.Event()
    first = asyncio.create_task(first_reply(app, SENDS_TEXT, until=end))
    await asyncio.sleep(0)
    assert await first_reply(app) == REFUSED
    end.set()
    assert await first == ACCEPTED
    assert [await first_reply(app) for _ in range(2)] == [ACCEPTED] * 2


@on_a_loop
async def test_a_place_is_released_when_a_websocket_endpoint_fails_after_connecting(limits: RateLimits) -> None:
    class Failing(WebSocketEndpoint):
        encoding = "text"

        @limits("1 concurrent")
        async def on_connect(self, websocket: WebSocket) -> None:
            await websocket.accept()

        async def on_receive(self, websocket: WebSocket, data: str) -> None:
            raise OSError("the endpoint fails")

    app = app_with(Failing)
    assert [await first_reply(app, SENDS_TEXT) for _ in range(3)] == [ACCEPTED] * 3


@on_a_loop
async def test_counts_is_called_when_the_endpoint_of_a_websocket_has_ended(limits: RateLimits) -> None:
    statuses = []

    def counts(websocket: WebSocket, response: Any) -> bool:
        statuses.append(response.status)
        return bool(response.status == 403)

    @limits("1/minute", counts=counts)
    async def login(websocket: WebSocket) -> None:
        if len(statuses) < 3:
            await websocket.accept()
        else:
            await websocket.send_denial_response(PlainTextResponse("no", 403))

    app = app_with(login)
    assert [await first_reply(app) for _ in range(5)] == [ACCEPTED] * 3 + [403, REFUSED]
    assert statuses == [101, 101, 101, 403]


@on_a_loop
async def test_a_place_is_released_with_a_response_that_is_never_sent(limits: RateLimits) -> None:
    limited = limits("1 concurrent")(_well)

    async def replace_response(request: Request) -> PlainTextResponse:
        """A decorator above the limit that returns its own response."""
        return PlainTextResponse(str((await limited(request)).status_code))

    app = Starlette(routes=[Route("/", replace_response)])
    bodies = []

    async def send(message: dict[str, Any]) -> None:
        bodies.append(message.get("body"))

    for _ in range(3):
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        await app({**scope, "client": ("203.0.113.9", 1)}, _nothing, send)  # type: ignore[arg-type]
        await let_tasks_finish()
    assert bodies[1::2] == [b"200"] * 3


async def _well(request: Request) -> PlainTextResponse:
    return PlainTextResponse("well")


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request"}
