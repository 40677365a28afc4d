"""Requests of a provider's clients, without I/O: which of them are held, and how their answers are read.

The clients are those of httpx and httpx2, by which the packages of OpenAI and Anthropic send.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headgate.clock import SYSTEM_CLOCK
from headgate.errors import ArgumentError, StoreError
from headgate.llm.call_base import CallBase
from headgate.llm.call_costs import UnknownPriceError
from headgate.llm.dialects import Answer, Dialect, Problem, StreamEnd, dialect_of, problem_answer, refusal
from headgate.llm.dialects.paths import family_of
from headgate.llm.events import EventReader
from headgate.llm.usage import Usage

CallerSource = str | Callable[[], str]
"""A field of the caller: a text, or a function without arguments that returns it for each call."""

_UNCHARGED_PATHS = re.compile(r".*/(files|uploads(/[^/]+/(parts|complete|cancel))?|moderations|responses/input_tokens"
                       r"|responses/[^/]+/cancel)")  # fmt: skip
"""Paths of requests that no model answers."""

_DEPLOYMENT = re.compile(r".*/deployments/([^/]+)/.*")
_LARGEST_ANSWER = 64 << 20
"""A whole answer of more bytes is passed on unread, and its call counts as held."""


class HeldRequest(NamedTuple):
    """A request to hold."""

    dialect: Dialect
    body: dict[str, Any]
    asks_usage: bool
    """Whether the client requested the usage of a stream, and expects the event that reports it."""

    @property
    def content(self) -> bytes | None:
        """The body to send instead, so that a stream reports its usage; None where the body needs no change."""
        if self.asks_usage or not self.body.get("stream") or not self.dialect.reports_usage_on_request:
            return None
        options = self.body.get("stream_options")
        requested_options = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        text = json.dumps({**self.body, "stream_options": requested_options}, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "surrogatepass")


def dialect_of_request(method: str, path: str, headers: Mapping[str, str]) -> Dialect | Answer | None:
    """The dialect of a request to hold, None for one that costs nothing, or the answer to an unknown one.

    A client's base URL may end anywhere before the part of the path that determines the dialect.
    """
    if method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        return None
    family = family_of(has_anthropic_version="anthropic-version" in headers)
    for start in (place.start() for place in re.finditer("/", path)):
        dialect = dialect_of(path[start:], family=family)
        if dialect is not None and dialect.method == method:
            return dialect if dialect.is_charged else None
    if _UNCHARGED_PATHS.fullmatch(path):
        return None
    message = f"{method} {path} is not known to Headgate, which holds chat completions, completions, responses, "
    message += "embeddings and messages; send it with a client that is not wrapped"
    return problem_answer(family, Problem.UNKNOWN_PATH, message)


def read_request(dialect: Dialect, path: str, content: bytes) -> HeldRequest | Answer:
    """Parse a request; the answer to it where its body is invalid."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return problem_answer(dialect.family, Problem.BAD_BODY, "the body of a call is an object in JSON")
    deployment = _DEPLOYMENT.fullmatch(path)
    if "model" not in body and deployment is not None:
        body["model"] = deployment[1]
    options = body.get("stream_options")
    return HeldRequest(dialect, body, isinstance(options, dict) and options.get("include_usage") is True)


def refused(request: HeldRequest, call: CallBase) -> Answer:
    """The answer to a refused call."""
    family, decision = request.dialect.family, call.decision
    return refusal(family, decision, model=call.model, requested=call.requested, clock=SYSTEM_CLOCK)


def not_held(request: HeldRequest, error: ArgumentError | StoreError) -> Answer:
    """The answer to a call for which no hold could be requested."""
    if isinstance(error, StoreError):
        message = "The limits cannot be checked at the moment."
        return problem_answer(request.dialect.family, Problem.STORE, message)
    problem = Problem.UNKNOWN_PRICE if isinstance(error, UnknownPriceError) else Problem.BAD_BODY
    return problem_answer(request.dialect.family, problem, str(error))


class AnswerReading:
    """Reads the bytes of one answer as they pass: a stream of events, or a whole one."""

    def __init__(self, request: HeldRequest, call: CallBase, content_type: str) -> None:
        self._call = call
        self.is_stream = content_type.strip().lower().startswith("text/event-stream")
        self._may_be_stream = not self.is_stream and request.body.get("stream") is True
        """Whether the answer may be a stream though its head does not say so, and has not begun."""

        self.stream = call.reading()
        self._strips_usage = not request.asks_usage and request.dialect.reports_usage_on_request
        self._end = StreamEnd(request.dialect.name) if self.stream.is_counted else None
        self._passed_events = EventReader()
        self._whole = bytearray()
        self._is_whole = False

    def feed(self, chunk: bytes) -> bytes:
        """Read a chunk, and return the bytes to pass on."""
        if self._may_be_stream and (start := chunk.removeprefix(b"\xef\xbb\xbf").lstrip()):
            self._may_be_stream, self.is_stream = False, not start.startswith((b"{", b"["))
        if not self.is_stream:
            if len(self._whole) <= _LARGEST_ANSWER:
                self._whole += chunk
            return chunk
        passed_on = b"".join(self.stream.feed(chunk, strip_usage=self._strips_usage))
        if self._end is not None:
            for event in self._passed_events.feed(passed_on):
                self._end.read(_parsed(event.data))
        return passed_on

    @property
    def has_ended(self) -> bool:
        """Whether a stream reported its end."""
        return self.is_stream and self.stream.usage.has_ended

    def end(self) -> bytes:
        """Note the end of the answer, and return the remaining bytes to pass on."""
        self._is_whole = True
        return self.stream.rest() if self.is_stream else b""

    @property
    def needs_more(self) -> bool:
        """Whether a further slice must be held before more is passed on."""
        return self.is_stream and self._end is not None and self.stream.needs_more and not self.has_ended

    def cut(self, output_tokens: int) -> bytes:
        """The events that end the stream now, with this number of output tokens."""
        assert self._end is not None
        usage = self.stream.usage.usage or Usage(self._call.held.input, 0)
        return self._end.cut(
            usage._replace(output=max(usage.output, output_tokens)), reports_usage=not self._strips_usage
        )

    @property
    def answer(self) -> Any:
        """The whole answer, None if it is not complete or no JSON."""
        if self.is_stream:
            return self.stream.answer
        return _parsed(bytes(self._whole)) if self._is_whole and len(self._whole) <= _LARGEST_ANSWER else None


def _parsed(data: str | bytes) -> Any:
    """Parse the JSON of an event or an answer; None if it is none."""
    try:
        return json.loads(data) if data and data != "[DONE]" else None
    except (ValueError, RecursionError):
        return None


def caller_of(caller: Mapping[str, CallerSource]) -> dict[str, str]:
    """The caller's fields for this call."""
    return {name: source() if callable(source) else source for name, source in caller.items()}
