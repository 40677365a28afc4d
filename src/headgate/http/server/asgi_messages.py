"""Messages of ASGI: fields are added to the head of a response, a response is watched, a refusal is sent."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from headgate import core
from headgate.http.server.caching import NO_STORE, has_no_cache_field
from headgate.http.server.options import Refusal, Response, without_content
from headgate.policy.headers import Headers

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]
"""Header fields, with names in lower case."""

_TRY_AGAIN_LATER = 1013
"""The status with which a websocket is closed that was refused (IANA's registry of close codes)."""

HEADS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
"""The messages that have headers."""

_STARTS = HEADS - {"websocket.accept"}
"""The messages that begin a response."""

LASTS = frozenset({
    "http.response.body", "http.response.pathsend", "http.response.zerocopysend",
    "websocket.close", "websocket.http.response.body",
})  # fmt: skip
"""The messages that may be the last of a response: all but those that say `more_body`."""

_FILES = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""The messages that name a file, which the server sends."""


def telling(send: Send, fields: list[tuple[str, str]]) -> Send:
    """Add fields to the head of the response; one that the application wrote itself stays as it is."""
    return adding(send, encode_fields(fields))


def encode_fields(fields: list[tuple[str, str]]) -> Fields:
    """Fields as ASGI has them."""
    return [(_field_name(name), value.encode("latin-1")) for name, value in fields]


def python_adding(send: Send, fields: Fields) -> Send:
    """`telling` for fields as ASGI has them. An application may send one message again and again: it is not changed."""

    # No coroutine function: what it returns is awaited all the same, and one less frame is entered.
    def send_with_fields(message: Message) -> Awaitable[None]:
        if message["type"] in HEADS:
            own: list[tuple[bytes, bytes]] = list(message.get("headers") or ())
            written = {name for name, _ in own}  # in lower case, as ASGI has them
            told = [*own, *(field for field in fields if field[0] not in written)]
            return send({**message, "headers": told})
        return send(message)

    return send_with_fields


adding: Callable[[Send, Fields], Send] = python_adding if core.native is None else core.native.adding


def unstored(send: Send) -> Send:
    """Have no cache store the response of a fallback, unless it says something itself. No message is changed."""

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
    """What ends with the last part of a response, where it holds the request: an exchange."""

    holds: bool

    async def end_async(self, response: Response) -> None: ...


class Watch:
    """What an application answers, seen on its way to the client; one that fails has answered 500.

    `fields` gives what is added to the head of the response. What `exchange` holds is freed once the last part of the
    response is sent: what the application does in the background after that is not in flight. No body is sent to a
    `head` request, whatever the application says.
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

    # No coroutine function: what it returns is awaited all the same, and one less frame is entered.
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
        return adding(self._send, fields)(message) if fields else self._send(message)

    async def _send_last(self, message: Message, exchange: Ends) -> None:
        await self._send(message)
        await exchange.end_async(self.response())

    def response(self) -> Response:
        """What was seen."""
        told = Headers({name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers})
        return Response(self._status, told, 0 if self._head else self._body_bytes)

    def _sent_by_server(self, message: Message) -> int:
        """How many bytes of a file a message has the server send: so many as it says, or else as the head does."""
        kind = message["type"]
        if kind not in _FILES:
            return 0
        if message.get("count") is not None:
            return int(message["count"])
        for name, value in self._headers:
            if name == b"content-length" and value.isdigit():
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
    """Answer a request that is refused: `fallback` does, where there is one; never a websocket's."""
    if scope["type"] == "websocket":
        return refuse_websocket(scope, receive, send, refusal)
    if fallback is not None:
        return fallback(scope, receive, telling(unstored(send), without_content(refusal)))
    return send_refusal(send, refusal, "http", head=scope["method"] == "HEAD")


def encode_refusal(refusal: Refusal) -> Fields:
    """The header fields of a refusal as ASGI has them."""
    return [(_field_name(name), value.encode("latin-1")) for name, value in refusal.headers]


async def send_refusal(send: Send, refusal: Refusal, kind: str, *, head: bool) -> None:
    """Send a refusal as a response of this kind."""
    headers = encode_refusal(refusal)
    if b"content-length" not in [name for name, _ in headers]:
        headers.append((b"content-length", b"%d" % len(refusal.body)))
    await send({"type": f"{kind}.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": b"" if head else refusal.body})


async def refuse_websocket(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """With the usual answer, where the server can send one, else by closing the handshake."""
    await receive()  # the handshake, websocket.connect
    if "websocket.http.response" in scope.get("extensions", {}):
        await send_refusal(send, refusal, "websocket.http", head=False)
    else:
        await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "over the limit"})


def living(send: Send, start: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> Send:
    """The `send` of a lifespan, with what is to be done as the application starts and as it ends."""

    async def send_and_act(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            await start()
        elif message["type"].startswith("lifespan.shutdown."):
            await end()
        await send(message)

    return send_and_act
