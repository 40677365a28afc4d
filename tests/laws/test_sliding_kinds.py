"""A sliding window that changes its kind, from log to counter or back, forgives no usage.

`5/minute` is a log and `500/minute` a counter, so a changed number may change the kind. The state is converted, so
that at every later moment as much counts as the former state, left alone, would have counted: never less.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headgate import Limiter
from headgate.limits import Limit, SlidingLog, SlidingWindow
from headgate.testing import ManualClock
from headgate.units import LARGEST
from strategies import ONE_OF_A_KIND, history_of
from subjects import KINDS, START_US, deciding, make_limiter, numbers

KINDS_OF_WINDOW = (SlidingLog, SlidingWindow)

each_store = pytest.mark.parametrize("store", deciding(KINDS))


def remaining_of(limiter: Limiter) -> int:
    remaining = limiter.peek("key", 0).remaining
    assert remaining is not None
    return remaining


def with_history(store: str, former: Limit, data: st.DataObject, *, many: int) -> tuple[ManualClock, list[Limiter]]:
    """A clock and limiters on it, each on a store of its own and with the same history of requests for the key."""
    clock = ManualClock(START_US + data.draw(st.integers(0, former.period_us)))
    limiters = [make_limiter(store, former, clock, name="api") for _ in range(many)]
    for wait_us, cost in data.draw(history_of([former])):
        clock.advance(wait_us)
        for limiter in limiters:
            limiter.hit("key", cost)
    return clock, limiters


@st.composite
def changes(draw: st.DrawFn, *, period: bool = False) -> tuple[Limit, Limit]:
    """A sliding window, and one of the other kind; of the same period unless `period` may change as well."""
    former_kind, kind = draw(st.permutations(KINDS_OF_WINDOW))
    former, limit = draw(ONE_OF_A_KIND[former_kind]), draw(ONE_OF_A_KIND[kind])
    if not period:
        quota = draw(st.one_of(st.integers(0, 12), st.integers(0, 2 * former.quota + 2)))
        assume(kind is SlidingLog or quota * former.period_us <= LARGEST)
        limit = kind(limit=min(quota, LARGEST), period_us=former.period_us)
    return former, limit


@each_store
@given(change=changes(), data=st.data())
def test_a_sliding_window_of_another_kind_never_leaves_more_than_the_former_one_would(
    store: str, change: tuple[Limit, Limit], data: st.DataObject
) -> None:
    former, limit = change
    assume(isinstance(former, SlidingLog) or limit.quota * former.period_us <= LARGEST)
    alone_limit = type(former)(limit=limit.quota, period_us=former.period_us)  # type: ignore[call-arg]
    clock, [before, alone] = with_history(store, former, data, many=2)
    clock.advance(data.draw(st.one_of(st.just(0), st.integers(0, former.period_us))))
    after = Limiter(limit, store=before.store, clock=clock, name="api")
    alone = Limiter(alone_limit, store=alone.store, clock=clock, name="api")
    if data.draw(st.booleans()):
        after.hit("key", data.draw(st.one_of(st.just(0), st.just(limit.quota + 1))))  # converted here, permanently
    for wait_us in data.draw(st.lists(st.integers(0, max(1, former.period_us // 3)), max_size=12)):
        assert remaining_of(after) <= remaining_of(alone)
        clock.advance(wait_us)
    assert remaining_of(after) <= remaining_of(alone)


@each_store
@given(change=changes(period=True), data=st.data())
def test_usage_at_a_change_of_the_kind_counts_on(store: str, change: tuple[Limit, Limit], data: st.DataObject) -> None:
    former, limit = change
    clock, [before] = with_history(store, former, data, many=1)
    counted = former.quota - remaining_of(before)
    if former.period_us > limit.period_us and isinstance(former, SlidingLog):
        counted = 0  # entries that are older than the new period may leave
    after = Limiter(limit, store=before.store, clock=clock, name="api")
    assert remaining_of(after) <= max(0, limit.quota - counted)


@each_store
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])  # most requests need not wait
@given(change=changes(period=True), data=st.data())
def test_a_wait_is_exact_when_the_kind_has_changed(
    store: str, change: tuple[Limit, Limit], data: st.DataObject
) -> None:
    former, limit = change
    clock, [before] = with_history(store, former, data, many=1)
    after = Limiter(limit, store=before.store, clock=clock, name="api")
    cost = data.draw(st.integers(1, max(1, limit.quota)))
    wait_us = after.hit("key", cost).retry_after_us
    assume(wait_us)
    assert wait_us
    assume(clock.now_us() + wait_us < LARGEST)
    clock.advance(wait_us - 1)
    assert not after.hit("key", cost)
    clock.advance(1)
    assert after.hit("key", cost)


@each_store
@given(change=changes(period=True), data=st.data())
def test_a_state_forgotten_by_one_kind_stays_forgotten_by_the_other(
    store: str, change: tuple[Limit, Limit], data: st.DataObject
) -> None:
    former, limit = change
    clock, [before] = with_history(store, former, data, many=1)
    reset_after_us = before.peek("key", 0).reset_after_us
    assert reset_after_us is not None
    assume(clock.now_us() + reset_after_us < LARGEST - 10**14)
    clock.advance(reset_after_us)
    after, fresh = Limiter(limit, store=before.store, clock=clock, name="api"), make_limiter(store, limit, clock)
    for wait_us, cost in data.draw(history_of([limit])):
        clock.advance(wait_us)
        changed_numbers, fresh_numbers = numbers(after.hit("key", cost)), numbers(fresh.hit("key", cost))
        same = ("allowed", "remaining", "retry_after_us")
        assert [changed_numbers[name] for name in same] == [fresh_numbers[name] for name in same]


@given(change=changes(period=True), data=st.data())
def test_all_stores_convert_alike(change: tuple[Limit, Limit], data: st.DataObject) -> None:
    former, limit = change
    clock = ManualClock(START_US + data.draw(st.integers(0, former.period_us)))
    all_before = [make_limiter(store, former, clock, name="api") for store in deciding(KINDS)]
    all_after = [Limiter(limit, store=before.store, clock=clock, name="api") for before in all_before]
    for wait_us, cost, changed in data.draw(
        st.lists(
            st.tuples(
                st.integers(0, former.period_us), st.integers(0, max(1, limit.quota, former.quota)), st.booleans()
            ),
            max_size=20,
        )
    ):
        clock.advance(wait_us)
        first, *others = (numbers(limiter.hit("key", cost)) for limiter in (all_after if changed else all_before))
        assert all(other == first for other in others)


@each_store
def test_a_limit_raised_and_lowered_across_the_border_forgives_no_usage(store: str) -> None:
    clock = ManualClock(START_US + 30_000_000)
    few = make_limiter(store, "5/minute", clock, name="api")
    many = Limiter("500/minute", store=few.store, clock=clock, name="api")
    assert [few.hit("key").allowed for _ in range(6)] == [True] * 5 + [False]
    assert many.peek("key", 0).remaining == 490  # five requests half a window ago weigh as ten of this window
    assert many.hit("key", 490)
    assert not many.hit("key")
    assert not few.hit("key")
    clock.advance(60_000_000)
    assert not few.hit("key")
    assert few.peek("key", 0).reset_after == 29.880_001  # when the counter would have dropped its last unit
    clock.advance(29_880_001)
    assert few.hit("key", 5)
