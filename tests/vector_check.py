"""Answer every vector, with nothing but Headgate and the standard library: `python vector_check.py FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate import Limiter, MemoryStore, core
from headgate.algorithms.table import ALGORITHMS
from headgate.decision import Decision
from headgate.limits import Limit
from headgate.testing import ManualClock


def read_vectors(folder: Path) -> Iterator[dict[str, Any]]:
    """All vectors of a folder."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open() as lines:
            yield from map(json.loads, lines)


def read_limits(vector: dict[str, Any]) -> list[Limit]:
    """The limits of a vector."""
    return [
        ALGORITHMS[numbers["algorithm"]].limit(
            **{name: value for name, value in numbers.items() if name != "algorithm"}
        )
        for numbers in vector["limits"]
    ]


def answer(decision: Decision) -> dict[str, Any]:
    """A decision in the terms of the vectors."""
    return {
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


def steps(limiter: Limiter, clock: ManualClock, vector: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each step of a vector: (the answer, what it must be)."""
    for step in vector["steps"]:
        clock.set(step["at_us"])
        given = answer(getattr(limiter, step["op"])("key", step["cost"]))
        yield given, {name: step[name] for name in given}


def main() -> int:
    vectors = wrong = answered = 0
    for vector in read_vectors(Path(sys.argv[1])):
        clock = ManualClock()
        vectors += 1
        for given, right in steps(Limiter(read_limits(vector), store=MemoryStore(), clock=clock), clock, vector):
            answered += 1
            if given != right:
                wrong += 1
                print(f"{vector['id']}: {given} is not {right}", file=sys.stderr)
    print(json.dumps({"core": core.CORE, "vectors": vectors, "steps": answered, "wrong": wrong}))
    return 1 if wrong or not answered else 0


if __name__ == "__main__":
    sys.exit(main())
