"""Limits of a Flask application, of its blueprints and of its views."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from inspect import iscoroutinefunction
from itertools import takewhile
from typing import Any, TypeVar, Unpack, cast
from weakref import WeakSet

import flask
from flask import current_app
from flask.signals import request_finished, request_tearing_down
from werkzeug.exceptions import HTTPException, default_exceptions

from headgate.decision import Decision
from headgate.drive import is_on_asyncio
from headgate.errors import ConfigError, check_flag
from headgate.http.server.options import Refusal, RouteOptions, check_fallback
from headgate.http.server.routes import (
    DEPTH,
    MISSING_LIMITS,
    OVERRIDE,
    ApplicationEnforcers,
    LimitsOfRoute,
    RouteLimits,
    check_endpoint,
)
from headgate.http.server.routes import exempt as _exempt
from headgate.integrations.flask.app_settings import AppSettings, settings_of
from headgate.integrations.flask.exchange import current_exchange, end_failed, leave_to_response
from headgate.integrations.flask.placement import watch_place
from headgate.integrations.flask.request import FlaskRequest
from headgate.integrations.flask.routing import (
    View,
    blueprints_of_request,
    is_excluded,
    is_static,
    method_of,
    template_of,
)

Limited = TypeVar("Limited", bound=Callable[..., Any] | flask.Blueprint)


class RateLimits:
    """Limits of an application, its blueprints and its views. All count in one store.

    Called with limits it is a decorator of views, below `@app.route`, and of blueprints. `default` limits each route
    of the application by itself, and all requests without a route together; static files only with `static`.
    `fallback` is a view that answers instead of a refusal. `options` are the defaults of all limits, see
    `headgate.http.server.options.RouteOptions`.

    All limits of a request apply together: a refusal gives back what other limits had charged. A refusal is raised as
    werkzeug's TooManyRequests (or the exception of its status), which holds the whole response, so an error handler
    of the application may answer instead; its attribute `decision` is the decision. Raises ConfigError for arguments
    that cannot be used.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        default: LimitsOfRoute | None = None,
        *,
        static: bool = False,
        fallback: View | None = None,
        **options: Unpack[RouteOptions],
    ) -> None:
        self._options = options
        self._static = check_flag("static", static)
        self._limits: WeakSet[_Limit] = WeakSet()
        self._routes = self._own_routes = RouteLimits(options, asynchronous=False)
        self._all_routes: WeakSet[RouteLimits] = WeakSet((self._routes,))
        self._fallback = check_fallback(fallback)
        self._default = None if default is None else self._limit(default, {}, fallback)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask, default: LimitsOfRoute | None = None, **options: Unpack[RouteOptions]) -> None:
        """Apply the default limits to an application.

        `default` and `options` are those of this application, also for views that are already decorated: they replace
        those of the constructor, and those passed earlier for this application. With `options` its counts start afresh.
        Applications that are not initialized use the options that were passed last.
        """
        known = settings_of(app)
        settings = earlier = known.get(self) or AppSettings(self._options, self._own_routes, self._default)
        if options:
            settings = earlier.replaced(options)
            bound = [(limit, settings.enforcers_of(limit)) for limit in self._limits]
            self._all_routes.add(settings.routes)
            self._routes = settings.routes
            for limit, enforcers in bound:
                limit.enforcers = enforcers
        if default is not None:
            settings.set_default(_Limit(self, default, {}, self._fallback))
        if self not in known:
            app.before_request(self._before_request)
        known[self] = settings
        if settings is not earlier and earlier.routes is not self._own_routes:
            earlier.routes.close()

    def __call__(
        self,
        limits: LimitsOfRoute = MISSING_LIMITS,
        *,
        override: bool = False,
        fallback: View | None = None,
        **options: Unpack[RouteOptions],
    ) -> Callable[[Limited], Limited]:
        """Return a decorator that limits a view, each of its routes by itself, or all routes of a blueprint.

        With `override` the limits of the application do not apply, nor, on a view, those of its blueprint. Several
        decorators apply together.
        """
        check_flag("override", override)
        limit = self._limit(limits, options, fallback)

        def decorate(limited: Limited) -> Limited:
            if isinstance(limited, flask.Blueprint):
                _limit_routes(limited, limit, override=override)
                return cast(Limited, limited)
            return cast(Limited, _limited(limited, limit, override=override))

        return decorate

    def limit_blueprint(
        self,
        blueprint: flask.Blueprint,
        limits: LimitsOfRoute,
        *,
        override: bool = False,
        fallback: View | None = None,
        **options: Unpack[RouteOptions],
    ) -> None:
        """Set limits on all routes of a blueprint and of those inside it, each route by itself."""
        if not isinstance(blueprint, flask.Blueprint):
            raise ConfigError(f"limit_blueprint limits a flask.Blueprint, not {blueprint!r:.60}")
        self(limits, override=override, fallback=fallback, **options)(blueprint)

    @staticmethod
    def exempt(endpoint: Limited) -> Limited:
        """Exclude a view, a view class or a blueprint from default and blueprint limits."""
        return _exempt(endpoint)  # type: ignore[type-var]  # it marks any object

    def close(self) -> None:
        """Close the stores that were opened here."""
        for routes in list(self._all_routes):
            routes.close()

    def _limit(self, limits: LimitsOfRoute, options: RouteOptions, fallback: View | None) -> _Limit:
        limit = _Limit(self, limits, options, fallback)
        limit.enforcers = limit.bound_to(self._routes)
        self._limits.add(limit)
        return limit

    def enforcers_of(self, limit: _Limit, app: flask.Flask) -> ApplicationEnforcers:
        """Return the enforcers of a limit by the options of an application."""
        settings = settings_of(app).get(self)
        return limit.enforcers if settings is None else settings.enforcers_of(limit)

    def _before_request(self) -> Any:
        default = settings_of(current_app)[self].default
        if default is None or (not self._static and is_static()) or is_excluded(blueprints_of_request()):
            return None
        template = template_of()
        place = f"application: {template}"
        return default.check(self, template, place, (), flask.request.view_args or {})


class _Limit:
    """The limits, options and fallback of one decorator."""

    enforcers: ApplicationEnforcers
    """Those for applications that are not initialized, by the options that were passed last."""

    def __init__(self, owner: RateLimits, limits: LimitsOfRoute, options: RouteOptions, fallback: View | None) -> None:
        self._owner = owner
        self._limits = limits
        self._options = options
        self._fallback = check_fallback(fallback)

    def bound_to(self, routes: RouteLimits) -> ApplicationEnforcers:
        """Return the enforcers of the limit by the options of `routes`. Raises ConfigError."""
        enforcers = routes.enforcers(self._limits, self._options)
        if enforcers.any.settles:
            request_finished.connect(leave_to_response)
            request_tearing_down.connect(end_failed)
        return enforcers

    def check(
        self, place_id: object, endpoint: str, counted_as: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return None where this request may pass, else the answer of the fallback; without one, raise the refusal."""
        environ = flask.request.environ
        exchange = current_exchange()
        app: flask.Flask = current_app._get_current_object()  # type: ignore[attr-defined]
        enforcer = self._owner.enforcers_of(self, app).of(app)
        judgement = exchange.judge(enforcer, FlaskRequest(environ, endpoint), place_id, counted_as, environ=environ)
        if judgement.refusal is None:
            return None
        if self._fallback is None:
            raise exception_of(judgement.refusal, judgement.decision)
        exchange.by_fallback = True
        answer = current_app.ensure_sync(self._fallback)(*args, **kwargs)
        if answer is None:  # returned by `before_request`, it would let the request pass
            name = getattr(self._fallback, "__qualname__", repr(self._fallback))
            raise TypeError(f"the fallback {name} of {endpoint} returned None: it must return a response")
        return answer


def exception_of(refusal: Refusal, decision: Decision | None) -> HTTPException:
    """Return the exception that carries a refusal: werkzeug's of its status, or else a plain HTTPException."""
    response = current_app.response_class(refusal.body, refusal.status, refusal.headers)
    exception = default_exceptions.get(refusal.status, HTTPException)(response=response)
    exception.decision = decision  # type: ignore[attr-defined]
    return exception


def _limited(view: View, limit: _Limit, *, override: bool) -> View:
    """Return a view that is called where the limit lets the request pass."""
    check_endpoint(view)
    if isinstance(view, type):
        raise ConfigError(
            f"{view.__qualname__} is a class: it is limited by `decorators = [rate_limit(...)]` inside it"
        )
    depth = getattr(view, DEPTH, 0)
    is_async = iscoroutinefunction(view)
    method = method_of(view)

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        endpoint = template_of(method)
        place = f"{endpoint} ({depth + 1})" if depth else endpoint
        return limit.check(limited, endpoint, place, args, kwargs)

    async def limited_async(args: Any, kwargs: Any) -> Any:
        """Check and call the view, for an async decorator that awaits it on its own event loop."""
        answer = await asyncio.to_thread(check, args, kwargs)
        return await view(*args, **kwargs) if answer is None else answer

    @functools.wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        if is_async and is_on_asyncio():
            return limited_async(args, kwargs)
        answer = check(args, kwargs)
        if answer is not None:
            return answer
        return current_app.ensure_sync(view)(*args, **kwargs) if is_async else view(*args, **kwargs)

    setattr(limited, DEPTH, depth + 1)
    if override:
        setattr(limited, OVERRIDE, True)
    if not method:
        watch_place(limited, view)
    return limited


def _limit_routes(blueprint: flask.Blueprint, limit: _Limit, *, override: bool) -> None:
    """Apply a limit to the routes of a blueprint."""
    depth = getattr(blueprint, DEPTH, 0)
    setattr(blueprint, DEPTH, depth + 1)
    if override:
        setattr(blueprint, OVERRIDE, True)

    def before_request() -> Any:
        inside = list(takewhile(lambda inner: inner is not blueprint, blueprints_of_request()))
        if is_excluded(inside):
            return None
        name = flask.request.blueprints[len(inside)]
        template = template_of()
        place = f"{name} ({depth + 1}): {template}"
        return limit.check(before_request, template, place, (), flask.request.view_args or {})

    blueprint.before_request(before_request)


rate_limit = RateLimits()
"""Limits of views and blueprints that count in the memory of each application."""

exempt = RateLimits.exempt
