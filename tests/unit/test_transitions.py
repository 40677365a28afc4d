"""The pure transitions at their borders, by hand: after steps of the clock, changes of numbers, and giving back."""

from __future__ import annotations

import pytest

from headgate.algorithms import (
    fixed_window,
    leaky_queue,
    sliding_conversion,
    sliding_log,
    sliding_window,
    token_bucket,
    transition,
)
from headgate.algorithms.sliding_log import MOST_SINCE
from headgate.units import LARGEST, CompiledLimit

FIXED = CompiledLimit("fixed_window", 1, 10, 100)
COUNTER = CompiledLimit("sliding_window", 1, 10, 100)
LOG = CompiledLimit("sliding_log", 1, 10, 100)
BUCKET = CompiledLimit("token_bucket", 1, 10, 100, refill=1)


def same(given: object, right: object) -> bool:
    """Whether both are written alike: 5.0 is no state, though it equals 5."""
    return repr(given) == repr(right)


@pytest.mark.parametrize(("now", "state"), [(450, (5, 3)), (300, (5, 3)), (299, (2, 3)), (600, (6, 0))])
def test_a_fixed_window_waits_for_a_clock_that_is_two_windows_behind_and_no_more(
    now: int, state: tuple[int, int]
) -> None:
    assert same(fixed_window.roll(FIXED, (5, 3), now), state)


@pytest.mark.parametrize(
    ("unit_us", "now_us", "count", "state"),
    [
        (1, 520, 3, (8, 3)),
        (1, 550, 1, (9, 1)),
        (1, 470, 3, (8, 3)),  # the clock is behind: what was used counts from the start of its window
        (1_000, 470_000, 3, (8_333, 3)),
        (1, 520, 0, None),
        (1, 600, 3, None),
    ],
)
def test_a_fixed_window_of_another_period_keeps_what_its_live_window_used(
    unit_us: int, now_us: int, count: int, state: tuple[int, int] | None
) -> None:
    former = CompiledLimit("fixed_window", unit_us, 10, 100)
    limit = CompiledLimit("fixed_window", 1, 10, 60)
    assert same(fixed_window.convert(limit, (5, count), now_us, former), state)


@pytest.mark.parametrize(
    ("period", "former_state", "now", "state"),
    [
        (60, (5, 3, 4), 550, (9, 5, 0)),
        (60, (5, 1, 0), 550, (9, 1, 0)),
        (60, (5, 3, 4), 470, (8, 7, 0)),  # the clock is behind: all of the last window counts
        (60, (5, 0, 1), 550, None),
        (LARGEST // 2, (5, 9, 0), 550, (0, 2, 0)),  # as much as can be weighed
    ],
)
def test_a_counter_of_another_period_keeps_what_counts(
    period: int, former_state: sliding_window.State, now: int, state: sliding_window.State | None
) -> None:
    limit = CompiledLimit("sliding_window", 1, 10, period)
    assert same(sliding_window.convert(limit, former_state, now, COUNTER), state)


@pytest.mark.parametrize(
    ("earliest", "state"), [(550, (5, 1, 4)), (450, (5, 3, 2)), (399, (5, 3, 4)), (600, (5, 3, 4))]
)
def test_a_counter_is_given_back_to_the_window_of_the_charge(earliest: int, state: sliding_window.State) -> None:
    assert same(sliding_window.give_back(COUNTER, (5, 3, 4), 560, 2, earliest), state)


def test_a_counter_that_is_given_back_more_than_it_holds_holds_nothing() -> None:
    assert sliding_window.give_back(COUNTER, (5, 0, 2), 560, 3, 450) is None
    assert same(sliding_window.give_back(COUNTER, (5, 1, 2), 560, 3, 450), (5, 1, 0))


def test_a_charge_that_has_flowed_back_leaves_a_bucket_as_it_is() -> None:
    assert same(token_bucket.give_back(BUCKET, (500, 700), 700, 2, 100), (500, 700))
    assert same(token_bucket.give_back(BUCKET, (500, 700), 700, 2, 601), (601, 700))


def test_no_request_waits_in_an_empty_queue_at_any_time() -> None:
    assert leaky_queue.delay(BUCKET, (BUCKET.full, 700), 600) == 0


TWO = ((500, 3), (550, 2))


@pytest.mark.parametrize(
    ("state", "now", "cost", "earliest", "expected"),
    [
        (((500, 3),), 600, 3, 600, ((500, 3),)),  # a whole period old: it may have left
        (TWO, 600, 3, 500, TWO),
        (TWO, 599, 3, 500, ((550, 2),)),
        (TWO, 560, 4, 500, ((550, 1),)),
        (TWO, 560, 3, 501, ((500, 2),)),  # two units of its own time, and one of before
        (((480, 1), (500, 2), (520, 3)), 560, 1, 530, ((480, 1), (500, 2), (520, 2))),
        (((480, 1), (500, 2), (520, 3)), 560, 4, 530, ((480, 1), (500, 1))),
        (TWO, 560, 9, 500, None),
    ],
)
def test_a_log_gives_back_the_oldest_since_the_charge_and_then_the_newest_before(
    state: sliding_log.State, now: int, cost: int, earliest: int, expected: sliding_log.State | None
) -> None:
    assert same(sliding_log.give_back(LOG, state, now, cost, earliest), expected)


def test_a_moment_within_a_unit_of_a_limit_is_the_start_of_that_unit() -> None:
    log = CompiledLimit("sliding_log", 1_000, 10, 100)
    bucket = CompiledLimit("token_bucket", 1_000, 10, 100, refill=1)
    assert same(transition.give_back(log, TWO, 560_400, 3, 500_700, log), ((550, 2),))
    assert same(transition.give_back(bucket, (500, 700), 700_900, 2, 601_300, bucket), (601, 700))
    assert same(transition.measure_us(bucket, (500, 700), 700_900), (5, 499_100))


@pytest.mark.parametrize(("earliest", "gone"), [(301, ()), (302, (302,)), (400, (400,))])
def test_a_charge_with_too_many_entries_since_is_not_given_back(earliest: int, gone: tuple[int, ...]) -> None:
    limit = CompiledLimit("sliding_log", 1, 1_000, 1_000)
    state = tuple((time, 1) for time in range(300, 301 + MOST_SINCE))
    left = tuple(entry for entry in state if entry[0] not in gone)
    assert same(sliding_log.give_back(limit, state, 510, 1, earliest), left)


ENTRIES = ((510, 2), (575, 4))


@pytest.mark.parametrize(
    ("quota", "state"),
    [
        (30, (5, 24, 0)),  # 6 * 100 / 26: the share of it that counts is 6 until 75 of the next window
        (24, (5, 24, 0)),
        (23, (6, 6, 0)),  # so many would use up a limit that has room
        (7, (6, 6, 0)),
        (6, (5, 24, 0)),  # it has no room
    ],
)
@pytest.mark.parametrize("unit_us", [1, 1_000])
def test_a_counter_that_takes_over_from_a_log_counts_all_until_the_newest_has_left(
    unit_us: int, quota: int, state: sliding_window.State
) -> None:
    limit = CompiledLimit("sliding_window", unit_us, quota, 100)
    former = CompiledLimit("sliding_log", 1, 10, 100 * unit_us)
    entries = tuple((time * unit_us, cost) for time, cost in ENTRIES)
    assert same(sliding_conversion.counter_of_log(limit, entries, 580 * unit_us, former), state)


def test_a_counter_of_a_shorter_period_forgets_what_has_left_that() -> None:
    limit = CompiledLimit("sliding_window", 1, 30, 50)
    assert same(sliding_conversion.counter_of_log(limit, ENTRIES, 580, LOG), (11, 8, 0))


def test_a_counter_takes_over_as_much_as_it_can_weigh() -> None:
    period = LARGEST // 6
    limit, former = CompiledLimit("sliding_window", 1, 5, period), CompiledLimit("sliding_log", 1, 10, period)
    assert same(sliding_conversion.counter_of_log(limit, ((0, 9),), 0, former), (0, 6, 0))


@pytest.mark.parametrize(
    ("period_us", "entry"),
    [
        (100_000, (576_000, 4)),  # the counter would have dropped its last unit at 676
        (50_000, (550_000, 4)),
        (200_000, (550_000, 4)),
    ],
)
def test_a_log_that_takes_over_from_a_counter_holds_what_counts_until_that_would_have_left(
    period_us: int, entry: tuple[int, int]
) -> None:
    former = CompiledLimit("sliding_window", 1_000, 10, 100)
    limit = CompiledLimit("sliding_log", 1, 10, period_us)
    assert same(sliding_conversion.log_of_counter(limit, (5, 4, 0), 550_000, former), (entry,))


@pytest.mark.parametrize("state", [(5, 3, 4), (5, 10, 0), (5, 0, 9), (5, 9, 9)])
@pytest.mark.parametrize("now", [420, 499, 500, 501, 577, 599])
def test_a_counter_reports_its_times_after_its_clock_stepped_back(now: int, state: sliding_window.State) -> None:
    def passes(at: int, cost: int) -> bool:
        return sliding_window.admit(COUNTER, sliding_window.roll(COUNTER, state, at), at, cost) == 0

    for cost in range(1, 11):
        wait = sliding_window.admit(COUNTER, state, now, cost)
        assert wait == next(later for later in range(400) if passes(now + later, cost))
    remaining, reset_after, next_after = sliding_window.measure(COUNTER, state, now)
    assert remaining == max([0, *(cost for cost in range(1, 11) if passes(now, cost))])
    assert reset_after == next(
        later for later in range(400) if sliding_window.roll(COUNTER, state, now + later)[1:] == (0, 0)
    )
    if remaining == 10:
        assert next_after == reset_after, "no more can remain"
    else:
        assert next_after == next(later for later in range(400) if passes(now + later, remaining + 1))


@pytest.mark.parametrize("limit", [FIXED, COUNTER, LOG, BUCKET], ids=lambda limit: limit.algorithm)
def test_an_unused_limit_has_nothing_to_replenish(limit: CompiledLimit) -> None:
    algorithm = transition.transition_of(limit)
    assert algorithm.measure(limit, algorithm.roll(limit, None, 570), 570) == (10, 0, 0)


def test_a_log_with_more_than_its_limit_reports_when_one_more_passes() -> None:
    state = tuple((500 + number, 1) for number in range(15))  # it was written under a higher limit
    for now in (520, 599, 600, 604, 605, 610):
        live = sliding_log.roll(LOG, state, now)
        remaining, reset_after, next_after = sliding_log.measure(LOG, live, now)
        assert reset_after == 614 - now
        wanted = remaining + 1
        assert next_after == next(
            later
            for later in range(200)
            if sliding_log.admit(LOG, sliding_log.roll(LOG, live, now + later), now + later, wanted) == 0
        )
