"""Asks the gate, and publishes each decision with the time it took."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TypeVar

from headgate.costs import Cost
from headgate.decision import Decision
from headgate.observe.events import DecisionEvent, Events
from headgate.policy.compiled import ALL_RULES
from headgate.policy.gate import AsyncGate
from headgate.policy.request import Request

Written = TypeVar("Written")


class Decider:
    """Decides for a gate; what is made of each decision is up to the caller."""

    def __init__(self, gate: AsyncGate, events: Events) -> None:
        self.gate = gate
        self._events = events

    def decide(
        self, request: Request, cost: Cost, write: Callable[[Decision], Written], ruleset: str = ALL_RULES
    ) -> Written | Awaitable[Written]:
        """What `write` makes of the decision for a request; an awaitable of it where the store waits for I/O."""
        events = self._events
        start_s = perf_counter() if events.subscribers else 0.0
        decision = self.gate.ask(request, cost, ruleset=ruleset)
        if not isinstance(decision, Decision):
            return self._decide_later(decision, start_s, request, write, ruleset)
        if events.subscribers:
            events.publish(DecisionEvent(decision, perf_counter() - start_s, request, ruleset))
        return write(decision)

    async def _decide_later(
        self,
        awaited: Awaitable[Decision],
        start_s: float,
        request: Request,
        write: Callable[[Decision], Written],
        ruleset: str,
    ) -> Written:
        decision = await awaited
        if self._events.subscribers:
            self._events.publish(DecisionEvent(decision, perf_counter() - start_s, request, ruleset))
        return write(decision)
