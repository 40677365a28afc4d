"""The public surface as a typed program uses it: checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, assert_type

from headgate import AsyncGate, AsyncLimiter, Decision, Descriptor, Gate, Limiter, LimitReading, Request, TokenBucket
from headgate.http import asgi, wsgi
from headgate.http.keys import all_of, api_key, first_of, header
from headgate.http.server.options import Refusal, Response
from headgate.http.server.routes import exempt
from headgate.reservation import Reservation

limiter = Limiter("10/second burst 100; 1000/hour", store="memory://", name="api")
decision = limiter.hit("user:42", cost=1)
assert_type(decision, Decision)
assert_type(decision.allowed, bool)
assert_type(decision.remaining, int | None)
assert_type(decision.retry_after, float | None)
assert_type(decision.retry_after_us, int | None)
assert_type(decision.limits, tuple[LimitReading, ...])
assert_type(decision.binding, LimitReading | None)
assert_type(limiter.acquire(("tenant", 7), timeout=2.0), Decision)
assert_type(limiter.acquire("user:42", timeout=2.0, lease=60), Reservation)
assert_type(limiter.acquire("user:42", 3, lease_us=60_000_000), Reservation)
assert_type(limiter.acquire("user:42", id="job-7", remember=60), Reservation)
assert_type(limiter.acquire("user:42", remember=60), Reservation)
assert_type(limiter.reset("user:42"), bool)
of_several: dict[str, int | Decimal] = {"requests": 1, "tokens": 900, "usd": Decimal("0.0123")}
assert_type(limiter.hit("user:42", of_several), Decision)
assert_type(limiter.hit_many(["a", "b"], [of_several, 1]).allowed, list[bool])
limiter.give_back("user:42", {"tokens": 400}, 0, decision)
assert_type(TokenBucket(capacity="2.5", refill=10, period="day", of="usd").of, str)


@limiter.limit(key=lambda user, size: user)
def store(user: str, size: int) -> bytes:
    return user.encode() * size


assert_type(store("ann", 3), bytes)
assert_type(store(user="ann", size=3), bytes)


async def asynchronous() -> None:
    later = AsyncLimiter("10/second")
    assert_type(await later.hit("key"), Decision)
    if later.hit("key"):  # type: ignore[truthy-bool]  # pyright: ignore[reportUnnecessaryComparison]
        print("a call without await decides nothing, and is found")
    assert_type(later.ask("key"), Decision | Awaitable[Decision])

    @later.limit("key", on_refusal="wait", timeout=1)
    async def fetch(url: str) -> list[str]:
        return [url]

    assert_type(await fetch("a"), list[str])
    async with AsyncGate({"version": 1, "namespace": "a", "rules": []}) as gate:
        assert_type(await gate.hit(Request("GET", "/")), Decision)


assert_type(Gate({"version": 1, "namespace": "a", "rules": []}).hit(Request("GET", "/")), Decision)
assert_type(Gate({"version": 1, "namespace": "a", "rules": []}).hit(Descriptor({"user": "7"}), 3), Decision)


async def asgi_app(scope: Any, receive: Any, send: Any) -> None: ...


def wsgi_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    return []


def page(request: Request, decision: Decision, usual: Refusal) -> Refusal | None:
    return usual._replace(body=b"slow down")


def failed(request: Request, response: Response) -> bool:
    return response.status == 401


async def tier(request: Request) -> str | None:
    return request.headers.get("x-tier")


asgi.RateLimitMiddleware(
    asgi_app,
    limits={"default": "10/minute", "pro": None},
    tier=tier,
    key=first_of(api_key(), all_of(header("X-Tenant"), header("X-User"))),
    counts=failed,
    refusal=page,
    headers=("draft-11", "x-epoch"),
    ipv6_wide=(48, 8),
    missing="refuse",
)
wsgi.RateLimitMiddleware(wsgi_app, "policy.yaml", store="memory://", fallback=wsgi_app)
wsgi.RateLimitMiddleware(wsgi_app, limits="10/minute", colour="red")  # type: ignore[call-arg]  # pyright: ignore
asgi.RateLimitMiddleware(asgi_app, limits="10/minute", missing="perhaps")  # type: ignore[arg-type]  # pyright: ignore


@exempt
def health() -> str:
    return "well"


assert_type(health(), str)
