"""What settings.HEADGATE says, for the middleware, for views and for throttles.

Those of both colours, sync and async, count in one store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import signature
from pkgutil import resolve_name
from typing import Any, cast

from django.conf import settings  # type: ignore[import-untyped]
from django.core.signals import setting_changed  # type: ignore[import-untyped]

from headgate.decorator import is_coroutine_function
from headgate.drive import answered
from headgate.errors import ConfigError, kind_of
from headgate.forks import ProcessLock
from headgate.http.server.counted_keys import address_rules
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.functions import OF_A_REQUEST, is_portable, takes
from headgate.http.server.gate_requests import GateRequests
from headgate.http.server.options import Answering, Options, RouteOptions, check_fallback
from headgate.http.server.routes import LimitsOfRoute, RouteLimits
from headgate.policy.client_address import UNIX
from headgate.policy.gate import AsyncGate, Gate, read_policy
from headgate.policy.request import Request
from headgate.stores.protocol import Store
from headgate.stores.url import open_store

_SITE = "site"
"""The scope of all requests that no other scope is told for."""

_BY_PATH = ("key", "exempt", "tier", "counts", "refusal", "on_decision", "cost", "fallback")
"""Options that may be the dotted path of a function."""

_SHARED = ("store", "clock", "headers", "refusal", "on_decision", "on_store_error", "key", "missing",
           "trusted_proxies", "trusted_hops", "address_header", "ipv6_prefix", "ipv6_wide")  # fmt: skip
"""Options that limits of views and throttles begin with, too."""

_SETTINGS = "settings.HEADGATE"

_OF_A_POLICY = (*Answering.__annotations__, "ruleset")
"""Options of the middleware that go with a policy."""

_OPTIONS = ("policy", "fallback", *Options.__annotations__, *RouteOptions.__annotations__)


class NotThereYet(ConfigError):
    """A function of a request asks on an event loop for what has to be awaited first; `load` awaits it."""

    def __init__(self, message: str, load: Callable[[], Awaitable[None]]) -> None:
        super().__init__(message)
        self.load = load


class Site:
    """Makes what judges the requests of a site, and opens the stores that it needs. Raises ConfigError."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if not isinstance(options, Mapping):
            raise ConfigError(
                f'settings.HEADGATE is a mapping, such as {{"limits": "100/minute"}}, not {kind_of(options)}'
            )
        for name in options:
            if name not in _OPTIONS:
                raise ConfigError(f"settings.HEADGATE has no option {name!r:.40}; there are {', '.join(_OPTIONS)}")
        self._options = {name: _function(name, value) for name, value in options.items()}
        self.fallback: Any = check_fallback(self._options.pop("fallback", None))
        """A view that answers what the middleware refuses."""

        self._stores: dict[str, Store] = {}
        shared = {name: value for name, value in self._options.items() if name in _SHARED}
        self._shared = cast(RouteOptions, _with_groups(shared))
        self._routes = {colour: RouteLimits(self._shared, asynchronous=colour) for colour in (False, True)}

    @property
    def is_awaited(self) -> bool:
        """Whether a function of the settings is to be awaited."""
        return any(map(is_coroutine_function, self._options.values()))

    def awaits(self, limits: LimitsOfRoute, options: RouteOptions) -> bool:
        """Whether a function of a view or a throttle is to be awaited, one of the settings included."""
        functions: list[Any] = [limits, *{**self._shared, **options}.values()]
        return any(map(is_coroutine_function, functions))

    def enforcer(self, limits: LimitsOfRoute, options: RouteOptions, *, asynchronous: bool) -> Enforcer:
        """What judges a view or a throttle."""
        store = options.get("store", self._options.get("store", "memory://"))
        own = cast(RouteOptions, {**_with_groups(options), "store": self._opened(store)})
        limits = _with_groups({"limits": limits})["limits"]
        enforcer = self._routes[asynchronous].enforcer(limits, own)
        if asynchronous:
            enforcer.ask = _asking_again(enforcer.ask)
        return enforcer

    def site_enforcer(self, *, asynchronous: bool, kind: type[Request] = Request) -> Enforcer | None:
        """What judges every request, of this kind; None where neither limits nor a policy are told."""
        options = dict(self._options)
        policy, limits = options.pop("policy", None), options.pop("limits", None)
        if policy is not None and limits is not None:
            raise ConfigError("settings.HEADGATE has a policy or limits, one of the two")
        alone = [name for name in options if name not in (*_SHARED, *_OF_A_POLICY)]
        if limits is None and alone:
            raise ConfigError(f"settings.HEADGATE[{alone[0]!r}] goes with limits; a policy says it itself")
        if policy is not None:
            own = _with_groups({name: options[name] for name in (*_OF_A_POLICY, "store") if name in options})
            if not isinstance(policy, Gate | AsyncGate):
                policy = read_policy(policy)
                own["store"] = self._opened(own.get("store", policy.store))
            if asynchronous:
                return _PolicyOnALoop(policy, cast(Options, own), kind)
            return Enforcer(policy, cast(Options, own), asynchronous=False, kind=kind, asked_by=_SETTINGS)
        if limits is None:
            return None
        return self.enforcer(limits, cast(RouteOptions, {"scope": _SITE, **options}), asynchronous=asynchronous)

    def client(self, request: Request, options: RouteOptions) -> str:
        """The address that a view or a throttle counts a request by where it has no other key."""
        rules = address_rules({**self._shared, **options})
        return rules.client(request.client_ip, request.headers.get(rules.header, "") if rules.header else "") or UNIX

    def close(self) -> None:
        """Close the stores that were opened here."""
        for store in self._stores.values():
            store.close()

    def _opened(self, store: str | Store) -> Store:
        if not isinstance(store, str):
            return store
        if store not in self._stores:
            self._stores[store] = open_store(store)
        return self._stores[store]


class CurrentSite:
    """The site of the settings as they are: read once, and again when they were changed."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self._lock = ProcessLock()
        self._site: Site | None = None

    def __call__(self) -> Site:
        with self._lock.current:
            if self._site is None:
                self._site = Site(self._read())
            return self._site

    def forget(self) -> None:
        """The settings were changed, as tests do: all begins anew."""
        with self._lock.current:
            self._site = None


def _function(name: str, value: Any) -> Any:
    """A function where its dotted path is told."""
    if name == "scope" and isinstance(value, str):
        return _function_named(value) or value
    if name not in _BY_PATH or not isinstance(value, str):
        return value
    try:
        return resolve_name(value)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"settings.HEADGATE[{name!r}]: {value!r:.80} is no function: {error}") from error


def _function_named(text: str) -> Any:
    """The function that a text is the dotted path of; None where it is another text."""
    try:
        named = resolve_name(text) if "." in text else None
    except (ImportError, AttributeError, ValueError):
        return None
    return named if callable(named) and not isinstance(named, type) else None


def _with_groups(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options, of which functions of a group and a request (django-ratelimit's) are functions of a request."""
    given = dict(options)
    for name in OF_A_REQUEST:
        function = given.get(name)
        if callable(function) and not is_portable(function) and _takes_a_group(function):
            given[name] = _of_group(function)
    return given


def _takes_a_group(function: Callable[..., Any]) -> bool:
    """Whether a function is one of a group and a request; the request may have a default."""
    if not takes(function, 2):
        return False
    return not (takes(function, 1) or takes(function, 0)) or _first_parameter(function) == "group"


def _first_parameter(function: Callable[..., Any]) -> str:
    try:
        return next(iter(signature(function).parameters), "")
    except (TypeError, ValueError):  # of some that are built in
        return ""


def _of_group(function: Callable[[str, Any], Any]) -> Callable[[Any], Any]:
    """The group is the dotted name of the view."""
    if is_coroutine_function(function):

        async def of_async(request: Any) -> Any:
            return await function(view_name_of(request), request)

        return of_async

    def of(request: Any) -> Any:
        return function(view_name_of(request), request)

    return of


def view_name_of(request: Any) -> str:
    """`shop.views.search`; "" where no view is known yet, or none is for it."""
    match = getattr(request, "resolver_match", None)
    if match is None:
        return ""
    view = getattr(match.func, "view_class", match.func)
    named = view if hasattr(view, "__qualname__") else type(view)
    return f"{named.__module__}.{named.__qualname__}"


class _PolicyOnALoop(Enforcer):
    """What judges by a policy on an event loop, and awaits what functions ask for, also once the policy is reloaded."""

    def __init__(self, policy: Any, options: Options, kind: type[Request]) -> None:
        super().__init__(policy, options, asynchronous=True, kind=kind, asked_by=_SETTINGS)
        self.ask = _asking_again(self.ask)

    def follow(self, source: GateRequests) -> None:
        """Ask what is to be asked under a policy that was just reloaded."""
        super().follow(source)
        self.ask = _asking_again(self.ask)


def _asking_again(ask: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Decide for a request, and on an event loop await what functions of it ask for."""

    async def ask_again(request: Request) -> Any:
        for _ in OF_A_REQUEST:  # each may ask for something, once
            try:
                return await answered(ask(request))
            except NotThereYet as error:  # nothing is charged before all functions have answered
                await error.load()
        return await answered(ask(request))

    return ask_again


def read_settings() -> Mapping[str, Any]:
    """settings.HEADGATE, as it is now."""
    options: Mapping[str, Any] = getattr(settings, "HEADGATE", {})
    return options


site = CurrentSite(read_settings)


def _forget(*, setting: str, **_: object) -> None:
    if setting == "HEADGATE":
        site.forget()


setting_changed.connect(_forget)
