"""A Django request as limits see it, and functions of a request for their options."""

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
from headgate.integrations.django.site import NotLoaded
from headgate.policy.request import Request, path_text
from headgate.policy.sent_values import sent_text
from headgate.policy.subject import RootedPath
from headgate.waiting.departure import Departure

AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


class DjangoRequest(Request):
    """A request as limits see it: `django` is Django's request, whose parts are read when they are first accessed.

    `endpoint` is the route of its view with the prefixes of `include` and of a mount, never a concrete path.
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
        """Django's request, which functions of limits are passed."""
        return self.django

    def call(self, function: Callable[..., Any], *rest: Any) -> Any:
        """Call a function of Django's request; on an event loop, in a thread if Django insists on one."""
        if not self._asynchronous or rest:
            return function(self.own, *rest)
        function_id = id(function)  # an object that can be called need not be hashable
        if function_id in self._known:
            return self._known[function_id]

        async def load() -> None:
            self._known[function_id] = await sync_to_async(function)(self.own)

        try:
            return function(self.own)
        except failures.SynchronousOnlyOperation as error:  # the database: a user, a session
            raise NotLoaded(str(error), load) from error

    @property
    def departure(self) -> Departure | None:
        """Signals to a thread of a request on ASGI that the client is gone; a task is cancelled instead."""
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
        """The path as it was sent, with its query: the characters that Django has decoded are encoded again."""
        if not self._path:
            path, query = path_text(self.django.path) or "/", self.django.META.get("QUERY_STRING", "")
            whole = f"{path}?{query}" if query else path
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
        """Header fields by name in lower case; a look-up may use any case."""
        if self._read is None:
            self._read = EnvironHeaders(self.django.META)
        return self._read

    def header(self, name: str) -> str:
        """The header as `request.headers.get` returns it: all in one line, if it was sent several times."""
        return sent_text(self.django.headers.get(name, ""))

    def cookie(self, name: str) -> str:
        """The cookie as `request.COOKIES.get` returns it: the last, if it was sent several times."""
        return sent_text(self.django.COOKIES.get(name, ""))

    def query(self, name: str) -> str:
        """The parameter as `request.GET.get` returns it: the last, if it was sent several times."""
        value: str = self.django.GET.get(name, "")
        return value.strip()

    @property
    def host(self) -> str:  # type: ignore[override]
        """The host that the request names."""
        meta = self.django.META
        host: str = meta.get("HTTP_HOST") or meta.get("SERVER_NAME", "")
        return host

    @property
    def endpoint(self) -> str:  # type: ignore[override]
        """The route of the view, resolved here if Django has not resolved it yet."""
        if not self._endpoint:
            self._endpoint = route_of(self.django)
        return self._endpoint

    @property
    def user(self) -> Any:
        """Django's user. On an event loop it is available to `key`, `cost`, `limits`, `tier` and `exempt`."""
        if self._user is None:
            if self._asynchronous:
                raise NotLoaded("on an event loop the user is known while a request is judged", self._load_user)
            self._user = _user_of(self.django)
        return self._user

    async def _load_user(self) -> None:
        lazy = getattr(self.django, "user", None)
        is_unread = isinstance(lazy, LazyObject) and lazy._wrapped is empty
        self._user = await sync_to_async(_user_of)(self.django) if is_unread else _user_of(self.django)


def environ_of(request: Any) -> Any:
    """Return META of Django's request for the native gate to read, None where it differs from the request.

    Middlewares replace methods and paths, and text beyond ASCII is encoded in META in more than one way.
    """
    meta, method, path = request.META, request.method, request.path
    if not method or method != meta.get("REQUEST_METHOD") or not path.isascii() or _other_path(request):
        return None
    mount, rest = meta.get("SCRIPT_NAME"), meta.get("PATH_INFO")
    return meta if path == (rest if mount == "" else f"{mount}{rest}") else None


def _other_path(request: Any) -> str:
    """Return the other form of the path, "" for none: in an ASGI scope it may begin with the root path or not.

    All paths below a mount of Starlette begin with the mount's path. Under WSGI a header may name a mount.
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
    bool(request.user.is_authenticated)  # reads a lazy user
    return request.user


@request_of.register(HttpRequest)
def _(request: Any) -> DjangoRequest:
    return DjangoRequest(request)


@portable_here
def user(request: Any) -> tuple[str, str] | None:
    """Return the key of the logged-in user, by primary key; None where no user is logged in.

    It works in sync and async views alike.
    """
    account = cast(DjangoRequest, request_of(request)).user
    if account is None or not account.is_authenticated or account.pk is None:
        return None
    return ("user", str(account.pk))


@portable_here
def each_route(request: Any) -> str:
    """A scope for HEADGATE: each route of the site counts by itself, and requests without a route together."""
    return f"site: {request_of(request).endpoint}"
