"""What servers and frameworks call: is it taken for what it is, and what does it give them?"""

from __future__ import annotations

import asyncio
import gc
import inspect
import struct
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from asgiref.compatibility import guarantee_single_callable

from headgate import Limiter, StoreError
from headgate import core as cores
from headgate.http import asgi, wsgi
from headgate.stores.shared.store import SharedStore

SIZE = 256 << 10
POLICY: dict[str, Any] = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "1/hour"}]}
SHARED = pytest.mark.skipif(cores.native is None, reason="shared memory and native gates need the native core")


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"read"})


def wsgi_application(environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b"read"]


def scope_of(client: str = "203.0.113.9") -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "client": (client, 1)}


async def _receive() -> Any:
    return {"type": "http.request", "body": b""}


def _statuses(call: Callable[..., Any], times: int) -> list[int]:
    """What an application of ASGI answers to the same client, one request after the other."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        for _ in range(times):
            await call(scope_of(), _receive, send)

    asyncio.run(ask())
    return [message["status"] for message in sent if message["type"] == "http.response.start"]


def _middleware(**told: Any) -> asgi.RateLimitMiddleware:
    return asgi.RateLimitMiddleware(application, **(told or {"policy": POLICY}))


@pytest.mark.parametrize("told", [{"policy": POLICY}, {"limits": "1/hour"}, {"limits": "1/hour", "key": lambda _: "x"}])
def test_servers_take_a_middleware_for_an_application_of_asgi_3(told: dict[str, Any]) -> None:
    middleware = _middleware(**told)
    config = uvicorn.Config(middleware, lifespan="off")
    config.load()
    assert config.interface == "asgi3"
    taken: Any = guarantee_single_callable
    assert taken(middleware) is middleware
    assert inspect.iscoroutinefunction(middleware.__call__)  # as Hypercorn asks
    assert _statuses(middleware, 2) == [200, 429]


@pytest.mark.parametrize("told", [{"policy": POLICY}, {"limits": "1/hour"}])
def test_a_call_by_its_name_is_a_call(told: dict[str, Any]) -> None:
    middleware = _middleware(**told)
    assert _statuses(middleware.__call__, 2) == [200, 429]
    assert _statuses(middleware, 1) == [429]


def test_a_subclass_may_have_a_call_of_its_own() -> None:
    class Counting(asgi.RateLimitMiddleware):
        calls = 0

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.calls += 1
            await super().__call__(scope, receive, send)

    middleware = Counting(application, policy=POLICY)
    assert _statuses(middleware, 2) == [200, 429]
    assert _statuses(middleware.__call__, 1) == [429]
    assert middleware.calls == 3


def test_an_application_may_be_put_into_a_middleware_later() -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 202, "headers": []})

    middleware = _middleware()
    middleware.app = other
    assert _statuses(middleware, 2) == [202, 429]


@SHARED
@pytest.mark.parametrize("arguments", ["in order", "by name"])
def test_a_request_that_passes_at_once_is_handed_to_the_application_itself(arguments: str) -> None:
    async def send(message: Any) -> None: ...

    middleware: Any = _middleware()
    told = {"scope": scope_of(), "receive": _receive, "send": send}
    call = middleware(*told.values()) if arguments == "in order" else middleware(**told)
    assert call.__qualname__ == "application"
    asyncio.run(call)


@SHARED
@pytest.mark.parametrize("choice", ["open", "closed"])
@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_what_a_store_raises_natively_is_an_outage_of_the_store(kind: str, choice: Any, tmp_path: Path) -> None:
    path = tmp_path / "zone"
    policy = {**POLICY, "rules": [{**POLICY["rules"][0], "limits": "9/hour"}]}
    store = SharedStore(path, size=SIZE)
    kinds: Any = asgi if kind == "asgi" else wsgi
    middleware = kinds.RateLimitMiddleware(
        application if kind == "asgi" else wsgi_application, policy, store=store, on_store_error=choice
    )
    assert _asked(kind, middleware).status_code == 200
    with path.open("r+b") as file:
        file.seek(4096 + (32 << 10) + 48)  # the notes of the only shard
        file.write(struct.pack("=Q", 9 << 32))
    with pytest.raises(StoreError):  # this is what the store says itself
        Limiter("9/hour", store=store).hit("user:7")
    answer = _asked(kind, middleware)
    assert answer.status_code == (200 if choice == "open" else 503)
    assert answer.headers["X-RateLimit-Degraded"] == choice


def _asked(kind: str, middleware: Any) -> httpx.Response:
    if kind == "wsgi":
        with httpx.Client(transport=httpx.WSGITransport(middleware, remote_addr="203.0.113.9")) as client:
            return client.get("http://shop.example/")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(middleware, client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.get("http://shop.example/")

    return asyncio.run(ask())


# What a middleware keeps


@pytest.mark.parametrize("told", [{"policy": POLICY}, {"limits": "9/hour"}])
def test_the_application_of_a_middleware_may_be_exchanged(told: dict[str, Any]) -> None:
    async def teapot(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})

    middleware = _middleware(**told)
    middleware.app = teapot
    assert middleware.app is teapot
    assert _statuses(middleware, 1) == [418]


@pytest.mark.parametrize("kind", [asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware])
def test_a_middleware_in_a_circle_with_its_application_is_collected(kind: Any) -> None:
    class App:
        middleware: Any = None

        def __call__(self, *told: Any) -> Any: ...

    app = App()
    app.middleware = kind(app, limits="5/minute")
    gone = weakref.ref(app)
    del app
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", [asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware])
def test_a_middleware_that_was_not_made_says_what_it_lacks(kind: Any) -> None:
    with pytest.raises(AttributeError, match="app"):
        kind.__new__(kind).app  # noqa: B018
