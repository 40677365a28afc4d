"""Detects limits that were written as decorators above the routes of their functions, where they limit nothing.

A framework registers the function that its decorator gets: the one without the limit, if the limit is written above.
An integration has `Placements` of its own, which watch each limit, and check each application once.

A limit of a function that had a name already, as in `limited = rate_limit("10/second")(search)`, is never reported:
both functions can be used on purpose.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import isclass
from types import FrameType, MethodType
from typing import Any, NamedTuple
from weakref import ref

from headgate.errors import ConfigError
from headgate.http.server.attached_values import Attached

log = logging.getLogger("headgate")

_LONGEST = 1024
"""A chain of wrappers is followed this far: some objects have every attribute."""


class _Pair(NamedTuple):
    """A limited function, and the one that the limit was applied to."""

    limited: ref[Any]
    original: ref[Any]


class Placements:
    """The limits of one framework, and whether they are written below the routes of its applications."""

    def __init__(self, routes: tuple[type, ...], handler: str) -> None:
        self._routes = routes
        """The classes of all routes, also of those that no application has yet."""
        self._handler = handler
        """The attribute of a route with its handler."""
        self._unchecked: list[_Pair] = []
        """Limits for which no application is known to have a route."""
        self._checked: Attached[None] = Attached()

    def watch(self, limited: object, original: object) -> None:
        """Record a limit until an application has it; the caller of the caller writes it as a decorator."""
        if _has_name(original, sys._getframe(2)):
            return
        try:
            self._unchecked.append(_Pair(ref(limited), ref(original, self._forget_gone)))
        except TypeError:  # it does not support weak references
            return

    def check(self, app: object, handlers: Callable[[], Iterable[object]], is_debugged: Callable[[], bool]) -> None:
        """Report limits above the routes of an application, which has these handlers; each application is checked once.

        Raises ConfigError if the application is in debug mode, and logs an error otherwise.
        """
        if not self._unchecked or not self._is_new(app):
            return
        routed = list(handlers())
        self._forget(routed)
        if self._above(routed):  # another application, which was not checked yet, may have the limited function
            self._forget(self._handlers_of_all())
        above = self._above(routed)
        if not above:
            return
        self._unchecked[:] = [pair for pair in tuple(self._unchecked) if id(pair.original()) not in above]
        message = misplaced(above.values())
        if is_debugged():
            raise ConfigError(message)
        log.error(message)

    def _is_new(self, app: object) -> bool:
        new: list[object] = []
        try:
            self._checked.of(app, lambda: new.append(app))
        except TypeError:  # it does not support weak references: it cannot be checked only once
            return False
        return bool(new)

    def _forget(self, handlers: Iterable[object]) -> None:
        """Remove the limits that any of these handlers has."""
        listed = list(handlers)
        reached = {id(inner) for handler in listed for inner in chain(handler)}
        self._unchecked[:] = [pair for pair in tuple(self._unchecked) if id(pair.limited()) not in reached]

    def _forget_gone(self, original: ref[Any]) -> None:
        self._unchecked[:] = [pair for pair in tuple(self._unchecked) if pair.original is not original]

    def _above(self, routed: Iterable[object]) -> dict[int, object]:
        """Return the handlers that are the original function of a recorded limit, by their id()."""
        limited = {id(pair.original()) for pair in tuple(self._unchecked)}
        return {id(handler): handler for handler in routed if id(handler) in limited}

    def _handlers_of_all(self) -> Iterator[object]:
        for thing in gc.get_objects():
            if issubclass(type(thing), self._routes):
                yield getattr(thing, self._handler, None)


def misplaced(functions: Iterable[object]) -> str:
    """Return the message about limits above the routes of functions."""
    names = ", ".join(f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', '')}" for f in functions)
    return f"rate_limit is above the route of {names}, where it limits nothing: put it below the route decorator"


def chain(function: Any) -> Iterator[Any]:
    """Yield a function and those that it wraps; a class and its bases."""
    for _ in range(_LONGEST):
        if function is None:
            return
        yield function
        if isclass(function):
            yield from function.__mro__[1:]
        if isinstance(function, MethodType):
            function = function.__func__
        elif isinstance(function, partial):
            function = function.func
        else:
            function = getattr(function, "__wrapped__", None)


def _has_name(function: object, writer: FrameType) -> bool:
    """Whether a function has a name where its limit is written, or in its module; or will have one, as a method.

    A function that is just being decorated has none yet.
    """
    named = writer.f_locals
    if "__qualname__" in named and "__module__" in named:  # the body of a class
        return True
    if any(value is function for value in (*named.values(), *writer.f_globals.values())):
        return True
    found: object = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is function
