"""The parts of a guard, each on its own: fallback decisions, remembered refusals, and log messages."""

from __future__ import annotations

import asyncio
import logging
import threading
from fractions import Fraction
from typing import Any

import pytest

from bound_calls import decide
from headgate import GuardedStore, MemoryStore, StoreTimeout
from headgate.decision import NamedLimit, name_limits
from headgate.errors import StoreKeyError
from headgate.limit_text import parse_limits
from headgate.stores.guard import refusals
from headgate.stores.guard.breaker import CLOSED, FAILURES, HALF_OPEN, MAX_LOGGED_ERRORS, OPEN, RAMP_S, Breaker
from headgate.stores.guard.choice import fallback_state_of, with_fallback
from headgate.stores.guard.fallback import RETRY_AFTER_US, Fallback, read_share
from headgate.stores.guard.fallback_limits import FallbackLimits
from headgate.testing import ManualClock

TIMEOUT = StoreTimeout("no answer in time")


class InParts(MemoryStore):
    """A store of which one part may fail while all others answer."""

    failure = "in parts"

    def __init__(self) -> None:
        super().__init__()
        self.own_breaker = Breaker("a zone", failures=1, first_probe_s=60)
        self.up = False

    @property
    def breaker(self) -> Breaker:
        return self.own_breaker

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        store, bound = self, super().bind(limits, clock=clock)

        class Limits:
            def decide(self, operation: Any, /) -> Any:
                if not store.up:
                    raise TIMEOUT
                return bound.decide(operation)

            give_back = bound.give_back

        return Limits()


def named(choice: str = "", text: str = "5/hour", name: str = "one", **options: Any) -> tuple[NamedLimit, ...]:
    return name_limits(parse_limits(text), scope=name, name=name, on_store_error=choice, **options)


def readings_of(decision: Any) -> list[tuple[Any, ...]]:
    return [
        (
            reading.allowed,
            reading.remaining,
            reading.reset_after_us,
            reading.retry_after_us,
            reading.next_after_us,
            reading.delay_us,
        )
        for reading in decision.limits
    ]


@pytest.fixture(name="clock")
def _clock() -> ManualClock:
    return ManualClock()


def fallback(clock: ManualClock, *limits: NamedLimit) -> Fallback:
    return Fallback(limits, "local", Fraction(1), MemoryStore(), clock)


def test_refusals_without_a_store_and_uncounted_requests_have_all_numbers(clock: ManualClock) -> None:
    both = fallback(clock, *named("closed"), *named("open", name="two", group=1))
    refused = decide(both, ("a", "b"), (1, 1))
    assert (refused.allowed, refused.degraded, refused.retry_after_us) == (False, "closed", RETRY_AFTER_US)
    assert readings_of(refused) == [(False, 0, 0, RETRY_AFTER_US, RETRY_AFTER_US, 0), (True, 5, 0, 0, 0, 0)]
    free = decide(both, ("a", "b"), (0, 0))
    assert (free.allowed, free.degraded) == (True, "closed")
    assert readings_of(free) == [(True, 5, 0, 0, 0, 0)] * 2
    passed = decide(fallback(clock, *named("open")), ("a",), (1,))
    assert (passed.allowed, passed.degraded) == (True, "open")


def test_a_local_decision_has_the_numbers_of_a_store(clock: ManualClock) -> None:
    local = fallback(clock, *named("local", "1/second queue 2"))
    store = MemoryStore().bind(named("", "1/second queue 2"), clock=clock)
    at_us = clock.now_us() + 700_000
    for options in ({}, {}, {"max_delay_us": 1_000_000}, {"now_us": at_us}, {"now_us": at_us, "commit": False}):
        decision, expected = decide(local, ("a",), (1,), **options), decide(store, ("a",), (1,), **options)
        assert readings_of(decision) == readings_of(expected) and decision.allowed == expected.allowed
        assert decision.degraded == "local"


@pytest.mark.parametrize(
    ("choice", "degraded", "passes"), [("local", "local", 5), ("open", "open", 9), ("closed", "closed", 0)]
)
def test_the_configured_choice_decides_where_a_part_of_a_store_fails(
    choice: str, degraded: str, passes: int, clock: ManualClock
) -> None:
    store = InParts()
    limits = named("" if choice == "local" else choice)
    bound = with_fallback(store, store.bind(limits, clock=clock), limits, clock)
    assert isinstance(bound, FallbackLimits)
    decisions = [bound.hit("key") for _ in range(9)]
    assert [decision.allowed for decision in decisions].count(True) == passes
    assert {decision.degraded for decision in decisions} == {degraded}
    assert store.own_breaker.state == OPEN
    store.own_breaker.close()
    if choice == "local":
        clock.advance(3_600_000_000)
        assert bound.hit("key"), "it decides by the clock of the limits"


def test_local_states_are_in_the_fallback_state_of_the_caller(clock: ManualClock) -> None:
    store = InParts()
    state, limits = fallback_state_of(store), named()
    with_fallback(store, store.bind(limits, clock=clock), limits, clock, state=state).hit("key")
    assert state.local.stats().keys == 1
    assert with_fallback(MemoryStore(), "bound", limits, clock) == "bound"


def test_a_guard_binds_for_an_event_loop_as_it_does_for_threads(clock: ManualClock) -> None:
    class Remote(MemoryStore):
        blocking = True
        arguments: Any = None

        def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
            self.arguments = clock

            class Limits:
                async def decide(self, operation: Any, /) -> Any:
                    raise TIMEOUT

            return Limits()

        def check_room(self, limits: Any, *, clock: Any = None) -> None:
            self.arguments = (limits, clock)

    store = Remote()
    guard = GuardedStore(store)
    guard.check_room(named(), clock=clock)
    assert store.arguments == (named(), clock)

    async def run() -> None:
        bound: Any = guard.bind_async(named(), clock=clock)
        assert store.arguments is clock
        assert bound._memory._now_us == clock.now_us
        assert [(await bound.hit("key")).allowed for _ in range(6)] == [True] * 5 + [False]
        clock.advance(3_600_000_000)
        assert (await bound.hit("key")).allowed, "local decisions have the same clock"
        guard.close()

    asyncio.run(run())
    unguarded: Any = GuardedStore(MemoryStore()).bind_async(named(), clock=clock)
    assert unguarded.hit("key", 5) and not unguarded.hit("key")
    clock.advance(3_600_000_000)
    assert unguarded.hit("key")


def test_a_ramp_ends_at_its_last_moment(clock: ManualClock) -> None:
    breaker = Breaker("a store", clock=clock, failures=1)
    breaker.failed(TIMEOUT)
    breaker._enter_half_open()
    clock.advance(int(RAMP_S * 1_000_000) - 1)
    breaker.lets_through()
    assert breaker.state == HALF_OPEN
    clock.advance(1)
    assert breaker.lets_through() and breaker.state == CLOSED


def test_errors_of_a_bounded_number_of_keys_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker("a store", clock=ManualClock())
    with caplog.at_level(logging.WARNING, "headgate"):
        for number in range(MAX_LOGGED_ERRORS + 5):
            for _ in range(2):
                breaker.failed(StoreKeyError(f"the key {number} is no hash"))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"a request is decided without the store: the key {number} is no hash" for number in range(MAX_LOGGED_ERRORS)
    ]


def test_listeners_get_the_error_that_opened_the_breaker() -> None:
    breaker = Breaker("a store", clock=ManualClock())
    errors: list[Exception | None] = []
    breaker.listeners.append(errors.append)
    for _ in range(FAILURES):
        breaker.failed(TIMEOUT)
    assert errors == [TIMEOUT]


def test_a_closed_breaker_has_forgotten_the_failures_and_ends_its_task() -> None:
    class Away:
        async def probe_store(self) -> None:
            raise StoreTimeout("no answer in time")

    async def run() -> None:
        breaker, store = Breaker("a store", clock=ManualClock(), first_probe_s=60), Away()
        breaker.probe_in_task(store.probe_store)
        assert breaker._prober is None, "it is closed"
        for _ in range(FAILURES):
            breaker.failed(TIMEOUT)
        breaker.probe_in_task(store.probe_store)
        prober = breaker._prober
        assert isinstance(prober, asyncio.Task)
        await asyncio.sleep(0)
        breaker.probe_in_task(store.probe_store)
        assert breaker._prober is prober, "one task is enough"
        breaker.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(prober, 20)
        assert (breaker.state, breaker.failures) == (CLOSED, 0)
        for _ in range(FAILURES - 1):
            breaker.failed(TIMEOUT)
        assert breaker.state == CLOSED
        breaker.failed(TIMEOUT)
        breaker.probe_in_task(store.probe_store)
        assert breaker._prober is not prober, "the former task has ended"
        breaker.close()

    asyncio.run(run())


def test_a_task_whose_loop_is_closed_does_not_probe_any_more() -> None:
    class Away:
        async def probe_store(self) -> None:
            raise StoreTimeout("no answer in time")

    breaker, store = Breaker("a store", clock=ManualClock(), failures=1, first_probe_s=60), Away()
    breaker.failed(TIMEOUT)

    async def probe() -> Any:
        breaker.probe_in_task(store.probe_store)
        return breaker._prober

    loops = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    probers = []
    for loop in loops:
        probers.append(loop.run_until_complete(probe()))
        loop.close()
    assert probers[0] is not probers[1]
    breaker.close()  # a closed loop accepts no calls


def test_a_probing_thread_does_not_keep_a_process_from_ending() -> None:
    class Away:
        def probe_store(self) -> None:
            raise StoreTimeout("no answer in time")

    breaker, store = Breaker("a store", clock=ManualClock(), failures=1, first_probe_s=0.001), Away()
    breaker.failed(TIMEOUT)
    breaker.probe_in_thread(store.probe_store)
    prober = breaker._prober
    assert isinstance(prober, threading.Thread)
    assert prober.daemon and prober.name == "headgate-probe"
    breaker.close()


@pytest.fixture(name="guarded")
def _guarded(clock: ManualClock) -> tuple[GuardedStore, Any]:
    guard = GuardedStore(MemoryStore())
    return guard, guard.bind(named(text="5/hour fixed"), clock=clock)


def test_a_refusal_is_repeated_from_its_moment_until_before_its_end(
    guarded: tuple[GuardedStore, Any], clock: ManualClock
) -> None:
    guard, bound = guarded
    bound.hit("key", 5)
    first = readings_of(bound.hit("key"))
    [refusal] = guard.refusals.known.values()
    assert readings_of(bound.hit("key")) == first
    assert list(guard.refusals.known.values()) == [refusal], "it is repeated at the same moment"
    clock.advance(refusals.REMEMBERED_US)
    bound.hit("key")
    [later_refusal] = guard.refusals.known.values()
    assert later_refusal.since_us == clock.now_us()


def test_a_refusal_is_repeated_only_for_the_same_request(guarded: tuple[GuardedStore, Any], clock: ManualClock) -> None:
    guard, bound = guarded
    bound.hit("key", 5)
    assert not bound.peek("key")
    for options in ({"now_us": clock.now_us()}, {"max_delay_us": 5}, {"commit": False}):
        assert not decide(bound, ("key",), (1,), **options)
    assert not guard.refusals.known
    assert not bound.hit("key") and guard.refusals.known
    assert decide(bound, ("key",), (1,), now_us=clock.now_us() + 3_600_000_000)
    forgetful = GuardedStore(MemoryStore(), remember=False)
    bound_without_memory: Any = forgetful.bind(named(), clock=clock)
    assert bound_without_memory.hit("key", 5) and not bound_without_memory.hit("key") and not forgetful.refusals.known


def test_a_repeated_refusal_has_the_same_numbers_with_later_times(clock: ManualClock) -> None:
    guard = GuardedStore(MemoryStore())
    bound: Any = guard.bind([*named(text="9/hour fixed"), *named(text="5/minute fixed", name="two")], clock=clock)
    bound.hit("key", 5)
    first = bound.hit("key")
    clock.advance(250_000)
    again = bound.hit("key")
    assert guard.refusals.known
    assert again.binding.name == first.binding.name == "two"
    assert again.retry_after_us == first.retry_after_us - 250_000
    assert again.degraded == first.degraded


def test_a_full_memory_of_refusals_is_cleared(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MOST_REMEMBERED", 3)
    guard = GuardedStore(MemoryStore())
    bound: Any = guard.bind(named(), clock=clock)
    sizes = []
    for number in range(5):
        bound.hit(f"{number}", 5)
        bound.hit(f"{number}")
        sizes.append(len(guard.refusals.known))
    assert sizes == [1, 2, 3, 1, 2]


def test_forgetting_a_forgotten_refusal_is_no_error() -> None:
    memory = refusals.Refusals()
    memory.end((1, ("key",), (1,)))
    memory.drop([("scope", "key")], undone=True)
    memory.drop([("scope", "key")], undone=True)
    memory.drop([("scope", "key")])
    assert memory.undone == 2 and not memory.known


@pytest.mark.parametrize(
    ("share", "expected"),
    [(1, "1"), (0.5, "1/2"), (0.0001, "1/1000"), (Fraction(1, 3), "1/3"), (Fraction(500, 1001), "500/1001")],
)
def test_a_share_is_a_fraction_of_at_most_a_thousandth_in_detail(share: Any, expected: str) -> None:
    result = read_share(share)
    assert result.denominator <= 1000 and result >= Fraction(1, 1000)
    assert abs(result - Fraction(expected)) < Fraction(1, 1000)
    if Fraction(expected).denominator <= 1000:
        assert result == Fraction(expected)


def test_this_process_decides_by_its_share_and_admits_all_without_limits(clock: ManualClock) -> None:
    half = Fallback(named(text="10/hour fixed"), "local", Fraction(1, 2), MemoryStore(), clock)
    assert [decide(half, ("a",), (1,)).allowed for _ in range(6)] == [True] * 5 + [False]
    none = Fallback((), "local", Fraction(1), MemoryStore(), clock)
    assert none.groups == 0 and decide(none, (), ()).allowed


def test_a_guard_has_the_attributes_of_its_store(caplog: pytest.LogCaptureFixture, clock: ManualClock) -> None:
    class Remote(MemoryStore):
        blocking = True
        is_cluster = True
        in_process = False
        shown = "redis://h"

        def bind(self, limits: Any, *, clock: Any = None) -> Any:
            class Limits:
                def decide(self, operation: Any, /) -> Any:
                    raise TIMEOUT

            return Limits()

        def __repr__(self) -> str:
            return "Remote()"

    guard = GuardedStore(Remote())
    assert (guard.blocking, guard.is_cluster, guard.in_process, guard.shown) == (True, True, False, "redis://h")
    assert GuardedStore(MemoryStore()).in_process
    assert guard.breaker.shown == "Remote()"
    bound: Any = guard.bind(named(text="5/hour fixed"), clock=clock)
    with caplog.at_level(logging.WARNING, "headgate"):
        assert [bound.hit("key").allowed for _ in range(6)] == [True] * 5 + [False]
        clock.advance(3_600_000_000)
        assert bound.hit("key"), "local decisions have the clock of the limits"
    messages = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert [message.rpartition(": ")[2] for message in messages] == ["no answer in time"]
    guard.close()


def test_alike_limits_on_one_store_remember_separate_refusals(clock: ManualClock) -> None:
    guard = GuardedStore(MemoryStore())
    one: Any = guard.bind(named(text="5/hour fixed"), clock=clock)
    two: Any = guard.bind(named(text="5/hour fixed", name="two"), clock=clock)
    assert one.hit("key", 5) and not one.hit("key")
    assert two.hit("key", 5), "another limit refused"
    assert guard.refusals.known, "and the charge of that one changes nothing here"
    assert not one.hit("key") and not two.hit("key")
    assert len(guard.refusals.known) == 2


def test_a_peek_does_not_change_remembered_refusals(guarded: tuple[GuardedStore, Any]) -> None:
    guard, bound = guarded
    assert bound.hit("key", 5) and not bound.hit("key")
    assert bound.peek("key", 0) and guard.refusals.known


def test_a_charge_that_may_have_been_made_ends_remembered_refusals(clock: ManualClock) -> None:
    class FailingStore(MemoryStore):
        fails = False

        def bind(self, limits: Any, *, clock: Any = None) -> Any:
            store, bound = self, super().bind(limits, clock=clock)

            class Limits:
                def decide(self, operation: Any, /) -> Any:
                    if store.fails:
                        raise TIMEOUT
                    return bound.decide(operation)

            return Limits()

    store = FailingStore()
    guard = GuardedStore(store)
    bound: Any = guard.bind(named(text="5/hour fixed"), clock=clock)
    assert bound.hit("key", 5) and not bound.hit("key")
    store.fails = True
    bound.hit("key", 2)
    assert not guard.refusals.known
    guard.close()
