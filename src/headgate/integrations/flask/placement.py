"""Looks whether limits of views stand below their routes, as they must: above them they limit nothing."""

from __future__ import annotations

import logging
from weakref import WeakSet

import flask
from flask.signals import request_started

from headgate.errors import ConfigError
from headgate.http.server.placement import chain, misplaced
from headgate.integrations.flask.routing import View

log = logging.getLogger("headgate")

_unseen: list[tuple[View, View]] = []
"""Limited views, each with the view that it stands before, that no application was seen to have a route to."""

_seen: WeakSet[flask.Flask] = WeakSet()


def watch_place(limited: View, view: View) -> None:
    """Look, when an application answers first, whether the limit stands below its route, as it must."""
    _unseen.append((limited, view))
    request_started.connect(_look)


def _look(app: flask.Flask, **_: object) -> None:
    if app in _seen:
        return
    _seen.add(app)
    routed = {id(view) for view in app.view_functions.values()}
    reached = {id(inner) for view in app.view_functions.values() for inner in chain(view)}
    above = [view for limited, view in _unseen if id(view) in routed and id(limited) not in reached]
    known = reached | routed
    _unseen[:] = [pair for pair in _unseen if id(pair[0]) not in known and id(pair[1]) not in known]
    if not _unseen:
        request_started.disconnect(_look)
    for view in above:
        told = misplaced([view])
        if app.debug or app.testing:
            raise ConfigError(told)
        log.error(told)
