"""The laws that hold for every algorithm, on every store, with any numbers.

Each test is one law of docs/algorithms.md#laws and checks it for generated limits and histories.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import Limiter
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
from strategies import ONE_LIMIT, ONE_OF_A_KIND, SEVERAL_LIMITS, WAITS, history_of, longest_us, quota_of
from subjects import make_limiter, numbers

DAY_US = 86_400_000_000


def play(limiter: Limiter, clock: ManualClock, history: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Run (wait, cost) steps; return those that passed, as (moment, cost)."""
    passed = []
    for wait_us, cost in history:
        clock.advance(wait_us)
        if limiter.hit("key", cost):
            passed.append((clock.now_us(), cost))
    return passed


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_ceiling_at_one_instant_never_more_than_the_capacity_passes(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limits, clock)
    play(limiter, clock, data.draw(history_of(limits)))
    clock.advance(data.draw(WAITS))
    least = min(limit.quota for limit in limits)
    passed = 0
    for cost in data.draw(st.lists(st.integers(1, max(1, least)), min_size=1, max_size=12)):
        passed += cost if limiter.hit("key", cost) else 0
    assert passed <= least


SHORTEST_US = {
    period: days * DAY_US - 3_600_000_000 for period, days in {"day": 1, "week": 7, "month": 28, "year": 365}.items()
}
"""The shortest calendar windows after 2026."""


def bound_in(limit: Limit, interval_us: int) -> int:
    """The most that this algorithm admits by its contract in a closed interval of this length."""
    match limit:
        case FixedWindow():
            return (-(-interval_us // limit.period_us) + 1) * limit.limit
        case SlidingLog():
            return (interval_us // limit.period_us + 1) * limit.limit
        case SlidingWindow():
            return (-(-interval_us // limit.period_us) + 1) * limit.limit
        case CalendarWindow():
            shortest_us = SHORTEST_US[limit.period]
            return (interval_us // shortest_us + 2) * limit.limit
        case StepwiseBucket():
            return limit.capacity - 1 + limit.refill * (interval_us // limit.period_us + 1)
        case TokenBucket() | LeakyBucket():
            return limit.capacity + limit.refill * interval_us // limit.period_us
        case LeakyQueue():
            return limit.queue + 1 + limit.refill * interval_us // limit.period_us
    raise AssertionError(limit)


@given(limit=ONE_LIMIT, data=st.data())
def test_rate_in_any_interval_each_algorithms_own_bound_holds(
    store_kind: str, limit: Limit, data: st.DataObject
) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limit, clock)
    passed = play(limiter, clock, data.draw(history_of([limit], max_size=60)))
    unit_us = limit.compiled.unit_us
    for first in range(len(passed)):
        total = 0
        for moment_us, cost in passed[first:]:
            total += cost
            # All moments within one unit of time are equal.
            interval_us = (moment_us // unit_us - passed[first][0] // unit_us) * unit_us
            assert total <= bound_in(limit, interval_us)


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_exact_wait_refused_just_before_and_admitted_at_retry_after(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limits, clock)
    play(limiter, clock, data.draw(history_of(limits)))
    cost = data.draw(st.integers(1, max(1, min(limit.quota for limit in limits))))
    refusal = limiter.peek("key", cost)
    assume(not refusal.allowed and refusal.retry_after_us is not None)
    assume(clock.now_us() + (refusal.retry_after_us or 0) < LARGEST)
    assert refusal.retry_after_us is not None
    clock.advance(refusal.retry_after_us - 1)
    assert not limiter.peek("key", cost).allowed
    clock.advance(1)
    assert limiter.hit("key", cost).allowed


@given(algorithm=st.sampled_from(list(ONE_OF_A_KIND)), data=st.data())
def test_exact_wait_holds_when_the_numbers_of_a_limit_have_changed(
    store_kind: str, algorithm: type[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    former, latter = data.draw(ONE_OF_A_KIND[algorithm]), data.draw(ONE_OF_A_KIND[algorithm])
    limiter = make_limiter(store_kind, former, clock, name="changed")
    play(limiter, clock, data.draw(history_of([former])))
    changed = Limiter(latter, store=limiter.store, clock=clock, name="changed")
    cost = data.draw(st.integers(1, max(1, latter.quota)))
    refusal = changed.hit("key", cost)
    assume(not refusal.allowed and refusal.retry_after_us is not None)
    assert refusal.retry_after_us is not None
    assume(clock.now_us() + refusal.retry_after_us < LARGEST)
    clock.advance(refusal.retry_after_us - 1)
    assert not changed.hit("key", cost).allowed
    clock.advance(1)
    assert changed.hit("key", cost).allowed


@given(algorithm=st.sampled_from(list(ONE_OF_A_KIND)), data=st.data())
def test_a_state_forgotten_under_former_numbers_stays_forgotten_under_others(
    store_kind: str, algorithm: type[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    former, latter = data.draw(ONE_OF_A_KIND[algorithm]), data.draw(ONE_OF_A_KIND[algorithm])
    limiter = make_limiter(store_kind, former, clock, name="changed")
    play(limiter, clock, data.draw(history_of([former])))
    reset_after_us = limiter.peek("key", 0).reset_after_us
    assert reset_after_us is not None
    assume(clock.now_us() + reset_after_us < LARGEST - 10**14)
    clock.advance(reset_after_us)
    changed = Limiter(latter, store=limiter.store, clock=clock, name="changed")
    fresh = make_limiter(store_kind, latter, clock, name="changed")
    for wait_us, cost in data.draw(history_of([latter])):
        clock.advance(wait_us)
        assert numbers(changed.peek("key", cost)) == numbers(fresh.peek("key", cost))
        assert numbers(changed.hit("key", cost)) == numbers(fresh.hit("key", cost))


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_never_a_cost_above_a_quota_has_no_retry_after_and_any_other_has(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limits, clock)
    play(limiter, clock, data.draw(history_of(limits)))
    least = min(limit.quota for limit in limits)
    cost = data.draw(st.integers(1, 2 * least + 2))
    assert (limiter.hit("key", cost).retry_after_us is None) == (cost > least)


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_remaining_is_the_greatest_cost_that_passes(store_kind: str, limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limits, clock)
    play(limiter, clock, data.draw(history_of(limits)))
    remaining = min(reading.remaining for reading in limiter.peek("key", 0).limits)
    assert not limiter.peek("key", remaining + 1).allowed
    assert limiter.hit("key", remaining).allowed


@given(limit=ONE_LIMIT, data=st.data())
def test_next_after_is_when_one_more_unit_remains(store_kind: str, limit: Limit, data: st.DataObject) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limit, clock)
    play(limiter, clock, data.draw(history_of([limit])))
    reading = limiter.peek("key", 0).limits[0]
    assume(reading.next_after_us > 0 and reading.remaining < quota_of(limit))
    clock.advance(reading.next_after_us - 1)
    assert limiter.peek("key", 0).limits[0].remaining == reading.remaining
    clock.advance(1)
    assert limiter.peek("key", 0).limits[0].remaining > reading.remaining


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_additive_a_cost_of_n_is_n_times_a_cost_of_1_at_one_instant(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    at_once, one_by_one = make_limiter(store_kind, limits, clock), make_limiter(store_kind, limits, clock)
    for wait_us, cost in data.draw(history_of(limits)):
        clock.advance(wait_us)
        at_once.hit("key", cost)
        one_by_one.hit("key", cost)
    cost = data.draw(st.integers(1, 30))
    together = at_once.hit("key", cost).allowed
    if together:
        assert all(one_by_one.hit("key") for _ in range(cost))
        assert numbers(at_once.peek("key", 0)) == numbers(one_by_one.peek("key", 0))
    else:
        assert sum(one_by_one.hit("key").allowed for _ in range(cost)) < cost


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_peek_is_silent(store_kind: str, limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    peeked, alone = make_limiter(store_kind, limits, clock), make_limiter(store_kind, limits, clock)
    for wait_us, cost in data.draw(history_of(limits, back=True)):
        clock.advance(wait_us)
        peeked_decision = peeked.peek("key", cost)
        peeked.hit("key", 0)
        decision = alone.hit("key", cost)
        assert numbers(peeked_decision) == numbers(decision)
        assert numbers(peeked.hit("key", cost)) == numbers(decision)


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_a_refusal_changes_nothing_in_any_limit(store_kind: str, limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limits, clock)
    for wait_us, cost in data.draw(history_of(limits, back=True)):
        clock.advance(wait_us)
        before = numbers(limiter.peek("key", 0))
        decision = limiter.hit("key", cost)
        if not decision.allowed:
            assert numbers(limiter.peek("key", 0)) == before
            untouched = limiter.peek("key", 0).limits
            assert [reading.remaining for reading in decision.limits] == [each.remaining for each in untouched]


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_all_or_none_several_limits_admit_what_each_would_admit(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    together = make_limiter(store_kind, limits, clock)
    single_limiters = [make_limiter(store_kind, limit, clock) for limit in limits]
    for wait_us, cost in data.draw(history_of(limits, back=True)):
        clock.advance(wait_us)
        peeks = [limiter.peek("key", cost) for limiter in single_limiters]
        decision = together.hit("key", cost)
        assert decision.allowed == all(peeks)
        assert [reading.allowed for reading in decision.limits] == [peek.allowed for peek in peeks]
        # A refused hit charges nothing, but stores a state that was moved to the present, as a hit with cost 0 does.
        after = [limiter.hit("key", cost if decision.allowed else 0) for limiter in single_limiters]
        assert [reading.remaining for reading in decision.limits] == [
            single_decision.remaining for single_decision in after
        ]


@given(limit=ONE_LIMIT, data=st.data())
def test_forgetting_is_invisible_once_reset_after_has_passed_and_not_before(
    store_kind: str, limit: Limit, data: st.DataObject
) -> None:
    clock = ManualClock()
    limiter, fresh = make_limiter(store_kind, limit, clock), make_limiter(store_kind, limit, clock)
    play(limiter, clock, data.draw(history_of([limit])))
    reset_after_us = limiter.peek("key", 0).reset_after_us
    assert reset_after_us is not None
    assume(clock.now_us() + reset_after_us < LARGEST - 10**14)  # no clock reaches beyond the year 2112
    if reset_after_us:
        clock.advance(reset_after_us - 1)
        assert limiter.peek("key", 0).reset_after_us == 1
        clock.advance(1)
    assert limiter.peek("key", 0).reset_after_us == 0
    for wait_us, cost in data.draw(history_of([limit])):
        clock.advance(wait_us)
        assert numbers(limiter.hit("key", cost)) == numbers(fresh.hit("key", cost))


@given(limit=ONE_LIMIT, data=st.data())
def test_a_clock_that_stands_or_goes_back_never_admits_more(store_kind: str, limit: Limit, data: st.DataObject) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limit, clock)
    play(limiter, clock, data.draw(history_of([limit], back=True)))
    remaining = [limiter.peek("key", 0).limits[0].remaining]
    for back_us in data.draw(st.lists(st.integers(0, 3 * longest_us([limit])), max_size=6)):
        clock.advance(-min(back_us, clock.now_us()))
        remaining.append(limiter.peek("key", 0).limits[0].remaining)
    assert all(earlier >= later for earlier, later in pairwise(remaining))


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_a_clock_that_never_moves_passes_one_quota_at_most(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, limits, clock)
    costs = data.draw(st.lists(st.integers(0, 10), max_size=40))
    assert sum(cost for cost in costs if limiter.hit("key", cost)) <= min(limit.quota for limit in limits)


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_keys_do_not_touch_each_other(store_kind: str, limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    shared = make_limiter(store_kind, limits, clock)
    alone = {key: make_limiter(store_kind, limits, clock) for key in ("a", "b", ("a", "b"), "a|b")}
    for wait_us, cost in data.draw(history_of(limits)):
        clock.advance(wait_us)
        key = data.draw(st.sampled_from(list(alone)))
        assert numbers(shared.hit(key, cost)) == numbers(alone[key].hit(key, cost))
