"""Middlewares that stand inside of one another: each has a counter of its own, and what one refuses none is charged.

Of a middleware on a store of its own nothing is needed here. On one that others may use, too, the same limits twice
on the way of a request would be one counter, charged twice; so the inner ones count apart, by how many such middlewares
have judged the request before.

A middleware that others stand behind leaves its exchange with the request: one of them that refuses takes back what was
charged by it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, cast
from weakref import ref

from headgate.http.server.enforcer import Enforcer, PlaceOf
from headgate.http.server.exchange import Exchange
from headgate.http.server.options import Options, RouteOptions

JUDGED = "headgate.middlewares"
"""Where a scope or an environ keeps what judged its request."""

_AROUND = "headgate.around"
"""Where it keeps references to the exchanges of those that let its request pass and have others behind them.

They are weak: a circle would wait for the garbage collector.
"""


class NestedEnforcers:
    """The enforcer of a middleware, at each depth at which it is found among others of its kind."""

    def __init__(self, enforcer: Enforcer, options: Options, *, asynchronous: bool) -> None:
        self._enforcer = enforcer
        self._options = options
        self._asynchronous = asynchronous
        self._inner: dict[str, Enforcer] = {}
        self.first = (PlaceOf(enforcer, self, ""),)
        """What a scope or an environ is given as `JUDGED` where nothing has judged it yet."""

    def enforcer(self, scope: MutableMapping[str, Any]) -> Enforcer:
        """What judges the request of a scope or an environ that others have judged already."""
        judged: tuple[PlaceOf, ...] = scope[JUDGED]
        place = self._enforcer.apart("", self, judged)
        scope[JUDGED] = (*judged, PlaceOf(self._enforcer, self, place))
        if not place:
            return self._enforcer
        inner = self._inner.get(place)
        if inner is None:
            own = cast(RouteOptions, {**self._options, "store": self._enforcer.store, "scope": f"middleware{place}"})
            inner = self._inner[place] = Enforcer(None, own, asynchronous=self._asynchronous, routed=True)
        return inner


def nested(enforcer: Enforcer, options: Options, *, asynchronous: bool) -> NestedEnforcers | None:
    """None where no other middleware can use a counter of this one."""
    return NestedEnforcers(enforcer, options, asynchronous=asynchronous) if enforcer.shares_store else None


def around(scope: MutableMapping[str, Any], own: object) -> list[Any]:
    """The exchanges of the middlewares that let a request pass on its way to `own`.

    None where it has passed `own` already: then the application asks itself, with the scope that it was given, or a
    copy of it.
    """
    exchanges: list[Exchange] = [exchange for known in scope.get(_AROUND, ()) if (exchange := known()) is not None]
    return [] if any(exchange.has_judged(own) for exchange in exchanges) else exchanges


def leave(scope: MutableMapping[str, Any], exchange: Exchange, own: object) -> None:
    """Leave the exchange of `own`, which let a request pass, to those behind it, for as long as `own` keeps it."""
    scope[_AROUND] = (*map(ref, around(scope, own)), ref(exchange))
