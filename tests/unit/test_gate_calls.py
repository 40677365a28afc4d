"""`gate.hit`, `gate.peek` and `AsyncGate.ask` are one call, native or not, and stored references follow the gate."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headgate import ArgumentError, ConfigError, Decision, MemoryStore
from headgate.policy.gate import AsyncGate, Gate, read_policy
from headgate.policy.identity import CallableIdentity
from headgate.policy.request import Request
from headgate.testing import ManualClock

REQUEST = Request("GET", "/a", client_ip="203.0.113.9")
GATES = (Gate, AsyncGate)


def policy(name: str, limits: str = "9/minute bucket") -> dict[str, Any]:
    return {"version": 1, "rules": [{"name": name, "limits": limits, "by": ["ip"]}]}


def python_policy(name: str) -> Any:
    """A policy with an identity function, which only Python can apply."""
    compiled = read_policy(policy(name))
    (rule,) = compiled.rules
    function = CallableIdentity("own", lambda request: request.client_ip)
    return replace(compiled, rules=(replace(rule, key=replace(rule.key, members=(function,))),))


def make(kind: type[Any], core: str, of: Any = None) -> Any:
    store = MemoryStore(core=core)  # type: ignore[arg-type]
    return kind(policy("first") if of is None else of, store=store, clock=ManualClock())


def bound_calls(gate: Any) -> list[Callable[..., Any]]:
    """The calls of a sync or async gate that decide at once and may be stored."""
    return [gate.ask] if isinstance(gate, AsyncGate) else [gate.hit, gate.peek]


@pytest.mark.parametrize("kind", GATES)
def test_a_stored_bound_call_decides_by_the_policy_in_force(core: str, kind: type[Any]) -> None:
    gate = make(kind, core)
    stored = bound_calls(gate)
    for replacement in (policy("second"), python_policy("third"), policy("fourth")):
        gate.reload(replacement)
        assert {decide(REQUEST).rule for decide in (*stored, *bound_calls(gate))} == {gate.policy.rules[0].name}


@pytest.mark.parametrize("kind", GATES)
def test_a_gate_decides_by_a_policy_that_becomes_native(core: str, kind: type[Any]) -> None:
    gate = make(kind, core, python_policy("first"))
    stored = bound_calls(gate)
    gate.reload(policy("second"))
    assert {decide(REQUEST).rule for decide in (*stored, *bound_calls(gate))} == {"second"}


def test_a_subclass_may_override_a_call_and_use_the_inherited_one(core: str) -> None:
    class Counting(Gate):
        count = 0

        def hit(self, request: Any, cost: Any = 1, **more: Any) -> Decision:
            self.count += 1
            return super().hit(request, cost, **more)

    gate = make(Counting, core)
    assert gate.hit(REQUEST).remaining == 8
    assert gate.hit(REQUEST, 2).remaining == 6
    assert gate.peek(REQUEST, 0).remaining == 6
    assert gate.count == 2


@pytest.mark.parametrize("method", ["hit", "peek"])
def test_a_call_has_the_parameters_of_its_method(core: str, method: str) -> None:
    gate = make(Gate, core)
    own, usual = inspect.signature(getattr(gate, method)), inspect.signature(getattr(Gate, method))
    given = [(name, one.kind, one.default) for name, one in usual.parameters.items() if name != "self"]
    assert [(name, one.kind, one.default) for name, one in own.parameters.items()] == given
    assert getattr(gate, method)(request=REQUEST, cost=2, ruleset="default").allowed


@pytest.mark.parametrize("method", ["hit", "peek"])
def test_a_bad_cost_or_ruleset_is_refused_and_charges_nothing(core: str, method: str) -> None:
    gate = make(Gate, core)
    decide = getattr(gate, method)
    for cost in (None, -1, 1.0, True, "1", {"tokens": 1}, 2**52 + 1):
        with pytest.raises(ArgumentError):
            decide(REQUEST, cost)
    for ruleset in (None, "no such", 1, "\ud800"):
        with pytest.raises((ConfigError, TypeError)):
            decide(REQUEST, ruleset=ruleset)
    with pytest.raises(TypeError):
        decide(REQUEST, 1, "default")
    assert gate.peek(REQUEST, 0).remaining == 9


def test_threads_that_decide_while_policies_are_replaced_charge_each_request_once(core: str) -> None:
    gate = make(Gate, core, policy("all", "100_000/hour bucket"))
    hit, failed, requests = gate.hit, [], 2000

    def decide() -> None:
        try:
            for _ in range(requests):
                assert hit(REQUEST).rule == "all"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=decide) for _ in range(3)]
    for thread in threads:
        thread.start()
    others = [policy("all", "100_000/hour bucket"), replace(python_policy("all"), rules=gate.policy.rules)]
    number = 0
    while any(thread.is_alive() for thread in threads):
        gate.reload(others[number % 2])
        number += 1
    for thread in threads:
        thread.join()
    assert failed == []
    assert gate.peek(REQUEST, 0).remaining == 100_000 - 3 * requests


@pytest.mark.parametrize("kind", GATES)
def test_a_gate_whose_calls_are_stored_is_freed_with_them(core: str, kind: type[Any]) -> None:
    gate = make(kind, core)
    stored, reference = bound_calls(gate), weakref.ref(gate)
    assert all(decide(REQUEST).allowed for decide in stored)
    del gate, stored
    gc.collect()
    assert reference() is None
