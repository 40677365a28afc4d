"""A webhook of soft limits behind several gates: with a shared store they notify it once, without one each does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest
from redis_servers import Server, single

from headgate import core
from headgate.llm import LlmGate
from headgate.llm.notification_claims import NotificationClaims
from headgate.stores.url import open_store
from headgate.testing import ManualClock

pytestmark = pytest.mark.integration

DAY_US = 86_400_000_000
ENOUGH_S = 1.0
"""Longer than a notification that is sent at once takes to arrive."""


class Receiver:
    """A server that records the notifications that it receives."""

    def __init__(self) -> None:
        received: Queue[dict[str, Any]] = Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/budgets"
        self._received = received
        Thread(target=self.server.serve_forever, daemon=True).start()

    def teams(self, number: int) -> list[str]:
        """The teams of the next `number` notifications, of which no more arrive."""
        teams = [self._received.get(timeout=30)["team"] for _ in range(number)]
        with pytest.raises(Empty):
            self._received.get(timeout=ENOUGH_S)
        return sorted(teams)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with single() as running:
        yield running


@pytest.fixture(params=["shared", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        redis: Server = request.getfixturevalue("server")
        return f"redis://127.0.0.1:{redis.port}/0?timeout=20s"
    if core.native is None:
        pytest.skip("a zone needs the native core")
    return f"shared://{tmp_path}/zone?size=4MiB"


def policy(receiver: Receiver, namespace: str = "llm", limit: str = "10 usd/day in UTC") -> dict[str, Any]:
    return {
        "version": 1,
        "namespace": namespace,
        "llm": {"prices": {"m": {"input": "1", "output": "10"}}, "hold": "max", "webhook": receiver.url},
        "rules": [{"name": "team", "by": ["team"], "limits": limit, "warn": "50%"}],
    }


def test_gates_that_share_a_store_notify_a_webhook_once_until_the_limit_is_restored(
    store: str, receiver: Receiver
) -> None:
    clock = ManualClock(20_000 * DAY_US)
    with ExitStack() as stack:
        gates = [stack.enter_context(LlmGate(policy(receiver), store=store, clock=clock)) for _ in range(3)]
        for gate in gates:
            assert gate.reserve("m", team="red", input_tokens=0, max_tokens=250_000)
            assert gate.reserve("m", team="blue", input_tokens=0, max_tokens=250_000)
        assert receiver.teams(2) == ["blue", "red"]
        clock.advance(DAY_US)
        for gate in gates:
            assert gate.reserve("m", team="red", input_tokens=0, max_tokens=300_000)
        assert receiver.teams(1) == ["red"]


def test_a_limit_that_stays_used_is_claimed_as_long_whichever_gate_sees_it(store: str, receiver: Receiver) -> None:
    clock = ManualClock(20_000 * DAY_US)
    of = policy(receiver, "stays", limit="10 usd/day bucket")
    with ExitStack() as stack:
        gates = [stack.enter_context(LlmGate(of, store=store, clock=clock)) for _ in range(3)]
        for gate in gates[:2]:
            assert gate.reserve("m", team="red", input_tokens=0, max_tokens=400_000)
        assert receiver.teams(1) == ["red"]
        for _ in range(4):  # longer than the first claim
            clock.advance(DAY_US // 3)
            assert gates[1].reserve("m", team="red", input_tokens=0, max_tokens=333_333).warnings
            assert receiver.teams(0) == []
        clock.advance(DAY_US // 10)
        assert gates[2].reserve("m", team="red", input_tokens=0, max_tokens=100_000).warnings
        assert receiver.teams(0) == []
        clock.advance(2 * DAY_US)
        assert gates[2].reserve("m", team="red", input_tokens=0, max_tokens=600_000)
        assert receiver.teams(1) == ["red"]


def test_policies_of_two_namespaces_each_notify_of_their_own_limits(store: str, receiver: Receiver) -> None:
    with ExitStack() as stack:
        for namespace in ("one", "two"):
            gate = stack.enter_context(LlmGate(policy(receiver, namespace), store=store))
            assert gate.reserve("m", team="red", input_tokens=0, max_tokens=600_000)
        assert receiver.teams(2) == ["red", "red"]


def test_without_its_store_each_process_notifies(caplog: pytest.LogCaptureFixture) -> None:
    with single() as redis:
        store = open_store(f"redis://127.0.0.1:{redis.port}/0?timeout=500ms")
        claims = NotificationClaims(store)
        assert claims.claim(("day", "red"), DAY_US) and not claims.claim(("day", "red"), DAY_US)
    assert claims.claim(("day", "red"), DAY_US) and claims.claim(("day", "red"), DAY_US)
    assert caplog.text.count("each process reports soft limits by itself") == 1
    store.close()
