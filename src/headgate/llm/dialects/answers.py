"""An answer as it is sent, and the parts that all answers of a family share."""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

from headgate.llm.dialects.paths import Family

NO_RETRY = ("x-should-retry", "false")
"""Stops the packages of OpenAI and Anthropic from retrying; without it they retry, some after sleeping for days."""

SHORT_WAIT_US = 60_000_000
"""The longest wait after which a client retries by itself. Longer waits are left to the program that uses it."""

_US, _MS = 1_000_000, 1_000


class Answer(NamedTuple):
    """A status, headers (names in lower case, `content-length` left to the server), and a body of JSON."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def error_answer(
    family: Family, status: int, kind: str, code: str | None, message: str, headers: list[tuple[str, str]]
) -> Answer:
    """An error in a family's format; `code` is for OpenAI, whose errors have a code beside the type."""
    request = f"req_{secrets.token_hex(12)}"
    if family == "anthropic":
        body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}, "request_id": request}
        name = "request-id"
    else:
        body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        name = "x-request-id"
    head = [("content-type", "application/json"), (name, request), *headers]
    return Answer(status, head, json.dumps(body, separators=(",", ":")).encode())


def retry_headers(wait_us: int | None) -> list[tuple[str, str]]:
    """When to retry, rounded up, so that a call that waits as long passes; None is never.

    A wait that is not short is not sent in `retry-after`, since some clients sleep for as long as that says, even for
    days: another header stops them from retrying by themselves.
    """
    if wait_us is None or wait_us > SHORT_WAIT_US:
        return [NO_RETRY]
    return [
        ("retry-after", str(max(1, -(-wait_us // _US)))),
        ("retry-after-ms", str(max(1, -(-wait_us // _MS)))),
    ]


def duration_text(duration_us: int) -> str:
    """A duration as Go writes it and OpenAI sends it, rounded up to milliseconds: `20ms`, `5.289s`, `13h5m0s`."""
    ms = -(-max(0, duration_us) // _MS)
    if 0 < ms < 1000:
        return f"{ms}ms"
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    rest = f"{seconds}.{ms:03}".rstrip("0") if ms else str(seconds)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
