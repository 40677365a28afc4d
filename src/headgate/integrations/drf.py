"""Rate limits of Django REST framework, as its throttles.

    class Burst(RateLimitThrottle):
        limits = "10/second burst 30"

    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["headgate.integrations.drf.RateLimitThrottle"],
                      "DEFAULT_THROTTLE_RATES": {"uploads": "10/min"}}

Stores, proxies and headers are those of settings.HEADGATE. REST framework calls all throttles of a view one after
another, even when one has refused; what is charged in vain is given back.
"""

from __future__ import annotations

import inspect
from collections import Counter
from functools import partial
from typing import Any, ClassVar, cast

from headgate.errors import ConfigError, MissingExtraError
from headgate.forks import ProcessLock
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.exchange import Judgement
from headgate.http.server.functions import portable, request_of, takes
from headgate.http.server.options import RouteOptions

try:
    import rest_framework.request  # type: ignore[import-untyped]
    from django.conf import settings  # type: ignore[import-untyped]
    from rest_framework.exceptions import APIException  # type: ignore[import-untyped]
    from rest_framework.settings import api_settings  # type: ignore[import-untyped]
    from rest_framework.throttling import BaseThrottle  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise MissingExtraError("the integration of Django REST framework", extra="drf") from error

from headgate.integrations.django import DjangoRequest, site, user
from headgate.integrations.django.exchange import DjangoExchange, begun, keep_from_caches
from headgate.integrations.django.routing import route_of
from headgate.integrations.django.site import Site


class RestRequest(DjangoRequest):
    """A request as throttles see it: `rest` is REST framework's, whose user counts, and `view` what it is for."""

    __slots__ = ("rest", "view")

    def __init__(self, rest: Any, view: Any, endpoint: str) -> None:
        super().__init__(rest._request, endpoint)
        self.rest = rest
        self.view = view

    @property
    def own(self) -> Any:
        """REST framework's, which functions of throttles are given."""
        return self.rest

    @property
    def user(self) -> Any:
        """The authenticated user, by REST framework's rules."""
        return self.rest.user


@request_of.register(rest_framework.request.Request)
def _(request: Any) -> RestRequest:
    return RestRequest(request, (request.parser_context or {}).get("view"), "")


class StoreUnavailable(APIException):  # type: ignore[misc]
    """The request could not be decided, and the configured choice is to refuse it: 503, never 429."""

    status_code = 503
    default_detail = "The rate limiter's store does not answer."
    default_code = "unavailable"


class RateLimitThrottle(BaseThrottle):  # type: ignore[misc]
    """A throttle with Headgate's limits: a subclass says which.

    Requests of an authenticated user are counted by primary key, all others by address, by the rules of
    settings.HEADGATE and never by the left end of a header.
    """

    limits: ClassVar[Any] = None
    """Limits, those of each tier, or a function of the request. None: those that `scope` names in settings."""

    scope: ClassVar[str] = ""
    """What is counted together. Without one, each route by itself; or the view's `throttle_scope`, which names
    limits in HEADGATE_THROTTLE_RATES or in REST framework's DEFAULT_THROTTLE_RATES."""

    key: ClassVar[Any] = staticmethod(user)
    """The key that is counted: a function of the request, or a method."""

    cost: ClassVar[Any] = 1
    """Units of a request: a number, a function of the request, or a method."""

    options: ClassVar[RouteOptions] = {}
    """Any other of `headgate.http.server.options.RouteOptions`.

    The answer is REST framework's: `refusal` changes nothing.
    """

    cache_format: ClassVar[str] = "throttle_%(scope)s_%(ident)s"
    """For a `key` that was a `get_cache_key`: as REST framework's throttles have it."""

    _judgement: Judgement | None = None

    def __init_subclass__(cls, **told: Any) -> None:
        """Raise ConfigError for what only REST framework's own throttles read: it would be ignored in silence."""
        super().__init_subclass__(**told)
        if cls.limits is None and getattr(cls, "rate", None) is not None:
            raise ConfigError(f"{cls.__qualname__}.rate is REST framework's, and limits nothing: write it as limits")
        if hasattr(cls, "get_cache_key") and cls.key is user and "key" not in cls.options:
            raise ConfigError(f"{cls.__qualname__}.get_cache_key is REST framework's, and never called: name it key")

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may pass. Raises StoreUnavailable where that could not be decided and means no."""
        enforcer, endpoint = self._enforcer_of(request, view)
        if enforcer is None or self._is_repeated(view):
            return True
        outer = begun(request._request)
        if outer is None and enforcer.settles:
            raise ConfigError(
                "counts of a throttle, and what is in flight, need RateLimitMiddleware: a throttle does not see the "
                "response"
            )
        exchange = _exchange_of(view) if outer is None else outer
        refused_before = exchange.is_refused
        asked = RestRequest(request, view, endpoint)
        self._judgement = judgement = exchange.judge(enforcer, asked, type(self), endpoint, environ=asked.environ)
        if refused_before and judgement.refusal is None:
            exchange.take_back()  # another throttle has refused: this one is not used
            return True
        if outer is None:
            _tell(view, exchange)
        decision = judgement.decision
        if judgement.refusal is not None and (decision is None or decision.degraded == "closed"):
            raise StoreUnavailable
        return judgement.refusal is None

    def wait(self) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]  # inferred to be None
        """Seconds until the request would pass, exactly; None where waiting does not help."""
        decision = None if self._judgement is None else self._judgement.decision
        return None if decision is None else decision.retry_after

    def get_ident(self, request: Any) -> str:
        """The address of the client, for a `key` that was a `get_cache_key`: by the rules of settings.HEADGATE.

        REST framework's own believes all of X-Forwarded-For where NUM_PROXIES does not say how many proxies there are.
        """
        if api_settings.NUM_PROXIES is not None:
            return str(super().get_ident(request))
        return site().client(RestRequest(request, None, ""), self.options)

    def _is_repeated(self, view: Any) -> bool:
        """Whether the view names this class several times, and it was asked already: it is one limit."""
        classes: list[Any] = list(getattr(view, "throttle_classes", ()))
        times = classes.count(type(self))
        if times < 2:
            return False
        asked = view.__dict__.setdefault("_headgate_asked", Counter())
        asked[type(self)] += 1
        return bool((asked[type(self)] - 1) % times)

    def _enforcer_of(self, request: Any, view: Any) -> tuple[Enforcer | None, str]:
        """What judges, None for nothing, and what the view's requests are counted under."""
        scope, rate = self.scope, None
        if self.limits is None:
            scope = scope or getattr(view, "throttle_scope", None) or ""
            rate = _rate(scope) if scope else None
            if rate is None:
                return None, ""
            if type(self) is not RateLimitThrottle and not self.scope:  # another class has a counter of its own
                scope = f"{scope} of {type(self).__qualname__}"
        endpoint = f"{type(self).__qualname__}: {_without_format(route_of(request._request))}"
        return _enforcers.of(type(self), rate, scope), endpoint


class _Enforcers:
    """What judges for each class of throttles, as long as the settings are the same."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._site: Site | None = None
        self._made: dict[Any, Enforcer] = {}

    def of(self, throttle: type[RateLimitThrottle], rate: str | None, scope: str) -> Enforcer:
        """For the limits that a scope has in settings, or without those for the throttle's own."""
        current = site()
        with self._lock.current:
            if self._site is not current:
                self._site, self._made = current, {}
            enforcer = self._made.get((throttle, rate, scope))
            if enforcer is None:
                told: dict[str, Any] = {"key": _function(throttle, "key"), "cost": _function(throttle, "cost")}
                if scope:
                    told["scope"] = f"throttle: {scope}"
                told.update(throttle.options)
                limits = _function(throttle, "limits") if rate is None else rate
                enforcer = current.enforcer(limits, cast(RouteOptions, told), asynchronous=False)
                self._made[throttle, rate, scope] = enforcer
            return enforcer


_enforcers = _Enforcers()


def _rate(scope: str) -> str | None:
    """The limits that settings name so; None where they are none."""
    own, usual = getattr(settings, "HEADGATE_THROTTLE_RATES", {}), api_settings.DEFAULT_THROTTLE_RATES
    for rates in cast(tuple[dict[str, str | None], ...], (own, usual)):
        if scope in rates:
            return rates[scope]
    raise ConfigError(
        f"no limits are given for the throttle scope {scope!r}: name them in settings.HEADGATE_THROTTLE_RATES "
        'or in REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]'
    )


def _function(throttle: type[RateLimitThrottle], name: str) -> Any:
    """An attribute as it is written in the class: a function of the request, or of it and the view, or a method."""
    told = inspect.getattr_static(throttle, name)
    if isinstance(told, staticmethod):
        told = told.__func__
    elif inspect.isfunction(told) and (takes(told, 3) or (takes(told, 2) and _is_method(told))):
        told = told.__get__(throttle())
    if not callable(told) or takes(told, 1) or not takes(told, 2):
        return told

    @portable
    def of(request: Any) -> Any:  # as REST framework calls `get_cache_key`
        return told(request.rest, request.view)

    return of


def _is_method(function: Any) -> bool:
    """Whether a function is written in a class, or as one of its methods: another has the request where `self` is."""
    owner = function.__qualname__.rpartition(".")[0]
    is_in_a_class = bool(owner) and not owner.endswith("<locals>")
    return is_in_a_class or next(iter(inspect.signature(function).parameters)) == "self"


def _exchange_of(view: Any) -> DjangoExchange:
    """The exchange of a view's throttles, where no middleware of ours sees the response."""
    exchange: DjangoExchange | None = getattr(view, "_headgate", None)
    if exchange is None:
        exchange = view._headgate = DjangoExchange()
    return exchange


def _tell(view: Any, exchange: DjangoExchange) -> None:
    """Let the view write what remains on its response, of whatever status; Retry-After is REST framework's."""
    before: dict[str, str] | None = getattr(view, "_headgate_told", None)
    for name in before or ():
        view.headers.pop(name, None)
    told: dict[str, str] = {}
    for name, value in exchange.fields():
        if name != "Retry-After":
            told.setdefault(name, value)
    view.headers.update(told)
    view._headgate_told = told
    if before is None:
        view.finalize_response = partial(_finalized, view)


def _finalized(view: Any, *args: Any, **kwargs: Any) -> Any:
    """The view's response, of which a cache keeps what is for all clients."""
    del view.finalize_response
    response = view.finalize_response(*args, **kwargs)
    keep_from_caches(response, list(view._headgate_told.items()))
    return response


def _without_format(route: str) -> str:
    """A route without the format that its path may end with: `/users.json` is the same limit as `/users`."""
    for suffix in (rf"\.(?P<{api_settings.FORMAT_SUFFIX_KWARG}>", "<drf_format_suffix"):
        route = route.partition(suffix)[0]
    return route.rstrip("$").rstrip("/?")
