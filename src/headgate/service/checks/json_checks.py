"""`/v1/check`: one request or several in a JSON body, their decisions in the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from headgate.decision import Decision
from headgate.drive import answered
from headgate.service.checks.body import Check, body_schema, read_body
from headgate.service.checks.decider import Decider
from headgate.service.checks.decision_json import write_decision
from headgate.service.http.messages import JSON, Reply, ServiceRequest, ServiceResponse
from headgate.service.http.problems import failure_response, problem_response

_AT_ONCE = 100
"""How many requests of one body the store decides at the same time; each has the store's full deadline."""

_SCHEMA = (json.dumps(body_schema(), indent=2) + "\n").encode()


class JsonChecks:
    """Decides about the requests that a body describes."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    def check(self, request: ServiceRequest, suffix: str) -> Reply:
        """200 with the decisions; a single request may wait in line first, where rules let it. Raises BadBody.

        404 where one of the requests names a ruleset that does not exist. Nothing is charged then.
        """
        checks, several = read_body(request.body)
        for place, check in enumerate(checks):
            if (message := self._decider.missing_ruleset_message(check.ruleset)) is not None:
                return problem_response(404, f"requests[{place}]: {message}" if several else message)
        if several:
            for place, check in enumerate(checks):
                self._decider.check_units(check.cost, f"requests[{place}]: ")
            return self._check_several(checks)
        self._decider.check_units(checks[0].cost)
        request_to_check, cost, ruleset = checks[0]
        return self._decider.decide_in_line(request_to_check, cost, _response_of, ruleset)

    async def _check_several(self, checks: Sequence[Check]) -> ServiceResponse:
        """Decide about several requests, each by itself; the calls to the store travel together, in their order."""
        written: list[str] = []
        for first in range(0, len(checks), _AT_ONCE):
            some = [self._write(check) for check in checks[first : first + _AT_ONCE]]
            written += await asyncio.gather(*some)
        return ServiceResponse(200, JSON, f'{{"decisions": [{", ".join(written)}]}}'.encode())

    async def _write(self, check: Check) -> str:
        """A decision as JSON, or the error of this request alone: others were charged already."""
        try:
            return await answered(self._decider.decide(check.request, check.cost, write_decision, check.ruleset))
        except Exception as error:
            return f'{{"error": {failure_response(error).body.decode()}}}'


def schema(request: ServiceRequest, suffix: str) -> ServiceResponse:
    """The JSON Schema of the bodies."""
    return ServiceResponse(200, JSON, _SCHEMA)


def _response_of(decision: Decision) -> ServiceResponse:
    return ServiceResponse(200, JSON, write_decision(decision).encode())
