"""Buckets that are refilled in whole steps match the reference, and never admit more than their steps add."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import Limiter, TokenBucket
from headgate.limits import StepwiseBucket
from headgate.operation import Receipt
from headgate.testing import ManualClock
from strategies import ONE_OF_A_KIND, history_of
from subjects import make_limiter

State = tuple[int, int] | None
MINUTE_US = 60_000_000


def ceil_div(a: int, b: int) -> int:
    return -((-a) // b)


def intervally(s: State, now: int, n: int, B: int, r: int, P: int) -> tuple[State, bool, int, int, int | None]:  # noqa: N803
    """The reference of appendix A.1, verbatim: (state, allowed, remaining, reset_after, retry_after)."""
    if s is None:
        c, t = B, now
    else:
        c, t = s
        if now >= t + P:
            k = (now - t) // P
            c, t = min(B, c + k * r), t + k * P
        if c == B:
            t = now
    ok = c >= n
    retry = 0 if ok else (None if n > B else t + ceil_div(n - c, r) * P - now)
    if ok:
        c -= n
    return ((c, t) if c < B else None), ok, c, 0 if c == B else t + ceil_div(B - c, r) * P - now, retry


@given(
    limit=ONE_OF_A_KIND[StepwiseBucket].filter(lambda limit: limit.compiled.unit_us == 1),
    back=st.booleans(),
    data=st.data(),
)
def test_every_answer_is_that_of_the_reference(
    store_kind: str, limit: StepwiseBucket, back: bool, data: st.DataObject
) -> None:
    clock, state = ManualClock(), None
    limiter = make_limiter(store_kind, limit, clock)
    numbers = (limit.capacity, limit.refill, limit.period_us)
    for wait_us, cost in data.draw(history_of([limit], back=back, max_size=40)):
        clock.advance(wait_us)
        # A state from a clock far ahead is moved to the present, which the reference does not do.
        assume(state is None or state[1] - clock.now_us() <= ceil_div(limit.capacity, limit.refill) * limit.period_us)
        after, *expected = intervally(state, clock.now_us(), cost, *numbers)
        state = after if expected[0] and cost else state  # a request that charges nothing stores nothing
        reading = limiter.hit("key", cost).limits[0]
        result = [reading.allowed, reading.remaining, reading.reset_after_us, reading.retry_after_us]
        assert result == expected


@given(capacity=st.integers(1, 12), refill=st.integers(1, 12), waits=st.lists(st.integers(0, 150_000_000), max_size=40))
def test_after_a_full_bucket_no_more_passes_than_its_capacity_and_the_refills_of_its_steps(
    store_kind: str, capacity: int, refill: int, waits: list[int]
) -> None:
    clock = ManualClock()
    limit = TokenBucket(capacity=capacity, refill=refill, period="minute", stepwise=True)
    limiter = make_limiter(store_kind, limit, clock)
    first_us: int | None = None
    passed = 0
    for wait_us in waits:
        clock.advance(wait_us)
        if limiter.peek("key", 0).remaining == capacity:
            first_us, passed = None, 0
        while limiter.hit("key"):
            first_us = first_us or clock.now_us()
            passed += 1
        assert first_us is not None
        assert passed == capacity + (clock.now_us() - first_us) // MINUTE_US * refill


def test_the_steps_begin_anew_with_the_first_charge_of_a_full_bucket(store_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, "10/minute burst 30 stepwise", clock)
    assert limiter.hit("key", 15).remaining == 15
    clock.advance(MINUTE_US - 1)
    assert limiter.peek("key", 0).remaining == 15
    clock.advance(1)
    assert limiter.peek("key", 0).remaining == 25
    clock.advance(MINUTE_US)
    assert limiter.peek("key", 0).remaining == 30
    clock.advance(MINUTE_US // 2)
    assert limiter.hit("key").limits[0].next_after_us == MINUTE_US


def test_a_bucket_in_steps_keeps_its_tokens_when_its_numbers_change(store_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, "10/minute burst 30 stepwise", clock, name="api")
    limiter.hit("key", 25)

    def changed(text: str) -> tuple[int | None, int | None]:
        decision = Limiter(text, store=limiter.store, name="api", clock=clock).peek("key", 0)
        return decision.remaining, decision.reset_after_us

    clock.advance(MINUTE_US + 1)
    assert changed("10/minute burst 30 stepwise") == (15, 2 * MINUTE_US - 1)
    assert changed("10/minute burst 100 stepwise") == (15, 9 * MINUTE_US - 1)
    assert changed("20/hour burst 40 stepwise") == (15, 120 * MINUTE_US - 1)
    assert changed("10/minute burst 12 stepwise") == (12, 0)


@pytest.mark.parametrize("ago_us", [0, 5])
def test_a_charge_is_given_back_in_full_unless_a_step_may_have_followed(store_kind: str, ago_us: int) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, "2/minute burst 9 stepwise", clock)
    limiter.hit("key", 3)
    clock.advance(MINUTE_US // 2)
    limiter.hit("key", 3)
    limiter._bound.give_back(_receipt(3), ago_us)
    assert limiter.peek("key", 0).remaining == 6
    clock.advance(MINUTE_US // 2)
    limiter._bound.give_back(_receipt(3), MINUTE_US + ago_us)
    assert limiter.peek("key", 0).remaining == (9 if ago_us == 0 else 8), "the beginning may have been a step, too"


def _receipt(cost: int) -> Receipt:
    return Receipt(("key",), (cost,))
