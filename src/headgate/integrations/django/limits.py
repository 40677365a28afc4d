"""Limits of Django's views, sync and async."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest  # type: ignore[import-untyped]

from headgate.drive import answered, is_on_asyncio
from headgate.errors import ConfigError, check_flag
from headgate.http.server.enforcer import Enforcer
from headgate.http.server.options import Refusal, RouteOptions, check_fallback, check_limits
from headgate.http.server.routes import DEPTH, MISSING_LIMITS, OVERRIDE, LimitsOfRoute, check_endpoint
from headgate.http.server.routes import exempt as _exempt
from headgate.integrations.django.exchange import DjangoExchange, opened
from headgate.integrations.django.refusals import answer_refusal, answer_refusal_async
from headgate.integrations.django.request import DjangoRequest, each_route
from headgate.integrations.django.routing import marked, route_of
from headgate.integrations.django.site import Site, site

View = TypeVar("View", bound=Callable[..., Any])

_METHODS = ("get", "post", "put", "patch", "delete", "head", "options", "trace")


def rate_limit(
    limits: LimitsOfRoute = MISSING_LIMITS,
    *,
    override: bool = False,
    fallback: Callable[..., Any] | None = None,
    **options: Unpack[RouteOptions],
) -> Callable[[View], View]:
    """Return a decorator that limits a view: each of its routes by itself, all methods together.

    For classes use `method_decorator`: `name="dispatch"` limits all methods together, `name="post"` that method
    by itself. With `override` the limits of HEADGATE do not apply. `fallback` is a view that answers
    instead of a refusal. Several decorators apply together: a refusal gives back what others charged.
    Options that are not passed here are those of HEADGATE. Raises ConfigError.
    """
    check_limits(limits)
    check_flag("override", override)
    check_fallback(fallback)
    limit = _Limit(limits, options, fallback)

    def decorate(view: View) -> View:
        check_endpoint(view)
        return cast(View, _limited(view, limit, override=override))

    return decorate


def exempt(view: View) -> View:
    """Exclude a view or a view class from the limits of HEADGATE."""
    marked.set()
    return _exempt(view)


class _Limit:
    """The limits, options and fallback of one decorator."""

    def __init__(self, limits: LimitsOfRoute, options: RouteOptions, fallback: Callable[..., Any] | None) -> None:
        self._limits = limits
        self._options = options
        if options.get("scope") is each_route:  # the same as no scope
            del self._options["scope"]
        self.fallback = fallback
        self._enforcers: tuple[Site, dict[bool, Enforcer]] | None = None

    def enforcer(self, *, asynchronous: bool) -> Enforcer:
        """Return the enforcer for the current site."""
        current = site()
        if self._enforcers is None or self._enforcers[0] is not current:
            self._enforcers = (current, {})
        enforcers = self._enforcers[1]
        if asynchronous not in enforcers:
            enforcers[asynchronous] = current.enforcer(self._limits, self._options, asynchronous=asynchronous)
        return enforcers[asynchronous]

    def judge(
        self, exchange: DjangoExchange, request: Any, place_id: object, endpoint: str, counted_as: str
    ) -> Refusal | None:
        """Return the refusal of a request, None where it passes; judged in this thread."""
        subject = DjangoRequest(request, endpoint)
        enforcer = self.enforcer(asynchronous=False)
        return exchange.judge(enforcer, subject, place_id, counted_as, environ=subject.environ).refusal

    async def judge_async(
        self, exchange: DjangoExchange, request: Any, place_id: object, endpoint: str, counted_as: str
    ) -> Refusal | None:
        """`judge` on an event loop."""
        # Under WSGI an event loop lives as long as its request: there a thread judges, whose connections remain open.
        if not hasattr(request, "scope") and not site().is_async(self._limits, self._options):
            return await sync_to_async(self.judge)(exchange, request, place_id, endpoint, counted_as)
        subject = DjangoRequest(request, endpoint, asynchronous=True)
        enforcer = self.enforcer(asynchronous=True)
        return (await exchange.judge_async(enforcer, subject, place_id, counted_as, subject.environ)).refusal


def _limited(view: Callable[..., Any], limit: _Limit, *, override: bool) -> Callable[..., Any]:
    """Return a view that is called where the limit lets the request pass.

    Django's method_decorator calls this for every request.
    """
    if isinstance(view, type):
        raise ConfigError(
            f'{view.__qualname__} is a class: it is limited by @method_decorator(rate_limit(...), name="dispatch")'
        )
    depth = getattr(view, DEPTH, 0)
    is_async, is_method = iscoroutinefunction(view), _is_method(view)
    method = _name_of(view) if is_method else ""
    limit.enforcer(asynchronous=is_async)  # raises now for options that cannot be used

    def place_of(request: Any) -> tuple[object, str, str]:
        """Return what identifies the place of the limit, its endpoint, and the name under which it counts."""
        endpoint = route_of(request, method)
        return (limit, _function_of(view)), endpoint, f"{endpoint} ({depth + 1})" if depth else endpoint

    @functools.wraps(view)
    async def limited_async(*args: Any, **kwargs: Any) -> Any:
        request = _request_in(args)
        exchange, begins_here = opened(request)
        try:
            refusal = await limit.judge_async(exchange, request, *place_of(request))
            if refusal is None:
                response = await answered(view(*args, **kwargs))
            else:
                response = await answer_refusal_async(request, limit.fallback, refusal, args, kwargs)
        except BaseException as error:
            if begins_here:
                del request._headgate
                await exchange.fail_async(error)
            raise
        if begins_here:
            del request._headgate
            return await exchange.finish_async(request, response)
        return response

    @functools.wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        if is_method and (is_on_asyncio() or _is_of_async_class(view, args)):
            return limited_async(*args, **kwargs)  # `dispatch` of an async class is no coroutine function
        request = _request_in(args)
        exchange, begins_here = opened(request)
        try:
            refusal = limit.judge(exchange, request, *place_of(request))
            if refusal is None:
                response = view(*args, **kwargs)
            else:
                response = answer_refusal(request, limit.fallback, refusal, args, kwargs)
        except BaseException as error:
            if begins_here:
                del request._headgate
                exchange.fail(error)
            raise
        if begins_here:
            del request._headgate
            return exchange.finish(request, response)
        return response

    wrapper = limited_async if is_async else limited
    setattr(wrapper, DEPTH, depth + 1)
    if override:
        marked.set()
        setattr(wrapper, OVERRIDE, True)
    return wrapper


def _request_in(args: tuple[Any, ...]) -> Any:
    """Return the request that a view is passed, after `self` in a method; for one of REST framework's, Django's own."""
    for argument in args[:2]:
        request = getattr(argument, "_request", argument)
        if isinstance(request, HttpRequest):
            return request
    raise TypeError("rate_limit stands before views, which are given a request first")


def _function_of(view: Any) -> Any:
    """Return the function of a view; method_decorator makes a method of it for every request."""
    while isinstance(view, functools.partial):
        view = view.func
    return getattr(view, "__func__", view)


def _is_method(view: Callable[..., Any]) -> bool:
    owner = getattr(view, "__qualname__", "").rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>")


def _name_of(method: Callable[..., Any]) -> str:
    """Return the HTTP method that a class's method answers by itself, `GET` for `get`; "" for one that answers all."""
    name: str = method.__name__
    return "" if name == "dispatch" else name.upper() if name in _METHODS else name


def _is_of_async_class(method: Any, args: tuple[Any, ...]) -> bool:
    """Whether a method belongs to a class of async views: bound by method_decorator, or called with `self`."""
    while hasattr(method, "__wrapped__") and not isinstance(method, functools.partial):
        method = method.__wrapped__  # the method inside other decorators
    owner = getattr(getattr(method, "func", method), "__self__", args[0] if args else None)
    return bool(getattr(owner, "view_is_async", False))
