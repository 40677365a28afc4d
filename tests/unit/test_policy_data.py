"""A compiled policy is data: it compares, prints, can be pickled, and is evaluated for any subject."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from headgate.policy.compiled import Policy
from headgate.policy.frozen_map import FrozenMap
from headgate.policy.gate import Gate, read_policy
from headgate.policy.identity import CallableIdentity, Combination
from headgate.policy.request import Request
from headgate.policy.subject import Subject
from headgate.testing import ManualClock

WHOLE: dict[str, Any] = {
    "version": 1,
    "namespace": "shop",
    "generation": 3,
    "store": "memory://?max_keys=1000",
    "on_store_error": "open",
    "client_ip": {"header": "X-Forwarded-For", "trusted_proxies": ["10.0.0.0/8", "unix"], "ipv6_prefix": 48},
    "identities": {
        "user": {"header": "X-User-Id"},
        "session": {"cookie": "sid", "secret": True},
        "page": {"query": "page"},
        "net": {"ip": {"ipv4_prefix": 24}},
        "caller": {"first_of": ["user", "session", "ip", "endpoint"]},
    },
    "tiers": {"from": {"identity": "user"}, "map": {"u1": "pro"}, "default": "free"},
    "rules": [
        {"name": "all", "by": [], "limits": "100/minute fixed; 9/second burst 20"},
        {
            "name": "search",
            "match": {
                "path": ["/api/{id}", "/api/**"],
                "method": ["GET", "PUT"],
                "host": ["a.example.com", "*.example.org"],
                "ip": ["192.0.2.0/24", "unix"],
                "header": {"X-Bot": True, "X-Kind": ["a", "b"]},
            },
            "by": ["caller", "endpoint", "host", "method", "net"],
            "cost": 2,
            "limits": {"free": "9/minute", "pro": "90/minute counter; 5/second queue 9"},
            "missing": "refuse",
            "repeated": "refuse",
            "on_store_error": "closed",
        },
        {"name": "rest", "by": ["ip", "page"], "limits": "5/hour leaky 9", "default": True},
        {"name": "trial", "by": ["ip"], "limits": "5/hour", "shadow": True, "missing": "refuse"},
    ],
    "exempt": [{"path": "/health"}, {"ip": "127.0.0.1"}],
    "rulesets": {"some": ["all", "rest"]},
}
NUMBERS_AND_TEXTS = (str, int, bool, type(None))


@pytest.fixture(scope="module")
def policy() -> Policy:
    return read_policy(WHOLE)


def contents(value: object, place: str = "policy") -> Iterator[tuple[str, object]]:
    """All values in a value, each with its place; a value that is no record and no collection is a leaf."""
    if is_dataclass(value):
        for part in fields(value):
            yield from contents(getattr(value, part.name), f"{place}.{part.name}")
    elif isinstance(value, Mapping):
        for key, inside in value.items():
            yield from contents(key, f"{place} key")
            yield from contents(inside, f"{place}[{key!r}]")
    elif isinstance(value, tuple | frozenset):
        for inside in value:
            yield from contents(inside, f"{place}[]")
    else:
        yield place, value


def test_a_policy_is_made_of_numbers_and_texts_alone(policy: Policy) -> None:
    found = list(contents(policy))
    assert len(found) > 200
    others = [(place, value) for place, value in found if type(value) not in NUMBERS_AND_TEXTS]
    assert not others


def test_a_policy_is_equal_to_itself_loaded_again_and_can_be_pickled(policy: Policy) -> None:
    again = read_policy(WHOLE)
    assert again == policy and hash(again) == hash(policy) and repr(again) == repr(policy)
    copied = pickle.loads(pickle.dumps(policy))
    assert copied == policy and copied is not policy
    changed = read_policy(WHOLE | {"generation": 4})
    assert changed != policy


def test_a_pickled_policy_decides_as_the_one_that_it_was(policy: Policy) -> None:
    request = Request("GET", "/api/7?page=2", headers={"X-User-Id": "u1"}, client_ip="203.0.113.9")
    gates = [Gate(one, clock=ManualClock(0)) for one in (policy, pickle.loads(pickle.dumps(policy)))]
    for _ in range(30):
        first, second = [gate.hit(request) for gate in gates]
        assert (first.allowed, first.rule, first.remaining) == (second.allowed, second.rule, second.remaining)
    assert not first.allowed


def test_nothing_in_a_policy_changes(policy: Policy) -> None:
    with pytest.raises(FrozenInstanceError):
        policy.rules[0].costs = FrozenMap()  # type: ignore[misc]
    entries: Any = policy.rules[0].limits
    for change in (
        lambda: entries.update(a=1), lambda: entries.pop(""), entries.clear, entries.popitem,
        lambda: entries.setdefault("a", 1), lambda: entries.__setitem__("a", 1), lambda: entries.__delitem__(""),
        lambda: entries.__ior__({"a": 1}),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="does not change"):
            change()
    assert FrozenMap(a=1) == {"a": 1} and repr(FrozenMap(a=1)) == "FrozenMap({'a': 1})"


@dataclass
class Named:
    """Names and values, and nothing else: a kind of subject that only a program defines."""

    values: dict[str, str]
    method: str = ""
    path: str = "/"
    host: str = ""
    client_ip: str = ""
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def header(self, name: str) -> str:
        return self.values.get(name, "")

    entries: tuple[tuple[str, str], ...] = ()

    def entry(self, key: str) -> str:
        return ""

    def attribute(self, name: str) -> str:
        return ""

    def cookie(self, name: str) -> str:
        return ""

    def query(self, name: str) -> str:
        return ""


def test_a_subject_need_not_be_a_request() -> None:
    gate = Gate(
        {
            "version": 1,
            "identities": {"user": {"header": "user"}},
            "rules": [{"name": "r", "by": ["user"], "limits": "1/minute"}],
        },
        clock=ManualClock(0),
    )
    one, other = Named({"user": "1"}), Named({"user": "2"})
    assert [gate.hit(subject).allowed for subject in (one, one, other)] == [True, False, True]


def test_an_identity_may_be_a_function_of_python() -> None:
    def tenant(subject: Subject) -> str | tuple[str, ...] | None:
        name = subject.header("x-tenant")
        return (name, "of", "shop") if name.startswith("t") else name

    policy = read_policy(
        {
            "version": 1,
            "identities": {"tenant": {"header": "X-Tenant"}},
            "rules": [{"name": "r", "by": ["tenant"], "limits": "1/minute", "missing": "refuse"}],
        }
    )
    key = Combination((CallableIdentity("tenant", tenant),), missing="refuse")
    gate = Gate(replace(policy, rules=(replace(policy.rules[0], key=key),)), clock=ManualClock(0))

    def keys(name: str) -> object:
        return gate.decide_at(Request(headers={"X-Tenant": name}), 0, 1)[1][1].keys

    assert [keys("a"), keys("t1"), keys("")] == [(("a",),), (("t1", "of", "shop"),), (None,)]
    assert not gate.hit(Request())
