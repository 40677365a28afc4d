"""Where a store does not answer, the configured choice decides: on every kind of store, wherever it was configured."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broken_store import BrokenStore
from headgate import AsyncGate, AsyncLimiter, ConfigError, Gate, Limiter, Request, StoreUnavailable
from headgate.errors import StoreError
from headgate.http import asgi, wsgi
from headgate.http.client.calls import Sender
from headgate.http.client.calls import run as run_call
from headgate.http.client.options import read_options
from headgate.stores.guard.fallback_limits import FallbackLimits
from headgate.stores.guard.store import GuardedStore
from headgate.stores.redis.store import RedisStore
from headgate.stores.shared.store import SharedStore, can_share
from headgate.testing import ManualClock


async def _plain_asgi(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


def _plain_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"here"]


class Client:
    """Sends requests to an application of either kind."""

    def __init__(self, kind: str, policy: Any = None, **options: Any) -> None:
        self.kind = kind
        middleware: Any = asgi.RateLimitMiddleware if kind == "asgi" else wsgi.RateLimitMiddleware
        self.app = middleware(_plain_asgi if kind == "asgi" else _plain_wsgi, policy, **options)

    def get(self, client: str = "203.0.113.9") -> httpx.Response:
        if self.kind == "wsgi":
            with httpx.Client(transport=httpx.WSGITransport(self.app, remote_addr=client)) as session:
                return session.get("http://shop.example/")

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app, client=(client, 1234))) as session:
                return await session.get("http://shop.example/")

        return asyncio.run(send())


CHOICES = ["local", "open", "closed"]


@pytest.fixture
def unreachable() -> Iterator[str]:
    """A Redis whose port is bound, but nothing listens there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{bound.getsockname()[1]}/0"


class DamagedZone(SharedStore):
    """A zone that fails at every call."""

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        super().bind(limits, clock=clock)  # its list of limits is intact
        return BrokenStore().bind(limits)


KINDS: dict[str, Callable[[str, Path], Any]] = {
    "url": lambda url, tmp_path: url,
    "guarded": lambda url, tmp_path: GuardedStore(RedisStore(url)),
    "bare": lambda url, tmp_path: RedisStore(url),
    "own": lambda url, tmp_path: BrokenStore(),
    "shared": lambda url, tmp_path: DamagedZone(str(tmp_path / "zone"), size=1 << 20),
}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, unreachable: str, tmp_path: Path) -> Any:
    if request.param == "shared" and not can_share():
        pytest.skip("zones cannot be shared here")
    return KINDS[request.param](unreachable, tmp_path)


def outcome_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.headers["X-RateLimit-Degraded"]


STATUS = {"local": 200, "open": 200, "closed": 503}
STORED: dict[str, Any] = {"limits": "1/minute"}
RULED: dict[str, Any] = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "1/minute"}]}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@pytest.mark.parametrize("limits", ["limits", "keyed", "wide", "waiting", "policy"])
def test_a_middleware_follows_its_choice_on_every_kind_of_store(
    kind: str, limits: str, choice: Any, store: Any
) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "limits": {"limits": "1/minute"},
        "keyed": {"limits": "1/minute", "key": lambda: "all"},
        "wide": {"limits": "1/minute", "ipv6_wide": (48, 8)},
        "waiting": {"limits": "1/minute", "wait": 0.5, "clock": ManualClock()},
        "policy": {"policy": RULED},
    }
    client = Client(kind, store=store, on_store_error=choice, **kinds[limits])
    address = "2001:db8::1" if limits == "wide" else "203.0.113.9"
    answer = client.get(client=address)
    assert outcome_of(answer) == (STATUS[choice], choice)
    if choice == "closed":
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["status"] == 503
    second = client.get(client=address)
    assert second.status_code == {"local": 429, "open": 200, "closed": 503}[choice]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@pytest.mark.parametrize("url", ["", *CHOICES])
@pytest.mark.parametrize("policy", ["", *CHOICES])
@pytest.mark.parametrize("argument", ["", *CHOICES])
@pytest.mark.parametrize("rule", ["", *CHOICES])
def test_a_rule_overrides_the_argument_that_overrides_the_policy_and_that_the_url(
    kind: str, rule: str, argument: str, policy: str, url: str, unreachable: str
) -> None:
    values = {**RULED, "store": unreachable + (f"?on_error={url}" if url else "")}
    if policy:
        values["on_store_error"] = policy
    if rule:
        values["rules"] = [{**RULED["rules"][0], "on_store_error": rule}]
    options = {"on_store_error": argument} if argument else {}
    effective = rule or argument or policy or url or "local"
    assert outcome_of(Client(kind, values, **options).get()) == (STATUS[effective], effective)


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@pytest.mark.parametrize("url", ["", *CHOICES])
@pytest.mark.parametrize("argument", ["", *CHOICES])
def test_for_limits_the_argument_overrides_the_url(kind: str, argument: str, url: str, unreachable: str) -> None:
    options: dict[str, Any] = {"on_store_error": argument} if argument else {}
    client = Client(kind, limits="1/minute", store=unreachable + (f"?on_error={url}" if url else ""), **options)
    effective = argument or url or "local"
    assert outcome_of(client.get()) == (STATUS[effective], effective)


@pytest.mark.parametrize("choice", ["", *CHOICES])
@pytest.mark.parametrize("written", ["rule", "policy", "argument"])
@pytest.mark.parametrize("colour", ["thread", "loop"])
def test_a_gate_follows_the_configured_choice_on_every_kind_of_store(
    colour: str, written: str, choice: Any, store: Any
) -> None:
    values: dict[str, Any] = dict(RULED)
    options: dict[str, Any] = {}
    if choice and written == "rule":
        values["rules"] = [{**RULED["rules"][0], "on_store_error": choice}]
    elif choice and written == "policy":
        values["on_store_error"] = choice
    elif choice:
        options["on_store_error"] = choice
    request = Request(client_ip="203.0.113.9")

    async def on_loop() -> Any:
        async with AsyncGate(values, store=store, **options) as gate:
            return await gate.hit(request)

    if colour == "loop":
        decision = asyncio.run(on_loop())
    else:
        with Gate(values, store=store, **options) as gate:
            decision = gate.hit(request)
    assert decision.degraded == (choice or "local")
    assert decision.allowed == (choice != "closed")


def test_a_passed_gate_has_its_own_choice(unreachable: str) -> None:
    with (
        Gate(RULED, store=unreachable) as gate,
        pytest.raises(ConfigError, match="on_store_error goes with a policy; a gate"),
    ):
        wsgi.RateLimitMiddleware(lambda environ, start_response: [], gate, on_store_error="closed")


def test_a_reload_keeps_the_choice_of_the_argument(unreachable: str) -> None:
    with Gate(RULED, store=unreachable, on_store_error="closed") as gate:
        gate.reload({**RULED, "on_store_error": "open"})
        assert gate.hit(Request(client_ip="203.0.113.9")).degraded == "closed"


@pytest.mark.parametrize("choice", CHOICES)
def test_a_limiter_follows_its_choice_on_every_kind_of_store(choice: Any, store: Any) -> None:
    limiter = Limiter("1/minute", store=store, on_store_error=choice)
    decisions = [limiter.peek("a"), limiter.hit("a"), limiter.hit_many(["b"])[0], limiter.acquire("c", timeout=9)]
    assert [decision.degraded for decision in decisions] == [choice] * 4
    assert {decision.allowed for decision in decisions} == {choice != "closed"}
    assert limiter.hit("a").allowed == (choice == "open")

    async def on_loop() -> Any:
        limiter = AsyncLimiter("1/minute", store=store, on_store_error=choice)
        decided = [await limiter.hit("d"), await limiter.peek("e"), await limiter.acquire("f", timeout=9)]
        return decided, await limiter.hit_many(["g"])

    decisions, many = asyncio.run(on_loop())
    assert [decision.degraded for decision in [*decisions, many[0]]] == [choice] * 4


def test_a_limiter_without_a_choice_on_a_store_without_a_guard_raises(unreachable: str) -> None:
    with pytest.raises(StoreError):
        Limiter("1/minute", store=RedisStore(unreachable)).hit("a")
    with pytest.raises(ConfigError, match="on_store_error is one of local, open, closed, not 'shut'"):
        Limiter("1/minute", on_store_error="shut")  # type: ignore[arg-type]


class _Adapter:
    """Sends nothing, and counts the requests."""

    errors: tuple[type[Exception], ...] = ()
    sent = 0

    def send(self) -> int:
        self.sent += 1
        return 200

    def buffer(self, response: Any) -> Any:
        return response

    def free_when_closed(self, response: Any, held: Any) -> Any:
        return held.free()

    def read_response(self, response: int) -> Any:
        from headgate.http.client.calls import ServerResponse

        return ServerResponse(response, httpx.Headers(), response)

    def failure_kind(self, error: Exception) -> Any:
        raise error


@pytest.mark.parametrize("choice", ["", *CHOICES])
@pytest.mark.parametrize("given", ["limits", "limiter"])
def test_a_client_follows_its_choice_on_every_kind_of_store(given: str, choice: Any, store: Any) -> None:
    limits: Any = "1/minute" if given == "limits" else Limiter("1/minute", store=store)
    options: dict[str, Any] = {"store": store} if given == "limits" else {}
    if choice:
        options["on_store_error"] = choice
    sender = Sender(limits, options, asynchronous=False)  # type: ignore[arg-type]
    call = sender.call(None, method="GET", origin=("https", "h", 1), headers={}, can_resend=bool)
    adapter = _Adapter()
    if choice == "closed":
        with pytest.raises(StoreUnavailable):
            run_call(sender.steps(call), adapter, sender.limiter)
    else:
        assert run_call(sender.steps(call), adapter, sender.limiter) == 200
    assert adapter.sent == (choice != "closed")


def test_the_choice_of_a_limiter_overrides_that_of_a_client(unreachable: str) -> None:
    limiter = Limiter("1/minute", store=unreachable, on_store_error="open")
    configured = read_options(limiter, {"on_store_error": "closed"}, asynchronous=False).limiter
    assert configured is limiter


def test_a_shared_zone_is_decided_natively_with_every_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_share():
        pytest.skip("zones cannot be shared here")
    store = SharedStore(str(tmp_path / "zone"), size=1 << 20)
    for choice in ("open", "closed"):
        middleware = asgi.RateLimitMiddleware(httpx.Client, limits="1/minute", store=store, on_store_error=choice)  # type: ignore[arg-type]
        decide_natively: Any = middleware._enforcer.decide_natively
        monkeypatch.setattr(FallbackLimits, "decide", lambda *arguments: pytest.fail("the limits of Python decide"))
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("203.0.113.9", 1)}
        assert decide_natively(scope, print) is not None
