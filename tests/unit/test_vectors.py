"""Every implementation gives exactly the answers of the vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.limits import ALGORITHMS, Limit
from headgate.testing import ManualClock
from subjects import make_limiter

VECTORS = Path(__file__).parents[2] / "vectors"


def read_vectors() -> Iterator[dict[str, Any]]:
    for name in ("by_hand.jsonl", "histories.jsonl"):
        with (VECTORS / name).open() as lines:
            yield from map(json.loads, lines)


def read_limit(numbers: dict[str, Any]) -> Limit:
    return ALGORITHMS[numbers["algorithm"]](**{name: value for name, value in numbers.items() if name != "algorithm"})


@pytest.mark.parametrize("vector", list(read_vectors()), ids=lambda vector: vector["id"])
def test_every_step_is_answered_exactly(core: str, vector: dict[str, Any]) -> None:
    clock = ManualClock()
    limiter = make_limiter(core, [read_limit(limit) for limit in vector["limits"]], clock)
    for step in vector["steps"]:
        clock.set(step["at_us"])
        decision = getattr(limiter, step["op"])("key", step["cost"])
        answer = {
            "allowed": decision.allowed,
            "retry_after_us": decision.retry_after_us,
            "delay_us": decision.delay_us,
            "limits": [
                {
                    "allowed": reading.allowed,
                    "remaining": reading.remaining,
                    "reset_after_us": reading.reset_after_us,
                    "retry_after_us": reading.retry_after_us,
                }
                for reading in decision.limits
            ],
        }
        assert answer == {name: step[name] for name in answer}
