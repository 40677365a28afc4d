"""The callables of servers and frameworks: whether they are recognised, and what a call returns."""

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
NATIVE = pytest.mark.skipif(cores.native is None, reason="shared memory and native gates need the native core")


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
    """Return the statuses of an ASGI application to the same client, one request after the other."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def send_all() -> None:
        for _ in range(times):
            await call(scope_of(), _receive, send)

    asyncio.run(send_all())
    return [message["status"] for message in sent if message["type"] == "http.response.start"]


def _middleware(**options: Any) -> asgi.RateLimitMiddleware:
    return asgi.RateLimitMiddleware(application, **(options or {"policy": POLICY}))


@pytest.mark.parametrize(
    "options", [{"policy": POLICY}, {"limits": "1/hour"}, {"limits": "1/hour", "key": lambda _: "x"}]
)
def test_servers_recognise_a_middleware_as_an_application_of_asgi_3(options: dict[str, Any]) -> None:
    middleware = _middleware(**options)
    config = uvicorn.Config(middleware, lifespan="off")
    config.load()
    assert config.interface == "asgi3"
    as_asgi3: Any = guarantee_single_callable
    assert as_asgi3(middleware) is middleware
    assert inspect.iscoroutinefunction(middleware.__call__)  # as Hypercorn checks
    assert _statuses(middleware, 2) == [200, 429]


@pytest.mark.parametrize("options", [{"policy": POLICY}, {"limits": "1/hour"}])
def test_the_attribute_call_is_the_same_call(options: dict[str, Any]) -> None:
    middleware = _middleware(**options)
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


def test_the_application_of_a_middleware_may_be_set_later() -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 202, "headers": []})

    middleware = _middleware()
    middleware.app = other
    assert _statuses(middleware, 2) == [202, 429]


@NATIVE
@pytest.mark.parametrize("arguments", ["in order", "by name"])
def test_a_request_that_passes_at_once_is_passed_to_the_application_itself(arguments: str) -> None:
    async def send(message: Any) -> None: ...

    middleware: Any = _middleware()
    arguments_by_name = {"scope": scope_of(), "receive": _receive, "send": send}
    call = middleware(*arguments_by_name.values()) if arguments == "in order" else middleware(**arguments_by_name)
    assert call.__qualname__ == "application"
    asyncio.run(call)


@NATIVE
@pytest.mark.parametrize("choice", ["open", "closed"])
@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_an_error_of_the_store_in_the_native_gate_is_an_outage_of_the_store(
    kind: str, choice: Any, tmp_path: Path
) -> None:
    path = tmp_path / "zone"
    policy = {**POLICY, "rules": [{**POLICY["rules"][0], "limits": "9/hour"}]}
    store = SharedStore(path, size=SIZE)
    kinds: Any = asgi if kind == "asgi" else wsgi
    middleware = kinds.RateLimitMiddleware(
        application if kind == "asgi" else wsgi_application, policy, store=store, on_store_error=choice
    )
    assert _response(kind, middleware).status_code == 200
    with path.open("r+b") as file:
        file.seek(4096 + (32 << 10) + 48)  # the notes of the only shard
        file.write(struct.pack("=Q", 9 << 32))
    with pytest.raises(StoreError):  # the store's own error
        Limiter("9/hour", store=store).hit("user:7")
    answer = _response(kind, middleware)
    assert answer.status_code == (200 if choice == "open" else 503)
    assert answer.headers["X-RateLimit-Degraded"] == choice


def _response(kind: str, middleware: Any) -> httpx.Response:
    if kind == "wsgi":
        with httpx.Client(transport=httpx.WSGITransport(middleware, remote_addr="203.0.113.9")) as client:
            return client.get("http://shop.example/")

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(middleware, client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.get("http://shop.example/")

    return asyncio.run(get())


# The references of a middleware


@pytest.mark.parametrize("options", [{"policy": POLICY}, {"limits": "9/hour"}])
def test_the_application_of_a_middleware_may_be_exchanged(options: dict[str, Any]) -> None:
    async def teapot(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})

    middleware = _middleware(**options)
    middleware.app = teapot
    assert middleware.app is teapot
    assert _statuses(middleware, 1) == [418]


@pytest.mark.parametrize("kind", [asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware])
def test_a_middleware_in_a_reference_cycle_with_its_application_is_collected(kind: Any) -> None:
    class App:
        middleware: Any = None

        def __call__(self, *arguments: Any) -> Any: ...

    app = App()
    app.middleware = kind(app, limits="5/minute")
    reference = weakref.ref(app)
    del app
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("kind", [asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware])
def test_a_middleware_that_was_not_initialised_raises_attribute_error(kind: Any) -> None:
    with pytest.raises(AttributeError, match="app"):
        kind.__new__(kind).app  # noqa: B018
