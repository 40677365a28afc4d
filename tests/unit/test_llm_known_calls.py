"""Repeated calls are held and settled as if no data about them was cached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import Request
from headgate.errors import ArgumentError
from headgate.llm import AsyncLlmGate, LlmGate, Usage
from headgate.testing import ManualClock

LLM = {"prices": {"m": {"input": "1", "output": "10"}}, "hold": "max"}
RULES = [
    {"name": "user", "by": ["user"], "limits": "60/minute; 90000 tokens/minute bucket; 5 concurrent"},
    {"name": "team", "by": ["team"], "limits": "2 usd/day in UTC"},
]


def gate_of(*rules: dict[str, Any]) -> LlmGate:
    return LlmGate({"version": 1, "llm": LLM, "rules": list(rules) or RULES}, clock=ManualClock())


def remaining_of(call: Any) -> dict[str, int]:
    return {reading.name: reading.remaining for reading in call.decision.limits}


def test_a_repeated_call_charges_only_its_own_caller() -> None:
    gate = gate_of()
    for user, team, times in (("ann", "red", 3), ("bob", "red", 1), ("ann", "blue", 1)):
        for _ in range(times):
            gate.reserve("m", user=user, team=team, input_tokens=100, max_tokens=100).settle_usage(Usage(100, 50))
    ann = remaining_of(gate.reserve("m", user="ann", team="red", input_tokens=0, max_tokens=0))
    assert ann["user.minute"] == 60 - 5 and ann["user.tokens.minute"] == 90_000 - 4 * 150
    assert ann["user.concurrent"] == 4 and ann["team.usd"] == 2_000_000_000 - 4 * 600_000
    bob = remaining_of(gate.reserve("m", user="bob", team="blue", input_tokens=0, max_tokens=0))
    assert bob["user.minute"] == 60 - 2 and bob["team.usd"] == 2_000_000_000 - 600_000


def test_a_hold_of_a_repeated_call_is_settled_by_its_id_anywhere() -> None:
    gate = gate_of()
    ids = [gate.reserve("m", user="ann", team="red", input_tokens=10, max_tokens=10).id for _ in range(3)]
    assert len(set(ids)) == 3 and all(text.endswith(".requests.0tokens.0usd") for text in ids)
    settled = [gate.gate.commit(id, {"tokens": 7}) for id in ids]
    assert [one.outcome for one in settled] == ["settled"] * 3
    assert all(one.actuals is not None and one.actuals[:2] == (1, 7) for one in settled)


def test_calls_are_distinguished_by_their_http_request_where_a_rule_uses_it() -> None:
    chat = {"name": "chat", "by": ["user"], "match": {"path": "/chat"}, "limits": "60/minute"}
    gate = gate_of(chat, {"name": "all", "by": [], "limits": "100/minute"})
    for path, names in (("/chat", ["chat", "all"]), ("/other", ["all"]), ("/chat", ["chat", "all"])):
        call = gate.reserve("m", user="ann", input_tokens=1, max_tokens=1, request=Request("POST", path))
        assert list(remaining_of(call)) == names
    assert list(remaining_of(gate.reserve("m", user="ann", input_tokens=1, max_tokens=1))) == ["all"]


def test_the_cached_facts_about_a_caller_end_with_its_policy() -> None:
    gate = gate_of({"name": "user", "by": ["user"], "limits": "60/minute"})
    assert list(remaining_of(gate.reserve("m", user="ann", input_tokens=1, max_tokens=1))) == ["user"]
    other = {"version": 1, "llm": LLM, "rules": [{"name": "model", "by": ["model"], "limits": "9 tokens/minute"}]}
    gate.reload(other)
    assert not gate.reserve("m", user="ann", input_tokens=10, max_tokens=0)
    gate.gate.reload({**other, "rules": RULES[1:]})
    assert list(remaining_of(gate.reserve("m", user="ann", team="red", input_tokens=1, max_tokens=1))) == ["team.usd"]


def test_more_callers_than_are_remembered_are_held_alike() -> None:
    gate = gate_of({"name": "all", "by": [], "limits": "20000/minute"})
    for number in range(5000):
        gate.reserve("m", user=f"user-{number}", input_tokens=1, max_tokens=1).settle_usage(Usage(1, 1))
    assert remaining_of(gate.reserve("m", user="user-0", input_tokens=1, max_tokens=1)) == {"all": 15_000 - 1}


@pytest.mark.parametrize("user", [["ann"], 5, None, {"a": 1}])
def test_a_caller_that_is_not_text_is_an_error_each_time(user: Any) -> None:
    gate = gate_of()
    for _ in range(2):
        with pytest.raises(ArgumentError, match="user of a call is text"):
            gate.reserve("m", user=user, input_tokens=1, max_tokens=1)


def test_calls_on_an_event_loop_are_held_and_settled_alike() -> None:
    async def reserve_and_settle() -> None:
        async with AsyncLlmGate({"version": 1, "llm": LLM, "rules": RULES}, clock=ManualClock()) as gate:
            for _ in range(3):
                async with gate.call("m", user="ann", team="red", input_tokens=100, max_tokens=100) as call:
                    await call.settle_usage(Usage(100, 50))
            seen = remaining_of(await gate.reserve("m", user="ann", team="red", input_tokens=0, max_tokens=0))
            assert seen["user.tokens.minute"] == 90_000 - 450 and seen["user.concurrent"] == 4

    asyncio.run(reserve_and_settle())


def test_a_second_settling_returns_the_amounts_that_counted_for_all_limits() -> None:
    gate = gate_of()
    call = gate.reserve("m", user="ann", team="red", input_tokens=100, max_tokens=100)
    call.settle_usage(Usage(100, 50))
    for late in ({"tokens": 7}, None):
        again = gate.gate.commit(call.id, late)
        assert again.outcome == "already settled" and again.actuals == (1, 150, 600_000)
    assert gate.gate.extend(call.id, 60).outcome == "already settled"


def test_a_repeated_settled_call_gets_the_same_decision() -> None:
    gate = gate_of()
    arguments: dict[str, Any] = {"user": "ann", "team": "red", "input_tokens": 100, "max_tokens": 100, "id": "one"}
    first = gate.reserve("m", **arguments)
    first.settle_usage(Usage(100, 50))
    again = gate.reserve("m", **arguments)
    assert again.repeated and remaining_of(again) == remaining_of(first)
    assert remaining_of(gate.reserve("m", user="ann", input_tokens=0, max_tokens=0))["user.minute"] == 60 - 2


def test_a_rule_that_holds_slices_beside_one_that_holds_the_most_is_held_more_as_the_stream_goes_on() -> None:
    sliced = {"name": "sliced", "by": ["user"], "hold": "slices", "limits": "90000 tokens/minute bucket"}
    in_full = {"name": "whole", "by": ["user"], "hold": "max", "limits": "80000 tokens/minute bucket"}
    gate = gate_of(sliced, in_full)
    call = gate.reserve("m", user="ann", input_tokens=10, max_tokens=5000)
    reading, slice = call.reading(), gate.settings.slice
    assert remaining_of(call)["sliced.tokens"] == 90_000 - 10 - slice and call.held.output == 5000
    for output in range(2):
        assert call.hold_more(reading), output
    after = remaining_of(gate.reserve("m", user="ann", input_tokens=0, max_tokens=0))
    assert after == {"sliced.tokens": 90_000 - 10 - 3 * slice, "whole.tokens": 80_000 - 5010}
    assert call.held.output == 5000
