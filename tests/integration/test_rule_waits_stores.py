"""Requests that wait for rules on stores that several processes share: no limit is exceeded, and all pass in time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis_servers import Cluster, Server

from headgate import Decision, SharedStore
from headgate.policy.gate import AsyncGate, Gate
from headgate.policy.request import Request
from headgate.stores.guard.store import GuardedStore
from headgate.stores.protocol import Store
from headgate.stores.redis.store import RedisStore

pytestmark = pytest.mark.integration
PLACES, REQUESTS = 3, 30
PATIENT_S = 60
POLICY = {
    "version": 1,
    "identities": {"user": {"header": "X-User"}},
    "rules": [
        {"name": "user", "by": ["user"], "limits": "1000/second bucket", "wait": "1m"},
        {
            "name": "place",
            "match": {"path": "/place"},
            "by": [],
            "limits": f"{PLACES} concurrent",
            "wait": "1m",
        },
        {"name": "rate", "match": {"path": "/rate"}, "by": ["ip"], "limits": "40/second burst 10", "wait": "1m"},
    ],
}


@pytest.fixture(params=["zone", "redis", "guarded", "cluster"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Store]]:
    """Two stores of one state, as two processes of a host have them; each has lines of its own."""
    if request.param == "zone":
        made: list[Store] = [SharedStore(tmp_path / "zone", size=8 << 20) for _ in range(2)]
    else:
        server: Server | Cluster = request.getfixturevalue("nodes" if request.param == "cluster" else "server")
        url = f"{server.url}?timeout=10s&prefix={request.param}"
        made = [RedisStore(url) for _ in range(2)]
        if request.param == "guarded":
            made = [GuardedStore(store, on_error="closed") for store in made]
    yield made
    for store in made:
        store.close()


class InFlight:
    """How many requests are in flight now, and the most that ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def enter(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def leave(self) -> None:
        with self._lock:
            self._now -= 1


def request_of(path: str, number: int) -> Request:
    return Request(path=path, headers={"x-user": f"user{number % 4}"}, client_ip="203.0.113.9")


def test_no_more_are_in_flight_than_have_a_place_and_all_get_one(stores: list[Store]) -> None:
    gates = [Gate(POLICY, store=store) for store in stores]
    flying = InFlight()

    def ask(number: int) -> bool:
        with gates[number % 2].acquire(request_of("/place", number), timeout=PATIENT_S, lease=1) as held:
            flying.enter()
            time.sleep(0.005)
            flying.leave()
            return bool(held)

    with ThreadPoolExecutor(REQUESTS) as threads:
        assert all(threads.map(ask, range(REQUESTS)))
    assert 1 <= flying.most <= PLACES


@pytest.mark.parametrize("colour", ["threads", "tasks"])
def test_requests_pass_at_the_rate_and_not_before(stores: list[Store], colour: str) -> None:
    start = time.monotonic()
    if colour == "threads":
        gates = [Gate(POLICY, store=store) for store in stores]
        with ThreadPoolExecutor(REQUESTS) as threads:
            asked = [
                threads.submit(gates[number % 2].acquire, request_of("/rate", number), timeout=PATIENT_S)
                for number in range(REQUESTS)
            ]
            decisions = [each.result() for each in asked]
    else:
        decisions = asyncio.run(passed_in_tasks(stores))
    assert all(decision.allowed for decision in decisions)
    assert time.monotonic() - start >= (REQUESTS - 10) / 40 - 0.001


async def passed_in_tasks(stores: list[Store]) -> list[Decision]:
    gates = [AsyncGate(POLICY, store=store) for store in stores]
    try:
        return await asyncio.gather(
            *(gates[number % 2].acquire(request_of("/rate", number), timeout=PATIENT_S) for number in range(REQUESTS))
        )
    finally:
        for store in stores:
            await store.aclose()
