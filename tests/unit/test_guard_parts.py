"""The parts of a guard, each by itself: what is told in the store's place, what is remembered, what the log is told."""

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
from headgate.stores.guard.breaker import CLOSED, FAILURES, HALF_OPEN, MOST_COMPLAINTS, OPEN, RAMP_S, Breaker
from headgate.stores.guard.choice import rescue_of, rescued
from headgate.stores.guard.fallback import COME_BACK_US, Fallback, read_share
from headgate.stores.guard.rescued import RescuedLimits
from headgate.testing import ManualClock

LATE = StoreTimeout("no answer in time")


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
                    raise LATE
                return bound.decide(operation)

            give_back = bound.give_back

        return Limits()


def named(choice: str = "", text: str = "5/hour", name: str = "one", **how: Any) -> tuple[NamedLimit, ...]:
    return name_limits(parse_limits(text), scope=name, name=name, on_store_error=choice, **how)


def told(decision: Any) -> list[tuple[Any, ...]]:
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


def test_what_is_refused_for_want_of_a_store_and_what_passes_uncounted_are_told_whole(clock: ManualClock) -> None:
    both = fallback(clock, *named("closed"), *named("open", name="two", group=1))
    refused = decide(both, ("a", "b"), (1, 1))
    assert (refused.allowed, refused.degraded, refused.retry_after_us) == (False, "closed", COME_BACK_US)
    assert told(refused) == [(False, 0, 0, COME_BACK_US, COME_BACK_US, 0), (True, 5, 0, 0, 0, 0)]
    looked = decide(both, ("a", "b"), (0, 0))
    assert (looked.allowed, looked.degraded) == (True, "closed")
    assert told(looked) == [(True, 5, 0, 0, 0, 0)] * 2
    passed = decide(fallback(clock, *named("open")), ("a",), (1,))
    assert (passed.allowed, passed.degraded) == (True, "open")


def test_what_is_decided_here_is_told_as_a_store_would_tell_it(clock: ManualClock) -> None:
    here = fallback(clock, *named("local", "1/second queue 2"))
    store = MemoryStore().bind(named("", "1/second queue 2"), clock=clock)
    at_us = clock.now_us() + 700_000
    for how in ({}, {}, {"max_delay_us": 1_000_000}, {"now_us": at_us}, {"now_us": at_us, "commit": False}):
        own, other = decide(here, ("a",), (1,), **how), decide(store, ("a",), (1,), **how)
        assert told(own) == told(other) and own.allowed == other.allowed
        assert own.degraded == "local"


@pytest.mark.parametrize(
    ("choice", "degraded", "passes"), [("local", "local", 5), ("open", "open", 9), ("closed", "closed", 0)]
)
def test_where_a_part_of_a_store_fails_what_was_written_for_the_limit_decides(
    choice: str, degraded: str, passes: int, clock: ManualClock
) -> None:
    store = InParts()
    limits = named("" if choice == "local" else choice)
    asked = rescued(store, store.bind(limits, clock=clock), limits, clock)
    assert isinstance(asked, RescuedLimits)
    answers = [asked.hit("key") for _ in range(9)]
    assert [answer.allowed for answer in answers].count(True) == passes
    assert {answer.degraded for answer in answers} == {degraded}
    assert store.own_breaker.state == OPEN
    store.own_breaker.close()
    if choice == "local":
        clock.advance(3_600_000_000)
        assert asked.hit("key"), "it decides by the clock of the limits"


def test_what_is_decided_here_is_kept_where_the_caller_says(clock: ManualClock) -> None:
    store = InParts()
    own, limits = rescue_of(store), named()
    rescued(store, store.bind(limits, clock=clock), limits, clock, rescue=own).hit("key")
    assert own.local.stats().keys == 1
    assert rescued(MemoryStore(), "bound", limits, clock) == "bound"


def test_a_guard_binds_for_an_event_loop_as_it_does_for_threads(clock: ManualClock) -> None:
    class Remote(MemoryStore):
        blocking = True
        asked: Any = None

        def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
            self.asked = clock

            class Limits:
                async def decide(self, operation: Any, /) -> Any:
                    raise LATE

            return Limits()

        def check_room(self, limits: Any, *, clock: Any = None) -> None:
            self.asked = (limits, clock)

    store = Remote()
    guard = GuardedStore(store)
    guard.check_room(named(), clock=clock)
    assert store.asked == (named(), clock)

    async def run() -> None:
        bound: Any = guard.bind_async(named(), clock=clock)
        assert store.asked is clock
        assert bound._memory._now_us == clock.now_us
        assert [(await bound.hit("key")).allowed for _ in range(6)] == [True] * 5 + [False]
        clock.advance(3_600_000_000)
        assert (await bound.hit("key")).allowed, "what is decided here goes by the same clock"
        guard.close()

    asyncio.run(run())
    here: Any = GuardedStore(MemoryStore()).bind_async(named(), clock=clock)
    assert here.hit("key", 5) and not here.hit("key")
    clock.advance(3_600_000_000)
    assert here.hit("key")


def test_a_ramp_ends_at_its_last_moment(clock: ManualClock) -> None:
    breaker = Breaker("a store", clock=clock, failures=1)
    breaker.failed(LATE)
    breaker._is_back()
    clock.advance(int(RAMP_S * 1_000_000) - 1)
    breaker.lets_through()
    assert breaker.state == HALF_OPEN
    clock.advance(1)
    assert breaker.lets_through() and breaker.state == CLOSED


def test_the_faults_of_so_many_keys_are_told_each_once(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker("a store", clock=ManualClock())
    with caplog.at_level(logging.WARNING, "headgate"):
        for number in range(MOST_COMPLAINTS + 5):
            for _ in range(2):
                breaker.failed(StoreKeyError(f"the key {number} is no hash"))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"a request is decided without the store: the key {number} is no hash" for number in range(MOST_COMPLAINTS)
    ]


def test_listeners_are_told_why_it_opened() -> None:
    breaker = Breaker("a store", clock=ManualClock())
    heard: list[Exception | None] = []
    breaker.listeners.append(heard.append)
    for _ in range(FAILURES):
        breaker.failed(LATE)
    assert heard == [LATE]


def test_a_closed_breaker_has_forgotten_what_failed_and_ends_its_task() -> None:
    class Away:
        async def ask(self) -> None:
            raise StoreTimeout("no answer in time")

    async def run() -> None:
        breaker, store = Breaker("a store", clock=ManualClock(), first_probe_s=60), Away()
        breaker.probe_in_task(store.ask)
        assert breaker._prober is None, "it is closed"
        for _ in range(FAILURES):
            breaker.failed(LATE)
        breaker.probe_in_task(store.ask)
        prober = breaker._prober
        assert isinstance(prober, asyncio.Task)
        await asyncio.sleep(0)
        breaker.probe_in_task(store.ask)
        assert breaker._prober is prober, "one is enough"
        breaker.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(prober, 20)
        assert (breaker.state, breaker.failures) == (CLOSED, 0)
        for _ in range(FAILURES - 1):
            breaker.failed(LATE)
        assert breaker.state == CLOSED
        breaker.failed(LATE)
        breaker.probe_in_task(store.ask)
        assert breaker._prober is not prober, "the one before has ended"
        breaker.close()

    asyncio.run(run())


def test_a_task_whose_loop_is_closed_does_not_probe_any_more() -> None:
    class Away:
        async def ask(self) -> None:
            raise StoreTimeout("no answer in time")

    breaker, store = Breaker("a store", clock=ManualClock(), failures=1, first_probe_s=60), Away()
    breaker.failed(LATE)

    async def probe() -> Any:
        breaker.probe_in_task(store.ask)
        return breaker._prober

    loops = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    probers = []
    for loop in loops:
        probers.append(loop.run_until_complete(probe()))
        loop.close()
    assert probers[0] is not probers[1]
    breaker.close()  # a loop that is closed takes no calls


def test_a_probing_thread_does_not_keep_a_process_from_ending() -> None:
    class Away:
        def ask(self) -> None:
            raise StoreTimeout("no answer in time")

    breaker, store = Breaker("a store", clock=ManualClock(), failures=1, first_probe_s=0.001), Away()
    breaker.failed(LATE)
    breaker.probe_in_thread(store.ask)
    prober = breaker._prober
    assert isinstance(prober, threading.Thread)
    assert prober.daemon and prober.name == "headgate-probe"
    breaker.close()


@pytest.fixture(name="guarded")
def _guarded(clock: ManualClock) -> tuple[GuardedStore, Any]:
    guard = GuardedStore(MemoryStore())
    return guard, guard.bind(named(text="5/hour fixed"), clock=clock)


def test_a_refusal_is_told_again_from_its_moment_on_up_to_its_end_and_not_at_it(
    guarded: tuple[GuardedStore, Any], clock: ManualClock
) -> None:
    guard, bound = guarded
    bound.hit("key", 5)
    first = told(bound.hit("key"))
    [known] = guard.refusals.known.values()
    assert told(bound.hit("key")) == first
    assert list(guard.refusals.known.values()) == [known], "at the same moment it is told again"
    clock.advance(refusals.REMEMBERED_US)
    bound.hit("key")
    [asked_again] = guard.refusals.known.values()
    assert asked_again.since_us == clock.now_us()


def test_a_refusal_is_told_again_only_to_one_who_asks_alike(
    guarded: tuple[GuardedStore, Any], clock: ManualClock
) -> None:
    guard, bound = guarded
    bound.hit("key", 5)
    assert not bound.peek("key")
    for how in ({"now_us": clock.now_us()}, {"max_delay_us": 5}, {"commit": False}):
        assert not decide(bound, ("key",), (1,), **how)
    assert not guard.refusals.known
    assert not bound.hit("key") and guard.refusals.known
    assert decide(bound, ("key",), (1,), now_us=clock.now_us() + 3_600_000_000)
    plain = GuardedStore(MemoryStore(), remember=False)
    forgets: Any = plain.bind(named(), clock=clock)
    assert forgets.hit("key", 5) and not forgets.hit("key") and not plain.refusals.known


def test_what_was_told_is_the_same_refusal_later(clock: ManualClock) -> None:
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


def test_a_full_memory_begins_anew(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MOST_REMEMBERED", 3)
    guard = GuardedStore(MemoryStore())
    bound: Any = guard.bind(named(), clock=clock)
    sizes = []
    for number in range(5):
        bound.hit(f"{number}", 5)
        bound.hit(f"{number}")
        sizes.append(len(guard.refusals.known))
    assert sizes == [1, 2, 3, 1, 2]


def test_to_forget_what_is_forgotten_already_is_no_error() -> None:
    memory = refusals.Refusals()
    memory.end((1, ("key",), (1,)))
    memory.drop([("scope", "key")], undone=True)
    memory.drop([("scope", "key")], undone=True)
    memory.drop([("scope", "key")])
    assert memory.undone == 2 and not memory.known


@pytest.mark.parametrize(
    ("share", "becomes"),
    [(1, "1"), (0.5, "1/2"), (0.0001, "1/1000"), (Fraction(1, 3), "1/3"), (Fraction(500, 1001), "500/1001")],
)
def test_a_share_is_a_fraction_of_at_most_a_thousandth_in_detail(share: Any, becomes: str) -> None:
    read = read_share(share)
    assert read.denominator <= 1000 and read >= Fraction(1, 1000)
    assert abs(read - Fraction(becomes)) < Fraction(1, 1000)
    if Fraction(becomes).denominator <= 1000:
        assert read == Fraction(becomes)


def test_this_process_decides_by_its_share_and_of_no_limits_nothing(clock: ManualClock) -> None:
    half = Fallback(named(text="10/hour fixed"), "local", Fraction(1, 2), MemoryStore(), clock)
    assert [decide(half, ("a",), (1,)).allowed for _ in range(6)] == [True] * 5 + [False]
    none = Fallback((), "local", Fraction(1), MemoryStore(), clock)
    assert none.groups == 0 and decide(none, (), ()).allowed


def test_a_guard_is_what_the_store_behind_it_is(caplog: pytest.LogCaptureFixture, clock: ManualClock) -> None:
    class Remote(MemoryStore):
        blocking = True
        is_cluster = True
        in_process = False
        shown = "redis://h"

        def bind(self, limits: Any, *, clock: Any = None) -> Any:
            class Limits:
                def decide(self, operation: Any, /) -> Any:
                    raise LATE

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
        assert bound.hit("key"), "what is decided here goes by the clock of the limits"
    messages = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert [message.rpartition(": ")[2] for message in messages] == ["no answer in time"]
    guard.close()


def test_limits_alike_on_one_store_remember_each_its_own_refusals(clock: ManualClock) -> None:
    guard = GuardedStore(MemoryStore())
    one: Any = guard.bind(named(text="5/hour fixed"), clock=clock)
    two: Any = guard.bind(named(text="5/hour fixed", name="two"), clock=clock)
    assert one.hit("key", 5) and not one.hit("key")
    assert two.hit("key", 5), "another limit refused"
    assert guard.refusals.known, "and what that one has charged does not matter here"
    assert not one.hit("key") and not two.hit("key")
    assert len(guard.refusals.known) == 2


def test_who_only_looks_changes_nothing_of_what_is_remembered(guarded: tuple[GuardedStore, Any]) -> None:
    guard, bound = guarded
    assert bound.hit("key", 5) and not bound.hit("key")
    assert bound.peek("key", 0) and guard.refusals.known


def test_a_charge_that_was_perhaps_made_ends_what_is_remembered(clock: ManualClock) -> None:
    class Fails(MemoryStore):
        fails = False

        def bind(self, limits: Any, *, clock: Any = None) -> Any:
            store, bound = self, super().bind(limits, clock=clock)

            class Limits:
                def decide(self, operation: Any, /) -> Any:
                    if store.fails:
                        raise LATE
                    return bound.decide(operation)

            return Limits()

    store = Fails()
    guard = GuardedStore(store)
    bound: Any = guard.bind(named(text="5/hour fixed"), clock=clock)
    assert bound.hit("key", 5) and not bound.hit("key")
    store.fails = True
    bound.hit("key", 2)
    assert not guard.refusals.known
    guard.close()
