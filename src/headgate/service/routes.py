"""The table of the service's endpoints: to add an endpoint is to add a row.

Which bodies are read, 404 and 405, the page's list of paths and the table in docs/service.md all come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import unquote

from headgate.service.http.messages import Reply, ServiceRequest
from headgate.service.http.problems import problem_response

Handler = Callable[[ServiceRequest, str], Reply]
"""Replies to a request. The text is the part of the path after the prefix, "" for a route without a prefix."""

GET = ("GET", "HEAD")
POST = ("POST",)
ANY: tuple[str, ...] = ()
"""Every method."""

_ANY_METHOD = "*"
_LONGEST_SHOWN_PATH = 200


class Route(NamedTuple):
    """One row of the table. `path` is a path, or a prefix followed by a name in braces: `/check/{ruleset}`."""

    methods: tuple[str, ...]
    path: str
    handle: Handler
    summary: str
    """A description, for the page and the docs."""

    reads_body: bool = False
    """Whether the body is read; if not, it is discarded. A route with a prefix reads none."""

    @property
    def name(self) -> str:
        """Method and path, as docs write them: `GET /healthz`, `ANY /check/{ruleset}`."""
        return f"{self.methods[0] if self.methods else 'ANY'} {self.path}"


class RouteTable:
    """All routes, compiled for lookups by method and path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Handler]] = {}
        self._prefixes: dict[str, dict[str, Handler]] = {}
        for route in self.routes:
            prefix, brace, _ = route.path.partition("{")
            handlers = (self._prefixes if brace else self._exact).setdefault(prefix, {})
            handlers.update(dict.fromkeys(route.methods or (_ANY_METHOD,), route.handle))
        self._reads_body = frozenset(
            (method, route.path) for route in self.routes if route.reads_body for method in route.methods
        )

    def wants_body(self, method: str, path: str) -> bool:
        """Whether the body of such a request is read."""
        return (method, unquote(path) if "%" in path else path) in self._reads_body

    def reply(self, request: ServiceRequest) -> Reply:
        """The reply of the route that matches the request, or 404 or 405; raises what the route raises."""
        path, suffix = request.path, ""
        handlers = self._exact.get(path)
        if handlers is None:
            for prefix, candidates in self._prefixes.items():
                if path.startswith(prefix):
                    handlers, suffix = candidates, path[len(prefix) :]
                    break
            else:
                handlers = self._exact.get(unquote(path))
                if handlers is None:
                    return problem_response(404, f"no such path: {path[:_LONGEST_SHOWN_PATH]}; see GET /")
        handle = handlers.get(request.method) or handlers.get(_ANY_METHOD)
        if handle is None:
            allow = ", ".join(handlers)
            return problem_response(405, f"use {allow}", [(b"allow", allow.encode())])
        return handle(request, suffix)
