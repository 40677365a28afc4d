"""What limits of routes tell and settle when a request is answered, where routing is Starlette's or FastAPI's.

Each limit notes in `scope["headgate"]` that it let a request pass; `RateLimitHeaders`, an ASGI middleware, tells and
settles it with the response. No framework is imported.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from headgate.http.asgi import ASGIApp, AsgiRequest, Message, Receive, Scope, Send, Watch, telling
from headgate.http.front import Answer, Front, judge_async
from headgate.http.options import Response
from headgate.integrations.passed import merged

_KEY = "headgate"
_HEADS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


class Passed(NamedTuple):
    """A request that was judged."""

    front: Front
    request: AsgiRequest
    answer: Answer


class Record:
    """Which limits let a request pass, in the order in which they were asked: the outermost first.

    It is `scope["headgate"]`. `watched` is whether a RateLimitHeaders sees the response.
    """

    __slots__ = ("_passed", "watched")

    def __init__(self, *, watched: bool) -> None:
        self._passed: list[Passed] = []
        self.watched = watched

    @classmethod
    def of(cls, scope: Scope) -> Record:
        """The record of a request, a new one if there is none."""
        record = scope.get(_KEY)
        if not isinstance(record, cls):
            record = scope[_KEY] = cls(watched=False)
        return record

    async def judge(self, front: Front, scope: Scope, template: str) -> Passed:
        """Ask a limit; what the limits before it charged is given back where it refuses."""
        request = AsgiRequest(scope, template)
        passed = Passed(front, request, await judge_async(front, request))
        if passed.answer.refusal is None:
            self._passed.append(passed)
        else:
            await self._take_back()
        return passed

    def fields(self) -> list[tuple[str, str]]:
        """What remains, of several limits of the one that has least; nothing where one of them refused."""
        if len(self._passed) == 1:
            return self._passed[0].answer.fields
        return merged(passed.answer for passed in self._passed)

    def telling(self, send: Send) -> Send:
        """Tell what remains with the response."""

        async def send_with_fields(message: Message) -> None:
            fields = self.fields() if message["type"] in _HEADS else None
            await (telling(send, fields) if fields else send)(message)

        return send_with_fields

    @property
    def settles(self) -> bool:
        """Whether the response says what counts."""
        return any(front.settles for front, _, _ in self._passed)

    async def settle(self, response: Response) -> None:
        """Let count what the limits say of the response."""
        for front, request, answer in self._passed:
            if front.settles:
                await front.settle_async(request, answer, response)

    async def _take_back(self) -> None:
        given, self._passed = self._passed, []
        for front, request, answer in reversed(given):
            await front.take_back_async(request, answer)


class Closes(Protocol):
    """What may have opened stores."""

    async def aclose(self) -> None: ...


class RateLimitHeaders:
    """Tells on every response what remains: `app.add_middleware(RateLimitHeaders)`.

    Also on those that a route's limit cannot reach by itself: a Response that an endpoint of FastAPI returns,
    and what becomes of an exception. A field that stands there already stays. It sees what is answered, so
    that `counts=` of routes in FastAPI can be kept. Stores of `rate_limits` are closed with the lifespan.
    """

    def __init__(self, app: ASGIApp, rate_limits: Closes | None = None) -> None:
        self.app = app
        self._rate_limits = rate_limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._closing(send))
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
                await asyncio.shield(record.settle(watch.response()))

    def _closing(self, send: Send) -> Send:
        async def send_and_close(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown.") and self._rate_limits is not None:
                await self._rate_limits.aclose()
            await send(message)

        return send_and_close
