"""The route of a request, where routing is Starlette's or FastAPI's: its whole template.

"GET /api/v1/items/{item_id}" contains the prefixes of routers and mounts, and no text that a client wrote into a path:
each route is one limit, and two mounted applications with the same inner path are two. The prefix that a proxy
removes (`root_path`) is no part of it.

No framework is imported; routes are recognized by their attributes. FastAPI 0.137 and later hide the routes of an
included router behind an object that has `effective_route_contexts`, and leave its prefix out of the route's
own path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from headgate.http.server.asgi_messages import Scope

_REST = "/{path:path}"
"""The end of a template for any path below a mount, where no route is found."""

_DEEPEST = 32


class Found(NamedTuple):
    """A route, or the place where the search ended."""

    template: str
    endpoint: Any
    """None where no route was found."""

    route: Any
    """The object with the whole path, and in FastAPI the `dependant`; None where no route was found."""


def find_route(scope: Scope, endpoint: Any, *, by_method: bool) -> tuple[Found, bool]:
    """Return (the route that a request has or will reach; whether all requests that reach it the same way have it).

    A caller inside an endpoint passes it as `endpoint`, any other passes None: where no route is found, the endpoint's
    name replaces it. `by_method` distinguishes methods where the route itself does not.
    """
    route = _own_route(scope)
    if route is not None:
        prefix = _plain_mounts(scope)
        if prefix is not None:
            template = f"{_methods(scope, route, by_method)}{prefix}{route.path}"
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
    """Return an object that lives as long as the outermost application: its router. None where it is not known."""
    router = scope.get("router")
    if router is not None:
        return router
    app = scope.get("app")
    return getattr(app, "router", app)


def flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Return routes with their whole paths, including those of included routers."""
    for route in routes:
        contexts = getattr(route, "effective_route_contexts", None)
        if contexts is None:
            yield route
        else:
            for context in contexts():
                yield getattr(context, "starlette_route", None) or context


def endpoints_of(routes: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """Return the endpoints of routes, and of those behind mounts."""
    for route in flat(routes):
        if hasattr(route, "endpoint"):
            yield route.endpoint
        elif _is_mount(route) and depth < _DEEPEST:
            yield from endpoints_of(_inner_routes(route) or (), depth + 1)


def _own_route(scope: Scope) -> Any:
    """Return the route that called the endpoint, with its whole path in its application; None if it is not known."""
    endpoint = scope.get("endpoint")
    if endpoint is None:
        return None
    context = context_of(scope)
    if context is not None:
        included = getattr(context, "starlette_route", None) or context
        if getattr(included, "endpoint", None) is endpoint:
            return included
    route: Any = scope.get("route")
    if getattr(route, "endpoint", None) is not endpoint:  # the route of an application around this one
        return None
    # A path that lacks a prefix does not match the request.
    return route if route.path_regex.match(_path_of(scope)) else None


def context_of(scope: Scope) -> Any:
    """Return FastAPI's context of a route that was included; None for any other."""
    entry = scope.get("fastapi")
    return entry.get("effective_route_context") if isinstance(entry, dict) else None


def _path_of(scope: Scope) -> str:
    """Return the path inside the called application, as Starlette computes it."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    if not root or not path.startswith(root) or path[len(root) : len(root) + 1] not in ("", "/"):
        return path
    return path[len(root) :]


def _methods(scope: Scope, route: Any, by_method: bool) -> str:
    if scope["type"] == "websocket":
        return "WEBSOCKET "
    methods = getattr(route, "methods", None)
    if not methods:  # a class: it is called for any method name that a client sends
        method = scope["method"].upper() if by_method else ""  # older Starlettes accept any case
        return f"{'GET' if method == 'HEAD' else method} " if by_method else ""
    if len(methods) == 1:
        return f"{next(iter(methods))} "
    shown = sorted(method for method in methods if method != "HEAD" or "GET" not in methods)
    return f"{','.join(shown)} "


def _name(endpoint: Any) -> str:
    while isinstance(endpoint, partial):
        endpoint = endpoint.func
    owner = endpoint if hasattr(endpoint, "__qualname__") else type(endpoint)
    return f"{owner.__module__}.{owner.__qualname__}"


def _frontend(scope: Scope) -> str | None:
    """Return the template of files that FastAPI serves for paths without a route (`app.frontend`); None for others."""
    entry = scope.get("fastapi")
    rest = entry.get("frontend_path") if isinstance(entry, dict) else None
    if rest is None:
        return None
    path = _path_of(scope)
    return f"GET {(path[: -len(rest)] if rest else path).rstrip('/')}{_REST}"


class _Tree(NamedTuple):
    """The mounts and hosts in front of the routes of a whole application."""

    routes: int
    hosts: bool
    templated: bool
    """Whether a mount's path has parameters."""

    opaque: tuple[str, ...]
    """Mounts of applications whose routes are not known."""


class _Cache:
    """The cached tree of a router. It is stored on the router itself, and ends with it: it refers to its routes."""

    __slots__ = ("tree",)

    def __init__(self) -> None:
        self.tree: _Tree | None = None


_CACHE = "_headgate_routes"


def _cache_of(top: Any) -> _Cache:
    """Return the cache of a router or an application; an empty one where it cannot be stored there."""
    attributes = getattr(top, "__dict__", None)
    if attributes is None:
        return _Cache()
    cache: _Cache | None = attributes.get(_CACHE)
    if cache is None:
        cache = attributes[_CACHE] = _Cache()
    return cache


def _plain_mounts(scope: Scope) -> str | None:
    """Return the prefix that mounts removed from a path, if every client has the same; None where to trace it."""
    tree = _tree(scope)
    if tree is None or tree.hosts:
        return None
    outer, root = scope.get("app_root_path"), scope.get("root_path", "")
    if outer is None or root == outer:
        return ""
    if tree.templated or not root.startswith(outer):
        return None
    mounted: str = root[len(outer) :]
    return None if any(mounted.startswith(f"{path}/") for path in tree.opaque) else mounted


def _top(scope: Scope) -> Any:
    """Return the outermost router; before that is called, the application."""
    return scope.get("router") or scope.get("app")


def _tree(scope: Scope) -> _Tree | None:
    top = _top(scope)
    routes = getattr(top, "routes", None)
    if routes is None:
        return None
    cache = _cache_of(top)
    tree = cache.tree
    if tree is None or tree.routes != len(routes):
        mounts: list[tuple[str, bool, bool, bool]] = list(_mounts(routes, "", 0))
        tree = cache.tree = _Tree(
            len(routes),
            hosts=any(host for _, host, _, _ in mounts),
            templated=any(templated for _, _, templated, _ in mounts),
            opaque=tuple(path for path, _, _, opaque in mounts if opaque),
        )
    return tree


def _mounts(routes: Iterable[Any], prefix: str, depth: int) -> Iterator[tuple[str, bool, bool, bool]]:
    """Return (path, whether it is a host, has parameters, hides its routes) of each mount."""
    for route in flat(routes):
        if not _is_mount(route):
            continue
        host = hasattr(route, "host")
        path = prefix if host else prefix + route.path
        inner = _inner_routes(route)
        yield path, host, bool(set(route.param_convertors) - {"path"}), inner is None
        if inner is not None and depth < _DEEPEST:
            yield from _mounts(inner, path, depth + 1)


def _is_mount(route: Any) -> bool:
    """Whether a route is a Mount or a Host, with other routes behind it."""
    return hasattr(route, "app") and not hasattr(route, "endpoint")


def _inner_routes(mount: Any) -> Sequence[Any] | None:
    """Return the routes behind a mount, through middlewares that have an `app`; None where they are not known."""
    routes: Sequence[Any] | None = mount.routes
    if routes:
        return routes
    app = mount.app
    for _ in range(_DEEPEST):
        behind: Sequence[Any] | None = getattr(app, "routes", None)
        if behind is not None:
            return behind
        app = getattr(app, "app", None)
    return None


def _trace(scope: Scope) -> tuple[str, Any]:
    """Follow the routing of a request once more; return its whole template, and the route at the end."""
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
    """Return the route that a router selects: the first that matches, else the first with another method."""
    partly: tuple[Any, Scope] = (None, {})
    for route in flat(routes):
        match, child = route.matches(level)
        if match.name == "FULL":
            return route, child
        if match.name == "PARTIAL" and partly[0] is None:
            partly = route, child
    return partly
