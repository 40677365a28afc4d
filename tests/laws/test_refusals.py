"""A remembered refusal equals that of the store: a guard that remembers refusals and one that does not agree."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bound_calls import give_back
from headgate import AsyncLimiter, Gate, GuardedStore, Limiter, MemoryStore, Request
from headgate.limits import Limit, TokenBucket
from headgate.stores.guard.refusals import MOST_REMEMBERED, REMEMBERED_US
from headgate.testing import ManualClock
from strategies import ONE_LIMIT, history_of
from subjects import numbers

FEW = st.lists(ONE_LIMIT, min_size=1, max_size=3)
SHORT_WAITS_US = st.sampled_from([0, 1, 2, 10_000, REMEMBERED_US // 3, REMEMBERED_US - 1, REMEMBERED_US])
"""Waits within the time that a refusal is remembered."""


class Counting(MemoryStore):
    """A store that counts its calls."""

    calls = 0

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        bound = super().bind(limits, clock=clock)
        store = self

        class CountingLimits:
            def __getattr__(self, name: str) -> Any:
                if not hasattr(bound, name):
                    raise AttributeError(name)

                def call(*arguments: Any, **options: Any) -> Any:
                    store.calls += 1
                    return getattr(bound, name)(*arguments, **options)

                return call

        return CountingLimits()


def pair(limits: list[Limit] | str, clock: ManualClock) -> tuple[Limiter, Limiter]:
    """The same limits behind a guard that remembers refusals, and behind one that does not."""

    def limiter(*, remember: bool) -> Limiter:
        return Limiter(limits, store=GuardedStore(cast(Any, Counting()), remember=remember), clock=clock, name="law")

    return limiter(remember=True), limiter(remember=False)


@given(limits=FEW, data=st.data())
def test_histories_with_remembered_refusals_equal_histories_without(limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    remembering, forgetful = pair(limits, clock)
    for wait_us, cost in data.draw(history_of(limits, back=True)):
        clock.advance(data.draw(st.one_of(st.just(wait_us), SHORT_WAITS_US)))
        key = data.draw(st.sampled_from(["a", "b"]))
        action = data.draw(st.sampled_from(["hit", "hit", "hit", "hit_many", "reset", "give_back"]))
        if action == "hit":
            for _ in range(2):
                assert numbers(remembering.hit(key, cost)) == numbers(forgetful.hit(key, cost))
        elif action == "hit_many":
            many: list[Any] = [limiter.hit_many([key, "a"], cost) for limiter in (remembering, forgetful)]
            for decision, expected in zip(*many, strict=True):
                assert numbers(decision) == numbers(expected)
        elif action == "reset":
            assert remembering.reset(key) == forgetful.reset(key)
        else:
            for limiter in (remembering, forgetful):
                give_back(limiter._bound, (key,), (cost,), 0)


def test_a_wait_beyond_all_clocks_stays_as_long() -> None:
    clock = ManualClock()
    both = pair([TokenBucket(capacity=1_247_526, refill=132, period="week")], clock)  # it fills in 181 years
    for _ in range(3):
        remembered, decided = [numbers(limiter.hit("a", 1_247_526)) for limiter in both]
        assert remembered == decided
        clock.advance(1)


@given(data=st.data())
def test_rules_that_share_a_user_or_an_address_forget_what_the_other_has_charged(data: st.DataObject) -> None:
    clock = ManualClock()
    policy = {
        "version": 1,
        "identities": {"user": {"header": "X-User"}},
        "rules": [
            {"name": "user", "by": ["user"], "limits": "3 per 2 seconds bucket"},
            {"name": "address", "by": ["ip"], "limits": "9 per 5 seconds", "match": {"path": "/a/**"}},
            {"name": "all", "by": [], "limits": "12 per 3 seconds log"},
        ],
    }
    gates = [
        Gate(policy, store=GuardedStore(cast(Any, MemoryStore()), remember=remember), clock=clock)
        for remember in (True, False)
    ]
    for _ in range(data.draw(st.integers(1, 30))):
        clock.advance(data.draw(SHORT_WAITS_US))
        request = Request(
            path=data.draw(st.sampled_from(["/a/b", "/c"])),
            headers={"X-User": data.draw(st.sampled_from("uvw"))},
            client_ip=data.draw(st.sampled_from(["10.0.0.1", "10.0.0.2"])),
        )
        cost = data.draw(st.sampled_from([1, 1, 1, 2]))
        decision, expected = (gate.hit(request, cost) for gate in gates)
        assert numbers(decision) == numbers(expected)


def test_an_admitted_smaller_charge_ends_the_refusal_of_a_larger_one() -> None:
    clock = ManualClock()
    remembering, forgetful = pair("10/second burst 10", clock)
    for limiter in (remembering, forgetful):
        assert limiter.hit("key", 8) and not limiter.hit("key", 5)
    clock.advance(1_000)
    decisions = [(limiter.hit("key", 2), limiter.hit("key", 5)) for limiter in (remembering, forgetful)]
    assert decisions[0][0] and decisions[0][1].retry_after_us == decisions[1][1].retry_after_us == 499_000


def test_the_remaining_units_are_measured_again_once_one_is_back() -> None:
    clock = ManualClock()
    remembering, _ = pair("50/second bucket", clock)
    assert remembering.hit("key", 50) and not remembering.hit("key", 50)
    clock.advance(900_000)
    decision = remembering.hit("key", 50)
    assert (decision.remaining, decision.retry_after_us) == (45, 100_000)


@pytest.mark.parametrize("text", ["1/minute", "1/minute fixed", "60/hour bucket", "1/second; 5/minute log"])
def test_a_client_that_retries_all_the_time_costs_one_call_a_second(text: str) -> None:
    clock = ManualClock()
    remembering, forgetful = pair(text, clock)
    store: Any = remembering.store
    while remembering.hit("key"):
        forgetful.hit("key")
    forgetful.hit("key")
    clock.advance(10_000_000)
    while remembering.hit("key"):
        forgetful.hit("key")
    forgetful.hit("key")
    before = store.inner.calls
    for _ in range(90):
        clock.advance(10_000)
        assert numbers(remembering.hit("key")) == numbers(forgetful.hit("key"))
    assert store.inner.calls - before <= 2


class Awaited(MemoryStore):
    """A store for event loops."""

    blocking = True

    def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
        bound = self.bind(limits, clock=clock)

        class Limits:
            def __getattr__(self, name: str) -> Any:
                async def call(*arguments: Any, **options: Any) -> Any:
                    return getattr(bound, name)(*arguments, **options)

                return call

        return Limits()


def test_limits_of_asyncio_forget_as_those_of_threads_do() -> None:
    async def run() -> None:
        clock = ManualClock()
        store = GuardedStore(cast(Any, Awaited()))
        limiter = AsyncLimiter("10/second burst 10; 12/minute", store=store, clock=clock, name="one")
        bound: Any = limiter._bound
        assert await limiter.hit("key", 10) and not await limiter.hit("key")
        assert store.refusals.known
        await give_back(bound, ("key",), (3,), 0)
        assert not store.refusals.known and not store.refusals.of_state
        assert await limiter.hit("key", 3) and not await limiter.hit("key")
        assert await limiter.reset("key") and not store.refusals.known
        assert await limiter.hit("key", 8) and not await limiter.hit("key", 5)
        assert await limiter.hit("key", 2) and not await limiter.hit("key", 5)
        clock.advance(400_000)
        assert (await limiter.hit("key", 5)).retry_after_us == (await limiter.peek("key", 5)).retry_after_us

    asyncio.run(run())


def test_the_store_decides_again_when_the_clock_goes_back() -> None:
    clock = ManualClock()
    remembering, forgetful = pair("10/minute fixed", clock)
    for limiter in (remembering, forgetful):
        assert limiter.hit("key", 10) and not limiter.hit("key")
    clock.advance(-1)
    assert numbers(remembering.hit("key")) == numbers(forgetful.hit("key"))
    store: Any = remembering.store
    assert not store.refusals.known or min(one.since_us for one in store.refusals.known.values()) == clock.now_us()


def test_so_many_refusals_are_remembered_and_no_more() -> None:
    clock = ManualClock()
    remembering, _ = pair("1/hour", clock)
    store: Any = remembering.store
    for number in range(MOST_REMEMBERED + 10):
        assert remembering.hit(f"{number}")
        assert not remembering.hit(f"{number}")
        assert len(store.refusals.known) <= MOST_REMEMBERED
    assert len(store.refusals.of_state) == len(store.refusals.known)
