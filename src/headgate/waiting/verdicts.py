"""What refusals mean to callers that wait: which are worth waiting for, and what is told to those that do not wait."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from headgate.algorithms.table import ALGORITHMS, State, is_in_flight
from headgate.clock import Clock
from headgate.decision import Decision, NamedLimit, Reading, binding_of
from headgate.operation import Operation
from headgate.waiting.plan import Plan
from headgate.waiting.steps import Answer, Read, Request

FULL = "%d callers wait already, which is the most that may: more are refused"
"""What the log says where no more callers may wait."""


class Verdicts:
    """What refusals by these limits mean; `has_places` is whether some count what is in flight."""

    def __init__(self, limits: Sequence[NamedLimit], clock: Clock) -> None:
        self.limits = tuple(limits)
        self._clock = clock
        self.groups = max((limit.group + 1 for limit in self.limits), default=0)
        self._queues = any(ALGORITHMS[limit.limit.algorithm].queues for limit in limits)
        self._in_flight = [is_in_flight(limit.limit.algorithm) for limit in self.limits]
        self.has_places = any(self._in_flight)
        self.has_rates = not all(self._in_flight)

    def never(self, asked: Request) -> bool:
        """Whether so many places are asked for as there never are."""
        return any(
            is_place and not limit.shadow and asked.costs[limit.group] > limit.limit.quota
            for limit, is_place in zip(self.limits, self._in_flight, strict=True)
        )

    def waits_us(self, decision: Decision) -> tuple[int | None, int | None]:
        """How long a refused request waits for rates, and at the most for places; None for never."""
        waits: tuple[list[int | None], list[int | None]] = ([0], [0])
        for limit, is_place in zip(decision.limits, self._in_flight, strict=True):
            if not limit.shadow:
                waits[is_place].append(limit.retry_after_us)
        rates, places = (None if None in each else max(wait or 0 for wait in each) for each in waits)
        return rates, places

    def hopeless(self, decision: Decision, left_us: int) -> bool:
        """Whether a refused request should not wait: its turn comes too late, or never, or the store is away."""
        if decision.degraded == "closed" and any(limit.on_store_error == "closed" for limit in decision.definitions):
            return True
        if not self.has_places:
            return decision.retry_after_us is None or decision.retry_after_us > left_us
        rates_us, places_us = self.waits_us(decision)
        return rates_us is None or places_us is None or rates_us > left_us or not left_us

    def late(self, asked: Request, decision: Decision) -> Generator[Any, Any, Answer]:
        """What is told to a request whose turn comes too late: when that would be.

        The refusal of a queue tells when the request could join it, and not when it would leave.
        """
        if not self._queues or decision.retry_after_us is None:
            return asked.answer(decision)
        return (yield from self.refuse(asked, (yield from self.alone_us(asked))))

    def alone_us(self, asked: Request) -> Generator[Read, Any, int | None]:
        """How long until a request would proceed if no caller were in line before it; None for never."""
        if not self._queues:
            return 1
        states = yield Read(asked.keys)
        now_us = self.now_us(states)
        turn_us = Plan(self.limits, states, now_us).turn_us(asked.costs, now_us, join=False)
        return None if turn_us is None else turn_us - now_us

    def now_us(self, states: Sequence[State | None]) -> int:
        """The moment at which states were read, by the clock of their store."""
        read_us: int | None = getattr(states, "now_us", None)
        return self._clock.now_us() if read_us is None else read_us

    def refuse(self, asked: Request, wait_us: int | None) -> Generator[Any, Any, Answer]:
        """The refusal of a request whose turn comes in `wait_us` (None: never): nothing was consumed."""
        keys, costs = asked.keys, asked.costs
        untouched: Decision = yield Operation(keys, (0,) * self.groups, commit=False)
        refused: Decision = yield Operation(keys, costs, commit=False)
        readings = [
            Reading(
                reading.allowed,
                whole.remaining,
                whole.reset_after_us,
                reading.retry_after_us,
                whole.next_after_us,
                0,
            )
            for whole, reading in zip(untouched.limits, refused.limits, strict=True)
        ]
        each = [costs[limit.group] for limit in self.limits]
        speaking = binding_of(self.limits, readings, each, allowed=refused.allowed)
        if speaking is not None:
            own_us = readings[speaking].retry_after_us
            late_us = None if wait_us is None or own_us is None else max(wait_us, own_us, 1)
            readings[speaking] = readings[speaking]._replace(allowed=False, retry_after_us=late_us)
        return asked.answer(Decision(self.limits, readings, allowed=False, binding=speaking, degraded=refused.degraded))
