"""A decision as an HTTP response: status, headers, and for a refusal a problem body (RFC 9457).

A refusal is 429. Where the store could not decide and the configuration refuses then, it is 503: a
failure of the limiter never looks like a client's fault.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from headgate.decision import Decision, NamedLimit
from headgate.http.fields.dialects import Fields
from headgate.http.fields.ratelimit import ratelimit_fields, retry_after_seconds, writers_of

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
PROBLEM_JSON = "application/problem+json"


_MOST_TEXTS = 4096
_DEFAULT = "default"
"""The name of a limit without a name of its own: it means nothing to a client."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


class HttpAnswer(NamedTuple):
    """The response to send. `body`, a problem on one line of ASCII, is None where the request may pass."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | None

    @property
    def problem(self) -> dict[str, Any] | None:
        """The members of the body."""
        return None if self.body is None else json.loads(self.body)


def answer_of(decision: Decision, fields: Fields = ratelimit_fields) -> HttpAnswer:
    """Return the response for a decision; the headers belong on the response to an allowed request, too.

    `fields` writes the rate limit fields, in one dialect or several.
    """
    headers = headers_of(decision, fields)
    if decision.allowed:
        return HttpAnswer(200, headers, None)
    return HttpAnswer(refusal_status(decision), headers, refusal_body(decision))


def headers_of(decision: Decision, fields: Fields = ratelimit_fields) -> list[tuple[str, str]]:
    """Return only the headers of the response."""
    headers = fields(decision)
    if decision.degraded:
        headers.append(("X-RateLimit-Degraded", decision.degraded))
    if not decision.allowed:
        seconds = retry_after_seconds(decision)
        if seconds is not None:
            headers.insert(0, ("Retry-After", str(seconds)))
    return headers


def refusal_status(decision: Decision) -> int:
    """Return the status of a refusal."""
    return 503 if decision.degraded == "closed" else 429


def refusal_body(decision: Decision) -> bytes:
    """Return the problem body of a refusal."""
    answers = writers_of(decision.definitions).answers
    if answers is None:
        return python_refusal_body(decision)
    body: bytes = answers.problem(decision)
    return body


def python_refusal_body(decision: Decision) -> bytes:
    """`refusal_body` as Python writes it."""
    seconds = retry_after_seconds(decision)
    refusing = tuple([reading.definition for reading in decision.refusals if not reading.shadow])
    closed = decision.degraded == "closed"
    name = (closed, *map(id, refusing))
    text = _texts.get(name)
    if text is None:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        text = _texts[name] = _text_of(refusing, closed=closed)
    if seconds is None:
        return text.never
    milliseconds = -(-(decision.retry_after_us or 0) // 1000)
    return b'%s%d s","retry-after-ms":%d%s' % (text.start, seconds, milliseconds, text.end)


class _Text(NamedTuple):
    """The constant text of all refusals of the same limits, which are kept so that their identities are not reused."""

    refusing: tuple[NamedLimit, ...]
    start: bytes
    """Up to the seconds."""

    end: bytes
    """After the milliseconds."""

    never: bytes
    """The whole body where waiting does not help."""


_texts: dict[tuple[int, ...], _Text] = {}
"""By whether the store's failure refuses, and the identities of the limits that do."""


def _text_of(refusing: tuple[NamedLimit, ...], *, closed: bool) -> _Text:
    problem: dict[str, Any]
    if closed:
        problem = {
            "type": REDUCED_CAPACITY,
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
        }
        detail = "the rate limiter's store does not answer, or has no room to count this request"
    else:
        problem = {
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
        }
        detail = f"over the limit of {', '.join(map(_in_words, refusing))}"
    violated = {"violated-policies": [limit.name for limit in refusing]}
    never = f"{detail}; waiting does not help: it is more than the quota ever holds, or lacks what it is counted by"
    start = _encode(problem | {"detail": f"{detail}; retry in "})
    return _Text(
        refusing,
        start=start.removesuffix('"}').encode(),
        end=f",{_encode(violated)[1:]}".encode(),
        never=problem_json(problem | {"detail": never} | violated),
    )


def _in_words(limit: NamedLimit) -> str:
    """Describe a limit for a client: its name, if it has one, and how much it lets pass in which time."""
    unnamed = limit.name == _DEFAULT or limit.name.startswith(f"{_DEFAULT}.")
    return str(limit.limit) if unnamed else f"{limit.name} ({limit.limit})"


def problem_json(problem: dict[str, Any]) -> bytes:
    """Return a problem body on one line of ASCII."""
    return _encode(problem).encode()


def plain_problem(status: int, title: str, detail: str) -> dict[str, Any]:
    """Return a problem that only explains its status: a request that cannot be read, a path that does not exist."""
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}
