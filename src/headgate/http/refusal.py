"""A decision as an HTTP answer: status, headers, and on a refusal a problem body (RFC 9457).

A refusal is 429. Where the store could not decide and the written choice refused, it is 503: a
failure of the limiter never looks like a client's fault.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from headgate.decision import Decision
from headgate.http.dialects import Fields
from headgate.http.ratelimit_headers import ratelimit_fields, retry_after_seconds

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
PROBLEM_JSON = "application/problem+json"


class Answer(NamedTuple):
    """What to send. `problem` is None where the request may pass."""

    status: int
    headers: list[tuple[str, str]]
    problem: dict[str, Any] | None


def answer_of(decision: Decision, fields: Fields = ratelimit_fields) -> Answer:
    """The answer that a decision asks for; the headers belong on an allowed response too.

    `fields` writes what remains, in one dialect or several.
    """
    headers = fields(decision)
    if decision.degraded:
        headers.append(("X-RateLimit-Degraded", decision.degraded))
    if decision.allowed:
        return Answer(200, headers, None)
    seconds = retry_after_seconds(decision)
    if seconds is not None:
        headers.insert(0, ("Retry-After", str(seconds)))
    problem = problem_of(decision, seconds)
    return Answer(problem["status"], headers, problem)


def problem_of(decision: Decision, seconds: int | None) -> dict[str, Any]:
    """The problem body of a refusal."""
    violated = [reading.name for reading in decision.refusals if not reading.shadow]
    if decision.degraded == "closed":
        body: dict[str, Any] = {
            "type": REDUCED_CAPACITY,
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
        }
        detail = "the rate limiter has no room to count this request"
    else:
        body = {
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
        }
        detail = f"over the limit of {', '.join(violated)}"
    if seconds is None:
        body["detail"] = (
            f"{detail}; waiting does not help: it is more than the quota ever holds, or lacks what it is counted by"
        )
    else:
        body["detail"] = f"{detail}; come back in {seconds} s"
        body["retry-after-ms"] = -(-(decision.retry_after_us or 0) // 1000)
    body["violated-policies"] = violated
    return body


def problem_json(problem: dict[str, Any]) -> bytes:
    """A problem body on one line of ASCII."""
    return json.dumps(problem, separators=(",", ":")).encode()


def plain_problem(status: int, title: str, detail: str) -> dict[str, Any]:
    """A problem that is only its status: a request that cannot be read, a path that is not there."""
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}
