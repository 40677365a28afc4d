"""Paths, refusals, errors and ends of streams, in the formats of OpenAI and of Anthropic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate import Limiter
from headgate.decision import Decision, NamedLimit, Reading
from headgate.limits import SlidingLog
from headgate.llm import EventReader, StreamUsage, Usage
from headgate.llm.dialects import (
    Problem,
    StreamEnd,
    cut_events,
    dialect_of,
    limit_headers,
    problem_answer,
    refusal,
    requested_units,
)
from headgate.llm.dialects.paths import url_at
from headgate.testing import ManualClock

NOON = 1_795_348_800_000_000
"""2026-11-22T12:00:00Z."""


def decided(limits: str, *costs: dict[str, Any]) -> tuple[Decision, ManualClock]:
    """The last decision for these costs, charged one after another, at noon."""
    clock = ManualClock(NOON)
    limiter = Limiter(limits, name="user", clock=clock)
    holds = [limiter.reserve("u1", cost, lease=600) for cost in costs]
    return holds[-1].decision, clock


def refused(
    limits: str, *costs: dict[str, Any], family: Any = "openai", **options: Any
) -> tuple[int, dict[str, str], Any]:
    decision, clock = decided(limits, *costs)
    options = {"model": "gpt-5.5", "caller": "ci", **options}
    answer = refusal(family, decision, clock=clock, **options)
    return answer.status, dict(answer.headers), json.loads(answer.body)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat"),
        ("/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/v1/responses?stream=true", "responses"),
        ("/embeddings", "embeddings"),
        ("/v1/messages", "messages"),
        ("/messages/count_tokens", "count_tokens"),
        ("/v1/models", "models"),
        ("/v1/models/gpt-5.5", "models"),
    ],
)
def test_a_path_is_a_dialect_with_and_without_its_version(path: str, name: str) -> None:
    dialect = dialect_of(path)
    assert dialect is not None and dialect.name == name and dialect.path.startswith("/v1/")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/images/generations", "/v1/files", "/v1/chat/completions/", "/v1//chat/completions", "/v1/v1/messages",
        "/v1/chat/completions/chatcmpl-1", "/v1/responses/resp_1", "/v1/messages/batches", "/v1/models/",
        "/v1/models/..", "/v1/models/a/b", "/v1/models/%2e%2e", "/V1/chat/completions", "/v1/chat%2Fcompletions",
        "", "/", "*",
    ],
)  # fmt: skip
def test_a_path_that_is_not_known_is_no_dialect(path: str) -> None:
    assert dialect_of(path) is None


def test_lists_of_models_and_counts_of_tokens_are_not_charged() -> None:
    dialects = [dialect_of(path) for path in ("/models", "/v1/messages/count_tokens", "/v1/messages", "/responses")]
    free = [dialect.name for dialect in dialects if dialect is not None and not dialect.is_charged]
    assert free == ["models", "count_tokens"]
    models = dialect_of("/v1/models", family="anthropic")
    assert models is not None and models.family == "anthropic" and models.method == "GET"


@pytest.mark.parametrize(
    ("base_url", "path", "url"),
    [
        ("https://api.openai.com", "/v1/responses", "https://api.openai.com/v1/responses"),
        ("https://api.openai.com/v1/", "/v1/responses", "https://api.openai.com/v1/responses"),
        ("https://openrouter.ai/api", "/v1/embeddings", "https://openrouter.ai/api/v1/embeddings"),
        (
            "https://x.example/v1beta/openai/",
            "/v1/chat/completions",
            "https://x.example/v1beta/openai/chat/completions",
        ),
        ("https://x.example/api/paas/v4", "/v1/chat/completions", "https://x.example/api/paas/v4/chat/completions"),
        ("https://v1.example", "/v1/chat/completions", "https://v1.example/v1/chat/completions"),
        ("https://x.example/vllm", "/v1/models/m", "https://x.example/vllm/v1/models/m"),
        ("https://api.anthropic.com/v1", "/v1/messages", "https://api.anthropic.com/v1/messages"),
        ("https://x.example/v1/me/anthropic", "/v1/messages", "https://x.example/v1/me/anthropic/v1/messages"),
        ("https://x.example/v2", "/v1/messages/count_tokens", "https://x.example/v2/v1/messages/count_tokens"),
    ],
)
def test_a_base_url_is_extended_as_the_clients_of_its_dialect_do(base_url: str, path: str, url: str) -> None:
    assert url_at(base_url, path) == url


def test_a_refusal_of_tokens_has_openais_format() -> None:
    status, headers, body = refused(
        "100/minute; 15000 tokens/minute bucket",
        {"requests": 1, "tokens": 11972},
        {"requests": 1, "tokens": 4351},
        requested=requested_units(351, 4000, None),
    )
    assert status == 429
    assert body == {
        "error": {
            "message": "Rate limit reached for gpt-5.5 in ci on tokens per min (TPM): Limit 15000, Used 11972, "
            "Requested 4351. Please try again in 5.292s. The limit is user.tokens.minute.",
            "type": "tokens",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }
    assert headers.pop("x-request-id").startswith("req_")
    assert headers == {
        "content-type": "application/json",
        "retry-after": "6",
        "retry-after-ms": "5292",
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "99",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "15000",
        "x-ratelimit-remaining-tokens": "3028",
        "x-ratelimit-reset-tokens": "47.888s",
    }


def test_a_refusal_of_requests_has_openais_format() -> None:
    _, headers, body = refused("2/minute", {"requests": 2}, {"requests": 1}, requested={"requests": 1})
    assert body["error"]["type"] == "requests" and body["error"]["code"] == "rate_limit_exceeded"
    assert body["error"]["message"] == (
        "Rate limit reached for gpt-5.5 in ci on requests per min (RPM): Limit 2, Used 2, Requested 1. "
        "Please try again in 1m0s. The limit is user."
    )
    assert headers["retry-after"] == "60" and "x-should-retry" not in headers


def test_a_spent_budget_is_no_invitation_to_try_again() -> None:
    spent = ("20 usd/day in UTC", {"usd": "19.9"}, {"usd": "0.25"})
    _, headers, body = refused(*spent, requested=requested_units(1, 1, 250_000_000))
    assert (body["error"]["type"], body["error"]["code"]) == ("insufficient_quota", "insufficient_quota")
    assert body["error"]["message"] == (
        "You exceeded your current quota: limit 20 usd per day, used 19.9, requested 0.25. "
        "Please try again in 12h0m0s (at 2026-11-23T00:00:00Z). The limit is user.usd."
    )
    assert headers["x-should-retry"] == "false" and "retry-after" not in headers
    assert headers["x-ratelimit-reset-usd"] == "12h0m0s" and headers["x-ratelimit-remaining-usd"] == "0.1"
    _, headers, body = refused(*spent, family="anthropic", requested=requested_units(1, 1, 250_000_000))
    assert (
        body["error"]["type"] == "rate_limit_error" and "budget of ci: limit 20 usd per day" in body["error"]["message"]
    )
    assert headers["x-should-retry"] == "false" and "retry-after" not in headers
    assert headers["anthropic-ratelimit-usd-reset"] == "2026-11-23T00:00:00Z"


@pytest.mark.parametrize("late_us", [-1_500_000, -2_000, 0, 1, 2_000, 1_500_000])
@pytest.mark.parametrize(
    ("limit", "moment"),
    [
        ("20 usd/day in UTC", "2026-11-23T00:00:00Z"),
        ("20 usd/day fixed", "2026-11-23T00:00:00Z"),
        ("20 usd/month in Europe/Zurich", "2026-11-30T23:00:00Z"),
        ("20 usd/week in Asia/Kathmandu; 30 usd/day in UTC", "2026-11-22T18:15:00Z"),
        ("20 usd/day in UTC; 20 usd/month in UTC", "2026-12-01T00:00:00Z"),
        ("20 usd/month in UTC; 20 usd/day", "2026-12-01T00:00:00Z"),
    ],
)
def test_a_budget_is_free_again_at_its_border_however_long_the_answer_took(
    limit: str, moment: str, late_us: int
) -> None:
    decision, clock = decided(limit, {"usd": 20}, {"usd": 1})
    clock.set(NOON + late_us)  # clocks differ a little, as that of a Redis does
    answer = refusal("openai", decision, model="gpt-5.5", clock=clock)
    assert f"(at {moment})" in json.loads(answer.body)["error"]["message"]
    answer = refusal("anthropic", decision, model="gpt-5.5", clock=clock)
    resets = {dict(answer.headers)["anthropic-ratelimit-usd-reset"]}
    assert f"(at {moment})" in json.loads(answer.body)["error"]["message"]
    assert resets == {moment}


def test_a_budget_that_refills_gradually_states_the_first_full_second_at_which_it_suffices() -> None:
    decision, clock = decided("24 usd/day bucket", {"usd": 24}, {"usd": "6.0000001"})
    for late_us, second in ((0, "01"), (2_000, "01")):
        clock.set(NOON + late_us)
        answer = refusal("openai", decision, model="gpt-5.5", clock=clock)
        assert f"(at 2026-11-22T18:00:{second}Z)" in json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize("limit", ["20 usd/day in UTC", "20 usd/day fixed"])
def test_the_reset_of_an_unused_budget_is_now(limit: str) -> None:
    decision, clock = decided(limit, {"usd": 21})
    headers = dict(refusal("anthropic", decision, model="gpt-5.5", clock=clock).headers)
    assert headers["anthropic-ratelimit-usd-reset"] == "2026-11-22T12:00:00Z"


@pytest.mark.parametrize("family", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("limits", "costs", "retries"),
    [
        ("1/day", [{"requests": 1}, {"requests": 1}], False),
        ("1/minute", [{"requests": 1}, {"requests": 1}], True),
        ("10 tokens/minute bucket", [{"tokens": 11}], False),
        ("1 usd/minute", [{"usd": 1}, {"usd": 1}], False),
        ("1 concurrent", [{"requests": 1}, {"requests": 1}], True),
        ("1/second; 1 usd/month in UTC", [{"requests": 1, "usd": 1}, {"requests": 1, "usd": 1}], False),
    ],
)
def test_only_refusals_that_a_short_wait_cures_are_retried(family: Any, limits: str, costs: Any, retries: bool) -> None:
    _, headers, _ = refused(limits, *costs, family=family)
    assert ("x-should-retry" not in headers) == retries
    assert ("retry-after" in headers) == retries
    assert int(headers.get("retry-after", 0)) <= 60


def test_the_refusal_of_a_call_that_can_never_fit_says_so() -> None:
    _, headers, body = refused("10000 tokens/minute bucket", {"tokens": 12000}, requested={"tokens": 12000})
    assert body["error"]["message"] == (
        "Request too large for gpt-5.5 in ci on tokens per min (TPM): Limit 10000, Requested 12000. The input or "
        "output tokens must be reduced in order to run successfully. The limit is user.tokens."
    )
    assert headers["x-should-retry"] == "false"


def test_a_refusal_for_a_place_in_flight_suggests_a_retry_before_the_lease_ends() -> None:
    _, headers, body = refused("1 concurrent", {"requests": 1}, {"requests": 1})
    assert headers["retry-after"] == "1"
    assert body["error"]["message"] == (
        "Rate limit reached for gpt-5.5 in ci on requests at one time: Limit 1, Used 1. "
        "Please try again in 1s, or when a call has ended. The limit is user."
    )


def test_a_refusal_has_anthropics_format() -> None:
    limits = "40000 input_tokens/minute bucket; 100 uncached_input_tokens/minute bucket; 50 per 5 minutes"
    status, headers, body = refused(
        limits,
        {"requests": 1, "input_tokens": 30_000, "uncached_input_tokens": 80},
        {"requests": 1, "input_tokens": 15_000, "uncached_input_tokens": 50},
        family="anthropic", model="claude-opus-5", requested=requested_units(15_000, 1, None),
    )  # fmt: skip
    assert status == 429
    assert body["type"] == "error" and body["request_id"] == headers["request-id"]
    assert body["error"] == {
        "type": "rate_limit_error",
        "message": "This request would exceed the rate limit of 100 uncached input tokens per minute of ci for "
        "claude-opus-5: 80 are used, 15,000 were requested. Please try again in 18s. "
        "The limit is user.uncached_input_tokens.minute.",
    }
    assert headers["anthropic-ratelimit-input-tokens-limit"] == "100"
    assert headers["anthropic-ratelimit-input-tokens-remaining"] == "20"
    assert headers["anthropic-ratelimit-input-tokens-reset"] == "2026-11-22T12:00:48Z"
    assert headers["anthropic-ratelimit-requests-limit"] == "50"
    assert headers["retry-after"] == "18"


def test_the_headers_of_an_admitted_call_have_the_nearest_limit_of_each_unit() -> None:
    decision, clock = decided("10/minute; 1000/day; 5 concurrent; 3 usd/day in UTC", {"requests": 2, "usd": "1.5"})
    assert limit_headers("openai", decision, clock=clock) == [
        ("x-ratelimit-limit-requests", "10"),
        ("x-ratelimit-remaining-requests", "8"),
        ("x-ratelimit-reset-requests", "1m0s"),
        ("x-ratelimit-limit-usd", "3"),
        ("x-ratelimit-remaining-usd", "1.5"),
        ("x-ratelimit-reset-usd", "12h0m0s"),
    ]


def test_headers_leave_out_shadow_limits() -> None:
    shadow = NamedLimit(SlidingLog(limit=1, period="minute"), "s", "s", shadow=True)
    decision = Decision((shadow,), [Reading(False, 0, 1, 1, 1, 0)], allowed=True, binding=None)
    assert limit_headers("openai", decision) == []


def test_unavailable_limits_are_reported_as_a_server_error() -> None:
    limit = NamedLimit(SlidingLog(limit=1, period="minute"), "s", "s")
    reading = Reading(False, 0, 1, 1_000_000, 1, 0)
    decision = Decision((limit,), [reading], allowed=False, binding=0, degraded="closed")
    answer = refusal("openai", decision, model="m")
    assert answer.status == 503 and json.loads(answer.body)["error"]["type"] == "server_error"


def test_a_call_without_what_it_is_counted_by_is_refused() -> None:
    decision = Decision((), [], allowed=False, binding=None)
    answer = refusal("anthropic", decision, model="m")
    assert answer.status == 429 and ("x-should-retry", "false") in answer.headers


@pytest.mark.parametrize("problem", list(Problem))
def test_a_problem_has_the_format_of_each_family(problem: Problem) -> None:
    openai, anthropic = (problem_answer(family, problem, "it is so") for family in ("openai", "anthropic"))
    assert openai.status == anthropic.status == problem.value.status
    assert json.loads(openai.body)["error"]["message"] == json.loads(anthropic.body)["error"]["message"] == "it is so"
    assert (("x-should-retry", "false") in openai.headers) == (not problem.value.retries)


def test_a_long_wait_for_a_provider_is_not_slept() -> None:
    short = problem_answer("openai", Problem.PROVIDER_BUSY, "busy", wait_us=1_500_000)
    assert ("retry-after", "2") in short.headers and ("retry-after-ms", "1500") in short.headers
    long = problem_answer("openai", Problem.PROVIDER_BUSY, "busy", wait_us=86_400_000_000)
    assert ("x-should-retry", "false") in long.headers and "retry-after" not in dict(long.headers)


def read(stream: bytes) -> tuple[list[Any], StreamUsage]:
    usage = StreamUsage()
    events = EventReader().feed(stream)
    for event in events:
        usage.read_event(event)
    return [json.loads(event.data) for event in events if event.data != "[DONE]"], usage


CHUNK = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "gpt-5.5"}


def test_a_chat_ends_for_its_length_in_each_choice_that_is_open() -> None:
    chunks = [
        {**CHUNK, "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]},
        {**CHUNK, "choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]},
        {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    events, usage = read(cut_events("chat", chunks, Usage(10, 4, reasoning=1)))
    choice = {"index": 1, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert events[0] == {**CHUNK, "choices": [choice]}
    assert usage.usage == Usage(10, 4, reasoning=1) and usage.is_final and usage.has_ended
    silent, usage = read(cut_events("chat", chunks, Usage(10, 4), reports_usage=False))
    assert len(silent) == 1 and usage.usage is None and usage.has_ended


def test_a_stream_that_has_not_begun_is_ended_too() -> None:
    events, _ = read(cut_events("completions", [], Usage(10, 0)))
    assert events[0]["object"] == "text_completion" and events[0]["choices"][0]["finish_reason"] == "length"
    events, _ = read(cut_events("messages", [], Usage(10, 0)))
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    events, usage = read(cut_events("responses", [], Usage(10, 0)))
    assert events[0]["response"]["status"] == "incomplete" and usage.has_ended


def test_a_stream_whose_choices_have_ended_only_reports_its_usage() -> None:
    chunks = [{**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    events, _ = read(cut_events("chat", chunks, Usage(10, 4)))
    assert [event["choices"] for event in events] == [[]]


def test_messages_end_with_their_open_blocks() -> None:
    message_events = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1},
    ]
    events, usage = read(cut_events("messages", message_events, Usage(5, 9)))
    assert events == [
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]
    assert usage.has_ended and usage.usage is not None and usage.usage.output == 9


def test_a_response_ends_with_its_items_and_parts() -> None:
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    call = {"id": "fc_1", "type": "function_call", "name": "f", "call_id": "c", "arguments": ""}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    end = StreamEnd("responses")
    events_so_far: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "resp_1", "object": "response", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": {"type": "output_text", "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": "Hel"},
        {"type": "response.output_text.delta", **place, "delta": "lo"},
        {"type": "response.output_item.added", "output_index": 1, "item": call},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 1, "delta": '{"a'},
    ]
    for number, event in enumerate(events_so_far):
        end.read({**event, "sequence_number": number})
    events, usage = read(end.cut(Usage(5, 9)))
    assert [(event["type"], event["sequence_number"]) for event in events] == [
        ("response.output_text.done", 7),
        ("response.content_part.done", 8),
        ("response.output_item.done", 9),
        ("response.output_item.done", 10),
        ("response.incomplete", 11),
    ]
    response = events[-1]["response"]
    assert response["id"] == "resp_1" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["content"][0]["text"] == "Hello" and response["output"][0]["status"] == "incomplete"
    assert response["output"][1]["arguments"] == '{"a'
    assert usage.usage == Usage(5, 9) and usage.is_final


@pytest.mark.parametrize(
    ("item", "delta", "field"),
    [
        ({"type": "custom_tool_call", "input": ""}, "custom_tool_call_input", "input"),
        ({"type": "mcp_call", "arguments": ""}, "mcp_call_arguments", "arguments"),
        ({"type": "code_interpreter_call", "code": ""}, "code_interpreter_call_code", "code"),
    ],
)
def test_a_response_ends_with_what_was_generated_of_any_call(item: dict[str, Any], delta: str, field: str) -> None:
    end = StreamEnd("responses")
    end.read({"type": "response.output_item.added", "output_index": 0, "item": item})
    for text in ("ab", "c"):
        end.read({"type": f"response.{delta}.delta", "output_index": 0, "delta": text})
    events, _ = read(end.cut(Usage(5, 9)))
    assert events[-1]["response"]["output"] == [{**item, field: "abc", "status": "incomplete"}]


def test_a_response_ends_with_the_reasoning_that_was_generated() -> None:
    place = {"output_index": 0, "content_index": 0}
    end = StreamEnd("responses")
    end.read({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "summary": []}})
    end.read({"type": "response.content_part.added", **place, "part": {"type": "reasoning_text", "text": ""}})
    end.read({"type": "response.reasoning_text.delta", **place, "delta": "hm"})
    events, _ = read(end.cut(Usage(5, 9)))
    assert (events[0]["type"], events[0]["text"]) == ("response.reasoning_text.done", "hm")
    assert events[-1]["response"]["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


@pytest.mark.parametrize("dialect", ["chat", "completions", "responses", "messages"])
@pytest.mark.parametrize("event", [None, 7, [], {"choices": None}, {"choices": [None, {"index": "x"}]}, {"type": 3},
                                  {"type": "response.output_item.added", "output_index": 0, "item": "x"},
                                  {"type": "content_block_start", "index": None}])  # fmt: skip
def test_events_of_a_wrong_shape_do_not_prevent_the_end(dialect: str, event: Any) -> None:
    _, usage = read(cut_events(dialect, [event], Usage(5, 9)))
    assert usage.has_ended and usage.usage is not None and usage.usage.output == 9
