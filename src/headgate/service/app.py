"""What the service answers: routes, and nothing else. What it is asked comes from `connection`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from urllib.parse import unquote

from headgate.decision import Decision
from headgate.errors import ArgumentError, HeadgateError, StoreError
from headgate.http.fields.ratelimit import retry_after_seconds, writers_of
from headgate.http.refusal import refusal_body, refusal_status
from headgate.observe.prometheus import CONTENT_TYPE, Metrics, Sharing
from headgate.policy.gate import AsyncGate
from headgate.policy.request import Request
from headgate.service.checks.body import Asked, BadBody, read_body, write_decision
from headgate.service.checks.forwarded import forwarded_request
from headgate.service.http.messages import HTML, JSON, PROBLEM, TEXT, Question, Response, problem_response
from headgate.service.pages.overview import page
from headgate.waiting import answered

log = logging.getLogger("headgate")

Answer = Response | Awaitable[Response]

_AT_ONCE = 100
"""So many requests of one body are before the store together; each has the whole of the store's deadline."""


class Service:
    """Answers checks for a gate. `draining` makes it tell all clients to go elsewhere."""

    def __init__(self, gate: AsyncGate, sharing: Sharing | None = None) -> None:
        self.gate = gate
        self.metrics = Metrics(gate.stats, sharing)
        self.draining = False
        self._reads: dict[str, Callable[[Question], Answer]] = {
            "/": self._page,
            "/healthz": self._health,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }

    def wants_body(self, method: str, path: str) -> bool:
        """Whether the body of such a request is to be read."""
        return method == "POST" and path == "/v1/check"

    def answer(self, question: Question) -> Answer:
        """The answer, or an awaitable of it where the store waits for I/O; neither raises."""
        try:
            answer = self._answer(question)
        except Exception as error:
            return _failure(error)
        return answer if isinstance(answer, Response) else _awaited(answer)

    def _answer(self, question: Question) -> Answer:
        path = question.path
        if path.startswith("/check"):
            if path.startswith("/check/"):
                return self._check_forwarded(question, path[7:])
            if path.startswith("/check-403/"):
                return self._check_for_nginx(question, path[11:])
        if "%" in path:
            path = unquote(path)
        if path == "/v1/check":
            return self._check_body(question)
        read = self._reads.get(path)
        if read is None:
            return problem_response(404, f"nothing is at {path[:200]}; ask GET / what is here")
        if question.method not in ("GET", "HEAD"):
            return _not_allowed("GET, HEAD")
        return read(question)

    def _check_forwarded(self, question: Question, rest: str) -> Answer:
        """Judge the request that a gateway asks about: 200, 429 or 503. `rest` follows the form in the path."""
        ruleset, _, path = rest.partition("/")
        if ruleset not in self.gate.policy.rulesets:
            known = ", ".join(self.gate.policy.rulesets)
            return problem_response(404, f"no ruleset is named {ruleset[:60]!r}; there are {known}")
        request = forwarded_request(question.method, question.peer, f"/{path}", question.headers)
        start = perf_counter()
        answer = self.gate.ask(request, 1, ruleset=ruleset)
        if isinstance(answer, Decision):
            return self._told(answer, start)
        return self._told_later(answer, start)

    def _told(self, decision: Decision, start: float) -> Response:
        self.metrics.decided(decision, perf_counter() - start)
        return response_of(decision)

    async def _told_later(self, answer: Awaitable[Decision], start: float) -> Response:
        return self._told(await answer, start)

    def _check_for_nginx(self, question: Question, rest: str) -> Answer:
        """The same for nginx, which passes on 403 alone, and has no use for a body."""
        try:
            answer = self._check_forwarded(question, rest)
        except Exception as error:
            return _without_body(_failure(error))
        return _without_body(answer) if isinstance(answer, Response) else _without_body_later(answer)

    def _check_body(self, question: Question) -> Answer:
        if question.method != "POST":
            return _not_allowed("POST")
        asked, several = read_body(question.body)
        if several:
            return self._check_several(asked)
        start = perf_counter()
        answer = self.gate.ask(asked[0].request, asked[0].cost)
        if isinstance(answer, Decision):
            return self._told_as_json(answer, start)
        return self._told_as_json_later(answer, start)

    def _told_as_json(self, decision: Decision, start: float) -> Response:
        self.metrics.decided(decision, perf_counter() - start)
        return Response(200, JSON, write_decision(decision).encode())

    async def _told_as_json_later(self, answer: Awaitable[Decision], start: float) -> Response:
        return self._told_as_json(await answer, start)

    async def _check_several(self, asked: Sequence[Asked]) -> Response:
        """Judge several requests, each by itself. What the store is asked for travels together, in their order."""
        answers: list[str] = []
        for first in range(0, len(asked), _AT_ONCE):
            some = [self._judge(*one) for one in asked[first : first + _AT_ONCE]]
            answers += await asyncio.gather(*some)
        return Response(200, JSON, f'{{"decisions": [{", ".join(answers)}]}}'.encode())

    async def _judge(self, request: Request, cost: int) -> str:
        """A decision as JSON, or what went wrong with this request alone: others were charged already."""
        start = perf_counter()
        try:
            decision = await answered(self.gate.ask(request, cost))
            self.metrics.decided(decision, perf_counter() - start)
            return write_decision(decision)
        except Exception as error:
            return f'{{"error": {_failure(error).body.decode()}}}'

    def _page(self, question: Question) -> Response:
        host = dict(question.headers).get(b"host", b"127.0.0.1:8080").decode("latin-1")
        return Response(200, HTML, page(self.gate, host).encode())

    def _health(self, question: Question) -> Response:
        return Response(200, TEXT, b"ok\n")

    async def _ready(self, question: Question) -> Response:
        if self.draining:
            return problem_response(503, "draining: ask another instance")
        await self.gate.ping()
        return Response(200, TEXT, b"ready\n")

    def _metrics(self, question: Question) -> Response:
        return Response(200, CONTENT_TYPE.encode(), self.metrics.exposition())


def response_of(decision: Decision) -> Response:
    """What a gateway is told."""
    fields = writers_of(decision.definitions).encoded.write(decision)
    if decision.degraded:
        fields.append((b"x-ratelimit-degraded", decision.degraded.encode()))
    if decision.allowed:
        return Response(200, TEXT, b"", fields)
    seconds = retry_after_seconds(decision)
    if seconds is not None:
        fields.insert(0, (b"retry-after", b"%d" % seconds))
    return Response(refusal_status(decision), PROBLEM, refusal_body(decision), fields)


async def _awaited(answer: Awaitable[Response]) -> Response:
    try:
        return await answer
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> Response:
    """What is told where something failed: whose fault it is decides the status."""
    if isinstance(error, BadBody | ArgumentError):
        return problem_response(400, str(error))
    if isinstance(error, StoreError):
        return problem_response(503, f"the store does not answer: {error}")
    if isinstance(error, HeadgateError):
        return problem_response(500, str(error))
    log.exception("unexpected", exc_info=error)
    return problem_response(500, "unexpected: the log tells more")


def _without_body(response: Response) -> Response:
    """With the problem in a field: nginx does not read a body here, so with one it would close the connection."""
    if response.status == 200:
        return response
    status = 403 if response.status == 429 else response.status
    return Response(status, PROBLEM, b"", [*response.headers, (b"x-ratelimit-problem", response.body)])


async def _without_body_later(answer: Awaitable[Response]) -> Response:
    return _without_body(await _awaited(answer))


def _not_allowed(allow: str) -> Response:
    return problem_response(405, f"use {allow}", [(b"allow", allow.encode())])
