"""Holds of several units under limits that are written in another order, and under limits of other units."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from headgate import ArgumentError, AsyncLimiter, ConflictingId, Limiter, MemoryStore
from headgate.decision import Decision
from headgate.http.server.ipv6_aggregate import WideLimiter
from headgate.stores.protocol import Store
from headgate.testing import ManualClock
from subjects import HOLDING, make_store

ONE = "100 requests/hour fixed; 1000 tokens/hour fixed"
OTHER = "1000 tokens/hour fixed; 100 requests/hour fixed"
MANY = ("60/minute fixed", "900 tokens/minute bucket", "20 usd/day fixed", "5 bytes concurrent")


def limiters(store: str | Store, *texts: str, name: str = "api") -> list[Limiter]:
    """Limiters that have their states in common, as processes of different versions do."""
    shared, clock = make_store(store) if isinstance(store, str) else store, ManualClock()
    return [Limiter(text, store=shared, name=name, clock=clock) for text in texts]


def left(limiter: Limiter) -> dict[str, int]:
    """What remains of each limit, by its name."""
    return remaining(limiter.peek("key", dict.fromkeys(limiter.counted.units, 0)))


def remaining(decision: Decision) -> dict[str, int]:
    return {reading.name: reading.remaining for reading in decision.limits}


def test_a_hold_is_settled_through_the_same_limits_in_another_order(holding_kind: str) -> None:
    one, other = limiters(holding_kind, ONE, OTHER)
    held = one.reserve("key", {"tokens": 900})
    settlement = other.commit(held.id, {"tokens": 20, "requests": 1})
    assert settlement.outcome == "settled"
    assert left(one) == left(other) == {"api.hour": 99, "api.tokens.hour": 980}
    back = other.reserve("key", {"tokens": 7, "requests": 3}, id="named")
    assert one.commit(one.id_of("key", "named"), {"tokens": 8}).outcome == "settled"
    assert one.commit(back.id).outcome == "already settled"
    assert left(one) == {"api.hour": 96, "api.tokens.hour": 972}


@pytest.mark.parametrize("actual", [{"tokens": 20}, {"requests": 0, "usd": "0.5"}, {"bytes": 0, "tokens": 901}, 3])
def test_each_amount_is_of_its_unit_in_every_order(holding_kind: str, actual: dict[str, int | str] | int) -> None:
    orders = list(permutations(MANY))
    first, *others = limiters(holding_kind, *map("; ".join, orders))
    cost: dict[str, int | str] = {"requests": 2, "tokens": 900, "usd": "0.25", "bytes": 1}
    assert first.reserve("key", cost, lease=60)
    held = first.commit(first.reserve("key", {"requests": 2, "usd": "0.25", "bytes": 1}).id, actual)
    expected = left(first)
    for limiter in others[::5]:
        first.reset("key")
        assert first.reserve("key", cost, lease=60)
        whole_id = first.reserve("key", {"requests": 2, "usd": "0.25", "bytes": 1}).id
        settlement = limiter.commit(whole_id, actual)
        assert by_unit(limiter, settlement.actuals) == by_unit(first, held.actuals)
        assert left(limiter) == expected


def by_unit(limiter: Limiter, actuals: tuple[int, ...] | None) -> dict[str, int]:
    """Amounts as a limiter returns them: in the order in which it writes its units."""
    units = dict.fromkeys(limit.of for limit in limiter.limits)
    return dict(zip(units, actuals or (), strict=True))


def test_a_hold_is_extended_through_the_same_limits_in_another_order(holding_kind: str) -> None:
    one, other = limiters(holding_kind, ONE, OTHER)
    held = one.reserve("key", {"tokens": 10})
    extension = other.extend(held.id, more={"tokens": 30})
    assert extension.outcome == "extended" and extension.decision is not None
    assert [reading.unit for reading in extension.decision.limits] == ["tokens", "requests"]
    assert remaining(extension.decision) == left(one) == {"api.hour": 99, "api.tokens.hour": 960}
    refused = other.extend(held.id, more={"tokens": 961})
    assert refused.outcome == "refused"
    assert other.extend(held.id, more=99).outcome == "extended", "a number is of requests"
    assert one.commit(held.id).actuals == (100, 40)
    assert other.commit(held.id).actuals == (40, 100)


def test_a_hold_is_cancelled_and_settled_as_held_through_another_order(holding_kind: str) -> None:
    one, other = limiters(holding_kind, ONE, OTHER)
    assert other.cancel(one.reserve("key", {"tokens": 10}).id).actuals == (0, 0)
    assert other.commit(one.reserve("key", {"tokens": 10}).id).actuals == (10, 1)
    assert one.commit(other.reserve("key", {"tokens": 10}).id, 4).actuals == (4, 10), "a number is of requests"
    assert left(one) == {"api.hour": 95, "api.tokens.hour": 980}


def test_a_hold_by_another_order_is_the_same_hold(holding_kind: str) -> None:
    one, other = limiters(holding_kind, ONE, OTHER)
    first = one.reserve("key", {"tokens": 10}, id="named")
    again = other.reserve("key", {"tokens": 10}, id="named")
    assert (again.id, again.repeated) == (first.id, True) and other.id_of("key", "named") == first.id
    assert remaining(again.decision) == remaining(first.decision) == {"api.hour": 99, "api.tokens.hour": 990}
    assert [reading.unit for reading in again.decision.limits] == ["tokens", "requests"]
    assert one.hit("key", {"tokens": 5}, id="hit") and other.hit("key", {"tokens": 5}, id="hit")
    assert left(one) == {"api.hour": 98, "api.tokens.hour": 985}
    with pytest.raises(ConflictingId, match="this id was given with cost"):
        other.reserve("key", {"requests": 10, "tokens": 1}, id="named")


def test_alike_limits_of_two_units_are_distinguished_in_every_order(holding_kind: str) -> None:
    one, other = limiters(holding_kind, "50 a/hour fixed; 50 b/hour fixed", "50 b/hour fixed; 50 a/hour fixed")
    settlement = other.commit(one.reserve("key", {"a": 10, "b": 20}).id, {"a": 3})
    assert settlement.actuals == (20, 3)
    assert left(one) == {"api.a.hour": 47, "api.b.hour": 30}


def test_limits_of_one_unit_among_those_of_another_are_settled_together(holding_kind: str) -> None:
    texts = ("900 tokens/hour fixed; 9/hour fixed; 90 tokens/minute bucket", "9/hour fixed; 900 tokens/hour fixed")
    one, other = limiters(holding_kind, texts[0], texts[1] + "; 90 tokens/minute bucket")
    other.commit(one.reserve("key", {"tokens": 50}).id, {"tokens": 20, "requests": 2})
    assert left(one) == {"api.tokens.hour": 880, "api.hour": 7, "api.tokens.minute": 70}


def test_limiters_without_a_name_settle_holds_of_another_order_too(holding_kind: str) -> None:
    """Their states are not in common: the text of the limits is their name."""
    one, other = limiters(holding_kind, ONE, OTHER, name="")
    settlement = other.commit(one.reserve("key", {"tokens": 900}).id, {"tokens": 20, "requests": 1})
    assert settlement.actuals == (20, 1)
    assert left(one) == {"default.hour": 99, "default.tokens.hour": 980}
    assert left(other) == {"default.hour": 100, "default.tokens.hour": 1000}


def test_settled_amounts_have_the_order_in_which_limits_are_written(core: str) -> None:
    (limiter,) = limiters(core, "9 tokens/hour fixed; 2 usd/day fixed; 3 requests/hour fixed")
    decision = limiter.hit("key", {"tokens": 10, "usd": 5, "requests": 4})
    assert [reading.unit for reading in decision.refusals] == ["tokens", "usd", "requests"]
    held = limiter.reserve("key", {"tokens": 4, "usd": 1})
    settlement = held.commit({"tokens": 3})
    assert settlement.actuals == (3, 1_000_000_000, 1) and settlement.actual == 3
    assert [standing.remaining for standing in settlement.after] == [6, 1_000_000_000, 2]
    with pytest.raises(ArgumentError, match="they count tokens, usd, requests"):
        limiter.hit("key", {"bytes": 1})
    (without,) = limiters(core, "9 tokens/hour fixed; 2 bytes/hour fixed")
    with pytest.raises(ArgumentError, match="these limits count tokens and bytes"):
        without.hit("key", 1)


def test_the_order_of_writing_changes_no_charge_and_gives_back_alike(store_kind: str) -> None:
    one, other = limiters(store_kind, ONE, OTHER)
    decision = one.hit("key", {"tokens": 100, "requests": 5})
    assert left(other) == {"api.hour": 95, "api.tokens.hour": 900}
    one.give_back("key", {"tokens": 40}, 0, decision)
    other.give_back("key", {"requests": 2}, 0, other.hit("key", {"tokens": 1, "requests": 3}))
    assert left(one) == {"api.hour": 94, "api.tokens.hour": 939}
    decisions = other.hit_many(["key"] * 2, [{"tokens": 1}, {"tokens": 939}])
    assert [decisions[place].allowed for place in range(2)] == [True, False]
    assert other.reset("key") and left(one) == {"api.hour": 100, "api.tokens.hour": 1000}


def test_places_that_were_waited_for_are_settled_through_another_order(holding_kind: str) -> None:
    one, other = limiters(holding_kind, "9 tokens/hour fixed; 2 concurrent", "2 concurrent; 9 tokens/hour fixed")
    held = one.acquire("key", {"tokens": 5}, timeout=0, lease=60)
    assert held and left(other) == {"api.concurrent": 1, "api.tokens.hour": 4}
    assert other.commit(held.id, {"tokens": 2}).actuals == (1, 2)
    assert left(one) == {"api.concurrent": 2, "api.tokens.hour": 7}


@pytest.mark.parametrize("kind", [kind for kind in HOLDING if kind not in ("sentinel", "cluster")])
def test_amounts_are_of_their_units_on_an_event_loop(kind: str) -> None:
    """The clients of the other kinds are for threads."""

    async def work() -> None:
        store, clock = make_store(kind), ManualClock()
        one, other = (AsyncLimiter(text, store=store, name="api", clock=clock) for text in (ONE, OTHER))
        held = await one.reserve("key", {"tokens": 900})
        assert (await other.commit(held.id, {"tokens": 20, "requests": 1})).actuals == (20, 1)
        async with await other.reserve("key", {"tokens": 900}) as block:
            assert (await block.extend(more={"tokens": 1})).outcome == "extended"
            assert (await block.commit({"tokens": 5})).actuals == (5, 1)
        assert remaining(await one.peek("key", 0)) == {"api.hour": 98, "api.tokens.hour": 975}
        await one.close()

    asyncio.run(work())


def test_a_network_and_the_wider_one_are_charged_in_each_unit(core: str) -> None:
    store, clock = MemoryStore(core=core), ManualClock()  # type: ignore[arg-type]
    limits = Limiter(OTHER).limits
    wide = WideLimiter(
        limits, 2, store=store, name="api", shadow=False, clock=clock, asynchronous=False, on_store_error=""
    )
    decision = wide.hit(("a", "b"), {"tokens": 30})
    assert [reading.remaining for reading in decision.limits] == [970, 99, 1970, 199]


MORE = "100 requests/hour fixed; 1000 tokens/hour fixed; 20 usd/day fixed"


def test_limiters_of_other_units_settle_as_held_cancel_and_extend(holding_kind: str) -> None:
    """What is the same for all units needs none of them named, whatever the hold is of."""
    two, three, one = limiters(holding_kind, ONE, MORE, "1000 tokens/hour fixed")
    for maker, settler in ((two, three), (three, two), (two, one), (three, one), (one, three)):
        before = left(three)
        held = maker.reserve("key", {"tokens": 9})
        assert settler.extend(held.id).outcome == "extended"
        assert settler.cancel(held.id).outcome == "settled"
        assert left(three) == before
    whole_id = two.reserve("key", {"tokens": 9}).id
    assert three.commit(whole_id).actuals == (1, 9)
    assert left(three) == {"api.hour": 99, "api.tokens.hour": 991, "api.usd.day": 20_000_000_000}


def test_amounts_of_more_or_fewer_units_than_a_hold_has_are_refused_and_change_nothing(holding_kind: str) -> None:
    two, three = limiters(holding_kind, ONE, MORE)
    for maker, settler, message in ((two, three, "has 2 amounts"), (three, two, "has 3 amounts")):
        before = left(three)
        held = maker.reserve("key", {"tokens": 9})
        with pytest.raises(ArgumentError, match=message):
            settler.commit(held.id, {"tokens": 4})
        with pytest.raises(ArgumentError, match=message):
            settler.extend(held.id, more={"tokens": 4})
        assert maker.reserve("key", {"tokens": 1}, id="named")
        with pytest.raises(ConflictingId):
            settler.reserve("key", {"tokens": 1}, id="named")
        maker.cancel(maker.id_of("key", "named"))
        assert maker.commit(held.id, 0).outcome == "settled"
        assert left(three) == before
        maker.reset("key")


def test_an_amount_of_limits_of_one_unit_is_that_of_every_unit_of_a_hold(holding_kind: str) -> None:
    """A store gets one amount: it cannot know to which of the units it belongs."""
    two, one = limiters(holding_kind, ONE, "1000 tokens/hour fixed")
    assert one.commit(two.reserve("key", {"tokens": 9}).id, {"tokens": 4}).actuals == (4, 4)
    held = one.reserve("key", 9)
    with pytest.raises(ArgumentError, match="has 1 amount"):
        two.commit(held.id, {"tokens": 4})
    assert two.commit(held.id).actuals == (9,)


def test_as_many_units_of_other_names_are_taken_for_those_of_a_hold(holding_kind: str) -> None:
    """A store does not know the units: the order of names assigns the amounts to units."""
    one, other = limiters(holding_kind, ONE, "100 rows/hour fixed; 100 requests/hour fixed")
    assert other.commit(one.reserve("key", {"tokens": 9}).id, {"rows": 4, "requests": 2}).actuals == (4, 2)
    assert left(one) == {"api.hour": 98, "api.tokens.hour": 996}
    assert one.reserve("key", {"tokens": 4}, id="named")
    with pytest.raises(ConflictingId):
        other.reserve("key", {"rows": 4}, id="named")


def test_limits_without_requests_extend_leases(holding_kind: str) -> None:
    (limiter,) = limiters(holding_kind, "5 jobs concurrent; 100 tokens/hour fixed")
    held = limiter.reserve("key", {"jobs": 1, "tokens": 5})
    assert limiter.extend(held.id).outcome == "extended" and held.extend().outcome == "extended"
    assert held.commit({"tokens": 2}).actuals == (1, 2)
    assert left(limiter) == {"api.jobs.concurrent": 5, "api.tokens.hour": 98}


def test_a_settled_hold_of_large_amounts_is_found_by_a_limiter_of_one_of_its_units(holding_kind: str) -> None:
    two, one = limiters(holding_kind, "9 tokens/hour fixed; 1000 usd/hour fixed", "9 tokens/hour fixed")
    held = two.reserve("key", {"tokens": 1, "usd": "333.333333333"})
    assert two.commit(held.id).outcome == "settled"
    again = one.commit(held.id)
    assert (again.outcome, again.actuals) == ("already settled", (1, 333_333_333_333))
