"""Those who hold and settle in tests of a Redis store: from threads or from an event loop, in the same words."""

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
        asked = getattr(self.bound, method)(*arguments, **options)
        return asked if self.loop is None else self.loop.run(asked)

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
        """What remains of each limit."""
        return [limit.remaining for limit in self.peek(key).limits]


def hold_steps(colour: str, store: RedisStore, vector: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each step of a vector with holds: (the answer, what it must be)."""
    clock, key = ManualClock(), f"key of {vector['id']}"
    with Holder(colour, read_limits(vector), store, scope=vector["id"], clock=clock) as holder:
        for step in vector["steps"]:
            clock.set(step["at_us"])
            given = _answered(holder, key, step)
            yield given, {name: step.get(name) for name in given}


def _answered(holder: Holder, key: str, step: dict[str, Any]) -> dict[str, Any]:
    kind = step["op"]
    if kind in ("hit", "peek"):
        decision: Decision = getattr(holder, kind)(key, step["cost"])
        given: dict[str, Any] = answer(decision)
        return given
    if kind == "reserve":
        reserved = holder.reserve(key, step["cost"], step["id"], step["lease_us"])
        return {**answer(reserved.decision), "repeated": reserved.repeated}
    whole_id = holder.id_of(key, step["id"])
    given = {}
    if kind == "extend":
        found: Extension | Settlement = holder.extend(whole_id, step["lease_us"], step["more"])
    else:
        found = holder.commit(whole_id, step["actual"] if kind == "commit" else 0)
        given["settled_at"] = found.actual
    # The id of a hold that is unknown tells no key.
    after = holder.peek(key).limits if found.outcome == "unknown" else found.after
    given["after"] = [{"remaining": each.remaining, "reset_after_us": each.reset_after_us} for each in after]
    return {**given, "outcome": found.outcome}
