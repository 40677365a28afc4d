"""When the callers in a line will pass, predicted from the states in the store."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.algorithms.table import State, is_in_flight
from headgate.algorithms.transition import Step, decide
from headgate.decision import NamedLimit
from headgate.waiting.steps import Costs

AHEAD_US = 1_000
"""A caller that passes earlier than planned by more than this found more units free than the plan assumed."""


class Plan:
    """When the callers in line will pass, one after another, if no other request takes anything.

    It is not known beforehand when a place in flight will be free. A plan assumes that they all are: with limits of
    places a turn comes at the predicted moment at the earliest, and never where the cost exceeds such a limit.
    """

    def __init__(self, limits: Sequence[NamedLimit], states: Sequence[State | None], now_us: int) -> None:
        rates = [number for number, limit in enumerate(limits) if not is_in_flight(limit.limit.algorithm)]
        self._limits = [limits[number] for number in rates]
        self._states = tuple(states[number] for number in rates)
        self._moment_us = now_us

    def turn_us(self, costs: Costs, now_us: int, *, join: bool) -> int | None:
        """The moment at which one more request may proceed, None for never; with `join` it is added to the plan."""
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
