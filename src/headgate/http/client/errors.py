"""Errors of calls that were not sent: each is an error of Headgate and one of the client library.

    except httpx.TransportError: ...      # as for any other call that failed
    except headgate.RateLimited as error: error.decision, error.request

A program that handles its library's errors handles these, too; one that needs more detail catches Headgate's.
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
"""The errors with which a call may end before it is sent, subclasses first."""

ErrorConverter = Callable[[HeadgateError, Any], Exception]
"""Converts an error, given the request of the call, to one that is the library's, too."""


def library_errors(
    base: type[Exception], module: str, picklable: Callable[[Any], Any]
) -> tuple[ErrorConverter, dict[str, type[Any]]]:
    """Return the converter of errors to those of a library, and the classes of these by name, to define in `module`.

    `base` is what the library raises where there is no response. `picklable` returns a request that can be pickled.
    """
    classes = {kind: _combined_class(kind, base, module, picklable) for kind in KINDS}

    def convert(error: HeadgateError, request: Any) -> Exception:
        kind = next((kind for kind in KINDS if isinstance(error, kind)), None)
        if kind is None:
            return error
        exact = type(error) is kind
        arguments: Any = error.__reduce__()[1] if exact else error.args
        converted = _made(classes[kind], arguments, request)
        converted.__cause__ = error.__cause__ if exact else error
        return converted

    return convert, {kind.__name__: combined for kind, combined in classes.items()}


def _combined_class(
    kind: type[HeadgateError], base: type[Exception], module: str, picklable: Callable[[Any], Any]
) -> type[Any]:
    def reduce(self: Any) -> Any:
        arguments: Any = kind.__reduce__(self)[1]
        return _made, (type(self), arguments, picklable(self.request))

    doc = f"`{kind.__module__}.{kind.__name__}`, and a `{base.__module__}.{base.__name__}` with its `request`."
    attributes: dict[str, Any] = {"__doc__": doc, "__module__": module, "__reduce__": reduce}
    if not hasattr(base, "request"):
        attributes["request"] = None
    return type(kind.__name__, (kind, base), attributes)


def _made(kind: type[Any], arguments: tuple[Any, ...], request: Any) -> Exception:
    error: Exception = kind(*arguments)
    if request is not None:
        error.request = request  # type: ignore[attr-defined]
    return error
