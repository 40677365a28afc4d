"""Functions of a request, as options have them: each is given the framework's own request.

`request.client.host` on FastAPI, `request.remote_addr` on Flask, `request.user` on Django: what was written for the
framework, or for another limiter, works as it is. A `portable` function is given Headgate's request instead, which is
the same before every framework.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import singledispatch
from types import CoroutineType
from typing import Any, NoReturn, TypeVar

from headgate.decorator import is_coroutine_function
from headgate.errors import ArgumentError, ConfigError, kind_of
from headgate.http.server.options import Refusal
from headgate.policy.request import Request

F = TypeVar("F", bound=Callable[..., Any])

_PORTABLE = "__headgate_portable__"
_HERE = "here"

OF_A_REQUEST = ("key", "cost", "exempt", "tier", "limits", "scope")
"""Options that may be a function of the request alone."""

_OF_MORE = {"counts": 2, "on_decision": 2, "refusal": 3}
"""Options that are functions of the request and of more, and of how many arguments."""


def portable(function: F) -> F:
    """Mark a function as one of Headgate's request: `client_ip`, `path` as it was sent, `endpoint`, `cookie(name)`."""
    setattr(function, _PORTABLE, True)
    return function


def portable_here(function: F) -> F:
    """`portable` for a function of Headgate's own: what it gives is known, and need not be looked at."""
    setattr(function, _PORTABLE, _HERE)
    return function


def is_portable(function: object) -> bool:
    """Whether a function was marked so."""
    return bool(getattr(function, _PORTABLE, False))


@singledispatch
def request_of(request: Any) -> Request:
    """Headgate's view of a framework's request; of Headgate's own, itself.

    Integrations register theirs. Raises ArgumentError for what is no request of a framework that was imported.
    """
    raise ArgumentError(f"a {type(request).__name__} is no request that Headgate knows")


@request_of.register
def _(request: Request) -> Request:
    return request


def given_own(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose functions are given the framework's own request; raises ConfigError for what none can be."""
    given = dict(options)
    for name in OF_A_REQUEST:
        if callable(given.get(name)):
            given[name] = of_request(name, given[name])
    for name, arguments in _OF_MORE.items():
        if callable(given.get(name)):
            given[name] = _of_more(name, given[name], arguments)
    if callable(given.get("refusal")):
        given["refusal"] = _giving_refusals(given["refusal"])
    return given


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Whether a function can be called with so many arguments by position; True where that cannot be told."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some that are built in
        return True
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def of_request(name: str, function: Callable[..., Any]) -> Callable[[Request], Any]:
    """What gives Headgate's request to a function of the framework's, or of nothing; raises ConfigError for no such.

    A framework may have its request at hand everywhere, as Flask has. `name` is what it was given as.
    """
    if is_portable(function):
        return function if getattr(function, _PORTABLE) is _HERE else _of_headgates(function, name)
    if takes(function, 1):
        return _of_own(function, name)
    if takes(function, 0):
        return _of_own(_ignoring(function), name)
    raise ConfigError(f"{name} is a function of the request alone, not {_called(function)}")


def _of_more(name: str, function: Callable[..., Any], arguments: int) -> Callable[..., Any]:
    if name != "counts" and is_coroutine_function(function):
        raise ConfigError(f"{name} is no coroutine function: nothing awaits what it gives")
    if is_portable(function):
        return function
    if not is_coroutine_function(function) and not takes(function, arguments):
        with_what = {"counts": "response", "on_decision": "decision", "refusal": "decision and the usual answer"}[name]
        raise ConfigError(f"{name} is a function of the request and the {with_what}, not {_called(function)}")
    return _of_own(function)


def _giving_refusals(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives refusals, with the error that says so where it gives a framework's response, perhaps."""

    def of(request: Any, decision: Any, usual: Refusal) -> Refusal | None:
        given = function(request, decision, usual)
        if given is None:
            return None
        if not isinstance(given, Refusal):
            raise ArgumentError(
                "refusal gives a Refusal of headgate.http.server.options, or None for the usual answer, "
                f"not {kind_of(given)}"
            )
        if not isinstance(given.body, bytes):
            raise ArgumentError(f"the body of a Refusal is bytes, not {kind_of(given.body)}")
        if isinstance(given.headers, Mapping):
            raise ArgumentError(f"the headers of a Refusal are pairs in a list, not {kind_of(given.headers)}")
        if not isinstance(given.status, int):
            raise ArgumentError(f"the status of a Refusal is a whole number, not {kind_of(given.status)}")
        for field in given.headers:
            if not isinstance(field, tuple | list) or len(field) != 2:
                raise ArgumentError(f"a header of a Refusal is a pair, not {kind_of(field)}")
            for part in field:
                if not isinstance(part, str):
                    raise ArgumentError(f"name and value of a header of a Refusal are text, not {kind_of(part)}")
        return given

    return of


def _of_own(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """A function of Headgate's request that asks one of the framework's, which was given by this name."""
    if is_coroutine_function(function):

        async def of_async(request: Request, *rest: Any) -> Any:
            return await request.call(function, *rest)

        return of_async

    def of(request: Request, *rest: Any) -> Any:
        told = request.call(function, *rest)
        if type(told) is CoroutineType and name:
            _refuse_coroutine(told, name)
        return told

    return of


def _of_headgates(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that was marked as one of Headgate's request, which was given by this name."""
    if is_coroutine_function(function):

        async def of_async(request: Request) -> Any:
            return await function(request)

        return of_async

    def of(request: Request) -> Any:
        told = function(request)
        if type(told) is CoroutineType:
            _refuse_coroutine(told, name)
        return told

    return of


def _refuse_coroutine(told: CoroutineType[Any, Any, Any], name: str) -> NoReturn:
    """Raise for what would be true, and no tier."""
    told.close()
    raise ArgumentError(f"{name} gives a coroutine, and its function begins with def: write async def")


def _ignoring(function: Callable[[], Any]) -> Callable[[Any], Any]:
    """A function of a request that does not look at it."""
    if is_coroutine_function(function):

        async def of_async(_: Any) -> Any:
            return await function()

        return of_async

    def of(_: Any) -> Any:
        return function()

    return of


def _called(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name}{inspect.signature(function)}"[:120]
