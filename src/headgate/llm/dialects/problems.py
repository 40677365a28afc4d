"""Errors of a call, or of its provider, in the format that the client expects."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from headgate.llm.dialects.answers import NO_RETRY, Answer, error_answer, retry_headers
from headgate.llm.dialects.paths import Family


class _Format(NamedTuple):
    """How the families report a problem: status, OpenAI's type and code, Anthropic's type."""

    status: int
    openai: str
    code: str | None
    anthropic: str
    retries: bool = False
    """Whether the same call may succeed shortly."""


class Problem(Enum):
    """Why a call has no answer from a provider."""

    BAD_BODY = _Format(400, "invalid_request_error", None, "invalid_request_error")
    UNKNOWN_PRICE = _Format(400, "invalid_request_error", "unknown_price", "invalid_request_error")
    UNKNOWN_MODEL = _Format(404, "invalid_request_error", "model_not_found", "not_found_error")
    UNKNOWN_KEY = _Format(401, "invalid_request_error", "invalid_api_key", "authentication_error")
    UNKNOWN_PATH = _Format(404, "invalid_request_error", "unknown_url", "not_found_error")
    WRONG_METHOD = _Format(405, "invalid_request_error", "method_not_supported", "invalid_request_error")
    TOO_LARGE = _Format(413, "invalid_request_error", "request_too_large", "request_too_large")
    LATE_HEAD = _Format(408, "invalid_request_error", None, "invalid_request_error", retries=True)
    TOO_MANY = _Format(503, "server_error", "overloaded", "overloaded_error", retries=True)
    PROVIDER_BUSY = _Format(429, "requests", "rate_limit_exceeded", "rate_limit_error", retries=True)
    PROVIDER_UNREACHABLE = _Format(502, "server_error", "provider_unreachable", "api_error", retries=True)
    PROVIDER_KEY = _Format(502, "server_error", "provider_key_refused", "api_error")
    PROVIDER_MOVED = _Format(502, "server_error", "provider_moved", "api_error")
    PROVIDER_TIMEOUT = _Format(504, "server_error", "provider_timeout", "timeout_error", retries=True)
    STORE = _Format(503, "server_error", "limits_unavailable", "api_error", retries=True)
    FAILURE = _Format(500, "server_error", None, "api_error", retries=True)


def problem_answer(family: Family, problem: Problem, message: str, *, wait_us: int | None = None) -> Answer:
    """The answer that reports a problem. `wait_us` is when to retry, for a problem that passes."""
    problem_format = problem.value
    headers: list[tuple[str, str]] = [] if problem_format.retries else [NO_RETRY]
    if wait_us is not None:
        headers = retry_headers(wait_us)
    kind = problem_format.anthropic if family == "anthropic" else problem_format.openai
    return error_answer(family, problem_format.status, kind, problem_format.code, message, headers)
