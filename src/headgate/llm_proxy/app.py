"""The proxy as an HTTP handler: it finds the caller and the dialect of a request, and runs its call."""

from __future__ import annotations

import asyncio
import hmac
import logging
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from headgate.clock import SYSTEM_CLOCK
from headgate.errors import ArgumentError, HeadgateError
from headgate.llm.dialects import Dialect, Family, Problem, dialect_of, problem_answer
from headgate.llm.dialects.paths import family_of
from headgate.llm.entry import Caller
from headgate.llm.inputs import InputCount, count_input
from headgate.llm_proxy.arrived_request import ArrivedRequest, OngoingAnswer
from headgate.llm_proxy.body_memory import read_bytes
from headgate.llm_proxy.call_body import CallBody, read_body
from headgate.llm_proxy.client_connections import ClientConnections
from headgate.llm_proxy.client_side import ClientSide
from headgate.llm_proxy.exchange import Exchange
from headgate.llm_proxy.free_calls import pass_on
from headgate.llm_proxy.own_key import OwnKey, digest_of
from headgate.llm_proxy.proxy_parts import ProxyParts
from headgate.llm_proxy.refused import Refused, refused
from headgate.llm_proxy.request_body import read_request_body
from headgate.llm_proxy.request_fields import key_of, subject_of
from headgate.observe.prometheus import CONTENT_TYPE

log = logging.getLogger("headgate")

_server_log = logging.getLogger("headgate.requests")
"""The log of aiohttp's server. A request that aiohttp cannot parse gets a 400, and would be quoted here: the quotation
may contain a key, so the filter drops it."""

_server_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))

USER_HEADER = "x-headgate-user"
_THREAD_BYTES = 32 * 1024
"""A longer body is parsed and counted in a thread, so that it does not block other calls."""

_LONG_BYTES = 256 * 1024
_MOST_LONG = 2
"""The most bodies of more than `_LONG_BYTES` that are counted at once. A very long one takes many seconds, so more of
them would occupy the threads that others wait for, also to look up the address of a provider."""

_STALLED_CHECK_S = 5.0
_HEADER_BYTES = 32768
_LONGEST_USER = 200


class _Credentials(NamedTuple):
    """The caller, and whether it may name users."""

    caller: Caller
    names_users: bool


_ANYONE = _Credentials(Caller(), names_users=True)


class Proxy:
    """Answers requests. While it is `draining`, connections are closed after their answers."""

    def __init__(self, parts: ProxyParts) -> None:
        self.parts = parts
        self.draining = False
        options = parts.options
        server = web.Server(
            self.handle, request_factory=self._new_request, handler_cancellation=True, access_log=None,
            logger=_server_log, auto_decompress=False,
            max_line_size=_HEADER_BYTES, max_field_size=_HEADER_BYTES, keepalive_timeout=options.idle_s,
        )  # fmt: skip
        self.server = server
        self.connections = ClientConnections(
            server, most=options.connections, idle_s=options.idle_s, head_s=options.head_s,
            arriving_bytes=options.arriving_bytes,
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._long_bodies = asyncio.Semaphore(_MOST_LONG)
        self._running: set[asyncio.Task[None]] = set()
        self._clients: set[ClientSide] = set()

    @property
    def under_way(self) -> int:
        """The number of requests that are not answered yet, or whose stream is read on."""
        return len(self._running)

    def _new_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> ArrivedRequest:
        """Make the request of a head that aiohttp has parsed. A call begins here, before aiohttp calls the handler."""
        request = ArrivedRequest(message, payload, protocol, writer, task, self._loop)
        # A request that aiohttp cannot parse has another method here, and aiohttp answers it by itself.
        if message.method == "POST" and self.connections.head_received(request):
            self._begin_answer(request)
        return request

    def _begin_answer(self, request: ArrivedRequest) -> OngoingAnswer:
        """Begin to answer in a task of its own, which goes on after the client has gone."""
        client = ClientSide(request, closes=self.draining, ending=lambda: self.connections.answer_ends(request))
        task = self._loop.create_task(self._answer(request, client))
        self._running.add(task)
        self._clients.add(client)
        task.add_done_callback(partial(self._answer_done, client))
        ongoing = request.ongoing = OngoingAnswer(client, task)
        return ongoing

    def _answer_done(self, client: ClientSide, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._clients.discard(client)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request. Cancelling this means that the client has gone; the work for it goes on."""
        assert isinstance(request, ArrivedRequest)
        if request.ongoing is None:
            self.connections.head_received(request)
        try:
            return await self._handle(request)
        finally:
            self.connections.answered(request)

    async def _handle(self, request: ArrivedRequest) -> web.StreamResponse:
        if request.path in ("/healthz", "/metrics") and request.method in ("GET", "HEAD"):
            return self._status_page(request.path)
        client, task = request.ongoing or self._begin_answer(request)
        request.ongoing = None  # it refers to the request
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            client.leave()
            raise
        assert client.response is not None
        return client.response

    async def all_answered(self) -> None:
        """Wait until no request is under way."""
        while self._running:
            await asyncio.wait(list(self._running))

    async def break_off(self) -> None:
        """End all calls at once; each is settled with at least the usage that was received."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def watch_stalled(self) -> None:
        """Cut off clients that do not read their answers; runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_STALLED_CHECK_S)
            since = loop.time() - self.parts.options.stalled_s
            for client in [writer for writer in self._clients if writer.writing_since is not None]:
                if client.writing_since is not None and client.writing_since < since:
                    client.break_off()

    async def _answer(self, request: web.BaseRequest, client: ClientSide) -> None:
        if client.has_left:  # since the request arrived
            return
        family = family_of(has_anthropic_version="anthropic-version" in request.headers)
        dialect = dialect_of(request.raw_path, family=family)
        try:
            if dialect is None:
                raise refused(family, Problem.UNKNOWN_PATH, f"Unknown request URL: {_method_and_path(request)}.")
            if request.method != dialect.method:
                message = f"{dialect.path} takes {dialect.method}, not {request.method[:20]}."
                raise refused(dialect.family, Problem.WRONG_METHOD, message)
            await self._dispatch(request, client, dialect)
        except Refused as error:
            await client.answer(error.answer)
        except Exception:
            log.exception("a call failed in the proxy itself")
            answer = problem_answer(family, Problem.FAILURE, "The proxy failed.")
            if client.response is None:
                await client.answer(answer)
            else:
                client.break_off()

    async def _dispatch(self, request: web.BaseRequest, client: ClientSide, dialect: Dialect) -> None:
        credentials = await self._credentials(request, dialect.family)
        headers, query = list(request.headers.items()), request.raw_path.partition("?")[2]
        if dialect.method != "POST":
            await pass_on(self.parts, client, dialect, "", headers, query, None)
            return
        exchange = await self._exchange(request, client, dialect, credentials, headers, query)
        if exchange is not None:  # and nothing here refers to the body while the answer arrives
            await exchange.run()

    async def _exchange(
        self,
        request: web.BaseRequest,
        client: ClientSide,
        dialect: Dialect,
        credentials: _Credentials,
        headers: list[tuple[str, str]],
        query: str,
    ) -> Exchange | None:
        """Read the body, and make the exchange of a call; None for a call that costs nothing: it was passed on."""
        raw = await read_request_body(request, dialect.family, self.parts.options)
        if not self.connections.may_read(request, read_bytes(raw)):
            raise refused(dialect.family, Problem.TOO_MANY, "There is no room to read the body now: try again later.")
        try:
            body, input_count = await self._read(raw, dialect)
        except ArgumentError as error:
            self.parts.metrics.ended(dialect.name, "", "invalid")
            raise refused(dialect.family, Problem.BAD_BODY, str(error)) from None
        if not dialect.is_charged:
            await pass_on(self.parts, client, dialect, body.model, headers, query, raw)
            return None
        caller = credentials.caller
        if credentials.names_users and (user := _requested_user(request, dialect.family)):
            caller = caller._replace(user=user)
        return Exchange(
            self.parts, client, dialect, caller, body,
            headers=headers, query=query, input_count=input_count,
            request=subject_of(request) if self.parts.gate.looks_at_requests else None,
            body_dropped=lambda: self.connections.body_dropped(request),
        )  # fmt: skip

    async def _credentials(self, request: web.BaseRequest, family: Family) -> _Credentials:
        """Find the caller by its key. Raises Refused for a key that is unknown, expired, revoked or ambiguous."""
        keys = self.parts.keys
        if keys is None:
            return _ANYONE
        key_text = key_of(request)
        if key_text is None:
            raise refused(family, Problem.UNKNOWN_KEY, "You sent no API key, or two: send one of this proxy's.")
        try:
            key = await keys.find(digest_of(key_text))
        except HeadgateError as error:
            log.error("the keys cannot be looked up: %s", error)
            raise refused(family, Problem.STORE, "The keys cannot be looked up at the moment.") from None
        if key is None or not hmac.compare_digest(key.digest, digest_of(key_text)):
            raise refused(family, Problem.UNKNOWN_KEY, "The API key is not a key of this proxy.")
        now_us = SYSTEM_CLOCK.now_us()
        if not key.is_active(now_us):
            raise refused(family, Problem.UNKNOWN_KEY, f"The API key {key.name} is {key.state(now_us)}.")
        return _Credentials(_caller_of(key), key.names_users)

    async def _read(self, raw: bytes, dialect: Dialect) -> tuple[CallBody, InputCount | None]:
        """Parse a body; the input tokens are counted here only for long bodies, in the same thread."""
        if len(raw) < _THREAD_BYTES:
            return read_body(raw, dialect), None
        if len(raw) <= _LONG_BYTES:
            return await asyncio.to_thread(_read_and_count, raw, dialect)
        async with self._long_bodies:
            return await asyncio.to_thread(_read_and_count, raw, dialect)

    def _status_page(self, path: str) -> web.Response:
        if path == "/metrics":
            return web.Response(body=self.parts.metrics.exposition(), headers={"content-type": CONTENT_TYPE})
        if self.draining:
            return web.Response(status=503, text="draining\n")
        return web.Response(text="ok\n")


def _read_and_count(raw: bytes, dialect: Dialect) -> tuple[CallBody, InputCount | None]:
    body = read_body(raw, dialect)
    return body, count_input(body.fields, body.model) if dialect.is_charged else None


def _method_and_path(request: web.BaseRequest) -> str:
    return f"{request.method[:20]} {request.raw_path.partition('?')[0][:200]}"


def _caller_of(key: OwnKey) -> Caller:
    return Caller(key.name, key.user, key.team, key.organisation, key.tier)


def _requested_user(request: web.BaseRequest, family: Family) -> str:
    """The user that the calling program names in a header; "" where it names none."""
    users = request.headers.getall(USER_HEADER, None)
    if not users:
        return ""
    if len(users) > 1 or any(len(user) > _LONGEST_USER or not user.isprintable() for user in users):
        message = f"{USER_HEADER} is one name of up to {_LONGEST_USER} printable characters."
        raise refused(family, Problem.BAD_BODY, message)
    return users[0].strip()
