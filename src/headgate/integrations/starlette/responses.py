"""Responses of Starlette that say what remains, or that a limit refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response as StarletteResponse

from headgate.http.server.asgi_messages import Fields, Receive, Scope, Send, Watch, adding, encode_refusal
from headgate.http.server.options import Refusal
from headgate.http.server.scope_exchange import ScopeExchange


class Wrapped(StarletteResponse):
    """A response with more header fields, itself unchanged: an endpoint may return the same one again.

    It has the attributes of the response it stands for. The exchange that is given with it ends when it is sent.
    """

    __slots__ = ("_exchange", "_fields", "_response")

    def __init__(self, response: Any, fields: Callable[[], Fields], exchange: ScopeExchange | None = None) -> None:
        self.__dict__ = getattr(response, "__dict__", {})
        self._response = response
        self._fields = fields
        self._exchange = exchange

    # No coroutine function: what it returns is awaited all the same, and one less frame is entered.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        exchange = self._exchange
        if exchange is not None and exchange.settles:
            return self._end(exchange, scope, receive, send)
        fields = self._fields()
        return self._response(scope, receive, adding(send, fields) if fields else send)

    async def _end(self, exchange: ScopeExchange, scope: Scope, receive: Receive, send: Send) -> None:
        watch = Watch(send, self._fields, exchange)
        try:
            await self._response(scope, receive, watch.send)
        finally:
            await exchange.end_async(watch.response())


class RefusalResponse(StarletteResponse):
    """A refusal as the middleware sends it, byte by byte."""

    def __init__(self, refusal: Refusal, *, head: bool) -> None:
        super().__init__(refusal.body, refusal.status)
        headers = encode_refusal(refusal)
        named = {name for name, _ in headers}
        self.raw_headers = [*headers, *[field for field in self.raw_headers if field[0] not in named]]
        if head:
            self.body = b""
