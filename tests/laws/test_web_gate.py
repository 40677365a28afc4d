"""What the native gate reads in a scope or an environ is what Python's requests say: keys, decisions, fields."""

from __future__ import annotations

from io import BytesIO
from typing import Any, cast

import pytest

import django_configured  # noqa: F401 - what follows asks for its settings

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
"""What Python's requests raise for what no server sends."""


class Asked:
    """Bound limits that note what they are asked."""

    def __init__(self, limits: Any) -> None:
        self.limits = [limit.name for limit in limits]

    def decide(self, operation: Any) -> Any:
        return self.limits, operation.keys, operation.costs


def texts(value: Any) -> list[Any]:
    """All that a scope or an environ has in it."""
    if isinstance(value, dict):
        return [text for part in value.values() for text in texts(part)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in texts(part)]
    return [value]


def only_python_can_say(kind: type[Request], given: dict[str, Any]) -> bool:
    """Whether there is text that is no ASCII, something of a wrong kind, or a choice of a framework's parser.

    So it is with a root path in the middle of a path: that has several other forms.
    """
    odd = any(not (part.isascii() if isinstance(part, str | bytes) else part is None or isinstance(part, int))
              for part in texts(given))  # fmt: skip
    odd = odd or any(
        not isinstance(value, str | bytes) and (name, value) != ("raw_path", None)
        for name, value in given.items()
        if name not in ("client", "headers")
    )
    if kind in WSGI or odd or not isinstance(given.get("headers"), list | tuple):
        return odd or kind in ASGI
    if not isinstance(given.get("client"), list | tuple | None):
        return True
    if issubclass(kind, AsgiRequest) and len(kind(given).other_paths()) > 1:
        return True
    names = [name.replace(b"_", b"-") for name, _ in given["headers"]]
    return kind is StarletteRequest and len(set(names)) < len(names)


def fields_of(kind: type[Request], came: Any, given: Any) -> Any:
    """The fields that were added to what the server gave; () where that came back as it was."""
    if came is given:
        return []
    told: list[Any] = []
    if kind in ASGI:
        came({"type": "http.response.start", "status": 200, "headers": told})
    else:
        came("200 OK", told)
    return _SENT.pop()


_SENT: list[Any] = []


def _send(message: Any) -> None:
    _SENT.append(message["headers"])


def _start(status: str, headers: list[Any]) -> None:
    _SENT.append(headers)


def natively(gate: Any, kind: type[Request], given: Any) -> Any:
    return gate.decide(given, _send) if kind in ASGI else gate.decide_environ(given, _start)


@given(policies(), CASES)
def test_both_apply_the_same_limits_to_the_same_keys(policy: dict[str, Any], case: tuple[Any, Any]) -> None:
    kind, history = case
    resolver = Resolver(read_policy(policy), Asked, "")
    native = cast(Any, core.native).NativeGate.of(resolver)
    gate = web_gate(
        native, ruleset=ALL_RULES, cost=1, kind=kind, writes_fields=None, asynchronous=kind in ASGI, websockets=True
    )
    assume(gate is not None)
    for given_ in history:
        came = natively(gate, kind, given_)
        try:
            bound, operation, _, _ = resolver.resolve(kind(given_), 1, ALL_RULES)
        except BAD:
            event("no request")
            continue
        event("left to Python" if came is None else "told natively")
        if came is None:
            assert only_python_can_say(kind, given_)
        elif isinstance(bound, Settled):
            assert numbers(came) == numbers(bound.decide(None))
            assert (bound is FREE) == came.allowed
        else:
            assert came == bound.decide(operation)


@given(policies(), CASES, st.integers(0, 40_000_000))
def test_both_decide_alike_and_respond_alike(policy: dict[str, Any], case: tuple[Any, Any], wait_us: int) -> None:
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
    for given_ in history:
        clock.advance(wait_us)
        server = _send if asynchronous else _start
        came = cast(Any, native.decide_natively)(given_, server)
        try:
            decision: Any = python.decide(kind(given_))
        except BAD:
            return  # the states of both differ from here on
        if came is None:
            came = native.decide(kind(given_))
            assert numbers(cast(Any, came)) == numbers(decision)
            continue
        told = python.passing_fields(decision)
        if told is None:
            assert numbers(came) == numbers(decision)
        else:
            assert fields_of(kind, came, server) == told


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
    told: Any = {"limits": "1000/day fixed", "store": store, "clock": clock, **options}
    if scope is not None:
        told["scope"] = scope
    enforcer = Enforcer(None, told, asynchronous=asynchronous, routed=scope is not None, kind=kind, websockets=True)
    for given_ in history:
        came = natively(enforcer.web_gate, kind, given_)
        try:
            decision: Any = enforcer.decide(kind(given_))
        except BAD:
            continue
        server = _send if asynchronous else _start
        if came is None:
            assert only_python_can_say(kind, given_) or len(str(given_)) > 64
        elif decision is None:
            assert came is server
        else:
            came_fields = fields_of(kind, came, server)
            policy_field, left = decision.limits[0].remaining, came_fields[1][1]
            text = left.decode() if isinstance(left, bytes) else left
            assert f";r={policy_field + 1};" in text, "both ways are one counter"


@given(st.sampled_from(OPTIONS), CASES)
def test_routes_charge_the_same_keys_both_ways(options: Any, case: tuple[Any, Any]) -> None:
    kind, history = case
    told: Any = {"limits": "1000/day fixed", "clock": ManualClock(START_US), "store": MemoryStore(), **options}
    enforcer = Enforcer(None, told, asynchronous=kind in ASGI, routed=True)
    ask = enforcer.web_gate.decide_route if kind in ASGI else enforcer.web_gate.decide_view
    for given_ in history:
        came = ask(given_, "GET /each")
        try:
            request: Any = kind(given_)
            request.counted_as = "GET /each"
            decision: Any = enforcer.decide(request)
        except BAD:
            continue
        if came is None:
            assert decision is None or only_python_can_say(kind, given_) or len(str(given_)) > 64
        else:
            natively_decided, fields, key = came
            assert key == request.charge.key
            assert natively_decided.remaining == decision.remaining + 1
            assert fields == enforcer.passing_fields(natively_decided)


def django_requests() -> st.SearchStrategy[Any]:
    """Makes a request of Django, of either kind; what makes none raises one of BAD."""
    of_scopes = scopes().map(lambda scope: lambda: ASGIRequest(scope, BytesIO()))
    of_environs = environs().map(lambda environ: lambda: WSGIRequest({**environ, "wsgi.input": BytesIO()}))
    return of_scopes | of_environs


@given(policies(parsed=False), st.lists(django_requests(), min_size=1, max_size=8))
def test_a_request_of_django_is_read_alike_both_ways(policy: dict[str, Any], history: list[Any]) -> None:
    resolver = Resolver(read_policy(policy), Asked, "")
    native = cast(Any, core.native).NativeGate.of(resolver)
    gate = web_gate(
        native, ruleset=ALL_RULES, cost=1, kind=DjangoRequest, writes_fields=None, asynchronous=False, websockets=False
    )
    assert gate is not None
    for made in history:
        try:
            asked = DjangoRequest(made(), "GET /each")
            bound, operation, _, _ = resolver.resolve(asked, 1, ALL_RULES)
        except BAD:
            event("no request")
            continue
        came = None if asked.environ is None else gate.decide_view(asked.environ, asked.endpoint)
        event("left to Python" if came is None else "told natively")
        if came is not None:
            expected = bound.decide(None) if isinstance(bound, Settled) else bound.decide(operation)
            assert came[0] == expected if type(expected) is tuple else numbers(came[0]) == numbers(expected)
