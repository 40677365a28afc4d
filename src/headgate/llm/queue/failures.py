"""What an error of a handler means for its job: ask again, or not; and what happened to what was held.

Errors are read as the `openai`, `anthropic`, `httpx` and `requests` packages raise them, without importing one: by
their status, the fields of their answer, and the names of their classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

from headgate.clock import SYSTEM_CLOCK
from headgate.llm.call_failures import telling

_BUSY = frozenset({429, 503, 529})
_AGAIN = frozenset({408, 409, 425})
_UNCONNECTED = frozenset({"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "PoolTimeout"})
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?", re.ASCII)
LONGEST_RETRY_US = 24 * 3600 * 1_000_000


class ProviderError(Exception):
    """What a handler raises where a provider did not answer: its HTTP status (0: none came), and seconds to wait.

    `should_retry` is whether the provider said to try again (`x-should-retry`), None where it said nothing.
    """

    def __init__(
        self, message: str, *, status: int, retry_after: float | None = None, should_retry: bool | None = None
    ) -> None:
        super().__init__(message)
        self.status_code = status
        self.retry_after = retry_after
        self.should_retry = should_retry


class Failure(NamedTuple):
    """What is to be done.

    `again`: the job may be tried again; `busy`: the provider has too much to do, so all jobs wait. What was held is
    given back where it was not "sent", and where the provider "refused" to do it; what is "unknown" stays held.
    """

    message: str
    again: bool
    busy: bool
    held: Literal["not sent", "refused", "unknown"]
    retry_after_us: int | None = None


def failure_of(error: BaseException) -> Failure:
    """What an error means."""
    message, told = _in_words(error), telling(error)
    if told is None:
        return Failure(message, True, False, "unknown")
    error, status = told, _status_of(told)
    if status:
        busy, again = status in _BUSY, _should_retry_of(error)
        if again is None:
            again = busy or status in _AGAIN or status >= 500
        return Failure(message, again, busy, "refused", _retry_after_of(error))
    names = {each.__name__ for link in _chain(error) for each in type(link).__mro__}
    if names & _UNCONNECTED:
        return Failure(message, True, False, "not sent")
    if names & {"TimeoutError", "TimeoutException", "ConnectionError", "APIConnectionError", "TransportError"}:
        return Failure(message, True, False, "unknown")
    if isinstance(error, ProviderError):
        return Failure(message, error.should_retry is not False, False, "unknown", _retry_after_of(error))
    return Failure(message, False, False, "unknown")


def _in_words(error: BaseException) -> str:
    """An error as text that can be kept anywhere: half of a pair of surrogates as an escape."""
    try:
        told = str(error)
    except Exception:
        told = "it does not say what"
    return f"{type(error).__name__}: {told}"[:500].encode("utf-8", "backslashreplace").decode()


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and its causes, of which packages make errors of their own."""
    links: list[BaseException] = []
    while error is not None and len(links) < 8:
        links.append(error)
        error = error.__cause__
    return links


def _status_of(error: BaseException) -> int:
    for holder in (error, getattr(error, "response", None)):
        status = getattr(holder, "status_code", None)
        if isinstance(status, int) and 300 <= status <= 599:  # one that redirects has made nothing
            return status
    return 0


def _retry_after_of(error: BaseException) -> int | None:
    """Microseconds that a provider asks to wait for, by its error or the fields of its answer; None if it asks none.

    "Now" is none: all tries of a job would be used up at once.
    """
    own = getattr(error, "retry_after", None)
    if isinstance(own, int | float) and not isinstance(own, bool) and 0 <= own < 1e9:
        return min(LONGEST_RETRY_US, round(own * 1_000_000)) or None
    return retry_after_us(_headers_of(error)) or None


def _should_retry_of(error: BaseException) -> bool | None:
    """Whether a provider says to try again, by its error or the fields of its answer; None if it says nothing."""
    own = getattr(error, "should_retry", None)
    return own if isinstance(own, bool) else should_retry(_headers_of(error))


def _headers_of(error: BaseException) -> Any:
    return getattr(getattr(error, "response", None), "headers", None)


def should_retry(headers: Any) -> bool | None:
    """Whether the fields of an answer say to try again; None where they say nothing."""
    return {"true": True, "false": False}.get(_fields_of(headers).get("x-should-retry", ""))


def retry_after_us(headers: Any) -> int | None:
    """Microseconds that the fields of an answer ask to wait for; None where they ask none.

    A date counts from the moment that the answer itself tells, else from that of this host.
    """
    fields = _fields_of(headers)
    for name, unit_us in (("retry-after-ms", 1_000), ("retry-after", 1_000_000)):
        if _NUMBER.fullmatch(told := fields.get(name, "")):
            return min(LONGEST_RETRY_US, round(float(told) * unit_us))
    until_us = _date_us(fields.get("retry-after", ""))
    if until_us is None:
        return None
    sent_us = _date_us(fields.get("date", ""))
    return min(LONGEST_RETRY_US, max(0, until_us - (SYSTEM_CLOCK.now_us() if sent_us is None else sent_us)))


def _date_us(text: str) -> int | None:
    """The moment of an HTTP date (RFC 9110, 5.6.7), None for what is none."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()) * 1_000_000


def _fields_of(headers: Any) -> dict[str, str]:
    """The fields of an answer, their names in lower case."""
    if not isinstance(headers, Mapping):
        return {}
    return {str(name).lower(): str(value).strip() for name, value in headers.items()}
