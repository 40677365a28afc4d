"""`/check/…` and `/check-403/…`: checks of the request that a gateway is handling.

See docs/service.md#forward-auth.
"""

from __future__ import annotations

from collections.abc import Awaitable

from headgate.decision import Decision
from headgate.http.fields.ratelimit import retry_after_seconds, writers_of
from headgate.http.refusal import refusal_body, refusal_status
from headgate.service.checks.decider import Decider
from headgate.service.checks.forwarded import forwarded_request
from headgate.service.http.messages import PROBLEM, TEXT, Reply, ServiceRequest, ServiceResponse, replied_as
from headgate.service.http.problems import failure_response, problem_response


class ForwardAuth:
    """Decides about the request itself, or about the one that its headers describe."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    def check(self, request: ServiceRequest, suffix: str) -> Reply:
        """200, 429 or 503. `suffix` is the ruleset, and after a slash the path of a request whose headers lack it."""
        ruleset, _, path = suffix.partition("/")
        if (message := self._decider.missing_ruleset_message(ruleset)) is not None:
            return problem_response(404, message)
        forwarded = forwarded_request(request.method, request.peer, f"/{path}", request.headers)
        return self._decider.decide_in_line(forwarded, 1, response_of, ruleset)

    def check_403(self, request: ServiceRequest, suffix: str) -> Reply:
        """`check` for nginx, which passes on 403 alone, and does not read a body."""
        try:
            reply = self.check(request, suffix)
        except Exception as error:
            return _without_body(failure_response(error))
        if isinstance(reply, ServiceResponse):
            return _without_body(reply)
        return replied_as(reply, _without_body_later(reply))


def response_of(decision: Decision) -> ServiceResponse:
    """The response to a gateway: a decision as status and header fields, and a problem body on a refusal."""
    fields = writers_of(decision.definitions).encoded.write(decision)
    if decision.degraded:
        fields.append((b"x-ratelimit-degraded", decision.degraded.encode()))
    if decision.allowed:
        return ServiceResponse(200, TEXT, b"", fields)
    seconds = retry_after_seconds(decision)
    if seconds is not None:
        fields.insert(0, (b"retry-after", b"%d" % seconds))
    return ServiceResponse(refusal_status(decision), PROBLEM, refusal_body(decision), fields)


def _without_body(response: ServiceResponse) -> ServiceResponse:
    """The response with its problem in a field: nginx does not read a body here, and would close the connection."""
    if response.status == 200:
        return response
    status = 403 if response.status == 429 else response.status
    return ServiceResponse(status, PROBLEM, b"", [*response.headers, (b"x-ratelimit-problem", response.body)])


async def _without_body_later(reply: Awaitable[ServiceResponse]) -> ServiceResponse:
    try:
        return _without_body(await reply)
    except Exception as error:
        return _without_body(failure_response(error))
