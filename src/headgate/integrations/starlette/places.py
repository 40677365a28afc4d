"""What a limit makes of each route that its requests find, made once: where it stands, and what judges them there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headgate import core
from headgate.http.server.asgi_messages import Scope
from headgate.integrations.starlette.placement import look
from headgate.integrations.starlette.routing import Found, context_of, find_route

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_KNOWN = "_headgate_places"
"""Where a router keeps what is known of its routes: it ends with that, for it refers to them."""

_MOST_KNOWN = 4096
"""So many routes and ways to them are known; what a client calls a method may be part of a way."""


class Places(Protocol[T_co]):
    """What one limit makes of each route that it is asked for, made once: a route does not change.

    Finding a route out, and what judges its requests, takes longer than deciding does. What was made is kept on the
    router, and ends with it.
    """

    def of(self, scope: Scope, /) -> T_co:
        """What was made of the route of a request."""
        ...

    def ask(self, scope: Scope, /) -> Any:
        """Decide natively at the `RoutePlace` of a request, if it is known and no other limit has judged the request.

        Gives a `RoutePassed`, which is then its exchange, or an `AskedNatively`; None where nothing was asked. Raises
        StoreError.
        """
        ...


def places(make: Callable[[Scope, Found], T], *, inside: bool, by_method: bool = False) -> Places[T]:
    """What `make` makes of routes, given a scope and what was found for it.

    `inside` tells whether the limit is asked from within endpoints, and `by_method` is that of `find_route`.
    """

    def find(scope: Scope) -> tuple[T, bool]:
        look(scope)
        found, is_stable = find_route(scope, scope.get("endpoint") if inside else None, by_method=by_method)
        return make(scope, found), is_stable

    kind: Any = PythonPlaces if core.native is None else core.native.RoutePlaces
    made: Places[T] = kind(find, by_method=by_method)
    return made


class PythonPlaces(Generic[T]):
    """`Places` where there is no native core. `find` gives what is made, and whether to remember it."""

    __slots__ = ("_by_method", "_find")

    def __init__(self, find: Callable[[Scope], tuple[T, bool]], *, by_method: bool) -> None:
        self._find = find
        self._by_method = by_method

    def ask(self, scope: Scope, /) -> None:
        """None: what Python decides has an exchange at once."""

    def of(self, scope: Scope, /) -> T:
        """What was made of the route of a request."""
        known_routes = _known_by(scope.get("router"))
        objects = (self, scope.get("route"), context_of(scope), scope.get("endpoint"))
        method = scope.get("method") if self._by_method else None
        known = (*map(id, objects), scope.get("app_root_path"), scope.get("root_path"), method)
        remembered = known_routes.get(known)
        if remembered is not None:
            own: T = remembered.made
            return own
        made, is_stable = self._find(scope)
        if is_stable:
            if len(known_routes) >= _MOST_KNOWN:
                known_routes.clear()
            known_routes[known] = _Remembered(made, objects)
        return made


class _Remembered(NamedTuple):
    """What was made of a route; `kept` holds the objects known by their id(), so that no other one gets the same id."""

    made: Any
    kept: tuple[Any, ...]


class _KnownRoutes(dict[tuple[Any, ...], _Remembered]):
    def __deepcopy__(self, _: Any) -> _KnownRoutes:
        return _KnownRoutes()  # a copy of a router has routes of its own


def _known_by(router: Any) -> _KnownRoutes:
    """What is known of a router's routes; nothing where it cannot be kept there."""
    kept = getattr(router, "__dict__", None)
    if kept is None:
        return _KnownRoutes()
    known: _KnownRoutes | None = kept.get(_KNOWN)
    if known is None:
        known = kept[_KNOWN] = _KnownRoutes()
    return known
