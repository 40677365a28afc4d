"""The exchange of an ASGI request: judged by its scope, told and ended with the messages of its response.

Limits of routes share one, which is kept in the scope: the outermost that sees the response tells and ends it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from headgate import core
from headgate.decision import Decision
from headgate.errors import StoreError
from headgate.http.server.asgi_messages import ASGIApp, Fields, Receive, Scope, Send, Watch, encode_fields
from headgate.http.server.asgi_request import AsgiRequest
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.exchange import Exchange, Judgement
from headgate.http.server.routes import RoutePlace
from headgate.http.server.web_gates import NOWHERE

_KEY = "headgate"

RoutePassed: Any = None if core.native is None else core.native.RoutePassed
"""The class of what stands for the exchange of a request that one limit let pass natively, until more is to be done.

It has the `fields` that say what remains, the `decision`, and the `exchange` that has taken its place, None so far."""

NativeOutcome = tuple[Any, tuple[Any, int] | None]
"""(the decision, an awaitable of one or the StoreError, (the key that was charged, when) or None)"""

RequestKind = Callable[..., AsgiRequest]
"""Makes Headgate's request of a scope, its route's template and, where it is at hand, the framework's request."""


class ScopeExchange(Exchange):
    """An exchange whose fields are bytes.

    It does not keep the scope, which keeps it: a circle would wait for the garbage collector. So a judgement has its
    request only where that is given to `counts` later.
    """

    watcher: object = None
    """The middleware that sees the response, where there is one."""

    endpoint: object = None
    """What answers at the route for which a limit was asked; None where none was so far."""

    def judge_route(
        self,
        enforcer: Enforcer,
        scope: Scope,
        kind: RequestKind,
        template: str,
        by: object,
        counted_as: str = "",
        own: Any = None,
        asked: NativeOutcome | None = None,
    ) -> Judgement | Coroutine[Any, Any, Judgement]:
        """Ask an enforcer of a route; what it gives is awaited where there is to wait, for a store or in a queue.

        It counts under `counted_as`, or else under the template of the route; with a number, where another place
        counts so already: see `Enforcer.apart`, also for `by`. `kind` makes Headgate's request where one is needed,
        around the framework's `own` if there is one already. `asked` is what was decided natively so far.
        """
        counted_as = counted_as or template
        if self._judged:
            counted_as = enforcer.apart(counted_as, by, self._judged)
        gate, (decided, charge) = enforcer.web_gate, asked or (None, None)
        if gate is not None and asked is None:
            asked_us = enforcer.clock.now_us()
            try:
                decided = gate.decide_route(scope, counted_as or NOWHERE)
            except StoreError as error:
                decided = error
            if type(decided) is tuple:
                decided, told, key = decided
                charge = (key, asked_us)
                if told is not None:
                    judgement = Judgement()
                    judgement.enforcer, judgement.by, judgement.counted_as = enforcer, by, counted_as
                    judgement.decision, judgement.told, judgement.charge = decided, told, charge
                    judgement.has_passed = True
                    self._judged += (judgement,)
                    return judgement
        parts = (scope, template) if own is None else (scope, template, own)
        return self.judge_scope(enforcer, kind, parts, decided, None, by, counted_as, charge)

    def judge_scope(
        self,
        enforcer: Enforcer,
        kind: RequestKind,
        parts: tuple[Any, ...],
        decided: Any = None,
        request: AsgiRequest | None = None,
        by: object = None,
        counted_as: str = "",
        charge: tuple[Any, int] | None = None,
    ) -> Judgement | Coroutine[Any, Any, Judgement]:
        """Ask an enforcer for the request that is `kind(*parts)`; what it gives is awaited where there is to wait.

        `decided` is what was given or raised natively, or what came for `request`, which was asked for already.
        """
        came: Any = decided
        if came is None and request is None:
            request = kind(*parts)
            if counted_as:
                request.counted_as = counted_as
            try:
                came = enforcer.ask(request)
            except StoreError as error:
                came = error
        told = None
        if isinstance(came, Decision):
            told = enforcer.passing(came) if came.allowed else None
        elif came is not None and not isinstance(came, StoreError):
            return self._judge_later(enforcer, kind, parts, came, request, by, counted_as, charge)
        if request is None and (told is None or enforcer.settles):
            request = kind(*parts)
            if counted_as:
                request.counted_as = counted_as
        judgement = Judgement()
        judgement.enforcer, judgement.by, judgement.counted_as, judgement.charge = enforcer, by, counted_as, charge
        judgement.told = told
        if enforcer.counts:
            judgement.request = request
        elif charge is None:
            judgement.charge = getattr(request, "charge", None)
        if told is not None and isinstance(came, Decision):
            judgement.decision, judgement.has_passed = came, True
            self.settles = self.settles or enforcer.settles
            self.holds = self.holds or enforcer.holds
            self._judged += (judgement,)
            return judgement
        if request is not None:
            delay_us = judgement.conclude(request, came)
            if judgement.refusal is not None:
                return self._take_back(judgement) if self._refuse(judgement) else judgement
            if delay_us:
                return self._delay(judgement, delay_us)
        self._pass(judgement)
        return judgement

    async def _judge_later(
        self,
        enforcer: Enforcer,
        kind: RequestKind,
        parts: tuple[Any, ...],
        coming: Awaitable[Decision | None],
        request: AsgiRequest | None,
        by: object,
        counted_as: str,
        charge: tuple[Any, int] | None,
    ) -> Judgement:
        """`judge_scope` once a decision has come."""
        came: Decision | StoreError | None
        try:
            came = await coming
        except StoreError as error:
            came = error
        judged = self.judge_scope(enforcer, kind, parts, came, request, by, counted_as, charge)
        return judged if isinstance(judged, Judgement) else await judged

    async def _take_back(self, judgement: Judgement) -> Judgement:
        """A refusal, once limits before it have taken back what they charged."""
        await self.take_back_async()
        return judgement

    async def _delay(self, judgement: Judgement, delay_us: int) -> Judgement:
        """A request that passes, once it has waited."""
        await self.wait(judgement, delay_us)
        self._pass(judgement)
        return judgement

    def encoded_fields(self) -> Fields:
        """The header fields to add to the response; nothing where a limit refused, whose answer has its own."""
        if len(self._judged) == 1:
            only = self._judged[0]
            if not only.has_passed:
                return []
            if only.told is None:
                only.told = encode_fields(only.verdict.fields)
            return only.told
        return encode_fields(self.fields_of_passed())

    def has_fields(self, headers: Fields) -> bool:
        """Whether these headers say what remains, or nothing is to be said."""
        names = {name for name, _ in headers}
        return all(name in names for name, _ in self.encoded_fields())

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an application; tell what remains and end with its response, unless a skin further out does."""
        if self.watched:
            await app(scope, receive, send)
            return
        self.watched = True
        watch = Watch(send, self.encoded_fields, self, head=scope.get("method") == "HEAD")
        try:
            await app(scope, receive, watch.send)
        finally:
            if self.settles:
                await self.end_async(watch.response())


def exchange_of(scope: Scope) -> ScopeExchange:
    """The exchange of a request, a new one if its first limit is asked now, or has let it pass natively."""
    exchange = scope.get(_KEY)
    if type(exchange) is ScopeExchange:
        return exchange
    made = ScopeExchange() if type(exchange) is not RoutePassed else _continued(exchange)
    scope[_KEY] = made
    return made


def exchange_at(scope: Scope, endpoint: object, by: object = None) -> ScopeExchange:
    """`exchange_of` at the route of an endpoint: a new one where `by` was asked already, or a limit of another route.

    Then an application asks itself, with the scope that it was given or a copy of it.
    """
    exchange = exchange_of(scope)
    is_at_another = exchange.endpoint is not None and exchange.endpoint is not endpoint
    if is_at_another or (by is not None and exchange.has_judged(by)):
        exchange = new_exchange(scope)
    exchange.endpoint = endpoint
    return exchange


def new_exchange(scope: Scope) -> ScopeExchange:
    """The exchange of another request that is asked with the scope of one before, or a copy of it."""
    made = scope[_KEY] = ScopeExchange()
    return made


def _continued(passed: Any) -> ScopeExchange:
    """The exchange of a request that its first limit let pass natively, now that more is to be done."""
    place: RoutePlace = passed.place
    judgement = Judgement()
    judgement.enforcer, judgement.by, judgement.counted_as = place.enforcer, place.by, place.counted_as
    judgement.decision, judgement.told, judgement.charge = passed.decision, passed.fields, passed.charge
    judgement.has_passed = True
    exchange = ScopeExchange()
    exchange.endpoint = place.endpoint
    exchange._judged = (judgement,)
    continued: ScopeExchange = passed.become_exchange(exchange)
    return continued
