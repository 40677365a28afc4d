"""The exchange of an aiohttp request: stored in the request, reported and ended with its response."""

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


_endings: dict[object, asyncio.Future[None]] = {}
"""By the tasks of connections: the exchanges whose responses are sent, and whose places are being freed."""


class AiohttpExchange(ResponseExchange):
    """The exchange of one request."""

    match: object = None
    """What the router found for the request. A clone of the request with another match has an exchange of its own."""

    is_head = False
    """Whether no body is sent, whatever the handler returns."""

    async def handle(self, call: Callable[[], Awaitable[web.StreamResponse]], connection: object) -> web.StreamResponse:
        """Handle a request that a limit let pass; the outermost limit adds the fields, and ends the exchange.

        `connection` is the task of the connection; each of its requests has a task of its own.
        """
        if self.watched:
            return await call()
        self.watched = True
        answered, unsent = Response(500, {}, 0), None
        try:
            response = await call()
            if isinstance(response, web.StreamResponse):
                answered = self._complete(response)
                unsent = response if self.settles and not _is_known(response) else None
            return response
        except web.HTTPException as raised:  # which is a response
            answered = self._complete(raised)
            raise
        finally:
            serving = _serving(connection) if self.holds or unsent is not None else None
            if serving is None or serving is connection:
                await self.end_async(answered)
            else:  # that task sends the response now; when it is done, the exchange ends and frees what is in flight
                serving.add_done_callback(lambda _: self._begin_end(connection, self._sent(unsent, answered)))

    def _begin_end(self, connection: object, answered: Response) -> None:
        """Begin to end the exchange; the next request on this connection waits for it."""
        ending = _endings[connection] = begun(self.end_async(answered))
        ending.add_done_callback(lambda _: _endings.pop(connection) if _endings.get(connection) is ending else None)

    def _sent(self, response: web.StreamResponse | None, answered: Response) -> Response:
        """Return the facts of a response whose body was not known before it was sent, or `answered` without one."""
        return answered if response is None else _facts_of(response, head=self.is_head)

    def _complete(self, response: web.StreamResponse) -> Response:
        """Add the fields to a response whose head is not sent yet; return its facts."""
        if not response.prepared:
            self.add_fields(response)
        return _facts_of(response, head=self.is_head) if self.settles else Response(response.status, {}, 0)


def _serving(connection: object) -> asyncio.Task[Any] | None:
    """Return the task that sends the response: the one that the connection's task awaits; else this one.

    A middleware may run a handler in a task of its own, as `asyncio.wait_for` does before Python 3.12. Then only the
    task of the connection knows which task sends the response.
    """
    awaited = getattr(connection, "_fut_waiter", None)
    return awaited if isinstance(awaited, asyncio.Task) else asyncio.current_task()


# Keys of a request may be strings before aiohttp 3.14; from then on that is discouraged.
_KEY: Any = web.RequestKey("headgate", AiohttpExchange) if hasattr(web, "RequestKey") else "headgate"


async def answer(
    enforcers: ApplicationEnforcers,
    request: web.Request,
    endpoint: str,
    call: Callable[[], Awaitable[web.StreamResponse]],
    fallback: Handler | None,
    place_id: object,
    counted_as: str,
) -> web.StreamResponse:
    """Judge a request, and return the response of its handler, or of its refusal."""
    exchange: AiohttpExchange | None = request.get(_KEY)
    match = request.match_info
    if exchange is None or exchange.match is not match:
        exchange = request[_KEY] = AiohttpExchange()
        exchange.match = match
        exchange.is_head = request.method == hdrs.METH_HEAD
    if (
        ending := _endings.get(request.task)
    ) is not None:  # aiohttp may go on with a request that has arrived meanwhile
        await asyncio.wait([ending])
    enforcer = enforcers.of(match.apps[0])
    judgement = await exchange.judge_async(enforcer, AiohttpRequest(request, endpoint), place_id, counted_as)
    if judgement.refusal is None:
        return await exchange.handle(call, request.task)
    exchange.by_fallback = fallback is not None
    try:
        response = _refused(judgement.refusal) if fallback is None else await fallback(request)
    except web.HTTPException as raised:  # which is a response
        exchange.add_fields(raised)
        raise
    if isinstance(response, web.StreamResponse) and not response.prepared:
        exchange.add_fields(response)
    return response


async def add_fields(request: web.Request, response: web.StreamResponse) -> None:
    """Add the fields before the head is sent: also to a stream, a websocket and an error response."""
    exchange = request.get(_KEY)
    if exchange is not None:
        exchange.add_fields(response)


def _refused(refusal: Refusal) -> web.Response:
    return web.Response(body=refusal.body, status=refusal.status, headers=refusal.headers)


def _facts_of(response: web.StreamResponse, *, head: bool) -> Response:
    """Return the facts of a response that `counts` is passed."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Response(response.status, headers, 0 if head else _body_bytes(response))


def _is_known(response: web.StreamResponse) -> bool:
    """Whether the length of the body is known: not that of a file, nor of a payload that is read as it is sent."""
    body = getattr(response, "body", None)
    return response.prepared or not (isinstance(response, web.FileResponse) or isinstance(body, payload.Payload))


def _body_bytes(response: web.StreamResponse) -> int:
    body = getattr(response, "body", None)
    if isinstance(body, bytes | bytearray):
        return len(body)
    if isinstance(response, web.FileResponse):  # the system may send it, past what aiohttp counts
        return response.content_length or 0
    size = _payload_bytes(body) if isinstance(body, payload.Payload) else None
    if size is None and response.content_length is not None:  # what was known before the file was closed
        return response.content_length
    return response.body_length if size is None else size


def _payload_bytes(body: payload.Payload) -> int | None:
    try:
        return body.size
    except ValueError:  # of a file, which is closed once it is sent
        return None
