"""Limits of single routes, in any framework: one store for all of them, and who is left out.

    limits = RouteLimits({"store": "redis://10.0.0.5/0"}, asynchronous=True)
    front = limits.front("10/second", {"key": api_key()})

Each integration has a skin of its own over it. A route counts by itself, under its whole template; what is
told in `scope` counts together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from headgate.errors import ConfigError
from headgate.http.front import Front
from headgate.http.options import AnyLimits, Of, RouteOptions
from headgate.stores.contract import Store, close_async
from headgate.stores.opening import open_store

F = TypeVar("F", bound=Callable[..., Any])

LimitsOfRoute = AnyLimits | Mapping[str, AnyLimits | None] | Of[AnyLimits | None]
"""Limits, those of each tier, or what gives those of a request; None: not limited."""

_EXEMPT = "__headgate_exempt__"


class RouteLimits:
    """Makes what judges single routes. `defaults` are options of each; a route's own stand before them.

    All limits that name no store of their own count in one, which is opened when the first is made.
    """

    def __init__(self, defaults: RouteOptions, *, asynchronous: bool) -> None:
        unknown = set(defaults) - set(RouteOptions.__annotations__)
        if unknown:
            raise TypeError(f"no option is named {', '.join(sorted(unknown))}")
        self._defaults = defaults
        self._asynchronous = asynchronous
        self._opened: dict[str, Store] = {}

    def front(self, limits: LimitsOfRoute, options: RouteOptions) -> Front:
        """What judges the requests of routes: endpoints that are not one count apart. Raises ConfigError."""
        if limits is None:
            raise ConfigError("a route's limits are text or values, or a function that gives them, not None")
        told = {**self._defaults, **options, "limits": limits}
        store = told.get("store", "memory://")
        if isinstance(store, str):
            told["store"] = self._open(store)
        return Front(None, cast(RouteOptions, told), asynchronous=self._asynchronous, routed=True)

    def close(self) -> None:
        """Close the stores that were opened here; who asks again opens them again."""
        for store in self._opened.values():
            store.close()

    async def aclose(self) -> None:
        """`close` on an event loop."""
        for store in list(self._opened.values()):
            await close_async(store)

    def _open(self, url: str) -> Store:
        store = self._opened.get(url)
        if store is None:
            store = self._opened[url] = open_store(url)
        return store


def exempt(endpoint: F) -> F:
    """Mark a view, handler or endpoint as one that limits of its application, blueprint or router leave out."""
    setattr(endpoint, _EXEMPT, True)
    return endpoint


def is_exempt(endpoint: object) -> bool:
    """Whether an endpoint was marked so."""
    return bool(getattr(endpoint, _EXEMPT, False))
