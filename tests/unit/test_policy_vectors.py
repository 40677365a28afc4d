"""Both gates give exactly the answers of `vectors/policies.jsonl`: which rules, under which keys, what is decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.keys import encode_key
from headgate.policy.descriptor import Descriptor
from headgate.policy.gate import Gate
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import CORES, make_store

FILE = Path(__file__).parents[2] / "vectors" / "policies.jsonl"
ALL = {case["id"]: case for case in map(json.loads, FILE.read_text().splitlines())}
GATES = ("Python's gate", "the native gate") if "native" in CORES else ("Python's gate",)


def request_of(values: dict[str, Any]) -> Request | Descriptor:
    if "entries" in values:
        return Descriptor([(key, value) for key, value in values["entries"]])
    headers = [(name, value) for name, value in values.get("headers", [])]
    return Request(**values | {"headers": headers})


@pytest.mark.parametrize("which", GATES)
@pytest.mark.parametrize("id", ALL)
def test_a_policy_answers_its_vectors(id: str, which: str) -> None:
    clock = ManualClock()
    gate = Gate(ALL[id]["policy"], store=make_store(CORES[0]), clock=clock)
    if which == "Python's gate":
        gate._decide_by(gate.resolver, None)
    for case in ALL[id]["requests"]:
        clock.set(case["at_us"])
        request, cost, ruleset = request_of(case["request"]), case["cost"], case["ruleset"]
        resolve = gate.resolver.resolve if gate._native is None else gate._native.resolve
        # Parts that only Python can decide are taken from Python.
        _, operation, rules, units = resolve(request, cost, ruleset) or gate.resolver.resolve(request, cost, ruleset)
        decision = gate.hit(request, cost, ruleset=ruleset)
        reported = {
            "rules": [rule.name for rule in rules],
            "units": list(units),
            "keys": [key and encode_key(key) for key in operation.keys],
            "costs": list(operation.costs),
            "allowed": decision.allowed,
            "binding": decision.rule,
            "remaining": decision.remaining,
            "retry_after_us": decision.retry_after_us,
            "reset_after_us": decision.reset_after_us,
        }
        assert reported == {name: case[name] for name in reported}, case["request"]


@pytest.mark.skipif("native" not in CORES, reason="only the Python core is here")
def test_the_vectors_are_answered_natively_but_for_what_only_python_can_say() -> None:
    left = 0
    for case in ALL.values():
        gate = Gate(case["policy"], clock=ManualClock())
        for one in case["requests"]:
            reported = gate._native.resolve(request_of(one["request"]), one["cost"], one["ruleset"])
            left += reported is None
    assert left == ONLY_PYTHON


ONLY_PYTHON = 2
"""A header and an entry that are no UTF-8."""
