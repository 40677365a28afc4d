"""Guarantees of budgets of language models on real stores: no race exceeds them, no death loses or doubles a charge.

The simulation makes a million calls with HEADGATE_LAWS=long.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis_fixtures import server  # noqa: F401 - a fixture
from redis_servers import Server

from headgate.llm import Call, Entry, LlmGate, Usage, count_text
from headgate.llm.price import price_of
from headgate.testing import ManualClock
from until import until

LONG = os.environ.get("HEADGATE_LAWS") == "long"
CALLS = 1_000_000 if LONG else 30_000
AT_ONCE = 200
PRICES = {"m": {"input": "1", "output": "10"}}
PRICE = price_of(10**9, 10**10, version="own")
DAY_US = 86_400_000_000


def policy(limits: str, namespace: str = "llm", **llm: Any) -> dict[str, Any]:
    section = {"prices": PRICES, "hold": "max", **llm}
    rules = [{"name": "user", "by": ["user"], "limits": limits}]
    return {"version": 1, "namespace": namespace, "llm": section, "rules": rules}


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield "memory://"
    elif request.param == "shared":
        yield f"shared://{tmp_path}/zone?size=16MiB"
    else:
        redis: Server = request.getfixturevalue("server")
        yield f"redis://127.0.0.1:{redis.port}/0?timeout=20s"


def at_once(work: Any, number: int = AT_ONCE) -> list[Any]:
    """Run so many threads that begin together; return their results."""
    barrier, results = threading.Barrier(number), [None] * number

    def run(index: int) -> None:
        barrier.wait()
        results[index] = work(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


KINDS = {
    "50/hour": 50,
    "50/hour counter": 50,
    "50/day in UTC": 50,
    "60000 tokens/day bucket": 40,
    "60000 tokens/hour fixed": 40,
    "60000 tokens/day log": 40,
    "30000 input_tokens/day leaky 30000": 30,
    "0.3 usd/day in UTC": 50,
    "25 concurrent": 25,
    "60000 tokens/day bucket; 0.3 usd/day in UTC; 30 concurrent; 60/hour": 30,
}
"""How many calls of 1,000 input and 500 output tokens pass each kind of limit while nothing is settled."""


@pytest.mark.parametrize("limits", KINDS)
def test_of_two_hundred_concurrent_calls_exactly_as_many_pass_as_fit(store: str, limits: str) -> None:
    name = f"n{list(KINDS).index(limits)}"
    with LlmGate(policy(limits, name), store=store) as gate:
        calls: list[Call] = at_once(lambda _: gate.reserve("m", user="u1", input_tokens=1000, max_tokens=500))
        passed = [call for call in calls if call]
        assert len(passed) == KINDS[limits]
        at_once(lambda index: passed[index].settle_usage(Usage(800, 20 * (index % 20))), len(passed))
        again = gate.reserve("m", user="u1", input_tokens=1, max_tokens=1)
        assert bool(again) == (
            KINDS[limits] < 45 or "usd" in limits
        )  # sent requests still count, everything else is given back


def test_a_settlement_in_the_next_window_does_not_change_that_window() -> None:
    for limits in ("10000 tokens/day in UTC", "10000 tokens/day fixed"):
        clock = ManualClock(20_000 * DAY_US - 1)
        gate = LlmGate(policy(limits), clock=clock)
        call = gate.reserve("m", user="u1", input_tokens=8_000, max_tokens=1_000)
        clock.advance(2)
        call.settle_usage(Usage(400, 100))
        call_of_all = gate.reserve("m", user="u1", input_tokens=10_000, max_tokens=0)
        assert call_of_all and not gate.reserve("m", user="u1", input_tokens=1, max_tokens=0)


@pytest.mark.parametrize("kind", ["shared", "redis"])
def test_a_process_that_is_killed_leaves_its_charge_and_frees_its_place(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    document = policy("10000 tokens/day in UTC; 1 concurrent", lease="2 seconds")
    store = f"shared://{tmp_path}/zone?size=16MiB"
    if kind == "redis":
        redis: Server = request.getfixturevalue("server")
        store = f"redis://127.0.0.1:{redis.port}/1?timeout=20s"
    command = [sys.executable, str(Path(__file__).with_name("llm_holder.py")), store, json.dumps(document)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder, LlmGate(document, store=store) as gate:
        assert holder.stdout is not None
        call_id = holder.stdout.readline().strip()
        holder.send_signal(signal.SIGKILL)
        free: list[Call] = []

        def is_free() -> bool:
            call = gate.reserve("m", user="u1", input_tokens=1, max_tokens=0)
            if call:
                free.append(call)
            return bool(call)

        until(is_free)
        tokens, _ = free[0].decision.limits
        assert tokens.remaining == 10_000 - 1500 - 1  # the charge of the killed process stays
        free[0].cancel()
        assert gate.gate.commit(call_id, {"tokens": 700}).outcome == "settled"  # its books may settle the call later
        assert gate.gate.commit(call_id, {"tokens": 1}).outcome == "already settled"
        settled, _ = gate.reserve("m", user="u1", input_tokens=0, max_tokens=0).decision.limits
        assert settled.remaining == 10_000 - 700


class Sums:
    """Books that only add up the charges of each user."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.cost: dict[str, int] = {}
        self.requests: dict[str, int] = {}
        self.open: set[str] = set()

    def add(self, entry: Entry) -> None:
        if entry.kind == "held":
            self.open.add(entry.id)
        if entry.kind != "settled":
            return
        self.open.remove(entry.id)
        held = entry.held_input + entry.held_output
        tokens = {"cancelled": 0, "failed": 0, "unknown": held}.get(entry.mode)
        if tokens is None:
            assert entry.usage is not None
            tokens = entry.usage.input + entry.usage.output
        assert entry.cost is not None
        user = entry.caller.user
        self.tokens[user] = self.tokens.get(user, 0) + tokens
        self.cost[user] = self.cost.get(user, 0) + entry.cost
        self.requests[user] = self.requests.get(user, 0) + (entry.mode != "cancelled")


def test_books_and_limits_agree_to_the_token_and_the_billionth_of_a_dollar() -> None:
    rng, clock, sums = random.Random(20261122), ManualClock(20_000 * DAY_US), Sums()
    quotas = {"user": 10**9, "user.tokens": 10**12, "user.usd": 4_000_000 * 10**9}
    limits = "1_000_000_000/month in UTC; 1_000_000_000_000 tokens/month in UTC; 4_000_000 usd/month in UTC"
    gate = LlmGate(policy(f"{limits}; 1000 concurrent"), clock=clock, books=sums)
    late: list[Call] = []
    for number in range(CALLS):
        call = gate.reserve("m", user=f"u{number % 7}", input_tokens=rng.randrange(5000), max_tokens=2000)
        assert call
        if rng.random() < 0.1:
            late.append(call)
        else:
            settle(call, rng)
        if len(late) > 300:
            settle(late.pop(rng.randrange(300)), rng)
            call.cancel()  # a settled call does not change any more
        clock.advance(rng.randrange(1000))
    for call in late:
        settle(call, rng)
    assert not sums.open
    for user, requests in sums.requests.items():
        readings = {
            reading.unit: reading
            for reading in gate.reserve("m", user=user, input_tokens=0, max_tokens=0).decision.limits[:3]
        }
        assert quotas["user"] - readings["requests"].remaining - 1 == requests
        assert quotas["user.tokens"] - readings["tokens"].remaining == sums.tokens[user]
        assert quotas["user.usd"] - readings["usd"].remaining == sums.cost[user]


def settle(call: Call, rng: random.Random) -> None:
    """Settle a call in one of the possible ways, with an estimate that was wrong in either direction."""
    usage = Usage(rng.randrange(8000), rng.randrange(4000))
    way = rng.randrange(10)
    if way == 0:
        call.cancel()
    elif way == 1:
        call.settle_failed()
    elif way == 2:
        call.settle({"choices": [], "usage": None})
    elif way == 3:
        call.settle_at_least(usage)
    else:
        call.settle({"usage": {"prompt_tokens": usage.input, "completion_tokens": usage.output}})


def test_a_stream_that_is_silent_for_longer_than_its_lease_holds_further_slices(store: str) -> None:
    def chunks() -> Iterator[dict[str, Any]]:
        time.sleep(3)
        for _ in range(100):
            yield {"choices": [{"index": 0, "delta": {"content": " word"}}]}

    count_text("word", "m")  # loads a vocabulary, which takes long
    sliced = policy("1000 output_tokens/day in UTC", "silent", hold="slices", slice=10, lease="2s")
    with LlmGate(sliced, store=store) as gate:
        with gate.call("m", user="u1", input_tokens=1, max_tokens=500) as call:
            assert len(list(call.stream(chunks()))) == 100
        assert not call.was_cut
