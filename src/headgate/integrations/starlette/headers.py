"""Says on every response what limits of routes left, and ends the exchange of its request."""

from __future__ import annotations

from typing import Protocol

from headgate.drive import all_answered
from headgate.http.server.asgi_messages import ASGIApp, Receive, Scope, Send, living
from headgate.http.server.scope_exchange import begun_anew, exchange_of
from headgate.integrations.starlette.placement import look
from headgate.stores.guard.kept import CLOSE_WITHIN_US


class Closes(Protocol):
    """What may have opened stores."""

    async def warm_up(self) -> None: ...

    async def aclose(self) -> None: ...


class RateLimitHeaders:
    """Says on every response what remains: `app.add_middleware(RateLimitHeaders)`.

    Also on those that a route's limit cannot reach by itself: a Response that an endpoint of FastAPI returns,
    and the response to an exception. A field that is there already stays. It sees the response, which
    `counts=` of routes in FastAPI needs. Stores of `rate_limits` are connected and closed with the lifespan; without
    them its end waits a second at most for what requests that were cancelled have to settle.
    """

    def __init__(self, app: ASGIApp, rate_limits: Closes | None = None) -> None:
        self.app = app
        self._rate_limits = rate_limits
        self._has_looked = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._living(send))
            return
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if not self._has_looked:
            self._has_looked = True
            look(scope)
        exchange = exchange_of(scope)
        if exchange.watcher is self:  # the application asks itself, with a scope that it was given: another request
            exchange = begun_anew(scope)
        exchange.watcher = self
        await exchange.run(self.app, scope, receive, send)

    def _living(self, send: Send) -> Send:
        limits = self._rate_limits
        return living(send, _nothing, _settled) if limits is None else living(send, limits.warm_up, limits.aclose)


async def _nothing() -> None:
    """Connect no store."""


async def _settled() -> None:
    """Wait for what requests have to settle that a server cancelled as it stops."""
    await all_answered(within_s=CLOSE_WITHIN_US / 1_000_000)
