"""Responses of Starlette that say what remains, or that a limit refused."""

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
    adding,
    encode_refusal,
    refuse_websocket,
    unstored,
)
from headgate.http.server.options import Refusal
from headgate.http.server.scope_exchange import ScopeExchange


def telling(response: Any, exchange: ScopeExchange) -> Any:
    """A response that says what remains, and ends the exchange.

    The given one is unchanged, and may be returned again.
    """
    if exchange.settles or not sends_its_fields(type(response)):
        return Wrapped(response, exchange.encoded_fields, exchange)
    return _copied(response, exchange.encoded_fields())


def telling_fields(response: Any, fields: Fields) -> Any:
    """`telling` where these fields are known, and there is no exchange to end."""
    return _copied(response, fields) if sends_its_fields(type(response)) else Wrapped(response, lambda: fields)


def python_copied(response: Any, fields: Fields) -> Any:
    """A response that is another one with more fields, but for those that it has itself."""
    own: list[tuple[bytes, bytes]] = response.raw_headers
    written = {name for name, _ in own}
    state = {**response.__dict__, "raw_headers": [*own, *(field for field in fields if field[0] not in written)]}
    state.pop("_headers", None)  # what Starlette keeps of them
    copied = object.__new__(type(response))
    copied.__dict__ = state
    return copied


_copied: Callable[[Any, Fields], Any] = python_copied if core.native is None else core.native.copied_response


def _check_sending(kind: Any) -> bool:
    """Whether responses of a class send their `raw_headers`, and all that they are is in their `__dict__`."""
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
        watch = Watch(send, self._fields, exchange, head=scope.get("method") == "HEAD")
        try:
            await self._response(scope, receive, watch.send)
        finally:
            await exchange.end_async(watch.response())


class FallbackResponse(Wrapped):
    """What a fallback answers, which no cache stores unless it says something itself."""

    __slots__ = ()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        return super().__call__(scope, receive, unstored(send))


class RefusalResponse(StarletteResponse):
    """A refusal as the middleware sends it, byte by byte."""

    def __init__(self, refusal: Refusal, *, head: bool) -> None:
        super().__init__(refusal.body, refusal.status)
        headers = encode_refusal(refusal)
        named = {name for name, _ in headers}
        self.raw_headers = [*headers, *[field for field in self.raw_headers if field[0] not in named]]
        if head:
            self.body = b""


async def refuse_or_close(websocket: WebSocket, refusal: Refusal) -> None:
    """Refuse a handshake; where that was received before, or accepted, close the websocket, if it is still open."""
    client = websocket.client_state
    if client is WebSocketState.CONNECTING:
        await refuse_websocket(websocket.scope, websocket.receive, websocket.send, refusal)
    elif WebSocketState.DISCONNECTED not in (client, websocket.application_state):
        await websocket.close(1013, "over the limit")
