"""ASGI applications on another event loop than asyncio's, as hypercorn has one for trio: they work, or say why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import trio

from headgate import AsyncGate, ConfigError, MemoryStore
from headgate.http.asgi import RateLimitMiddleware
from headgate.integrations.starlette import RateLimits

IN_FLIGHT = {"version": 1, "rules": [{"name": "places", "by": ["ip"], "limits": "1 concurrent"}]}
IN_LINE = {"version": 1, "rules": [{"name": "line", "by": ["ip"], "limits": "1/second bucket", "wait": "5s"}]}
RATES = {"version": 1, "rules": [{"name": "rates", "by": ["ip"], "limits": "2/hour"}]}
NEEDY: dict[str, Callable[[MemoryStore], dict[str, Any]]] = {
    "in flight": lambda store: {"limits": "1 concurrent", "store": store},
    "waiting": lambda store: {"limits": "1/second bucket", "wait": 5, "store": store},
    "in flight by a policy": lambda store: {"policy": AsyncGate(IN_FLIGHT, store=store)},
    "waiting by a policy": lambda store: {"policy": AsyncGate(IN_LINE, store=store)},
    "a Redis": lambda store: {"limits": "1/second", "store": "redis://127.0.0.1:1?timeout=50ms"},
}


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await send({"type": "lifespan.startup.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def status(app: Any, kind: str = "http") -> int | str:
    """The status of the response, or what a lifespan is told."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": f"{kind}.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "method": "GET", "path": "/", "headers": [], "client": ("203.0.113.9", 1), "scheme": "http"}
    await app({**scope, "query_string": b"", "server": ("shop.example", 80), "root_path": ""}, receive, send)
    first: int | str = sent[0].get("status", sent[0]["type"])
    return first


@pytest.mark.parametrize("options", [{"limits": "2/hour", "store": MemoryStore()}, {"policy": RATES}], ids=str)
def test_limits_of_rates_in_memory_need_no_event_loop(options: dict[str, Any]) -> None:
    app = RateLimitMiddleware(application, **options)
    assert trio.run(status, app, "lifespan") == "lifespan.startup.complete"
    assert [trio.run(status, app) for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("kind", NEEDY)
def test_features_that_need_asyncio_raise_when_the_server_starts(kind: str) -> None:
    app = RateLimitMiddleware(application, **NEEDY[kind](MemoryStore()))
    with pytest.raises(ConfigError, match="hypercorn: --worker-class asyncio"):
        trio.run(status, app, "lifespan")


@pytest.mark.parametrize("kind", [kind for kind in NEEDY if kind != "a Redis"])
def test_a_request_says_so_too_and_takes_nothing(kind: str) -> None:
    store = MemoryStore()
    for _ in range(2):
        with pytest.raises(ConfigError, match="hypercorn: --worker-class asyncio"):
            trio.run(status, RateLimitMiddleware(application, **NEEDY[kind](store)))
    assert asyncio.run(status(RateLimitMiddleware(application, **NEEDY[kind](store)))) == 200


@pytest.mark.parametrize("policy", [IN_FLIGHT, IN_LINE], ids=["in flight", "waiting"])
def test_a_reload_of_what_needs_asyncio_is_refused(policy: dict[str, Any]) -> None:
    gate = AsyncGate(RATES)
    app = RateLimitMiddleware(application, gate)
    trio.run(status, app, "lifespan")
    with pytest.raises(ConfigError, match=r"RateLimitMiddleware cannot use this policy: .* --worker-class asyncio"):
        gate.reload(policy)
    assert [trio.run(status, app) for _ in range(3)] == [200, 200, 429]


def test_routes_say_so_too() -> None:
    limits = RateLimits(store="redis://127.0.0.1:1?timeout=50ms")
    limits("1/second")(application)
    with pytest.raises(ConfigError, match="hypercorn: --worker-class asyncio"):
        trio.run(limits.warm_up)
