"""What is wrong with a call, or with its provider, in the client's own words."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from headgate.llm.dialects.answers import NO_RETRY, Answer, error_answer, retry_headers
from headgate.llm.dialects.paths import Family


class _Words(NamedTuple):
    """How the families tell a problem: status, OpenAI's type and code, Anthropic's type."""

    status: int
    openai: str
    code: str | None
    anthropic: str
    retries: bool = False
    """Whether the same call may succeed shortly."""


class Problem(Enum):
    """Why a call has no answer of a provider."""

    BAD_BODY = _Words(400, "invalid_request_error", None, "invalid_request_error")
    UNKNOWN_PRICE = _Words(400, "invalid_request_error", "unknown_price", "invalid_request_error")
    UNKNOWN_MODEL = _Words(404, "invalid_request_error", "model_not_found", "not_found_error")
    UNKNOWN_KEY = _Words(401, "invalid_request_error", "invalid_api_key", "authentication_error")
    UNKNOWN_PATH = _Words(404, "invalid_request_error", "unknown_url", "not_found_error")
    WRONG_METHOD = _Words(405, "invalid_request_error", "method_not_supported", "invalid_request_error")
    TOO_LARGE = _Words(413, "invalid_request_error", "request_too_large", "request_too_large")
    LATE_HEAD = _Words(408, "invalid_request_error", None, "invalid_request_error", retries=True)
    TOO_MANY = _Words(503, "server_error", "overloaded", "overloaded_error", retries=True)
    PROVIDER_BUSY = _Words(429, "requests", "rate_limit_exceeded", "rate_limit_error", retries=True)
    PROVIDER_UNREACHABLE = _Words(502, "server_error", "provider_unreachable", "api_error", retries=True)
    PROVIDER_KEY = _Words(502, "server_error", "provider_key_refused", "api_error")
    PROVIDER_MOVED = _Words(502, "server_error", "provider_moved", "api_error")
    PROVIDER_TIMEOUT = _Words(504, "server_error", "provider_timeout", "timeout_error", retries=True)
    STORE = _Words(503, "server_error", "limits_unavailable", "api_error", retries=True)
    FAILURE = _Words(500, "server_error", None, "api_error", retries=True)


def problem_answer(family: Family, problem: Problem, message: str, *, wait_us: int | None = None) -> Answer:
    """The answer that tells a problem. `wait_us` is when to come again, for one that passes."""
    words = problem.value
    headers: list[tuple[str, str]] = [] if words.retries else [NO_RETRY]
    if wait_us is not None:
        headers = retry_headers(wait_us)
    kind = words.anthropic if family == "anthropic" else words.openai
    return error_answer(family, words.status, kind, words.code, message, headers)
