"""A call of a language model is held by all rules that apply or by none, and settled by its actual usage."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from threading import Thread, stack_size
from typing import Any, ClassVar
from urllib.request import urlopen

import aiohttp
import httpx
import pytest
import requests

from headgate import Decision, MemoryStore, RateLimited, Request
from headgate.errors import ArgumentError, ConfigError
from headgate.llm import AsyncLlmGate, Call, Entry, LlmGate, SoftLimit, StreamUsage, UnknownPriceError, Usage
from headgate.testing import ManualClock
from until import until

PRICES = {"m": {"input": "1", "output": "10"}}
LIMITS = "60/minute; 90000 tokens/minute bucket; 20000 input_tokens/minute bucket; 2 usd/day in UTC; 5 concurrent"


class Written:
    """Books that are a list."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)


def policy(*rules: dict[str, Any], **llm: Any) -> dict[str, Any]:
    usual = {"name": "user", "by": ["user"], "limits": LIMITS}
    return {"version": 1, "llm": {"prices": PRICES, **llm}, "rules": list(rules) or [usual]}


def gate_of(*rules: dict[str, Any], clock: ManualClock | None = None, books: Any = None, **llm: Any) -> LlmGate:
    return LlmGate(policy(*rules, **llm), clock=clock or ManualClock(), books=books)


def remaining_of(gate: LlmGate, **call: Any) -> dict[str, int]:
    """The remaining amount of each limit, by its name, without charging anything."""
    looking = gate.reserve("m", **{"user": "u1", "input_tokens": 0, "max_tokens": 0, **call})
    remaining = {reading.name: reading.remaining for reading in looking.decision.limits}
    looking.cancel()
    remaining["user.minute"] += 1
    remaining["user.concurrent"] = remaining.get("user.concurrent", 0) + 1
    return remaining


FULL = {
    "user.minute": 60,
    "user.tokens.minute": 90_000,
    "user.input_tokens.minute": 20_000,
    "user.usd.day": 2_000_000_000,
    "user.concurrent": 5,
}


def test_the_most_that_a_call_can_cost_is_held_and_its_actual_cost_stays() -> None:
    gate = gate_of(hold="max")
    call = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500)
    assert call and call.held == (1000, 500, 1_000_000 + 5_000_000)
    held = remaining_of(gate)
    assert held["user.tokens.minute"] == 88_500 and held["user.input_tokens.minute"] == 19_000
    assert held["user.usd.day"] == 1_994_000_000 and held["user.concurrent"] == 4 and held["user.minute"] == 59
    call.settle({"usage": {"prompt_tokens": 900, "completion_tokens": 100}})
    after = remaining_of(gate)
    assert after["user.tokens.minute"] == 89_000 and after["user.input_tokens.minute"] == 19_100
    assert after["user.usd.day"] == 2_000_000_000 - 900_000 - 1_000_000 and after["user.concurrent"] == 5
    call.settle_usage(Usage(1, 1))
    call.cancel()
    assert remaining_of(gate) == after  # the first settling counts


def test_a_refusal_charges_nothing_and_names_its_limit() -> None:
    gate = gate_of(hold="max")
    refused = gate.reserve("m", user="u1", input_tokens=30_000, max_tokens=10)
    assert not refused and refused.decision.binding is not None
    assert refused.decision.binding.name == "user.input_tokens.minute" and refused.decision.retry_after is None
    refused.settle({"usage": {"prompt_tokens": 30_000, "completion_tokens": 1}})
    assert remaining_of(gate) == FULL
    large = gate.call("m", user="u1", input_tokens=0, max_tokens=10**6)
    with pytest.raises(RateLimited, match="this cost can never pass"), large:
        raise AssertionError("a refused block runs")


@pytest.mark.parametrize(
    ("settle", "tokens", "requests"),
    [
        (lambda call: call.cancel(), 0, 0),
        (lambda call: call.settle_failed(), 0, 1),
        (lambda call: call.settle_unknown(), 1500, 1),
        (lambda call: call.settle({"choices": []}), 1500, 1),  # has no usage: unknown is not zero
        (lambda call: call.settle({"usage": {"prompt_tokens": -5, "completion_tokens": 1}}), 1500, 1),
        (lambda call: call.settle_at_least(Usage(1000, 20)), 1500, 1),
        (lambda call: call.settle_at_least(Usage(1000, 700)), 1700, 1),
        (lambda call: call.settle_usage(Usage(1000, 7000)), 8000, 1),  # more than was held: the budget is exceeded
    ],
)
def test_each_way_to_settle_counts_as_the_specification_says(settle: Any, tokens: int, requests: int) -> None:
    gate = gate_of(hold="max")
    call = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500)
    settle(call)
    after = remaining_of(gate)
    assert (90_000 - after["user.tokens.minute"], 60 - after["user.minute"]) == (tokens, requests)
    assert after["user.concurrent"] == 5


class ProviderError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


class ConnectError(Exception):
    """An error with the name of one of httpx."""


@pytest.mark.parametrize(
    ("error", "tokens", "requests"),
    [(ProviderError(429), 0, 1), (ProviderError(500), 0, 1), (ConnectError(), 0, 0), (ValueError(), 1500, 1)],
)
def test_a_block_that_raises_is_settled_by_what_happened(error: Exception, tokens: int, requests: int) -> None:
    gate = gate_of(hold="max")
    with pytest.raises(type(error)), gate.call("m", user="u1", input_tokens=1000, max_tokens=500):
        raise error
    after = remaining_of(gate)
    assert (90_000 - after["user.tokens.minute"], 60 - after["user.minute"]) == (tokens, requests)


def test_the_cause_of_an_error_shows_that_nothing_was_sent() -> None:
    gate = gate_of()
    wrapped = RuntimeError("connection error")
    wrapped.__cause__ = ConnectError()
    with pytest.raises(RuntimeError), gate.call("m", user="u1", input_tokens=1000, max_tokens=500):
        raise wrapped
    assert remaining_of(gate) == FULL


@pytest.mark.parametrize("first", [ConnectError(), ProviderError(429)])
@pytest.mark.parametrize("second", [TimeoutError("no answer"), KeyError("choices")])
def test_the_failure_of_one_provider_says_nothing_about_the_next_one(first: Exception, second: Exception) -> None:
    def ask_both() -> None:
        try:
            raise first
        except type(first):
            raise second  # noqa: B904

    gate = gate_of(hold="max")
    with pytest.raises(type(second)), gate.call("m", user="u1", input_tokens=1000, max_tokens=500):
        ask_both()
    assert remaining_of(gate)["user.tokens.minute"] == 88_500


def test_a_connection_that_urllib_and_requests_could_not_make_costs_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for fetch, kind in ((urlopen, OSError), (requests.get, requests.ConnectionError)):
        gate = gate_of(hold="max")
        with pytest.raises(kind), gate.call("m", user="u1", input_tokens=1000, max_tokens=500):
            fetch(url)
        assert remaining_of(gate) == FULL


@pytest.mark.parametrize(
    ("status", "made_of", "tokens", "requests"),
    [
        (408, httpx.ReadTimeout("too late"), 1500, 1),
        (500, httpx.RemoteProtocolError("the connection was lost"), 1500, 1),
        (500, ValueError("no JSON"), 1500, 1),
        (500, None, 1500, 1),
        (500, httpx.ConnectError("refused"), 0, 0),
        (500, ProviderError(500), 0, 1),
        (408, ProviderError(408), 0, 1),
        (429, ProviderError(429), 0, 1),
        (400, None, 0, 1),
    ],
)
def test_a_status_that_litellm_invents_is_not_a_providers(
    status: int, made_of: Exception | None, tokens: int, requests: int
) -> None:
    """Raises errors as LiteLLM does: its own, with a status, while it handles those of the underlying client."""
    kind = type("LiteLlmError", (ProviderError,), {"__module__": "litellm.exceptions"})
    error, inner = kind(status), kind(500)
    error.__context__, inner.__context__ = inner if made_of else None, made_of
    gate = gate_of(hold="max")
    with pytest.raises(ProviderError), gate.call("m", user="u1", input_tokens=1000, max_tokens=500):
        raise error
    after = remaining_of(gate)
    assert (90_000 - after["user.tokens.minute"], 60 - after["user.minute"]) == (tokens, requests)


class RefusingHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(429)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_refusal_gives_tokens_back_whichever_package_reports_its_status() -> None:
    async def by_aiohttp(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.post(url, data=b"{}", raise_for_status=True):
            pass

    with HTTPServer(("127.0.0.1", 0), RefusingHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for fetch in (
            lambda: urlopen(url, b"{}"), lambda: requests.post(url, b"{}").raise_for_status(),
            lambda: httpx.post(url, content=b"{}").raise_for_status(), lambda: asyncio.run(by_aiohttp(url)),
        ):  # fmt: skip
            gate = gate_of(hold="max")
            with pytest.raises(Exception, match="429"), gate.call("m", user="u1", input_tokens=1000, max_tokens=500):
                fetch()
            after = remaining_of(gate)
            assert (after["user.tokens.minute"], after["user.minute"]) == (90_000, 59)
        server.shutdown()


def test_a_block_that_forgets_to_settle_stays_as_held() -> None:
    gate = gate_of(hold="max")
    with gate.call("m", user="u1", input_tokens=1000, max_tokens=500) as call:
        pass
    assert call.settled and remaining_of(gate)["user.tokens.minute"] == 88_500


def test_rules_hold_each_in_its_own_way() -> None:
    most = {"name": "most", "by": ["user"], "limits": "100000 tokens/minute bucket", "hold": "max"}
    usual = {"name": "usual", "by": ["user"], "limits": "100000 tokens/minute bucket"}
    slices = {"name": "slices", "by": ["user"], "limits": "100000 output_tokens/minute bucket", "hold": "slices"}
    gate = gate_of(most, usual, slices, expected_output=300, slice=50)
    call = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=5000)
    assert [100_000 - reading.remaining for reading in call.decision.limits] == [6000, 1300, 50]
    assert call.held.output == 5000
    small = gate.reserve("m", user="u2", input_tokens=1000, max_tokens=20)
    assert [100_000 - reading.remaining for reading in small.decision.limits] == [1020, 1020, 20]


def test_rules_are_for_models_by_name_beginning_or_group() -> None:
    def rule(name: str, model: Any) -> dict[str, Any]:
        return {"name": name, "by": [], "match": {"model": model}, "limits": "9/minute"}

    gate = gate_of(
        rule("exact", "gpt-5.5"), rule("begins", "claude-opus-*"), rule("group", "large"), rule("all", "*"),
        models={"large": ["gpt-5.5", "claude-opus-*"]}, unknown_price="free",
    )  # fmt: skip

    def applying(model: str) -> list[str]:
        return [reading.rule for reading in gate.reserve(model, input_tokens=1).decision.limits]

    assert applying("gpt-5.5") == applying("openai/GPT-5.5") == ["exact", "group", "all"]
    assert applying("us.anthropic.claude-opus-4") == ["begins", "group", "all"]
    assert applying("gpt-5.5-mini") == ["all"]


def test_keys_have_the_caller_and_the_model_in_any_of_its_spellings() -> None:
    rule = {"name": "one", "by": ["team", "model"], "limits": "1/minute"}
    gate = gate_of(rule)
    assert gate.reserve("gpt-5", team="red") and not gate.reserve("openai/GPT-5", team="red")
    assert gate.reserve("gpt-5", team="blue") and gate.reserve("gpt-5-mini", team="red")


def test_tiers_of_callers_choose_limits() -> None:
    rules = [{"name": "user", "by": ["user"], "limits": {"free": "1/minute", "pro": "3/minute"}}]
    tiers = {"from": {"identity": "tier"}, "default": "free"}
    gate = LlmGate({"version": 1, "llm": {}, "tiers": tiers, "rules": rules})
    assert [bool(gate.reserve("m", user="a", tier="pro")) for _ in range(4)] == [True, True, True, False]
    assert [bool(gate.reserve("m", user="b", tier="gold")) for _ in range(2)] == [True, False]


def test_the_http_request_of_a_call_takes_part_in_the_decision() -> None:
    rule = {"name": "chat", "by": ["ip"], "match": {"path": "/v1/chat/**", "model": "m*"}, "limits": "1/minute"}
    gate = gate_of(rule)
    request = Request("POST", "/v1/chat/completions", client_ip="203.0.113.9")
    assert gate.reserve("m", request=request) and not gate.reserve("m2", request=request)
    assert gate.reserve("x", request=request) and gate.reserve("m")


def test_an_unknown_price_says_that_the_list_of_prices_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(
        UnknownPriceError, match=r"'gpt-5' is not known, .* not installed: pip install 'headgate\[llm\]'$"
    ):
        gate_of().reserve("gpt-5", user="u1", input_tokens=1000, max_tokens=10)


def test_an_unknown_price_is_refused_stated_or_free_and_never_zero_by_accident() -> None:
    with pytest.raises(UnknownPriceError, match=r"'nobodys-model' is not known, and a limit counts usd"):
        gate_of().reserve("nobodys-model", user="u1", input_tokens=1000, max_tokens=10)
    stated = gate_of(unknown_price={"usd_per_million": "100"}, hold="max")
    call = stated.reserve("nobodys-model", user="u1", input_tokens=1000, max_tokens=10)
    assert call.held.cost == 101_000_000
    call.settle_usage(Usage(1000, 0))
    assert remaining_of(stated)["user.usd.day"] == 1_900_000_000
    assert gate_of(unknown_price="free").reserve("nobodys-model", user="u1", input_tokens=1000).held.cost == 0
    without = gate_of({"name": "all", "by": [], "limits": "5/minute"})
    assert without.reserve("nobodys-model").held.cost is None  # no limit counts money


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": -1}, "max_tokens of a call is from 0 to"),
        ({"max_tokens": "800"}, "max_tokens of a call is a whole number, not '800'"),
        ({"max_completion_tokens": 10**30}, "max_completion_tokens of a call is from 0 to"),
        ({"max_tokens": True}, "max_tokens of a call is a whole number, not a bool"),
        ({"n": 0}, "n of a call is from 1 to 1024, not 0"),
        ({"best_of": [1]}, "best_of of a call is a whole number, not a list"),
        ({"model": 5}, "model is the name of a model, not an int"),
        ({"model": "m\n"}, "model is a name of 1 to 200 printable characters"),
        ({"model": ""}, "model is a name of 1 to 200 printable characters"),
        ({"model": None}, "model is the name of a model, not None"),
        ({"user": 7}, "user of a call is text, not an int"),
        ({"body": [1]}, "the body of a call is a mapping, not a list"),
        ({"input_tokens": -1}, "input_tokens of a call is from 0 to"),
    ],
)
def test_a_body_that_no_provider_accepts_is_an_error_and_charges_nothing(fields: dict[str, Any], message: str) -> None:
    gate = gate_of()
    with pytest.raises(ArgumentError) as caught:
        gate.reserve(**{"model": "m", "user": "u1", **fields})
    assert str(caught.value).startswith(message)
    assert remaining_of(gate) == FULL


def test_the_larger_of_both_names_of_the_most_output_counts_times_the_answers() -> None:
    gate = gate_of(hold="max")
    body = {"model": "m", "max_tokens": 100, "max_completion_tokens": 200, "n": 3, "best_of": 4, "messages": "broken"}
    assert gate.reserve(body=body, user="u1").most_output == 800
    assert gate.reserve("m", user="u1", max_tokens=None).most_output == 16_384


@pytest.mark.parametrize(
    ("dialect", "fields", "most"),
    [
        ("chat", {"max_output_tokens": 1}, 16_384),
        ("chat", {"max_output_tokens": 900, "max_completion_tokens": 7, "n": 2}, 14),
        ("completions", {"max_completion_tokens": 1}, 16_384),
        ("responses", {"max_tokens": 1}, 16_384),
        ("responses", {"max_tokens": 1, "max_output_tokens": 9}, 9),
        ("messages", {"max_completion_tokens": 1}, 16_384),
        ("chat", {"max_tokens": 0}, 16_384),
        ("chat", {"max_tokens": 0, "n": 2}, 32_768),
        ("chat", {"max_tokens": 0, "max_completion_tokens": 7}, 7),
        ("completions", {"max_tokens": 0}, 0),
        ("messages", {"max_tokens": 0}, 0),
        ("chat", {"max_tokens": 5, "n_predict": 900}, 900),
        ("chat", {"max_tokens": 5, "n_predict": 2}, 5),
        ("chat", {"max_tokens": 5, "n_predict": -1}, 16_384),
        ("completions", {"max_tokens": 5, "n_predict": 9e4}, 16_384),
        ("completions", {"max_tokens": 20_000, "n_predict": -1}, 20_000),
        ("chat", {"n_predict": 90_000}, 90_000),
        ("chat", {"n_predict": 5}, 16_384),
        ("responses", {"max_output_tokens": 5, "n_predict": 900}, 900),
        ("embeddings", {"n_predict": 900}, 0),
        ("embeddings", {"input": "hello"}, 0),
        ("embeddings", {"input": "hello", "n": 2, "max_tokens": 9}, 0),
    ],
)
def test_fields_that_a_dialect_does_not_have_bound_no_output(dialect: str, fields: dict[str, Any], most: int) -> None:
    assert gate_of(hold="max").reserve("m", user="u1", dialect=dialect, **fields).most_output == most


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        ("embedings", r"no dialect is named 'embedings': there are chat, .*; did you mean \"embeddings\"\?"),
        ("Chat", 'did you mean "chat"'),
        (["chat"], "no dialect is named a list: there are chat"),
    ],
)
def test_an_unknown_dialect_is_an_error_and_holds_nothing(dialect: object, message: str) -> None:
    gate = gate_of(hold="max")
    assert gate.reserve("m", user="u1", dialect=None, max_tokens=5).decision.remaining == 4
    with pytest.raises(ArgumentError, match=message):
        gate.reserve("m", user="u1", dialect=dialect, max_tokens=5)
    assert gate.reserve("m", user="u1", dialect="", max_tokens=5).decision.remaining == 3


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [("one", 1), (["one"], 1), (["one", "two", "three"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([], 1), ({}, 1)],
)
@pytest.mark.parametrize("dialect", ["completions", ""])
def test_each_prompt_of_a_completion_is_answered(prompt: Any, answers: int, dialect: str) -> None:
    gate = gate_of(hold="max")
    assert gate.reserve("m", user="u1", dialect=dialect, prompt=prompt, max_tokens=100).most_output == 100 * answers
    assert gate.reserve("m", user="u2", prompt=prompt, max_tokens=10, n=4, best_of=5).most_output == 50 * answers


def test_messages_are_counted_and_hidden_input_is_held_in_addition() -> None:
    gate = gate_of(unknown_price="free", hidden_input=5000)
    seen = gate.reserve("gpt-5", user="u1", messages=[{"role": "user", "content": "hello"}])
    assert 5 < seen.held.input < 12
    hidden = gate.reserve("gpt-5", user="u1", input="hello", previous_response_id="resp_1")
    assert hidden.held.input > 5000
    hidden.settle({"object": "response", "id": "resp_2", "usage": {"input_tokens": 60, "output_tokens": 9}})
    known = gate.reserve("gpt-5", user="u1", input="hello", previous_response_id="resp_2")
    assert 69 < known.held.input < 80
    files = [{"content": [{"type": "input_file", "file_id": name} for name in "abc"]}]
    for earlier, least in ({}, 15_000), ({"previous_response_id": "resp_2"}, 15_069), ({"conversation": "c"}, 20_000):
        several = gate.reserve(body={"model": "gpt-5", "input": files, **earlier}, user="u2")
        assert least <= several.held.input < least + 10
        several.cancel()


def test_a_call_in_the_background_holds_its_maximum_as_its_usage_is_reported_elsewhere() -> None:
    rules = [{"name": "user", "by": ["user"], "limits": LIMITS, "hold": hold} for hold in ("expected", "slices")]
    for rule in rules:
        gate = gate_of(rule)
        call = gate.reserve("m", user="u1", dialect="responses", input="hi", max_output_tokens=9_000, background=True)
        assert call.held.output == 9_000
        call.settle({"object": "response", "status": "queued", "usage": None})
        assert remaining_of(gate)["user.tokens.minute"] < 90_000 - 9_000
        assert gate.reserve("m", user="u2", input="hi", max_output_tokens=9_000, background=False).held.output <= 1_000


def test_a_prompt_that_is_stored_at_the_provider_is_hidden() -> None:
    gate = gate_of(hidden_input=5000)
    prompt = {"id": "pmpt_1", "version": "2", "variables": {"city": "Bern"}}
    call = gate.reserve("m", user="u1", dialect="responses", input="hi", prompt=prompt, max_output_tokens=5)
    assert 5_000 < call.held.input < 5_030 and call.most_output == 5


def test_a_usage_of_no_tokens_is_none_where_some_were_sent() -> None:
    nothing = {"prompt_tokens": 0, "completion_tokens": 0}
    gate = gate_of(hold="max")
    gate.reserve("m", user="u1", input_tokens=100, max_tokens=50).settle({"choices": [], "usage": nothing})
    assert remaining_of(gate)["user.tokens.minute"] == 90_000 - 150, "the hold counts"
    with gate.call("m", user="u1", input_tokens=100, max_tokens=50) as call:
        list(call.stream([{"choices": [{"delta": {"content": "word"}}]}, {"choices": [], "usage": nothing}]))
    assert remaining_of(gate)["user.tokens.minute"] == 90_000 - 300, "at least the hold counts"
    gate.reserve("m", user="u1", input_tokens=0, max_tokens=50).settle({"choices": [], "usage": nothing})
    assert remaining_of(gate)["user.tokens.minute"] == 90_000 - 300


WORDS = "word " * 3000
SHOWN: dict[str, dict[str, Any]] = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": WORDS}}]},
    "choices": {"choices": [{"message": {"content": "word " * 1500}}, {"message": {"content": "word " * 1500}}]},
    "reasoning": {"choices": [{"message": {"content": None, "reasoning_content": WORDS}}]},
    "call": {"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": WORDS}}]}}]},
    "completion": {"choices": [{"text": WORDS}]},
    "message": {"type": "message", "content": [{"type": "text", "text": WORDS}]},
    "tool": {"type": "message", "content": [{"type": "tool_use", "name": "f", "input": {"words": WORDS}}]},
    "response": {"object": "response", "output": [{"type": "message", "content": [{"text": WORDS}]}]},
    "function": {"object": "response", "output": [{"type": "function_call", "arguments": WORDS}]},
}


@pytest.mark.parametrize("charged", [0, 10])
@pytest.mark.parametrize("answer", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": {"prompt_tokens": -1}}])
def test_an_answer_without_usage_counts_at_least_what_it_shows(
    answer: dict[str, Any], usage: dict[str, Any], charged: int
) -> None:
    books = Written()
    gate = gate_of(books=books)
    gate.reserve("m", user="u1", input_tokens=charged, max_tokens=8_000).settle({**answer, **usage})
    assert 3_000 <= 90_000 - charged - remaining_of(gate)["user.tokens.minute"] <= 4_000
    [settled] = [entry for entry in books.entries if entry.kind == "settled"][:1]
    assert settled.mode == "at least" and settled.usage is not None and settled.usage.output >= 3_000


def test_an_answer_without_usage_that_shows_little_stays_as_held() -> None:
    gate = gate_of(hold="max")
    answer: dict[str, Any]
    for answer in ({}, {"choices": 5}, {"data": [{"embedding": [0.5]}]}, SHOWN["chat"], {"output": [None, {}]}):
        before = remaining_of(gate)["user.tokens.minute"]
        gate.reserve("m", user="u1", input_tokens=10, max_tokens=8_000).settle(answer)
        assert remaining_of(gate)["user.tokens.minute"] == before - 8_010


def chunks(*, with_usage: bool = True, words: int = 40) -> Iterator[dict[str, Any]]:
    for _ in range(words):
        yield {"choices": [{"delta": {"content": " word"}}]}
    yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    if with_usage:
        yield {"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": words}}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 20}, 1500),
        ({"prompt_tokens": 0, "completion_tokens": 700}, 1700),
        ({"input_tokens": 0, "output_tokens": 700}, 1700),
        ({"prompt_tokens": 1, "completion_tokens": 20}, 21),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_input_that_was_sent_is_never_free(usage: dict[str, int], tokens: int, streamed: bool) -> None:
    books = Written()
    gate = gate_of(hold="max", books=books)
    call = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500)
    if not streamed:
        call.settle({"usage": usage})
    elif "prompt_tokens" in usage:
        list(call.stream([{"choices": [], "usage": usage}]))
    else:
        list(call.stream([{"type": "response.completed", "response": {"id": "resp_1", "usage": usage}}]))
    assert remaining_of(gate)["user.tokens.minute"] == 90_000 - tokens
    [mode] = [entry.mode for entry in books.entries if entry.kind == "settled" and entry.id == call.id]
    assert mode == ("exact" if usage.get("prompt_tokens") else "at least")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_usage_beyond_what_limits_can_count_leaves_a_call_as_held_and_its_place_free(
    is_async: bool, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rule = {"name": "user", "by": ["user"], "limits": "1000 tokens/minute bucket; 5 concurrent"}
    books, clock = Written(), ManualClock()
    arguments: dict[str, Any] = {"user": "u1", "input_tokens": 100, "max_tokens": 50}
    answer = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 10**12}}
    stream_usage = StreamUsage()
    stream_usage.read(answer)

    async def main() -> Decision:
        async with AsyncLlmGate(policy(rule, hold="max"), clock=clock, books=books) as gate:
            async with gate.call("m", **arguments) as call:
                await (call.settle_stream(stream_usage) if streamed else call.settle(answer))
            return (await gate.reserve("m", **arguments)).decision

    if is_async:
        decision = asyncio.run(main())
    else:
        gate = gate_of(rule, hold="max", clock=clock, books=books)
        with gate.call("m", **arguments) as call:
            call.settle_stream(stream_usage) if streamed else call.settle(answer)
        decision = gate.reserve("m", **arguments).decision
    assert [limit.remaining for limit in decision.limits] == [1000 - 2 * 150, 4]
    assert [entry.mode for entry in books.entries if entry.kind == "settled"] == ["unknown"]
    assert "cannot be counted, so it stays as held" in caplog.text


@pytest.mark.parametrize(
    "usage",
    [
        Usage(-5, 10), Usage(10, -5), Usage(10, 5, cache_read=-1), Usage(10, 5, web_searches=-1),
        Usage(10, 5, reasoning=6), Usage(3, 50, cache_read=5000), Usage(10, 5, cache_read=6, cache_write=5),
        Usage(10, 5, cache_write_hour=1),
    ],
)  # fmt: skip
def test_impossible_numbers_are_errors_and_settle_nothing(usage: Usage) -> None:
    gate = gate_of(hold="max")
    call = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500)
    for settle in (call.settle_usage, call.settle_at_least):
        with pytest.raises(ArgumentError, match=r"a call uses at least 0 tokens, not|is at least"):
            settle(usage)
    assert not call.settled
    call.settle_usage(Usage(10, 5))
    assert remaining_of(gate)["user.tokens.minute"] == 90_000 - 15


def test_a_stream_is_settled_by_the_usage_that_it_reports() -> None:
    gate = gate_of(hold="max")
    with gate.call("m", user="u1", input_tokens=1000, max_tokens=500) as call:
        assert len(list(call.stream(chunks()))) == 42
    assert remaining_of(gate)["user.tokens.minute"] == 90_000 - 1040


def test_a_stream_without_usage_counts_at_least_what_was_held_and_generated() -> None:
    gate = gate_of(hold="max")
    with gate.call("m", user="u1", input_tokens=1000, max_tokens=20) as call:
        assert len(list(call.stream(chunks(with_usage=False)))) == 41
    assert remaining_of(gate)["user.tokens.minute"] <= 90_000 - 1040


def test_a_caller_that_stops_reading_leaves_the_call_settled() -> None:
    gate = gate_of(hold="max")
    call = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500)
    for _ in call.stream(chunks()):
        break
    assert (
        call.settled
        and remaining_of(gate)["user.tokens.minute"] == 88_500
        and remaining_of(gate)["user.concurrent"] == 5
    )


SLICED = {"name": "out", "by": ["user"], "limits": "100 output_tokens/hour bucket", "hold": "slices"}


def test_slices_are_held_as_a_stream_goes_on_and_cut_at_the_end_of_the_budget() -> None:
    gate = gate_of(SLICED, slice=20)
    with gate.call("m", user="u1", input_tokens=5, max_tokens=5000) as call:
        passed = len(list(call.stream(chunks(words=400))))
    assert call.was_cut and 65 <= passed <= 100
    assert not gate.reserve("m", user="u1", input_tokens=5, max_tokens=50)


def test_as_many_slices_are_held_as_a_large_event_needs() -> None:
    def large() -> Iterator[dict[str, Any]]:
        for _ in range(40):
            yield {"choices": [{"delta": {"content": " word" * 30}}]}

    gate = gate_of(SLICED, slice=4)
    with gate.call("m", user="u1", input_tokens=5, max_tokens=5000) as call:
        passed = len(list(call.stream(large())))
    assert call.was_cut and 2 <= passed <= 4, "the count lags behind by no event"

    async def main() -> int:
        async def slowly() -> AsyncIterator[dict[str, Any]]:
            for event in large():
                yield event

        async with (
            AsyncLlmGate(policy(SLICED, slice=4), clock=ManualClock()) as other,
            other.call("m", user="u1", input_tokens=5, max_tokens=5000) as call,
        ):
            return len([event async for event in call.stream(slowly())])

    assert asyncio.run(main()) == passed


def test_slices_exceed_the_budget_where_the_rule_says_so() -> None:
    gate = gate_of({**SLICED, "at_end": "debt"}, slice=20)
    with gate.call("m", user="u1", input_tokens=5, max_tokens=5000) as call:
        assert len(list(call.stream(chunks(words=150)))) == 152
    assert not call.was_cut
    refused = gate.reserve("m", user="u1", input_tokens=5, max_tokens=20)
    assert not refused and refused.decision.retry_after is not None
    assert refused.decision.retry_after == pytest.approx((50 + 20) * 36, abs=36)


def test_soft_limits_are_reported_with_the_call_and_to_listeners() -> None:
    rule = {"name": "team", "by": ["team"], "limits": "10 usd/day in UTC; 1000/minute", "warn": "80%", "hold": "max"}
    gate = gate_of(rule)
    heard: list[tuple[SoftLimit, ...]] = []
    gate.watch_soft_limits(heard.append)
    assert gate.reserve("m", team="red", input_tokens=0, max_tokens=790_000).warnings == ()
    [warning] = gate.reserve("m", team="red", input_tokens=0, max_tokens=40_000).warnings
    assert str(warning) == "team.usd.day: 83 % used, 8.3 usd of 10 usd" and warning.header == "team.usd.day; used=83"
    assert heard == [(warning,)]


class Hook(BaseHTTPRequestHandler):
    received: ClassVar[Queue[Any]] = Queue()

    def do_POST(self) -> None:
        self.received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_listener_that_raises_costs_no_call_and_the_others_hear(caplog: pytest.LogCaptureFixture) -> None:
    rule = {"name": "team", "by": ["team"], "limits": "100 tokens/minute bucket", "warn": "50%", "hold": "max"}
    gate, heard = gate_of(rule), list[tuple[SoftLimit, ...]]()

    def broken(_: tuple[SoftLimit, ...]) -> None:
        raise RuntimeError("the pager is away")

    gate.watch_soft_limits(broken)
    gate.watch_soft_limits(heard.append)
    call = gate.reserve("m", team="red", input_tokens=0, max_tokens=60)
    assert call and heard == [call.warnings] and "a listener of soft limits failed" in caplog.text
    call.cancel()
    assert gate.reserve("m", team="red", input_tokens=0, max_tokens=100)


def test_a_webhook_is_notified_once_of_each_soft_limit_until_that_is_unused_again() -> None:
    server = HTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        rule = {"name": "team", "by": ["team"], "limits": "10 usd/day in UTC", "warn": "50%", "hold": "max"}
        clock = ManualClock()
        gate = gate_of(rule, clock=clock, webhook=f"http://127.0.0.1:{server.server_port}/budgets")
        for _ in range(3):
            assert gate.reserve("m", team="red", input_tokens=0, max_tokens=300_000)
        clock.advance(24 * 3_600_000_000)
        assert gate.reserve("m", team="red", input_tokens=0, max_tokens=900_000)
        received = [Hook.received.get(timeout=30) for _ in range(2)]
    finally:
        server.shutdown()
        server.server_close()
    assert [(each["limit"], each["percent"], each["used"], each["team"]) for each in received] == [
        ("team.usd", 60, "6", "red"),
        ("team.usd", 90, "9", "red"),
    ]


@pytest.mark.parametrize(
    ("limit", "first", "hourly"),
    [("10 usd/day bucket", 800_000, 41_000), ("10 usd/day counter", 300_000, 20_000)],
)
def test_a_webhook_is_notified_once_of_a_limit_that_stays_used(limit: str, first: int, hourly: int) -> None:
    server = HTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        rule = {"name": "team", "by": ["team"], "limits": limit, "warn": "20%", "hold": "max"}
        clock = ManualClock()
        gate = gate_of(rule, clock=clock, webhook=f"http://127.0.0.1:{server.server_port}/budgets")
        assert gate.reserve("m", team="red", input_tokens=0, max_tokens=first)
        for _ in range(24 * 5):
            clock.advance(3_600_000_000)
            call = gate.reserve("m", team="red", input_tokens=0, max_tokens=hourly)
            assert call and call.warnings
        assert gate.reserve("m", team="blue", input_tokens=0, max_tokens=600_000)
        received = [Hook.received.get(timeout=30)["team"] for _ in range(2)]
        clock.advance(3 * 24 * 3_600_000_000)
        assert gate.reserve("m", team="red", input_tokens=0, max_tokens=600_000)
        assert Hook.received.get(timeout=30)["team"] == "red"
    finally:
        server.shutdown()
        server.server_close()
    assert received == ["red", "blue"]
    assert Hook.received.empty()


def test_a_webhook_starts_once_the_system_has_resources_for_its_thread() -> None:
    server = HTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        rule = {"name": "team", "by": ["team"], "limits": "10 usd/day in UTC", "warn": "50%"}
        gate = gate_of(rule, webhook=f"http://127.0.0.1:{server.server_port}/budgets", hold="max")
        before = stack_size(1 << 46)
        try:
            assert gate.reserve("m", team="red", input_tokens=0, max_tokens=700_000)
        finally:
            stack_size(before)
        assert Hook.received.empty()
        assert gate.reserve("m", team="blue", input_tokens=0, max_tokens=800_000)
        received = [Hook.received.get(timeout=30)["team"] for _ in range(2)]
    finally:
        server.shutdown()
        server.server_close()
    assert received == ["red", "blue"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 soon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnumber\r\n",
        b"HTTP/1.1 500 Oh\r\n\r\n",
        b"",
    ],
)
def test_a_webhook_with_an_invalid_answer_is_notified_of_the_next_soft_limit(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    received: Queue[Any] = Queue()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection, connection.makefile("rb") as sent:
                    size = 0
                    while line := sent.readline().strip():
                        size = int(line[15:]) if line.lower().startswith(b"content-length:") else size
                    received.put(json.loads(sent.read(size)))
                    connection.sendall(answer)

        Thread(target=serve, daemon=True).start()
        rule = {"name": "team", "by": ["team"], "limits": "10 usd/day in UTC", "warn": "50%", "hold": "max"}
        gate = gate_of(rule, webhook=f"http://127.0.0.1:{server.getsockname()[1]}/budgets")
        for team in ("red", "blue"):
            assert gate.reserve("m", team=team, input_tokens=0, max_tokens=600_000)
            assert received.get(timeout=30)["team"] == team
    until(lambda: caplog.text.count("the webhook of soft limits") == 2)


def test_soft_limits_that_a_slow_webhook_drops_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headgate.llm.webhook._MOST_WAITING", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        rule = {"name": "team", "by": ["team"], "limits": "10 usd/day in UTC", "warn": "50%", "hold": "max"}
        gate = gate_of(rule, webhook=f"http://127.0.0.1:{server.getsockname()[1]}/budgets")
        assert gate.reserve("m", team="red", input_tokens=0, max_tokens=600_000)
        with server.accept()[0]:
            for number in range(4):
                assert gate.reserve("m", team=f"team {number}", input_tokens=0, max_tokens=600_000)
    assert caplog.messages.count("the webhook of soft limits is too slow: 1 wait, others are dropped") == 1


def test_the_books_have_each_hold_refusal_and_settling() -> None:
    books, clock = Written(), ManualClock()
    gate = gate_of(clock=clock, books=books, hold="max")
    with gate.call("m", user="u1", input_tokens=1000, max_tokens=500) as call:
        clock.advance(2_000_000)
        call.settle({"usage": {"prompt_tokens": 900, "completion_tokens": 100}})
    gate.reserve("m", user="u1", input_tokens=30_000)
    held, settled, refused = books.entries
    assert (held.kind, held.id, held.held_cost, held.lease_us) == ("held", call.id, 6_000_000, 600_000_000)
    assert (settled.kind, settled.mode, settled.cost, settled.usage) == ("settled", "exact", 1_900_000, Usage(900, 100))
    assert settled.at_us - held.at_us == 2_000_000 and settled.admitted_us == held.at_us and settled.price == "own"
    assert (refused.kind, refused.limit) == ("refused", "user.input_tokens.minute")


def test_a_reload_keeps_what_was_used_and_a_policy_of_another_kind_is_refused() -> None:
    gate = gate_of(hold="max")
    call = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500)
    with pytest.raises(ConfigError, match="needs the section llm"):
        gate.reload({"version": 1, "rules": [{"name": "a", "by": [], "limits": "1/minute"}]})
    with pytest.raises(ConfigError, match=r"llm\.prices\.m: output is missing"):
        gate.reload(policy(prices={"m": {"input": "1"}}))
    gate.reload(policy(prices={"m": {"input": "2", "output": "10"}}, hold="max"))
    call.settle_usage(Usage(1000, 0))
    assert remaining_of(gate)["user.usd.day"] == 2_000_000_000 - 1_000_000  # at the price of its admission
    call = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500)
    call.settle_usage(Usage(1000, 0))
    assert remaining_of(gate)["user.usd.day"] == 2_000_000_000 - 3_000_000


def test_a_call_during_a_reload_is_held_by_one_of_both_policies() -> None:
    gate = gate_of(prices={"m": PRICES["m"]}, hold="max")
    admitted: list[bool] = []
    gate.gate.reloaded.append(
        lambda: admitted.append(bool(gate.reserve("new", user="u1", input_tokens=10, max_tokens=5)))
    )
    gate.reload(policy(prices={"new": PRICES["m"]}, hold="max"))
    assert admitted == [True]
    with pytest.raises(ConfigError, match="needs the section llm"):
        gate.gate.reload({"version": 1, "rules": [{"name": "a", "by": [], "limits": "1/minute"}]})
    assert gate.reserve("new", user="u1", input_tokens=10, max_tokens=5)


@pytest.mark.parametrize("fields", [{}, {"models": ["m"]}, {"service_tier": "flex"}, {"models": ["m", "large"]}])
def test_prices_that_change_in_the_middle_pass_no_budget_that_holds_the_most(fields: dict[str, Any]) -> None:
    rule = {"name": "user", "by": ["user"], "limits": "1.5 usd/day in UTC"}
    prices = dict.fromkeys(("m", "large", "m service_tier=flex"), PRICES["m"])
    gate = gate_of(rule, hold="max", prices=prices)
    calls = [gate.reserve("m", user="u1", input_tokens=100_000, max_tokens=90_000, **fields) for _ in range(2)]
    assert [bool(call) for call in calls] == [True, False]
    gate.reload(policy(rule, prices={name: {"input": "100", "output": "1000"} for name in prices}, hold="max"))
    usage = {"prompt_tokens": 20_000, "completion_tokens": 90_000}
    calls[0].settle({"model": "large" if fields else "m", "service_tier": fields.get("service_tier"), "usage": usage})
    [limit] = gate.reserve("m", user="u1", input_tokens=0, max_tokens=0).decision.limits
    assert limit.limit - limit.remaining == 920_000_000, "at the price of its admission"


def test_calls_of_one_name_are_held_once() -> None:
    gate = gate_of(hold="max")
    one = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500, id="job-7")
    again = gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500, id="job-7")
    assert again and again.repeated and again.id == one.id
    one.settle_usage(Usage(1000, 10))
    again.settle_usage(Usage(1000, 10))
    assert remaining_of(gate)["user.tokens.minute"] == 90_000 - 1010


def test_the_usage_of_earlier_calls_is_held_once_it_is_known() -> None:
    gate = gate_of(expected_output=3000)
    for number in range(40):
        call = gate.reserve("m", key="k", user=f"u{number}", input_tokens=1, max_tokens=5000)
        assert number > 29 or call.held.output == 3000
        call.settle_usage(Usage(1, 100))
    assert 100 <= gate.reserve("m", key="k", user="u1", input_tokens=1, max_tokens=5000).held.output <= 110
    assert gate.reserve("m", key="k", user="u1", input_tokens=1, max_tokens=40).held.output == 40
    assert gate.learned.coverage()["m"].above == 0


def test_no_more_is_held_than_a_model_makes() -> None:
    gate = gate_of(hold="max", unknown_price="free")
    known = gate.reserve("gpt-4o", user="u1", input_tokens=1, max_tokens=10**9)
    assert known.held.output == gate.reserve("gpt-4o", user="u2", input_tokens=1).held.output == 16_384


def test_a_service_tier_is_held_at_the_dearest_price_and_settled_by_the_one_that_served() -> None:
    gate = gate_of(hold="max")
    usual = gate.reserve("gpt-5.4", user="u1", input_tokens=1000, max_tokens=1000)
    priority = gate.reserve("gpt-5.4", user="u1", input_tokens=1000, max_tokens=1000, service_tier="priority")
    unknown_tier = gate.reserve("gpt-5.4", user="u1", input_tokens=1000, max_tokens=1000, service_tier=["x"])
    assert usual.held.cost is not None and priority.held.cost is not None
    assert priority.held.cost > usual.held.cost == unknown_tier.held.cost

    def cost_of(call: Call, **answer: Any) -> int:
        before = remaining_of(gate)["user.usd.day"] + (call.held.cost or 0)
        call.settle({"usage": {"prompt_tokens": 1000, "completion_tokens": 500}, **answer})
        return before - remaining_of(gate)["user.usd.day"]

    standard = cost_of(usual)
    assert cost_of(priority) > standard  # no tier was reported: the dearest counts
    served = gate.reserve("gpt-5.4", user="u1", input_tokens=1000, max_tokens=1000, service_tier="priority")
    assert cost_of(served, service_tier="default") == standard
    streamed = gate.reserve("gpt-5.4", user="u1", input_tokens=1000, max_tokens=1000)
    usage = {"prompt_tokens": 1000, "completion_tokens": 500}
    before = remaining_of(gate)["user.usd.day"] + (streamed.held.cost or 0)
    list(streamed.stream([{"choices": [], "usage": usage, "service_tier": "priority"}]))
    assert before - remaining_of(gate)["user.usd.day"] > standard


async def slowly() -> AsyncIterator[dict[str, Any]]:
    for chunk in chunks():
        await asyncio.sleep(0)
        yield chunk


def test_an_asyncio_gate_does_the_same_and_settles_cancelled_calls() -> None:
    async def main() -> None:
        store, clock = MemoryStore(), ManualClock()
        async with AsyncLlmGate(policy(hold="max"), store=store, clock=clock) as gate:
            async with gate.call("m", user="u1", input_tokens=1000, max_tokens=500) as call:
                assert [chunk async for chunk in call.stream(slowly())]
            looking = LlmGate(policy(), store=store, clock=clock)
            assert remaining_of(looking)["user.tokens.minute"] == 90_000 - 1040

            async def forever() -> None:
                async with gate.call("m", user="u1", input_tokens=1000, max_tokens=500):
                    await asyncio.sleep(3600)

            task = asyncio.create_task(forever())
            await asyncio.sleep(0)
            assert remaining_of(looking)["user.concurrent"] == 4
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert remaining_of(looking)["user.concurrent"] == 5
            with pytest.raises(RateLimited):
                async with gate.call("m", user="u1", input_tokens=30_000):
                    raise AssertionError("a refused block runs")

    asyncio.run(main())


def test_calls_wait_where_a_rule_says_so() -> None:
    clock = ManualClock()
    rule = {"name": "user", "by": ["user"], "limits": "5/second bucket", "wait": "2s"}
    gate = gate_of(rule, clock=clock)
    start_us = clock.now_us()
    calls: list[Call] = [gate.reserve("m", user="u1", input_tokens=1) for _ in range(7)]
    assert all(calls) and clock.now_us() - start_us == 400_000
