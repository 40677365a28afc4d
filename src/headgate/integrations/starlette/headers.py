"""Adds the fields of route limits to every response, and ends the exchange of its request."""

from __future__ import annotations

from typing import Protocol

from headgate.drive import all_answered
from headgate.http.server.asgi_messages import ASGIApp, Receive, Scope, Send, living
from headgate.http.server.scope_exchange import exchange_of, new_exchange
from headgate.integrations.starlette.placement import check_placement
from headgate.stores.guard.pending_settlements import CLOSE_WITHIN_US


class Closes(Protocol):
    """An object that may have opened stores, such as `RateLimits`."""

    async def warm_up(self) -> None: ...

    async def aclose(self) -> None: ...


class RateLimitHeaders:
    """Adds the rate limit fields to every response: `app.add_middleware(RateLimitHeaders)`.

    Also to responses that a route's limit cannot reach by itself: a Response that an endpoint of FastAPI returns, and
    the response to an exception. A field that the response already has stays as it is. `counts=` of routes in FastAPI
    needs this middleware, which sees the response. Stores of `rate_limits` are connected and closed with the lifespan;
    without `rate_limits`, the end of the lifespan waits at most a second for cancelled requests to settle.
    """

    def __init__(self, app: ASGIApp, rate_limits: Closes | None = None) -> None:
        self.app = app
        self._rate_limits = rate_limits
        self._has_checked = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._living(send))
            return
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if not self._has_checked:
            self._has_checked = True
            check_placement(scope)
        exchange = exchange_of(scope)
        if exchange.watcher is self:  # the application calls itself with the scope it was passed: another request
            exchange = new_exchange(scope)
        exchange.watcher = self
        await exchange.run(self.app, scope, receive, send)

    def _living(self, send: Send) -> Send:
        limits = self._rate_limits
        return living(send, _nothing, _settle) if limits is None else living(send, limits.warm_up, limits.aclose)


async def _nothing() -> None:
    """Do nothing: no store is to be connected."""


async def _settle() -> None:
    """Wait for requests to settle that the server cancelled as it stops."""
    await all_answered(within_s=CLOSE_WITHIN_US / 1_000_000)
