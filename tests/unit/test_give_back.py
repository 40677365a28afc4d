"""Charges that a caller may give back, and the effect in every store and behind a guard."""

from __future__ import annotations

import asyncio
import logging
from fractions import Fraction
from typing import Any, cast

import pytest

from bound_calls import decide, give_back
from headgate import ArgumentError, AsyncLimiter, GuardedStore, Limiter, MemoryStore
from headgate.decision import NamedLimit, name_limits
from headgate.errors import StoreTimeout
from headgate.limit_text import parse_limits
from headgate.stores.guard.breaker import Breaker
from headgate.stores.guard.fallback import Fallback
from headgate.stores.guard.fallback_limits import FallbackLimits
from headgate.stores.protocol import BoundLimits
from headgate.testing import ManualClock
from subjects import make_limiter, make_store

EVERY_LIMIT = (
    "5/minute fixed", "5/minute log", "5/minute", "5/minute bucket", "5/minute leaky 5", "5/minute queue 4",
    "5/minute bucket stepwise", "5/day in Europe/Zurich",
)  # fmt: skip
UNREACHABLE = "redis://127.0.0.1:1"  # nothing listens there


def left(limiter: Limiter, key: str = "key") -> list[int]:
    """What remains under each limit."""
    return [reading.remaining for reading in limiter.peek(key, 0).limits]


def two_groups(**options: Any) -> list[NamedLimit]:
    """A limit of 9 counted by a first key, one of 5 by a second."""
    return [
        *name_limits(parse_limits("9/hour"), scope="one", name="one", group=0, **options),
        *name_limits(parse_limits("5/hour"), scope="two", name="two", group=1),
    ]


@pytest.mark.parametrize(
    ("keys", "costs", "ago_us", "message"),
    [
        (("key", ""), (1, 1), 0, "a key is empty"),
        (("key", None), (1, 1), 0, "a key is text or a tuple of parts, not None"),
        (("key", "key"), (1, -1), 0, "a cost is at least 0, not -1"),
        (("key", "key"), (1, True), 0, "a cost is a whole number, not a bool"),
        (("key", "key"), (1, 1 << 53), 0, "a cost is at most 4503599627370496"),
        (("key", "key"), (1, 1), -1, "how long ago is at least 0, not -1"),
        (("key", "key"), (1, 1), 1.0, "how long ago is a whole number of microseconds, not a float"),
        (("key", "key"), (1, 1), True, "how long ago is a whole number of microseconds, not a bool"),
        (("key", "key"), (1, 1), None, "how long ago is a whole number of microseconds, not None"),
    ],
)
@pytest.mark.parametrize("guarded", [False, True])
def test_an_invalid_charge_is_refused_and_nothing_is_given_back(
    store_kind: str, guarded: bool, keys: Any, costs: Any, ago_us: Any, message: str
) -> None:
    store: Any = make_store(store_kind)
    bound = store.bind(two_groups(), clock=ManualClock())
    limits = GuardedStore(store).bind(two_groups(), clock=ManualClock()) if guarded else bound
    decide(bound, ("key", "key"), (3, 3))
    for degraded in ("", "local", "open"):
        with pytest.raises(ArgumentError, match=message):
            give_back(limits, keys, costs, ago_us, degraded=degraded)
    assert [reading.remaining for reading in decide(bound, ("key", "key"), (0, 0)).limits] == [6, 2]


def test_a_receipt_with_a_wrong_number_of_groups_or_limits_is_refused(store_kind: str) -> None:
    bound = make_store(store_kind).bind(two_groups(), clock=ManualClock())
    for keys, costs in ((("key",), (1, 1)), (("key", "key"), (1,)), ((), ())):
        with pytest.raises(ValueError, match="these limits take 2"):
            give_back(bound, keys, costs, 0)
    with pytest.raises(ValueError, match="these are 2 limits, not 1"):
        give_back(bound, ("key", "key"), (1, 1), 0, charged=[True])


@pytest.mark.parametrize("text", EVERY_LIMIT)
def test_a_key_never_seen_gets_no_state(store_kind: str, text: str) -> None:
    limiter = make_limiter(store_kind, text, ManualClock())
    give_back(limiter._bound, ("key",), (3,), 0)
    assert limiter._bound.read(("key",)) == [None]
    assert limiter.store.stats().keys == 0 and left(limiter) == [5]


@pytest.mark.parametrize("text", EVERY_LIMIT)
def test_a_state_whose_whole_charge_is_given_back_is_dropped(store_kind: str, text: str) -> None:
    limiter = make_limiter(store_kind, text, ManualClock())
    limiter.hit("key", 3)
    give_back(limiter._bound, ("key",), (3,), 0)
    assert limiter._bound.read(("key",)) == [None]
    assert limiter.store.stats().keys == 0


@pytest.mark.parametrize("text", EVERY_LIMIT)
@pytest.mark.parametrize("ago_us", [10**11, 1 << 52, 1 << 70, 10**400])
def test_a_charge_of_too_long_ago_is_not_given_back(store_kind: str, text: str, ago_us: int) -> None:
    limiter = make_limiter(store_kind, text, ManualClock())
    limiter.hit("key", 3)
    give_back(limiter._bound, ("key",), (3,), ago_us)
    assert left(limiter) == [2]


@pytest.mark.parametrize("text", EVERY_LIMIT)
def test_a_cost_that_can_never_have_been_charged_is_not_given_back(store_kind: str, text: str) -> None:
    limiter = make_limiter(store_kind, text, ManualClock())
    limiter.hit("key", 3)
    give_back(limiter._bound, ("key",), (6,), 0)
    assert left(limiter) == [2]


@pytest.mark.parametrize("text", EVERY_LIMIT)
def test_a_part_of_a_cost_is_given_back_and_others_stay_charged(store_kind: str, text: str) -> None:
    limiter = make_limiter(store_kind, text, ManualClock())
    limiter.hit("key", 3)
    limiter.hit("other", 3)
    give_back(limiter._bound, ("key",), (2,), 0)
    assert left(limiter) == [4] and left(limiter, "other") == [2]


def test_each_group_is_given_back_what_it_was_charged(store_kind: str) -> None:
    bound = make_store(store_kind).bind(two_groups(), clock=ManualClock())
    decide(bound, ("a", "b"), (4, 4))
    give_back(bound, ("a", "b"), (0, 2), 0)
    assert [reading.remaining for reading in decide(bound, ("a", "b"), (0, 0)).limits] == [5, 3]
    give_back(bound, ("a", "b"), (3, 2), 0)
    assert [reading.remaining for reading in decide(bound, ("a", "b"), (0, 0)).limits] == [8, 5]


def test_a_shadow_limit_is_given_back_where_it_was_charged(store_kind: str) -> None:
    bound = make_store(store_kind).bind(two_groups(shadow=True), clock=ManualClock())
    charges = [decide(bound, ("key", f"own {number}"), (4, 4)) for number in range(3)]
    assert all(charges) and [charge.limits[0].allowed for charge in charges] == [True, True, False]
    for number, charge in reversed(list(enumerate(charges))):
        charged = [reading.allowed for reading in charge.limits]
        give_back(bound, ("key", f"own {number}"), (4, 4), 0, charged=charged)
        remaining = [reading.remaining for reading in decide(bound, ("key", f"own {number}"), (0, 0)).limits]
        assert remaining == [{2: 1, 1: 5, 0: 9}[number], 5]


@pytest.mark.parametrize(
    ("text", "seconds", "remaining"),
    [
        ("5/minute fixed", 59, 5),  # all that was charged in this window
        ("5/minute fixed", 60, 5),  # nothing is left of it
        ("5/minute", 90, 5),  # the half that still counts
        ("5/minute log", 59, 5),
        ("5/minute log", 60, 5),
        ("5/minute bucket", 12, 5),  # one unit has flowed back by itself, two are given back
        ("5/minute bucket", 30, 5),
    ],
)
def test_as_much_is_given_back_as_still_counts(store_kind: str, text: str, seconds: int, remaining: int) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, text, clock)
    limiter.hit("key", 3)
    clock.advance(seconds * 1_000_000)
    give_back(limiter._bound, ("key",), (3,), seconds * 1_000_000)
    assert left(limiter) == [remaining]
    assert limiter.hit("key", 5) and left(limiter) == [0]


def test_units_that_were_replenished_are_not_given_back_again(store_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, "5/minute bucket", clock)
    limiter.hit("key", 3)
    clock.advance(24_000_000)  # two units have flowed back,
    limiter.hit("key", 2)  # and another caller takes them
    give_back(limiter._bound, ("key",), (3,), 24_000_000)
    assert left(limiter) == [3]


def test_of_two_possible_windows_the_former_one_gets_the_units_back(store_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, "10/minute counter", clock)
    limiter.hit("key", 4)
    clock.advance(60_000_000)
    limiter.hit("key", 4)
    give_back(limiter._bound, ("key",), (3,), 1)  # it may have been charged just before this window began
    assert left(limiter) == [5]
    clock.advance(60_000_000)
    assert left(limiter) == [6]


def test_a_log_gives_back_the_entry_of_the_charge_among_earlier_and_later_ones(store_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, "10/minute log", clock)
    start_us = clock.now_us()
    for cost in (2, 3, 4):
        limiter.hit("key", cost)
        clock.advance(1000)
    give_back(limiter._bound, ("key",), (3,), 2500)  # called half a millisecond before the charge
    assert limiter._bound.read(("key",)) == [((start_us, 2), (start_us + 2000, 4))]
    give_back(limiter._bound, ("key",), (3,), 2500)  # a second time, which is a misuse, takes a later entry
    assert limiter._bound.read(("key",)) == [((start_us, 2), (start_us + 2000, 1))]


def test_a_log_gives_back_an_earlier_entry_where_the_callers_clock_is_slow(store_kind: str) -> None:
    clock = ManualClock()
    limiter = make_limiter(store_kind, "10/minute log", clock)
    start_us = clock.now_us()
    for cost in (2, 3):
        limiter.hit("key", cost)
        clock.advance(1000)
    give_back(limiter._bound, ("key",), (4,), 900)
    assert limiter._bound.read(("key",)) == [((start_us, 1),)]


@pytest.mark.parametrize("text", EVERY_LIMIT)
def test_a_clock_that_steps_back_gives_back_no_more(store_kind: str, text: str) -> None:
    clock = ManualClock()
    limiter, without = make_limiter(store_kind, text, clock), make_limiter(store_kind, text, clock)
    limiter.hit("key", 3)
    clock.advance(90_000_000)
    others = left(limiter)[0]
    assert limiter.hit("key", others) and without.hit("key", others)
    clock.advance(-85_000_000)
    give_back(limiter._bound, ("key",), (3,), 5_000_000)
    assert left(limiter) == left(without)


@pytest.mark.parametrize("to", [8, 4])
@pytest.mark.parametrize("text", ["{}/minute fixed", "{}/minute log", "{}/minute", "5/minute burst {}"])
def test_a_charge_is_given_back_after_a_change_of_the_quota_alone(store_kind: str, text: str, to: int) -> None:
    clock = ManualClock()
    store = make_store(store_kind)
    former = Limiter(text.format(5), store=store, name="api", clock=clock)
    latter = Limiter(text.format(to), store=store, name="api", clock=clock)
    former.hit("key", 3)
    before = left(former)[0]
    give_back(latter._bound, ("key",), (1,), 0)
    given_back = "burst" not in text or to < 5  # a state of a smaller bucket may have lost what did not fit into it
    assert left(former) == [before + given_back]
    latter.hit("key")
    before = left(former)[0]
    give_back(former._bound, ("key",), (1,), 0)
    given_back = "burst" not in text or to > 5
    assert left(former) == [before + given_back]


def test_a_bucket_that_became_smaller_loses_the_units_that_do_not_fit(store_kind: str) -> None:
    clock = ManualClock()
    store = make_store(store_kind)
    wide = Limiter("6/minute burst 100", store=store, name="api", clock=clock)
    narrow = Limiter("6/minute burst 10", store=store, name="api", clock=clock)
    wide.hit("key", 5)
    narrow.hit("key", 3)
    give_back(wide._bound, ("key",), (5,), 0)
    assert left(narrow) == [7]
    give_back(narrow._bound, ("key",), (3,), 0)
    assert left(narrow) == [10]


def test_nothing_is_given_back_after_a_change_of_the_period(store_kind: str) -> None:
    clock = ManualClock()
    store = make_store(store_kind)
    for shape in ("", " fixed", " log", " bucket"):
        store.clear()
        former = Limiter("10/minute" + shape, store=store, name="api", clock=clock)
        latter = Limiter("10/hour" + shape, store=store, name="api", clock=clock)
        former.hit("key", 3)
        give_back(latter._bound, ("key",), (3,), 0)
        assert left(former) == [7]
        latter.hit("key")
        give_back(former._bound, ("key",), (3,), 0)
        assert left(latter) == [6]


@pytest.mark.parametrize("degraded", ["local", "open", "closed"])
def test_a_charge_without_the_store_is_not_given_back_to_the_store(store_kind: str, degraded: str) -> None:
    limiter = make_limiter(store_kind, "5/minute", ManualClock())
    limiter.hit("key", 3)
    give_back(limiter._bound, ("key",), (3,), 0, degraded=degraded)
    assert left(limiter) == [2]


def test_a_refused_key_is_not_forgotten_because_units_are_given_back(core: str) -> None:
    store = MemoryStore(max_keys=2, core=cast(Any, core))
    limiter = Limiter("5/minute", store=store, clock=ManualClock())
    limiter.hit("blocked", 4)
    assert not limiter.hit("blocked", 5)
    give_back(limiter._bound, ("blocked",), (1,), 0)
    for number in range(9):
        limiter.hit(f"new {number}")
    assert left(limiter, "blocked") == [2] and store.stats().evicted > 0


def test_a_log_that_is_given_back_makes_room_for_others(core: str) -> None:
    clock = ManualClock()
    store = MemoryStore(max_keys=100, max_log_entries=14, on_full="refuse", core=cast(Any, core))
    limiter = Limiter("20/minute log", store=store, clock=clock)
    for _ in range(14):
        clock.advance(1)
        assert limiter.hit("key")

    def fit_three() -> bool:
        for _ in range(3):  # two have room in the slot itself
            clock.advance(1)
            if not limiter.hit("other"):
                return False
        return True

    assert not fit_three()
    limiter.reset("other")
    give_back(limiter._bound, ("key",), (14,), 20)
    assert store.stats().keys == 0 and fit_three()


def test_a_local_charge_is_given_back_locally() -> None:
    limiter = Limiter("3/hour", store=f"{UNREACHABLE}?on_error=local")
    decisions = [limiter.hit("user") for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    give_back(limiter._bound, ("user",), (1,), 0, degraded=decisions[0].degraded)
    assert [limiter.hit("user").allowed for _ in range(2)] == [True, False]
    limiter.close()


def test_a_local_charge_is_given_back_locally_on_an_event_loop() -> None:
    async def run() -> list[bool]:
        limiter = AsyncLimiter("3/hour", store=f"{UNREACHABLE}?on_error=local")
        decisions = [await limiter.hit("user") for _ in range(4)]
        bound: Any = limiter._bound
        await give_back(bound, ("user",), (1,), 0, degraded=decisions[0].degraded)
        await give_back(bound, ("user",), (1,), 0)  # of a decision that the store made
        found = [(await limiter.hit("user")).allowed for _ in range(2)]
        await limiter.close()
        return found

    assert asyncio.run(run()) == [True, False]


def test_a_guard_suppresses_errors_of_giving_back_and_logs_the_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter("3/hour", store=UNREACHABLE)
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(20):
            give_back(limiter._bound, ("user",), (1,), 0)
    assert isinstance(limiter.store, GuardedStore) and limiter.store.breaker.opened == 1
    limiter.close()
    assert len(caplog.records) == 1 and "the store does not answer" in caplog.text


def test_a_remembered_refusal_ends_when_a_charge_is_given_back() -> None:
    clock = ManualClock()
    store = GuardedStore(cast(Any, MemoryStore()))
    limiter = Limiter("3/hour", store=store, clock=clock)
    assert limiter.hit("user", 3) and not limiter.hit("user")
    give_back(limiter._bound, ("user",), (1,), 0)
    assert limiter.hit("user") and not limiter.hit("user")


def test_limits_with_a_fallback_suppress_errors_of_giving_back_and_log_the_outage_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing:
        """A store that does not answer."""

        def decide(self, *_: Any, **__: Any) -> Any:
            raise StoreTimeout("no answer")

        give_back = probe = decide

    clock = ManualClock()
    limits = name_limits(parse_limits("3/hour"), scope="one", name="one")
    fallback = Fallback(limits, "local", Fraction(1), MemoryStore(), clock)
    failing = Failing()
    bound = FallbackLimits(cast(BoundLimits, failing), fallback, Breaker("zone", failures=1), failing.probe)
    with caplog.at_level(logging.WARNING, "headgate"):
        assert [decide(bound, ("key",), (1,)).allowed for _ in range(4)] == [True, True, True, False]
        give_back(bound, ("key",), (1,), 0)  # of a decision that the store made
        assert not decide(bound, ("key",), (1,))
        give_back(bound, ("key",), (1,), 0, degraded="local")
        assert decide(bound, ("key",), (1,)) and not decide(bound, ("key",), (1,))
    assert len(caplog.records) == 1
