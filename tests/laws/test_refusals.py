"""A refusal that is remembered is what the store would say: a guard that remembers them and one that does not agree."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bound_calls import give_back
from headgate import AsyncLimiter, Gate, GuardedStore, Limiter, MemoryStore, Request
from headgate.limits import Limit
from headgate.stores.guard.refusals import MOST_REMEMBERED, REMEMBERED_US
from headgate.testing import ManualClock
from strategies import ONE_LIMIT, history_of
from subjects import numbers

FEW = st.lists(ONE_LIMIT, min_size=1, max_size=3)
NEAR = st.sampled_from([0, 1, 2, 10_000, REMEMBERED_US // 3, REMEMBERED_US - 1, REMEMBERED_US])
"""Waits while something is remembered."""


class Counting(MemoryStore):
    """A store that counts its calls."""

    calls = 0

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        bound = super().bind(limits, clock=clock)
        store = self

        class Counted:
            def __getattr__(self, name: str) -> Any:
                def ask(*arguments: Any, **options: Any) -> Any:
                    store.calls += 1
                    return getattr(bound, name)(*arguments, **options)

                return ask

        return Counted()


def pair(limits: list[Limit] | str, clock: ManualClock) -> tuple[Limiter, Limiter]:
    """The same limits on a store whose refusals are remembered, and on one whose are not."""

    def limiter(*, remember: bool) -> Limiter:
        return Limiter(limits, store=GuardedStore(cast(Any, Counting()), remember=remember), clock=clock, name="law")

    return limiter(remember=True), limiter(remember=False)


@given(limits=FEW, data=st.data())
def test_histories_with_remembered_refusals_equal_histories_without(limits: list[Limit], data: st.DataObject) -> None:
    clock = ManualClock()
    remembers, asks = pair(limits, clock)
    for wait_us, cost in data.draw(history_of(limits, back=True)):
        clock.advance(data.draw(st.one_of(st.just(wait_us), NEAR)))
        key = data.draw(st.sampled_from(["a", "b"]))
        act = data.draw(st.sampled_from(["hit", "hit", "hit", "hit_many", "reset", "give_back"]))
        if act == "hit":
            for _ in range(2):
                assert numbers(remembers.hit(key, cost)) == numbers(asks.hit(key, cost))
        elif act == "hit_many":
            many: list[Any] = [limiter.hit_many([key, "a"], cost) for limiter in (remembers, asks)]
            for told, true in zip(*many, strict=True):
                assert numbers(told) == numbers(true)
        elif act == "reset":
            assert remembers.reset(key) == asks.reset(key)
        else:
            for limiter in (remembers, asks):
                give_back(limiter._bound, (key,), (cost,), 0)


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
        Gate(policy, store=GuardedStore(cast(Any, MemoryStore()), remember=own), clock=clock) for own in (True, False)
    ]
    for _ in range(data.draw(st.integers(1, 30))):
        clock.advance(data.draw(NEAR))
        request = Request(
            path=data.draw(st.sampled_from(["/a/b", "/c"])),
            headers={"X-User": data.draw(st.sampled_from("uvw"))},
            client_ip=data.draw(st.sampled_from(["10.0.0.1", "10.0.0.2"])),
        )
        cost = data.draw(st.sampled_from([1, 1, 1, 2]))
        told, true = (gate.hit(request, cost) for gate in gates)
        assert numbers(told) == numbers(true)


def test_an_admitted_charge_of_less_ends_what_was_told_of_more() -> None:
    clock = ManualClock()
    remembers, asks = pair("10/second burst 10", clock)
    for limiter in (remembers, asks):
        assert limiter.hit("key", 8) and not limiter.hit("key", 5)
    clock.advance(1_000)
    told = [(limiter.hit("key", 2), limiter.hit("key", 5)) for limiter in (remembers, asks)]
    assert told[0][0] and told[0][1].retry_after_us == told[1][1].retry_after_us == 499_000


def test_what_remains_is_measured_again_once_a_unit_is_back() -> None:
    clock = ManualClock()
    remembers, _ = pair("50/second bucket", clock)
    assert remembers.hit("key", 50) and not remembers.hit("key", 50)
    clock.advance(900_000)
    told = remembers.hit("key", 50)
    assert (told.remaining, told.retry_after_us) == (45, 100_000)


@pytest.mark.parametrize("text", ["1/minute", "1/minute fixed", "60/hour bucket", "1/second; 5/minute log"])
def test_who_hammers_asks_once_a_second(text: str) -> None:
    clock = ManualClock()
    remembers, asks = pair(text, clock)
    store: Any = remembers.store
    while remembers.hit("key"):
        asks.hit("key")
    asks.hit("key")
    clock.advance(10_000_000)
    while remembers.hit("key"):
        asks.hit("key")
    asks.hit("key")
    before = store.inner.calls
    for _ in range(90):
        clock.advance(10_000)
        assert numbers(remembers.hit("key")) == numbers(asks.hit("key"))
    assert store.inner.calls - before <= 2


class Awaited(MemoryStore):
    """A store that is asked from an event loop."""

    blocking = True

    def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
        bound = self.bind(limits, clock=clock)

        class Limits:
            def __getattr__(self, name: str) -> Any:
                async def ask(*arguments: Any, **options: Any) -> Any:
                    return getattr(bound, name)(*arguments, **options)

                return ask

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


def test_what_is_remembered_is_asked_again_when_the_clock_goes_back() -> None:
    clock = ManualClock()
    remembers, asks = pair("10/minute fixed", clock)
    for limiter in (remembers, asks):
        assert limiter.hit("key", 10) and not limiter.hit("key")
    clock.advance(-1)
    assert numbers(remembers.hit("key")) == numbers(asks.hit("key"))
    store: Any = remembers.store
    assert not store.refusals.known or min(one.since_us for one in store.refusals.known.values()) == clock.now_us()


def test_so_many_refusals_are_remembered_and_no_more() -> None:
    clock = ManualClock()
    remembers, _ = pair("1/hour", clock)
    store: Any = remembers.store
    for number in range(MOST_REMEMBERED + 10):
        assert remembers.hit(f"{number}")
        assert not remembers.hit(f"{number}")
        assert len(store.refusals.known) <= MOST_REMEMBERED
    assert len(store.refusals.of_state) == len(store.refusals.known)
