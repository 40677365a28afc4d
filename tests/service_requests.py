"""Requests to the service for laws: of gateways and with bodies, whose clients may send anything."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hypothesis import strategies as st

from headgate.policy.request import Request
from headgate.service.app import Service
from headgate.service.http.messages import ServiceRequest
from policies import descriptors, requests

PEERS = ["127.0.0.1", "10.0.0.1", "192.0.2.7", "203.0.113.9", "::1", "2001:db8::1", "fd00::1", "::ffff:10.0.0.1"]
RULESETS = ["default", "default", "default", "some", "none", "d%65fault"]


class TimedRequest(NamedTuple):
    """A request to the service, and the time since the previous one."""

    request: ServiceRequest
    wait_us: int


@st.composite
def forwarded(draw: st.DrawFn) -> ServiceRequest:
    """A request of a gateway, whose client may send anything that a header field can contain."""
    original = draw(requests())
    target = original.path if original.path.startswith("/") else "/x"
    fields: list[tuple[str, str]] = [*_header_lines(original), ("host", original.host)]
    forwarded_fields = draw(
        st.lists(
            st.sampled_from(
                [
                    ("X-Forwarded-Method", original.method),
                    ("X-Forwarded-Method", "post"),
                    ("X-Original-Method", "PUT"),
                    ("X-Forwarded-Uri", original.path),
                    ("X-Forwarded-Uri", ""),
                    ("X-Original-URI", "/api/7?page=1"),
                    ("X-Forwarded-Host", original.host),
                    ("X-Forwarded-Host", "shop.test"),
                    ("x_forwarded_uri", "/health"),
                    ("x_forwarded_uri", ""),
                    ("X-Forwarded-Host", ""),
                    ("x_unknown", "1"),
                ]
            ),
            max_size=4,
        )
    )
    place = draw(st.sampled_from(["/check", "/check", "/check-403"]))
    suffix = draw(st.sampled_from(["", "/", target.partition("?")[0].partition("#")[0].replace("\t", "")]))
    encoding = draw(st.sampled_from(["utf-8", "latin-1"]))
    headers = [
        (name.lower().encode(), value.encode(encoding, "replace").strip(b" \t"))
        for name, value in [*fields, *forwarded_fields]
        if all((character >= " " and character != "\x7f") or character == "\t" for character in value)
    ]
    path = f"{place}/{draw(st.sampled_from(RULESETS))}{suffix}".encode("utf-8", "replace").decode("latin-1")
    return ServiceRequest(draw(st.sampled_from(["GET", "POST"])), path, headers, draw(st.sampled_from(PEERS)))


def _header_lines(request: Request) -> list[tuple[str, str]]:
    """The lines of a request's headers as they were sent."""
    lines = []
    for name, value in request.headers.items():
        lines += [(name, line) for line in getattr(value, "values", (value,))]
    return lines


COSTS = [
    1, 0, 2, 2**52, 2**52 + 1, -1, 1.0, True, None, "1", {"tokens": 3}, {"requests": 2}, {"requests": 2, "tokens": 0},
    {"usd": "0.1"}, {"Tokens": 1}, {"token": 1}, {"tokens": 1.5}, {"tokens": "3"}, {}, 10**400,
]  # fmt: skip


def named_ruleset() -> st.SearchStrategy[dict[str, Any]]:
    """The ruleset of a body, if it names one; sometimes an invalid value."""
    invalid = st.sampled_from(["none", "", "Default", 1, None, ["default"], "\ud800", "é" * 8193])
    names = st.sampled_from(["default", "some", "some"])
    return st.just({}) | st.fixed_dictionaries({"ruleset": names | names | invalid})


@st.composite
def entries_body(draw: st.DrawFn) -> dict[str, Any]:
    """A descriptor in a body; sometimes an invalid one."""
    entries: list[Any] = [{"key": key, "value": value} for key, value in draw(descriptors()).entries]
    request: dict[str, Any] = {"entries": entries}
    if not draw(st.integers(0, 5)):
        entries[0] = draw(
            st.sampled_from(
                [{}, 1, ["user", "1"], {"key": ""}, {"key": "user"}, {"value": "1"}, {"key": "user", "value": None},
                 {"key": "user", "extra": "1"}, {"value": "1", "key": "user"}, {"key": "é" * 8193}]
            )
        )  # fmt: skip
    if not draw(st.integers(0, 9)):
        request |= draw(
            st.sampled_from([{"path": "/"}, {"extra": 1}, {"entries": []}, {"entries": {}}, {"entries": entries * 257}])
        )
    body: dict[str, Any] = {"request": request}
    if draw(st.booleans()):
        body["cost"] = draw(st.sampled_from(COSTS))
    return body | draw(named_ruleset())


@st.composite
def request_body(draw: st.DrawFn) -> dict[str, Any]:
    """A request in a body; sometimes an invalid one."""
    original = draw(requests())
    headers: dict[str, Any] = {}
    for name, value in _header_lines(original):
        spelled = draw(st.sampled_from([name, name, name.title(), name.replace("-", "_")]))
        earlier = headers.get(spelled)
        headers[spelled] = value if earlier is None else [*(earlier if isinstance(earlier, list) else [earlier]), value]
    fields: dict[str, Any] = {
        "method": original.method,
        "path": original.path if draw(st.integers(0, 9)) else "api",
        "headers": headers,
        "client_ip": original.client_ip,
        "host": original.host,
    }
    if not draw(st.integers(0, 5)):
        invalid: list[tuple[str, Any]] = [
            ("headers", {"A": 1}),
            ("headers", []),
            ("method", None),
            ("extra", 1),
            ("path", "/" + "é" * 8191),
        ]
        name, value = draw(st.sampled_from(invalid))
        fields[name] = value
    names = draw(st.lists(st.sampled_from([*fields]), unique=True, min_size=3)) if draw(st.booleans()) else [*fields]
    body: dict[str, Any] = {"request": {name: fields[name] for name in names}}
    if draw(st.booleans()):
        body["cost"] = draw(st.sampled_from(COSTS[:4]) | st.sampled_from(COSTS))
    return body | draw(named_ruleset())


def one_body() -> st.SearchStrategy[dict[str, Any]]:
    """A request or a descriptor."""
    return st.one_of(request_body(), request_body(), entries_body())


@st.composite
def described(draw: st.DrawFn) -> ServiceRequest:
    """A body of one request or several."""
    value: Any = draw(one_body())
    if draw(st.booleans()):
        items = [value, *draw(st.lists(one_body(), max_size=4))]
        value = {"requests": [item if len(item) > 1 or draw(st.booleans()) else item["request"] for item in items]}
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    body = text.encode("utf-8", "surrogatepass")
    if not draw(st.integers(0, 9)):
        start = draw(st.integers(0, len(body)))
        body = body[:start] + draw(st.sampled_from([b"", b" ", b'"', b"{}", b"\xff"])) + body[start + 1 :]
    return ServiceRequest("POST", "/v1/check", [], "127.0.0.1", body)


TIMED_REQUESTS = st.builds(TimedRequest, forwarded() | forwarded() | described(), st.integers(0, 40_000_000))


def decisions_of(service: Service) -> dict[tuple[str, str], float]:
    """`headgate_decisions_total` of a service."""
    return {
        (sample.labels["rule"], sample.labels["result"]): sample.value
        for family in service.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "headgate_decisions_total"
    }
