"""A request of Django, as limits see it, and functions of it for their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import django.core.exceptions as failures  # type: ignore[import-untyped]
from asgiref.sync import sync_to_async
from django.http import HttpRequest  # type: ignore[import-untyped]
from django.utils.functional import LazyObject, empty  # type: ignore[import-untyped]

from headgate.errors import ConfigError
from headgate.http.server.functions import portable_here, request_of
from headgate.http.wsgi import EnvironHeaders, inner_path
from headgate.integrations.django.routing import route_of
from headgate.integrations.django.site import NotThereYet
from headgate.policy.request import Request, path_text
from headgate.policy.sent_values import sent_text
from headgate.policy.subject import RootedPath
from headgate.waiting.departure import Departure

AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


class DjangoRequest(Request):
    """A request as limits see it: `django` is Django's, and it is read when it is first asked for.

    `endpoint` is the route of its view with what `include` and a mount put before it, never a concrete path.
    """

    native_reading = "framework"

    __slots__ = ("_asynchronous", "_endpoint", "_known", "_path", "_read", "_user", "django")

    def __init__(self, request: Any, endpoint: str = "", *, asynchronous: bool = False) -> None:
        self.django = request
        self._asynchronous = asynchronous
        self._endpoint = endpoint
        self._path = ""
        self._read: EnvironHeaders | None = None
        self._user: Any = None
        self._known: dict[int, Any] = {}
        self._cookies = self._query = None

    @property
    def own(self) -> Any:
        """Django's, which functions of limits are given."""
        return self.django

    def call(self, function: Callable[..., Any], *rest: Any) -> Any:
        """What a function of Django's request gives; on an event loop, from a thread if Django insists on one."""
        if not self._asynchronous or rest:
            return function(self.own, *rest)
        known = id(function)  # an object that can be called need not be hashable
        if known in self._known:
            return self._known[known]

        async def load() -> None:
            self._known[known] = await sync_to_async(function)(self.own)

        try:
            return function(self.own)
        except failures.SynchronousOnlyOperation as error:  # the database: a user, a session
            raise NotThereYet(str(error), load) from error

    @property
    def departure(self) -> Departure | None:
        """What tells that the client is gone, to a thread of a request on ASGI; a task is cancelled then."""
        exchange = None if self._asynchronous else getattr(self.django, "_headgate", None)
        return None if exchange is None else exchange.departure

    @property
    def environ(self) -> Any:
        """`environ_of` Django's request."""
        return environ_of(self.django)

    @property
    def method(self) -> str:  # type: ignore[override]
        """`GET`, and so on."""
        method: str = self.django.method or "GET"
        return method

    @property
    def path(self) -> str:  # type: ignore[override]
        """As it was sent, with its query: what Django has decoded is encoded again."""
        if not self._path:
            path, asked = path_text(self.django.path) or "/", self.django.META.get("QUERY_STRING", "")
            whole = f"{path}?{asked}" if asked else path
            other = _other_path(self.django)
            self._path = RootedPath(whole, (other,)) if other else whole
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
            self._read = EnvironHeaders(self.django.META)
        return self._read

    def header(self, name: str) -> str:
        """As `request.headers.get`: all in one line, if a header was sent several times."""
        return sent_text(self.django.headers.get(name, ""))

    def cookie(self, name: str) -> str:
        """As `request.COOKIES.get`: the last, if a cookie was sent several times."""
        return sent_text(self.django.COOKIES.get(name, ""))

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


def environ_of(request: Any) -> Any:
    """What the native gate reads of Django's request, its META; None where that does not say all that the request says.

    Middlewares replace methods and paths, and text beyond ASCII is encoded in META in more than one way.
    """
    meta, method, path = request.META, request.method, request.path
    if not method or method != meta.get("REQUEST_METHOD") or not path.isascii() or _other_path(request):
        return None
    mount, rest = meta.get("SCRIPT_NAME"), meta.get("PATH_INFO")
    return meta if path == (rest if mount == "" else f"{mount}{rest}") else None


def _other_path(request: Any) -> str:
    """What else the path is to Django, "" for nothing: in a scope of ASGI the root path may be before it or not.

    What a mount of Starlette adds to that is before all paths that come there. Under WSGI a header may tell a mount.
    """
    if not hasattr(request, "scope"):
        return inner_path(request.META)
    root = request.META["SCRIPT_NAME"]
    if not root or request.scope.get("app_root_path") == "":
        return ""
    other = root + request.path if request.path == request.path_info else request.path_info
    return path_text(other) or "/"


def _user_of(request: Any) -> Any:
    if not hasattr(request, "user"):
        raise ConfigError(f"user needs {AUTHENTICATION}, above RateLimitMiddleware in settings.MIDDLEWARE")
    bool(request.user.is_authenticated)  # a lazy one is read here
    return request.user


@request_of.register(HttpRequest)
def _(request: Any) -> DjangoRequest:
    return DjangoRequest(request)


@portable_here
def user(request: Any) -> tuple[str, str] | None:
    """The key of the logged-in user, by primary key; None where there is none.

    It works in sync and async views alike.
    """
    who = cast(DjangoRequest, request_of(request)).user
    if who is None or not who.is_authenticated or who.pk is None:
        return None
    return ("user", str(who.pk))


@portable_here
def each_route(request: Any) -> str:
    """A scope for HEADGATE: each route of the site counts by itself, and requests without a route together."""
    return f"site: {request_of(request).endpoint}"
