"""Limits of a store with outages: calls of the store, local decisions, and log messages."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, cast

import pytest

from bound_calls import decide, give_back
from headgate import GuardedStore, Limiter, MemoryStore, StoreTimeout
from headgate.decision import NamedLimit, name_limits
from headgate.holding import Hold
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.guard.breaker import OPEN, Breaker
from headgate.stores.guard.deferred_limits import bind_or_defer
from headgate.stores.guard.fallback import Fallback
from headgate.stores.guard.fallback_limits import FallbackLimits
from headgate.testing import ManualClock
from remote_store import RemoteStore


class Remote(RemoteStore):
    """A remote store for event loops, too."""

    def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
        bound = self.bind(limits, clock=clock)

        class Limits:
            async def decide_many(self, operations: Any) -> list[Any]:
                return [bound.decide(operation) for operation in operations]

            def __getattr__(self, name: str) -> Callable[..., Any]:
                async def call(*arguments: Any) -> Any:
                    return getattr(bound, name)(*arguments)

                return call

        return Limits()


def limits() -> list[NamedLimit]:
    """Limits of three groups; those of the second pass uncounted during an outage."""
    return [
        *name_limits(parse_limits("9/hour; 99/day"), scope="one", name="one", group=0),
        *name_limits(parse_limits("5/hour"), scope="two", name="two", group=1, on_store_error="open"),
        *name_limits(parse_limits("7/hour"), scope="three", name="three", group=2),
    ]


KEYS = ("a", "b", "c")


_breakers: list[Breaker] = []


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """End the probes of a test with it."""
    yield
    while _breakers:
        _breakers.pop().close()


def fallback_limits(store: Remote) -> FallbackLimits:
    clock = ManualClock()
    fallback = Fallback(limits(), "local", Fraction(1), MemoryStore(), clock)
    _breakers.append(Breaker("a zone", failures=1))
    return FallbackLimits(store.bind(limits(), clock=clock), fallback, _breakers[-1], store.probe)


def remaining(decision: Any) -> list[int]:
    return [reading.remaining for reading in decision.limits]


def test_limits_with_a_fallback_call_the_store_while_it_answers() -> None:
    store = Remote()
    bound: Any = fallback_limits(store)
    assert remaining(bound.hit("key", 2)) == [7, 97, 3, 5]
    assert remaining(bound.peek("key", 3)) == [4, 94, 0, 2]
    assert [remaining(decision) for decision in bound.hit_many(["key", "other"], [1, 4])] == [
        [6, 96, 2, 4],
        [5, 95, 1, 3],
    ]
    assert [remaining(decision) for decision in bound.hit_many(["key", "other"])] == [[5, 95, 1, 3], [4, 94, 0, 2]]
    states = bound.read(("key",) * 3)
    assert states == bound.bound.read(("key",) * 3) and None not in states
    assert bound.read(KEYS) == [None] * 4
    assert remaining(decide(bound, ("key", "b", "c"), (1, 1, 1))) == [4, 94, 4, 6]
    give_back(bound, ("key", "b", "c"), (1, 0, 0), 0)
    assert remaining(bound.peek("key", 0)) == [5, 95, 1, 3]
    assert bound.reset(("key",) * 3) and not bound.reset(("key",) * 3)
    assert remaining(bound.peek("key", 0)) == [9, 99, 5, 7]
    assert remaining(bound.hit("key", {"requests": 2})) == [7, 97, 3, 5]
    assert remaining(bound.peek("key", {"requests": 1})) == [6, 96, 2, 4]
    assert [remaining(bound.hit("key", 2, id="once")) for _ in range(2)] == [[5, 95, 1, 3]] * 2


def test_limits_with_a_fallback_decide_locally_during_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    store = Remote()
    bound: Any = fallback_limits(store)
    store.up = False
    with caplog.at_level(logging.WARNING, "headgate"):
        decision = bound.hit("key", 2)
        assert (decision.degraded, remaining(decision)) == ("local", [7, 97, 5, 5])
        assert remaining(bound.peek("key", 3)) == [4, 94, 5, 2]
        assert [remaining(decision) for decision in bound.hit_many(["key", "other"], [1, 4])] == [
            [6, 96, 5, 4],
            [5, 95, 5, 3],
        ]
        assert [bound.hit("third", 2, id="once").degraded for _ in range(2)] == ["local"] * 2
        assert remaining(bound.peek("third", 0)) == [7, 97, 5, 5]
        states = bound.read(("key",) * 3)
        assert [state is None for state in states] == [False, False, True, False]
        assert bound.read(KEYS) == [None] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "the store does not answer, requests are decided without it: no answer in time"
    ]
    with pytest.raises(StoreTimeout):
        bound.reset(("key",) * 3)
    assert remaining(bound.peek("key", 0)) == [9, 99, 5, 7]
    bound.hit("key", 2)
    store.up = True
    assert bound.reset(("key",) * 3) and not bound.reset(("key",) * 3)


def test_of_many_keys_only_those_of_a_part_that_fails_are_decided_locally() -> None:
    class InParts(Remote):
        def bind(self, limits: Any, *, clock: Any = None) -> Any:
            bound = MemoryStore.bind(self, limits, clock=clock)

            class Limits:
                def hit_many(self, keys: Any, costs: Any) -> Any:
                    if "bad" in keys:
                        bound.hit_many(keys[: keys.index("bad")])
                        raise StoreTimeout("no answer in time")
                    return bound.hit_many(keys, costs)

                def decide(self, operation: Any) -> Any:
                    if "bad" in operation.keys:
                        raise StoreTimeout("no answer in time")
                    return bound.decide(operation)

                def __getattr__(self, name: str) -> Any:
                    return getattr(bound, name)

            return Limits()

    store = InParts()
    store.up = False  # for its probes
    bound: Any = fallback_limits(store)
    keys = ["key", "bad", "other"]
    assert [decision.degraded for decision in bound.hit_many(keys)] == ["local"] * 3
    for used in (2, 3):
        decisions = bound.hit_many(keys)
        assert [decision.degraded for decision in decisions] == ["", "local", ""]
        assert [remaining(decision)[0] for decision in decisions] == [9 - used, 9 - used, 10 - used]


def reserving(name: str | None = None, costs: tuple[int, ...] = (2, 2, 2)) -> tuple[Operation, Hold]:
    return Operation(("key",) * 3, costs), Hold(name, 60_000_000)


def test_limits_with_a_fallback_hold_on_the_store_while_it_answers() -> None:
    store = Remote()
    bound: Any = fallback_limits(store)
    held = bound.reserve(*reserving("x"))
    assert (held.id, remaining(held.decision)) == (bound.id_of("key", "x"), [7, 97, 3, 5])
    assert bound.extend(held.id, 60_000_000, (1,)).outcome == "extended"
    assert remaining(bound.peek("key", 0)) == [6, 96, 2, 4]
    assert (bound.commit(held.id, 1).degraded, remaining(bound.peek("key", 0))) == ("", [8, 98, 4, 6])
    assert store.calls[0][0] == "reserve" and store.calls[-2][0] == "commit"


def test_a_local_hold_is_settled_in_the_store_too_where_an_answer_was_lost() -> None:
    store = Remote()
    bound: Any = fallback_limits(store)
    store.up = False
    held = bound.reserve(*reserving("x"))
    lost_id = bound.id_of("key", "x")
    assert held.decision.degraded == "local" and bound.settle_also(lost_id)
    assert not bound.settle_also(bound.id_of("key", "y"))
    bound.commit(held.id, 1)
    pending = bound._state.pending_settlements
    assert len(pending) + pending.sent == 1


def test_a_local_hold_is_settled_locally_also_when_the_store_is_back() -> None:
    store = Remote()
    bound: Any = fallback_limits(store)
    store.up = False
    held = bound.reserve(*reserving("x"))
    assert (held.decision.degraded, remaining(held.decision)) == ("local", [7, 97, 5, 5])
    assert (bound.extend(held.id, 60_000_000, (1,)).outcome, remaining(bound.peek("key", 0))) == (
        "extended",
        [6, 96, 5, 4],
    )
    store.up = True
    assert bound.reserve(*reserving("x")).repeated
    settlement = bound.commit(held.id, (1, 0, 0))
    assert (settlement.outcome, settlement.degraded) == ("settled", "local")
    assert bound.commit(held.id, 5).outcome == "already settled"
    assert not any(name in ("reserve", "commit") for name, *_ in store.calls)
    assert fallback_limits(store).commit(held.id, 1).outcome == "unknown"  # another process
    assert fallback_limits(store).extend(held.id, 60_000_000, (0,)).outcome == "unknown"


def test_a_settlement_that_cannot_reach_a_store_is_sent_once_it_answers_again() -> None:
    store = Remote()
    bound: Any = fallback_limits(store)
    held = bound.reserve(*reserving())
    store.up = False
    assert bound.extend(held.id, 60_000_000, (0,)).degraded == "closed"
    settlement = bound.commit(held.id, 1)
    assert (settlement.outcome, settlement.degraded) == ("settled", "later")
    assert bound.commit(held.id, 2).outcome == "already settled"
    assert bound.extend(held.id, 60_000_000, (0,)).outcome == "already settled"
    store.up = True
    moment = threading.Event()
    for _ in range(1_000):
        if remaining(bound.bound.peek("key", 0)) == [8, 98, 4, 6]:
            break
        moment.wait(0.02)
    else:
        pytest.fail("it was never sent")


@pytest.mark.parametrize("method", ["hit", "hit_many", "read", "give_back"])
def test_each_failed_call_logs_its_reason(method: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Remote()
    bound: Any = fallback_limits(store)
    store.up = False
    with caplog.at_level(logging.WARNING, "headgate"):
        if method == "give_back":
            give_back(bound, KEYS, (1, 1, 1), 0)
        else:
            getattr(bound, method)({"hit": "key", "hit_many": ["key"], "read": KEYS}[method])
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["no answer in time"]


def test_only_limits_that_were_charged_locally_get_units_back() -> None:
    """A full shadow limit was not charged, so it gets nothing back."""
    named = [
        *name_limits(parse_limits("1/hour"), scope="one", name="one", shadow=True),
        *name_limits(parse_limits("5/hour"), scope="two", name="two"),
    ]
    fallback = Fallback(named, "local", Fraction(1), MemoryStore(), ManualClock())
    assert [decide(fallback, ("key",), (1,)).allowed for _ in range(2)] == [True, True]
    give_back(fallback, ("key",), (1,), 0, degraded="local", charged=[False, True])
    assert remaining(decide(fallback, ("key",), (0,))) == [0, 4]
    give_back(fallback, ("key",), (1,), 0, degraded="local", charged=[True, True])
    assert remaining(decide(fallback, ("key",), (0,))) == [1, 5]


@pytest.mark.parametrize("colour", ["thread", "loop"])
def test_a_guard_reads_the_states_that_decide(colour: str) -> None:
    clock = ManualClock()
    store = Remote()
    guard = GuardedStore(cast(Any, store))

    async def run() -> None:
        bound: Any = (
            guard.bind(limits(), clock=clock) if colour == "thread" else guard.bind_async(limits(), clock=clock)
        )

        async def call(name: str, *arguments: Any) -> Any:
            result = getattr(bound, name)(*arguments)
            return result if colour == "thread" else await result

        await call("hit", "key", 2)
        store_states = await call("read", ("key",) * 3)
        assert None not in store_states and await call("read", KEYS) == [None] * 4
        await call("read", KEYS, 17)
        assert store.calls[-1] == ("read", KEYS, 17)
        store.up = False
        for _ in range(3):
            await call("read", ("key",) * 3)
        assert guard.breaker.state == OPEN
        assert await call("read", ("key",) * 3) == [None] * 4
        assert (await call("hit", "key", 1)).degraded == "local"
        states = await call("read", ("key",) * 3)
        assert [state is None for state in states] == [False, False, True, False] and states != store_states
        assert (await call("read", KEYS, 17)).now_us == 17
        guard.close()

    asyncio.run(run())


def test_limits_that_cannot_be_bound_are_bound_at_a_later_call() -> None:
    store = Remote()
    bindings = 0

    def bind() -> Any:
        nonlocal bindings
        store.ping()
        bindings += 1
        return store.bind(limits(), clock=ManualClock())

    bind_or_defer(bind)
    assert bindings == 1
    store.up = False
    deferred = bind_or_defer(bind)
    for _ in range(2):
        with pytest.raises(StoreTimeout):
            decide(deferred, KEYS, (1, 1, 1))
    store.up = True
    assert remaining(decide(deferred, KEYS, (2, 2, 2))) == [7, 97, 3, 5]
    give_back(deferred, KEYS, (1, 0, 0), 0)
    assert remaining(decide(deferred, KEYS, (0, 0, 0))) == [8, 98, 3, 5]
    assert bindings == 2


def test_a_guard_on_an_event_loop_peeks_and_hits_many_as_one_in_threads_does() -> None:
    async def run() -> None:
        store = Remote()
        bound: Any = GuardedStore(cast(Any, store)).bind_async(limits(), clock=ManualClock())
        assert [remaining(decision) for decision in await bound.hit_many(["key", "other"], [1, 4])] == [
            [8, 98, 4, 6],
            [5, 95, 1, 3],
        ]
        for _ in range(2):
            assert remaining(await bound.peek("key", 3)) == [5, 95, 1, 3]
        assert (await bound.peek("key", 6)).allowed is False

    asyncio.run(run())


@pytest.mark.parametrize("method", ["hit", "hit_many", "read", "give_back"])
def test_a_guard_logs_why_the_store_does_not_answer(method: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Remote()
    guard = GuardedStore(cast(Any, store))
    bound: Any = guard.bind(limits(), clock=ManualClock())
    store.up = False
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(3):
            if method == "give_back":
                give_back(bound, KEYS, (1, 1, 1), 0)
            else:
                getattr(bound, method)({"hit": "key", "hit_many": ["key"], "read": KEYS}[method])
    guard.close()
    messages = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert [message.rpartition(": ")[2] for message in messages] == ["no answer in time"]


def test_hits_of_many_keys_are_decided_by_the_store_and_end_remembered_refusals() -> None:
    store = Remote()
    guard = GuardedStore(cast(Any, store))
    clock = ManualClock()
    bound: Any = guard.bind(limits(), clock=clock)
    assert [remaining(decision) for decision in bound.hit_many(["key", "other"], [1, 4])] == [
        [8, 98, 4, 6],
        [5, 95, 1, 3],
    ]
    assert bound.hit("key", 4) and not bound.hit("key", 1)
    assert guard.refusals.known
    bound.hit_many(["other"])
    assert guard.refusals.known, "the refusal of another key remains"
    before = len(store.calls)
    assert not bound.hit_many(["key"])[0]
    assert len(store.calls) == before, "it is repeated, too"
    bound.hit_many(["key"], [0])
    assert not guard.refusals.known


def test_a_reset_forgets_local_usage_of_an_outage() -> None:
    store = Remote()
    guard = GuardedStore(cast(Any, store))
    bound: Any = guard.bind(limits(), clock=ManualClock())
    store.up = False
    for _ in range(4):
        bound.hit("key", 2)
    assert guard.breaker.state == OPEN
    store.up = True
    assert bound.reset(("key",) * 3), "there was local usage, though none in the store"
    assert not bound.reset(("key",) * 3)
    guard.close()


def test_limits_with_a_fallback_read_at_the_requested_moment() -> None:
    store = Remote()
    bound: Any = fallback_limits(store)
    bound.read(KEYS, 17)
    assert store.calls[-1] == ("read", KEYS, 17)
    store.up = False
    assert bound.read(KEYS, 17).now_us == 17


@pytest.mark.parametrize("undo", ["give_back", "reset", "clear"])
def test_a_refusal_from_before_units_were_given_back_is_not_remembered(undo: str) -> None:
    store = Remote()
    guard = GuardedStore(cast(Any, store))
    bound: Any = guard.bind(limits(), clock=ManualClock())
    assert bound.hit("key", 5)
    before = guard.refusals.undone
    refused = store.bind(limits(), clock=ManualClock()).hit("key")
    for _ in range(2):
        if undo == "clear":
            guard.refusals.clear()
        elif undo == "reset":
            bound.reset(("other",) * 3)
        else:
            give_back(bound, ("other",) * 3, (1, 1, 1), 0)
    assert guard.refusals.undone == before + 2
    bound._memory.remember(Operation(("key",) * 3, (1,) * 3), refused, before)
    assert not guard.refusals.known
    bound._memory.remember(Operation(("key",) * 3, (1,) * 3), refused, before + 2)
    assert guard.refusals.known


def test_limits_of_one_unit_behind_a_guard_take_its_name(core: Any) -> None:
    limiter = Limiter("90 tokens/minute fixed", store=GuardedStore(MemoryStore(core=core)))
    assert limiter.bound.hit("key", {"tokens": 40}).remaining == 50
    assert limiter.bound.peek("key", {"tokens": 20}).remaining == 30
    assert limiter.bound.peek("key", 10).remaining == 40
    assert limiter.bound.hit("key", 10).remaining == 40
