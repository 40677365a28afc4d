"""The exchange of a request of aiohttp: kept in it, told and ended with its response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, payload, web

from headgate.drive import begun
from headgate.http.server.options import Refusal, Response
from headgate.http.server.routes import ApplicationEnforcers
from headgate.integrations.aiohttp.request import AiohttpRequest
from headgate.integrations.response_exchange import ResponseExchange

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AiohttpExchange(ResponseExchange):
    """The exchange of one request."""

    found: object = None
    """What the router found for the request. Another one is asked for by the application itself, with a clone."""

    is_head = False
    """Whether no body is sent, whatever a handler answers."""

    async def handle(self, call: Callable[[], Awaitable[web.StreamResponse]], connection: object) -> web.StreamResponse:
        """Handle what a limit let pass; the outermost tells what remains, and ends the exchange.

        `connection` is the task of the connection, in which each request has a task of its own.
        """
        if self.watched:
            return await call()
        self.watched = True
        said, unsent = Response(500, {}, 0), None
        try:
            response = await call()
            if isinstance(response, web.StreamResponse):
                said = self._seen(response)
                unsent = response if self.settles and not _is_known(response) else None
            return response
        except web.HTTPException as raised:  # which is a response
            said = self._seen(raised)
            raise
        finally:
            serving = _serving(connection) if self.holds or unsent is not None else None
            if serving is None or serving is connection:
                await self.end_async(said)
            else:  # that task sends the response now: it ends, and what is in flight is freed, when that is done
                serving.add_done_callback(lambda _: begun(self.end_async(self._sent(unsent, said))))

    def _sent(self, response: web.StreamResponse | None, said: Response) -> Response:
        """What was answered by a response whose body was not known before it was sent, or else was `said`."""
        return said if response is None else _said(response, head=self.is_head)

    def _seen(self, response: web.StreamResponse) -> Response:
        """What a handler answered; it is told what remains, where its head is not sent yet."""
        if not response.prepared:
            self.tell(response)
        return _said(response, head=self.is_head) if self.settles else Response(response.status, {}, 0)


def _serving(connection: object) -> asyncio.Task[Any] | None:
    """The task that sends the response: the one for which that of the connection waits; else this one.

    A middleware may run a handler in a task of its own, as `asyncio.wait_for` does before Python 3.12. Which task sends
    the response then, only that of the connection knows.
    """
    awaited = getattr(connection, "_fut_waiter", None)
    return awaited if isinstance(awaited, asyncio.Task) else asyncio.current_task()


# Texts are fine as keys of a request before aiohttp 3.14, and discouraged from then on.
_KEY: Any = web.RequestKey("headgate", AiohttpExchange) if hasattr(web, "RequestKey") else "headgate"


async def answer(
    enforcers: ApplicationEnforcers,
    request: web.Request,
    endpoint: str,
    call: Callable[[], Awaitable[web.StreamResponse]],
    fallback: Handler | None,
    by: object,
    counted_as: str,
) -> web.StreamResponse:
    """What becomes of a request: it is handled, or refused."""
    exchange: AiohttpExchange | None = request.get(_KEY)
    found = request.match_info
    if exchange is None or exchange.found is not found:
        exchange = request[_KEY] = AiohttpExchange()
        exchange.found = found
        exchange.is_head = request.method == hdrs.METH_HEAD
    enforcer = enforcers.of(found.apps[0])
    judgement = await exchange.judge_async(enforcer, AiohttpRequest(request, endpoint), by, counted_as)
    if judgement.refusal is None:
        return await exchange.handle(call, request.task)
    exchange.by_fallback = fallback is not None
    try:
        response = _refused(judgement.refusal) if fallback is None else await fallback(request)
    except web.HTTPException as raised:  # which is a response
        exchange.tell(raised)
        raise
    if isinstance(response, web.StreamResponse) and not response.prepared:
        exchange.tell(response)
    return response


async def tell(request: web.Request, response: web.StreamResponse) -> None:
    """Tell what remains before a head is sent: also that of a stream, of a websocket, of a fault."""
    exchange = request.get(_KEY)
    if exchange is not None:
        exchange.tell(response)


def _refused(refusal: Refusal) -> web.Response:
    return web.Response(body=refusal.body, status=refusal.status, headers=refusal.headers)


def _said(response: web.StreamResponse, *, head: bool) -> Response:
    """What a handler answered, as `counts` is given it."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Response(response.status, headers, 0 if head else _body_bytes(response))


def _is_known(response: web.StreamResponse) -> bool:
    """Whether it is known how long a body is: all but that of a file and of what is read as it is sent."""
    body = getattr(response, "body", None)
    return response.prepared or not (isinstance(response, web.FileResponse) or isinstance(body, payload.Payload))


def _body_bytes(response: web.StreamResponse) -> int:
    body = getattr(response, "body", None)
    if isinstance(body, bytes | bytearray):
        return len(body)
    if isinstance(response, web.FileResponse):  # the system may send it, past what aiohttp counts
        return response.content_length or 0
    size = body.size if isinstance(body, payload.Payload) else None
    return response.body_length if size is None else size
