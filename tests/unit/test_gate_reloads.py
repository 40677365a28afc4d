"""Middlewares follow the reloads of their gate, and a policy that one of them cannot use is refused as a whole."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from aiohttp import web
from litestar import Litestar

from headgate import AsyncGate, ConfigError, Gate, MemoryStore
from headgate.http import asgi, wsgi
from headgate.integrations.aiohttp import setup
from headgate.integrations.django.site import Site
from headgate.integrations.flask import RateLimitMiddleware as FlaskMiddleware
from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from headgate.integrations.litestar import RateLimitPlugin
from headgate.policy.request import Request

RULESETS = {"logins": ["login"], "other": ["login"]}


def policy(limits: str = "2/minute", rulesets: Any = None, rule: str = "login") -> dict[str, Any]:
    named = {} if rulesets is None else {"rulesets": rulesets}
    return {"version": 1, "rules": [{"name": rule, "by": ["ip"], "limits": limits}], **named}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b"answered"]


def response_field(app: Any, name: str = "RateLimit-Policy") -> str:
    """A header field of the response of a WSGI application."""
    fields: dict[str, str] = {}
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": "", "REMOTE_ADDR": "203.0.113.9"}
    list(app(environ, lambda status, headers: fields.update(headers)))
    return fields[name]


async def empty_application(scope: Any, receive: Any, send: Any) -> None: ...


def aiohttp_application(gate: AsyncGate, **options: Any) -> web.Application:
    app = web.Application()
    setup(app, gate, **options)
    return app


MIDDLEWARES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "RateLimitMiddleware of WSGI": (
        Gate,
        lambda gate, **options: wsgi.RateLimitMiddleware(application, policy=gate, **options),
    ),
    "RateLimitMiddleware of ASGI": (
        AsyncGate,
        lambda gate, **options: asgi.RateLimitMiddleware(empty_application, gate, **options),
    ),
    "RateLimitMiddleware of Flask": (
        Gate,
        lambda gate, **options: FlaskMiddleware(application, policy=gate, **options),
    ),
    "RateLimitMiddleware of aiohttp": (AsyncGate, aiohttp_application),
    "RateLimitPlugin": (AsyncGate, lambda gate, **options: Litestar(plugins=[RateLimitPlugin(gate, **options)])),
    "RateLimitInterceptor": (Gate, RateLimitInterceptor),
    "AsyncRateLimitInterceptor": (AsyncGate, AsyncRateLimitInterceptor),
    "settings.HEADGATE": (
        Gate,
        lambda gate, **options: Site({"policy": gate, **options}).site_enforcer(asynchronous=False),
    ),
}


@pytest.mark.parametrize("place", MIDDLEWARES)
def test_a_reload_without_a_ruleset_that_a_middleware_uses_is_refused_and_names_the_middleware(
    core: str, place: str
) -> None:
    gate_class, make = MIDDLEWARES[place]
    gate = gate_class(policy(rulesets=RULESETS), store=MemoryStore(core=core))  # type: ignore[arg-type]
    middleware = make(gate, ruleset="logins")
    name = place.split(" of ", maxsplit=1)[0]
    wrong = f"^{name} cannot use this policy: ruleset is one of the policy's, default, other, not 'logins'$"
    with pytest.raises(ConfigError, match=wrong):
        gate.reload(policy("9/minute", {"other": ["login"]}))
    assert "logins" in gate.policy.rulesets
    gate.reload(policy("9/minute", RULESETS))
    assert middleware is not None and gate.policy.rules[0].name == "login"


def test_the_old_policy_stays_in_force_when_a_reload_lacks_a_ruleset(core: str) -> None:
    gate = Gate(policy(rulesets=RULESETS), store=MemoryStore(core=core))  # type: ignore[arg-type]
    app = wsgi.RateLimitMiddleware(application, policy=gate, ruleset="logins")
    other = wsgi.RateLimitMiddleware(application, policy=gate)
    with pytest.raises(ConfigError, match="not 'logins'"):
        gate.reload(policy("9/minute"))
    assert [response_field(app, "RateLimit-Policy"), response_field(other)] == ['"login";q=2;w=60'] * 2
    assert gate.peek(Request(client_ip="203.0.113.9"), 0).remaining == 0


def test_a_reload_that_does_not_count_the_unit_of_a_cost_is_refused(core: str) -> None:
    gate = Gate(policy("2/minute; 9 tokens/minute"), store=MemoryStore(core=core))  # type: ignore[arg-type]
    app = wsgi.RateLimitMiddleware(application, policy=gate, cost={"tokens": 3})
    with pytest.raises(ConfigError, match=r"^RateLimitMiddleware cannot use this policy: cost is \{'tokens': 3\}: no "):
        gate.reload(policy())
    assert 'qu="tokens"' in response_field(app)


def test_a_middleware_that_was_freed_blocks_no_reload_and_is_forgotten(core: str) -> None:
    gate = Gate(policy(rulesets=RULESETS), store=MemoryStore(core=core))  # type: ignore[arg-type]
    app = wsgi.RateLimitMiddleware(application, policy=gate, ruleset="logins")
    assert (len(gate.before_reload), len(gate.reloaded)) == (1, 1)
    del app
    gc.collect()
    gate.reload(policy())
    assert (gate.before_reload, gate.reloaded) == ([], [])


def test_concurrent_reloads_leave_all_middlewares_under_one_policy(core: str) -> None:
    gate = Gate(policy(), store=MemoryStore(core=core))  # type: ignore[arg-type]
    seen: list[str] = []
    others: list[threading.Thread] = []

    def follow() -> None:
        before = gate.policy
        if not others:
            others.append(threading.Thread(target=gate.reload, args=(policy("7/minute"),)))
            others[0].start()
            others[0].join(0.2)  # it waits until the middlewares follow this reload
        seen.append("same" if gate.policy is before else "another")

    gate.reloaded.append(follow)
    app = wsgi.RateLimitMiddleware(application, policy=gate)
    gate.reload(policy("5/minute"))
    others[0].join()
    assert seen == ["same", "same"]
    assert response_field(app) == '"login";q=7;w=60'


@pytest.mark.parametrize("options", [{}, {"exempt": lambda request: False}])
def test_a_request_that_arrives_during_a_reload_is_decided_by_one_of_the_two_policies(core: str, options: Any) -> None:
    gate = Gate(policy("9/minute"), store=MemoryStore(core=core))  # type: ignore[arg-type]
    policies = ["2 concurrent", "9/minute", "2 concurrent; 9/minute", "8/minute"]
    policy_fields: list[str] = []
    gate.reloaded.append(lambda: policy_fields.append(response_field(app)))  # before the middleware follows
    app = wsgi.RateLimitMiddleware(application, policy=gate, **options)
    for limits in policies:
        gate.reload(policy(limits))
    assert len(policy_fields) == len(policies)


class ReloadedMeanwhile(Gate):
    """A gate that is reloaded when its policy in force is read for the second time, as by another thread."""

    reloads: tuple[Any, ...] = ()

    def in_force(self) -> Any:
        current = super().in_force()
        if self.reloads:
            first, *self.reloads = self.reloads  # type: ignore[assignment]
            if first is not None:
                self.reload(first)
        return current


def test_a_middleware_that_is_created_during_a_reload_follows_it(core: str) -> None:
    gate = ReloadedMeanwhile(policy(rulesets=RULESETS), store=MemoryStore(core=core))  # type: ignore[arg-type]
    gate.reloads = (None, policy("2 concurrent"))
    app = wsgi.RateLimitMiddleware(application, policy=gate)
    assert response_field(app) == '"login";q=2;qu="concurrent-requests"'
    gate.reload(policy(rulesets=RULESETS))
    gate.reloads = (None, policy("9/minute"))
    with pytest.raises(ConfigError, match="not 'logins'"):
        wsgi.RateLimitMiddleware(application, policy=gate, ruleset="logins")


def test_a_reload_hook_may_reload_as_a_signal_handler_does(core: str) -> None:
    gate = Gate(policy(), store=MemoryStore(core=core))  # type: ignore[arg-type]
    pending = [policy("7/minute")]

    def reload_again() -> None:
        if pending:
            gate.reload(pending.pop())

    gate.reloaded.append(reload_again)
    gate.reload(policy("5/minute"))
    assert response_field(wsgi.RateLimitMiddleware(application, policy=gate)) == '"login";q=7;w=60'
