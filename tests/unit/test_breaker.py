"""The breaker on a manual clock: when it opens, which calls go through while it ramps up, and when it closes."""

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

TIMEOUT = StoreTimeout("redis://h: no answer in time")
RAMP_US = int(RAMP_S * US_PER_SECOND)


def open_breaker(clock: ManualClock) -> Breaker:
    breaker = Breaker("a store", clock=clock, first_probe_s=0.001)
    for _ in range(FAILURES):
        assert breaker.lets_through()
        breaker.failed(TIMEOUT)
    assert breaker.state == OPEN and not breaker.lets_through()
    return breaker


class Probe:
    """The owner of a probe that succeeds or fails; a breaker calls only probes of living stores."""

    def __init__(self, *, answers: bool = True, error: Exception | None = None) -> None:
        self.answers = answers
        self.error = error
        self.was_probed = threading.Event()

    def probe(self) -> None:
        self.was_probed.set()
        if self.error is not None:
            raise self.error
        if not self.answers:
            raise StoreUnavailable("nobody is there")


def let_probe_succeed(breaker: Breaker, error: Exception | None = None) -> None:
    probe = Probe(error=error)
    breaker.probe_in_thread(probe.probe)
    prober = breaker._prober
    assert isinstance(prober, threading.Thread)
    prober.join(20)
    assert not prober.is_alive() and breaker.state == HALF_OPEN


def test_it_opens_only_after_consecutive_failures() -> None:
    breaker = Breaker("a store", clock=ManualClock())
    for _ in range(5):
        for _ in range(FAILURES - 1):
            breaker.failed(TIMEOUT)
        breaker.succeeded()
    assert breaker.state == CLOSED and breaker.opened == 0
    for _ in range(FAILURES):
        breaker.failed(TIMEOUT)
    assert breaker.state == OPEN and breaker.opened == 1


def test_an_error_of_one_key_does_not_open_it(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker("a store", clock=ManualClock())
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(10 * FAILURES):
            breaker.failed(StoreKeyError("the key x is no hash"))
    assert breaker.state == CLOSED and len(caplog.records) == 1


def test_a_server_of_a_cluster_that_fails_says_nothing_about_the_others() -> None:
    error = StoreUnavailable("redis+cluster://h: no answer")
    error.server = "h:1"
    breaker = Breaker("a store", clock=ManualClock(), first_probe_s=0.001)
    for _ in range(FAILURES):
        breaker.failed(error)
    assert breaker.state == CLOSED
    for _ in range(FAILURES):
        breaker.failed(TIMEOUT)
    assert breaker.state == OPEN
    let_probe_succeed(breaker, error)  # a Cluster of which some servers answer is back


@pytest.mark.parametrize("interval_ms", [1, 7, 40])
def test_the_share_of_calls_that_go_through_grows_from_none_to_all(interval_ms: int) -> None:
    clock = ManualClock()
    breaker = open_breaker(clock)
    let_probe_succeed(breaker)
    ramp_ms = RAMP_US // 1000
    shares = 0.0
    passed = 0
    for ms in range(0, ramp_ms, interval_ms):
        goes_through = breaker.lets_through()
        shares += ms / ramp_ms
        passed += goes_through
        assert shares - 1 <= passed <= shares, f"at {ms} ms: not the share of that moment"
        clock.advance(1000 * interval_ms)
    clock.advance(RAMP_US)
    assert breaker.lets_through() and breaker.state == CLOSED


def test_the_return_of_a_store_is_reported_once_and_resets_the_failures(caplog: pytest.LogCaptureFixture) -> None:
    breaker = open_breaker(ManualClock())
    reported: list[Exception | None] = []
    breaker.listeners.append(reported.append)
    with caplog.at_level(logging.WARNING, "headgate"):
        let_probe_succeed(breaker)
    assert caplog.records[-1].getMessage() == "the store answers again: a store"
    assert breaker.failures == 0 and reported == [None]


def test_a_crowd_at_the_first_moment_does_not_go_through() -> None:
    breaker = open_breaker(ManualClock())
    let_probe_succeed(breaker)
    assert [breaker.lets_through() for _ in range(1000)] == [False] * 1000


def test_one_failure_while_it_ramps_up_opens_it_again() -> None:
    clock = ManualClock()
    breaker = open_breaker(clock)
    let_probe_succeed(breaker)
    clock.advance(RAMP_US // 2)
    assert [breaker.lets_through() for _ in range(4)] == [False, True, False, True]
    breaker.failed(TIMEOUT)
    assert breaker.state == OPEN and breaker.opened == 2 and not breaker.lets_through()
    let_probe_succeed(breaker)  # and the ramp restarts
    assert not breaker.lets_through()


def test_a_store_that_stays_away_keeps_it_open() -> None:
    breaker = open_breaker(ManualClock())
    probe = Probe(answers=False)
    breaker.probe_in_thread(probe.probe)
    prober = breaker._prober
    for _ in range(2):
        probe.was_probed.clear()
        assert probe.was_probed.wait(20)
    breaker.probe_in_thread(probe.probe)
    assert breaker.state == OPEN and breaker._prober is prober, "there is one prober, not one for each caller"
    probe.answers = True
    assert isinstance(prober, threading.Thread)
    prober.join(20)
    assert breaker.state == HALF_OPEN


def test_a_breaker_that_is_closed_during_a_probe_stays_closed(caplog: pytest.LogCaptureFixture) -> None:
    breaker = open_breaker(ManualClock())
    reported: list[Exception | None] = []
    breaker.listeners.append(reported.append)

    class Store:
        def probe(self) -> None:
            breaker.close()

    store = Store()
    with caplog.at_level(logging.WARNING, "headgate"):
        breaker.probe_in_thread(store.probe)
        assert isinstance(breaker._prober, threading.Thread)
        breaker._prober.join(20)
    assert breaker.state == CLOSED and reported == [] and "answers again" not in caplog.text


@pytest.mark.parametrize("colour", ["thread", "task"])
def test_the_interval_of_probes_doubles_up_to_two_seconds(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def recorded(pause_s: float) -> float:
        pauses.append(pause_s)
        return 0.0

    class Store:
        probes = 0

        def probe(self) -> None:
            self.probes += 1
            if self.probes < 8:
                raise StoreUnavailable("no server is there")

        async def probe_async(self) -> None:
            self.probe()

    monkeypatch.setattr("headgate.stores.guard.breaker.jittered", recorded)
    breaker = Breaker("a store", clock=ManualClock(), failures=1)
    breaker.failed(TIMEOUT)
    store = Store()

    async def wait() -> None:
        breaker.probe_in_task(store.probe_async)
        prober = breaker._prober
        assert isinstance(prober, asyncio.Task)
        await asyncio.wait_for(prober, 20)

    if colour == "task":
        asyncio.run(wait())
    else:
        breaker.probe_in_thread(store.probe)
        assert isinstance(breaker._prober, threading.Thread)
        breaker._prober.join(20)
    assert breaker.state == HALF_OPEN and store.probes == 8
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
        breaker.failed(TIMEOUT)
    for _ in range(7):
        breaker.failed(TIMEOUT)  # while it is half open, one failure is enough
        let_probe_succeed(breaker)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    clock.advance(int(CALM_S * US_PER_SECOND) + 1)
    breaker.failed(TIMEOUT)
    let_probe_succeed(breaker)
    assert pauses[-1] == 0.1


def test_a_task_does_not_keep_an_unreferenced_store() -> None:
    class Store:
        async def probe(self) -> None:
            raise StoreUnavailable("no server is there")

    breaker, store = open_breaker(ManualClock()), Store()

    async def wait() -> None:
        nonlocal store
        breaker.probe_in_task(store.probe)
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
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: errors.append(unraisable.exc_value))
    breaker = open_breaker(ManualClock())

    class Store:
        probe: Callable[[], object]

    def prepare() -> weakref.ref[Store]:
        store = Store()
        reference = weakref.ref(store, lambda _: prober().join(20))  # the collector calls those of the method later

        def probe(self: Store) -> None:
            raise StoreUnavailable("nobody is there")

        store.probe = MethodType(probe, store)  # a cycle: only the collector finds it
        breaker.probe_in_thread(store.probe)
        return reference

    def prober() -> threading.Thread:
        assert isinstance(breaker._prober, threading.Thread)
        return breaker._prober

    reference = prepare()
    gc.collect()
    assert reference() is None and not prober().is_alive()
    assert errors == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
def test_a_process_that_was_forked_while_a_task_probed_probes_by_itself() -> None:
    class Away:
        async def probe(self) -> None:
            raise StoreUnavailable("no server is there")

    breaker, store = open_breaker(ManualClock()), Away()

    async def probe() -> object:
        breaker.probe_in_task(store.probe)
        return breaker._prober

    loop = asyncio.new_event_loop()
    try:
        parent_prober = loop.run_until_complete(probe())
        worker = os.fork()
        if worker == 0:  # the task is its parent's: no loop runs it in the child
            os._exit(0 if asyncio.run(probe()) is not parent_prober else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
        breaker.close()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
