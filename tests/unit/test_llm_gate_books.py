"""Calls that a gate holds and settles: its books and its limits agree to the billionth of a dollar."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from headgate.llm import LlmGate, Usage
from headgate.llm.books import open_books, read_books, reconcile, report_of
from headgate.llm.books.reading import Unreadable
from headgate.llm.entry import Entry
from headgate.testing import ManualClock
from until import until

DAY_US = 86_400_000_000
START_US = 1_793_491_200_000_000  # 2026-11-01
BUDGET, MOST_TOKENS = 20 * 10**9, 10**7
POLICY: dict[str, Any] = {
    "version": 1,
    "llm": {"prices": {"m": {"input": "0.3", "output": "1.1"}}, "lease": "1h", "expected_output": 300},
    "rules": [{"name": "user", "by": ["user"], "limits": f"20 usd/day in UTC; {MOST_TOKENS} tokens/day in UTC"}],
}
ENDS = ["exact", "exact", "exact", "at least", "cancelled", "failed", "unknown", "never"]


@pytest.mark.parametrize("form", ["books.jsonl", "books.db"])
def test_books_and_limits_agree_on_calls_that_end_in_every_way(tmp_path: Path, form: str) -> None:
    clock, chance = ManualClock(START_US), random.Random(14)
    books = open_books(tmp_path / form)
    gate = LlmGate(POLICY, store="memory://", clock=clock, books=books)
    late: list[Any] = []
    for number in range(600):
        clock.advance(chance.randrange(1, 200_000_000))
        arguments: dict[str, Any] = {
            "user": f"u{number % 3}",
            "input_tokens": chance.randrange(4000),
            "id": f"c{number}",
        }
        call = gate.reserve("m", **arguments)
        assert call
        if chance.random() < 0.1:
            assert gate.reserve("m", **arguments).repeated  # the caller lost the answer and repeats the request
        usage = Usage(chance.randrange(4000), chance.randrange(900))
        settle = (call, chance.choice(ENDS), usage)
        if chance.random() < 0.2:
            late.append(settle)
        else:
            end(*settle)
    for settle in late:
        clock.advance(1_000_000)
        end(*settle)
        end(*settle)  # a second time changes nothing
    assert books.close()

    with closing(read_books(tmp_path / form)) as read:
        report = report_of([read], by=["user", "day"])
        found = reconcile([read], now_us=clock.now_us() + DAY_US)
    assert not found.settled_again and not found.without_hold and found.unreconciled
    assert (report.total.booked.calls, report.total.booked.refused) == (600, 0)
    by_books: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row in report.rows:
        by_books[row.group] = [row.booked.cost + row.booked.unsettled_cost]
    today = max(day for _, day in by_books)
    for user in ("u0", "u1", "u2"):
        probe = gate.reserve("m", user=user, input_tokens=0, max_tokens=0)
        (usd,) = [reading for reading in probe.decision.limits if reading.definition.limit.of == "usd"]
        assert [BUDGET - usd.remaining] == by_books[user, today]
        probe.cancel()
    gate.close()


def test_calls_that_are_extended_by_themselves_or_by_slices_are_reconciled_when_their_leases_have_ended(
    tmp_path: Path,
) -> None:
    rules = [{"name": "user", "by": ["user"], "limits": "20 usd/day in UTC; 5 concurrent", "hold": "slices"}]
    policy = {**POLICY, "llm": {**POLICY["llm"], "lease": "500ms", "slice": 10}, "rules": rules}
    books = open_books(tmp_path / "b.jsonl")
    gate = LlmGate(policy, store="memory://", books=books)
    idle = gate.reserve("m", user="u0", input_tokens=10, max_tokens=4000)

    def extensions(user: str) -> list[Any]:
        assert books.flush()
        with closing(read_books(tmp_path / "b.jsonl")) as read:
            found = [record for record in read.records(Unreadable()) if isinstance(record, Entry)]
        return [entry for entry in found if entry.kind == "extended" and entry.caller.user == user]

    with suppress(KeyError), idle:
        until(lambda: len(extensions("u0")) >= 2)
        raise KeyError("the work fails after its lease was extended twice")
    flowing = gate.reserve("m", user="u1", input_tokens=10, max_tokens=4000)
    reading = flowing.reading()
    assert flowing.hold_more(reading) and flowing.hold_more(reading)
    assert [entry.held_output for entry in extensions("u1")] == [20, 30]
    last = extensions("u1")[-1]
    gate.close()
    books.close()
    with closing(read_books(tmp_path / "b.jsonl")) as read:
        end_us = last.at_us + last.lease_us
        assert [entry.caller.user for entry in reconcile([read], now_us=end_us - 1).in_flight] == ["u1"]
        [never] = reconcile([read], now_us=end_us).unreconciled
    assert (never.id, never.held_output, never.held_cost) == (flowing.id, 30, flowing.held.cost)


def test_a_report_has_the_number_of_calls_within_their_estimates(tmp_path: Path) -> None:
    rules = [*POLICY["rules"], {"name": "most", "by": ["user"], "limits": "9000000 tokens/day in UTC", "hold": "max"}]
    with open_books(tmp_path / "b.db") as books, LlmGate({**POLICY, "rules": rules}, books=books) as gate:
        for number, output in enumerate((299, 300, 301, 2000)):
            call = gate.reserve("m", user=f"u{number % 2}", input_tokens=10, max_tokens=4000)
            call.settle_usage(Usage(10, output))
        gate.reserve("m", user="u0", input_tokens=10, max_tokens=4000).settle_at_least(Usage(10, 4000))
        gate.reserve("m", user="u0", input_tokens=10, max_tokens=4000).cancel()
    with closing(read_books(tmp_path / "b.db")) as read:
        rows = {row.group: row.booked for row in report_of([read], by=["user"]).rows}
    assert {user: (row.estimated, row.covered) for (user,), row in rows.items()} == {"u0": (2, 1), "u1": (2, 1)}
    assert rows[("u0",)].measured == 2 and rows[("u0",)].used_more == 0, "compared with everything that was held"


def end(call: Any, how: str, usage: Usage) -> None:
    if how == "exact":
        call.settle_usage(usage)
    elif how == "at least":
        call.settle_at_least(usage)
    elif how == "cancelled":
        call.cancel()
    elif how == "failed":
        call.settle_failed()
    elif how == "unknown":
        call.settle_unknown()
