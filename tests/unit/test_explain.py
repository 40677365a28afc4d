"""An explanation says of each rule whether it applies, by which key, under which limits, and why."""

from __future__ import annotations

from pathlib import Path

from headgate.cli.explaining import explanation_text
from headgate.policy.descriptor import Descriptor
from headgate.policy.explain import explain
from headgate.policy.gate import Gate, read_policy
from headgate.policy.request import Request

SHOP = Path(__file__).parents[2] / "examples" / "shop.yaml"


def explained(request: Request) -> str:
    return explanation_text(request, explain(read_policy(SHOP), request))


def test_each_rule_is_explained() -> None:
    request = Request("POST", "/api/login", client_ip="203.0.113.9", headers={"X-Tier": "pro"})
    assert explained(request) == (
        "POST /api/login from 203.0.113.9\n"
        "tier pro\n"
        "+ login      method POST; path /api/login\n"
        "             counted by ip: key 203.0.113.9\n"
        "             limits 5/minute\n"
        "- search     path /api/login does not match /api/search/**\n"
        "- everyone   it is a default, and login matched\n"
        "+ candidate  it is for every request\n"
        "             counted by ip: key 203.0.113.9\n"
        "             limits 100/minute (shadow: counted and reported, never refuses)"
    )


def test_a_secret_is_not_shown() -> None:
    text = explained(Request("GET", "/api/search/x", headers={"X-API-Key": "hunter2"}))
    assert "hunter2" not in text
    assert "counted by caller: key api_key|" in text
    assert "the default tier" in text


def test_a_descriptor_is_explained_and_its_values_are_not_shown() -> None:
    policy = read_policy(
        {
            "version": 1,
            "identities": {"token": {"entry": "token", "secret": True}},
            "rules": [
                {"name": "token", "match": {"entries": {"token": ["hunter*"]}}, "by": ["token"], "limits": "1/minute"},
                {"name": "whole", "match": {"entries": [{"key": "a", "value": "b"}]}, "by": [], "limits": "1/minute"},
                {"name": "get", "match": {"method": "GET", "path": "/a"}, "by": [], "limits": "1/minute"},
                {"name": "below", "match": {"path": "/**"}, "by": [], "limits": "1/minute"},
            ],
        }
    )
    text = explanation_text(descriptor := Descriptor({"a": "b", "token": "hunter2"}), explain(policy, descriptor))
    first, *lines = text.splitlines()
    assert first == "a descriptor with a > token"
    assert [line for line in lines if line[0] in "+-"] == [
        "+ token  entries token 'hunter*'",
        "- whole  the entries are a > token, not a",
        "- get    a descriptor has no method",
        "- below  a descriptor has no path",
    ]
    assert "hunter2" not in text
    reasons = [verdict.reason for verdict in explain(policy, Request("POST", "/b")).verdicts]
    assert reasons[:2] == ["entry token is not there", "the entries are (none), not a"]
    assert explain(policy, Descriptor({"a": "c"})).verdicts[1].reason == "entry 1, a, is not 'b'"


def test_an_unknown_tier_and_an_exemption_are_explained() -> None:
    text = explained(Request("GET", "/api/search/x", client_ip="1.1.1.1", headers={"X-Tier": "gold"}))
    assert "the default tier, as 'gold' is none of this rule's" in text
    assert "exempt: exempt[0] matches, so it passes uncounted" in explained(Request("GET", "/health"))


def test_a_network_is_explained() -> None:
    policy = read_policy(
        {
            "version": 1,
            "rules": [{"name": "a", "match": {"ip": ["10.0.0.0/8", "unix"]}, "by": [], "limits": "1/minute"}],
            "exempt": [{"ip": "192.0.2.0/24"}],
        }
    )
    [verdict] = explain(policy, Request(client_ip="10.0.0.1")).verdicts
    assert (verdict.applies, verdict.reason) == (True, "ip 10.0.0.0/8 or unix")
    [verdict] = explain(policy, Request(client_ip="11.0.0.1")).verdicts
    assert (verdict.applies, verdict.reason) == (False, "the client's address is not in 10.0.0.0/8 or unix")
    assert explain(policy, Request(client_ip="192.0.2.9")).exempt == "exempt[0] matches"


def test_where_nothing_applies_that_is_said() -> None:
    policy = {"version": 1, "rules": [{"name": "a", "by": ["ip"], "limits": "1/s", "match": {"header": {"X": "1"}}}]}
    text = explanation_text(Request(), explain(read_policy(policy), Request()))
    assert "- a  header x is not there" in text
    assert "no rule applies: it passes uncounted" in text


def test_an_explanation_agrees_with_the_gate() -> None:
    gate = Gate(SHOP)
    for method in ("GET", "POST"):
        for path in ("/", "/api/login", "/api/search/x", "/health", "*"):
            for headers in ({}, {"X-Tier": "pro"}, {"X-User-Id": "7"}):
                request = Request(method, path, client_ip="203.0.113.9", headers=headers)
                applied = [verdict.name for verdict in explain(gate.policy, request).verdicts if verdict.applies]
                assert applied == [
                    reading.rule for reading in gate.peek(request).limits if not reading.name.endswith(".minute")
                ]


def test_concurrent_limits_are_explained_as_held() -> None:
    policy = read_policy({"version": 1, "rules": [{"name": "user", "by": ["ip"], "limits": "20 concurrent; 9/hour"}]})
    request = Request(client_ip="203.0.113.9")
    text = explanation_text(request, explain(policy, request))
    assert "limits 20 concurrent; 9/hour" in text
    assert "20 concurrent: the request is held until its response has ended" in text


def test_a_wait_is_explained() -> None:
    policy = read_policy({"version": 1, "rules": [{"name": "a", "by": ["ip"], "limits": "9/hour", "wait": "1500ms"}]})
    request = Request(client_ip="203.0.113.9")
    assert "waits in line for up to 1500ms before it is refused" in explanation_text(request, explain(policy, request))
    shadow = read_policy(
        {"version": 1, "rules": [{"name": "a", "by": ["ip"], "limits": "9/hour", "wait": "2s", "shadow": True}]}
    )
    assert "waits" not in explanation_text(request, explain(shadow, request))
