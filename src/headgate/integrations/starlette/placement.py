"""Checks that limits of endpoints are written below their routes: above them they limit nothing."""

from __future__ import annotations

from starlette.routing import BaseRoute

from headgate.http.server.asgi_messages import Scope
from headgate.http.server.placement import Placements
from headgate.integrations.starlette.routing import endpoints_of

_placements = Placements((BaseRoute,), "endpoint")

watch = _placements.watch


def check_placement(scope: Scope) -> None:
    """Report, once, limits that are above routes of the application in the scope. Raises ConfigError."""
    app = scope.get("app")
    routes = getattr(app, "routes", None)
    if routes is not None:
        _placements.check(app, lambda: endpoints_of(routes), lambda: bool(getattr(app, "debug", False)))
