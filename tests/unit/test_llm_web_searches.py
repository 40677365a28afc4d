"""Web searches are held by what a body allows, and settled by what the answer reports or shows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.llm import LlmGate, StreamUsage, Usage
from headgate.llm.call_costs import UnknownPriceError
from headgate.llm.prices import PriceBook
from headgate.testing import ManualClock

FEE = 10_000_000
"""The fee of one search, in billionths of a dollar, at 10 dollars for a thousand."""

SEARCH = {"type": "web_search"}
TOKENS = {"input": "1", "output": "10"}
LITTLE_OUTPUT: dict[str, Any] = {"max_tokens": 1, "max_output_tokens": 1}
"""In every dialect."""


def gate_of(**llm: Any) -> LlmGate:
    rule = {"name": "all", "by": [], "limits": "11 usd/day in UTC; 100 tokens/minute bucket"}
    settings = {"prices": {"m": {**TOKENS, "web_searches": "10"}}, "hold": "max", **llm}
    return LlmGate({"version": 1, "llm": settings, "rules": [rule]}, clock=ManualClock())


def held(body: dict[str, Any], **llm: Any) -> int:
    """The number of searches that a gate holds for a body."""
    plain, searching = (gate_of(**llm).reserve("m", input_tokens=0, **LITTLE_OUTPUT, **each) for each in ({}, body))
    assert plain and searching and searching.held.output == 1
    charged = [11 * 10**9 - call.decision.limits[0].remaining for call in (plain, searching)]
    assert charged == [plain.held.cost, searching.held.cost]
    searches, rest = divmod(charged[1] - charged[0], FEE)
    assert rest == 0
    return searches


@pytest.mark.parametrize(
    ("body", "searches"),
    [
        ({"tools": [{"type": "function", "function": {"name": "web_search"}}]}, 0),
        ({"tools": [SEARCH]}, 5),
        ({"tools": [{"type": "web_search_preview_2025_03_11"}]}, 5),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]}, 3),
        ({"tools": ({"type": "web_search_20250305", "max_uses": 0},)}, 0),
        ({"tools": [{"type": "web_search_20250305", "max_uses": 10**30}]}, 1000),
        ({"tools": [{"type": "web_search_20250305", "max_uses": "3"}]}, 5),
        ({"tools": [{"google_search": {}}]}, 5),
        ({"tools": [SEARCH, {"type": "web_search_20250305", "max_uses": 3}]}, 8),
        ({"tools": [SEARCH], "max_tool_calls": 2}, 2),
        ({"tools": [SEARCH], "max_tool_calls": -2}, 5),
        ({"tools": [SEARCH], "max_tool_calls": 0, "messages": []}, 5),
        ({"tools": [{**SEARCH, "max_uses": 0}]}, 5),
        ({"web_search_options": {}}, 1),
        ({"plugins": [{"id": "web", "max_results": 3}]}, 1),
        ({"plugins": [{"id": "file-parser"}, {"id": "web", "enabled": False}, None, "web"]}, 0),
        ({"plugins": [{"id": "web", "engine": "native"}]}, 5),
        ({"plugins": [{"id": "web", "engine": "exa"}, {"id": "web", "engine": "native", "enabled": False}]}, 1),
        ({"tools": [{"type": "openrouter:web_search", "parameters": {"max_results": 3}}]}, 5),
        ({"tools": [{"type": "openrouter:datetime"}]}, 0),
        ({"plugins": "web"}, 0),
        ({"tools": "web_search"}, 0),
        ({"tools": [None, 5, "web_search"]}, 0),
    ],
)
def test_as_many_searches_are_held_as_a_body_allows(body: dict[str, Any], searches: int) -> None:
    assert held(body) == searches


@pytest.mark.parametrize(
    ("dialect", "searches"), [("chat", (5, 5)), ("messages", (2, 5)), ("responses", (5, 1)), ("completions", (5, 5))]
)
def test_a_field_bounds_searches_only_in_the_dialect_that_has_it(dialect: str, searches: tuple[int, int]) -> None:
    of_uses = held({"tools": [{"type": "web_search_20250305", "max_uses": 2}], "dialect": dialect})
    of_calls = held({"tools": [SEARCH], "max_tool_calls": 1, "dialect": dialect})
    assert (of_uses, of_calls) == searches


def test_the_policy_states_what_is_held_without_a_bound() -> None:
    assert held({"tools": [SEARCH]}, web_searches=12) == 12 and held({"tools": [SEARCH]}, web_searches=0) == 0


def test_a_call_whose_searches_do_not_fit_into_a_budget_is_refused() -> None:
    tool = {"type": "web_search_20250305", "max_uses": 600}
    gate = gate_of()
    assert gate.reserve("m", input_tokens=0, max_tokens=0, tools=[tool])
    assert not gate.reserve("m", input_tokens=0, max_tokens=0, tools=[tool])


def charged(answer: Any, body: dict[str, Any], *, streamed: bool = False) -> int:
    """The searches that finally count for a call without output."""
    gate = gate_of()
    call = gate.reserve("m", input_tokens=0, max_tokens=0, **body)
    if streamed:
        usage = StreamUsage()
        for event in answer:
            usage.read(event)
        usage.end()
        call.settle_stream(usage)
    else:
        call.settle(answer)
    looking = gate.reserve("m", input_tokens=0, max_tokens=0)
    searches, rest = divmod(11 * 10**9 - looking.decision.limits[0].remaining, FEE)
    assert rest == 0
    return searches


NOTHING = {"input_tokens": 0, "output_tokens": 0}
ITEMS = [{"type": "web_search_call", "status": "completed"}, {"type": "message"}, {"type": "web_search_call"}]
ACTIONS = [
    {"type": "web_search_call", "action": {"type": kind}}
    for kind in ("search", "open_page", "find_in_page", "search", "something_new")
]
CHAT = {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}
TELLING = {"choices": [], "usage": {**CHAT["usage"], "server_tool_use": {"web_search_requests": 7}}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("answer", "body", "searches"),
    [
        ({"usage": {**NOTHING, "server_tool_use": {"web_search_requests": 2}}}, {"tools": [SEARCH]}, 2),
        ({"usage": {**NOTHING, "cache_read_input_tokens": 0}}, {"tools": [SEARCH]}, 0),
        ({"object": "response", "output": ITEMS, "usage": NOTHING}, {"tools": [SEARCH]}, 2),
        ({"object": "response", "output": ITEMS[1:2], "usage": NOTHING}, {"tools": [SEARCH]}, 0),
        ({"object": "response", "output": ITEMS, "usage": NOTHING}, {}, 2),
        ({"object": "response", "output": ACTIONS, "usage": NOTHING}, {"tools": [SEARCH]}, 3),
        ({"object": "response", "output": ACTIONS[1:3], "usage": NOTHING}, {"tools": [SEARCH]}, 0),
        (CHAT, {"web_search_options": {}}, 1),
        (CHAT, {"tools": [SEARCH]}, 5),
        (TELLING, {"tools": [{"type": "openrouter:web_search"}]}, 7),
        (TELLING, {"tools": [{"type": "web_search_20250305", "max_uses": 9}]}, 7),
        (CHAT, {}, 0),
    ],
)
def test_searches_that_an_answer_reports_or_shows_count_and_otherwise_those_held(
    answer: Any, body: dict[str, Any], searches: int
) -> None:
    assert charged(answer, body) == searches


@pytest.mark.parametrize(
    ("events", "body", "searches"),
    [
        ([{"type": "response.completed", "response": {"output": ITEMS, "usage": NOTHING}}], {"tools": [SEARCH]}, 2),
        ([{"type": "response.completed", "response": {"output": [], "usage": NOTHING}}], {"tools": [SEARCH]}, 0),
        ([{"choices": [{"finish_reason": "stop"}]}, CHAT], {"web_search_options": {}}, 1),
        ([CHAT], {}, 0),
        ([TELLING], {"tools": [SEARCH, SEARCH]}, 7),
        (
            [
                {"type": "message_start", "message": {"usage": NOTHING}},
                {
                    "type": "message_delta",
                    "usage": {"output_tokens": 0, "server_tool_use": {"web_search_requests": 3}},
                },
                {"type": "message_stop"},
            ],
            {"tools": [SEARCH]},
            3,
        ),
    ],
)
def test_streams_count_searches_like_whole_answers(events: Any, body: dict[str, Any], searches: int) -> None:
    assert charged(events, body, streamed=True) == searches


def test_searches_of_unknown_price_have_the_highest_price_and_are_free_only_where_that_is_stated() -> None:
    at, one = datetime(2026, 11, 1, tzinfo=UTC), Usage(0, 0, web_searches=1)
    own_price = {"plain": TOKENS, "free": {**TOKENS, "web_searches": "0"}}
    book = PriceBook(own_price)
    costs = [book.price(name, at) for name in ("plain", "free", "gpt-4o-search-preview", "gpt-5", "claude-opus-5")]
    assert [price and price.cost(one) for price in costs] == [35_000_000, 0, 35_000_000, 10_000_000, 10_000_000]
    with pytest.raises(UnknownPriceError):
        gate_of().reserve("nobody-knows", input_tokens=0, tools=[SEARCH])


@pytest.mark.parametrize(
    ("model", "searches"),
    [
        ("gpt-4o-search-preview", 1),
        ("openai/gpt-4o-mini-search-preview-2025-03-11", 1),
        ("openai/gpt-4o:online", 1),
        ("gpt-5-search-api", 1),
        ("gpt-5-search-apiary", 0),
        ("gpt-4o", 0),
    ],
)
def test_a_model_that_always_searches_is_held_and_charged_the_fee_of_one_search(model: str, searches: int) -> None:
    gate = gate_of(prices={model: {**TOKENS, "web_searches": "10"}})
    call = gate.reserve(model, input_tokens=0, max_tokens=0)
    assert call.held.cost == searches * FEE
    call.settle(CHAT)
    assert (
        gate.reserve(model, input_tokens=0, max_tokens=0).decision.limits[0].remaining
        == 11 * 10**9 - 2 * searches * FEE
    )
    assert gate.reserve(model, input_tokens=0, max_tokens=0, web_search_options={}).held.cost == max(
        FEE, searches * FEE
    )
