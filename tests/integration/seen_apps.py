"""Applications that return the name of the resource a request reached, for tests of what servers do to a path."""

from __future__ import annotations

import os

from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import headgate.http.asgi
import headgate.http.wsgi

METHODS = ["GET", "POST"]
POLICY = {
    "version": 1,
    "rules": [
        {"name": "login", "match": {"path": "/api/login"}, "by": [], "limits": "0/minute"},
        {"name": "cafe", "match": {"path": "/café/x"}, "by": [], "limits": "0/minute"},
        {"name": "file", "match": {"path": "/files/{name}"}, "by": [], "limits": "0/minute"},
        {"name": "all", "match": {"header": {"X-All": "1"}}, "by": [], "limits": "0/minute"},
    ],
    "exempt": [{"path": "/health"}],
}
"""It refuses requests for some of the resources, and with `X-All` for all but /health."""

PATHS = {"login": "/api/login", "cafe": "/café/x", "file": "/files/<name>", "health": "/health"}


def _endpoint(name: str):  # type: ignore[no-untyped-def]
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse(name)

    return endpoint


routes = [
    Route(path.replace("<", "{").replace(">", "}"), _endpoint(name), methods=METHODS) for name, path in PATHS.items()
]
bare_asgi = Starlette(routes=[*routes, Route("/{rest:path}", _endpoint("other"), methods=METHODS)])
bare_wsgi = Flask(__name__)
for name, path in PATHS.items():
    bare_wsgi.add_url_rule(path, name, lambda resource=name, **_: resource, methods=METHODS)
bare_wsgi.register_error_handler(404, lambda error: ("other", 200))

asgi = headgate.http.asgi.RateLimitMiddleware(bare_asgi, POLICY)
wsgi = headgate.http.wsgi.RateLimitMiddleware(bare_wsgi, POLICY)
if os.environ.get("BARE"):
    asgi, wsgi = bare_asgi, bare_wsgi  # type: ignore[assignment]
