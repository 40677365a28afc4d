"""Which route a request found, where routing is Starlette's or FastAPI's: its template, whole.

"GET /api/v1/items/{item_id}" has the prefixes of routers and mounts, and never what a client wrote into a path:
each route is one limit, and two mounted applications with the same inner path are two. The path that a proxy
took off (`root_path`) is no part of it.

No framework is imported; routes are known by what they have. FastAPI 0.137 and later hide the routes of an
included router behind an object that has `effective_route_contexts`, and leave its prefix out of the route's
own path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from headgate.http.server.asgi_messages import Scope

_REST = "/{path:path}"
"""Stands for whatever comes after a mount, where no route is found."""

_DEEPEST = 32


class Found(NamedTuple):
    """A route, or the place where the search ended."""

    template: str
    endpoint: Any
    """None where no route was found."""

    route: Any
    """What has the whole path, and in FastAPI the `dependant`; None where no route was found."""


def find_route(scope: Scope, endpoint: Any, *, by_method: bool) -> tuple[Found, bool]:
    """(the route of a request, or that which it will come to; whether all that come to it in the same way have it).

    A caller inside an endpoint gives it as `endpoint`, any other None: should no route be found, its name stands in
    for the route. `by_method` tells methods apart where the route itself does not.
    """
    route = _own_route(scope)
    if route is not None:
        before = _plain_mounts(scope)
        if before is not None:
            template = f"{_methods(scope, route, by_method)}{before}{route.path}"
            return Found(template, route.endpoint, route), True
    frontend = _frontend(scope)
    if frontend is not None:
        return Found(frontend, None, None), False
    path, traced = _trace(scope)
    if endpoint is not None and getattr(traced, "endpoint", None) is not endpoint:
        path = f"{path}{getattr(route, 'path', '')} of {_name(endpoint)}"
        return Found(f"{_methods(scope, route, by_method)}{path}", endpoint, route), False
    return Found(f"{_methods(scope, traced, by_method)}{path}", getattr(traced, "endpoint", None), traced), False


def application_of(scope: Scope) -> Any:
    """What lives as long as the outermost application: its router. None where that is not known."""
    router = scope.get("router")
    if router is not None:
        return router
    app = scope.get("app")
    return getattr(app, "router", app)


def flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Routes with their whole paths, those of included routers among them."""
    for route in routes:
        contexts = getattr(route, "effective_route_contexts", None)
        if contexts is None:
            yield route
        else:
            for context in contexts():
                yield getattr(context, "starlette_route", None) or context


def endpoints_of(routes: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """The endpoints of routes, and of those behind mounts."""
    for route in flat(routes):
        if hasattr(route, "endpoint"):
            yield route.endpoint
        elif _is_mount(route) and depth < _DEEPEST:
            yield from endpoints_of(_inner_routes(route) or (), depth + 1)


def _own_route(scope: Scope) -> Any:
    """The route that called the endpoint, with its whole path inside its application; None where it is not told."""
    endpoint = scope.get("endpoint")
    if endpoint is None:
        return None
    context = context_of(scope)
    if context is not None:
        included = getattr(context, "starlette_route", None) or context
        if getattr(included, "endpoint", None) is endpoint:
            return included
    route: Any = scope.get("route")
    if getattr(route, "endpoint", None) is not endpoint:  # that of an application around this one
        return None
    # A path that lacks a prefix does not match the request.
    return route if route.path_regex.match(_path_of(scope)) else None


def context_of(scope: Scope) -> Any:
    """What FastAPI tells of a route that was included; None for any other."""
    told = scope.get("fastapi")
    return told.get("effective_route_context") if isinstance(told, dict) else None


def _path_of(scope: Scope) -> str:
    """The path inside the application that is asked, as Starlette has it."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    if not root or not path.startswith(root) or path[len(root) : len(root) + 1] not in ("", "/"):
        return path
    return path[len(root) :]


def _methods(scope: Scope, route: Any, by_method: bool) -> str:
    if scope["type"] == "websocket":
        return "WEBSOCKET "
    methods = getattr(route, "methods", None)
    if not methods:  # a class: anything that a client calls a method gets there
        method = scope["method"].upper() if by_method else ""  # older Starlettes take it in any case
        return f"{'GET' if method == 'HEAD' else method} " if by_method else ""
    if len(methods) == 1:
        return f"{next(iter(methods))} "
    told = sorted(method for method in methods if method != "HEAD" or "GET" not in methods)
    return f"{','.join(told)} "


def _name(endpoint: Any) -> str:
    while isinstance(endpoint, partial):
        endpoint = endpoint.func
    named = endpoint if hasattr(endpoint, "__qualname__") else type(endpoint)
    return f"{named.__module__}.{named.__qualname__}"


def _frontend(scope: Scope) -> str | None:
    """The place of files that FastAPI serves for paths without a route (`app.frontend`)."""
    told = scope.get("fastapi")
    rest = told.get("frontend_path") if isinstance(told, dict) else None
    if rest is None:
        return None
    path = _path_of(scope)
    return f"GET {(path[: -len(rest)] if rest else path).rstrip('/')}{_REST}"


class _Tree(NamedTuple):
    """What stands before the routes of a whole application."""

    routes: int
    hosts: bool
    templated: bool
    """Whether a mount's path has parameters."""

    opaque: tuple[str, ...]
    """Mounts of applications whose routes are not known."""


class _Kept:
    """What is known of a router. It is kept on that itself, and ends with it: it refers to its routes."""

    __slots__ = ("tree",)

    def __init__(self) -> None:
        self.tree: _Tree | None = None


_KEPT = "_headgate_kept"


def _kept_by(top: Any) -> _Kept:
    """What is known of a router, or of an application; nothing where it cannot be kept there."""
    known = getattr(top, "__dict__", None)
    if known is None:
        return _Kept()
    kept: _Kept | None = known.get(_KEPT)
    if kept is None:
        kept = known[_KEPT] = _Kept()
    return kept


def _plain_mounts(scope: Scope) -> str | None:
    """What mounts took off a path, where that is the same for every client; None where it has to be traced."""
    tree = _tree(scope)
    if tree is None or tree.hosts:
        return None
    before, root = scope.get("app_root_path"), scope.get("root_path", "")
    if before is None or root == before:
        return ""
    if tree.templated or not root.startswith(before):
        return None
    mounted: str = root[len(before) :]
    return None if any(mounted.startswith(f"{path}/") for path in tree.opaque) else mounted


def _top(scope: Scope) -> Any:
    """The outermost router; before it is entered, the application."""
    return scope.get("router") or scope.get("app")


def _tree(scope: Scope) -> _Tree | None:
    top = _top(scope)
    routes = getattr(top, "routes", None)
    if routes is None:
        return None
    kept = _kept_by(top)
    tree = kept.tree
    if tree is None or tree.routes != len(routes):
        mounts: list[tuple[str, bool, bool, bool]] = list(_mounts(routes, "", 0))
        tree = kept.tree = _Tree(
            len(routes),
            hosts=any(host for _, host, _, _ in mounts),
            templated=any(templated for _, _, templated, _ in mounts),
            opaque=tuple(path for path, _, _, opaque in mounts if opaque),
        )
    return tree


def _mounts(routes: Iterable[Any], before: str, depth: int) -> Iterator[tuple[str, bool, bool, bool]]:
    """(path, whether it is a host, has parameters, does not tell its routes) of each mount."""
    for route in flat(routes):
        if not _is_mount(route):
            continue
        host = hasattr(route, "host")
        path = before if host else before + route.path
        inner = _inner_routes(route)
        yield path, host, bool(set(route.param_convertors) - {"path"}), inner is None
        if inner is not None and depth < _DEEPEST:
            yield from _mounts(inner, path, depth + 1)


def _is_mount(route: Any) -> bool:
    """Whether other routes are behind it: a Mount or a Host."""
    return hasattr(route, "app") and not hasattr(route, "endpoint")


def _inner_routes(mount: Any) -> Sequence[Any] | None:
    """The routes behind a mount, through middlewares that keep what they stand before as `app`; None: not told."""
    if mount.routes:
        routes: Sequence[Any] = mount.routes
        return routes
    app = mount.app
    for _ in range(_DEEPEST):
        routes = getattr(app, "routes", None)  # type: ignore[assignment]
        if routes is not None:
            return routes
        app = getattr(app, "app", None)
    return None


def _trace(scope: Scope) -> tuple[str, Any]:
    """Go the way of a request once more: its whole template, and the route at its end."""
    level = dict(scope)
    level.pop("fastapi", None)
    level["root_path"] = level.pop("app_root_path", scope.get("root_path", ""))
    level["path_params"] = {}
    routes: Sequence[Any] | None = getattr(_top(scope), "routes", None)
    hosts = paths = ""
    while routes is not None:
        route, child = _first_match(routes, level)
        if route is None:
            break
        if not _is_mount(route):
            return f"{hosts}{paths}{route.path}", route
        if hasattr(route, "host"):
            hosts += route.host
        else:
            paths += route.path
        level.update(child)
        routes = _inner_routes(route)
    return f"{hosts}{paths}{_REST}", None


def _first_match(routes: Sequence[Any], level: Scope) -> tuple[Any, Scope]:
    """The route that a router chooses: the first that matches, else the first that does but for the method."""
    partly: tuple[Any, Scope] = (None, {})
    for route in flat(routes):
        match, child = route.matches(level)
        if match.name == "FULL":
            return route, child
        if match.name == "PARTIAL" and partly[0] is None:
            partly = route, child
    return partly
