"""Values that a limit computes for each route of its requests, once: such as its place there, with the enforcer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headgate import core
from headgate.http.server.asgi_messages import Scope
from headgate.integrations.starlette.placement import check_placement
from headgate.integrations.starlette.routing import Found, context_of, find_route

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_KNOWN = "_headgate_places"
"""The attribute of a router with the values of its routes: they refer to the routes, so they end with the router."""

_MOST_CACHED = 4096
"""The most routes, and ways to them, with a value; a method name that a client invents may be part of a way."""


class Places(Protocol[T_co]):
    """The value of one limit for each route, computed once: a route does not change.

    To find the route and its enforcer takes longer than a decision does. The values are stored on the router, and end
    with it.
    """

    def of(self, scope: Scope, /) -> T_co:
        """Return the value for the route of a request."""
        ...

    def decide(self, scope: Scope, /) -> Any:
        """Decide natively at the `RoutePlace` of a request, if it is known and no other limit has judged the request.

        Return a `RoutePassed`, which is then the request's exchange, or a `NativeOutcome`; None where nothing was
        decided. Raises StoreError.
        """
        ...


def places(make: Callable[[Scope, Found], T], *, inside: bool, by_method: bool = False) -> Places[T]:
    """Return the values that `make` returns for routes, called with a scope and the route found for it.

    `inside` is whether the limit is called from within endpoints; `by_method` is that of `find_route`.
    """

    def find(scope: Scope) -> tuple[T, bool]:
        check_placement(scope)
        found, is_stable = find_route(scope, scope.get("endpoint") if inside else None, by_method=by_method)
        return make(scope, found), is_stable

    kind: Any = PythonPlaces if core.native is None else core.native.RoutePlaces
    made: Places[T] = kind(find, by_method=by_method)
    return made


class PythonPlaces(Generic[T]):
    """`Places` without the native core. `find` returns a value, and whether to remember it."""

    __slots__ = ("_by_method", "_find")

    def __init__(self, find: Callable[[Scope], tuple[T, bool]], *, by_method: bool) -> None:
        self._find = find
        self._by_method = by_method

    def decide(self, scope: Scope, /) -> None:
        """Return None: a request that Python decides has an exchange from the beginning."""

    def of(self, scope: Scope, /) -> T:
        """Return the value for the route of a request."""
        known_routes = _known_by(scope.get("router"))
        objects = (self, scope.get("route"), context_of(scope), scope.get("endpoint"))
        method = scope.get("method") if self._by_method else None
        key = (*map(id, objects), scope.get("app_root_path"), scope.get("root_path"), method)
        remembered = known_routes.get(key)
        if remembered is not None:
            own: T = remembered.made
            return own
        made, is_stable = self._find(scope)
        if is_stable:
            if len(known_routes) >= _MOST_CACHED:
                known_routes.clear()
            known_routes[key] = _CachedPlace(made, objects)
        return made


class _CachedPlace(NamedTuple):
    """The value for a route, and the objects whose id() is in its key: while they live, no other has the same id."""

    made: Any
    objects: tuple[Any, ...]


class _RouteCache(dict[tuple[Any, ...], _CachedPlace]):
    def __deepcopy__(self, _: Any) -> _RouteCache:
        return _RouteCache()  # a copy of a router has routes of its own


def _known_by(router: Any) -> _RouteCache:
    """Return the known routes of a router; an empty mapping where they cannot be stored on it."""
    attributes = getattr(router, "__dict__", None)
    if attributes is None:
        return _RouteCache()
    known: _RouteCache | None = attributes.get(_KNOWN)
    if known is None:
        known = attributes[_KNOWN] = _RouteCache()
    return known
