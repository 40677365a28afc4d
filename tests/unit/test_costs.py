"""Costs of several units: in limiters of both colours, and in gates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from headgate import (
    ArgumentError,
    AsyncGate,
    AsyncLimiter,
    ConfigError,
    Decision,
    Gate,
    Limiter,
    PolicyError,
    RateLimited,
    Request,
)
from headgate.policy.compiled import Policy
from headgate.policy.explain import explain
from headgate.policy.gate import read_policy
from headgate.stores.guard.store import GuardedStore
from headgate.stores.memory import MemoryStore
from headgate.testing import ManualClock
from subjects import KINDS, make_store

OF_BOTH_COLOURS = [kind for kind in KINDS if kind not in ("sentinel", "cluster")]
"""Stores that tests open for asyncio too; the law of units is tested on all."""

LIMITS = "60/minute; 90000 tokens/minute bucket; 10 usd/day fixed"


def left(decision: Decision) -> list[int]:
    return [reading.remaining for reading in decision.limits]


@pytest.fixture(params=["threads", "asyncio"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes a limiter whose methods are called in either colour."""
    if request.param == "threads":
        yield Limiter
        return
    with asyncio.Runner() as runner:
        made: list[AsyncLimiter] = []

        class Called:
            def __init__(self, *arguments: Any, **options: Any) -> None:
                self.limiter = AsyncLimiter(*arguments, **options)
                made.append(self.limiter)

            def __getattr__(self, name: str) -> Any:
                return lambda *arguments, **options: runner.run(getattr(self.limiter, name)(*arguments, **options))

        yield Called
        for limiter in made:
            runner.run(limiter.close())


@pytest.mark.parametrize("kind", OF_BOTH_COLOURS)
def test_each_unit_is_charged_by_its_name_all_or_nothing(make: Callable[..., Any], kind: str) -> None:
    limiter = make(LIMITS, store=make_store(kind), clock=ManualClock())
    decision = limiter.hit("key", {"requests": 2, "tokens": 900, "usd": Decimal("0.0123")})
    assert decision.allowed and left(decision) == [58, 89_100, 9_987_700_000]
    assert [(reading.name, reading.unit) for reading in decision.limits] == [
        ("default.minute", "requests"), ("default.tokens.minute", "tokens"), ("default.usd.day", "usd"),
    ]  # fmt: skip
    refused = limiter.hit("key", {"tokens": 5, "usd": "9.99"})
    assert not refused and refused.binding is not None and refused.binding.unit == "usd"
    assert left(limiter.peek("key", {"requests": 0})) == [58, 89_100, 9_987_700_000]


def test_a_cost_that_does_not_name_requests_has_one_and_none_of_other_units(make: Callable[..., Any]) -> None:
    limiter = make(LIMITS, clock=ManualClock())
    assert left(limiter.hit("key", {"tokens": 1})) == [59, 89_999, 10**10]
    assert left(limiter.hit("key", {})) == [58, 89_999, 10**10]
    assert left(limiter.hit("key")) == [57, 89_999, 10**10]
    assert left(limiter.hit("key", 7)) == [50, 89_999, 10**10]
    assert left(limiter.hit("key", {"requests": 0, "tokens": 9})) == [50, 89_990, 10**10]


@pytest.mark.parametrize("kind", OF_BOTH_COLOURS)
def test_a_limiter_of_one_unit_takes_a_number_or_its_name(make: Callable[..., Any], kind: str) -> None:
    limiter = make("90 tokens/minute", store=make_store(kind), clock=ManualClock())
    assert left(limiter.hit("key", 5)) == [85]
    assert left(limiter.hit("key", {"tokens": 5})) == [80]
    assert left(limiter.hit("key", {})) == [79]
    assert left(limiter.peek("key", {"tokens": 9})) == [70]
    assert [left(one) for one in limiter.hit_many(["key", "b"], [{"tokens": 9}, 1])] == [[70], [89]]
    assert [left(one) for one in limiter.hit_many(["key"], {"tokens": 10})] == [[60]]
    with pytest.raises(ArgumentError, match="no limit counts 'requests': they count tokens"):
        limiter.hit("key", {"requests": 1})
    with pytest.raises(ArgumentError, match="a cost in tokens is a whole number, not a float"):
        limiter.peek("key", {"tokens": 1.0})
    assert left(limiter.peek("key", 0)) == [60]


def test_requests_may_be_named_where_nothing_else_is_counted(make: Callable[..., Any]) -> None:
    assert left(make("5/minute", clock=ManualClock()).hit("key", {"requests": 2})) == [3]


def test_a_number_of_money_is_in_whole_units_of_the_currency(make: Callable[..., Any]) -> None:
    limiter = make("10 usd/day", clock=ManualClock())
    assert left(limiter.hit("key", 5)) == [5 * 10**9]
    assert left(limiter.hit("key", "0.5")) == [4_500_000_000]
    assert left(limiter.hit("key", {"USD": Decimal("0.25")})) == [4_250_000_000]
    assert str(limiter.peek("key", 0)).startswith("Decision(allowed=True, limit=10 usd, remaining=4.25 usd")
    with pytest.raises(ArgumentError, match="not a float"):
        limiter.hit("key", 0.25)


BAD: list[tuple[Any, str]] = [
    ({"token": 1}, "no limit counts 'token': they count requests, tokens, usd; did you mean \"tokens\"?"),
    ({5: 1}, "no limit counts an int: they count requests, tokens, usd"),
    ({"tokens": -1}, "a cost in tokens is at least 0, not -1"),
    ({"tokens": True}, "a cost in tokens is a whole number, not a bool"),
    ({"tokens": 2**52 + 1}, "a cost in tokens is at most"),
    ({"usd": 0.1}, "not a float"),
    ({"usd": 1, "USD": 1}, "a cost in usd is given twice"),
    ({"requests": "1"}, "a cost is a whole number, not a str"),
    (None, "a cost is a whole number, not None"),
    ("1", "a cost is a whole number, not a str"),
    ([1, 2], "a cost is a whole number, not a list"),
]


@pytest.mark.parametrize(("cost", "reason"), BAD, ids=[str(cost) for cost, _ in BAD])
def test_a_bad_cost_is_refused_with_its_unit_and_nothing_is_charged(
    make: Callable[..., Any], cost: Any, reason: str
) -> None:
    limiter = make(LIMITS, clock=ManualClock())
    for method in (limiter.hit, limiter.peek, limiter.acquire):
        with pytest.raises(ArgumentError) as caught:
            method("key", cost)
        assert reason in str(caught.value)
    if not isinstance(cost, list | type(None)):
        with pytest.raises(ArgumentError) as caught:
            limiter.hit_many(["key", "other"], [1, cost])
        assert reason in str(caught.value)
    assert left(limiter.peek("key", 0)) == [60, 90_000, 10**10]


def test_a_number_is_refused_where_requests_are_not_counted(make: Callable[..., Any]) -> None:
    limiter = make("9 tokens/minute; 9 usd/day")
    with pytest.raises(ArgumentError, match="these limits count tokens and usd: a cost says how much of each, such as"):
        limiter.hit("key")


def test_many_costs_are_decided_one_after_another(make: Callable[..., Any]) -> None:
    limiter = make(LIMITS, clock=ManualClock())
    decisions = limiter.hit_many(["key", "key", "other"], [{"tokens": 90_000}, {"tokens": 1}, 3])
    assert decisions.allowed == [True, False, True]
    assert left(decisions[2]) == [57, 90_000, 10**10]
    assert limiter.hit_many(["key"], {"requests": 2, "tokens": 0}).allowed_count == 1
    assert limiter.hit_many(["key", "b"]).allowed_count == 2
    with pytest.raises(ArgumentError, match="2 keys need as many costs, not 1"):
        limiter.hit_many(["key", "b"], [1])


def test_units_that_are_not_named_are_not_given_back(make: Callable[..., Any]) -> None:
    limiter = make(LIMITS, clock=ManualClock())
    decision = limiter.hit("key", {"requests": 3, "tokens": 900, "usd": 1})
    limiter.give_back("key", {"tokens": 400, "usd": "0.5"}, 0, decision)
    assert left(limiter.peek("key", 0)) == [57, 89_500, 9_500_000_000]
    limiter.give_back("key", 1, 0, decision)
    assert left(limiter.peek("key", 0)) == [58, 89_500, 9_500_000_000]


def test_reset_forgets_every_unit(make: Callable[..., Any]) -> None:
    limiter = make(LIMITS, clock=ManualClock())
    limiter.hit("key", {"tokens": 5})
    assert limiter.reset("key") and not limiter.reset("key")
    assert left(limiter.peek("key", 0)) == [60, 90_000, 10**10]


def test_acquire_waits_for_the_unit_that_is_used_up(make: Callable[..., Any]) -> None:
    clock = ManualClock()
    limiter = make("60/minute; 10 tokens/second bucket", clock=clock)
    assert limiter.acquire("key", {"tokens": 10})
    start_us = clock.now_us()
    assert limiter.acquire("key", {"tokens": 5}, timeout=1)
    assert clock.now_us() - start_us == 500_000
    late = limiter.acquire("key", {"tokens": 10}, timeout=0.9)
    assert not late and late.retry_after_us == 1_000_000 and late.binding.unit == "tokens"
    never = limiter.acquire("key", {"tokens": 11}, timeout=9)
    assert never.retry_after_us is None


def test_the_cost_of_a_call_is_computed_from_its_arguments() -> None:
    limiter = Limiter(LIMITS, clock=ManualClock())

    @limiter.limit(key="all", cost=lambda prompt: {"tokens": len(prompt)})
    def ask(prompt: str) -> str:
        return prompt

    assert ask("x" * 90_000)
    with pytest.raises(RateLimited):
        ask("x")
    with pytest.raises(ArgumentError, match="no limit counts 'tokns'"):
        limiter.limit(cost={"tokns": 1})


@pytest.mark.parametrize("kind", OF_BOTH_COLOURS)
def test_a_limiter_of_one_unit_has_the_method_of_its_store(kind: str) -> None:
    for text in ("5/minute", "5 tokens/minute; 9 tokens/hour"):
        limiter, asynchronous = (one(text, store=make_store(kind)) for one in (Limiter, AsyncLimiter))
        assert (limiter.hit, limiter.peek) == (limiter.bound.hit, limiter.bound.peek)
        assert isinstance(asynchronous, AsyncLimiter) and asynchronous.ask == asynchronous.bound.hit


def test_scopes_of_limits_of_requests_are_unchanged() -> None:
    limiter = Limiter("60/minute; 9 tokens/minute; 1000/hour; 90 tokens/hour; 5/second bucket; 7 usd/day", name="api")
    assert [limit.scope for limit in limiter.definitions] == [
        "limiter/api/sliding.0", "limiter/api/of/tokens/sliding.0", "limiter/api/sliding.1",
        "limiter/api/of/tokens/sliding.1", "limiter/api/token_bucket.0", "limiter/api/of/usd/sliding.0",
    ]  # fmt: skip
    assert [limit.name for limit in limiter.definitions] == [
        "api.minute", "api.tokens.minute", "api.hour", "api.tokens.hour", "api.second", "api.usd.day",
    ]  # fmt: skip
    assert [limit.group for limit in limiter.definitions] == [0, 1, 0, 1, 0, 2]
    assert Limiter("9 tokens/minute").definitions[0].name == "default.tokens"


def test_a_named_limiter_that_counts_another_unit_too_keeps_what_was_used() -> None:
    store, clock = MemoryStore(), ManualClock()
    Limiter("60/minute", store=store, name="api", clock=clock).hit("key", 9)
    more = Limiter("90 tokens/minute; 60/minute", store=store, name="api", clock=clock)
    assert left(more.peek("key", 0)) == [90, 51]


def test_behind_a_guard_a_refusal_that_is_remembered_is_that_of_the_same_costs() -> None:
    clock = ManualClock()
    limiter = Limiter("60/minute; 10 tokens/minute", store=GuardedStore(MemoryStore()), clock=clock)
    assert limiter.hit("key", {"tokens": 10}) and not limiter.hit("key", {"tokens": 1})
    assert not limiter.hit("key", {"tokens": 1})
    assert limiter.hit("key", {"requests": 1}) and left(limiter.hit("key")) == [57, 0]


# Gates

POLICY: dict[str, Any] = {
    "version": 1,
    "identities": {"user": {"header": "X-User"}},
    "tiers": {"from": {"header": "X-Tier"}, "default": "free"},
    "rules": [
        {
            "name": "llm",
            "by": ["user"],
            "limits": {"free": "60/minute", "pro": "60/minute; 9000 tokens/minute bucket; 10 usd/day"},
            "cost": {"tokens": 500, "usd": "0.02"},
        },
        {"name": "ip", "by": ["ip"], "limits": "100/minute", "cost": 2},
        {"name": "sent", "by": ["user", "ip"], "limits": "1000 bytes/second"},
    ],
}


def request(tier: str = "pro", **headers: str) -> Request:
    return Request(headers={"X-User": "ann", "X-Tier": tier, **headers}, client_ip="192.0.2.1")


def charged(cost: Any, tier: str = "pro") -> dict[str, int]:
    """What a gate charges for a request of this cost, by the limits' names."""
    gate = Gate(POLICY, clock=ManualClock())
    decision = gate.hit(request(tier), cost)
    assert decision.allowed
    return {reading.name: reading.limit - reading.remaining for reading in decision.limits}


OWN = {"llm.minute": 1, "llm.tokens.minute": 500, "llm.usd.day": 20_000_000, "ip": 2, "sent.bytes": 1}


def test_a_rule_states_the_cost_of_a_request_and_a_number_means_that_many_requests() -> None:
    assert charged(1) == OWN
    assert charged(3) == {name: 3 * cost for name, cost in OWN.items()}
    assert charged(0) == dict.fromkeys(OWN, 0)


def test_a_cost_of_the_caller_replaces_that_of_the_rule() -> None:
    assert charged({"tokens": 7}) == {**OWN, "llm.tokens.minute": 7}
    assert charged({"tokens": 0, "bytes": 300, "usd": "0.5"}) == {
        **OWN, "llm.tokens.minute": 0, "sent.bytes": 300, "llm.usd.day": 500_000_000,
    }  # fmt: skip
    assert charged({"requests": 2, "tokens": 7}) == {
        "llm.minute": 2, "llm.tokens.minute": 7, "llm.usd.day": 40_000_000, "ip": 4, "sent.bytes": 2,
    }  # fmt: skip
    assert charged({}) == OWN


def test_a_tier_is_charged_what_its_own_limits_count() -> None:
    assert charged({"tokens": 7, "requests": 2}, "free") == {"llm": 2, "ip": 4, "sent.bytes": 2}


def test_a_unit_that_no_limit_of_the_policy_counts_is_an_error() -> None:
    gate = Gate(POLICY)
    with pytest.raises(ArgumentError, match=r"no limit counts 'token': they count .*did you mean \"tokens\""):
        gate.hit(request(), {"token": 1})
    with pytest.raises(ArgumentError, match="not a float"):
        gate.peek(request(), {"usd": 0.1})  # type: ignore[dict-item]


def test_a_hold_and_its_settlement_name_the_units_of_a_policy_in_one_order() -> None:
    units = ("tokens", "usd", "bytes", "eur", "chf", "gbp", "images")
    limits = "; ".join(["10/hour", *(f"10 {unit}/hour" for unit in units)])
    gate = Gate({"version": 1, "rules": [{"name": "all", "by": [], "limits": limits}]})
    held = gate.reserve(request())
    message = f"no limit counts 'x': they count requests, {', '.join(units)}$"
    with pytest.raises(ArgumentError, match=message):
        gate.reserve(request(), {"x": 1})
    with pytest.raises(ArgumentError, match=message):
        gate.commit(held.id, {"x": 1})
    with pytest.raises(ArgumentError, match=message):
        gate.extend(held.id, more={"x": 1})


def test_a_rule_of_several_units_charges_all_or_nothing() -> None:
    gate = Gate(POLICY, clock=ManualClock())
    before = left(gate.peek(request(), 0))
    refused = gate.hit(request(), {"tokens": 9001})
    assert not refused and refused.retry_after is None and refused.binding is not None
    assert (refused.binding.name, refused.rule) == ("llm.tokens.minute", "llm")
    assert left(gate.peek(request(), 0)) == before


def test_a_gate_of_asyncio_takes_the_same_costs() -> None:
    async def run() -> None:
        gate = AsyncGate(POLICY, clock=ManualClock())
        decision = await gate.hit(request(), {"tokens": 7})
        assert [reading.limit - reading.remaining for reading in decision.limits] == [1, 7, 20_000_000, 2, 1]
        assert (await gate.peek(request(), {"tokens": 8994})).binding.unit == "tokens"  # type: ignore[union-attr]

    asyncio.run(run())


def test_a_request_that_lacks_an_identity_is_refused_whatever_is_counted() -> None:
    policy = {**POLICY, "rules": [{**POLICY["rules"][0], "missing": "refuse"}, POLICY["rules"][1]]}
    gate = Gate(policy, clock=ManualClock())
    refused = gate.hit(Request(headers={"X-Tier": "pro"}, client_ip="192.0.2.1"), {"tokens": 5})
    assert not refused and refused.rule == "llm"
    assert left(gate.peek(Request(headers={"X-User": "b"}, client_ip="192.0.2.1"), 0))[-1] == 100


def rule(limits: Any, cost: Any) -> dict[str, Any]:
    return {"version": 1, "rules": [{"name": "all", "by": [], "limits": limits, "cost": cost}]}


BAD_RULES: list[tuple[Any, Any, str]] = [
    ("60/minute", {"tokens": 5}, "rules[0].cost.tokens: no limit of this rule counts tokens: they count requests"),
    (
        "5 tokens/day; 5 usd/day",
        2,
        "rules[0].cost: is of what? The limits count tokens, usd: name each, such as {",
    ),
    ("5 usd/day", {"usd": 0.5}, "rules[0].cost.usd: 0.5 has no exact value: a cost is a whole number, of money text"),
    ("5 tokens/day", {"tokens": "5"}, "rules[0].cost.tokens: a cost in tokens is a whole number, not a str"),
    ("5 tokens/day", {"tokens": True}, "rules[0].cost.tokens: a cost in tokens is a whole number, not a bool"),
    ("5 tokens/day", {"tokens": -1}, "rules[0].cost.tokens: a cost in tokens is at least 0, not -1"),
    (
        "5 tokens/day",
        {"tokens": 6},
        '.cost.tokens: can never pass limits: "5 tokens/day" admits 5 tokens at most',
    ),
    ("0.5 usd/day", {"usd": "0.6"}, 'can never pass limits: "0.5 usd/day" admits 0.5 usd at most'),
    ("5 tokens/day", {"minute": 6}, 'rules[0].cost.minute: "minute" has a meaning of its own'),
    ("5 usd/day", {"usd": 1, "USD": 1}, "usd is there twice"),
    ("5/day", {}, "rules[0].cost: must be a whole number, or a map from what is counted to a number"),
    ("5/day", None, "rules[0].cost: must be a whole number, not nothing"),
    ("5/day", 10**10, "rules[0].cost: must be at most 1000000000, not 10000000000"),
    ("5 minute/day", 1, '"/" or "per" and a unit'),
]


@pytest.mark.parametrize(("limits", "cost", "reason"), BAD_RULES, ids=[reason[:60] for *_, reason in BAD_RULES])
def test_a_cost_that_a_rule_cannot_have_is_a_problem_of_its_place(limits: Any, cost: Any, reason: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(rule(limits, cost))
    assert reason in str(caught.value)


def test_a_rule_without_a_cost_takes_one_request_or_one_of_its_only_unit() -> None:
    def costs(limits: str, *cost: Any) -> dict[str, int]:
        given = {"name": "all", "by": [], "limits": limits, **({"cost": cost[0]} if cost else {})}
        policy: Policy = read_policy({"version": 1, "rules": [given]})
        return dict(policy.rules[0].costs)

    assert costs("5/day; 9 tokens/day") == {"requests": 1}
    assert costs("9 tokens/day") == {"tokens": 1}
    assert costs("9 usd/day", 2) == {"usd": 2 * 10**9}
    assert costs("9 tokens/day; 9 usd/day") == {}
    assert costs("5/day; 9 tokens/day", {"tokens": 3}) == {"requests": 1, "tokens": 3}


def test_a_limit_is_compared_with_limits_of_its_own_unit_alone() -> None:
    from headgate.policy.load import check_policy
    from headgate.policy.warnings import warnings_of
    from headgate.policy.yaml_source import Document

    def warned(limits: str) -> list[str]:
        document = Document("p", {"version": 1, "rules": [{"name": "all", "by": [], "limits": limits}]})
        return [problem.message for problem in warnings_of(document, check_policy(document))]

    assert warned("5/minute fixed; 9 tokens/minute fixed; 9 usd/minute fixed") == []
    assert warned("5 tokens/minute fixed; 9 tokens/minute fixed") == [
        '"9 tokens/minute fixed" never refuses: "5 tokens/minute fixed" refuses first'
    ]


def test_explain_shows_the_cost_of_a_request() -> None:
    verdicts = explain(read_policy(POLICY), request()).verdicts
    assert [dict(verdict.costs) for verdict in verdicts] == [
        {"requests": 1, "tokens": 500, "usd": 20_000_000}, {"requests": 2}, {"bytes": 1},
    ]  # fmt: skip


def test_limits_of_a_class_are_errors_of_the_class() -> None:
    with pytest.raises(ConfigError, match="numbers go up to 4503599627370496"):
        Limiter("99999999999999999 tokens/day")
