"""Limits that are written where FastAPI does not check them, and what to write instead."""

import inspect
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, NoReturn
from weakref import finalize

from headgate.drive import is_on_asyncio
from headgate.errors import ConfigError

HOW_TO_DEPEND = (
    "a limit of a route is a dependency: write Depends(rate_limit(...)), as in @app.get(..., dependencies=[...])"
)
HOW_TO_LIMIT_ALL = 'all requests are limited by app.add_middleware(RateLimitMiddleware, limits="10/second")'


class NoParameter:
    """Marks the annotation of an argument that no request has; pydantic asks it for a schema."""

    def __get_pydantic_core_schema__(self, *_: Any) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"Depends(rate_limit) has no limit: {HOW_TO_DEPEND}")


class SignatureOfLimits:
    """The `__signature__` of limits, which FastAPI reads when it makes one a dependency: it is in use from then on."""

    def __init__(self, call: Callable[..., Any]) -> None:
        _, *parameters = inspect.signature(call).parameters.values()
        self._signature = inspect.Signature(parameters)

    def __get__(self, limit: Any, _: type) -> inspect.Signature:
        if limit is None:
            raise AttributeError("__signature__")  # the class has that of its __init__
        if limit.unused is not None:
            limit.unused.detach()
        return self._signature


def warn_if_dropped(limit: object) -> "finalize[Any, Any] | None":
    """Warn where a limit that is made during a request is dropped, unless what this returns was detached.

    It is returned by a function, which is the dependency in its place: FastAPI does not look at what that returns.
    """
    if threading.current_thread() is threading.main_thread() and not is_on_asyncio():
        return None
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "headgate":
        frame = frame.f_back
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    unused = finalize(limit, _warn, frame.f_code.co_filename, frame.f_lineno, names.get("__name__"), registry)
    unused.atexit = False
    return unused


def _warn(filename: str, line: int, module: str | None, registry: dict[Any, Any]) -> None:
    message = (
        "a limit that rate_limit(...) made here was dropped unused, so it limits nothing: "
        "write Depends(rate_limit(...)), not Depends of a function that returns it"
    )
    warnings.warn_explicit(message, RuntimeWarning, filename, line, module, registry)


def is_default_value() -> bool:
    """Whether FastAPI copies the object whose method calls this, as it does with default values of parameters."""
    copying = sys._getframe(3)
    return str(copying.f_globals.get("__name__")).startswith("fastapi.")
