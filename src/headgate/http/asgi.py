"""Rate limits in front of an ASGI application: FastAPI, Starlette, Litestar, Quart, Django, or one of your own.

    app = RateLimitMiddleware(app, limits="100/minute")
    app.add_middleware(RateLimitMiddleware, policy="policy.yaml")

The middleware imports no framework, never reads a body, and passes every message on unchanged, except for the rate
limit header fields.
"""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from headgate.decision import Decision
from headgate.errors import StoreError, check_flag
from headgate.http.server.asgi_messages import (
    ASGIApp,
    Fields,
    Message,
    Receive,
    Scope,
    Send,
    living,
    python_send_with_fields,
    refuse,
    send_with_fields,
)
from headgate.http.server.asgi_request import AsgiRequest
from headgate.http.server.callables import AsgiCallable, mark_coroutine_function
from headgate.http.server.client_watch import watching
from headgate.http.server.cors import warn_outside_of_cors
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.exchange import Judgement
from headgate.http.server.inner_applications import is_before, root_path_of
from headgate.http.server.nested_enforcers import JUDGED_PLACES, nested, outer_exchanges, store_exchange
from headgate.http.server.options import Options, check_fallback
from headgate.http.server.scope_exchange import ScopeExchange
from headgate.policy.gate import AnyPolicy, AsyncGate

__all__ = [
    "ASGIApp",
    "AsgiRequest",
    "Fields",
    "Message",
    "RateLimitMiddleware",
    "Receive",
    "Scope",
    "Send",
    "python_send_with_fields",
    "send_with_fields",
]


class RateLimitMiddleware(AsgiCallable):
    """Decides each request before `app` sees it; a refused one never reaches it.

    Pass a `policy` (a file's path, its values, a Policy or an AsyncGate) or `limits`, and any other of
    `headgate.http.server.options.Options`. Rules see the path as it was sent, including the prefix of a mount.
    With `websockets`, handshakes are limited, too. `fallback` is an application that answers refused requests, perhaps
    from a cache. The store is connected when the server starts the application's lifespan, and closed when it ends it,
    if it was opened here. Raises ConfigError or PolicyError.
    """

    request_kind: ClassVar[type[AsgiRequest]] = AsgiRequest
    """The class of the request that limits see; an integration's wraps its framework's request."""

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
        check_flag("websockets", websockets)
        self._is_outer = policy is None and is_before(RateLimitMiddleware, app)
        self._enforcer = Enforcer(
            policy,
            options,
            asynchronous=True,
            keeps_charges=self._is_outer,
            kind=self.request_kind,
            websockets=websockets,
            owner_name=type(self).__name__,
        )
        self._nested = nested(self._enforcer, options, asynchronous=True)
        self._root_path = "" if policy is None else root_path_of(app)
        knows_all = self._nested is None and not self._is_outer and not self._root_path
        self._direct = self._enforcer if knows_all else None
        warn_outside_of_cors(self, app)
        self._websockets = websockets
        self._fallback = check_fallback(fallback)
        mark_coroutine_function(self, self._judge)

    async def _judge(self, scope: Scope, receive: Receive, send: Send) -> None:
        enforcer = self._enforcer
        decided: Any = None
        if self._root_path:
            scope["root_path"] = self._root_path  # as the application will set it; its routes are found by it
        if self._nested is not None:
            if JUDGED_PLACES not in scope:
                scope[JUDGED_PLACES] = self._nested.first_places
            elif scope["type"] != "lifespan":
                enforcer = self._nested.enforcer(scope)
        decide_natively = enforcer.decide_natively
        if decide_natively is not None and not self._is_outer:
            try:
                decided = decide_natively(scope, send)
            except StoreError as error:
                decided = error
            if callable(decided):
                await self.app(scope, receive, decided)  # pyright: ignore[reportArgumentType]  # a `send`
                return
        await self._judge_rest(scope, receive, send, enforcer, decided)

    async def _judge_rest(self, scope: Scope, receive: Receive, send: Send, enforcer: Enforcer, decided: Any) -> None:
        kind = scope["type"]
        if kind != "http" and not (kind == "websocket" and self._websockets):
            await self.app(scope, receive, self._living(send) if kind == "lifespan" else send)
            return
        if enforcer.waits:
            receive = watching(scope, receive)
        request: AsgiRequest | None = None
        if not enforcer.settles and not self._is_outer:
            if decided is None:
                request = self.request_kind(scope)
                try:
                    decided = enforcer.decide(request)
                except StoreError as error:
                    decided = error
                if decided is None:
                    await self.app(scope, receive, send)
                    return
            # Most requests pass at once, and nothing has to be settled: they need no exchange.
            fields = enforcer.passing_fields(decided) if type(decided) is Decision and decided.allowed else None
            if fields is not None:
                await self.app(scope, receive, send_with_fields(send, fields) if fields else send)
                return
        exchange = ScopeExchange()
        if self._is_outer:
            judged = exchange.judge_route(enforcer, scope, self.request_kind, "", self)
        else:
            judged = exchange.judge_scope(enforcer, self.request_kind, (scope,), decided, request)
        judgement = judged if isinstance(judged, Judgement) else await judged
        if judgement.refusal is not None:
            for outer in outer_exchanges(scope, self):
                await outer.take_back_async()
            await refuse(judgement.refusal, scope, receive, send, self._fallback)
            return
        if self._is_outer:
            store_exchange(scope, exchange, self)
        if enforcer.settles:
            await exchange.run(self.app, scope, receive, send)
        else:
            fields = exchange.encoded_fields() if judgement.fields is None else judgement.fields
            await self.app(scope, receive, send_with_fields(send, fields) if fields else send)

    async def aclose(self) -> None:
        """Close the store, if it was opened here; a server that has a lifespan does it."""
        await self._enforcer.aclose()

    async def warm_up(self) -> None:
        """Have the store connect before the first request; a server that has a lifespan does it."""
        await self._enforcer.warm_up_async()

    def _living(self, send: Send) -> Send:
        return living(send, self.warm_up, self.aclose)
