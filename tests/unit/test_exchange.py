"""The course of a request through its limits: judged, reported, settled once, or taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headgate import MemoryStore
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.exchange import Exchange, Judgement
from headgate.http.server.options import Response
from headgate.policy.request import Request
from headgate.testing import ManualClock

OK = Response(200, {}, 2)


@pytest.fixture(params=["sync", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def enforcer(colour: str, limits: str, **options: Any) -> Enforcer:
    given_options: Any = {"limits": limits, "clock": ManualClock(), **options}
    return Enforcer(None, given_options, asynchronous=colour == "asyncio", routed=True)


def new_request() -> Request:
    return Request("GET", "/", client_ip="203.0.113.9", endpoint="GET /")


def judge(exchange: Exchange, limit: Enforcer) -> Judgement:
    if limit.asynchronous:
        return asyncio.run(exchange.judge_async(limit, new_request(), limit))
    return exchange.judge(limit, new_request(), limit)


def end(exchange: Exchange, limit: Enforcer, response: Response = OK) -> None:
    if limit.asynchronous:
        asyncio.run(exchange.end_async(response))
    else:
        exchange.end(response)


def remaining_after(limit: Enforcer) -> int | None:
    """Return what remains after one more request."""
    decision = judge(Exchange(), limit).decision
    assert decision is not None
    return decision.remaining


def counting(statuses: list[int], units: bool | int = True) -> Callable[..., bool | int]:
    def counts(request: Request, response: Response) -> bool | int:
        statuses.append(response.status)
        return units

    return counts


def test_a_refusal_takes_back_what_limits_before_it_charged(colour: str) -> None:
    outer, middle, inner = (enforcer(colour, limits) for limits in ("9/minute", "8/minute", "1/minute"))
    judge(Exchange(), inner)
    exchange = Exchange()
    assert [judge(exchange, each).refusal is None for each in (outer, middle, inner)] == [True, True, False]
    assert exchange.is_refused and not exchange.has_passed(outer)
    assert (remaining_after(outer), remaining_after(middle)) == (8, 7)
    assert dict(exchange.fields())["Retry-After"] == "60"


def test_a_request_that_never_reaches_the_application_is_taken_back_once() -> None:
    limit = enforcer("sync", "9/minute")
    exchange = Exchange()
    judge(exchange, limit)
    for _ in range(2):
        exchange.take_back()
    assert remaining_after(limit) == 8
    assert exchange.fields() == []


def test_an_exchange_ends_once(colour: str) -> None:
    statuses: list[int] = []
    limit = enforcer(colour, "9/minute", counts=counting(statuses, False))
    exchange = Exchange()
    judge(exchange, limit)
    assert exchange.settles
    end(exchange, limit)
    end(exchange, limit, Response(500, {}, 0))
    assert statuses == [200]
    assert remaining_after(limit) == 8


def test_each_limit_that_settles_gets_the_response(colour: str) -> None:
    statuses: list[int] = []
    limits = [enforcer(colour, text, counts=counting(statuses)) for text in ("9/minute", "8/minute")]
    exchange = Exchange()
    for limit in (*limits, enforcer(colour, "7/minute")):
        judge(exchange, limit)
    end(exchange, limits[0], Response(404, {}, 0))
    assert statuses == [404, 404]


def test_a_refused_request_settles_nothing(colour: str) -> None:
    statuses: list[int] = []
    outer = enforcer(colour, "9/minute", counts=counting(statuses))
    inner = enforcer(colour, "1/minute", cost=2)
    exchange = Exchange()
    judge(exchange, outer)
    judge(exchange, inner)
    assert not exchange.settles
    end(exchange, outer)
    assert statuses == []


def test_of_several_limits_the_one_with_the_fewest_units_left_is_reported(colour: str) -> None:
    exchange = Exchange()
    for text in ("9/minute", "3/minute", "5/minute"):
        judge(exchange, enforcer(colour, text))
    assert dict(exchange.fields())["RateLimit"].startswith('"default";r=2')


def test_of_several_refusals_the_one_with_the_longest_wait_is_reported(colour: str) -> None:
    exchange = Exchange()
    for text in ("1/minute", "1/hour", "1/second"):
        limit = enforcer(colour, text)
        judge(Exchange(), limit)
        judge(exchange, limit)
    assert dict(exchange.fields())["Retry-After"] == "3600"


def test_limits_that_share_a_counter_count_separately_in_one_exchange(colour: str) -> None:
    store = MemoryStore()
    outer, inner = (enforcer(colour, "9/minute", store=store) for _ in range(2))
    exchange = Exchange()
    assert [judge(exchange, each).counted_as for each in (outer, inner)] == ["", " (2)"]
