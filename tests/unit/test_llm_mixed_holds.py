"""Rules of one policy that hold in different ways, and rules that are only tried out, apply to one call together."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.llm import LlmGate
from headgate.testing import ManualClock

PRICES = {"m": {"input": "1", "output": "10"}}


def gate_of(*rules: dict[str, Any], **llm: Any) -> LlmGate:
    return LlmGate({"version": 1, "llm": {"prices": PRICES, **llm}, "rules": list(rules)}, clock=ManualClock())


def left(call: Any) -> dict[str, int]:
    return {reading.name: reading.remaining for reading in call.decision.limits}


@pytest.mark.parametrize("modes", [("slices", "expected"), ("expected", "max"), ("max", "slices", "expected")])
def test_a_call_in_the_background_is_held_whole_by_each_rule(modes: tuple[str, ...]) -> None:
    rules = [
        {"name": mode, "by": ["user"], "hold": mode, "limits": "90000 output_tokens/minute bucket"} for mode in modes
    ]
    call = gate_of(*rules).reserve("m", user="u", input="hi", max_output_tokens=9_000, background=True)
    assert left(call) == dict.fromkeys([f"{mode}.output_tokens" for mode in modes], 81_000)
    assert call.held.output == 9_000
