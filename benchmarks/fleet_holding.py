"""Holds on Redis: a reserve and its commit in comparison with a hit, and with few and many open holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import Random

from benchmarks.fleet import commands_sent
from benchmarks.holding import at_most
from benchmarks.measuring import Section, Target, Timed, in_turns
from benchmarks.servers import program, redis_server
from headgate import Limiter
from headgate.stores.redis.store import RedisStore

MANY = 10**6
OPEN = (10, 10_000)
CALLS = 25
SETTLED = 100
SENT = 20
TEXTS = {
    "fixed window": f"{MANY}/hour fixed",
    "sliding window counter": f"{MANY}/hour",
    "sliding window log": "100000/hour log",
    "token bucket": f"{MANY}/hour bucket",
    "places in flight": f"{MANY} concurrent",
    "token bucket and places": f"{MANY}/hour bucket; {MANY} concurrent",
}
HITS = {
    **TEXTS,
    "places in flight": TEXTS["token bucket"],
    "token bucket and places": f"{MANY}/hour bucket; {MANY}/day bucket",
}
"""The limits of the hit to compare with: as many of the same kinds, token buckets for places, which cannot be hit."""


def hits(limiter: Limiter) -> Timed:
    return _median_of(lambda: limiter.hit("user:42"))


def hold(limiter: Limiter) -> None:
    limiter.commit(limiter.reserve("user:42").id, 0)


def settling(limiter: Limiter, opened: int) -> Timed:
    """The time of a commit of a random one of `opened` holds; a new hold replaces each, so the number is constant."""
    random, ids = Random(7), [limiter.reserve("user:43", lease=86_400).id for _ in range(opened)]

    def timed() -> float:
        times_ns = []
        for _ in range(SETTLED):
            index = random.randrange(len(ids))
            start = time.perf_counter_ns()
            limiter.commit(ids[index], 0)
            times_ns.append(time.perf_counter_ns() - start)
            ids[index] = limiter.reserve("user:43", lease=86_400).id
        return sorted(times_ns)[SETTLED // 2]

    return timed


def run(quick: bool) -> Section:
    """Measure all kinds of limits on one server."""
    rounds, short_rounds = (3, 60) if quick else (9, 240)
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    if program("redis-server"):
        with redis_server() as port:
            store = RedisStore(f"redis://127.0.0.1:{port}/0?timeout=5s")
            for number, (name, text) in enumerate(TEXTS.items()):
                hitting = Limiter(HITS[name], store=store, name=f"hits-{number}")
                holder = Limiter(text, store=store, name=f"holds-{number}")
                holding = partial(hold, holder)
                # Short turns: other load on the machine disturbs both alike, and hardly changes their ratio.
                measured = in_turns({"hit": hits(hitting), "hold": _median_of(holding)}, short_rounds)
                timed: dict[str, Timed] = {}
                for opened in OPEN:
                    timed[str(opened)] = settling(Limiter(text, store=store, name=f"open-{number}-{opened}"), opened)
                measured |= in_turns(timed, rounds)
                few, many = (measured[str(opened)] for opened in OPEN)
                rows.append((name, str(measured["hit"]), str(measured["hold"]), str(few), str(many)))
                sent = commands_sent(port, holding, SENT)
                targets.append(Target(f"{name}: two round trips for a reserve and its commit", f"{sent:g}", sent == 2))
                targets.append(at_most(f"{name}: a reserve and its commit", measured["hold"], measured["hit"], 2.5))
                targets.append(at_most(f"{name}: a commit with {OPEN[1]:,} open to {OPEN[0]}", many, few, 1.5))
            store.close()
    return Section(
        "Holds on Redis",
        "One Redis on loopback and one thread: the median of `limiter.commit(limiter.reserve(key).id, 0)`, two round "
        "trips, beside that of `limiter.hit(key)` on as many limits of the same kinds (a token bucket for places, "
        "which cannot be hit: a decision of two limits costs more than one of one, held or not), and of "
        "`limiter.commit(id, 0)` on a key of which ten or ten thousand others are open.",
        ("limit", "hit", "reserve and commit", f"commit, {OPEN[0]} open", f"commit, {OPEN[1]:,} open"),
        rows,
        targets,
    )


def _median_of(call: Callable[[], object]) -> Timed:
    def timed() -> float:
        times_ns = []
        for _ in range(CALLS):
            start = time.perf_counter_ns()
            call()
            times_ns.append(time.perf_counter_ns() - start)
        return sorted(times_ns)[CALLS // 2]

    return timed
