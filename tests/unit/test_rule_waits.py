"""Rules let requests wait in the order of arrival until the promised moment, and charge nothing meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headgate import ArgumentError, AsyncGate, Gate, MemoryStore, RateLimited, Request, StoreUnavailable
from headgate.decision import Decision
from headgate.operation import Operation
from headgate.testing import ManualClock
from headgate.waiting.departure import Departure
from subjects import make_store
from until import in_thread, until, until_async

CLIENT = Request(client_ip="203.0.113.9")
OTHER = Request(client_ip="203.0.113.10")


def policy(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = [{"name": f"rule{number}", "by": ["ip"], **rule} for number, rule in enumerate(rules)]
    return {"version": 1, "identities": {"user": {"header": "X-User"}}, "rules": named, **more}


def one(limits: str, wait: str, **more: Any) -> dict[str, Any]:
    return policy({"limits": limits, "wait": wait}, **more)


def by(user: str, ip: str = "203.0.113.9", path: str = "/") -> Request:
    return Request("GET", path, headers={"X-User": user}, client_ip=ip)


def use_up(gate: Gate, request: Request = CLIENT) -> None:
    while gate.hit(request):
        pass


async def use_up_async(gate: AsyncGate, request: Request = CLIENT) -> None:
    while await gate.hit(request):
        pass


def waiting_count(gate: Gate | AsyncGate) -> int:
    return gate._waits.waiting


class Counted:
    """A store that notes every call of its limits."""

    def __init__(self, gate: Gate | AsyncGate) -> None:
        self.calls: list[str] = []
        bind = gate._resolver._bind_limits

        def binding(limits: Any) -> Any:
            return _CountedLimits(bind(limits), self.calls)

        gate._resolver._bind_limits = binding
        gate._resolver._plans_by_kind.clear()


class _CountedLimits:
    def __init__(self, bound: Any, calls: list[str]) -> None:
        self._bound, self._calls = bound, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bound, name)

    def decide(self, operation: Operation) -> Any:
        self._calls.append("ask" if operation.commit else "look")
        return self._bound.decide(operation)

    def read(self, *keys: Any) -> Any:
        self._calls.append("read")
        return self._bound.read(*keys)


class SlowAfterwards:
    """A gate whose second decision comes a moment too late, and whose thread goes on only 300 ms after it."""

    def __init__(self, gate: Gate, clock: ManualClock, take: Callable[[], object]) -> None:
        self.decided_us: list[int] = []
        bind = gate._resolver._bind_limits

        def binding(limits: Any) -> Any:
            bound = bind(limits)

            def decide(operation: Operation) -> Decision:
                self.decided_us.append(clock.now_us())
                is_second = len(self.decided_us) == 2
                if is_second:
                    take()
                decision: Decision = bound.decide(operation)
                clock.advance(300_000 * is_second)
                return decision

            return SimpleNamespace(read=bound.read, decide=decide)

        gate._resolver._bind_limits = binding
        gate._resolver._plans_by_kind.clear()


def test_a_request_waits_until_the_promised_moment_to_the_microsecond(core: str) -> None:
    clock = ManualClock()
    gate = Gate(one("3/second bucket", "500ms"), store=make_store(core), clock=clock)
    counted = Counted(gate)
    for _ in range(3):
        assert gate.hit(CLIENT)
    start_us = clock.now_us()
    assert gate.acquire(CLIENT)
    assert clock.now_us() - start_us == 333_334
    assert counted.calls == ["ask"] * 5  # three hits, the refusal, and once more at the promised moment
    assert not gate._waits.lines


def test_a_hit_never_waits(core: str) -> None:
    clock = ManualClock()
    gate = Gate(one("1/second bucket", "5s"), store=make_store(core), clock=clock)
    start_us = clock.now_us()
    assert gate.hit(CLIENT) and not gate.hit(CLIENT) and not gate.peek(CLIENT)
    assert clock.now_us() == start_us


def test_a_thread_that_is_held_up_after_it_was_refused_does_not_lose_its_turn(core: str) -> None:
    """The time for which it was held up does not count towards the time it may wait."""
    clock, store = ManualClock(), make_store(core)
    rules = one("1/second bucket", "2s")
    gate, other = Gate(rules, store=store, clock=clock), Gate(rules, store=store, clock=clock)
    slow = SlowAfterwards(gate, clock, take=lambda: other.hit(CLIENT))
    start_us = clock.now_us()
    assert other.hit(CLIENT)
    assert gate.acquire(CLIENT)
    assert slow.decided_us == [start_us, start_us + 1_000_000, start_us + 2_300_000]


@pytest.mark.parametrize(
    ("rules", "timeout", "rule"),
    [
        ([{"limits": "1/second bucket", "wait": "900ms"}], None, "rule0"),
        ([{"limits": "1/second bucket", "wait": "5s"}], 0.9, "rule0"),
        ([{"limits": "1/second bucket", "wait": "5s"}, {"limits": "1/second bucket"}], None, "rule0"),
        ([{"limits": "1/second bucket", "wait": "5s"}, {"limits": "1/minute", "wait": "5s"}], None, "rule1"),
        ([{"limits": "0/second", "wait": "5s"}], None, "rule0"),
    ],
)
def test_a_request_that_would_wait_in_vain_is_refused_at_once(
    core: str, rules: list[dict[str, Any]], timeout: float | None, rule: str
) -> None:
    clock = ManualClock()
    gate = Gate(policy(*rules), store=make_store(core), clock=clock)
    use_up(gate)
    start_us, before = clock.now_us(), [reading.remaining for reading in gate.peek(CLIENT, 0).limits]
    refused = gate.acquire(CLIENT, timeout=timeout)
    assert not refused and refused.rule == rule
    assert clock.now_us() == start_us
    assert [reading.remaining for reading in gate.peek(CLIENT, 0).limits] == before


def test_a_request_passes_when_all_its_rules_admit_it_and_takes_nothing_until_then(core: str) -> None:
    clock = ManualClock()
    rules = [
        {"limits": "1/second bucket", "wait": "3s"},
        {"limits": "3 per 6 seconds bucket", "wait": "9s"},
        {"limits": "100/hour"},
    ]
    gate = Gate(policy(*rules), store=make_store(core), clock=clock)
    start_us = clock.now_us()
    moments = []
    for _ in range(6):
        assert gate.acquire(CLIENT)
        moments.append((clock.now_us() - start_us) / 1e6)
    assert moments == [0, 1, 2, 3, 4, 6]  # the second rule has three units, and one more every two seconds
    assert gate.peek(CLIENT, 0).limits[2].remaining == 94  # each was charged once


def test_a_request_does_not_wait_for_a_shadow_rule(core: str) -> None:
    clock = ManualClock()
    gate = Gate(policy({"limits": "1/minute", "wait": "5s", "shadow": True}), store=make_store(core), clock=clock)
    start_us = clock.now_us()
    assert gate.acquire(CLIENT) and gate.acquire(CLIENT)
    assert clock.now_us() == start_us
    assert not gate.policy.waits


def test_an_exempt_request_and_one_without_rules_pass_at_once() -> None:
    gate = Gate(policy({"limits": "1/minute", "wait": "5s", "match": {"path": "/a"}}, exempt=[{"path": "/b"}]))
    assert gate.acquire(Request("GET", "/b")).limits == ()
    assert gate.acquire(Request("GET", "/c"), lease=3).id == "h0"


def test_a_request_without_the_identity_that_a_rule_requires_is_refused_at_once() -> None:
    rule = {"by": ["user"], "limits": "1/second", "wait": "5s", "missing": "refuse"}
    refused = Gate(policy(rule)).acquire(CLIENT)
    assert not refused and refused.retry_after is None


def test_requests_wait_by_their_tier_cost_and_unit(core: str) -> None:
    clock = ManualClock()
    rule = {"by": ["user"], "limits": {"free": "10 tokens/second bucket", "pro": "100 tokens/second bucket"}}
    gate = Gate(
        policy({**rule, "wait": "5s"}, tiers={"from": {"header": "X-Tier"}, "default": "free"}),
        store=make_store(core),
        clock=clock,
    )
    start_us = clock.now_us()
    assert gate.acquire(by("ann"), {"tokens": 10}) and gate.acquire(by("ann"), {"tokens": 7})
    assert clock.now_us() - start_us == 700_000
    pro = Request(headers={"X-User": "bob", "X-Tier": "pro"})
    assert gate.acquire(pro, {"tokens": 100}) and gate.acquire(pro, {"tokens": 20})
    assert clock.now_us() - start_us == 900_000


# Order.


def test_requests_pass_in_the_order_of_arrival_and_no_small_one_overtakes_a_large_one(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("200/second burst 8", "20s"), store=make_store(core))
        await use_up_async(gate)
        passed: list[int] = []

        async def acquire_once(number: int, cost: int) -> None:
            assert await gate.acquire(CLIENT, cost)
            passed.append(number)

        costs = Random(1).choices([1, 2, 8], k=40)
        tasks = []
        for number, cost in enumerate(costs):
            tasks.append(asyncio.ensure_future(acquire_once(number, cost)))
            await until_async(lambda: waiting_count(gate) + len(passed) >= len(tasks))
        await asyncio.gather(*tasks)
        assert passed == sorted(passed)
        assert not gate._waits.lines and not waiting_count(gate)

    asyncio.run(main())


def test_requests_of_several_lines_pass_in_the_order_of_their_arrival(core: str) -> None:
    """A request that waits first for its user's limit and then for the common one passes before later ones."""

    async def main() -> None:
        rules = [{"by": [], "limits": "20/second bucket", "wait": "20s"},
                 {"by": ["user"], "limits": "5/second bucket", "wait": "20s"}]  # fmt: skip
        gate = AsyncGate(policy(*rules), store=make_store(core))
        for user in ("ann", "bob", "cleo", "dan"):
            await use_up_async(gate, by(user))
        passed: list[tuple[str, int]] = []

        async def acquire_once(user: str, number: int) -> None:
            assert await gate.acquire(by(user))
            passed.append((user, number))

        tasks = [
            asyncio.ensure_future(acquire_once(user, n)) for n in range(4) for user in ("ann", "bob", "cleo", "dan")
        ]
        await asyncio.gather(*tasks)
        for user in ("ann", "bob", "cleo", "dan"):
            assert [number for own, number in passed if own == user] == [0, 1, 2, 3]
        assert not gate._waits.lines

    asyncio.run(main())


def test_requests_for_other_keys_and_plain_hits_are_not_held_up(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("1/hour", "1h"), store=make_store(core))
        await use_up_async(gate)
        waiting = [asyncio.ensure_future(gate.acquire(CLIENT)) for _ in range(1)]
        await until_async(lambda: waiting_count(gate) == 1)
        assert await asyncio.wait_for(gate.acquire(OTHER), 5)
        assert not await gate.hit(CLIENT)  # refused at once
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not gate._waits.lines

    asyncio.run(main())


def test_a_user_whose_own_limit_delays_it_delays_no_other_user(core: str) -> None:
    """Both rules refuse it; it waits in the line of its user, where it waits longer."""

    async def main() -> None:
        rules = [{"by": [], "limits": "100/second bucket", "wait": "1h"},
                 {"by": ["user"], "limits": "50/hour bucket", "wait": "1h"}]  # fmt: skip
        gate = AsyncGate(policy(*rules), store=make_store(core))
        for user in ("ann", "bob"):
            await use_up_async(gate, by(user))
        slow = [asyncio.ensure_future(gate.acquire(by("ann"))) for _ in range(5)]
        await until_async(lambda: waiting_count(gate) == 5)
        for number in range(20):
            assert await asyncio.wait_for(gate.acquire(by(f"user{number}")), 5)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert not gate._waits.lines

    asyncio.run(main())


def test_a_new_request_stands_behind_those_that_wait(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("4/second burst 4", "10s"), store=make_store(core))
        await use_up_async(gate)
        passed: list[str] = []

        async def acquire_once(name: str, cost: int) -> None:
            assert await gate.acquire(CLIENT, cost)
            passed.append(name)

        big = asyncio.ensure_future(acquire_once("big", 3))
        await until_async(lambda: waiting_count(gate) == 1)
        await asyncio.sleep(0.3)  # there is one by now
        await asyncio.gather(big, acquire_once("small", 1))
        assert passed == ["big", "small"]

    asyncio.run(main())


def test_waiting_requests_do_not_poll_the_store(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("50/second bucket", "20s"), store=make_store(core))
        counted = Counted(gate)
        await use_up_async(gate)
        counted.calls.clear()
        decisions = await asyncio.gather(*[gate.acquire(CLIENT) for _ in range(30)])
        assert all(decisions)
        decided, others = counted.calls.count("ask"), [call for call in counted.calls if call != "ask"]
        assert decided <= 3 * 30 and len(others) <= 30 + 5

    asyncio.run(main())


def test_an_early_refusal_reports_when_its_turn_would_have_come(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("1/second burst 1", "2500ms"), store=make_store(core))
        await use_up_async(gate)
        waiting = [asyncio.ensure_future(gate.acquire(CLIENT)) for _ in range(2)]
        await until_async(lambda: waiting_count(gate) == 2)
        refused = await gate.acquire(CLIENT)
        assert not refused and refused.rule == "rule0"
        assert refused.retry_after is not None and 2.5 < refused.retry_after <= 3
        assert refused.remaining == 0
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(main())


# Bounds, and requests that give up.


def test_a_server_in_front_of_a_gate_may_let_fewer_requests_wait(core: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        for bound, most, why in ((1, 1, "one turn"), (9, 2, "max_waiting")):
            gate = AsyncGate(one("1/minute", "1h", max_waiting=2), store=make_store(core))
            gate.bound_waiting(bound, "which is one turn")
            client = by("", "203.0.113.1")
            await use_up_async(gate, client)
            waiting = [asyncio.ensure_future(gate.acquire(client)) for _ in range(most)]
            await until_async(lambda gate=gate, most=most: waiting_count(gate) == most)  # type: ignore[misc]
            caplog.clear()
            with caplog.at_level(logging.WARNING, "headgate"):
                assert not await gate.acquire(client)
            assert [why in record.message for record in caplog.records] == [True]
            await cancel_all(waiting)

    asyncio.run(main())


def test_no_more_requests_wait_than_max_waiting_allows(core: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        gate = AsyncGate(one("1/hour", "1h", max_waiting=3), store=make_store(core))
        clients = [by("", f"203.0.113.{number}") for number in range(4)]
        for client in clients:
            await use_up_async(gate, client)
        waiting = [asyncio.ensure_future(gate.acquire(client)) for client in clients[:3]]
        await until_async(lambda: waiting_count(gate) == 3)
        with caplog.at_level(logging.WARNING, "headgate"):
            for _ in range(3):
                assert not await gate.acquire(clients[3])  # refused itself
                assert not await gate.acquire(clients[0])  # behind another one
        assert len([record for record in caplog.records if "max_waiting" in record.message]) == 1
        await cancel_all(waiting)
        assert not waiting_count(gate)

    asyncio.run(main())


async def cancel_all(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_cancelled_request_leaves_its_place_to_the_next(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("5/second burst 5", "20s"), store=make_store(core))
        await use_up_async(gate)
        big = asyncio.ensure_future(gate.acquire(CLIENT, 5))
        await until_async(lambda: waiting_count(gate) == 1)
        small = asyncio.ensure_future(gate.acquire(CLIENT))
        await until_async(lambda: waiting_count(gate) == 2)
        await cancel_all([big])
        assert await asyncio.wait_for(small, 20)
        assert not gate._waits.lines

    asyncio.run(main())


def test_a_request_whose_client_has_left_stops_waiting(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("1/hour", "1h"), store=make_store(core))
        await use_up_async(gate)
        departure = Departure()
        waiting = asyncio.ensure_future(gate.acquire(CLIENT, departure=departure))
        await until_async(lambda: waiting_count(gate) == 1)
        departure.leave()
        assert not await asyncio.wait_for(waiting, 20)
        left = Departure()
        left.leave()
        assert not await asyncio.wait_for(gate.acquire(CLIENT, departure=left), 20)
        assert not gate._waits.lines

    asyncio.run(main())
    gate = Gate(one("1/hour", "1h"), store=make_store(core))
    use_up(gate)
    departure = Departure()
    with in_thread(lambda: gate.acquire(CLIENT, departure=departure)) as results:
        until(lambda: waiting_count(gate) == 1)
        departure.leave()
    assert not results[0]


def test_requests_that_come_and_go_at_random_all_end_and_no_limit_is_exceeded(core: str) -> None:
    random = Random(7)

    async def main() -> None:
        rules = [{"by": [], "limits": "200/second burst 20", "wait": "2s"},
                 {"by": ["user"], "limits": "100/second burst 10; 3 concurrent", "wait": "2s"},
                 {"by": ["ip"], "limits": "6 concurrent", "wait": "1s"}]  # fmt: skip
        gate = AsyncGate(policy(*rules), store=make_store(core))
        most = {"ann": 0, "bob": 0, "cleo": 0}
        now = dict(most)

        async def acquire_once(user: str) -> None:
            async with await gate.acquire(by(user), random.choice([1, 1, 2]), lease=60):
                now[user] += 1
                most[user] = max(most[user], now[user])
                try:
                    await asyncio.sleep(random.uniform(0, 0.02))
                finally:
                    now[user] -= 1

        tasks = [asyncio.ensure_future(acquire_once(random.choice(list(most)))) for _ in range(300)]
        for _ in range(60):
            await asyncio.sleep(0.01)
            random.choice(tasks).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} <= {type(None), RateLimited, asyncio.CancelledError}
        assert sum(each is None for each in results) > 10
        assert all(0 < each <= 3 for each in most.values())
        assert not gate._waits.lines and not waiting_count(gate)
        assert [each.remaining for each in (await gate.peek(by("ann"), 0)).limits[2:]] == [3, 6]

    asyncio.run(main())


# Places in flight.


@pytest.mark.parametrize("how", ["block", "commit", "by id", "cancel"])
def test_a_place_that_is_freed_wakes_the_first_request_that_waits_for_it(core: str, how: str) -> None:
    """The other rules that count the holder do not matter: here the two are different clients of one user."""
    rules: list[dict[str, Any]] = [{"limits": "100/minute"}, {"by": ["user"], "limits": "1 concurrent", "wait": "1h"}]
    gate = Gate(policy(*rules), store=make_store(core))
    held = gate.reserve(by("ann", "203.0.113.1"), lease=3600)
    with in_thread(lambda: gate.acquire(by("ann", "203.0.113.2"), lease=60)) as results:
        until(lambda: waiting_count(gate) == 1)
        if how == "block":
            with held:
                pass
        elif how == "by id":
            gate.commit(held.id)
        else:
            getattr(held, how)()
    assert results[0]
    results[0].cancel()
    assert not gate._hold_lines


def test_a_place_that_is_freed_on_an_event_loop_wakes_the_first_request(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("2 concurrent", "1h"), store=make_store(core))
        passed: list[int] = []

        async def acquire_once(number: int) -> None:
            async with await gate.acquire(CLIENT, lease=3600):
                passed.append(number)
                await asyncio.sleep(0.001)

        await asyncio.gather(*[acquire_once(number) for number in range(40)])
        assert passed == list(range(40))

    asyncio.run(main())


def test_a_request_waits_until_a_lease_ends_or_its_time_is_over(core: str) -> None:
    clock = ManualClock()
    gate = Gate(one("1 concurrent", "10s"), store=make_store(core), clock=clock)
    gate.reserve(CLIENT, lease=4)
    start_us = clock.now_us()
    assert gate.acquire(CLIENT, lease=60)
    assert clock.now_us() - start_us == 4_000_000
    refused = gate.acquire(CLIENT, lease=60)
    assert not refused and refused.decision.retry_after == 50
    assert clock.now_us() - start_us == 14_000_000
    with pytest.raises(RateLimited), gate.acquire(CLIENT, lease=60, timeout=0.5):
        pass


def test_places_in_flight_need_a_lease_and_bad_arguments_are_refused(core: str) -> None:
    gate = Gate(one("1 concurrent", "10s"), store=make_store(core))
    with pytest.raises(ArgumentError, match=r"in flight.*acquire\(request, lease=60\)"):
        gate.acquire(CLIENT)
    bad: dict[str, Any]
    for bad in ({"lease": 0}, {"lease": 1, "timeout": -1}, {"lease": 1, "timeout": True}, {"id": ""}):
        with pytest.raises(ArgumentError):
            gate.acquire(CLIENT, **bad)
    with pytest.raises(ArgumentError):
        gate.acquire(CLIENT, -1, lease=1)
    assert gate.peek(CLIENT, 0).remaining == 1


def test_a_repeated_request_with_the_id_of_an_existing_hold_does_not_wait(core: str) -> None:
    gate = Gate(one("1/hour", "1h"), store=make_store(core))
    assert not gate.acquire(CLIENT, id="mine").repeated
    departure = Departure()
    with in_thread(lambda: gate.acquire(CLIENT, timeout=3600, departure=departure)):
        until(lambda: waiting_count(gate) == 1)
        assert gate.acquire(CLIENT, id="mine").repeated
        departure.leave()


# Changes while requests wait.


def test_waiting_requests_end_under_the_policy_in_force_at_their_arrival(core: str) -> None:
    async def main() -> None:
        gate = AsyncGate(one("4/second bucket", "1h"), store=make_store(core))
        await use_up_async(gate)
        waiting = asyncio.ensure_future(gate.acquire(CLIENT))
        await until_async(lambda: waiting_count(gate) == 1)
        gate.reload(one("1/hour bucket", "1s"))
        assert await asyncio.wait_for(waiting, 20)
        assert not await gate.acquire(CLIENT)

    asyncio.run(main())


class FailingLater(MemoryStore):
    """A store that stops answering."""

    failure = "as a whole"
    fails = False

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        return _FailingLater(self, super().bind(limits, clock=clock))

    def ping(self) -> None:
        if self.fails:
            raise StoreUnavailable("it is away")


class _FailingLater:
    def __init__(self, store: FailingLater, bound: Any) -> None:
        self._store, self._bound = store, bound

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if self._store.fails:
                raise StoreUnavailable("it is away")
            return getattr(self._bound, name)(*args, **options)

        return call


@pytest.mark.parametrize(("choice", "passes"), [("open", True), ("local", True), ("closed", False)])
def test_an_outage_while_requests_wait_is_decided_as_the_rule_says(choice: str, passes: bool) -> None:
    async def main() -> None:
        store = FailingLater()
        gate = AsyncGate(policy({"limits": "4/second bucket", "wait": "1h", "on_store_error": choice}), store=store)
        await use_up_async(gate)
        waiting = [asyncio.ensure_future(gate.acquire(CLIENT)) for _ in range(2)]
        await until_async(lambda: waiting_count(gate) == 2)
        store.fails = True
        decisions: list[Decision] = await asyncio.wait_for(asyncio.gather(*waiting), 20)
        assert [bool(each) for each in decisions] == [passes] * 2
        assert {each.degraded for each in decisions} == {choice}
        assert not gate._waits.lines
        await gate.close()

    asyncio.run(main())


def test_watchers_are_told_how_many_requests_wait(core: str) -> None:
    clock = ManualClock()
    gate = Gate(one("1/second bucket", "5s"), store=make_store(core), clock=clock)
    reported: list[int] = []
    gate.watch_waiting(reported.append)
    assert gate.acquire(CLIENT) and reported == []
    assert gate.acquire(CLIENT) and reported == [1, 0]


def test_gates_on_one_store_share_their_lines(core: str) -> None:
    async def main() -> None:
        store = make_store(core)
        gates = [AsyncGate(one("20/second bucket", "20s"), store=store) for _ in range(2)]
        await use_up_async(gates[0])
        passed: list[int] = []

        async def acquire_once(number: int) -> None:
            assert await gates[number % 2].acquire(CLIENT)
            passed.append(number)

        await asyncio.gather(*[acquire_once(number) for number in range(10)])
        assert passed == list(range(10))

    asyncio.run(main())
