"""Leases that are extended while the work goes on, and what becomes of a hold whose work is cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from headgate import AsyncLimiter, Limiter, MemoryStore, StoreError, heartbeat
from headgate.reservation import AsyncReservation


class Lease:
    """A reservation whose extensions are what a test says."""

    def __init__(self, extend: Callable[[], str], lease_us: int = 3_000) -> None:
        self.lease_us, self.settled, self.extensions = lease_us, False, 0
        self._extend = extend

    def extend(self) -> SimpleNamespace:
        self.extensions += 1
        return SimpleNamespace(outcome=self._extend())


def extended_so_often(lease: Lease, times: int) -> bool:
    moment = threading.Event()
    for _ in range(1_000):
        if lease.extensions >= times:
            return True
        moment.wait(0.005)
    return False


def failing(error: Exception) -> Callable[[], str]:
    def extend() -> str:
        raise error

    return extend


@pytest.mark.parametrize("error", [StoreError("away"), RuntimeError("closed"), ValueError("unexpected")])
def test_a_lease_that_cannot_be_extended_is_tried_again_and_stops_no_other(error: Exception) -> None:
    broken, sound = Lease(failing(error)), Lease(lambda: "extended")
    heartbeat.start(broken)
    heartbeat.start(sound)
    try:
        assert extended_so_often(sound, 5)
        assert extended_so_often(broken, 3)
    finally:
        heartbeat.stop(broken)
        heartbeat.stop(sound)


def test_a_lease_that_is_hastened_is_extended_before_its_turn() -> None:
    hour_us = 3_600_000_000
    lease, other, stopped = (Lease(lambda: "extended", hour_us) for _ in range(3))
    for each in (lease, other, stopped):
        heartbeat.start(each)
    heartbeat.stop(stopped)
    try:
        heartbeat.hasten(stopped)
        heartbeat.hasten(lease)
        assert extended_so_often(lease, 1)
        heartbeat.hasten(lease)
        assert extended_so_often(lease, 2)
    finally:
        heartbeat.stop(lease)
        heartbeat.stop(other)
    assert (other.extensions, stopped.extensions) == (0, 0)


def test_a_lease_that_is_stopped_while_it_is_extended_is_extended_no_more() -> None:
    is_extending, stopped = threading.Event(), threading.Event()

    def extend() -> str:
        is_extending.set()
        assert stopped.wait(10)
        return "extended"

    lease, other = Lease(extend), Lease(lambda: "extended")
    heartbeat.start(lease)
    assert is_extending.wait(10)
    heartbeat.stop(lease)
    stopped.set()
    heartbeat.start(other)
    try:
        assert extended_so_often(other, 5)  # so the first would have been due again
    finally:
        heartbeat.stop(other)
    assert lease.extensions == 1


def test_the_queue_forgets_what_was_stopped_without_looking_at_all_of_it_each_time() -> None:
    beats = heartbeat._Schedule()
    leases = [Lease(lambda: "extended", 60_000_000) for _ in range(2_000)]
    for lease in leases:
        beats.add(lease)
    looked_at = 0
    counts = beats._is_current

    def counting(entry: Any) -> bool:
        nonlocal looked_at
        looked_at += 1
        return counts(entry)

    beats._is_current = counting  # type: ignore[method-assign]
    for lease in leases[:-1]:
        beats.remove(lease)
    assert looked_at < 10 * len(leases)
    assert len(beats._queue) < 200
    wait_s = beats.wait_s()
    assert wait_s is not None
    assert 0 < wait_s <= 20
    assert beats.pop() is leases[-1]


def test_the_outcome_of_an_extension_decides_when_a_lease_is_due_again() -> None:
    beats = heartbeat._Schedule()
    lease = Lease(lambda: "extended", 90_000_000)
    for outcome, soonest_s, latest_s in (("extended", 25, 30), ("refused", 5, 10)):
        beats.add(lease)
        beats.wait_s()
        beats.pop()
        beats.note_outcome(lease, outcome)
        wait_s = beats.wait_s()
        assert wait_s is not None
        assert soonest_s < wait_s <= latest_s
        beats.remove(lease)
    for outcome in ("lapsed", "already settled", "unknown"):
        beats.add(lease)
        beats.pop()
        beats.note_outcome(lease, outcome)
        assert beats.wait_s() is None
    lease.settled = True
    beats.add(lease)
    beats.pop()
    beats.note_outcome(lease, "extended")
    assert beats.wait_s() is None


class Slow:
    """Bound limits whose commit takes some turns of the event loop."""

    def __init__(self, bound: Any) -> None:
        self._bound = bound

    async def commit(self, *arguments: Any) -> Any:
        for _ in range(5):
            await asyncio.sleep(0)
        return self._bound.commit(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bound, name)


def test_the_task_that_extends_leases_keeps_nothing_of_the_caller_that_began_it() -> None:
    class Request:
        pass

    async def run() -> None:
        limiter = AsyncLimiter("9 concurrent")
        current: ContextVar[Request | None] = ContextVar("current", default=None)

        async def handle() -> ref[Request]:
            request = Request()
            current.set(request)
            async with await limiter.reserve("key"):
                entered.set()
                await left.wait()
                return ref(request)

        entered, left = asyncio.Event(), asyncio.Event()
        began = asyncio.create_task(handle())
        await entered.wait()
        async with await limiter.reserve("key"):
            left.set()
            request = await began
            del began
            await asyncio.sleep(0)
            gc.collect()
            assert request() is None

    asyncio.run(run())


def test_event_loops_that_have_ended_are_kept_no_longer_by_blocks_that_held_on_them() -> None:
    async def work() -> ref[asyncio.AbstractEventLoop]:
        async with await AsyncLimiter("1 concurrent").reserve("key"):
            await asyncio.sleep(0.001)
        return ref(asyncio.get_running_loop())

    loops = [asyncio.run(work()) for _ in range(5)]
    gc.collect()
    assert [loop() for loop in loops[:-1]] == [None] * 4


def test_a_block_that_is_cancelled_again_and_again_still_cancels_its_hold() -> None:
    async def run() -> int | None:
        limiter = AsyncLimiter("2 concurrent", store=MemoryStore())
        held = await limiter.reserve("key")
        entered = asyncio.Event()

        async def work() -> None:
            async with AsyncReservation(Slow(limiter.bound), (held.decision, held.id, False), 60_000_000):  # type: ignore[arg-type]
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await entered.wait()
        while not task.done():  # as a cancel scope of anyio does
            task.cancel()
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        return (await limiter.peek("key", 0)).remaining

    assert asyncio.run(run()) == 2


def test_a_decorated_call_gives_its_result_though_its_hold_cannot_be_settled(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter("2 concurrent", store=MemoryStore(core=core))
    calls = []

    class Away:
        def __getattr__(self, name: str) -> Any:
            return getattr(limiter.bound, name)

        def commit(self, *_: Any) -> Any:
            calls.append("commit")
            raise StoreError("away")

    @limiter.limit(key="key")
    def work() -> str:
        return "done"

    held = next(cell.cell_contents for cell in work.__closure__ or () if hasattr(cell.cell_contents, "_bound"))
    monkeypatch.setattr(held, "_bound", Away())
    assert work() == "done"
    assert calls == ["commit"]
