"""The section of a policy for calls of language models is read, and its errors name their places."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Gate, Request
from headgate.policy.gate import read_policy
from headgate.policy.problems import PolicyError

RULE: dict[str, Any] = {"name": "user", "by": ["user"], "limits": "60/minute; 20 usd/day in UTC"}


def problems(policy: dict[str, Any]) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        read_policy({"version": 1, **policy})
    return [str(problem) for problem in caught.value.problems]


def test_the_section_has_defaults_and_rules_take_its_way_to_hold() -> None:
    policy = read_policy({"version": 1, "llm": {}, "rules": [RULE, {**RULE, "name": "own", "hold": "max"}]})
    assert policy.llm is not None
    assert (policy.llm.hold, policy.llm.unknown_price, policy.llm.lease_us) == ("expected", "refuse", 600_000_000)
    assert [rule.hold for rule in policy.rules] == ["expected", "max"]
    assert [rule.at_end for rule in policy.rules] == ["cut", "cut"]


def test_groups_of_models_stand_for_their_members_in_small_letters() -> None:
    rule = {**RULE, "match": {"model": ["large", "O3-*"]}}
    policy = read_policy({"version": 1, "llm": {"models": {"large": ["GPT-5.5", "claude-opus-*"]}}, "rules": [rule]})
    assert policy.rules[0].conditions.models == ("gpt-5.5", "claude-opus-*", "o3-*")


def test_a_policy_without_the_section_has_none_of_its_fields() -> None:
    rule = {**RULE, "by": ["ip"], "warn": "80%", "hold": "max", "at_end": "cut", "match": {"model": "gpt-5"}}
    assert problems({"rules": [rule]}) == [
        f"rules[0].{field}: is for calls of language models: the policy needs the section llm"
        for field in ("warn", "hold", "at_end", "match.model")
    ]
    assert problems({"rules": [RULE]})[0].startswith("rules[0].by[0]: no identity is named 'user'")


def test_a_budget_may_be_less_than_one_dollar() -> None:
    policy = read_policy({"version": 1, "llm": {}, "rules": [{**RULE, "limits": "0.3 usd/day in UTC"}]})
    assert policy.rules[0].costs == {}


def test_units_without_a_cost_in_calls_and_costs_of_rules_are_errors() -> None:
    rule = {**RULE, "limits": "5 bytes/minute", "cost": 2}
    assert problems({"llm": {}, "rules": [rule]})[:2] == [
        "rules[0].limits: no call tells bytes: there are requests, tokens, input_tokens, output_tokens, "
        "uncached_input_tokens, usd",
        "rules[0].cost: a call tells what it costs itself: leave it out",
    ]


def test_identities_of_calls_are_built_in() -> None:
    policy = {"llm": {}, "identities": {"user": {"header": "X-User"}}, "rules": [RULE]}
    assert problems(policy) == ["identities.user: 'user' is built in: choose another name"]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"models": {"large": ["gpt 5"]}}, "llm.models.large: 'gpt 5' is no model: write its name"),
        ({"models": {"large": ["*-mini"]}}, "llm.models.large: '*-mini' is no model"),
        (
            {"prices": {"m": {"input": 0.5}}},
            "llm.prices.m.input: 0.5 has no exact value: write it in quotes",
        ),
        ({"prices": {"m": {"input": "-1"}}}, "llm.prices.m.input: an amount in usd is text"),
        ({"unknown_price": "ask"}, "llm.unknown_price: must be refuse, free or {usd_per_million: \"10\"}, not 'ask'"),
        ({"unknown_price": {"usd": "1"}}, "llm.unknown_price: must be refuse, free or"),
        ({"hold": "half"}, "llm.hold: must be 'max', 'expected' or 'slices', not 'half'"),
        ({"slice": 0}, "llm.slice: must be at least 1, not 0"),
        ({"lease": "32 days"}, "llm.lease: must be at most 31 days, not '32 days'"),
        ({"lease": 60}, 'llm.lease: must be a time such as "10m", not 60'),
        ({"webhook": "example.com/?token=secret"}, "llm.webhook: must be a URL such as"),
        ({"webhook": "https://[2001:db8::1/budgets"}, "llm.webhook: must be a URL such as"),
        ({"webhook": "https://ann:secret@example.com/"}, "llm.webhook: must be a URL such as"),
        ({"webhook": "https://example.com:99999/"}, "llm.webhook: must be a URL such as"),
        ({"webhook": "https://:8080/"}, "llm.webhook: must be a URL such as"),
        ({"prizes": {}}, "llm.prizes: no such field; did you mean 'prices'?"),
    ],
)
def test_the_error_for_each_field_shows_a_valid_value(section: dict[str, Any], problem: str) -> None:
    [found] = problems({"llm": section, "rules": [RULE]})
    assert found.startswith(problem)
    assert "secret" not in found


@pytest.mark.parametrize("warn", ["80", "0%", "101%", 80, "eighty%"])
def test_a_soft_limit_is_a_share(warn: object) -> None:
    [problem] = problems({"llm": {}, "rules": [{**RULE, "warn": warn}]})
    assert problem.startswith('rules[0].warn: must be a share such as "80%", from 1% to 100%, not')


def test_an_http_request_is_not_a_call_and_has_none_of_its_attributes() -> None:
    rules = [{"name": "one", "by": ["user"], "match": {"model": "gpt-5"}, "limits": "1/minute"}]
    gate = Gate({"version": 1, "llm": {}, "rules": rules})
    request = Request(headers={"user": "ann", ":user": "ann", "model": "gpt-5", ":model": "gpt-5"})
    assert all(gate.hit(request).limits == () for _ in range(3))
