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
"""So many requests of one body are before the store together; each has the whole of the store's deadline."""

_SCHEMA = (json.dumps(body_schema(), indent=2) + "\n").encode()


class JsonChecks:
    """Judges the requests that a body describes."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    def check(self, request: ServiceRequest, rest: str) -> Reply:
        """200 with what was decided, after a wait where rules say so, but not for several; raises BadBody.

        404 where one of them is to be judged by a ruleset that is none. Nothing is charged then.
        """
        checks, several = read_body(request.body)
        for place, check in enumerate(checks):
            if (lacking := self._decider.lacks(check.ruleset)) is not None:
                return problem_response(404, f"requests[{place}]: {lacking}" if several else lacking)
        if several:
            for place, check in enumerate(checks):
                self._decider.check_units(check.cost, f"requests[{place}]: ")
            return self._check_several(checks)
        self._decider.check_units(checks[0].cost)
        judged, cost, ruleset = checks[0]
        return self._decider.decide_in_line(judged, cost, _response_of, ruleset)

    async def _check_several(self, checks: Sequence[Check]) -> ServiceResponse:
        """Judge several requests, each by itself. What the store is asked for travels together, in their order."""
        written: list[str] = []
        for first in range(0, len(checks), _AT_ONCE):
            some = [self._write(check) for check in checks[first : first + _AT_ONCE]]
            written += await asyncio.gather(*some)
        return ServiceResponse(200, JSON, f'{{"decisions": [{", ".join(written)}]}}'.encode())

    async def _write(self, check: Check) -> str:
        """A decision as JSON, or what went wrong with this request alone: others were charged already."""
        try:
            return await answered(self._decider.decide(check.request, check.cost, write_decision, check.ruleset))
        except Exception as error:
            return f'{{"error": {failure_response(error).body.decode()}}}'


def schema(request: ServiceRequest, rest: str) -> ServiceResponse:
    """The JSON Schema of the bodies."""
    return ServiceResponse(200, JSON, _SCHEMA)


def _response_of(decision: Decision) -> ServiceResponse:
    return ServiceResponse(200, JSON, write_decision(decision).encode())
