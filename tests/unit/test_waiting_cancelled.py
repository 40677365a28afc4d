"""A caller that is cancelled keeps nothing, at whatever step of waiting that happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import MemoryStore
from headgate.decision import NamedLimit
from headgate.holding import Hold
from headgate.limits import TokenBucket
from headgate.operation import Operation
from headgate.testing import ManualClock
from headgate.waiting.run import run_async
from headgate.waiting.steps import Join, Reserve, WaitSteps

LIMITS = (NamedLimit(TokenBucket(capacity=5, refill=5, period="day"), scope="own", name="own"),)
KEYS = ("key",)


@pytest.mark.parametrize("is_held", [False, True], ids=["taken", "held"])
def test_an_admitted_cost_is_given_back_where_the_caller_is_cancelled_while_it_leaves_the_line(is_held: bool) -> None:
    async def main() -> None:
        clock = ManualClock()
        bound: Any = MemoryStore().bind(LIMITS, clock=clock)
        leaving, may_leave = asyncio.Event(), asyncio.Event()
        left = []

        async def leave() -> None:
            leaving.set()
            await may_leave.wait()
            left.append("line")

        def steps() -> WaitSteps:
            yield Join(lambda: None, leave)
            operation = Operation(KEYS, (2,))
            if not is_held:
                return (yield operation)
            hold = Hold(b"a name of its own", 60_000_000)
            return (yield Reserve(operation, hold, bound.id_of("key", hold.name), False))

        def remaining() -> int:
            return bound.decide(Operation(KEYS, (0,), commit=False)).remaining  # type: ignore[no-any-return]

        waiting = asyncio.ensure_future(run_async(steps(), bound, clock))
        await leaving.wait()
        assert remaining() == 3
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        may_leave.set()
        while not left:  # noqa: ASYNC110 - leaving goes on without its caller
            await asyncio.sleep(0)
        assert (remaining(), left) == (5, ["line"])

    asyncio.run(main())
