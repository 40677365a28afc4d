"""Limits of a Django site and its synchronous and asynchronous views, tested without a server."""

# mypy: disable-error-code="import-untyped, misc, untyped-decorator"
# Django has no types.

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import pickle
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

import django_configured  # noqa: F401 - the imports below need its settings

# isort: split

from asgiref.sync import iscoroutinefunction
from django.conf.urls.i18n import i18n_patterns
from django.core.cache import caches
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import (
    FileResponse,
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import URLPattern, include, path, re_path
from django.utils.asyncio import async_unsafe
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View
from django.views.decorators.cache import cache_page
from django.views.decorators.csrf import csrf_exempt

from broken_store import NO_REDIS, BrokenStore
from headgate import AsyncGate, ConfigError, MemoryStore, core
from headgate.http import asgi, wsgi
from headgate.http.keys import api_key, first_of, portable
from headgate.http.server.options import Refusal, Response
from headgate.integrations import response_exchange
from headgate.integrations.django import (
    DjangoRequest,
    RateLimitMiddleware,
    check_settings,
    each_route,
    exchange,
    exempt,
    limits,
    rate_limit,
    routing,
    site,
    user,
)
from headgate.integrations.django.exchange import DjangoExchange
from headgate.integrations.response_exchange import claim
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import parse_list
from versions import needs

MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"


class Site:
    """A site with these views and settings, which receives requests as from a server of its kind."""

    def __init__(self, kind: str, patterns: Sequence[Any], **settings: Any) -> None:
        self._kind = kind
        self.urlpatterns = list(patterns)
        self._settings = override_settings(ROOT_URLCONF=self, **({"MIDDLEWARE": [], "HEADGATE": {}} | settings))

    def __enter__(self) -> Site:
        self._settings.enable()
        self.restart()
        return self

    def restart(self) -> None:
        self._app: Any = WSGIHandler() if self._kind == "wsgi" else ASGIHandler()

    def put_behind(self, middleware: Callable[[Any], Any]) -> None:
        """Have requests pass a middleware outside of Django."""
        self._app = middleware(self._app)

    def __exit__(self, *_: object) -> None:
        self._settings.disable()

    def request(
        self, path: str = "/", method: str = "GET", client: str = "203.0.113.9", mount: str = "", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        base_url = "http://shop.example"
        if self._kind == "wsgi":
            transport = httpx.WSGITransport(self._app, remote_addr=client, script_name=mount)
            with httpx.Client(transport=transport, base_url=base_url) as session:
                return session.request(method, path, headers=named)

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(client, 1234), root_path=mount)
            async with httpx.AsyncClient(transport=transport, base_url=base_url) as session:
                return await session.request(method, mount + path, headers=named)

        return asyncio.run(send())

    def statuses(self, *paths: str, **options: Any) -> list[int]:
        return [self.request(path, **options).status_code for path in paths]


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


def remaining_units(response: httpx.Response) -> int:
    [(_, parameters)] = parse_list(response.headers["RateLimit"])
    remaining: int = parameters["r"]
    return remaining


def read(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("read")


async def read_async(request: HttpRequest, **_: Any) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("read")


def limited(kind: str, patterns: Sequence[Any] = (), **options: Any) -> Site:
    """A site with the middleware."""
    return Site(kind, patterns or [path("", read)], MIDDLEWARE=[MIDDLEWARE], HEADGATE=options)


def test_every_request_of_an_address_counts(kind: str) -> None:
    with limited(kind, limits="2/minute") as site:
        responses = [site.request(path) for path in ("/", "/nowhere", "/")]
        assert [response.status_code for response in responses] == [200, 404, 429]
        assert [remaining_units(response) for response in responses] == [1, 0, 0]
        assert site.request(client="203.0.113.10").status_code == 200


def test_a_refusal_is_a_problem_document_with_the_exact_time_to_retry(kind: str) -> None:
    clock = ManualClock()
    with limited(kind, limits="1/minute fixed", name="site", clock=clock) as site:
        site.request()
        refused = site.request()
        assert dict(refused.headers) == {
            "content-type": "application/problem+json",
            "content-length": str(len(refused.content)),
            "ratelimit-policy": '"site";q=1;w=60',
            "ratelimit": '"site";r=0;t=60',
            "retry-after": "60",
        }
        assert refused.json() == {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "over the limit of site (1/minute fixed); retry in 60 s",
            "retry-after-ms": 60000,
            "violated-policies": ["site"],
        }
        head = site.request(method="HEAD")
        assert (head.status_code, head.content) == (429, b"")
        assert head.headers["content-length"] == refused.headers["content-length"]
        clock.advance(59_000_000)
        assert site.request().status_code == 429
        clock.advance(1_000_000)
        assert site.request().status_code == 200


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"one ", b"two ", b"three"]))


async def stream_async(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            yield part

    return StreamingHttpResponse(parts())


def own_fields(request: HttpRequest) -> HttpResponse:
    return HttpResponse("mine", headers={"RateLimit": '"mine";r=1'})


def gone(request: HttpRequest) -> HttpResponse:
    raise Http404


def broken(request: HttpRequest) -> HttpResponse:
    raise ValueError("broken")


def page(request: HttpRequest) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string("a page"))


def test_every_response_has_the_fields_once(kind: str) -> None:
    decorated = rate_limit("20/minute")
    streamed = stream if kind == "wsgi" else stream_async
    views = {"plain": read, "stream": streamed, "own": own_fields, "gone": gone, "broken": broken, "page": page}
    patterns = [path(name, decorated(view)) for name, view in views.items()]
    statuses = {"plain": 200, "stream": 200, "own": 200, "gone": 404, "broken": 500, "page": 200, "nowhere": 404}
    with limited(kind, patterns, limits="50/minute", headers=("draft-11", "x-delta")) as site:
        for name, status in statuses.items():
            response = site.request(f"/{name}")
            assert response.status_code == status, name
            for field in ("RateLimit-Policy", "RateLimit", "X-RateLimit-Remaining"):
                assert len(response.headers.get_list(field)) == 1, (name, field)
        assert site.request("/own").headers["RateLimit"] == '"mine";r=1', "the application's own fields stay"
        assert site.request("/stream").text == "one two three"
        assert remaining_units(site.request("/gone")) == 18, (
            "of several limits, the one with the fewest remaining units is reported"
        )


@pytest.mark.parametrize("options", [{}, {"exempt": lambda: False}, {"counts": lambda *_: True}])
def test_a_middleware_around_a_whole_site_adds_no_field_twice(kind: str, options: Any) -> None:
    patterns = [path("", read), path("own", own_fields)]
    module = asgi if kind == "asgi" else wsgi
    with limited(kind, patterns, limits="5/minute", clock=ManualClock()) as site:
        site.put_behind(lambda app: module.RateLimitMiddleware(app, limits="9/minute", clock=ManualClock(), **options))
        assert site.request().headers.get_list("RateLimit") == ['"default";r=4;t=60']
        own = site.request("/own").headers
        assert (own.get_list("RateLimit"), len(own.get_list("RateLimit-Policy"))) == (['"mine";r=1'], 1)


def test_a_response_object_that_a_view_returns_again_has_current_fields(kind: str) -> None:
    same = HttpResponse("same")

    def view(request: HttpRequest) -> HttpResponse:
        return same

    with Site(kind, [path("", rate_limit("3/minute")(view))]) as site:
        assert [remaining_units(site.request()) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("above", [[], [MIDDLEWARE]])
def test_a_response_object_that_is_returned_again_has_no_fields_of_another_client(kind: str, above: list[str]) -> None:
    same = HttpResponse("same", headers={"X-Own": "1"})
    stored_responses.clear()

    def view(request: HttpRequest) -> HttpResponse:
        return same

    with Site(
        kind, [path("", rate_limit("3/minute")(view))], MIDDLEWARE=[f"{__name__}.store_responses", *above]
    ) as site:
        for client, expected in (("203.0.113.9", 2), ("203.0.113.9", 1), ("203.0.113.10", 2)):
            response = site.request(client=client)
            assert (remaining_units(response), response.text, response.headers["X-Own"]) == (expected, "same", "1")
        remaining = [response.headers["RateLimit"].split(";")[1] for response in stored_responses]
        assert remaining == ["r=2", "r=1", "r=2"], "a response on its way to a client does not change"


def test_a_response_object_that_two_threads_return_at_once_has_the_fields_of_each_request() -> None:
    same = HttpResponse("same", headers={"X-Own": "1"})
    reached, go_on, from_thread = Event(), Event(), []

    class Slow(DjangoExchange):
        """An exchange that is interrupted before it adds its fields to the response."""

        def add_fields(self, response: Any) -> None:
            reached.set()
            assert go_on.wait(10)
            super().add_fields(response)

    def respond(exchange: DjangoExchange, client: str, response: HttpResponse) -> Any:
        request = RequestFactory().get("/", REMOTE_ADDR=client)
        enforcer = site().enforcer("3/minute", {"scope": "same"}, asynchronous=False)
        exchange.judge(enforcer, DjangoRequest(request), "same")
        return exchange.finish(request, response)

    with override_settings(HEADGATE={}):
        respond(DjangoExchange(), "203.0.113.9", HttpResponse("another"))
        first = Thread(target=lambda: from_thread.append(respond(Slow(), "203.0.113.9", same)))
        first.start()
        assert reached.wait(10)
        second = respond(DjangoExchange(), "203.0.113.10", same)
        go_on.set()
        first.join()
    assert [response.headers["RateLimit"].split(";")[1] for response in (*from_thread, second)] == ["r=1", "r=2"]
    assert from_thread[0].headers["X-Own"] == second.headers["X-Own"] == "1"


@pytest.mark.parametrize(
    "colour", ["sync", pytest.param("async", marks=needs("django", "5.0", "cache_page takes async views"))]
)
def test_a_cache_above_a_limit_stores_no_fields_of_one_client(kind: str, colour: str) -> None:
    cached = cache_page(60)(rate_limit("5/minute")(COLOURS[colour]))
    with Site(kind, [path("", cached)]) as site:
        caches["default"].clear()
        first, second = site.request(), site.request(client="203.0.113.10")
        assert remaining_units(first) == 4
        assert not {"ratelimit", "ratelimit-policy"} & set(second.headers), "no limit counted the request"
        assert (second.text, second.headers["Cache-Control"]) == ("read", "max-age=60")


def test_a_response_from_a_cache_below_a_limit_has_the_fields_of_its_client(kind: str) -> None:
    calls = []

    def view(request: HttpRequest) -> HttpResponse:
        calls.append(request)
        return HttpResponse("read")

    with Site(kind, [path("", rate_limit("2/minute")(cache_page(60)(view)))]) as site:
        caches["default"].clear()
        responses = [site.request(), site.request(), site.request(client="203.0.113.10")]
        assert [remaining_units(response) for response in responses] == [1, 0, 1]
        assert site.request().status_code == 429
        assert len(calls) == 1


@pytest.mark.parametrize("limits", ["5/minute", "5/minute; 9 concurrent"])
def test_a_cache_of_the_site_above_the_middleware_stores_no_fields_of_one_client(kind: str, limits: str) -> None:
    cache = "django.middleware.cache"
    above = [f"{cache}.UpdateCacheMiddleware", f"{cache}.FetchFromCacheMiddleware", MIDDLEWARE]
    with Site(kind, [path("", read)], MIDDLEWARE=above, HEADGATE={"limits": limits}) as site:
        caches["default"].clear()
        first, second = site.request(), site.request(client="203.0.113.10")
        assert (first.status_code, second.status_code, second.text) == (200, 200, "read")
        assert "r=4" in first.headers["RateLimit"]
        assert not {"ratelimit", "ratelimit-policy"} & set(second.headers)


stored_responses: list[Any] = []


def store_responses(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware that stores all responses, as a server does that sends them slowly."""

    def respond(request: HttpRequest) -> Any:
        stored_responses.append(get_response(request))
        return stored_responses[-1]

    return respond


COLOURS = {"sync": read, "async": read_async}


@pytest.mark.parametrize("colour", COLOURS)
def test_a_view_is_limited_without_the_middleware(kind: str, colour: str) -> None:
    view = rate_limit("2/minute", name="read")(COLOURS[colour])
    assert iscoroutinefunction(view) == (colour == "async")
    with Site(kind, [path("", view), path("free", read)]) as site:
        responses = [site.request() for _ in range(3)]
        assert [response.status_code for response in responses] == [200, 200, 429]
        assert [remaining_units(response) for response in responses] == [1, 0, 0]
        assert responses[2].headers["content-type"] == "application/problem+json"
        assert responses[2].json()["violated-policies"] == ["read"]
        assert "RateLimit" not in site.request("/free").headers


def test_synchronous_and_asynchronous_views_count_in_one_store(kind: str) -> None:
    both = rate_limit("3/minute", scope="both")
    with Site(kind, [path("sync", both(read)), path("async", both(read_async))]) as site:
        assert site.statuses("/sync", "/async", "/sync", "/async", "/sync") == [200, 200, 200, 429, 429]


def test_a_view_that_returns_no_response_is_reported_by_django() -> None:
    @rate_limit("3/minute")
    def forgets(request: HttpRequest) -> None:
        return None

    @rate_limit("3/minute")
    async def forgets_async(request: HttpRequest) -> None:
        return None

    with Site("asgi", [path("", read)]):
        request = AsyncRequestFactory().get("/")
        assert forgets(request) is None
        assert asyncio.run(forgets_async(request)) is None


@pytest.mark.parametrize("has_middleware", [True, False], ids=["middleware", "view"])
def test_these_responses_have_the_fields(kind: str, has_middleware: bool) -> None:
    def value(request: HttpRequest) -> HttpResponse:
        return HttpResponse("read")

    def stream(request: HttpRequest) -> StreamingHttpResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"part"

        return StreamingHttpResponse(iter([b"part"]) if kind == "wsgi" else parts())

    def redirect(request: HttpRequest) -> HttpResponse:
        return HttpResponseRedirect("/value")

    def missing(request: HttpRequest) -> HttpResponse:
        raise Http404

    def crash(request: HttpRequest) -> HttpResponse:
        raise ValueError("a fault of the view")

    views: list[Any] = [value, stream, redirect, missing, crash]
    limited: list[Any] = views if has_middleware else [rate_limit("9/minute")(view) for view in views]
    patterns = [path(view.__name__, view) for view in limited]
    settings = {"MIDDLEWARE": [MIDDLEWARE], "HEADGATE": {"limits": "9/minute"}} if has_middleware else {}
    with Site(kind, patterns, DEBUG_PROPAGATE_EXCEPTIONS=False, **settings) as site:
        with_fields = {view.__name__ for view in views if "RateLimit" in site.request(f"/{view.__name__}").headers}
    assert with_fields == (
        {"value", "stream", "redirect", "missing", "crash"} if has_middleware else {"value", "stream", "redirect"}
    )


class CorsMiddleware:
    """Adds the header for other origins to responses from below it, as django-cors-headers does."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        response = self._get_response(request)
        response["Access-Control-Allow-Origin"] = "https://page.example"
        return response


@pytest.mark.parametrize("below_cors", [True, False])
def test_other_origins_can_read_refusals_below_cors_headers_and_a_warning_names_the_wrong_order(
    kind: str,
    below_cors: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    package, module = ModuleType("corsheaders"), ModuleType("corsheaders.middleware")
    module.CorsMiddleware = CorsMiddleware  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "corsheaders", package)
    monkeypatch.setitem(sys.modules, "corsheaders.middleware", module)
    middleware = ["corsheaders.middleware.CorsMiddleware", MIDDLEWARE]
    settings = {"MIDDLEWARE": middleware if below_cors else middleware[::-1], "HEADGATE": {"limits": "1/minute"}}
    with caplog.at_level("WARNING", "headgate"), Site(kind, [path("x", read_any)], **settings) as site:
        responses = [site.request("/x", Origin="https://page.example") for _ in range(2)]
        problems = [problem.id for problem in check_settings()]
    assert [response.status_code for response in responses] == [200, 429]
    assert ("Access-Control-Allow-Origin" in responses[1].headers) is below_cors
    assert problems == ([] if below_cors else ["headgate.W002"])
    warnings = [record.getMessage() for record in caplog.records if record.name == "headgate"]
    assert ["is outside of CorsMiddleware" in warning for warning in warnings] == [True] * (not below_cors)


def read_any(request: HttpRequest) -> HttpResponse:
    return HttpResponse("read")


def test_a_site_that_forgets_starts_with_full_limits(kind: str) -> None:
    view = rate_limit("1/minute")(lambda request: HttpResponse("read"))
    with Site(kind, [path("x", view)], MIDDLEWARE=[MIDDLEWARE], HEADGATE={"limits": "2/minute"}) as served:
        assert served.statuses("/x", "/x") == [200, 429]
        site.forget()
        served.restart()
        assert served.statuses("/x", "/x") == [200, 429]


class NeverOnALoop(MemoryStore):
    """A store that waits for I/O: it is called in a thread or awaited, and records which."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: list[str] = []

    @property
    def blocking(self) -> bool:  # type: ignore[override]
        return True

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        return _Watched(super().bind(limits, clock=clock), self.callers)

    def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
        return _WatchedAsync(super().bind(limits, clock=clock), self.callers)


class _Watched:
    def __init__(self, bound: Any, callers: list[str]) -> None:
        self._bound = bound
        self._callers = callers

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._bound, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            self._callers.append("thread")
            return method(*args, **kwargs)

        return call


class _WatchedAsync(_Watched):
    def __getattr__(self, name: str) -> Any:
        method = getattr(self._bound, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            self._callers.append("loop")
            return method(*args, **kwargs)

        return call


@method_decorator(rate_limit("2/minute"), name="dispatch")
class Search(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("found")


def test_no_store_is_waited_for_on_an_event_loop(kind: str) -> None:
    store = NeverOnALoop()
    decorated = rate_limit("2/minute")
    patterns = [
        path("sync", decorated(read)),
        path("async", decorated(read_async)),
        path("class", Search.as_view()),
    ]
    with limited(kind, patterns, limits="50/minute", store=store) as site:
        for name in ("sync", "async", "class"):
            assert site.statuses(*[f"/{name}"] * 2) == [200, 200], name
    on_the_loop = {"asgi": ["loop", "thread", "loop", "loop", "loop", "loop"], "wsgi": ["thread"] * 6}
    expected = [caller for pair in zip(*[iter(on_the_loop[kind])] * 2, strict=True) for caller in pair * 2]
    assert store.callers == expected


def test_concrete_paths_are_one_limit_and_routes_are_several(kind: str) -> None:
    endpoints: list[str] = []
    view = rate_limit("2/minute", on_decision=portable(lambda request, decision: endpoints.append(request.endpoint)))(
        read
    )
    users = ([path("users/<int:number>/", view, name="read"), re_path(r"^old/(?P<number>\d+)$", view)], "users")
    patterns = [path("v1/", include(users, "v1")), path("v2/", include(users, "v2"))]
    with Site(kind, patterns) as site:
        assert site.statuses("/v1/users/1/", "/v1/users/2/", "/v1/users/3/") == [200, 200, 429]
        assert site.statuses("/v2/users/1/", "/v2/users/2/", "/v2/users/3/") == [200, 200, 429]
        assert site.statuses("/v1/old/1", "/v1/old/2", "/v1/old/3") == [200, 200, 429]
        assert site.statuses("/v1/users/1/", mount="/shop") == [200], "a site at another mount counts apart"
        assert site.statuses("/v1/users/1/", method="POST") == [429], "all methods of a view count together"
    routes = ["* /v1/users/<int:number>/", "* /v2/users/<int:number>/", r"* /v1/old/(?P<number>\d+)$"]
    assert list(dict.fromkeys(endpoints)) == [*routes, "* /shop/v1/users/<int:number>/"]


def test_one_route_in_many_languages_is_one_limit(kind: str) -> None:
    patterns = i18n_patterns(path("shop/", rate_limit("3/minute")(read)), prefix_default_language=False)
    middleware = ["django.middleware.locale.LocaleMiddleware"]
    with Site(kind, patterns, MIDDLEWARE=middleware, LANGUAGE_CODE="en") as site:
        languages = ("/shop/", "/de/shop/", "/fr/shop/", "/pt-br/shop/", "/shop/")
        assert site.statuses(*languages) == [200, 200, 200, 429, 429]


class Other:
    """Another URL configuration, which a middleware chooses by host."""

    urlpatterns = (path("", rate_limit("1/minute", name="root")(read)),)

    def __repr__(self) -> str:
        return "other"


OTHER = Other()


def by_host(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    def middleware(request: HttpRequest) -> Any:
        if request.headers["Host"] == "other.example":
            request.urlconf = OTHER
        return get_response(request)

    return middleware


def test_each_url_configuration_of_a_request_counts_apart(kind: str) -> None:
    view = rate_limit("1/minute", name="root")(read)
    with Site(kind, [path("", view)], MIDDLEWARE=[f"{__name__}.by_host"]) as site:
        hosts = ("shop.example", "other.example", "shop.example", "other.example")
        assert [site.request(Host=host).status_code for host in hosts] == [200, 200, 429, 429]


def test_each_route_of_a_site_may_count_by_itself(kind: str) -> None:
    patterns = [path("a/<name>", read), path("b", read)]
    with limited(kind, patterns, limits="2/minute", scope=each_route) as site:
        assert site.statuses("/a/x", "/a/y", "/a/z") == [200, 200, 429]
        assert site.statuses("/b", "/b", "/b") == [200, 200, 429]
        assert site.statuses("/x", "/y", "/z") == [404, 404, 429]


@pytest.mark.parametrize(
    ("scope", "statuses"),
    [
        ("headgate.integrations.django.each_route", [200, 200, 429]),
        ("headgate.integrations.django", [200, 429, 429]),
        ("v1.exports", [200, 429, 429]),
        ("exports", [200, 429, 429]),
    ],
)
def test_a_scope_is_a_text_or_the_path_of_a_function(scope: str, statuses: list[int]) -> None:
    patterns = [path("a", read), path("b", read)]
    with limited("wsgi", patterns, limits="1/minute", scope=scope) as site:
        assert site.statuses("/a", "/b", "/a") == statuses


def test_views_that_are_exempt_or_override_do_not_count_in_the_limits_of_the_site(kind: str) -> None:
    @method_decorator(exempt, name="dispatch")
    class Health(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("well")

    @exempt
    class Version(Health):
        pass

    def free(request: HttpRequest) -> HttpResponse:
        return HttpResponse("free")

    class Parts(View):
        @method_decorator(rate_limit("2/minute", override=True))
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("got")

        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("posted")

    patterns = [
        path("health", Health.as_view()),
        path("version", Version.as_view()),
        path("free", csrf_exempt(exempt(free))),
        path("own", rate_limit("3/minute", override=True)(read)),
        path("both", rate_limit("3/minute")(read)),
        path("parts", Parts.as_view()),
    ]
    with limited(kind, patterns, limits="1/minute") as site:
        assert site.statuses(*["/health"] * 3, *["/version"] * 3, *["/free"] * 3) == [200] * 9
        assert site.statuses(*["/own"] * 4) == [200, 200, 200, 429]
        assert site.statuses(*["/parts"] * 3) == [200, 200, 429]
        assert site.statuses("/both", "/both") == [200, 429], "without override they apply together"
        assert site.statuses("/parts", method="POST") == [429]
        assert site.statuses("/nowhere") == [429]


def test_several_limits_of_a_view_apply_together_and_count_apart(kind: str) -> None:
    twice = rate_limit("2/minute")(rate_limit("2/minute", key=api_key())(read))
    with Site(kind, [path("", twice)]) as site:
        assert site.statuses("/", "/", "/") == [200, 200, 429], "a client without a key is counted by address in both"


def test_a_refusal_consumes_nothing_in_any_of_the_limits(kind: str) -> None:
    once = rate_limit("1/minute", scope="once")
    patterns = [path("sync", once(read)), path("async", once(read_async)), path("wide", read)]
    with limited(kind, patterns, limits="5/minute", clock=ManualClock()) as site:
        assert site.statuses("/sync", *["/async"] * 5, *["/sync"] * 5) == [200] + [429] * 10
        assert site.statuses(*["/wide"] * 5) == [200] * 4 + [429], "ten refusals consumed nothing of the wider limit"


def test_class_based_views_are_limited_as_one_or_by_method(kind: str) -> None:
    @method_decorator(rate_limit("2/minute"), name="dispatch")
    class Whole(View):
        def get(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse("got")

        def post(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse("posted")

    class Single(View):
        @method_decorator(rate_limit("1/minute"))
        def get(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse("got")

        @rate_limit("1/minute")
        def post(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse("posted")

        def put(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse("put")

    class Async(View):
        @rate_limit("1/minute")  # method_decorator goes with async methods from Django 5.2 on
        async def get(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse("got")

    @method_decorator(rate_limit("2/minute"), name="dispatch")
    class AsyncWhole(View):
        async def get(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse("got")

        async def post(self, request: HttpRequest, number: int) -> HttpResponse:
            return HttpResponse("posted")

    @method_decorator([rate_limit("9/minute"), rate_limit("2/minute")], name="dispatch")
    class Twice(AsyncWhole):
        pass

    class Own(AsyncWhole):
        @rate_limit("2/minute")
        def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return View.dispatch(self, request, *args, **kwargs)

    patterns = [
        *[path(f"{kind.__name__}/<int:number>", kind.as_view()) for kind in (AsyncWhole, Twice, Own)],
        path("whole/<int:number>", Whole.as_view()),
        path("single/<int:number>", Single.as_view()),
        path("async/<int:number>", Async.as_view()),
        path("urls/<int:number>", rate_limit("1/minute")(Async.as_view())),
    ]
    with Site(kind, patterns) as site:
        for whole in ("whole", "AsyncWhole", "Twice", "Own"):
            responses = [site.request(f"/{whole}/{n}", method) for n, method in enumerate(("GET", "POST", "GET"))]
            assert [(response.status_code, remaining_units(response)) for response in responses] == [
                (200, 1),
                (200, 0),
                (429, 0),
            ], whole
        methods = ("GET", "POST", "PUT", "HEAD", "POST", "PUT")
        statuses = [site.request(f"/single/{n}", method).status_code for n, method in enumerate(methods)]
        assert statuses == [200, 200, 200, 429, 429, 200]
        assert site.statuses("/async/1", "/async/2", "/urls/1", "/urls/2") == [200, 429, 200, 429]
    with pytest.raises(ConfigError, match=r"Whole is a class: it is limited by @method_decorator\(rate_limit"):
        rate_limit("1/minute")(Whole)


class _User:
    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk


class _Nobody:
    is_authenticated = False
    pk = None


@async_unsafe("the user is read from a database")
def _find_user(request: HttpRequest) -> Any:
    name = request.headers.get("X-User")
    return _User(name) if name else _Nobody()


class Authenticate:
    """As in Django: the user is read at the first access, and no database may be read on an event loop."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response

    def __new__(cls, get_response: Callable[[HttpRequest], Any]) -> Any:
        def add(request: HttpRequest) -> None:
            request.user = SimpleLazyObject(lambda: _find_user(request))

        async def authenticate_async(request: HttpRequest) -> Any:
            add(request)
            return await get_response(request)

        def authenticate(request: HttpRequest) -> Any:
            add(request)
            return get_response(request)

        return authenticate_async if iscoroutinefunction(get_response) else authenticate


def test_a_user_is_counted_by_primary_key_in_synchronous_and_asynchronous_views(kind: str) -> None:
    keys = (user, first_of(user, api_key()))
    patterns = [path("sync", rate_limit("2/minute")(read)), path("async", rate_limit("2/minute")(read_async))]
    middleware = [f"{__name__}.Authenticate", MIDDLEWARE]
    for key in keys:
        with Site(kind, patterns, MIDDLEWARE=middleware, HEADGATE={"limits": "5/minute", "key": key}) as site:
            for name in ("/sync", "/async"):
                assert [site.request(name, X_User=who).status_code for who in "ababa"] == [200, 200, 200, 200, 429]
                assert site.statuses(name, name, name) == [200, 200, 429], "users who are not logged in are limited too"
            assert [site.request("/nowhere", X_User="c").status_code for _ in range(6)] == [404] * 5 + [429]


def test_django_s_own_authentication_knows_the_user(kind: str) -> None:
    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        MIDDLEWARE,
    ]
    settings = {"limits": "1/minute", "key": "headgate.integrations.django.user"}
    with Site(kind, [path("", read)], MIDDLEWARE=middleware, HEADGATE=settings) as site:
        assert site.statuses("/", "/") == [200, 429], "a client that is not logged in is counted by address"


class AuthenticateNew:
    """The user is authenticated by a token alone and is in no database."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        request.user = SimpleNamespace(is_authenticated=True, pk=None)
        return self._get_response(request)


def test_users_without_a_primary_key_are_counted_by_address(kind: str) -> None:
    settings = {"limits": "1/minute", "key": user}
    with Site(
        kind, [path("", read)], MIDDLEWARE=[f"{__name__}.AuthenticateNew", MIDDLEWARE], HEADGATE=settings
    ) as site:
        assert [site.request(client=f"203.0.113.{number}").status_code for number in (1, 2, 1)] == [200, 200, 429]


def test_a_key_by_user_without_authentication_is_an_error(kind: str) -> None:
    request = RequestFactory().get("/")
    with (
        Site(kind, [path("", read)]),
        pytest.raises(ConfigError, match=r"user needs django"),
    ):
        rate_limit("1/minute", key=user)(read)(request)


def test_functions_of_the_request_may_be_awaited(kind: str) -> None:
    async def key(request: Request) -> str | None:
        await asyncio.sleep(0)
        return request.headers.get("x-user")

    with Site(kind, [path("", rate_limit("1/minute", key=key)(read_async))]) as site:
        assert [site.request(X_User=who).status_code for who in "aba"] == [200, 200, 429]
    with pytest.raises(ConfigError, match="a coroutine function needs an asyncio application"):
        rate_limit("1/minute", key=key)(read)


def test_a_request_has_the_values_that_the_client_sent(kind: str) -> None:
    read_from_request: list[Any] = []

    @portable
    def record(request: Request) -> None:
        read_from_request.append(
            (request.method, request.path, request.host, request.headers["x-one"], request.cookie("a"))
        )
        read_from_request.append((request.query("q"), request.client_ip, request.endpoint, request.django.path))  # type: ignore[attr-defined]

    with limited(kind, [path("sh op/<name>", read)], limits="9/minute", key=record) as site:
        site.request("/sh%20op/e%2541?q=1%262", X_One="1", Cookie="a=b")
    assert read_from_request == [
        ("GET", "/sh%20op/e%2541?q=1%262", "shop.example", "1", "b"),
        ("1&2", "203.0.113.9", "* /sh op/<name>", "/sh op/e%41"),
    ]


def test_a_path_is_what_the_client_sent_and_not_what_django_decoded() -> None:
    sent = "/%C3%A9/%2541/;a=1"
    assert DjangoRequest(RequestFactory().get(sent)).path == sent


def test_the_forged_end_of_a_forwarding_header_is_not_believed(kind: str) -> None:
    with limited(kind, limits="1/minute", trusted_proxies=["10.0.0.0/8"]) as site:
        forged = [{"client": "10.0.0.1", "X_Forwarded_For": f"{n}.1.1.1, 203.0.113.7"} for n in (1, 2)]
        assert [site.request(**request).status_code for request in forged] == [200, 429]
        assert site.statuses("/", client="198.51.100.1", X_Forwarded_For="203.0.113.7") == [200]


@pytest.mark.parametrize("middleware", [(), (MIDDLEWARE,)])
@pytest.mark.parametrize("colour", COLOURS)
def test_the_response_can_decide_whether_a_request_of_a_view_counts(
    kind: str, colour: str, middleware: tuple[str, ...]
) -> None:
    counted: list[Response] = []

    def failures(request: Request, response: Response) -> bool:
        counted.append(response)
        return response.status == 401

    def login(request: HttpRequest) -> HttpResponse:
        return HttpResponse("four", status=int(request.headers.get("X-Status", "200")))

    async def login_async(request: HttpRequest) -> HttpResponse:
        return login(request)

    view = login if colour == "sync" else login_async
    patterns = [path("", rate_limit("2/minute", counts=failures)(view))]
    with Site(kind, patterns, MIDDLEWARE=list(middleware)) as site:
        assert site.statuses(*["/"] * 5) == [200] * 5
        assert site.statuses(*["/"] * 3, X_Status="401") == [401, 401, 429]
    assert len(counted) == 7, "a refused request has no response to settle by"
    assert {(response.headers["content-type"], response.body_bytes) for response in counted} == {
        ("text/html; charset=utf-8", 4)
    }


@pytest.mark.parametrize("middleware", [(), (MIDDLEWARE,)])
def test_a_stream_is_settled_by_all_bytes_that_were_sent(
    kind: str, middleware: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("files") / "five"
    file.write_bytes(b"12345")
    sent: list[int] = []

    def count(request: Request, response: Response) -> int:
        sent.append(response.body_bytes)
        return response.body_bytes

    def download(request: HttpRequest) -> FileResponse:
        return FileResponse(file.open("rb"))

    def sync_stream_async(request: HttpRequest) -> StreamingHttpResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"1234567"

        return StreamingHttpResponse(parts())

    streamed: list[Any] = [stream, download] if kind == "wsgi" else [stream_async, sync_stream_async]
    limit = rate_limit("50/hour bucket", cost=5, counts=count)
    patterns = [path(str(number), limit(view)) for number, view in enumerate([*streamed, page])]
    with Site(kind, patterns, MIDDLEWARE=list(middleware)) as site:
        for number in range(3):
            site.request(f"/{number}")
        assert sent == [13, 5 if kind == "wsgi" else 7, 6]
        assert remaining_units(site.request("/0")) == 50 - 13 - 5


@pytest.mark.parametrize("middleware", [(), (MIDDLEWARE,)])
@pytest.mark.parametrize("colour", COLOURS)
def test_a_view_that_raises_is_settled_by_the_response_of_django(
    kind: str, colour: str, middleware: tuple[str, ...]
) -> None:
    counted: list[int] = []

    def count(request: Request, response: Response) -> bool:
        counted.append(response.status)
        return True

    raised: dict[str, BaseException] = {"404": Http404(), "403": PermissionDenied(), "500": ValueError("broken")}

    def fail(request: HttpRequest, status: str) -> HttpResponse:
        raise raised[status]

    async def fail_async(request: HttpRequest, status: str) -> HttpResponse:
        raise raised[status]

    view = fail if colour == "sync" else fail_async
    with Site(
        kind, [path("<status>", rate_limit("9/minute", counts=count)(view))], MIDDLEWARE=list(middleware)
    ) as site:
        assert site.statuses("/404", "/403", "/500") == [404, 403, 500]
    assert counted == [404, 403, 500]


@pytest.mark.parametrize("has_middleware", [False, True])
def test_a_charge_is_settled_when_the_client_disconnects(has_middleware: bool) -> None:
    counted: list[int] = []
    started = asyncio.Event()

    def count(request: Request, response: Response) -> bool:
        counted.append(response.status)
        return True

    @rate_limit("9/minute", counts=count)
    async def slow(request: HttpRequest) -> HttpResponse:
        started.set()
        await asyncio.Event().wait()
        return HttpResponse("late")

    async def send_and_cancel() -> None:
        view = RateLimitMiddleware(slow) if has_middleware else slow
        task = asyncio.create_task(view(AsyncRequestFactory().get("/")))
        await started.wait()
        task.cancel()  # as Django does when the client is gone
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with Site("asgi", [path("", slow)]):
        asyncio.run(send_and_cancel())
    assert counted == [500]


def test_the_response_can_decide_whether_a_request_counts_in_the_limits_of_the_site(kind: str) -> None:
    with limited(kind, limits="2/minute", counts=lambda request, response: response.status == 404) as site:
        assert site.statuses(*["/"] * 4, *["/nowhere"] * 3) == [200] * 4 + [404, 404, 429]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("fallback_colour", COLOURS)
def test_a_fallback_responds_to_a_refused_request(kind: str, colour: str, fallback_colour: str) -> None:
    def old(request: HttpRequest, name: str) -> HttpResponse:
        return HttpResponse(f"old {name}")

    async def old_async(request: HttpRequest, name: str) -> HttpResponse:
        return HttpResponse(f"old {name}")

    fallback = old if fallback_colour == "sync" else old_async
    view = rate_limit("1/minute", fallback=fallback)(COLOURS[colour])
    with Site(kind, [path("<name>", view)]) as site:
        responses = [site.request("/x") for _ in range(2)]
        assert [(response.status_code, response.text) for response in responses] == [(200, "read"), (200, "old x")]
        assert remaining_units(responses[1]) == 0 and int(responses[1].headers["Retry-After"]) >= 1


def busy(request: HttpRequest) -> HttpResponse:
    return HttpResponse("busy", status=503)


def test_settings_name_functions_by_their_path(kind: str) -> None:
    with limited(kind, limits="1/minute", fallback=f"{__name__}.busy") as site:
        assert site.request().text == "read"
        response = site.request()
        assert (response.status_code, response.text, remaining_units(response)) == (503, "busy", 0)


def test_the_response_to_a_refused_request_can_be_customized(kind: str) -> None:
    def friendly(request: Request, decision: Any, usual: Refusal) -> Refusal | None:
        return Refusal(503, [("Retry-After", "7"), ("Content-Type", "text/html")], b"<p>slow down</p>")

    with limited(kind, limits="1/minute", refusal=friendly) as site:
        site.request()
        other = site.request()
        assert (other.status_code, other.text, other.headers["Retry-After"]) == (503, "<p>slow down</p>", "7")
        assert other.headers["Content-Type"] == "text/html"


POLICY = {
    "version": 1,
    "namespace": "api",
    "rules": [{"name": "items", "match": {"path": "/api/items/{id}"}, "by": ["ip"], "limits": "2/minute"}],
}


def test_a_policy_matches_the_whole_path_and_limits_of_views_use_the_options_of_the_site(kind: str) -> None:
    patterns = [path("items/<int:number>", read), path("own", rate_limit("1/minute")(read))]
    with limited(kind, patterns, policy=POLICY, trusted_hops=1) as site:
        assert site.statuses("/items/1", "/items/2", "/items/3", mount="/api") == [200, 200, 429]
        assert "RateLimit" not in site.request("/items/1").headers
        clients = [{"X_Forwarded_For": address} for address in ("203.0.113.1", "203.0.113.2", "203.0.113.1")]
        assert [site.request("/own", **client).status_code for client in clients] == [200, 200, 429]


def test_a_store_that_fails_never_causes_a_429(kind: str) -> None:
    with limited(kind, limits="1/minute", store=BrokenStore()) as site:
        passed = site.request()
        assert (passed.status_code, passed.headers["X-RateLimit-Degraded"]) == (200, "open")
    with limited(kind, limits="1/minute", store=BrokenStore(), on_store_error="closed") as site:
        refused = site.request()
        assert (refused.status_code, refused.headers["X-RateLimit-Degraded"]) == (503, "closed")


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503)])
def test_without_redis_the_settings_choose_the_status(kind: str, choice: str, status: int) -> None:
    with limited(kind, limits="1/minute", store=NO_REDIS, on_store_error=choice) as site:
        response = site.request()
        assert (response.status_code, response.headers["X-RateLimit-Degraded"]) == (status, choice)


def plain(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    def middleware(request: HttpRequest) -> Any:
        return get_response(request)

    return middleware


def test_above_a_synchronous_middleware_the_store_is_called_in_a_thread(kind: str) -> None:
    store = NeverOnALoop()
    settings = {"limits": "2/minute", "store": store}
    patterns = [path("", rate_limit("2/minute")(read_async))]
    with Site(kind, patterns, MIDDLEWARE=[MIDDLEWARE, f"{__name__}.plain"], HEADGATE=settings) as site:
        assert site.statuses("/", "/", "/") == [200, 200, 429]
    assert store.callers[0] == "thread"


def test_other_settings_start_with_full_limits(kind: str) -> None:
    view = rate_limit("1/minute")(read)
    for headers in ("x-delta", "draft-11"):
        with Site(kind, [path("", view)], HEADGATE={"headers": headers}) as site:
            response = site.request()
            assert response.status_code == 200
            assert ("RateLimit" in response.headers) == (headers == "draft-11")


def test_a_middleware_without_limits_limits_nothing(kind: str) -> None:
    with limited(kind) as site:
        response = site.request()
        assert (response.status_code, response.headers.get("RateLimit")) == (200, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limits": "10/fortnight"}, r"""settings\.HEADGATE\['limits'\]: cannot read "10/fortnight": units are"""),
        ({"limits": "1/minute", "policy": POLICY}, "a policy or limits, one of the two"),
        ({"limits": None}, r"settings\.HEADGATE\['limits'\] is None, which limits nothing: leave it out"),
        ({"policy": None, "store": "memory://"}, r"settings\.HEADGATE\['policy'\] is None, which limits nothing"),
        ({"limts": "1/minute"}, r"settings\.HEADGATE has no option 'limts'; there are (?!.*(\b\w+,).*\b\1)policy, "),
        ({"limits": "1/minute", "headers": "draft-12"}, r"settings\.HEADGATE\['headers'\]: .*draft-12.*there are"),
        ({"limits": "1/minute", "key": "shop.nobody"}, r"settings\.HEADGATE\['key'\]: 'shop.nobody' is no function"),
        ({"limits": "1/minute", "store": "sql://"}, r"settings\.HEADGATE\['store'\]: a store is one of .*'sql://'"),
        ({"limits": "1/minute", "trusted_proxies": ["10.0.0.1/8"]}, r"\['trusted_proxies'\]: a network is written"),
        ({"limits": {"pro": "1/minute"}}, r"\['limits'\]: limits of tiers name 'default'"),
        ({"policy": "nowhere.yaml"}, r"settings\.HEADGATE\['policy'\]: .*nowhere.yaml"),
        (
            {"policy": POLICY, "shadow": True},
            r"settings\.HEADGATE\['shadow'\] goes with limits; a policy defines it itself",
        ),
        ({"policy": POLICY, "scope": "all"}, r"settings\.HEADGATE\['scope'\] goes with limits"),
        ({"wait": 2}, r"settings\.HEADGATE\['wait'\] goes with limits"),
        ({"ruleset": "nope", "policy": POLICY}, r"settings\.HEADGATE\['ruleset'\]: ruleset is one of .*, not 'nope'"),
        ({"ruleset": "default", "limits": "1/minute"}, r"settings\.HEADGATE\['ruleset'\]: ruleset goes with a policy"),
        ("100/minute", r"settings\.HEADGATE is a mapping, .*not a str"),
    ],
)
def test_the_system_check_names_setting_value_and_what_would_be_right(settings: Any, message: str) -> None:
    with override_settings(HEADGATE=settings, MIDDLEWARE=[MIDDLEWARE]):
        [error] = check_settings()
        assert error.id == "headgate.E001" and error.hint
    assert re.search(message, error.msg), error.msg


def test_limits_or_a_policy_may_be_none_beside_the_other() -> None:
    for options in ({"limits": "1/minute", "policy": None}, {"limits": None, "policy": POLICY}):
        with override_settings(HEADGATE=options, MIDDLEWARE=[MIDDLEWARE]):
            assert check_settings() == []


def test_the_system_check_reports_a_wrong_order_of_the_middleware() -> None:
    authentication = "django.contrib.auth.middleware.AuthenticationMiddleware"
    by_user = {"limits": "1/minute", "key": user}
    cases: list[tuple[dict[str, Any], list[str], list[str]]] = [
        ({}, [], []),
        ({"headers": "none", "trusted_hops": 1, "address_header": "X-Real-IP"}, [], []),
        ({"limits": "1/minute"}, [], ["headgate.W001"]),
        ({"limits": {"default": "1/minute"}, "tier": lambda request: "pro"}, [MIDDLEWARE], []),
        (by_user, [MIDDLEWARE, authentication], ["headgate.E002"]),
        (by_user | {"key": "headgate.integrations.django.user"}, [MIDDLEWARE], ["headgate.E002"]),
        (by_user, [authentication, MIDDLEWARE], []),
        ({"policy": POLICY, "key": user, "ruleset": "default", "trusted_hops": 1}, [MIDDLEWARE, authentication], []),
    ]
    for headgate, middleware, ids in cases:
        with override_settings(HEADGATE=headgate, MIDDLEWARE=middleware):
            assert [problem.id for problem in check_settings()] == ids, headgate


async def key_later(request: HttpRequest) -> str:
    return str(request.META["REMOTE_ADDR"])


@pytest.mark.parametrize("key", [key_later, f"{__name__}.key_later"])
def test_the_system_check_accepts_coroutine_functions(key: Any) -> None:
    with override_settings(HEADGATE={"limits": "1/minute", "key": key}, MIDDLEWARE=[MIDDLEWARE]):
        assert check_settings() == []


def test_a_server_does_not_start_with_settings_that_cannot_be_used(kind: str) -> None:
    with pytest.raises(ConfigError, match="fortnight"), limited(kind, limits="10/fortnight"):
        pass


def test_wrong_options_of_a_view_raise_where_it_is_decorated() -> None:
    with pytest.raises(ConfigError, match="fortnight"):
        rate_limit("10/fortnight")(read)
    with pytest.raises(TypeError, match="no option is named"):
        rate_limit("1/minute", per="minute")(read)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="stands before views"):
        rate_limit("1/minute")(read)("no request")


def test_settings_may_import_the_integration() -> None:
    program = (
        "import sys, types, os\n"
        "module = types.ModuleType('shop_settings')\n"
        "exec('''from headgate.integrations.django import each_route, user\n"
        "HEADGATE = {'limits': '1/minute', 'key': user}\n"
        "MIDDLEWARE = ['headgate.integrations.django.RateLimitMiddleware']\n"
        "INSTALLED_APPS = ['headgate.integrations.django.HeadgateConfig']\n"
        "''', module.__dict__)\n"
        "sys.modules['shop_settings'] = module\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'shop_settings'\n"
        "import django; django.setup()\n"
        "from django.core import checks\n"
        "print([problem.id for problem in checks.run_checks() if problem.id.startswith('headgate')])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert result.stdout.strip() == "['headgate.E002']", result.stderr


def test_without_django_the_message_names_what_to_install() -> None:
    program = (
        "import sys, json; sys.modules['django'] = None\n"
        "from headgate import MissingExtraError\n"
        "try:\n    import headgate.integrations.django\n"
        "except MissingExtraError as error: print(json.dumps(str(error)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'headgate[django]'" in json.loads(result.stdout)


def test_a_policy_that_is_reloaded_reads_users_as_before() -> None:
    """`exempt` reads the database, which Django forbids on an event loop, so it is called in a thread."""
    policy = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "1/hour"}]}
    gate = AsyncGate(policy)
    settings = {"policy": gate, "exempt": lambda request: request.user.is_authenticated}
    middleware = [f"{__name__}.Authenticate", MIDDLEWARE]
    with Site("asgi", [path("", read_async)], HEADGATE=settings, MIDDLEWARE=middleware) as site:
        assert [site.request(X_User="ann").status_code for _ in range(2)] == [200, 200]
        gate.reload(policy)
        assert [site.request(X_User="ann").status_code for _ in range(2)] == [200, 200]
        assert [site.request().status_code for _ in range(2)] == [200, 429]


class Counting(URLPattern):
    """A route that counts how often it is resolved."""

    times = 0

    def resolve(self, path: str) -> Any:
        Counting.times += 1
        return super().resolve(path)


@pytest.mark.parametrize("options", [{"limits": "2/minute"}, {"policy": "PER_ADDRESS"}])
def test_a_site_whose_routes_count_together_resolves_no_route(
    kind: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "marked", Event())  # views of other tests are exempt
    options = {name: PER_ADDRESS if value == "PER_ADDRESS" else value for name, value in options.items()}
    route = path("", read)
    with limited(kind, [Counting(route.pattern, read)], **options) as site:
        Counting.times = 0
        assert site.statuses("/", "/", "/") == [200, 200, 429]
        assert Counting.times == 2, "Django alone resolves the route"


PER_ADDRESS = {
    "version": 1,
    "namespace": "shop",
    "rules": [{"name": "all", "match": {"path": "/**"}, "by": ["ip"], "limits": "2/minute"}],
}


@pytest.mark.skipif(core.native is None, reason="the native core reads it")
@pytest.mark.parametrize("placement", ["limits", "policy", "view"])
def test_the_native_core_reads_a_request_where_django_has_it(
    kind: str, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: DjangoRequest) -> str:
        raise AssertionError("Python reads the request")

    view = read if kind == "wsgi" else read_async
    options: Any = {"limits": {"limits": "2/minute"}, "policy": {"policy": PER_ADDRESS}, "view": {}}[placement]
    with limited(kind, [path("", rate_limit("2/minute")(view) if placement == "view" else view)], **options) as site:
        monkeypatch.setattr(DjangoRequest, "client_ip", property(fail))
        assert [remaining_units(site.request()) for _ in range(2)] == [1, 0]
        assert site.request().status_code == 429
        assert site.request(client="203.0.113.10").status_code == 200


def replacing(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware that replaces the method, path and client of a request, as some do behind proxies."""

    def respond(request: HttpRequest) -> Any:
        request.method = request.headers.get("X-Method", request.method)
        request.path = request.path_info = request.headers.get("X-Path", request.path)
        request.META["REMOTE_ADDR"] = request.headers.get("X-Client", request.META["REMOTE_ADDR"])
        return get_response(request)

    return respond


def test_the_values_with_which_a_middleware_replaces_those_of_a_request_count(kind: str) -> None:
    rules: list[dict[str, Any]] = [
        {"name": "login", "match": {"path": "/login"}, "by": ["ip"], "limits": "1/minute"},
        {"name": "writing", "match": {"method": "DELETE"}, "by": ["ip"], "limits": "1/minute"},
    ]
    above = [f"{__name__}.replacing", MIDDLEWARE]
    with Site(
        kind, [re_path("", read)], MIDDLEWARE=above, HEADGATE={"policy": {**PER_ADDRESS, "rules": rules}}
    ) as site:
        assert [site.request("/", x_path="/login").status_code for _ in range(2)] == [200, 429]
        assert site.statuses("/login", client="203.0.113.10", x_client="203.0.113.9") == [429]
        assert site.statuses("/login", x_path="/else") == [200]
        assert [site.request("/", "POST", x_method="DELETE").status_code for _ in range(2)] == [200, 429]
        assert site.request("/", "DELETE", x_method="POST").status_code == 200


def policy_of(limits: str) -> dict[str, Any]:
    return {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": limits}]}


@pytest.fixture(params=["limits", "policy"])
def site_of(request: pytest.FixtureRequest) -> Callable[[str], dict[str, Any]]:
    """The value of settings.HEADGATE for these limits of all requests."""
    return lambda limits: {"limits": limits} if request.param == "limits" else {"policy": policy_of(limits)}


def test_every_response_has_the_fields_of_the_limits_of_the_site(
    kind: str, site_of: Callable[[str], dict[str, Any]]
) -> None:
    streamed = stream if kind == "wsgi" else stream_async
    views = {"plain": read, "stream": streamed, "own": own_fields, "gone": gone, "broken": broken, "page": page}
    statuses = {"plain": 200, "stream": 200, "own": 200, "gone": 404, "broken": 500, "page": 200, "nowhere": 404}
    with limited(kind, [path(name, view) for name, view in views.items()], **site_of("9/minute")) as site:
        responses = {name: site.request(f"/{name}") for name in statuses}
        assert {name: response.status_code for name, response in responses.items()} == statuses
        for response in responses.values():
            for field in ("RateLimit-Policy", "RateLimit"):
                assert len(response.headers.get_list(field)) == 1
        assert responses["own"].headers["RateLimit"] == '"mine";r=1', "the application's own fields stay"
        assert responses["stream"].text == "one two three"
        assert [remaining_units(response) for name, response in responses.items() if name != "own"] == [
            8,
            7,
            5,
            4,
            3,
            2,
        ]


def test_a_response_object_that_a_site_returns_again_has_no_fields_of_another_client(
    kind: str, site_of: Callable[[str], dict[str, Any]]
) -> None:
    same = HttpResponse("same", headers={"X-Own": "1"})
    stored_responses.clear()

    def view(request: HttpRequest) -> HttpResponse:
        return same

    patterns = [path("free", exempt(lambda request: same)), path("", view), path("own", rate_limit("9/minute")(view))]
    above = [f"{__name__}.store_responses", MIDDLEWARE]
    with Site(kind, patterns, MIDDLEWARE=above, HEADGATE=site_of("3/minute")) as site:
        requests = [("/free", "9", None), ("/", "9", 2), ("/", "9", 1), ("/own", "10", 2), ("/free", "9", None)]
        for url, client, expected in requests:
            response = site.request(url, client=f"203.0.113.{client}")
            assert (response.text, response.headers["X-Own"]) == ("same", "1")
            assert (remaining_units(response) if "RateLimit" in response.headers else None) == expected, url
        remaining = [response.headers.get("RateLimit", ";-;").split(";")[1] for response in stored_responses]
        assert remaining == ["-", "r=2", "r=1", "r=2", "-"], "a response on its way to a client does not change"


def test_a_response_object_that_two_threads_of_a_site_return_has_the_fields_of_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = HttpResponse("same")
    reached, go_on = Event(), Event()
    responses: dict[str, Any] = {}

    def slow_claim(response: Any, fields: list[tuple[str, str]]) -> bool:
        """A claim that is interrupted after the first exchange has claimed the response."""
        is_first = claim(response, fields)
        if is_first and response is same:
            reached.set()
            assert go_on.wait(10)
        return is_first

    def send(client: str) -> None:
        responses[client] = middleware(RequestFactory().get("/", REMOTE_ADDR=client))

    for module in (exchange, response_exchange):
        monkeypatch.setattr(module, "claim", slow_claim)
    with override_settings(HEADGATE={"limits": "3/minute"}, ROOT_URLCONF=Site("wsgi", [path("", read)])):
        middleware = RateLimitMiddleware(lambda request: same)
        first = Thread(target=send, args=["203.0.113.9"])
        first.start()
        assert reached.wait(10)
        send("203.0.113.10")
        send("203.0.113.10")
        go_on.set()
        first.join()
    remaining = {client: response.headers["RateLimit"].split(";")[1] for client, response in responses.items()}
    assert remaining == {"203.0.113.9": "r=2", "203.0.113.10": "r=1"}


def test_two_clients_of_one_site_count_together(site_of: Callable[[str], dict[str, Any]]) -> None:
    with limited("wsgi", **site_of("2/minute")):
        assert [Client().get("/").status_code for _ in range(3)] == [200, 200, 429]
        site.forget()
        assert Client().get("/").status_code == 200


def test_limits_of_a_site_and_of_its_views_are_charged_and_reported_together(
    kind: str, site_of: Callable[[str], dict[str, Any]]
) -> None:
    once, twice = rate_limit("1/minute", scope="once"), rate_limit("2/minute")
    patterns = [
        path("", read),
        path("sync", once(read)),
        path("async", once(read_async)),
        path("both", twice(rate_limit("9/minute", key=api_key())(read))),
    ]
    with limited(kind, patterns, **site_of("5/minute"), clock=ManualClock()) as site:
        assert remaining_units(site.request("/both")) == 1, (
            "of several limits, the one with the fewest remaining units is reported"
        )
        assert remaining_units(site.request("/")) == 3
        assert site.statuses("/sync", *["/async"] * 3, *["/sync"] * 3) == [200] + [429] * 6
        refused = site.request("/sync")
        assert (refused.status_code, remaining_units(refused)) == (429, 0)
        expected = [200, 200, 429] if "limits" in site_of("5/minute") else [429]
        assert site.statuses(*["/"] * len(expected)) == expected, (
            "the site's limits are taken back, those of a policy are not"
        )


def test_limits_of_a_view_are_settled_below_the_limits_of_the_site(
    kind: str, site_of: Callable[[str], dict[str, Any]]
) -> None:
    counted: list[Response] = []

    def failures(request: Request, response: Response) -> bool:
        counted.append(response)
        return response.status == 401

    def login(request: HttpRequest) -> HttpResponse:
        return HttpResponse("four", status=int(request.headers.get("X-Status", "200")))

    with limited(kind, [path("", rate_limit("2/minute", counts=failures)(login))], **site_of("9/minute")) as site:
        assert site.statuses(*["/"] * 3) == [200] * 3
        assert site.statuses(*["/"] * 3, X_Status="401") == [401, 401, 429]
    assert [(response.status, response.body_bytes) for response in counted] == [(200, 4)] * 3 + [(401, 4)] * 2


def test_a_hold_of_a_view_below_the_limits_of_the_site_ends_when_its_response_is_closed(
    site_of: Callable[[str], dict[str, Any]],
) -> None:
    view = rate_limit("1 concurrent")(read)
    with limited("wsgi", [path("", view)], **site_of("9/minute")):
        middleware = RateLimitMiddleware(view)
        first, second = (middleware(RequestFactory().get("/")) for _ in range(2))
        assert (first.status_code, second.status_code) == (200, 429)
        first.close()
        assert middleware(RequestFactory().get("/")).status_code == 200


def test_a_copy_of_a_request_has_the_limits_of_that_request(site_of: Callable[[str], dict[str, Any]]) -> None:
    view = rate_limit("2/minute")(read)
    with limited("wsgi", [path("", view)], **site_of("9/minute")):
        middleware = RateLimitMiddleware(lambda request: view(copy.copy(request)))
        responses = [middleware(RequestFactory().get("/")) for _ in range(3)]
        assert [response.status_code for response in responses] == [200, 200, 429]
        assert [response.headers["RateLimit"].split(";")[1] for response in responses] == ["r=1", "r=0", "r=0"]


def test_a_pickle_of_a_response_has_no_fields_of_one_client(site_of: Callable[[str], dict[str, Any]]) -> None:
    with limited("wsgi", **site_of("9/minute")):
        limited_response = RateLimitMiddleware(lambda request: HttpResponse("read", headers={"X-Own": "1"}))(
            RequestFactory().get("/")
        )
    assert "RateLimit" in limited_response.headers
    own = {"Content-Type": "text/html; charset=utf-8", "X-Own": "1"}
    untouched = HttpResponse("read", headers={"X-Own": "1"})
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for response in (limited_response, untouched):
            restored = pickle.loads(pickle.dumps(response, protocol))
            assert (dict(restored.headers), restored.content, type(restored.headers)) == (
                own,
                b"read",
                type(untouched.headers),
            )
    limited_response.headers["RateLimit"] = '"mine";r=1'
    assert dict(pickle.loads(pickle.dumps(limited_response)).headers) == {**own, "RateLimit": '"mine";r=1'}


@pytest.mark.parametrize("headers", ["none", "x-delta"])
def test_a_site_reports_remaining_units_in_the_chosen_headers(
    kind: str, headers: str, site_of: Callable[[str], dict[str, Any]]
) -> None:
    with limited(kind, **site_of("1/minute"), headers=headers) as site:
        responses = [site.request() for _ in range(2)]
        assert [response.status_code for response in responses] == [200, 429]
        assert "RateLimit" not in responses[0].headers
        assert responses[0].headers.get("X-RateLimit-Remaining") == (None if headers == "none" else "0")


def test_the_first_request_to_a_site_finds_the_views_that_are_exempt(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views are imported by the first request, and by the first one after other URLs were set."""
    name = "urls_of_" + tmp_path.name
    for module in (f"{name}_first", f"{name}_then"):
        (tmp_path / f"{module}.py").write_text(
            "from django.http import HttpResponse\n"
            "from django.urls import path\n"
            "from headgate.integrations.django import exempt\n"
            "urlpatterns = [path('', exempt(lambda request: HttpResponse('free')))]\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    with limited(kind, limits="1/minute") as site:
        for module in (f"{name}_first", f"{name}_then"):
            monkeypatch.setattr(routing, "marked", Event())
            monkeypatch.setattr(limits, "marked", routing.marked)
            with override_settings(ROOT_URLCONF=module):
                site.restart()
                assert site.statuses("/", "/", "/") == [200] * 3
