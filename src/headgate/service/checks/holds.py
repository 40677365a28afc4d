"""`/v1/reserve`, `/v1/commit`, `/v1/cancel` and `/v1/extend`: requests that are held, and settled later.

The status is 200 for any outcome, as for a check, but 404 for a hold that is not known (any more), and 409 for an id
that belongs to another hold.
"""

from __future__ import annotations

import json

from headgate.amounts import REQUESTS, base_unit
from headgate.costs import Cost
from headgate.errors import ArgumentError
from headgate.holding import Settlement
from headgate.policy.held_groups import read_held
from headgate.service.checks.decider import Decider
from headgate.service.checks.decision_json import write_decision
from headgate.service.checks.hold_body import holds_schema, read_cancel, read_commit, read_extend, read_reserve
from headgate.service.http.messages import JSON, Reply, ServiceRequest, ServiceResponse, WaitingReply
from headgate.service.http.problems import problem_response
from headgate.waiting.departure import Departure

_UNKNOWN = "unknown: never made, reset, or not remembered any more"
_SCHEMA = (json.dumps(holds_schema(), indent=2) + "\n").encode()


class Holds:
    """Holds requests that bodies describe, and settles them by their ids."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._gate = decider.gate

    def reserve(self, request: ServiceRequest, suffix: str) -> Reply:
        """200 with the decision and the id of the hold; raises BadBody and ConflictingId."""
        departure = Departure()
        return WaitingReply(self._reserve(request, departure), departure.leave)

    async def _reserve(self, request: ServiceRequest, departure: Departure) -> ServiceResponse:
        subject, cost, lease, id, remember = read_reserve(request.body)
        self._decider.check_units(cost)
        held = await self._decider.reserve(subject, cost, lease, id, remember, departure)
        hold = {"id": held.id if held else None, "repeated": held.repeated}
        text = f"{write_decision(held.decision)[:-1]}, {json.dumps(hold)[1:]}"
        return ServiceResponse(200, JSON, text.encode())

    async def commit(self, request: ServiceRequest, suffix: str) -> ServiceResponse:
        """200 with the amounts that count, 404 for a hold that is unknown; raises BadBody."""
        return await self._settle(*read_commit(request.body))

    async def cancel(self, request: ServiceRequest, suffix: str) -> ServiceResponse:
        """`commit` of nothing."""
        return await self._settle(read_cancel(request.body), 0)

    async def extend(self, request: ServiceRequest, suffix: str) -> ServiceResponse:
        """200 with the outcome, 404 for a hold that is unknown; raises BadBody."""
        id, lease, more = read_extend(request.body)
        extension = await self._gate.extend(id, lease, more)
        if extension.outcome == "unknown":
            return problem_response(404, f"the hold is {_UNKNOWN}")
        return _json({"outcome": extension.outcome, "degraded": extension.degraded})

    async def _settle(self, id: str, actual: Cost | None) -> ServiceResponse:
        settlement = await self._gate.commit(id, actual)
        if settlement.degraded == "lost":
            return problem_response(503, "the store does not answer, and too many settlements wait for it already")
        if settlement.outcome == "unknown":
            return problem_response(404, f"the hold is {_UNKNOWN}")
        actuals = _actuals(id, settlement)
        return _json({"outcome": settlement.outcome, "actuals": actuals, "degraded": settlement.degraded})


def schema(request: ServiceRequest, suffix: str) -> ServiceResponse:
    """The JSON Schema of the bodies."""
    return ServiceResponse(200, JSON, _SCHEMA)


def _actuals(id: str, settlement: Settlement) -> list[dict[str, object]]:
    """The amount that counts for each rule and unit of a hold, in their order; money is in billionths.

    Raises ArgumentError for an id that names other groups than its hold has, which is settled already.
    """
    actuals = settlement.actuals or ()
    units = read_held(id)[1].units or (REQUESTS,) * len(actuals)
    if actuals and len(units) != len(actuals):
        raise ArgumentError(f"the hold is settled, but has {len(actuals)} amounts where its id says {len(units)}")
    return [{"unit": base_unit(unit), "amount": amount} for unit, amount in zip(units, actuals, strict=False)]


def _json(value: object) -> ServiceResponse:
    return ServiceResponse(200, JSON, json.dumps(value).encode())
