"""Rate limits before an ASGI application: FastAPI, Starlette, Litestar, Quart, Django, or one of your own.

    app = RateLimitMiddleware(app, limits="100/minute")
    app.add_middleware(RateLimitMiddleware, policy="policy.yaml")

A pure class: it imports no framework, never touches a body, and passes every message on as it is, but
for the headers that tell what remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Unpack
from urllib.parse import quote

from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.http.front import AnyPolicy, Front, Options, Refusal
from headgate.policy.gate import AsyncGate
from headgate.policy.request import Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_TRY_AGAIN_LATER = 1013
"""The status with which a websocket is closed that was refused (IANA's registry of close codes)."""

_IN_A_PATH = "/%:@!$&'()*+,;=~"


class RateLimitMiddleware:
    """Judges each request before `app` sees it; one that is refused never gets there.

    Give a `policy` (a file's path, its values, a Policy or an AsyncGate) or `limits`, and what else
    `headgate.http.front.Options` has. Requests are counted by their path as it was sent, with the
    part that a mount took off. `websockets` judges handshakes, too. A store that was opened here is
    closed when the server ends the application's lifespan. Raises ConfigError or PolicyError.
    """

    def __init__(
        self,
        app: ASGIApp,
        policy: AnyPolicy | AsyncGate | None = None,
        *,
        websockets: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.app = app
        self._front = Front(policy, options, asynchronous=True)
        self._websockets = websockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http" or (kind == "websocket" and self._websockets):
            await self._judge(scope, receive, send)
        elif kind == "lifespan":
            await self.app(scope, receive, self._closing(send))
        else:
            await self.app(scope, receive, send)

    async def aclose(self) -> None:
        """Close the store, if it was opened here; a server that has a lifespan does it."""
        for each in self._front.close():
            await each.close()

    async def _judge(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = AsgiRequest(scope)
        fields: list[tuple[str, str]]
        try:
            asked = self._front.ask(request)
            decision = asked if isinstance(asked, Decision) or asked is None else await asked
        except StoreError as error:
            refusal, fields = self._front.without_store(error), [("X-RateLimit-Degraded", "open")]
        else:
            if decision is None:
                await self.app(scope, receive, send)
                return
            if decision.allowed:
                refusal, fields = None, self._front.fields(decision)
                if decision.degraded:
                    fields = [*fields, ("X-RateLimit-Degraded", decision.degraded)]
                if decision.delay_us:
                    await asyncio.sleep(self._front.clock.let_pass(decision.delay_us))
            else:
                refusal, fields = self._front.refuse(request, decision), []
        if refusal is None:
            await self.app(scope, receive, _telling(send, fields) if fields else send)
        elif scope["type"] == "http":
            await _answer(send, refusal, "http", head=scope["method"] == "HEAD")
        else:
            await _refuse_websocket(scope, receive, send, refusal)

    def _closing(self, send: Send) -> Send:
        async def send_and_close(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                await self.aclose()
            await send(message)

        return send_and_close


class AsgiRequest(Request):
    """The request of a scope; its headers are read when somebody asks for them."""

    __slots__ = ("_read", "_scope")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._read: Request | None = None
        self._cookies = None
        self._query = None
        self.method = scope.get("method", "GET")
        sent = scope.get("raw_path")
        path = sent.decode("latin-1") if sent else quote(scope["path"], safe=_IN_A_PATH)
        asked = scope.get("query_string")
        self.path = f"{path}?{asked.decode('latin-1')}" if asked else path
        client = scope.get("client")
        self.client_ip = client[0] if client else ""
        self.endpoint = ""

    @property
    def scope(self) -> Scope:
        """The scope as the server gave it."""
        return self._scope

    @property
    def headers(self) -> Any:  # type: ignore[override]
        """By name in lower case."""
        return self._whole().headers

    @property
    def host(self) -> str:  # type: ignore[override]
        """What the request names as its host."""
        return self._whole().host

    def _whole(self) -> Request:
        if self._read is None:
            pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._scope["headers"]]
            self._read = Request(headers=pairs)
        return self._read


def _telling(send: Send, fields: list[tuple[str, str]]) -> Send:
    """Add fields to the head of the response; one that the application wrote itself stays as it is."""
    added = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields]

    async def send_with_fields(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
            own = [*message.get("headers", ())]
            names = [name.lower() for name, _ in own]
            own += [field for field in added if field[0] not in names]
            message = {**message, "headers": own}
        await send(message)

    return send_with_fields


async def _answer(send: Send, refusal: Refusal, kind: str, *, head: bool) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
    if not any(name == b"content-length" for name, _ in headers):
        headers.append((b"content-length", b"%d" % len(refusal.body)))
    await send({"type": f"{kind}.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": b"" if head else refusal.body})


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """With the usual answer, where the server can send one, else by closing the handshake."""
    await receive()  # the handshake, websocket.connect
    if "websocket.http.response" in scope.get("extensions", {}):
        await _answer(send, refusal, "websocket.http", head=False)
    else:
        await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": "over the limit"})
