"""Callers wait for a turn in order, no longer than their timeout, and consume nothing when it comes too late."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ArgumentError, AsyncLimiter, Decision, Limiter, MemoryStore
from headgate.limits import Limit
from headgate.operation import Operation
from headgate.stores.lines import Ticket
from headgate.testing import ManualClock
from headgate.waiting.plan import Plan
from headgate.waiting.standing import stand as stand_in_thread
from headgate.waiting.standing import stand_async
from headgate.waiting.steps import FOREVER_US, Read, Sleep, Stand, WaitSteps, timeout_us
from strategies import SEVERAL_LIMITS, history_of
from subjects import make_limiter


def run(main: Any) -> Any:
    return asyncio.run(main)


class SteppedClock(ManualClock):
    """A clock on which waiting really waits: each real millisecond is ten milliseconds."""

    def let_pass(self, duration_us: int) -> float:
        return duration_us / 10_000_000

    def now_us(self) -> int:
        return super().now_us() + int(time.monotonic() * 10_000_000)


def test_acquire_takes_available_units_at_once(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "5/second bucket", clock)
    start_us = clock.now_us()
    assert all(limiter.acquire("key", timeout=0) for _ in range(5))
    assert clock.now_us() == start_us


def test_acquire_waits_exactly_until_the_cost_is_available(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "5/second bucket; 7/minute fixed", clock)
    start_us = clock.now_us()
    limiter.hit("key", 5)
    assert limiter.acquire("key", 2)
    assert clock.now_us() - start_us == 400_000
    assert limiter.acquire("key")
    assert (clock.now_us() - start_us) % 60_000_000 == 0


def test_acquire_waits_for_a_step_and_for_the_next_day(core: str) -> None:
    clock = ManualClock(1_800_000_000_000_000)
    limiter = make_limiter(core, "10/minute burst 30 stepwise; 45/day in Europe/Zurich", clock)
    start_us = clock.now_us()
    limiter.hit("key", 30)
    assert limiter.acquire("key", 15)
    assert clock.now_us() - start_us == 120_000_000
    assert limiter.acquire("key")
    assert clock.now_us() - start_us == 15 * 3_600_000_000  # from 9 in the morning to midnight


def test_acquire_refuses_at_once_and_consumes_nothing_when_the_turn_is_too_late(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "5/second bucket", clock)
    limiter.hit("key", 5)
    before = clock.now_us()
    decision = limiter.acquire("key", 3, timeout=0.599999)
    assert not decision.allowed
    assert decision.retry_after_us == 600_000
    assert decision.remaining == 0
    assert clock.now_us() == before
    clock.advance(600_000)
    assert limiter.peek("key", 0).remaining == 3
    assert limiter.acquire("key", 3, timeout=0).allowed


def test_acquire_refuses_at_once_a_cost_that_can_never_pass(core: str) -> None:
    clock = ManualClock()
    decision = make_limiter(core, "5/second bucket", clock).acquire("key", 6)
    assert (decision.allowed, decision.retry_after) == (False, None)


def test_acquire_waits_out_the_delay_of_a_queue(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "5/second queue 3", clock)
    start_us = clock.now_us()
    for place in range(3):
        assert limiter.hit("key").delay_us == place * 200_000
    assert limiter.acquire("key").delay_us == 600_000
    assert clock.now_us() - start_us == 600_000


def test_acquire_refuses_a_delay_longer_than_its_timeout_without_joining_the_queue(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "5/second queue 3", clock)
    for _ in range(3):
        limiter.hit("key")
    decision = limiter.acquire("key", timeout=0.5)
    assert not decision.allowed
    assert decision.retry_after_us == 600_000  # the moment at which it could have continued
    assert limiter.peek("key", 0).remaining == 1
    clock.advance(100_000)
    assert limiter.acquire("key", timeout=0.5).delay_us == 500_000


@pytest.mark.parametrize("timeout", [0, 0.3, 0.999_999, 1, 1.2, 1.999_999])
@pytest.mark.parametrize(
    "limits", ["1/second queue 1", "1/second queue 1; 5/second bucket", "9/minute; 1/second queue 1"]
)
def test_a_refused_acquire_reports_when_its_turn_in_a_queue_comes(store_kind: str, limits: str, timeout: float) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limits, clock)
    assert limiter.hit("key").delay_us == 0
    assert limiter.hit("key").delay_us == 1_000_000
    decision = limiter.acquire("key", timeout=timeout)
    assert not decision
    assert decision.retry_after_us == 2_000_000  # it could join in one second, and would leave a second later
    clock.advance(1_999_999)
    assert not limiter.acquire("key", timeout=0)
    clock.advance(1)
    assert limiter.acquire("key", timeout=0).delay_us == 0


@pytest.mark.parametrize("max_delay_us", [0, 300_000, 999_999, 1_000_000, 1_700_000])
def test_a_refusal_for_a_delay_reports_when_the_queue_is_short_enough(store_kind: str, max_delay_us: int) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, "1/second queue 1", clock)
    limiter.hit("key", 2)
    decide, operation = limiter._bound.decide, Operation(("key",), (1,), max_delay_us=max_delay_us)
    retry_after_us = decide(operation).retry_after_us
    assert retry_after_us is not None
    assert retry_after_us == max(1_000_000, 2_000_000 - max_delay_us)
    clock.advance(retry_after_us - 1)
    assert not decide(operation)
    clock.advance(1)
    assert decide(operation).delay_us <= max_delay_us


def test_a_refused_acquire_in_asyncio_reports_when_its_turn_in_a_queue_comes() -> None:
    async def retry_after_us() -> int | None:
        limiter = AsyncLimiter("1/second queue 1", clock=ManualClock())
        await limiter.hit("key", 2)
        return (await limiter.acquire("key", timeout=0)).retry_after_us

    assert asyncio.run(retry_after_us()) == 2_000_000


def wait_in_threads(limiter: Limiter, costs: list[int], **arguments: Any) -> list[int]:
    """Let one thread for each cost join in this order, and return the order in which they were admitted."""
    passed: list[int] = []
    threads = []
    for place, cost in enumerate(costs):

        def wait(place: int = place, cost: int = cost) -> None:
            if limiter.acquire("key", cost, **arguments):
                passed.append(place)

        thread = threading.Thread(target=wait)
        thread.start()
        threads.append(thread)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and thread.is_alive() and tickets(limiter) <= place:
            time.sleep(0.0005)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    return passed


def tickets(limiter: Limiter) -> int:
    return sum(len(line.tickets) for line in limiter._lines._lines.values())


def test_threads_are_admitted_in_the_order_of_arrival(core: str) -> None:
    limiter = make_limiter(core, "20/second bucket", SteppedClock())
    limiter.hit("key", 20)
    # The large cost at the head is not overtaken by the small ones behind it.
    assert wait_in_threads(limiter, [10, 1, 5, 1, 3]) == [0, 1, 2, 3, 4]
    assert tickets(limiter) == 0


def test_a_waiter_of_one_key_does_not_hold_up_another_key(core: str) -> None:
    limiter = make_limiter(core, "1/hour", ManualClock())
    limiter.hit("busy")
    release = threading.Event()

    class Held(ManualClock):
        def let_pass(self, duration_us: int) -> float:
            release.wait(5)
            return super().let_pass(duration_us)

    held = Limiter("1/hour", store=limiter.store, clock=Held())
    waiter = threading.Thread(target=held.acquire, args=("busy",))
    waiter.start()
    try:
        assert held.acquire("idle", timeout=0)
        assert waiter.is_alive()
    finally:
        release.set()
        waiter.join(5)


def test_tasks_are_admitted_in_the_order_of_arrival(core: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        limiter = AsyncLimiter("5/second bucket", store=MemoryStore(core=core), clock=clock)  # type: ignore[arg-type]
        await limiter.hit("key", 5)
        start_us = clock.now_us()
        passed: list[tuple[int, int]] = []

        async def wait(place: int, cost: int) -> None:
            assert await limiter.acquire("key", cost)
            passed.append((place, clock.now_us() - start_us))

        async with asyncio.TaskGroup() as group:
            for place, cost in enumerate([5, 1, 2, 1]):
                group.create_task(wait(place, cost))
                await asyncio.sleep(0)
        assert passed == [(0, 1_000_000), (1, 1_200_000), (2, 1_600_000), (3, 1_800_000)]

    run(main())


class SleepersClock(ManualClock):
    """A clock that stands still until a sleeper wakes: callers that arrive before that arrive at the same moment."""

    def let_pass(self, duration_us: int) -> float:
        asyncio.get_running_loop().call_later(0.001, self.advance, duration_us)
        return 0.002


def test_a_caller_whose_turn_comes_too_late_is_refused_at_once_though_others_wait(core: str) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("10/second burst 2", store=MemoryStore(core=core), clock=SleepersClock())  # type: ignore[arg-type]
        await limiter.hit("key", 2)
        decisions = await asyncio.gather(*(limiter.acquire("key", timeout=0.55) for _ in range(9)))
        assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 4
        assert [decision.retry_after for decision in decisions[5:]] == [0.6] * 4
        assert (await limiter.peek("key", 0)).remaining == 0

    run(main())


def test_a_cancelled_waiter_leaves_the_line_and_consumes_nothing(core: str) -> None:
    async def main() -> None:
        clock = SleepersClock()
        limiter = AsyncLimiter("10/second burst 1", store=MemoryStore(core=core), clock=clock)  # type: ignore[arg-type]
        await limiter.hit("key")
        start_us = clock.now_us()
        tasks = [asyncio.create_task(limiter.acquire("key")) for _ in range(4)]
        await asyncio.sleep(0)
        for place in (0, 2):
            tasks[place].cancel()
        assert (await tasks[1]).allowed
        assert (await tasks[3]).allowed
        # Two turns of 100 ms, and perhaps the 100 ms for which a cancelled caller slept: not four turns.
        assert clock.now_us() - start_us in (200_000, 300_000)
        assert not limiter._lines._lines
        for place in (0, 2):
            with pytest.raises(asyncio.CancelledError):
                await tasks[place]

    run(main())


def test_waiting_never_blocks_the_event_loop(core: str) -> None:
    async def main() -> None:
        limiter = Limiter("10/second burst 1", store=MemoryStore(core=core))  # type: ignore[arg-type]
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        @limiter.limit("key", on_refusal="wait")
        async def limited() -> None: ...

        ticking = asyncio.create_task(tick())
        await limited()
        await limited()
        await limited()
        ticking.cancel()
        assert ticks > 15

    run(main())


def drive(steps: WaitSteps, limiter: Limiter) -> Sleep | Stand | Decision:
    """Run the steps up to the next one that takes time, or to the end."""
    reply: Any = None
    try:
        while True:
            step = steps.send(reply)
            if isinstance(step, Operation):
                reply = limiter._bound.decide(step)
            elif isinstance(step, Read):
                reply = limiter._bound.read(step.keys)
            else:
                assert isinstance(step, Sleep | Stand)
                return step
    except StopIteration as stop:
        decision: Decision = stop.value
        return decision


def test_standing_in_line_ends_with_the_timeout(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "10/second burst 1", clock)
    limiter.hit("key")
    first = limiter._lines.steps("key", (1,), 10_000_000)
    second = limiter._lines.steps("key", (1,), 250_000)
    assert isinstance(drive(first, limiter), Sleep)
    standing = drive(second, limiter)
    assert isinstance(standing, Stand)
    assert standing.seconds == 0.25
    # A caller outside the line takes the unit that the first waits for, and the second one's timeout has passed.
    clock.advance(250_000)
    limiter.hit("key")
    refusal = drive(second, limiter)
    assert isinstance(refusal, Decision)
    assert not refusal.allowed
    assert refusal.retry_after_us == 100_000
    assert tickets(limiter) == 1
    first.close()
    assert tickets(limiter) == 0


def test_a_waiter_that_times_out_behind_another_is_refused_though_its_cost_would_pass(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "10/second burst 5; 12/minute fixed", clock)
    limiter.hit("key", 5)
    first = limiter._lines.steps("key", (4,), 10_000_000)
    second = limiter._lines.steps("key", (1,), 700_000)
    assert isinstance(drive(first, limiter), Sleep)
    assert isinstance(drive(second, limiter), Stand)
    clock.advance(300_000)
    before = limiter._bound.read(("key",))
    refusal = drive(second, limiter)
    assert isinstance(refusal, Decision)
    assert limiter._bound.read(("key",)) == before, "it has charged nothing"
    assert not refusal.allowed and refusal.degraded == ""
    assert refusal.definitions == limiter.definitions
    assert refusal.binding is refusal.limits[0] or refusal.binding == refusal.limits[0]
    assert [reading.allowed for reading in refusal.limits] == [False, True]
    assert [reading.retry_after_us for reading in refusal.limits] == [1, 0]
    left = limiter.peek("key", 0)
    for reading, current in zip(refusal.limits, left.limits, strict=True):
        assert (reading.remaining, reading.reset_after_us, reading.next_after_us, reading.delay_us) == (
            current.remaining,
            current.reset_after_us,
            current.next_after_us,
            0,
        )


def test_a_cost_that_can_never_pass_is_refused_in_a_line_too(core: str) -> None:
    limiter = make_limiter(core, "10/second burst 2", ManualClock())
    limiter.hit("key", 2)
    first = limiter._lines.steps("key", (1,), 10_000_000)
    assert isinstance(drive(first, limiter), Sleep)
    refusal = drive(limiter._lines.steps("key", (3,), 10_000_000), limiter)
    assert isinstance(refusal, Decision)
    assert (refusal.allowed, refusal.retry_after_us) == (False, None)
    assert isinstance(drive(limiter._lines.steps("key", (2,), 10_000_000), limiter), Stand)


@pytest.mark.parametrize("seconds", [0.001, 1e12])
def test_a_thread_stands_in_line_until_its_timeout_or_until_it_is_called(seconds: float) -> None:
    ticket = Ticket((1,))
    standing = threading.Thread(target=stand_in_thread, args=(ticket, seconds), daemon=True)
    standing.start()
    if seconds > 1:
        standing.join(0.01)
        assert standing.is_alive()
        ticket.call()
    standing.join(20)
    assert not standing.is_alive()


def test_a_task_stands_in_line_until_its_timeout_or_until_it_is_called() -> None:
    async def stand() -> None:
        await stand_async(Ticket((1,)), 0.001)
        called = Ticket((1,))
        standing = asyncio.create_task(stand_async(called, 1_000))
        await asyncio.sleep(0)
        assert not standing.done()
        called.call()
        await standing

    run(asyncio.wait_for(stand(), 20))


def test_a_waiter_that_leaves_calls_the_next(core: str) -> None:
    limiter = make_limiter(core, "10/second burst 1", ManualClock())
    limiter.hit("key")
    first, second, third = (limiter._lines.steps("key", (1,), 10_000_000) for _ in range(3))
    drive(first, limiter)
    standing, behind = drive(second, limiter), drive(third, limiter)
    assert isinstance(standing, Stand)
    assert isinstance(behind, Stand)
    first.close()
    assert standing.ticket.called
    assert not behind.ticket.called
    second.close()
    assert behind.ticket.called


BAD_TIMEOUTS = [-1, -0.001, float("nan"), True, "1", b""]


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS, ids=repr)
def test_an_invalid_timeout_is_refused(core: str, timeout: Any) -> None:
    limiter = make_limiter(core, "5/second", ManualClock())
    with pytest.raises(ArgumentError, match="a timeout is"):
        limiter.acquire("key", timeout=timeout)
    assert limiter.peek("key", 0).remaining == 5


def test_a_timeout_counts_whole_microseconds_up_to_71_years() -> None:
    assert [timeout_us(seconds) for seconds in (0, 0.25, 3)] == [0, 250_000, 3_000_000]
    longest_s = FOREVER_US / 1_000_000
    assert timeout_us(longest_s - 1) == FOREVER_US - 1_000_000
    assert [timeout_us(seconds) for seconds in (None, longest_s, 10 * longest_s, 1e300)] == [FOREVER_US] * 4
    with pytest.raises(ArgumentError, match=r"^a timeout is a number of seconds or None, not a str$"):
        timeout_us("1")  # type: ignore[arg-type]


def test_an_infinite_timeout_is_valid(core: str) -> None:
    limiter = make_limiter(core, "5/second", ManualClock())
    assert limiter.acquire("key", timeout=float("inf"))
    assert limiter.acquire("key", timeout=1e300)


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_a_plan_predicts_when_each_waiter_passes(core: str, limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, limits, clock)
    for wait_us, cost in data.draw(history_of(limits)):
        clock.advance(wait_us)
        limiter.hit("key", cost)
    plan = Plan(limiter.definitions, limiter._bound.read(("key",)), clock.now_us())
    least = min(limit.quota for limit in limits)
    for cost in data.draw(st.lists(st.integers(1, max(1, min(least, 20))), max_size=5)):
        expected_us = plan.turn_us((cost,), clock.now_us(), join=False)
        assert plan.turn_us((cost,), clock.now_us(), join=True) == expected_us
        # A queue lets the next one join while this one still waits out its delay.
        joined_us = clock.now_us()
        decision = limiter.hit("key", cost)
        while not decision.allowed and decision.retry_after_us is not None:
            clock.advance(decision.retry_after_us)
            joined_us = clock.now_us()
            decision = limiter.hit("key", cost)
        assert expected_us == (joined_us + decision.delay_us if decision.allowed else None)


def test_a_plan_forgets_a_waiter_that_leaves_without_its_turn(core: str) -> None:
    limiter = make_limiter(core, "10/second bucket", ManualClock())
    limiter.hit("key", 10)
    first, second, third = (limiter._lines.steps("key", (10,), 9_000_000) for _ in range(3))
    assert isinstance(drive(first, limiter), Sleep)
    for behind in (second, third):
        assert isinstance(drive(behind, limiter), Stand)
    second.close()
    # The first has its turn now and the third in a second, so the next is in two seconds, not in three.
    late = drive(limiter._lines.steps("key", (10,), 1_999_999), limiter)
    assert isinstance(late, Decision)
    assert late.retry_after_us == 2_000_000
    assert isinstance(drive(limiter._lines.steps("key", (10,), 2_000_000), limiter), Stand)


def test_a_plan_is_rebuilt_after_another_caller_takes_units_that_it_counted_on(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "10/second bucket", clock)
    limiter.hit("key", 10)
    first = limiter._lines.steps("key", (10,), 9_000_000)
    assert isinstance(drive(first, limiter), Sleep)  # the clock has moved to its turn
    assert limiter.hit("key", 10)  # by a caller that does not stand in line
    assert isinstance(drive(first, limiter), Sleep)
    clock.advance(-1_000_000)
    # The first now passes a second later than it had planned, and a second waiter one more second later.
    late = drive(limiter._lines.steps("key", (10,), 1_999_999), limiter)
    assert isinstance(late, Decision)
    assert late.retry_after_us == 2_000_000
