"""The service as an ASGI application: routes, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from time import perf_counter
from typing import Any, NamedTuple

from headgate.decision import Decision
from headgate.errors import ArgumentError, HeadgateError, StoreError
from headgate.http.refusal import PROBLEM_JSON, answer_of, plain_problem, problem_json
from headgate.observe.metrics import CONTENT_TYPE, Metrics, Sharing
from headgate.policy.gate import AsyncGate
from headgate.policy.request import Request
from headgate.service.forwarded import forwarded_request
from headgate.service.messages import LARGEST_BODY, BadBody, read_body, write_decision
from headgate.service.page import page
from headgate.waiting import answered

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class Response(NamedTuple):
    """What to send back."""

    status: int
    content_type: str
    body: bytes
    headers: Iterable[tuple[str, str]] = ()


class BodyTooLarge(Exception):
    """A body above the bound; the rest of it is not read."""


class Service:
    """Answers checks for a gate. `draining` makes it tell everybody to go elsewhere."""

    def __init__(self, gate: AsyncGate, sharing: Sharing | None = None) -> None:
        self.gate = gate
        self.metrics = Metrics(gate.stats, sharing)
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            try:
                response = await self._respond(scope, receive)
            except BodyTooLarge:
                response = _problem(413, "Content Too Large", f"a body has at most {LARGEST_BODY} bytes")
            except StoreError as error:
                response = _problem(503, "Service Unavailable", f"the store does not answer: {error}")
            except HeadgateError as error:
                response = _problem(500, "Internal Server Error", str(error))
            await _send(send, response, head=scope["method"] == "HEAD", close=self.draining or response.status == 413)
        else:  # no websockets here
            await send({"type": "websocket.close", "code": 1000})

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        path: str = scope["path"]
        if path.startswith(("/check/", "/check-403/")):
            return await self._check_forwarded(scope)
        if path == "/v1/check":
            return await self._check_body(scope, receive)
        reads: dict[str, Callable[[Scope], Response | Awaitable[Response]]] = {
            "/": self._page,
            "/healthz": self._health,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }
        read = reads.get(path)
        if read is None:
            return _problem(404, "Not Found", f"nothing is at {path[:200]}; ask GET / what is here")
        if scope["method"] not in ("GET", "HEAD"):
            return _not_allowed("GET, HEAD")
        return await answered(read(scope))

    async def _check_forwarded(self, scope: Scope) -> Response:
        """Judge the request that a gateway asks about: 200, 429 or 503; under /check-403/, 403 for 429."""
        # The path as it was sent: the policy decodes it, once.
        sent = scope.get("raw_path") or scope["path"].encode()
        _, form, ruleset, rest = [*sent.decode("latin-1").split("/", 3), ""][:4]
        if ruleset not in self.gate.policy.rulesets:
            known = ", ".join(self.gate.policy.rulesets)
            return _problem(404, "Not Found", f"no ruleset is named {ruleset[:60]!r}; there are {known}")
        client = scope.get("client")
        request = forwarded_request(scope["method"], client[0] if client else "unix", f"/{rest}", scope["headers"])
        try:
            decision = await self._judge(request, 1, ruleset)
        except ArgumentError as error:
            return _problem(400, "Bad Request", str(error))
        status, headers, problem = answer_of(decision)
        if problem is None:
            return Response(status, _TEXT, b"", headers)
        body = problem_json(problem)
        if form == "check-403":  # nginx passes on 403 alone, and drops the body
            headers.append(("X-RateLimit-Problem", body.decode()))
            status = 403 if status == 429 else status
        return Response(status, PROBLEM_JSON, body, headers)

    async def _check_body(self, scope: Scope, receive: Receive) -> Response:
        if scope["method"] != "POST":
            return _not_allowed("POST")
        try:
            asked, several = read_body(await _read(receive))
            decisions = [await self._judge(request, cost, "default") for request, cost in asked]
        except (BadBody, ArgumentError) as error:
            return _problem(400, "Bad Request", str(error))
        written = [write_decision(decision) for decision in decisions]
        return Response(200, _JSON, json.dumps({"decisions": written} if several else written[0]).encode())

    async def _judge(self, request: Request, cost: int, ruleset: str) -> Decision:
        start = perf_counter()
        answer = self.gate.ask(request, cost, ruleset=ruleset)
        decision = answer if isinstance(answer, Decision) else await answer
        self.metrics.decided(decision, perf_counter() - start)
        return decision

    def _page(self, scope: Scope) -> Response:
        host = dict(scope["headers"]).get(b"host", b"127.0.0.1:8080").decode("latin-1")
        return Response(200, "text/html; charset=utf-8", page(self.gate, host).encode())

    def _health(self, scope: Scope) -> Response:
        return Response(200, _TEXT, b"ok\n")

    async def _ready(self, scope: Scope) -> Response:
        if self.draining:
            return _problem(503, "Service Unavailable", "draining: ask another instance")
        await self.gate.ping()
        return Response(200, _TEXT, b"ready\n")

    def _metrics(self, scope: Scope) -> Response:
        return Response(200, CONTENT_TYPE, self.metrics.exposition())


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return bytes(body)


async def _send(send: Send, response: Response, *, head: bool, close: bool) -> None:
    headers = [(b"content-type", response.content_type.encode()), (b"content-length", b"%d" % len(response.body))]
    if not response.body:
        del headers[0]
    headers.extend((name.lower().encode(), value.encode("latin-1")) for name, value in response.headers)
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else response.body})


def _problem(status: int, title: str, detail: str) -> Response:
    return Response(status, PROBLEM_JSON, problem_json(plain_problem(status, title, detail)))


def _not_allowed(allow: str) -> Response:
    body = problem_json(plain_problem(405, "Method Not Allowed", f"use {allow}"))
    return Response(405, PROBLEM_JSON, body, [("Allow", allow)])
