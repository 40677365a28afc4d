"""Limits of single routes, in any framework: one store for all of them, and which endpoints are exempt.

    limits = RouteLimits({"store": "redis://10.0.0.5/0"}, asynchronous=True)
    enforcer = limits.enforcer("10/second", {"key": api_key()})

Each integration has an adapter over it. A route counts by itself, under its whole template; limits with one
`scope` count together. Limits that name no store count in one that belongs to the application.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, Unpack, cast

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.decorator import markable
from headgate.drive import check_asyncio
from headgate.errors import ConfigError
from headgate.http.server.attached_values import Attached
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.held_request import NEEDS_ASYNCIO
from headgate.http.server.options import Of, Options, RouteOptions, check_limits, check_names
from headgate.http.server.web_gates import NOWHERE
from headgate.limiter import AnyLimits
from headgate.policy.gate import AnyPolicy, AsyncGate
from headgate.stores.protocol import Store, warm_up_async
from headgate.stores.url import open_store

F = TypeVar("F", bound=Callable[..., Any])

LimitsOfRoute = AnyLimits | Mapping[str, AnyLimits | None] | Of[AnyLimits | None]
"""Limits, those of each tier, or a function that gives those of a request; None: not limited."""

_MEMORY = "memory://"
MISSING_LIMITS: Any = None
"""The default for the limits of `rate_limit()`, which raises an error; to type checkers the limits are required."""

_EXEMPT = "__headgate_exempt__"

DEPTH = "__headgate_depth__"
"""The attribute of an endpoint with the number of limits that it has already."""

OVERRIDE = "__headgate_override__"
"""The attribute of an endpoint, view or blueprint whose limits replace wider ones."""


class RoutePlace(NamedTuple):
    """The place of a limit before a route: the enforcer for its requests, and the name under which they count."""

    enforcer: Enforcer
    template: str
    place_id: object
    """See `Enforcer.counter_name`, also for `counted_as`."""

    counted_as: str
    gate: Any
    """The native gate, for requests that no other limit has judged; None where Python decides."""

    clock: Clock | None
    """The clock that gives the time of a charge; None for the system clock."""

    endpoint: object
    """The endpoint of the route; None where none was found."""


def route_place(
    enforcer: Enforcer, template: str, place_id: object, counted_as: str = "", *, endpoint: object = None
) -> RoutePlace:
    """Return the place of a limit before a route: its requests count under `counted_as`, or else the template."""
    clock = None if enforcer.clock is SYSTEM_CLOCK else enforcer.clock
    return RoutePlace(
        enforcer, template, place_id, counted_as or template or NOWHERE, enforcer.web_gate, clock, endpoint
    )


class ApplicationEnforcers:
    """The enforcers of one limit, by application: where no store is named, each application has a store of its own."""

    __slots__ = ("_by_application", "_make", "any")

    def __init__(self, make: Callable[[object], Enforcer], *, apart: bool) -> None:
        self._make = make
        self._by_application: Attached[Enforcer] | None = Attached() if apart else None
        self.any = make(None)
        """The enforcer for all applications, or for requests whose application is not known."""

    def of(self, application: object) -> Enforcer:
        """Return the enforcer for an application, or an object that lives as long; None for an unknown application."""
        if self._by_application is None or application is None:
            return self.any
        return self._by_application.of(application, lambda: self._make(application))


class RouteLimits:
    """Makes the enforcers of single routes. `defaults` are options of each; a route's own options override them.

    All limits of an application that name no store count in a store of its own, in memory, which ends with it.
    """

    def __init__(self, defaults: RouteOptions, *, asynchronous: bool) -> None:
        check_names(defaults, RouteOptions.__annotations__)
        self._defaults = defaults
        self._asynchronous = asynchronous
        self._opened: dict[str, Store] = {}
        self._own: Attached[Store] = Attached()

    def enforcers(self, limits: LimitsOfRoute, options: RouteOptions) -> ApplicationEnforcers:
        """Return the enforcers of routes, one for each application. Raises ConfigError."""

        def make(application: object) -> Enforcer:
            if application is None:
                return self.enforcer(limits, options)
            own = self._own.of(application, lambda: open_store(_MEMORY))
            return self.enforcer(limits, {**options, "store": own})

        return ApplicationEnforcers(make, apart="store" not in self._defaults and "store" not in options)

    def enforcer(self, limits: LimitsOfRoute, options: RouteOptions) -> Enforcer:
        """`enforcers` where there is one application."""
        check_limits(limits)
        merged = {**self._defaults, **options, "limits": limits}
        store = merged.get("store", _MEMORY)
        if isinstance(store, str):
            merged["store"] = self._open(store)
        return Enforcer(None, cast(RouteOptions, merged), asynchronous=self._asynchronous, routed=True)

    def close(self) -> None:
        """Close the stores that were opened here by URL, except those in memory; a later decision opens them again."""
        for store in self._opened.values():
            if not store.in_process:
                store.close()

    async def warm_up_async(self) -> None:
        """Have the stores that were opened here connect before the first request."""
        for store in list(self._opened.values()):
            if store.blocking:
                check_asyncio(NEEDS_ASYNCIO)
            await warm_up_async(store)

    async def aclose(self) -> None:
        """`close` on an event loop."""
        for store in list(self._opened.values()):
            if not store.in_process:
                await store.aclose()

    def _open(self, url: str) -> Store:
        store = self._opened.get(url)
        if store is None:
            store = self._opened[url] = open_store(url)
        return store


class AsyncRouteLimits:
    """The base of the `RateLimits` of asyncio frameworks: options for all their limits, and one store."""

    def __init__(self, **defaults: Unpack[RouteOptions]) -> None:
        self.routes = RouteLimits(defaults, asynchronous=True)

    async def warm_up(self) -> None:
        """Have the stores that were opened here connect before the first request."""
        await self.routes.warm_up_async()

    async def aclose(self) -> None:
        """Close the stores that were opened here."""
        await self.routes.aclose()


def application_enforcers(
    policy: AnyPolicy | AsyncGate | None, options: Options | RouteOptions, owner_name: str
) -> ApplicationEnforcers:
    """Return the enforcers of an asyncio middleware, one for each application, by a policy or by limits.

    `owner_name` is the middleware's name in messages.
    """

    def make(application: object) -> Enforcer:
        own = options if application is None else cast(Options, {**options, "store": _MEMORY})
        return Enforcer(policy, own, asynchronous=True, routed=policy is None, owner_name=owner_name)

    return ApplicationEnforcers(make, apart=policy is None and "store" not in options)


def check_endpoint(endpoint: object) -> None:
    """Raise ConfigError for the argument of a decorator that was written without its limit: a request."""
    if not callable(endpoint):
        raise ConfigError(
            f'rate_limit is written with its limit, as @rate_limit("10/second"); this is no view: {endpoint!r:.60}'
        )


def exempt(endpoint: F) -> F:
    """Mark a view, handler or endpoint as exempt from limits of its application, blueprint or router.

    Of a bound method the returned function is marked, which is the one to register.
    """
    marked = markable(endpoint)
    setattr(marked, _EXEMPT, True)
    return marked


def is_exempt(endpoint: object) -> bool:
    """Whether an endpoint was marked as exempt."""
    return bool(getattr(endpoint, _EXEMPT, False))


def is_excluded_endpoint(endpoint: object) -> bool:
    """Whether wider limits do not apply to an endpoint: it is exempt, or its own limits replace them."""
    return is_exempt(endpoint) or bool(getattr(endpoint, OVERRIDE, False))
