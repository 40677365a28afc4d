"""Limits of a whole Litestar application, with 429 in OpenAPI, and stores closed with the application."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NotRequired, TypedDict, Unpack

from litestar.openapi.datastructures import ResponseSpec
from litestar.plugins import InitPlugin, ReceiveRoutePlugin

from headgate.errors import ConfigError, check_flag
from headgate.http.refusal import PROBLEM_JSON
from headgate.http.server.asgi_messages import ASGIApp, Message, Scope, Watch, encode_fields, encode_refusal
from headgate.http.server.exchange import Judgement
from headgate.http.server.options import Options, Refusal, length_of
from headgate.http.server.routes import ApplicationEnforcers, application_enforcers
from headgate.http.server.scope_exchange import exchange_of
from headgate.integrations.litestar.limits import RateLimit, RateLimits, is_exempt_handler, limits_of, rate_limit
from headgate.integrations.litestar.request import LitestarRequest, application_of
from headgate.policy.gate import AnyPolicy, AsyncGate

_ALL = "*"
"""The name under which all requests of an application count."""

_REFUSED = "headgate.refused"

EXEMPT: Mapping[str, Any] = {"headgate_exempt": True}
"""Excludes a layer from limits: `Router("/health", route_handlers=[...], opt=EXEMPT)`."""

Problem = TypedDict(
    "Problem",
    {
        "type": str,
        "title": str,
        "status": int,
        "detail": str,
        "retry-after-ms": NotRequired[int],
        "violated-policies": list[str],
    },
)
"""The body of a refusal (RFC 9457)."""

REFUSED: dict[int, ResponseSpec] = {
    429: ResponseSpec(Problem, generate_examples=False, description="Too Many Requests", media_type=PROBLEM_JSON)
}
"""The response of a refusal: `responses=REFUSED` documents it in OpenAPI where no RateLimitPlugin does."""


class PluginOptions(Options, total=False):
    """Options of an application's limits: `Options` and `scope`."""

    scope: str | Callable[..., str]
    """The requests that are counted together, where `limits` are given [all of the application]."""


class RateLimitPlugin(InitPlugin, ReceiveRoutePlugin):
    """Limits a whole application, documents 429 in its OpenAPI, and closes stores with it.

    Pass a `policy` (a file's path, its values, a Policy or an AsyncGate), or `limits`, which count all requests of a
    client together, or neither. Requests without a route (404, 405) are limited, too, and with `websockets`
    handshakes. `rate_limits` are the limits of its routes. Raises ConfigError or PolicyError.
    """

    def __init__(
        self,
        policy: AnyPolicy | AsyncGate | None = None,
        *,
        rate_limits: RateLimits = rate_limit,
        websockets: bool = False,
        fallback: ASGIApp | None = None,
        **options: Unpack[PluginOptions],
    ) -> None:
        check_flag("websockets", websockets)
        self._rate_limits = rate_limits
        self._limit: RateLimit | None = None
        if policy is not None or options:
            # Limits are judged as those of one route: a refusal by a narrower limit gives back what these charged.
            enforcers = application_enforcers(policy, options, "RateLimitPlugin")
            self._limit = RateLimit(enforcers, fallback=fallback, websockets=websockets, counted_as=_ALL)
        elif websockets or fallback is not None:
            raise ConfigError("options of an application go with its limits or its policy")

    def on_app_init(self, app_config: Any) -> Any:
        """Add the limit and the life of the stores to an application; called by Litestar."""
        if self._limit is not None:
            app_config.middleware.insert(0, self._limit)
            app_config.before_send.append(_Unrouted(self._limit.enforcers))
            app_config.on_startup.append(self._limit.enforcers.any.warm_up_async)
            app_config.on_shutdown.append(self._limit.enforcers.any.aclose)
        app_config.on_startup.append(self._rate_limits.warm_up)
        app_config.on_shutdown.append(self._rate_limits.aclose)
        return app_config

    def receive_route(self, route: Any) -> None:
        """Document 429 for the handlers of a route that are limited; called by Litestar."""
        for handler in getattr(route, "route_handlers", ()):
            applying = [limit for limit in limits_of(handler) if not is_exempt_handler(handler)]
            if applying and hasattr(handler, "responses"):
                handler.responses = {**REFUSED, **(handler.responses or {})}


class _Unrouted:
    """Judges requests without a route: Litestar answers them before any middleware, so their response is replaced."""

    def __init__(self, enforcers: ApplicationEnforcers) -> None:
        self._enforcers = enforcers

    async def __call__(self, message: Message, scope: Scope) -> None:
        if "route_handler" in scope or scope["type"] != "http":
            return
        if message["type"] == "http.response.start":
            exchange = exchange_of(scope)
            enforcer = self._enforcers.of(application_of(scope))
            judged = exchange.judge_route(enforcer, scope, LitestarRequest, "", self, _ALL)
            judgement = judged if isinstance(judged, Judgement) else await judged
            if judgement.refusal is None:
                watch = Watch(partial(_update, message), exchange.encoded_fields, head=scope["method"] == "HEAD")
                await watch.send(message)
                await exchange.end_async(watch.response())
            else:
                scope[_REFUSED] = _replace(message, judgement.refusal, head=scope["method"] == "HEAD")
        elif message["type"] == "http.response.body" and _REFUSED in scope:
            message["body"] = scope[_REFUSED]


async def _update(message: Message, completed: Message) -> None:
    """Update a message that Litestar is about to send."""
    message.update(completed)


def _replace(message: Message, refusal: Refusal, *, head: bool) -> bytes:
    """Turn the head of another response into a refusal's, with its CORS headers; return the refusal's body."""
    retained = [
        (name, value) for name, value in message["headers"] if name.startswith(b"access-control-") or name == b"vary"
    ]
    message["status"] = refusal.status
    message["headers"] = [*retained, *encode_refusal(refusal), *encode_fields(length_of(refusal))]
    return b"" if head else refusal.body
