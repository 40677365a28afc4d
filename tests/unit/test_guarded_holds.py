"""Holds of a store with outages: where they are made and settled, and which settlements are kept for the store."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import pytest

from headgate import ArgumentError, AsyncGate, Gate, GuardedStore, Limiter, MemoryStore, Request, StoreTimeout
from headgate.decision import name_limits
from headgate.holding import Hold, Reserved, read_id
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.service.app import Service
from headgate.stores.guard import pending_settlements
from headgate.stores.guard.breaker import OPEN
from headgate.stores.guard.local_holds import LOCAL_BIT
from headgate.testing import ManualClock
from subjects import CORES


class Remote(MemoryStore):
    """A store that answers while it is `up`; while `loses_replies`, calls take effect, but their replies are lost."""

    blocking = True
    failure = "as a whole"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.up = True
        self.loses_replies = False
        self.calls: list[str] = []
        self.guards: list[ref[GuardedStore]] = []

    def ping(self) -> None:
        if not self.up or self.loses_replies:
            raise StoreTimeout("no answer in time")

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        store, bound = self, super().bind(limits, clock=clock)

        class Limits:
            def __getattr__(self, name: str) -> Callable[..., Any]:
                def call(*arguments: Any, **named: Any) -> Any:
                    if name == "id_of":
                        return bound.id_of(*arguments)
                    if not store.up:
                        raise StoreTimeout("no answer in time")
                    store.calls.append(name)
                    reply = getattr(bound, name)(*arguments, **named)
                    if store.loses_replies:
                        error = StoreTimeout("no answer in time")
                        error.hold_id = reply.id if isinstance(reply, Reserved) else ""
                        raise error
                    return reply

                return call

        return Limits()

    def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
        return self.bind(limits, clock=clock)


CLOCK_US = 1_800_000_000_000_000


@pytest.fixture(params=CORES)
def remote(request: pytest.FixtureRequest) -> Iterator[Remote]:
    remote = Remote(core=request.param)
    yield remote
    remote.up = False  # remaining probes fail, and end silently
    for store in remote.guards:
        if (guarded := store()) is not None:
            guarded.breaker.close()


def guarded(remote: Remote, **options: Any) -> GuardedStore:
    store = GuardedStore(remote, **options)
    remote.guards.append(ref(store))
    return store


def guard(remote: Remote, text: str = "100/hour bucket", **options: Any) -> tuple[GuardedStore, Limiter]:
    store = guarded(remote, **options)
    return store, Limiter(text, store=store, clock=ManualClock(CLOCK_US))


def remaining_on_store(remote: Remote, limiter: Limiter, key: str = "key") -> int:
    """The remaining units of a key on the store itself."""
    bound = MemoryStore.bind(remote, limiter.definitions, clock=ManualClock(CLOCK_US))
    return bound.peek(key, 0).limits[0].remaining


def send(store: GuardedStore) -> None:
    """Send the pending settlements, as the background thread does."""
    for step in store.pending_settlements.sending(store.pending_settlements.committer):
        assert step is not None


def test_a_hold_of_the_store_is_settled_on_the_store(remote: Remote) -> None:
    store, limiter = guard(remote)
    held = limiter.reserve("key", 30)
    assert (held.decision.degraded, held.id) == ("", held.id)
    settlement = limiter.commit(held.id, 10)
    assert (settlement.outcome, settlement.actual, settlement.degraded) == ("settled", 10, "")
    assert settlement.after[0].remaining == remaining_on_store(remote, limiter) == 90
    assert store.stats()[-3:] == (0, 0, 0)


def test_a_settlement_that_cannot_reach_the_store_is_kept_and_sent_once(remote: Remote) -> None:
    store, limiter = guard(remote)
    held = limiter.reserve("key", 30)
    remote.up = False
    settlement = limiter.commit(held.id, 10)
    assert (settlement.outcome, settlement.actual, settlement.after, settlement.degraded) == (
        "settled",
        10,
        (),
        "later",
    )
    again = limiter.commit(held.id, 99)
    assert (again.outcome, again.actual, again.degraded) == ("already settled", 10, "later")
    assert limiter.extend(held.id).outcome == "already settled"
    assert store.stats()[-3:] == (1, 0, 0)
    send(store)  # the outage continues
    assert store.stats()[-3:] == (1, 0, 0)
    remote.up = True
    send(store)
    send(store)
    assert store.stats()[-3:] == (0, 1, 0)
    assert remaining_on_store(remote, limiter) == 90
    assert limiter.commit(held.id, 99).actual == 10
    assert limiter.commit(held.id, 99).outcome == "already settled"


def test_a_settlement_whose_answer_was_lost_is_made_once(remote: Remote) -> None:
    store, limiter = guard(remote)
    held = limiter.reserve("key", 30)
    remote.loses_replies = True
    assert limiter.commit(held.id, 10).degraded == "later"
    remote.loses_replies = False
    send(store)
    assert remaining_on_store(remote, limiter) == 90
    assert store.stats()[-3:] == (0, 1, 0)


def test_a_pending_settlement_as_held_has_no_amount(remote: Remote) -> None:
    store, limiter = guard(remote)
    held = limiter.reserve("key", 30)
    remote.up = False
    settlement = limiter.commit(held.id)
    assert (settlement.outcome, settlement.actual, repr(settlement)) == (
        "settled",
        None,
        "Settlement(outcome='settled', actual=None, degraded='later')",
    )
    remote.up = True
    send(store)
    assert remaining_on_store(remote, limiter) == 70


def test_a_local_hold_is_settled_locally_in_any_state_of_the_store(remote: Remote) -> None:
    store, limiter = guard(remote, local_share=0.5)
    remote.up = False
    held = limiter.reserve("key", 30)
    assert (held.decision.degraded, held.decision.remaining) == ("local", 20)
    assert limiter.extend(held.id, lease=90).outcome == "extended"
    remote.up = True
    extension = limiter.extend(held.id)
    assert (extension.outcome, extension.degraded, extension.after[0].remaining) == ("extended", "local", 20)
    settlement = limiter.commit(held.id, 1)
    assert (settlement.outcome, settlement.actual, settlement.degraded) == ("settled", 1, "local")
    assert settlement.after[0].definition is limiter.definitions[0]
    assert settlement.after[0].remaining == 50 - 1
    assert limiter.commit(held.id, 2).outcome == "already settled"
    assert "commit" not in remote.calls and remaining_on_store(remote, limiter) == 100
    assert store.stats()[-3:] == (0, 0, 0)


def test_places_in_flight_are_taken_and_freed_locally(remote: Remote) -> None:
    _, limiter = guard(remote, "4 concurrent; 100/hour")
    remote.up = False
    held = [limiter.reserve("key") for _ in range(5)]
    assert [bool(reservation) for reservation in held] == [True] * 4 + [False]
    remote.up = True
    assert limiter.commit(held[0].id).degraded == "local"
    remote.up = False
    assert limiter.reserve("key")


def test_another_process_answers_unknown_for_a_local_hold_without_a_call_of_the_store(remote: Remote) -> None:
    _, limiter = guard(remote)
    _, other = guard(remote)
    remote.up = False
    held = limiter.reserve("key", 30, id="name")
    assert other.reserve("key", 30, id="name").id != held.id
    remote.up = True
    for settle in (other.commit, other.cancel):
        assert settle(held.id).outcome == "unknown"
    assert other.extend(held.id).outcome == "unknown"
    assert remote.calls == []
    assert limiter.commit(held.id, 7).actual == 7


def test_a_local_named_hold_is_found_by_the_id_of_its_name(remote: Remote) -> None:
    _, limiter = guard(remote)
    remote.up = False
    held = limiter.reserve("key", 30, id="name")
    remote.up = True
    again = limiter.reserve("key", 30, id="name")
    assert (again.repeated, again.id, again.decision.degraded) == (True, held.id, "local")
    assert limiter.commit(limiter.id_of("key", "name"), 7).degraded == "local"
    assert limiter.commit(held.id, 8).actual == 7
    assert remaining_on_store(remote, limiter) == 100
    assert limiter.hit("key", 10, id="other").degraded == ""


def test_a_hit_with_an_id_is_charged_locally_once(remote: Remote) -> None:
    _, limiter = guard(remote)
    remote.up = False
    assert limiter.hit("key", 30, id="name").remaining == 70
    assert limiter.hit("key", 30, id="name").remaining == 70
    remote.up = True
    assert limiter.hit("key", 30, id="name").remaining == 70
    assert remaining_on_store(remote, limiter) == 100


def test_a_hold_that_may_exist_in_both_places_is_settled_in_both(remote: Remote) -> None:
    store, limiter = guard(remote)
    remote.loses_replies = True
    held = limiter.reserve("key", 30)
    assert held.decision.degraded == "local" and remaining_on_store(remote, limiter) == 70
    remote.loses_replies = False
    assert limiter.commit(held.id, 10).degraded == "local"
    send(store)
    assert remaining_on_store(remote, limiter) == 90


@pytest.mark.parametrize("name", [None, "name"])
def test_a_lost_hold_that_was_refused_locally_is_cancelled_unless_it_has_a_name(
    remote: Remote, name: str | None
) -> None:
    store, limiter = guard(remote, on_error="closed")
    remote.loses_replies = True
    refused = limiter.reserve("key", 30, id=name)
    assert not refused and refused.decision.degraded == "closed"
    remote.loses_replies = False
    send(store)
    assert remaining_on_store(remote, limiter) == (100 if name is None else 70)
    again = limiter.reserve("key", 30, id=name)
    assert again.repeated == (name is not None) and remaining_on_store(remote, limiter) == 70
    assert limiter.commit(again.id, 10).after[0].remaining == 90


def test_a_request_that_passes_without_a_hold_has_an_unknown_id_or_that_of_the_store(remote: Remote) -> None:
    store, limiter = guard(remote, on_error="open")
    remote.up = False
    held = limiter.reserve("key", 30)
    assert held and held.decision.degraded == "open"
    assert limiter.commit(held.id, 10).outcome == "unknown"
    assert limiter.extend(held.id).outcome == "unknown"
    remote.up = remote.loses_replies = True
    held = limiter.reserve("key", 30)
    remote.loses_replies = False
    assert held.commit(10).after[0].remaining == 90
    assert store.stats()[-3:] == (0, 0, 0)


def test_the_with_block_of_a_hold_ends_without_an_error_during_an_outage(remote: Remote) -> None:
    store, limiter = guard(remote)
    with limiter.reserve("key", 30) as held:
        remote.up = False
        extension = held.extend()
        assert (extension.outcome, extension.degraded) == ("refused", "closed")
    with pytest.raises(KeyError), limiter.reserve("key", 30):
        raise KeyError("of the work")
    assert limiter.peek("key", 0).remaining == 100  # here
    remote.up = True
    send(store)
    assert remaining_on_store(remote, limiter) == 70


@pytest.mark.parametrize(
    ("choices", "allowed", "degraded"),
    [
        (("local", "open"), True, "local"),
        (("open", "local"), True, "local"),
        (("open", "open"), True, "open"),
        (("local", "closed"), False, "closed"),
    ],
)
def test_the_strictest_choice_decides_what_is_held(
    remote: Remote, choices: tuple[str, str], allowed: bool, degraded: str
) -> None:
    store = guarded(remote)
    limits = [
        limit
        for group, choice in enumerate(choices)
        for limit in name_limits(
            parse_limits("100/hour bucket"), scope=f"g{group}", name="one", group=group, on_store_error=choice
        )
    ]
    bound = store.bind(limits, clock=ManualClock(CLOCK_US))
    remote.up = False
    reserved = bound.reserve(Operation(("a", "b"), (10, 20)), Hold())
    assert (reserved.decision.allowed, reserved.decision.degraded) == (allowed, degraded)
    if degraded == "local":
        group = choices.index("local")
        with pytest.raises(ArgumentError, match="2 amounts, not 3"):
            bound.commit(reserved.id, (1, 2, 3))
        settlement = bound.commit(reserved.id, (3, 4))
        assert settlement.actuals == ((3, 0), (0, 4))[group]
        assert [standing.definition for standing in settlement.after] == [limits[group]]
        assert settlement.after[0].remaining == 100 - (3, 4)[group]
    else:
        assert bound.commit(reserved.id, (3, 4)).outcome == "unknown"


@pytest.mark.parametrize("on_error", ["local", "open", "closed"])
def test_invalid_arguments_raise_errors_during_an_outage(remote: Remote, on_error: str) -> None:
    store, limiter = guard(remote, "5 concurrent; 100/hour", on_error=on_error)
    held = limiter.reserve("key")
    remote.up = False
    invalid_calls: list[Callable[[], Any]] = [
        lambda: limiter.reserve("key", -1),
        lambda: limiter.reserve("", 1),
        lambda: limiter.reserve("key", 1, lease=0),
        lambda: limiter.reserve("key", 1, remember=-1),
        lambda: limiter.reserve("key", 1, id=""),
        lambda: limiter.hit("key", 1, id="a"),
        lambda: limiter.commit(held.id, -1),
        lambda: limiter.commit(held.id, 2**60),
        lambda: limiter.commit("no id", 1),
        lambda: limiter.extend(held.id, lease_us=0),
        lambda: limiter.extend(held.id, more=-1),
    ]
    for call in invalid_calls:
        with pytest.raises(ArgumentError):
            call()
    assert store.stats().kept == 0
    remote.up = True
    assert limiter.commit(held.id).outcome == "settled"


def test_a_bounded_number_of_settlements_is_kept_and_further_ones_are_lost(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pending_settlements, "MAX_PENDING", 2)
    store, limiter = guard(remote)
    held = [limiter.reserve("key", 10) for _ in range(4)]
    remote.up = False
    with caplog.at_level(logging.WARNING):
        settlements = [limiter.commit(reservation.id, 1) for reservation in held]
    assert [(reservation.outcome, reservation.degraded) for reservation in settlements] == [
        ("settled", "later")
    ] * 2 + [("unknown", "lost")] * 2
    assert store.stats()[-3:] == (2, 0, 2)
    assert len([message for message in caplog.messages if "more are lost" in message]) == 1
    remote.up = True
    send(store)
    assert remaining_on_store(remote, limiter) == 100 - 2 - 20
    assert limiter.commit(held[3].id, 1).outcome == "settled", "it can be settled again"


def test_a_settlement_that_the_store_refuses_is_lost_and_delays_no_other(
    remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    store, limiter = guard(remote, "100/hour counter")
    held = [limiter.reserve("key", 10) for _ in range(2)]
    remote.up = False
    assert limiter.commit(held[0].id, 2**50).degraded == "later"
    assert limiter.commit(held[1].id, 1).degraded == "later"
    remote.up = True
    send(store)
    assert store.stats()[-3:] == (0, 1, 1)
    assert "so large a debt" in caplog.text
    assert remaining_on_store(remote, limiter) == 89


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("is_back", [True, False])
def test_closing_a_store_sends_pending_settlements_or_logs_their_loss(
    remote: Remote, colour: str, is_back: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, limiter = guard(remote)
    held = limiter.reserve("key", 30)
    remote.up = False
    limiter.commit(held.id, 10)
    remote.up = is_back
    remaining: list[int] = []
    monkeypatch.setattr(remote, "close", lambda: remaining.append(remaining_on_store(remote, limiter)))
    if colour == "sync":
        store.close()
    else:
        asyncio.run(store.aclose())
    assert remaining == [90 if is_back else 70]
    assert store.stats()[-3:] == (0, int(is_back), int(not is_back))
    assert ("1 settlements are lost" in caplog.text) == (not is_back)


def test_kept_settlements_are_sent_by_a_thread_when_the_store_is_back(remote: Remote) -> None:
    store, limiter = guard(remote)
    held = limiter.reserve("key", 30)
    remote.up = False
    for _ in range(5):
        limiter.commit(held.id, 10)
        limiter.hit("other")
    assert store.breaker.state == OPEN
    remote.up = True
    thread = store.pending_settlements._sender
    assert thread is not None
    thread.join(20)  # type: ignore[union-attr]
    assert store.stats()[-3:] == (0, 1, 0)


def test_pending_settlements_do_not_keep_an_unreferenced_store(remote: Remote) -> None:
    store, limiter = guard(remote)
    held = limiter.reserve("key", 30)
    remote.up = False
    limiter.commit(held.id, 10)
    thread: Any = store.pending_settlements._sender
    del store, limiter, held
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_neither_sends_the_settlements_nor_settles_the_holds_of_its_parent(remote: Remote) -> None:
    store, limiter = guard(remote)
    held = limiter.reserve("key", 30)
    remote.up = False
    limiter.commit(held.id, 10)
    local = limiter.reserve("key", 30)
    assert local.decision.degraded == "local"
    child = os.fork()
    if child == 0:
        results = [limiter.commit(local.id).outcome == "unknown"]
        remote.up = True
        store.close()
        results.append("commit" not in remote.calls)
        os._exit(0 if all(results) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert limiter.commit(local.id).outcome == "settled"
    remote.up = True
    store.close()
    assert store.stats().sent_later == 1


def test_a_local_hold_that_the_local_store_has_forgotten_is_unknown(remote: Remote) -> None:
    clock = ManualClock(CLOCK_US)
    store = guarded(remote)
    limiter = Limiter("100/hour bucket", store=store, clock=clock)
    remote.up = False
    first = [limiter.reserve("key", 1, lease=1) for _ in range(10)]
    assert len(store.local_holds) == 10
    clock.advance(2 * 3_600_000_000)
    for _ in range(10):
        limiter.reserve("key", 1)
    assert len(store.local_holds) == 10
    assert limiter.commit(first[9].id).outcome == "unknown"


def test_ids_of_local_holds_name_no_slot(remote: Remote) -> None:
    _, limiter = guard(remote)
    remote.up = False
    assert read_id(limiter.reserve("key").id)[1] & LOCAL_BIT


def test_a_settlement_ends_the_remembered_refusals_of_its_keys(remote: Remote) -> None:
    _, limiter = guard(remote, "100/hour log")
    held = limiter.reserve("key", 100)
    limiter.reserve("other", 100)
    assert not limiter.hit("key", 1) and not limiter.hit("other", 1)
    calls = len(remote.calls)
    assert not limiter.hit("key", 1) and len(remote.calls) == calls, "a refusal is remembered"
    limiter.commit(held.id, 10)
    assert limiter.hit("key", 1)
    calls = len(remote.calls)
    assert not limiter.hit("other", 1) and len(remote.calls) == calls, "the refusal of another key remains"
    other_process = MemoryStore.bind(remote, limiter.definitions, clock=ManualClock(CLOCK_US))
    other_hold = other_process.reserve(Operation(("third",), (100,)), Hold())
    limiter.commit(other_hold.id, 1)
    limiter.hit("other", 1)
    assert len(remote.calls) == calls + 2, "a hold of another process may have been of any key"


def test_a_reserve_is_never_answered_from_memory(remote: Remote) -> None:
    _, limiter = guard(remote, "100/hour log")
    other_process = MemoryStore.bind(remote, limiter.definitions, clock=ManualClock(CLOCK_US))
    held = other_process.reserve(Operation(("key",), (100,)), Hold())
    assert not limiter.reserve("key", 50) and not limiter.hit("key", 50)
    other_process.commit(held.id, 0)
    assert limiter.reserve("key", 50)


def test_a_service_counts_pending_sent_and_lost_settlements(remote: Remote) -> None:
    store, limiter = guard(remote, "100/hour counter")
    service = Service(
        AsyncGate({"version": 1, "rules": [{"name": "all", "by": [], "limits": "9/minute"}]}, store=store)
    )
    held = [limiter.reserve("key", 10) for _ in range(3)]
    remote.up = False
    for reservation, actual in zip(held, (1, 2, 2**50), strict=True):
        limiter.commit(reservation.id, actual)
    assert "headgate_kept_settlements 3.0" in service.metrics.exposition().decode()
    remote.up = True
    send(store)
    exposition = service.metrics.exposition().decode()
    assert "headgate_kept_settlements 0.0" in exposition
    assert 'headgate_late_settlements_total{result="sent"} 2.0' in exposition
    assert 'headgate_late_settlements_total{result="lost"} 1.0' in exposition
    assert service.gate.stats()[-3:] == (0, 2, 1)


def test_a_gate_settles_a_local_hold_by_its_id_alone(remote: Remote) -> None:
    store = guarded(remote)
    policy = {"version": 1, "rules": [{"name": "all", "by": [], "limits": "2 concurrent; 100/minute"}]}
    gate = Gate(policy, store=store)
    stored = gate.reserve(Request())
    remote.up = False
    local = [gate.reserve(Request()) for _ in range(3)]
    assert [(bool(reservation), reservation.decision.degraded) for reservation in local] == [(True, "local")] * 2 + [
        (False, "local")
    ]
    assert gate.extend(local[0].id).degraded == "local"
    assert gate.extend(stored.id).outcome == "refused"
    assert [gate.commit(reservation.id).degraded for reservation in (stored, local[0])] == ["later", "local"]
    assert gate.reserve(Request())
    remote.up = True
    send(store)
    assert gate.commit(stored.id).outcome == "already settled"
    assert gate.cancel(local[1].id).degraded == "local"
