"""The real trace of an hour of calls on Azure, through a policy, and counted by brute force beside it.

The trace is not part of this repository; where it is not at hand these tests skip, visibly.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from running import run_headgate

from headgate.llm.books import open_books, read_books, reconcile, report_of
from headgate.policy.gate import read_policy
from headgate.replay.call_judging import judge_calls
from headgate.replay.call_trace import TraceCall, read_trace
from headgate.replay.entries import Tally
from headgate.replay.times import TimeReader

pytestmark = pytest.mark.integration

DATA = Path(os.environ.get("HEADGATE_DATA", Path(__file__).parents[3] / "shared" / "data"))
TRACE = DATA / "AzureLLMInferenceTrace_conv.csv.gz"
needs_data = pytest.mark.skipif(not TRACE.is_file(), reason=f"the real trace is not at {TRACE}")

PRICES = {"m": {"input": "1.25", "output": "10"}}
BUDGET = 15 * 10**9


@pytest.fixture(scope="module")
def calls() -> list[TraceCall]:
    tally = Tally()
    read = read_trace(TRACE, model="m", columns={}, read_time=TimeReader(), tally=tally)
    assert tally.count == 0
    return read


@needs_data
def test_a_budget_cuts_the_real_trace_where_brute_force_does_and_the_books_agree(
    calls: list[TraceCall], tmp_path: Path
) -> None:
    rule = {"name": "all", "by": [], "limits": "15 usd/day in UTC"}
    policy = read_policy({"version": 1, "llm": {"prices": PRICES, "expected_output": 400}, "rules": [rule]})
    with open_books(tmp_path / "books.jsonl") as books:
        outcome = judge_calls(policy, calls, books=books)
    used = admitted = 0
    first_refused_us = 0
    for call in calls:
        if used + call.input * 1_250 + 400 * 10_000 <= BUDGET:
            used += call.input * 1_250 + call.output * 10_000
            admitted += 1
        else:
            first_refused_us = first_refused_us or call.at_us
    assert len(calls) == 19_366
    assert (outcome.admitted.calls, outcome.admitted.cost) == (admitted, used)
    assert outcome.refused.calls == len(calls) - admitted
    assert outcome.admitted.output + outcome.refused.output == sum(call.output for call in calls)
    assert outcome.limits["all.usd"].first_us == first_refused_us
    with closing(read_books(tmp_path / "books.jsonl")) as read:
        sums = report_of([read]).total.booked
        assert reconcile([read], now_us=calls[-1].at_us).is_clean
    assert (sums.calls, sums.refused) == (outcome.admitted.calls, outcome.refused.calls)
    assert (sums.input, sums.output, sums.cost) == outcome.admitted[1:4]
    assert sums.used_more == outcome.used_more and sums.used_less == outcome.used_less


@needs_data
def test_requests_a_minute_cut_the_real_trace_where_brute_force_does(calls: list[TraceCall]) -> None:
    policy = read_policy(
        {"version": 1, "llm": {"prices": PRICES}, "rules": [{"name": "all", "by": [], "limits": "300/minute fixed"}]}
    )
    first = calls[:4000]
    outcome = judge_calls(policy, first)
    minutes: dict[int, int] = {}
    for call in first:
        minutes[call.at_us // 60_000_000] = minutes.get(call.at_us // 60_000_000, 0) + 1
    assert outcome.admitted.calls == sum(min(300, count) for count in minutes.values())


@needs_data
def test_the_command_reports_what_it_cuts_off_the_real_trace(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text('version: 1\nllm: {}\nrules: [{name: all, by: [], limits: "20 usd/day in UTC; 50 concurrent"}]\n')
    done = run_headgate("llm", "replay", str(policy), str(TRACE), "--model", "gpt-5")
    assert done.returncode == 0, done.stderr
    assert "19,366 calls, 2023-11-16 18:15:46 to 19:14:08 UTC" in done.stdout
    assert "settled at once, since the trace has no durations" in done.stdout
    assert "all: 50 concurrent" in done.stdout
