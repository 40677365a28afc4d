"""The queue over HTTP: an ASGI application that submits jobs, returns them, cancels them, and reports their positions.

It runs under any ASGI server, and may be mounted in another application. docs/llm-queue.md has the table of routes.
A function of the mounting application identifies the caller of a request; callers see only their own jobs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from headgate.drive import answered
from headgate.errors import ArgumentError, ConfigError, ConflictingId, StoreError
from headgate.llm.entry import Caller
from headgate.llm.queue.job import MOST_PRIORITY, Job, QueueFull, UnknownJob, account_of
from headgate.llm.queue.job_json import job_fields, own_id
from headgate.llm.queue.queue import AsyncLlmQueue

log = logging.getLogger("headgate")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
WhoCalls = Callable[[Scope], Caller | Awaitable[Caller | None] | None]
"""Returns the caller of a request, by its ASGI scope (which has the headers); None where the caller is unknown."""

_FIELDS = ("body", "id", "priority", "deadline", "path")
_ROUTE = re.compile(r"/jobs(?:/([^/]+)(/events)?)?")
_ENVELOPE_BYTES = 4096
_READ_FURTHER_BYTES = 1 << 20
_LONGEST_WAIT_S = 60.0
_KEEPALIVE_S = 15.0
_SECONDS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,6})?", re.ASCII)


class Answer(NamedTuple):
    """A complete response; `content` becomes its JSON body."""

    status: int
    content: Mapping[str, Any]
    headers: tuple[tuple[bytes, bytes], ...] = ()


class _Rejected(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, code: str, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"error": {"code": code, "message": message}}, headers)


class QueueApp:
    """`app = QueueApp(queue, who_calls)`. At most `most_streams` event streams are open at one time.

    Jobs may have a priority up to `most_priority`.
    """

    def __init__(
        self, queue: AsyncLlmQueue, who_calls: WhoCalls, *, most_priority: int = MOST_PRIORITY, most_streams: int = 1000
    ) -> None:
        if isinstance(most_priority, bool) or most_priority not in range(MOST_PRIORITY + 1):
            raise ConfigError(f"most_priority is a whole number from 0 to {MOST_PRIORITY}, not {most_priority!r}")
        if isinstance(most_streams, bool) or not isinstance(most_streams, int) or most_streams < 0:
            raise ConfigError(f"most_streams is a whole number, not {most_streams!r}")
        self._queue = queue
        self._who_calls = who_calls
        self._most_priority = most_priority
        self._most_streams = most_streams
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send, self._queue)
        elif scope["type"] == "http":
            try:
                answer = await self._answer(scope, receive, send)
            except _Rejected as error:
                answer = error.answer
            if answer is not None:
                await _respond(send, answer, body=scope["method"] != "HEAD")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """Return the response; None where it was streamed, or the client has disconnected."""
        path, root = scope["path"], scope.get("root_path", "")
        match = _ROUTE.fullmatch(path.removeprefix(root) if root else path)
        if match is None:
            raise _Rejected(404, "not-found", "the queue has /jobs, /jobs/ID and /jobs/ID/events")
        id, method = match[1], scope["method"]
        allowed = "POST" if id is None else "GET, HEAD" if match[2] else "GET, HEAD, DELETE"
        if method not in allowed.split(", "):
            raise _Rejected(
                405, "method", f"{method[:20]} is not for this path: {allowed}", (b"allow", allowed.encode())
            )
        caller = await answered(self._who_calls(scope))
        if caller is None:
            raise _Rejected(401, "unauthorized", "the caller is unknown", (b"www-authenticate", b"Bearer"))
        try:
            if id is None:
                return await self._submit(await self._read(scope, receive), caller)
            job = await self._job_of(id, caller)
            if match[2]:
                return await self._events(job, receive, send, head=method == "HEAD")
            if method == "DELETE":
                return Answer(200, job_fields(await self._queue.cancel(id)))
            return await self._show(job, _wait_s(scope))
        except QueueFull as full:
            status = 429 if full.bound.startswith("user") else 503
            raise _Rejected(status, full.code, str(full)) from None
        except UnknownJob as unknown:
            raise _Rejected(404, unknown.code, str(unknown)) from None
        except ConflictingId as conflict:
            raise _Rejected(409, conflict.code, "the id is that of another job: a new job needs another") from conflict
        except ArgumentError as error:
            raise _Rejected(400, error.code, str(error)) from None
        except StoreError as error:
            log.warning("the queue's store did not answer a request: %s", error)
            raise _Rejected(503, error.code, "the queue cannot be reached now; try again") from None

    async def _submit(self, body: bytes | None, caller: Caller) -> Answer | None:
        if body is None:
            return None
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            raise _Rejected(400, "json", "the request is no JSON") from None
        if not isinstance(fields, dict) or "body" not in fields:
            raise _Rejected(400, "json", 'the request is an object such as {"body": {"model": ..., "messages": ...}}')
        unknown = [name for name in fields if name not in _FIELDS]
        if unknown:
            raise _Rejected(400, "json", f"the fields of a job are {', '.join(_FIELDS)}, not {unknown[0][:40]!r}")
        options = {name: value for name, value in fields.items() if value is not None and name != "body"}
        priority = options.get("priority", 0)
        if isinstance(priority, int) and priority > self._most_priority:
            raise _Rejected(400, "argument", f"priority is at most {self._most_priority} here, not {priority}")
        if "id" in options:
            options["id"] = own_id(options["id"], caller)
        job = await self._queue.submit(fields["body"], **caller._asdict(), **options)
        return Answer(200 if job.ended else 202, job_fields(job), ((b"location", f"jobs/{job.id}".encode()),))

    async def _job_of(self, id: str, caller: Caller) -> Job:
        job = await self._queue.get(id)
        if account_of(job.caller) != account_of(caller):
            raise UnknownJob(id)
        return job

    async def _show(self, job: Job, wait_s: float) -> Answer:
        if wait_s and not job.ended:
            try:
                job = await self._queue.result(job.id, wait_s)
            except TimeoutError:
                job = await self._queue.get(job.id)
        content = job_fields(job)
        if job.state == "waiting":
            position = await self._queue.position(job.id)
            content |= {"ahead": position.ahead, "starts_in": position.starts_in}
        return Answer(200, content)

    async def _events(self, job: Job, receive: Receive, send: Send, *, head: bool) -> Answer | None:
        """Stream a job's position as it changes, and its end, unless the client disconnects earlier."""
        if self._streams >= self._most_streams:
            raise _Rejected(503, "streams", f"{self._most_streams:,} positions are watched already; ask now and then")
        self._streams += 1
        try:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if not head:
                disconnected = asyncio.ensure_future(_disconnected(receive))
                reporting = asyncio.ensure_future(self._report(job, send))
                try:
                    await asyncio.wait((disconnected, reporting), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in (disconnected, reporting):
                        task.cancel()
                    for result in await asyncio.gather(disconnected, reporting, return_exceptions=True):
                        if isinstance(result, Exception) and not isinstance(result, OSError):
                            log.warning("a job's position is no longer reported: %s", result)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._streams -= 1
        return None

    async def _report(self, job: Job, send: Send) -> None:
        positions = self._queue.positions(job.id)
        following = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(positions, None))
                await asyncio.wait((following,), timeout=_KEEPALIVE_S)
                if not following.done():
                    await _send_event(send, b": waiting\n\n")
                    continue
                position, following = following.result(), None
                if position is None:
                    break
                await _send_event(send, _event("position", position._asdict()))
            await _send_event(send, _event("end", job_fields(await self._queue.get(job.id))))
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await positions.aclose()

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the body of a request; None where the client has disconnected.

        A body that is too large is read a little further, so that the client, still sending, gets the response.
        """
        max_bytes = self._queue.backlog.bounds.body_bytes + _ENVELOPE_BYTES
        length = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"0")
        declared = int(length) if length.isdigit() and len(length) < 20 else 0
        body, size, is_whole = bytearray(), 0, False
        while not is_whole and max(size, declared) <= max_bytes + _READ_FURTHER_BYTES:
            message = await receive()
            if message["type"] != "http.request":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            body += chunk if size <= max_bytes else b""
            is_whole = not message.get("more_body", False)
        if max(size, declared) > max_bytes:
            raise _Rejected(413, "too-large", f"a request has at most {max_bytes:,} bytes", (b"connection", b"close"))
        return bytes(body)


def _wait_s(scope: Scope) -> float:
    text = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("wait", ["0"])[-1]
    if not _SECONDS.fullmatch(text) or float(text) > _LONGEST_WAIT_S:
        raise _Rejected(400, "argument", f"wait is a number of seconds up to {_LONGEST_WAIT_S:g}, not {text[:20]!r}")
    return float(text)


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def _send_event(send: Send, event: bytes) -> None:
    await send({"type": "http.response.body", "body": event, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _respond(send: Send, answer: Answer, *, body: bool) -> None:
    encoded = json.dumps(answer.content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(encoded)).encode()),
        (b"cache-control", b"no-store"),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": encoded if body else b""})


async def _lifespan(receive: Receive, send: Send, queue: AsyncLlmQueue) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await queue.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
