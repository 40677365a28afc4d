"""When the callers in a line will pass, foretold from the states that a store keeps."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.algorithms.table import State, is_in_flight
from headgate.algorithms.transition import Step, decide
from headgate.decision import NamedLimit
from headgate.waiting.steps import Costs

AHEAD_US = 1_000
"""A caller that passes so much sooner than planned has found more than the plan knew of."""


class Plan:
    """When the callers in line will pass, one after another, if no other request takes anything.

    It is not known ahead when a place in flight is free: a plan takes them to be free, so with limits of those a turn
    comes at the foretold moment at the soonest, and never where the cost is above such a limit.
    """

    def __init__(self, limits: Sequence[NamedLimit], states: Sequence[State | None], now_us: int) -> None:
        rates = [number for number, limit in enumerate(limits) if not is_in_flight(limit.limit.algorithm)]
        self._limits = [limits[number] for number in rates]
        self._states = tuple(states[number] for number in rates)
        self._moment_us = now_us

    def turn_us(self, costs: Costs, now_us: int, *, join: bool) -> int | None:
        """The moment at which one more request may proceed, None for never; with `join` it stands last in line."""
        moment_us = max(self._moment_us, now_us)
        while True:
            steps = [
                Step(limit.limit.compiled, state, costs[limit.group], limit.shadow)
                for limit, state in zip(self._limits, self._states, strict=True)
            ]
            outcome = decide(steps, moment_us, commit=True)
            if outcome.allowed:
                break
            waits = [
                reading.retry_after_us
                for limit, reading in zip(self._limits, outcome.readings, strict=True)
                if not limit.shadow
            ]
            if None in waits:
                return None
            moment_us += max(wait for wait in waits if wait is not None)
        if join:
            self._states = tuple(new or old for new, old in zip(outcome.states, self._states, strict=True))
            self._moment_us = moment_us
        return moment_us + max((reading.delay_us for reading in outcome.readings), default=0)
