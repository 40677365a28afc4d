"""Holds: reserve, commit, cancel and extend, and the errors for invalid input."""

from __future__ import annotations

import asyncio
import pickle
from copy import copy, deepcopy
from typing import Any

import pytest

from headgate import ArgumentError, AsyncLimiter, ConfigError, ConflictingId, Limiter, MemoryStore, RateLimited
from headgate.decision import NamedLimit, name_limits
from headgate.holding import Hold, whole_id
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.testing import ManualClock
from subjects import CORES, START_US, ZONES, make_limiter, make_store, numbers

HOUR_US = 3_600_000_000
EVERY_LIMIT = [
    "9/hour fixed",
    "9/hour log",
    "9/hour counter",
    "9/hour bucket",
    "9/hour leaky 9",
    "9/hour queue 8",
    "9 concurrent",
]


def left(limiter: Limiter, key: str = "key") -> list[int]:
    return [reading.remaining for reading in limiter.peek(key, 0).limits]


@pytest.mark.parametrize("text", EVERY_LIMIT)
def test_a_hold_is_charged_at_once_and_settled_with_the_real_cost(holding_kind: str, text: str) -> None:
    limiter = make_limiter(holding_kind, text, ManualClock())
    held = limiter.reserve("key", 7)
    assert held and not held.repeated and left(limiter) == [2]
    settlement = held.commit(3)
    assert (settlement.outcome, settlement.actual, held.settled) == ("settled", 3, True)
    expected = [9] if "concurrent" in text else [6]
    assert left(limiter) == expected == [standing.remaining for standing in settlement.after]
    again = limiter.commit(held.id, 9)
    assert (again.outcome, again.actual) == ("already settled", 3)
    assert left(limiter) == expected


@pytest.mark.parametrize("name", [None, "request-7"])
def test_a_repeated_settlement_of_a_hold_of_several_limits_reports_all_of_them_again(
    holding_kind: str, name: str | None
) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket; 90/day; 5 concurrent", ManualClock())
    held = limiter.reserve("key", 5, id=name)
    first = held.commit(3)
    again = limiter.commit(held.id, 4)
    assert (again.outcome, again.actuals, again.after) == ("already settled", first.actuals, first.after)
    assert [standing.remaining for standing in again.after] == left(limiter) == [6, 87, 5]
    assert limiter.extend(held.id).outcome == "already settled"
    limiter.reset("key")
    assert limiter.commit(held.id).outcome == "unknown"


@pytest.mark.parametrize("text", EVERY_LIMIT)
def test_a_hold_is_found_by_its_id_alone_and_by_key_and_name(holding_kind: str, text: str) -> None:
    limiter = make_limiter(holding_kind, text, ManualClock())
    held = limiter.reserve(("user", 42), 2, id="request-7")
    assert held.id == limiter.id_of(("user", 42), "request-7") == limiter.id_of(("user", 42), b"request-7")
    assert held.id != limiter.id_of(("user", 43), "request-7")
    again = limiter.reserve(("user", 42), 2, id="request-7")
    assert again.repeated and numbers(again.decision) == numbers(held.decision)
    assert limiter.cancel(held.id).outcome == "settled"
    assert limiter.peek(("user", 42), 0).remaining == 9


def test_a_refusal_holds_nothing(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket; 3 concurrent", ManualClock())
    refused = limiter.reserve("key", 4, id="x")
    assert not refused and left(limiter) == [9, 3]
    assert limiter.commit(refused.id, 1).outcome == "unknown"
    assert limiter.reserve("key", 3, id="x") and left(limiter) == [6, 0]


def test_a_settlement_above_what_remains_becomes_a_debt(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "10/second bucket; 5/minute fixed", clock)
    held = limiter.reserve("key", 1)
    after = limiter.commit(held.id, 30).after
    assert [(standing.remaining, standing.definition.name) for standing in after] == [
        (-20, "default.second"),
        (0, "default.minute"),
    ]
    refused = limiter.peek("key", 0)
    assert not refused.allowed and refused.limits[0].retry_after_us == 2_000_000
    clock.advance(2_000_000)
    assert limiter.peek("key", 0).limits[0].allowed


def test_a_late_settlement_does_not_fill_a_bucket_twice(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "10000/minute bucket", clock)
    holds = [limiter.reserve("key", 1000, lease=600) for _ in range(10)]
    clock.advance(60_000_000)
    assert limiter.hit("key", 10_000)
    clock.advance(1_000_000)
    for held in holds:
        held.cancel()
    assert left(limiter) == [166]


@pytest.mark.parametrize("options", [{}, {"lease": None}, {"lease_us": None}, {"lease": None, "lease_us": None}])
def test_the_default_lease_of_a_hold_is_a_minute(holding_kind: str, options: dict[str, None]) -> None:
    limiter = make_limiter(holding_kind, "1 concurrent", ManualClock())
    held = limiter.reserve("key", **options)  # type: ignore[arg-type]
    assert limiter.peek("key").limits[0].retry_after_us == 60_000_000
    assert limiter.extend(held.id, **options).outcome == "extended"  # type: ignore[arg-type]


def test_a_lease_that_ends_frees_places_and_nothing_else(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "3 concurrent; 9/hour fixed", clock)
    held = limiter.reserve("key", 3, lease_us=1_000)
    assert limiter.peek("key", 3).limits[0].retry_after_us == 1_000
    clock.advance(999)
    assert left(limiter) == [0, 6]
    clock.advance(1)
    assert left(limiter) == [3, 6]
    assert limiter.extend(held.id).outcome == "lapsed"
    assert limiter.commit(held.id, 1).outcome == "settled" and left(limiter) == [3, 8]


def test_places_report_when_one_more_is_free_also_when_more_are_in_use_than_the_limit_allows_now(
    holding_kind: str,
) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "3 concurrent", clock, name="jobs")
    for lease_us in (3_000, 1_000, 2_000):
        assert limiter.reserve("key", lease_us=lease_us)
    assert limiter.peek("key", 0).limits[0].next_after_us == 1_000
    fewer = Limiter("2 concurrent", store=limiter.store, name="jobs", clock=clock)
    assert fewer.peek("key", 0).limits[0].next_after_us == 2_000
    assert fewer.peek("key").limits[0].retry_after_us == 2_000


def test_an_extension_holds_all_additional_units_or_none(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "3 concurrent; 9/hour bucket", clock)
    held = limiter.reserve("key", 2, lease_us=1_000)
    clock.advance(500)
    refused = limiter.extend(held.id, lease_us=5_000, more=2)
    assert refused.outcome == "refused" and refused.decision is not None and not refused.decision.allowed
    assert refused.decision.retry_after_us == 500  # its lease has not become longer either
    extended = held.extend(lease_us=2_000, more=1)
    assert extended.outcome == "extended" and left(limiter) == [0, 6]
    assert limiter.extend(held.id, lease_us=1).outcome == "extended"  # never sooner than it would have ended
    clock.advance(1_999)
    assert left(limiter) == [0, 6]
    assert limiter.commit(held.id, 1).actual == 1 and left(limiter) == [3, 8]
    assert limiter.extend(held.id).outcome == "already settled"
    assert limiter.extend(limiter.id_of("key", "unknown")).outcome == "unknown"


def test_a_hit_with_an_id_charges_once(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "9/hour fixed; 20/day bucket", clock)
    first = limiter.hit("key", 2, id="payment-1")
    limiter.hit("key", 1)
    clock.advance(1_000_000)
    assert numbers(limiter.hit("key", 2, id="payment-1")) == numbers(first)
    assert limiter.peek("key", 0).limits[0].remaining == 6
    assert limiter.commit(limiter.id_of("key", "payment-1"), 0).actual == 2
    with pytest.raises(ConflictingId, match="that of a hit"):
        limiter.reserve("key", 2, id="payment-1")


def test_a_hold_is_forgotten_an_hour_after_its_end_or_its_longest_period_if_that_is_longer(holding_kind: str) -> None:
    for text, period_us in (("9/minute fixed", HOUR_US), ("9/minute fixed; 99/day bucket", 24 * HOUR_US)):
        clock = ManualClock()
        limiter = make_limiter(holding_kind, text, clock)
        settled, opened = (limiter.reserve("key", 1, lease=600) for _ in range(2))
        assert settled.cancel().outcome == "settled"
        clock.advance(600_000_000 + period_us - 1)
        assert limiter.cancel(settled.id).outcome == "already settled"
        clock.advance(1)
        assert limiter.cancel(settled.id).outcome == limiter.cancel(opened.id).outcome == "unknown"


def test_remember_lengthens_the_time_that_a_hold_is_remembered(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "9/minute fixed", clock)
    held = limiter.reserve("key", 1, lease=1, remember=7200)
    clock.advance(7_200_999_999)
    assert limiter.cancel(held.id).outcome == "settled"


def test_a_reset_forgets_the_holds_of_its_key(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "3 concurrent; 9/hour bucket", ManualClock())
    held, other = limiter.reserve("key", 2), limiter.reserve("other", 2)
    assert limiter.reset("key") and left(limiter) == [3, 9]
    assert limiter.commit(held.id, 9).outcome == "unknown" and left(limiter) == [3, 9]
    assert other.commit(1).outcome == "settled"


def test_a_reset_forgets_the_holds_of_its_own_limits_alone(holding_kind: str) -> None:
    clock = ManualClock()
    fixed = make_limiter(holding_kind, "9/hour fixed", clock, name="api")
    bucket, both = (
        Limiter(text, store=fixed.store, name="api", clock=clock)
        for text in ("9/hour bucket", "9/hour fixed; 9/hour bucket")
    )
    of_fixed, of_bucket, of_both = (limiter.reserve("key", 2) for limiter in (fixed, bucket, both))
    assert bucket.reset("key")
    since = both.reserve("key", 1)
    assert [fixed.commit(held.id, 1).outcome for held in (of_fixed, of_bucket, of_both)] == [
        "settled",
        "unknown",
        "unknown",
    ]
    assert left(both) == [5, 8]
    assert both.extend(since.id, lease=90, more=1).outcome == "extended"
    assert fixed.commit(of_fixed.id, 1).outcome == "already settled"
    assert fixed.reset("key")
    assert [bucket.commit(held.id, 0).outcome for held in (of_fixed, since)] == ["unknown", "unknown"]
    assert left(both) == [9, 7]


@pytest.mark.parametrize("many", [2, 12])  # so many have sorted sets on Redis
def test_a_reset_frees_the_places_of_the_holds_that_it_forgets(holding_kind: str, many: int) -> None:
    clock = ManualClock()
    held = make_limiter(holding_kind, "99/hour fixed; 99 concurrent", clock, name="api")
    fixed, kept, places = (
        Limiter(text, store=held.store, name="api", clock=clock)
        for text in ("99/hour fixed", "99/hour bucket; 99 concurrent", "99 concurrent")
    )
    forgotten, remembered = [
        [limiter.reserve("key", 1 + number % 3) for number in range(many)] for limiter in (held, kept)
    ]
    in_use = sum(1 + number % 3 for number in range(many))
    assert left(places) == [99 - 2 * in_use]
    assert fixed.reset("key")
    assert left(places) == [99 - in_use]
    assert {places.commit(each.id, 0).outcome for each in forgotten} == {"unknown"}
    assert {places.commit(each.id, 0).outcome for each in remembered} == {"settled"}
    assert left(places) == [99]


def test_a_hold_of_several_keys_is_one(holding_kind: str) -> None:
    clock = ManualClock()
    store = make_store(holding_kind)
    definitions = [
        *name_limits(parse_limits("9/hour bucket; 5 concurrent"), scope="user", name="user"),
        *name_limits(parse_limits("20/hour fixed"), scope="team", name="team", group=1),
    ]
    bound = store.bind(definitions, clock=clock)

    def remaining() -> list[int]:
        operation = Operation(("ann", "blue"), (0, 0), commit=False)
        return [reading.remaining for reading in bound.decide(operation).limits]

    held = bound.reserve(Operation(("ann", "blue"), (4, 7)), Hold("r1", 60_000_000))
    assert held.decision.allowed and remaining() == [5, 1, 13]
    with pytest.raises(ConflictingId, match="other keys"):
        bound.reserve(Operation(("ann", "red"), (4, 7)), Hold("r1", 60_000_000))
    with pytest.raises(ArgumentError, match="2 amounts"):
        bound.commit(held.id, (1, 2, 3))
    assert bound.extend(held.id, 60_000_000, (1, 3)).outcome == "extended" and remaining() == [4, 0, 10]
    settlement = bound.commit(held.id, (None, 2))
    assert settlement.actuals == (5, 2) and remaining() == [4, 5, 18]
    other = store.bind(name_limits(parse_limits("7/minute"), scope="team", name="t"), clock=clock)
    again = other.commit(held.id, 0)  # through other limits of the same store
    assert (again.outcome, [standing.remaining for standing in again.after]) == ("already settled", [])


def make_named_holds(kind: str, **options: Any) -> tuple[ManualClock, Any, Any]:
    """(clock, the bound limits of two keys, a function that holds 1 of each of 20 pairs of keys under one name)."""
    clock = ManualClock()
    limits = [
        limit
        for group in range(2)
        for limit in name_limits(parse_limits("90/day fixed"), scope=f"rule {group}", name=f"rule{group}", group=group)
    ]
    bound = make_store(kind, **options).bind(limits, clock=clock)

    def hold_all() -> list[tuple[list[int], bool]]:
        pairs = [(f"first {number}", f"second {number}") for number in range(20)]  # in all places that they may have
        all_held = [bound.reserve(Operation(keys, (1, 1)), Hold("name", 60_000_000)) for keys in pairs]
        return [([reading.remaining for reading in held.decision.limits], held.repeated) for held in all_held]

    return clock, bound, hold_all


def test_the_name_of_a_forgotten_hold_of_several_keys_can_be_used_again(holding_kind: str) -> None:
    clock, bound, hold_all = make_named_holds(holding_kind, max_holds=400)
    for number in range(100):  # so many that no call looks at all of them for those that are over
        bound.reserve(Operation((f"first {number}", f"second {number}"), (0, 0)), Hold(None, 60_000_000))
    assert hold_all() == [([89, 89], False)] * 20
    assert hold_all() == [([89, 89], True)] * 20
    clock.advance(25 * HOUR_US)
    assert hold_all() == [([89, 89], False)] * 20
    assert hold_all() == [([89, 89], True)] * 20


@pytest.mark.parametrize("kind", [*CORES, *ZONES])
def test_the_name_of_a_hold_of_several_keys_that_a_full_store_forgot_can_be_used_again(kind: str) -> None:
    _, bound, hold_all = make_named_holds(kind, max_holds=60)
    assert hold_all() == [([89, 89], False)] * 20
    for number in range(20):
        bound.commit(bound.id_of(f"first {number}", "name"))
    for number in range(50):
        bound.reserve(Operation((f"a {number}", f"b {number}"), (0, 0)), Hold(None, 60_000_000, at_once=True))
    new = [(number, numbers) for number, (numbers, repeated) in enumerate(hold_all()) if not repeated]
    assert new
    again = hold_all()
    assert [again[number] for number, _ in new] == [(numbers, True) for _, numbers in new]


def test_the_same_id_with_another_cost_or_other_limits_is_an_error(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "9/hour bucket", clock)
    limiter.reserve("key", 2, id="x")
    with pytest.raises(ConflictingId, match="cost 2, and is now given with 3"):
        limiter.reserve("key", 3, id="x")
    with pytest.raises(ConflictingId, match="that of a hold, and is now given to a hit"):
        limiter.hit("key", 2, id="x")
    assert limiter.hit("another", 2, id="y")
    with pytest.raises(ConflictingId, match="that of a hit, and is now given to a hold"):
        limiter.reserve("another", 2, id="y")
    other = Limiter("9/hour fixed", store=limiter.store, clock=clock)
    with pytest.raises(ConflictingId, match="other limits"):
        other.reserve("key", 2, id="x")
    assert left(limiter) == [7] and left(other) == [9]
    assert limiter.reserve("another key", 3, id="x")


def test_a_hold_is_the_same_in_whatever_order_its_limits_are_written(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "9/minute log; 30/hour bucket; 4 concurrent", clock, name="api")
    other = Limiter("30/hour bucket; 4 concurrent; 9/minute log", store=limiter.store, name="api", clock=clock)
    held = limiter.reserve("key", 2, id="request-7")
    again = other.reserve("key", 2, id="request-7")
    assert again.repeated and [reading.remaining for reading in again.decision.limits] == [28, 2, 7]
    assert again.decision.binding is not None and again.decision.binding.name == "api.concurrent"
    longer = other.extend(held.id, lease=90, more=1).decision
    assert longer is not None and [reading.remaining for reading in longer.limits] == [27, 1, 6]
    assert longer.binding is not None and longer.binding.name == "api.concurrent"
    refused = other.extend(held.id, lease=90, more=3).decision
    assert refused is not None and [reading.allowed for reading in refused.limits] == [True, False, True]
    with pytest.raises(ConflictingId, match="other limits"):
        Limiter("30/hour bucket; 9/minute log", store=limiter.store, name="api", clock=clock).reserve(
            "key", 2, id="request-7"
        )


def test_more_is_held_under_the_numbers_of_limits_that_have_all_of_the_holds(holding_kind: str) -> None:
    clock = ManualClock()
    former = make_limiter(holding_kind, "9/minute fixed", clock, name="api")
    lowered, wider = (
        Limiter(text, store=former.store, name="api", clock=clock)
        for text in ("30/hour bucket; 3/minute fixed", "30/hour bucket")
    )
    held = former.reserve("key", 2)
    assert lowered.extend(held.id, more=2).outcome == "refused"
    assert lowered.extend(held.id, more=1).outcome == "extended"
    assert wider.extend(held.id, more=6).outcome == "extended"  # it knows nothing of the hold's, which was of 9
    assert left(former) == [0]


@pytest.mark.parametrize("bad", ["", b"", "x" * 1025, b"x" * 1025, "\ud800", 7, None, ("x",)])
def test_an_invalid_name_of_a_hold_is_refused_and_charges_nothing(holding_kind: str, bad: Any) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket", ManualClock())
    with pytest.raises(ArgumentError):
        limiter.id_of("key", bad)
    if bad is not None:
        for call in (limiter.reserve, limiter.hit):
            with pytest.raises(ArgumentError, match="the id of a hold"):
                call("key", 2, id=bad)
    assert left(limiter) == [9]


@pytest.mark.parametrize("name", ["x", "x" * 1024, b"\x00\xff", "ключ", "a|b{c}", " "])
def test_any_text_or_bytes_name_a_hold(holding_kind: str, name: str | bytes) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket", ManualClock())
    assert limiter.reserve("key", 2, id=name).id == limiter.id_of("key", name)


BAD_IDS = ["", "x", "h1", "h1" + "A" * 23, "h1" + "A" * 25, "h2" + "A" * 24, "h1" + "A" * 23 + "=", "h1" + "é" * 24]


@pytest.mark.parametrize("bad", [*BAD_IDS, 7, None, b"h1"])
def test_an_invalid_whole_id_is_refused(holding_kind: str, bad: Any) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket", ManualClock())
    for call in (limiter.commit, limiter.cancel, limiter.extend):
        with pytest.raises(ArgumentError, match=r"id of a hold"):
            call(bad)


def test_an_id_of_another_store_is_unknown(holding_kind: str) -> None:
    limiter, other = (make_limiter(holding_kind, "9/hour bucket", ManualClock()) for _ in range(2))
    held = other.reserve("key", 2)
    assert limiter.commit(held.id, 0).outcome == "unknown"
    for place in (0, 255, 65_535):
        assert limiter.commit(whole_id("key", "x", place), 0).outcome == "unknown"


@pytest.mark.parametrize("bad", [-1, True, 1.5, "3", 2**52 + 1, 10**400])
def test_an_invalid_amount_settles_nothing(holding_kind: str, bad: Any) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket; 9 concurrent", ManualClock())
    held = limiter.reserve("key", 2)
    with pytest.raises(ArgumentError, match="an amount"):
        limiter.commit(held.id, bad)
    with pytest.raises(ArgumentError, match="an amount"):
        limiter.extend(held.id, more=bad)
    with pytest.raises(ArgumentError, match="a cost"):
        limiter.reserve("key", bad)
    assert left(limiter) == [7, 7] and limiter.commit(held.id).actual == 2


@pytest.mark.parametrize("text", [*EVERY_LIMIT[:-1], "9/day", "1000/hour counter"])
def test_a_debt_beyond_exact_arithmetic_is_refused_and_the_hold_stays_open(holding_kind: str, text: str) -> None:
    limiter = make_limiter(holding_kind, text, ManualClock())
    before = limiter.reserve("key", 1)
    before.commit(1)
    held = limiter.reserve("key", 2)
    with pytest.raises(ArgumentError, match=r"4503599627370496 for 'default' is so large a debt"):
        limiter.commit(held.id, 2**52)
    assert limiter.commit(held.id, 3).outcome == "settled"


@pytest.mark.parametrize("bad", [0, -1, 0.0000001, float("nan"), float("inf"), 32 * 86_400, 10**400, True, "60"])
def test_an_invalid_lease_is_refused(holding_kind: str, bad: Any) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket", ManualClock())
    held = limiter.reserve("key", 1)
    with pytest.raises(ArgumentError, match="lease"):
        limiter.reserve("key", 2, lease=bad)
    with pytest.raises(ArgumentError, match="lease"):
        limiter.extend(held.id, lease=bad)
    for bad_us in (0, -1, 1.5, True, 31 * 24 * HOUR_US + 1):
        with pytest.raises(ArgumentError, match="lease"):
            limiter.reserve("key", 2, lease_us=bad_us)  # type: ignore[arg-type]
    assert left(limiter) == [8]


@pytest.mark.parametrize("bad", [-1, True, "1", 367 * 86_400, 10**400, float("nan")])
def test_an_invalid_time_to_remember_is_refused(holding_kind: str, bad: Any) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket", ManualClock())
    with pytest.raises(ArgumentError, match="remember"):
        limiter.reserve("key", 2, remember=bad)
    assert left(limiter) == [9]


def test_a_hit_on_what_is_in_flight_is_an_error_and_a_peek_is_none(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket; 2 concurrent", ManualClock())
    for call in (
        lambda: limiter.hit("key"),
        lambda: limiter.hit("key", id="x"),
        lambda: limiter.hit_many(["key"]),
        lambda: limiter.acquire("key"),
    ):
        with pytest.raises(ArgumentError, match='"2 concurrent" counts what is in flight'):
            call()
    assert limiter.peek("key", 2) and not limiter.peek("key", 3) and left(limiter) == [9, 2]


def test_units_of_a_plain_hit_that_were_given_back_are_not_given_back_by_a_hold_again(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "100/minute bucket", clock)
    decision = limiter.hit("key", 50)
    held = limiter.reserve("key", 50)
    limiter.give_back("key", 50, 0, decision)
    clock.advance(30_000_000)
    assert limiter.hit("key", 100)
    held.cancel()
    assert left(limiter) == [0]


def test_a_hold_gives_back_all_but_the_units_that_a_plain_hit_gave_back(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "100/minute bucket", ManualClock())
    held = limiter.reserve("key", 40)
    decision = limiter.hit("key", 30)
    limiter.give_back("key", 10, 0, decision)
    held.cancel()
    assert left(limiter) == [70]  # 30 of the 40: the other 10 were given back with those of the hit


def test_settling_under_changed_numbers_gives_back_only_units_that_count_alike(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(holding_kind, "10/minute fixed", clock, name="api")
    one, two = limiter.reserve("key", 3), limiter.reserve("key", 3)
    larger = Limiter("20/minute fixed", store=limiter.store, clock=clock, name="api")
    assert larger.commit(one.id, 0).after[0].remaining == 17
    slower = Limiter("20/hour fixed", store=limiter.store, clock=clock, name="api")
    slower.hit("key")
    assert slower.commit(two.id, 0).outcome == "settled" and left(slower) == [16]
    other = Limiter("5/minute", store=limiter.store, clock=clock, name="other")
    assert other.commit(limiter.reserve("key", 1).id, 1).after == ()


@pytest.mark.parametrize("text", ["{}/hour fixed", "{}/month in Australia/Lord_Howe"])
def test_a_debt_finds_the_window_of_its_moment_where_the_numbers_were_changed_since(
    holding_kind: str, text: str
) -> None:
    clock, store = ManualClock(), make_store(holding_kind)
    held = Limiter(text.format(8), store=store, name="api", clock=clock).reserve("key", 0)
    changed = Limiter(text.format(7), store=store, name="api", clock=clock)
    assert [standing.remaining for standing in changed.commit(held.id, 1).after] == left(changed) == [6]


def test_a_log_that_was_a_counter_meanwhile_gives_back_nothing_of_a_hold(holding_kind: str) -> None:
    clock = ManualClock(START_US + 5_000_000)
    log = make_limiter(holding_kind, "10/minute log", clock, name="api")
    counter = Limiter("10/minute counter", store=log.store, clock=clock, name="api")
    unused, short = log.reserve("unused", 4), log.reserve("short", 4)
    clock.advance(3_000_000)
    assert [counter.hit(key, 1).remaining for key in ("unused", "short")] == [4, 4]  # the 4 weigh as 5
    clock.advance(3_000_000)
    assert [log.hit(key, 1).remaining for key in ("unused", "short")] == [3, 3]
    unused.cancel()
    assert left(log, "unused") == [3]  # its entry has left: 4 units of the one that took over may be of others
    short.commit(6)
    assert left(log, "short") == [1]
    clock.advance(54_000_000)  # the hold is a period old, and its debt with it
    assert left(log, "short") == [3]


@pytest.mark.parametrize("on_full", ["refuse", "forget", "pass"])
@pytest.mark.parametrize("kind", [*CORES, *ZONES])
def test_a_full_store_never_forgets_an_open_hold(kind: str, on_full: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(kind, "99/hour bucket; 50 concurrent", clock, max_holds=3, on_full=on_full)
    settled, *opened = (limiter.reserve(f"key-{number}", 2) for number in range(3))
    settled.commit(1)
    more = limiter.reserve("key-3", 2)
    if on_full == "forget":  # the settled one
        assert more and limiter.commit(settled.id).outcome == "unknown"
        more = limiter.reserve("key-4", 2)
    assert more.decision.degraded == ("open" if on_full == "pass" else "closed") and bool(more) == (on_full == "pass")
    stats = limiter.store.stats()
    assert (stats.passed_full, stats.refused_full) == ((1, 0) if on_full == "pass" else (0, 1))
    assert more.commit(1).outcome == "unknown" and left(limiter, "key-4") == [99, 50]
    if on_full == "refuse":
        assert more.decision.retry_after_us == 60_000_000 + HOUR_US
        assert limiter.extend(opened[0].id, more=1).outcome == "refused"
        assert limiter.extend(opened[0].id).outcome == "extended"
    assert [held.commit(1).outcome for held in opened] == ["settled", "settled"]
    clock.advance(2 * HOUR_US)
    assert limiter.reserve("key-5", 2).decision.degraded == ""


def test_a_debt_of_a_forgotten_key_that_finds_no_room_is_counted_once(core: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, "10/second fixed", clock, max_keys=1, on_full="refuse")
    held = limiter.reserve("old", 2)
    clock.advance(1_000_000)
    assert limiter.hit("new")
    assert held.commit(5).outcome == "settled"
    assert limiter.store.stats().passed_full == 0  # its window is over: there is nothing to store
    bucket = make_limiter(core, "10/second bucket", clock, max_keys=1, on_full="refuse")
    held = bucket.reserve("old", 2)
    clock.advance(1_000_000)
    assert bucket.hit("new")
    assert held.commit(5).outcome == "settled"
    assert bucket.store.stats().passed_full == 1


@pytest.mark.skipif(not ZONES, reason="a zone needs the native core")
def test_a_zone_without_room_for_holds_raises_an_error_and_charges_nothing() -> None:
    store = make_store("shared", max_holds=0)
    limiter = Limiter("9/hour bucket", store=store, clock=ManualClock())
    for call in (
        lambda: limiter.reserve("key"),
        lambda: limiter.hit("key", id="x"),
        lambda: limiter.commit(whole_id("key", "x", 0)),
        lambda: limiter.extend(whole_id("key", "x", 0)),
        lambda: limiter.id_of("key", "x"),
    ):
        with pytest.raises(ConfigError, match="does not hold what is settled later: make one with max_holds="):
            call()
    with pytest.raises(ConfigError, match="no room for what is held: make one with max_holds="):
        Limiter("9 concurrent", store=store)
    assert limiter.hit("key").remaining == 8


@pytest.mark.skipif(not ZONES, reason="a zone needs the native core")
def test_more_limits_than_a_zone_can_hold_at_once_are_refused_and_charge_nothing() -> None:
    store = make_store("shared")
    clock = ManualClock()
    few, many = (
        Limiter("; ".join(f"{number}/hour fixed" for number in range(9, 9 + count)), store=store, clock=clock)
        for count in (12, 13)
    )
    assert few.reserve("key").commit(3).outcome == "settled"
    with pytest.raises(ConfigError, match="holds up to 12 limits at once"):
        many.reserve("key")
    assert many.peek("other", 0).limits[0].remaining == 9


@pytest.mark.skipif(not ZONES, reason="a zone needs the native core")
def test_a_hold_on_a_log_of_a_zone_has_twenty_parts_at_the_most_and_settles_all_of_them_at_once() -> None:
    clock = ManualClock()
    limiter = make_limiter("shared", "99/hour log", clock)
    for _ in range(9):
        limiter.hit("key")
        clock.advance(1)
    held = limiter.reserve("key", 1)
    outcomes = []
    for _ in range(25):
        clock.advance(1)
        outcomes.append(held.extend(more=1).outcome)
    assert outcomes == ["extended"] * 19 + ["refused"] * 6
    assert limiter.extend(held.id).outcome == "extended" and left(limiter) == [70]
    assert held.commit(0).outcome == "settled" and left(limiter) == [90]


def test_a_shadow_that_did_not_admit_is_not_held(holding_kind: str) -> None:
    clock = ManualClock()
    limiter = Limiter("2/hour bucket; 1 concurrent", store=make_store(holding_kind), clock=clock, shadow=True)
    one, two = limiter.reserve("key", 1), limiter.reserve("key", 2, id="x")
    assert one and two and [reading.allowed for reading in two.decision.limits] == [False, False]
    assert numbers(limiter.reserve("key", 2, id="x").decision) == numbers(two.decision)
    assert two.commit(9).outcome == "settled" and left(limiter) == [1, 0]


def test_a_with_block_settles_its_hold(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket; 3 concurrent", ManualClock())
    with limiter.reserve("key", 2) as held:
        assert left(limiter) == [7, 1]
        held.commit(1)
        assert left(limiter) == [8, 3]
    assert left(limiter) == [8, 3]
    with limiter.reserve("key", 2):
        pass
    assert left(limiter) == [6, 3]
    with pytest.raises(KeyError), limiter.reserve("key", 2):
        raise KeyError
    assert left(limiter) == [6, 3]
    with pytest.raises(RateLimited) as refused, limiter.reserve("key", 4):
        raise AssertionError
    assert refused.value.decision.retry_after_us is None


def test_a_settled_hold_begins_no_further_block(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "1 concurrent", ManualClock())
    held = limiter.reserve("key")
    with held:
        pass
    with pytest.raises(ArgumentError, match="the reservation is settled, so the block would run without"), held:
        raise AssertionError
    assert left(limiter) == [1]

    async def enter_twice() -> None:
        held = await AsyncLimiter("1 concurrent", store=MemoryStore()).reserve("key")
        async with held:
            pass
        with pytest.raises(ArgumentError, match="the reservation is settled"):
            async with held:
                raise AssertionError

    asyncio.run(enter_twice())


def test_a_hold_is_shown_without_its_key(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket", ManualClock())
    held = limiter.reserve("secret-key", 2)
    assert repr(held) == f"Reservation(id='{held.id}', allowed=True, repeated=False)"
    assert repr(held.commit(1)) == "Settlement(outcome='settled', actual=1)"


def test_definitions_of_a_standing_are_the_limits_own(holding_kind: str) -> None:
    limiter = make_limiter(holding_kind, "9/hour bucket; 3 concurrent", ManualClock())
    named: list[NamedLimit] = [standing.definition for standing in limiter.reserve("key").commit(1).after]
    assert tuple(named) == limiter.definitions


def test_a_debt_counts_in_all_limits_however_full_the_table_is(core: str) -> None:
    """The states of a hold with cost 0 are made one after another by its settlement; meanwhile the table may grow."""
    for others in range(40):
        limiter = make_limiter(core, "9/hour fixed; 9/minute bucket; 9/day fixed", ManualClock(), max_keys=1000)
        for number in range(others):
            limiter.hit(f"other {number}")
        limiter.commit(limiter.reserve("key", 0).id, 5)
        assert left(limiter) == [4, 4, 4], others


def full_of_holds(core: str, on_full: str, max_holds: int) -> Limiter:
    """A limiter whose keys are in one shard: a settled hold is forgotten for a new one where that is."""
    return make_limiter(core, "99 concurrent", ManualClock(), max_keys=100, max_holds=max_holds, on_full=on_full)


def test_a_full_store_states_when_the_first_of_its_holds_is_forgotten(core: str) -> None:
    limiter = full_of_holds(core, "refuse", 3)
    for key, lease in (("reset", 1), ("extended", 2), ("late", 300)):
        limiter.reserve(key, 1, lease=lease, id="name")
    limiter.reset("reset")
    limiter.extend(limiter.id_of("extended", "name"), lease=60)
    limiter.reserve("last", 1, lease=400)
    refused = limiter.reserve("another", 1).decision
    assert (refused.degraded, refused.retry_after) == ("closed", 60 + 3600)


def test_a_full_store_forgets_the_hold_that_was_settled_first(core: str) -> None:
    limiter = full_of_holds(core, "forget", 4)
    held = [limiter.reserve("key", 1, id=str(number)).id for number in range(4)]
    for number in (2, 0, 3):
        limiter.commit(held[number])
    outcomes = []
    for _ in range(3):
        assert limiter.reserve("key", 1)
        outcomes.append([limiter.commit(held[number]).outcome for number in (0, 2, 3)])
    assert outcomes == [
        ["already settled", "unknown", "already settled"],
        ["unknown", "unknown", "already settled"],
        ["unknown", "unknown", "unknown"],
    ]


def test_settlements_can_be_copied_and_pickled(core: str) -> None:
    one, two = (make_limiter(core, text, ManualClock()) for text in ("9/hour", "9/hour; 9 concurrent"))
    for settlement in (
        one.commit(one.reserve("key").id, 3),
        two.reserve("key").cancel(),
        two.commit(two.id_of("key", "x")),
    ):
        for clone in (copy(settlement), deepcopy(settlement), pickle.loads(pickle.dumps(settlement))):
            values = [(copied.outcome, copied.actuals, copied.after, copied.degraded) for copied in (settlement, clone)]
            assert values[0] == values[1] and repr(clone) == repr(settlement)
