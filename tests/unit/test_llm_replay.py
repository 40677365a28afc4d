"""A trace of calls, judged by a policy on the trace's own clock: what its limits would have refused."""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli.commands import headgate
from headgate.errors import ConfigError
from headgate.llm.books import read_books, report_of
from headgate.llm.call_costs import UnknownPriceError
from headgate.llm.entry import Caller
from headgate.policy.compiled import Policy
from headgate.policy.gate import read_policy
from headgate.replay.call_judging import CallOutcome, judge_calls
from headgate.replay.call_trace import TraceCall, read_trace
from headgate.replay.entries import Tally
from headgate.replay.times import TimeReader

START_US = 1_700_000_000_000_000
PRICES = {"m": {"input": "1", "output": "10"}}


def policy(*rules: dict[str, Any], **llm: Any) -> Policy:
    return read_policy({"version": 1, "llm": {"prices": PRICES, **llm}, "rules": list(rules)})


def trace_of(number: int, *, seed: int = 1, duration_us: int | None = None) -> list[TraceCall]:
    chance = random.Random(seed)
    return [
        TraceCall(
            START_US + place * 700_000, "m", Caller(user=f"u{chance.randrange(3)}"), chance.randrange(2000),
            chance.randrange(900), None, duration_us and chance.randrange(2 * duration_us),
        )
        for place in range(number)
    ]  # fmt: skip


def read(path: Path, **columns: str) -> tuple[list[TraceCall], Tally]:
    tally = Tally()
    return read_trace(path, model="m", columns=columns, read_time=TimeReader(), tally=tally), tally


def budget_by_hand(trace: Sequence[TraceCall], budget: int, expected: int) -> tuple[int, int]:
    """(calls, billionths) that a daily budget admits, if calls hold this much output and are settled at once."""
    used = calls = 0
    for call in trace:
        held = call.input * 1_000 + expected * 10_000
        if used + held <= budget:
            used += call.input * 1_000 + call.output * 10_000
            calls += 1
    return calls, used


def test_a_budget_admits_what_it_would_have_admitted_call_by_call() -> None:
    trace = trace_of(800)
    rule = {"name": "all", "by": [], "limits": "1 usd/day in UTC"}
    outcome = judge_calls(policy(rule, expected_output=400), trace)
    calls, cost = budget_by_hand(trace, 10**9, 400)
    assert (outcome.admitted.calls, outcome.admitted.cost) == (calls, cost)
    assert 0 < calls < 800 == outcome.admitted.calls + outcome.refused.calls
    assert outcome.admitted.output + outcome.refused.output == sum(call.output for call in trace)
    (limit,) = outcome.limits.values()
    assert (limit.name, limit.refused) == ("all.usd", outcome.refused)
    assert sum(limit.minutes.values()) == sum(limit.users.values()) == outcome.refused.calls


def test_a_budget_below_a_dollar_is_a_limit_of_its_own() -> None:
    outcome = judge_calls(policy({"name": "all", "by": [], "limits": "0.02 usd/day in UTC"}), trace_of(20))
    assert outcome.admitted.cost > 0 and outcome.refused.calls > 0


def test_calls_are_in_flight_until_their_answers_have_ended() -> None:
    trace = trace_of(400, duration_us=4_000_000)
    outcome = judge_calls(policy({"name": "all", "by": ["user"], "limits": "3 concurrent"}), trace)
    ends: dict[str, list[int]] = {}
    admitted = 0
    for call in trace:
        mine = ends.setdefault(call.caller.user, [])
        mine[:] = [end for end in mine if end > call.at_us]
        if len(mine) < 3:
            assert call.duration_us is not None
            mine.append(call.at_us + call.duration_us)
            admitted += 1
    assert outcome.admitted.calls == admitted < 400
    assert outcome.left_out == ()


def test_an_output_speed_stands_for_durations() -> None:
    trace = trace_of(200)
    slow = judge_calls(policy({"name": "all", "by": [], "limits": "3 concurrent"}), trace, output_speed=50)
    fast = judge_calls(policy({"name": "all", "by": [], "limits": "3 concurrent"}), trace, output_speed=10_000)
    assert slow.refused.calls > 0 == fast.refused.calls


def test_without_durations_concurrency_limits_are_left_out_and_reported() -> None:
    limits = {"name": "all", "by": [], "limits": "1 concurrent; 10/minute"}
    outcome = judge_calls(policy(limits), trace_of(30))
    assert outcome.left_out == ("all: 1 concurrent",)
    assert outcome.settled_by == "at once, since the trace has no durations"
    assert outcome.refused.calls == 20


def test_rules_that_wait_refuse_at_once_and_no_webhook_is_notified() -> None:
    rule = {"name": "all", "by": [], "limits": "10 tokens/minute bucket", "wait": "30s", "warn": "50%"}
    outcome = judge_calls(policy(rule, webhook="https://127.0.0.1:9/none"), trace_of(30))
    assert outcome.refused.calls >= 29


def test_a_model_without_a_price_is_an_error_under_a_limit_of_money_and_counted_elsewhere() -> None:
    unknown = [call._replace(model="nobody-knows-this") for call in trace_of(3)]
    with pytest.raises(UnknownPriceError):
        judge_calls(policy({"name": "all", "by": [], "limits": "1 usd/day in UTC"}), unknown)
    outcome = judge_calls(policy({"name": "all", "by": [], "limits": "10/minute"}), unknown)
    assert (outcome.admitted.unpriced, outcome.admitted.cost) == (3, 0)


def test_a_policy_without_the_section_is_an_error() -> None:
    plain = read_policy({"version": 1, "rules": [{"name": "all", "by": [], "limits": "1/minute"}]})
    with pytest.raises(ConfigError, match="it needs the section llm"):
        judge_calls(plain, trace_of(1))


def test_a_trace_is_read_in_order_of_time_and_unreadable_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    rows = [
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:50.9951690,396,109",
        "2023-11-16 18:15:46.6805900,374,44.0",
        "2023-11-16 18:15:47,-1,44",
        "2023-11-16 18:15:47,1,1.5",
        "yesterday,1,1",
        "2023-11-16 18:15:47,1",
        "",
        "2023-11-16 18:15:48,0,0",
    ]
    path.write_bytes(gzip.compress("\r\n".join(rows).encode()))
    calls, tally = read(path)
    assert [(call.at_us % 60_000_000, call.input, call.output) for call in calls] == [
        (46_680_590, 374, 44), (48_000_000, 0, 0), (50_995_169, 396, 109),
    ]  # fmt: skip
    assert tally.count == 4
    assert [unread.line for unread in tally.shown] == [4, 5, 6, 7]
    path.write_bytes(path.read_bytes()[:-10])
    assert len(read(path)[1].damaged) == 1


def test_calls_that_an_open_quote_takes_in_are_counted(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{1_790_000_000 + place},374,44,anna{'x' * 1000}\n" for place in range(200)]
    rows[5] = rows[5].replace("anna", '"anna')
    trace.write_text("time,input_tokens,output_tokens,user\n" + "".join(rows))
    calls, tally = read(trace)
    assert len(calls) + tally.count == 200
    assert [(one.line, one.reason[:30]) for one in tally.shown] == [(7, "it is no row: field larger tha")]


def test_columns_with_other_names_can_be_configured(tmp_path: Path) -> None:
    path = tmp_path / "trace.tsv"
    path.write_text(
        "t\tin\tout\twho\tm\ttook\tmax\n1700000000\t5\t7\tanna\tgpt-5\t1.25\t100\n1700000001\t1\t2\t\t\t\t\n"
    )
    columns = {
        "time": "t",
        "input": "in",
        "output": "OUT",
        "user": "who",
        "model": "m",
        "duration": "took",
        "most": "max",
    }
    (first, second), _ = read(path, **columns)
    assert first == TraceCall(START_US, "gpt-5", Caller(user="anna"), 5, 7, 100, 1_250_000)
    assert second == TraceCall(START_US + 1_000_000, "m", Caller(), 1, 2)
    with pytest.raises(ConfigError, match="no column has the time of a call; its columns are t, in, out"):
        read(path)
    with pytest.raises(ConfigError, match="no column is called 'whom'"):
        read(path, **{**columns, "user": "whom"})


@pytest.fixture
def replayed(tmp_path: Path) -> list[str]:
    rows = "".join(
        f"{call.at_us / 1e6:.6f},{call.input},{call.output},{call.caller.user}\n" for call in trace_of(300, seed=7)
    )
    (tmp_path / "trace.csv").write_text(f"time,input_tokens,output_tokens,name\n{rows}")
    rules = [{"name": "user", "by": ["user"], "limits": "20/minute; 0.2 usd/day in UTC"}]
    (tmp_path / "policy.json").write_text(json.dumps({"version": 1, "llm": {"prices": PRICES}, "rules": rules}))
    return ["llm", "replay", str(tmp_path / "policy.json"), str(tmp_path / "trace.csv"), "--model", "m"]


def test_the_command_reports_what_each_limit_refused_and_writes_books_that_agree(
    replayed: list[str], tmp_path: Path
) -> None:
    books = str(tmp_path / "books.db")
    done = CliRunner().invoke(headgate, [*replayed, "--user-column", "name", "--json", "--books", books])
    assert done.exit_code == 0, done.output
    outcome = json.loads(done.stdout)
    assert len(outcome["limits"]) == 2
    assert sum(limit["refused"]["calls"] for limit in outcome["limits"]) == outcome["refused"]["calls"] > 0
    sums = report_of([read_books(books)]).total.booked
    assert (sums.calls, sums.refused) == (outcome["admitted"]["calls"], outcome["refused"]["calls"])
    assert (sums.input, sums.output) == (outcome["admitted"]["input"], outcome["admitted"]["output"])
    assert f"{sums.cost / 10**9:.6f}" == f"{float(outcome['admitted']['cost_usd']):.6f}"


def test_the_command_prints_a_table_or_writes_a_page(replayed: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(headgate, replayed)
    assert done.exit_code == 0
    assert "trace.csv: 300 calls, 2023-11-14 22:13:20" in done.stdout
    assert "settled at once, since the trace has no durations" in done.stdout
    page = tmp_path / "page.html"
    assert CliRunner().invoke(headgate, [*replayed, "--report", str(page)]).exit_code == 0
    assert page.read_text().count("<svg") == 3


def test_the_command_names_missing_arguments(replayed: list[str], tmp_path: Path) -> None:
    for arguments, status, message in (
        (replayed[:-2], 2, "say which --model the calls are of"),
        ([*replayed, "--column", "user"], 2, "it is written WHAT=COLUMN"),
        ([*replayed, "--user-column", "nobody"], 1, "no column is called 'nobody'"),
        ([*replayed, "--output-speed", "0"], 2, "0 is not in the range"),
    ):
        done = CliRunner().invoke(headgate, arguments)
        assert done.exit_code == status and message in done.output


def test_a_trace_that_is_no_plain_text_is_told_how_to_make_it_one(replayed: list[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    text = trace.read_text()
    with zipfile.ZipFile(tmp_path / "trace.zip", "w") as archive:
        archive.write(trace)
    trace.write_text(text, "utf-16")
    for name, message in (("trace.csv", "this is UTF-16"), ("trace.zip", "this is a zip archive: unpack it")):
        done = CliRunner().invoke(headgate, ["llm", "replay", replayed[2], str(tmp_path / name), "--model", "m"])
        assert done.exit_code == 1 and message in done.output


def test_no_call_is_no_outcome() -> None:
    outcome: CallOutcome = judge_calls(policy({"name": "all", "by": [], "limits": "1/minute"}), [])
    assert outcome.first_us is None and not outcome.limits
