"""Which key is counted, under which limits, and how much counts: the same in asyncio and in threads."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headgate import ArgumentError, ConfigError, MemoryStore, StoreUnavailable, TokenBucket
from headgate.decision import Decision
from headgate.http import asgi, wsgi
from headgate.http.keys import header, portable
from headgate.http.server.enforcer import Enforcer, Verdict
from headgate.http.server.exchange import Exchange
from headgate.http.server.options import Refusal, Response
from headgate.policy.request import Request
from headgate.testing import ManualClock

POLICY = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "2/minute"}]}
OK = Response(200, {}, 0)


@pytest.fixture(params=["asyncio", "threads"])
def colour(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


class Judge:
    """Judges requests as an adapter for asyncio or for threads does."""

    def __init__(self, colour: str, policy: Any = None, *, routed: bool = False, **options: Any) -> None:
        self.asynchronous = colour == "asyncio"
        self.clock = options.setdefault("clock", ManualClock())
        given_options: Any = options
        self.enforcer = Enforcer(policy, given_options, asynchronous=self.asynchronous, routed=routed)

    def answer(self, request: Request) -> Verdict:
        self.exchange = Exchange()
        if self.asynchronous:
            return asyncio.run(self.exchange.judge_async(self.enforcer, request)).verdict
        return self.exchange.judge(self.enforcer, request).verdict

    def answered(self, request: Request, response: Response = OK) -> Verdict:
        """Return the verdict on a request whose application gives this response."""
        answer = self.answer(request)
        self.end(response)
        return answer

    def end(self, response: Response) -> None:
        """End the last request's exchange."""
        if self.asynchronous:
            asyncio.run(self.exchange.end_async(response))
        else:
            self.exchange.end(response)

    def passed(self, *requests: Request) -> list[bool]:
        return [self.answer(request).refusal is None for request in requests]

    def remaining_after(self, request: Request) -> int:
        """Return how much this client has left after one more request."""
        decision = self.answer(request).decision
        assert decision is not None and decision.remaining is not None
        return decision.remaining


def new_request(
    ip: str = "203.0.113.9", path: str = "/", method: str = "GET", endpoint: str = "", **headers: str
) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, path, headers=named, client_ip=ip, endpoint=endpoint)


def times(number: int, *arguments: str, **headers: str) -> list[Request]:
    return [new_request(*arguments, **headers) for _ in range(number)]


# Tiers.


def test_each_tier_has_its_limits_and_any_other_the_default(colour: str) -> None:
    judge = Judge(
        colour,
        limits={"default": "1/minute", "pro": "2/minute", "staff": None},
        tier=lambda request: request.headers.get("x-tier"),
        key=header("X-User"),
    )
    assert judge.passed(*times(2, x_user="a")) == [True, False]
    assert judge.passed(*times(2, x_user="b", x_tier="unheard of")) == [True, False]
    assert judge.passed(*times(3, x_user="c", x_tier="pro")) == [True, True, False]
    assert judge.passed(*times(5, x_user="d", x_tier="staff")) == [True] * 5
    assert judge.answer(new_request(x_user="d", x_tier="staff")) == Verdict(None, [], 0), (
        "a request without limits gets no fields"
    )


@pytest.mark.parametrize("value", [["pro"], {"tier": "pro"}, ("groups", ["pro"]), 7, None, ()])
def test_a_value_that_names_no_tier_has_the_default(colour: str, value: Any) -> None:
    judge = Judge(colour, limits={"default": "1/minute", "pro": "2/minute"}, tier=lambda request: value)
    assert judge.passed(*times(2)) == [True, False]


def test_a_default_of_none_limits_only_the_tiers_that_are_named(colour: str) -> None:
    judge = Judge(colour, limits={"default": None, "free": "1/minute"}, tier=header("X-Tier"))
    assert judge.passed(*times(3)) == [True] * 3
    assert judge.passed(*times(2, x_tier="free")) == [True, False]


def test_the_tier_of_a_key_function_is_its_last_part(colour: str) -> None:
    judge = Judge(colour, limits={"default": "1/minute", "pro": "2/minute"}, tier=header("X-Tier"))
    assert judge.passed(*times(3, x_tier="pro")) == [True, True, False]
    assert judge.passed(*times(2, "203.0.113.10", x_tier="header:x-tier")) == [True, False]


def test_a_name_keeps_what_was_used_when_the_tier_changes(colour: str) -> None:
    limits = {"default": "2/minute", "pro": "5/minute"}
    judge = Judge(colour, limits=limits, tier=header("X-Tier"), name="api")
    assert judge.passed(*times(3)) == [True, True, False]
    assert judge.passed(*times(4, x_tier="pro")) == [True, True, True, False]


def test_in_asyncio_every_function_may_be_a_coroutine_function() -> None:
    async def later(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    async def tier(request: Request) -> Any:
        return await later(request.headers.get("x-tier"))

    async def key(request: Request) -> Any:
        return await later(request.headers.get("x-user"))

    async def cost(request: Request) -> Any:
        return await later(int(request.headers.get("x-cost", "1")))

    async def exempt(request: Request) -> Any:
        return await later(request.path == "/healthz")

    async def limits(request: Request) -> Any:
        return await later({"pro": "2/minute"}.get(request.headers.get("x-tier", ""), "1/minute"))

    functions: dict[str, Any] = {"key": key, "cost": cost, "exempt": exempt}
    for how in ({"limits": {"default": "1/minute", "pro": "2/minute"}, "tier": tier}, {"limits": limits}):
        judge = Judge("asyncio", **how, **functions)
        assert judge.passed(*times(2, x_user="a")) == [True, False]
        assert judge.passed(
            new_request(x_user="b", x_tier="pro", x_cost="2"), new_request(x_user="b", x_tier="pro")
        ) == [
            True,
            False,
        ]
        assert judge.passed(*times(5, path="/healthz", x_user="a")) == [True] * 5
        preflight = {"Origin": "https://a.example", "Access_Control_Request_Method": "PUT"}
        assert judge.passed(*times(3, method="OPTIONS", x_user="a", **preflight)) == [True] * 3
    options: list[dict[str, Any]] = [{"exempt": exempt}, {"exempt": exempt, "cost": cost}]
    for policy_options in options:
        judge = Judge("asyncio", POLICY, **policy_options)
        assert judge.passed(*times(3)) == [True, True, False], "a coroutine does not count as true"
        assert judge.passed(*times(3, path="/healthz")) == [True] * 3


@pytest.mark.parametrize(
    ("policy", "name", "options"),
    [
        (None, "key", {"limits": "1/minute"}),
        (None, "cost", {"limits": "1/minute"}),
        (None, "exempt", {"limits": "1/minute"}),
        (None, "tier", {"limits": {"default": "1/minute"}}),
        (POLICY, "exempt", {}),
    ],
)
@pytest.mark.parametrize("mark", [lambda function: function, portable])
def test_a_coroutine_returned_by_a_plain_function_is_an_error_and_exempts_nothing(
    colour: str, policy: Any, name: str, options: dict[str, Any], mark: Callable[[Any], Any]
) -> None:
    @functools.wraps(_coroutine)
    def decorated(request: Request) -> Any:
        return _coroutine(request)

    all_options: dict[str, Any] = {**options, name: mark(decorated)}
    with pytest.raises(ArgumentError, match=f"^{name} returned a coroutine, but its function is defined with def"):
        Judge(colour, policy, **all_options).answer(new_request())


async def _coroutine(request: Request) -> Any:
    return None


@pytest.mark.parametrize("mark", [lambda function: function, portable])
def test_an_object_whose_call_is_a_coroutine_function_is_awaited(mark: Callable[[Any], Any]) -> None:
    class Exempt:
        async def __call__(self, request: Request) -> bool:
            return False

    judge = Judge("asyncio", limits="1/minute", exempt=mark(Exempt()))
    assert judge.passed(*times(2)) == [True, False]
    with pytest.raises(ConfigError, match="needs an asyncio application"):
        Judge("threads", limits="1/minute", exempt=mark(Exempt()))


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (None, {"limits": "1/minute", "key": _coroutine}),
        (None, {"limits": "1/minute", "cost": _coroutine}),
        (None, {"limits": "1/minute", "exempt": _coroutine}),
        (None, {"limits": _coroutine}),
        (None, {"limits": {"default": "1/minute"}, "tier": _coroutine}),
        (POLICY, {"exempt": _coroutine}),
        (POLICY, {"cost": _coroutine}),
    ],
)
def test_in_threads_a_coroutine_function_raises_an_error(policy: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs an asyncio application"):
        Judge("threads", policy, **options)
    with pytest.raises(ConfigError, match="needs an asyncio application"):
        wsgi.RateLimitMiddleware(lambda environ, start_response: [], policy, **options)


# Requests without a key.


@pytest.mark.parametrize("none", [None, "", (), ("user", None), ("user", ""), ("user", "", "x")])
def test_a_request_without_a_key_is_counted_by_address(colour: str, none: Any) -> None:
    judge = Judge(colour, limits="1/minute", key=lambda request: none)
    assert judge.passed(new_request("192.0.2.1"), new_request("192.0.2.2"), new_request("192.0.2.1")) == [
        True,
        True,
        False,
    ]


def test_a_request_without_a_key_is_counted_with_all_others_without_one(colour: str) -> None:
    judge = Judge(colour, limits="1/minute", key=header("X-User"), missing="anonymous")
    assert judge.passed(new_request("192.0.2.1"), new_request("192.0.2.2")) == [True, False]
    assert judge.passed(new_request(x_user="anonymous")) == [True], "a user named anonymous has another key"


def test_a_request_without_a_key_is_refused_without_a_time_to_retry(colour: str) -> None:
    judge = Judge(colour, limits="5/minute; 100/hour", key=header("X-User"), missing="refuse")
    answer = judge.answer(new_request())
    assert answer.refusal is not None and answer.decision is not None
    assert (answer.refusal.status, answer.decision.retry_after_us) == (429, None)
    assert "Retry-After" not in dict(answer.refusal.headers)
    assert b"lacks what it is counted by" in answer.refusal.body
    assert judge.passed(new_request(x_user="a")) == [True]


def doubled(number: int) -> Request:
    return Request(headers=[("X-User", "VALID"), ("X-User", f"r{number}")], client_ip=f"192.0.2.{number}")


@pytest.mark.parametrize(
    "key",
    [
        header("X-User"),
        lambda request: request.headers.get("x-user"),
        lambda request: request.header("x-user"),
        lambda request: "user:" + request.header("x-user"),
        lambda request: ("user", request.headers["x-user"]),
    ],
)
def test_a_key_that_was_sent_several_times_is_one_key_or_is_refused(colour: str, key: Any) -> None:
    judge = Judge(colour, limits="2/minute", key=key)
    assert judge.passed(*map(doubled, range(4))) == [True, True, False, False]


@pytest.mark.parametrize("key", [header("X-User"), lambda request: request.headers.get("x-user")])
def test_a_key_that_was_sent_several_times_is_refused_where_that_is_configured(colour: str, key: Any) -> None:
    judge = Judge(colour, limits="2/minute", key=key, repeated="refuse")
    answer = judge.answer(doubled(1))
    assert answer.decision is not None and answer.refusal is not None
    assert answer.decision.retry_after is None
    assert judge.passed(new_request(x_user="VALID"), new_request()) == [True, True]


def test_a_key_of_any_length_is_counted_and_long_ones_do_not_run_together(colour: str) -> None:
    judge = Judge(colour, limits="1/minute", key=lambda request: request.headers.get("x-user"))
    assert judge.passed(
        new_request(x_user="x" * 20_000), new_request(x_user="x" * 20_001), new_request(x_user="x" * 20_000)
    ) == [
        True,
        True,
        False,
    ]
    parts = Judge(colour, limits="1/minute", key=lambda request: ("user", 7, request.headers["x-user"]))
    assert parts.passed(new_request(x_user="x" * 20_000), new_request(x_user="y" * 20_000)) == [True, True]


def test_a_client_without_an_address_is_one_client(colour: str) -> None:
    judge = Judge(colour, limits="1/minute")
    assert judge.passed(new_request(""), new_request(""), new_request("unix")) == [True, False, False]


# Shadows.


def test_a_shadow_counts_and_reports_and_refuses_no_request(colour: str) -> None:
    observed: list[tuple[str, list[str]]] = []

    def observe(request: Request, decision: Decision) -> None:
        observed.append((request.client_ip, [reading.name for reading in decision.refusals]))

    judge = Judge(colour, limits="1/minute", shadow=True, name="trial", on_decision=observe)
    answers = [judge.answer(new_request()) for _ in range(3)]
    assert all(answer.refusal is None for answer in answers)
    assert observed == [("203.0.113.9", names) for names in ([], ["trial"], ["trial"])]
    assert all(answer.fields == [] for answer in answers), "clients get no fields of a shadow limit"
    missing = Judge(colour, limits="1/minute", shadow=True, key=header("X-User"), missing="refuse", on_decision=observe)
    assert missing.passed(new_request()) == [True]
    assert observed[-1] == ("203.0.113.9", ["default"])


def test_every_decision_is_reported_before_the_response(colour: str) -> None:
    observed: list[bool] = []
    judge = Judge(colour, limits="1/minute", on_decision=lambda request, decision: observed.append(decision.allowed))
    judge.passed(*times(2))
    assert observed == [True, False]


# IPv6.


def network(wide: int, narrow: int, host: int = 1) -> str:
    return f"2001:db8:{wide:x}:{narrow:x}::{host:x}"


def test_a_64_is_one_client(colour: str) -> None:
    judge = Judge(colour, limits="2/minute", ipv6_wide=(48, 3))
    assert judge.passed(*[new_request(network(1, 1, host)) for host in (1, 2, 3)]) == [True, True, False]


def test_a_client_that_rotates_the_64s_of_a_48_meets_the_wide_limit(colour: str) -> None:
    judge = Judge(colour, limits="2/minute", ipv6_wide=(48, 3))
    assert judge.passed(*[new_request(network(1, own)) for own in range(8)]) == [True] * 6 + [False] * 2
    assert judge.passed(new_request(network(2, 0))) == [True], "the next /48 has its own"
    refused = judge.answer(new_request(network(1, 99)))
    assert refused.refusal is not None and b'"violated-policies":["default.wide"]' in refused.refusal.body


def test_both_networks_are_charged_or_none(colour: str) -> None:
    judge = Judge(colour, limits="2/minute bucket", ipv6_wide=(48, 2))
    assert judge.passed(*[new_request(network(1, 1)) for _ in range(5)]) == [True, True, False, False, False]
    # The refusals took nothing of the /48: two are left for others in it.
    assert judge.passed(*[new_request(network(1, 2)) for _ in range(2)]) == [True, True]
    assert judge.passed(new_request(network(1, 3))) == [False]
    # And that one took nothing of its /64: after half a minute the /48 has two again, and so has the /64.
    judge.clock.advance(30_000_000)
    assert judge.passed(*[new_request(network(1, 3)) for _ in range(3)]) == [True, True, False]


def test_ipv4_and_mapped_addresses_have_no_wider_network(colour: str) -> None:
    judge = Judge(colour, limits="1/minute", ipv6_wide=(48, 1))
    assert judge.passed(*[new_request(f"192.0.2.{host}") for host in range(1, 9)]) == [True] * 8
    assert judge.passed(*[new_request(f"::ffff:192.0.2.{host}") for host in range(1, 9)]) == [False] * 8
    assert judge.passed(*[new_request(f"::ffff:198.51.100.{host}") for host in range(1, 9)]) == [True] * 8


def test_a_key_has_no_wider_network_and_a_missing_one_has(colour: str) -> None:
    judge = Judge(colour, limits="1/minute", ipv6_wide=(48, 2), key=header("X-User"))
    assert judge.passed(*[new_request(network(1, 1), x_user=f"u{number}") for number in range(4)]) == [True] * 4
    assert judge.passed(*[new_request(network(1, own)) for own in range(4)]) == [True, True, False, False]


def test_the_wide_network_goes_with_tiers_scopes_and_forwarded_addresses(colour: str) -> None:
    judge = Judge(
        colour,
        limits={"default": "1/minute", "pro": "2/minute"},
        tier=header("X-Tier"),
        ipv6_wide=(56, 2),
        trusted_proxies=["10.0.0.0/8"],
        routed=True,
    )

    def rotating(number: int, endpoint: str, **headers: str) -> list[Request]:
        return [
            new_request("10.0.0.1", endpoint=endpoint, x_forwarded_for=network(1, own), **headers)
            for own in range(number)
        ]

    assert judge.passed(*rotating(3, "/a")) == [True, True, False]
    assert judge.passed(*rotating(3, "/b")) == [True, True, False]
    assert judge.passed(*rotating(5, "/a", x_tier="pro")) == [True] * 4 + [False]


def test_an_address_in_a_long_header_is_not_cached(colour: str) -> None:
    judge = Judge(colour, limits="1/minute", trusted_proxies=["10.0.0.0/8"])
    limits: Any = judge.enforcer._limits
    long = ", ".join(["192.0.2.1"] * 40)
    assert judge.passed(*[new_request("10.0.0.1", x_forwarded_for=f"{long}, 203.0.113.7") for _ in range(2)]) == [
        True,
        False,
    ]
    assert limits._address_key.cache_info().currsize == 0
    assert judge.passed(new_request("10.0.0.1", x_forwarded_for="203.0.113.7")) == [False], "it is the same client"


# Scopes.


def test_routes_count_separately_and_a_scope_together(colour: str) -> None:
    apart = Judge(colour, limits="1/minute", routed=True)
    assert apart.passed(
        new_request(endpoint="GET /a"), new_request(endpoint="GET /b"), new_request(endpoint="GET /a")
    ) == [
        True,
        True,
        False,
    ]
    together = Judge(colour, limits="1/minute", scope="search", routed=True)
    assert together.passed(new_request(endpoint="GET /a"), new_request(endpoint="GET /b")) == [True, False]
    function = Judge(colour, limits="1/minute", scope=lambda request: request.method, routed=True)
    assert function.passed(new_request(), new_request(method="POST"), new_request(path="/other")) == [True, True, False]


def test_requests_without_a_route_are_counted_together(colour: str) -> None:
    judge = Judge(colour, limits="1/minute", routed=True)
    assert judge.passed(new_request(path="/nothing"), new_request(path="/nothing/else")) == [True, False]


# Costs that depend on the response.


def test_a_request_that_does_not_count_is_given_back(colour: str) -> None:
    judge = Judge(
        colour, limits="3/minute bucket", counts=lambda request, response: response.status >= 400, key=header("X-User")
    )
    for _ in range(5):
        judge.answered(new_request(x_user="a"))
    assert judge.passed(*times(3, x_user="a")) == [True] * 3
    for _ in range(3):
        judge.answered(new_request(x_user="b"), Response(401, {}, 0))
    assert judge.passed(new_request(x_user="b")) == [False]


@pytest.mark.parametrize("part", ["a\udcff", "a\udcff" * 200, "\ud800"])
@pytest.mark.parametrize("key", [lambda sent: sent, lambda sent: ("user", sent)])
def test_a_key_of_bytes_that_are_no_text_is_counted(colour: str, part: str, key: Callable[[str], Any]) -> None:
    """In headers of aiohttp and in JSON texts, half a surrogate pair stands for an unreadable byte."""
    judge = Judge(colour, limits="2/minute", key=lambda request: key(request.headers["x-user"]))
    assert judge.passed(*times(3, x_user=part)) == [True, True, False]
    assert judge.passed(new_request(x_user=part + "b"), new_request(x_user="a")) == [True, True]


def test_part_of_a_cost_is_given_back(colour: str) -> None:
    judge = Judge(colour, limits="10/minute bucket", cost=5, counts=lambda request, response: response.body_bytes)
    judge.answered(new_request(), Response(200, {}, 2))
    assert judge.remaining_after(new_request()) == 3


def test_a_higher_cost_is_taken_as_far_as_units_remain(colour: str) -> None:
    judge = Judge(colour, limits="10/minute bucket", counts=lambda request, response: response.body_bytes)
    judge.answered(new_request(), Response(200, {}, 4))
    assert judge.remaining_after(new_request()) == 5
    judge.answered(new_request(), Response(200, {}, 400))
    assert judge.passed(new_request()) == [False]


def test_true_counts_the_whole_charge(colour: str) -> None:
    judge = Judge(colour, limits="10/minute bucket", cost=4, counts=lambda request, response: True)
    judge.answered(new_request())
    assert judge.remaining_after(new_request()) == 2


def test_a_charge_is_settled_once(colour: str) -> None:
    statuses: list[int] = []

    def count(request: Request, response: Response) -> int:
        statuses.append(response.status)
        return 1

    judge = Judge(colour, limits="10/minute bucket", counts=count)
    request = new_request()
    judge.answered(request)
    judge.end(OK)
    assert statuses == [200]


def test_a_refused_request_is_not_settled(colour: str) -> None:
    def never(request: Request, response: Response) -> int:
        raise AssertionError("nothing was charged")

    judge = Judge(colour, limits="1/minute", cost=2, counts=never)
    assert judge.answered(new_request()).refusal is not None


def test_a_shadow_that_refuses_gives_nothing_back(colour: str) -> None:
    """It has charged nothing: what others used stays used."""
    observed: list[bool] = []

    def observe(request: Request, decision: Decision) -> None:
        observed.append(bool(decision.refusals))

    judge = Judge(
        colour,
        limits="2/minute",
        shadow=True,
        on_decision=observe,
        counts=lambda request, response: response.status != 404,
    )
    for _ in range(2):
        judge.answered(new_request())
    for _ in range(3):
        judge.answered(new_request(), Response(404, {}, 0))
    assert observed == [False, False, True, True, True]


def test_the_wide_network_is_given_back_too(colour: str) -> None:
    judge = Judge(colour, limits="2/minute", ipv6_wide=(48, 1), counts=lambda request, response: response.status != 404)
    for own in range(5):
        judge.answered(new_request(network(1, own)), Response(404, {}, 0))
    assert judge.passed(new_request(network(1, 1)), new_request(network(1, 2)), new_request(network(1, 3))) == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("result", [-1, None, "many", 0.5, "0"])
def test_where_counts_fails_the_whole_charge_counts_and_an_error_is_logged(
    colour: str, result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Judge(colour, limits="2/minute bucket", counts=lambda request, response: result)
    with caplog.at_level(logging.ERROR, "headgate"):
        judge.answered(new_request())
    assert "counts failed" in caplog.text
    assert judge.remaining_after(new_request()) == 0


class FailingStore(MemoryStore):
    """Decides, and fails when a charge is settled."""

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        bound = super().bind(limits, clock=clock)

        class Failing:
            def hit(self, key: Any, cost: int = 1) -> Any:
                return bound.hit(key, cost)

            peek = hit_many = decide = hit

            def give_back(self, *arguments: Any, **options: Any) -> None:
                raise StoreUnavailable("nobody is there")

        return Failing()


def test_where_the_store_fails_the_whole_charge_counts_and_the_response_is_unchanged(
    colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Judge(colour, limits="2/minute", store=FailingStore(), counts=lambda request, response: False)
    with caplog.at_level(logging.WARNING, "headgate"):
        assert judge.answered(new_request()).refusal is None
    assert "a request was not settled: nobody is there" in caplog.text


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"error": "slow down"}, "refusal returns a Refusal of headgate.http.server.options, or None .* not a dict"),
        ((429, [], b""), "not a tuple"),
        (Refusal("429", [], b""), "the status of a Refusal is a whole number, not a str"),  # type: ignore[arg-type]
        (Refusal(429, [("X-Limit", 5)], b""), "name and value of a header of a Refusal are text, not an int"),  # type: ignore[list-item]
        (Refusal(429, [(b"a", b"b")], b""), "are text, not a bytes"),  # type: ignore[list-item]
        (Refusal(429, [], "slow down"), "the body of a Refusal is bytes, not a str"),  # type: ignore[arg-type]
        (Refusal(429, {"X": "1"}, b""), "the headers of a Refusal are pairs in a list, not a dict"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_refusal_raises_an_error(colour: str, result: Any, message: str) -> None:
    judge = Judge(colour, limits="1/minute", refusal=lambda request, decision, usual: result)
    assert judge.passed(new_request()) == [True]
    with pytest.raises(ArgumentError, match=message):
        judge.answer(new_request())


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (5.5, "the function for key returned a float: a key is text, or a tuple"),
        (b"ann", "the function for key returned a bytes: a key is text, or a tuple"),
        (("user", 5.5), "the function for key returned a tuple with a float: a key is text, or a tuple"),
    ],
)
def test_a_key_that_cannot_be_one_names_the_option(colour: str, key: Any, message: str) -> None:
    for routed in (False, True):
        judge = Judge(colour, limits="1/minute", key=lambda request: key, routed=routed)
        with pytest.raises(ArgumentError, match=f"^{message}"):
            judge.answer(new_request())


# Invalid options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": {"pro": "1/minute"}, "tier": str}, "limits of tiers name 'default'"),
        ({"limits": {"default": "1/minute"}}, "limits of several tiers need tier"),
        ({"limits": {"default": "1/minute", "pro": "1/fortnight"}, "tier": str}, "fortnight"),
        ({"limits": "1/minute", "tier": str}, "tier chooses among limits"),
        ({"limits": []}, "limits are text such as"),
        ({"limits": [5]}, "limits are text such as"),
        ({"limits": "1/minute", "key": "user"}, "key is a function of the request, not 'user'"),
        ({"limits": "1/minute", "exempt": True}, "exempt is a function of the request"),
        ({"limits": "1/minute", "counts": 5}, "counts is a function of the request"),
        ({"limits": "1/minute", "counts": _coroutine}, "counts cannot be a coroutine function"),
        ({"limits": "1/minute", "refusal": b"no"}, "refusal is a function of the request"),
        ({"limits": "1/minute", "refusal": _coroutine}, "refusal cannot be a coroutine function"),
        ({"limits": "1/minute", "on_decision": _coroutine}, "on_decision cannot be a coroutine function"),
        ({"limits": "1/minute", "headers": None}, "headers are the name of a dialect, or a list of names, not None"),
        ({"limits": "1/minute", "on_decision": []}, "on_decision is a function of the request"),
        ({"limits": {"default": "1/minute"}, "tier": "pro"}, "tier is a function of the request"),
        ({"limits": "1/minute", "cost": -1}, "a cost is at least 0"),
        ({"limits": "1/minute", "cost": "2"}, "a cost is a whole number"),
        ({"limits": "1/minute", "cost": True}, "a cost is a whole number"),
        ({"limits": "1/minute", "missing": "nobody"}, "missing is one of address, anonymous, refuse, not 'nobody'"),
        ({"limits": "1/minute", "on_store_error": "shut"}, "on_store_error is one of local, open, closed"),
        ({"limits": "1/minute", "name": "1st"}, "a name is a letter"),
        ({"limits": "1/minute", "shadow": "false"}, "shadow is True or False, not 'false'"),
        ({"limits": "1/minute", "shadow": lambda request: False}, "shadow is True or False, not <function"),
        ({"limits": "1/minute", "wait": -1}, "wait is the number of seconds"),
        ({"limits": "1/minute", "wait": "2"}, "wait is the number of seconds"),
        ({"limits": "1/minute", "store": "memcached://a"}, "a store is one of"),
        ({"limits": "1/minute", "store": 5}, "store is a URL or a store, not 5"),
        ({"limits": "1/minute", "headers": "x-limit"}, "no dialect of headers is named 'x-limit'"),
        ({"limits": "1/minute", "trusted_proxies": "10.0.0.0/8"}, "trusted_proxies are a list of networks"),
        ({"limits": "1/minute", "trusted_proxies": ["10.0.0.1/8"]}, "a network is written as"),
        ({"limits": "1/minute", "trusted_proxies": [8]}, "trusted_proxies are a list of networks"),
        ({"limits": "1/minute", "trusted_hops": -1}, "trusted_hops is a number of proxies"),
        ({"limits": "1/minute", "trusted_hops": True}, "trusted_hops is a number of proxies"),
        ({"limits": "1/minute", "trusted_hops": "2"}, "trusted_hops is a number of proxies"),
        ({"limits": "1/minute", "trusted_hops": 1, "address_header": None}, "address_header is the name of a header"),
        ({"limits": "1/minute", "address_header": "X-Real-IP"}, "address_header needs trusted_proxies"),
        ({"limits": "1/minute", "ipv6_prefix": 24}, "ipv6_prefix is a number of bits, 32 to 128, not 24"),
        ({"limits": "1/minute", "ipv6_prefix": 64.0}, "ipv6_prefix is a number of bits"),
        ({"limits": "1/minute", "ipv6_wide": 48}, "ipv6_wide is .bits, times."),
        ({"limits": "1/minute", "ipv6_wide": (64, 8)}, "fewer bits than ipv6_prefix, which is 64"),
        ({"limits": "1/minute", "ipv6_wide": (8, 8)}, "ipv6_wide is .bits, times."),
        ({"limits": "1/minute", "ipv6_wide": (48, 0)}, "1 to 1000000 times"),
        ({"limits": "1/minute", "ipv6_wide": (48, 2.5)}, "ipv6_wide is .bits, times."),
        ({"limits": "1/minute", "ipv6_wide": (48.0, 2)}, "ipv6_wide is .bits, times."),
        ({"limits": "1/minute", "ipv6_wide": (48, 8, 1)}, "ipv6_wide is .bits, times."),
        ({"limits": "1/minute", "ipv6_wide": (48, 8), "wait": 1.0}, "ipv6_wide cannot be combined with wait"),
        ({"limits": "50_000_000_000/day", "ipv6_wide": (48, 8)}, "too fine"),
        ({"limits": "50_000_000_000/day", "ipv6_wide": (48, 10**6)}, "1000000 times .* is more than can be counted"),
    ],
)  # fmt: skip
def test_an_invalid_option_raises_an_error(colour: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Judge(colour, **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key", str), ("missing", "refuse"), ("tier", str), ("counts", lambda request, response: True),
        ("shadow", True), ("name", "a"), ("wait", 1.0), ("trusted_proxies", ["10.0.0.0/8"]), ("trusted_hops", 1),
        ("address_header", "X-Real-IP"),
        ("ipv6_prefix", 56), ("ipv6_wide", (48, 8)),
    ],
)  # fmt: skip
def test_options_for_limits_cannot_be_combined_with_a_policy(colour: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} goes with limits; a policy defines it itself"):
        Judge(colour, POLICY, **{name: value})


def test_a_scope_is_for_routes(colour: str) -> None:
    with pytest.raises(TypeError, match="no option is named scope"):
        Judge(colour, limits="1/minute", scope="search")
    with pytest.raises(TypeError, match="no option is named limit, trusted_hosts"):
        Judge(colour, limits="1/minute", trusted_hosts=[], limit=5)


# The owner of the store.


class ClosedStore(MemoryStore):
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("policy", [None, POLICY])
def test_a_store_that_was_passed_is_not_closed(colour: str, policy: Any) -> None:
    store = ClosedStore()
    options: dict[str, Any] = {} if policy else {"limits": "1/minute"}
    judge = Judge(colour, policy, store=store, **options)
    if judge.asynchronous:
        asyncio.run(judge.enforcer.aclose())
    else:
        judge.enforcer.close()
    assert not store.closed


# Limits as values, and from a function.


def test_limits_are_values_or_the_result_of_a_function(colour: str) -> None:
    bucket = TokenBucket(capacity=2, refill=1, period="minute")
    judge = Judge(colour, limits=bucket)
    assert judge.passed(*times(3)) == [True, True, False]
    several = Judge(colour, limits=lambda request: [bucket] if request.method == "GET" else None)
    assert several.passed(*times(3)) == [True, True, False]
    assert several.passed(*times(3, method="POST")) == [True] * 3


def test_a_function_may_return_any_number_of_limits_each_of_which_counts(colour: str) -> None:
    judge = Judge(colour, limits=lambda request: f"{request.headers['x-number']}/minute")
    assert judge.passed(*[new_request(x_number=str(number)) for number in range(1, 1100)]) == [True] * 1099
    assert judge.passed(*[new_request(x_number=number) for number in ("1", "2", "2", "1099")]) == [
        False, True, False, True
    ]  # fmt: skip
    limits = judge.enforcer._limits
    assert limits is not None and len(limits._limiters) <= 1024


# Fallbacks.


def _plain_asgi(text: bytes) -> asgi.ASGIApp:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": text})

    return app


def _plain_wsgi(text: bytes) -> wsgi.WSGIApp:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [text]

    return app


def ask(kind: str, **options: Any) -> Callable[[], httpx.Response]:
    if kind == "threads":
        site = wsgi.RateLimitMiddleware(_plain_wsgi(b"fresh"), fallback=_plain_wsgi(b"stale"), **options)
        client = httpx.Client(transport=httpx.WSGITransport(site), base_url="http://a")
        return lambda: client.get("/")
    app = asgi.RateLimitMiddleware(_plain_asgi(b"fresh"), fallback=_plain_asgi(b"stale"), **options)

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as session:
            return await session.get("/")

    return lambda: asyncio.run(get())


def test_a_fallback_answers_a_refused_request_with_the_time_to_retry(colour: str) -> None:
    get = ask(colour, limits="1/minute", clock=ManualClock())
    fresh, stale = get(), get()
    assert (fresh.text, stale.text, stale.status_code) == ("fresh", "stale", 200)
    assert stale.headers.get_list("content-type") == ["text/plain"]
    assert int(stale.headers["Retry-After"]) >= 1
    assert len(stale.headers.get_list("RateLimit")) == 1


def test_a_fallback_gets_the_fields_of_a_replaced_refusal(colour: str) -> None:
    def other(request: Request, decision: Decision, usual: Refusal) -> Refusal:
        return Refusal(503, [("X-From", "the cache"), ("Content-Type", "text/html")], b"unused")

    get = ask(colour, limits="1/minute", refusal=other)
    get()
    stale = get()
    assert (stale.text, stale.headers["X-From"], stale.headers["content-type"]) == ("stale", "the cache", "text/plain")


# Costs of several units.

COUNTED = "60/minute bucket; 900 tokens/minute bucket; 1000 bytes/minute bucket"


def remaining_of_each(judge: Judge, request: Request) -> dict[str, int]:
    """Return what is left of each unit after one more request."""
    decision = judge.answer(request).decision
    assert decision is not None
    return {reading.unit: reading.remaining for reading in decision.limits}


def test_a_cost_may_be_a_mapping_or_a_function_that_gives_one(colour: str) -> None:
    for cost in ({"tokens": 100}, lambda request: {"tokens": int(request.headers["x-tokens"])}):
        judge = Judge(colour, limits=COUNTED, cost=cost)
        assert remaining_of_each(judge, new_request(x_tokens="100")) == {"requests": 59, "tokens": 800, "bytes": 1000}
        assert judge.passed(*times(9, x_tokens="100")) == [True] * 8 + [False]


def test_a_request_costs_one_request_where_no_cost_is_given(colour: str) -> None:
    judge = Judge(colour, limits=COUNTED)
    assert remaining_of_each(judge, new_request()) == {"requests": 59, "tokens": 900, "bytes": 1000}
    with pytest.raises(ConfigError, match="these limits count tokens and usd: a cost says how much of each"):
        Judge(colour, limits="5 tokens/day; 5 usd/day")
    with pytest.raises(ConfigError, match="no limit counts 'token': they count requests, tokens, bytes"):
        Judge(colour, limits=COUNTED, cost={"token": 5})


def test_counts_may_name_units(colour: str) -> None:
    judge = Judge(
        colour,
        limits=COUNTED,
        cost={"tokens": 300},
        counts=lambda request, response: {"tokens": 120, "bytes": response.body_bytes},
    )
    judge.answered(new_request(), Response(200, {}, 400))
    assert remaining_of_each(judge, new_request()) == {"requests": 58, "tokens": 480, "bytes": 600}
    judge.end(Response(200, {}, 10_000))  # more bytes than are left: all of them are taken
    assert remaining_of_each(judge, new_request()) == {"requests": 57, "tokens": 360, "bytes": 0}


def test_a_number_counts_requests_and_other_units_count_as_charged(colour: str) -> None:
    judge = Judge(colour, limits=COUNTED, cost={"tokens": 300}, counts=lambda request, response: 5)
    judge.answered(new_request())
    assert remaining_of_each(judge, new_request()) == {"requests": 54, "tokens": 300, "bytes": 1000}
    judge = Judge(colour, limits=COUNTED, cost={"tokens": 300}, counts=lambda request, response: False)
    judge.answered(new_request())
    assert remaining_of_each(judge, new_request()) == {"requests": 59, "tokens": 600, "bytes": 1000}


def test_counts_of_an_unknown_unit_leave_the_charge_unchanged(colour: str, caplog: pytest.LogCaptureFixture) -> None:
    judge = Judge(colour, limits=COUNTED, cost={"tokens": 300}, counts=lambda request, response: {"token": 0})
    with caplog.at_level(logging.ERROR, "headgate"):
        judge.answered(new_request())
    assert "counts failed" in caplog.text
    assert remaining_of_each(judge, new_request())["tokens"] == 300


def test_units_that_only_other_tiers_count_are_not_charged(colour: str) -> None:
    limits = {"default": "60/minute", "pro": "60/minute; 900 tokens/minute bucket"}
    judge = Judge(colour, limits=limits, tier=header("X-Tier"), cost={"tokens": 100})
    assert remaining_of_each(judge, new_request()) == {"requests": 59}
    assert remaining_of_each(judge, new_request(x_tier="pro", ip="203.0.113.10")) == {"requests": 59, "tokens": 800}
    with pytest.raises(ConfigError, match="no limit counts 'token'"):
        Judge(colour, limits=limits, tier=header("X-Tier"), cost={"token": 100})


def test_a_wider_network_counts_every_unit_too(colour: str) -> None:
    judge = Judge(colour, limits="60/minute; 900 tokens/minute bucket", ipv6_wide=(48, 2), cost={"tokens": 400})
    assert judge.passed(*(new_request(f"2001:db8:0:{number}::1") for number in range(5))) == [True] * 4 + [False]


def test_a_refusal_at_one_place_takes_back_every_unit_of_another(colour: str) -> None:
    outer = Judge(colour, limits=COUNTED, cost={"tokens": 300}, counts=lambda request, response: True)
    inner = Judge(colour, limits="1/minute bucket", routed=True, store=MemoryStore())
    for _ in range(2):
        request = new_request(endpoint="/a")
        exchange = Exchange()
        if colour == "asyncio":
            asyncio.run(_both(exchange, outer, inner, request))
        else:
            exchange.judge(outer.enforcer, request)
            exchange.judge(inner.enforcer, new_request(endpoint="/a"))
    assert remaining_of_each(outer, new_request()) == {"requests": 58, "tokens": 300, "bytes": 1000}


async def _both(exchange: Exchange, outer: Judge, inner: Judge, request: Request) -> None:
    await exchange.judge_async(outer.enforcer, request)
    await exchange.judge_async(inner.enforcer, new_request(endpoint="/a"))


def test_a_policy_in_front_of_an_application_takes_a_mapping(colour: str) -> None:
    policy = {"version": 1, "rules": [{"name": "all", "by": [], "limits": "60/minute; 900 tokens/minute"}]}
    judge = Judge(colour, policy, cost=lambda request: {"tokens": 100})
    assert remaining_of_each(judge, new_request()) == {"requests": 59, "tokens": 800}
    with pytest.raises(ConfigError, match="no limit counts 'token'"):
        Judge(colour, policy, cost={"token": 5})
