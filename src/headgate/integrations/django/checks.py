"""Django system checks of settings.HEADGATE, and of the place of the middleware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import AppConfig  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.core import checks  # type: ignore[import-untyped]

from headgate.errors import ConfigError
from headgate.integrations.django.request import AUTHENTICATION, user
from headgate.integrations.django.site import Site, read_settings

_MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"
_USER = "headgate.integrations.django.user"
CORS = "corsheaders.middleware.CorsMiddleware"


class HeadgateConfig(AppConfig):  # type: ignore[misc]
    """For INSTALLED_APPS: with it `manage.py check` checks HEADGATE. The middleware and views do not need it."""

    name = "headgate.integrations.django"
    label = "headgate"
    verbose_name = "Headgate"


def is_outside_of_cors(middleware: Any) -> bool:
    """Whether settings.MIDDLEWARE names RateLimitMiddleware above CorsMiddleware."""
    names = list(middleware)
    return CORS in names and _MIDDLEWARE in names and names.index(_MIDDLEWARE) < names.index(CORS)


def check_settings(app_configs: object = None, **_: object) -> list[Any]:
    """Return what is wrong with settings.HEADGATE, as messages of Django's system checks."""
    options = read_settings()
    error = _error_of(options)
    if error:
        hint = 'HEADGATE is as {"limits": "100/minute"} or {"policy": "policy.yaml"}, with options of docs/django.md'
        return [checks.Error(error, hint=hint, id="headgate.E001")]
    if "limits" not in options and "policy" not in options:
        return []
    above = list(settings.MIDDLEWARE)
    if _MIDDLEWARE not in above:
        message = "settings.HEADGATE has limits that nothing applies: settings.MIDDLEWARE does not name the middleware"
        return [checks.Warning(message, hint=f'add "{_MIDDLEWARE}"', id="headgate.W001")]
    if is_outside_of_cors(above):
        message = "RateLimitMiddleware stands above CorsMiddleware: no page of another origin can read its refusals"
        return [checks.Warning(message, hint=f'put "{CORS}" above "{_MIDDLEWARE}"', id="headgate.W002")]
    del above[above.index(_MIDDLEWARE) :]
    if "limits" in options and options.get("key") in (user, _USER) and AUTHENTICATION not in above:
        message = 'settings.HEADGATE["key"] is user, who is not known yet where RateLimitMiddleware stands'
        hint = f'put "{_MIDDLEWARE}" below "{AUTHENTICATION}" in settings.MIDDLEWARE'
        return [checks.Error(message, hint=hint, id="headgate.E002")]
    return []


def _error_of(options: Any) -> str:
    """Return what is wrong with the settings: the option, its value, and what would be right; "" for nothing."""
    try:
        Site(options)
        for name in options:
            if name in ("limits", "policy") and options[name] is None:
                continue  # the other one may be given: all options are tried below
            _try({name: options[name], **_needed_by(name, options)}, f"settings.HEADGATE[{name!r}]")
        _try(options, "settings.HEADGATE")
    except (ConfigError, TypeError, ValueError, OSError) as error:
        return str(error)
    return ""


def _try(options: Mapping[str, Any], place: str) -> None:
    site = Site(options)
    try:
        site.site_enforcer(asynchronous=site.has_async_functions)
    except (ConfigError, TypeError, ValueError, OSError) as error:
        message = str(error)
        raise ConfigError(message if message.startswith("settings.") else f"{place}: {message}") from error
    finally:
        site.close()


def _needed_by(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without which one option cannot be tried."""
    if name == "limits":
        return {"tier": str} if isinstance(options[name], Mapping) else {}
    if name == "ruleset" and "policy" in options:
        return {"policy": options["policy"]}
    if name == "policy":
        return {}
    if name == "address_header":
        return {"limits": "1/second", "trusted_hops": 1}
    return {"limits": {"default": "1/second"} if name == "tier" else "1/second"}


checks.register(check_settings, "headgate")
