"""The real clients of OpenAI and Anthropic, wrapped: their calls are held before, and settled by their answers."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from headgate.decision import Decision
from headgate.errors import ConfigError
from headgate.llm import AsyncLlmGate, LlmGate
from llm_provider import INPUT_TOKENS, OUTPUT_TOKENS, WORDS, Provider, chat_events, message_events, provider
from until import until, until_async

NAMES = ["m", "m-429", "m-500", "m-cut", "m-silent", "m-endless", "m-zipped", "m-moved", "m-untyped", "m-whole"]
LIMITS = "60/minute; 90000 tokens/day in UTC; 2 usd/day in UTC; 5 concurrent"
ASKED: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
MOST = 1000


@pytest.fixture(scope="module")
def serving() -> Iterator[Provider]:
    with provider() as serving:
        yield serving


@pytest.fixture
def upstream(serving: Provider) -> Provider:
    serving.received.clear()
    serving.disconnected.clear()
    return serving


def policy(limits: str = LIMITS, **llm: Any) -> dict[str, Any]:
    prices = {name: {"input": "1", "output": "10"} for name in NAMES}
    rule = {"name": "user", "by": ["user"], "limits": limits}
    return {"version": 1, "llm": {"prices": prices, "hold": "max", **llm}, "rules": [rule]}


OPEN: list[Any] = []
"""Clients of a test, which are closed after it."""


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def held(gate: LlmGate, client: Any, user: Any = "u1") -> Any:
    """The client wrapped by a gate."""
    OPEN.append(gate.wrap(client, user=user))
    return OPEN[-1]


def openai_of(gate: LlmGate, upstream: Provider, user: Any = "u1", **options: Any) -> openai.OpenAI:
    plain = openai.OpenAI(api_key="k", base_url=f"{upstream.url}/v1", **{"max_retries": 0, **options})
    client: openai.OpenAI = held(gate, plain, user)
    return client


def anthropic_of(gate: LlmGate, upstream: Provider, user: str = "u1") -> anthropic.Anthropic:
    plain = anthropic.Anthropic(api_key="k", base_url=upstream.url, max_retries=0)
    client: anthropic.Anthropic = held(gate, plain, user)
    return client


def used(gate: LlmGate, user: str = "u1") -> dict[str, int]:
    """The used amount of each limit of a user: requests, tokens, billionths of a dollar, calls in flight."""
    looking = gate.reserve("m", user=user, input_tokens=0, max_tokens=0)
    found = used_by(looking.decision)
    looking.cancel()
    return found


async def used_async(gate: AsyncLlmGate) -> dict[str, int]:
    looking = await gate.reserve("m", user="u1", input_tokens=0, max_tokens=0)
    found = used_by(looking.decision)
    await looking.cancel()
    return found


def used_by(decision: Decision) -> dict[str, int]:
    """The usage without that of the call that queries it, which is one request in flight."""
    found = {"requests": -1, "tokens": 0, "usd": 0, "calls": -1}
    for reading in decision.limits:
        name = reading.unit if reading.definition.limit.is_rate else "calls"
        found[name] += reading.limit - reading.remaining
    return found


NOTHING = {"requests": 0, "tokens": 0, "usd": 0, "calls": 0}
TRUTH = {
    "requests": 1,
    "tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    "usd": (INPUT_TOKENS + 10 * OUTPUT_TOKENS) * 1000,
    "calls": 0,
}
FAILED = {"requests": 1, "tokens": 0, "usd": 0, "calls": 0}


def test_a_whole_answer_settles_by_its_usage(upstream: Provider) -> None:
    gate = LlmGate(policy())
    client = openai_of(gate, upstream)
    assert type(client) is openai.OpenAI
    answer = client.chat.completions.create(model="m", messages=ASKED, max_completion_tokens=MOST)
    assert answer.choices[0].message.content == "The sky is blue." and answer.usage is not None
    assert used(gate) == TRUTH
    assert upstream.received == [{"messages": ASKED, "model": "m", "max_completion_tokens": MOST}], "sent as it was"
    message = anthropic_of(gate, upstream, "u2").messages.create(model="m", messages=ASKED, max_tokens=MOST)
    assert message.content[0].text == "The sky is blue."  # type: ignore[union-attr]
    assert used(gate, "u2") == TRUTH


def test_each_dialect_is_held(upstream: Provider) -> None:
    gate = LlmGate(policy())
    client = openai_of(gate, upstream)
    assert client.responses.create(model="m", input="Why?", max_output_tokens=MOST).output_text == "The sky is blue."
    assert used(gate) == TRUTH
    client = openai_of(gate, upstream, "u2")
    assert client.embeddings.create(model="m", input="Why?").data[0].embedding == [0.5]
    assert used(gate, "u2") == {"requests": 1, "tokens": INPUT_TOKENS, "usd": INPUT_TOKENS * 1000, "calls": 0}


def test_embeddings_hold_no_output(upstream: Provider) -> None:
    gate = LlmGate(policy(limits="1000 tokens/minute bucket; 0.001 usd/day in UTC"))
    assert openai_of(gate, upstream).embeddings.create(model="m", input="Why?").data[0].embedding == [0.5]


@pytest.mark.parametrize("asks", [True, False])
def test_a_stream_settles_by_usage_that_the_client_sees_only_if_it_requested_it(upstream: Provider, asks: bool) -> None:
    gate = LlmGate(policy())
    options: Any = {"stream_options": {"include_usage": True}} if asks else {}
    chunks = list(
        openai_of(gate, upstream).chat.completions.create(
            model="m", messages=ASKED, max_tokens=MOST, stream=True, **options
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "The sky is blue."
    assert [chunk.usage is not None for chunk in chunks] == [False] * 6 + [True] * asks
    assert upstream.received[0]["stream_options"] == {"include_usage": True}
    assert used(gate) == TRUTH


def test_a_stream_of_messages_settles_by_its_usage(upstream: Provider) -> None:
    gate = LlmGate(policy())
    with anthropic_of(gate, upstream).messages.stream(model="m", messages=ASKED, max_tokens=MOST) as stream:
        assert list(stream.text_stream) == WORDS
        assert used(gate) == TRUTH, "before the client sees the end"
    assert used(gate) == TRUTH


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_clients_of_httpx_get_the_bytes_of_the_provider(upstream: Provider, library: Any) -> None:
    gate = LlmGate(policy())
    with gate.wrap(library.Client(base_url=f"{upstream.url}/any/v1/"), user="u1") as client:
        body = {"model": "m", "messages": ASKED, "max_tokens": MOST, "stream": True}
        with client.stream("POST", "chat/completions", json=body) as response:
            assert b"".join(response.iter_bytes()) == b"".join(chat_events("m", usage=False))
        with_usage_option = {**body, "stream_options": {"include_usage": True}}
        assert client.post("chat/completions", json=with_usage_option).content == b"".join(chat_events("m", usage=True))
        assert client.post("messages", json=body).content == b"".join(message_events("m"))
        assert client.post("chat/completions", json={**body, "model": "m-zipped", "stream": False}).json()["id"] == "c1"
    assert used(gate) == {name: 4 * number for name, number in TRUTH.items()}


def test_a_stream_without_a_stream_content_type_is_settled_by_its_usage(upstream: Provider) -> None:
    gate = LlmGate(policy())
    stream = openai_of(gate, upstream).chat.completions.create(
        model="m-untyped", messages=ASKED, max_tokens=MOST, stream=True
    )
    assert [chunk.choices[0].delta.content for chunk in stream] == [*WORDS, None]
    assert used(gate) == TRUTH


def test_a_whole_answer_with_the_content_type_of_a_stream_is_settled_by_its_usage(upstream: Provider) -> None:
    gate = LlmGate(policy())
    body = {"model": "m-whole", "messages": ASKED, "max_tokens": MOST, "stream": True}
    with gate.wrap(httpx.Client(base_url=f"{upstream.url}/v1/"), user="u1") as client:
        for path in ("chat/completions", "messages", "responses"):
            response = client.post(path, json=body)
            assert response.headers["content-type"].startswith("text/event-stream") and "usage" in response.json()
    assert used(gate) == {name: 3 * number for name, number in TRUTH.items()}


def test_a_whole_answer_with_the_content_type_of_a_stream_is_settled_on_asyncio_too(upstream: Provider) -> None:
    async def main() -> None:
        body = {"model": "m-whole", "messages": ASKED, "max_tokens": MOST, "stream": True}
        async with AsyncLlmGate(policy()) as gate:
            async with gate.wrap(httpx.AsyncClient(base_url=f"{upstream.url}/v1/"), user="u1") as client:
                assert "usage" in (await client.post("chat/completions", json=body)).json()
            assert await used_async(gate) == TRUTH

    asyncio.run(main())


def test_a_refusal_is_the_packages_own_error_and_nothing_is_sent(upstream: Provider) -> None:
    gate = LlmGate(policy("1/day in UTC; 90000 tokens/day in UTC; 2 usd/day in UTC; 5 concurrent"))
    client, other = openai_of(gate, upstream), anthropic_of(gate, upstream)
    client.chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
    upstream.received.clear()
    for patient in (client, client.with_options(max_retries=5)):
        with pytest.raises(openai.RateLimitError) as refused:
            patient.chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
        assert refused.value.response.headers["x-should-retry"] == "false" and refused.value.type == "requests"
    with pytest.raises(anthropic.RateLimitError) as refused_too:
        other.with_options(max_retries=5).messages.create(model="m", messages=ASKED, max_tokens=MOST)
    assert refused_too.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
    assert upstream.received == []


def test_a_short_wait_is_sent_and_the_package_retries(upstream: Provider) -> None:
    gate = LlmGate(policy("1/second; 90000 tokens/day in UTC; 2 usd/day in UTC; 5 concurrent"))
    client = openai_of(gate, upstream).with_options(max_retries=3)
    for _ in range(2):
        assert client.chat.completions.create(model="m", messages=ASKED, max_tokens=MOST).id == "c1"
    assert len(upstream.received) == 2


@pytest.mark.parametrize(("model", "error"), [("m-429", openai.RateLimitError), ("m-500", openai.InternalServerError)])
def test_a_refusal_of_the_provider_costs_a_request(upstream: Provider, model: str, error: type[Exception]) -> None:
    gate = LlmGate(policy())
    with pytest.raises(error):
        openai_of(gate, upstream).chat.completions.create(model=model, messages=ASKED, max_tokens=MOST)
    assert used(gate) == FAILED


def test_a_redirected_call_counts_once(upstream: Provider) -> None:
    gate = LlmGate(policy())
    client = openai_of(gate, upstream).with_options(base_url=f"{upstream.url}/old/v1")
    with pytest.raises(openai.APIConnectionError):  # endless redirects
        client.chat.completions.create(model="m-moved", messages=ASKED, max_tokens=MOST)
    assert used(gate) == NOTHING


def test_a_call_that_was_never_sent_costs_nothing() -> None:
    gate = LlmGate(policy())
    with provider() as stopped:
        pass
    with pytest.raises(openai.APIConnectionError):
        openai_of(gate, stopped).chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
    assert used(gate) == NOTHING


def test_a_truncated_answer_or_one_without_usage_stays_as_held(upstream: Provider) -> None:
    for model in ("m-cut", "m-silent"):
        gate = LlmGate(policy())
        client = openai_of(gate, upstream)
        if model == "m-cut":
            with pytest.raises(openai.APIConnectionError):
                client.chat.completions.create(model=model, messages=ASKED, max_tokens=MOST)
        else:
            client.chat.completions.create(model=model, messages=ASKED, max_tokens=MOST)
        found = used(gate)
        assert found["tokens"] >= MOST and (found["requests"], found["calls"]) == (1, 0)


def test_a_stream_that_breaks_stays_as_held(upstream: Provider) -> None:
    gate = LlmGate(policy())
    stream = openai_of(gate, upstream).chat.completions.create(
        model="m-cut", messages=ASKED, max_tokens=MOST, stream=True
    )
    with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
        list(stream)
    found = used(gate)
    assert found["tokens"] >= MOST and found["calls"] == 0


@pytest.mark.parametrize("way", ["close", "drop", "never read"])
def test_a_client_that_leaves_early_settles_and_the_provider_sees_it(upstream: Provider, way: str) -> None:
    gate = LlmGate(policy())
    stream: Any = openai_of(gate, upstream).chat.completions.create(
        model="m-endless", messages=ASKED, max_tokens=MOST, stream=True
    )
    if way != "never read":
        next(stream)
    assert used(gate)["calls"] == 1
    if way == "close":
        stream.close()
    del stream
    gc.collect()
    assert upstream.disconnected.wait(30)
    until(lambda: used(gate)["calls"] == 0)  # a thread settles what the collector finds
    assert used(gate)["tokens"] >= MOST


def test_a_stream_is_cut_where_no_slice_can_be_held(upstream: Provider) -> None:
    gate = LlmGate(policy("60/minute; 400 tokens/day in UTC; 2 usd/day in UTC; 5 concurrent", hold="slices", slice=100))
    stream = openai_of(gate, upstream).chat.completions.create(
        model="m-endless", messages=ASKED, max_tokens=MOST, stream=True
    )
    *_, last = list(stream)
    assert last.choices[0].finish_reason == "length" and upstream.disconnected.wait(30)
    assert used(gate)["calls"] == 0
    client = anthropic_of(gate, upstream, "u2")
    with client.messages.stream(model="m-endless", messages=ASKED, max_tokens=MOST) as messages:
        assert messages.get_final_message().stop_reason == "max_tokens"


def test_free_paths_pass_and_unknown_ones_do_not(upstream: Provider) -> None:
    gate = LlmGate(policy("1/day in UTC; 90000 tokens/day in UTC; 2 usd/day in UTC; 5 concurrent"))
    client, other = openai_of(gate, upstream), anthropic_of(gate, upstream)
    for _ in range(3):
        assert [model.id for model in client.models.list()] == ["m"]
        assert other.messages.count_tokens(model="m", messages=ASKED).input_tokens == INPUT_TOKENS
        assert [model.id for model in other.models.list()] == ["m"]
    assert len(upstream.received) == 3
    with pytest.raises(openai.NotFoundError, match="POST /v1/images/generations is not known to Headgate"):
        client.images.generate(prompt="the sky")
    with pytest.raises(anthropic.NotFoundError, match="POST /v1/messages/batches is not known"):
        other.messages.batches.create(requests=[])
    assert len(upstream.received) == 3 and used(gate) == NOTHING | {"requests": 0}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"model": "nobody-knows", "max_tokens": 5}, "nobody-knows"),
        ({"model": "m", "max_tokens": -1}, "max_tokens of a call is from 0"),
        ({"model": "m", "n": 0}, "n of a call is from 1"),
    ],
)
def test_a_body_that_cannot_be_held_is_the_packages_own_error(
    upstream: Provider, body: dict[str, Any], says: str
) -> None:
    gate = LlmGate(policy())
    with pytest.raises(openai.BadRequestError, match=says):
        openai_of(gate, upstream).with_options(max_retries=5).chat.completions.create(messages=ASKED, **body)
    assert upstream.received == [] and used(gate) == NOTHING


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_an_invalid_body_is_refused(upstream: Provider, content: bytes) -> None:
    gate = LlmGate(policy())
    answer = held(gate, httpx.Client(base_url=upstream.url)).post("/v1/chat/completions", content=content)
    assert answer.status_code == 400 and answer.json()["error"]["message"] == "the body of a call is an object in JSON"
    assert upstream.received == []


def test_a_wrapped_client_keeps_its_class_and_settings(upstream: Provider) -> None:
    seen: list[str] = []
    own = httpx2.Client(timeout=7, headers={"x-own": "1"}, event_hooks={"request": [lambda _: seen.append("hook")]})
    client = openai.OpenAI(api_key="k", base_url=f"{upstream.url}/v1", max_retries=4, timeout=11, http_client=own)
    gate = LlmGate(policy())
    same = held(gate, client)
    assert (same.max_retries, same.timeout, same.api_key, same.base_url) == (4, 11, "k", client.base_url)
    same.with_options(timeout=9).chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
    assert seen == ["hook"] and used(gate) == TRUTH
    client.chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
    assert used(gate) == TRUTH, "the wrapped client is unchanged"


def test_proxies_of_a_client_hold_too(upstream: Provider) -> None:
    gate = LlmGate(policy())
    own = httpx2.Client(mounts={"http://": httpx2.HTTPTransport()})
    openai_of(gate, upstream, http_client=own).chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
    assert used(gate) == TRUTH


def test_the_caller_may_be_given_for_each_call(upstream: Provider) -> None:
    gate, users = LlmGate(policy()), iter(["ann", "bob"])
    client = openai_of(gate, upstream, lambda: next(users))
    for _ in range(2):
        client.chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
    assert used(gate, "ann") == used(gate, "bob") == TRUTH


@pytest.mark.parametrize(
    ("gate", "make", "says"),
    [
        (LlmGate, httpx2.AsyncClient, "an asynchronous client, AsyncClient, is wrapped by AsyncLlmGate"),
        (AsyncLlmGate, httpx.Client, "a client, Client, is wrapped by LlmGate"),
        (LlmGate, object, "what is wrapped is a client of the packages openai or anthropic, or one of"),
        (LlmGate, lambda: None, "not a builtins.NoneType"),
    ],
)
def test_a_client_that_cannot_be_wrapped_is_an_error(gate: Any, make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        gate(policy()).wrap(make())


@asynccontextmanager
async def held_async(
    upstream: Provider, limits: str = LIMITS
) -> AsyncIterator[tuple[AsyncLlmGate, openai.AsyncOpenAI, anthropic.AsyncAnthropic]]:
    """A gate, and clients that it wraps."""
    one = openai.AsyncOpenAI(api_key="k", base_url=f"{upstream.url}/v1", max_retries=0)
    other = anthropic.AsyncAnthropic(api_key="k", base_url=upstream.url, max_retries=0)
    gate = AsyncLlmGate(policy(limits))
    async with gate, gate.wrap(one, user="u1") as client, gate.wrap(other, user="u1") as other_client:
        yield gate, client, other_client


def test_clients_of_asyncio_are_held(upstream: Provider) -> None:
    async def main() -> None:
        async with held_async(upstream) as (gate, client, other):
            answer = await client.chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
            assert answer.id == "c1"
            assert await used_async(gate) == TRUTH
            await other.messages.create(model="m", messages=ASKED, max_tokens=MOST)
            stream = await client.chat.completions.create(model="m", messages=ASKED, max_tokens=MOST, stream=True)
            assert [chunk.choices[0].delta.content async for chunk in stream] == [*WORDS, None]
            async with other.messages.stream(model="m", messages=ASKED, max_tokens=MOST) as messages:
                assert [text async for text in messages.text_stream] == WORDS
            assert await used_async(gate) == {name: 4 * number for name, number in TRUTH.items()}
            for model, error in (("m-429", openai.RateLimitError), ("m-500", openai.InternalServerError)):
                with pytest.raises(error):
                    await client.chat.completions.create(model=model, messages=ASKED, max_tokens=MOST)
            assert (await used_async(gate))["tokens"] == 4 * TRUTH["tokens"]
            assert [model.id async for model in client.models.list()] == ["m"]
            with pytest.raises(openai.NotFoundError):
                await client.images.generate(prompt="the sky")

    asyncio.run(main())


def test_refusals_reach_clients_of_asyncio(upstream: Provider) -> None:
    async def main() -> None:
        async with held_async(upstream, "0.001 usd/day in UTC; 60/minute") as (_, client, other):
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model="m", messages=ASKED, max_tokens=MOST)
            assert refused.value.code == "insufficient_quota"
            with pytest.raises(anthropic.RateLimitError):
                await other.messages.create(model="m", messages=ASKED, max_tokens=MOST)
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="m", messages=ASKED, max_tokens=-5)
            assert upstream.received == []

    asyncio.run(main())


@pytest.mark.parametrize("way", ["close", "cancel", "drop"])
def test_calls_of_asyncio_that_are_left_are_settled(upstream: Provider, way: str) -> None:
    async def main() -> None:
        async with held_async(upstream) as (gate, client, _):

            async def read() -> None:
                stream = await client.chat.completions.create(
                    model="m-endless", messages=ASKED, max_tokens=MOST, stream=True
                )
                async for _ in stream:
                    if way != "cancel":
                        break
                if way == "close":
                    await stream.close()

            task = asyncio.ensure_future(read())
            if way == "cancel":
                await until_async(lambda: upstream.received)
                await asyncio.sleep(0.05)
                task.cancel()
            await asyncio.wait([task])
            gc.collect()
            await until_async(upstream.disconnected.is_set)
            found = await used_async(gate)
            while found["calls"]:  # a separate task settles dropped answers
                found = await used_async(gate)
            assert found["tokens"] >= MOST

    asyncio.run(main())


def test_the_body_that_the_provider_gets_is_otherwise_unchanged(upstream: Provider) -> None:
    gate = LlmGate(policy())
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "\U0001f600 <|endoftext|>"}],
        "stream": True,
        "seed": 2**60,
    }
    held(gate, httpx.Client(base_url=upstream.url)).post("/v1/chat/completions", content=json.dumps(body))
    assert upstream.received == [{**body, "stream_options": {"include_usage": True}}]
    until(lambda: used(gate) == TRUTH)
