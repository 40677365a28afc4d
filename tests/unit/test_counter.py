"""The sliding window counter passes what its limit says: callers who keep to it, and the whole of it under load."""

from __future__ import annotations

import pytest

from headgate import SlidingWindow
from headgate.testing import ManualClock
from subjects import START_US, make_limiter

MINUTE_US = 60_000_000
RATES = (1, 2, 3, 5, 10, 12, 60)


@pytest.mark.parametrize("limit", RATES)
@pytest.mark.parametrize("phase", [0.000_001, 0.1, 0.5, 0.9, 0.999_999])
def test_a_client_that_sends_exactly_at_the_rate_always_passes(core: str, limit: int, phase: float) -> None:
    apart_us = MINUTE_US // limit
    clock = ManualClock(START_US + max(1, min(round(apart_us * phase), apart_us - 1)))
    limiter = make_limiter(core, SlidingWindow(limit=limit, period="minute"), clock)
    for _ in range(20 * limit):
        assert limiter.hit("client")
        clock.advance(apart_us)


@pytest.mark.parametrize("limit", RATES)
def test_a_client_that_sends_at_the_rate_and_exactly_on_the_border_is_refused_one_request_in_two_windows(
    core: str, limit: int
) -> None:
    clock = ManualClock(START_US)
    limiter = make_limiter(core, SlidingWindow(limit=limit, period="minute"), clock)
    refused = []
    for number in range(20 * limit):
        if not limiter.hit("client"):
            refused.append(number)
        clock.advance(MINUTE_US // limit)
    assert refused == [number * limit for number in range(1, 20, 2)]


@pytest.mark.parametrize("limit", [*RATES, 100, 1000])
def test_under_load_the_whole_limit_passes_in_every_window(core: str, limit: int) -> None:
    clock = ManualClock(START_US)
    limiter = make_limiter(core, SlidingWindow(limit=limit, period="minute"), clock)
    apart_us = MINUTE_US // (10 * limit)
    for _ in range(10):
        passed = 0
        for _ in range(10 * limit):
            passed += limiter.hit("client").allowed
            clock.advance(apart_us)
        assert passed == limit


@pytest.mark.parametrize(("periods", "healed"), [(1, False), (2, False), (3, True), (1000, True)])
def test_a_clock_that_steps_back_by_up_to_two_windows_forgives_nothing_and_a_state_further_ahead_is_healed(
    core: str, periods: int, healed: bool
) -> None:
    clock = ManualClock(1_800_000_000_000_000)  # a window's start
    limiter = make_limiter(core, "10/minute counter", clock)
    assert limiter.hit("key", 10)
    clock.advance(-periods * 60_000_000)
    refused = limiter.hit("key", 10)
    assert not refused
    # The first of ten units leaves after a tenth of the window that follows, the tenth a microsecond after nine tenths.
    assert refused.retry_after_us == (2 if healed else periods + 1) * 60_000_000 + 54_000_001
