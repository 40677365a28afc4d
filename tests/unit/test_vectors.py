"""Every implementation gives exactly the answers of the vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.testing import ManualClock
from subjects import make_limiter
from vector_check import read_limits, read_vectors, steps

ALL = list(read_vectors(Path(__file__).parents[2] / "vectors"))


def has_holds(vector: dict[str, Any]) -> bool:
    return any(step["op"] not in ("hit", "peek") for step in vector["steps"])


@pytest.mark.parametrize("vector", [vector for vector in ALL if not has_holds(vector)], ids=lambda vector: vector["id"])
def test_every_step_is_answered_exactly(store_kind: str, vector: dict[str, Any]) -> None:
    clock = ManualClock()
    for given, right in steps(make_limiter(store_kind, read_limits(vector), clock), clock, vector):
        assert given == right


@pytest.mark.parametrize("vector", [vector for vector in ALL if has_holds(vector)], ids=lambda vector: vector["id"])
def test_every_step_of_holds_is_answered_exactly(holding_kind: str, vector: dict[str, Any]) -> None:
    clock = ManualClock()
    for given, right in steps(make_limiter(holding_kind, read_limits(vector), clock), clock, vector):
        assert given == right
