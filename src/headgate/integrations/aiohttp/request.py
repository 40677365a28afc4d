"""A request of aiohttp's server, as limits see it, and the name of its route."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast
from weakref import WeakKeyDictionary

from aiohttp import web

from headgate.http.server.functions import request_of
from headgate.policy.request import Request
from headgate.policy.sent_values import sent_text


class AiohttpRequest(Request):
    """A request of aiohttp; its parts are read when they are first accessed."""

    __slots__ = ("_read", "aiohttp")

    aiohttp: web.Request
    """aiohttp's own request."""

    def __init__(self, request: web.Request, endpoint: str) -> None:
        self.aiohttp = request
        self.method = request.method.upper()
        # Not `raw_path`: a client may write a whole URL there.
        self.path = request.rel_url.raw_path_qs or "/"
        self.client_ip = request.remote or ""
        self.endpoint = endpoint
        self._read: Request | None = None
        self._cookies = self._query = None

    @property
    def own(self) -> web.Request:
        """aiohttp's request, which functions of limits are passed."""
        return self.aiohttp

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """Header fields by name in lower case; a look-up may use any case."""
        return self._whole().headers

    def header(self, name: str) -> str:
        """The header as `request.headers.get` returns it: the first, if it was sent several times."""
        value = self.aiohttp.headers.get(name)
        return super().header(name) if value is None else sent_text(value)

    def cookie(self, name: str) -> str:
        """The cookie as `request.cookies.get` returns it."""
        return sent_text(self.aiohttp.cookies.get(name, ""))

    def query(self, name: str) -> str:
        """The parameter as `request.query.get` returns it: the first, if it was sent several times."""
        return self.aiohttp.query.get(name, "").strip()

    @property
    def host(self) -> str:  # type: ignore[override]
        """The host that the request names."""
        return self._whole().host

    def _whole(self) -> Request:
        if self._read is None:
            self._read = Request(headers=list(self.aiohttp.headers.items()))
        return self._read


@request_of.register
def _(request: web.Request) -> AiohttpRequest:
    return AiohttpRequest(request, endpoint_of(request))


def endpoint_of(request: web.Request, *, by_method: bool = False) -> str:
    """Return `GET /api/items/{id}`: the route's method and whole path as written, "" where there is no route.

    A route for any method has no method here; with `by_method` it has the request's.
    """
    route = request.match_info.route
    if route.resource is None:
        return ""
    method = request.method if by_method and route.method == "*" else route.method
    prefix = {"*": "", "HEAD": "GET "}.get(method, f"{method} ")  # aiohttp answers HEAD where it answers GET
    return f"{prefix}{_path_of(route.resource, request.match_info.apps)}"


_paths: WeakKeyDictionary[web.AbstractResource, str] = WeakKeyDictionary()


def _path_of(resource: web.AbstractResource, apps: tuple[web.Application, ...]) -> str:
    """Return `shop.example/items/{id}`: a resource's path after the domains of nested applications, which it lacks."""
    path = _paths.get(resource)
    if path is None:
        domains = "".join(rule_or_prefix(outer, inner)[0] for outer, inner in pairwise(apps))
        path = _paths[resource] = f"{domains}{resource.canonical}"
    return path


def rule_or_prefix(outer: web.Application, inner: web.Application) -> tuple[str, str]:
    """Return the domain, or else the whole prefix, that leads from an application to one nested in it."""
    for nested in outer.router.resources():
        info = cast(Mapping[str, Any], nested.get_info())
        if info.get("app") is inner:
            return ("", info["prefix"]) if "prefix" in info else (info["rule"].canonical, "")
    return "", ""
