"""Descriptor entries are a subject: the entries from gateways are matched and counted, and none of them pass free."""

from __future__ import annotations

import asyncio
import copy
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ArgumentError, AsyncGate, Descriptor, Gate, PolicyError, Request, core
from headgate.policy.entries import entries_of_text, entries_text, is_like
from headgate.policy.gate import read_policy
from headgate.policy.lookup import find_keys
from headgate.policy.subject import REPEATED, Subject
from headgate.testing import ManualClock

ROOT = Path(__file__).parents[2]
TEXT = st.text(alphabet="ab=&%*26|é", max_size=6)
ENTRIES = st.lists(st.tuples(TEXT.filter(bool), TEXT), min_size=1, max_size=4)


def policy(**rule: Any) -> dict[str, Any]:
    identities = {
        "user": {"entry": "user"},
        "token": {"entry": "token", "secret": True},
        "descriptor": {"entries": "all"},
    }
    return {"version": 1, "identities": identities, "rules": [{"name": "r", "by": [], "limits": "1/minute"} | rule]}


def applies(match: object, *entries: tuple[str, str]) -> bool:
    """Whether a rule with these entries applies to a descriptor."""
    gate = Gate(policy(match={"entries": match}), clock=ManualClock(0))
    decision = gate.peek(Descriptor(entries))
    return bool(decision.limits)


def key(by: str, *entries: tuple[str, str]) -> Any:
    gate = Gate(policy(by=[by]), clock=ManualClock(0))
    return gate.resolver.resolve(Descriptor(entries), 1, "default")[1].keys[0]


def test_a_descriptor_is_built_from_pairs_or_a_mapping_and_is_immutable() -> None:
    descriptor = Descriptor({"generic_key": "api", "user": ""})
    assert descriptor == Descriptor([("generic_key", "api"), ("user", "")]) == Descriptor(iter(descriptor.entries))
    assert hash(descriptor) == hash(Descriptor(descriptor.entries))
    assert descriptor != Descriptor([("user", ""), ("generic_key", "api")])
    assert pickle.loads(pickle.dumps(descriptor)) == copy.deepcopy(descriptor) == descriptor
    for change in ("entries", "path", "other"):
        with pytest.raises((FrozenInstanceError, TypeError, AttributeError)):
            setattr(descriptor, change, ())
    assert repr(Descriptor({"token": "hunter2"})) == "Descriptor(token)"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "a descriptor has 1 to 256 entries, not 0"),
        ({}, "a descriptor has 1 to 256 entries, not 0"),
        ([("a", "b")] * 257, "a descriptor has 1 to 256 entries, not 257"),
        ([("", "b")], "a key of a descriptor's entries is empty"),
        ([("a", 7)], "keys and values of a descriptor's entries are text"),
        ([("a", None)], "keys and values of a descriptor's entries are text"),
        ([(b"a", "b")], "keys and values of a descriptor's entries are text"),
        ([7], "keys and values of a descriptor's entries are text"),
        (7, "keys and values of a descriptor's entries are text"),
        (["abc"], "entries of a descriptor are a mapping, or pairs of a key and a value"),
        ([("a", "b", "c")], "entries of a descriptor are a mapping, or pairs of a key and a value"),
    ],
)
def test_invalid_entries_are_an_error_that_shows_no_value(entries: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Descriptor(entries)
    assert str(caught.value).startswith(message)


def test_a_descriptor_has_no_field_of_a_request_except_an_address() -> None:
    subject: Subject = Descriptor({"remote_address": "203.0.113.9", "path": "/a", "method": "GET", "cookie": "a=b"})
    assert (subject.method, subject.path, subject.host, subject.endpoint, dict(subject.headers)) == ("", "", "", "", {})
    assert [subject.header("path"), subject.cookie("a"), subject.query("a"), subject.attribute("path")] == [""] * 4
    assert subject.client_ip == "203.0.113.9"
    assert Descriptor([("remote_address", "::1"), ("remote_address", "::2")]).client_ip == ""
    assert Request("GET", "/?a=b", headers={"a": "b"}).entry("a") == ""
    assert Request().entries == ()


def test_an_entry_with_several_values_has_none_of_them() -> None:
    subject = Descriptor([("a", "1"), ("a", "1"), ("a", ""), ("b", "1"), ("b", "2"), ("c", "")])
    assert (subject.entry("a"), subject.entry("b"), subject.entry("c"), subject.entry("A")) == ("1", REPEATED, "", "")


def test_a_map_matches_descriptors_with_these_entries_in_any_order_and_perhaps_others() -> None:
    match = {"generic_key": "api", "user": True}
    assert applies(match, ("user", ""), ("x", "y"), ("generic_key", "api"))
    assert not applies(match, ("generic_key", "api"))
    assert not applies(match, ("generic_key", "apis"), ("user", "7"))
    assert applies({"a": ["b", "c"]}, ("a", "c"))
    assert applies({"a": ""}, ("a", "")) and not applies({"a": ""}, ("b", ""))
    assert applies({"a": "c"}, ("a", "b"), ("a", "c"))


def test_a_list_matches_the_descriptor_with_exactly_these_entries_in_this_order() -> None:
    match = [{"key": "generic_key", "value": "api"}, {"key": "generic_key"}]
    assert applies(match, ("generic_key", "api"), ("generic_key", "anything"))
    assert not applies(match, ("generic_key", "anything"), ("generic_key", "api"))
    assert not applies(match, ("generic_key", "api"))
    assert not applies(match, ("generic_key", "api"), ("generic_key", "x"), ("user", "7"))
    assert not applies(match, ("generic_key", "api"), ("user", "7"))


def test_an_exception_leaves_values_to_another_rule_as_envoys_lookup_does() -> None:
    wanted: dict[str, dict[str, Any]] = {
        "exact": {"value": "bob"},
        "wild": {"value": "b*", "except": "bob"},
        "bare": {"except": ["bob", "b*"]},
    }
    rules = [
        {"name": name, "by": ["descriptor"], "limits": "1/minute", "match": {"entries": [{"key": "user", **more}]}}
        for name, more in wanted.items()
    ]
    gate = Gate(policy() | {"rules": rules}, clock=ManualClock(0))
    rule_of = {user: gate.hit(Descriptor({"user": user})).rule for user in ("bob", "bobby", "ann", "")}
    assert rule_of == {"bob": "exact", "bobby": "wild", "ann": "bare", "": "bare"}


@given(pattern=st.text("ab*", max_size=8), text=st.text("ab", max_size=8))
def test_a_star_matches_any_text(pattern: str, text: str) -> None:
    def matches(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return matches(pattern[1:], text) or (bool(text) and matches(pattern, text[1:]))
        return bool(text) and pattern[0] == text[0] and matches(pattern[1:], text[1:])

    assert is_like(pattern, text) == matches(pattern, text)
    if pattern:
        assert applies({"a": pattern}, ("a", text)) == matches(pattern, text)


def test_a_pattern_that_nearly_matches_everywhere_is_still_fast() -> None:
    assert not is_like("*a" * 200 + "*b*", "a" * 100_000)


@given(one=ENTRIES, other=ENTRIES)
def test_different_entries_are_different_keys(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    assert (entries_text(one) == entries_text(other)) == (one == other)
    assert entries_of_text(entries_text(one)) == one
    assert (key("descriptor", *one) == key("descriptor", *other)) == (one == other)


def test_a_missing_an_empty_and_a_repeated_entry_are_counted_or_refused() -> None:
    strict = Gate(policy(by=["user"], missing="refuse", repeated="refuse", limits="9/minute"), clock=ManualClock(0))
    for entries in ([("a", "b")], [("user", "")], [("user", "1"), ("user", "2")], [("User", "1")]):
        assert key("user", *entries)[0] in ("anonymous", "repeated")
        decision = strict.hit(Descriptor(entries))
        assert not decision.allowed and decision.retry_after_us is None
    assert strict.hit(Descriptor([("user", "1"), ("user", "1")]))


def test_a_secret_entry_is_its_digest_and_a_list_of_secrets_is_repeated() -> None:
    (digest,) = key("token", ("token", "hunter2"))
    assert "hunter2" not in digest and len(digest) == 32
    assert key("token", ("token", "a,b")) == ("repeated", "token")


@pytest.mark.parametrize("native", [True, False])
def test_rules_without_conditions_apply_to_requests_and_descriptors_and_others_only_to_their_kind(native: bool) -> None:
    rules: list[dict[str, Any]] = [
        {"name": "both", "by": ["ip"], "limits": "9/minute"},
        {"name": "entries", "by": [], "match": {"entries": {"user": True}}, "limits": "9/minute"},
        {"name": "path", "by": [], "match": {"path": "/**"}, "limits": "9/minute"},
        {"name": "method", "by": [], "match": {"method": "GET"}, "limits": "9/minute"},
    ]
    gate = Gate({"version": 1, "rules": rules}, clock=ManualClock(0))
    if not native:
        gate._decide_by(gate.resolver, None)

    def named(subject: Subject) -> list[str]:
        return [limit.rule for limit in gate.hit(subject).definitions]

    assert named(Descriptor({"user": "7"})) == ["both", "entries"]
    assert named(Request("GET", "/")) == ["both", "path", "method"]


def test_a_descriptor_without_an_address_is_not_the_peer_of_a_unix_socket() -> None:
    gate = Gate(policy() | {"exempt": [{"ip": "unix"}]}, clock=ManualClock(0))
    assert not gate.hit(Request()).limits
    for entries in ([("user", "7")], [("remote_address", "unix")], [("remote_address", "")]):
        for decide in (gate.hit, lambda subject: gate.resolver.decide(subject, 1, "default", True)):
            assert decide(Descriptor(entries)).limits


def test_a_ruleset_stands_for_a_domain() -> None:
    rules: list[dict[str, Any]] = [{"name": name, "by": [], "limits": "1/minute"} for name in ("edge", "mesh")]
    rulesets = {"edge.example": ["edge"], "mesh": ["mesh"]}
    gate = Gate({"version": 1, "rules": rules, "rulesets": rulesets}, clock=ManualClock(0))
    assert gate.hit(Descriptor({"a": "b"}), ruleset="edge.example").rule == "edge"
    assert gate.hit(Descriptor({"a": "b"}), ruleset="mesh").rule == "mesh"


class LowerCaseDescriptor(Descriptor):
    """Another kind of descriptor, which reads its entries in its own way."""

    __slots__ = ()

    def entry(self, key: str) -> str:
        return super().entry(key).lower()


def test_a_subclass_is_read_by_its_own_methods() -> None:
    gate = Gate(policy(by=["user"]), clock=ManualClock(0))
    assert gate.hit(LowerCaseDescriptor({"user": "ANN"}))
    assert not gate.hit(Descriptor({"user": "ann"}))
    if core.native is not None:
        assert gate._native.resolve(LowerCaseDescriptor({"user": "ANN"}), 1, "default") is None
        assert gate._native.resolve(Descriptor({"user": "ANN"}), 1, "default") is not None


def test_all_calls_of_a_gate_take_a_descriptor() -> None:
    ann = Descriptor({"user": "ann"})
    gate = Gate(policy(by=["user"], limits="3/minute bucket"), clock=ManualClock(0))
    assert gate.peek(ann, 3) and gate.hit(ann, 1) and not gate.peek(ann, 3)
    assert gate.acquire(ann)
    with gate.reserve(ann) as reservation:
        reservation.commit(0)
    assert gate.hit(ann) and not gate.hit(ann)

    async def all_awaited() -> list[bool]:
        gate = AsyncGate(policy(by=["user"], limits="3/minute bucket"), clock=ManualClock(0))
        decision: Any = gate.ask(ann, 1)
        decisions = [decision.allowed, bool(await gate.hit(ann)), bool(await gate.acquire(ann))]
        return [*decisions, bool(await gate.peek(ann))]

    assert asyncio.run(all_awaited()) == [True, True, True, False]


BAD: list[tuple[Any, str]] = [
    ({"match": {"entries": {}}}, "rules[0].match.entries: must be a map from keys to values, such as {user: true}, or"),
    ({"match": {"entries": []}}, "rules[0].match.entries: must be a map from keys to values"),
    ({"match": {"entries": "user"}}, "rules[0].match.entries: must be a map from keys to values"),
    ({"match": {"entries": {"a": []}}}, "rules[0].match.entries.a: must be text, a list of texts, or true for any"),
    ({"match": {"entries": {"a": False}}}, "rules[0].match.entries.a: must be text, a list of texts, or true"),
    ({"match": {"entries": {"": "a"}}}, "rules[0].match.entries['']: a key of an entry is text that is not empty"),
    ({"match": {"entries": ["a"]}}, "rules[0].match.entries[0]: must be a map with key, and value"),
    ({"match": {"entries": [{"key": "a"}, {"key": "a", "val": "b"}]}}, "rules[0].match.entries[1]: must be a map with"),
    ({"match": {"entries": [{"key": "a", "value": 7}]}}, "rules[0].match.entries[0]: value must be text, a list of"),
    (
        {"match": {"entries": {str(n): True for n in range(257)}}},
        "entries: names 257 entries, and a descriptor has 256",
    ),
    ({"match": {"entries": [{"key": "a", "except": True}]}}, "entries[0]: except must be text or a list of texts, not"),
    ({"match": {"entries": [{"key": "a", "except": ["b", "*"]}]}}, "entries[0]: except must leave some values"),
    ({"match": {"entrys": {}}}, "rules[0].match.entrys: no such field; did you mean 'entries'?"),
]


@pytest.mark.parametrize(("rule", "message"), BAD)
def test_a_problem_names_the_place_the_value_and_the_expected_value(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(policy(**rule))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"entry": ""}, "identities.a.entry: must be a text of at least 1, not ''"),
        ({"entries": "some"}, "identities.a.entries: must be 'all', not 'some'"),
        ({"entry": "a", "header": "b"}, "exactly one source: header, cookie, query, entry, entries, ip or first_of"),
    ],
)
def test_a_problem_of_an_identity_is_reported(identity: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(policy() | {"identities": {"a": identity}})
    assert message in str(caught.value)


def test_the_page_about_policies_shows_the_example() -> None:
    text = (ROOT / "examples" / "descriptors.yaml").read_text()
    assert f"```yaml\n{text}```\n" in (ROOT / "docs" / "policy.md").read_text()


def test_a_key_of_entries_is_found_by_its_value() -> None:
    compiled = read_policy(policy(by=["token", "descriptor"]))
    text = entries_text([("token", "a=b"), ("user", "")])
    [found] = find_keys(compiled, ["token=hunter2", f"descriptor={text}"]).keys
    assert found.parts == (*key("token", ("token", "hunter2")), text)
    [lacking] = find_keys(compiled, ["token=", "descriptor=nonsense"]).keys
    assert lacking.parts == ("anonymous", "token", "anonymous", "descriptor")
