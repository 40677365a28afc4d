"""A gate decides a request by all rules that match it together: it charges all of them or none."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from headgate import ArgumentError, ConfigError, Decision, MemoryStore
from headgate.policy.gate import AsyncGate, Gate, read_policy
from headgate.policy.problems import PolicyError
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import KINDS, START_US, make_zone

SHOP = Path(__file__).parents[2] / "examples" / "shop.yaml"


def make_gate(core: str, *rules: dict[str, Any], clock: ManualClock | None = None, **policy: Any) -> Gate:
    store = MemoryStore(core=core)  # type: ignore[arg-type]
    return Gate({"version": 1, "rules": list(rules), **policy}, store=store, clock=clock or ManualClock())


def rule(
    name: str = "all", limits: Any = "2/minute bucket", by: list[str] | None = None, **more: Any
) -> dict[str, Any]:
    return {"name": name, "limits": limits, "by": ["ip"] if by is None else by, **more}


def names(decision: Decision) -> list[str]:
    return [reading.rule for reading in decision.limits]


def test_all_rules_that_match_apply_and_all_are_charged_or_none(core: str) -> None:
    gate = make_gate(core, rule("narrow", "2/minute bucket"), rule("wide", "100/hour bucket", match={"path": "/a"}))
    request = Request("GET", "/a", client_ip="203.0.113.9")
    assert [gate.hit(request).allowed for _ in range(5)] == [True, True, False, False, False]
    refused = gate.hit(request)
    assert refused.rule == "narrow"
    assert [reading.remaining for reading in refused.limits] == [0, 98]


def test_each_limit_of_a_shadow_rule_counts_the_requests_that_it_would_admit(core: str) -> None:
    gate = make_gate(core, rule("dry", "3/minute; 10/hour", shadow=True), rule("real", "100/minute"))
    request = Request(client_ip="203.0.113.9")
    decisions = [gate.hit(request) for _ in range(6)]
    assert all(decisions)
    assert [(reading.name, reading.allowed, reading.remaining) for reading in decisions[-1].limits] == [
        ("dry.minute", False, 0), ("dry.hour", True, 4), ("real", True, 94),
    ]  # fmt: skip


def test_a_request_without_a_matching_rule_passes_without_limits(core: str) -> None:
    gate = make_gate(core, rule(match={"path": "/a"}))
    decision = gate.hit(Request("GET", "/b", client_ip="203.0.113.9"))
    assert decision.allowed
    assert decision.limits == ()
    assert gate.stats().keys == 0


def test_a_cost_beyond_all_bounds_is_refused_without_a_time_to_retry(core: str) -> None:
    gate = make_gate(core, rule(cost=1000, limits="2000/minute bucket"))
    refused = gate.hit(Request("GET", "/a", client_ip="203.0.113.9"), 2**52)
    assert not refused.allowed
    assert refused.retry_after is None


def test_exempt_requests_pass_uncounted(core: str) -> None:
    gate = make_gate(core, rule(limits="0/hour"), exempt=[{"path": "/health"}, {"header": {"X-Probe": "1"}}])
    assert gate.hit(Request("GET", "/health", client_ip="203.0.113.9"))
    assert gate.hit(Request("GET", "/x", client_ip="203.0.113.9", headers={"x-probe": "1"}))
    assert not gate.hit(Request("GET", "/x", client_ip="203.0.113.9", headers={"x-probe": "2"}))


def test_default_rules_apply_only_where_no_other_enforced_rule_matched(core: str) -> None:
    gate = make_gate(
        core,
        rule("login", match={"path": "/login"}),
        rule("everyone", default=True),
        rule("candidate", shadow=True),
    )
    assert names(gate.peek(Request("GET", "/login", client_ip="203.0.113.9"))) == ["login", "candidate"]
    assert names(gate.peek(Request("GET", "/other", client_ip="203.0.113.9"))) == ["everyone", "candidate"]


def test_shadow_rules_count_and_never_refuse(core: str) -> None:
    gate = make_gate(core, rule("real", "5/minute bucket"), rule("candidate", "2/minute bucket", shadow=True))
    request = Request(client_ip="203.0.113.9")
    decisions = [gate.hit(request) for _ in range(6)]
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
    assert [[reading.rule for reading in decision.refusals] for decision in decisions] == [
        [], [], ["candidate"], ["candidate"], ["candidate"], ["real", "candidate"],
    ]  # fmt: skip
    assert {decision.rule for decision in decisions} == {"real"}
    only_shadow = make_gate(core, rule("candidate", "1/minute bucket", shadow=True))
    assert [only_shadow.hit(request).allowed for _ in range(3)] == [True] * 3


def test_rules_match_by_method_path_host_and_header(core: str) -> None:
    gate = make_gate(
        core,
        rule("m", match={"method": ["POST", "PUT"]}),
        rule("p", match={"path": ["/a", "/b/{id}"]}),
        rule("h", match={"host": ["api.example.com", "*.example.org"]}),
        rule("f", match={"header": {"X-Plan": ["a", "b"], "X-Any": True}}),
    )

    def matching(**request: Any) -> list[str]:
        return names(gate.peek(Request(client_ip="203.0.113.9", **request)))

    assert matching() == []
    assert matching(method="post") == ["m"]
    assert matching(path="/b/7?x=1") == ["p"]
    assert matching(host="API.example.com:8080") == ["h"]
    assert matching(headers={"Host": "a.b.example.org."}) == ["h"]
    assert matching(host="example.org") == []
    assert matching(headers={"x-plan": "b", "X-ANY": ""}) == ["f"]
    assert matching(headers={"x-plan": "c", "X-ANY": ""}) == []
    assert matching(method="PUT", path="/a", host="x.example.org", headers={"x-plan": "a", "x-any": "1"}) == [
        "m", "p", "h", "f",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("networks", "peer", "forwarded", "is_in"),
    [
        ("10.0.0.0/8", "10.1.2.3", "", True),
        ("10.0.0.0/8", "11.1.2.3", "", False),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "", True),
        ("::ffff:10.0.0.0/104", "10.1.2.3", "", True),
        (["192.0.2.7", "fd00::/8"], "192.0.2.7", "", True),
        (["192.0.2.7", "fd00::/8"], "192.0.2.8", "", False),
        (["192.0.2.7", "fd00::/8"], "fd12::1", "", True),
        ("10.0.0.0/8", "172.16.0.1", "10.1.2.3", True),
        ("10.0.0.0/8", "172.16.0.1", "10.1.2.3, 203.0.113.9", False),
        ("10.0.0.0/8", "203.0.113.9", "10.1.2.3", False),
        ("172.16.0.0/12", "172.16.0.1", "203.0.113.9", False),
        ("172.16.0.0/12", "172.16.0.1", "", True),
        ("unix", "", "", True),
        ("unix", "unix", "", True),
        ("unix", "10.1.2.3", "", False),
        ("0.0.0.0/0", "unix", "", False),
        ("10.0.0.0/8", "nonsense", "", False),
        ("10.0.0.0/8", "172.16.0.1", "10.1.2.3," * 100 + "10.1.2.3", False),
    ],
)
def test_rules_and_exemptions_match_by_the_network_of_the_client(
    core: str, networks: Any, peer: str, forwarded: str, is_in: bool
) -> None:
    client_ip = {"header": "X-Forwarded-For", "trusted_proxies": ["172.16.0.0/12"], "ipv4_prefix": 8}
    gate = make_gate(core, rule("own", match={"ip": networks}), rule("all", by=[]), client_ip=client_ip)
    request = Request(client_ip=peer, headers={"X-Forwarded-For": forwarded})
    assert names(gate.peek(request)) == (["own", "all"] if is_in else ["all"])
    gate = make_gate(core, rule("all", by=[]), exempt=[{"ip": networks, "path": "/a"}], client_ip=client_ip)
    request = Request("GET", "/a", client_ip=peer, headers={"X-Forwarded-For": forwarded})
    assert names(gate.peek(request)) == ([] if is_in else ["all"])
    request.path = "/b"
    assert names(gate.peek(request)) == ["all"]


def counted_separately(gate: Gate, one: Request, other: Request) -> bool:
    """Whether two requests have separate budgets."""
    gate.store.clear()
    gate.hit(one)
    is_separate = gate.peek(other, 0).limits[0].remaining == 2
    assert gate.peek(one, 0).limits[0].remaining == 1
    return is_separate


def test_identities_tell_requests_apart(core: str) -> None:
    identities = {
        "user": {"header": "X-User"},
        "session": {"cookie": "sid"},
        "token": {"query": "token"},
        "site": {"ip": {"ipv4_prefix": 24, "ipv6_prefix": 48}},
    }
    cases: list[tuple[list[str], dict[str, Any], dict[str, Any]]] = [
        (["ip"], {"client_ip": "203.0.113.1"}, {"client_ip": "203.0.113.2"}),
        (["user"], {"headers": {"X-User": "a"}}, {"headers": {"x-user": "b"}}),
        (["session"], {"headers": {"Cookie": "a=1; sid=x"}}, {"headers": {"Cookie": "sid=y; a=1"}}),
        (["token"], {"path": "/?token=a"}, {"path": "/?token=b&token=a"}),
        (["site"], {"client_ip": "203.0.113.1"}, {"client_ip": "203.0.114.1"}),
        (["host"], {"host": "a.example.com"}, {"host": "b.example.com"}),
        (["method"], {"method": "GET"}, {"method": "POST"}),
        (["user", "ip"], {"headers": {"X-User": "a"}, "client_ip": "1.1.1.1"},
         {"headers": {"X-User": "a"}, "client_ip": "1.1.1.2"}),
    ]  # fmt: skip
    for by, one, other in cases:
        gate = make_gate(core, rule(by=by), identities=identities)
        assert counted_separately(gate, Request(**one), Request(**other)), by


def test_identities_group_requests_that_belong_together(core: str) -> None:
    gate = make_gate(core, rule(by=["ip"]))
    one = Request(client_ip="2001:db8:1:2::1")
    assert not counted_separately(gate, one, Request(client_ip="2001:db8:1:2:ffff::9"))
    assert counted_separately(gate, one, Request(client_ip="2001:db8:1:3::1"))
    everyone = make_gate(core, rule(by=[]))
    assert not counted_separately(everyone, one, Request("POST", "/x", client_ip="203.0.113.9"))


def test_an_endpoint_is_the_template_not_the_path(core: str) -> None:
    gate = make_gate(core, rule(by=["endpoint"], match={"path": ["/users/{id}", "/posts/{id}"]}))
    assert not counted_separately(gate, Request(path="/users/1"), Request(path="/users/2"))
    assert counted_separately(gate, Request(path="/users/1"), Request(path="/posts/1"))
    assert counted_separately(
        gate, Request(path="/users/1", endpoint="/v1/a"), Request(path="/users/1", endpoint="/v2/a")
    )


def test_first_of_takes_the_first_identity_and_keeps_kinds_apart(core: str) -> None:
    identities = {"user": {"header": "X-User"}, "caller": {"first_of": ["user", "ip"]}}
    gate = make_gate(core, rule(by=["caller"]), identities=identities)
    by_address = Request(client_ip="203.0.113.9")
    assert not counted_separately(gate, by_address, Request(client_ip="203.0.113.9", headers={"X-User": " "}))
    # A user with the name of an address does not share the budget of that address.
    assert counted_separately(gate, by_address, Request(client_ip="1.1.1.1", headers={"X-User": "203.0.113.9"}))


def test_a_missing_identity_is_counted_as_anonymous_and_never_passes_free(core: str) -> None:
    gate = make_gate(core, rule(by=["user"]), identities={"user": {"header": "X-User"}})
    missing = [Request(client_ip=f"203.0.113.{number}") for number in range(4)]
    assert [gate.hit(request).allowed for request in missing] == [True, True, False, False]
    assert gate.hit(Request(headers={"X-User": "anonymous"}))


def test_a_missing_identity_is_refused_where_the_rule_says_so(core: str) -> None:
    gate = make_gate(
        core, rule(by=["user"], missing="refuse"), rule("other"), identities={"user": {"header": "X-User"}}
    )
    decision = gate.hit(Request(client_ip="203.0.113.9"))
    assert (decision.allowed, decision.rule, decision.retry_after) == (False, "all", None)
    assert gate.stats().keys == 0
    assert gate.hit(Request(client_ip="203.0.113.9", headers={"X-User": "a"}))
    shadow = make_gate(
        core, rule(by=["user"], missing="refuse", shadow=True), identities={"user": {"header": "X-User"}}
    )
    assert shadow.hit(Request())


def test_refusals_for_the_same_missing_identities_are_built_once(core: str) -> None:
    gate = make_gate(
        core,
        rule("users", by=["user"], missing="refuse"),
        rule("teams", by=["team"], missing="refuse"),
        identities={"user": {"header": "X-User"}, "team": {"header": "X-Team"}},
    )
    team, user = Request(headers={"X-Team": "a"}), Request(headers={"X-User": "b"})
    assert [gate.hit(request).rule for request in (team, user, Request())] == ["users", "teams", "users"]
    assert gate.hit(team) is gate.hit(Request("POST", "/elsewhere", headers={"X-Team": "b"}))
    assert [reading.allowed for reading in gate.hit(team).limits] == [False, True]
    assert [reading.allowed for reading in gate.hit(user).limits] == [True, False]
    assert [reading.allowed for reading in gate.hit(Request()).limits] == [False, False]


REPEATED_IDENTITIES = {
    "user": {"header": "X-User"},
    "key": {"header": "X-API-Key", "secret": True},
    "session": {"cookie": "session", "secret": True},
    "token": {"query": "token"},
    "caller": {"first_of": ["key", "session", "token", "user", "ip"]},
}


def repeated_credentials(number: int) -> dict[str, dict[str, Any]]:
    """For each place of a credential, a request with a valid credential and an invented one."""
    return {
        "user": {"headers": [("X-User", "VALID"), ("X-User", f"r{number}")]},
        "key": {"headers": [("X-API-Key", f"VALID, r{number}")]},
        "session": {"headers": [("Cookie", f"session=r{number}; session=VALID")]},
        "token": {"path": f"/?token=r{number}&token=VALID"},
    }


@pytest.mark.parametrize("by", ["user", "key", "session", "token", "caller"])
@pytest.mark.parametrize("sent", ["user", "key", "session", "token"])
def test_a_repeated_credential_is_one_key_and_never_a_new_one(core: str, by: str, sent: str) -> None:
    if by not in (sent, "caller"):
        by = sent
    gate = make_gate(core, rule(by=[by]), identities=REPEATED_IDENTITIES)
    requests = [Request(client_ip=f"203.0.113.{number}", **repeated_credentials(number)[sent]) for number in range(5)]
    assert [gate.hit(request).allowed for request in requests] == [True, True, False, False, False]


@pytest.mark.parametrize("by", [["user"], ["caller"], ["ip", "user"], ["ip", "user", "method"]])
def test_a_repeated_credential_is_refused_where_the_rule_says_so(core: str, by: list[str]) -> None:
    gate = make_gate(core, rule(by=by, repeated="refuse"), rule("other", "9/minute"), identities=REPEATED_IDENTITIES)
    decision = gate.hit(Request(client_ip="203.0.113.9", headers=[("X-User", "a"), ("X-User", "b")]))
    assert (decision.allowed, decision.rule, decision.retry_after) == (False, "all", None)
    assert gate.hit(Request(client_ip="203.0.113.9", headers=[("X-User", "a"), ("X-User", "a")]))
    assert gate.hit(Request(client_ip="203.0.113.9")), "a missing identity is not a repeated one"
    shadow = make_gate(core, rule(by=by, repeated="refuse", shadow=True), identities=REPEATED_IDENTITIES)
    assert shadow.hit(Request(client_ip="203.0.113.9", headers=[("X-User", "a"), ("X-User", "b")]))


def test_the_spellings_of_credentials_are_one_key(core: str) -> None:
    gate = make_gate(core, rule(by=["key"]), identities={"key": {"header": "Authorization", "secret": True}})
    for spellings in [
        ["Bearer aBc", "bearer aBc", "BEARER   aBc", "Bearer\taBc"],
        ["Basic dXNlcjpwYXNz", "basic dXNlcjpwYXNz==", "Basic dX!Nlcj pwY*XNz"],
    ]:
        first = Request(headers={"Authorization": spellings[0]})
        for other in spellings[1:]:
            assert not counted_separately(gate, first, Request(headers={"authorization": other})), other
    assert counted_separately(gate, first, Request(headers={"authorization": "Basic dXNlcjpwYXN1"}))
    assert counted_separately(
        gate, Request(headers={"authorization": "aBc"}), Request(headers={"authorization": "abc"})
    )


TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ." + "c2ln" * 10 + "ZZw"


@pytest.mark.parametrize(
    ("identity", "sent"),
    [
        ({"header": "X-Token"}, {"headers": {"X-Token": "{}"}}),
        ({"header": "X-Token", "secret": True}, {"headers": {"X-Token": "{}"}}),
        ({"header": "Authorization"}, {"headers": {"Authorization": "Bearer {}"}}),
        ({"cookie": "session", "secret": True}, {"headers": {"Cookie": "session={}"}}),
        ({"query": "token"}, {"path": "/?token={}"}),
    ],
)
@pytest.mark.parametrize("begin", ["", "."])
def test_the_spellings_of_a_signed_token_are_one_key(
    core: str, begin: str, identity: dict[str, Any], sent: dict[str, Any]
) -> None:
    def request(token: str) -> Request:
        if "path" in sent:
            return Request(path=sent["path"].format(token))
        return Request(headers={name: value.format(token) for name, value in sent["headers"].items()})

    whole = TOKEN if not begin else begin + TOKEN.replace("eyJ", "eJ")
    gate = make_gate(core, rule(by=["token"]), identities={"token": identity})
    for other in (f"{whole}=", f"{whole}!", f"{whole[:-3]}*{whole[-3:]}", f"{whole[:-1]}x"):
        assert not counted_separately(gate, request(whole), request(other)), other
    assert counted_separately(gate, request(whole), request(f"{whole[:-1]}A"))
    assert counted_separately(gate, request("a.b.c0"), request("a.b.c1")), "an opaque value is compared as it is"


def test_a_tier_that_is_sent_twice_is_the_default(core: str) -> None:
    limits = {"free": "2/minute bucket", "pro": "100/minute bucket"}
    for source, sent in [
        ({"header": "X-Tier"}, [("X-Tier", "pro"), ("X-Tier", "free")]),
        ({"cookie": "tier"}, [("Cookie", "tier=pro; tier=free")]),
    ]:
        gate = make_gate(core, rule(limits=limits), tiers={"from": source, "default": "free"})
        assert gate.peek(Request(client_ip="203.0.113.9", headers=sent)).limit == 2
    gate = make_gate(
        core,
        rule(limits=limits),
        identities={"user": {"header": "X-User"}},
        tiers={"from": {"identity": "user"}, "map": {"user": "pro", "a": "pro"}, "default": "free"},
    )
    assert gate.peek(Request(client_ip="203.0.113.9", headers=[("X-User", "a"), ("X-User", "b")])).limit == 2


def test_a_rule_matches_any_value_of_a_header_that_is_sent_twice_and_an_exemption_all(core: str) -> None:
    gate = make_gate(
        core,
        rule("free", match={"header": {"X-Plan": "free"}}),
        rule("gold", match={"header": {"X-Plan": "gold"}}),
        exempt=[{"header": {"X-Probe": ["1", "2"]}}],
    )
    plans = [("X-Plan", "free"), ("X-Plan", "gold")]
    assert names(gate.peek(Request(client_ip="203.0.113.9", headers=plans))) == ["free", "gold"]
    one, both = [*plans, ("X-Probe", "1"), ("X-Probe", "3")], [*plans, ("X-Probe", "1"), ("X-Probe", "2")]
    assert names(gate.peek(Request(client_ip="203.0.113.9", headers=one))) == ["free", "gold"]
    assert names(gate.peek(Request(client_ip="203.0.113.9", headers=both))) == []


def test_parts_of_a_key_cannot_run_together(core: str) -> None:
    identities = {"a": {"header": "A"}, "b": {"header": "B"}}
    gate = make_gate(core, rule(by=["a", "b"]), identities=identities)
    for one, other in [(("x|y", "z"), ("x", "y|z")), (("x", "anonymous"), ("x", "")), (("", "x"), ("anonymous", "x"))]:
        requests = [Request(headers={"A": pair[0], "B": pair[1]}) for pair in (one, other)]
        assert counted_separately(gate, *requests), (one, other)


@pytest.mark.parametrize("value", ["x" * 100_000, "\ud800", "é" * 300, "a\r\nb", "{tag}", "|", "%00"])
def test_no_identity_that_a_client_can_send_is_an_error(core: str, value: str) -> None:
    gate = make_gate(core, rule(by=["user"]), identities={"user": {"header": "X-User"}})
    assert counted_separately(gate, Request(headers={"X-User": value}), Request(headers={"X-User": value + "x"}))


def test_a_secret_is_hashed_before_anything_sees_it(core: str) -> None:
    gate = make_gate(core, rule(by=["key"]), identities={"key": {"header": "X-Key", "secret": True}})
    request = Request(headers={"X-Key": "hunter2"})
    _, (_, operation, rules, _) = gate.decide_at(request, START_US, 1)
    assert "hunter2" not in str(operation.keys)
    assert "hunter2" not in str(rules)
    assert counted_separately(gate, request, Request(headers={"X-Key": "hunter3"}))


def test_tiers_choose_the_limits_and_share_the_usage(core: str) -> None:
    gate = make_gate(
        core,
        rule(limits={"free": "2/hour bucket", "pro": "10/hour bucket"}),
        tiers={"from": {"header": "X-Tier"}, "default": "free"},
    )

    def limit(**headers: str) -> tuple[int | None, int | None]:
        decision = gate.peek(Request(client_ip="203.0.113.9", headers=headers), 0)
        return decision.limit, decision.remaining

    assert limit() == (2, 2)
    assert limit(**{"X-Tier": "pro"}) == (10, 10)
    assert limit(**{"X-Tier": "no such tier"}) == (2, 2)
    gate.hit(Request(client_ip="203.0.113.9"), 2)
    assert limit() == (2, 0)
    # A client that claims the tier pro from now on starts from its usage, not afresh.
    assert limit(**{"X-Tier": "pro"}) == (10, 0)


def test_tiers_can_come_from_an_identity_by_a_map(core: str) -> None:
    gate = make_gate(
        core,
        rule(by=["user"], limits={"free": "2/hour", "pro": "10/hour"}),
        identities={"user": {"header": "X-User"}},
        tiers={"from": {"identity": "user"}, "map": {"ann": "pro"}, "default": "free"},
    )
    assert gate.peek(Request(headers={"X-User": "ann"})).limit == 10
    assert gate.peek(Request(headers={"X-User": "bob"})).limit == 2
    assert gate.peek(Request()).limit == 2


def test_costs_multiply_and_are_checked(core: str) -> None:
    gate = make_gate(core, rule("a", "10/hour", cost=3), rule("b", "100/hour"))
    assert [reading.remaining for reading in gate.hit(Request(client_ip="1.1.1.1"), 2).limits] == [4, 98]
    for cost in (-1, True, 1.5, 10**30):
        with pytest.raises(ArgumentError, match="a cost is"):
            gate.hit(Request(client_ip="1.1.1.1"), cost)  # type: ignore[arg-type]


def test_a_ruleset_applies_some_of_the_rules(core: str) -> None:
    gate = make_gate(core, rule("a"), rule("b"), rule("c", default=True), rulesets={"login": ["a"], "rest": ["b", "c"]})
    request = Request(client_ip="1.1.1.1")
    assert names(gate.peek(request)) == ["a", "b"]
    assert names(gate.peek(request, ruleset="login")) == ["a"]
    assert names(gate.peek(request, ruleset="rest")) == ["b"]
    with pytest.raises(ConfigError, match="no ruleset is named 'nope'; there are default, login, rest"):
        gate.hit(request, ruleset="nope")


def test_a_reload_keeps_the_usage_and_a_new_generation_does_not(core: str) -> None:
    gate = make_gate(core, rule(limits="10/hour bucket"))
    request = Request(client_ip="1.1.1.1")
    gate.hit(request, 4)
    gate.reload({"version": 1, "rules": [rule(limits="8/hour bucket"), rule("new", "3/hour")]})
    assert [reading.remaining for reading in gate.peek(request, 0).limits] == [6, 3]
    gate.reload({"version": 1, "generation": 2, "rules": [rule(limits="8/hour bucket")]})
    assert gate.peek(request, 0).remaining == 8


def test_a_broken_policy_leaves_the_old_one_in_force(core: str) -> None:
    gate = make_gate(core, rule(limits="10/hour bucket"))
    with pytest.raises(PolicyError):
        gate.reload({"version": 1, "rules": [rule(limits="10/fortnight")]})
    assert gate.hit(Request(client_ip="1.1.1.1")).limit == 10


def test_more_kinds_of_requests_than_a_gate_caches_are_decided_in_the_same_way(core: str) -> None:
    gate = make_gate(core, rule(limits="5/hour", match={"path": "/a/**"}))
    for number in range(9000):
        gate.peek(Request(path=f"/a/{number}", client_ip="1.1.1.1"))
    gate.peek(Request(path="/a/" + "x" * 5000, client_ip="1.1.1.1"))
    assert gate.hit(Request(path="/a/1", client_ip="1.1.1.1")).remaining == 4


def test_requests_of_one_kind_share_a_cached_plan_however_many_paths_there_are(core: str) -> None:
    rules = [rule(f"r{number}", match={"path": f"/r{number}/{{id}}", "method": ["GET", "PUT"]}) for number in range(9)]
    gate = make_gate(core, *rules, rule("h", match={"host": ["a.example.com", "*.example.org"]}), rule("all"))
    gate._decide_by(gate.resolver, None)  # the native gate remembers kinds, and no paths
    for number in range(500):
        host = f"h{number}.example.org" if number % 2 else f"h{number}.example.net"
        request = Request(f"M{number}", f"/x/{number}?a", host=host, client_ip="203.0.113.9")
        assert names(gate.hit(request)) == (["h", "all"] if number % 2 else ["all"])
        assert names(gate.hit(Request("PUT", f"/r3/{number}", client_ip="203.0.113.9"))) == ["r3", "all"]
    assert len(gate._resolver._plans_by_kind) == 3


def test_a_flood_of_new_paths_does_not_evict_paths_that_recur(core: str) -> None:
    gate = make_gate(core, rule("r", match={"path": "/r/{id}"}))
    gate._decide_by(gate.resolver, None)
    resolver = gate._resolver
    again, name = Request("GET", "/r/7", client_ip="203.0.113.9"), ("GET", "", "/r/7", "default")
    gate.hit(again)
    assert not resolver._plans, "a path that was requested once is not cached"
    for number in range(50_000):
        if number % 100 == 0:
            gate.hit(again)
        gate.hit(Request("GET", f"/x/{number}"))
        assert name in resolver._plans or name in resolver._older
    assert len(resolver._plans) + len(resolver._older) < 10_000, "most paths that were requested once are not cached"


def test_paths_that_recur_are_cached_within_bounds(core: str) -> None:
    resolver = (gate := make_gate(core, rule("r", match={"path": "/r/{id}"})))._resolver
    gate._decide_by(gate.resolver, None)
    for number in range(20_000):
        for _ in range(2):
            gate.hit(Request("GET", f"/x/{number}"))
        assert ("GET", "", f"/x/{number}", "default") in resolver._plans
        assert len(resolver._plans) + len(resolver._older) <= 16_384


def test_a_repeated_host_matches_the_rules_of_all_its_values_and_is_exempt_only_if_all_are(core: str) -> None:
    gate = make_gate(
        core,
        rule("a", match={"host": "a.example.com"}),
        rule("b", match={"host": "*.example.org"}),
        rule("by", by=["host"]),
        exempt=[{"host": ["a.example.com", "c.example.com"]}],
    )

    def matching(*hosts: str) -> list[str]:
        return names(gate.hit(Request(headers=[("Host", host) for host in hosts], client_ip="203.0.113.9")))

    assert matching("a.example.com", "b.example.org") == ["a", "b", "by"]
    assert matching("a.example.com", "c.example.com") == []
    gate.store.clear()
    others = [Request(headers=[("Host", "x"), ("Host", f"r{number}")]) for number in range(3)]
    assert [gate.hit(request).allowed for request in others] == [True, True, False]


def test_the_async_gate_decides_alike(core: str) -> None:
    async def main() -> None:
        store = MemoryStore(core=core)  # type: ignore[arg-type]
        async with AsyncGate({"version": 1, "rules": [rule()]}, store=store, clock=ManualClock()) as gate:
            request = Request(client_ip="1.1.1.1")
            assert (await gate.peek(request)).remaining == 1
            assert [(await gate.hit(request)).allowed for _ in range(3)] == [True, True, False]
            with pytest.raises(ConfigError, match="no ruleset"):
                await gate.hit(request, ruleset="nope")

    asyncio.run(main())


def test_a_gate_opens_the_store_that_its_policy_names() -> None:
    with Gate({"version": 1, "store": "memory://?max_keys=7", "rules": [rule()]}) as gate:
        assert gate.stats().max_keys == 7
    with Gate(SHOP, store="memory://?max_keys=9") as gate:
        assert gate.stats().max_keys == 9


def test_a_policy_reports_whether_it_names_a_store() -> None:
    without_store = read_policy({"version": 1, "rules": [rule()]})
    assert (without_store.store, without_store.names_store) == ("memory://", False)
    with_store = read_policy({"version": 1, "store": "memory://", "rules": [rule()]})
    assert (with_store.store, with_store.names_store) == ("memory://", True)


def test_the_fields_of_a_request_are_text(core: str) -> None:
    with pytest.raises(ArgumentError, match="method, path, client_ip, host and endpoint"):
        Request(5)  # type: ignore[arg-type]
    for headers in ({"a": 1}, {1: "a"}, [("a", b"b")]):
        with pytest.raises(ArgumentError, match="names and values of headers are text"):
            Request(headers=headers)  # type: ignore[arg-type]
    assert Request(headers=[("A", "1"), ("a", "2")]).headers == {"a": "1, 2"}


@pytest.mark.skipif("shared" not in KINDS, reason="the shared store needs the native core")
def test_each_rule_follows_its_on_store_error_where_a_shared_zone_fails() -> None:
    rules = [
        {"name": name, "match": {"path": f"/{name}"}, "by": ["ip"], "limits": "2/hour", "on_store_error": name}
        for name in ("local", "open", "closed")
    ]
    zone = make_zone(256 << 10)
    gate = Gate({"version": 1, "rules": rules}, store=zone)
    requests = {name: Request(path=f"/{name}", client_ip="203.0.113.9") for name in ("local", "open", "closed")}
    assert [gate.hit(request).degraded for request in requests.values()] == ["", "", ""]
    maps = Path("/proc/self/maps").read_text().splitlines()
    [place] = [line.split("-")[0] for line in maps if str(zone.path) in line]
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:  # another process corrupts the zone
        memory.seek(int(place, 16) + 4096 + (32 << 10) + 48)
        memory.write(b"\xff" * 8)
        assert {gate.hit(requests["local"]).degraded for _ in range(3)} == {"local"}
        assert not gate.hit(requests["local"])
        assert [bool(gate.hit(requests["open"])) for _ in range(5)] == [True] * 5
        refused = gate.hit(requests["closed"])
        assert not refused and refused.degraded == "closed" and refused.retry_after
        memory.seek(int(place, 16) + 4096 + (32 << 10) + 48)
        memory.write(bytes(8))
    assert gate.hit(requests["local"]).degraded == ""


def test_a_missing_identity_of_one_rule_does_not_take_the_key_of_a_rule_for_everybody(core: str) -> None:
    gate = make_gate(
        core,
        rule("each", "5/minute", by=["user"]),
        rule("all", "100/minute", by=[]),
        identities={"user": {"header": "X-User"}},
    )
    decision = gate.hit(Request())
    assert decision and [reading.remaining for reading in decision.limits] == [4, 99]
    assert [reading.remaining for reading in gate.hit(Request(headers={"X-User": "u"})).limits] == [4, 98]


def test_an_unreferenced_gate_is_freed_with_the_listeners_of_its_store() -> None:
    class Listener:
        gate: Gate

        def on_change(self, error: Exception | None) -> None: ...

    listener = Listener()
    rules = [{"name": "all", "by": ["ip"], "limits": "5/minute"}]
    policy = {"version": 1, "namespace": "shop", "store": "redis://127.0.0.1:1/0", "on_store_error": "open"}
    listener.gate = Gate({**policy, "rules": rules})  # nothing answers there
    listener.gate.watch_store(listener.on_change)
    assert listener.gate.hit(Request(client_ip="203.0.113.1")).degraded == "open"
    listener.gate.close()
    freed = weakref.ref(listener)
    del listener
    gc.collect()
    assert freed() is None


def test_a_map_of_tiers_may_be_any_mapping(core: str) -> None:
    policy = read_policy(
        {
            "version": 1,
            "namespace": "shop",
            "identities": {"user": {"header": "X-User"}},
            "tiers": {"from": {"identity": "user"}, "map": {"17": "pro"}, "default": "free"},
            "rules": [{"name": "all", "by": ["ip"], "limits": {"free": "1/hour", "pro": "5/hour"}}],
        }
    )
    assert policy.tiers is not None
    proxied: Any = MappingProxyType(dict(policy.tiers.map or {}))
    store = MemoryStore(core=core)  # type: ignore[arg-type]
    gate = Gate(replace(policy, tiers=replace(policy.tiers, map=proxied)), store=store)
    limits = [gate.hit(Request(headers={"X-User": user})).limit for user in ("17", "pro")]
    assert limits == [5, 1]


def test_each_of_thousands_of_values_and_networks_matches_and_no_other(core: str) -> None:
    values = [f"v{number * 7919 % 3000}" for number in range(3000)]
    networks = [f"10.{number * 7919 % 3000 // 250}.{number * 7919 % 3000 % 250}.0/25" for number in range(3000)]
    gate = make_gate(
        core,
        rule("values", "9999999/hour", match={"header": {"X-Kind": values}}),
        rule("networks", "9999999/hour", match={"ip": [*networks, "10.0.0.0/16"]}),
    )
    for number in range(0, 3100, 31):
        kind = Request(headers={"X-Kind": f"v{number}"}, client_ip="203.0.113.9")
        assert names(gate.hit(kind)) == (["values"] if number < 3000 else [])
        for last, matches in ((127, number < 3000), (128, number < 250)):
            client = Request(client_ip=f"10.{number // 250}.{number % 250}.{last}")
            assert names(gate.hit(client)) == (["networks"] if matches else [])


class RequestOfAFramework:
    """An object with some of the attributes of a request."""

    method, path, headers = "GET", "/", {"host": "a.example"}


@pytest.mark.parametrize(
    "subject", [{"method": "GET"}, None, "GET /", RequestOfAFramework()], ids=["dict", "nothing", "text", "other"]
)
def test_an_object_that_is_not_a_request_is_an_error_that_shows_how_to_write_one(core: str, subject: Any) -> None:
    gate = make_gate(core, rule(), rule("own", by=["user"]), identities={"user": {"header": "X-User"}})
    message = r"a gate decides on a headgate.Request or a Descriptor, not on a .*: write Request\(method, path, "
    for call in (gate.hit, gate.peek, gate.reserve, gate.acquire):
        with pytest.raises(ArgumentError, match=message):
            call(subject)


def test_an_attribute_error_from_a_request_is_raised_unchanged(core: str) -> None:
    class Broken(Request):
        def header(self, name: str) -> str:
            raise AttributeError("a fault of the program")

    gate = make_gate(core, rule("own", by=["user"]), identities={"user": {"header": "X-User"}})
    with pytest.raises(AttributeError, match="a fault of the program"):
        gate.hit(Broken())
