"""Flask with one route that answers a text: alone, behind Headgate, behind its peers."""

from __future__ import annotations

from collections.abc import Callable

import flask_limiter
import throttled.contrib.flask
from flask import Flask
from flask_limiter.util import get_remote_address

from benchmarks.web_apps import TEXT
from benchmarks.web_apps.constant_headers import WsgiConstantHeaders
from benchmarks.web_apps.ten_rules import ten_rules
from headgate.http.wsgi import RateLimitMiddleware


def bare(a_minute: int) -> Flask:
    """The application alone."""
    return _application()


def constant_headers(a_minute: int) -> Flask:
    """The application, and the two lines that a limiter adds, as constants."""
    application = _application()
    application.wsgi_app = WsgiConstantHeaders(application.wsgi_app)  # type: ignore[method-assign]
    return application


def headgate(a_minute: int) -> Flask:
    """Headgate's middleware."""
    application = _application()
    application.wsgi_app = RateLimitMiddleware(application.wsgi_app, limits=f"{a_minute}/minute")  # type: ignore[method-assign]
    return application


def headgate_policy(a_minute: int) -> Flask:
    """Headgate's middleware with a policy."""
    application = _application()
    application.wsgi_app = RateLimitMiddleware(application.wsgi_app, policy=ten_rules(a_minute))  # type: ignore[method-assign]
    return application


def limiter(a_minute: int) -> Flask:
    """Flask-Limiter."""
    application = _application()
    flask_limiter.Limiter(
        get_remote_address,
        app=application,
        default_limits=[f"{a_minute}/minute"],
        storage_uri="memory://",
        headers_enabled=True,
    )
    return application


def throttled_py(a_minute: int) -> Flask:
    """throttled-py, by the decorator of a view."""
    by_client = throttled.contrib.flask.Limiter(f"{a_minute}/m", key_func=throttled.contrib.flask.get_remote_address)
    application = _application(by_client.limit()(_hello))
    by_client.init_app(application)
    return application


def _hello() -> str:
    return TEXT


def _application(view: Callable[[], str] = _hello) -> Flask:
    application = Flask(__name__)
    application.get("/")(view)
    return application
