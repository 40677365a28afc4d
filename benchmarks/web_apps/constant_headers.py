"""The least cost of a limiter that reports what remains: two constant header lines on each response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

TWO_HEADERS = [
    ("RateLimit-Policy", '"default";q=1000000000;w=60'),
    ("RateLimit", '"default";r=999999999;t=60'),
]
"""Headgate's fields after one request."""

Environ = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class AsgiConstantHeaders:
    """Adds the fields to the responses of an ASGI application."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self.headers = [(name.lower().encode(), value.encode()) for name, value in TWO_HEADERS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self.headers]
            await send(message)

        await self.app(scope, receive, send_with_headers)


class WsgiConstantHeaders:
    """Adds the fields to the responses of a WSGI application."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self.app = app

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Any:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start_response(status, headers + TWO_HEADERS, *error)

        return self.app(environ, start)
