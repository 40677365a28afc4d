"""What a `RateLimits` was told about an application: stored with the application, and independent of any other."""

from __future__ import annotations

from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import flask

from headgate.http.server.options import RouteOptions
from headgate.http.server.routes import ApplicationEnforcers, RouteLimits

_EXTENSION = "headgate"


class Limit(Protocol):
    """A limit that can be bound to the options of an application."""

    def bound_to(self, routes: RouteLimits, /) -> ApplicationEnforcers: ...


class AppSettings:
    """The options and the default limit of one application, for one `RateLimits`.

    They may refer to the application, as a function among the options may: so nothing but the application keeps them.
    """

    def __init__(self, options: RouteOptions, routes: RouteLimits, default: Any) -> None:
        self._options = options
        self._enforcers: WeakKeyDictionary[Limit, ApplicationEnforcers] = WeakKeyDictionary()
        self.routes = routes
        self.default = default
        """The limit of every route; None for none."""

    def replaced(self, options: RouteOptions) -> AppSettings:
        """Return settings with these options in place of those of the same name, whose counts start afresh."""
        merged = cast(RouteOptions, {**self._options, **options})
        return AppSettings(merged, RouteLimits(merged, asynchronous=False), self.default)

    def set_default(self, limit: Any) -> None:
        """Set the limit of every route. Raises ConfigError where it cannot be used with these options."""
        self.enforcers_of(limit)
        self.default = limit

    def enforcers_of(self, limit: Limit) -> ApplicationEnforcers:
        """Return the enforcers of a limit by these options."""
        enforcers = self._enforcers.get(limit)
        if enforcers is None:
            enforcers = self._enforcers.setdefault(limit, limit.bound_to(self.routes))
        return enforcers


def settings_of(app: flask.Flask) -> dict[Any, AppSettings]:
    """Return the settings of an application by the `RateLimits` that have them."""
    settings: dict[Any, AppSettings] = app.extensions.setdefault(_EXTENSION, {})
    return settings
