"""How the real packages of OpenAI and Anthropic handle refusals, errors and streams that are cut."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import openai
import pytest

from headgate import Limiter
from headgate.llm import Usage
from headgate.llm.dialects import Answer, Problem, StreamEnd, problem_answer, refusal, requested_units
from headgate.testing import ManualClock

pytestmark = pytest.mark.integration


class FixedServer(ThreadingHTTPServer):
    """Answers every request with the same response, and counts the requests."""

    response: Answer
    requests = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FixedServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.requests += 1
        status, headers, body = self.server.response
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[FixedServer]:
    with FixedServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def openai_of(server: FixedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="k", base_url=f"http://127.0.0.1:{server.server_port}/v1", max_retries=2) as client:
        yield client


@contextmanager
def anthropic_of(server: FixedServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="k", base_url=f"http://127.0.0.1:{server.server_port}", max_retries=2) as client:
        yield client


def error_of_openai(server: FixedServer) -> openai.APIStatusError:
    with openai_of(server) as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="gpt-5.5", messages=[{"role": "user", "content": "hi"}])
    return caught.value


def error_of_anthropic(server: FixedServer) -> anthropic.APIStatusError:
    with anthropic_of(server) as client, pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model="claude-opus-5", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
    return caught.value


def refused(family: Any, limits: str, cost: dict[str, Any]) -> Answer:
    limiter = Limiter(limits, name="user", clock=ManualClock(1_795_348_800_000_000))
    limiter.hit("u1", cost)
    decision = limiter.hit("u1", cost)
    return refusal(family, decision, model="gpt-5.5", caller="ci", requested=requested_units(10, 20, 5))


BUDGET = ("1 usd/day in UTC", {"usd": "0.9"})


def test_a_used_up_budget_makes_no_package_sleep_or_retry(server: FixedServer) -> None:
    server.response = refused("openai", *BUDGET)
    openai_error = error_of_openai(server)
    assert isinstance(openai_error, openai.RateLimitError) and server.requests == 1
    assert openai_error.type == openai_error.code == "insufficient_quota" and openai_error.request_id is not None
    server.response = refused("anthropic", *BUDGET)
    error = error_of_anthropic(server)
    assert isinstance(error, anthropic.RateLimitError) and server.requests == 2
    assert error.request_id is not None and "budget" in error.message


def test_both_packages_sleep_for_a_short_wait(server: FixedServer) -> None:
    limits = ("1 per 50 ms", {"requests": 1})
    server.response = refused("openai", *limits)
    assert isinstance(error_of_openai(server), openai.RateLimitError) and server.requests == 3
    server.response = refused("anthropic", *limits)
    assert isinstance(error_of_anthropic(server), anthropic.RateLimitError) and server.requests == 6


@pytest.mark.parametrize(
    ("problem", "of_openai", "of_anthropic"),
    [
        (Problem.BAD_BODY, openai.BadRequestError, anthropic.BadRequestError),
        (Problem.UNKNOWN_PRICE, openai.BadRequestError, anthropic.BadRequestError),
        (Problem.UNKNOWN_MODEL, openai.NotFoundError, anthropic.NotFoundError),
        (Problem.UNKNOWN_KEY, openai.AuthenticationError, anthropic.AuthenticationError),
        (Problem.UNKNOWN_PATH, openai.NotFoundError, anthropic.NotFoundError),
        (Problem.TOO_LARGE, openai.APIStatusError, anthropic.APIStatusError),
    ],
)
def test_problems_raise_the_errors_of_the_packages(
    server: FixedServer, problem: Problem, of_openai: type[Exception], of_anthropic: type[Exception]
) -> None:
    server.response = problem_answer("openai", problem, "it is so")
    assert isinstance(error_of_openai(server), of_openai)
    server.response = problem_answer("anthropic", problem, "it is so")
    assert isinstance(error_of_anthropic(server), of_anthropic)
    assert server.requests == 2


def streamed(dialect: str, events: list[dict[str, Any]], usage: Usage) -> Answer:
    """Make a stream of these events that is cut after the last."""
    end, body = StreamEnd(dialect), b""
    for event in events:
        end.read(event)
        name = f"event: {event['type']}\n" if "type" in event else ""
        body += f"{name}data: {json.dumps(event)}\n\n".encode()
    return Answer(200, [("content-type", "text/event-stream")], body + end.cut(usage))


def test_a_cut_chat_ends_as_one_that_reached_its_maximum_of_tokens(server: FixedServer) -> None:
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "gpt-5.5"}
    first = {**chunk, "choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}]}
    server.response = streamed("chat", [first], Usage(10, 4))
    with openai_of(server) as client:
        create = client.chat.completions.create
        with create(model="gpt-5.5", messages=[{"role": "user", "content": "hi"}], stream=True) as stream:
            chunks = list(stream)
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices] == [None, "length"]
    usage = chunks[-1].usage
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (10, 4)


def test_cut_messages_end_as_those_that_reached_their_maximum_of_tokens(server: FixedServer) -> None:
    message: dict[str, Any] = {
        "id": "m", "type": "message", "role": "assistant", "model": "claude-opus-5", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 1},
    }  # fmt: skip
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    ]
    server.response = streamed("messages", events, Usage(10, 4))
    with (
        anthropic_of(server) as client,
        client.messages.stream(
            model="claude-opus-5", max_tokens=50, messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        final = stream.get_final_message()
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 4
    assert [block.text for block in final.content if block.type == "text"] == ["Hel"]


def test_a_cut_response_is_incomplete(server: FixedServer) -> None:
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5.5", "output": [],
                "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "in_progress"}  # fmt: skip
    position = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **position, "part": part},
        {"type": "response.output_text.delta", **position, "delta": "Hel", "logprobs": []},
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    server.response = streamed("responses", numbered, Usage(10, 4))
    with (
        openai_of(server) as client,
        client.responses.create(model="gpt-5.5", input="hi", stream=True) as stream,
    ):
        *_, last = list(stream)
    assert last.type == "response.incomplete" and last.response.output_text == "Hel"
    assert last.response.usage is not None and last.response.usage.output_tokens == 4
