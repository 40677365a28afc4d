"""What refusals mean to callers that wait: which are worth waiting for, and how those are answered that do not wait."""

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
"""The log message where no more callers may wait."""


class Verdicts:
    """What refusals by these limits mean; `has_places` is whether some count what is in flight."""

    def __init__(self, limits: Sequence[NamedLimit], clock: Clock) -> None:
        self.limits = tuple(limits)
        self._clock = clock
        self.groups = max((limit.group + 1 for limit in self.limits), default=0)
        self._has_queues = any(ALGORITHMS[limit.limit.algorithm].queues for limit in limits)
        self._in_flight = [is_in_flight(limit.limit.algorithm) for limit in self.limits]
        self.has_places = any(self._in_flight)
        self.has_rates = not all(self._in_flight)

    def can_never_pass(self, request: Request) -> bool:
        """Whether a request costs more places than one of the limits has."""
        return any(
            counts_places and not limit.shadow and request.costs[limit.group] > limit.limit.quota
            for limit, counts_places in zip(self.limits, self._in_flight, strict=True)
        )

    def waits_us(self, decision: Decision) -> tuple[int | None, int | None]:
        """How long a refused request waits for rates, and for places at most; None for never."""
        waits: tuple[list[int | None], list[int | None]] = ([0], [0])
        for limit, counts_places in zip(decision.limits, self._in_flight, strict=True):
            if not limit.shadow:
                waits[counts_places].append(limit.retry_after_us)
        rates, places = (None if None in kind else max(wait or 0 for wait in kind) for kind in waits)
        return rates, places

    def is_hopeless(self, decision: Decision, remaining_us: int) -> bool:
        """Whether a refused request should not wait: its turn comes too late or never, or the store does not answer."""
        if decision.degraded == "closed" and any(limit.on_store_error == "closed" for limit in decision.definitions):
            return True
        if not self.has_places:
            return decision.retry_after_us is None or decision.retry_after_us > remaining_us
        rates_us, places_us = self.waits_us(decision)
        return rates_us is None or places_us is None or rates_us > remaining_us or not remaining_us

    def refuse_late(self, request: Request, decision: Decision) -> Generator[Any, Any, Answer]:
        """Refuse a request whose turn comes too late; the refusal states when that turn would be.

        The refusal of a queue states when the request could join it, not when it would leave it.
        """
        if not self._has_queues or decision.retry_after_us is None:
            return request.answer(decision)
        return (yield from self.refuse(request, (yield from self.wait_alone_us(request))))

    def wait_alone_us(self, request: Request) -> Generator[Read, Any, int | None]:
        """How long until a request would proceed if no caller were before it in line; None for never."""
        if not self._has_queues:
            return 1
        states = yield Read(request.keys)
        now_us = self.now_us(states)
        turn_us = Plan(self.limits, states, now_us).turn_us(request.costs, now_us, join=False)
        return None if turn_us is None else turn_us - now_us

    def now_us(self, states: Sequence[State | None]) -> int:
        """The moment at which states were read, by the clock of their store."""
        read_us: int | None = getattr(states, "now_us", None)
        return self._clock.now_us() if read_us is None else read_us

    def refuse(self, request: Request, wait_us: int | None) -> Generator[Any, Any, Answer]:
        """The refusal of a request whose turn comes in `wait_us` (None: never); nothing was consumed."""
        keys, costs = request.keys, request.costs
        untouched: Decision = yield Operation(keys, (0,) * self.groups, commit=False)
        peeked: Decision = yield Operation(keys, costs, commit=False)
        readings = [
            Reading(
                reading.allowed,
                unchanged.remaining,
                unchanged.reset_after_us,
                reading.retry_after_us,
                unchanged.next_after_us,
                0,
            )
            for unchanged, reading in zip(untouched.limits, peeked.limits, strict=True)
        ]
        costs_of_limits = [costs[limit.group] for limit in self.limits]
        binding = binding_of(self.limits, readings, costs_of_limits, allowed=peeked.allowed)
        if binding is not None:
            limit_us = readings[binding].retry_after_us
            retry_us = None if wait_us is None or limit_us is None else max(wait_us, limit_us, 1)
            readings[binding] = readings[binding]._replace(allowed=False, retry_after_us=retry_us)
        return request.answer(Decision(self.limits, readings, allowed=False, binding=binding, degraded=peeked.degraded))
