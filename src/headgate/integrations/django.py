"""Rate limits of a Django site and of its views, sync and async.

    MIDDLEWARE = [..., "headgate.integrations.django.RateLimitMiddleware"]
    HEADGATE = {"limits": "100/minute", "store": "redis://10.0.0.5/0"}

    @rate_limit("5/minute", key=user)
    def search(request): ...

The middleware judges every request before what stands below it, `rate_limit` those of one view. On an event
loop the store is asked without blocking it; a sync view is judged in its thread. Settings may import this.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction as is_coroutine_function
from threading import Event
from typing import Any, TypeVar, Unpack, cast
from urllib.parse import quote

from headgate.drive import answered
from headgate.errors import ConfigError, MissingExtraError
from headgate.http.server.cors import tell_outside_of_cors
from headgate.http.server.enforcer import Front, judge, judge_async
from headgate.http.server.functions import portable, request_of
from headgate.http.server.options import Refusal, RouteOptions
from headgate.http.server.routes import NONE_TOLD, LimitsOfRoute, check_endpoint, is_exempt
from headgate.http.server.routes import exempt as _exempt
from headgate.policy.headers import Headers
from headgate.policy.request import Request

try:
    import django.core.exceptions as failures  # type: ignore[import-untyped]
    from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
    from django.apps import AppConfig  # type: ignore[import-untyped]
    from django.conf import settings  # type: ignore[import-untyped]
    from django.conf.urls.i18n import is_language_prefix_patterns_used  # type: ignore[import-untyped]
    from django.core import checks
    from django.core.signals import setting_changed  # type: ignore[import-untyped]
    from django.http import Http404, HttpRequest, HttpResponse  # type: ignore[import-untyped]
    from django.urls import Resolver404, get_resolver, get_script_prefix, resolve  # type: ignore[import-untyped]
    from django.utils.functional import LazyObject, empty  # type: ignore[import-untyped]
    from django.utils.translation import get_language_from_path  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise MissingExtraError("the integration of Django", extra="django") from error

from headgate.integrations.django_passed import (
    fail,
    fail_async,
    finish,
    finish_async,
    let_in,
    let_in_async,
    opened,
)
from headgate.integrations.django_site import CurrentSite, NotThereYet, Site, fault_of
from headgate.integrations.passed import Entry, Passed

View = TypeVar("View", bound=Callable[..., Any])

NO_ROUTE = "no route"
"""The endpoint of requests that no view answers."""

_MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"
_CORS = "corsheaders.middleware.CorsMiddleware"
_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
_OVERRIDE = "__headgate_override__"
_DEPTH = "__headgate_depth__"
"""How many limits stand before a view already."""

_METHODS = ("get", "post", "put", "patch", "delete", "head", "options", "trace")
_IN_A_PATH = "/:@!$&'()*+,;=~"

_marked = Event()
"""Set where a view is exempt or overrides the site's limits: else no URL has to be resolved for it."""


class DjangoRequest(Request):
    """A request as limits see it: `django` is Django's, and it is read when it is first asked for.

    `endpoint` is the route of its view with what `include` and a mount put before it, never a concrete path.
    """

    __slots__ = ("_asynchronous", "_endpoint", "_known", "_path", "_read", "_user", "django")

    def __init__(self, request: Any, endpoint: str = "", *, asynchronous: bool = False) -> None:
        self.django = request
        self._asynchronous = asynchronous
        self._endpoint = endpoint
        self._path = ""
        self._read: Headers | None = None
        self._user: Any = None
        self._known: dict[Any, Any] = {}
        self._cookies = self._query = None

    @property
    def own(self) -> Any:
        """Django's, which functions of limits are given."""
        return self.django

    def call(self, function: Callable[..., Any], *rest: Any) -> Any:
        """What a function of Django's request gives; on an event loop, from a thread if Django insists on one."""
        if not self._asynchronous or rest:
            return function(self.own, *rest)
        if function in self._known:
            return self._known[function]

        async def load() -> None:
            self._known[function] = await sync_to_async(function)(self.own)

        try:
            return function(self.own)
        except failures.SynchronousOnlyOperation as error:  # the database: a user, a session
            raise NotThereYet(str(error), load) from error

    @property
    def method(self) -> str:  # type: ignore[override]
        """`GET`, and so on."""
        method: str = self.django.method or "GET"
        return method

    @property
    def path(self) -> str:  # type: ignore[override]
        """As it was sent, with its query: what Django has decoded is encoded again."""
        if not self._path:
            path, asked = quote(self.django.path, safe=_IN_A_PATH), self.django.META.get("QUERY_STRING", "")
            self._path = f"{path}?{asked}" if asked else path
        return self._path

    @property
    def client_ip(self) -> str:  # type: ignore[override]
        """The address of the peer."""
        address: str = self.django.META.get("REMOTE_ADDR") or ""
        return address

    @property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        """By name in lower case; asked for in any."""
        if self._read is None:
            self._read = Headers({name.lower(): value for name, value in self.django.headers.items()})
        return self._read

    def header(self, name: str) -> str:
        """As `request.headers.get`: all in one line, if a header was sent several times."""
        value: str = self.django.headers.get(name, "")
        return value.strip()

    def cookie(self, name: str) -> str:
        """As `request.COOKIES.get`: the last, if a cookie was sent several times."""
        value: str = self.django.COOKIES.get(name, "")
        return value.strip()

    def query(self, name: str) -> str:
        """As `request.GET.get`: the last, if a parameter was sent several times."""
        value: str = self.django.GET.get(name, "")
        return value.strip()

    @property
    def host(self) -> str:  # type: ignore[override]
        """What the request names as its host."""
        meta = self.django.META
        host: str = meta.get("HTTP_HOST") or meta.get("SERVER_NAME", "")
        return host

    @property
    def endpoint(self) -> str:  # type: ignore[override]
        """The route of the view; where Django has not resolved it yet, it is resolved here."""
        if not self._endpoint:
            self._endpoint = route_of(self.django)
        return self._endpoint

    @property
    def user(self) -> Any:
        """Django's user. On an event loop it can be asked for in `key`, `cost`, `limits`, `tier` and `exempt`."""
        if self._user is None:
            if self._asynchronous:
                raise NotThereYet("on an event loop the user is known while a request is judged", self._load_user)
            self._user = _user_of(self.django)
        return self._user

    async def _load_user(self) -> None:
        lazy = getattr(self.django, "user", None)
        waits = isinstance(lazy, LazyObject) and lazy._wrapped is empty
        self._user = await sync_to_async(_user_of)(self.django) if waits else _user_of(self.django)


def _user_of(request: Any) -> Any:
    if not hasattr(request, "user"):
        raise ConfigError(f"user needs {_AUTHENTICATION}, above RateLimitMiddleware in settings.MIDDLEWARE")
    bool(request.user.is_authenticated)  # a lazy one is read here
    return request.user


@request_of.register(HttpRequest)
def _(request: Any) -> DjangoRequest:
    return DjangoRequest(request)


@portable
def user(request: Any) -> tuple[str, str] | None:
    """The key of the user who is logged in, by primary key; None without one. It serves sync and async alike."""
    who = cast(DjangoRequest, request_of(request)).user
    return ("user", str(who.pk)) if who is not None and who.is_authenticated else None


@portable
def each_route(request: Any) -> str:
    """A scope for HEADGATE: each route of the site counts by itself, and what is no route together."""
    return f"site: {request_of(request).endpoint}"


def _read_settings() -> Mapping[str, Any]:
    told: Mapping[str, Any] = getattr(settings, "HEADGATE", {})
    return told


site = CurrentSite(_read_settings)


def _forget(*, setting: str, **_: object) -> None:
    if setting == "HEADGATE":
        site.forget()


setting_changed.connect(_forget)


def rate_limit(
    limits: LimitsOfRoute = NONE_TOLD,
    *,
    override: bool = False,
    fallback: Callable[..., Any] | None = None,
    **options: Unpack[RouteOptions],
) -> Callable[[View], View]:
    """A decorator that sets limits on a view: on each of its routes by itself, all methods together.

    For classes it goes with `method_decorator`: `name="dispatch"` limits all of it, `name="post"` that method
    by itself. With `override` the limits of HEADGATE do not apply. `fallback` is a view that answers
    instead of a refusal. Several decorators apply together: a refusal gives back what others charged.
    What is not told here is as HEADGATE says. Raises ConfigError.
    """
    limit = _Limit(limits, options, fallback)

    def decorate(view: View) -> View:
        check_endpoint(view)
        return cast(View, _limited(view, limit, override=override))

    return decorate


def exempt(view: View) -> View:
    """Mark a view or a view class as one that the limits of HEADGATE leave out."""
    _marked.set()
    return _exempt(view)


class RateLimitMiddleware:
    """Judges each request as settings.HEADGATE says, and tells on every response what remains.

    Put it below AuthenticationMiddleware where `key` is `user`, and below LocaleMiddleware; else as high as
    can be: a request that is refused reaches nothing below it. Without `limits` and `policy` it judges
    nothing; it tells and settles what views and throttles judged.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        told = site()
        self._fallback = told.fallback
        if _is_outside_of_cors(settings.MIDDLEWARE):
            tell_outside_of_cors("RateLimitMiddleware", _CORS)
        self._front = told.site_front(asynchronous=self._is_async)

    def __call__(self, request: Any) -> Any:
        if hasattr(request, "_headgate"):  # the settings name the middleware twice: it is one
            return self._get_response(request)
        if self._is_async:
            return self._call_async(request)
        passed = request._headgate = Passed()
        entry = judged(self._front, request) if self._front is not None and not _is_set_apart(request) else None
        if entry is None or let_in(passed, entry):
            response = self._get_response(request)
        else:
            response = _instead(request, self._fallback, entry, (request,), {})
        finish(passed, response)
        return response

    async def _call_async(self, request: Any) -> Any:
        passed = request._headgate = Passed()
        entry = None
        if self._front is not None and not _is_set_apart(request):
            entry = await judged_async(self._front, request)
        if entry is not None and not await let_in_async(passed, entry):
            response = await _instead_async(request, self._fallback, entry, (request,), {})
        else:
            try:
                response = await self._get_response(request)
            except asyncio.CancelledError as error:  # the client is gone; what was charged is settled
                await asyncio.shield(fail_async(passed, _status_of(error)))
                raise
        await finish_async(passed, response)
        return response


class _Limit:
    """What one decorator says."""

    def __init__(self, limits: LimitsOfRoute, options: RouteOptions, fallback: Callable[..., Any] | None) -> None:
        self._limits = limits
        self._options = options
        if options.get("scope") is each_route:  # as it is without a scope
            del self._options["scope"]
        self.fallback = fallback
        self._needs_a_loop = any(map(is_coroutine_function, (limits, *options.values())))
        self._fronts: tuple[Site, dict[bool, Front]] | None = None

    def front(self, *, asynchronous: bool) -> Front:
        """What judges for the site as it is."""
        current = site()
        if self._fronts is None or self._fronts[0] is not current:
            self._fronts = (current, {})
        fronts = self._fronts[1]
        if asynchronous not in fronts:
            fronts[asynchronous] = current.front(self._limits, self._options, asynchronous=asynchronous)
        return fronts[asynchronous]

    def judged(self, request: Any, by: object, endpoint: str, counted_as: str) -> Entry:
        return judged(self.front(asynchronous=False), request, by, endpoint, counted_as)

    async def judged_async(self, request: Any, by: object, endpoint: str, counted_as: str) -> Entry:
        # Under WSGI an event loop lives as long as its request: a thread asks there, whose connections stay.
        if hasattr(request, "scope") or self._needs_a_loop:
            return await judged_async(self.front(asynchronous=True), request, by, endpoint, counted_as)
        return await sync_to_async(self.judged)(request, by, endpoint, counted_as)


def _limited(view: Callable[..., Any], limit: _Limit, *, override: bool) -> Callable[..., Any]:
    """A view with a limit before it. Django's method_decorator makes one for every request."""
    if isinstance(view, type):
        raise ConfigError(
            f'{view.__qualname__} is a class: it is limited by @method_decorator(rate_limit(...), name="dispatch")'
        )
    depth = getattr(view, _DEPTH, 0)
    is_async, is_method = iscoroutinefunction(view), _is_method(view)
    method = _name_of(view) if is_method else ""
    limit.front(asynchronous=is_async)  # what cannot be used is told now

    def place_of(request: Any) -> tuple[object, str, str]:
        """What the place of the limit is known by, its endpoint, and what it counts under."""
        endpoint = route_of(request, method)
        return (limit, _function_of(view)), endpoint, f"{endpoint} ({depth + 1})" if depth else endpoint

    @functools.wraps(view)
    async def limited_async(*args: Any, **kwargs: Any) -> Any:
        request = _request_among(args)
        passed, begins_here = opened(request)
        try:
            entry = await limit.judged_async(request, *place_of(request))
            if await let_in_async(passed, entry):
                response = await answered(view(*args, **kwargs))
            else:
                response = await _instead_async(request, limit.fallback, entry, args, kwargs)
        except BaseException as error:
            if begins_here:
                del request._headgate
                await asyncio.shield(fail_async(passed, _status_of(error)))
            raise
        if begins_here:
            del request._headgate
            await finish_async(passed, response)
        return response

    @functools.wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        if is_method and _is_on_an_event_loop():
            return limited_async(*args, **kwargs)  # `dispatch` of an async class is no coroutine function
        request = _request_among(args)
        passed, begins_here = opened(request)
        try:
            entry = limit.judged(request, *place_of(request))
            if let_in(passed, entry):
                response = view(*args, **kwargs)
            else:
                response = _instead(request, limit.fallback, entry, args, kwargs)
        except BaseException as error:
            if begins_here:
                del request._headgate
                fail(passed, _status_of(error))
            raise
        if begins_here:
            del request._headgate
            finish(passed, response)
        return response

    wrapper = limited_async if is_async else limited
    setattr(wrapper, _DEPTH, depth + 1)
    if override:
        _marked.set()
        setattr(wrapper, _OVERRIDE, True)
    return wrapper


def judged(front: Front, request: Any, by: object = None, endpoint: str = "", counted_as: str = "") -> Entry:
    """Judge a request in this thread."""
    asked = DjangoRequest(request, endpoint)
    request._headgate.place(front, by, asked, counted_as)
    return Entry(front, asked, judge(front, asked))


async def judged_async(
    front: Front, request: Any, by: object = None, endpoint: str = "", counted_as: str = ""
) -> Entry:
    """Judge a request on its event loop."""
    asked = DjangoRequest(request, endpoint, asynchronous=True)
    request._headgate.place(front, by, asked, counted_as)
    return Entry(front, asked, await judge_async(front, asked), asynchronous=True)


def _instead(request: Any, fallback: Any, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The answer to a request that is refused."""
    if fallback is not None:
        return (async_to_sync(fallback) if iscoroutinefunction(fallback) else fallback)(*args, **kwargs)
    return response_of(request, cast(Refusal, entry.answer.refusal))


async def _instead_async(
    request: Any, fallback: Any, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if fallback is None:
        return response_of(request, cast(Refusal, entry.answer.refusal))
    answer = fallback if iscoroutinefunction(fallback) else sync_to_async(fallback)
    return await answered(await answer(*args, **kwargs))


def response_of(request: Any, refusal: Refusal) -> Any:
    """A refusal as Django's response."""
    response = HttpResponse(b"" if request.method == "HEAD" else refusal.body, status=refusal.status)
    response["Content-Length"] = str(len(refusal.body))
    for name, value in refusal.headers:
        response[name] = value
    return response


def route_of(request: Any, method: str = "") -> str:
    """The route of a request's view, with the mount before it; one route in all languages of a site.

    `method` is that which a method of a view class answers by itself.
    """
    match = _match_of(request)
    if match is None:
        return f"{NO_ROUTE} {get_script_prefix()}"
    urlconf = getattr(request, "urlconf", None)
    route: str = match.route
    if is_language_prefix_patterns_used(urlconf or settings.ROOT_URLCONF)[0]:
        language, slash, rest = route.partition("/")
        first = request.path_info.lstrip("/").partition("/")[0]
        if slash and language == first and get_language_from_path(request.path_info):
            route = rest
    other = "" if urlconf is None else f" of {urlconf!r}"
    return f"{method or '*'} {get_script_prefix()}{route}{other}"


def _match_of(request: Any) -> Any:
    if request.resolver_match is not None:
        return request.resolver_match
    try:
        return resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return None


def _request_among(args: tuple[Any, ...]) -> Any:
    """The request that a view is given, behind `self` in a method; of REST framework's, Django's own."""
    for given in args[:2]:
        request = getattr(given, "_request", given)
        if isinstance(request, HttpRequest):
            return request
    raise TypeError("rate_limit stands before views, which are given a request first")


def _function_of(view: Any) -> Any:
    """What a view is made of; of a method, which method_decorator makes for every request, its function."""
    while isinstance(view, functools.partial):
        view = view.func
    return getattr(view, "__func__", view)


def _is_method(view: Callable[..., Any]) -> bool:
    owner = getattr(view, "__qualname__", "").rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>")


def _name_of(method: Callable[..., Any]) -> str:
    """What a method of a class answers alone, `GET` of `get`; "" of one that answers all."""
    name: str = method.__name__
    return "" if name == "dispatch" else name.upper() if name in _METHODS else name


def _is_set_apart(request: Any) -> bool:
    """Whether the site's limits leave a request's view out: it is exempt, or its own stand for them."""
    get_resolver(getattr(request, "urlconf", None)).url_patterns  # noqa: B018  # this imports the views
    match = _match_of(request) if _marked.is_set() else None
    if match is None:
        return False
    view, method = match.func, "get" if request.method == "HEAD" else request.method.lower()
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    name = (getattr(view, "actions", None) or {}).get(method, method)
    return any(is_exempt(it) or getattr(it, _OVERRIDE, False) for it in (view, kind, getattr(kind, name, None)))


def _status_of(error: BaseException) -> int:
    """What Django answers when a view raises this."""
    if isinstance(error, Http404):
        return 404
    if isinstance(error, failures.PermissionDenied):
        return 403
    return 400 if isinstance(error, (failures.BadRequest, failures.SuspiciousOperation)) else 500


def _is_on_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class HeadgateConfig(AppConfig):  # type: ignore[misc]
    """For INSTALLED_APPS: then `manage.py check` looks at HEADGATE. The middleware and views do without."""

    name = "headgate.integrations.django"
    label = "headgate"
    verbose_name = "Headgate"


def _is_outside_of_cors(middleware: Any) -> bool:
    named = list(middleware)
    return _CORS in named and _MIDDLEWARE in named and named.index(_MIDDLEWARE) < named.index(_CORS)


def check_settings(app_configs: object = None, **_: object) -> list[Any]:
    """What is wrong with settings.HEADGATE, as Django's system checks tell it."""
    told = _read_settings()
    fault = fault_of(told)
    if fault:
        hint = 'HEADGATE is as {"limits": "100/minute"} or {"policy": "policy.yaml"}, with options of docs/django.md'
        return [checks.Error(fault, hint=hint, id="headgate.E001")]
    if "limits" not in told and "policy" not in told:
        return []
    above = list(settings.MIDDLEWARE)
    if _MIDDLEWARE not in above:
        said = "settings.HEADGATE has limits that nothing applies: settings.MIDDLEWARE does not name the middleware"
        return [checks.Warning(said, hint=f'add "{_MIDDLEWARE}"', id="headgate.W001")]
    if _is_outside_of_cors(above):
        said = "RateLimitMiddleware stands above CorsMiddleware: no page of another origin can read its refusals"
        return [checks.Warning(said, hint=f'put "{_CORS}" above "{_MIDDLEWARE}"', id="headgate.W002")]
    del above[above.index(_MIDDLEWARE) :]
    if told.get("key") in (user, f"{__name__}.user") and _AUTHENTICATION not in above:
        said = 'settings.HEADGATE["key"] is user, who is not known yet where RateLimitMiddleware stands'
        hint = f'put "{_MIDDLEWARE}" below "{_AUTHENTICATION}" in settings.MIDDLEWARE'
        return [checks.Error(said, hint=hint, id="headgate.E002")]
    return []


checks.register(check_settings, "headgate")
