"""The state of a client: holds, a retry budget, and the outcomes of a server; all of it is bounded."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ArgumentError
from headgate.http.client.destinations import (
    BUCKET_US,
    MOST_RETRIES_SAVED,
    RETRIES_AT_FIRST,
    Budget,
    Destination,
    Destinations,
    Throttle,
)

NOW_US = 1_800_000_000_000_000
WINDOW_US = 120_000_000


def new_destinations(most: int = 4096) -> Destinations:
    return Destinations(retry_budget=0.1, adaptive_k=None, most=most)


def test_a_hold_lasts_and_only_a_longer_one_replaces_it() -> None:
    destination = Destination(NOW_US, retry_budget=0.1, adaptive_k=None)
    assert destination.held_until_us <= NOW_US
    destination.hold(NOW_US, 3_000_000)
    destination.hold(NOW_US, 1_000_000)
    assert (destination.held_until_us, destination.spread_us) == (NOW_US + 3_000_000, 300_000)
    destination.hold(NOW_US + 1, 3_600_000_000)
    assert (destination.held_until_us, destination.spread_us) == (NOW_US + 1 + 3_600_000_000, 1_000_000)


def test_each_key_has_its_own_destination() -> None:
    destinations = new_destinations()
    assert destinations.of(("a", "b"), NOW_US) is destinations.of(("a", "b"), NOW_US)
    assert destinations.of(("a", "b"), NOW_US) is not destinations.of("a|b", NOW_US)
    with pytest.raises(ArgumentError, match="a key is empty"):
        destinations.of("", NOW_US)


def test_destinations_are_bounded_and_those_on_hold_stay() -> None:
    destinations = new_destinations(most=10)
    held = destinations.of("held", NOW_US)
    held.hold(NOW_US, 1_000_000)
    for number in range(1000):
        destinations.of(f"key{number}", NOW_US)
    assert len(destinations) == 10
    assert destinations.of("held", NOW_US) is held
    for number in range(1000):
        destinations.of(f"held{number}", NOW_US).hold(NOW_US, 1_000_000)
    assert len(destinations) == 10, "even if all are held"


def test_a_destination_in_use_is_not_the_one_removed() -> None:
    destinations = new_destinations(most=3)
    used = destinations.of("used", NOW_US)
    for number in range(10):
        destinations.of(f"key{number}", NOW_US)
        assert destinations.of("used", NOW_US) is used


# --- the budget


def test_retries_are_a_share_of_the_calls() -> None:
    budget = Budget(0.1, NOW_US)
    retries = 0
    for _ in range(10_000):
        budget.add_call()
        retries += budget.take(NOW_US)
    assert retries == pytest.approx(1000 + RETRIES_AT_FIRST, abs=1)


def test_a_key_that_is_seldom_called_may_retry_every_time() -> None:
    budget = Budget(0.1, NOW_US)
    for minute in range(1000):
        budget.add_call()
        assert budget.take(NOW_US + minute * 60_000_000)


def test_saved_retries_are_bounded_and_time_alone_saves_no_more_than_at_first() -> None:
    budget = Budget(1, NOW_US)
    for _ in range(10_000):
        budget.add_call()
    budget.give_back()
    assert taken(budget, NOW_US) == MOST_RETRIES_SAVED
    assert taken(budget, NOW_US + 10**12) == RETRIES_AT_FIRST


def test_a_clock_that_goes_back_gives_no_retries() -> None:
    budget = Budget(0, NOW_US)
    assert taken(budget, NOW_US) == RETRIES_AT_FIRST
    assert taken(budget, NOW_US - 10**9) == 0
    assert taken(budget, NOW_US) == 0


def taken(budget: Budget, now_us: int) -> int:
    count = 0
    while budget.take(now_us):
        count += 1
    return count


# --- the throttle


def chance_of(requests: int, accepts: int, k: float = 2) -> float:
    throttle = Throttle(k)
    for number in range(requests):
        throttle.count(NOW_US, accepted=number < accepts)
    return throttle.chance(NOW_US)


@pytest.mark.parametrize(
    ("requests", "accepts", "k", "chance"),
    [(0, 0, 2, 0), (10, 10, 2, 0), (10, 5, 2, 0), (10, 4, 2, 2 / 11), (99, 0, 2, 0.99), (10, 9, 1.1, 0.1 / 11)],
)
def test_the_chance_is_that_of_the_book(requests: int, accepts: int, k: float, chance: float) -> None:
    assert chance_of(requests, accepts, k) == pytest.approx(chance)


@given(st.lists(st.tuples(st.integers(0, 150_000_000), st.booleans()), max_size=60))
def test_the_last_two_minutes_count_and_nothing_else(history: list[tuple[int, bool]]) -> None:
    throttle, now_us, counted = Throttle(2), NOW_US, []
    for wait_us, accepted in history:
        now_us += wait_us
        throttle.count(now_us, accepted=accepted)
        counted.append((now_us, accepted))
        since_us = (now_us // BUCKET_US + 1) * BUCKET_US - WINDOW_US
        recent = [accepts for moment_us, accepts in counted if moment_us >= since_us]
        expected = max(0, (len(recent) - 2 * sum(recent)) / (len(recent) + 1))
        assert throttle.chance(now_us) == pytest.approx(expected)


def test_a_clock_that_goes_back_forgets_nothing() -> None:
    throttle = Throttle(2)
    throttle.count(NOW_US, accepted=False)
    throttle.count(NOW_US - 10**9, accepted=False)
    assert throttle.chance(NOW_US - 10**9) == throttle.chance(NOW_US) == pytest.approx(2 / 3)


def test_a_rejected_call_counts_as_a_request_and_two_minutes_of_quiet_forgive() -> None:
    destination = Destination(NOW_US, retry_budget=0.1, adaptive_k=2)
    for _ in range(9):
        destination.count(NOW_US, accepted=False)
    assert destination.rejects(NOW_US, lambda: 0.89) == pytest.approx(0.9)
    assert destination.rejects(NOW_US, lambda: 0.91) == 0, "10 of 11 by now"
    assert destination.rejects(NOW_US, lambda: 0.90) == pytest.approx(10 / 11)
    assert destination.rejects(NOW_US + WINDOW_US, lambda: 0.0) == 0


def test_in_the_long_run_half_of_the_sent_requests_are_refused_under_overload() -> None:
    """K = 2 lets as many refusals through as there are accepts: the server's load is bounded by its capacity."""
    destination = Destination(NOW_US, retry_budget=0.1, adaptive_k=2)
    dice = random.Random(7)
    sent = accepted = 0
    for step in range(120_000):  # 1000 a second for two minutes, of which the server takes 100
        now_us = NOW_US + step * 1000
        if not destination.rejects(now_us, dice.random):
            sent += 1
            takes = accepted < step / 10
            accepted += takes
            destination.count(now_us, accepted=takes)
    assert accepted == pytest.approx(12_000, rel=0.02)
    assert sent == pytest.approx(24_000, rel=0.1)


def test_threads_lose_no_counts() -> None:
    destination = Destination(NOW_US, retry_budget=0, adaptive_k=1000)

    def count() -> None:
        for _ in range(2000):
            destination.count(NOW_US, accepted=False)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert destination.rejects(NOW_US, lambda: 0.0) == pytest.approx(8000 / 8001, abs=1e-9)
