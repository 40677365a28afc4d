"""Rules of one policy that hold in different ways, and shadow rules, apply to one call together."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.llm import LlmGate, UnknownPriceError, Usage
from headgate.testing import ManualClock

PRICES = {"m": {"input": "1", "output": "10"}}


def gate_of(*rules: dict[str, Any], **llm: Any) -> LlmGate:
    return LlmGate({"version": 1, "llm": {"prices": PRICES, **llm}, "rules": list(rules)}, clock=ManualClock())


def remaining_of(call: Any) -> dict[str, int]:
    return {reading.name: reading.remaining for reading in call.decision.limits}


@pytest.mark.parametrize("modes", [("slices", "expected"), ("expected", "max"), ("max", "slices", "expected")])
def test_a_call_in_the_background_is_held_in_full_by_each_rule(modes: tuple[str, ...]) -> None:
    rules = [
        {"name": mode, "by": ["user"], "hold": mode, "limits": "90000 output_tokens/minute bucket"} for mode in modes
    ]
    call = gate_of(*rules).reserve("m", user="u", input="hi", max_output_tokens=9_000, background=True)
    assert remaining_of(call) == dict.fromkeys([f"{mode}.output_tokens" for mode in modes], 81_000)
    assert call.held.output == 9_000


def test_a_shadow_rule_refuses_no_model_without_a_price() -> None:
    shadow = {"name": "trial", "by": ["user"], "limits": "1 usd/day in UTC", "shadow": True}
    rule = {"name": "user", "by": ["user"], "limits": "90000 tokens/minute bucket"}
    gate = gate_of(rule, shadow, hold="max")
    call = gate.reserve("nobodys-model", user="u", input_tokens=100, max_tokens=50)
    assert call and call.held == (100, 50, None)
    call.settle_usage(Usage(100, 40))
    assert remaining_of(gate.reserve("m", user="u", input_tokens=0, max_tokens=0))["user.tokens"] == 90_000 - 140
    with pytest.raises(UnknownPriceError):
        gate_of(shadow, {**shadow, "name": "real", "shadow": False}).reserve("nobodys-model", user="u", input_tokens=1)


def test_a_shadow_rule_cuts_no_stream() -> None:
    limits = {"by": ["user"], "hold": "slices", "limits": "120 tokens/day in UTC"}
    rules: list[dict[str, Any]] = [
        {"name": "trial", "shadow": True, **limits},
        {"name": "user", "at_end": "debt", **limits},
    ]
    call = gate_of(*rules, slice=20).reserve("m", user="u", input_tokens=1, max_tokens=1000)
    chunks = [{"choices": [{"delta": {"content": " word"}}]}] * 300
    with call:
        assert len(list(call.stream(chunks))) == 300
    assert not call.was_cut


def test_a_refusal_states_the_request_of_the_rule_that_refuses() -> None:
    limit = {"by": ["user"], "limits": "1500 tokens/minute bucket"}
    rules = [{"name": "fast", "hold": "expected", **limit}, {"name": "most", "hold": "max", **limit}]
    budgets = [{"name": f"{rule['name']}usd", "by": ["user"], "hold": rule["hold"]} for rule in rules]
    wide, narrow = {"limits": "100 usd/day in UTC"}, {"limits": "0.001 usd/day in UTC"}
    arguments: dict[str, Any] = {"user": "u", "input_tokens": 1, "max_tokens": 5_000}
    for given, expected in (
        ([rules[0], {**budgets[1], **wide}], {"tokens": 1_001}),
        ([rules[0], {**rules[1], "limits": "900000 tokens/minute bucket"}], {"tokens": 1_001}),
        (rules, {"tokens": 5_001}),
        ([{**rules[1], "shadow": True}, rules[0]], {"tokens": 1_001}),
        ([{**budgets[0], **narrow}, {**budgets[1], **wide}], {"usd": 10_001_000}),
    ):
        gate = gate_of(*given, expected_output=1_000)
        gate.reserve("m", **arguments)
        assert gate.reserve("m", **arguments).requested == expected
