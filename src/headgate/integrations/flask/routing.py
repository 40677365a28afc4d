"""The Flask route of a request, and whether wider limits exclude it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import flask
from flask import current_app
from flask.views import http_method_funcs

from headgate.http.server.routes import is_excluded_endpoint

View = Callable[..., Any]

NO_ROUTE = "no route"
"""The endpoint of requests that no route answers: 404, 405, and redirects to the right slash."""


def template_of(method: str = "") -> str:
    """Return the route of the request: its methods (or `method`, that of a view class's method) and its whole rule."""
    request = flask.request
    root, rule = request.environ.get("SCRIPT_NAME", "").rstrip("/"), request.url_rule
    if rule is None:
        return f"{NO_ROUTE} {root}".rstrip()
    methods = method or ",".join(sorted((rule.methods or {"GET"}) - {"HEAD", "OPTIONS"})) or "OPTIONS"
    return f"{methods} {rule.host or rule.subdomain or ''}{root}{rule.rule}"


def method_of(view: View) -> str:
    """Return the HTTP method that a method of a view class answers, "" for any other function."""
    owner = getattr(view, "__qualname__", "").rpartition(".")[0]
    name = getattr(view, "__name__", "")
    return name.upper() if owner and not owner.endswith("<locals>") and name in http_method_funcs else ""


def blueprints_of_request() -> Iterator[flask.Blueprint]:
    """Return the blueprints that the request's route is in, the innermost first."""
    return (cast(flask.Blueprint, current_app.blueprints[name]) for name in flask.request.blueprints)


def is_excluded(inside: Iterable[flask.Blueprint]) -> bool:
    """Whether wider limits exclude the request's route: it is exempt, or narrower limits override them."""
    view = current_app.view_functions.get(flask.request.endpoint or "")
    kind = getattr(view, "view_class", None)
    method = "get" if flask.request.method == "HEAD" else flask.request.method.lower()
    marked = (view, kind, getattr(kind, method, None), *inside)
    return any(is_excluded_endpoint(target) for target in marked)


def is_static() -> bool:
    """Whether the request asks for a static file, of the application or of a blueprint."""
    name, _, last = (flask.request.endpoint or "").rpartition(".")
    owner = current_app.blueprints.get(name) if name else current_app
    return last == "static" and owner is not None and owner.has_static_folder
