"""Rate limits of Django REST framework, as its throttles.

    class Burst(RateLimitThrottle):
        limits = "10/second burst 30"

    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["headgate.integrations.drf.RateLimitThrottle"],
                      "DEFAULT_THROTTLE_RATES": {"uploads": "10/min"}}

Stores, proxies and headers are those of settings.HEADGATE. REST framework calls all throttles of a view one after
another, even when one has refused; the charges of a refused request are given back.
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
    """A request as throttles see it: `rest` is REST framework's request, whose user counts, and `view` its view."""

    __slots__ = ("rest", "view")

    def __init__(self, rest: Any, view: Any, endpoint: str) -> None:
        super().__init__(rest._request, endpoint)
        self.rest = rest
        self.view = view

    @property
    def own(self) -> Any:
        """REST framework's request, which functions of throttles are passed."""
        return self.rest

    @property
    def user(self) -> Any:
        """The authenticated user, by REST framework's rules."""
        return self.rest.user


@request_of.register(rest_framework.request.Request)
def _(request: Any) -> RestRequest:
    return RestRequest(request, (request.parser_context or {}).get("view"), "")


class StoreUnavailable(APIException):  # type: ignore[misc]
    """The store gave no decision, and the configuration is to refuse the request then: 503, never 429."""

    status_code = 503
    default_detail = "The rate limiter's store does not answer."
    default_code = "unavailable"


class RateLimitThrottle(BaseThrottle):  # type: ignore[misc]
    """A throttle with Headgate's limits, which a subclass defines.

    Requests of an authenticated user are counted by primary key, all others by address. The address follows the rules
    of settings.HEADGATE; it is never the left end of a header.
    """

    limits: ClassVar[Any] = None
    """Limits, those of each tier, or a function of the request. None: those that `scope` names in settings."""

    scope: ClassVar[str] = ""
    """The requests that are counted together; without a scope, those of each route. Where `limits` is None, the scope,
    or else the view's `throttle_scope`, names limits in HEADGATE_THROTTLE_RATES or in REST framework's
    DEFAULT_THROTTLE_RATES."""

    key: ClassVar[Any] = staticmethod(user)
    """The key by which requests are counted: a function of the request, or a method."""

    cost: ClassVar[Any] = 1
    """Units of a request: a number, a function of the request, or a method."""

    options: ClassVar[RouteOptions] = {}
    """Any other of `headgate.http.server.options.RouteOptions`.

    REST framework makes the response: `refusal` changes nothing.
    """

    cache_format: ClassVar[str] = "throttle_%(scope)s_%(ident)s"
    """The attribute of REST framework's throttles, for a `key` that was a `get_cache_key`."""

    _judgement: Judgement | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise ConfigError for attributes that only REST framework's throttles read: they would have no effect."""
        super().__init_subclass__(**options)
        if cls.limits is None and getattr(cls, "rate", None) is not None:
            raise ConfigError(f"{cls.__qualname__}.rate is REST framework's, and limits nothing: write it as limits")
        if hasattr(cls, "get_cache_key") and cls.key is user and "key" not in cls.options:
            raise ConfigError(f"{cls.__qualname__}.get_cache_key is REST framework's, and never called: name it key")

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may pass. Raises StoreUnavailable where the store does not answer and that means no."""
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
        subject = RestRequest(request, view, endpoint)
        self._judgement = judgement = exchange.judge(enforcer, subject, type(self), endpoint, environ=subject.environ)
        if refused_before and judgement.refusal is None:
            exchange.take_back()  # another throttle has refused: this one charges nothing
            return True
        if outer is None:
            _add_fields(view, exchange)
        decision = judgement.decision
        if judgement.refusal is not None and (decision is None or decision.degraded == "closed"):
            raise StoreUnavailable
        return judgement.refusal is None

    def wait(self) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]  # inferred to be None
        """Return the exact number of seconds until the request would pass; None where waiting does not help."""
        decision = None if self._judgement is None else self._judgement.decision
        return None if decision is None else decision.retry_after

    def get_ident(self, request: Any) -> str:
        """Return the address of the client by the rules of settings.HEADGATE, for a `key` that was a `get_cache_key`.

        REST framework's own method trusts all of X-Forwarded-For unless NUM_PROXIES is the number of proxies.
        """
        if api_settings.NUM_PROXIES is not None:
            return str(super().get_ident(request))
        return site().client(RestRequest(request, None, ""), self.options)

    def _is_repeated(self, view: Any) -> bool:
        """Whether the view names this class several times and it was called before: that is one limit."""
        classes: list[Any] = list(getattr(view, "throttle_classes", ()))
        times = classes.count(type(self))
        if times < 2:
            return False
        calls = view.__dict__.setdefault("_headgate_calls", Counter())
        calls[type(self)] += 1
        return bool((calls[type(self)] - 1) % times)

    def _enforcer_of(self, request: Any, view: Any) -> tuple[Enforcer | None, str]:
        """Return the enforcer, None where nothing is limited, and the name under which the view's requests count."""
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
    """The enforcer of each class of throttles, as long as the settings are the same."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._site: Site | None = None
        self._made: dict[Any, Enforcer] = {}

    def of(self, throttle: type[RateLimitThrottle], rate: str | None, scope: str) -> Enforcer:
        """Return the enforcer of `rate`, the limits that a scope has in the settings, or else of the throttle's own."""
        current = site()
        with self._lock.current:
            if self._site is not current:
                self._site, self._made = current, {}
            enforcer = self._made.get((throttle, rate, scope))
            if enforcer is None:
                options: dict[str, Any] = {"key": _function(throttle, "key"), "cost": _function(throttle, "cost")}
                if scope:
                    options["scope"] = f"throttle: {scope}"
                options.update(throttle.options)
                limits = _function(throttle, "limits") if rate is None else rate
                enforcer = current.enforcer(limits, cast(RouteOptions, options), asynchronous=False)
                self._made[throttle, rate, scope] = enforcer
            return enforcer


_enforcers = _Enforcers()


def _rate(scope: str) -> str | None:
    """Return the limits that the settings have for a scope; None where that is their value. Raises ConfigError."""
    own, usual = getattr(settings, "HEADGATE_THROTTLE_RATES", {}), api_settings.DEFAULT_THROTTLE_RATES
    for rates in cast(tuple[dict[str, str | None], ...], (own, usual)):
        if scope in rates:
            return rates[scope]
    raise ConfigError(
        f"no limits are given for the throttle scope {scope!r}: name them in settings.HEADGATE_THROTTLE_RATES "
        'or in REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]'
    )


def _function(throttle: type[RateLimitThrottle], name: str) -> Any:
    """Return an attribute of the class: a value, or a function of the request made of its function or method.

    The function in the class may take the request, or the request and the view.
    """
    value = inspect.getattr_static(throttle, name)
    if isinstance(value, staticmethod):
        value = value.__func__
    elif inspect.isfunction(value) and (takes(value, 3) or (takes(value, 2) and _is_method(value))):
        value = value.__get__(throttle())
    if not callable(value) or takes(value, 1) or not takes(value, 2):
        return value

    @portable
    def of(request: Any) -> Any:  # as REST framework calls `get_cache_key`
        return value(request.rest, request.view)

    return of


def _is_method(function: Any) -> bool:
    """Whether a function is a method: written in a class, or with `self` first. Any other has the request first."""
    owner = function.__qualname__.rpartition(".")[0]
    is_in_a_class = bool(owner) and not owner.endswith("<locals>")
    return is_in_a_class or next(iter(inspect.signature(function).parameters)) == "self"


def _exchange_of(view: Any) -> DjangoExchange:
    """Return the exchange of a view's throttles, where RateLimitMiddleware does not see the response."""
    exchange: DjangoExchange | None = getattr(view, "_headgate", None)
    if exchange is None:
        exchange = view._headgate = DjangoExchange()
    return exchange


def _add_fields(view: Any, exchange: DjangoExchange) -> None:
    """Have the view add the fields to its response, whatever its status; Retry-After is REST framework's."""
    before: dict[str, str] | None = getattr(view, "_headgate_added", None)
    for name in before or ():
        view.headers.pop(name, None)
    added: dict[str, str] = {}
    for name, value in exchange.fields():
        if name != "Retry-After":
            added.setdefault(name, value)
    view.headers.update(added)
    view._headgate_added = added
    if before is None:
        view.finalize_response = partial(_finalized, view)


def _finalized(view: Any, *args: Any, **kwargs: Any) -> Any:
    """Finalize the view's response; caches store it without the fields that were added for its client."""
    del view.finalize_response
    response = view.finalize_response(*args, **kwargs)
    keep_from_caches(response, list(view._headgate_added.items()))
    return response


def _without_format(route: str) -> str:
    """Return a route without the format at its end: `/users.json` has the same limit as `/users`."""
    for suffix in (rf"\.(?P<{api_settings.FORMAT_SUFFIX_KWARG}>", "<drf_format_suffix"):
        route = route.partition(suffix)[0]
    return route.rstrip("$").rstrip("/?")
