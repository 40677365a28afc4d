"""A warning is certain: the limit that it names never refuses, or the rule that it names never applies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Gate, Limit, Limiter, Request, parse_limits
from headgate.observe.prometheus import NO_RULE
from headgate.policy import warnings as policy_warnings
from headgate.policy.load import check_policy
from headgate.policy.yaml_source import read_document
from headgate.testing import ManualClock


def warnings_about(*rules: str, more: str = "") -> list[str]:
    text = "version: 1\n" + more + "rules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)
    document = read_document(text, "p.yaml")
    return [str(warning) for warning in policy_warnings.warnings_of(document, check_policy(document))]


def limits(text: str) -> str:
    return f"name: a, by: [ip], limits: {text}"


REDUNDANT = [
    (
        "10/second; 10/second",
        '"10/second" is there twice: the second refuses nothing more, and costs a state of its own',
    ),
    ("10/second log; 10/second; 5/day counter", '"10/second" is there twice'),
    ("10/second; 1000/second", '"1000/second" never refuses: "10/second" refuses first'),
    ("1000/hour fixed; 10/hour fixed", '"1000/hour fixed" never refuses: "10/hour fixed" refuses first'),
    ("10/minute log; 600/hour log", '"600/hour log" never refuses: "10/minute" refuses first'),
    ("5/second burst 10; 10/second burst 20", '"10/second burst 20" never refuses: "5/second burst 10" refuses first'),
    ("0/second; 5/minute", '"5/minute" never refuses: "0/second" refuses first'),
]


def test_a_rule_with_the_name_that_metrics_use_for_no_rule_is_a_warning() -> None:
    [warning] = warnings_about("name: a, by: [ip], limits: 5/minute", f"name: {NO_RULE}, by: [ip], limits: 9/minute")
    assert f'rules[1].name: in metrics the rule "{NO_RULE}" stands for requests to which no rule applies' in warning


@pytest.mark.parametrize(("text", "message"), REDUNDANT, ids=[text for text, _ in REDUNDANT])
def test_a_limit_that_never_refuses_is_a_warning(text: str, message: str) -> None:
    warnings = warnings_about(limits(text))
    assert len(warnings) == 1
    assert warnings[0].startswith(f"rules[0].limits: {message}")


def test_a_limit_of_a_shadow_rule_would_never_refuse() -> None:
    [warning] = warnings_about("name: a, by: [ip], shadow: true, limits: 10/second; 1000/second")
    assert warning.endswith('"1000/second" would never refuse: "10/second" would refuse first')


@pytest.mark.parametrize(
    "text",
    ["10/second; 100/minute", "10/second burst 5; 20/second burst 3",
     "10/second log; 15/second fixed; 10/minute counter", "10/minute log; 599/hour log",
     "5/second queue 3; 5/second burst 3"],
)  # fmt: skip
def test_limits_that_may_refuse_are_no_warning(text: str) -> None:
    warnings = warnings_about(limits(text))
    assert all('"15/second fixed"' in warning for warning in warnings)


def test_a_rule_that_applies_to_no_request_is_a_warning() -> None:
    assert warnings_about(limits("5/day"), "name: b, by: [ip], limits: 1/day, default: true") == [
        "rules[1].default: never applies: it is a default, and a is for every request"
    ]
    exempt = "exempt: [{path: [/health, /ready]}, {path: /x, method: GET}]\n"
    matched = "name: b, by: [ip], limits: 1/day, match: {path: %s}"
    assert warnings_about(matched % "/health", more=exempt) == [
        "rules[0].match: never applies: exempt[0] exempts all requests that it matches"
    ]
    assert warnings_about(matched % "[/health, /other]", matched.replace("b,", "c,") % "/x", more=exempt) == []
    shadow = limits("5/day") + ", shadow: true"
    assert warnings_about(shadow, "name: b, by: [ip], limits: 1/day, default: true") == []


def test_a_default_of_a_ruleset_without_a_rule_for_all_is_no_warning() -> None:
    rules = limits("5/day"), "name: b, by: [ip], limits: 1/day, default: true"
    assert warnings_about(*rules, more="rulesets: {some: [b]}\n") == []
    assert len(warnings_about(*rules, more="rulesets: {some: [b, a]}\n")) == 1
    assert warnings_about(*rules, more="rulesets: {default: [b]}\n") == []


def test_an_exemption_of_paths_leaves_rules_for_descriptors() -> None:
    assert warnings_about(limits("5/day") + ", match: {entries: {user: true}}", more="exempt: [{path: /**}]\n") == []
    assert len(warnings_about(limits("5/day"), more="exempt: [{path: /**}]\n")) == 1


def test_entries_beside_conditions_of_requests_are_a_warning() -> None:
    both = "name: a, by: [ip], limits: 5/day, match: {entries: {user: true}, %s}"
    reason = "never applies: entries are of descriptors, and a descriptor has no %s"
    for condition, name in (("method: GET", "method"), ("path: /a", "path"), ("header: {A: b}", "header")):
        assert warnings_about(both % condition) == [f"rules[0].match: {reason % name}"]
    assert warnings_about(both % "ip: 10.0.0.0/8") == []
    assert warnings_about(limits("5/day"), more="exempt: [{entries: {user: true}, host: a.test}]\n") == [
        f"exempt[0]: {reason % 'host'}"
    ]


def test_a_shadow_rule_that_lets_requests_wait_is_a_warning() -> None:
    assert warnings_about(limits("5/day") + ", shadow: true, wait: 5s") == [
        "rules[0].wait: no request waits for it: a shadow rule refuses nothing"
    ]
    assert warnings_about(limits("5/day") + ", wait: 5s") == []


def test_a_path_parameter_in_the_syntax_of_other_programs_is_a_warning() -> None:
    assert warnings_about(limits("5/day") + ", match: {path: ['/a/:id', '/b/<int:user>/c', '/d/{id}']}") == [
        'rules[0].match.path: ":id" matches only itself: for any one segment write "{id}"',
        'rules[0].match.path: "<int:user>" matches only itself: for any one segment write "{user}"',
    ]


@pytest.mark.parametrize(
    ("one", "other", "covered"),
    [
        ("10/day in UTC", "10/day in UTC", True),
        ("10/day in UTC", "9/day in UTC", False),
        ("10/day in UTC", "10/day in Europe/Zurich", False),
        ("10/day in UTC", "310/month in UTC", True),
        ("10/day in UTC", "309/month in UTC", False),
        ("10/day in UTC", "70/week in UTC", True),
        ("10/month in UTC", "120/year in UTC", True),
        ("10/month in UTC", "10/day in UTC", True),
        ("10/month in UTC", "9/day in UTC", False),
        ("10/week in UTC", "1000/month in UTC", False),
        ("10/day in UTC", "1000/day fixed", False),
        ("10/minute burst 9 stepwise", "10/minute burst 20 stepwise", False),
        ("10/minute burst 9", "10/minute burst 9 stepwise", False),
        ("10/minute burst 9 stepwise", "20/minute burst 20", False),
        ("10/minute burst 0 stepwise", "20/minute burst 20", True),
    ],
)
def test_calendar_windows_may_cover_each_other_but_stepwise_limits_may_not(one: str, other: str, covered: bool) -> None:
    assert policy_warnings._covers(parse_limits(one)[0], parse_limits(other)[0]) is covered


KINDS = (" counter", " log", " fixed", " burst 3", " burst 5", " leaky 4", " queue 2")
LIMITS = [
    parse_limits(f"{count}/{period}{kind}")[0]
    for count in (1, 2, 3, 6, 101, 404)
    for period in ("2ms", "3ms", "4ms", "second")
    for kind in KINDS
]
COVERED = [(one, other) for one in LIMITS for other in LIMITS if policy_warnings._covers(one, other)]


@given(
    pair=st.sampled_from(COVERED),
    steps=st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 120)), max_size=60),
)
def test_a_covered_limit_refuses_nothing_that_the_covering_limit_admits(
    pair: tuple[Limit, Limit], steps: list[tuple[int, int]]
) -> None:
    clock = ManualClock()
    limiter = Limiter(list(pair), clock=clock)
    for after_us, cost in steps:
        clock.advance(after_us)
        first, second = limiter.hit("k", cost % 4 if cost < 100 else cost).limits
        assert second.allowed or not first.allowed


TIERED = "identities: {c: {header: X-C}}\ntiers: {from: {identity: c}, map: {'17': pro, '18': gold}, default: free}\n"


def test_a_tier_without_limits_in_any_rule_is_a_warning() -> None:
    rule = "name: a, by: [c], limits: {free: 1/minute, por: 2/minute, gold: 3/minute}"
    assert warnings_about(rule, "name: b, by: [c], limits: 9/day", more=TIERED) == [
        "tiers.map['17']: no rule has limits for the tier 'pro': its requests have those of 'free'; "
        "did you mean 'por'?",
        "rules[0].limits.por: no request has the tier 'por': tiers.map gives pro, gold, and free is the default; "
        "did you mean 'pro'?",
    ]


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        ("name: a, by: [c], limits: {free: 1/minute, pro: 2/minute, gold: 3/minute}", TIERED),
        ("name: a, by: [c], limits: 1/minute", TIERED),  # no rule has limits by tier yet
        (
            "name: a, by: [ip], limits: {free: 1/minute, por: 2/minute}",
            "tiers: {from: {header: X-Tier}, default: free}\n",  # which tiers the header names is not known
        ),
    ],
)
def test_tiers_that_requests_may_have_are_no_warning(rule: str, more: str) -> None:
    assert warnings_about(rule, more=more) == []


def test_a_tier_of_the_map_that_is_the_default_needs_no_limits_of_its_own() -> None:
    more = TIERED.replace("gold", "free")
    assert warnings_about("name: a, by: [c], limits: {free: 1/minute, pro: 2/minute}", more=more) == []


@pytest.mark.parametrize("network", ["0.0.0.0/0", "'::/0'"])
def test_trusted_proxies_that_cover_every_address_are_a_warning(network: str) -> None:
    more = f"client_ip: {{header: X-Forwarded-For, trusted_proxies: [10.0.0.0/8, {network}]}}\n"
    assert warnings_about(limits("5/day"), more=more) == [
        f"client_ip.trusted_proxies[1]: {network.strip(chr(39))} is every address: any client that sends "
        "X-Forwarded-For chooses the address that counts; name your proxies, or how many there are with trusted_hops"
    ]
    assert warnings_about(limits("5/day"), more=more.replace("]}", "], trusted_hops: 1}")) == []


def test_a_ruleset_without_rules_is_a_warning() -> None:
    more = "rulesets: {none: [], some: [a]}\n"
    assert warnings_about("name: a, by: [ip], limits: 5/day", more=more) == [
        "rulesets.none: has no rules: every request that is decided by it passes, and is not counted"
    ]


@pytest.mark.parametrize(
    ("trusted", "exempt", "named"),
    [
        ("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3", "10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/8", '[127.0.0.1, "::ffff:10.7.0.0/112"]', "10.7.0.0/16"),
        ('"fd00::/8"', '"fd00::1"', "fd00::1/128"),
        ("unix", "[unix, 10.0.0.1]", "unix"),
        ("10.0.0.0/8", '[10.9.0.1, "fd00::1"]', "10.9.0.1/32"),
    ],
)
def test_an_exemption_of_trusted_proxies_is_a_warning(trusted: str, exempt: str, named: str) -> None:
    more = f"client_ip: {{header: X-Forwarded-For, trusted_proxies: [{trusted}]}}\nexempt: [{{ip: {exempt}}}]\n"
    [warning] = warnings_about(limits("5/day"), more=more)
    assert warning.startswith(f"exempt[0].ip: {named} has trusted proxies in it: where X-Forwarded-For cannot be read")


@pytest.mark.parametrize(("trusted", "exempt"), [("10.1.0.0/16", "10.2.0.0/16"), ("10.0.0.0/8", '"fd00::/8"')])
def test_an_exemption_of_other_addresses_is_no_warning(trusted: str, exempt: str) -> None:
    more = f"client_ip: {{header: X-Forwarded-For, trusted_proxies: [{trusted}]}}\nexempt: [{{ip: {exempt}}}]\n"
    assert warnings_about(limits("5/day"), more=more) == []
    assert warnings_about(limits("5/day"), more=f"exempt: [{{ip: {exempt}}}]\n") == []


def test_a_client_gets_the_address_of_the_proxy_where_its_header_is_too_long_to_be_read() -> None:
    """This is the reason for the warning."""
    exempt = {"ip": ["10.0.0.0/8"]}
    trust = {"header": "X-Forwarded-For", "trusted_proxies": ["10.0.0.0/8"]}
    rule = {"name": "all", "by": ["ip"], "limits": "1/minute"}
    gate = Gate({"version": 1, "client_ip": trust, "rules": [rule], "exempt": [exempt]})
    padded = {"X-Forwarded-For": "x" * 5000 + ", 203.0.113.9"}
    assert gate.hit(Request(client_ip="10.0.0.1", headers=padded)).rule == ""
