"""Websockets whose endpoint is limited, where no middleware sees their messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.endpoints import WebSocketEndpoint
from starlette.websockets import WebSocket, WebSocketState

from headgate.drive import begun
from headgate.http.server.asgi_messages import Watch
from headgate.http.server.scope_exchange import ScopeExchange


async def connected(
    exchange: ScopeExchange,
    websocket: WebSocket,
    call: Callable[..., Awaitable[Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call the endpoint of a websocket that passed; the exchange ends with the websocket, however that ends.

    `on_connect` of a WebSocketEndpoint returns before the websocket ends: then the exchange ends when the endpoint
    closes the websocket, or with the task in which the server runs the application.
    """
    if not exchange.settles:
        return await call(*args, **kwargs)
    exchange.watched = True
    watch = Watch(websocket._send, exchange=exchange)
    websocket._send = watch.send
    task = asyncio.current_task()
    if task is not None and _is_connecting(websocket, args):
        task.add_done_callback(lambda _: begun(exchange.end_async(watch.response())))
        return await call(*args, **kwargs)
    try:
        return await call(*args, **kwargs)
    finally:
        await exchange.end_async(watch.response())


def _is_connecting(websocket: WebSocket, args: Sequence[Any]) -> bool:
    """Whether the called method is `on_connect` of a WebSocketEndpoint."""
    owner = args[0] if args else None
    return isinstance(owner, WebSocketEndpoint) and websocket.client_state is WebSocketState.CONNECTING
