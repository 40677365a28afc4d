"""Gates hold the usage of earlier calls, and no more than a model can generate; gates of one store learn together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate import SharedStore
from headgate.llm import AsyncLlmGate, LlmGate, Usage
from headgate.llm.inputs import InputCount
from headgate.llm.learned import LocalLearned, NothingLearned
from headgate.llm.learned.shared import SharedLearned
from subjects import ZONES

POLICY: dict[str, Any] = {
    "version": 1,
    "llm": {"unknown_price": "free", "expected_output": 700, "max_output": 5000},
    "rules": [{"name": "user", "by": ["user"], "limits": "90000000 tokens/day in UTC"}],
}


def settle(gate: LlmGate, output: int, times: int) -> None:
    for _ in range(times):
        gate.reserve("m", user="ann", input_tokens=10, max_tokens=4000).settle_usage(Usage(10, output))


def test_a_gate_holds_the_usage_of_earlier_calls() -> None:
    with LlmGate(POLICY) as gate:
        assert gate.reserve("m", user="ann", input_tokens=10, max_tokens=4000).held.output == 700
        settle(gate, 14, 30)
        for user in ("ann", "bob"):
            assert gate.reserve("m", user=user, input_tokens=10, max_tokens=4000).held.output == 14
        assert gate.reserve("m", user="ann", input_tokens=10, max_tokens=100).held.output == 100, "another size"
        assert gate.learned.coverage() == {"m": (30, 0)}


def test_coverage_compares_output_with_the_estimate_whatever_other_rules_hold() -> None:
    rules = [*POLICY["rules"], {"name": "most", "by": ["user"], "limits": "90000000 tokens/day in UTC", "hold": "max"}]
    with LlmGate({**POLICY, "rules": rules}) as gate:
        for output in (699, 700, 701):
            call = gate.reserve("m", user="ann", input_tokens=10, max_tokens=4000)
            assert call.held.output == 4000
            call.settle_usage(Usage(10, output))
        coverage = gate.coverage()["m"]
        assert (coverage.calls, coverage.covered, coverage.above) == (3, 2, 1)
        gate.reserve("m", user="ann", input_tokens=10, max_tokens=4000).settle_at_least(Usage(10, 3000))
        gate.reserve("m", user="ann", input_tokens=10, max_tokens=4000).settle_unknown()
        gate.reserve("m", user="ann", input_tokens=10, max_tokens=4000).settle_failed()
        assert gate.coverage() == {"m": (3, 1)}, "their output is not known exactly"
    with LlmGate({**POLICY, "rules": rules[1:]}) as gate:
        settle(gate, 14, 3)
        assert gate.coverage() == {}, "no call is held by an estimate"


def test_a_gate_may_use_given_estimates() -> None:
    learned = LocalLearned()
    with LlmGate(POLICY, learned=learned) as gate:
        settle(gate, 14, 30)
    assert learned.output("ann", "m", 4000) == 14 and learned.coverage()["m"] == (30, 0)


def test_a_gate_may_learn_nothing() -> None:
    with LlmGate(POLICY, learned=NothingLearned()) as gate:
        settle(gate, 14, 30)
        call = gate.reserve("m", user="ann", max_tokens=4000, messages=[{"role": "user", "content": "word " * 300}])
        assert call.held.output == 700 and gate.learned.coverage() == {}


@pytest.mark.parametrize("kind", ZONES)
def test_gates_of_one_store_learn_together(kind: str, tmp_path: Path) -> None:
    with LlmGate(POLICY, store=SharedStore(tmp_path / "zone", size=1 << 20)) as one:
        settle(one, 14, 30)
    with LlmGate(POLICY, store=SharedStore(tmp_path / "zone", size=1 << 20)) as other:
        learned = other.learned
        assert isinstance(learned, SharedLearned)
        other.reserve("m", user="ann", input_tokens=10, max_tokens=4000)
        assert learned.share()
        assert other.reserve("m", user="ann", input_tokens=10, max_tokens=4000).held.output == 14


@pytest.mark.parametrize(
    ("model", "fields", "most"),
    [
        ("gpt-4o", {"max_tokens": 1_000_000}, 16_384),
        ("gpt-4o", {"max_tokens": 100, "n": 3}, 300),
        ("gpt-4o", {"n": 3}, 3 * 16_384),
        ("gpt-4o", {}, 16_384),
        ("nobody-knows", {}, 5_000),
        ("nobody-knows", {"max_tokens": 1_000_000}, 1_000_000),
        ("text-embedding-3-small", {}, 0),
    ],
)
def test_no_more_is_held_than_the_body_allows_and_the_model_can_make(
    model: str, fields: dict[str, Any], most: int
) -> None:
    gate = LlmGate({**POLICY, "llm": {**POLICY["llm"], "hold": "max"}})
    call = gate.reserve(model, user="ann", input_tokens=10, **fields)
    assert call.most_output == call.held.output == most


def test_gates_of_asyncio_count_long_texts_as_others_do() -> None:
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "many words " * 5000}], "max_tokens": 5}
    held = LlmGate(POLICY).reserve(body=body, user="ann").held

    async def main() -> None:
        async with AsyncLlmGate(POLICY) as gate:
            assert (await gate.reserve(body=body, user="ann")).held == held
            counted = InputCount(held.input, True, False)
            assert (await gate.reserve(body=body, user="ann", input_tokens=counted)).held == held
            hiding = InputCount(10, True, True)
            assert (await gate.reserve("gpt-5", user="ann", input_tokens=hiding)).held.input == 10 + 8192

    asyncio.run(main())
