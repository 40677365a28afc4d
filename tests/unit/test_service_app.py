"""The service's answers where its store fails: asked as an ASGI application, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping, Sequence
from typing import Any, cast

import pytest

from headgate import MemoryStore
from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit
from headgate.errors import ConfigError, HeadgateError, StoreTimeout
from headgate.policy.gate import AsyncGate
from headgate.service.app import Service
from headgate.stores.contract import BoundLimits, StoreStats

POLICY = {"version": 1, "rules": [{"name": "all", "by": [], "limits": "5/minute"}]}


class FailingStore(MemoryStore):
    """A store that binds and then fails: every decision, every look at itself."""

    def __init__(self, error: HeadgateError) -> None:
        super().__init__()
        self.error = error

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        return cast(BoundLimits, FailingLimits(self.error))

    def ping(self) -> None:
        raise self.error

    def stats(self) -> StoreStats:
        raise self.error


class FailingLimits:
    """Limits whose every decision fails."""

    def __init__(self, error: HeadgateError) -> None:
        self.error = error

    def decide(self, keys: tuple[Any, ...], costs: tuple[int, ...], /, **_: Any) -> Decision:
        raise self.error


def ask(service: Service, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
    """(status, content type, body) of the answer."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "client": ("127.0.0.1", 5)}
    asyncio.run(service(scope, receive, send))
    headers = dict(sent[0]["headers"])
    return sent[0]["status"], headers.get(b"content-type", b"").decode(), sent[1]["body"]


ONE = json.dumps({"request": {"path": "/"}}).encode()
SEVERAL = json.dumps({"requests": [{"path": "/"}, {"path": "/"}]}).encode()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/check/default", b""),
        ("GET", "/check-403/default", b""),
        ("POST", "/v1/check", ONE),
        ("POST", "/v1/check", SEVERAL),
        ("GET", "/readyz", b""),
        ("GET", "/metrics", b""),
        ("GET", "/", b""),
    ],
)
def test_a_store_that_does_not_answer_is_503_with_a_problem(method: str, path: str, body: bytes) -> None:
    service = Service(AsyncGate(POLICY, store=FailingStore(StoreTimeout("no answer within 50 ms"))))
    status, content_type, answer = ask(service, method, path, body)
    assert (status, content_type) == (503, "application/problem+json")
    assert json.loads(answer) == {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "the store does not answer: no answer within 50 ms",
    }


def test_what_the_service_itself_has_wrong_is_no_fault_of_the_client() -> None:
    service = Service(AsyncGate(POLICY, store=FailingStore(ConfigError("more limits than a zone can charge at once"))))
    status, content_type, answer = ask(service, "GET", "/check/default")
    assert (status, content_type) == (500, "application/problem+json")
    assert json.loads(answer)["detail"] == "more limits than a zone can charge at once"


def test_a_service_is_alive_while_its_store_is_not() -> None:
    service = Service(AsyncGate(POLICY, store=FailingStore(StoreTimeout("no answer"))))
    assert ask(service, "GET", "/healthz")[0] == 200
