"""Functions that call a model are held by a decorator, and settled by the answer or the stream that they return."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from headgate import RateLimited
from headgate.decision import Decision
from headgate.errors import ArgumentError, ConfigError
from headgate.llm import AsyncLlmGate, LlmGate
from headgate.testing import ManualClock
from until import until, until_async

POLICY = {
    "version": 1,
    "llm": {"prices": {"m": {"input": "1", "output": "10"}}, "hold": "max"},
    "rules": [{"name": "user", "by": ["user"], "limits": "10/minute; 90000 tokens/day in UTC; 5 concurrent"}],
}
USAGE = {"prompt_tokens": 12, "completion_tokens": 230}
ANSWER = {"choices": [], "usage": USAGE}
CHUNKS = [{"choices": [{"delta": {"content": "Blue."}}]}, {"choices": [], "usage": USAGE}]
ASKED: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
TRUTH, NOTHING, HELD = (1, 242, 0), (0, 0, 0), 1000


class Stream:
    """A client's stream for threads, for asyncio, or both; it records whether it was closed."""

    def __init__(self) -> None:
        self.response = "what it came in"
        self.is_closed = False
        self._chunks = iter(CHUNKS)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return next(self._chunks)

    def close(self) -> None:
        self.is_closed = True


class AsyncStream(Stream):
    __next__ = None  # type: ignore[assignment]

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Any:
        for chunk in self._chunks:
            return chunk
        raise StopAsyncIteration

    async def close(self) -> None:  # type: ignore[override]
        self.is_closed = True


@pytest.fixture
def gate() -> LlmGate:
    return LlmGate(POLICY, clock=ManualClock())


def used_by(decision: Decision) -> tuple[int, int, int]:
    """Requests, tokens and calls in flight that are used, without the call that queries them."""
    requests, tokens, calls = (reading.limit - reading.remaining for reading in decision.limits)
    return requests - 1, tokens, calls - 1


def used(gate: LlmGate, user: str = "ann") -> tuple[int, int, int]:
    looking = gate.reserve("m", user=user, input_tokens=0, max_tokens=0)
    found = used_by(looking.decision)
    looking.cancel()
    return found


async def used_async(gate: AsyncLlmGate) -> tuple[int, int, int]:
    looking = await gate.reserve("m", user="ann", input_tokens=0, max_tokens=0)
    found = used_by(looking.decision)
    await looking.cancel()
    return found


def test_a_function_is_held_by_its_arguments_and_settled_by_its_answer(gate: LlmGate) -> None:
    @gate.limited(model="m", user="ann")
    def call_model(messages: list[Any], max_tokens: int = HELD, **more: Any) -> Any:
        """Call the model."""
        requests, tokens, calls = used(gate)
        assert (requests, calls) == (1, 1) and tokens > max_tokens * more["n"]
        return ANSWER

    assert call_model.__doc__ == "Call the model." and call_model.__name__ == "call_model"
    assert call_model(ASKED, n=2) is ANSWER
    assert used(gate) == TRUTH


def test_functions_of_the_call_may_give_model_body_and_caller(gate: LlmGate) -> None:
    @gate.limited(
        model=lambda question, **_: question["model"],
        user=lambda question, user: user,
        body=lambda question, user: {"messages": ASKED, "max_tokens": question["most"]},
    )
    def call_model(question: dict[str, Any], user: str) -> Any:
        assert HELD < used(gate, user)[1] < HELD + 100
        return ANSWER

    call_model({"model": "m", "most": HELD}, user="bob")
    assert used(gate, "bob") == TRUTH and used(gate) == NOTHING


def test_a_refusal_raises_and_the_function_is_not_called(gate: LlmGate) -> None:
    calls: list[int] = []

    @gate.limited(user="ann")
    def call_model(model: str, max_tokens: int) -> Any:
        calls.append(max_tokens)
        return ANSWER

    for _ in range(10):
        call_model("m", HELD)
    with pytest.raises(RateLimited):
        call_model("m", max_tokens=HELD)
    assert len(calls) == 10
    with pytest.raises(ArgumentError):
        call_model("m", -1)


def test_a_function_that_raises_is_settled_by_what_happened(gate: LlmGate) -> None:
    class StatusError(Exception):
        status_code = 503

    @gate.limited(model="m", user="ann")
    def call_model(error: Exception, max_tokens: int = HELD) -> Any:
        raise error

    for error, tokens in ((StatusError(), 0), (ConnectionRefusedError(), 0), (ValueError(), HELD)):
        with pytest.raises(type(error)):
            call_model(error)
        assert used(gate)[1:] == (tokens, 0)
    assert used(gate)[0] == 2, "a call that was never sent is no request"


def test_omitted_arguments_of_a_package_are_no_part_of_the_body(gate: LlmGate) -> None:
    def create(*, messages: Any, model: str, max_tokens: Any = openai.omit, tools: Any = anthropic.omit) -> Any:
        return ANSWER

    created = gate.limited(user="ann")(create)
    assert created(model="m", messages=ASKED) == ANSWER and used(gate) == TRUTH
    assert created(model="m", messages=ASKED, max_tokens=openai.NOT_GIVEN, tools=anthropic.NOT_GIVEN) == ANSWER
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1:1", max_retries=0)
    with client, pytest.raises(openai.APIConnectionError):
        gate.limited(user="eve")(client.chat.completions.create)(model="m", messages=ASKED)
    assert used(gate, "eve") == NOTHING


@pytest.mark.parametrize("package", [openai.AsyncOpenAI, anthropic.AsyncAnthropic])
def test_methods_of_asynchronous_clients_are_held_though_they_begin_with_def(package: Any) -> None:
    async def main() -> None:
        gate = AsyncLlmGate(POLICY, clock=ManualClock())
        client = package(api_key="none", base_url="http://127.0.0.1:1", max_retries=0)
        create = client.chat.completions.create if package is openai.AsyncOpenAI else client.messages.create
        async with client:
            with pytest.raises((openai.APIConnectionError, anthropic.APIConnectionError)):
                await gate.limited(user="ann")(create)(model="m", messages=ASKED, max_tokens=HELD)
        assert await used_async(gate) == NOTHING

    asyncio.run(main())


def test_a_coroutine_under_a_gate_for_threads_is_an_error_and_costs_nothing(gate: LlmGate) -> None:
    async def create(messages: Any) -> Any:
        raise AssertionError("it is never begun")

    @gate.limited(model="m", user="ann")
    @functools.wraps(create)
    def checked(messages: Any) -> Any:
        return create(messages)

    with pytest.raises(ConfigError, match="the function 'create' gives a coroutine: use AsyncLlmGate"):
        checked(ASKED)
    assert used(gate) == NOTHING


def test_fields_of_an_extra_body_are_held_as_they_are_sent(gate: LlmGate) -> None:
    seen: list[tuple[int, int, int]] = []

    @gate.limited(user="ann")
    def call_model(model: str, max_tokens: int, extra_body: Any = None) -> Any:
        seen.append(used(gate))
        return ANSWER

    call_model("cheap", HELD, extra_body={"model": "m", "max_tokens": 5 * HELD})
    call_model("m", HELD, extra_body=None)
    assert [tokens for _, tokens, _ in seen] == [5 * HELD, TRUTH[1] + HELD]
    with pytest.raises(RateLimited):
        call_model("m", HELD, extra_body={"max_tokens": 90_000})


@pytest.mark.parametrize(
    "method",
    [
        lambda: anthropic.Anthropic(api_key="none").messages.stream,
        lambda: openai.OpenAI(api_key="none").chat.completions.stream,
        lambda: openai.OpenAI(api_key="none").chat.completions.with_streaming_response.create,
    ],
)
def test_a_function_with_a_call_block_of_its_own_is_an_error_and_costs_nothing(
    gate: LlmGate, method: Callable[[], Any]
) -> None:
    arguments: dict[str, Any] = {"model": "m", "messages": ASKED, "max_tokens": HELD}
    with pytest.raises(ConfigError, match=r"gives a \w+Manager, which calls the model later: use gate.wrap\(client\)"):
        gate.limited(user="ann")(method())(**arguments)
    assert used(gate) == NOTHING


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_context_manager_of_a_coroutine_function_is_an_error_and_costs_nothing() -> None:
    async def main() -> None:
        gate = AsyncLlmGate(POLICY, clock=ManualClock())

        @gate.limited(user="ann")
        async def call_model(model: str, messages: Any, max_tokens: int) -> Any:
            client = anthropic.AsyncAnthropic(api_key="none")
            return client.messages.stream(model=model, messages=messages, max_tokens=max_tokens)

        with pytest.raises(ConfigError, match="gives a AsyncMessageStreamManager"):
            await call_model(model="m", messages=ASKED, max_tokens=HELD)
        with pytest.raises(ConfigError, match=r"'stream' begins with def: use LlmGate, or gate.wrap\(client\)"):
            gate.limited(user="ann")(anthropic.AsyncAnthropic(api_key="none").messages.stream)
        assert await used_async(gate) == NOTHING

    asyncio.run(main())


@pytest.mark.parametrize("way", ["to its end", "with", "close", "drop", "never read"])
def test_a_stream_settles_at_its_end_or_where_it_is_left(gate: LlmGate, way: str) -> None:
    source = Stream()

    @gate.limited(model="m", user="ann")
    def call_model(max_tokens: int = HELD) -> Any:
        return source

    stream: Any = call_model()
    assert stream.response == "what it came in" and used(gate)[2] == 1
    if way == "to its end":
        assert list(stream) == CHUNKS
        assert used(gate) == TRUTH
        return
    if way != "never read":
        assert next(stream) == CHUNKS[0]
    if way == "with":
        with stream:
            pass
    if way == "close":
        stream.close()
    del stream
    gc.collect()
    until(lambda: used(gate) == (1, HELD, 0) and source.is_closed)  # a thread settles what the collector finds


def test_a_generator_is_a_stream(gate: LlmGate) -> None:
    @gate.limited(model="m", user="ann")
    def call_model(max_tokens: int = HELD) -> Iterator[Any]:
        yield from CHUNKS

    assert list(call_model()) == CHUNKS and used(gate) == TRUTH


def test_methods_are_functions(gate: LlmGate) -> None:
    class Asking:
        @gate.limited(user=lambda self, **_: self.user)
        def call_model(self, *, model: str, max_tokens: int) -> Any:
            return ANSWER

        user = "ann"

    Asking().call_model(model="m", max_tokens=HELD)
    assert used(gate) == TRUTH


def test_coroutines_and_their_streams_are_held() -> None:
    async def main() -> None:
        async with AsyncLlmGate(POLICY, clock=ManualClock()) as gate:

            @gate.limited(model="m", user="ann")
            async def call_model(stream: Any = None, max_tokens: int = HELD) -> Any:
                assert (await used_async(gate))[2] == 1
                return ANSWER if stream is None else stream

            assert await call_model() is ANSWER and await used_async(gate) == TRUTH
            assert [chunk async for chunk in await call_model(AsyncStream())] == CHUNKS
            assert await used_async(gate) == (2, 484, 0)
            source = AsyncStream()
            async with await call_model(source) as stream:
                assert await anext(stream) == CHUNKS[0] and stream.response == "what it came in"
            assert await used_async(gate) == (3, 484 + HELD, 0) and source.is_closed
            with pytest.raises(RateLimited):
                await call_model(max_tokens=100_000)

    asyncio.run(main())


def test_asynchronous_generators_and_dropped_streams_are_settled() -> None:
    async def main() -> None:
        async with AsyncLlmGate(POLICY, clock=ManualClock()) as gate:

            @gate.limited(model="m", user="ann")
            async def call_model(max_tokens: int = HELD) -> AsyncIterator[Any]:
                for chunk in CHUNKS:
                    yield chunk

            assert [chunk async for chunk in call_model()] == CHUNKS and await used_async(gate) == TRUTH

            @gate.limited(model="m", user="ann")
            async def stream(max_tokens: int = HELD) -> Any:
                return AsyncStream()

            @gate.limited(model="m", user="ann")
            async def fail(max_tokens: int = HELD) -> Any:
                raise ConnectionRefusedError

            with pytest.raises(ConnectionRefusedError):
                await fail()
            await stream()
            gc.collect()
            calls: list[int] = []

            async def look() -> None:
                while not calls or calls[-1]:
                    await asyncio.sleep(0.002)
                    calls.append((await used_async(gate))[2])

            task = asyncio.ensure_future(look())
            await until_async(task.done)
            assert await used_async(gate) == (2, 242 + HELD, 0)

    asyncio.run(main())


async def _coroutine() -> None: ...


async def _generator() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("gate_of", "function", "says"),
    [
        (LlmGate, _coroutine, "the function '_coroutine' begins with async def: use AsyncLlmGate"),
        (LlmGate, _generator, "use AsyncLlmGate"),
        (AsyncLlmGate, lambda: None, "the function '<lambda>' begins with def: use LlmGate"),
        (LlmGate, 5, "limited goes around a function or a method, not 5"),
        (LlmGate, Stream, "limited goes around a function"),
    ],
)
def test_a_function_that_cannot_be_held_is_an_error(gate_of: Callable[..., Any], function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        gate_of(POLICY).limited()(function)
