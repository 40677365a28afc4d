"""The limits of settings.HEADGATE, for the middleware, for views and for throttles.

Sync and async ones count in one store.
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
from headgate.http.server.functions import REQUEST_FUNCTIONS, is_portable, takes
from headgate.http.server.gate_requests import GateRequests
from headgate.http.server.options import Answering, Options, RouteOptions, check_fallback
from headgate.http.server.routes import LimitsOfRoute, RouteLimits
from headgate.policy.client_address import UNIX
from headgate.policy.gate import AsyncGate, Gate, read_policy
from headgate.policy.request import Request
from headgate.stores.protocol import Store
from headgate.stores.url import open_store

_SITE = "site"
"""The scope of all requests for which no other scope is set."""

_BY_PATH = ("key", "exempt", "tier", "counts", "refusal", "on_decision", "cost", "fallback")
"""Options that may be the dotted path of a function."""

_SHARED = ("store", "clock", "headers", "refusal", "on_decision", "on_store_error", "key", "missing",
           "trusted_proxies", "trusted_hops", "address_header", "ipv6_prefix", "ipv6_wide")  # fmt: skip
"""Options that are the defaults of views and throttles, too."""

_SETTINGS = "settings.HEADGATE"

_OF_A_POLICY = (*Answering.__annotations__, "ruleset")
"""Options of the middleware that may be combined with a policy."""

_OPTIONS = tuple(dict.fromkeys(("policy", "fallback", *Options.__annotations__, *RouteOptions.__annotations__)))


class NotLoaded(ConfigError):
    """A function of a request needs a value that has to be awaited on an event loop; `load` awaits it."""

    def __init__(self, message: str, load: Callable[[], Awaitable[None]]) -> None:
        super().__init__(message)
        self.load = load


class Site:
    """Makes the enforcers of a site's requests, and opens their stores. Raises ConfigError."""

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
        """A view that answers requests which the middleware refuses."""

        self._stores: dict[str, Store] = {}
        shared = {name: value for name, value in self._options.items() if name in _SHARED}
        self._shared = cast(RouteOptions, _with_groups(shared))
        self._routes = {is_async: RouteLimits(self._shared, asynchronous=is_async) for is_async in (False, True)}

    @property
    def has_async_functions(self) -> bool:
        """Whether a function of the settings is a coroutine function."""
        return any(map(is_coroutine_function, self._options.values()))

    def is_async(self, limits: LimitsOfRoute, options: RouteOptions) -> bool:
        """Whether a view or a throttle with these limits has a coroutine function, one of the settings included."""
        functions: list[Any] = [limits, *{**self._shared, **options}.values()]
        return any(map(is_coroutine_function, functions))

    def enforcer(self, limits: LimitsOfRoute, options: RouteOptions, *, asynchronous: bool) -> Enforcer:
        """Return the enforcer of a view or a throttle."""
        store = options.get("store", self._options.get("store", "memory://"))
        own = cast(RouteOptions, {**_with_groups(options), "store": self._opened(store)})
        limits = _with_groups({"limits": limits})["limits"]
        enforcer = self._routes[asynchronous].enforcer(limits, own)
        if asynchronous:
            enforcer.decide = _deciding_again(enforcer.decide)
        return enforcer

    def site_enforcer(self, *, asynchronous: bool, kind: type[Request] = Request) -> Enforcer | None:
        """Return the enforcer of all requests, of this kind; None where neither limits nor a policy are set."""
        options = dict(self._options)
        named = [name for name in ("policy", "limits") if name in options]
        policy, limits = options.pop("policy", None), options.pop("limits", None)
        if named and policy is None and limits is None:  # perhaps from an environment variable that is not set
            raise ConfigError(
                f"settings.HEADGATE[{named[0]!r}] is None, which limits nothing: leave it out if only views are limited"
            )
        if policy is not None and limits is not None:
            raise ConfigError("settings.HEADGATE has a policy or limits, one of the two")
        of_limits = [name for name in options if name not in (*_SHARED, *_OF_A_POLICY)]
        if limits is None and of_limits:
            raise ConfigError(f"settings.HEADGATE[{of_limits[0]!r}] goes with limits; a policy defines it itself")
        if policy is not None:
            own = _with_groups({name: options[name] for name in (*_OF_A_POLICY, "store") if name in options})
            if not isinstance(policy, Gate | AsyncGate):
                policy = read_policy(policy)
                own["store"] = self._opened(own.get("store", policy.store))
            if asynchronous:
                return _AsyncPolicyEnforcer(policy, cast(Options, own), kind)
            return Enforcer(policy, cast(Options, own), asynchronous=False, kind=kind, owner_name=_SETTINGS)
        if limits is None:
            return None
        return self.enforcer(limits, cast(RouteOptions, {"scope": _SITE, **options}), asynchronous=asynchronous)

    def client(self, request: Request, options: RouteOptions) -> str:
        """Return the address by which a view or a throttle counts a request that has no other key."""
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
    """The site of the current settings: read once, and again when they have changed."""

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
        """Forget the site since the settings have changed, as in tests: the next call reads them, and counts afresh."""
        with self._lock.current:
            self._site = None


def _function(name: str, value: Any) -> Any:
    """Return the function that an option gives by its dotted path; any other value as it is."""
    if name == "scope" and isinstance(value, str):
        return _function_named(value) or value
    if name not in _BY_PATH or not isinstance(value, str):
        return value
    try:
        return resolve_name(value)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"settings.HEADGATE[{name!r}]: {value!r:.80} is no function: {error}") from error


def _function_named(text: str) -> Any:
    """Return the function whose dotted path a text is; None for any other text."""
    try:
        target = resolve_name(text) if "." in text else None
    except (ImportError, AttributeError, ValueError):
        return None
    return target if callable(target) and not isinstance(target, type) else None


def _with_groups(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose functions of a group and a request (django-ratelimit's) became functions of a request."""
    converted = dict(options)
    for name in REQUEST_FUNCTIONS:
        function = converted.get(name)
        if callable(function) and not is_portable(function) and _takes_a_group(function):
            converted[name] = _of_group(function)
    return converted


def _takes_a_group(function: Callable[..., Any]) -> bool:
    """Whether a function takes a group and a request; the request may have a default."""
    if not takes(function, 2):
        return False
    return not (takes(function, 1) or takes(function, 0)) or _first_parameter(function) == "group"


def _first_parameter(function: Callable[..., Any]) -> str:
    try:
        return next(iter(signature(function).parameters), "")
    except (TypeError, ValueError):  # some built-in functions have no signature
        return ""


def _of_group(function: Callable[[str, Any], Any]) -> Callable[[Any], Any]:
    """Return a function of a request that passes the dotted name of the view as the group."""
    if is_coroutine_function(function):

        async def of_async(request: Any) -> Any:
            return await function(view_name_of(request), request)

        return of_async

    def of(request: Any) -> Any:
        return function(view_name_of(request), request)

    return of


def view_name_of(request: Any) -> str:
    """Return `shop.views.search`; "" where no view is known yet, or the request has none."""
    match = getattr(request, "resolver_match", None)
    if match is None:
        return ""
    view = getattr(match.func, "view_class", match.func)
    owner = view if hasattr(view, "__qualname__") else type(view)
    return f"{owner.__module__}.{owner.__qualname__}"


class _AsyncPolicyEnforcer(Enforcer):
    """Judges by a policy on an event loop, and awaits what its functions need, also once the policy is reloaded."""

    def __init__(self, policy: Any, options: Options, kind: type[Request]) -> None:
        super().__init__(policy, options, asynchronous=True, kind=kind, owner_name=_SETTINGS)
        self.decide = _deciding_again(self.decide)

    def follow(self, source: GateRequests) -> None:
        """Judge by a policy that was just reloaded."""
        super().follow(source)
        self.decide = _deciding_again(self.decide)


def _deciding_again(decide: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Return a `decide` for an event loop that awaits the values which functions of the request need, and retries."""

    async def decide_again(request: Request) -> Any:
        for _ in REQUEST_FUNCTIONS:  # each function may need a value, once
            try:
                return await answered(decide(request))
            except NotLoaded as error:  # nothing is charged before all functions have returned
                await error.load()
        return await answered(decide(request))

    return decide_again


def read_settings() -> Mapping[str, Any]:
    """Return the current settings.HEADGATE."""
    options: Mapping[str, Any] = getattr(settings, "HEADGATE", {})
    return options


site = CurrentSite(read_settings)


def _forget(*, setting: str, **_: object) -> None:
    if setting == "HEADGATE":
        site.forget()


setting_changed.connect(_forget)
