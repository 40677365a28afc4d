"""The laws of giving back: at its own instant it is the inverse of a charge, later never more than is left of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bound_calls import give_back
from headgate import Limiter
from headgate.algorithms import stepwise
from headgate.algorithms.sliding_log import MOST_SINCE
from headgate.algorithms.transition import to_present, transition_of
from headgate.limits import CalendarWindow, FixedWindow, Limit, SlidingLog, SlidingWindow, StepwiseBucket
from headgate.testing import ManualClock
from headgate.units import LARGEST
from strategies import LONGEST_SCALE_US, ONE_LIMIT, ONE_OF_A_KIND, SEVERAL_LIMITS, history_of
from subjects import CORES, KINDS, deciding, make_limiter, numbers

needs_both = pytest.mark.skipif(len(CORES) < 2, reason="only the Python core is here")


class Pieces:
    """The charges that were not given back: the state that would exist without any other charge.

    A charge that was given back has still moved the state to its moment, unless no state is left, and a hit that
    charged nothing has moved a state from a clock once far ahead to the present: only a clock that steps back makes a
    difference.
    """

    def __init__(self, limit: Limit, *, steps_back: bool) -> None:
        self.steps_back = steps_back
        self.limit = limit.compiled
        self.algorithm = transition_of(limit.compiled)
        self.pieces: list[tuple[int, int] | int] = []
        """The moment of each hit, and what is left of its charge, if it charged anything."""
        self.charges: list[int] = []
        """Where each charge is among the pieces."""
        self.first = 0
        """The first piece that the state contains."""

    def charge(self, now_us: int, cost: int) -> None:
        self.charges.append(len(self.pieces))
        self.pieces.append((now_us, cost))

    def charge_nothing(self, now_us: int) -> None:
        self.pieces.append(now_us)

    def give_back(self, number: int, cost: int, now_us: int, state: Any) -> None:
        piece = self.pieces[self.charges[number]]
        assert isinstance(piece, tuple)
        self.pieces[self.charges[number]] = (piece[0], piece[1] - cost)
        if state is None and self.steps_back:
            self.first = len(self.pieces)

    def remaining(self, now_us: int) -> int:
        """The most that may remain."""
        limit, state = self.limit, None
        for piece in self.pieces[self.first :]:
            if isinstance(piece, tuple):
                moment, cost = piece[0] // limit.unit_us, piece[1]
                state = self.algorithm.charge(limit, self.algorithm.roll(limit, state, moment), moment, cost)
            elif state:  # a log may be empty
                state = to_present(limit, state, piece) or state
        now = now_us // limit.unit_us
        remaining: int = self.algorithm.measure(limit, self.algorithm.roll(limit, state, now), now)[0]
        return remaining


class Steps:
    """A bucket in steps with a count of them: the steps since a charge have given units of it back.

    A bucket without the charge cannot be the measure: its steps would have begun later, and less would be left.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit.compiled
        self.tokens, self.stepped, self.count = self.limit.quota, 0, 0
        self.charges: list[int] = []

    def roll(self, now_us: int) -> None:
        limit, now = self.limit, now_us // self.limit.unit_us
        if self.tokens < limit.quota and now >= self.stepped + limit.period:
            steps = (now - self.stepped) // limit.period
            self.count += min(steps, -(-(limit.quota - self.tokens) // limit.refill))
            self.tokens, self.stepped = self.tokens + steps * limit.refill, self.stepped + steps * limit.period
        elif self.stepped - now > -(-limit.quota // limit.refill) * limit.period:
            self.stepped = now
        if self.tokens >= limit.quota:
            self.tokens, self.stepped = limit.quota, now

    def charge(self, now_us: int, cost: int) -> None:
        self.roll(now_us)
        self.tokens -= cost
        self.charges.append(self.count)

    def charge_nothing(self, now_us: int) -> None:
        self.roll(now_us)

    def give_back(self, number: int, cost: int, now_us: int, state: Any) -> None:
        self.roll(now_us)
        left = max(0, cost - (self.count - self.charges[number]) * self.limit.refill)
        now = stepwise.roll(self.limit, state, now_us // self.limit.unit_us)[0]
        assert self.tokens <= now <= self.tokens + left
        self.tokens = now

    def remaining(self, now_us: int) -> int:
        """The most that may remain."""
        read = copy.copy(self)
        read.roll(now_us)
        return max(0, read.tokens)


class Caller:
    """Charges and gives back, by a clock of its own that never steps; records the pieces under each limit."""

    def __init__(self, limiter: Limiter, limits: list[Limit], clock: ManualClock, *, steps_back: bool = False) -> None:
        self.limiter = limiter
        self.clock = clock
        self.caller_us = 0
        self.all = [
            Steps(limit) if isinstance(limit, StepwiseBucket) else Pieces(limit, steps_back=steps_back)
            for limit in limits
        ]
        self.charges: list[tuple[int, int]] = []
        """The moment before each charge, by the caller's clock, and the units that are not given back yet."""

    def wait(self, wait_us: int) -> None:
        """Let time pass; a negative wait is a step of the store's clock alone."""
        self.clock.advance(wait_us)
        self.caller_us += max(0, wait_us)

    def hit(self, cost: int) -> None:
        charged = self.limiter.hit("key", cost) and cost
        if charged:
            self.charges.append((self.caller_us, cost))
        for pieces in self.all:
            if charged:
                pieces.charge(self.clock.now_us(), cost)
            else:
                pieces.charge_nothing(self.clock.now_us())

    def give_back(self, number: int, cost: int, more_us: int) -> None:
        called_us, left = self.charges[number]
        self.charges[number] = (called_us, left - cost)
        give_back(self.limiter._bound, ("key",), (cost,), self.caller_us - called_us + more_us)
        for pieces, state in zip(self.all, self.limiter._bound.read(("key",)), strict=True):
            pieces.give_back(number, cost, self.clock.now_us(), state)

    def act(self, data: st.DataObject, wait_us: int, cost: int, *, exactly: bool = False) -> None:
        """Wait, then charge, or give back all or a part of an earlier charge."""
        self.wait(wait_us)
        open_charges = [number for number, (_, left) in enumerate(self.charges) if left]
        if not open_charges or data.draw(st.booleans()):
            self.hit(cost)
            return
        number = data.draw(st.sampled_from(open_charges))
        left = self.charges[number][1]
        part = data.draw(st.one_of(st.just(left), st.integers(1, left)))
        scale = min(LONGEST_SCALE_US, self.limiter.limits[0].period_us)
        more_us = 0 if exactly else data.draw(st.one_of(st.sampled_from([0, 1, scale]), st.integers(0, scale)))
        self.give_back(number, part, more_us)

    def assert_never_better(self) -> None:
        """Assert that no limit has more left than with only the charges that were not given back."""
        for pieces, reading in zip(self.all, self.limiter.peek("key", 0).limits, strict=True):
            assert reading.remaining <= pieces.remaining(self.clock.now_us())


@given(limits=SEVERAL_LIMITS, data=st.data())
def test_identity_a_charge_given_back_at_its_own_instant_was_never_made(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    limiter, without = make_limiter(store_kind, limits, clock), make_limiter(store_kind, limits, clock)
    for wait_us, cost in data.draw(history_of(limits)):
        clock.advance(wait_us)
        before = numbers(limiter.peek("key", 0))
        if limiter.hit("key", cost):
            give_back(limiter._bound, ("key",), (cost,), 0)
        assert numbers(limiter.peek("key", 0)) == before
        other = data.draw(st.sampled_from([0, 1, cost]))
        assert numbers(limiter.hit("key", other)) == numbers(without.hit("key", other))


@given(limits=SEVERAL_LIMITS, back=st.booleans(), data=st.data())
def test_no_more_is_given_back_than_is_left_of_a_charge(
    store_kind: str, limits: list[Limit], back: bool, data: st.DataObject
) -> None:
    clock = ManualClock()
    caller = Caller(make_limiter(store_kind, limits, clock), limits, clock, steps_back=back)
    for wait_us, cost in data.draw(history_of(limits, back=back, max_size=30)):
        caller.act(data, wait_us, cost)
        caller.assert_never_better()


@given(limit=ONE_LIMIT, data=st.data())
def test_ceiling_holds_for_units_that_were_admitted_and_not_given_back(
    store_kind: str, limit: Limit, data: st.DataObject
) -> None:
    clock = ManualClock()
    caller = Caller(make_limiter(store_kind, limit, clock), [limit], clock)
    for wait_us, cost in data.draw(history_of([limit], max_size=15)):
        caller.act(data, wait_us, cost)
    first = len(caller.charges)
    for _, cost in data.draw(history_of([limit], max_size=15)):
        caller.act(data, 0, cost)
        assert sum(left for _, left in caller.charges[first:]) <= limit.quota


WINDOWS = (FixedWindow, SlidingLog, SlidingWindow, CalendarWindow)


@given(limit=st.one_of(*(ONE_OF_A_KIND[kind] for kind in WINDOWS)), data=st.data())
def test_windows_give_back_all_that_is_left_of_a_charge_of_known_time(
    store_kind: str, limit: Limit, data: st.DataObject
) -> None:
    clock = ManualClock()
    caller = Caller(make_limiter(store_kind, limit, clock), [limit], clock)
    for wait_us, cost in data.draw(history_of([limit], max_size=30)):
        caller.act(data, wait_us, cost, exactly=True)
        assert caller.limiter.peek("key", 0).limits[0].remaining == caller.all[0].remaining(clock.now_us())


@needs_both
@given(limits=SEVERAL_LIMITS, back=st.booleans(), data=st.data())
def test_all_stores_agree_on_what_is_given_back_for_any_arguments(
    limits: list[Limit], back: bool, data: st.DataObject
) -> None:
    clock = ManualClock()
    limiters = [make_limiter(kind, limits, clock) for kind in deciding(KINDS)]
    spans = st.one_of(st.just(0), st.integers(0, 3 * max(limit.period_us for limit in limits)), st.just(LARGEST))
    for wait_us, cost in data.draw(history_of(limits, back=back, max_size=30)):
        clock.advance(wait_us)
        ago_us = data.draw(st.one_of(st.none(), spans))
        charged = data.draw(st.one_of(st.none(), st.tuples(*(st.booleans() for _ in limits))))
        if ago_us is not None:
            for limiter in limiters:
                give_back(limiter._bound, ("key",), (cost,), ago_us, charged=charged)
        assert_same([numbers(limiter.hit("key", 0 if ago_us is not None else cost)) for limiter in limiters])
        assert_same([limiter._bound.read(("key",)) for limiter in limiters])


@needs_both
@pytest.mark.parametrize("since", [0, 1, 6, 7, 8, MOST_SINCE - 1, MOST_SINCE, MOST_SINCE + 1, MOST_SINCE + 40])
@pytest.mark.parametrize("cost", [1, 3, 8, 30, 1000])
def test_all_stores_agree_on_long_logs(since: int, cost: int) -> None:
    clock = ManualClock()
    limiters = [make_limiter(kind, "1000/minute log", clock) for kind in deciding(KINDS)]
    for number in range(MOST_SINCE + 60):
        clock.advance(10)
        for limiter in limiters:
            limiter.hit("key", number % 3 + 1)
    for limiter in limiters:
        give_back(limiter._bound, ("key",), (cost,), 10 * since + 5)
    assert_same([limiter._bound.read(("key",)) for limiter in limiters])
    costs = [number % 3 + 1 for number in range(MOST_SINCE + 60)]
    given_back = min(cost, sum(costs[-MOST_SINCE:])) if since + 1 < MOST_SINCE else 0
    assert limiters[0].peek("key", 0).limits[0].remaining == 1000 - sum(costs) + given_back
    for limiter in limiters:  # later charges agree, too
        limiter.hit("key", 5)
    clock.advance(60_000_000 - 10 * MOST_SINCE)
    assert_same([numbers(limiter.hit("key")) for limiter in limiters])
    assert_same([limiter._bound.read(("key",)) for limiter in limiters])


def assert_same(values: list[Any]) -> None:
    first, *others = values
    assert others
    for other in others:
        assert other == first
