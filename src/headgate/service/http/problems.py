"""The service's own errors as responses: problem bodies (RFC 9457) with their status and detail."""

from __future__ import annotations

import logging

from headgate.errors import ArgumentError, ConflictingId, HeadgateError, StoreError
from headgate.http.refusal import plain_problem, problem_json
from headgate.service.http.messages import PHRASES, PROBLEM, HeaderFields, ServiceResponse

log = logging.getLogger("headgate")


def problem_response(status: int, detail: str, headers: HeaderFields = ()) -> ServiceResponse:
    """A problem with a status and a detail."""
    return ServiceResponse(status, PROBLEM, problem_json(plain_problem(status, PHRASES[status], detail)), headers)


def failure_response(error: Exception) -> ServiceResponse:
    """The response to an error: 400 for the client's fault, 409 for the id of another hold, 503 for the store's fault.

    500 for any other.
    """
    if isinstance(error, ConflictingId):
        return problem_response(409, str(error))
    if isinstance(error, ArgumentError):
        return problem_response(400, str(error))
    if isinstance(error, StoreError):
        return problem_response(503, f"the store does not answer: {error}")
    if isinstance(error, HeadgateError):
        return problem_response(500, str(error))
    log.exception("unexpected", exc_info=error)
    return problem_response(500, "unexpected error: see the log")
