"""Limits of views of Django REST framework, as throttles, without a server."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

import django_configured  # noqa: F401 - the imports below need its settings

# isort: split

from django.core.cache import caches
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views.decorators.cache import cache_page
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, throttle_classes
from rest_framework.exceptions import NotFound
from rest_framework.response import Response as RestResponse
from rest_framework.routers import SimpleRouter
from rest_framework.urlpatterns import format_suffix_patterns
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from broken_store import NO_REDIS, BrokenStore
from headgate import ConfigError, core
from headgate.http.server.options import Response
from headgate.integrations.django import rate_limit
from headgate.integrations.drf import RateLimitThrottle, RestRequest
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import parse_list

MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"
JSON = {"DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"], "UNAUTHENTICATED_USER": None}


class Site:
    """A site with these views and settings, which receives requests as from a server."""

    def __init__(self, patterns: Sequence[Any], *, rest: dict[str, Any] | None = None, **settings: Any) -> None:
        self.urlpatterns = list(patterns)
        defaults: dict[str, Any] = {"MIDDLEWARE": [], "HEADGATE": {}, "REST_FRAMEWORK": JSON | (rest or {})}
        self._settings = override_settings(ROOT_URLCONF=self, **(defaults | settings))

    def __enter__(self) -> Site:
        self._settings.enable()
        self._app: Any = WSGIHandler()
        return self

    def __exit__(self, *_: object) -> None:
        self._settings.disable()

    def request(
        self, path: str = "/", method: str = "GET", client: str = "203.0.113.9", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.WSGITransport(self._app, remote_addr=client)
        with httpx.Client(transport=transport, base_url="http://shop.example") as session:
            return session.request(method, path, headers=named)

    def statuses(self, *paths: str, **options: Any) -> list[int]:
        return [self.request(path, **options).status_code for path in paths]


class _User:
    is_authenticated = True

    def __init__(self, pk: int) -> None:
        self.pk = pk


class ByHeader(BaseAuthentication):
    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-User")
        return (_User(int(name)), None) if name else None


def throttled(*throttles: type[RateLimitThrottle], **attributes: Any) -> Any:
    """A view with these throttles."""

    def get(self: Any, request: Any, **kwargs: Any) -> RestResponse:
        if kwargs.get("name") == "gone":
            raise NotFound
        return RestResponse("read")

    attributes = {
        "throttle_classes": throttles,
        "authentication_classes": [ByHeader],
        "get": get,
        "post": get,
    } | attributes
    view: Any = type("Read", (APIView,), attributes)
    return view.as_view()


def throttle(limits: Any = None, name: str = "Throttle", **attributes: Any) -> type[RateLimitThrottle]:
    return type(name, (RateLimitThrottle,), {"limits": limits, **attributes})


def remaining_units(response: httpx.Response) -> int:
    [(_, parameters)] = parse_list(response.headers["RateLimit"])
    remaining: int = parameters["r"]
    return remaining


@pytest.fixture(params=["alone", "with the middleware"])
def middleware(request: pytest.FixtureRequest) -> list[str]:
    return [] if request.param == "alone" else [MIDDLEWARE]


def test_a_throttle_counts_each_address_and_reports_the_remaining_units(middleware: list[str]) -> None:
    with Site([path("<name>", throttled(throttle("3/minute fixed")))], MIDDLEWARE=middleware,
              HEADGATE={"clock": ManualClock()}) as site:  # fmt: skip
        responses = [site.request(name) for name in ("/a", "/gone", "/b", "/c")]
        assert [response.status_code for response in responses] == [200, 404, 200, 429]
        assert [remaining_units(response) for response in responses] == [2, 1, 0, 0]
        for response in responses:
            assert (
                len(response.headers.get_list("RateLimit")) == len(response.headers.get_list("RateLimit-Policy")) == 1
            )
        assert responses[3].headers.get_list("Retry-After") == ["60"]
        assert responses[3].json() == {"detail": "Request was throttled. Expected available in 60 seconds."}
        assert site.request("/a", client="203.0.113.10").status_code == 200


def test_a_cache_above_a_throttle_stores_no_fields_of_one_client(middleware: list[str]) -> None:
    view = cache_page(60)(throttled(throttle("5/minute"), throttle("4/minute")))
    with Site([path("", view)], MIDDLEWARE=middleware) as site:
        caches["default"].clear()
        first, second = site.request(), site.request(client="203.0.113.10")
        assert (remaining_units(first), second.json()) == (3, "read")
        assert not {"ratelimit", "ratelimit-policy"} & set(second.headers), "no limit counted the request"


def test_retry_after_is_exact_to_the_second() -> None:
    clock = ManualClock()
    with Site([path("", throttled(throttle("1/minute fixed")))], HEADGATE={"clock": clock}) as site:
        site.request()
        for passed_us, seconds in ((100, 60), (59_000_000, 1), (999_899, 1)):
            clock.advance(passed_us)
            assert site.request().headers["Retry-After"] == str(seconds)
        clock.advance(1)
        assert site.request().status_code == 200


def test_authenticated_users_are_counted_by_primary_key_and_other_clients_by_address() -> None:
    with Site([path("", throttled(throttle("2/minute")))]) as site:
        clients = ("203.0.113.1", "203.0.113.2", "203.0.113.3")
        assert [site.request(client=client, X_User="7").status_code for client in clients] == [200, 200, 429]
        assert [site.request(client="203.0.113.1", X_User="8").status_code for _ in range(3)] == [200, 200, 429]
        assert site.statuses("/", "/", "/", client="203.0.113.1") == [200, 200, 429]


def test_the_forged_end_of_a_forwarding_header_is_not_believed() -> None:
    patterns = [path("", throttled(throttle("1/minute")))]
    with Site(patterns) as site:
        forged = [{"X_Forwarded_For": f"{number}.1.1.1"} for number in (1, 2)]
        assert [site.request(**request).status_code for request in forged] == [200, 429]
    with Site(patterns, HEADGATE={"trusted_hops": 1}) as site:
        forged = [{"X_Forwarded_For": f"{number}.1.1.1, 203.0.113.7"} for number in (1, 2)]
        assert [site.request(**request).status_code for request in forged] == [200, 429]
        assert site.request(X_Forwarded_For="1.1.1.1, 203.0.113.8").status_code == 200


@pytest.mark.parametrize("rate", ["2/m", "2/min", "2/minute", "2/s", "2/sec", "2/h", "2/hour", "2/d", "2/day"])
def test_rates_in_the_format_of_rest_framework_are_accepted(rate: str) -> None:
    view = throttled(RateLimitThrottle, throttle_scope="uploads")
    settings = {"HEADGATE": {"clock": ManualClock()}}
    with Site([path("", view)], rest={"DEFAULT_THROTTLE_RATES": {"uploads": rate}}, **settings) as site:
        assert site.statuses("/", "/", "/") == [200, 200, 429]


def test_views_with_one_scope_count_together_in_the_limits_of_the_settings() -> None:
    uploads = [throttled(RateLimitThrottle, throttle_scope="uploads") for _ in range(2)]
    patterns = [
        path("a", uploads[0]),
        path("b", uploads[1]),
        path("none", throttled(RateLimitThrottle)),
        path("off", throttled(RateLimitThrottle, throttle_scope="off")),
        path("class", throttled(throttle(scope="uploads"))),
        path("unknown", throttled(RateLimitThrottle, throttle_scope="downloads")),
        path("own", throttled(throttle("1/minute"), throttle_scope="uploads")),
    ]
    rest = {
        "DEFAULT_THROTTLE_CLASSES": ["headgate.integrations.drf.RateLimitThrottle"],
        "DEFAULT_THROTTLE_RATES": {"uploads": "1/day", "off": None},
    }
    with Site(patterns, rest=rest, HEADGATE_THROTTLE_RATES={"uploads": "3/minute burst 3"}) as site:
        assert site.statuses("/a", "/b", "/class", "/a", "/class") == [200, 200, 200, 429, 429]
        assert site.statuses(*["/none"] * 5, *["/off"] * 5) == [200] * 10
        assert site.statuses("/own", "/own") == [200, 429], "a throttle's own limits are not the view's scope"
        assert site.statuses("/unknown") == [500]


def test_a_scope_that_settings_do_not_name_raises() -> None:
    view = throttled(RateLimitThrottle, throttle_scope="downloads").cls()
    with override_settings(REST_FRAMEWORK=JSON), pytest.raises(ConfigError, match=r"throttle scope 'downloads': name"):
        RateLimitThrottle().allow_request(None, view)


def test_function_views_can_have_throttles() -> None:
    @api_view(["GET"])
    @throttle_classes([throttle("1/minute")])
    def view(request: Any) -> RestResponse:
        return RestResponse("read")

    with Site([path("", view)]) as site:
        assert site.statuses("/", "/") == [200, 429]


def test_routes_are_several_limits_and_formats_of_one_are_not() -> None:
    class Users(ViewSet):
        throttle_classes = (throttle("2/minute"),)

        def list(self, request: Any, format: str = "") -> RestResponse:
            return RestResponse([])

        def retrieve(self, request: Any, pk: str, format: str = "") -> RestResponse:
            return RestResponse(pk)

    for regular in (True, False):
        router = SimpleRouter(use_regex_path=regular)
        router.register("users", Users, basename="users")
        urls = format_suffix_patterns(router.urls, allowed=["json", "html"])
        with Site([path("v1/", include((urls, "v1"))), path("v2/", include((urls, "v2")))]) as site:
            assert site.statuses("/v1/users/1/", "/v1/users/2.json", "/v1/users/3/") == [200, 200, 429]
            assert site.statuses("/v1/users/", "/v1/users.json", "/v1/users.json") == [200, 200, 429]
            assert site.statuses("/v2/users/1/", "/v2/users/2/", "/v2/users/3/") == [200, 200, 429]


def test_several_throttles_are_charged_together_or_not_at_all(middleware: list[str]) -> None:
    wide = throttle("5/minute", "Wide", scope="wide")
    narrow = throttle("1/minute", "Narrow")
    patterns = [path("first", throttled(narrow, wide)), path("last", throttled(wide, narrow)),
                path("wide", throttled(wide))]  # fmt: skip
    with Site(patterns, MIDDLEWARE=middleware, HEADGATE={"clock": ManualClock()}) as site:
        assert site.statuses(*["/first"] * 4, *["/last"] * 4) == [200, 429, 429, 429] * 2
        assert site.statuses(*["/wide"] * 4) == [200, 200, 200, 429], "six refusals consumed nothing of the wider limit"


def test_the_longest_wait_of_several_throttles_is_reported(middleware: list[str]) -> None:
    throttles = (
        throttle("1/minute fixed", "Minute"),
        throttle("1/hour fixed", "Hour"),
        throttle("1/second fixed", "Second"),
    )
    with Site([path("", throttled(*throttles))], MIDDLEWARE=middleware, HEADGATE={"clock": ManualClock()}) as site:
        assert remaining_units(site.request()) == 0
        refused = site.request()
        assert (refused.status_code, refused.headers.get_list("Retry-After")) == (429, ["3600"])
        assert refused.headers["RateLimit-Policy"] == '"default";q=1;w=3600'


def test_a_request_that_can_never_pass_is_refused_without_retry_after() -> None:
    with Site([path("", throttled(throttle("3/minute", cost=4)))]) as site:
        refused = site.request()
        assert (refused.status_code, refused.headers.get("Retry-After")) == (429, None)
        assert refused.json() == {"detail": "Request was throttled."}


def test_keys_and_costs_are_functions_of_the_request_or_methods() -> None:
    def by_tenant(request: Request) -> tuple[str, str]:
        return ("tenant", request.headers["x-tenant"])

    class Methods(RateLimitThrottle):
        limits = "10/minute"

        def key(self, request: Any) -> tuple[str, str]:
            return ("tenant", request.headers["X-Tenant"])

        def cost(self, request: Any, view: Any) -> int:
            return 5 if view.__class__.__name__ == "Read" else 1

    class Chosen(RateLimitThrottle):
        key = staticmethod(by_tenant)
        cost = 5

        def limits(self, request: Any) -> str | None:
            return "10/minute" if request.headers["x-tenant"] in "ab" else None

    functions = throttle("10/minute", key=by_tenant, cost=lambda request: 5)
    static = throttle("10/minute", key=staticmethod(by_tenant), cost=5)
    tiered = throttle({"default": "2/minute"}, key=by_tenant, options={"tier": lambda request: "pro"})
    throttles: tuple[Any, ...] = (Methods, Chosen, functions, static, tiered)
    with Site([path(str(number), throttled(each)) for number, each in enumerate(throttles)]) as site:
        for number in range(5):
            statuses = [site.request(f"/{number}", X_Tenant=tenant).status_code for tenant in "ababab"]
            assert statuses == [200, 200, 200, 200, 429, 429], number


def by_view(request: Any, view: Any) -> Any:
    return (type(view).__name__, request.headers["X-Tenant"])


def test_a_function_of_the_request_and_the_view_can_be_an_attribute() -> None:
    class Whole(RateLimitThrottle):
        limits = "1/minute"
        key = by_view

    created = throttle("1/minute", key=by_view)
    with Site([path("0", throttled(Whole)), path("1", throttled(created))]) as site:
        for number in range(2):
            assert [site.request(f"/{number}", X_Tenant=tenant).status_code for tenant in "aba"] == [200, 200, 429], (
                number
            )


def test_a_key_can_return_what_get_cache_key_returned() -> None:
    class Users(RateLimitThrottle):
        limits = "1/minute"
        scope = "users"

        def key(self, request: Any, view: Any) -> Any:
            # As in UserRateThrottle.
            is_known = request.user and request.user.is_authenticated
            ident = request.user.pk if is_known else self.get_ident(request)
            return self.cache_format % {"scope": self.scope, "ident": ident}

    with Site([path("", throttled(Users))]) as site:
        assert [site.request(client=f"203.0.113.{number}").status_code for number in (1, 2, 1)] == [200, 200, 429]
        assert [site.request(X_User=number).status_code for number in "131"] == [200, 200, 429]


def test_get_ident_of_a_key_uses_headers_of_trusted_proxies_only() -> None:
    class ByIdent(RateLimitThrottle):
        limits = "1/minute"

        def key(self, request: Any, view: Any) -> Any:
            return self.get_ident(request)

    paths = [path("", throttled(ByIdent))]
    with Site(paths) as site:
        statuses = [site.request(X_Forwarded_For=f"198.51.100.{number}").status_code for number in range(3)]
        assert statuses == [200, 429, 429]
    with Site(paths, HEADGATE={"trusted_hops": 1}) as site:
        clients = ("198.51.100.1", "198.51.100.2", "192.0.2.9, 198.51.100.1")
        assert [site.request(X_Forwarded_For=client).status_code for client in clients] == [200, 200, 429]
    with Site(paths, rest={"NUM_PROXIES": 1}) as site:
        clients = ("198.51.100.1", "198.51.100.2", "192.0.2.9, 198.51.100.1")
        assert [site.request(X_Forwarded_For=client).status_code for client in clients] == [200, 200, 429]


def test_attributes_of_rest_framework_that_are_not_used_raise() -> None:
    with pytest.raises(ConfigError, match=r"Uploads\.rate is REST framework's, and limits nothing: write it as limits"):

        class Uploads(RateLimitThrottle):
            scope = "uploads"
            rate = "1/minute"

    with pytest.raises(ConfigError, match=r"ByKey\.get_cache_key is REST framework's, .*: name it key"):

        class ByKey(RateLimitThrottle):
            limits = "1/minute"

            def get_cache_key(self, request: Any, view: Any) -> str:
                return "one"

    class Both(RateLimitThrottle):
        limits = rate = "1/minute"

        def get_cache_key(self, request: Any, view: Any) -> str:
            return "one"

        key = get_cache_key

    with Site([path("", throttled(Both))]) as site:
        assert [site.request(client=f"203.0.113.{number}").status_code for number in (1, 2)] == [200, 429]


def test_the_response_can_decide_whether_a_request_counts_with_the_middleware() -> None:
    counted: list[int] = []

    def found(request: Request, response: Response) -> bool:
        counted.append(response.status)
        return response.status == 200

    view = throttled(throttle("2/minute", options={"counts": found}))
    with Site([path("<name>", view)], MIDDLEWARE=[MIDDLEWARE]) as site:
        assert site.statuses(*["/gone"] * 4, *["/read"] * 3) == [404] * 4 + [200, 200, 429]
        assert counted == [404] * 4 + [200] * 2
    with Site([path("<name>", view)]) as site:
        assert site.statuses("/read") == [500], "a throttle has no access to the response"


def test_a_store_that_fails_never_causes_a_429(middleware: list[str]) -> None:
    patterns = [
        path("open", throttled(throttle("1/minute"))),
        path("closed", throttled(throttle("1/minute", options={"on_store_error": "closed"}))),
    ]
    with Site(patterns, MIDDLEWARE=middleware, HEADGATE={"store": BrokenStore()}) as site:
        passed, refused = site.request("/open"), site.request("/closed")
        assert (passed.status_code, passed.headers["X-RateLimit-Degraded"]) == (200, "open")
        assert (refused.status_code, refused.headers["X-RateLimit-Degraded"]) == (503, "closed")


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503)])
def test_without_redis_the_settings_choose_the_status(middleware: list[str], choice: str, status: int) -> None:
    patterns = [path("one", throttled(throttle("1/minute")))]
    with Site(patterns, MIDDLEWARE=middleware, HEADGATE={"store": NO_REDIS, "on_store_error": choice}) as site:
        response = site.request("/one")
        assert (response.status_code, response.headers["X-RateLimit-Degraded"]) == (status, choice)


def test_the_decorator_works_on_views_of_rest_framework(middleware: list[str]) -> None:
    @api_view(["GET"])
    @rate_limit("1/minute")
    def below(request: Any) -> RestResponse:
        return RestResponse("read")

    @rate_limit("1/minute")
    @api_view(["GET"])
    def above(request: Any) -> RestResponse:
        return RestResponse("read")

    class Inside(APIView):
        throttle_classes = (throttle("5/minute"),)

        @method_decorator(rate_limit("1/minute"))
        def get(self, request: Any) -> RestResponse:
            return RestResponse("read")

    patterns = [path("below", below), path("above", above), path("inside", Inside.as_view())]
    with Site(patterns, MIDDLEWARE=middleware) as site:
        for name in ("/below", "/above", "/inside"):
            responses = [site.request(name) for _ in range(2)]
            assert [response.status_code for response in responses] == [200, 429], name
            assert "RateLimit" in responses[0].headers
            assert int(responses[1].headers["Retry-After"]) >= 1


def test_without_rest_framework_the_message_names_what_to_install() -> None:
    program = (
        "import sys, json; sys.modules['rest_framework'] = None\n"
        "from headgate import MissingExtraError\n"
        "try:\n    import headgate.integrations.drf\n"
        "except MissingExtraError as error: print(json.dumps(str(error)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'headgate[drf]'" in json.loads(result.stdout)


@pytest.mark.skipif(core.native is None, reason="the native core reads it")
def test_the_native_core_reads_what_a_throttle_counts_by_address(
    middleware: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RestRequest) -> str:
        raise AssertionError("Python reads the request")

    view = throttled(throttle("2/minute", key=None))
    with Site([path("", view)], MIDDLEWARE=middleware) as site:
        monkeypatch.setattr(RestRequest, "client_ip", property(fail))
        assert site.statuses("/", "/", "/") == [200, 200, 429]
        assert site.request(client="203.0.113.10").status_code == 200


PER_ADDRESS = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "5/minute"}]}


@pytest.mark.parametrize("settings", [{"limits": "5/minute"}, {"policy": PER_ADDRESS}], ids=["limits", "policy"])
def test_throttles_below_the_limits_of_a_site_are_charged_and_reported_together(settings: dict[str, Any]) -> None:
    views = {"": throttled(), "narrow": throttled(throttle("1/minute")), "wide": throttled(throttle("9/minute"))}
    patterns = [path(name, view) for name, view in views.items()]
    with Site(patterns, MIDDLEWARE=[MIDDLEWARE], HEADGATE={**settings, "clock": ManualClock()}) as site:
        assert [remaining_units(site.request(name)) for name in ("/", "/wide")] == [4, 3]
        assert remaining_units(site.request("/narrow")) == 0
        refused = site.request("/narrow")
        assert (refused.status_code, remaining_units(refused)) == (429, 0)
        for response in (site.request("/"), refused):
            assert (
                len(response.headers.get_list("RateLimit")) == len(response.headers.get_list("RateLimit-Policy")) == 1
            )
        # Limits return the charge of a request that an inner limit refuses, a policy does not.
        assert site.statuses("/", "/") == ([200, 429] if "limits" in settings else [429, 429])
        assert site.request("/", client="203.0.113.10").status_code == 200


def test_counts_of_a_throttle_are_settled_below_the_limits_of_a_site() -> None:
    counts = throttle("1/minute", options={"counts": lambda request, response: response.status == 404})
    with Site([path("<name>", throttled(counts))], MIDDLEWARE=[MIDDLEWARE], HEADGATE={"limits": "9/minute"}) as site:
        assert site.statuses("/a", "/b", "/gone", "/a") == [200, 200, 404, 429]
