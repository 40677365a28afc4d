"""Nested middlewares: each has a counter of its own, and a request that one of them refuses is charged by none.

A middleware with a store of its own needs nothing from here. On a shared store, the same limits twice on the way of a
request would be one counter that is charged twice; so the inner ones count separately, numbered by how many such
middlewares have judged the request before.

An outer middleware stores its exchange with the request: an inner one that refuses takes back what the outer one
charged.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, cast
from weakref import ref

from headgate.http.server.enforcer import Enforcer, PlaceOf
from headgate.http.server.exchange import Exchange
from headgate.http.server.options import Options, RouteOptions

JUDGED_PLACES = "headgate.middlewares"
"""The key in a scope or an environ of the places that judged its request."""

_OUTER_EXCHANGES = "headgate.around"
"""The key of references to the exchanges of the outer middlewares that let the request pass.

They are weak references: a reference cycle would wait for the garbage collector.
"""


class NestedEnforcers:
    """The enforcers of a middleware, one for each depth at which it is nested in others of its kind."""

    def __init__(self, enforcer: Enforcer, options: Options, *, asynchronous: bool) -> None:
        self._enforcer = enforcer
        self._options = options
        self._asynchronous = asynchronous
        self._inner: dict[str, Enforcer] = {}
        self.first_places = (PlaceOf(enforcer, self, ""),)
        """The value of `JUDGED_PLACES` for a scope or an environ that nothing has judged yet."""

    def enforcer(self, scope: MutableMapping[str, Any]) -> Enforcer:
        """Return the enforcer for the request of a scope or an environ that others have judged already."""
        places: tuple[PlaceOf, ...] = scope[JUDGED_PLACES]
        counter = self._enforcer.counter_name("", self, places)
        scope[JUDGED_PLACES] = (*places, PlaceOf(self._enforcer, self, counter))
        if not counter:
            return self._enforcer
        inner = self._inner.get(counter)
        if inner is None:
            options = cast(
                RouteOptions, {**self._options, "store": self._enforcer.store, "scope": f"middleware{counter}"}
            )
            inner = self._inner[counter] = Enforcer(None, options, asynchronous=self._asynchronous, routed=True)
        return inner


def nested(enforcer: Enforcer, options: Options, *, asynchronous: bool) -> NestedEnforcers | None:
    """Return the enforcers of a middleware by depth; None where no other middleware can use a counter of this one."""
    return NestedEnforcers(enforcer, options, asynchronous=asynchronous) if enforcer.shares_store else None


def outer_exchanges(scope: MutableMapping[str, Any], middleware: object) -> list[Any]:
    """Return the exchanges of the middlewares that let a request pass on its way to `middleware`.

    The list is empty where the request has passed `middleware` already: then the application calls itself, with the
    scope that it was given or a copy of it.
    """
    exchanges: list[Exchange] = [
        exchange for reference in scope.get(_OUTER_EXCHANGES, ()) if (exchange := reference()) is not None
    ]
    return [] if any(exchange.has_judged(middleware) for exchange in exchanges) else exchanges


def store_exchange(scope: MutableMapping[str, Any], exchange: Exchange, middleware: object) -> None:
    """Store the exchange of `middleware`, which let a request pass, for inner ones, while `middleware` refers to it."""
    scope[_OUTER_EXCHANGES] = (*map(ref, outer_exchanges(scope, middleware)), ref(exchange))
