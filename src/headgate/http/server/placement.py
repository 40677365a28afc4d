"""Limits that were written as decorators above the routes of their functions, where they limit nothing.

A framework registers the function that its decorator is given: the bare one, where the limit is written above. An
integration has `Placements` of its own, which it tells of each limit, and which look once at each application.

A limit of a function that had a name already, as in `limited = rate_limit("10/second")(search)`, is never told of:
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
from headgate.http.server.attached import Attached

log = logging.getLogger("headgate")

_LONGEST = 1024
"""So far a chain of wrappers is followed: some objects have any attribute that they are asked for."""


class _Pair(NamedTuple):
    """What a limit made of what it was given."""

    limited: ref[Any]
    original: ref[Any]


class Placements:
    """The decorators of one framework, and whether they stand below the routes of its applications."""

    def __init__(self, routes: tuple[type, ...], handler: str) -> None:
        self._routes = routes
        """The classes of all routes, also of those that no application has yet."""
        self._handler = handler
        """The name under which they have theirs."""
        self._unseen: list[_Pair] = []
        """Limits that no application was seen to have a route to."""
        self._seen: Attached[None] = Attached()

    def watch(self, limited: object, original: object) -> None:
        """Remember a limit, which whatever calls the caller writes as a decorator, until an application has it."""
        if _has_name(original, sys._getframe(2)):
            return
        try:
            self._unseen.append(_Pair(ref(limited), ref(original, self._forget_gone)))
        except TypeError:  # no reference to it can be weak
            return

    def look(self, app: object, handlers: Callable[[], Iterable[object]], is_debugged: Callable[[], bool]) -> None:
        """Tell of limits above the routes of an application, whose handlers these are; once.

        Raises ConfigError where the application is debugged, and logs an error otherwise.
        """
        if not self._unseen or not self._is_new(app):
            return
        routed = list(handlers())
        self._forget(routed)
        if self._above(routed):  # another application, which was not asked yet, may have the limited function
            self._forget(self._handlers_of_all())
        above = self._above(routed)
        if not above:
            return
        self._unseen[:] = [pair for pair in tuple(self._unseen) if id(pair.original()) not in above]
        told = misplaced(above.values())
        if is_debugged():
            raise ConfigError(told)
        log.error(told)

    def _is_new(self, app: object) -> bool:
        new: list[object] = []
        try:
            self._seen.of(app, lambda: new.append(app))
        except TypeError:  # no reference to it can be weak: it cannot be looked at once
            return False
        return bool(new)

    def _forget(self, handlers: Iterable[object]) -> None:
        """Forget the limits that stand before any of these handlers."""
        kept = list(handlers)
        reached = {id(inner) for handler in kept for inner in chain(handler)}
        self._unseen[:] = [pair for pair in tuple(self._unseen) if id(pair.limited()) not in reached]

    def _forget_gone(self, original: ref[Any]) -> None:
        self._unseen[:] = [pair for pair in tuple(self._unseen) if pair.original is not original]

    def _above(self, routed: Iterable[object]) -> dict[int, object]:
        """The handlers that have a limit elsewhere, by their id()."""
        limited = {id(pair.original()) for pair in tuple(self._unseen)}
        return {id(handler): handler for handler in routed if id(handler) in limited}

    def _handlers_of_all(self) -> Iterator[object]:
        for thing in gc.get_objects():
            if issubclass(type(thing), self._routes):
                yield getattr(thing, self._handler, None)


def misplaced(functions: Iterable[object]) -> str:
    """What is told of limits above the routes of functions."""
    names = ", ".join(f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', '')}" for f in functions)
    return f"rate_limit stands above the route of {names}, where it limits nothing: put it below the route decorator"


def chain(function: Any) -> Iterator[Any]:
    """A function, and what it was wrapped around; a class, and those that it is derived from."""
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
    """Whether a function is known by a name where its limit is written, or by its own; or will be, as a method.

    What stands below a decorator has none yet.
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
