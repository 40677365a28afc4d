"""A state that a clock once far ahead wrote recovers: refusals state correct waits, on every store."""

from __future__ import annotations

import pytest

from headgate import Limiter
from headgate.testing import ManualClock
from subjects import START_US, make_limiter

HOUR_US = 3_600_000_000
LIMITS = (
    "1/second burst 10",
    "1/second leaky 10",
    "1/second queue 9",
    "3/second burst 10 stepwise",
    "10/minute fixed",
    "10/minute",
    "10/minute counter",
    "1000 per 100 seconds log",
    "1/second burst 10; 10/minute; 10/minute counter; 10/minute fixed",
)


def full(limiter: Limiter) -> int:
    return min(limit.quota for limit in limiter.limits)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("steps", [1, 3])
def test_usage_by_a_clock_far_ahead_ends_after_the_reported_time(store_kind: str, limits: str, steps: int) -> None:
    clock = ManualClock(START_US + HOUR_US)
    limiter = make_limiter(store_kind, limits, clock)
    for _ in range(steps):
        limiter.hit("key", full(limiter) // steps)
        clock.advance(10)
    limiter.hit("key", limiter.peek("key", 0).remaining or 0)
    assert not limiter.hit("key")
    clock.set(START_US)
    for _ in range(12):
        refusal = limiter.hit("key")
        if refusal:
            break
        assert refusal.retry_after_us
        clock.advance(refusal.retry_after_us - 1)
        assert not limiter.hit("key")
        clock.advance(1)
        assert limiter.peek("key")
    assert refusal
    clock.advance(300_000_000)
    assert limiter.peek("key", 0).reset_after_us == 0


@pytest.mark.parametrize("limits", LIMITS)
def test_a_refusal_of_any_kind_brings_a_state_to_the_present_and_a_peek_changes_nothing(
    store_kind: str, limits: str
) -> None:
    clock = ManualClock(START_US + HOUR_US)
    limiter = make_limiter(store_kind, limits, clock)
    limiter.hit("key", full(limiter))
    clock.set(START_US)
    before = limiter._bound.read(("key",))
    peeked = limiter.peek("key")
    assert limiter._bound.read(("key",)) == before
    assert limiter.hit("key").retry_after_us == peeked.retry_after_us
    clock.advance((peeked.retry_after_us or 0) - 1)
    assert not limiter.peek("key")
    clock.advance(1)
    assert limiter.hit("key")
