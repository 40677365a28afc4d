"""Has the gate decide, and publishes each decision with the time it took."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import TypeVar

from headgate.costs import Cost, read_units
from headgate.decision import Decision
from headgate.errors import ArgumentError
from headgate.observe.events import DecisionEvent, Events
from headgate.policy.compiled import ALL_RULES
from headgate.policy.descriptor import Descriptor
from headgate.policy.gate import AsyncGate
from headgate.policy.request import Request
from headgate.reservation import AsyncReservation
from headgate.service.checks.body_fields import BadBody
from headgate.service.http.messages import Reply, ServiceResponse, WaitingReply
from headgate.waiting.departure import Departure

Written = TypeVar("Written")


class Decider:
    """Decides with a gate; the caller turns each decision into a response."""

    def __init__(self, gate: AsyncGate, events: Events) -> None:
        self.gate = gate
        self._events = events
        self._read_policy()
        gate.reloaded.append(self._read_policy)

    def _read_policy(self) -> None:
        self.waits = self.gate.policy.waits
        """Whether requests may wait in line, under the policy in force."""

        self._units = self.gate.policy.units

    def missing_ruleset_message(self, ruleset: str) -> str | None:
        """The error message for a ruleset that the policy does not have; None for one that it has."""
        rulesets = self.gate.policy.rulesets
        if ruleset in rulesets:
            return None
        return f"no ruleset is named {ruleset[:60]!r}; there are {', '.join(rulesets)}"

    def check_units(self, cost: Cost, where: str = "") -> None:
        """Raise BadBody for a cost in a unit that no limit of the policy counts, whether or not a rule applies."""
        if isinstance(cost, Mapping):
            try:
                read_units(cost, self._units)
            except ArgumentError as error:
                raise BadBody(f"{where}{error}") from None

    def decide(
        self, request: Request | Descriptor, cost: Cost, write: Callable[[Decision], Written], ruleset: str = ALL_RULES
    ) -> Written | Awaitable[Written]:
        """The result of `write` for the decision on a request; an awaitable of it where the store waits for I/O."""
        events = self._events
        start_s = perf_counter() if events.subscribers else 0.0
        try:
            decision = self.gate.ask(request, cost, ruleset=ruleset)
        except ArgumentError as error:
            decision = self._peek_in_flight(request, cost, ruleset, error)
        if not isinstance(decision, Decision):
            return self._decide_later(decision, start_s, request, cost, write, ruleset)
        if events.subscribers:
            events.publish(DecisionEvent(decision, perf_counter() - start_s, request, ruleset))
        return write(decision)

    def decide_in_line(
        self,
        request: Request | Descriptor,
        cost: Cost,
        write: Callable[[Decision], ServiceResponse],
        ruleset: str,
    ) -> Reply:
        """`decide`, waiting in line where rules let requests wait, for a client that waits for the response."""
        if not self.waits:
            return self.decide(request, cost, write, ruleset)
        departure = Departure()
        waiting = self.gate.acquire(request, cost, ruleset=ruleset, departure=departure)
        deciding = self._decide_later(waiting, perf_counter(), request, cost, write, ruleset)
        return WaitingReply(deciding, departure.leave)

    async def reserve(
        self,
        request: Request | Descriptor,
        cost: Cost,
        lease: float,
        id: str | None,
        remember: float | None,
        departure: Departure,
    ) -> AsyncReservation:
        """Hold a request, waiting in line where rules let it; see `Gate.acquire`."""
        start_s = perf_counter()
        held = await self.gate.acquire(request, cost, lease=lease, id=id, remember=remember, departure=departure)
        if self._events.subscribers:
            self._events.publish(DecisionEvent(held.decision, perf_counter() - start_s, request, ALL_RULES))
        return held

    async def _decide_later(
        self,
        awaited: Awaitable[Decision],
        start_s: float,
        request: Request | Descriptor,
        cost: Cost,
        write: Callable[[Decision], Written],
        ruleset: str,
    ) -> Written:
        try:
            decision = await awaited
        except ArgumentError as error:
            decision = await self._peek_in_flight(request, cost, ruleset, error)
        if self._events.subscribers:
            self._events.publish(DecisionEvent(decision, perf_counter() - start_s, request, ruleset))
        return write(decision)

    def _peek_in_flight(
        self, request: Request | Descriptor, cost: Cost, ruleset: str, error: ArgumentError
    ) -> Awaitable[Decision]:
        """The decision on a cost of 0, which charges nothing, where an error says that requests in flight need a hold.

        Raises any other error; for any other cost raises the error with the endpoints that hold.
        """
        if "in flight" not in str(error) or not self.gate.policy.in_flight:
            raise error
        if cost != 0 or isinstance(cost, bool):
            raise ArgumentError(f"{error}: POST /v1/reserve, and /v1/commit") from None
        return self.gate.peek(request, 0, ruleset=ruleset)
