"""The exchange of an ASGI request: judged by its scope, reported and ended with the messages of its response.

Limits of routes share one, which is stored in the scope: the outermost that sees the response reports and ends it.
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
"""The class of the stand-in for an exchange where one limit let a request pass natively, until more has to be done.

It has the `fields` for the response, the `decision`, and the `exchange` that has replaced it, None so far."""

NativeOutcome = tuple[Any, tuple[Any, int] | None]
"""(the decision, an awaitable of one or the StoreError, (the charged key, time in microseconds) or None)"""

RequestKind = Callable[..., AsgiRequest]
"""Makes Headgate's request from a scope, its route's template and the framework's request, if there is one."""


class ScopeExchange(Exchange):
    """An exchange whose fields are bytes.

    It does not refer to the scope, which refers to it: a reference cycle would wait for the garbage collector. So a
    judgement has its request only where `counts` needs it later.
    """

    watcher: object = None
    """The middleware that sees the response, if any."""

    endpoint: object = None
    """The endpoint of the route whose limit judged the request; None while none has."""

    def judge_route(
        self,
        enforcer: Enforcer,
        scope: Scope,
        kind: RequestKind,
        template: str,
        place_id: object,
        counted_as: str = "",
        request: Any = None,
        native_outcome: NativeOutcome | None = None,
    ) -> Judgement | Coroutine[Any, Any, Judgement]:
        """Have a route's enforcer judge; return the judgement, or an awaitable where a store or a queue is waited for.

        The request counts under `counted_as`, or else under the template of the route; with a number, where another
        place uses that name already: see `Enforcer.counter_name`, also for `place_id`. `kind` makes Headgate's request
        where one is needed, around the framework's `request` if there is one. `native_outcome` is the native decision,
        if there is one.
        """
        counted_as = counted_as or template
        if self._judgements:
            counted_as = enforcer.counter_name(counted_as, place_id, self._judgements)
        gate, (decided, charge) = enforcer.web_gate, native_outcome or (None, None)
        if gate is not None and native_outcome is None:
            requested_us = enforcer.clock.now_us()
            try:
                decided = gate.decide_route(scope, counted_as or NOWHERE)
            except StoreError as error:
                decided = error
            if type(decided) is tuple:
                decided, fields, key = decided
                charge = (key, requested_us)
                if fields is not None:
                    judgement = Judgement()
                    judgement.enforcer, judgement.place_id, judgement.counted_as = enforcer, place_id, counted_as
                    judgement.decision, judgement.fields, judgement.charge = decided, fields, charge
                    judgement.has_passed = True
                    self._judgements += (judgement,)
                    return judgement
        parts = (scope, template) if request is None else (scope, template, request)
        return self.judge_scope(enforcer, kind, parts, decided, None, place_id, counted_as, charge)

    def judge_scope(
        self,
        enforcer: Enforcer,
        kind: RequestKind,
        parts: tuple[Any, ...],
        decided: Any = None,
        request: AsgiRequest | None = None,
        place_id: object = None,
        counted_as: str = "",
        charge: tuple[Any, int] | None = None,
    ) -> Judgement | Coroutine[Any, Any, Judgement]:
        """Have an enforcer judge the request `kind(*parts)`; return the judgement, or an awaitable of it.

        `decided` is the native decision or error, or the outcome for `request`, which the enforcer has decided already.
        """
        outcome: Any = decided
        if outcome is None and request is None:
            request = kind(*parts)
            if counted_as:
                request.counted_as = counted_as
            try:
                outcome = enforcer.decide(request)
            except StoreError as error:
                outcome = error
        fields = None
        if isinstance(outcome, Decision):
            fields = enforcer.passing_fields(outcome) if outcome.allowed else None
        elif outcome is not None and not isinstance(outcome, StoreError):
            return self._judge_scope_async(enforcer, kind, parts, outcome, request, place_id, counted_as, charge)
        if request is None and (fields is None or enforcer.settles):
            request = kind(*parts)
            if counted_as:
                request.counted_as = counted_as
        judgement = Judgement()
        judgement.enforcer, judgement.place_id, judgement.counted_as, judgement.charge = (
            enforcer,
            place_id,
            counted_as,
            charge,
        )
        judgement.fields = fields
        if enforcer.counts:
            judgement.request = request
        elif charge is None:
            judgement.charge = getattr(request, "charge", None)
        if fields is not None and isinstance(outcome, Decision):
            judgement.decision, judgement.has_passed = outcome, True
            self.settles = self.settles or enforcer.settles
            self.holds = self.holds or enforcer.holds
            self._judgements += (judgement,)
            return judgement
        if request is not None:
            delay_us = judgement.conclude(request, outcome)
            if judgement.refusal is not None:
                return self._take_back(judgement) if self._refuse(judgement) else judgement
            if delay_us:
                return self._delay(judgement, delay_us)
        self._pass(judgement)
        return judgement

    async def _judge_scope_async(
        self,
        enforcer: Enforcer,
        kind: RequestKind,
        parts: tuple[Any, ...],
        pending: Awaitable[Decision | None],
        request: AsgiRequest | None,
        place_id: object,
        counted_as: str,
        charge: tuple[Any, int] | None,
    ) -> Judgement:
        """`judge_scope` for a decision that is awaited."""
        outcome: Decision | StoreError | None
        try:
            outcome = await pending
        except StoreError as error:
            outcome = error
        judged = self.judge_scope(enforcer, kind, parts, outcome, request, place_id, counted_as, charge)
        return judged if isinstance(judged, Judgement) else await judged

    async def _take_back(self, judgement: Judgement) -> Judgement:
        """Return a refusal, once the limits before it have taken back what they charged."""
        await self.take_back_async()
        return judgement

    async def _delay(self, judgement: Judgement, delay_us: int) -> Judgement:
        """Return the judgement of a request that passes, once it has waited."""
        await self.wait(judgement, delay_us)
        self._pass(judgement)
        return judgement

    def encoded_fields(self) -> Fields:
        """Return the fields to add to the response; none where a limit refused, whose response has its own."""
        if len(self._judgements) == 1:
            only = self._judgements[0]
            if not only.has_passed:
                return []
            if only.fields is None:
                only.fields = encode_fields(only.verdict.fields)
            return only.fields
        return encode_fields(self.fields_of_passed())

    def has_fields(self, headers: Fields) -> bool:
        """Whether these headers contain all fields that are to be added."""
        names = {name for name, _ in headers}
        return all(name in names for name, _ in self.encoded_fields())

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an application; add the fields to its response and end with it, unless an outer adapter does."""
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
    """Return the exchange of a request, a new one if its first limit judges now, or has let it pass natively."""
    exchange = scope.get(_KEY)
    if type(exchange) is ScopeExchange:
        return exchange
    created = ScopeExchange() if type(exchange) is not RoutePassed else _continued(exchange)
    scope[_KEY] = created
    return created


def exchange_at(scope: Scope, endpoint: object, place_id: object = None) -> ScopeExchange:
    """`exchange_of` at an endpoint's route: a new one where `place_id`, or a limit of another route, has judged it.

    In that case an application calls itself, with the scope that it was given or a copy of it.
    """
    exchange = exchange_of(scope)
    is_at_another = exchange.endpoint is not None and exchange.endpoint is not endpoint
    if is_at_another or (place_id is not None and exchange.has_judged(place_id)):
        exchange = new_exchange(scope)
    exchange.endpoint = endpoint
    return exchange


def new_exchange(scope: Scope) -> ScopeExchange:
    """Store and return the exchange of another request that has the scope of an earlier one, or a copy of it."""
    exchange = scope[_KEY] = ScopeExchange()
    return exchange


def _continued(passed: Any) -> ScopeExchange:
    """Return the exchange of a request that its first limit let pass natively, now that more has to be done."""
    place: RoutePlace = passed.place
    judgement = Judgement()
    judgement.enforcer, judgement.place_id, judgement.counted_as = place.enforcer, place.place_id, place.counted_as
    judgement.decision, judgement.fields, judgement.charge = passed.decision, passed.fields, passed.charge
    judgement.has_passed = True
    exchange = ScopeExchange()
    exchange.endpoint = place.endpoint
    exchange._judgements = (judgement,)
    continued: ScopeExchange = passed.become_exchange(exchange)
    return continued
