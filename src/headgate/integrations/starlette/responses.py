"""Starlette responses with the rate limit fields, and refusals as Starlette responses."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from starlette.responses import Response as StarletteResponse
from starlette.websockets import WebSocket, WebSocketState

from headgate import core
from headgate.http.server.asgi_messages import (
    Fields,
    Receive,
    Scope,
    Send,
    Watch,
    encode_refusal,
    refuse_websocket,
    send_with_fields,
    unstored,
)
from headgate.http.server.options import Refusal
from headgate.http.server.scope_exchange import ScopeExchange


def with_fields_of(response: Any, exchange: ScopeExchange) -> Any:
    """Return a response with the fields of an exchange, which ends with it.

    The passed response is unchanged, and an endpoint may return it again.
    """
    if exchange.settles or not sends_its_fields(type(response)):
        return Wrapped(response, exchange.encoded_fields, exchange)
    return _copied(response, exchange.encoded_fields())


def with_fields(response: Any, fields: Fields) -> Any:
    """Return a response with these fields, where there is no exchange to end."""
    return _copied(response, fields) if sends_its_fields(type(response)) else Wrapped(response, lambda: fields)


def python_copied(response: Any, fields: Fields) -> Any:
    """Return a copy of a response with these fields, except those that the response has itself."""
    own: list[tuple[bytes, bytes]] = response.raw_headers
    own_names = {name.lower() for name, _ in own}
    state = {**response.__dict__, "raw_headers": [*own, *(field for field in fields if field[0] not in own_names)]}
    state.pop("_headers", None)  # Starlette's cached view of the headers
    copied = object.__new__(type(response))
    copied.__dict__ = state
    return copied


_copied: Callable[[Any, Fields], Any] = python_copied if core.native is None else core.native.copied_response


def _check_sending(kind: Any) -> bool:
    """Whether responses of a class send their `raw_headers`, and have their whole state in their `__dict__`."""
    return (
        kind.__call__ is StarletteResponse.__call__
        and kind.__new__ is object.__new__
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and not hasattr(kind, "raw_headers")
        and kind.__setattr__ is object.__setattr__
        and kind.__getattribute__ is object.__getattribute__
    )


sends_its_fields: Callable[[Any], bool] = lru_cache(1024)(_check_sending)


class Wrapped(StarletteResponse):
    """Sends a response with more header fields; the response is unchanged: an endpoint may return it again.

    It has the attributes of that response. The exchange that is passed with it ends when it is sent.
    """

    __slots__ = ("_exchange", "_fields", "_response")

    def __init__(self, response: Any, fields: Callable[[], Fields], exchange: ScopeExchange | None = None) -> None:
        self.__dict__ = getattr(response, "__dict__", {})
        self._response = response
        self._fields = fields
        self._exchange = exchange

    # Not a coroutine function: its result is awaited all the same, and one frame fewer is entered.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        exchange = self._exchange
        if exchange is not None and exchange.settles:
            return self._end(exchange, scope, receive, send)
        fields = self._fields()
        return self._response(scope, receive, send_with_fields(send, fields) if fields else send)

    async def _end(self, exchange: ScopeExchange, scope: Scope, receive: Receive, send: Send) -> None:
        watch = Watch(send, self._fields, exchange, head=scope.get("method") == "HEAD")
        try:
            await self._response(scope, receive, watch.send)
        finally:
            await exchange.end_async(watch.response())


class FallbackResponse(Wrapped):
    """The response of a fallback: no cache may store it, unless its headers say otherwise."""

    __slots__ = ()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        return super().__call__(scope, receive, unstored(send))


class RefusalResponse(StarletteResponse):
    """A refusal, with the same bytes as the middleware sends."""

    def __init__(self, refusal: Refusal, *, head: bool) -> None:
        super().__init__(refusal.body, refusal.status)
        headers = encode_refusal(refusal)
        names = {name for name, _ in headers}
        self.raw_headers = [*headers, *[field for field in self.raw_headers if field[0] not in names]]
        if head:
            self.body = b""


async def refuse_or_close(websocket: WebSocket, refusal: Refusal) -> None:
    """Refuse a handshake; if it was already received or accepted, close the websocket, if that is still open."""
    client = websocket.client_state
    if client is WebSocketState.CONNECTING:
        await refuse_websocket(websocket.scope, websocket.receive, websocket.send, refusal)
    elif WebSocketState.DISCONNECTED not in (client, websocket.application_state):
        await websocket.close(1013, "over the limit")
