"""What is held in several units, and where places in flight can be used so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from headgate import ArgumentError, AsyncLimiter, Limiter, MemoryStore
from headgate.testing import ManualClock
from subjects import CORES, REDIS, make_limiter, make_store

DAY_US = 86_400_000_000

LIMITS = "60/minute fixed; 90000 tokens/minute bucket; 20 usd/day fixed; 5 concurrent"


def left(limiter: Limiter) -> list[int]:
    return [reading.remaining for reading in limiter.peek("key", {"requests": 0}).limits]


def test_a_hold_of_several_units_is_settled_in_each_of_them(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, LIMITS, ManualClock())
    held = limiter.reserve("key", {"tokens": 900, "usd": "0.5"})
    assert held and left(limiter) == [59, 89_100, 19_500_000_000, 4]
    assert held.extend(more={"tokens": 100}).outcome == "extended"
    assert left(limiter) == [59, 89_000, 19_500_000_000, 4]
    settlement = held.commit({"tokens": 412, "usd": Decimal("0.1")})
    assert (settlement.outcome, settlement.actuals) == ("settled", (1, 412, 100_000_000))
    assert left(limiter) == [59, 89_588, 19_900_000_000, 5]
    again = limiter.commit(held.id, {"tokens": 1})
    assert (again.outcome, again.actuals) == ("already settled", (1, 412, 100_000_000))


def test_units_that_a_settlement_does_not_name_are_settled_as_held(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, LIMITS, ManualClock())
    held = limiter.reserve("key", {"requests": 2, "tokens": 900})
    assert limiter.commit(held.id, {}).actuals == (2, 900, 0)
    number = limiter.reserve("key", {"requests": 2, "tokens": 900})
    assert limiter.commit(number.id, 1).actuals == (1, 900, 0)


@pytest.mark.parametrize("cost", [900, {"tokens": 900}])
def test_a_mapping_may_name_the_only_unit(holding_kind: str, cost: Any) -> None:
    limiter = make_limiter(holding_kind, "9000 tokens/minute fixed", ManualClock())
    held = limiter.reserve("key", cost)
    assert held.extend(more={"tokens": 100}).outcome == "extended" and held.extend(more={}).outcome == "extended"
    assert limiter.extend(held.id, more={"tokens": 7}).outcome == "extended"
    for bad in ({"tokens": 1.5}, {"tokens": True}, {"requests": 1}, {"token": 1}):
        calls: list[Callable[[Any], object]] = [
            lambda amount: limiter.reserve("key", amount),
            lambda amount: held.extend(more=amount),
            lambda amount: limiter.extend(held.id, more=amount),
            held.commit,
            lambda amount: limiter.commit(held.id, amount),
        ]
        for call in calls:
            with pytest.raises(ArgumentError, match="tokens"):
                call(bad)
    assert limiter.peek("key", 0).remaining == 7_993
    assert held.commit({"tokens": 412}).actual == 412
    assert limiter.commit(limiter.reserve("key", 500).id, {"tokens": 88}).actual == 88
    assert limiter.commit(limiter.reserve("key", {}).id, {}).actual == 1
    assert limiter.peek("key", 0).remaining == 8_499


@pytest.mark.parametrize("kind", [*CORES, *(kind for kind in REDIS if kind == "redis")])
def test_a_mapping_may_name_the_only_unit_on_an_event_loop(kind: str) -> None:
    async def work(cost: Any) -> None:
        limiter = AsyncLimiter("9000 tokens/day fixed", store=make_store(kind))
        async with await limiter.reserve("key", cost) as held:
            await held.extend(more={"tokens": 100})
            await held.commit({"tokens": 412})
        assert (await limiter.peek("key", 0)).remaining == 8_588
        await limiter.close()

    asyncio.run(work({"tokens": 900}))
    asyncio.run(work(900))


def test_a_cancelled_hold_takes_nothing_of_any_unit(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, LIMITS, ManualClock())
    before = left(limiter)
    assert limiter.cancel(limiter.reserve("key", {"tokens": 7, "usd": 1}).id).actuals == (0, 0, 0)
    with pytest.raises(KeyError), limiter.reserve("key", {"requests": 2, "tokens": 7}):
        raise KeyError
    assert left(limiter) == before


def test_a_hit_of_several_units_with_an_id_charges_once(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "60/minute fixed; 90000 tokens/minute bucket", ManualClock())
    for _ in range(3):
        assert limiter.hit("key", {"tokens": 900}, id="request-1")
    assert left(limiter) == [59, 89_100]


def test_money_is_held_as_text_or_decimals(core: str) -> None:
    limiter = make_limiter(core, "20 usd/day fixed", ManualClock())
    with limiter.reserve("key", "1.5") as held:
        assert held.commit("0.25").actuals == (250_000_000,)
    for amount in (0.5, "-1", "1.0000000001", True):
        with pytest.raises(ArgumentError, match="usd"):
            limiter.reserve("key", amount)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="usd"):
            limiter.commit(held.id, amount)  # type: ignore[arg-type]
    assert limiter.peek("key", 0).remaining == 19_750_000_000


def test_calendar_windows_and_buckets_in_steps_are_held(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "1000/month in Europe/Zurich; 10/minute burst 30 stepwise", clock)
    held = limiter.reserve("key", 20)
    assert held.commit(5).outcome == "settled"
    assert [reading.remaining for reading in limiter.peek("key", 0).limits] == [995, 25]
    debt = limiter.reserve("key", 20)
    clock.advance(60_000_000)  # a step gives ten back
    assert debt.commit(40).outcome == "settled"
    assert [reading.remaining for reading in limiter.peek("key", 0).limits] == [955, -5]
    refused = limiter.hit("key", 0)
    assert (refused.allowed, refused.retry_after_us) == (False, 60_000_000)
    late = limiter.reserve("other", 30)
    clock.advance(120_000_000)  # two steps have brought 20 of the 30 back
    late.commit(0)
    assert [reading.remaining for reading in limiter.peek("other", 0).limits] == [1000, 30]


def test_a_hold_of_a_calendar_window_is_settled_into_the_window_that_admitted_it(holding_kind: str) -> None:
    clock = ManualClock(20_000 * DAY_US + 5)
    limiter = make_limiter(holding_kind, "10/day in UTC", clock)
    first, unused, free = limiter.reserve("key", 4), limiter.reserve("key", 3), limiter.reserve("free", 0)
    clock.set(20_001 * DAY_US - 1)
    assert limiter.commit(first.id, 6).after[0][1:] == (1, 1)
    assert limiter.commit(free.id, 9).after[0][1:] == (1, 1), "a debt where nothing was counted"
    clock.advance(1)
    late = limiter.reserve("key", 5)
    assert limiter.commit(unused.id, 0).after[0].remaining == 5, "its window is over"
    clock.set(20_002 * DAY_US)
    assert limiter.commit(late.id, 99).after[0][1:] == (10, 0)
    assert limiter.peek("key", 0).remaining == 10


def test_a_hold_of_a_calendar_window_is_extended_in_the_window_of_that_moment(holding_kind: str) -> None:
    clock = ManualClock(20_000 * DAY_US + 5)
    limiter = make_limiter(holding_kind, "10/day in UTC", clock)
    held = limiter.reserve("key", 4, lease_us=9 * DAY_US)
    clock.advance(4 * DAY_US)
    extension = held.extend(more=7)
    assert (extension.outcome, extension.after[0].remaining) == ("extended", 3)
    assert held.extend(more=4).outcome == "refused"
    assert held.commit(5).after[0].remaining == 9, "six go off the last part, whose window it is"


@pytest.mark.parametrize("kind", REDIS)
def test_a_hold_of_a_calendar_window_is_settled_by_limits_without_calendars(kind: str) -> None:
    clock = ManualClock(20_000 * DAY_US + 5)
    store = make_store(kind)
    limiter = Limiter("10/day in UTC; 9/minute", store=store, name="api", clock=clock)
    other = Limiter("9/minute", store=store, name="other", clock=clock)
    one, two, three = (limiter.reserve("key", 3, lease_us=9 * DAY_US) for _ in range(3))
    assert other.commit(one.id, 1).after == ()
    assert other.extend(two.id).outcome == "extended"
    assert limiter.peek("key", 0).limits[0].remaining == 3
    clock.advance(DAY_US)
    with pytest.raises(
        ArgumentError, match=r"window of this hold is over, .* extend the hold through limits that have it"
    ):
        other.extend(two.id, more=1)
    assert other.extend(two.id).outcome == "extended"
    assert limiter.peek("key", 0).limits[0].remaining == 10
    assert other.commit(two.id, 1).outcome == "settled"
    assert limiter.extend(three.id, more=1).outcome == "extended"
    assert limiter.peek("key", 0).limits[0].remaining == 9
    assert other.cancel(three.id).outcome == "settled"
    assert limiter.peek("key", 0).limits[0].remaining == 10


@pytest.mark.parametrize("kind", REDIS)
def test_a_calendar_window_that_got_another_period_is_extended_by_limits_that_have_it(kind: str) -> None:
    clock = ManualClock(20_000 * DAY_US + 5)
    store = make_store(kind)
    daily, monthly, other = (
        Limiter(limits, store=store, name=name, clock=clock)
        for limits, name in [("10/day in UTC", "api"), ("10/month in UTC", "api"), ("9/minute", "other")]
    )
    held = daily.reserve("key", 3)
    assert monthly.hit("key")
    with pytest.raises(
        ArgumentError, match=r"or has another period since, .* extend the hold through limits that have"
    ):
        other.extend(held.id)
    assert monthly.extend(held.id, more=1).after[0].remaining == 5


def test_a_shadow_limit_that_did_not_admit_a_hold_is_not_charged_when_it_is_settled(core: str) -> None:
    store = MemoryStore(core=core)  # type: ignore[arg-type]
    limiter = Limiter("2/hour bucket; 99/hour fixed", store=store, clock=ManualClock(), shadow=True)
    held = limiter.reserve("key", 3)
    assert held.extend(more=1).outcome == "extended"
    assert held.commit(9).outcome == "settled"
    assert [reading.remaining for reading in limiter.peek("key", 0).limits] == [2, 90]


def test_places_in_flight_are_refused_where_nothing_would_free_them() -> None:
    for limiter in (Limiter("2 concurrent"), Limiter("2 concurrent", store=MemoryStore(core="python"))):
        with pytest.raises(ArgumentError, match="in flight"):
            limiter.acquire("key", timeout=1)
        with pytest.raises(ArgumentError, match="in flight"):
            limiter.hit_many(["key"])
    assert AsyncLimiter("2 concurrent").limits == Limiter("2 concurrent").limits
