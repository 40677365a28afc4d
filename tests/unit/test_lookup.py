"""What somebody names who looks after a live system is the key that the gate counted under."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import ConfigError
from headgate.policy.compiled import Policy
from headgate.policy.gate import read_policy
from headgate.policy.lookup import find_keys
from headgate.policy.matching import Matcher
from headgate.policy.request import Request

SECRET = "hunter2hunter2"
POLICY: dict[str, Any] = {
    "version": 1,
    "namespace": "shop",
    "client_ip": {"header": "X-Forwarded-For", "trusted_proxies": ["10.0.0.0/8"]},
    "identities": {
        "user": {"header": "X-User-Id"},
        "session": {"cookie": "sid", "secret": True},
        "page": {"query": "page"},
        "net": {"ip": {"ipv4_prefix": 24}},
        "api_key": {"header": "X-API-Key", "secret": True},
        "caller": {"first_of": ["user", "api_key", "ip"]},
        "outer": {"first_of": ["page", "caller"]},
    },
    "rules": [
        {"name": "user", "by": ["user"], "limits": "5/minute"},
        {"name": "insists", "by": ["user"], "limits": "5/minute", "missing": "refuse"},
        {"name": "session", "by": ["session"], "limits": "5/minute"},
        {"name": "net", "by": ["net"], "limits": "5/minute"},
        {"name": "caller", "by": ["caller"], "limits": "5/minute"},
        {"name": "outer", "by": ["outer"], "limits": "5/minute"},
        {"name": "pair", "by": ["user", "ip"], "limits": "5/minute"},
        {"name": "at", "by": ["user", "endpoint"], "limits": "5/minute", "match": {"path": ["/a/{id}", "/b"]}},
        {"name": "all", "by": [], "limits": "5/minute"},
    ],
}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return read_policy(POLICY)


def keys(policy: Policy, *texts: str, only: str | None = None) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for key in find_keys(policy, texts, only=only).keys:
        found.setdefault(key.rule.name, []).append(key.parts)
    return found


def counted(policy: Policy, request: Request) -> dict[str, tuple[str, ...] | None]:
    matcher = Matcher(policy)
    chosen = matcher.candidates(matcher.kind("GET", "", request.path)).select(request)
    return {one.rule.name: one.key.whole(request) for one in chosen}


@pytest.mark.parametrize(
    ("texts", "request_", "rules"),
    [
        (["user=u42"], Request(headers={"X-User-Id": " u42 "}), ["user", "insists", "caller"]),
        (["user=u|4{2"], Request(headers={"X-User-Id": "u|4{2"}), ["user", "caller"]),
        ([f"user={'u' * 300}"], Request(headers={"X-User-Id": "u" * 300}), ["user", "caller"]),
        ([f"session={SECRET}"], Request(headers={"Cookie": f"sid={SECRET}"}), ["session"]),
        ([f"api_key={SECRET}"], Request(headers={"X-API-Key": SECRET}), ["caller", "outer"]),
        (["page=a&b c"], Request(path="/?page=a%26b+c"), ["outer"]),
        (["ip=203.0.113.9"], Request(client_ip="203.0.113.9"), ["caller", "outer"]),
        (["ip=2001:db8::1"], Request(client_ip="2001:db8::1"), ["caller"]),
        (["ip=10.1.2.3"], Request(client_ip="10.1.2.3"), ["caller"]),
        (["net=203.0.113.9"], Request(client_ip="203.0.113.9"), ["net"]),
        (["user="], Request(), ["user"]),
        (["user=u42", "ip=1.2.3.4"], Request(headers={"X-User-Id": "u42"}, client_ip="1.2.3.4"), ["pair", "caller"]),
        (["user=", "ip=1.2.3.4"], Request(client_ip="1.2.3.4"), ["pair", "caller"]),
        (["user=", "api_key=", "ip="], Request(), ["caller"]),
    ],
)
def test_named_identities_find_the_keys_under_which_they_were_counted(
    policy: Policy, texts: list[str], request_: Request, rules: list[str]
) -> None:
    found, by_gate = keys(policy, *texts), counted(policy, request_)
    assert set(rules) <= set(found)
    assert {name: found[name] for name in rules} == {name: [by_gate[name]] for name in rules}


def test_an_endpoint_that_is_not_named_is_each_of_the_rules_own(policy: Policy) -> None:
    assert keys(policy, "user=u42")["at"] == [("u42", "/a/{id}"), ("u42", "/b")]
    assert keys(policy, "user=u42", "endpoint=/c")["at"] == [("u42", "/c")]


def test_the_parts_of_a_key_are_found_as_they_are(policy: Policy) -> None:
    assert keys(policy, "user", "u42") == {"caller": [("user", "u42")], "at": [("user", "u42")]}
    assert keys(policy, "caller", "user", "u42") == {"outer": [("caller", "user", "u42")]}
    assert keys(policy, "2001:db8::/64")["user"] == [("2001:db8::/64",)]
    assert keys(policy, "u42", "1.2.3.4")["pair"] == [("u42", "1.2.3.4")]
    assert "pair" not in keys(policy, "u42", "nobody")
    assert keys(policy, "anonymous", "user")["user"] == [("anonymous", "user")]
    assert keys(policy, "everyone") == {"all": [("everyone",)]}


def test_the_key_of_the_peers_of_a_unix_socket_is_found_as_it_is(policy: Policy) -> None:
    request = Request(client_ip="unix", headers={"X-User-Id": "u"})
    assert counted(policy, request)["net"] == ("unix",)
    assert keys(policy, "unix", only="net") == {"net": [("unix",)]}
    assert keys(policy, "u", "unix", only="pair") == {"pair": [("u", "unix")]}


def test_a_part_may_be_a_secret_or_its_digest(policy: Policy) -> None:
    hashed = keys(policy, f"session={SECRET}")["session"][0][0]
    assert keys(policy, SECRET)["session"] == [(hashed,)]
    found = find_keys(policy, [hashed], only="session").keys
    assert [(key.parts == (hashed,), key.guessed) for key in found] == [(False, False), (True, True)]


def test_a_rule_that_counts_by_more_identities_is_reported(policy: Policy) -> None:
    found = find_keys(policy, ["user=u42"])
    assert found.incomplete == [("pair", ("ip",))]
    assert "pair" not in {key.rule.name for key in found.keys}


@pytest.mark.parametrize(
    ("texts", "only", "message"),
    [
        ([""], None, "not empty"),
        ([f"usr={SECRET}"], None, "no identity has this name; did you mean user?"),
        ([f"{'k' * 3}={SECRET}"], None, "there are ip, endpoint"),
        (["user=a", SECRET], None, "write each KEY as NAME=VALUE, or none"),
        (["user=a", "user=b"], None, "user is given twice"),
        (["caller=a"], None, "caller is the first of user, api_key, ip: name the one"),
        ([SECRET, SECRET, SECRET], None, "no rule counts by such a key"),
        ([SECRET], "pair", "they count: pair by user and ip; write NAME=VALUE"),
        (["user=a"], "pair", "the rule pair counts by ip besides"),
        (["user="], "insists", "no rule counts by such a key"),
        (["user=a"], "pairs", "no rule is named 'pairs'; did you mean pair?"),
    ],
)
def test_keys_that_cannot_be_looked_up_are_an_error_that_shows_no_secret(
    policy: Policy, texts: list[str], only: str | None, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        find_keys(policy, texts, only=only)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)
