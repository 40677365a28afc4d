"""How a call is settled whose block raised, by what was raised."""

from __future__ import annotations

from headgate.llm.entry import SettleMode

_NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ConnectionRefusedError", "gaierror",
             "ClientConnectorError", "UnsupportedProtocol")  # fmt: skip
"""Names of errors after which nothing was sent: of httpx, aiohttp and of Python."""

_REFUSED_FROM = 400
_DEEPEST = 8


def mode_of(error: BaseException) -> SettleMode:
    """How a call is settled whose block raised: failed, cancelled where nothing was sent, otherwise unknown."""
    cause: BaseException | None = error
    for _ in range(_DEEPEST):
        if cause is None:
            break
        status = getattr(cause, "status_code", None) or getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int) and status >= _REFUSED_FROM:
            return "failed"
        if type(cause).__name__ in _NOT_SENT:
            return "cancelled"
        cause = cause.__cause__ or cause.__context__
    return "unknown"
