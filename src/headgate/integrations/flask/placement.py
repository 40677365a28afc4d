"""Checks that limits of views are written below their routes: above them they limit nothing."""

from __future__ import annotations

import logging
from weakref import WeakSet

import flask
from flask.signals import request_started

from headgate.errors import ConfigError
from headgate.http.server.placement import chain, misplaced
from headgate.integrations.flask.routing import View

log = logging.getLogger("headgate")

_unrouted: list[tuple[View, View]] = []
"""Limited views, each with the view that it wraps, to which no checked application has a route."""

_checked: WeakSet[flask.Flask] = WeakSet()


def watch_place(limited: View, view: View) -> None:
    """Check, at the first request of an application, that the limit is below its route."""
    _unrouted.append((limited, view))
    request_started.connect(_check)


def _check(app: flask.Flask, **_: object) -> None:
    if app in _checked:
        return
    _checked.add(app)
    routed = {id(view) for view in app.view_functions.values()}
    reached = {id(inner) for view in app.view_functions.values() for inner in chain(view)}
    above = [view for limited, view in _unrouted if id(view) in routed and id(limited) not in reached]
    known = reached | routed
    _unrouted[:] = [pair for pair in _unrouted if id(pair[0]) not in known and id(pair[1]) not in known]
    if not _unrouted:
        request_started.disconnect(_check)
    for view in above:
        message = misplaced([view])
        if app.debug or app.testing:
            raise ConfigError(message)
        log.error(message)
