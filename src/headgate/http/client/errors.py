"""Errors of calls that were not sent: each is one of Headgate's and one of the client library's at once.

    except httpx.TransportError: ...      # as for any other call that failed
    except headgate.RateLimited as error: error.decision, error.request

A program that handles its library's errors handles these; one that wants to know more asks for Headgate's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate import errors
from headgate.errors import HeadgateError

KINDS: tuple[type[HeadgateError], ...] = (
    errors.RateLimited,
    errors.Held,
    errors.Throttled,
    errors.StoreTimeout,
    errors.StoreUnavailable,
    errors.StoreKeyError,
    errors.StoreError,
)
"""What a call may end with before it is sent, the narrower ones first."""

Own = Callable[[HeadgateError, Any], Exception]
"""Gives an error and the request of a call as an error that is the library's, too."""


def own_errors(base: type[Exception], module: str, kept: Callable[[Any], Any]) -> tuple[Own, dict[str, type[Any]]]:
    """What turns errors into those of a library, and the classes of these by name, for `module` to have them.

    `base` is what the library raises where there is no answer. `kept` gives of a request what can be pickled.
    """
    twins = {kind: _twin(kind, base, module, kept) for kind in KINDS}

    def own(error: HeadgateError, request: Any) -> Exception:
        kind = next((kind for kind in KINDS if isinstance(error, kind)), None)
        if kind is None:
            return error
        exact = type(error) is kind
        arguments: Any = error.__reduce__()[1] if exact else error.args
        twin = _made(twins[kind], arguments, request)
        twin.__cause__ = error.__cause__ if exact else error
        return twin

    return own, {kind.__name__: twin for kind, twin in twins.items()}


def _twin(kind: type[HeadgateError], base: type[Exception], module: str, kept: Callable[[Any], Any]) -> type[Any]:
    def reduce(self: Any) -> Any:
        arguments: Any = kind.__reduce__(self)[1]
        return _made, (type(self), arguments, kept(self.request))

    doc = f"`{kind.__module__}.{kind.__name__}`, and a `{base.__module__}.{base.__name__}` with its `request`."
    told: dict[str, Any] = {"__doc__": doc, "__module__": module, "__reduce__": reduce}
    if not hasattr(base, "request"):
        told["request"] = None
    return type(kind.__name__, (kind, base), told)


def _made(kind: type[Any], arguments: tuple[Any, ...], request: Any) -> Exception:
    error: Exception = kind(*arguments)
    if request is not None:
        error.request = request  # type: ignore[attr-defined]
    return error
