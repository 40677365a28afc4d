"""A request that one limit let pass natively gets an exchange as soon as more has to be done."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from asgi_requests import ask, statuses
from broken_store import NO_REDIS
from headgate import core
from headgate.http.server.scope_exchange import RoutePassed, ScopeExchange, exchange_of
from headgate.integrations.starlette import RateLimits
from headgate.testing import ManualClock
from versions import needs

NAMES_ROUTES = needs("starlette", "1.7", "the scope has the route")
EXCHANGES: list[Any] = []


@pytest.fixture
def limits() -> RateLimits:
    EXCHANGES.clear()
    return RateLimits(clock=ManualClock())


async def read(request: Request) -> Response:
    EXCHANGES.append(request.scope["headgate"])
    return PlainTextResponse("read")


def one(endpoint: Any) -> Starlette:
    return Starlette(routes=[Route("/", endpoint)])


@NAMES_ROUTES
@pytest.mark.skipif(core.native is None, reason="there is no native gate")
def test_a_limit_that_knows_the_route_needs_no_exchange(limits: RateLimits) -> None:
    app = one(limits("9/minute")(read))
    answers = [ask(app) for _ in range(3)]
    assert [type(exchange) for exchange in EXCHANGES] == [ScopeExchange, RoutePassed, RoutePassed]
    assert [answer.headers["RateLimit"].split(";")[1] for answer in answers] == ["r=8", "r=7", "r=6"]


def test_an_inner_limit_continues_the_exchange_and_takes_back_the_charge_of_the_outer_one(
    limits: RateLimits,
) -> None:
    outer = limits("3/minute", scope="outer")
    app = one(outer(limits("2/minute log", key=lambda request: "all")(read)))
    assert statuses(app, *["/"] * 5) == [200, 200, 429, 429, 429]
    assert all(type(exchange) is ScopeExchange for exchange in EXCHANGES)
    assert statuses(one(outer(read)), "/", "/") == [200, 200], "another application has a store of its own"


def test_an_endpoint_that_calls_another_one_reports_both_limits(limits: RateLimits) -> None:
    inner = limits("5/minute", name="inner", scope="inner")(read)

    async def instead(request: Request) -> Response:
        await inner(request)
        return PlainTextResponse("instead")

    app = one(limits("9/minute", name="outer", scope="outer")(instead))
    for remaining in (4, 3, 2):
        assert ask(app).headers["RateLimit"].startswith(f'"inner";r={remaining};'), (
            "the limit with the fewest units left"
        )


def test_an_inner_charge_is_settled_once_where_the_endpoint_fails(limits: RateLimits) -> None:
    counted: list[int] = []

    def counts(request: Any, response: Any) -> bool:
        counted.append(response.status)
        return True

    inner = limits("5/minute", counts=counts, scope="inner")(read)

    async def failing(request: Request) -> Response:
        await inner(request)
        raise RuntimeError("after it")

    app = one(limits("9/minute", scope="outer")(failing))
    assert statuses(app, "/", "/", "/") == [500, 500, 500]
    assert counted == [500, 500, 500]


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503)])
def test_an_unreachable_store_is_handled_by_the_option_each_time(choice: Any, status: int) -> None:
    app = one(RateLimits(store=NO_REDIS)("1/minute", on_store_error=choice)(read))
    answers = [ask(app) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [status] * 3
    assert {answer.headers["X-RateLimit-Degraded"] for answer in answers} == {choice}


def test_a_request_that_a_queue_delays_is_charged_once() -> None:
    clock = ManualClock()
    began_us = clock.now_us()
    app = one(RateLimits(clock=clock)("1/second queue 1")(read))
    assert statuses(app, "/", "/", "/") == [200, 200, 200]
    assert clock.now_us() - began_us == 2_000_000, "each waits for its turn, and for no other"


def test_a_response_class_with_its_own_call_has_the_fields(limits: RateLimits) -> None:
    class Own(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"yes")]})
            await send({"type": "http.response.body", "body": b"own"})

    async def own(request: Request) -> Response:
        return Own()

    app = one(limits("9/minute")(own))
    for remaining in (8, 7):
        headers = ask(app).headers
        assert (headers["X-Own"], headers["RateLimit"].split(";")[1]) == ("yes", f"r={remaining}")


@NAMES_ROUTES
@pytest.mark.skipif(core.native is None, reason="nothing is asked natively")
def test_an_exchange_is_continued_by_one_only(limits: RateLimits) -> None:
    app = one(limits("9/minute")(read))
    statuses(app, "/", "/")
    passed = EXCHANGES[-1]
    first, second = {"headgate": passed}, {"headgate": passed}
    assert exchange_of(first) is exchange_of(second) is passed.exchange is first["headgate"]
    assert passed.exchange.encoded_fields() == passed.fields
    assert passed.charge[0] == ("GET /", "ip", "203.0.113.9")
