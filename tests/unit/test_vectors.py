"""Every implementation gives exactly the answers of the vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.testing import ManualClock
from subjects import make_limiter
from vector_check import read_limits, read_vectors, steps

VECTORS = Path(__file__).parents[2] / "vectors"


@pytest.mark.parametrize("vector", list(read_vectors(VECTORS)), ids=lambda vector: vector["id"])
def test_every_step_is_answered_exactly(store_kind: str, vector: dict[str, Any]) -> None:
    clock = ManualClock()
    for given, right in steps(make_limiter(store_kind, read_limits(vector), clock), clock, vector):
        assert given == right
