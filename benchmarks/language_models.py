"""Calls of language models: the cost of holding and settling one, and of counting its input."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from benchmarks.measuring import Measured, Section, Target, Timed, in_turns, timed_loop
from benchmarks.peer_programs import PEER_PYTHON, peer_program
from benchmarks.servers import redis_server
from headgate import Limiter
from headgate.llm import AsyncLlmGate, LlmGate, Usage, count_text, tokens
from headgate.llm.vocabularies import counter, encoding_of

ROOT = Path(__file__).parents[1]
TEN_LIMITS: dict[str, Any] = {
    "version": 1,
    "llm": {"prices": {"m": {"input": "1", "output": "10"}}, "hold": "max"},
    "rules": [
        {
            "name": "key",
            "by": ["key"],
            "limits": "9000000/minute; 900000000000 tokens/minute bucket; 4000000 usd/day in UTC",
        },
        {
            "name": "user",
            "by": ["user"],
            "limits": "9000000/minute; 900000000000 tokens/minute bucket; 4000000 usd/day in UTC; 5 concurrent",
        },
        {"name": "team", "by": ["team"], "limits": "900000000000 tokens/minute bucket; 4000000 usd/month in UTC"},
        {"name": "model", "by": ["model"], "limits": "900000000000 tokens/minute bucket"},
    ],
}
TWO_LIMITS = {
    **TEN_LIMITS,
    "rules": [{"name": "all", "by": [], "limits": "9000000/minute; 900000000000 tokens/minute bucket"}],
}
USED = Usage(90, 200)
MOST_US = 10
MESSAGE = 1000
_PASSES = 4


def run(quick: bool) -> Section:
    calls, rounds = (300, 3) if quick else (3000, 9)
    text = (ROOT / "README.md").read_text() * 2
    messages = _messages(text)
    engine = encoding_of("o200k_base")  # the same object that ours uses: two would be at different places in memory
    subjects: dict[str, Timed] = {
        "ten limits": _holding(TEN_LIMITS, calls),
        "two limits, asyncio": _holding_async(TWO_LIMITS, calls),
        "a hit of one limit": _hitting(calls),
    }
    countings: dict[str, Timed] = {
        "count": _counting(_count_uncached, [text]),
        "tiktoken": _counting(engine.encode_ordinary, [text]),
        "count messages": _counting(lambda message: count_text(message, "gpt-4o"), messages),
        "tiktoken on messages": _counting(engine.encode_ordinary, messages),
    }
    peer = _peer()
    if peer is not None:
        subjects["token-throttle"] = lambda: _peer_ns(peer, calls // 10)
    measured = in_turns(subjects, rounds)
    # Separately: after other work the vocabulary is not in the caches. Often: they differ by a few percent.
    measured |= in_turns(countings, 5 * rounds)
    trips = _trips()
    ten, ours, hit = (
        measured[name].median_ns / 1000 for name in ("ten limits", "two limits, asyncio", "a hit of one limit")
    )
    counting = measured["count"].median_ns / measured["tiktoken"].median_ns
    of_messages = measured["count messages"].median_ns / measured["tiktoken on messages"].median_ns
    rows = [
        ["hold and settle, ten limits, memory", f"{ten:.1f} us", f"{ten / hit:.0f} hits of one limit"],
        ["hold and settle, two limits, memory, asyncio", f"{ours:.1f} us", _compared(measured, ours)],
        ["hold and settle, ten limits, Redis", f"{trips} round trips", ""],
        [
            f"count {len(text):,} characters",
            f"{measured['count'].median_ns / 1e6:.2f} ms",
            f"{counting:.2f} times tiktoken's own",
        ],
        [
            f"count {len(messages):,} messages, {MESSAGE} characters each at the most",
            f"{measured['count messages'].median_ns * len(messages) / 1e6:.2f} ms",
            f"{of_messages:.2f} times tiktoken's own",
        ],
    ]
    targets = [
        Target(f"hold and settle under ten limits on memory in {MOST_US} us", f"{ten:.1f} us", ten <= MOST_US),
        Target("two round trips on Redis", f"{trips}", trips == 2),
        Target("counts at least as fast as tiktoken", f"{counting:.2f} times its time", round(counting, 2) <= 1),
        Target("counts messages at least as fast", f"{of_messages:.2f} times its time", round(of_messages, 2) <= 1),
    ]
    return Section(
        "Calls of language models",
        "A call is held by a policy of four rules (key, user, team, model; requests, tokens, money, one in flight) and "
        "settled by its usage; its input is counted apart. token-throttle holds and settles under its two limits, on "
        f"Python {PEER_PYTHON}, which it needs.",
        ["what", "took", "beside"],
        rows,
        targets,
    )


def _holding(policy: dict[str, Any], calls: int) -> Timed:
    gate = LlmGate(policy)

    def work() -> None:
        for _ in range(calls):
            gate.reserve("m", key="k", user="ann", team="red", input_tokens=100, max_tokens=800).settle_usage(USED)

    return timed_loop(work, calls)


def _holding_async(policy: dict[str, Any], calls: int) -> Timed:
    gate = AsyncLlmGate(policy)

    async def work() -> None:
        for _ in range(calls):
            call = await gate.reserve("m", user="ann", input_tokens=100, max_tokens=800)
            await call.settle_usage(USED)

    return timed_loop(lambda: asyncio.run(work()), calls)


def _hitting(calls: int) -> Timed:
    limiter = Limiter("900000000/minute bucket")

    def work() -> None:
        for _ in range(calls):
            limiter.hit("ann")

    return timed_loop(work, calls)


def _counting(count: Callable[[str], object], texts: Sequence[str]) -> Timed:
    """The time to count each of some uncached texts, after a pass that is not timed.

    The first pass would measure how long a vocabulary takes from memory, which depends on the previous subject.
    """

    def one_pass() -> None:
        tokens._cache = tokens._CountCache()
        for text in texts:
            count(text)

    def work() -> None:
        for _ in range(_PASSES):
            one_pass()

    timed = timed_loop(work, _PASSES * len(texts))

    def warmed_up() -> float:
        one_pass()
        return timed()

    return warmed_up


def _messages(text: str) -> list[str]:
    """A conversation: pieces of a text, of many lengths, each behind a role."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        length = 1 + 37 * len(pieces) % MESSAGE
        pieces += ["user", text[at : at + length]]
        at += length
    return pieces


def _count_uncached(text: str) -> None:
    """Count as `count_text` does, but without its cache."""
    count = counter("o200k_base")
    assert count is not None
    count(text)


def _trips() -> int:
    """The number of commands that a server runs for a call that is held and settled, with its scripts loaded."""
    with redis_server() as port, LlmGate(TEN_LIMITS, store=f"redis://127.0.0.1:{port}/0?timeout=5s") as gate:

        def call() -> None:
            held = gate.reserve("m", key="k", user="ann", team="red", input_tokens=100, max_tokens=800)
            held.settle_usage(USED)

        call()
        before = _commands(port)
        for _ in range(10):
            call()
        return (_commands(port) - before) // 10


def _commands(port: int) -> int:
    """The number of script calls that a server got, without the commands in scripts."""
    with redis.Redis(port=port) as client:
        commands: dict[str, dict[str, int]] = client.info("commandstats")
    return sum(stats["calls"] for name, stats in commands.items() if name.startswith("cmdstat_eval"))


def _compared(measured: dict[str, Measured], ours_us: float) -> str:
    peer = measured.get("token-throttle")
    if peer is None:
        return f"token-throttle was not measured: there is no Python {PEER_PYTHON}"
    return f"token-throttle {peer.median_ns / 1000:.0f} us, {peer.median_ns / 1000 / ours_us:.1f} times"


def _peer() -> Path | None:
    """A Python with token-throttle; None where there is none of the version that it needs."""
    program = peer_program("token-throttle", PEER_PYTHON)
    return None if program is None else program.with_name("python")


def _peer_ns(python: Path, calls: int) -> float:
    program = Path(__file__).with_name("measure_token_throttle.py")
    done = subprocess.run([python, program, str(calls)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
