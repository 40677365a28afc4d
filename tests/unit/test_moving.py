"""The statements of the migration page about other limiters and Headgate hold for both."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator, no-untyped-call"
# Django has no types, and slowapi few.

# FastAPI could not resolve the names that stand in a test, if annotations were text: so they are not postponed.

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flask
import httpx
import pytest
import slowapi
import slowapi.middleware
import slowapi.util
from fastapi import Depends, FastAPI, Request
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.util import get_remote_address

import django_configured  # noqa: F401 - the imports below read its settings

# isort: split

from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response as RestResponse
from rest_framework.throttling import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle
from rest_framework.views import APIView

from asgi_requests import ask
from headgate import Limiter, MemoryStore
from headgate.integrations import fastapi as of_fastapi
from headgate.integrations import flask as of_flask
from headgate.integrations.drf import RateLimitThrottle

PAGE = (Path(__file__).parents[2] / "docs" / "moving.md").read_text()
Statuses = list[int]


def row(part: str, left: str) -> str:
    """The replacement that the page gives under this heading."""
    body = PAGE.split(f"## {part}\n")[1].split("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith(f"| {left} |")]
    assert len(found) == 1, f"{part}: {left} has {len(found)} rows"
    return found[0][1]


# slowapi


def slow(limits: Callable[[Any], Any] | None = None, **options: Any) -> FastAPI:
    """A FastAPI application with slowapi, in which one route may have its own limits."""
    limiter = slowapi.Limiter(**{"key_func": slowapi.util.get_remote_address, **options})
    app = FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)  # type: ignore[arg-type]
    app.add_middleware(slowapi.middleware.SlowAPIMiddleware)

    async def read(request: Request) -> str:
        return "read"

    async def other(request: Request) -> str:
        return "other"

    app.get("/")(read if limits is None else limits(limiter)(read))
    app.get("/other")(other)
    return app


def ours(default: str = "", *own: Any, outer: Any = None, **options: Any) -> FastAPI:
    """The same application with Headgate: limits of the application and of one route."""
    limits = of_fastapi.RateLimits(store=MemoryStore(), **options)
    app = FastAPI(dependencies=[Depends(limits(default))] if default else [])
    route = [Depends(make(limits)) for make in own]

    @app.get("/", dependencies=route)
    async def read() -> str:
        return "read"

    @app.get("/other")
    async def other() -> str:
        return "other"

    return app


def passed(app: Any, *paths: str, client: str = "203.0.113.9") -> int:
    return [ask(app, path, client=client).status_code for path in paths].count(200)


def test_a_route_limit_of_slowapi_replaces_the_default_and_one_of_headgate_applies_beside_it() -> None:
    assert passed(slow(lambda limiter: limiter.limit("5/day"), default_limits=["2/day"]), *["/"] * 9) == 5
    assert passed(ours("2/day", lambda limits: limits("5/day")), *["/"] * 9) == 2
    assert "override=True" in row("From slowapi", "`override_defaults=True`, which is its default")
    assert passed(ours("2/day", lambda limits: limits("5/day", override=True)), *["/"] * 9) == 5
    both = slow(lambda limiter: limiter.limit("5/day", override_defaults=False), default_limits=["2/day"])
    assert passed(both, *["/"] * 9) == 2, "the page says which of the two this is"
    assert row("From slowapi", "`override_defaults=False`") == "nothing"


def test_the_default_of_slowapi_and_ours_count_each_route_by_itself() -> None:
    paths = ["/", "/other"] * 4
    assert passed(slow(default_limits=["2/day"]), *paths) == passed(ours("2/day"), *paths) == 4


def test_limits_of_an_application_count_all_routes_together() -> None:
    paths = ["/", "/other"] * 4
    assert passed(slow(application_limits=["3/day"]), *paths) == 3
    app = ours()
    app.add_middleware(of_fastapi.RateLimitMiddleware, limits="3/day")
    assert passed(app, *paths) == 3
    assert "RateLimitMiddleware" in row("From slowapi", "`application_limits=[...]`")


def test_paths_without_a_route_count_only_in_a_middleware() -> None:
    missing = ["/missing"] * 5
    for theirs in (slow(default_limits=["2/day"]), slow(application_limits=["2/day"]), ours("2/day")):
        assert {ask(theirs, path).status_code for path in missing} == {404}
    app = ours()
    app.add_middleware(of_fastapi.RateLimitMiddleware, limits="2/day")
    assert [ask(app, path).status_code for path in missing] == [404, 404, 429, 429, 429]
    assert "404" in row("From slowapi", "`application_limits=[...]`")


def test_key_functions_of_slowapi_work_unchanged() -> None:
    theirs = slow(lambda limiter: limiter.limit("1/day", key_func=slowapi.util.get_remote_address))
    own = ours("", lambda limits: limits("1/day", key=slowapi.util.get_remote_address))
    for app in (theirs, own):
        assert [passed(app, "/", "/", client=client) for client in ("203.0.113.1", "203.0.113.2")] == [1, 1]
    assert "as it is" in row("From slowapi", "`key_func=function`")


def test_a_condition_exempts_requests() -> None:
    def is_probe(request: Request) -> bool:
        return "probe" in request.query_params

    theirs = slow(lambda limiter: limiter.limit("1/day", exempt_when=lambda: True))
    own = ours("", lambda limits: limits("1/day", exempt=lambda: True))
    assert passed(theirs, *["/"] * 3) == passed(own, *["/"] * 3) == 3
    by_request = ours("", lambda limits: limits("1/day", exempt=is_probe))
    assert passed(by_request, "/?probe=1", "/?probe=1", "/", "/") == 3
    assert row("From slowapi", "`exempt_when=function`") == "`exempt=function`, of the request or of nothing"


def test_costs_of_slowapi_have_an_equivalent() -> None:
    theirs = slow(lambda limiter: limiter.limit("4/day", cost=lambda request: 2))
    own = ours("", lambda limits: limits("4/day", cost=lambda request: 2))
    assert passed(theirs, *["/"] * 5) == passed(own, *["/"] * 5) == 2


def test_a_reset_forgets_what_was_used() -> None:
    limiter = slowapi.Limiter(key_func=slowapi.util.get_remote_address, default_limits=["1/day"])
    app = slow()
    app.state.limiter = limiter
    assert passed(app, "/", "/") == 1
    limiter.reset()
    assert passed(app, "/", "/") == 1
    store = MemoryStore()
    limits = of_fastapi.RateLimits(store=store)
    own = FastAPI(dependencies=[Depends(limits("1/day"))])
    own.get("/")(lambda: "read")
    assert passed(own, "/", "/") == 1
    store.clear()
    assert passed(own, "/", "/") == 1
    for part in ("From slowapi", "From Flask-Limiter"):
        assert "clear()" in row(part, "`limiter.reset()`")


def test_configuration_of_slowapi_becomes_options(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("RATELIMIT_ENABLED=False\n")
    assert passed(slow(default_limits=["1/day"], config_filename=str(file)), *["/"] * 3) == 3
    assert passed(ours("1/day", exempt=lambda: True), *["/"] * 3) == 3
    assert "exempt" in row("From slowapi", "`RATELIMIT_ENABLED=False`")


# Flask-Limiter


def site(**views: Callable[..., Any]) -> flask.Flask:
    app = flask.Flask("shop", static_folder=None)
    for name, view in views.items():
        app.add_url_rule(f"/{name}", name, view, methods=["GET", "POST"])
    return app


def flask_statuses(app: flask.Flask, *paths: str, method: str = "GET", client: str = "203.0.113.9") -> Statuses:
    transport = httpx.WSGITransport(app.wsgi_app, remote_addr=client)
    with httpx.Client(transport=transport, base_url="http://shop.example") as session:
        return [session.request(method, path).status_code for path in paths]


def read() -> str:
    return "read"


def other() -> str:
    return "other"


def theirs_on_flask(**options: Any) -> tuple[flask.Flask, FlaskLimiter]:
    app = site(read=read, other=other)
    return app, FlaskLimiter(get_remote_address, app=app, storage_uri="memory://", **options)


def ours_on_flask(default: str | None = None, **options: Any) -> tuple[flask.Flask, of_flask.RateLimits]:
    app = site(read=read, other=other)
    return app, of_flask.RateLimits(app, default=default, store=MemoryStore(), **options)


def test_a_view_limit_of_flask_limiter_replaces_the_default_and_one_of_headgate_applies_beside_it() -> None:
    app = site()
    limiter = FlaskLimiter(get_remote_address, app=app, default_limits=["2/day"], storage_uri="memory://")
    app.add_url_rule("/read", view_func=limiter.limit("5/day")(read))
    assert flask_statuses(app, *["/read"] * 9).count(200) == 5
    for override, passes in ((False, 2), (True, 5)):
        own = site()
        limits = of_flask.RateLimits(own, default="2/day", store=MemoryStore())
        own.add_url_rule("/read", view_func=limits("5/day", override=override)(read))
        assert flask_statuses(own, *["/read"] * 9).count(200) == passes
    assert "override=True" in row("From Flask-Limiter", "`override_defaults=True`, which is its default")


def test_paths_without_a_route_are_free_with_flask_limiter_and_share_a_counter_with_headgate() -> None:
    theirs, _ = theirs_on_flask(default_limits=["2/day"])
    own, _ = ours_on_flask("2/day")
    assert flask_statuses(theirs, *["/missing"] * 4) == [404] * 4
    assert flask_statuses(own, "/missing", "/nowhere", "/missing") == [404, 404, 429]
    assert flask_statuses(own, "/read", "/read", "/read") == [200, 200, 429], "by themselves"
    free, _ = ours_on_flask("2/day", exempt=lambda: flask.request.url_rule is None)
    assert flask_statuses(free, *["/missing"] * 4) == [404] * 4
    assert "flask.request.url_rule is None" in row("From Flask-Limiter", "a path without a route (404) is not limited")


def test_a_filter_of_requests_is_an_exemption() -> None:
    theirs, limiter = theirs_on_flask(default_limits=["1/day"])
    limiter.request_filter(lambda: flask.request.args.get("probe") == "1")
    own, _ = ours_on_flask("1/day", exempt=lambda: flask.request.args.get("probe") == "1")
    for app in (theirs, own):
        assert flask_statuses(app, "/read?probe=1", "/read?probe=1", "/read", "/read") == [200, 200, 200, 429]
    assert row("From Flask-Limiter", "`@limiter.request_filter`").startswith("`RateLimits(app, exempt=function)`")


def test_the_current_limit_becomes_a_decision_that_on_decision_stores() -> None:
    reported: list[tuple[int, bool]] = []
    theirs, limiter = theirs_on_flask(default_limits=["2/day"])

    def store_decision(request: Any, decision: Any) -> None:
        flask.g.decision = decision

    own, _ = ours_on_flask("2/day", on_decision=store_decision)

    @theirs.after_request
    def theirs_now(response: flask.Response) -> flask.Response:
        current = limiter.current_limit
        assert current is not None
        reported.append((current.remaining, current.breached))
        return response

    @own.after_request
    def ours_now(response: flask.Response) -> flask.Response:
        reported.append((flask.g.decision.remaining, not flask.g.decision.allowed))
        return response

    for app in (theirs, own):
        assert flask_statuses(app, *["/read"] * 3) == [200, 200, 429]
    assert reported[:3] == reported[3:] == [(1, False), (0, False), (0, True)]
    assert "flask.g.decision" in row("From Flask-Limiter", "`limiter.current_limit`")


def test_application_limits_of_flask_limiter_are_one_counter_for_all_routes() -> None:
    paths = ["/read", "/other"] * 3
    theirs, _ = theirs_on_flask(application_limits=["3/day"])
    own, _ = ours_on_flask("3/day", scope="application")
    assert flask_statuses(theirs, *paths) == flask_statuses(own, *paths) == [200] * 3 + [429] * 3
    assert 'scope="application"' in row("From Flask-Limiter", '`application_limits=["1000/hour"]`')


def test_settings_of_flask_limiter_are_options_of_init_app() -> None:
    app = site(read=read)
    app.config.update(RATELIMIT_DEFAULT="2/day", RATELIMIT_STORAGE_URI="memory://", RATELIMIT_HEADERS_ENABLED=True)
    FlaskLimiter(get_remote_address).init_app(app)
    own = site(read=read)
    own.config.update(RATELIMIT_DEFAULT="2/day", RATELIMIT_STORAGE_URI="memory://")
    limits = of_flask.RateLimits()
    limits.init_app(own, default=own.config["RATELIMIT_DEFAULT"], store=own.config["RATELIMIT_STORAGE_URI"])
    for each in (app, own):
        assert flask_statuses(each, *["/read"] * 3) == [200, 200, 429]
    for name in ("ENABLED", "DEFAULT", "APPLICATION", "STORAGE_URI", "STRATEGY", "HEADERS_ENABLED", "KEY_FUNC",
                 "KEY_PREFIX", "SWALLOW_ERRORS", "META"):  # fmt: skip
        assert f"`RATELIMIT_{name}`" in PAGE, name


def test_a_meta_limit_is_a_limiter_of_refusals() -> None:
    theirs, _ = theirs_on_flask(default_limits=["1/day"], meta_limits=["2/day"])
    refusals = Limiter("2/day")
    own, _ = ours_on_flask()

    @own.before_request
    def keep_out() -> None:
        if not refusals.peek(flask.request.remote_addr or "-"):
            flask.abort(429)

    def note(request: Any, decision: Any) -> None:
        if not decision.allowed:
            refusals.hit(request.remote_addr)

    of_flask.RateLimits(own, default="1/day", store=MemoryStore(), on_decision=note)
    paths = ["/read"] * 3 + ["/other"] * 2
    assert flask_statuses(theirs, *paths) == flask_statuses(own, *paths) == [200, 429, 429, 429, 429]
    assert flask_statuses(own, "/other", client="203.0.113.10") == [200]
    assert "refusals" in PAGE.split("## From Flask-Limiter\n")[1].split("\n## ")[0]


def test_a_cost_that_the_response_decides_is_charged_after_it() -> None:
    def login() -> tuple[str, int]:
        return "", int(flask.request.args["status"])

    app, own = site(), site()
    limiter = FlaskLimiter(get_remote_address, app=app, storage_uri="memory://")
    failed = limiter.limit("2/day", deduct_when=lambda response: response.status_code == 401)
    limits = of_flask.RateLimits(own, store=MemoryStore())
    ours_failed = limits("2/day", counts=lambda request, response: response.status == 401)
    app.add_url_rule("/login", view_func=failed(login))
    own.add_url_rule("/login", view_func=ours_failed(login))
    for each in (app, own):
        statuses = flask_statuses(each, *[f"/login?status={status}" for status in (200, 200, 401, 401, 200)])
        assert statuses == [200, 200, 401, 401, 429]


def test_limits_per_method_are_a_scope_with_the_method() -> None:
    app, own = site(), site()
    limiter = FlaskLimiter(get_remote_address, app=app, storage_uri="memory://")
    limits = of_flask.RateLimits(own, store=MemoryStore(), scope=lambda request: f"{request.method} {request.endpoint}")
    views = {app: limiter.limit("1/day", per_method=True)(read), own: limits("1/day")(read)}
    for each, view in views.items():
        each.add_url_rule("/read", view_func=view, methods=["GET", "POST"])
        assert flask_statuses(each, "/read", "/read") == [200, 429]
        assert flask_statuses(each, "/read", "/read", method="POST") == [200, 429]
    assert "request.method" in row("From Flask-Limiter", '`@limiter.limit("100/day", per_method=True)`')


# Django REST framework's own throttles


class ByHeader(BaseAuthentication):
    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-User")
        return (SimpleNamespace(is_authenticated=True, pk=name), None) if name else None


_SITES = count()


class RestSite:
    """Two views with the same throttles."""

    def __init__(self, *throttles: Any, **attributes: Any) -> None:
        def get(self: Any, request: Any) -> RestResponse:
            return RestResponse("read")

        def view(name: str) -> Any:
            kind: Any = type(name, (APIView,), {
                "throttle_classes": throttles, "authentication_classes": [ByHeader], "get": get, **attributes,
            })  # fmt: skip
            return kind.as_view()

        self.urlpatterns = [path("one", view("One")), path("two", view("Two"))]
        rest = {
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
            "DEFAULT_THROTTLE_RATES": {"anon": "2/day", "user": "3/day", "uploads": "2/day"},
            "UNAUTHENTICATED_USER": None,
        }
        caches = {
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": f"site {next(_SITES)}"}
        }
        self._settings = {
            "ROOT_URLCONF": self, "REST_FRAMEWORK": rest, "MIDDLEWARE": [], "CACHES": caches,
            "HEADGATE": {"store": MemoryStore()},
        }  # fmt: skip

    def statuses(self, *paths: str, client: str = "203.0.113.9", **headers: str) -> Statuses:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with override_settings(**self._settings):
            transport = httpx.WSGITransport(WSGIHandler(), remote_addr=client)
            with httpx.Client(transport=transport, base_url="http://shop.example") as session:
                return [session.get(path, headers=named).status_code for path in paths]


@pytest.fixture(autouse=True)
def throttle_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """REST framework reads its rates once, when it is imported."""
    rates = {"anon": "2/day", "user": "3/day", "uploads": "2/day"}
    monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", rates)


def is_authenticated_user(request: Any) -> bool:
    return bool(request.user and request.user.is_authenticated)


class OursAnon(RateLimitThrottle):
    scope = "anon"
    options = {"exempt": is_authenticated_user}  # noqa: RUF012


class OursUser(RateLimitThrottle):
    scope = "user"


BOTH = [("one", "two", "one", "two"), ("one", "one", "one", "one")]


@pytest.mark.parametrize("paths", BOTH)
def test_a_throttle_of_rest_framework_and_ours_of_its_scope_count_all_views_together(paths: tuple[str, ...]) -> None:
    for theirs, own in ((AnonRateThrottle, OursAnon), (UserRateThrottle, OursUser)):
        for headers in ({}, {"X_User": "7"}):
            statuses = RestSite(theirs).statuses(*paths, **headers)
            assert RestSite(own).statuses(*paths, **headers) == statuses, (theirs, headers)
    part = "From the throttles of Django REST framework"
    assert "exempt" in row(part, "`AnonRateThrottle`") and 'scope = "user"' in row(part, "`UserRateThrottle`")


def test_a_scope_of_a_view_names_its_rate() -> None:
    theirs = RestSite(ScopedRateThrottle, throttle_scope="uploads")
    own = RestSite(RateLimitThrottle, throttle_scope="uploads")
    for each in (theirs, own):
        assert each.statuses("one", "two", "one", X_User="7") == [200, 200, 429]
        assert each.statuses("one", X_User="8") == [200]
    assert row("From the throttles of Django REST framework", "`ScopedRateThrottle` and `throttle_scope`")


def test_get_cache_key_becomes_a_key() -> None:
    def get_cache_key(self: Any, request: Any, view: Any) -> Any:
        return f"tenant_{request.headers['X-Tenant']}"

    theirs = type("Theirs", (SimpleRateThrottle,), {"rate": "1/day", "get_cache_key": get_cache_key})
    own = type("Ours", (RateLimitThrottle,), {"limits": "1/day", "scope": "", "key": get_cache_key})
    for each in (RestSite(theirs), RestSite(own)):
        assert each.statuses("one", "one", X_Tenant="a") == [200, 429]
        assert each.statuses("one", X_Tenant="b") == [200]
    assert "`key`" in row("From the throttles of Django REST framework", "`get_cache_key(self, request, view)`")


def test_a_refused_request_is_charged_by_other_throttles_of_rest_framework_but_not_of_headgate() -> None:
    narrow = type("Narrow", (UserRateThrottle,), {"rate": "1/day", "scope": "narrow"})
    wide = type("Wide", (UserRateThrottle,), {"rate": "3/day", "scope": "wide"})
    ours_narrow = type("Narrow", (RateLimitThrottle,), {"limits": "1/day", "scope": ""})
    ours_wide = type("Wide", (RateLimitThrottle,), {"limits": "3/day", "options": {"scope": "wide"}})
    statuses = [RestSite(*both).statuses(*["one"] * 4, "two", X_User="7")[-1] for both in ((wide,), (ours_wide,))]
    assert statuses == [429, 429]

    class Mixed(RestSite):
        def __init__(self, narrow: Any, wide: Any) -> None:
            super().__init__(wide, narrow)
            wide_only = RestSite(wide)
            self.urlpatterns = [self.urlpatterns[0], wide_only.urlpatterns[1]]

    assert Mixed(narrow, wide).statuses(*["one"] * 4, "two", X_User="7")[-1] == 429, "three were charged, one passed"
    assert Mixed(ours_narrow, ours_wide).statuses(*["one"] * 4, "two", X_User="7")[-1] == 200
    assert "gives back" in PAGE.split("## From the throttles of Django REST framework\n")[1]


def test_rest_framework_reads_the_first_letter_of_a_period_and_headgate_the_whole_word() -> None:
    throttle = SimpleRateThrottle.__new__(SimpleRateThrottle)
    assert throttle.parse_rate("10/month") == (10, 60), "a month is a minute"
    with pytest.raises(ValueError, match="units are"):
        Limiter("10/month")
    for rate in ("10/s", "10/sec", "10/m", "10/min", "10/h", "10/hour", "10/d", "10/day"):
        assert Limiter(rate).limits[0].period_us == throttle.parse_rate(rate)[1] * 1_000_000
