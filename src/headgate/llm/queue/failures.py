"""Classifies errors of handlers: whether the job is tried again, and how its hold is settled.

Errors of the `openai`, `anthropic`, `httpx` and `requests` packages are understood without importing these: by their
status, the header fields of their response, and the names of their classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

from headgate.clock import SYSTEM_CLOCK
from headgate.llm.call_failures import actual_error

_BUSY = frozenset({429, 503, 529})
_AGAIN = frozenset({408, 409, 425})
_UNCONNECTED = frozenset({"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "PoolTimeout"})
_NUMBER = r"[0-9]{1,40}(?:\.[0-9]{1,40})?"
_NUMBERS = re.compile(rf"{_NUMBER}(?:[ \t]*,[ \t]*{_NUMBER})*")
"""A number, or several fields of one number each, which are read as one list."""

LONGEST_RETRY_US = 24 * 3600 * 1_000_000


class ProviderError(Exception):
    """Raised by a handler if a provider did not answer: the HTTP status (0: no response), and the seconds to wait.

    `should_retry` is whether the provider wants another try (`x-should-retry`), None where it did not say.
    """

    def __init__(
        self, message: str, *, status: int, retry_after: float | None = None, should_retry: bool | None = None
    ) -> None:
        super().__init__(message)
        self.status_code = status
        self.retry_after = retry_after
        self.should_retry = should_retry


class Failure(NamedTuple):
    """What to do after a failed attempt.

    `again`: the job may be tried again. `busy`: the provider is overloaded, so all jobs wait. `held` decides how the
    hold is settled: it is given back where the call was "not sent" or "refused" by the provider, and stays charged
    where the outcome is "unknown".
    """

    message: str
    again: bool
    busy: bool
    held: Literal["not sent", "refused", "unknown"]
    retry_after_us: int | None = None


def failure_of(error: BaseException) -> Failure:
    """Classify an error of a handler."""
    message, failure = _description(error), actual_error(error)
    if failure is None:
        return Failure(message, True, False, "unknown")
    error, status = failure, _status_of(failure)
    if status:
        busy, again = status in _BUSY, _should_retry_of(error)
        if again is None:
            again = busy or status in _AGAIN or status >= 500
        return Failure(message, again, busy, "refused", _retry_after_of(error))
    names = {cls.__name__ for link in _chain(error) for cls in type(link).__mro__}
    if names & _UNCONNECTED:
        return Failure(message, True, False, "not sent")
    if names & {"TimeoutError", "TimeoutException", "ConnectionError", "APIConnectionError", "TransportError"}:
        return Failure(message, True, False, "unknown")
    if isinstance(error, ProviderError):
        return Failure(message, error.should_retry is not False, False, "unknown", _retry_after_of(error))
    return Failure(message, False, False, "unknown")


def _description(error: BaseException) -> str:
    """Describe an error as text that can be stored anywhere: a lone surrogate becomes an escape."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}"[:500].encode("utf-8", "backslashreplace").decode()


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and its causes: packages wrap the errors of others in their own."""
    links: list[BaseException] = []
    while error is not None and len(links) < 8:
        links.append(error)
        error = error.__cause__
    return links


def _status_of(error: BaseException) -> int:
    for holder in (error, getattr(error, "response", None)):
        status = getattr(holder, "status_code", None)
        if isinstance(status, int) and 300 <= status <= 599:  # a redirect has generated nothing
            return status
    return 0


def _retry_after_of(error: BaseException) -> int | None:
    """Return the microseconds to wait, by the error or the response's header fields; None if neither states a wait.

    A wait of 0 counts as none: it would use up all tries of a job at once.
    """
    stated = getattr(error, "retry_after", None)
    if isinstance(stated, int | float) and not isinstance(stated, bool) and 0 <= stated < 1e9:
        return min(LONGEST_RETRY_US, round(stated * 1_000_000)) or None
    return retry_after_us(_headers_of(error)) or None


def _should_retry_of(error: BaseException) -> bool | None:
    """Whether to try again, by the error or the response's header fields; None if neither says so."""
    stated = getattr(error, "should_retry", None)
    return stated if isinstance(stated, bool) else should_retry(_headers_of(error))


def _headers_of(error: BaseException) -> Any:
    return getattr(getattr(error, "response", None), "headers", None)


def should_retry(headers: Any) -> bool | None:
    """Whether a response's header fields request another try; None where they do not say."""
    return {"true": True, "false": False}.get(_fields_of(headers).get("x-should-retry", ""))


def retry_after_us(headers: Any) -> int | None:
    """Return the microseconds to wait that a response's header fields request; None where they state no wait.

    Of several waits the longest counts.
    A date is relative to the response's own `date` field, or to this host's clock if there is none.
    """
    fields = _fields_of(headers)
    for name, unit_us in (("retry-after-ms", 1_000), ("retry-after", 1_000_000)):
        if _NUMBERS.fullmatch(value := fields.get(name, "")):
            return min(LONGEST_RETRY_US, round(max(map(float, value.split(","))) * unit_us))
    until_us = _date_us(fields.get("retry-after", ""))
    if until_us is None:
        return None
    sent_us = _date_us(fields.get("date", ""))
    return min(LONGEST_RETRY_US, max(0, until_us - (SYSTEM_CLOCK.now_us() if sent_us is None else sent_us)))


def _date_us(text: str) -> int | None:
    """Parse an HTTP date (RFC 9110, 5.6.7); None for any other text."""
    try:
        date_time = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return int(date_time.replace(tzinfo=date_time.tzinfo or UTC).timestamp()) * 1_000_000


def _fields_of(headers: Any) -> dict[str, str]:
    """Return a response's header fields, names in lower case."""
    if not isinstance(headers, Mapping):
        return {}
    return {str(name).lower(): str(value).strip() for name, value in headers.items()}
