"""A policy loads completely, or all problems are reported at once, each with its place and what would be right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.policy.load import build_policy, load_policy, parse_policy
from headgate.policy.policy_file import LARGEST_BYTES
from headgate.policy.problems import PolicyError
from headgate.policy.schema import policy_schema
from headgate.policy.yaml_source import read_document

SHOP = Path(__file__).parents[2] / "examples" / "shop.yaml"
RULE = {"name": "all", "by": ["ip"], "limits": "5/minute"}


def problems_of(text: str | bytes) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, source="p.yaml")
    return str(caught.value).split("\n")


def problem_with(change: dict[str, Any], rule: dict[str, Any] | None = None) -> str:
    """The only problem of a valid policy with one change."""
    policy = {"version": 1, "rules": [{**RULE, **(rule or {})}], **change}
    with pytest.raises(PolicyError) as caught:
        build_policy(policy)
    assert len(caught.value.problems) == 1, caught.value
    return str(caught.value.problems[0])


def test_the_example_policy_loads() -> None:
    policy = load_policy(SHOP)
    assert [rule.name for rule in policy.rules] == ["login", "search", "everyone", "candidate"]


def test_all_problems_are_reported_at_once_each_with_its_line_and_path() -> None:
    text = """\
version: 2
namespce: x
identities:
  user: {header: X User}
  caller: {first_of: [usr, caller]}
tiers: {from: {header: X-Tier}, default: gold}
rules:
  - name: a
    by: [usr, ip, ip]
    limits: {free: 10/fortnight, pro: 5}
    match: {path: api/**, method: get, hst: x}
  - name: a
    limits: 5/minute
    limits: 6/minute
    cost: 0
    shadow: yes
  - 5
exempt: [{}]
"""
    assert problems_of(text) == [
        "p.yaml:1:1: version: must be 1, not 2",
        "p.yaml:2:1: namespce: no such field; did you mean 'namespace'?",
        "p.yaml:4:10: identities.user.header: 'X User' is no name of a header",
        "p.yaml:5:23: identities.caller.first_of[0]: no identity is named 'usr'; did you mean 'user'?",
        "p.yaml:5:28: identities.caller.first_of[1]: 'caller' comes back to 'caller' itself",
        "p.yaml:9:10: rules[0].by[0]: no identity is named 'usr'; did you mean 'user'?",
        "p.yaml:9:19: rules[0].by[2]: 'ip' is there twice",
        "p.yaml:10:5: rules[0].limits: has no limits for the default tier 'gold'",
        'p.yaml:10:14: rules[0].limits.free: cannot read "10/fortnight": units are ms, second, minute, hour, day, week',
        "  10/fortnight",
        "     ^",
        'p.yaml:10:34: rules[0].limits.pro: must be text such as "100/minute", not 5',
        'p.yaml:11:13: rules[0].match.path: a path begins with "/", not \'a\': write "/api/**"',
        'p.yaml:11:27: rules[0].match.method: "get" is no method: methods are written GET, POST, DELETE',
        "p.yaml:11:40: rules[0].match.hst: no such field; did you mean 'host'?",
        "p.yaml:12:5: rules[1].by: is missing",
        "p.yaml:12:5: rules[1].name: rules[0] is named 'a' too: state is kept by name",
        "p.yaml:14:5: rules[1].limits: the field 'limits' is given twice, first in line 13",
        "p.yaml:15:5: rules[1].cost: must be at least 1, not 0",
        "p.yaml:16:5: rules[1].shadow: must be true or false, not 'yes'",
        "p.yaml:17:5: rules[2]: must be a map, not 5",
        "p.yaml:18:10: exempt[0]: needs a condition: an empty one would exempt every request",
    ]


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"version": "1"}, "version: must be 1, not '1'"),
    ({"namespace": "Shop"}, "namespace: a name is a lower-case letter"),
    ({"namespace": "limits"}, 'namespace: "limits" is where limiters without a policy count'),
    ({"namespace": "limiter"}, 'namespace: "limiter" is where limiters without a policy count'),
    ({"generation": 0}, "generation: must be at least 1, not 0"),
    ({"generation": True}, "generation: must be a whole number, not true"),
    ({"store": "redis+nonsense://user:hunter2@host"}, "store: a store is one of memory://"),
    ({"store": "memory://?max_keys=no"}, "store: the store option max_keys is a whole number, not 'no'"),
    ({"store": "memory://?on_full=maybe"}, "store: on_full is one of forget, refuse, pass, not 'maybe'"),
    ({"on_store_error": "panic"}, "on_store_error: must be 'local', 'open' or 'closed', not 'panic'"),
    ({"client_ip": {"header": "X-Forwarded-For"}}, "client_ip: header needs trusted_proxies"),
    ({"client_ip": {"trusted_proxies": ["10.0.0.0/8"]}}, "client_ip: header needs trusted_proxies"),
    (
        {"client_ip": {"header": "X-F", "trusted_proxies": ["10.0.0.1/8"]}},
        'client_ip.trusted_proxies[0]: a network is written as "10.0.0.0/8"',
    ),
    ({"exempt": [{"ip": "10.0.0.1/8"}]}, 'exempt[0].ip: a network is written as "10.0.0.0/8"'),
    ({"exempt": [{"ip": ["999.1.1.1"]}]}, 'exempt[0].ip: a network is written as "10.0.0.0/8"'),
    ({"exempt": [{"ip": []}]}, "exempt[0].ip: must be text or a list of texts, not an empty list"),
    ({"exempt": [{"ip": 5}]}, "exempt[0].ip: must be text or a list of texts, not 5"),
    *[
        ({"exempt": [{name: None}]}, f"exempt[0].{name}: must be text or a list of texts, not nothing")
        for name in ("method", "path", "host", "model", "ip")
    ],
    ({"exempt": [{"header": None}]}, "exempt[0].header: must be a map from names of headers to values, such as"),
    ({"exempt": [{"header": {}}]}, "exempt[0].header: must be a map from names of headers to values, such as"),
    ({"exempt": [{"header": {"X": []}}]}, "exempt[0].header.X: must be text or a list of texts, not an empty list"),
    ({"exempt": [{"ips": "10.0.0.0/8"}]}, "exempt[0].ips: no such field; did you mean 'ip'?"),
    (
        {"exempt": [{"<<": {"path": "/"}}]},
        "exempt[0].<<: no such field: << merges nothing here; write the fields out, or",
    ),
    ({"client_ip": {"header": "X-F", "trusted_proxies": [5]}}, "client_ip.trusted_proxies[0]: must be text"),
    ({"client_ip": {"ipv6_prefix": 129}}, "client_ip.ipv6_prefix: must be at most 128, not 129"),
    ({"identities": {"user": {}}}, "identities.user: an identity has exactly one source"),
    ({"identities": {"user": {"header": "a", "cookie": "b"}}}, "identities.user: an identity has exactly one source"),
    ({"identities": {"user": {"ip": {}, "secret": True}}}, "identities.user: secret is for the value of a header"),
    ({"identities": {"User": {"header": "a"}}}, "identities.User: a name is a lower-case letter"),
    ({"identities": {"ip": {"header": "a"}}}, "identities.ip: 'ip' is built in"),
    ({"identities": {"anonymous": {"header": "a"}}}, "identities.anonymous: 'anonymous' is built in"),
    ({"identities": {"repeated": {"header": "a"}}}, "identities.repeated: 'repeated' is built in"),
    (
        {"identities": {"a": {"first_of": ["b"]}, "b": {"first_of": ["c"]}, "c": {"first_of": ["ip", "b"]}}},
        "identities.b.first_of[0]: 'c' comes back to 'b' itself",
    ),
    ({"tiers": {"from": {}, "default": "free"}}, "tiers.from: a tier has exactly one source"),
    ({"tiers": {"from": {"header": "X-Tier"}}}, "tiers.default: is missing"),
    ({"tiers": {"from": {"identity": "ip"}, "default": "a"}}, "tiers: a tier from an identity needs map"),
    ({"tiers": {"from": {"identity": "usr"}, "default": "a", "map": {}}}, "tiers.from.identity: no identity is named"),
    ({"rules": []}, "rules: must be a list of at least 1, not an empty list"),
    ({"rules": {}}, "rules: must be a list, not a map"),
    ({"exempt": {"path": "/"}}, "exempt: must be a list, not a map"),
    ({"rulesets": {"a": ["al"]}}, "rulesets.a[0]: no rule is named 'al'; did you mean 'all'?"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[message for _, message in CHANGES])
def test_a_problem_names_the_place_the_value_and_what_would_be_right(change: dict[str, Any], message: str) -> None:
    if "first_of" in str(change):
        with pytest.raises(PolicyError) as caught:
            build_policy({"version": 1, "rules": [RULE], **change})
        assert message in str(caught.value)
    else:
        assert problem_with(change).startswith(message)


def test_names_that_are_not_text_are_reported_beside_an_unknown_name() -> None:
    values: Any = {"identities": {"user": {"header": "a"}, 7: {"header": "b"}}}
    with pytest.raises(PolicyError) as caught:
        build_policy({"version": 1, "rules": [{**RULE, "by": ["usr"]}], **values})
    assert "rules[0].by[0]: no identity is named 'usr'; did you mean 'user'?" in str(caught.value)
    assert "identities[7]: must be text, not 7" in str(caught.value)


def test_no_message_shows_a_password() -> None:
    assert "hunter2" not in problem_with({"store": "redis+nonsense://user:hunter2@host"})


RULE_CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"name": "A"}, "rules[0].name: a name is a lower-case letter"),
    ({"name": "x" * 65}, "rules[0].name: a name is a lower-case letter"),
    ({"by": "ip"}, "rules[0].by: must be a list, not 'ip'"),
    ({"by": ["user"]}, "rules[0].by[0]: no identity is named 'user'"),
    ({"limits": 5}, 'rules[0].limits: must be text such as "100/minute", or a map from tier to text'),
    ({"limits": {}}, 'rules[0].limits: must be text such as "100/minute", or a map from tier to text'),
    ({"limits": {"free": "5/minute"}}, "rules[0].limits: limits by tier need tiers"),
    ({"limits": ""}, 'rules[0].limits: cannot read "": expected a number'),
    ({"cost": 1.5}, "rules[0].cost: must be a whole number, not 1.5"),
    ({"cost": -1}, "rules[0].cost: must be at least 1, not -1"),
    ({"missing": "pass"}, "rules[0].missing: must be 'anonymous' or 'refuse', not 'pass'"),
    ({"match": []}, "rules[0].match: must be a map, not an empty list"),
    ({"match": {"method": []}}, "rules[0].match.method: must be text or a list of texts"),
    ({"match": {"method": ["GET", 5]}}, "rules[0].match.method: must be text or a list of texts, not a list with 5"),
    ({"match": {"path": ""}}, 'rules[0].match.path: a path begins with "/"'),
    ({"match": {"path": "/a/**/b"}}, 'rules[0].match.path: "**" stands for all that follows'),
    ({"match": {"path": "/a/{id"}}, 'rules[0].match.path: cannot read the segment "{id"'),
    ({"match": {"path": "/a/{}/b"}}, 'rules[0].match.path: cannot read the segment "{}"'),
    ({"match": {"path": "/a/*.html"}}, 'rules[0].match.path: cannot read the segment "*.html"'),
    ({"match": {"path": "/{id}/{id}"}}, 'rules[0].match.path: "{id}" is there twice'),
    ({"match": {"path": "/a/../b"}}, 'rules[0].match.path: ".." never matches'),
    ({"match": {"path": "/a?b=1"}}, 'rules[0].match.path: a path ends before "?"'),
    ({"match": {"path": "/" + "a" * 2000}}, "rules[0].match.path: a path has at most 1024 characters"),
    ({"match": {"host": "Example.com"}}, 'rules[0].match.host: "Example.com" is no host'),
    ({"match": {"host": "example.com:80"}}, "rules[0].match.host"),
    ({"match": {"header": {"X Y": "1"}}}, "rules[0].match.header.X Y: 'X Y' is no name of a header"),
    ({"match": {"path": None}}, "rules[0].match.path: must be text or a list of texts, not nothing"),
    ({"match": {"header": {"X": 5}}}, "rules[0].match.header.X: must be text, a list of texts, or true for any value"),
    ({"match": {"header": {5: "a"}}}, "rules[0].match.header"),
    ({"match": {"header": {"X": False}}}, "rules[0].match.header.X: must be text, a list of texts, or true for any"),
    ({"match": {"header": {"X": "gold "}}}, "rules[0].match.header.X: 'gold ' never matches"),
    ({"match": {"header": {"X-A": "a", "x_a": "b"}}}, "rules[0].match.header.x_a: is the header 'X-A' again"),
]


@pytest.mark.parametrize(("change", "message"), RULE_CHANGES, ids=[message for _, message in RULE_CHANGES])
def test_a_problem_of_a_rule_names_its_place(change: dict[str, Any], message: str) -> None:
    assert problem_with({}, change).replace("['X Y']", ".X Y").startswith(message)


EMPTY = [
    ("on_store_error:", "p.yaml:2:1: on_store_error: has no value: write one, or leave the field out"),
    ("tiers:", "p.yaml:2:1: tiers: has no value"),
    ("llm: ~", "p.yaml:2:1: llm: has no value"),
    ("llm: {webhook: }", "p.yaml:2:7: llm.webhook: has no value"),
    ("client_ip: {trusted_hops: }", "p.yaml:2:13: client_ip.trusted_hops: has no value"),
    ("identities: {u: {header: X-U, cookie: }}", "p.yaml:2:31: identities.u.cookie: has no value"),
    ("tiers: {from: {header: X-T}, map: , default: a}", "p.yaml:2:30: tiers.map: has no value"),
    ("rules: [{name: a, by: [], limits: 5/s, match: }]", "p.yaml:2:40: rules[0].match: has no value"),
    ("rules: [{name: a, by: [], limits: 5/s, warn: }]", "p.yaml:2:40: rules[0].warn: has no value"),
    ("rules: [{name: a, by: [], limits: 5/s, hold: }]", "p.yaml:2:40: rules[0].hold: has no value"),
    ("rules: [{name: a, by: [], limits: 5/s, at_end: }]", "p.yaml:2:40: rules[0].at_end: has no value"),
    ("rules: [{name: a, by: [], limits: 5/s, on_store_error: null}]", "p.yaml:2:40: rules[0].on_store_error: has no"),
    ("rules: [{name: a, by: [], limits: 5/s, cost: }]", "p.yaml:2:40: rules[0].cost: must be a whole number, not"),
]


@pytest.mark.parametrize(("text", "message"), EMPTY)
def test_a_field_without_a_value_is_reported_once(text: str, message: str) -> None:
    rules = "" if text.startswith("rules") else "\nrules: [{name: all, by: [ip], limits: 5/minute}]"
    (problem,) = problems_of(f"version: 1\n{text}{rules}")
    assert problem.startswith(message)


def test_a_tier_without_a_limit_is_reported_in_the_words_of_the_file() -> None:
    tiers = {"tiers": {"from": {"header": "X-Tier"}, "default": "free"}}
    assert problem_with(tiers, {"limits": {"free": None}}).endswith('must be text such as "100/minute", not nothing')


def test_the_schema_lets_no_field_be_null() -> None:
    assert '"null"' not in json.dumps(policy_schema())


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "\n".join(
    f"{name}: &{name} [{','.join(['*' + before] * 10)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)

UNREADABLE: list[tuple[str | bytes, str]] = [
    ("", "p.yaml: the policy is empty; it begins with version: 1"),
    ("# only a comment\n", "p.yaml: the policy is empty"),
    ("null", "p.yaml:1:1: a policy is a map that begins with version: 1, not nothing"),
    ("- 1", "p.yaml:1:1: a policy is a map that begins with version: 1, not a list"),
    ("version: 1\nrules: [", "this is not YAML: while parsing a flow node"),
    ("version: 1\n  rules: []", "p.yaml:2:8: this is not YAML: mapping values are not allowed"),
    ("a: 1\n---\nb: 2", "p.yaml:2:1: a policy is one document"),
    (b"version: 1\n# \xff", "p.yaml:2:3: a policy is UTF-8 text: byte 13 is 0xff"),
    ("a: 1\nb: é\x01", "p.yaml:2:5: the text holds U+0001, a control character: write it without"),
    ("a: \x9f", "p.yaml:1:4: the text holds U+009F, a control character: write it without"),
    ("[" * 5000, "p.yaml:1:66: [0]: nested deeper than 64 levels"),
    ("a: " * 100, "p.yaml:1:5: this is not YAML"),
    ("a: &x [*x]", "p.yaml:1:8: a[0]: the alias *x names nothing that is complete here"),
    ("a: *b", "p.yaml:1:4: a: the alias *b names nothing"),
    ("? [a]\n: b", "p.yaml:1:3: the name of a field is text"),
    ("x: !!python/object/apply:os.system [ls]", "p.yaml:1:4: x: the tag !!python/object/apply:os.system means nothing"),
    ("x: !!binary aGVsbG8=", "p.yaml:1:4: x: the tag !!binary means nothing here"),
    ("rules: !!set {a, b}", "p.yaml:1:8: rules: the tag !!set means nothing here"),
    ("version: true", "p.yaml:1:1: version: must be 1, not true"),
    (f"version: {10**30}", f"p.yaml:1:1: version: must be 1, not {10**30}"),
    ("x: !custom 5", "p.yaml:1:4: x: the tag !custom means nothing here"),
    (BOMB, "unfolds into more than 100000 values"),
    ("x" * (LARGEST_BYTES + 1), f"p.yaml: a policy has at most {LARGEST_BYTES} bytes"),
    (b"\xef\xbb\xbfversion: 3\nrules: [" + b"{name: a, by: [], limits: 1/s}]", "p.yaml:1:1: version: must be 1, not 3"),
]


@pytest.mark.parametrize(("text", "message"), UNREADABLE, ids=[message for _, message in UNREADABLE])
def test_a_text_that_is_no_policy_is_refused_with_its_place(text: str | bytes, message: str) -> None:
    assert message in "\n".join(problems_of(text))


def test_a_tag_of_yaml_says_what_a_value_is() -> None:
    text = "version: !!int 1\nrules: !!seq [{name: !!str a, by: [ip], limits: !!str 5/minute, shadow: !!bool true}]"
    assert parse_policy(text).rules[0].shadow


HALVES: list[tuple[dict[str, Any], str]] = [
    ({"name": "\ud800"}, "rules[0].name"),
    ({"by": ["\ud800"]}, "rules[0].by[0]"),
    ({"limits": "5/minute\udfff"}, "rules[0].limits"),
    ({"match": {"path": "/\ud800"}}, "rules[0].match.path"),
    ({"match": {"path": ["/a", "/\ud800"]}}, "rules[0].match.path[1]"),
    ({"match": {"method": "\ud800"}}, "rules[0].match.method"),
    ({"match": {"header": {"X": "\ud800"}}}, "rules[0].match.header.X"),
    ({"match": {"header": {"X\ud800": "a"}}}, "rules[0].match.header['X\\ud800']"),
    ({"\ud800": 1}, "rules[0]['\\ud800']"),
    ({"match": {"path": "/a\x00b"}}, "rules[0].match.path"),
    ({"match": {"header": {"X": "a\x1b[31m"}}}, "rules[0].match.header.X"),
]


@pytest.mark.parametrize(("change", "path"), HALVES, ids=[path for _, path in HALVES])
def test_a_lone_surrogate_or_a_control_character_is_a_problem_with_its_path(change: dict[str, Any], path: str) -> None:
    problem = problem_with({}, change)
    assert problem.startswith(f"{path}: the ")
    assert "a lone surrogate: write it without" in problem or "a control character: write it without" in problem


@pytest.mark.parametrize("name", [None, True, 7, ("a", "b")])
def test_a_name_that_is_no_text_is_a_problem_wherever_it_is(name: Any) -> None:
    tiers = {"tiers": {"from": {"header": "X-Tier"}, "default": "free"}}
    rest = f"[{name}]: must be text, not "
    assert problem_with(tiers, {"limits": {"free": "5/minute", name: "9/minute"}}).startswith(f"rules[0].limits{rest}")
    assert problem_with({}, {"match": {"header": {name: "a"}}}).startswith(f"rules[0].match.header{rest}")
    assert problem_with({}, {name: 1}).startswith(f"rules[0]{rest}")


ESCAPES = [
    ('rules: [{name: a, by: [ip], limits: 1/s, match: {path: "/\\ud800"}}]', "p.yaml:1:60: rules[0].match.path: the"),
    ('rules: [{name: a, by: [ip, "\\uDC00"], limits: 1/s}]', "p.yaml:1:31: rules[0].by[1]: the text"),
    ('store: "redis://\\udfff/"', "p.yaml:1:19: store: the text holds an escape that is no character"),
    ('"\\ud800": 1', "p.yaml:1:4: ['\ufffd']: the text holds an escape"),
    ('store: "\\0"', "p.yaml:1:1: store: the text holds U+0000, a control character: write it without"),
    ('"\\0": 1', "p.yaml:1:1: ['\\x00']: the name of a field holds U+0000"),
    ("store: \ud800", r"p.yaml:1:8: a policy is UTF-8 text: '\ud800' is half a character"),
    ("rules:\n\t- name: a", "p.yaml:2:1: this is not YAML: while scanning for the next token, found character that "
     "cannot start any token: indent with spaces, not with tabs"),
    ("version: 1".encode("utf-16"), "p.yaml:1:1: a policy is UTF-8 text: this is UTF-16"),
    ("version: 1".encode("utf-16-be"), "p.yaml:1:1: the text holds U+0000, a control character: write it without"),
    ("version: 1".encode("utf-32"), "p.yaml:1:1: a policy is UTF-8 text: this is UTF-32"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), ESCAPES, ids=[message for _, message in ESCAPES])
def test_an_escape_that_is_no_character_is_a_problem_with_its_place(text: str | bytes, message: str) -> None:
    assert problems_of(text)[0].startswith(message)


def test_values_nested_too_deep_or_in_themselves_are_a_problem() -> None:
    policy: dict[str, Any] = {"version": 1}
    policy["rules"] = [policy]
    with pytest.raises(PolicyError, match="rules: nested deeper than 64 levels"):
        build_policy(policy)


def test_a_message_of_very_many_problems_is_short_and_the_problems_are_all_there() -> None:
    with pytest.raises(PolicyError) as caught:
        build_policy({"version": 1, "rules": [5] * 1000})
    assert len(caught.value.problems) == 1000
    assert str(caught.value).splitlines()[-2:] == [
        "policy: rules[199]: must be a map, not 5",
        "policy: 800 more problems",
    ]


def test_a_file_without_an_end_is_read_no_further_than_a_policy_may_go() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
    load = "from headgate.policy.load import load_policy; load_policy('/dev/zero')"
    ended = subprocess.run([sys.executable, "-c", limit + load], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1].endswith(
        f"/dev/zero: a policy has at most {LARGEST_BYTES} bytes, and this has more"
    )


def test_a_directory_is_an_os_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        load_policy(tmp_path)


@given(text=st.one_of(st.text(st.characters(), max_size=200), st.binary(max_size=200)))
def test_any_text_is_a_policy_or_a_policy_error(text: str | bytes) -> None:
    with pytest.raises(PolicyError):
        parse_policy(text)


@given(
    value=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters())), st.lists, max_leaves=9
    )
)
def test_any_value_in_any_place_is_refused_or_fits(value: Any) -> None:
    for field in ("version", "store", "client_ip", "identities", "tiers", "rules", "exempt", "rulesets"):
        assert loads_or_tells({"version": 1, "rules": [RULE], field: value})
    for field in ("name", "match", "by", "limits", "cost", "missing", "default", "shadow", "on_store_error"):
        assert loads_or_tells({"version": 1, "rules": [{**RULE, field: value}]})


def test_a_cost_that_can_never_pass_is_a_problem_and_a_limit_of_zero_is_not() -> None:
    limits = {"free": "60/hour burst 10; 100/minute", "pro": "1000/hour"}
    policy = {"version": 1, "tiers": {"from": {"header": "X-Tier"}, "default": "free"}}
    with pytest.raises(PolicyError) as caught:
        build_policy({**policy, "rules": [{**RULE, "limits": limits, "cost": 20}]})
    problems = [(problem.path, problem.message) for problem in caught.value.problems]
    assert problems == [(("rules", 0, "cost"), 'can never pass limits.free: "60/hour burst 10" admits 10 at most')]
    build_policy({"version": 1, "rules": [{**RULE, "limits": "0/minute", "cost": 20}]})


@pytest.mark.parametrize("digits", [100, 3000, 100_000])
def test_a_number_of_very_many_digits_is_reported_as_what_it_is(digits: int) -> None:
    long = "9" * digits
    rule = f"{{name: all, by: [ip], cost: {long}, limits: 5/minute}}"
    assert problems_of(f"version: -{long}\nmax_waiting: {long}\nrules: [{rule}]\n") == [
        "p.yaml:1:1: version: must be 1, not a negative number of more than 60 digits",
        "p.yaml:2:1: max_waiting: must be at most 1000000, not a number of more than 60 digits",
        "p.yaml:3:31: rules[0].cost: must be at most 1000000000, not a number of more than 60 digits",
    ]
    number = 10**digits
    assert problem_with({}, {"cost": number}).endswith("at most 1000000000, not a number of more than 60 digits")
    assert problem_with({}, {"by": number}) == "rules[0].by: must be a list, not a number of more than 60 digits"


def test_a_float_of_very_many_digits_is_not_reported_as_infinite() -> None:
    assert problems_of("version: 1e999\nrules: []\n")[0].endswith("not a number of more than 308 digits")


def test_a_key_of_too_many_parts_is_a_problem() -> None:
    headers = {f"h{number}": {"header": f"H{number}"} for number in range(9)}
    nested = {"inner": {"first_of": ["h0", "ip"]}, "outer": {"first_of": ["inner", "h1"]}}
    policy = {"version": 1, "identities": {**headers, **nested}}
    build_policy({**policy, "rules": [{**RULE, "by": [*list(headers)[:5], "outer", "method"]}]})
    for by, parts in ((list(headers), 18), ([*list(headers)[:5], "outer", "inner", "method"], 17)):
        with pytest.raises(PolicyError) as caught:
            build_policy({**policy, "rules": [{**RULE, "by": by}]})
        problems = [(problem.path, problem.message) for problem in caught.value.problems]
        assert problems == [(("rules", 0, "by"), f"makes a key of up to {parts} parts, which has 16 at the most")]


def loads_or_tells(policy: dict[str, Any]) -> bool:
    try:
        build_policy(policy)
    except PolicyError as error:
        return bool(error.problems)
    return True


def test_words_that_yaml_once_took_for_true_are_text() -> None:
    value = read_document("a: NO\nb: 12:30\nc: 0x1F\nd: 1_000\ne: on\nf: ~\ng: 'true'\nh: 2.5\ni: -3", "x").value
    assert value == {
        "a": "NO", "b": "12:30", "c": "0x1F", "d": "1_000", "e": "on", "f": None, "g": "true", "h": 2.5, "i": -3,
    }  # fmt: skip


def test_an_alias_stands_for_what_it_names() -> None:
    policy = parse_policy(
        "version: 1\nrules:\n  - {name: a, by: [ip], limits: &l 5/minute}\n  - {name: b, by: [ip], limits: *l}\n"
    )
    assert policy.rules[0].limits == policy.rules[1].limits


def test_json_is_a_policy_too() -> None:
    assert parse_policy(json.dumps({"version": 1, "rules": [RULE]})).rules[0].name == "all"


def test_the_schema_takes_what_loads_and_refuses_what_is_misspelt() -> None:
    schema = policy_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = read_document(SHOP.read_bytes(), "shop").value
    assert list(validator.iter_errors(good)) == []
    for bad in ({**good, "rulez": []}, {**good, "version": 2}, {"version": 1}):
        assert list(validator.iter_errors(bad))
    without: list[dict[str, Any]] = [{"path": None}, {"header": None}, {"header": {}}, {"ip": None}]
    for nothing in without:
        assert list(validator.iter_errors({**good, "exempt": [nothing]}))
    good["rules"][0]["limits"] = 5
    assert list(validator.iter_errors(good))


@pytest.mark.parametrize(
    ("wait", "message"),
    [
        (500, 'must be a time such as "500ms" or "2s", not 500'),
        (True, 'must be a time such as "500ms" or "2s", not true'),
        ("0ms", "must be above 0, not '0ms': a rule without wait refuses at once"),
        ("-1s", "must be above 0, not '-1s': a rule without wait refuses at once"),
        ("61 minutes", "must be at most an hour, not '61 minutes'"),
        ("2 weeks", "must be at most an hour, not '2 weeks'"),
        ("1/fortnight", "units are ms, second, minute, hour, day, week"),
        ("", "units are ms, second, minute, hour, day, week"),
    ],
)
def test_the_error_for_an_invalid_wait_shows_a_valid_one(wait: object, message: str) -> None:
    problem = problem_with({}, {"wait": wait})
    assert problem.startswith("rules[0].wait: ") and message in problem


@pytest.mark.parametrize(("wait", "us"), [("500ms", 500_000), ("2s", 2_000_000), ("1 hour", 3_600_000_000)])
def test_a_wait_is_a_time_as_elsewhere(wait: str, us: int) -> None:
    assert build_policy({"version": 1, "rules": [{**RULE, "wait": wait}]}).rules[0].wait == us


@pytest.mark.parametrize("most", [0, -1, 1_000_001, "many", True])
def test_an_invalid_max_waiting_is_reported(most: object) -> None:
    assert "max_waiting" in problem_with({"max_waiting": most})
