"""What asks a gate follows its reloads, and a policy that it could not ask is refused as a whole."""

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


def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b"answered"]


def field_of(app: Any, name: str = "RateLimit-Policy") -> str:
    """A field of what a WSGI application answers."""
    told: dict[str, str] = {}
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": "", "REMOTE_ADDR": "203.0.113.9"}
    list(app(environ, lambda status, headers: told.update(headers)))
    return told[name]


async def nothing(scope: Any, receive: Any, send: Any) -> None: ...


def aiohttp_application(gate: AsyncGate, **told: Any) -> web.Application:
    app = web.Application()
    setup(app, gate, **told)
    return app


MADE: dict[str, tuple[Any, Callable[..., Any]]] = {
    "RateLimitMiddleware of WSGI": (Gate, lambda gate, **told: wsgi.RateLimitMiddleware(answer, policy=gate, **told)),
    "RateLimitMiddleware of ASGI": (AsyncGate, lambda gate, **told: asgi.RateLimitMiddleware(nothing, gate, **told)),
    "RateLimitMiddleware of Flask": (Gate, lambda gate, **told: FlaskMiddleware(answer, policy=gate, **told)),
    "RateLimitMiddleware of aiohttp": (AsyncGate, aiohttp_application),
    "RateLimitPlugin": (AsyncGate, lambda gate, **told: Litestar(plugins=[RateLimitPlugin(gate, **told)])),
    "RateLimitInterceptor": (Gate, RateLimitInterceptor),
    "AsyncRateLimitInterceptor": (AsyncGate, AsyncRateLimitInterceptor),
    "settings.HEADGATE": (Gate, lambda gate, **told: Site({"policy": gate, **told}).site_enforcer(asynchronous=False)),
}


@pytest.mark.parametrize("place", MADE)
def test_a_reload_without_the_ruleset_that_something_names_is_refused_and_says_what_names_it(
    core: str, place: str
) -> None:
    kind, make = MADE[place]
    gate = kind(policy(rulesets=RULESETS), store=MemoryStore(core=core))  # type: ignore[arg-type]
    made = make(gate, ruleset="logins")
    name = place.split(" of ", maxsplit=1)[0]
    wrong = f"^{name} cannot use this policy: ruleset is one of the policy's, default, other, not 'logins'$"
    with pytest.raises(ConfigError, match=wrong):
        gate.reload(policy("9/minute", {"other": ["login"]}))
    assert "logins" in gate.policy.rulesets
    gate.reload(policy("9/minute", RULESETS))
    assert made is not None and gate.policy.rules[0].name == "login"


def test_the_old_policy_goes_on_deciding_where_a_reload_lacks_a_ruleset(core: str) -> None:
    gate = Gate(policy(rulesets=RULESETS), store=MemoryStore(core=core))  # type: ignore[arg-type]
    app = wsgi.RateLimitMiddleware(answer, policy=gate, ruleset="logins")
    other = wsgi.RateLimitMiddleware(answer, policy=gate)
    with pytest.raises(ConfigError, match="not 'logins'"):
        gate.reload(policy("9/minute"))
    assert [field_of(app, "RateLimit-Policy"), field_of(other)] == ['"login";q=2;w=60'] * 2
    assert gate.peek(Request(client_ip="203.0.113.9"), 0).remaining == 0


def test_a_reload_that_does_not_count_the_unit_of_a_cost_is_refused(core: str) -> None:
    gate = Gate(policy("2/minute; 9 tokens/minute"), store=MemoryStore(core=core))  # type: ignore[arg-type]
    app = wsgi.RateLimitMiddleware(answer, policy=gate, cost={"tokens": 3})
    with pytest.raises(ConfigError, match=r"^RateLimitMiddleware cannot use this policy: cost is \{'tokens': 3\}: no "):
        gate.reload(policy())
    assert 'qu="tokens"' in field_of(app)


def test_what_is_gone_names_no_ruleset_any_more_and_is_forgotten(core: str) -> None:
    gate = Gate(policy(rulesets=RULESETS), store=MemoryStore(core=core))  # type: ignore[arg-type]
    app = wsgi.RateLimitMiddleware(answer, policy=gate, ruleset="logins")
    assert (len(gate.before_reload), len(gate.reloaded)) == (1, 1)
    del app
    gc.collect()
    gate.reload(policy())
    assert (gate.before_reload, gate.reloaded) == ([], [])


def test_reloads_at_the_same_time_leave_all_that_asks_under_one_policy(core: str) -> None:
    gate = Gate(policy(), store=MemoryStore(core=core))  # type: ignore[arg-type]
    seen: list[str] = []
    others: list[threading.Thread] = []

    def follow() -> None:
        before = gate.policy
        if not others:
            others.append(threading.Thread(target=gate.reload, args=(policy("7/minute"),)))
            others[0].start()
            others[0].join(0.2)  # it waits until this reload has been followed
        seen.append("same" if gate.policy is before else "another")

    gate.reloaded.append(follow)
    app = wsgi.RateLimitMiddleware(answer, policy=gate)
    gate.reload(policy("5/minute"))
    others[0].join()
    assert seen == ["same", "same"]
    assert field_of(app) == '"login";q=7;w=60'


@pytest.mark.parametrize("options", [{}, {"exempt": lambda request: False}])
def test_a_request_that_comes_amid_a_reload_is_decided_by_one_of_both_policies(core: str, options: Any) -> None:
    gate = Gate(policy("9/minute"), store=MemoryStore(core=core))  # type: ignore[arg-type]
    policies = ["2 concurrent", "9/minute", "2 concurrent; 9/minute", "8/minute"]
    told: list[str] = []
    gate.reloaded.append(lambda: told.append(field_of(app)))  # before the middleware follows
    app = wsgi.RateLimitMiddleware(answer, policy=gate, **options)
    for limits in policies:
        gate.reload(policy(limits))
    assert len(told) == len(policies)


class ReloadedMeanwhile(Gate):
    """A gate that is reloaded as it is asked for the second time which policy is in force, as by another thread."""

    coming: tuple[Any, ...] = ()

    def in_force(self) -> Any:
        came = super().in_force()
        if self.coming:
            first, *self.coming = self.coming  # type: ignore[assignment]
            if first is not None:
                self.reload(first)
        return came


def test_a_middleware_that_is_made_amid_a_reload_follows_it(core: str) -> None:
    gate = ReloadedMeanwhile(policy(rulesets=RULESETS), store=MemoryStore(core=core))  # type: ignore[arg-type]
    gate.coming = (None, policy("2 concurrent"))
    app = wsgi.RateLimitMiddleware(answer, policy=gate)
    assert field_of(app) == '"login";q=2;qu="concurrent-requests"'
    gate.reload(policy(rulesets=RULESETS))
    gate.coming = (None, policy("9/minute"))
    with pytest.raises(ConfigError, match="not 'logins'"):
        wsgi.RateLimitMiddleware(answer, policy=gate, ruleset="logins")


def test_a_reload_may_reload_as_a_handler_of_a_signal_does(core: str) -> None:
    gate = Gate(policy(), store=MemoryStore(core=core))  # type: ignore[arg-type]
    orders = [policy("7/minute")]

    def reload_again() -> None:
        if orders:
            gate.reload(orders.pop())

    gate.reloaded.append(reload_again)
    gate.reload(policy("5/minute"))
    assert field_of(wsgi.RateLimitMiddleware(answer, policy=gate)) == '"login";q=7;w=60'
