"""Rate limits of Flask's views, blueprints and whole applications.

    @app.get("/search")
    @rate_limit("10/second")
    def search(): ...

    limits = RateLimits(app, default="100/minute", store="redis://10.0.0.5/0")

A view is judged in the worker's own thread, an async one before its event loop begins: no loop is ever
blocked. What is told on a response is kept with its request, so nothing has to be wired.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import iscoroutinefunction
from itertools import takewhile
from typing import Any, TypeVar, Unpack, cast
from weakref import WeakSet

from headgate.decision import Decision
from headgate.errors import ConfigError, MissingExtraError
from headgate.http import wsgi
from headgate.http.server.enforcer import judge
from headgate.http.server.functions import request_of
from headgate.http.server.options import Refusal, Response, RouteOptions
from headgate.http.server.routes import NONE_TOLD, Fronts, LimitsOfRoute, RouteLimits, is_exempt
from headgate.http.server.routes import exempt as _exempt
from headgate.http.wsgi import Environ, WsgiRequest
from headgate.integrations.passed import Counted, Entry, Passed

try:
    import flask
    from flask import current_app
    from flask.signals import request_started, request_tearing_down
    from flask.views import http_method_funcs
    from werkzeug.exceptions import HTTPException, default_exceptions
except ModuleNotFoundError as error:
    raise MissingExtraError("the integration of Flask", extra="flask") from error

Limited = TypeVar("Limited", bound=Callable[..., Any] | flask.Blueprint)
View = Callable[..., Any]

NO_ROUTE = "no route"
"""The endpoint of requests that no route answers: 404, 405, and redirects to the right slash."""

_log = logging.getLogger("headgate")
_OVERRIDE = "__headgate_override__"
_DEPTH = "__headgate_depth__"
"""How many limits stand before a view already."""

_PASSED = "headgate.flask"
"""Where an environ keeps what its request was let through by."""


class FlaskRequest(WsgiRequest):
    """A request as limits see it; its `own` is Flask's, which their functions are given.

    Of a header that was sent several times, servers make one line; Flask reads that, and so does this.
    """

    __slots__ = ("_own",)

    def __init__(self, environ: Environ, endpoint: str = "", own: flask.Request | None = None) -> None:
        super().__init__(environ, endpoint)
        self._own = own

    @property
    def own(self) -> flask.Request:
        """The current one of this environ; before the application, one of its own."""
        if self._own is None:
            proxy = cast(Any, flask.request)
            is_it = flask.has_request_context() and proxy.environ is self.environ
            self._own = proxy._get_current_object() if is_it else flask.Request(self.environ)
        return cast(flask.Request, self._own)

    def cookie(self, name: str) -> str:
        """As `request.cookies.get`: the first, if a cookie was sent several times."""
        return self.own.cookies.get(name, "").strip()

    def query(self, name: str) -> str:
        """As `request.args.get`: the first, if a parameter was sent several times."""
        return self.own.args.get(name, "").strip()


@request_of.register
def _(request: flask.Request) -> FlaskRequest:
    current = flask.has_request_context() and flask.request.environ is request.environ
    return FlaskRequest(request.environ, _template() if current else "", request)


class RateLimitMiddleware(wsgi.RateLimitMiddleware):
    """`headgate.http.wsgi.RateLimitMiddleware` whose functions are given a request of Flask."""

    request_kind = FlaskRequest


class RateLimits:
    """Limits of an application, its blueprints and its views. All count in one store.

    Called with limits it is a decorator of views, below `@app.route`, and of blueprints. `default` are limits
    of every route of the application, each by itself, and of all requests that no route answers together;
    of static files only where `static` says so. `fallback` is a view that answers instead of a refusal.
    `options` are those of `headgate.http.server.options.RouteOptions`, for all limits that do not say their own.

    What applies to a request applies together: a refusal gives back what other limits had charged. A
    refusal is raised as werkzeug's TooManyRequests (or what its status is) with the whole answer in
    it, so an error handler of the application may answer instead; it finds the decision in `decision`.
    Raises ConfigError for what cannot be used.
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
        self._static = static
        self._limits: WeakSet[_Limit] = WeakSet()
        self._routes = RouteLimits(options, asynchronous=False)
        self._fallback = fallback
        self._default = None if default is None else self._limit(default, {}, fallback)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask, default: LimitsOfRoute | None = None, **options: Unpack[RouteOptions]) -> None:
        """Let the default limits stand before an application.

        `default` and `options` stand before those that were told first, for views that were decorated
        already, too: what was counted until now is forgotten.
        """
        if options:
            self._options = cast(RouteOptions, {**self._options, **options})
            routes = RouteLimits(self._options, asynchronous=False)
            for limit in self._limits:
                limit.bind(routes)
            self._routes.close()
            self._routes = routes
        if default is not None:
            self._default = self._limit(default, {}, self._fallback)
        known = app.extensions.setdefault("headgate", [])
        if self not in known:
            known.append(self)
            app.before_request(self._before_request)

    def __call__(
        self,
        limits: LimitsOfRoute = NONE_TOLD,
        *,
        override: bool = False,
        fallback: View | None = None,
        **options: Unpack[RouteOptions],
    ) -> Callable[[Limited], Limited]:
        """A decorator that sets limits on a view, each of its routes by itself, or on all routes of a blueprint.

        With `override` those of the application, and before a view those of its blueprint, do not apply.
        Several decorators apply together.
        """
        limit = self._limit(limits, options, fallback)

        def decorate(limited: Limited) -> Limited:
            if isinstance(limited, flask.Blueprint):
                _stand_before(limited, limit, override=override)
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
        self(limits, override=override, fallback=fallback, **options)(blueprint)

    @staticmethod
    def exempt(endpoint: Limited) -> Limited:
        """Mark a view, a view class or a blueprint as one that default and blueprint limits leave out."""
        return _exempt(endpoint)  # type: ignore[type-var]  # it marks any object

    def close(self) -> None:
        """Close the stores that were opened here."""
        self._routes.close()

    def _limit(self, limits: LimitsOfRoute, options: RouteOptions, fallback: View | None) -> _Limit:
        limit = _Limit(limits, options, fallback)
        limit.bind(self._routes)
        self._limits.add(limit)
        return limit

    def _before_request(self) -> Any:
        if self._default is None or (not self._static and _is_static()) or _is_set_apart(_blueprints()):
            return None
        template = _template()
        place = f"application: {template}"
        return self._default.stand_before(self, template, place, (), flask.request.view_args or {})


class _Limit:
    """What one decorator says."""

    fronts: Fronts

    def __init__(self, limits: LimitsOfRoute, options: RouteOptions, fallback: View | None) -> None:
        self._limits = limits
        self._options = options
        self._fallback = fallback

    def bind(self, routes: RouteLimits) -> None:
        self.fronts = routes.fronts(self._limits, self._options)
        if self.fronts.any.settles:
            request_tearing_down.connect(_tear_down)

    def stand_before(
        self, by: object, endpoint: str, counted_as: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """None where the request of this thread may pass, else what the fallback answers; raises the refusal."""
        environ = flask.request.environ
        request = FlaskRequest(environ, endpoint)
        passed = environ.get(_PASSED)
        if passed is None:
            passed = environ[_PASSED] = _Passed()
            flask.after_this_request(passed.finish)
        front = self.fronts.of(current_app._get_current_object())  # type: ignore[attr-defined]
        passed.place(front, by, request, counted_as)
        answer = judge(front, request)
        if answer.refusal is None:
            passed.add(Entry(front, request, answer))
            return None
        for other in passed.refuse(answer.refusal):
            other.front.take_back(other.request, other.answer)
        if self._fallback is None:
            raise _exception(answer.refusal, answer.decision)
        return current_app.ensure_sync(self._fallback)(*args, **kwargs)


class _Passed(Passed):
    """What is kept in an environ until there is a response."""

    def finish(self, response: flask.Response) -> flask.Response:
        """Tell and settle. Flask calls it again where another function of its kind fails, and 500 is answered."""
        flask.request.environ.pop(_PASSED, None)
        self.tell(response)
        entries = self.to_settle()
        if entries:
            _settle_by(response, entries)
        return response


def _settle_by(response: flask.Response, entries: Sequence[Entry]) -> None:
    """Settle by a response: at once where its body is known, else when the server is done with it."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    if flask.request.method == "HEAD" or response.status_code in (204, 304):
        _settle(entries, Response(response.status_code, headers, 0))
    elif response.is_sequence:
        _settle(entries, Response(response.status_code, headers, sum(map(len, response.iter_encoded()))))
    else:
        response.response = Counted(
            cast(Iterable[Any], response.response),
            lambda body_bytes: _settle(entries, Response(response.status_code, headers, body_bytes)),
        )


def _settle(entries: Sequence[Entry], response: Response) -> None:
    for front, request, answer, _ in entries:
        front.settle(request, answer, response)


def _exception(refusal: Refusal, decision: Decision | None) -> HTTPException:
    """The exception that carries an answer; one whose status is none of werkzeug's is answered as it is."""
    response = current_app.response_class(refusal.body, refusal.status, refusal.headers)
    exception = default_exceptions.get(refusal.status, HTTPException)(response=response)
    exception.decision = decision  # type: ignore[attr-defined]
    return exception


def _limited(view: View, limit: _Limit, *, override: bool) -> View:
    """A view with a limit before it."""
    if isinstance(view, type):
        raise ConfigError(
            f"{view.__qualname__} is a class: it is limited by `decorators = [rate_limit(...)]` inside it"
        )
    depth = getattr(view, _DEPTH, 0)
    is_async = iscoroutinefunction(view)
    method = _method_of(view)

    def stand_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        endpoint = _template(method)
        place = f"{endpoint} ({depth + 1})" if depth else endpoint
        return limit.stand_before(limited, endpoint, place, args, kwargs)

    async def later(args: Any, kwargs: Any) -> Any:
        """For an async decorator that awaits the view on its own event loop."""
        instead = await asyncio.to_thread(stand_before, args, kwargs)
        return await view(*args, **kwargs) if instead is None else instead

    @functools.wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        if is_async and _on_an_event_loop():
            return later(args, kwargs)
        instead = stand_before(args, kwargs)
        if instead is not None:
            return instead
        return current_app.ensure_sync(view)(*args, **kwargs) if is_async else view(*args, **kwargs)

    setattr(limited, _DEPTH, depth + 1)
    if override:
        setattr(limited, _OVERRIDE, True)
    if not method:
        _watch(limited, view)
    return limited


def _stand_before(blueprint: flask.Blueprint, limit: _Limit, *, override: bool) -> None:
    """Let a limit stand before the routes of a blueprint."""
    depth = getattr(blueprint, _DEPTH, 0)
    setattr(blueprint, _DEPTH, depth + 1)
    if override:
        setattr(blueprint, _OVERRIDE, True)

    def before_request() -> Any:
        inside = list(takewhile(lambda inner: inner is not blueprint, _blueprints()))
        if _is_set_apart(inside):
            return None
        name = flask.request.blueprints[len(inside)]
        template = _template()
        place = f"{name} ({depth + 1}): {template}"
        return limit.stand_before(before_request, template, place, (), flask.request.view_args or {})

    blueprint.before_request(before_request)


def _template(method: str = "") -> str:
    """The route of the request: its methods (or that which a method of a view class answers) and its whole rule."""
    request = flask.request
    root, rule = request.environ.get("SCRIPT_NAME", "").rstrip("/"), request.url_rule
    if rule is None:
        return f"{NO_ROUTE} {root}".rstrip()
    methods = method or ",".join(sorted((rule.methods or {"GET"}) - {"HEAD", "OPTIONS"})) or "OPTIONS"
    return f"{methods} {rule.host or rule.subdomain or ''}{root}{rule.rule}"


def _method_of(view: View) -> str:
    """The HTTP method that a method of a view class answers, "" for any other function."""
    owner = getattr(view, "__qualname__", "").rpartition(".")[0]
    name = getattr(view, "__name__", "")
    return name.upper() if owner and not owner.endswith("<locals>") and name in http_method_funcs else ""


def _blueprints() -> Iterator[flask.Blueprint]:
    """The blueprints that the request's route is in, from the inside out."""
    return (cast(flask.Blueprint, current_app.blueprints[name]) for name in flask.request.blueprints)


def _is_set_apart(inside: Iterable[flask.Blueprint]) -> bool:
    """Whether wider limits leave the request's route out: it is exempt, or narrower ones stand for them."""
    view = current_app.view_functions.get(flask.request.endpoint or "")
    kind = getattr(view, "view_class", None)
    method = "get" if flask.request.method == "HEAD" else flask.request.method.lower()
    marked = (view, kind, getattr(kind, method, None), *inside)
    return any(is_exempt(it) or getattr(it, _OVERRIDE, False) for it in marked)


def _is_static() -> bool:
    """Whether the request asks for a static file, of the application or of a blueprint."""
    name, _, last = (flask.request.endpoint or "").rpartition(".")
    owner = current_app.blueprints.get(name) if name else current_app
    return last == "static" and owner is not None and owner.has_static_folder


def _on_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_unseen: list[tuple[View, View]] = []
"""Limited views, each with the view that it stands before, that no application was seen to have a route to."""

_seen: WeakSet[flask.Flask] = WeakSet()


def _watch(limited: View, view: View) -> None:
    """Look, when an application answers first, whether the limit stands below its route, as it must."""
    _unseen.append((limited, view))
    request_started.connect(_look)


def _look(app: flask.Flask, **_: object) -> None:
    if app in _seen:
        return
    _seen.add(app)
    routed = {id(view) for view in app.view_functions.values()}
    reached = {id(inner) for view in app.view_functions.values() for inner in _chain(view)}
    above = [view for limited, view in _unseen if id(view) in routed and id(limited) not in reached]
    known = reached | routed
    _unseen[:] = [pair for pair in _unseen if id(pair[0]) not in known and id(pair[1]) not in known]
    if not _unseen:
        request_started.disconnect(_look)
    for view in above:
        name = f"{view.__module__}.{getattr(view, '__qualname__', '')}"
        told = f"rate_limit stands above the route of {name}, where it limits nothing: put it below @app.route"
        if app.debug or app.testing:
            raise ConfigError(told)
        _log.error(told)


def _chain(view: View | None) -> Iterator[View]:
    """A view, and what it was wrapped around."""
    while view is not None:
        yield view
        view = getattr(view, "__wrapped__", None)


def _tear_down(app: flask.Flask, exc: BaseException | None = None, **_: object) -> None:
    passed = flask.request.environ.get(_PASSED)
    if passed is not None and exc is not None:  # a response would have finished it
        _settle(passed.to_settle(), Response(500, {}, 0))


rate_limit = RateLimits()
"""Limits of views and blueprints that count in the memory of each application."""

exempt = RateLimits.exempt
