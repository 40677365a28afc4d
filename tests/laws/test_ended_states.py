"""Holds of limits whose numbers change between their steps, on states that end meanwhile: all stores alike, and whether
or not such a state was forgotten before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import Limiter, MemoryStore
from headgate.testing import ManualClock
from subjects import HOLDING, deciding, make_store, numbers

needs_two = pytest.mark.skipif(len(HOLDING) < 2, reason="only one store that holds is here")
PERIOD_US = 60_000_000
VERSIONS = (
    ("30/minute log", "200/minute counter", "20/10 seconds log", "40/2 minutes counter"),
    ("30/minute fixed", "10/30 seconds fixed", "20/2 minutes fixed"),
    ("30/minute burst 30", "10/minute burst 5", "60/minute burst 90"),
    ("10/minute burst 30 stepwise", "5/30 seconds burst 5 stepwise"),
    ("30/minute leaky 30", "10/minute leaky 5"),
    ("20/day in Europe/Zurich", "100/week in Europe/Zurich"),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "extend", "hit", "commit"]),
        st.integers(0, 3),
        st.integers(0, 25),
        st.one_of(st.just(0), st.integers(0, 3 * PERIOD_US), st.integers(0, 20 * 86_400_000_000)),
    ),
    min_size=1,
    max_size=8,
)
"""(what is done, through which version of the limit, how many units, after how many microseconds)"""


def results_of(
    store: Any, texts: tuple[str, ...], cost: int, steps: list[tuple[str, int, int, int]], *, forgets: bool
) -> list[Any]:
    """The results of a store at each step of a hold of this cost.

    Where it `forgets`, so many other keys are charged that it drops all states that have ended.
    """
    clock = ManualClock()
    limiters = [Limiter(text, store=store, name="api", clock=clock) for text in texts]
    other = Limiter("1/second fixed", store=store, name="other", clock=clock)
    results: list[Any] = []
    for number, (action, version, units, wait_us) in enumerate(steps):
        clock.advance(wait_us)
        for key in range(4 * forgets):
            other.hit((str(number), key))
        limiter = limiters[version % len(limiters)]
        whole_id = limiter.id_of("key", "1")
        if action == "hit":
            results.append(numbers(limiter.hit("key", units)))
        elif action == "reserve":
            held = limiter.reserve("key", cost, id="1", lease=30 * 86_400)
            results.append((numbers(held.decision), held.repeated))
        elif action == "extend":
            # On Redis an extension cannot charge a calendar window that the limits do not have, see docs/redis.md.
            more = 0 if "Zurich" in texts[0] else units
            extended = limiter.extend(whole_id, lease=1, more=more)
            results.append((extended.outcome, [(after.remaining, after.reset_after_us) for after in extended.after]))
        else:
            settled = limiter.commit(whole_id, units)
            results.append((settled.outcome, [(after.remaining, after.reset_after_us) for after in settled.after]))
        results += [numbers(one.peek("key", 1)) for one in limiters]
    return results


@needs_two
@given(texts=st.sampled_from(VERSIONS), cost=st.integers(0, 3), steps=STEPS)
@example(
    texts=VERSIONS[0], cost=1, steps=[("reserve", 0, 0, 0), ("extend", 1, 0, 61_000_000), ("commit", 0, 20, 0)]
)  # a hold of a log entry that had left, extended under a counter
@example(
    texts=VERSIONS[0],
    cost=1,
    steps=[("reserve", 0, 0, 0), ("extend", 1, 0, 10_000_000), ("commit", 0, 20, 300_000_000)],
)  # the counter that took over has ended, too
def test_holds_of_changed_limits_are_settled_alike_whether_or_not_a_state_that_ended_was_forgotten(
    texts: tuple[str, ...], cost: int, steps: list[tuple[str, int, int, int]]
) -> None:
    results = [results_of(make_store(kind), texts, cost, steps, forgets=False) for kind in deciding(HOLDING)]
    results.append(results_of(MemoryStore(core="python"), texts, cost, steps, forgets=True))
    assert all(one == results[0] for one in results)
