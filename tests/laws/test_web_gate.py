"""The native gate reads in a scope or an environ what Python's requests read: keys, decisions and fields are alike."""

from __future__ import annotations

from io import BytesIO
from typing import Any, cast

import pytest

import django_configured  # noqa: F401 - the imports below read its settings

# isort: split

from django.core.handlers.asgi import ASGIRequest  # type: ignore[import-untyped]
from django.core.handlers.wsgi import WSGIRequest  # type: ignore[import-untyped]
from hypothesis import assume, event, given
from hypothesis import strategies as st

from headgate import MemoryStore, core
from headgate.http.server.asgi_request import AsgiRequest
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.web_gates import web_gate
from headgate.http.wsgi import WsgiRequest
from headgate.integrations.django import DjangoRequest
from headgate.integrations.flask.request import FlaskRequest
from headgate.integrations.starlette.request import StarletteRequest
from headgate.policy.compiled import ALL_RULES
from headgate.policy.gate import AsyncGate, Gate, read_policy
from headgate.policy.request import Request
from headgate.policy.resolver import FREE, Resolver, Settled
from headgate.testing import ManualClock
from policies import environs, policies, scopes
from subjects import START_US, make_store, numbers

pytestmark = pytest.mark.skipif(core.native is None, reason="the law compares the native core")
ASGI: list[type[Request]] = [AsgiRequest, StarletteRequest]
WSGI: list[type[Request]] = [WsgiRequest, FlaskRequest]
COLOURS = [*((kind, scopes()) for kind in ASGI), *((kind, environs()) for kind in WSGI)]
CASES = st.sampled_from(COLOURS).flatmap(
    lambda colour: st.tuples(st.just(colour[0]), st.lists(colour[1], min_size=1, max_size=8))
)
BAD = (KeyError, ValueError, TypeError, AttributeError, LookupError)
"""The errors of Python's requests for values that no server sends."""


class RecordingLimits:
    """Bound limits whose decision is the operation that they get."""

    def __init__(self, limits: Any) -> None:
        self.limits = [limit.name for limit in limits]

    def decide(self, operation: Any) -> Any:
        return self.limits, operation.keys, operation.costs


def texts(value: Any) -> list[Any]:
    """Return all values in a scope or an environ."""
    if isinstance(value, dict):
        return [text for part in value.values() for text in texts(part)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in texts(part)]
    return [value]


def is_left_to_python(kind: type[Request], raw: dict[str, Any]) -> bool:
    """Whether there is text that is not ASCII, a value of a wrong type, or a choice of a framework's parser.

    A root path in the middle of a path is left to Python, too: the path has several other forms.
    """
    is_unusual = any(not (part.isascii() if isinstance(part, str | bytes) else part is None or isinstance(part, int))
              for part in texts(raw))  # fmt: skip
    is_unusual = is_unusual or any(
        not isinstance(value, str | bytes) and (name, value) != ("raw_path", None)
        for name, value in raw.items()
        if name not in ("client", "headers")
    )
    if kind in WSGI or is_unusual or not isinstance(raw.get("headers"), list | tuple):
        return is_unusual or kind in ASGI
    if not isinstance(raw.get("client"), list | tuple | None):
        return True
    if issubclass(kind, AsgiRequest) and len(kind(raw).other_paths()) > 1:
        return True
    names = [name.replace(b"_", b"-") for name, _ in raw["headers"]]
    return kind is StarletteRequest and len(set(names)) < len(names)


def fields_of(kind: type[Request], returned: Any, original: Any) -> Any:
    """Return the headers that the returned callable sends; [] where the server's callable was returned unchanged."""
    if returned is original:
        return []
    headers: list[Any] = []
    if kind in ASGI:
        returned({"type": "http.response.start", "status": 200, "headers": headers})
    else:
        returned("200 OK", headers)
    return _SENT.pop()


_SENT: list[Any] = []


def _send(message: Any) -> None:
    _SENT.append(message["headers"])


def _start(status: str, headers: list[Any]) -> None:
    _SENT.append(headers)


def decide_natively(gate: Any, kind: type[Request], raw: Any) -> Any:
    return gate.decide(raw, _send) if kind in ASGI else gate.decide_environ(raw, _start)


@given(policies(), CASES)
def test_both_check_the_same_limits_for_the_same_keys(policy: dict[str, Any], case: tuple[Any, Any]) -> None:
    kind, history = case
    resolver = Resolver(read_policy(policy), RecordingLimits, "")
    native = cast(Any, core.native).NativeGate.of(resolver)
    gate = web_gate(
        native, ruleset=ALL_RULES, cost=1, kind=kind, writes_fields=None, asynchronous=kind in ASGI, websockets=True
    )
    assume(gate is not None)
    for raw in history:
        outcome = decide_natively(gate, kind, raw)
        try:
            bound, operation, _, _ = resolver.resolve(kind(raw), 1, ALL_RULES)
        except BAD:
            event("no request")
            continue
        event("left to Python" if outcome is None else "decided natively")
        if outcome is None:
            assert is_left_to_python(kind, raw)
        elif isinstance(bound, Settled):
            assert numbers(outcome) == numbers(bound.decide(None))
            assert (bound is FREE) == outcome.allowed
        else:
            assert outcome == bound.decide(operation)


@given(policies(), CASES, st.integers(0, 40_000_000))
def test_both_decide_alike_and_write_the_same_fields(
    policy: dict[str, Any], case: tuple[Any, Any], wait_us: int
) -> None:
    kind, history = case
    clock, compiled, asynchronous = ManualClock(START_US), read_policy(policy), kind in ASGI
    enforcers = []
    for is_native in (True, False):
        gate: Any = (AsyncGate if asynchronous else Gate)(compiled, store=make_store("native"), clock=clock)
        if not is_native:
            gate._decide_by(gate.resolver, None)
        enforcers.append(Enforcer(gate, {}, asynchronous=asynchronous, kind=kind, websockets=True))
    native, python = enforcers
    assert python.decide_natively is None
    assume(native.decide_natively is not None)
    for raw in history:
        clock.advance(wait_us)
        server = _send if asynchronous else _start
        outcome = cast(Any, native.decide_natively)(raw, server)
        try:
            decision: Any = python.decide(kind(raw))
        except BAD:
            return  # the states of both differ from here on
        if outcome is None:
            outcome = native.decide(kind(raw))
            assert numbers(cast(Any, outcome)) == numbers(decision)
            continue
        fields = python.passing_fields(decision)
        if fields is None:
            assert numbers(outcome) == numbers(decision)
        else:
            assert fields_of(kind, outcome, server) == fields


OPTIONS: list[dict[str, Any]] = [
    {},
    {"ipv6_prefix": 48},
    {"trusted_proxies": ["10.0.0.0/8", "fd00::/8", "unix"]},
    {"trusted_proxies": ["10.0.0.0/8"], "address_header": "Forwarded"},
    {"trusted_hops": 2, "address_header": "X-Forwarded-For"},
]


@given(st.sampled_from(OPTIONS), st.sampled_from([None, "", "all"]), CASES)
def test_plain_limits_count_the_same_keys_both_ways(options: Any, scope: str | None, case: tuple[Any, Any]) -> None:
    kind, history = case
    store, clock, asynchronous = MemoryStore(), ManualClock(START_US), kind in ASGI
    all_options: Any = {"limits": "1000/day fixed", "store": store, "clock": clock, **options}
    if scope is not None:
        all_options["scope"] = scope
    enforcer = Enforcer(
        None, all_options, asynchronous=asynchronous, routed=scope is not None, kind=kind, websockets=True
    )
    for raw in history:
        outcome = decide_natively(enforcer.web_gate, kind, raw)
        try:
            decision: Any = enforcer.decide(kind(raw))
        except BAD:
            continue
        server = _send if asynchronous else _start
        if outcome is None:
            assert is_left_to_python(kind, raw) or len(str(raw)) > 64
        elif decision is None:
            assert outcome is server
        else:
            written_fields = fields_of(kind, outcome, server)
            policy_field, remaining = decision.limits[0].remaining, written_fields[1][1]
            text = remaining.decode() if isinstance(remaining, bytes) else remaining
            assert f";r={policy_field + 1};" in text, "both ways are one counter"


@given(st.sampled_from(OPTIONS), CASES)
def test_routes_charge_the_same_keys_both_ways(options: Any, case: tuple[Any, Any]) -> None:
    kind, history = case
    all_options: Any = {"limits": "1000/day fixed", "clock": ManualClock(START_US), "store": MemoryStore(), **options}
    enforcer = Enforcer(None, all_options, asynchronous=kind in ASGI, routed=True)
    decide = enforcer.web_gate.decide_route if kind in ASGI else enforcer.web_gate.decide_view
    for raw in history:
        outcome = decide(raw, "GET /each")
        try:
            request: Any = kind(raw)
            request.counted_as = "GET /each"
            decision: Any = enforcer.decide(request)
        except BAD:
            continue
        if outcome is None:
            assert decision is None or is_left_to_python(kind, raw) or len(str(raw)) > 64
        else:
            natively_decided, fields, key = outcome
            assert key == request.charge.key
            assert natively_decided.remaining == decision.remaining + 1
            assert fields == enforcer.passing_fields(natively_decided)


def django_requests() -> st.SearchStrategy[Any]:
    """Return functions that make a request of Django, of either kind, or raise one of BAD."""
    of_scopes = scopes().map(lambda scope: lambda: ASGIRequest(scope, BytesIO()))
    of_environs = environs().map(lambda environ: lambda: WSGIRequest({**environ, "wsgi.input": BytesIO()}))
    return of_scopes | of_environs


@given(policies(parsed=False), st.lists(django_requests(), min_size=1, max_size=8))
def test_a_request_of_django_is_read_alike_both_ways(policy: dict[str, Any], history: list[Any]) -> None:
    resolver = Resolver(read_policy(policy), RecordingLimits, "")
    native = cast(Any, core.native).NativeGate.of(resolver)
    gate = web_gate(
        native, ruleset=ALL_RULES, cost=1, kind=DjangoRequest, writes_fields=None, asynchronous=False, websockets=False
    )
    assert gate is not None
    for make in history:
        try:
            request = DjangoRequest(make(), "GET /each")
            bound, operation, _, _ = resolver.resolve(request, 1, ALL_RULES)
        except BAD:
            event("no request")
            continue
        outcome = None if request.environ is None else gate.decide_view(request.environ, request.endpoint)
        event("left to Python" if outcome is None else "decided natively")
        if outcome is not None:
            expected = bound.decide(None) if isinstance(bound, Settled) else bound.decide(operation)
            assert outcome[0] == expected if type(expected) is tuple else numbers(outcome[0]) == numbers(expected)
