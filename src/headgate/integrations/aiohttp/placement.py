"""Looks whether limits of handlers stand below their routes, as they must: above them they limit nothing."""

from __future__ import annotations

import asyncio

from aiohttp import web

from headgate.http.server.placement import Placements

_placements = Placements((web.AbstractRoute, web.RouteDef), "handler")

watch = _placements.watch


def look(app: web.Application) -> None:
    """Tell of limits that stand above routes of an application, or of those nested in it; once. Raises ConfigError."""
    _placements.look(app, lambda: [route.handler for route in app.router.routes()], _is_debugged)


def _is_debugged() -> bool:
    """What `app.debug` tells, which aiohttp warns of."""
    return asyncio.get_running_loop().get_debug()
