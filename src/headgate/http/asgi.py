"""Rate limits before an ASGI application: FastAPI, Starlette, Litestar, Quart, Django, or one of your own.

    app = RateLimitMiddleware(app, limits="100/minute")
    app.add_middleware(RateLimitMiddleware, policy="policy.yaml")

A pure class: it imports no framework, never touches a body, and passes every message on as it is, but
for the headers that tell what remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any, ClassVar, Unpack
from urllib.parse import quote

from headgate import core
from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.http.server.cors import warn_outside_of_cors
from headgate.http.server.enforcer import Answer, Front
from headgate.http.server.nested import JUDGED, nested
from headgate.http.server.options import AnyPolicy, Options, Refusal, Response
from headgate.http.server.request_limits import Asked
from headgate.policy.gate import AsyncGate
from headgate.policy.request import Request, header_name, joined, one_value, target_text

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

_IN_A_PATH = "/:@!$&'()*+,;=~"


class RateLimitMiddleware:
    """Judges each request before `app` sees it; one that is refused never gets there.

    Give a `policy` (a file's path, its values, a Policy or an AsyncGate) or `limits`, and what else
    `headgate.http.server.options.Options` has. Requests are counted by their path as it was sent, with the
    part that a mount took off. `websockets` judges handshakes, too. `fallback` is an application that
    answers what is refused, from a cache perhaps. The store is connected when the server starts the
    application's lifespan, and closed when it ends it, if it was opened here. Raises ConfigError or PolicyError.
    """

    request_kind: ClassVar[type[AsgiRequest]]
    """Makes the request that limits see; an integration has its framework's in it."""

    def __init__(
        self,
        app: ASGIApp,
        policy: AnyPolicy | AsyncGate | None = None,
        *,
        websockets: bool = False,
        fallback: ASGIApp | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.app = app
        self._front = Front(policy, options, asynchronous=True)
        self._nested = nested(self._front, options, asynchronous=True)
        warn_outside_of_cors(self, app)
        self._ask_scope = self._front.ask_scope
        self._websockets = websockets
        self._fallback = fallback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        judged = failed = None
        front, ask_scope = self._front, self._ask_scope
        if self._nested is not None:
            if JUDGED not in scope:
                scope[JUDGED] = self._nested.first
            elif scope["type"] != "lifespan":
                front = self._nested.front(scope)
                ask_scope = front.ask_scope
        if ask_scope is not None:
            try:
                judged = ask_scope(scope, send)
            except StoreError as error:
                failed = error
            if judged is not None and type(judged) is not Decision:
                await self.app(scope, receive, judged)
                return
        kind = scope["type"]
        if kind != "http" and not (kind == "websocket" and self._websockets):
            await self.app(scope, receive, self._living(send) if kind == "lifespan" else send)
            return
        request: AsgiRequest | None = None
        decision = judged
        try:
            if failed is not None:
                raise failed
            if decision is None:
                asked: Asked
                if front.ask_peer is not None and kind == "http" and scope["method"] != "OPTIONS":
                    client = scope.get("client")
                    asked = front.ask_peer(client[0] if client else "")
                else:
                    request = self.request_kind(scope)
                    asked = front.ask(request)
                decision = asked if asked is None or isinstance(asked, Decision) else await asked
        except StoreError as error:
            answer = front.without_store(error)
        else:
            if decision is None:
                await self.app(scope, receive, send)
                return
            told = None if front.settles else front.passing(decision)
            if told is not None:
                await self.app(scope, receive, adding(send, told) if told else send)
                return
            request = request or self.request_kind(scope)
            answer = front.answer(request, decision)
        refusal, fields, delay_us, _ = answer
        if delay_us:
            await asyncio.sleep(front.clock.let_pass(delay_us))
        if refusal is None:
            send = telling(send, fields) if fields else send
            if front.settles and request is not None:
                await settling(front, request, answer, self.app, receive, send)
            else:
                await self.app(scope, receive, send)
        elif self._fallback is not None and kind == "http":
            told = [field for field in refusal.headers if not field[0].lower().startswith("content-")]
            await self._fallback(scope, receive, telling(send, told))
        elif kind == "http":
            await send_refusal(send, refusal, "http", head=scope["method"] == "HEAD")
        else:
            await refuse_websocket(scope, receive, send, refusal)

    async def aclose(self) -> None:
        """Close the store, if it was opened here; a server that has a lifespan does it."""
        await self._front.aclose()

    async def warm_up(self) -> None:
        """Have the store connect before the first request; a server that has a lifespan does it."""
        await self._front.warm_up_async()

    def _living(self, send: Send) -> Send:
        return living(send, self.warm_up, self.aclose)


def living(send: Send, start: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> Send:
    """What an application's lifespan sends on, with what is to be done as it starts and as it ends."""

    async def send_and_act(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            await start()
        elif message["type"].startswith("lifespan.shutdown."):
            await end()
        await send(message)

    return send_and_act


class AsgiRequest(Request):
    """The request of a scope; its parts are read when they are first asked for."""

    __slots__ = ("_headers", "_path", "scope")

    scope: Scope
    """As the server gave it."""

    def __init__(self, scope: Scope, endpoint: str = "") -> None:
        self.scope = scope
        self.endpoint = endpoint  # a middleware stands before the routes, and knows none
        self._path: str | None = None
        self._headers: ScopeHeaders | None = None
        self._cookies = self._query = None

    @property
    def method(self) -> str:  # type: ignore[override]
        """`GET`, and so on."""
        method: str = self.scope.get("method", "GET")
        return method

    @property
    def path(self) -> str:  # type: ignore[override]
        """As it was sent, with its query."""
        whole = self._path
        if whole is None:
            sent, asked = self.scope.get("raw_path"), self.scope.get("query_string")
            path = target_text(sent) if sent else quote(self.scope["path"], safe=_IN_A_PATH)
            whole = self._path = f"{path}?{target_text(asked)}" if asked else path
        return whole

    @property
    def client_ip(self) -> str:  # type: ignore[override]
        """The address of the peer."""
        client = self.scope.get("client")
        return client[0] if client else ""

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """By name in lower case; asked for in any."""
        headers = self._headers
        if headers is None:
            headers = self._headers = ScopeHeaders(self.scope["headers"])
        return headers

    def header(self, name: str) -> str:
        """The value of a header; see `Request`."""
        return one_value(self.headers, name)

    @property
    def host(self) -> str:  # type: ignore[override]
        """What the request names as its host."""
        return self.headers.get("host", "")


RateLimitMiddleware.request_kind = AsgiRequest


class ScopeHeaders(Mapping[str, str]):
    """The headers of a scope, in lower case as ASGI has them, asked for in any; one given several times is one list.

    Looked for where they are: a key by one header reads no other.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs if isinstance(pairs, list | tuple) else list(pairs)

    def __getitem__(self, name: str) -> str:
        value: str | None = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a header, `default` where it is not there."""
        wanted = name.lower().replace("_", "-").encode("latin-1", "replace")
        found: bytes | None = None
        several: list[bytes] | None = None
        length = len(wanted)
        for own, value in self._pairs:
            if len(own) == length and (own == wanted or own.replace(b"_", b"-") == wanted):
                if found is None:
                    found = value
                else:
                    several = [found] if several is None else several
                    several.append(value)
        if several is not None:
            return joined([value.decode("latin-1") for value in several])
        return default if found is None else found.decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(header_name(name.decode("latin-1")) for name, _ in self._pairs))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def telling(send: Send, fields: list[tuple[str, str]]) -> Send:
    """Add fields to the head of the response; one that the application wrote itself stays as it is."""
    return adding(send, encode_fields(fields))


def encode_fields(fields: list[tuple[str, str]]) -> Fields:
    """Fields as ASGI has them."""
    return [(_field_name(name), value.encode("latin-1")) for name, value in fields]


def python_adding(send: Send, fields: Fields) -> Send:
    """`telling` for fields as ASGI has them."""

    # No coroutine function: what it returns is awaited all the same, and one less frame is entered.
    def send_with_fields(message: Message) -> Awaitable[None]:
        if message["type"] in HEADS:
            own: list[tuple[bytes, bytes]] = list(message.get("headers") or ())
            written = {name for name, _ in own}  # in lower case, as ASGI has them
            message["headers"] = [*own, *(field for field in fields if field[0] not in written)]
        return send(message)

    return send_with_fields


adding: Callable[[Send, Fields], Send] = python_adding if core.native is None else core.native.FieldSender


@cache
def _field_name(name: str) -> bytes:
    return name.lower().encode()


class Watch:
    """What an application answers, seen on its way to the client; one that fails has answered 500."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 500
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self._body_bytes = 0

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self._status, self._headers = message["status"], message.get("headers") or ()
        elif message["type"] == "websocket.accept":
            self._status, self._headers = 101, message.get("headers") or ()
        else:
            self._body_bytes += len(message.get("body") or b"")
        await self._send(message)

    def response(self) -> Response:
        """What was seen."""
        told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers}
        return Response(self._status, told, self._body_bytes)


async def settling(
    front: Front, request: AsgiRequest, answer: Answer, app: ASGIApp, receive: Receive, send: Send
) -> None:
    """Run the application, and settle what was charged by its response."""
    watch = Watch(send)
    try:
        await app(request.scope, receive, watch.send)
    finally:
        # The charge is settled even where the client is gone and the task is cancelled.
        await asyncio.shield(front.settle_async(request, answer, watch.response()))


async def send_refusal(send: Send, refusal: Refusal, kind: str, *, head: bool) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
    if not any(name == b"content-length" for name, _ in headers):
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
