"""What Django's system checks say of settings.HEADGATE, and of the place of the middleware."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.core import checks  # type: ignore[import-untyped]

from headgate.integrations.django.request import AUTHENTICATION, user
from headgate.integrations.django.site import fault_of, read_settings

_MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"
_USER = "headgate.integrations.django.user"
CORS = "corsheaders.middleware.CorsMiddleware"


class HeadgateConfig(AppConfig):  # type: ignore[misc]
    """For INSTALLED_APPS: then `manage.py check` checks HEADGATE. The middleware and views do not need it."""

    name = "headgate.integrations.django"
    label = "headgate"
    verbose_name = "Headgate"


def is_outside_of_cors(middleware: Any) -> bool:
    named = list(middleware)
    return CORS in named and _MIDDLEWARE in named and named.index(_MIDDLEWARE) < named.index(CORS)


def check_settings(app_configs: object = None, **_: object) -> list[Any]:
    """What is wrong with settings.HEADGATE, as Django's system checks tell it."""
    told = read_settings()
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
    if is_outside_of_cors(above):
        said = "RateLimitMiddleware stands above CorsMiddleware: no page of another origin can read its refusals"
        return [checks.Warning(said, hint=f'put "{CORS}" above "{_MIDDLEWARE}"', id="headgate.W002")]
    del above[above.index(_MIDDLEWARE) :]
    if told.get("key") in (user, _USER) and AUTHENTICATION not in above:
        said = 'settings.HEADGATE["key"] is user, who is not known yet where RateLimitMiddleware stands'
        hint = f'put "{_MIDDLEWARE}" below "{AUTHENTICATION}" in settings.MIDDLEWARE'
        return [checks.Error(said, hint=hint, id="headgate.E002")]
    return []


checks.register(check_settings, "headgate")
