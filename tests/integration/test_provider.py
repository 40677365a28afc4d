"""The provider of other tests answers the real packages, and is wrong where a test sets it to be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from provider import Provider, running_provider

pytestmark = pytest.mark.integration

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


def openai_of(provider: Provider) -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url=f"{provider.url}/v1", max_retries=0)


def anthropic_of(provider: Provider) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="k", base_url=provider.url, max_retries=0)


def test_the_packages_read_its_complete_responses(provider: Provider) -> None:
    with openai_of(provider) as client:
        chat = client.chat.completions.create(model="m", messages=MESSAGES)
        assert chat.choices[0].message.content == "Hello world" and chat.usage is not None
        assert client.completions.create(model="m", prompt="hi").choices[0].text == "Hello world"
        assert client.responses.create(model="m", input="hi").output_text == "Hello world"
        assert client.embeddings.create(model="m", input="hi").usage.prompt_tokens == 12
        assert [model.id for model in client.models.list()] == ["gpt-5.5"]
    with anthropic_of(provider) as other:
        message = other.messages.create(model="m", max_tokens=9, messages=MESSAGES)
        assert message.usage.output_tokens == 3
        assert other.messages.count_tokens(model="m", messages=MESSAGES).input_tokens == 12


@pytest.mark.parametrize(
    "fields",
    [{}, {"cut_bytes": 7}, {"crlf": True}, {"comments": True}, {"usage": "every chunk"}, {"usage": "never"}],
    ids=str,
)
def test_the_packages_read_its_streams(provider: Provider, fields: dict[str, Any]) -> None:
    provider.behave("streamed", **fields)
    with openai_of(provider) as client:
        with client.chat.completions.create(model="streamed", messages=MESSAGES, stream=True) as chunks:
            text = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices or ()]
        assert "".join(text) == "Hello world"
        with client.responses.create(model="streamed", input="hi", stream=True) as events:
            assert list(events)[-1].type == "response.completed"
    if fields.get("usage") == "never":
        return
    with (
        anthropic_of(provider) as other,
        other.messages.stream(model="streamed", max_tokens=9, messages=MESSAGES) as stream,
    ):
        assert stream.get_final_message().usage.output_tokens == 3


def test_it_refuses_calls_and_breaks_connections(provider: Provider) -> None:
    provider.behave("busy", status=429, headers=(("retry-after", "7"),))
    provider.behave("overloaded", status=529)
    provider.behave("broken", breaks_after=1)
    with openai_of(provider) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="busy", messages=MESSAGES)
        assert caught.value.response.headers["retry-after"] == "7"
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="overloaded", messages=MESSAGES)
        with client.chat.completions.create(model="broken", messages=MESSAGES, stream=True) as chunks:
            assert next(chunks).choices[0].delta.content == "Hel"
            with pytest.raises(Exception, match=r"(?i)peer closed|connection|incomplete"):
                next(chunks)


class SlowList(list[bytes]):
    """A list that appends slowly, as one does whose thread waits for the processor."""

    def append(self, value: bytes, /) -> None:
        time.sleep(0.3)
        super().append(value)


@pytest.mark.parametrize("fields", [{}, {"status": 500}], ids=str)
def test_sent_bytes_are_recorded_before_they_arrive(provider: Provider, fields: dict[str, Any]) -> None:
    provider.behave("m", **fields)
    original, provider.sent = provider.sent, SlowList()
    try:
        response = httpx.post(f"{provider.url}/v1/messages", json={"model": "m", "messages": MESSAGES}, timeout=30)
        assert provider.sent == [response.content]
    finally:
        provider.sent = original
        provider.behaviours.clear()
