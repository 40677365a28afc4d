"""The parts of the gate give the answers of `vectors/policy_parts.jsonl`, in both cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policy_parts import MAY_LEAVE, NATIVE, PYTHON

TABLE = Path(__file__).parents[2] / "vectors" / "policy_parts.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in TABLE.read_text(encoding="ascii").splitlines()]
NAMED = pytest.mark.parametrize(
    "case", CASES, ids=[f"{place}-{case['function']}" for place, case in enumerate(CASES, start=1)]
)


@NAMED
def test_a_part_answers_as_the_table_says(case: dict[str, Any]) -> None:
    assert PYTHON[case["function"]](*case["arguments"]) == case["answer"]


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_part_answers_as_the_table_says(name: str) -> None:
    cases = [case for case in CASES if case["function"] == name]
    assert cases
    for case in cases:
        leaves = case.get("left_to_python", False)
        assert not leaves or name in MAY_LEAVE
        assert NATIVE[name](*case["arguments"]) == (None if leaves else case["answer"]), case


def test_the_table_covers_every_part() -> None:
    assert {case["function"] for case in CASES} == PYTHON.keys()
