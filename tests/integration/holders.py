"""Holders of units in tests of a Redis store: one interface for threads and for an event loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from redis_askers import Loop

from headgate.clock import Clock
from headgate.decision import Decision, name_limits
from headgate.holding import Extension, Hold, Reserved, Settlement
from headgate.limit_text import parse_limits
from headgate.limits import Limit
from headgate.operation import Operation
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from vector_check import answer, read_limits


class Holder:
    """Limits bound to a Redis store in either colour; close it. Each group takes the same key, cost and amount."""

    def __init__(
        self, colour: str, limits: str | Sequence[Limit], store: RedisStore, *, scope: str, clock: Clock | None = None
    ) -> None:
        self.store = store
        self.loop = Loop() if colour == "async" else None
        parsed = parse_limits(limits) if isinstance(limits, str) else list(limits)
        definitions = name_limits(parsed, scope=scope, name="held")
        self.bound: Any = (store.bind if self.loop is None else store.bind_async)(definitions, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.loop is not None:
            self.loop.run(self.store.aclose())
            self.loop.close()

    def do(self, method: str, *arguments: Any, **options: Any) -> Any:
        result = getattr(self.bound, method)(*arguments, **options)
        return result if self.loop is None else self.loop.run(result)

    def hit(self, key: str, cost: int = 1, **options: Any) -> Decision:
        decision: Decision = self.do("hit", key, cost, **options)
        return decision

    def peek(self, key: str, cost: int = 0) -> Decision:
        decision: Decision = self.do("peek", key, cost)
        return decision

    def reserve(self, key: str, cost: int = 1, name: str | None = None, lease_us: int = 60_000_000) -> Reserved:
        reserved: Reserved = self.do("reserve", Operation((key,), (cost,)), Hold(name, lease_us))
        return reserved

    def commit(self, whole_id: str, actual: int | None) -> Settlement:
        settlement: Settlement = self.do("commit", whole_id, actual)
        return settlement

    def extend(self, whole_id: str, lease_us: int, more: int = 0) -> Extension:
        extension: Extension = self.do("extend", whole_id, lease_us, [more])
        return extension

    def id_of(self, key: str, name: str) -> str:
        whole_id: str = self.bound.id_of(key, name)
        return whole_id

    def left(self, key: str) -> list[int]:
        """Return what remains of each limit."""
        return [limit.remaining for limit in self.peek(key).limits]


def hold_steps(colour: str, store: RedisStore, vector: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Execute each step of a vector with holds: yield (the result, the expected result)."""
    clock, key = ManualClock(), f"key of {vector['id']}"
    with Holder(colour, read_limits(vector), store, scope=vector["id"], clock=clock) as holder:
        for step in vector["steps"]:
            clock.set(step["at_us"])
            values = _execute_step(holder, key, step)
            yield values, {name: step.get(name) for name in values}


def _execute_step(holder: Holder, key: str, step: dict[str, Any]) -> dict[str, Any]:
    operation = step["op"]
    if operation in ("hit", "peek"):
        decision: Decision = getattr(holder, operation)(key, step["cost"])
        values: dict[str, Any] = answer(decision)
        return values
    if operation == "reserve":
        reserved = holder.reserve(key, step["cost"], step["id"], step["lease_us"])
        return {**answer(reserved.decision), "repeated": reserved.repeated}
    whole_id = holder.id_of(key, step["id"])
    values = {}
    if operation == "extend":
        result: Extension | Settlement = holder.extend(whole_id, step["lease_us"], step["more"])
    else:
        result = holder.commit(whole_id, step["actual"] if operation == "commit" else 0)
        values["settled_at"] = result.actual
    # The id of an unknown hold does not contain a key.
    after = holder.peek(key).limits if result.outcome == "unknown" else result.after
    values["after"] = [{"remaining": each.remaining, "reset_after_us": each.reset_after_us} for each in after]
    return {**values, "outcome": result.outcome}
