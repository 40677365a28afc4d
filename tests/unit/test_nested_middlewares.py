"""Nested plain middlewares: a request that one of them refuses is charged by none."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from asgi_requests import ask
from headgate import MemoryStore
from headgate.http import asgi, wsgi
from headgate.testing import ManualClock

StatusOf = Callable[[str], int]
Make = Callable[..., StatusOf]
OUTER, INNER = "4/minute", "2/minute"


async def read(request: Any) -> PlainTextResponse:
    return PlainTextResponse("read")


def site(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"read"]


def user(request: Any) -> Any:
    return request.headers.get("X-User")


def of_asgi(outer: dict[str, Any], inner: dict[str, Any]) -> StatusOf:
    app = asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(Starlette(routes=[Route("/", read)]), **inner), **outer)
    return lambda name: ask(app, headers={"X-User": name}).status_code


def of_starlette(outer: dict[str, Any], inner: dict[str, Any]) -> StatusOf:
    between = [Middleware(GZipMiddleware), Middleware(asgi.RateLimitMiddleware, **inner)]
    app = Starlette(routes=[Route("/", read)], middleware=[Middleware(asgi.RateLimitMiddleware, **outer), *between])
    return lambda name: ask(app, headers={"X-User": name}).status_code


def of_wsgi(outer: dict[str, Any], inner: dict[str, Any]) -> StatusOf:
    app = wsgi.RateLimitMiddleware(wsgi.RateLimitMiddleware(site, **inner), **outer)

    def status_of(name: str) -> int:
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop.example") as session:
            return session.get("/", headers={"X-User": name}).status_code

    return status_of


FOR_EACH_KIND = pytest.mark.parametrize("make", [of_asgi, of_starlette, of_wsgi])


@FOR_EACH_KIND
@pytest.mark.parametrize("shared", [False, True], ids=["a store each", "one store"])
@pytest.mark.parametrize("outer", [{}, {"exempt": lambda request: False}, {"counts": lambda request, response: True}])
def test_a_request_that_the_inner_one_refuses_is_not_charged_by_the_outer_one(
    make: Make, shared: bool, outer: dict[str, Any]
) -> None:
    shared_options: dict[str, Any] = {"clock": ManualClock(), **({"store": MemoryStore()} if shared else {})}
    status_of = make({"limits": OUTER, **outer, **shared_options}, {"limits": INNER, "key": user, **shared_options})
    assert [status_of(name) for name in "aaaaaa"] == [200] * 2 + [429] * 4
    assert [status_of(name) for name in "bbb"] == [200] * 2 + [429]  # the outer middleware refuses the last


@FOR_EACH_KIND
def test_a_request_that_an_inner_policy_refuses_is_not_charged_by_the_outer_one(make: Make) -> None:
    policy = {"version": 1, "identities": {"user": {"header": "X-User"}}, "rules": [{"by": ["user"], "limits": INNER}]}
    policy["rules"][0]["name"] = "each"  # type: ignore[index]
    clock = ManualClock()
    status_of = make({"limits": OUTER, "clock": clock}, {"policy": policy, "clock": clock})
    assert [status_of(name) for name in "aaaaabbc"] == [200] * 2 + [429] * 3 + [200] * 2 + [429]


def test_of_three_nested_middlewares_all_charge_or_none() -> None:
    clock = ManualClock()
    app: Any = Starlette(routes=[Route("/", read)])
    app = asgi.RateLimitMiddleware(app, limits="1/minute", key=user, clock=clock)
    app = asgi.RateLimitMiddleware(app, limits="2/minute", clock=clock)
    app = asgi.RateLimitMiddleware(app, limits="3/minute", clock=clock)
    assert [ask(app, headers={"X-User": name}).status_code for name in "aaaabc"] == [200, 429, 429, 429, 200, 429]
    assert ask(app).headers["RateLimit"].startswith('"default";r=0')


def test_a_request_of_an_application_to_itself_returns_only_its_own_charge() -> None:
    clock = ManualClock()
    remaining: list[int | None] = []
    statuses: list[int] = []

    async def batch(request: Any) -> PlainTextResponse:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await app({**request.scope, "path": "/", "raw_path": b"/"}, receive, send)
        return PlainTextResponse("asked")

    inside = Starlette(routes=[Route("/", read), Route("/batch", batch)])
    app = asgi.RateLimitMiddleware(
        asgi.RateLimitMiddleware(inside, limits="1/minute", key=lambda request: request.path, clock=clock),
        limits=OUTER,
        clock=clock,
        on_decision=lambda request, decision: remaining.append(decision.remaining),
    )
    assert ask(app, "/").status_code == 200
    assert ask(app, "/batch").status_code == 200
    assert statuses == [429]
    assert ask(app, "/other").status_code == 404
    assert remaining == [3, 2, 1, 1]  # "/", "/batch", its inner request whose charge was returned, "/other"


def test_a_request_that_passes_two_middlewares_has_the_fields_once() -> None:
    clock = ManualClock()
    app = asgi.RateLimitMiddleware(
        asgi.RateLimitMiddleware(Starlette(routes=[Route("/", read)]), limits=INNER, clock=clock),
        limits=OUTER,
        clock=clock,
    )
    response = ask(app)
    assert response.headers.get_list("RateLimit") == ['"default";r=1;t=60']


def test_handshakes_that_the_inner_one_refuses_are_not_charged() -> None:
    async def socket(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    clock = ManualClock()
    inner = asgi.RateLimitMiddleware(socket, limits=INNER, clock=clock, key=user, websockets=True)
    app = asgi.RateLimitMiddleware(inner, limits=OUTER, clock=clock, websockets=True)

    def status_of(name: bytes) -> str:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": "/", "headers": [(b"x-user", name)], "client": ("203.0.113.9", 1)}
        asyncio.run(app(scope, receive, send))
        return str(sent[0]["type"])

    accepted, closed = "websocket.accept", "websocket.close"
    assert [status_of(name) for name in (b"a", b"a", b"a", b"a", b"b", b"b", b"b")] == (
        [accepted] * 2 + [closed] * 2 + [accepted] * 2 + [closed]
    )


@pytest.mark.parametrize("outer", [{}, {"counts": lambda request, response: True}])
def test_a_request_that_passes_leaves_nothing_to_the_garbage_collector(outer: dict[str, Any]) -> None:
    class Environ(dict[str, Any]):
        """An environ that supports weak references."""

    inner = wsgi.RateLimitMiddleware(site, limits=INNER)
    app = wsgi.RateLimitMiddleware(inner, limits=OUTER, **outer)
    environ = Environ(REQUEST_METHOD="GET", PATH_INFO="/", REMOTE_ADDR="203.0.113.9")
    reference = ref(environ)
    gc.disable()
    try:
        parts: Any = app(environ, lambda *arguments: None)
        assert b"".join(parts) == b"read"
        del environ, parts
        assert reference() is None
    finally:
        gc.enable()
