"""Limits of single routes, in any framework: one store for all of them, and which requests are left out.

    limits = RouteLimits({"store": "redis://10.0.0.5/0"}, asynchronous=True)
    enforcer = limits.enforcer("10/second", {"key": api_key()})

Each integration has a skin of its own over it. A route counts by itself, under its whole template; what is
told in `scope` counts together. What no store is named for counts in one that belongs to the application.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, Unpack, cast

from headgate.clock import SYSTEM_CLOCK, Clock
from headgate.drive import check_asyncio
from headgate.errors import ConfigError
from headgate.http.server.attached import Attached
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.held import NEEDS_ASYNCIO
from headgate.http.server.options import Of, Options, RouteOptions, check_limits, check_names
from headgate.http.server.web_gates import NOWHERE
from headgate.limiter import AnyLimits
from headgate.policy.gate import AnyPolicy, AsyncGate
from headgate.stores.protocol import Store, warm_up_async
from headgate.stores.url import open_store

F = TypeVar("F", bound=Callable[..., Any])

LimitsOfRoute = AnyLimits | Mapping[str, AnyLimits | None] | Of[AnyLimits | None]
"""Limits, those of each tier, or what gives those of a request; None: not limited."""

_MEMORY = "memory://"
NO_LIMITS: Any = None
"""What stands for the limits of `rate_limit()`, which is told what it lacks; to type checkers they are needed."""

_EXEMPT = "__headgate_exempt__"

DEPTH = "__headgate_depth__"
"""The attribute of an endpoint that says how many limits stand before it already."""

OVERRIDE = "__headgate_override__"
"""The attribute of an endpoint, view or blueprint whose limits stand for wider ones."""


class RoutePlace(NamedTuple):
    """Where a limit stands before a route: what judges the requests that come there, and under what they count."""

    enforcer: Enforcer
    template: str
    by: object
    """See `Enforcer.apart`, also for `counted_as`."""

    counted_as: str
    gate: Any
    """What decides natively where no other limit has judged the request; None where Python decides."""

    clock: Clock | None
    """By which that is noted; None for the system clock."""

    endpoint: object
    """What answers the requests of the route; None where none was found."""


def route_place(
    enforcer: Enforcer, template: str, by: object, counted_as: str = "", *, endpoint: object = None
) -> RoutePlace:
    """The place of a limit before a route: its requests count under `counted_as`, or else under the template."""
    clock = None if enforcer.clock is SYSTEM_CLOCK else enforcer.clock
    return RoutePlace(enforcer, template, by, counted_as or template or NOWHERE, enforcer.web_gate, clock, endpoint)


class ApplicationEnforcers:
    """What judges by one limit, in each application: where no store is named, they count in the application's own."""

    __slots__ = ("_made", "_make", "any")

    def __init__(self, make: Callable[[object], Enforcer], *, apart: bool) -> None:
        self._make = make
        self._made: Attached[Enforcer] | None = Attached() if apart else None
        self.any = make(None)
        """The one for all applications, or for requests whose application is not known."""

    def of(self, application: object) -> Enforcer:
        """The one for an application, or for what lives exactly as long; None where it is not known."""
        if self._made is None or application is None:
            return self.any
        return self._made.of(application, lambda: self._make(application))


class RouteLimits:
    """Makes what judges single routes. `defaults` are options of each; a route's own stand before them.

    All limits of an application that name no store count in one of its own, in memory, which ends with it.
    """

    def __init__(self, defaults: RouteOptions, *, asynchronous: bool) -> None:
        check_names(defaults, RouteOptions.__annotations__)
        self._defaults = defaults
        self._asynchronous = asynchronous
        self._opened: dict[str, Store] = {}
        self._own: Attached[Store] = Attached()

    def enforcers(self, limits: LimitsOfRoute, options: RouteOptions) -> ApplicationEnforcers:
        """What judges the requests of routes, in each application. Raises ConfigError."""

        def make(application: object) -> Enforcer:
            if application is None:
                return self.enforcer(limits, options)
            own = self._own.of(application, lambda: open_store(_MEMORY))
            return self.enforcer(limits, {**options, "store": own})

        return ApplicationEnforcers(make, apart="store" not in self._defaults and "store" not in options)

    def enforcer(self, limits: LimitsOfRoute, options: RouteOptions) -> Enforcer:
        """`enforcers` where there is one application."""
        check_limits(limits)
        given = {**self._defaults, **options, "limits": limits}
        store = given.get("store", _MEMORY)
        if isinstance(store, str):
            given["store"] = self._open(store)
        return Enforcer(None, cast(RouteOptions, given), asynchronous=self._asynchronous, routed=True)

    def close(self) -> None:
        """Close the stores that were opened here by name, but no memory; a limit that asks again opens them again."""
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
    """What the `RateLimits` of asyncio frameworks have in common: options for all their limits, and one store."""

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
    """What judges all that an asyncio application answers, by a policy or by limits; several may be given it.

    `owner_name` is what users know it by.
    """

    def make(application: object) -> Enforcer:
        own = options if application is None else cast(Options, {**options, "store": _MEMORY})
        return Enforcer(policy, own, asynchronous=True, routed=policy is None, owner_name=owner_name)

    return ApplicationEnforcers(make, apart=policy is None and "store" not in options)


def check_endpoint(endpoint: object) -> None:
    """Raise ConfigError for what a decorator is given where it was written without its limit: a request."""
    if not callable(endpoint):
        raise ConfigError(
            f'rate_limit is written with its limit, as @rate_limit("10/second"); this is no view: {endpoint!r:.60}'
        )


def exempt(endpoint: F) -> F:
    """Mark a view, handler or endpoint as one that limits of its application, blueprint or router leave out."""
    setattr(endpoint, _EXEMPT, True)
    return endpoint


def is_exempt(endpoint: object) -> bool:
    """Whether an endpoint was marked so."""
    return bool(getattr(endpoint, _EXEMPT, False))


def is_excluded_endpoint(endpoint: object) -> bool:
    """Whether wider limits leave an endpoint out: it is exempt, or its own limits stand for them."""
    return is_exempt(endpoint) or bool(getattr(endpoint, OVERRIDE, False))
