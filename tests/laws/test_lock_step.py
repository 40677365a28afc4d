"""All stores, driven in lock-step, give the same answers to the microsecond; and all agree with brute force."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from fractions import Fraction
from math import ceil, floor
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bound_calls import decide, give_back
from headgate import ConfigError, Limiter
from headgate.decision import name_limits
from headgate.keys import Key
from headgate.limits import (
    CalendarWindow,
    FixedWindow,
    LeakyBucket,
    LeakyQueue,
    Limit,
    SlidingLog,
    SlidingWindow,
    StepwiseBucket,
    TokenBucket,
)
from headgate.testing import ManualClock
from headgate.units import LARGEST
from strategies import NUMBERS, ONE_LIMIT, ONE_OF_A_KIND, PERIODS_US, SEVERAL_LIMITS, history_of, longest_us
from subjects import CORES, KINDS, deciding, make_limiter, make_store, numbers

needs_both = pytest.mark.skipif(len(CORES) < 2, reason="only the Python core is here")
KEYS: st.SearchStrategy[Key] = st.sampled_from(["a", "b", ("a", "b"), ("a", 1), "ab", "ключ"])


def assert_same(values: Iterable[object]) -> None:
    first, *others = values
    assert others
    for other in others:
        assert other == first


@needs_both
class AllStores(RuleBasedStateMachine):
    """Limiters that differ only in their stores, under all operations."""

    @initialize(limits=SEVERAL_LIMITS)
    def start(self, limits: list[Limit]) -> None:
        self.limits = limits
        self.clock = ManualClock()
        self.stores = [make_store(kind) for kind in KINDS]  # also kinds that differ only in how they are called
        self.charges: list[tuple[Any, int, int]] = []
        self.use(limits)

    def use(self, limits: list[Limit]) -> None:
        self.all = [Limiter(limits, store=store, name="api", clock=self.clock) for store in self.stores]

    def compare(self, operation: str, *arguments: Any) -> None:
        assert_same(numbers(getattr(limiter, operation)(*arguments)) for limiter in self.all)

    @rule(key=KEYS, cost=st.one_of(st.integers(0, 3), NUMBERS))
    def hit(self, key: Any, cost: int) -> None:
        self.charges.append((key, cost, self.clock.now_us()))
        self.compare("hit", key, cost)

    @rule(data=st.data(), more_us=st.integers(0, 1000))
    def give_back(self, data: st.DataObject, more_us: int) -> None:
        if self.charges:
            key, cost, at_us = data.draw(st.sampled_from(self.charges))
            for limiter in self.all:
                give_back(limiter._bound, (key,), (cost,), self.clock.now_us() - at_us + more_us)
            self.compare("peek", key, 0)

    @rule(key=KEYS, cost=st.one_of(st.integers(0, 3), NUMBERS))
    def peek(self, key: Any, cost: int) -> None:
        self.compare("peek", key, cost)

    @rule(keys=st.lists(KEYS, max_size=5), cost=st.integers(0, 3))
    def hit_many(self, keys: list[Any], cost: int) -> None:
        results = [limiter.hit_many(keys, cost) for limiter in self.all]
        assert_same([numbers(decisions[index]) for index in range(len(keys))] for decisions in results)

    @rule(key=KEYS)
    def reset(self, key: Any) -> None:
        assert_same(limiter.reset(key) for limiter in self.all)

    @rule(share=st.integers(0, 4000))
    def let_time_pass(self, share: int) -> None:
        # Never back: a store has dropped expired states, and the cores drop them at different moments.
        # A separate test below has steps back.
        scale = max(limit.period_us for limit in self.limits)
        self.clock.set(min(LARGEST, self.clock.now_us() + scale * share // 1000))

    @rule(leap=st.integers(0, 10))
    def leap_far(self, leap: int) -> None:
        self.clock.set(min(LARGEST, self.clock.now_us() + longest_us(self.limits) * leap // 5))

    @rule(data=st.data())
    def change_the_numbers(self, data: st.DataObject) -> None:
        changed = []
        for limit in self.limits:
            changed.append(data.draw(ONE_OF_A_KIND[type(limit)]))
        self.limits = changed
        self.use(changed)

    @invariant()
    def states_are_the_same(self) -> None:
        if hasattr(self, "all"):
            self.compare("peek", "a", 0)

    @invariant()
    def all_hold_as_many_keys_as_were_used(self) -> None:
        if hasattr(self, "all"):
            assert all(store.stats().keys <= len(self.limits) * 6 for store in self.stores)


AllStores.TestCase.settings = settings(stateful_step_count=40)
TestAllStores = AllStores.TestCase


@needs_both
@given(limits=SEVERAL_LIMITS, data=st.data())
def test_all_stores_agree_when_the_clock_steps_back(limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    limiters = [make_limiter(kind, limits, clock) for kind in deciding(KINDS)]
    for wait_us, cost in data.draw(history_of(limits, back=True, max_size=40)):
        clock.set(min(LARGEST, max(0, clock.now_us() + wait_us * data.draw(st.sampled_from([1, 1, 1, 5])))))
        assert_same(numbers(limiter.hit("key", cost)) for limiter in limiters)
        assert_same(limiter._bound.read(("key",)) for limiter in limiters)


@needs_both
@given(data=st.data())
def test_all_stores_agree_on_groups_shadows_delays_and_changed_numbers(data: st.DataObject) -> None:
    clock = ManualClock()
    stores = [make_store(kind) for kind in deciding(KINDS)]
    groups = data.draw(st.integers(1, 3))
    versions = []
    for _ in range(data.draw(st.integers(1, 3))):
        definitions = tuple(
            named
            for group in range(groups)
            for named in name_limits(
                data.draw(st.lists(ONE_LIMIT, min_size=1, max_size=2)),
                scope=f"scope {group}", name=f"rule{group}", shadow=data.draw(st.booleans()), group=group,
            )
        )  # fmt: skip
        versions.append((definitions, [store.bind(definitions, clock=clock) for store in stores]))
    for _ in range(data.draw(st.integers(0, 25))):
        definitions, bindings = data.draw(st.sampled_from(versions))
        limit = data.draw(st.sampled_from([named.limit for named in definitions]))
        period_us = limit.period_us
        wait_us = data.draw(st.one_of(st.sampled_from([0, 1, period_us, 2 * period_us]), st.integers(0, period_us)))
        clock.set(min(LARGEST, clock.now_us() + wait_us))
        keys = tuple(data.draw(KEYS) for _ in range(groups))
        near = st.sampled_from([limit.quota // 3, limit.quota, min(LARGEST, limit.quota + 1)])
        costs = tuple(data.draw(st.one_of(st.integers(0, 3), near)) for _ in range(groups))
        commit = data.draw(st.booleans())
        max_delay_us = data.draw(st.one_of(st.none(), st.integers(0, period_us)))
        assert_same(numbers(decide(bound, keys, costs, commit=commit, max_delay_us=max_delay_us)) for bound in bindings)


def window_of(limit: CalendarWindow, now_us: int) -> tuple[int, ...]:
    """Identifies a calendar window by the part of the local date that names it."""
    day = datetime.fromtimestamp(now_us // 10**6, ZoneInfo(limit.zone)).date()
    match limit.period:
        case "day":
            return (day.toordinal(),)
        case "week":
            return tuple(day.isocalendar()[:2])
        case "month":
            return (day.year, day.month)
    return (day.year,)


def in_microseconds(limit: Limit) -> bool:
    return limit.compiled.unit_us == 1


class BruteForce:
    """Each algorithm by its definition, in fractions and lists, without regard to speed."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.passed: list[tuple[int, int]] = []
        self.tokens: Fraction | None = None
        self.updated = 0

    def room(self, now_us: int) -> int:
        """The greatest cost that passes now."""
        match self.limit:
            case FixedWindow(limit=limit, period_us=period):
                return limit - sum(cost for at, cost in self.passed if at // period == now_us // period)
            case SlidingLog(limit=limit, period_us=period):
                return limit - sum(cost for at, cost in self.passed if now_us - period < at <= now_us)
            case SlidingWindow(limit=limit, period_us=period):
                window = now_us // period
                current = sum(cost for at, cost in self.passed if at // period == window)
                previous = sum(cost for at, cost in self.passed if at // period == window - 1)
                share = 1 - Fraction(now_us - window * period, period)
                return max(0, limit - current - floor(previous * share))
            case CalendarWindow(limit=limit):
                window_now = window_of(self.limit, now_us)
                return limit - sum(cost for at, cost in self.passed if window_of(self.limit, at) == window_now)
            case StepwiseBucket():
                return self.stepped(now_us)
            case TokenBucket() | LeakyBucket() | LeakyQueue():
                return floor(self.refilled(now_us))
        raise AssertionError(self.limit)

    def stepped(self, now_us: int) -> int:
        """The tokens after all steps so far, one by one, from the first charge of a full bucket."""
        limit = cast(StepwiseBucket, self.limit)
        tokens, step_us = limit.capacity, 0
        for at_us, cost in [*self.passed, (now_us, 0)]:
            while tokens < limit.capacity and step_us <= at_us:
                if at_us - step_us > 100 * limit.period_us:  # skip whole steps
                    steps = (at_us - step_us) // limit.period_us
                    tokens, step_us = tokens + steps * limit.refill, step_us + steps * limit.period_us
                tokens, step_us = min(limit.capacity, tokens + limit.refill), step_us + limit.period_us
            if tokens >= limit.capacity:
                tokens, step_us = limit.capacity, at_us + limit.period_us
            tokens -= cost
        return tokens

    def refilled(self, now_us: int) -> Fraction:
        refill = self.limit.refill  # type: ignore[attr-defined]
        period_us = self.limit.period_us
        if self.tokens is None:
            return Fraction(self.limit.quota)
        flowed = Fraction(refill * (now_us - self.updated), period_us)
        return min(Fraction(self.limit.quota), self.tokens + flowed)

    def hit(self, now_us: int, cost: int) -> tuple[bool, int, int]:
        """(allowed, remaining, delay_us)"""
        room = self.room(now_us)
        if cost > room and cost > 0:
            return False, room, 0
        delay_us = 0
        if hasattr(self.limit, "refill") and not isinstance(self.limit, StepwiseBucket):
            before = self.refilled(now_us)
            if isinstance(self.limit, LeakyQueue) and cost:
                behind = self.limit.quota - before
                delay_us = ceil(behind * self.limit.period_us / self.limit.refill)
            self.tokens, self.updated = before - cost, now_us
        self.passed.append((now_us, cost))
        return True, self.room(now_us), delay_us


@given(limit=ONE_LIMIT.filter(in_microseconds), data=st.data())
def test_every_algorithm_is_its_definition(store_kind: str, limit: Limit, data: st.DataObject) -> None:
    clock = ManualClock()
    limiter, brute = make_limiter(store_kind, limit, clock), BruteForce(limit)
    for wait_us, cost in data.draw(history_of([limit], max_size=40)):
        clock.advance(wait_us)
        decision = limiter.hit("key", cost)
        assert (decision.allowed, decision.remaining, decision.delay_us) == brute.hit(clock.now_us(), cost)


@given(limit=st.integers(0, 10**6), period_us=PERIODS_US, raised=st.integers(0, 10**6), used=st.integers(0, 10**6))
def test_raising_a_limit_forgives_no_usage_and_lowering_it_takes_effect_at_once(
    store_kind: str, limit: int, period_us: int, raised: int, used: int
) -> None:
    for algorithm in (FixedWindow, SlidingLog, SlidingWindow):
        clock = ManualClock()
        store = make_store(store_kind)
        try:
            before = Limiter(algorithm(limit=limit, period_us=period_us), store=store, name="api", clock=clock)
            after = Limiter(algorithm(limit=raised, period_us=period_us), store=store, name="api", clock=clock)
        except ConfigError:
            continue
        passed = used if before.hit("key", used) else 0
        assert after.peek("key", 0).remaining == max(0, raised - passed)


def test_a_bucket_keeps_its_tokens_when_its_numbers_change(store_kind: str) -> None:
    clock = ManualClock()
    store = make_store(store_kind)

    def remaining(text: str) -> int | None:
        return Limiter(text, store=store, name="api", clock=clock).peek("key", 0).remaining

    Limiter("10/second burst 100", store=store, name="api", clock=clock).hit("key", 100)
    assert remaining("10/second burst 500") == 0
    clock.advance(500_000)
    assert remaining("10/second burst 500") == 5
    assert remaining("7/minute burst 3") == 3
    assert remaining("10/second burst 100") == 5


def test_changing_the_period_keeps_what_counts_now(store_kind: str) -> None:
    clock = ManualClock()
    store = make_store(store_kind)

    def remaining(text: str) -> int | None:
        return Limiter(text, store=store, name="api", clock=clock).peek("key", 0).remaining

    for shape in ("", " fixed", " log", " counter"):
        store.clear()
        Limiter("100/minute" + shape, store=store, name="api", clock=clock).hit("key", 60)
        assert remaining("100/hour" + shape) == 40
        assert remaining("100/second" + shape) == 40
        assert remaining("50/hour" + shape) == 0
