"""The breaker on a clock that the test moves: when it opens, who goes through while it ramps up, and when it closes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import MethodType

import pytest

from headgate.clock import US_PER_SECOND
from headgate.errors import StoreKeyError, StoreTimeout, StoreUnavailable
from headgate.stores.guard.breaker import CALM_S, CLOSED, FAILURES, HALF_OPEN, OPEN, RAMP_S, Breaker, jittered
from headgate.testing import ManualClock

LATE = StoreTimeout("redis://h: no answer in time")
RAMP_US = int(RAMP_S * US_PER_SECOND)


def opened(clock: ManualClock) -> Breaker:
    breaker = Breaker("a store", clock=clock, first_probe_s=0.001)
    for _ in range(FAILURES):
        assert breaker.lets_through()
        breaker.failed(LATE)
    assert breaker.state == OPEN and not breaker.lets_through()
    return breaker


class Probe:
    """A store that answers, or not; a breaker asks only what is still there."""

    def __init__(self, *, answers: bool = True, error: Exception | None = None) -> None:
        self.answers = answers
        self.error = error
        self.asked = threading.Event()

    def ask(self) -> None:
        self.asked.set()
        if self.error is not None:
            raise self.error
        if not self.answers:
            raise StoreUnavailable("nobody is there")


def come_back(breaker: Breaker, error: Exception | None = None) -> None:
    probe = Probe(error=error)
    breaker.probe_in_thread(probe.ask)
    prober = breaker._prober
    assert isinstance(prober, threading.Thread)
    prober.join(20)
    assert not prober.is_alive() and breaker.state == HALF_OPEN


def test_it_opens_after_failures_one_after_another_only() -> None:
    breaker = Breaker("a store", clock=ManualClock())
    for _ in range(5):
        for _ in range(FAILURES - 1):
            breaker.failed(LATE)
        breaker.succeeded()
    assert breaker.state == CLOSED and breaker.opened == 0
    for _ in range(FAILURES):
        breaker.failed(LATE)
    assert breaker.state == OPEN and breaker.opened == 1


def test_an_error_of_one_key_does_not_open_it(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker("a store", clock=ManualClock())
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(10 * FAILURES):
            breaker.failed(StoreKeyError("the key x is no hash"))
    assert breaker.state == CLOSED and len(caplog.records) == 1


def test_a_server_of_a_cluster_that_fails_says_nothing_about_the_others() -> None:
    of_one = StoreUnavailable("redis+cluster://h: no answer")
    of_one.server = "h:1"
    breaker = Breaker("a store", clock=ManualClock(), first_probe_s=0.001)
    for _ in range(FAILURES):
        breaker.failed(of_one)
    assert breaker.state == CLOSED
    for _ in range(FAILURES):
        breaker.failed(LATE)
    assert breaker.state == OPEN
    come_back(breaker, of_one)  # a Cluster of which some answer is back


@pytest.mark.parametrize("asked_each_ms", [1, 7, 40])
def test_the_share_of_calls_that_go_through_grows_from_none_to_all(asked_each_ms: int) -> None:
    clock = ManualClock()
    breaker = opened(clock)
    come_back(breaker)
    ramp_ms = RAMP_US // 1000
    shares = 0.0
    passed = 0
    for ms in range(0, ramp_ms, asked_each_ms):
        went = breaker.lets_through()
        shares += ms / ramp_ms
        passed += went
        assert shares - 1 <= passed <= shares, f"at {ms} ms: not the share of that moment"
        clock.advance(1000 * asked_each_ms)
    clock.advance(RAMP_US)
    assert breaker.lets_through() and breaker.state == CLOSED


def test_the_return_of_a_store_is_reported_once_and_resets_the_failures(caplog: pytest.LogCaptureFixture) -> None:
    breaker = opened(ManualClock())
    told: list[Exception | None] = []
    breaker.listeners.append(told.append)
    with caplog.at_level(logging.WARNING, "headgate"):
        come_back(breaker)
    assert caplog.records[-1].getMessage() == "the store answers again: a store"
    assert breaker.failures == 0 and told == [None]


def test_a_crowd_at_the_first_moment_does_not_go_through() -> None:
    breaker = opened(ManualClock())
    come_back(breaker)
    assert [breaker.lets_through() for _ in range(1000)] == [False] * 1000


def test_one_failure_while_it_ramps_up_opens_it_again() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    come_back(breaker)
    clock.advance(RAMP_US // 2)
    assert [breaker.lets_through() for _ in range(4)] == [False, True, False, True]
    breaker.failed(LATE)
    assert breaker.state == OPEN and breaker.opened == 2 and not breaker.lets_through()
    come_back(breaker)  # and the ramp begins anew
    assert not breaker.lets_through()


def test_a_store_that_stays_away_keeps_it_open() -> None:
    breaker = opened(ManualClock())
    probe = Probe(answers=False)
    breaker.probe_in_thread(probe.ask)
    prober = breaker._prober
    for _ in range(2):
        probe.asked.clear()
        assert probe.asked.wait(20)
    breaker.probe_in_thread(probe.ask)
    assert breaker.state == OPEN and breaker._prober is prober, "one looks, not each who asks"
    probe.answers = True
    assert isinstance(prober, threading.Thread)
    prober.join(20)
    assert breaker.state == HALF_OPEN


def test_a_breaker_that_is_closed_while_it_asks_stays_closed(caplog: pytest.LogCaptureFixture) -> None:
    breaker = opened(ManualClock())
    told: list[Exception | None] = []
    breaker.listeners.append(told.append)

    class Store:
        def ask(self) -> None:
            breaker.close()

    store = Store()
    with caplog.at_level(logging.WARNING, "headgate"):
        breaker.probe_in_thread(store.ask)
        assert isinstance(breaker._prober, threading.Thread)
        breaker._prober.join(20)
    assert breaker.state == CLOSED and told == [] and "answers again" not in caplog.text


@pytest.mark.parametrize("colour", ["thread", "task"])
def test_probes_come_twice_as_late_each_time_and_two_seconds_apart_at_the_most(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def recorded(pause_s: float) -> float:
        pauses.append(pause_s)
        return 0.0

    class Store:
        asked = 0

        def ask(self) -> None:
            self.asked += 1
            if self.asked < 8:
                raise StoreUnavailable("no server is there")

        async def ask_async(self) -> None:
            self.ask()

    monkeypatch.setattr("headgate.stores.guard.breaker.jittered", recorded)
    breaker = Breaker("a store", clock=ManualClock(), failures=1)
    breaker.failed(LATE)
    store = Store()

    async def wait() -> None:
        breaker.probe_in_task(store.ask_async)
        prober = breaker._prober
        assert isinstance(prober, asyncio.Task)
        await asyncio.wait_for(prober, 20)

    if colour == "task":
        asyncio.run(wait())
    else:
        breaker.probe_in_thread(store.ask)
        assert isinstance(breaker._prober, threading.Thread)
        breaker._prober.join(20)
    assert breaker.state == HALF_OPEN and store.asked == 8
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_a_store_that_answers_probes_alone_is_probed_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def recorded(pause_s: float) -> float:
        pauses.append(pause_s)
        return 0.0

    monkeypatch.setattr("headgate.stores.guard.breaker.jittered", recorded)
    clock = ManualClock()
    breaker = Breaker("a store", clock=clock)
    for _ in range(FAILURES - 1):
        breaker.failed(LATE)
    for _ in range(7):
        breaker.failed(LATE)  # half open, one is enough
        come_back(breaker)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    clock.advance(int(CALM_S * US_PER_SECOND) + 1)
    breaker.failed(LATE)
    come_back(breaker)
    assert pauses[-1] == 0.1


def test_a_task_does_not_keep_an_unreferenced_store() -> None:
    class Store:
        async def ask(self) -> None:
            raise StoreUnavailable("no server is there")

    breaker, store = opened(ManualClock()), Store()

    async def wait() -> None:
        nonlocal store
        breaker.probe_in_task(store.ask)
        prober = breaker._prober
        assert isinstance(prober, asyncio.Task)
        del store
        await asyncio.wait_for(prober, 20)

    asyncio.run(wait())
    assert breaker.state == OPEN


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
def test_workers_that_one_process_forks_do_not_probe_in_step() -> None:
    jittered(1)
    reader, writer = os.pipe()
    pauses = []
    for _ in range(8):
        worker = os.fork()
        if worker == 0:
            os.write(writer, f"{jittered(1)!r} {jittered(1)!r}\n".encode())
            os._exit(0)
        os.waitpid(worker, 0)
        pauses.append(os.read(reader, 100).split())
    os.close(reader)
    os.close(writer)
    assert len({pause for own in pauses for pause in own}) == 16
    assert all(0.5 <= float(pause) <= 1.5 for own in pauses for pause in own)


def test_a_store_may_be_collected_at_the_moment_in_which_its_prober_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    breaker = opened(ManualClock())

    class Store:
        ask: Callable[[], object]

    def prepare() -> weakref.ref[Store]:
        store = Store()
        gone = weakref.ref(store, lambda _: prober().join(20))  # the collector has still to tell those of the method

        def ask(self: Store) -> None:
            raise StoreUnavailable("nobody is there")

        store.ask = MethodType(ask, store)  # a ring: only the collector finds it
        breaker.probe_in_thread(store.ask)
        return gone

    def prober() -> threading.Thread:
        assert isinstance(breaker._prober, threading.Thread)
        return breaker._prober

    gone = prepare()
    gc.collect()
    assert gone() is None and not prober().is_alive()
    assert told == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
def test_a_process_that_was_forked_while_a_task_probed_probes_by_itself() -> None:
    class Away:
        async def ask(self) -> None:
            raise StoreUnavailable("no server is there")

    breaker, store = opened(ManualClock()), Away()

    async def probe() -> object:
        breaker.probe_in_task(store.ask)
        return breaker._prober

    loop = asyncio.new_event_loop()
    try:
        of_parent = loop.run_until_complete(probe())
        worker = os.fork()
        if worker == 0:  # the task is its parent's: no loop runs it here
            os._exit(0 if asyncio.run(probe()) is not of_parent else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
        breaker.close()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
