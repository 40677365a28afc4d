"""Middlewares that stand inside of one another: each has a counter of its own.

Of a middleware on a store of its own nothing is needed here. On one that others may use, too, the same limits twice
on the way of a request would be one counter, charged twice; so the inner ones count apart, by how many such middlewares
have judged the request before.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, cast

from headgate.http.server.enforcer import Front, Judged
from headgate.http.server.options import Options, RouteOptions

JUDGED = "headgate.middlewares"
"""Where a scope or an environ keeps what judged its request."""


class Nested:
    """The front of a middleware, at each depth at which it is found among others of its kind."""

    def __init__(self, front: Front, options: Options, *, asynchronous: bool) -> None:
        self._front = front
        self._options = options
        self._asynchronous = asynchronous
        self._inner: dict[str, Front] = {}
        self.first = (Judged(front, self, ""),)
        """What a scope or an environ is given as `JUDGED` where nothing has judged it yet."""

    def front(self, scope: MutableMapping[str, Any]) -> Front:
        """What judges the request of a scope or an environ that others have judged already."""
        judged: tuple[Judged, ...] = scope[JUDGED]
        place = self._front.apart("", self, judged)
        scope[JUDGED] = (*judged, Judged(self._front, self, place))
        if not place:
            return self._front
        inner = self._inner.get(place)
        if inner is None:
            told = cast(RouteOptions, {**self._options, "store": self._front.store, "scope": f"middleware{place}"})
            inner = self._inner[place] = Front(None, told, asynchronous=self._asynchronous, routed=True)
        return inner


def nested(front: Front, options: Options, *, asynchronous: bool) -> Nested | None:
    """None where no other middleware can use a counter of this one."""
    return Nested(front, options, asynchronous=asynchronous) if front.shares_store else None
