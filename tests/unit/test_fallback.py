"""Decisions while a store does not answer, by the configured choice of each limit."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from dataclasses import replace
from fractions import Fraction
from typing import Any

import flask
import pytest

from headgate import AsyncLimiter, ConfigError, GuardedStore, Limiter, MemoryStore, RedisStore
from headgate.decision import name_limits
from headgate.integrations.flask import RateLimits
from headgate.limit_text import parse_limits
from headgate.operation import Operation
from headgate.stores.guard.breaker import OPEN
from headgate.stores.guard.fallback import Fallback, read_share
from headgate.testing import ManualClock

UNREACHABLE = "redis://127.0.0.1:1"  # nothing listens there


@pytest.mark.parametrize(("on_error", "passes"), [("open", 9), ("closed", 0), ("local", 3)])
def test_each_choice_decides_as_documented(on_error: str, passes: int) -> None:
    limiter = Limiter("3/hour", store=f"{UNREACHABLE}?on_error={on_error}")
    decisions = [limiter.hit("user") for _ in range(9)]
    assert [decision.allowed for decision in decisions] == [True] * passes + [False] * (9 - passes)
    assert {decision.degraded for decision in decisions} == {on_error}
    if on_error != "open":
        assert all((decision.retry_after or 0) > 0 for decision in decisions[passes:])
    assert limiter.peek("user", 0).allowed


def test_asyncio_decides_the_same() -> None:
    async def run() -> list[tuple[bool, str]]:
        limiter = AsyncLimiter("3/hour", store=f"{UNREACHABLE}?on_error=local")
        decisions = [await limiter.hit("user") for _ in range(5)]
        await limiter.close()
        return [(decision.allowed, decision.degraded) for decision in decisions]

    assert asyncio.run(run()) == [(True, "local")] * 3 + [(False, "local")] * 2


def test_the_strictest_choice_decides() -> None:
    def decide(*choices: str) -> tuple[bool, str, int | None]:
        named = [
            limit
            for number, choice in enumerate(choices)
            for limit in name_limits(
                parse_limits("2/hour"), scope=f"s{number}", name=f"n{number}", group=number, on_store_error=choice
            )
        ]
        fallback = Fallback(named, "local", Fraction(1), MemoryStore(), ManualClock())
        decision = fallback.decide(Operation(("key",) * len(choices), (1,) * len(choices)))
        return decision.allowed, decision.degraded, decision.remaining

    assert decide("open", "open") == (True, "open", 2)
    assert decide("open", "local") == (True, "local", 1)
    assert decide("open", "local", "closed") == (False, "closed", 0)
    assert decide("", "open") == (True, "local", 1)


def test_a_limit_that_is_charged_nothing_leaves_the_choice_to_the_others() -> None:
    limits = [
        *name_limits(parse_limits("9 usd/day"), scope="budget", name="budget", on_store_error="closed"),
        *name_limits(parse_limits("2/hour"), scope="rate", name="rate", group=1, on_store_error="local"),
    ]
    fallback = Fallback(limits, "open", Fraction(1), MemoryStore(), ManualClock())
    decisions = [fallback.decide(Operation(("key",) * 2, (0, 1))) for _ in range(3)]
    assert [(decision.allowed, decision.degraded) for decision in decisions] == [(True, "local")] * 2 + [
        (False, "local")
    ]
    charged = fallback.decide(Operation(("other",) * 2, (1, 1)))
    assert (charged.allowed, charged.degraded) == (False, "closed")
    assert fallback.decide(Operation(("other",) * 2, (0, 0))).limits[1].remaining == 2
    beside_open = Fallback(
        [limits[0], replace(limits[1], on_store_error="open")], "local", Fraction(1), MemoryStore(), ManualClock()
    )
    passed = beside_open.decide(Operation(("key",) * 2, (0, 1)))
    assert (passed.allowed, passed.degraded) == (True, "open")


@pytest.mark.parametrize(
    ("text", "share", "expected"),
    [
        ("100/minute", "1/4", "25/minute"),
        ("3/minute fixed", "1/10", "1/minute fixed"),
        ("1000/hour log", "1/3", "333/hour log"),
        ("10/second burst 100", "1/4", "2/second burst 25"),
        ("1/second bucket", "1/4", "1 per 4 seconds burst 1"),
        ("1/second bucket", "2/3", "1 per 2 seconds burst 1"),
        ("1/ms bucket", "2/3", "1 per 2 ms burst 1"),
        ("7/day leaky 3", "1/2", "3/day leaky 1"),
        ("50/second queue 200", "1/2", "25/second queue 100"),
        ("10/minute burst 30 stepwise", "1/3", "3/minute burst 10 stepwise"),
        ("1/second bucket stepwise", "1/4", "1 per 4 seconds burst 1 stepwise"),
        ("1000/month in Europe/Zurich", "1/4", "250/month in Europe/Zurich"),
        ("3/day in UTC", "1/10", "1/day in UTC"),
        ("0/day in UTC", "1/2", "0/day in UTC"),
        ("0/minute", "1/2", "0/minute"),
        ("5/hour", "1", "5/hour"),
        ("1/second burst 0", "1/2", "1/second burst 0"),
        ("5/hour", "2", "10/hour"),
        ("10/second burst 100", "2", "20/second burst 200"),
        ("50/second queue 200", "2", "100/second queue 400"),
    ],
)
def test_a_share_or_a_multiple_of_a_limit_is_never_more_than_that(text: str, share: str, expected: str) -> None:
    [limit] = parse_limits(text)
    assert str(limit.scaled(Fraction(share))) == str(parse_limits(expected)[0])


@pytest.mark.parametrize("share", [0, -1, 1.5, True, "half", float("nan")])
def test_an_invalid_share_is_refused(share: object) -> None:
    with pytest.raises(ConfigError, match="local_share is a number above 0, up to 1"):
        read_share(share)


def test_an_invalid_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_error is one of local, open, closed, not 'maybe'"):
        GuardedStore(RedisStore(UNREACHABLE), on_error="maybe")  # type: ignore[arg-type]


def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter("100/hour", store="redis://someone:s3cr3t@127.0.0.1:1")
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(50):
            limiter.hit("user")
    messages = [record.getMessage() for record in caplog.records]
    limiter.close()
    assert len(messages) == 1 and "requests are decided without it" in messages[0] and "s3cr3t" not in messages[0]
    assert isinstance(limiter.store, GuardedStore) and limiter.store.breaker.opened == 1


def test_an_unreferenced_store_is_not_probed() -> None:
    limiter = Limiter("100/hour", store=UNREACHABLE)
    for _ in range(5):
        limiter.hit("user")
    assert isinstance(limiter.store, GuardedStore) and limiter.store.breaker.state == OPEN
    prober = limiter.store.breaker._prober
    assert isinstance(prober, threading.Thread) and prober.is_alive()
    del limiter
    gc.collect()
    prober.join(10)
    assert not prober.is_alive()


@pytest.mark.parametrize(("choice", "status"), [("closed", 503), ("open", 200)])
@pytest.mark.parametrize("by_url", ["", "?on_error=open", "?on_error=closed"])
def test_the_choice_of_an_integration_overrides_that_of_the_url_while_redis_is_down(
    choice: Any, status: int, by_url: str
) -> None:
    app = flask.Flask("shop")
    RateLimits(app, default="1/minute", store=UNREACHABLE.partition("?")[0] + by_url, on_store_error=choice)
    app.add_url_rule("/", view_func=lambda: "here")
    assert [app.test_client().get("/").status_code for _ in range(4)] == [status] * 4
