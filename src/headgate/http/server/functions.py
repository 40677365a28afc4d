"""Options that are functions of a request: each is passed the framework's own request.

`request.client.host` on FastAPI, `request.remote_addr` on Flask, `request.user` on Django: a function that was written
for the framework, or for another limiter, works unchanged. A `portable` function is passed Headgate's request instead,
which is the same in every framework.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import singledispatch
from types import CoroutineType
from typing import Any, NoReturn, TypeVar

from headgate.decorator import is_coroutine_function, markable
from headgate.errors import ArgumentError, ConfigError, kind_of
from headgate.http.server.options import Refusal
from headgate.policy.request import Request

F = TypeVar("F", bound=Callable[..., Any])

_PORTABLE = "__headgate_portable__"
_OF_HEADGATE = "here"

REQUEST_FUNCTIONS = ("key", "cost", "exempt", "tier", "limits", "scope")
"""Options that may be functions of the request alone."""

_FUNCTIONS_OF_MORE = {"counts": 2, "on_decision": 2, "refusal": 3}
"""Options that are functions of the request and more, with their number of arguments."""


def portable(function: F) -> F:
    """Mark a function as one of Headgate's request: `client_ip`, `path` as it was sent, `endpoint`, `cookie(name)`."""
    marked = markable(function)
    setattr(marked, _PORTABLE, True)
    return marked


def portable_here(function: F) -> F:
    """`portable` for a function of Headgate's own: its results are known, and are not checked."""
    setattr(function, _PORTABLE, _OF_HEADGATE)
    return function


def is_portable(function: object) -> bool:
    """Whether a function was marked as portable."""
    return bool(getattr(function, _PORTABLE, False))


@singledispatch
def request_of(request: Any) -> Request:
    """Return Headgate's view of a framework's request; Headgate's own request is returned as it is.

    Integrations register theirs. Raises ArgumentError for an object that is not a request of an imported framework.
    """
    raise ArgumentError(f"a {type(request).__name__} is not a request that Headgate knows")


@request_of.register
def _(request: Request) -> Request:
    return request


def adapt_functions(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose functions get the framework's own request; raises ConfigError for unusable functions."""
    adapted = dict(options)
    for name in REQUEST_FUNCTIONS:
        if callable(adapted.get(name)):
            adapted[name] = adapt_function(name, adapted[name])
    for name, arguments in _FUNCTIONS_OF_MORE.items():
        if callable(adapted.get(name)):
            adapted[name] = _adapt_function_of_more(name, adapted[name], arguments)
    if callable(adapted.get("refusal")):
        adapted["refusal"] = _checking_refusals(adapted["refusal"])
    return adapted


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Whether a function can be called with so many positional arguments; True where that cannot be determined."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return True
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def adapt_function(name: str, function: Callable[..., Any]) -> Callable[[Request], Any]:
    """Adapt a function of the framework's request, or without parameters, to Headgate's request.

    A framework may make its request available everywhere, as Flask does. `name` is the option's name. Raises
    ConfigError for a function of anything else.
    """
    if is_portable(function):
        return function if getattr(function, _PORTABLE) is _OF_HEADGATE else _for_headgate_request(function, name)
    if takes(function, 1):
        return _for_framework_request(function, name)
    if takes(function, 0):
        return _for_framework_request(_without_request(function), name)
    raise ConfigError(f"{name} is a function of the request alone, not {_described(function)}")


def _adapt_function_of_more(name: str, function: Callable[..., Any], arguments: int) -> Callable[..., Any]:
    if name != "counts" and is_coroutine_function(function):
        raise ConfigError(f"{name} cannot be a coroutine function: nothing awaits its result")
    if is_portable(function):
        return function
    if not is_coroutine_function(function) and not takes(function, arguments):
        parameters = {"counts": "response", "on_decision": "decision", "refusal": "decision and usual response"}[name]
        raise ConfigError(f"{name} is a function of the request and the {parameters}, not {_described(function)}")
    return _for_framework_request(function)


def _checking_refusals(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` and raises ArgumentError where its result is not a Refusal."""

    def adapted(request: Any, decision: Any, usual: Refusal) -> Refusal | None:
        refusal = function(request, decision, usual)
        if refusal is None:
            return None
        if not isinstance(refusal, Refusal):
            raise ArgumentError(
                "refusal returns a Refusal of headgate.http.server.options, or None for the usual response, "
                f"not {kind_of(refusal)}"
            )
        if not isinstance(refusal.body, bytes):
            raise ArgumentError(f"the body of a Refusal is bytes, not {kind_of(refusal.body)}")
        if isinstance(refusal.headers, Mapping):
            raise ArgumentError(f"the headers of a Refusal are pairs in a list, not {kind_of(refusal.headers)}")
        if not isinstance(refusal.status, int):
            raise ArgumentError(f"the status of a Refusal is a whole number, not {kind_of(refusal.status)}")
        for field in refusal.headers:
            if not isinstance(field, tuple | list) or len(field) != 2:
                raise ArgumentError(f"a header of a Refusal is a pair, not {kind_of(field)}")
            for part in field:
                if not isinstance(part, str):
                    raise ArgumentError(f"name and value of a header of a Refusal are text, not {kind_of(part)}")
        return refusal

    return adapted


def _for_framework_request(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Return a function of Headgate's request that calls one of the framework's, which is the option `name`."""
    if is_coroutine_function(function):

        async def adapted_async(request: Request, *rest: Any) -> Any:
            return await request.call(function, *rest)

        return adapted_async

    def adapted(request: Request, *rest: Any) -> Any:
        result = request.call(function, *rest)
        if type(result) is CoroutineType and name:
            _refuse_coroutine(result, name)
        return result

    return adapted


def _for_headgate_request(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that was marked as portable and is the option `name`, with a check of its result."""
    if is_coroutine_function(function):

        async def adapted_async(request: Request) -> Any:
            return await function(request)

        return adapted_async

    def adapted(request: Request) -> Any:
        result = function(request)
        if type(result) is CoroutineType:
            _refuse_coroutine(result, name)
        return result

    return adapted


def _refuse_coroutine(result: CoroutineType[Any, Any, Any], name: str) -> NoReturn:
    """Raise ArgumentError for a coroutine: as a value it would be true, and name no tier."""
    result.close()
    raise ArgumentError(f"{name} returned a coroutine, but its function is defined with def: write async def")


def _without_request(function: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return a function of a request that calls `function` without it."""
    if is_coroutine_function(function):

        async def adapted_async(_: Any) -> Any:
            return await function()

        return adapted_async

    def adapted(_: Any) -> Any:
        return function()

    return adapted


def _described(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name}{inspect.signature(function)}"[:120]
