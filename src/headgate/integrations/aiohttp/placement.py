"""Checks that limits of handlers are written below their routes: above them they limit nothing."""

from __future__ import annotations

import asyncio

from aiohttp import web

from headgate.http.server.placement import Placements

_placements = Placements((web.AbstractRoute, web.RouteDef), "handler")

watch = _placements.watch


def check_placement(app: web.Application) -> None:
    """Report, once, limits that are above routes of an application or of one nested in it. Raises ConfigError."""
    _placements.check(app, lambda: [route.handler for route in app.router.routes()], _is_debugged)


def _is_debugged() -> bool:
    """Whether the application is in debug mode: the event loop's flag, since aiohttp warns of reading `app.debug`."""
    return asyncio.get_running_loop().get_debug()
