"""Programs on another event loop than asyncio's: they work, or say why not. hypercorn has a worker for trio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import trio

from headgate import AsyncGate, AsyncLimiter, ConfigError, MemoryStore
from headgate.http.asgi import RateLimitMiddleware
from headgate.integrations.starlette import RateLimits
from headgate.policy.request import Request

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


async def hit(store: Any) -> None:
    await AsyncLimiter("1/hour", store=store).hit("key")


async def acquire(store: Any) -> None:
    await AsyncLimiter("1/hour", store=store).acquire("key")


async def hold(store: Any) -> None:
    async with await AsyncLimiter("1 concurrent", store=store).reserve("key"):
        raise AssertionError("the block does not begin")


async def call(store: Any) -> None:
    @AsyncLimiter("1 concurrent", store=store).limit("key")
    async def limited() -> None:
        raise AssertionError("the call does not begin")

    await limited()


async def call_in_line(store: Any) -> None:
    @AsyncLimiter("1/hour", store=store).limit("key", on_refusal="wait")
    async def limited() -> None:
        raise AssertionError("the call does not begin")

    await limited()


async def wait_by_a_rule(store: Any) -> None:
    gate = AsyncGate(IN_LINE, store=store)
    for _ in range(2):
        await gate.acquire(Request("GET", "/", client_ip="203.0.113.9"))


@pytest.mark.parametrize("use", [acquire, hold, call, call_in_line, wait_by_a_rule])
def test_a_limiter_in_memory_says_so_and_takes_nothing(use: Callable[[Any], Any]) -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError, match=r"need asyncio, whose event loop does not run here"):
        trio.run(use, store)
    if use is not wait_by_a_rule:
        assert all(asyncio.run(peek(store)))


async def peek(store: MemoryStore) -> list[bool]:
    return [bool(await AsyncLimiter(limits, store=store).peek("key")) for limits in ("1/hour", "1 concurrent")]


@pytest.mark.parametrize("use", [hit, acquire, hold, call, call_in_line, wait_by_a_rule])
def test_a_limiter_on_redis_says_so(use: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match=r"need asyncio, whose event loop does not run here"):
        trio.run(use, "redis://127.0.0.1:1?timeout=50ms")


def test_a_limiter_of_rates_in_memory_works() -> None:
    limiter = AsyncLimiter("2/hour")
    limited = limiter.limit("key")(peek)

    async def use() -> list[bool]:
        await limited(MemoryStore())
        return [bool(await limiter.hit("key")) for _ in range(2)]

    assert trio.run(use) == [True, False]
