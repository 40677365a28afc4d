"""Many decisions in one call: `hit_many`."""

from __future__ import annotations

from functools import partial

from benchmarks.measuring import Section, Target, in_turns, timed_loop
from headgate import Limiter


def hit_often(limiter: Limiter, keys: list[str], calls: int) -> None:
    for _ in range(calls):
        limiter.hit_many(keys)


def run(quick: bool) -> Section:
    """Measure batches of several sizes."""
    rows = []
    rates = {}
    for count in (100, 10_000, 100_000) if quick else (100, 10_000, 100_000, 1_000_000):
        keys = [f"user:{number}" for number in range(count)]
        limiters = {
            text: Limiter(text, store="memory://?max_keys=2000000") for text in ("1000000/hour", "1000000/hour bucket")
        }
        calls = max(1, 50_000 // count)
        measured = in_turns(
            {
                text: timed_loop(partial(hit_often, limiter, keys, calls), count * calls)
                for text, limiter in limiters.items()
            },
            rounds=3 if quick else 9,
        )
        for text, result in measured.items():
            rows.append((f"{count:,}", text, str(result), f"{result.per_second / 1e6:.1f} million"))
            rates[count, text] = result.per_second
    at_100k = min(rate for (count, _), rate in rates.items() if count == 100_000)
    return Section(
        "Many decisions in one call",
        "`limiter.hit_many(keys)`: the time of one key, with as many keys in a call, each a different one.",
        ("keys in a call", "limit", "a key", "keys a second"),
        rows,
        (
            Target(
                "at least 10 million keys a second",
                f"{at_100k / 1e6:.1f} million with 100,000 keys in a call",
                at_100k >= 1e7,
            ),
        ),
    )
