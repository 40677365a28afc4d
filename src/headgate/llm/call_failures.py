"""How a call is settled whose block raised an error, depending on that error."""

from __future__ import annotations

from headgate.llm.entry import SettleMode

_NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ConnectionRefusedError", "gaierror",
             "ClientConnectorError", "UnsupportedProtocol")  # fmt: skip
"""Names of errors that mean nothing was sent: those of httpx, of aiohttp and of Python."""

_WITHOUT_CAUSES = ("requests", "urllib3", "urllib")
"""Packages that raise their own errors while they handle others, and do not name the latter as causes."""

_INVENTS_STATUS = "litellm"
"""A package whose errors have a status even where no answer was received: 408 for timeouts, 500 for lost connections.
"""

_NO_ANSWER, _FAILED_FROM = 408, 500
_REFUSED_FROM = 400
_DEEPEST = 8


def actual_error(error: BaseException) -> BaseException | None:
    """The error that actually occurred: for an error of LiteLLM with an invented status, the one that it wraps.

    None if there is no such error.
    """
    actual: BaseException | None = error
    for _ in range(_DEEPEST):
        if actual is None or not _has_invented_status(actual):
            break
        actual = actual.__cause__ or actual.__context__
    return actual


def mode_of(error: BaseException) -> SettleMode:
    """How a call is settled whose block raised: failed if it was refused, cancelled if nothing was sent, or unknown.

    The causes of the error count as well. Its context does not: that error, which was being handled when this one was
    raised, may be the failure of another provider that was called before.
    """
    cause = actual_error(error)
    for _ in range(_DEEPEST):
        if cause is None:
            break
        if _is_refusal(cause) or _is_refusal(getattr(cause, "response", None)):
            return "failed"
        if type(cause).__name__ in _NOT_SENT:
            return "cancelled"
        is_own = type(cause).__module__.partition(".")[0] in _WITHOUT_CAUSES
        cause = cause.__cause__ or (cause.__context__ if is_own else None)
    return "unknown"


def _is_refusal(item: object) -> bool:
    """Whether an error, or the response that it is about, has the status of a provider's refusal."""
    statuses = (getattr(item, name, None) for name in ("status_code", "status"))  # aiohttp and urllib have `status`
    return any(isinstance(status, int) and status >= _REFUSED_FROM for status in statuses)


def _has_invented_status(error: BaseException) -> bool:
    """Whether the status of an error may not be one that a provider sent."""
    if type(error).__module__.partition(".")[0] != _INVENTS_STATUS:
        return False
    status = getattr(error, "status_code", None)
    return not isinstance(status, int) or status == _NO_ANSWER or not _REFUSED_FROM <= status < _FAILED_FROM
