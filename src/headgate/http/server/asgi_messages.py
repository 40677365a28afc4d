"""ASGI messages: adds fields to the head of a response, watches a response, and sends a refusal."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from headgate import core
from headgate.http.server.caching import NO_STORE, has_no_cache_field
from headgate.http.server.options import Refusal, Response, length_of, without_content
from headgate.policy.headers import Headers

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]
"""Header fields, with names in lower case; an application may write its own in any case."""

_TRY_AGAIN_LATER = 1013
"""The code with which a refused websocket is closed (IANA's registry of close codes)."""

HEADS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
"""The messages that have headers."""

_STARTS = HEADS - {"websocket.accept"}
"""The messages that begin a response."""

LASTS = frozenset({
    "http.response.body", "http.response.pathsend", "http.response.zerocopysend",
    "websocket.close", "websocket.http.response.body",
})  # fmt: skip
"""The messages that may be the last of a response: all but those with `more_body`."""

_FILES = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""The messages that name a file for the server to send."""


def add_fields(send: Send, fields: list[tuple[str, str]]) -> Send:
    """Return a `send` that adds fields to the head of the response; a field that the application wrote itself stays."""
    return send_with_fields(send, encode_fields(fields))


def encode_fields(fields: list[tuple[str, str]]) -> Fields:
    """Return fields as ASGI represents them."""
    return [(_field_name(name), value.encode("latin-1")) for name, value in fields]


def python_send_with_fields(send: Send, fields: Fields) -> Send:
    """`add_fields` for fields as ASGI represents them. The message is unchanged: an application may send it again."""

    # Not a coroutine function: its result is awaited all the same, and one frame fewer is entered.
    def send_message(message: Message) -> Awaitable[None]:
        if message["type"] in HEADS:
            own: list[tuple[bytes, bytes]] = list(message.get("headers") or ())
            written = {name.lower() for name, _ in own}  # Django's handler keeps the case that its application wrote
            headers = [*own, *(field for field in fields if field[0] not in written)]
            return send({**message, "headers": headers})
        return send(message)

    return send_message


send_with_fields: Callable[[Send, Fields], Send] = (
    python_send_with_fields if core.native is None else core.native.send_with_fields
)


def unstored(send: Send) -> Send:
    """Return a `send` that forbids caches to store a fallback's response, unless its headers say otherwise.

    The messages are unchanged.
    """

    def send_unstored(message: Message) -> Awaitable[None]:
        if message["type"] in _STARTS:
            own: list[tuple[bytes, bytes]] = list(message.get("headers") or ())
            if has_no_cache_field(name.decode("latin-1") for name, _ in own):
                return send({**message, "headers": own + encode_fields([NO_STORE])})
        return send(message)

    return send_unstored


@lru_cache(1024)
def _field_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


def _nothing() -> Fields:
    return []


class Ends(Protocol):
    """An exchange, which ends with the last part of a response if it holds the request."""

    holds: bool

    async def end_async(self, response: Response) -> None: ...


class Watch:
    """Watches an application's response on its way to the client; an application that fails has answered 500.

    `fields` returns the fields to add to the head of the response. `exchange` frees its holds once the last part of
    the response is sent: work that the application does in the background after that is not in flight. The response to
    a `head` request has no body, whatever the application sends.
    """

    __slots__ = ("_body_bytes", "_exchange", "_fields", "_head", "_headers", "_send", "_status")

    def __init__(
        self,
        send: Send,
        fields: Callable[[], Fields] = _nothing,
        exchange: Ends | None = None,
        *,
        head: bool = False,
    ) -> None:
        self._send = send
        self._head = head
        self._fields = fields
        self._exchange = exchange
        self._status = 500
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self._body_bytes = 0

    # Not a coroutine function: its result is awaited all the same, and one frame fewer is entered.
    def send(self, message: Message) -> Awaitable[None]:
        """Pass a message on."""
        kind = message["type"]
        if kind not in HEADS:
            body = message.get("body")
            self._body_bytes += len(body) if body else self._sent_by_server(message)
            exchange = self._exchange
            if exchange is not None and exchange.holds and kind in LASTS and not message.get("more_body"):
                return self._send_last(message, exchange)
            return self._send(message)
        self._status = 101 if kind == "websocket.accept" else message["status"]
        self._headers = message.get("headers") or ()
        fields = self._fields()
        return send_with_fields(self._send, fields)(message) if fields else self._send(message)

    async def _send_last(self, message: Message, exchange: Ends) -> None:
        await self._send(message)
        await exchange.end_async(self.response())

    def response(self) -> Response:
        """Return the response as it was seen so far."""
        headers = Headers({name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers})
        return Response(self._status, headers, 0 if self._head else self._body_bytes)

    def _sent_by_server(self, message: Message) -> int:
        """Return how many bytes of a file the server sends for a message: its count, or what the head or file says."""
        kind = message["type"]
        if kind not in _FILES:
            return 0
        if message.get("count") is not None:
            return int(message["count"])
        for name, value in self._headers:
            if name.lower() == b"content-length" and value.isdigit():
                return max(0, int(value) - self._body_bytes)
        with suppress(OSError, KeyError):
            if kind == "http.response.pathsend":
                return Path(message["path"]).stat().st_size
            file = message["file"]
            size = os.fstat(file if isinstance(file, int) else file.fileno()).st_size
            return max(0, size - (message.get("offset") or 0))
        return 0


def refuse(
    refusal: Refusal, scope: Scope, receive: Receive, send: Send, fallback: ASGIApp | None = None
) -> Awaitable[None]:
    """Answer a refused request, by `fallback` if there is one; a fallback never answers a websocket."""
    if scope["type"] == "websocket":
        return refuse_websocket(scope, receive, send, refusal)
    if fallback is not None:
        return fallback(scope, receive, add_fields(unstored(send), without_content(refusal)))
    return send_refusal(send, refusal, "http", head=scope["method"] == "HEAD")


def encode_refusal(refusal: Refusal) -> Fields:
    """Return the header fields of a refusal as ASGI represents them."""
    return [(_field_name(name), value.encode("latin-1")) for name, value in refusal.headers]


async def send_refusal(send: Send, refusal: Refusal, kind: str, *, head: bool) -> None:
    """Send a refusal as a response of this kind."""
    headers = [*encode_refusal(refusal), *encode_fields(length_of(refusal))]
    await send({"type": f"{kind}.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": b"" if head else refusal.body})


async def refuse_websocket(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """Refuse a websocket: with the usual response where the server can send one, else by closing the handshake."""
    await receive()  # the handshake, websocket.connect
    if "websocket.http.response" in scope.get("extensions", {}):
        await send_refusal(send, refusal, "websocket.http", head=False)
    else:
        await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "over the limit"})


def living(send: Send, start: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> Send:
    """Return the `send` of a lifespan that calls `start` when the application has started, and `end` when it ends."""

    async def send_and_act(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            await start()
        elif message["type"].startswith("lifespan.shutdown."):
            await end()
        await send(message)

    return send_and_act
