"""Holds under all operations: all stores alike, settled once, and never with more left than after the real costs."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bound_calls import give_back
from headgate import ArgumentError, ConflictingId, Limiter
from headgate.algorithms import stepwise
from headgate.limits import CalendarWindow, Concurrent, FixedWindow, Limit, SlidingLog, SlidingWindow, StepwiseBucket
from headgate.stores.memory import ON_FULL
from headgate.testing import ManualClock
from strategies import NUMBERS, ONE_LIMIT
from subjects import CORES, HOLDING, deciding, make_limiter, make_store, numbers, outcome_values

needs_two = pytest.mark.skipif(len(HOLDING) < 2, reason="only one store that holds is here")
PLACES = st.builds(Concurrent, limit=st.integers(0, 12))
LIMITS = st.lists(st.one_of(ONE_LIMIT, PLACES), min_size=1, max_size=4)
KEYS = st.sampled_from(["a", "b", ("a", 1)])
NAMES = st.sampled_from(["1", "2", "3", "4", "5", "6"])
COSTS = st.one_of(st.integers(0, 4), NUMBERS)
LEASES_US = st.one_of(st.integers(1, 100), st.integers(1, 10**7), st.just(3_600_000_000))


@needs_two
class AllHolding(RuleBasedStateMachine):
    """Limiters that differ only in their stores; holds of a few names are made, settled and requested again."""

    @initialize(limits=LIMITS)
    def start(self, limits: list[Limit]) -> None:
        self.clock = ManualClock()
        self.stores = [make_store(kind) for kind in deciding(HOLDING)]
        self.charges: list[tuple[Any, int, int]] = []
        self.unnamed: list[list[str]] = []
        self.lease_ends_us: list[int] = []
        self.use(limits)

    def use(self, limits: list[Limit]) -> None:
        self.limits = limits
        self.all = [Limiter(limits, store=store, name="api", clock=self.clock) for store in self.stores]

    def same(self, call: Any) -> Any:
        """Return the common answer of all limiters, or the error that all raise."""
        results = []
        for limiter in self.all:
            try:
                results.append(call(limiter))
            except (ArgumentError, ConflictingId) as error:
                message = re.sub(r" for ('.*'|a limit) is so large", " for one of its limits is so large", str(error))
                results.append((type(error), message))  # of several limits that cannot have the debt, any may be named
        assert all(result == results[0] for result in results)
        return results[0]

    @rule(key=KEYS, name=NAMES, cost=COSTS, lease_us=LEASES_US)
    def reserve(self, key: Any, name: str, cost: int, lease_us: int) -> None:
        self.add_lease(lease_us)

        def call(limiter: Limiter) -> object:
            held = limiter.reserve(key, cost, id=name, lease_us=lease_us)
            return numbers(held.decision), held.repeated

        self.same(call)

    @rule(key=KEYS, cost=COSTS, lease_us=LEASES_US)
    def reserve_without_a_name(self, key: Any, cost: int, lease_us: int) -> None:
        ids = []
        self.add_lease(lease_us)

        def call(limiter: Limiter) -> object:
            held = limiter.reserve(key, cost, lease_us=lease_us)
            ids.append(held.id)
            return numbers(held.decision), held.repeated

        self.same(call)
        self.unnamed.append(ids)

    @rule(number=st.integers(0, 5), actual=st.one_of(st.none(), COSTS))
    def commit_without_a_name(self, number: int, actual: int | None) -> None:
        if self.unnamed:
            ids = self.unnamed[-1 - number % len(self.unnamed)]
            self.same(lambda limiter: outcome_values(limiter.commit(ids[self.all.index(limiter)], actual)))

    @rule(key=KEYS, name=NAMES, actual=st.one_of(st.none(), COSTS, st.integers(2**50, 2**52)))
    def commit(self, key: Any, name: str, actual: int | None) -> None:
        self.same(lambda limiter: outcome_values(limiter.commit(limiter.id_of(key, name), actual)))

    @rule(key=KEYS, name=NAMES, more=st.one_of(st.just(0), COSTS), lease_us=LEASES_US)
    def extend(self, key: Any, name: str, more: int, lease_us: int) -> None:
        self.add_lease(lease_us)
        self.same(
            lambda limiter: outcome_values(limiter.extend(limiter.id_of(key, name), lease_us=lease_us, more=more))
        )

    @rule(key=KEYS, cost=COSTS, name=st.one_of(st.none(), NAMES))
    def hit(self, key: Any, cost: int, name: str | None) -> None:
        self.charges.append((key, cost, self.clock.now_us()))
        self.same(lambda limiter: numbers(limiter.hit(key, cost, id=name)))

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.charges:
            key, cost, at_us = data.draw(st.sampled_from(self.charges))
            for limiter in self.all:
                give_back(limiter.bound, (key,), (cost,), max(0, self.clock.now_us() - at_us))

    @rule(key=KEYS)
    def reset(self, key: Any) -> None:
        self.same(lambda limiter: limiter.reset(key))

    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        period_us = max(limit.period_us if limit.is_rate else 10**6 for limit in self.limits)
        wait_us = data.draw(
            st.one_of(st.integers(0, 1000), st.integers(0, 3 * period_us), st.integers(-min(period_us, 10**6), 0))
        )
        now_us = self.clock.now_us()
        if wait_us > 0 or not self.has_ended():
            ended_us = max((end_us for end_us in self.lease_ends_us if end_us <= now_us), default=0)
            self.clock.set(max(ended_us, now_us + wait_us))

    def add_lease(self, lease_us: int) -> None:
        """Record when a lease may end: a store may have dropped what ended, so the clock must not step back over it."""
        self.lease_ends_us.append(self.clock.now_us() + lease_us)

    def has_ended(self) -> bool:
        """Whether a state has become the same as none: a store may have dropped it, so the clock must not step back."""
        return any(
            state is not None and not reading.reset_after_us
            for limiter in self.all
            for key in ("a", "b", ("a", 1))
            for state, reading in zip(limiter.bound.read((key,)), limiter.peek(key, 0).limits, strict=True)
        )

    @rule(data=st.data())
    def change_numbers(self, data: st.DataObject) -> None:
        """Change the numbers of the limits, but not their kinds."""
        changed: list[Limit] = []
        for limit in self.limits:
            if isinstance(limit, Concurrent):
                changed.append(data.draw(PLACES))
            elif isinstance(limit, FixedWindow | SlidingLog | SlidingWindow):
                changed.append(type(limit)(limit=data.draw(st.integers(0, 20)), period_us=limit.period_us))
            elif isinstance(limit, CalendarWindow):
                number = data.draw(st.integers(0, 20))
                changed.append(CalendarWindow(limit=number, period=limit.period, zone=limit.zone))
            else:
                changed.append(limit)
        self.use(changed)

    @invariant()
    def they_look_alike(self) -> None:
        for key in ("a", ("a", 1)):
            self.same(lambda limiter, key=key: numbers(limiter.peek(key, 1)))


TestAllHolding = AllHolding.TestCase


@needs_two
class AllChanging(AllHolding):
    """`AllHolding` where the limits of one name change: their kinds, number and order."""

    @initialize(limits=LIMITS)
    def start(self, limits: list[Limit]) -> None:
        self.used: list[list[Limiter]] = []
        self.have_calendars = False
        super().start(limits)

    def use(self, limits: list[Limit]) -> None:
        super().use(limits)
        self.used.append(self.all)
        self.have_calendars |= any(isinstance(limit, CalendarWindow) for limit in limits)

    @rule(limits=LIMITS)
    def change_limits(self, limits: list[Limit]) -> None:
        self.use(limits)

    @rule(data=st.data())
    def go_back_to(self, data: st.DataObject) -> None:
        """Return to former limits, in some order."""
        self.all = data.draw(st.sampled_from(self.used))
        limits = [definition.limit for definition in self.all[0].definitions]
        self.use(data.draw(st.permutations(limits)))

    @rule(key=KEYS, name=NAMES, more=st.one_of(st.just(0), COSTS), lease_us=LEASES_US)
    def extend(self, key: Any, name: str, more: int, lease_us: int) -> None:
        # On Redis an extension cannot charge a calendar window that the limits do not have, see docs/redis.md.
        super().extend(key, name, 0 if self.have_calendars else more, lease_us)

    def has_ended(self) -> bool:
        current = self.all
        try:
            return any(super(AllChanging, self).has_ended() for self.all in self.used)
        finally:
            self.all = current


TestAllChanging = AllChanging.TestCase


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core here")
class AllFull(AllHolding):
    """`AllHolding` in memory with room for a few holds, in one shard: where the hold settled first is dropped."""

    @initialize(limits=LIMITS, max_holds=st.integers(1, 5), on_full=st.sampled_from(ON_FULL))
    def start(self, limits: list[Limit], max_holds: int, on_full: str) -> None:
        self.clock = ManualClock()
        self.stores = [make_store(core, max_keys=100, max_holds=max_holds, on_full=on_full) for core in CORES]
        self.charges: list[tuple[Any, int, int]] = []
        self.unnamed: list[list[str]] = []
        self.lease_ends_us: list[int] = []
        self.use(limits)


TestAllFull = AllFull.TestCase

STEPS = st.lists(
    st.tuples(
        st.integers(0, 400_000),
        st.sampled_from(["hold", "hold", "hit", "settle"]),
        st.integers(0, 6),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=30,
)
"""(wait in microseconds, action, cost, actual) on a scale of 100 ms to a second."""


class Truth:
    """The state that a limit would have if all charges had been the real costs from the start.

    A bucket in steps begins its count with the charge that finds it full, which depends on the units held at that time.
    So this state is refilled at the same moments as the limiter's bucket.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.charges: list[tuple[int, int]] = []
        self.level = self.at_us = 0
        self.stepped: int | None = None
        self.scale = 1 if isinstance(limit, StepwiseBucket) else limit.period_us
        """Units of the level for one of the limit."""

    def charge(self, at_us: int, cost: int) -> None:
        self.charges.append((at_us, cost))
        self.bring(at_us)
        self.level -= cost * self.scale

    def bring(self, now_us: int) -> None:
        """The units below full of a bucket, as of a moment."""
        flowed = getattr(self.limit, "refill", 0) * (now_us - self.at_us)
        if isinstance(self.limit, StepwiseBucket):
            steps = 0 if self.stepped is None else max(0, now_us - self.stepped) // self.limit.period_us
            flowed = self.limit.refill * steps
            if self.stepped is not None:
                self.stepped += steps * self.limit.period_us
        self.level = min(0, self.level + flowed)
        self.at_us = now_us

    def see_steps(self, limiter: Limiter, now_us: int) -> None:
        """Record when the limiter's bucket is refilled next."""
        if isinstance(self.limit, StepwiseBucket):
            self.bring(now_us)
            [state] = limiter.bound.read(("key",))
            tokens, stepped = stepwise.roll(self.limit.compiled, state, now_us)
            self.stepped = stepped if tokens < self.limit.quota else None

    def remaining(self, now_us: int) -> int:
        period_us, quota = self.limit.period_us, self.limit.quota
        window = now_us // period_us

        def units(first_us: int, last_us: int) -> int:
            return sum(cost for at_us, cost in self.charges if first_us <= at_us < last_us)

        if isinstance(self.limit, CalendarWindow) and (calendar := self.limit.compiled.calendar) is not None:
            return max(0, quota - units(*calendar.window(now_us)))
        if isinstance(self.limit, FixedWindow):
            return max(0, quota - units(window * period_us, (window + 1) * period_us))
        if isinstance(self.limit, SlidingLog):
            return max(0, quota - units(now_us - period_us + 1, now_us + 1))
        if isinstance(self.limit, SlidingWindow):
            last = units((window - 1) * period_us, window * period_us)
            weighed = last * (period_us - now_us % period_us) // period_us
            return max(0, quota - units(window * period_us, (window + 1) * period_us) - weighed)
        self.bring(now_us)
        return (quota * self.scale + self.level) // self.scale


@example(  # the first hold is older than an hour in the end
    limit=FixedWindow(limit=1, period="hour"),
    steps=[(wait_us, "hold", 0, 0) for wait_us in (0, 86_710, 278_812, 293_465, 341_014)],
)
@given(limit=ONE_LIMIT.filter(lambda limit: limit.quota > 0), steps=STEPS)
def test_settling_never_leaves_more_than_the_real_costs_would_and_of_windows_as_much(
    holding_kind: str, limit: Limit, steps: list[tuple[int, str, int, int]]
) -> None:
    assume(limit.compiled.unit_us == 1)  # the replay counts in microseconds
    clock = ManualClock()
    limiter, truth = make_limiter(holding_kind, limit, clock), Truth(limit)
    scale_us = max(1, limit.period_us // 1_000_000)
    # A store remembers a hold so long at least; the holds that are left in the end are settled one by one.
    remembered_us = max(3_600_000_000, limit.period_us) - (len(steps) + 1) * scale_us
    opened: list[tuple[str, int]] = []
    made_us: dict[str, int] = {}
    truth.at_us = clock.now_us()
    for wait_us, action, cost, actual in steps:
        next_us = clock.now_us() + wait_us * scale_us
        while opened and made_us[opened[0][0]] + remembered_us <= next_us:
            settle(limiter, *opened.pop(0))
            truth.see_steps(limiter, clock.now_us())
        clock.advance(wait_us * scale_us)
        if action == "hold":
            held = limiter.reserve("key", cost, lease_us=1 + wait_us)
            if held:
                opened.append((held.id, actual))
                made_us[held.id] = clock.now_us()
                truth.charge(clock.now_us(), actual)
        elif action == "hit" and limiter.hit("key", cost):
            truth.charge(clock.now_us(), cost)
        elif action == "settle" and opened:
            settle(limiter, *opened.pop(actual % len(opened)))
        truth.see_steps(limiter, clock.now_us())
        compare(limiter, truth, clock, settled=not opened)
    while opened:
        settle(limiter, *opened.pop(0))
        truth.see_steps(limiter, clock.now_us())
        clock.advance(scale_us)
    compare(limiter, truth, clock, settled=True)
    clock.advance(limit.period_us // 3)
    compare(limiter, truth, clock, settled=True)


def settle(limiter: Limiter, whole_id: str, actual: int) -> None:
    first = limiter.commit(whole_id, actual)
    assert (first.outcome, first.actual) == ("settled", actual)
    repeated = limiter.commit(whole_id, actual + 1)
    assert (repeated.outcome, repeated.actual) == ("already settled", actual)
    assert [standing.remaining for standing in repeated.after] == [standing.remaining for standing in first.after]


def compare(limiter: Limiter, truth: Truth, clock: ManualClock, *, settled: bool) -> None:
    if not settled:
        return
    remaining, expected = limiter.peek("key", 0).limits[0].remaining, truth.remaining(clock.now_us())
    if isinstance(truth.limit, CalendarWindow | FixedWindow | SlidingLog | SlidingWindow):
        assert remaining == expected
    else:
        assert remaining <= expected


@given(limits=LIMITS, costs=st.lists(COSTS, min_size=1, max_size=12))
def test_all_limits_hold_or_none(holding_kind: str, limits: list[Limit], costs: list[int]) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, limits, clock)
    for cost in costs:
        before = [reading.remaining for reading in limiter.peek("key", 0).limits]
        held = limiter.reserve("key", cost)
        after = [reading.remaining for reading in limiter.peek("key", 0).limits]
        assert bool(held) == all(cost <= remaining for remaining in before)
        assert after == ([remaining - cost for remaining in before] if held else before)
        clock.advance(1)


@given(limit=PLACES, steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 20)), max_size=40))
def test_places_in_use_are_those_whose_leases_are_not_over(
    holding_kind: str, limit: Limit, steps: list[tuple[int, int, int]]
) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, limit, clock)
    leases: dict[str, tuple[int, int]] = {}
    names = count()
    for wait_us, cost, lease_us in steps:
        clock.advance(wait_us)
        now_us = clock.now_us()
        live = sorted((until, places) for until, places in leases.values() if until > now_us)
        free = limit.quota - sum(places for _, places in live)
        held = limiter.reserve("key", cost, id=str(next(names)), lease_us=lease_us)
        assert bool(held) == (cost <= free)
        if held:
            leases[held.id] = (now_us + lease_us, cost)
        elif cost > limit.quota:
            assert held.decision.retry_after_us is None
        else:
            needed, freed_at = cost - free, now_us
            for until, places in live:
                if needed > 0:
                    needed, freed_at = needed - places, until
            assert held.decision.retry_after_us == freed_at - now_us
        if leases and cost == 0:
            whole_id = next(iter(leases))
            assert limiter.commit(whole_id).outcome == "settled"
            del leases[whole_id]


ENDED = [
    ("12/second leaky 7", "14/second leaky 1"),
    ("12/second burst 7", "14/second burst 1"),
    ("3/second fixed", "1/2 seconds fixed"),
    ("3/second", "1/2 seconds"),
    ("3/second log", "1/2 seconds"),
    ("3/second", "1/2 seconds log"),
    ("3/second burst 3 stepwise", "1/second burst 1 stepwise"),
]


@pytest.mark.parametrize(("former", "text"), ENDED)
def test_a_state_that_ended_under_former_numbers_is_the_same_as_none(holding_kind: str, former: str, text: str) -> None:
    """The settlement of a hold with cost 0 is charged in the numbers under which it was made."""
    clock = ManualClock()
    store = make_store(holding_kind)
    before = Limiter(former, store=store, name="api", clock=clock)
    limiter = Limiter(text, store=store, name="api", clock=clock)
    assert before.hit("used", 3)
    clock.advance(10_000_000)
    results = []
    for key in ("used", "new"):
        whole_id = limiter.reserve(key, 0, lease=60).id
        results.append((outcome_values(limiter.commit(whole_id, 3)), numbers(limiter.peek(key, 1))))
    assert results[0] == results[1]


def test_a_debt_on_a_log_that_a_counter_has_left_behind_counts_from_its_newest_entry(holding_kind: str) -> None:
    clock, store = ManualClock(), make_store(holding_kind)
    log, counter = (Limiter(text, store=store, name="api", clock=clock) for text in ("30/minute log", "200/minute"))
    assert log.hit("key")
    held = counter.reserve("key", 3, lease=3600)
    [newest] = log.peek("key", 0).limits
    assert newest.reset_after_us > 60_000_000, "usage that a counter has counted may end later"
    assert log.hit("key").limits[0].reset_after_us == newest.reset_after_us
    [after] = log.commit(held.id, 12).after
    clock.advance(newest.reset_after_us - 1)
    assert log.peek("key", 0).remaining == after.remaining
    clock.advance(1)
    assert log.peek("key", 0).remaining == 30
