"""The service reads the bodies of its schema and refuses every other body with the place of the error."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import ArgumentError, Gate, Request
from headgate.http.refusal import answer_of
from headgate.policy.descriptor import Descriptor
from headgate.policy.request import REPEATED
from headgate.service.checks.body import MOST_REQUESTS, REQUEST, Check, body_schema, read_body
from headgate.service.checks.body_fields import BadBody
from headgate.service.checks.decision_json import write_decision
from headgate.service.checks.forwarded import forwarded_request


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_a_header_with_a_list_of_values_was_sent_several_times() -> None:
    sent = {"headers": {"X-API-Key": ["VALID", "r1"], "cookie": ["s=1", "s=2"], "X-A": ["1", "1"], "x_a": "1"}}
    (check,), _ = read_body(body({"request": {"path": "/?t=1&t=2", **sent}}))
    request = check.request
    assert [request.header("x-api-key"), request.cookie("s"), request.query("t")] == [REPEATED] * 3
    assert request.header("x-a") == "1"


def test_a_request_is_read() -> None:
    (check,), several = read_body(
        body(
            {
                "request": {
                    "method": "post",
                    "path": "/a?b=1",
                    "headers": {"X-User": "7", "X-Forwarded-For": ["1.1.1.1", "2.2.2.2"]},
                    "client_ip": "203.0.113.9",
                },
                "cost": 3,
            }
        )
    )
    assert not several
    assert check.cost == 3
    assert (check.request.method, check.request.path, check.request.client_ip) == ("POST", "/a?b=1", "203.0.113.9")
    assert check.request.headers == {"x-user": "7", "x-forwarded-for": "1.1.1.1, 2.2.2.2"}


def test_a_method_that_a_client_made_up_is_read() -> None:
    (check,), _ = read_body(body({"request": {"method": "/ab", "path": "/x"}}))
    assert isinstance(check.request, Request)
    assert (check.request.method, check.request.path) == ("/AB", "/x")


def test_a_descriptor_is_read() -> None:
    entries = [{"key": "generic_key", "value": "api"}, {"key": "generic_key"}, {"value": "7", "key": "user"}]
    (check,), several = read_body(body({"request": {"entries": entries}, "cost": 3}))
    assert not several
    assert check == Check(Descriptor([("generic_key", "api"), ("generic_key", ""), ("user", "7")]), 3)


def test_a_cost_may_name_units() -> None:
    (check,), _ = read_body(body({"request": {}, "cost": {"requests": 1, "tokens": 900, "usd": "0.0123"}}))
    assert check.cost == {"requests": 1, "tokens": 900, "usd": "0.0123"}


def test_several_requests_are_read_with_their_costs() -> None:
    items = [{"path": "/a"}, {"request": {"path": "/b"}, "cost": 5}, {"request": {"path": "/c"}, "ruleset": "logins"}]
    checks, several = read_body(body({"requests": items}))
    assert several
    read = [(one.request.path, one.cost, one.ruleset) for one in checks]
    assert read == [("/a", 1, "default"), ("/b", 5, "default"), ("/c", 1, "logins")]


def test_a_ruleset_may_be_named() -> None:
    (check,), _ = read_body(body({"ruleset": "logins", "request": {}, "cost": 0}))
    assert (check.ruleset, check.cost) == ("logins", 0)


BAD: list[tuple[bytes, str]] = [
    (b"", "the body is empty"),
    (b"nonsense", "the body is not JSON: expecting value at byte 0"),
    (b'{"open', "the body is not JSON: unterminated string at byte 1"),
    (b'{"a": "\n"}', "the body is not JSON: invalid control character at byte 7"),
    ('["ä" x'.encode(), "the body is not JSON: expecting ',' delimiter at byte 6"),
    (b"\xef\xbb\xbfnonsense", "the body is not JSON: expecting value at byte 3"),
    (b'{"request": {}', "the body is not JSON"),
    (b"\xff\xfe{", "the body is not"),
    (b"[" * 100_000, "nested too deep"),
    (b'{"request": {"a": ' + b"[" * 100_000, "nested too deep"),
    (b"null", "the body must be a map"),
    (b"[]", "the body must be a map"),
    (b"5", "the body must be a map"),
    (b"{}", 'give one of "request" and "requests"'),
    (body({"request": {}, "requests": []}), 'give one of "request" and "requests"'),
    (body({"reqest": {}}), "no such field 'reqest'; there are request, requests, cost, ruleset"),
    (body({"request": {}, "ruleset": 5}), "ruleset must be text of at most 8192 characters, not a number"),
    (body({"requests": [{"request": {}, "ruleset": None}]}), "requests[0].ruleset must be text of at most 8192"),
    (body({"requests": [{}], "ruleset": "logins"}), '"ruleset" belongs to each of "requests"'),
    (body({"request": {"ruleset": "logins"}}), "request: no such field 'ruleset'"),
    (body({"request": []}), "request must be a map"),
    (body({"request": {"pth": "/"}}), "request: no such field 'pth'"),
    (body({"request": {"path": 5}}), "request.path must be text of at most 8192 characters, not a number"),
    (body({"request": {"path": "api"}}), 'request.path must be a path that begins with "/", not text'),
    (body({"request": {"path": "/" + "x" * 9000}}), "request.path must be text of at most 8192 characters"),
    (body({"request": {"method": None}}), "request.method must be text of at most 8192 characters, not null"),
    (body({"request": {"headers": []}}), "request.headers must be a map of at most 256 headers, not a list"),
    (body({"request": {"headers": {"a": 5}}}), "request.headers.a must be text"),
    (body({"request": {"headers": {"a": [None]}}}), "request.headers.a must be text"),
    (body({"request": {"headers": {str(n): "" for n in range(257)}}}), "request.headers must be a map of at most 256"),
    (body({"request": {"entries": {}}}), "request.entries must be a list of 1 to 256 entries, not a map"),
    (body({"request": {"entries": []}}), "request.entries must be a list of 1 to 256 entries, not a list of 0"),
    (body({"request": {"entries": ["user"]}}), 'request.entries[0] must be a map such as {"key": "generic_key", '),
    (body({"request": {"entries": [{"key": "a"}, {"value": "b"}]}}), "request.entries[1] must be a map such as"),
    (body({"request": {"entries": [{"key": "", "value": "b"}]}}), "request.entries[0].key is empty"),
    (body({"request": {"entries": [{"key": "a", "value": 7}]}}), "request.entries[0].value must be text of at most"),
    (
        body({"request": {"entries": [{"key": "a", "val": ""}]}}),
        "entries[0]: no such field 'val'; there are key, value",
    ),
    (
        body({"request": {"entries": [{"key": "a"}], "path": "/"}}),
        "a descriptor, which \"entries\" are of, has no 'path'",
    ),
    (body({"request": {"entries": [{"key": "a"}], "domain": "x"}}), "request: no such field 'domain'"),
    (body({"request": {"entries": [{"key": "a"}]}, "cost": -1}), "request: a cost is at least 0, not -1"),
    (body({"request": {}, "cost": -1}), "request: a cost is at least 0, not -1"),
    (
        body({"request": {}, "cost": True}),
        "request: a cost must be a whole number, or a map from units to amounts, not true or false",
    ),
    (body({"request": {}, "cost": 1.5}), "amounts, not a number with a fraction or an exponent"),
    (
        body({"request": {}, "cost": None}),
        "request: a cost must be a whole number, or a map from units to amounts, not null",
    ),
    (
        body({"request": {}, "cost": {"tokens": []}}),
        'request: a cost in tokens must be a whole number, or of money text such as "0.0123", not a list of 0',
    ),
    (body({"request": {}, "cost": 10**30}), "request: a cost is at most"),
    (body({"request": {}, "cost": {"tokens": -1}}), "request: a cost in tokens is at least 0, not -1"),
    (body({"request": {}, "cost": {"tokens": None}}), "request: a cost in tokens must be a whole number"),
    (
        body({"request": {}, "cost": {"usd": 0.5}}),
        'a cost in usd must be a whole number, or of money text such as "0.0123"',
    ),
    (body({"request": {}, "cost": {str(n): 1 for n in range(17)}}), "request: a cost names at most 16 units, not 17"),
    (
        body({"requests": [{"request": {}, "cost": {"a": []}}]}),
        "requests[0].request: a cost in a must be a whole number",
    ),
    (b'{"request": {}, "cost": {"a": 1, "a": 1}}', "the field 'a' is given twice"),
    (b'{"request": {}, "cost": 1e400}', "amounts, not a number with a fraction or an exponent"),
    (b'{"request": {}, "cost": NaN}', "NaN is no JSON number"),
    (b'{"request": {}, "cost": ' + b"9" * 5000 + b"}", "a number of more digits"),
    (b'{"request": {}, "request": {}}', "the field 'request' is given twice"),
    (b'{"request": {"path": "/", "path": "/x"}}', "the field 'path' is given twice"),
    (body({"requests": []}), f"requests must be a list of 1 to {MOST_REQUESTS} requests, not a list"),
    (body({"requests": [{}] * (MOST_REQUESTS + 1)}), f"requests must be a list of 1 to {MOST_REQUESTS} requests"),
    (body({"requests": [{}], "cost": 2}), '"cost" belongs to each of "requests"'),
    (body({"requests": [{}, {"request": {"path": 5}}]}), "requests[1].request.path must be text"),
    (body({"requests": [5]}), "requests[0] must be a map"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_body_is_refused_with_the_place_and_the_expected_value(text: bytes, message: str) -> None:
    with pytest.raises(BadBody) as caught:
        read_body(text)
    assert message in str(caught.value)


@given(text=st.one_of(st.binary(max_size=200), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(body)))
def test_any_body_is_read_or_refused(text: bytes) -> None:
    with pytest.raises(BadBody):
        read_body(text)


WRONG_TYPES = st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.text(max_size=3), st.just([]), st.just({}))
TEXTS = st.sampled_from(["", "/", "/a?b=1", "GET", "127.0.0.1", "x" * 8193, "/" + "x" * 8191])
HEADERS = st.dictionaries(
    st.sampled_from(["A", "a", "x-b", ""]), TEXTS | st.lists(TEXTS | WRONG_TYPES, max_size=2) | WRONG_TYPES
)
ENTRIES = st.lists(
    st.dictionaries(st.sampled_from(["key", "key", "value", "limit"]), TEXTS | WRONG_TYPES, max_size=2) | WRONG_TYPES,
    max_size=3,
)
REQUESTS = (
    st.dictionaries(st.sampled_from([*REQUEST, "uri"]), TEXTS | HEADERS | WRONG_TYPES, max_size=4)
    | st.fixed_dictionaries({"entries": ENTRIES | WRONG_TYPES}, optional={"path": TEXTS, "uri": TEXTS})
    | WRONG_TYPES
)
AMOUNTS = st.sampled_from([0, 1, 2**52, 2**52 + 1, -1, True, None, "1", "0.5", 0.5, "9" * 64, "9" * 65])
COSTS = st.one_of(
    st.sampled_from([0, 1, 2**52, 2**52 + 1, -1, True, None, "1", {str(unit): 1 for unit in range(17)}]),
    st.dictionaries(st.sampled_from(["requests", "tokens", "usd", ""]), AMOUNTS),
)
CHECKS = st.fixed_dictionaries(
    {}, optional={"request": REQUESTS, "cost": COSTS, "ruleset": TEXTS | WRONG_TYPES, "path": TEXTS}
)
BODIES = st.fixed_dictionaries({}, optional={
    "request": REQUESTS, "requests": st.lists(REQUESTS | CHECKS, max_size=3) | WRONG_TYPES, "cost": COSTS,
    "ruleset": TEXTS, "more": WRONG_TYPES,
}) | WRONG_TYPES  # fmt: skip


@given(value=BODIES | CHECKS)
@example(value={"requests": [{}] * MOST_REQUESTS})
@example(value={"request": {"entries": [{"key": "a"}] * 256}})
@example(value={"request": {"entries": [{"key": "a"}] * 257}})
@example(value={"request": {"entries": [{"key": "a", "value": "x" * 8192}]}})
@example(value={"request": {"entries": [{"key": "a", "value": "x" * 8193}]}})
@example(value={"requests": [{}] * (MOST_REQUESTS + 1)})
@example(value={"request": {"headers": {str(number): "" for number in range(256)}}})
@example(value={"request": {"headers": {str(number): "" for number in range(257)}}})
def test_the_schema_accepts_exactly_the_bodies_that_are_read(value: Any) -> None:
    try:
        read_body(body(value))
    except BadBody:
        is_read = False
    else:
        is_read = True
    assert SCHEMA.is_valid(value) == is_read


SCHEMA = jsonschema.Draft202012Validator(body_schema())


def test_the_schema_is_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(body_schema())


FORWARDED = [
    ({}, ("GET", "/", "")),
    ({"x-forwarded-method": "post", "x-forwarded-uri": "/a?b=1"}, ("POST", "/a?b=1", "")),
    ({"x-original-method": "PUT", "x-original-uri": "/b"}, ("PUT", "/b", "")),
    ({"x-forwarded-uri": "http://example.com/a?b=1"}, ("GET", "http://example.com/a?b=1", "")),
    ({"x-forwarded-uri": " /a "}, ("GET", "/a", "")),
    ({"x-forwarded-uri": "/à?à=à"}, ("GET", "/%C3%A0?%C3%A0=%C3%A0", "")),
    ({"x-forwarded-uri": "/a\x85"}, ("GET", "/a%C2%85", "")),
    ({"x-forwarded-host": "a.example.com, b", "host": "checker"}, ("GET", "/", "a.example.com, b")),
    ({"host": "example.com"}, ("GET", "/", "example.com")),
]


@pytest.mark.parametrize(("headers", "expected"), FORWARDED, ids=[str(headers) for headers, _ in FORWARDED])
def test_the_forwarded_request_is_the_one_that_the_headers_describe(
    headers: dict[str, str], expected: tuple[str, str, str]
) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = forwarded_request("GET", "10.0.0.1", "/", pairs)
    assert (request.method, request.path, request.host) == expected
    assert request.client_ip == "10.0.0.1"


@pytest.mark.parametrize("name", ["x-forwarded-uri", "x-forwarded-method", "x-original-uri", "x-original-method"])
def test_a_gateway_header_that_a_client_added_too_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is there several times"):
        forwarded_request("GET", "10.0.0.1", "/", [(name.encode(), b"/health"), (name.encode(), b"/api/login")])


def test_the_path_after_the_ruleset_counts_where_no_header_names_one() -> None:
    assert forwarded_request("GET", "", "/api/x", []).path == "/api/x"


def test_every_kind_of_decision_is_written_as_json() -> None:
    rules = [
        {"name": "free", "by": ["ip"], "limits": "2/minute; 10/hour bucket", "match": {"path": "/a"}},
        {"name": "tried", "by": ["ip"], "limits": "1/minute", "match": {"path": "/a"}, "shadow": True},
        {"name": "queue", "by": ["ip"], "limits": "1/second queue 5", "match": {"path": "/b"}},
        {"name": "never", "by": ["ip"], "limits": "0/minute", "match": {"path": "/c"}},
    ]
    with Gate({"version": 1, "rules": rules}) as gate:
        decisions = [
            gate.hit(Request("GET", path, client_ip="203.0.113.9"))
            for path in ("/a", "/a", "/a", "/b", "/b", "/c", "/d")
        ]
    for decision in decisions:
        assert json.loads(write_decision(decision)) == {
            "allowed": decision.allowed,
            "rule": decision.rule or None,
            "limit": decision.limit,
            "unit": None if decision.binding is None else "requests",
            "remaining": decision.remaining,
            "reset_after": decision.reset_after,
            "retry_after": decision.retry_after,
            "delay": decision.delay,
            "degraded": "",
            "limits": [
                {
                    name: getattr(reading, name)
                    for name in (
                        "name", "rule", "allowed", "limit", "unit", "remaining", "reset_after", "retry_after", "shadow",
                    )
                }
                for reading in decision.limits
            ],
            "headers": dict(answer_of(decision).headers),
        }  # fmt: skip
    assert decisions[2].retry_after is not None and decisions[4].delay > 0 and decisions[5].retry_after is None
