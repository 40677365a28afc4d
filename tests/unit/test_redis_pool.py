"""Connections that threads share: how many a burst of calls opens at once, and which errors its calls raise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from redis import exceptions

from headgate.stores.redis import pool as pools
from headgate.stores.redis import waiters
from headgate.stores.redis.pool import ConnectionPool
from headgate.stores.redis.url import read_url
from headgate.stores.redis.waiters import OPENED_AT_ONCE, OPENED_AT_ONCE_OVER_TLS, STEP_US
from headgate.testing import ManualClock
from until import until

CALLS = 48
PATIENCE = "timeout=60s"
"""Much longer than a test: no call ends by its deadline."""


class Socket:
    def settimeout(self, within_s: float) -> None: ...


class Connection:
    """The part of redis-py's connections that a pool uses; it opens once `may_open` is set, and replies at once."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._sock = Socket()
        self._parser = Socket()

    def connect(self) -> None:
        with self._network.lock:
            self._network.opened += 1
        self._network.may_open.wait(30)
        if self._network.refuses:
            raise exceptions.ConnectionError("Connection refused")

    def can_read(self, timeout: float) -> bool:
        return False

    def send_packed_command(self, command: list[bytes], *, check_health: bool) -> None: ...

    def read_response(self, *, disable_decoding: bool) -> bytes:
        return b"PONG"

    def disconnect(self) -> None: ...


class Network:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.may_open = threading.Event()
        self.opened = 0
        self.refuses = False

    def has_opened(self, wanted: int) -> bool:
        return self.opened == wanted


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(pools, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(waiters, "SYSTEM_CLOCK", clock)
    return clock


Burst = Callable[[str], list["Future[Any]"]]


@pytest.fixture
def burst(network: Network, clock: ManualClock) -> Any:
    """Calls that arrive at once at a pool without connections; returned once all of them wait."""
    with ThreadPoolExecutor(CALLS) as callers:

        def begin(url: str) -> list[Future[Any]]:
            target = read_url(f"{url}?{PATIENCE}")
            pool = ConnectionPool(lambda: Connection(network), target, lambda: target.timeout_s)
            calls = [callers.submit(pool.execute, None, ("PING",)) for _ in range(CALLS)]
            until(lambda: len(pool._waiting) == CALLS)
            return calls

        yield begin
        network.may_open.set()


@pytest.mark.parametrize(("url", "few"), [("redis://h", OPENED_AT_ONCE), ("rediss://h", OPENED_AT_ONCE_OVER_TLS)])
def test_a_burst_opens_a_few_connections_at_once_and_twice_as_many_the_longer_it_waits(
    url: str, few: int, network: Network, clock: ManualClock, burst: Burst
) -> None:
    calls = burst(url)
    for wanted in (few, few * 2, few * 4):
        until(partial(network.has_opened, wanted))
        clock.advance(STEP_US)
    network.may_open.set()
    assert [call.result(10) for call in calls] == [b"PONG"] * CALLS


def test_an_error_of_opening_connections_is_raised_by_all_calls_of_a_burst_without_a_wait(
    network: Network, burst: Burst
) -> None:
    network.refuses = True
    calls = burst("rediss://h")
    network.may_open.set()
    for call in calls:
        with pytest.raises(exceptions.ConnectionError, match="Connection refused"):
            call.result(10)
    assert network.opened == CALLS
