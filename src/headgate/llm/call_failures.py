"""How a call is settled whose block raised, by what was raised."""

from __future__ import annotations

from headgate.llm.entry import SettleMode

_NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ConnectionRefusedError", "gaierror",
             "ClientConnectorError", "UnsupportedProtocol")  # fmt: skip
"""Names of errors after which nothing was sent: of httpx, aiohttp and of Python."""

_WITHOUT_CAUSES = ("requests", "urllib3", "urllib")
"""Packages that raise errors of their own while they handle others, and do not name these as causes."""

_MAKES_UP = "litellm"
"""A package whose errors have a status even where no answer came: 408 for what was too late, 500 for what was lost."""

_NO_ANSWER, _FAILED_FROM = 408, 500
_REFUSED_FROM = 400
_DEEPEST = 8


def telling(error: BaseException) -> BaseException | None:
    """The error that tells what happened: of LiteLLM's, whose status may be made up, the one that it was made of.

    None where that is not there.
    """
    told: BaseException | None = error
    for _ in range(_DEEPEST):
        if told is None or not _is_made_up(told):
            break
        told = told.__cause__ or told.__context__
    return told


def mode_of(error: BaseException) -> SettleMode:
    """How a call is settled whose block raised: failed, cancelled where nothing was sent, otherwise unknown.

    Its causes tell that as well. What was being handled meanwhile does not: it may be the failure of another provider,
    after which this one was asked.
    """
    cause = telling(error)
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


def _is_refusal(told: object) -> bool:
    """Whether an error, or the answer that it is of, has a status with which a provider refuses."""
    statuses = (getattr(told, name, None) for name in ("status_code", "status"))  # the latter of aiohttp and urllib
    return any(isinstance(status, int) and status >= _REFUSED_FROM for status in statuses)


def _is_made_up(error: BaseException) -> bool:
    """Whether the status of an error may be none that a provider answered."""
    if type(error).__module__.partition(".")[0] != _MAKES_UP:
        return False
    status = getattr(error, "status_code", None)
    return not isinstance(status, int) or status == _NO_ANSWER or not _REFUSED_FROM <= status < _FAILED_FROM
