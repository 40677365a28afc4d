"""Terms that change the price of a call are held as requested, and settled as its answer reports them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from anthropic.types import MessageDeltaUsage, RawMessageDeltaEvent

from headgate.errors import ArgumentError
from headgate.llm import Entry, LlmGate, UnknownPriceError, Usage
from headgate.llm.call import Call
from headgate.testing import ManualClock
from versions import FAST_PRICES

NOON_US = int(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()) * 1_000_000
OPUS, FAST, BATCH = 7_500_000, 15_000_000, 3_750_000
"""The cost of 1,000 tokens of input and 100 of output of Claude Opus 5, in billionths of a dollar."""


class Written:
    """Books that are a list."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)


def gate_of(
    books: Written | None = None, limits: str = "20 usd/day in UTC", at_us: int = NOON_US, **llm: Any
) -> LlmGate:
    rule = {"name": "all", "by": ["user"], "limits": limits, "hold": "max"}
    return LlmGate({"version": 1, "llm": llm, "rules": [rule]}, clock=ManualClock(at_us), books=books)


def reserve(gate: LlmGate, model: str = "claude-opus-5", **fields: Any) -> Call:
    return gate.reserve(model, user="ann", input_tokens=1000, max_tokens=100, **fields)


def message(**usage: Any) -> dict[str, Any]:
    return {"type": "message", "usage": {"input_tokens": 1000, "output_tokens": 100, **usage}}


def settled(books: Written, call: Call, answer: dict[str, Any]) -> tuple[int | None, str]:
    """The final cost of a call, and the version of its price."""
    call.settle(answer)
    return books.entries[-1].cost, books.entries[-1].price


@FAST_PRICES
def test_fast_mode_is_held_at_its_price_and_settled_by_the_reported_speed() -> None:
    books = Written()
    gate = gate_of(books)
    usual, fast = reserve(gate), reserve(gate, speed="fast")
    assert usual.held.cost is not None and fast.held.cost == 2 * usual.held.cost
    assert settled(books, usual, message())[0] == OPUS
    assert settled(books, fast, message(speed="fast"))[0] == FAST
    assert settled(books, reserve(gate, speed="fast"), message(speed="standard"))[0] == OPUS
    assert settled(books, reserve(gate, speed="fast"), message())[0] == FAST, "unreported: the dearest counts"
    assert settled(books, reserve(gate), message(speed="fast"))[0] == FAST, "by the reported speed"


@FAST_PRICES
def test_a_stream_of_messages_reports_the_speed_at_its_start() -> None:
    books = Written()
    call = reserve(gate_of(books), speed="fast")
    start = {"type": "message_start", "message": message(output_tokens=1, speed="standard", service_tier="standard")}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 100}}
    list(call.stream([start, end, {"type": "message_stop"}]))
    assert books.entries[-1].cost == OPUS


def test_a_batch_is_recognized_by_its_answer_or_by_the_callers_statement() -> None:
    books = Written()
    gate = gate_of(books)
    by_answer, by_caller, by_body = (
        reserve(gate),
        reserve(gate, processing="batch"),
        reserve(gate, body={"processing": "batch"}),
    )
    assert by_answer.held == by_caller.held == by_body.held, "the usual price is dearer, and may apply"
    assert settled(books, by_answer, message(service_tier="batch"))[0] == BATCH
    assert settled(books, by_caller, message())[0] == BATCH
    assert settled(books, by_body, message())[0] == OPUS, "the body of a client does not make a call a batch"
    with pytest.raises(ArgumentError, match="processing of a call is \"batch\", or left out, not 'flex'"):
        reserve(gate, processing="flex")


@pytest.mark.parametrize("terms", [{"inference_geo": "us"}, {"service_tier": "priority"}, {"speed": "warp"}])
def test_an_unknown_price_is_refused_or_replaced_by_the_policys(terms: dict[str, str]) -> None:
    [(name, value)] = terms.items()
    with pytest.raises(UnknownPriceError, match=f"the price of the model 'claude-opus-5' with {name}={value} is not"):
        reserve(gate_of(), **terms)
    unlimited = reserve(gate_of(limits="60/minute"), **terms)
    assert unlimited and unlimited.held.cost is None, "no limit counts money"
    usual = reserve(gate_of()).held.cost
    assert usual is not None
    books = Written()
    free = reserve(gate_of(books, unknown_price="free"), **terms)
    assert free.held.cost == usual and settled(books, free, message(**terms))[0] == OPUS, "at least the usual price"
    stated = reserve(gate_of(books, unknown_price={"usd_per_million": "100"}), **terms)
    assert stated.held.cost == 110_000_000 and settled(books, stated, message(**terms))[0] == 110_000_000


def test_unrequested_terms_without_a_known_price_cost_what_was_held_and_the_books_say_so() -> None:
    books = Written()
    cost, version = settled(books, reserve(gate_of(books)), message(inference_geo="us", service_tier="standard"))
    assert cost == OPUS and version.startswith("genai-prices ") and version.endswith("; not known of inference_geo=us")
    cost, version = settled(books, reserve(gate_of(books)), message(inference_geo="global", speed="standard"))
    assert cost == OPUS and ";" not in version


def test_the_operators_price_of_terms_is_held_and_settled() -> None:
    books = Written()
    own_prices = {
        "claude-opus-5": {"input": "1", "output": "1"},
        "claude-opus-5 inference_geo=us": {"input": 2, "output": 2},
    }
    gate = gate_of(books, prices=own_prices)
    call = reserve(gate, inference_geo="us")
    assert call.held.cost == 2_200_000 and settled(books, call, message(inference_geo="us")) == (2_200_000, "own")
    assert settled(books, reserve(gate, inference_geo="us"), message(inference_geo="global")) == (1_100_000, "own")


def test_cache_writes_of_minutes_and_of_hours_are_held_at_the_dearest_and_settled_each_at_its_own() -> None:
    books = Written()
    gate = gate_of(books)
    call = reserve(gate)
    assert call.held.cost == 1000 * 10_000 + 100 * 25_000, "all input may be written for an hour, at twice its price"
    written = message(
        input_tokens=100, cache_read_input_tokens=300, cache_creation_input_tokens=600,
        cache_creation={"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 200},
    )  # fmt: skip
    cost = 100 * 5_000 + 300 * 500 + 400 * 6_250 + 200 * 10_000 + 100 * 25_000
    assert settled(books, call, written)[0] == cost


def test_a_long_prompt_is_held_and_settled_at_its_own_rate() -> None:
    """Gemini 2.5 Pro costs $1.25 for a million tokens up to 200,000 of input, and $2.50 for all of them above."""
    gate = gate_of()
    short, long = (
        gate.reserve("gemini-2.5-pro", user="ann", input_tokens=tokens, max_tokens=0).held.cost
        for tokens in (200_000, 200_001)
    )
    assert (short, long) == (250_000_000, 500_002_500)
    books = Written()
    call = gate_of(books).reserve("gemini-2.5-pro", user="ann", input_tokens=200_000, max_tokens=0)
    call.settle_usage(Usage(200_001, 0))
    assert books.entries[-1].cost == 500_002_500


def test_the_dearest_hour_that_a_lease_touches_is_held_and_the_hour_of_admission_settled() -> None:
    """Prices of DeepSeek double from 1 to 4 o'clock, UTC."""
    before_us = int(datetime(2026, 11, 22, 0, 55, tzinfo=UTC).timestamp()) * 1_000_000
    books = Written()
    peak, quiet = (reserve(gate_of(books, at_us=at_us), "deepseek-flash") for at_us in (before_us, NOON_US))
    assert peak.held.cost is not None and quiet.held.cost is not None and peak.held.cost == 2 * quiet.held.cost
    used = {"usage": {"prompt_tokens": 1000, "completion_tokens": 100}}
    assert settled(books, peak, used) == settled(books, quiet, used)
    assert all(entry.price.startswith("genai-prices ") for entry in books.entries), "the books have the version"


ADVICE: dict[str, Any] = {
    "type": "advisor_message", "model": "claude-opus-5", "input_tokens": 1000, "output_tokens": 100,
}  # fmt: skip
HAIKU = 1_500_000
"""The cost of 1,000 tokens of input and 100 of output of Claude Haiku 4.5, in billionths of a dollar."""


@pytest.mark.parametrize(
    ("iterations", "cost"),
    [
        ([ADVICE], HAIKU + OPUS),
        ([ADVICE, {"type": "message", "model": "claude-opus-5", "input_tokens": 9}, ADVICE], HAIKU + 2 * OPUS),
        ([{**ADVICE, "type": "compaction"}], HAIKU + OPUS),
        ([{**ADVICE, "model": None}], 2 * HAIKU),
        ([{**ADVICE, "model": "a-model-that-nobody-knows"}], 2 * HAIKU),
        ([{**ADVICE, "cache_read_input_tokens": 1000}], HAIKU + OPUS + 500_000),
    ],
)
def test_the_output_of_another_model_beside_a_message_has_that_models_price(
    iterations: list[dict[str, Any]], cost: int
) -> None:
    books = Written()
    gate = gate_of(books, prices={"claude-haiku-4-5": {"input": "1", "output": "5", "cache_read": "0.1"}})
    answer = message(iterations=iterations)
    assert settled(books, reserve(gate, "claude-haiku-4-5"), answer)[0] == cost
    call, other_call = reserve(gate, "claude-haiku-4-5"), reserve(gate, "claude-haiku-4-5")
    end: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": answer["usage"]}
    list(call.stream([{"type": "message_start", "message": message(output_tokens=1)}, end, {"type": "message_stop"}]))
    assert books.entries[-1].cost == cost
    objects = [RawMessageDeltaEvent.construct(**{**end, "usage": MessageDeltaUsage.construct(**answer["usage"])})]
    list(other_call.stream([{"type": "message_start", "message": message(output_tokens=1)}, *objects]))
    assert books.entries[-1].cost == cost, "even fields that the package of the provider does not know"


def test_an_impossible_usage_beside_a_possible_one_costs_at_least_nothing() -> None:
    books = Written()
    gate = gate_of(books)
    end = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": -1, "iterations": [ADVICE]}}
    call = reserve(gate)
    held = call.held.cost
    list(call.stream([end, {"type": "message_stop"}]))
    assert books.entries[-1].cost == held
    answer = {**message(iterations=[ADVICE], output_tokens=-1), "content": [{"type": "text", "text": "Because."}]}
    assert settled(books, reserve(gate), answer)[0] == held


def test_usage_beside_a_message_does_not_lengthen_its_prompt() -> None:
    books = Written()
    usage = {"input_tokens": 120_000, "output_tokens": 100}
    answer = {"type": "message", "usage": {**usage, "iterations": [{"type": "compaction", **usage}]}}
    call = gate_of(books).reserve("claude-sonnet-4-5", user="ann", input_tokens=120_000, max_tokens=100)
    assert settled(books, call, answer)[0] == 2 * (120_000 * 3_000 + 100 * 15_000), (
        "above 200,000 tokens all cost twice"
    )
