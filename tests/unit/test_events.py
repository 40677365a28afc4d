"""Events: each subscriber gets each event, a failing one has no effect, and without any no event is created."""

from __future__ import annotations

import asyncio

import pytest

from headgate import MemoryStore, Request
from headgate.drive import answered
from headgate.errors import StoreTimeout
from headgate.observe.events import DecisionEvent, Event, Events, StoreDegraded, StoreRecovered
from headgate.policy.gate import AsyncGate
from headgate.service.app import Service
from headgate.service.checks import decider
from headgate.service.checks.decider import Decider
from headgate.service.http.messages import ServiceRequest, ServiceResponse
from headgate.stores.guard.breaker import FAILURES
from headgate.stores.guard.store import GuardedStore

POLICY = {"version": 1, "rules": [{"name": "all", "by": [], "limits": "5/minute"}], "rulesets": {"some": ["all"]}}


class Recorder:
    """Stores the events that it is called with."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)


class Broken:
    """Fails with each event."""

    def handle(self, event: Event) -> None:
        raise RuntimeError("no room")


def call(service: Service, method: str, path: str, body: bytes = b"") -> ServiceResponse:
    async def main() -> ServiceResponse:
        return await answered(service.answer(ServiceRequest(method, path, [], "127.0.0.1", body)))

    return asyncio.run(main())


def test_each_decision_is_an_event_with_its_request() -> None:
    service, recorder = Service(AsyncGate(POLICY)), Recorder()
    service.events.subscribe(recorder)
    call(service, "GET", "/check/some/a")
    call(service, "POST", "/v1/check", b'{"requests": [{"path": "/b"}, {"path": "/c"}]}')
    decided = [event for event in recorder.events if isinstance(event, DecisionEvent)]
    assert [(event.request.path, event.ruleset, event.decision.remaining) for event in decided] == [
        ("/a", "some", 4), ("/b", "default", 3), ("/c", "default", 2),
    ]  # fmt: skip
    assert all(0 < event.seconds < 10 for event in decided)


def test_a_subscriber_that_fails_affects_neither_the_response_nor_other_subscribers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service, recorder = Service(AsyncGate(POLICY)), Recorder()
    service.events.subscribe(Broken())
    service.events.subscribe(recorder)
    assert call(service, "GET", "/check/default").status == 200
    assert len(recorder.events) == 1
    assert "a subscriber failed: Broken" in caplog.text


def test_without_a_subscriber_no_event_is_made_and_no_clock_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider, "DecisionEvent", None)
    monkeypatch.setattr(decider, "perf_counter", None)
    allowed = Decider(AsyncGate(POLICY), Events()).decide(Request(), 1, lambda decision: decision.allowed)
    assert allowed is True


def test_an_outage_of_a_store_and_its_end_are_two_events() -> None:
    store, recorder = GuardedStore(MemoryStore()), Recorder()
    Service(AsyncGate(POLICY, store=store)).events.subscribe(recorder)
    for _ in range(FAILURES + 1):
        store.breaker.failed(StoreTimeout("no answer within 50 ms"))
    store.breaker._enter_half_open()
    assert recorder.events == [StoreDegraded("no answer within 50 ms"), StoreRecovered()]
