"""Check every vector with nothing but Headgate and the standard library: `python vector_check.py FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate import Extension, Limiter, MemoryStore, Settlement, core
from headgate.algorithms.table import ALGORITHMS
from headgate.decision import Decision
from headgate.limits import Limit
from headgate.testing import ManualClock


def read_vectors(folder: Path) -> Iterator[dict[str, Any]]:
    """All histories of decisions in a folder; the tables of policies have no steps."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open() as lines:
            yield from (vector for vector in map(json.loads, lines) if "steps" in vector)


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
    """Perform each step of a vector: (the answer, the expected answer)."""
    for step in vector["steps"]:
        clock.set(step["at_us"])
        result = perform(limiter, step)
        yield result, {name: step[name] for name in result}


def perform(limiter: Limiter, step: dict[str, Any]) -> dict[str, Any]:
    """Perform one step; return the answer in the terms of the vectors."""
    if step["op"] in ("hit", "peek"):
        return answer(getattr(limiter, step["op"])("key", step["cost"]))
    if step["op"] == "reserve":
        held = limiter.reserve("key", step["cost"], id=step["id"], lease_us=step["lease_us"])
        return {**answer(held.decision), "repeated": held.repeated}
    whole_id = limiter.id_of("key", step["id"])
    reply: Settlement | Extension
    if step["op"] == "extend":
        reply = limiter.extend(whole_id, lease_us=step["lease_us"], more=step["more"])
        extra = {}
    else:
        reply = limiter.cancel(whole_id) if step["op"] == "cancel" else limiter.commit(whole_id, step["actual"])
        extra = {"settled_at": reply.actual}
    # The answer for an unknown id has no standings: a peek shows those of its key.
    after = limiter.peek("key", 0).limits if reply.outcome == "unknown" else reply.after
    standings = [{"remaining": standing.remaining, "reset_after_us": standing.reset_after_us} for standing in after]
    return {"outcome": reply.outcome, "after": standings, **extra}


def main() -> int:
    vectors = wrong = answered = 0
    for vector in read_vectors(Path(sys.argv[1])):
        clock = ManualClock()
        vectors += 1
        for result, expected in steps(Limiter(read_limits(vector), store=MemoryStore(), clock=clock), clock, vector):
            answered += 1
            if result != expected:
                wrong += 1
                print(f"{vector['id']}: {result} is not {expected}", file=sys.stderr)
    print(json.dumps({"core": core.CORE, "vectors": vectors, "steps": answered, "wrong": wrong}))
    return 1 if wrong or not answered else 0


if __name__ == "__main__":
    sys.exit(main())
