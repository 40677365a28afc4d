"""The native gate and the Python gate agree: same rules, same keys, same decisions, same state afterwards."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from headgate import MemoryStore, core
from headgate.amounts import is_money
from headgate.errors import HeadgateError
from headgate.policy.compiled import ALL_RULES, Policy
from headgate.policy.descriptor import Descriptor
from headgate.policy.gate import Gate, read_policy
from headgate.policy.request import Request
from headgate.policy.resolver import Resolved, Settled
from headgate.testing import ManualClock
from policies import policies, subjects
from subjects import START_US, make_twins, numbers

pytestmark = pytest.mark.skipif(core.native is None, reason="the law compares the native core")
COSTS: st.SearchStrategy[Any] = st.sampled_from(
    [1, 1, 1, 1, 0, 2, 7, 2**52, True, -1, {}, {"tokens": 3}, {"requests": 2, "tokens": 0}, {"requests": 3},
     {"tokens": 2**52}, {"tokens": True}, {"tokens": -1}, {"token": 1}, {"USD": 1}, {"request": 2, "requests": 1}]
)  # fmt: skip
RULESETS = st.sampled_from([ALL_RULES, ALL_RULES, "some"])


def pair(policy: Policy, clock: ManualClock) -> tuple[Gate, Gate]:
    """A gate that decides natively and one that does not, each with its own store."""
    native, python = [Gate(policy, store=store, clock=clock) for store in make_twins()]
    assert native._native is not None
    python._decide_by(python.resolver, None)
    return native, python


def comparable(resolved: Resolved) -> object:
    """A resolved request as values that can be compared."""
    bound, operation, rules, units = resolved
    settled = numbers(bound.decide(None)) if isinstance(bound, Settled) else None
    return settled, operation.keys, operation.costs, [rule.name for rule in rules], units


def is_left_to_python(request: Request | Descriptor, cost: object, units: Collection[str]) -> bool:
    """Whether a subject has an unusual cost, or text that is not ASCII: only Python knows its cases and spaces."""
    texts = [text for entry in request.entries for text in entry]
    texts += [request.method, request.path, request.host, request.client_ip, request.endpoint]
    texts += request.headers.values()
    if not all(text.isascii() for text in texts):
        return True
    if isinstance(cost, dict):
        return not all(unit in units and not is_money(unit) and is_plain(amount) for unit, amount in cost.items())
    return not is_plain(cost)


def is_plain(cost: object) -> bool:
    """Whether a cost is a number, as the native gate reads it."""
    return type(cost) is int and cost >= 0


def hold_outcome(
    gate: Gate, act: str, request: Request | Descriptor, cost: Any, ruleset: str, name: str | None, *, is_unused: bool
) -> object:
    """The outcome of a request that is held or acquired, as values that can be compared, and how it ends."""
    options: dict[str, Any] = {"timeout": 0} if act == "acquire" else {}
    if act != "acquire" or name is not None:
        options |= {"lease": 60, "id": name}
    try:
        result: Any = getattr(gate, act)(request, cost, ruleset=ruleset, **options)
        if not hasattr(result, "settled"):
            return numbers(result)
        own = result.id if name is None else gate.id_of(request, name, cost, ruleset=ruleset)
        assert own == result.id or not result
        end = result.commit(0 if is_unused else None).outcome if result else "refused"
    except HeadgateError as error:
        return type(error), str(error)
    return numbers(result.decision), result.repeated, end


def outcome(act: Any, request: Request | Descriptor, cost: Any, ruleset: str) -> object:
    """The decision of a call as values that can be compared, or its error."""
    try:
        return numbers(act(request, cost, ruleset=ruleset))
    except HeadgateError as error:
        return type(error), str(error)


def assert_same_stats(one: Gate, other: Gate) -> None:
    """Compare the sizes of both stores, unless one has found an expired state: that moment is chance."""
    own, others = one.stats(), other.stats()
    is_comparable = not (own.expired or others.expired)
    event("nothing was found expired" if is_comparable else "something was found expired")
    if is_comparable:
        assert (own.keys, own.holds) == (others.keys, others.holds)


@given(
    policies(), st.lists(st.tuples(subjects(), COSTS, RULESETS, st.integers(0, 40_000_000)), min_size=1, max_size=12)
)
def test_both_gates_decide_alike_and_leave_the_same_state(
    policy: dict[str, Any], history: list[tuple[Request | Descriptor, Any, str, int]]
) -> None:
    clock = ManualClock(START_US)
    native, python = pair(read_policy(policy), clock)
    for request, cost, ruleset, wait_us in history:
        clock.advance(wait_us)
        resolved = native._native.resolve(request, cost, ruleset)
        if resolved is None:
            assert is_left_to_python(request, cost, native.policy.units)
        else:
            assert comparable(resolved) == comparable(python.resolver.resolve(request, cost, ruleset))
        event(f"{type(request).__name__}: {'resolved natively' if resolved else 'left to Python'}")
        for act in ("peek", "hit", "peek"):
            one, other = [outcome(getattr(gate, act), request, cost, ruleset) for gate in (native, python)]
            assert one == other, act
    assert_same_stats(native, python)


@given(policies(), st.lists(subjects(), min_size=1, max_size=8))
def test_both_gates_replay_alike(policy: dict[str, Any], history: list[Request | Descriptor]) -> None:
    native, python = [gate.decide_at for gate in pair(read_policy(policy), ManualClock(START_US))]
    for number, request in enumerate(history):
        one, other = [decide_at(request, START_US + number, 1) for decide_at in (native, python)]
        assert numbers(one[0]) == numbers(other[0])
        assert comparable(one[1]) == comparable(other[1])


@given(policies(), st.lists(subjects(), min_size=1, max_size=6))
def test_a_gate_on_a_store_without_native_limits_decides_alike(
    policy: dict[str, Any], history: list[Request | Descriptor]
) -> None:
    clock = ManualClock(START_US)
    compiled = read_policy(policy)
    native, python = [Gate(compiled, store=MemoryStore(core="python"), clock=clock) for _ in range(2)]
    assert python._native is None
    native._decide_by(native.resolver, cast(Any, core.native).NativeGate.of(native.resolver))
    for request in history:
        assert numbers(native.hit(request)) == numbers(python.hit(request))


@given(
    policies(),
    st.lists(
        st.tuples(
            subjects(),
            COSTS,
            RULESETS,
            st.sampled_from(["reserve", "acquire"]),
            st.sampled_from([None, "a", "b", ""]),
            st.integers(0, 40_000_000),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sets(st.integers(0, 5)),
)
def test_both_gates_hold_and_acquire_alike(
    policy: dict[str, Any], history: list[tuple[Request, Any, str, str, str | None, int]], patient: set[int]
) -> None:
    for number in patient:
        if number < len(policy["rules"]):
            policy["rules"][number]["wait"] = "10s"
    clock = ManualClock(START_US)
    native, python = pair(read_policy(policy), clock)
    twin = Gate(native.policy, store=native.store, clock=clock)
    twin._decide_by(twin.resolver, None)
    for request, cost, ruleset, act, name, wait_us in history:
        clock.advance(wait_us)
        is_unused = bool(wait_us % 2)
        one, other = [
            hold_outcome(gate, act, request, cost, ruleset, name, is_unused=is_unused) for gate in (native, python)
        ]
        assert one == other, act
        if not isinstance(twin.resolver.resolve(request, 1, ruleset)[0], Settled):
            assert native.id_of(request, "c", ruleset=ruleset) == twin.id_of(request, "c", ruleset=ruleset)
        left = [outcome(gate.peek, request, 1, ruleset) for gate in (native, python)]
        assert left[0] == left[1]
    assert_same_stats(native, python)
