"""The Django route of a request, and whether the site's limits exclude its view."""

from __future__ import annotations

from threading import Event
from typing import Any

from django.conf import settings  # type: ignore[import-untyped]
from django.conf.urls.i18n import is_language_prefix_patterns_used  # type: ignore[import-untyped]
from django.core.signals import setting_changed  # type: ignore[import-untyped]
from django.urls import Resolver404, get_resolver, get_script_prefix, resolve  # type: ignore[import-untyped]
from django.utils.translation import get_language_from_path  # type: ignore[import-untyped]

from headgate.http.server.routes import is_excluded_endpoint

NO_ROUTE = "no route"
"""The endpoint of requests that no view answers."""

marked = Event()
"""Set once a view is exempt or overrides the site's limits: until then no URL has to be resolved to find out."""

_imported = Event()
"""Set once the views of ROOT_URLCONF are imported: importing a view applies its marks."""


def route_of(request: Any, method: str = "") -> str:
    """Return the route of a request's view, after the mount; it is the same in all languages of a site.

    `method` is the HTTP method that a method of a view class answers by itself.
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
    match = getattr(request, "resolver_match", None)  # a copy of a request of Django 4.2 lacks it
    if match is not None:
        return match
    try:
        return resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return None


def is_excluded(request: Any) -> bool:
    """Whether the site's limits exclude a request's view: it is exempt, or its own limits override them."""
    urlconf = getattr(request, "urlconf", None)
    if urlconf is not None or not _imported.is_set():
        get_resolver(urlconf).url_patterns  # noqa: B018  # this imports the views
        if urlconf is None:
            _imported.set()
    match = _match_of(request) if marked.is_set() else None
    if match is None:
        return False
    view, method = match.func, "get" if request.method == "HEAD" else request.method.lower()
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    name = (getattr(view, "actions", None) or {}).get(method, method)
    return any(is_excluded_endpoint(target) for target in (view, kind, getattr(kind, name, None)))


def _forget(*, setting: str, **_: object) -> None:
    if setting == "ROOT_URLCONF":
        _imported.clear()


setting_changed.connect(_forget)
