"""What limits of routes tell and settle when a request is answered, where routing is Starlette's or FastAPI's.

Each limit notes in `scope["headgate"]` that it let a request pass; `RateLimitHeaders`, an ASGI middleware, tells and
settles it with the response. No framework is imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headgate.decision import Decision
from headgate.drive import answered
from headgate.errors import StoreError
from headgate.http.asgi import (
    HEADS,
    ASGIApp,
    AsgiRequest,
    Fields,
    Message,
    Receive,
    Scope,
    Send,
    Watch,
    adding,
    encode_fields,
    living,
)
from headgate.http.server.enforcer import PASSES, Answer, Front, answer_async
from headgate.http.server.options import Refusal, Response
from headgate.integrations.passed import merged

_KEY = "headgate"

RequestKind = Callable[..., AsgiRequest]
"""Makes Headgate's request of a scope, its route's template and, where it is at hand, the framework's request."""


class Passed:
    """A request that was judged; what nobody may ask for is made when somebody does.

    It does not keep the scope: that has the record, and a circle of them would wait for the garbage collector.
    """

    __slots__ = (
        "_answer",
        "_asked_us",
        "_charge",
        "_fields",
        "_settled",
        "by",
        "counted_as",
        "decision",
        "front",
        "template",
    )

    def __init__(
        self,
        front: Front,
        template: str,
        by: object,
        counted_as: str,
        decision: Decision | None,
        fields: Fields | None,
        asked_us: int,
        request: AsgiRequest | None = None,
        answer: Answer | None = None,
    ) -> None:
        self.front = front
        self.template = template
        self.by = by
        self.counted_as = counted_as
        self.decision = decision
        self._fields = fields
        self._asked_us = asked_us
        self._answer = answer
        self._charge = None if request is None else getattr(request, "charge", None)
        self._settled = request if front.settles else None

    def request(self, scope: Scope) -> AsgiRequest:
        """As options see it, with what it was charged."""
        if self._settled is not None:
            return self._settled
        request = _request(scope, self.template, self.counted_as)
        if self._charge is not None:
            request.charge = self._charge
        elif self._asked_us:
            self.front.note_charge(request, self._asked_us)
        return request

    @property
    def answer(self) -> Answer:
        """What becomes of it."""
        if self._answer is None and self.decision is not None:
            self._answer = Answer(None, self.front.fields(self.decision), 0, self.decision)
        return self._answer or PASSES

    @property
    def refusal(self) -> Refusal | None:
        """What is answered instead of letting it go on."""
        return None if self._answer is None else self._answer.refusal

    @property
    def fields(self) -> Fields:
        """What remains, as ASGI has it."""
        if self._fields is None:
            self._fields = encode_fields(self.answer.fields)
        return self._fields


class Record:
    """Which limits let a request pass, in the order in which they were asked: the outermost first.

    It is `scope["headgate"]`. `watched` is whether a RateLimitHeaders sees the response.
    """

    __slots__ = ("_passed", "_undone", "watched")

    def __init__(self, *, watched: bool) -> None:
        self._passed: list[Passed] = []
        self._undone: list[Passed] = []
        self.watched = watched

    @classmethod
    def of(cls, scope: Scope) -> Record:
        """The record of a request, a new one if there is none."""
        record = scope.get(_KEY)
        if not isinstance(record, cls):
            record = scope[_KEY] = cls(watched=False)
        return record

    async def judge(
        self,
        front: Front,
        scope: Scope,
        template: str,
        by: object,
        counted_as: str = "",
        *,
        kind: RequestKind = AsgiRequest,
        own: Any = None,
    ) -> Passed:
        """Ask a limit, and wait as long as a queue delays the request.

        It counts under `counted_as`, or else under the template of the route; with a number, where a limit before it
        counts so already: see `Front.apart`, also for `by`. `kind` makes Headgate's request where one is needed,
        around the framework's `own` if there is one already. What the limits before it charged is given back where it
        refuses.
        """
        counted_as = counted_as or template
        if self._passed or self._undone:
            counted_as = front.apart(counted_as, by, (*self._undone, *self._passed))
        asked_us = front.clock.now_us()
        judged = failed = None
        if front.ask_within is not None:
            try:
                judged = front.ask_within(scope, counted_as)
            except StoreError as error:
                failed = error
        decision, fields = judged or (None, None)
        if fields is None:
            request = kind(scope, template) if own is None else kind(scope, template, own)
            request.counted_as = counted_as
            passed = await _judge(front, request, by, failed or decision, asked_us)
            if passed.refusal is not None:
                await self._take_back(scope)
                self._undone.append(passed)
                return passed
        else:
            passed = Passed(front, template, by, counted_as, decision, fields, asked_us)
        self._passed.append(passed)
        return passed

    def has_judged(self, front: Front) -> bool:
        """Whether a limit let the request pass already."""
        return any(passed.front is front for passed in self._passed)

    def fields(self) -> Fields:
        """What remains, of several limits of the one that has least; nothing where one of them refused."""
        if len(self._passed) == 1:
            return self._passed[0].fields
        return encode_fields(merged(passed.answer for passed in self._passed))

    def telling(self, send: Send) -> Send:
        """Tell what remains with the response."""

        # No coroutine function: what it returns is awaited all the same, and one less frame is entered.
        def send_with_fields(message: Message) -> Awaitable[None]:
            if message["type"] in HEADS and (fields := self.fields()):
                return adding(send, fields)(message)
            return send(message)

        return send_with_fields

    @property
    def settles(self) -> bool:
        """Whether the response says what counts."""
        return any(passed.front.settles for passed in self._passed)

    async def settle(self, scope: Scope, response: Response) -> None:
        """Let count what the limits say of the response."""
        for passed in self._passed:
            if passed.front.settles:
                await passed.front.settle_async(passed.request(scope), passed.answer, response)

    async def _take_back(self, scope: Scope) -> None:
        given, self._passed = self._passed, []
        self._undone += given
        for passed in reversed(given):
            await passed.front.take_back_async(passed.request(scope), passed.answer)


async def _judge(
    front: Front, request: AsgiRequest, by: object, judged: Decision | StoreError | None, asked_us: int
) -> Passed:
    """Ask a limit, unless it was asked already at that moment, and say all that there is to say."""
    template, counted_as = request.endpoint, request.counted_as
    decision: Decision | None = None
    fields: Fields | None = None
    try:
        if isinstance(judged, StoreError):
            raise judged
        if judged is not None:
            front.note_charge(request, asked_us)
            decision = judged
        else:
            decision = await answered(front.ask(request))
            fields = None if decision is None else front.passing(decision)
    except StoreError as error:
        return Passed(front, template, by, counted_as, None, None, 0, request, front.without_store(error))
    answer = None
    if decision is None:
        answer = PASSES
    elif fields is None:
        answer = await answer_async(front, request, decision)
    return Passed(front, template, by, counted_as, decision, fields, 0, request, answer)


def _request(scope: Scope, template: str, counted_as: str) -> AsgiRequest:
    """As options see it."""
    request = AsgiRequest(scope, template)
    request.counted_as = counted_as
    return request


class Closes(Protocol):
    """What may have opened stores."""

    async def warm_up(self) -> None: ...

    async def aclose(self) -> None: ...


class RateLimitHeaders:
    """Tells on every response what remains: `app.add_middleware(RateLimitHeaders)`.

    Also on those that a route's limit cannot reach by itself: a Response that an endpoint of FastAPI returns,
    and what becomes of an exception. A field that stands there already stays. It sees what is answered, so
    that `counts=` of routes in FastAPI can be kept. Stores of `rate_limits` are connected and closed with the lifespan.
    """

    def __init__(self, app: ASGIApp, rate_limits: Closes | None = None) -> None:
        self.app = app
        self._rate_limits = rate_limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._living(send))
            return
        if scope["type"] not in ("http", "websocket") or Record.of(scope).watched:
            await self.app(scope, receive, send)
            return
        record = Record.of(scope)
        record.watched = True

        watch = Watch(record.telling(send))
        try:
            await self.app(scope, receive, watch.send)
        finally:
            if record.settles:
                # The charges are settled even where the client is gone and the task is cancelled.
                await asyncio.shield(record.settle(scope, watch.response()))

    def _living(self, send: Send) -> Send:
        limits = self._rate_limits
        return send if limits is None else living(send, limits.warm_up, limits.aclose)
