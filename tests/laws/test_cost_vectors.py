"""The law of units: one decision of several units is what limiters of one unit each would decide together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter
from headgate.costs import ReadCosts
from headgate.decision import Decision
from headgate.limits import Limit, units_of
from headgate.testing import ManualClock
from strategies import ONE_LIMIT, SEVERAL_LIMITS, counting, history_of
from subjects import make_limiter, numbers

THREE = ("requests", "tokens", "usd")
LIMITS = st.lists(st.builds(counting, ONE_LIMIT, st.sampled_from(THREE)), min_size=1, max_size=5)


def by_unit(decision: Decision, unit: str) -> list[tuple[object, ...]]:
    """The numbers of the limits that count a unit."""
    return [
        (
            reading.allowed,
            reading.remaining,
            reading.reset_after_us,
            reading.retry_after_us,
            reading.next_after_us,
            reading.delay_us,
        )
        for reading in decision.limits
        if reading.unit == unit
    ]


@given(limits=LIMITS, data=st.data())
def test_a_decision_of_several_units_is_that_of_limiters_of_one_unit_each_all_or_nothing(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    together = make_limiter(store_kind, limits, clock)
    units = units_of(limits)
    apart: dict[str, Limiter] = {
        unit: make_limiter(store_kind, [limit for limit in limits if limit.of == unit], clock) for unit in units
    }
    histories = {unit: data.draw(history_of(list(apart[unit].limits), max_size=12)) for unit in units}
    for steps in zip(*histories.values(), strict=False):
        clock.advance(steps[0][0])
        costs = {unit: cost for unit, (_, cost) in zip(units, steps, strict=True)}
        peeks = {unit: limiter.peek("key", ReadCosts({unit: costs[unit]})) for unit, limiter in apart.items()}
        decision = together.hit("key", ReadCosts(costs))
        assert decision.allowed == all(own.allowed for own in peeks.values())
        for unit, limiter in apart.items():
            if decision.allowed:
                own = limiter.hit("key", ReadCosts({unit: costs[unit]}))
                assert by_unit(decision, unit) == by_unit(own, unit)
            else:
                refusals = [(reading[0], reading[3]) for reading in by_unit(decision, unit)]
                assert refusals == [(reading[0], reading[3]) for reading in by_unit(peeks[unit], unit)]
            remaining = together.peek("key", ReadCosts(dict.fromkeys(units, 0)))
            assert by_unit(remaining, unit) == by_unit(limiter.peek("key", ReadCosts({unit: 0})), unit)


@given(limits=SEVERAL_LIMITS, of=st.sampled_from(THREE), data=st.data())
def test_the_unit_changes_no_number(store_kind: str, limits: list[Limit], of: str, data: st.DataObject) -> None:
    clock = ManualClock()
    plain = make_limiter(store_kind, limits, clock)
    other = make_limiter(store_kind, [counting(limit, of) for limit in limits], clock)
    for wait_us, cost in data.draw(history_of(limits)):
        clock.advance(wait_us)
        plain_numbers, other_numbers = numbers(plain.hit("key", cost)), numbers(other.hit("key", ReadCosts({of: cost})))
        for name in ("allowed", "remaining", "reset_after_us", "retry_after_us", "delay_us", "limit"):
            assert plain_numbers[name] == other_numbers[name]


@given(limits=LIMITS, data=st.data())
def test_units_that_are_given_back_count_as_never_charged(
    store_kind: str, limits: list[Limit], data: st.DataObject
) -> None:
    clock = ManualClock()
    charged, untouched = make_limiter(store_kind, limits, clock), make_limiter(store_kind, limits, clock)
    units = units_of(limits)
    costs = {unit: data.draw(st.integers(0, 12)) for unit in units}
    decision = charged.hit("key", ReadCosts(costs))
    if decision.allowed:
        charged.give_back("key", ReadCosts(costs), 0, decision)
    nothing = ReadCosts(dict.fromkeys(units, 0))
    assert [reading.remaining for reading in charged.peek("key", nothing).limits] == [
        reading.remaining for reading in untouched.peek("key", nothing).limits
    ]
