"""Usage as reported in every dialect, by bodies and by the real packages of OpenAI and Anthropic."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from pydantic import TypeAdapter

from headgate.llm.events import EventReader
from headgate.llm.stream_reading import StreamReading
from headgate.llm.streams import StreamUsage
from headgate.llm.usage import MOST_TOKENS, Usage, read_usage, usage_of

CHAT = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5.5",
    "choices": [],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 20},
    },
}
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5.5",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 10},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 20},
        "total_tokens": 150,
    },
}
MESSAGE: dict[str, Any] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5",
    "content": [],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 60,
        "cache_read_input_tokens": 30,
        "cache_creation_input_tokens": 10,
        "cache_creation": {"ephemeral_5m_input_tokens": 6, "ephemeral_1h_input_tokens": 4},
        "output_tokens": 50,
        "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
    },
}
EMBEDDING = {
    "object": "list",
    "model": "text-embedding-3-small",
    "data": [],
    "usage": {"prompt_tokens": 8, "total_tokens": 8},
}


@pytest.mark.parametrize("as_object", [False, True])
@pytest.mark.parametrize(
    ("answer", "kind", "usage"),
    [
        (CHAT, ChatCompletion, Usage(100, 50, 30, 10, 0, 20)),
        (RESPONSE, Response, Usage(100, 50, 30, 10, 0, 20)),
        (MESSAGE, Message, Usage(100, 50, 30, 10, 4, 0, 2)),
        (EMBEDDING, CreateEmbeddingResponse, Usage(8, 0)),
    ],
)
def test_each_dialect_is_read_from_bodies_and_from_objects(
    answer: dict[str, Any], kind: Any, usage: Usage, *, as_object: bool
) -> None:
    assert read_usage(kind.model_validate(answer) if as_object else answer) == usage


@pytest.mark.parametrize(
    "answer", [None, {}, {"usage": None}, {"usage": {}}, {"usage": []}, {"usage": "100"}, [], 7, "x"]
)
def test_a_missing_usage_is_unknown_and_not_zero(answer: Any) -> None:
    assert read_usage(answer) is None


@pytest.mark.parametrize("nonsense", [-1, True, 1.5, 12.0, "12", MOST_TOKENS + 1, [1], {"a": 1}])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_a_number_that_cannot_be_is_unknown(name: str, nonsense: Any) -> None:
    assert usage_of({"prompt_tokens": 1, "completion_tokens": 1, name: nonsense}) is None


def test_parts_are_never_larger_than_the_total() -> None:
    assert usage_of({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 30}}) == Usage(30, 0, 30)
    fields = {"prompt_tokens": 5, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 9}}
    assert usage_of(fields) == Usage(5, 9, reasoning=9)


@pytest.mark.parametrize("cache", [{}, {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}])
def test_thinking_tokens_of_anthropic_are_reasoning(cache: dict[str, int]) -> None:
    fields = {"input_tokens": 5, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 7}, **cache}
    assert usage_of(fields) == Usage(5, 9, reasoning=7)
    usage = StreamUsage()
    usage.read({"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1, **cache}}})
    usage.read({"type": "message_delta", "delta": {}, "usage": {**fields, "input_tokens": None}})
    assert usage.usage == Usage(5, 9, reasoning=7) and usage.is_final


@pytest.mark.parametrize(
    ("beside", "usage"),
    [
        ({"cache_read_input_tokens": 30, "cache_creation_input_tokens": 60}, Usage(100, 5, 30, 60)),
        ({"cache_creation_input_tokens": 60, "prompt_tokens_details": {"cached_tokens": 30}}, Usage(100, 5, 30, 60)),
        ({"prompt_cache_hit_tokens": 90, "prompt_cache_miss_tokens": 10}, Usage(100, 5, 90)),
        ({"cached_tokens": 90}, Usage(100, 5, 90)),
        ({"cached_tokens": 90, "prompt_tokens_details": {"cached_tokens": 90}}, Usage(100, 5, 90)),
        ({"cache_creation_input_tokens": None, "cached_tokens": None}, Usage(100, 5)),
    ],
)
def test_cache_reads_and_writes_reported_beside_the_details_count(beside: dict[str, Any], usage: Usage) -> None:
    fields = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, **beside}
    assert usage_of(fields) == usage
    assert read_usage(ChatCompletion.model_validate({**CHAT, "usage": fields})) == usage


def test_cache_writes_for_an_hour_that_a_router_reports_are_counted_as_such() -> None:
    details: dict[str, Any] = {"cached_tokens": 0, "cache_creation_tokens": 60}
    details["cache_creation_token_details"] = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 40}
    fields = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": details}
    assert usage_of({**fields, "cache_creation_input_tokens": 60}) == Usage(100, 5, 0, 60, 40)


def test_reasoning_that_a_server_reports_only_in_the_total_counts() -> None:
    assert usage_of({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115}) == Usage(10, 105)


def stream(*events: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events) + end


def read(data: bytes) -> tuple[StreamUsage, list[bool]]:
    reader, usage = EventReader(), StreamUsage()
    return usage, [usage.read_event(event) for event in reader.feed(data)]


def passed(data: bytes) -> StreamUsage:
    """The usage that is read from a stream, an event at a time, where no rule holds slices."""
    reading = StreamReading("m", None, 100)
    for event in data.split(b"\n\n")[:-1]:
        assert reading.feed(event + b"\n\n") == [event + b"\n\n"]
    return reading.usage


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 12, "completion_tokens": 3}], ids=["untold", "told"])
def test_deferred_events_are_read_when_they_are_needed(usage: Any) -> None:
    events = [chunk(f"word{number} ", finish="length" if number == 1999 else None) for number in range(2000)]
    tiers = ["default"] * 1000 + ["priority"] * 1000
    tiered = [{**event, "usage": None, "service_tier": tier} for event, tier in zip(events, tiers, strict=True)]
    data = stream(*tiered, *([chunk(None, usage)] if usage else []))
    lazy, eager = passed(data), read(data)[0]
    for name in ("usage", "is_final", "has_ended", "was_cut", "terms", "models", "text"):
        assert getattr(lazy, name) == getattr(eager, name), name
    assert lazy.text.startswith("word0 word1 ") and lazy.text.endswith("word1999 ") and lazy.was_cut


def test_the_first_event_of_a_stream_passes_before_it_is_read() -> None:
    first = stream({**chunk("Hel"), "service_tier": "flex"}, end=b"")
    reading = StreamReading("m", None, 100)
    assert reading.feed(first) == [first] and reading.usage._texts == [""]
    second = stream({**chunk("lo"), "model": "other", "service_tier": "default"}, end=b"")
    assert reading.feed(second) == [second] and reading.usage._texts == ["Hel", ""]
    assert reading.usage.models == ("m", "other") and reading.usage.terms == {"service_tier": "default"}
    assert reading.usage.text == "Hello"


@given(st.lists(st.sampled_from([
    b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}\n\n',
    b'data: {"choices":[{"delta":{"content":"b"},"finish_reason": "length"}]}\n\n',
    b'data: {"choices":[],"usage" : {"prompt_tokens":1,"completion_tokens":2}}\n\n',
    b'data: {"choices":[{"delta":{"content":"\\"usage\\":null [DONE]"}}],"service_tier": "flex"}\n\n',
    b'data: {"model":"m","choices":[{"delta":{"content":"e"}}],"service_tier":"default"}\n\n',
    b'data: {"choices":[{"delta":{"content":"f","model":"n"}}],"service_tier":"flex","model":"o"}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"c"}\n\n',
    b'data: {"type":"response.incomplete","response":{"id":"r","usage":{"input_tokens":3,"output_tokens":4}}}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":9}}\n\n',
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"d"}}\r\n\r\n',
    b'data: {"type":"message_stop"}\n\n', b": still here\n\n", b"data: [DONE]\n\n", b"\n", b"data: {\n\n",
]), max_size=12), st.integers(1, 200), st.randoms(use_true_random=False))  # fmt: skip
def test_a_stream_has_the_same_usage_whether_its_events_are_deferred_or_read(
    events: list[bytes], size: int, data_order: random.Random
) -> None:
    data = b"".join(events)
    lazy, eager = StreamReading("m", None, 100), read(data)[0]
    passed_on = b"".join(b"".join(lazy.feed(data[start : start + size])) for start in range(0, len(data), size))
    assert passed_on + lazy.rest() == data
    names = ["usage", "is_final", "has_ended", "was_cut", "terms", "response_id", "text"]
    assert lazy.usage.models[:1] == eager.models[:1]
    for name in data_order.sample(names, len(names)):
        assert getattr(lazy.usage, name) == getattr(eager, name), name


def chunk(content: str | None, usage: Any = None, finish: str | None = None) -> dict[str, Any]:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": usage,
    }


def test_a_chat_stream_reports_usage_in_a_separate_chunk() -> None:
    usage, alone = read(stream(chunk("Hel"), chunk("lo", finish="stop"), chunk(None, CHAT["usage"])))
    assert usage.usage == Usage(100, 50, 30, 10, 0, 20)
    assert usage.is_final and usage.has_ended and usage.text == "Hello"
    assert alone == [False, False, True, False]


def test_the_last_usage_counts_in_a_chat_stream_that_reports_it_in_each_chunk() -> None:
    usages = [{"prompt_tokens": 10, "completion_tokens": output} for output in (1, 2, 3)]
    usage, alone = read(stream(*(chunk("x", each) for each in usages[:2]), end=b""))
    assert usage.usage == Usage(10, 2) and not usage.is_final and not usage.has_ended
    assert not usage.read(chunk("x", usages[2], "stop")) and usage.usage == Usage(10, 3) and usage.is_final
    assert alone == [False, False]


@pytest.mark.parametrize(
    ("sent", "made", "usage"),
    [
        (
            {"audio_tokens": 90},
            {"audio_tokens": 30, "text_tokens": 20},
            Usage(100, 50, audio_input=90, audio_output=30),
        ),
        ({}, {"image_tokens": 40, "reasoning_tokens": 10}, Usage(100, 50, reasoning=10, image_output=40)),
        ({"audio_tokens": 95, "cached_tokens": 30}, {}, Usage(100, 50, 30, audio_input=70)),
        ({"audio_tokens": 110}, {"audio_tokens": 60, "reasoning_tokens": 5}, Usage(110, 65, 0, 0, 0, 5, 0, 110, 60)),
    ],
)
def test_audio_and_images_are_parts_of_input_and_output(
    sent: dict[str, int], made: dict[str, int], usage: Usage
) -> None:
    for kinds in ("prompt", "completion"), ("input", "output"):
        totals = {f"{kind}_tokens": whole for kind, whole in zip(kinds, (100, 50), strict=True)}
        details = {f"{kind}_tokens_details": each for kind, each in zip(kinds, (sent, made), strict=True)}
        assert read_usage({"usage": {**totals, **details}}) == usage


@pytest.mark.parametrize("event", [{"choices": None}, {"choices": "x"}, {"choices": [None, 7]}, [], "text", 7, None])
def test_chunks_of_wrong_shape_are_ignored(event: Any) -> None:
    usage, alone = read(stream(event, chunk("ok"), end=b"data: {not json\n\n: comment\n\n"))
    assert usage.usage is None and not usage.is_final and usage.text == "ok" and alone == [False] * 4


def test_of_a_stream_without_an_end_a_bounded_text_is_kept() -> None:
    usage = StreamUsage()
    delta = {"choices": [{"index": 0, "delta": {"content": "x" * (1 << 16)}}]}
    for _ in range(200):
        usage.read(delta)
    assert 1 << 22 <= len(usage.text) < 1 << 23
    usage.read({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}})
    assert usage.usage == Usage(1, 9) and usage.is_final


def test_a_stream_without_usage_leaves_the_text_to_be_counted() -> None:
    call = {"index": 0, "id": "1", "function": {"name": "get", "arguments": '{"a":'}, "type": "function"}
    more = {"index": 0, "function": {"arguments": "1}"}}
    events = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [more], "reasoning_content": "so"}}]},
        {"choices": [{"index": 0, "text": " old"}]},
    ]
    usage, _ = read(stream(*events))
    assert usage.text == 'get{"a":so1} old' and usage.usage is None and usage.has_ended and not usage.is_final


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"function_call": {"name": "get", "arguments": "{}"}}, "get{}"),
        ({"tool_calls": [{"type": "custom", "custom": {"name": "sql", "input": "SELECT"}}]}, "sqlSELECT"),
        ({"audio": {"id": "a1", "data": "UklGRg==", "transcript": "Good day"}}, "Good day"),
        ({"content": [{"type": "text", "text": "Hi"}, {"type": "thinking", "thinking": [{"text": "so"}]}]}, "Hiso"),
        ({"content": [{"type": "thinking", "thinking": "so"}, 7, None]}, "so"),
    ],
)
def test_all_output_of_a_chunk_is_counted(delta: dict[str, Any], text: str) -> None:
    usage, _ = read(stream({"choices": [{"index": 0, "delta": delta}]}))
    assert usage.text == text


def test_usage_in_each_chunk_is_final_once_all_choices_have_ended() -> None:
    def chunk_of(index: int, output: int, end: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": {"content": "x"}, "finish_reason": end}
        return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": output}}

    usage = StreamUsage()
    usage.read(chunk_of(0, 1, "stop"))
    usage.read(chunk_of(1, 2, None))
    assert usage.usage == Usage(10, 2) and not usage.is_final, "a client that leaves here has not read the end"
    usage.read(chunk_of(1, 3, "stop"))
    assert usage.usage == Usage(10, 3) and usage.is_final


@pytest.mark.parametrize("end", ["response.completed", "response.incomplete", "response.failed"])
def test_a_stream_of_responses_reports_usage_at_its_end_however_it_ends(end: str) -> None:
    usage, _ = read(
        stream(
            {"type": "response.created", "response": {**RESPONSE, "usage": None}},
            {"type": "response.output_text.delta", "delta": "Hi"},
            {"type": "response.function_call_arguments.delta", "delta": "{}"},
            {"type": end, "response": RESPONSE},
            end=b"",
        )
    )
    assert usage.usage == Usage(100, 50, 30, 10, 0, 20) and usage.is_final and usage.has_ended
    assert usage.text == "Hi{}"


def test_numbers_of_a_stream_of_messages_are_not_added_up() -> None:
    first = {**MESSAGE, "usage": {**MESSAGE["usage"], "output_tokens": 1}}
    events = [
        {"type": "message_start", "message": first},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 30}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50}},
        {"type": "message_stop"},
    ]
    usage, _ = read(stream(*events[:2], end=b""))
    assert usage.usage == Usage(100, 1, 30, 10, 4, 0, 2) and not usage.is_final
    usage, _ = read(stream(*events, end=b""))
    assert usage.usage == Usage(100, 50, 30, 10, 4, 0, 2) and usage.is_final and usage.has_ended and usage.text == "Hi"


def test_input_that_a_relay_reports_late_counts() -> None:
    events = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}},
        {"type": "message_delta", "usage": {"input_tokens": 70, "output_tokens": 9, "cache_read_input_tokens": 5}},
    ]
    usage, _ = read(stream(*events, end=b""))
    assert usage.usage == Usage(75, 9, 5) and usage.is_final and not usage.has_ended


def test_objects_of_the_packages_are_read_as_their_events() -> None:
    usage = StreamUsage()
    usage.read(ChatCompletionChunk.model_validate(chunk("Hi", finish="stop")))
    assert usage.read(ChatCompletionChunk.model_validate(chunk(None, CHAT["usage"])))
    assert usage.usage == Usage(100, 50, 30, 10, 0, 20) and usage.is_final and usage.text == "Hi"
    messages = StreamUsage()
    events: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for event in (
        {"type": "message_start", "message": MESSAGE},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 80},
        },
        {"type": "message_stop"},
    ):
        messages.read(events.validate_python(event))
    assert messages.usage == Usage(100, 80, 30, 10, 4, 0, 2) and messages.is_final and messages.text == "Hi"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "usage", "choices", "delta", "message", "response", "input_tokens", "prompt_tokens"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(JSON, st.sampled_from([None, "message_start", "message_delta", "response.completed", "x.delta", 7]))
def test_nothing_that_a_provider_sends_raises_an_error(value: Any, kind: Any) -> None:
    usage = StreamUsage()
    if isinstance(value, dict) and kind is not None:
        value["type"] = kind
    usage.read(value)
    found = usage.usage
    assert found is None or all(0 <= number <= 3 * MOST_TOKENS for number in found)
    assert read_usage(value) is None or isinstance(read_usage(value), Usage)


ITERATIONS: dict[str, Any] = {
    "input_tokens": 23_000,
    "cache_read_input_tokens": 1_000,
    "output_tokens": 1_000,
    "iterations": [
        {"type": "compaction", "input_tokens": 180_000, "cache_creation_input_tokens": 500, "output_tokens": 3_500},
        {"type": "advisor_message", "model": "claude-opus-5", "input_tokens": 70, "output_tokens": 30},
        {"type": "message", "input_tokens": 23_000, "cache_read_input_tokens": 1_000, "output_tokens": 1_000},
    ],
}
WITH_ITERATIONS = Usage(23_000 + 1_000 + 180_500 + 70, 1_000 + 3_500 + 30, cache_read=1_000, cache_write=500)


def test_parts_that_differ_between_events_are_never_more_than_the_total() -> None:
    usage = StreamUsage()
    written = {"input_tokens": 10, "cache_creation_input_tokens": 1000, "output_tokens": 1}
    read_ = {"input_tokens": 10, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 0, "output_tokens": 5}
    usage.read({"type": "message_start", "message": {"usage": written}})
    usage.read({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": read_})
    assert usage.usage == Usage(2000, 5, cache_read=1000, cache_write=1000)


def test_additional_usage_of_a_message_counts() -> None:
    assert usage_of(ITERATIONS) == WITH_ITERATIONS
    assert read_usage(BetaMessage.construct(**{**MESSAGE, "usage": ITERATIONS})) == WITH_ITERATIONS
    plain = {"input_tokens": 5, "output_tokens": 2, "iterations": [{"type": "message", "input_tokens": 5}]}
    assert usage_of(plain) == Usage(5, 2)
    assert usage_of({**plain, "iterations": [{"type": "compaction", "input_tokens": -1}]}) is None


def test_additional_usage_of_a_streamed_message_counts_once() -> None:
    usage = StreamUsage()
    usage.read({"type": "message_start", "message": {"usage": {"input_tokens": 23_000, "output_tokens": 1}}})
    for _ in range(2):
        usage.read({"type": "message_delta", "delta": {}, "usage": ITERATIONS})
    usage.read({"type": "message_stop"})
    assert usage.usage == WITH_ITERATIONS and usage.is_final


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("early", [{"choices": []}, {"choices": None}, {"choices": [{"finish_reason": "stop"}]}])
@pytest.mark.parametrize("at_once", [True, False])
def test_usage_that_is_reported_before_further_output_is_not_final(
    early: dict[str, Any], ends: bool, at_once: bool
) -> None:
    early_usage = {"prompt_tokens": 5, "completion_tokens": 0}
    words = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
    events = [
        {**early, "usage": early_usage},
        words,
        words,
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    parts = [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"] * ends
    reading = StreamReading("gpt-5", None, 256)
    for part in [b"".join(parts)] if at_once else parts:
        reading.feed(part)
    usage = reading.usage
    assert usage.usage == Usage(5, 0) and not usage.is_final and usage.text == "word word "
    late = [json.dumps({"choices": [], "usage": {**early_usage, "completion_tokens": 2}}).encode(), b"[DONE]"]
    for event in late:
        reading.feed(b"data: " + event + b"\n\n")
    assert usage.usage == Usage(5, 2) and usage.is_final
