"""Bodies that name several models: any may answer, so the dearest is held, and the one that answered counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.errors import ArgumentError
from headgate.llm import LlmGate, StreamUsage, UnknownPriceError, Usage
from headgate.llm.price import UNKNOWN_SEARCHES
from headgate.testing import ManualClock

PRICES = {
    "cheap": {"input": "1", "output": "2"},
    "dear": {"input": "10", "output": "20"},
    "odd": {"input": "0", "output": "30"},
    "gpt-4o-search-preview": {"input": "1", "output": "1", "web_searches": "10"},
}
CALL: dict[str, Any] = {"input_tokens": 1_000, "max_tokens": 1_000}
MILLIONTHS = 1_000


def gate_of(limits: str = "10 usd/day in UTC", **llm: Any) -> LlmGate:
    rule = {"name": "all", "by": [], "limits": limits}
    settings = {"prices": PRICES, "hold": "max", **llm}
    return LlmGate({"version": 1, "llm": settings, "rules": [rule]}, clock=ManualClock())


def spent(gate: LlmGate) -> int:
    """Millionths of a dollar."""
    remaining = gate.reserve("cheap", input_tokens=0, max_tokens=0).decision.limits[0].remaining
    return (10**10 - remaining) // MILLIONTHS


@pytest.mark.parametrize(
    "fields",
    [
        {"models": ["cheap", "dear"]},
        {"models": ("dear",)},
        {"fallbacks": ["dear"]},
        {"fallbacks": [{"model": "dear", "messages": []}]},
        {"fallbacks": [{"cheap": ["dear"]}]},
        {"context_window_fallbacks": [{"cheap": ["dear"]}]},
        {"content_policy_fallbacks": [{"cheap": ["dear"]}]},
        {"models": ["cheap"], "fallbacks": ["dear"]},
    ],
)
def test_the_dearest_of_the_models_is_held(fields: dict[str, Any]) -> None:
    assert gate_of().reserve("cheap", **CALL).held.cost == 3_000 * MILLIONTHS
    assert gate_of().reserve("cheap", **CALL, **fields).held.cost == 30_000 * MILLIONTHS
    assert gate_of().reserve(body={"model": "cheap", **fields}, **CALL).held.cost == 30_000 * MILLIONTHS


@pytest.mark.parametrize(
    ("own", "output", "searches"),
    [
        ({"max_tokens": 5_000}, 5_000, 0),
        ({"max_tokens": 5}, 1_000, 0),
        ({"n": 4}, 4_000, 0),
        ({"extra_body": {"max_completion_tokens": 2_000}}, 2_000, 0),
        ({"tools": [{"type": "web_search"}]}, 1_000, 5),
        ({"api_key": "secret", "temperature": 1}, 1_000, 0),
    ],
)
def test_a_fallback_with_fields_of_its_own_is_held_by_them(own: dict[str, Any], output: int, searches: int) -> None:
    call = gate_of().reserve("cheap", **CALL, fallbacks=[{"model": "cheap", **own}], dialect="chat")
    fees = searches * UNKNOWN_SEARCHES // 1_000
    assert (call.held.output, call.held.cost) == (output, (1_000 + 2 * output) * MILLIONTHS + fees)


def test_the_texts_of_a_fallback_are_counted_and_its_terms_are_those_of_the_call() -> None:
    fallback: dict[str, Any] = {"model": "dear", "messages": [{"role": "user", "content": "word " * 1_000}]}
    assert gate_of().reserve("cheap", messages=[], max_tokens=1, fallbacks=[fallback]).held.input > 1_000
    with pytest.raises(ArgumentError, match="service_tier of a fallback is that of its call, not 'priority'"):
        gate_of().reserve("cheap", **CALL, fallbacks=[{"model": "dear", "service_tier": "priority"}])


def test_of_each_rate_the_highest_is_held() -> None:
    held = gate_of().reserve("dear", **CALL, models=["odd", "cheap"]).held
    assert held.cost == (10_000 + 30_000) * MILLIONTHS


def test_a_body_that_names_its_models_in_a_list_alone_is_a_call_of_the_first() -> None:
    call = gate_of().reserve(body={"models": ["cheap", "dear"]}, **CALL)
    assert call.model == "cheap" and call.held.cost == 30_000 * MILLIONTHS
    with pytest.raises(ArgumentError, match="model is the name of a model, not None"):
        gate_of().reserve(body={"models": []}, **CALL)


@pytest.mark.parametrize(
    ("answered", "cost"),
    [
        ("cheap", 3_000),
        ("dear", 30_000),
        ("router/dear-2026-01-01", 30_000),
        ("dearest", 30_000),
        ("something else", 30_000),
        (None, 30_000),
    ],
)
def test_the_price_of_the_model_that_answered_counts_and_otherwise_the_dearest(answered: object, cost: int) -> None:
    gate = gate_of()
    call = gate.reserve("cheap", **CALL, models=["dear"])
    call.settle({"model": answered, "choices": [], "usage": {"prompt_tokens": 1_000, "completion_tokens": 1_000}})
    assert spent(gate) == cost


def chunk(model: object, **fields: Any) -> dict[str, Any]:
    return {"model": model, "choices": [{"delta": {"content": "word "}}], **fields}


LAST: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 1_000, "completion_tokens": 1_000}}
IN_MESSAGES = {"input_tokens": 1_000, "output_tokens": 1_000, "cache_read_input_tokens": 0}
STREAMS = [
    ([chunk("cheap"), chunk("cheap", **LAST)], 3_000),
    ([chunk("dear"), chunk("dear", **LAST)], 30_000),
    ([chunk(""), chunk("router/cheap-2026-01-01"), chunk("cheap", **LAST)], 3_000),
    ([chunk("cheap"), LAST], 3_000),
    ([chunk("cheap"), chunk("dear", **LAST)], 30_000),
    ([chunk("dear"), chunk("cheap", **LAST)], 30_000),
    ([chunk("something else"), chunk("cheap", **LAST)], 30_000),
    ([chunk(None), LAST], 30_000),
    ([chunk(["cheap"]), chunk({"cheap": 1}, **LAST)], 30_000),
    ([chunk("cheap" + "-x" * 200), LAST], 30_000),
    (
        [
            {"type": "message_start", "message": {"model": "cheap", "usage": IN_MESSAGES}},
            {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 1_000}},
            {"type": "message_stop"},
        ],
        3_000,
    ),
    (
        [
            {"type": "response.created", "response": {"model": "cheap"}},
            {"type": "response.output_text.delta", "delta": "word"},
            {
                "type": "response.completed",
                "response": {"model": "cheap", "usage": {"input_tokens": 1_000, "output_tokens": 1_000}},
            },
        ],
        3_000,
    ),
]


@pytest.mark.parametrize(("events", "cost"), STREAMS, ids=range(len(STREAMS)))
def test_a_stream_counts_at_the_price_of_the_model_that_all_its_events_name(
    events: list[dict[str, Any]], cost: int
) -> None:
    gate, usage = gate_of(), StreamUsage()
    call = gate.reserve("cheap", **CALL, models=["dear"])
    for event in events:
        usage.read(event)
    usage.end()
    call.settle_stream(usage)
    assert spent(gate) == cost

    in_bytes = gate_of()
    call = in_bytes.reserve("cheap", **CALL, models=["dear"])
    reading = call.reading()
    for event in events:
        reading.feed(f"data: {json.dumps(event)}\n\n".encode())
    reading.feed(b"data: [DONE]\n\n")
    call.settle_stream(reading.usage)
    assert spent(in_bytes) == cost, "the same for bytes, of which few are parsed"


def test_a_stream_that_names_no_end_of_models_counts_at_the_dearest() -> None:
    gate, usage = gate_of(), StreamUsage()
    call = gate.reserve("cheap", **CALL, models=["dear"])
    for number in range(100):
        usage.read(chunk(f"cheap-{number}"))
    usage.read(LAST)
    assert len(usage.models) < 10
    call.settle_stream(usage)
    assert spent(gate) == 30_000


def test_a_call_of_several_models_that_was_settled_by_its_usage_alone_counts_at_the_dearest() -> None:
    plain = gate_of()
    plain.reserve("cheap", **CALL, models=["dear"]).settle_usage(Usage(1_000, 0))
    assert spent(plain) == 10_000


def test_a_further_model_without_a_price_is_refused_under_a_limit_of_money_alone() -> None:
    with pytest.raises(UnknownPriceError, match="the price of the model 'nobody' is not known"):
        gate_of().reserve("cheap", **CALL, models=["dear", "nobody"])
    call = gate_of("9000 tokens/day").reserve("cheap", **CALL, models=["dear", "nobody"])
    assert call and call.held.cost is None
    assert (
        gate_of(unknown_price={"usd_per_million": "7"}).reserve("cheap", **CALL, fallbacks=["nobody"]).held.cost
        == 14_000 * MILLIONTHS
    )


def test_the_most_that_any_of_the_models_makes_is_held() -> None:
    gate = gate_of("900000 tokens/day", max_output=2_000)
    assert gate.reserve("gpt-4", input_tokens=0).most_output == 8_192
    assert gate.reserve("gpt-4", input_tokens=0, models=["gpt-3.5-turbo", "gpt-4o"]).most_output == 16_384
    assert gate.reserve("gpt-4", input_tokens=0, models=["own"]).most_output == 2_000


def test_a_further_model_that_always_searches_is_held_a_search() -> None:
    searching = gate_of().reserve("dear", input_tokens=0, max_tokens=0, models=["gpt-4o-search-preview"])
    assert searching.held.cost == UNKNOWN_SEARCHES // 1000, "the fee of the other model is unknown"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"models": "dear"}, "models of a call is a list of names of models, not a str"),
        ({"models": [5]}, "models of a call is a list of names of models, not one with an int"),
        ({"fallbacks": [{"cheap": "dear"}]}, "fallbacks of a call is a list of names of models, not one with a dict"),
        ({"fallbacks": [{"model": 5}]}, "model is the name of a model, not an int"),
        ({"fallbacks": [""]}, "model is a name of 1 to"),
        ({"models": [f"m{number}" for number in range(40)]}, "models of a call names at most 32 further models"),
    ],
)
def test_a_list_of_anything_else_is_refused_in_words(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        gate_of().reserve("cheap", **CALL, **fields)


def test_null_is_no_list() -> None:
    assert gate_of().reserve("cheap", **CALL, models=None, fallbacks=None).held.cost == 3_000 * MILLIONTHS


def rules_of(*rules: dict[str, Any], **policy: Any) -> LlmGate:
    settings = {"prices": PRICES, "hold": "max"}
    return LlmGate({"version": 1, "llm": settings, "rules": list(rules), **policy}, clock=ManualClock())


DEAR = {"name": "dear", "match": {"model": "dear"}, "by": ["user"], "limits": "2/day in UTC"}
REST = {"name": "rest", "by": ["user"], "limits": "100/day in UTC", "default": True}


@pytest.mark.parametrize("body", [{"fallbacks": ["dear"]}, {"models": ["cheap", "dear"]}, {"fallbacks": ["DEAR"]}])
def test_a_limit_of_one_model_counts_it_as_the_fallback_of_another(body: dict[str, Any]) -> None:
    gate = rules_of(DEAR, REST)
    for _ in range(2):
        assert gate.reserve("cheap", user="ann", **CALL, **body).decision.rule == "dear"
    refused = gate.reserve("cheap", user="ann", **CALL, **body)
    assert not refused and refused.decision.rule == "dear"
    assert not gate.reserve("dear", user="ann", **CALL)
    assert gate.reserve("cheap", user="ann", **CALL).decision.rule == "rest"
    assert gate.reserve("cheap", user="bob", **CALL, **body)


def test_the_rules_of_all_models_that_may_answer_hold_a_call_or_none() -> None:
    cheap = {"name": "cheap", "match": {"model": "cheap"}, "by": [], "limits": "5/day in UTC"}
    refused = {"name": "odd", "match": {"model": ["odd", "none-*"]}, "by": [], "limits": "1/day in UTC"}
    gate = rules_of(cheap, refused)
    assert len(gate.reserve("cheap", **CALL, fallbacks=["odd"]).decision.limits) == 2
    assert not gate.reserve("cheap", **CALL, fallbacks=["odd"])
    assert gate.reserve("cheap", **CALL).decision.remaining == 3
    assert len(gate.reserve("cheap", **CALL, fallbacks=["dear"]).decision.limits) == 1


def test_a_call_is_exempt_only_if_all_models_that_may_answer_are() -> None:
    gate = rules_of(REST, exempt=[{"model": "cheap"}])
    assert gate.reserve("cheap", user="ann", **CALL).decision.rule == ""
    assert gate.reserve("cheap", user="ann", **CALL, fallbacks=["dear"]).decision.rule == "rest"


def test_a_call_that_several_models_may_answer_is_settled_by_the_one_that_did() -> None:
    gate = rules_of({**DEAR, "limits": "1 usd/day in UTC"})
    call = gate.reserve("cheap", user="ann", **CALL, fallbacks=["dear"])
    call.settle({"model": "cheap", "usage": {"prompt_tokens": 1_000, "completion_tokens": 1_000}})
    remaining = gate.reserve("dear", user="ann", input_tokens=0, max_tokens=0).decision.limits[0].remaining
    assert 10**9 - remaining == 3_000 * MILLIONTHS
