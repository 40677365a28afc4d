"""Applications that return the header lines and the query that they received."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

ECHOED_NAMES = ("x-api-key", "cookie")


async def asgi(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    """The application on ASGI."""
    if scope["type"] != "http":
        raise NotImplementedError
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    echoed = [[name, value] for name, value in pairs if name.replace("_", "-") in ECHOED_NAMES]
    body = json.dumps([echoed, scope["query_string"].decode("latin-1")]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """The application on WSGI."""
    pairs = [(name[5:].replace("_", "-").lower(), value) for name, value in environ.items() if name.startswith("HTTP_")]
    body = json.dumps(
        [[list(pair) for pair in pairs if pair[0] in ECHOED_NAMES], environ.get("QUERY_STRING", "")]
    ).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
