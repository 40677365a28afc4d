"""Callers wait for places in flight in order, are woken as soon as one is free, and hold nothing after they give up."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sized
from functools import partial
from random import Random
from typing import Any

import pytest

from headgate import ArgumentError, AsyncLimiter, ConfigError, GuardedStore, Limiter, MemoryStore, RateLimited
from headgate.decision import Decision
from headgate.holding import Hold
from headgate.operation import Operation
from headgate.reservation import AsyncReservation, Reservation
from headgate.testing import ManualClock
from subjects import make_store
from until import in_thread, until, until_async

LONG_S = 60


def limiter_on(core: str, limits: str, **options: Any) -> Limiter:
    return Limiter(limits, store=make_store(core), **options)


class Watched:
    """Bound limits whose calls are counted, and whose admissions are noted in order."""

    def __init__(self, bound: Any) -> None:
        self._bound = bound
        self.calls: list[str] = []
        self.admitted: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name == "hold":
            raise AttributeError(name)
        return getattr(self._bound, name)

    def read(self, *arguments: Any) -> Any:
        self.calls.append("read")
        return self._bound.read(*arguments)

    def decide(self, operation: Operation) -> Any:
        self.calls.append("decide" if operation.commit else "look")
        decision = self._bound.decide(operation)
        if operation.commit and decision:
            self.admitted.append(operation.costs[0])
        return decision

    def reserve(self, operation: Operation, hold: Hold) -> Any:
        self.calls.append("reserve")
        reserved = self._bound.reserve(operation, hold)
        if reserved.decision:
            self.admitted.append(hold.name)
        return reserved


def watched(limiter: Limiter | AsyncLimiter) -> Watched:
    limiter._bound = Watched(limiter._bound)
    return limiter._bound  # type: ignore[no-any-return]


def waiting(limiter: Limiter | AsyncLimiter) -> int:
    return limiter._lines._shared.waiting


def _are_waiting(limiter: Limiter, number: int, others: Sized = ()) -> bool:
    return waiting(limiter) + len(others) >= number


def free(limiter: Limiter | AsyncLimiter) -> int:
    remaining: int = limiter.bound.peek("key", 0).limits[0].remaining
    return remaining


def test_acquired_places_are_held_for_the_block(core: str) -> None:
    limiter = limiter_on(core, "2 concurrent; 9/hour")
    with limiter.acquire("key", 2, timeout=5, lease=60) as held:
        assert isinstance(held, Reservation) and held and not held.repeated
        assert free(limiter) == 0
    assert free(limiter) == 2
    assert limiter.peek("key", 0).limits[1].remaining == 7


def test_a_lease_an_id_or_a_time_to_remember_makes_it_a_reservation(core: str) -> None:
    limiter = limiter_on(core, "90/hour")
    assert isinstance(limiter.acquire("key"), type(limiter.hit("other")))
    assert limiter.acquire("key", lease_us=7).lease_us == 7
    assert limiter.acquire("key", lease=2).lease_us == 2_000_000
    assert limiter.acquire("key", remember=9).lease_us == 60_000_000
    named = limiter.acquire("key", id="mine")
    assert named.id == limiter.id_of("key", "mine")
    assert limiter.acquire("key", id="mine", timeout=0).repeated
    assert limiter.peek("key", 0).remaining == 85
    assert limiter.cancel(named.id).outcome == "settled"


def test_acquiring_places_without_a_lease_is_an_error_that_shows_the_right_call(core: str) -> None:
    limiter = limiter_on(core, "9/hour; 2 concurrent")
    with pytest.raises(ArgumentError, match=r'"2 concurrent" counts what is in flight.*acquire\(key, lease=60\)'):
        limiter.acquire("key", timeout=1)
    other = AsyncLimiter("2 concurrent", store=make_store(core))
    with pytest.raises(ArgumentError, match="acquire"):
        asyncio.run(_acquired(other.acquire("key")))
    bad: dict[str, Any]
    for bad in ({"lease": 0}, {"lease_us": True}, {"id": ""}, {"remember": -1}, {"lease": 1, "timeout": -1}):
        with pytest.raises(ArgumentError):
            limiter.acquire("key", **bad)
    assert [reading.remaining for reading in limiter.peek("key", 0).limits] == [9, 2]


async def _acquired(acquiring: Awaitable[Any]) -> Any:
    return await acquiring


def test_a_caller_waits_until_a_lease_is_over_to_the_microsecond(core: str) -> None:
    clock = ManualClock()
    limiter = limiter_on(core, "2 concurrent", clock=clock)
    start_us = clock.now_us()
    limiter.reserve("key", lease_us=5_000_007)
    limiter.reserve("key", lease_us=9_000_000)
    assert limiter.acquire("key", timeout=6, lease=60)
    assert clock.now_us() - start_us == 5_000_007
    assert limiter.acquire("key", lease=60)
    assert clock.now_us() - start_us == 9_000_000


def test_a_caller_waits_for_rates_and_places_together(core: str) -> None:
    clock = ManualClock()
    limiter = limiter_on(core, "1 concurrent; 1/second bucket", clock=clock)
    start_us = clock.now_us()
    limiter.reserve("key", lease=3)
    assert limiter.acquire("key", lease=0.25)
    assert clock.now_us() - start_us == 3_000_000
    assert limiter.acquire("key", lease=9)
    assert clock.now_us() - start_us == 4_000_000  # the place was free sooner, the rate was not


def test_a_caller_is_refused_at_once_only_where_its_turn_can_never_come_in_time(core: str) -> None:
    clock = ManualClock()
    limiter = limiter_on(core, "2 concurrent; 4/hour", clock=clock)
    start_us = clock.now_us()
    never = limiter.acquire("key", 3, lease=60)
    assert (bool(never), never.decision.retry_after) == (False, None)
    limiter.reserve("key", 2, lease=60), limiter.cancel(limiter.id_of("key", "none"))
    assert not limiter.acquire("key", 2, timeout=0, lease=60)
    for _ in range(1):
        clock.advance(60_000_000)
        limiter.reserve("key", 2, lease=60)
    late = limiter.acquire("key", 2, timeout=3_000, lease=60)  # the rate admits it in an hour
    assert not late and clock.now_us() - start_us == 60_000_000
    with pytest.raises(RateLimited), late:
        pass
    assert not limiter._lines._lines


def test_a_caller_waits_for_places_until_its_timeout_and_keeps_nothing(core: str) -> None:
    clock = ManualClock()
    limiter = limiter_on(core, "1 concurrent", clock=clock)
    limiter.reserve("key", lease=60)
    before_us = clock.now_us()
    refused = limiter.acquire("key", timeout=5, lease=1)
    assert not refused and clock.now_us() - before_us == 5_000_000
    assert refused.decision.retry_after == 55
    assert not limiter._lines._lines and not limiter._lines._freed_keys


@pytest.mark.parametrize("how", ["commit", "cancel", "by id", "block", "raised", "reset"])
def test_a_caller_is_woken_as_soon_as_a_place_is_freed_and_does_not_query_the_store_before(core: str, how: str) -> None:
    limiter = limiter_on(core, "1 concurrent; 90000/hour")
    held = limiter.reserve("key", lease=LONG_S)
    bound = watched(limiter)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as results:
        until(lambda: bound.calls == ["reserve", "read", "reserve"])  # refused; joined; tried again as the first
        time.sleep(0.02)
        assert bound.calls == ["reserve", "read", "reserve"]
        _free(limiter, held, how)
    assert results[0] and bound.calls == ["reserve", "read", "reserve", "reserve"]
    assert free(limiter) == 0


def _free(limiter: Limiter, held: Reservation, how: str) -> None:
    if how == "reset":
        limiter.reset("key")
    elif how == "block":
        with held:
            pass
    elif how == "raised":
        with pytest.raises(KeyError), held:
            raise KeyError
    elif how == "by id":
        limiter.commit(held.id)
    else:
        getattr(held, how)()


@pytest.mark.parametrize("guard", [GuardedStore, lambda store: store], ids=["guarded", "not guarded"])
def test_a_reset_of_several_keys_wakes_the_callers_that_wait_for_each_of_them(
    core: str, guard: Callable[[Any], Any]
) -> None:
    limiter = Limiter("1 concurrent; 9 tokens/hour", store=guard(make_store(core)))
    both = {"requests": 1, "tokens": 1}
    for number in range(3):  # a native id names a part of the table: at least one of these keys is in another part
        other = f"other {number}"
        for keys in (("key", other), (other, "key")):
            held = limiter.reserve("key", both, lease=LONG_S)
            with in_thread(lambda: limiter.acquire("key", both, timeout=LONG_S, lease=LONG_S)) as results:
                until(partial(_are_waiting, limiter, 1))
                assert limiter.bound.reset(keys)
                until(partial(bool, results))  # long before its timeout
            assert results[0] and held.commit().outcome == "unknown"
            limiter.reset("key")


def test_a_caller_that_gives_up_behind_the_first_does_not_make_the_first_query_the_store(core: str) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("1 concurrent", store=make_store(core))
        held = await limiter.reserve("key", lease=LONG_S)
        bound = watched(limiter)
        tasks = [asyncio.create_task(_acquired(limiter.acquire("key", lease=LONG_S))) for _ in range(9)]
        await until_async(lambda: waiting(limiter) == 9)
        for task in tasks[1:]:
            task.cancel()
        await until_async(lambda: waiting(limiter) == 1)
        assert bound.calls == ["reserve", "reserve"]
        await held.commit()
        assert await tasks[0]

    asyncio.run(main())


def test_a_place_freed_for_another_key_wakes_no_caller(core: str) -> None:
    limiter = limiter_on(core, "1 concurrent")
    held = limiter.reserve("key", lease=LONG_S)
    others = [limiter.reserve(f"other {number}", lease=LONG_S) for number in range(40)]
    bound = watched(limiter)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as results:
        until(lambda: len(bound.calls) == 2)
        for other in others:
            other.commit()
        if core == "native":  # an id names a part of the table: a few of 40 keys share the part of this one
            assert len(bound.calls) < 20
        assert not results
        held.commit()
    assert results[0]


@pytest.mark.parametrize("named", ["named", "not named"])
def test_two_limiters_on_one_store_share_a_line_and_free_places_for_each_other(core: str, named: str) -> None:
    store = make_store(core)
    name = "jobs" if named == "named" else ""
    first, second = (Limiter("1 concurrent", store=store, name=name) for _ in range(2))
    held = first.reserve("key", lease=LONG_S)
    order: list[str] = []

    def work(limiter: Limiter, who: str) -> None:
        with limiter.acquire("key", timeout=LONG_S, lease=LONG_S):
            order.append(who)

    with in_thread(lambda: work(second, "a")):
        until(lambda: waiting(first) == 1)
        with in_thread(lambda: work(first, "b")):
            until(lambda: waiting(second) == 2)
            second.commit(held.id)
    assert order == ["a", "b"]


def test_a_caller_whose_event_loop_was_closed_holds_up_no_other(core: str) -> None:
    store = make_store(core)
    limiter, asynchronous = Limiter("1 concurrent", store=store), AsyncLimiter("1 concurrent", store=store)
    held = limiter.reserve("key", lease=LONG_S)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(asynchronous.acquire("key", timeout=LONG_S, lease=LONG_S)) for _ in range(2)]
    loop.run_until_complete(until_async(lambda: waiting(limiter) == 2))
    loop.close()
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as results:
        until(lambda: waiting(limiter) == 1)  # the two that never run again have left
        assert held.commit().outcome == "settled"
    assert results[0] and waiting(limiter) == 0
    for task in tasks:  # as Python does when they are dropped, but without its warning that they were pending
        task.get_coro().close()
    assert limiter.peek("key", 0).remaining == 0 and waiting(limiter) == 0


def test_a_place_freed_through_other_limits_of_the_store_wakes_a_caller_too(core: str) -> None:
    store = make_store(core)
    small, large = (Limiter(limits, store=store, name="jobs") for limits in ("1 concurrent", "1 concurrent; 99/hour"))
    held = large.reserve("key", lease=LONG_S)
    with in_thread(lambda: small.acquire("key", timeout=LONG_S, lease=LONG_S)) as results:
        until(lambda: waiting(small) == 1)
        large.commit(held.id)
    assert results[0]


def test_large_and_small_costs_get_their_places_in_the_order_of_arrival(core: str) -> None:
    limiter = limiter_on(core, "4 concurrent")
    held = [limiter.reserve("key", lease=LONG_S) for _ in range(4)]
    bound = watched(limiter)
    threads = []
    for number, cost in enumerate([4, 1, 3, 1, 2]):

        def work(number: int = number, cost: int = cost) -> None:
            with limiter.acquire("key", cost, timeout=LONG_S, lease=LONG_S, id=f"{number}"):
                pass

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        until(partial(_are_waiting, limiter, number + 1))
    for each in held:
        each.commit()
    for thread in threads:
        thread.join(60)
    assert bound.admitted == ["0", "1", "2", "3", "4"]
    assert free(limiter) == 4 and waiting(limiter) == 0


def test_500_threads_some_of_which_give_up_are_admitted_in_order(core: str) -> None:
    limiter = limiter_on(core, "3 concurrent; 20000/second bucket")
    held = limiter.reserve("key", 3, lease=LONG_S)
    bound, random = watched(limiter), Random(13)
    timed_out: set[str] = set()
    threads = []
    threading.stack_size(256 * 1024)
    try:
        for number in range(500):

            def work(number: int, cost: int, timeout: float) -> None:
                reservation = limiter.acquire("key", cost, timeout=timeout, lease=LONG_S, id=f"{number}")
                if reservation:
                    reservation.commit()
                else:
                    timed_out.add(f"{number}")

            arguments = (number, random.choice([1, 1, 1, 2, 3]), random.choice([0.02, LONG_S, LONG_S]))
            threads.append(threading.Thread(target=work, args=arguments))
            threads[-1].start()
            until(partial(_are_waiting, limiter, number + 1, timed_out))
    finally:
        threading.stack_size(0)
    until(lambda: len(timed_out) > 100)
    held.commit()
    for thread in threads:
        thread.join(60)
    assert bound.admitted == [f"{number}" for number in range(500) if f"{number}" not in timed_out]
    assert free(limiter) == 3 and waiting(limiter) == 0 and not limiter._lines._lines


@pytest.mark.parametrize("limits", ["3 concurrent; 20000/second bucket", "2000/second bucket", "2000/second queue 9"])
def test_500_tasks_some_of_which_are_cancelled_are_admitted_in_order(core: str, limits: str) -> None:
    async def main() -> None:
        limiter, random = AsyncLimiter(limits, store=make_store(core)), Random(13)
        held = await limiter.reserve("key", min(limit.quota for limit in limiter.limits), lease=LONG_S)
        bound = watched(limiter)

        async def work(number: int, cost: int) -> int:
            async with await limiter.acquire("key", cost, timeout=LONG_S, lease=LONG_S, id=f"{number}"):
                await asyncio.sleep(random.random() / 2_000)
            return number

        tasks = [asyncio.create_task(work(number, random.choice([1, 1, 1, 2, 3]))) for number in range(500)]
        await asyncio.sleep(0)  # all are in line
        for task in random.sample(tasks, 150):
            task.cancel()
        for number in range(50):
            await asyncio.sleep(0)
            if number == 20:
                await held.commit()
            random.choice(tasks).cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert 150 <= sum(isinstance(each, asyncio.CancelledError) for each in done) <= 200
        assert bound.admitted == sorted(bound.admitted, key=int)  # no caller overtook an earlier one
        assert {f"{each}" for each in done if isinstance(each, int)} <= set(bound.admitted)
        assert waiting(limiter) == 0 and not limiter._lines._lines
        if "concurrent" in limits:
            assert free(limiter) == 3

    asyncio.run(main())


def test_a_thousand_callers_of_one_key_cost_a_timer_each_and_no_call_of_the_store(core: str) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("1 concurrent; 100000/hour", store=make_store(core))
        held = await limiter.reserve("key", lease=LONG_S)
        bound = watched(limiter)
        loop: Any = asyncio.get_running_loop()
        timers = len(loop._scheduled)
        acquiring = [limiter.acquire("key", timeout=LONG_S, lease=LONG_S) for _ in range(1_000)]
        tasks = [asyncio.create_task(each) for each in acquiring]
        await until_async(lambda: waiting(limiter) == 1_000)
        await asyncio.sleep(0.02)
        assert bound.calls == ["reserve", "read", "reserve"]
        assert len(loop._scheduled) - timers <= 1_002
        await held.commit()
        for task in tasks:
            await (await task).commit()
        assert bound.calls.count("reserve") <= 2 + 1_000 + 999  # the next may try once in vain: the place is taken
        assert bound.calls.count("read") <= 2

    asyncio.run(main())


def test_callers_beyond_max_waiters_are_refused_at_once_and_the_log_says_so(
    core: str, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = limiter_on(core, "1 concurrent; 99/hour", max_waiters=2)
    held = limiter.reserve("key", lease=LONG_S)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S).commit()):
        until(lambda: waiting(limiter) == 1)
        with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S).commit()):
            until(lambda: waiting(limiter) == 2)
            with caplog.at_level(logging.WARNING, "headgate"):
                refused = [limiter.acquire("key", timeout=LONG_S, lease=LONG_S) for _ in range(3)]
            assert not any(refused) and all(each.decision.retry_after for each in refused)
            assert [record.getMessage() for record in caplog.records] == [
                "2 callers wait already, which is the most that may: more are refused"
            ]
            assert limiter.acquire("idle", lease=LONG_S)  # a free place is taken by a caller that need not wait
            held.commit()
    assert free(limiter) == 1


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "9", None])
def test_a_max_waiters_that_is_not_a_positive_whole_number_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="max_waiters is a whole number of at least 1"):
        Limiter("9/hour", max_waiters=bad)
    with pytest.raises(ConfigError, match="max_waiters"):
        AsyncLimiter("9/hour", max_waiters=bad)


def test_a_repeated_request_for_an_existing_hold_does_not_wait_in_line(core: str) -> None:
    limiter = limiter_on(core, "1 concurrent")
    held = limiter.acquire("key", id="mine", lease=LONG_S)
    with in_thread(lambda: limiter.acquire("key", timeout=LONG_S, lease=LONG_S)) as results:
        until(lambda: waiting(limiter) == 1)
        again = limiter.acquire("key", id="mine", timeout=LONG_S, lease=LONG_S)
        assert again.repeated and again.id == held.id
        held.commit()
    assert results[0]


def test_decorated_functions_wait_for_places(core: str) -> None:
    limiter = limiter_on(core, "2 concurrent")
    running: list[int] = []
    most: list[int] = []

    @limiter.limit(key="key", on_refusal="wait", lease=LONG_S)
    def work(number: int) -> int:
        running.append(number)
        most.append(len(running))
        time.sleep(0.002)
        running.remove(number)
        return number

    @limiter.limit(key="key", on_refusal="wait", timeout=0)
    def hasty() -> None: ...

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(most) == 20 and max(most) == 2 and free(limiter) == 2
    with limiter.reserve("key", 2), pytest.raises(RateLimited):
        hasty()


def test_decorated_coroutines_and_generators_wait_for_places(core: str) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("1 concurrent", store=make_store(core))
        order: list[int] = []

        @limiter.limit(key="key", on_refusal="wait", lease=LONG_S)
        async def work(number: int) -> None:
            order.append(number)
            await asyncio.sleep(0)

        @limiter.limit(key="key", on_refusal="wait", lease=LONG_S)
        async def values() -> Any:
            yield 7

        await asyncio.gather(*(work(number) for number in range(9)))
        assert order == list(range(9))
        assert [value async for value in values()] == [7]
        assert free(limiter) == 1

    asyncio.run(main())


class SlowStore(MemoryStore):
    """A store that replies to an event loop a moment after it has charged."""

    def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
        return _Slow(self.bind(limits, clock=clock), self)

    def __init__(self, core: str) -> None:
        super().__init__(core=core)  # type: ignore[arg-type]
        self.charged = asyncio.Event()


class _Slow:
    def __init__(self, bound: Any, store: SlowStore) -> None:
        self._bound = bound
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name == "hold":
            raise AttributeError(name)
        return getattr(self._bound, name)

    async def reserve(self, *arguments: Any) -> Any:
        reserved = self._bound.reserve(*arguments)
        return await self._delayed(reserved, reserved.decision)

    async def decide(self, operation: Operation) -> Any:
        decision = self._bound.decide(operation)
        return await self._delayed(decision, decision and operation.commit)

    async def _delayed(self, reply: Any, charged: object) -> Any:
        if charged:
            self._store.charged.set()
            await asyncio.sleep(0.005)
        return reply


@pytest.mark.parametrize("twice", [False, True], ids=["cancelled", "cancelled twice"])
@pytest.mark.parametrize("named", [None, "mine"], ids=["no name", "a name"])
@pytest.mark.parametrize("limits", ["2 concurrent; 9/hour bucket", "9/hour bucket"])
def test_a_task_cancelled_while_it_is_admitted_gives_its_charge_back(
    core: str, limits: str, named: str | None, twice: bool
) -> None:
    async def main() -> None:
        store = SlowStore(core)
        limiter = AsyncLimiter(limits, store=store)
        holds = "concurrent" in limits or named is not None
        options: dict[str, Any] = {"lease": LONG_S, "id": named} if holds else {}
        acquiring: Any = limiter.acquire("key", **options)
        task = asyncio.create_task(acquiring)
        await store.charged.wait()
        assert limiter.bound.peek("key", 0).limits[-1].remaining == 8
        task.cancel()
        if twice:
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_async(lambda: limiter.bound.peek("key", 0).limits[-1].remaining == 9)
        assert limiter.bound.peek("key", 0).limits[0].remaining in (2, 9)

    asyncio.run(main())


def test_a_task_cancelled_while_it_repeats_a_hold_leaves_the_hold_unchanged(core: str) -> None:
    async def main() -> None:
        store = SlowStore(core)
        limiter = AsyncLimiter("2 concurrent", store=store)
        held = await limiter.acquire("key", id="mine", lease=LONG_S)
        store.charged.clear()
        task = asyncio.create_task(limiter.acquire("key", id="mine", lease=LONG_S))
        await store.charged.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert free(limiter) == 1 and (await held.commit()).outcome == "settled"

    asyncio.run(main())


def test_a_task_cancelled_while_a_queue_delays_it_gives_back_its_place_in_the_queue(core: str) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("1/minute queue 5; 9/hour", store=make_store(core))
        await limiter.hit("key")
        for acquire in (lambda: limiter.acquire("key"), lambda: limiter.acquire("key", lease=LONG_S)):
            task: asyncio.Task[Decision | AsyncReservation] = asyncio.create_task(_acquired(acquire()))
            await until_async(lambda: limiter.bound.peek("key", 0).limits[1].remaining == 7)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [reading.remaining for reading in limiter.bound.peek("key", 0).limits] == [5, 8]

    asyncio.run(main())


class InterruptedClock(ManualClock):
    """A clock on which a thread that waits is interrupted."""

    def let_pass(self, duration_us: int) -> float:
        raise KeyboardInterrupt


class InterruptedLimits(Watched):
    """Limits whose caller is interrupted just after they were charged."""

    def reserve(self, operation: Operation, hold: Hold) -> Any:
        super().reserve(operation, hold)
        raise KeyboardInterrupt


def test_a_thread_interrupted_while_it_is_admitted_gives_its_charge_back(core: str) -> None:
    limiter = limiter_on(core, "2 concurrent; 9/hour bucket")
    limiter._bound = InterruptedLimits(limiter._bound)
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("key", lease=LONG_S)
    assert [reading.remaining for reading in limiter.peek("key", 0).limits] == [2, 9]
    with pytest.raises(KeyboardInterrupt):  # with an id from the caller, who may have used it before
        limiter.acquire("key", lease=LONG_S, id="mine")
    assert [reading.remaining for reading in limiter.peek("key", 0).limits] == [1, 8]


@pytest.mark.parametrize("options", [{}, {"lease": 60}])
def test_a_thread_interrupted_while_a_queue_delays_it_gives_back_its_place(core: str, options: Any) -> None:
    limiter = limiter_on(core, "1/minute queue 5", clock=InterruptedClock())
    limiter.hit("key")
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("key", **options)
    assert free(limiter) == 5


def test_a_place_stays_held_while_a_queue_delays_its_caller(core: str) -> None:
    clock = ManualClock()
    limiter = limiter_on(core, "3 concurrent; 1/minute queue 9", clock=clock)
    limiter.reserve("key", lease=1)
    held = limiter.acquire("key", lease=3)  # a minute later
    assert held.decision.delay == 60
    assert held.commit().outcome == "settled"
    again = limiter.acquire("key", lease=3)
    assert free(limiter) == 2 and limiter.extend(again.id).outcome == "extended"


def test_a_plan_is_dropped_when_a_cost_that_was_given_back_makes_a_turn_come_early(core: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        limiter = AsyncLimiter("10/second bucket", store=make_store(core), clock=clock)
        held = await limiter.reserve("key", 10)
        steps = [limiter._lines.steps("key", (10,), 9_000_000) for _ in range(2)]
        bound = limiter.bound
        for each in steps:  # the first sleeps a second, the second stands behind it
            reply: Any = None
            while True:
                step = each.send(reply)
                if isinstance(step, Operation):
                    reply = bound.decide(step)
                elif type(step).__name__ == "Read":
                    reply = bound.read(step.keys)
                else:
                    break
        clock.advance(-1_000_000)
        await held.cancel()
        turn = bound.decide(steps[0].send(None))  # its turn comes now
        with pytest.raises(StopIteration):
            steps[0].send(turn)
        assert limiter._lines._lines["key"].plan is None
        for each in steps:
            each.close()

    asyncio.run(main())
