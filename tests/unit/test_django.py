"""Limits of a Django site and its views, in both colours, without a server."""

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

import django_configured  # noqa: F401 - what follows asks for its settings

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

MIDDLEWARE = "headgate.integrations.django.RateLimitMiddleware"


class Site:
    """A site of these views under these settings, asked as a server of its kind does."""

    def __init__(self, kind: str, patterns: Sequence[Any], **told: Any) -> None:
        self._kind = kind
        self.urlpatterns = list(patterns)
        self._settings = override_settings(ROOT_URLCONF=self, **({"MIDDLEWARE": [], "HEADGATE": {}} | told))

    def __enter__(self) -> Site:
        self._settings.enable()
        self.restart()
        return self

    def restart(self) -> None:
        self._app: Any = WSGIHandler() if self._kind == "wsgi" else ASGIHandler()

    def __exit__(self, *_: object) -> None:
        self._settings.disable()

    def ask(
        self, path: str = "/", method: str = "GET", client: str = "203.0.113.9", mount: str = "", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        base_url = "http://shop.example"
        if self._kind == "wsgi":
            transport = httpx.WSGITransport(self._app, remote_addr=client, script_name=mount)
            with httpx.Client(transport=transport, base_url=base_url) as session:
                return session.request(method, path, headers=named)

        async def ask() -> httpx.Response:
            asgi = httpx.ASGITransport(self._app, client=(client, 1234), root_path=mount)
            async with httpx.AsyncClient(transport=asgi, base_url=base_url) as session:
                return await session.request(method, mount + path, headers=named)

        return asyncio.run(ask())

    def statuses(self, *paths: str, **told: Any) -> list[int]:
        return [self.ask(path, **told).status_code for path in paths]


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


def left(answer: httpx.Response) -> int:
    [(_, told)] = parse_list(answer.headers["RateLimit"])
    remaining: int = told["r"]
    return remaining


def read(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("read")


async def read_async(request: HttpRequest, **_: Any) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("read")


def limited(kind: str, patterns: Sequence[Any] = (), **told: Any) -> Site:
    """A site with the middleware."""
    return Site(kind, patterns or [path("", read)], MIDDLEWARE=[MIDDLEWARE], HEADGATE=told)


def test_every_request_of_an_address_counts(kind: str) -> None:
    with limited(kind, limits="2/minute") as site:
        answers = [site.ask(path) for path in ("/", "/nowhere", "/")]
        assert [answer.status_code for answer in answers] == [200, 404, 429]
        assert [left(answer) for answer in answers] == [1, 0, 0]
        assert site.ask(client="203.0.113.10").status_code == 200


def test_a_refusal_is_a_problem_with_a_true_moment(kind: str) -> None:
    clock = ManualClock()
    with limited(kind, limits="1/minute fixed", name="site", clock=clock) as site:
        site.ask()
        refused = site.ask()
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
        head = site.ask(method="HEAD")
        assert (head.status_code, head.content) == (429, b"")
        assert head.headers["content-length"] == refused.headers["content-length"]
        clock.advance(59_000_000)
        assert site.ask().status_code == 429
        clock.advance(1_000_000)
        assert site.ask().status_code == 200


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"one ", b"two ", b"three"]))


async def stream_async(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            yield part

    return StreamingHttpResponse(parts())


def own(request: HttpRequest) -> HttpResponse:
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
    views = {"plain": read, "stream": streamed, "own": own, "gone": gone, "broken": broken, "page": page}
    patterns = [path(name, decorated(view)) for name, view in views.items()]
    told = {"plain": 200, "stream": 200, "own": 200, "gone": 404, "broken": 500, "page": 200, "nowhere": 404}
    with limited(kind, patterns, limits="50/minute", headers=("draft-11", "x-delta")) as site:
        for name, status in told.items():
            answer = site.ask(f"/{name}")
            assert answer.status_code == status, name
            for field in ("RateLimit-Policy", "RateLimit", "X-RateLimit-Remaining"):
                assert len(answer.headers.get_list(field)) == 1, (name, field)
        assert site.ask("/own").headers["RateLimit"] == '"mine";r=1', "the application's own word stands"
        assert site.ask("/stream").text == "one two three"
        assert left(site.ask("/gone")) == 18, "of several limits the one that has least is told"


def test_a_response_that_a_view_gives_again_tells_anew(kind: str) -> None:
    same = HttpResponse("same")

    def view(request: HttpRequest) -> HttpResponse:
        return same

    with Site(kind, [path("", rate_limit("3/minute")(view))]) as site:
        assert [left(site.ask()) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("above", [[], [MIDDLEWARE]])
def test_a_response_that_is_given_again_says_nothing_of_another_client(kind: str, above: list[str]) -> None:
    same = HttpResponse("same", headers={"X-Own": "1"})
    kept.clear()

    def view(request: HttpRequest) -> HttpResponse:
        return same

    with Site(kind, [path("", rate_limit("3/minute")(view))], MIDDLEWARE=[f"{__name__}.keeping", *above]) as site:
        for client, expected in (("203.0.113.9", 2), ("203.0.113.9", 1), ("203.0.113.10", 2)):
            answer = site.ask(client=client)
            assert (left(answer), answer.text, answer.headers["X-Own"]) == (expected, "same", "1")
        told = [response.headers["RateLimit"].split(";")[1] for response in kept]
        assert told == ["r=2", "r=1", "r=2"], "what is on its way to a client stays as it is"


def test_a_response_that_two_threads_give_at_once_is_told_apart() -> None:
    same = HttpResponse("same", headers={"X-Own": "1"})
    there, go_on, others = Event(), Event(), []

    class Slow(DjangoExchange):
        """One that is interrupted between looking at the response and telling on it."""

        def add_fields(self, response: Any) -> None:
            there.set()
            assert go_on.wait(10)
            super().add_fields(response)

    def respond(exchange: DjangoExchange, client: str, response: HttpResponse) -> Any:
        request = RequestFactory().get("/", REMOTE_ADDR=client)
        enforcer = site().enforcer("3/minute", {"scope": "same"}, asynchronous=False)
        exchange.judge(enforcer, DjangoRequest(request), "same")
        return exchange.finish(request, response)

    with override_settings(HEADGATE={}):
        respond(DjangoExchange(), "203.0.113.9", HttpResponse("another"))
        first = Thread(target=lambda: others.append(respond(Slow(), "203.0.113.9", same)))
        first.start()
        assert there.wait(10)
        second = respond(DjangoExchange(), "203.0.113.10", same)
        go_on.set()
        first.join()
    assert [response.headers["RateLimit"].split(";")[1] for response in (*others, second)] == ["r=1", "r=2"]
    assert others[0].headers["X-Own"] == second.headers["X-Own"] == "1"


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_cache_above_a_limit_keeps_nothing_of_one_client(kind: str, colour: str) -> None:
    cached = cache_page(60)(rate_limit("5/minute")(COLOURS[colour]))
    with Site(kind, [path("", cached)]) as told:
        caches["default"].clear()
        first, second = told.ask(), told.ask(client="203.0.113.10")
        assert left(first) == 4
        assert not {"ratelimit", "ratelimit-policy"} & set(second.headers), "nothing counted it"
        assert (second.text, second.headers["Cache-Control"]) == ("read", "max-age=60")


def test_a_cache_below_a_limit_tells_each_client_what_is_its_own(kind: str) -> None:
    calls = []

    def view(request: HttpRequest) -> HttpResponse:
        calls.append(request)
        return HttpResponse("read")

    with Site(kind, [path("", rate_limit("2/minute")(cache_page(60)(view)))]) as told:
        caches["default"].clear()
        asked = [told.ask(), told.ask(), told.ask(client="203.0.113.10")]
        assert [left(answer) for answer in asked] == [1, 0, 1]
        assert told.ask().status_code == 429
        assert len(calls) == 1


@pytest.mark.parametrize("limits", ["5/minute", "5/minute; 9 concurrent"])
def test_a_cache_of_the_site_above_the_middleware_keeps_nothing_of_one_client(kind: str, limits: str) -> None:
    cache = "django.middleware.cache"
    above = [f"{cache}.UpdateCacheMiddleware", f"{cache}.FetchFromCacheMiddleware", MIDDLEWARE]
    with Site(kind, [path("", read)], MIDDLEWARE=above, HEADGATE={"limits": limits}) as told:
        caches["default"].clear()
        first, second = told.ask(), told.ask(client="203.0.113.10")
        assert (first.status_code, second.status_code, second.text) == (200, 200, "read")
        assert "r=4" in first.headers["RateLimit"]
        assert not {"ratelimit", "ratelimit-policy"} & set(second.headers)


kept: list[Any] = []


def keeping(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware that keeps all responses, as a server does that sends them slowly."""

    def respond(request: HttpRequest) -> Any:
        kept.append(get_response(request))
        return kept[-1]

    return respond


COLOURS = {"sync": read, "async": read_async}


@pytest.mark.parametrize("colour", COLOURS)
def test_a_view_is_limited_without_the_middleware(kind: str, colour: str) -> None:
    view = rate_limit("2/minute", name="read")(COLOURS[colour])
    assert iscoroutinefunction(view) == (colour == "async")
    with Site(kind, [path("", view), path("free", read)]) as site:
        answers = [site.ask() for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [left(answer) for answer in answers] == [1, 0, 0]
        assert answers[2].headers["content-type"] == "application/problem+json"
        assert answers[2].json()["violated-policies"] == ["read"]
        assert "RateLimit" not in site.ask("/free").headers


def test_views_of_both_colours_count_in_one_store(kind: str) -> None:
    both = rate_limit("3/minute", scope="both")
    with Site(kind, [path("sync", both(read)), path("async", both(read_async))]) as site:
        assert site.statuses("/sync", "/async", "/sync", "/async", "/sync") == [200, 200, 200, 429, 429]


def test_what_is_no_response_is_still_django_s_error() -> None:
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


@pytest.mark.parametrize("whole", [True, False], ids=["middleware", "view"])
def test_these_responses_tell_what_remains(kind: str, whole: bool) -> None:
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
    limited: list[Any] = views if whole else [rate_limit("9/minute")(view) for view in views]
    patterns = [path(view.__name__, view) for view in limited]
    told = {"MIDDLEWARE": [MIDDLEWARE], "HEADGATE": {"limits": "9/minute"}} if whole else {}
    with Site(kind, patterns, DEBUG_PROPAGATE_EXCEPTIONS=False, **told) as asked:
        telling = {view.__name__ for view in views if "RateLimit" in asked.ask(f"/{view.__name__}").headers}
    assert telling == (
        {"value", "stream", "redirect", "missing", "crash"} if whole else {"value", "stream", "redirect"}
    )


class CorsMiddleware:
    """Answers other origins as django-cors-headers does: what comes from below it gets the header."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        response = self._get_response(request)
        response["Access-Control-Allow-Origin"] = "https://page.example"
        return response


@pytest.mark.parametrize("right", [True, False])
def test_refusals_are_read_by_other_origins_below_cors_headers_and_warned_of_above(
    kind: str,
    right: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    package, module = ModuleType("corsheaders"), ModuleType("corsheaders.middleware")
    module.CorsMiddleware = CorsMiddleware  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "corsheaders", package)
    monkeypatch.setitem(sys.modules, "corsheaders.middleware", module)
    both = ["corsheaders.middleware.CorsMiddleware", MIDDLEWARE]
    told = {"MIDDLEWARE": both if right else both[::-1], "HEADGATE": {"limits": "1/minute"}}
    with caplog.at_level("WARNING", "headgate"), Site(kind, [path("x", read_any)], **told) as asked:
        answers = [asked.ask("/x", Origin="https://page.example") for _ in range(2)]
        faults = [fault.id for fault in check_settings()]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert ("Access-Control-Allow-Origin" in answers[1].headers) is right
    assert faults == ([] if right else ["headgate.W002"])
    warnings = [record.getMessage() for record in caplog.records if record.name == "headgate"]
    assert ["is outside of CorsMiddleware" in warning for warning in warnings] == [True] * (not right)


def read_any(request: HttpRequest) -> HttpResponse:
    return HttpResponse("read")


def test_a_site_that_forgets_begins_anew(kind: str) -> None:
    view = rate_limit("1/minute")(lambda request: HttpResponse("read"))
    with Site(kind, [path("x", view)], MIDDLEWARE=[MIDDLEWARE], HEADGATE={"limits": "2/minute"}) as told:
        assert told.statuses("/x", "/x") == [200, 429]
        site.forget()
        told.restart()
        assert told.statuses("/x", "/x") == [200, 429]


class NeverOnALoop(MemoryStore):
    """A store that waits for I/O: asked in a thread, or with `await`, never otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    @property
    def blocking(self) -> bool:  # type: ignore[override]
        return True

    def bind(self, limits: Any, *, clock: Any = None) -> Any:
        return _Watched(super().bind(limits, clock=clock), self.asked)

    def bind_async(self, limits: Any, *, clock: Any = None) -> Any:
        return _WatchedAsync(super().bind(limits, clock=clock), self.asked)


class _Watched:
    def __init__(self, bound: Any, asked: list[str]) -> None:
        self._bound = bound
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._bound, name)

        def asked(*args: Any, **kwargs: Any) -> Any:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            self._asked.append("thread")
            return method(*args, **kwargs)

        return asked


class _WatchedAsync(_Watched):
    def __getattr__(self, name: str) -> Any:
        method = getattr(self._bound, name)

        async def asked(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            self._asked.append("loop")
            return method(*args, **kwargs)

        return asked


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
    expected = [asked for pair in zip(*[iter(on_the_loop[kind])] * 2, strict=True) for asked in pair * 2]
    assert store.asked == expected


def test_concrete_paths_are_one_limit_and_routes_are_several(kind: str) -> None:
    seen: list[str] = []
    view = rate_limit("2/minute", on_decision=portable(lambda request, decision: seen.append(request.endpoint)))(read)
    users = ([path("users/<int:number>/", view, name="read"), re_path(r"^old/(?P<number>\d+)$", view)], "users")
    patterns = [path("v1/", include(users, "v1")), path("v2/", include(users, "v2"))]
    with Site(kind, patterns) as site:
        assert site.statuses("/v1/users/1/", "/v1/users/2/", "/v1/users/3/") == [200, 200, 429]
        assert site.statuses("/v2/users/1/", "/v2/users/2/", "/v2/users/3/") == [200, 200, 429]
        assert site.statuses("/v1/old/1", "/v1/old/2", "/v1/old/3") == [200, 200, 429]
        assert site.statuses("/v1/users/1/", mount="/shop") == [200], "a mount is another place"
        assert site.statuses("/v1/users/1/", method="POST") == [429], "all methods of a view count together"
    told = ["* /v1/users/<int:number>/", "* /v2/users/<int:number>/", r"* /v1/old/(?P<number>\d+)$"]
    assert list(dict.fromkeys(seen)) == [*told, "* /shop/v1/users/<int:number>/"]


def test_one_route_in_many_languages_is_one_limit(kind: str) -> None:
    patterns = i18n_patterns(path("shop/", rate_limit("3/minute")(read)), prefix_default_language=False)
    middleware = ["django.middleware.locale.LocaleMiddleware"]
    with Site(kind, patterns, MIDDLEWARE=middleware) as site:
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


def test_a_url_configuration_of_a_request_is_a_place_of_its_own(kind: str) -> None:
    view = rate_limit("1/minute", name="root")(read)
    with Site(kind, [path("", view)], MIDDLEWARE=[f"{__name__}.by_host"]) as site:
        hosts = ("shop.example", "other.example", "shop.example", "other.example")
        assert [site.ask(Host=host).status_code for host in hosts] == [200, 200, 429, 429]


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


def test_what_is_exempt_or_overrides_is_left_out_of_the_sites_limits(kind: str) -> None:
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
        assert site.statuses("/", "/", "/") == [200, 200, 429], "who has no key is counted by address in both"


def test_a_refusal_consumes_nothing_in_any_of_the_limits(kind: str) -> None:
    once = rate_limit("1/minute", scope="once")
    patterns = [path("sync", once(read)), path("async", once(read_async)), path("wide", read)]
    with limited(kind, patterns, limits="5/minute", clock=ManualClock()) as site:
        assert site.statuses("/sync", *["/async"] * 5, *["/sync"] * 5) == [200] + [429] * 10
        assert site.statuses(*["/wide"] * 5) == [200] * 4 + [429], "ten refusals took nothing of the wider limit"


def test_classes_are_limited_whole_or_by_method(kind: str) -> None:
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
            answers = [site.ask(f"/{whole}/{n}", method) for n, method in enumerate(("GET", "POST", "GET"))]
            assert [(answer.status_code, left(answer)) for answer in answers] == [(200, 1), (200, 0), (429, 0)], whole
        methods = ("GET", "POST", "PUT", "HEAD", "POST", "PUT")
        asked = [site.ask(f"/single/{n}", method).status_code for n, method in enumerate(methods)]
        assert asked == [200, 200, 200, 429, 429, 200]
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
    """As Django's: the user is read when somebody asks, and a database may not be asked on an event loop."""

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


def test_a_user_is_counted_by_primary_key_in_both_colours(kind: str) -> None:
    keys = (user, first_of(user, api_key()))
    patterns = [path("sync", rate_limit("2/minute")(read)), path("async", rate_limit("2/minute")(read_async))]
    middleware = [f"{__name__}.Authenticate", MIDDLEWARE]
    for key in keys:
        with Site(kind, patterns, MIDDLEWARE=middleware, HEADGATE={"limits": "5/minute", "key": key}) as site:
            for name in ("/sync", "/async"):
                assert [site.ask(name, X_User=who).status_code for who in "ababa"] == [200, 200, 200, 200, 429]
                assert site.statuses(name, name, name) == [200, 200, 429], "nobody is free"
            assert [site.ask("/nowhere", X_User="c").status_code for _ in range(6)] == [404] * 5 + [429]


def test_django_s_own_authentication_knows_the_user(kind: str) -> None:
    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        MIDDLEWARE,
    ]
    told = {"limits": "1/minute", "key": "headgate.integrations.django.user"}
    with Site(kind, [path("", read)], MIDDLEWARE=middleware, HEADGATE=told) as site:
        assert site.statuses("/", "/") == [200, 429], "who is not logged in is counted by address"


class AuthenticateNew:
    """The user is authenticated, and in no database, as one that a token alone describes."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        request.user = SimpleNamespace(is_authenticated=True, pk=None)
        return self._get_response(request)


def test_users_without_a_primary_key_are_counted_by_address(kind: str) -> None:
    told = {"limits": "1/minute", "key": user}
    with Site(kind, [path("", read)], MIDDLEWARE=[f"{__name__}.AuthenticateNew", MIDDLEWARE], HEADGATE=told) as site:
        assert [site.ask(client=f"203.0.113.{it}").status_code for it in (1, 2, 1)] == [200, 200, 429]


def test_a_user_whom_nobody_can_know_is_told(kind: str) -> None:
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
        assert [site.ask(X_User=who).status_code for who in "aba"] == [200, 200, 429]
    with pytest.raises(ConfigError, match="a coroutine function needs an asyncio application"):
        rate_limit("1/minute", key=key)(read)


def test_a_request_tells_what_was_sent(kind: str) -> None:
    seen: list[Any] = []

    @portable
    def look(request: Request) -> None:
        seen.append((request.method, request.path, request.host, request.headers["x-one"], request.cookie("a")))
        seen.append((request.query("q"), request.client_ip, request.endpoint, request.django.path))  # type: ignore[attr-defined]

    with limited(kind, [path("sh op/<name>", read)], limits="9/minute", key=look) as site:
        site.ask("/sh%20op/e%2541?q=1%262", X_One="1", Cookie="a=b")
    assert seen == [
        ("GET", "/sh%20op/e%2541?q=1%262", "shop.example", "1", "b"),
        ("1&2", "203.0.113.9", "* /sh op/<name>", "/sh op/e%41"),
    ]


def test_a_path_is_what_the_client_sent_whatever_django_decoded() -> None:
    sent = "/%C3%A9/%2541/;a=1"
    assert DjangoRequest(RequestFactory().get(sent)).path == sent


def test_the_forged_end_of_a_forwarding_header_is_not_believed(kind: str) -> None:
    with limited(kind, limits="1/minute", trusted_proxies=["10.0.0.0/8"]) as site:
        forged = [{"client": "10.0.0.1", "X_Forwarded_For": f"{n}.1.1.1, 203.0.113.7"} for n in (1, 2)]
        assert [site.ask(**told).status_code for told in forged] == [200, 429]
        assert site.statuses("/", client="198.51.100.1", X_Forwarded_For="203.0.113.7") == [200]


@pytest.mark.parametrize("middleware", [(), (MIDDLEWARE,)])
@pytest.mark.parametrize("colour", COLOURS)
def test_what_counts_may_be_told_by_the_response(kind: str, colour: str, middleware: tuple[str, ...]) -> None:
    told: list[Response] = []

    def failures(request: Request, response: Response) -> bool:
        told.append(response)
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
    assert len(told) == 7, "what was refused has no response to settle by"
    assert {(response.headers["content-type"], response.body_bytes) for response in told} == {
        ("text/html; charset=utf-8", 4)
    }


@pytest.mark.parametrize("middleware", [(), (MIDDLEWARE,)])
def test_a_stream_is_settled_by_all_that_was_sent(
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
            site.ask(f"/{number}")
        assert sent == [13, 5 if kind == "wsgi" else 7, 6]
        assert left(site.ask("/0")) == 50 - 13 - 5


@pytest.mark.parametrize("middleware", [(), (MIDDLEWARE,)])
@pytest.mark.parametrize("colour", COLOURS)
def test_a_view_that_fails_is_settled_by_what_django_answers(
    kind: str, colour: str, middleware: tuple[str, ...]
) -> None:
    told: list[int] = []

    def count(request: Request, response: Response) -> bool:
        told.append(response.status)
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
    assert told == [404, 403, 500]


@pytest.mark.parametrize("watched", [False, True])
def test_what_was_charged_is_settled_when_the_client_goes_away(watched: bool) -> None:
    told: list[int] = []
    begun = asyncio.Event()

    def count(request: Request, response: Response) -> bool:
        told.append(response.status)
        return True

    @rate_limit("9/minute", counts=count)
    async def slow(request: HttpRequest) -> HttpResponse:
        begun.set()
        await asyncio.Event().wait()
        return HttpResponse("late")

    async def ask() -> None:
        answering = RateLimitMiddleware(slow) if watched else slow
        task = asyncio.create_task(answering(AsyncRequestFactory().get("/")))
        await begun.wait()
        task.cancel()  # as Django does when the client is gone
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with Site("asgi", [path("", slow)]):
        asyncio.run(ask())
    assert told == [500]


def test_the_site_s_limits_may_be_told_by_the_response(kind: str) -> None:
    with limited(kind, limits="2/minute", counts=lambda request, response: response.status == 404) as site:
        assert site.statuses(*["/"] * 4, *["/nowhere"] * 3) == [200] * 4 + [404, 404, 429]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("answer_colour", COLOURS)
def test_a_fallback_answers_instead(kind: str, colour: str, answer_colour: str) -> None:
    def old(request: HttpRequest, name: str) -> HttpResponse:
        return HttpResponse(f"old {name}")

    async def old_async(request: HttpRequest, name: str) -> HttpResponse:
        return HttpResponse(f"old {name}")

    fallback = old if answer_colour == "sync" else old_async
    view = rate_limit("1/minute", fallback=fallback)(COLOURS[colour])
    with Site(kind, [path("<name>", view)]) as site:
        answers = [site.ask("/x") for _ in range(2)]
        assert [(answer.status_code, answer.text) for answer in answers] == [(200, "read"), (200, "old x")]
        assert left(answers[1]) == 0 and int(answers[1].headers["Retry-After"]) >= 1


def busy(request: HttpRequest) -> HttpResponse:
    return HttpResponse("busy", status=503)


def test_settings_name_functions_by_their_path(kind: str) -> None:
    with limited(kind, limits="1/minute", fallback=f"{__name__}.busy") as site:
        assert site.ask().text == "read"
        answer = site.ask()
        assert (answer.status_code, answer.text, left(answer)) == (503, "busy", 0)


def test_the_answer_can_be_another(kind: str) -> None:
    def friendly(request: Request, decision: Any, usual: Refusal) -> Refusal | None:
        return Refusal(503, [("Retry-After", "7"), ("Content-Type", "text/html")], b"<p>slow down</p>")

    with limited(kind, limits="1/minute", refusal=friendly) as site:
        site.ask()
        other = site.ask()
        assert (other.status_code, other.text, other.headers["Retry-After"]) == (503, "<p>slow down</p>", "7")
        assert other.headers["Content-Type"] == "text/html"


POLICY = {
    "version": 1,
    "namespace": "api",
    "rules": [{"name": "items", "match": {"path": "/api/items/{id}"}, "by": ["ip"], "limits": "2/minute"}],
}


def test_a_policy_sees_the_whole_path_and_views_have_what_goes_with_limits(kind: str) -> None:
    patterns = [path("items/<int:number>", read), path("own", rate_limit("1/minute")(read))]
    with limited(kind, patterns, policy=POLICY, trusted_hops=1) as site:
        assert site.statuses("/items/1", "/items/2", "/items/3", mount="/api") == [200, 200, 429]
        assert "RateLimit" not in site.ask("/items/1").headers
        clients = [{"X_Forwarded_For": address} for address in ("203.0.113.1", "203.0.113.2", "203.0.113.1")]
        assert [site.ask("/own", **client).status_code for client in clients] == [200, 200, 429]


def test_a_store_that_fails_never_looks_like_the_clients_fault(kind: str) -> None:
    with limited(kind, limits="1/minute", store=BrokenStore()) as site:
        passed = site.ask()
        assert (passed.status_code, passed.headers["X-RateLimit-Degraded"]) == (200, "open")
    with limited(kind, limits="1/minute", store=BrokenStore(), on_store_error="closed") as site:
        refused = site.ask()
        assert (refused.status_code, refused.headers["X-RateLimit-Degraded"]) == (503, "closed")


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503)])
def test_a_redis_that_is_gone_is_what_the_settings_say(kind: str, choice: str, status: int) -> None:
    with limited(kind, limits="1/minute", store=NO_REDIS, on_store_error=choice) as site:
        answer = site.ask()
        assert (answer.status_code, answer.headers["X-RateLimit-Degraded"]) == (status, choice)


def plain(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    def middleware(request: HttpRequest) -> Any:
        return get_response(request)

    return middleware


def test_above_a_middleware_that_is_only_sync_a_thread_asks(kind: str) -> None:
    store = NeverOnALoop()
    told = {"limits": "2/minute", "store": store}
    patterns = [path("", rate_limit("2/minute")(read_async))]
    with Site(kind, patterns, MIDDLEWARE=[MIDDLEWARE, f"{__name__}.plain"], HEADGATE=told) as site:
        assert site.statuses("/", "/", "/") == [200, 200, 429]
    assert store.asked[0] == "thread"


def test_other_settings_begin_anew(kind: str) -> None:
    view = rate_limit("1/minute")(read)
    for headers in ("x-delta", "draft-11"):
        with Site(kind, [path("", view)], HEADGATE={"headers": headers}) as site:
            answer = site.ask()
            assert answer.status_code == 200
            assert ("RateLimit" in answer.headers) == (headers == "draft-11")


def test_a_middleware_without_limits_judges_nothing(kind: str) -> None:
    with limited(kind) as site:
        answer = site.ask()
        assert (answer.status_code, answer.headers.get("RateLimit")) == (200, None)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"limits": "10/fortnight"}, r"""settings\.HEADGATE\['limits'\]: cannot read "10/fortnight": units are"""),
        ({"limits": "1/minute", "policy": POLICY}, "a policy or limits, one of the two"),
        ({"limts": "1/minute"}, r"settings\.HEADGATE has no option 'limts'; there are policy, "),
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
def test_the_system_check_names_setting_value_and_what_would_be_right(told: Any, message: str) -> None:
    with override_settings(HEADGATE=told, MIDDLEWARE=[MIDDLEWARE]):
        [error] = check_settings()
        assert error.id == "headgate.E001" and error.hint
    assert re.search(message, error.msg), error.msg


def test_the_system_check_looks_at_the_order_of_the_middleware() -> None:
    authentication = "django.contrib.auth.middleware.AuthenticationMiddleware"
    by_user = {"limits": "1/minute", "key": user}
    told: list[tuple[dict[str, Any], list[str], list[str]]] = [
        ({}, [], []),
        ({"headers": "none", "trusted_hops": 1, "address_header": "X-Real-IP"}, [], []),
        ({"limits": "1/minute"}, [], ["headgate.W001"]),
        ({"limits": {"default": "1/minute"}, "tier": lambda request: "pro"}, [MIDDLEWARE], []),
        (by_user, [MIDDLEWARE, authentication], ["headgate.E002"]),
        (by_user | {"key": "headgate.integrations.django.user"}, [MIDDLEWARE], ["headgate.E002"]),
        (by_user, [authentication, MIDDLEWARE], []),
        ({"policy": POLICY, "key": user, "ruleset": "default", "trusted_hops": 1}, [MIDDLEWARE, authentication], []),
    ]
    for headgate, middleware, ids in told:
        with override_settings(HEADGATE=headgate, MIDDLEWARE=middleware):
            assert [problem.id for problem in check_settings()] == ids, headgate


async def key_later(request: HttpRequest) -> str:
    return str(request.META["REMOTE_ADDR"])


@pytest.mark.parametrize("key", [key_later, f"{__name__}.key_later"])
def test_the_system_check_knows_functions_that_are_awaited(key: Any) -> None:
    with override_settings(HEADGATE={"limits": "1/minute", "key": key}, MIDDLEWARE=[MIDDLEWARE]):
        assert check_settings() == []


def test_a_server_does_not_start_with_settings_that_cannot_be_used(kind: str) -> None:
    with pytest.raises(ConfigError, match="fortnight"), limited(kind, limits="10/fortnight"):
        pass


def test_what_cannot_be_used_in_a_view_is_told_where_it_is_written() -> None:
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
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert told.stdout.strip() == "['headgate.E002']", told.stderr


def test_without_django_the_message_names_what_to_install() -> None:
    program = (
        "import sys, json; sys.modules['django'] = None\n"
        "from headgate import MissingExtraError\n"
        "try:\n    import headgate.integrations.django\n"
        "except MissingExtraError as error: print(json.dumps(str(error)))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'headgate[django]'" in json.loads(told.stdout)


def test_a_policy_that_is_reloaded_asks_for_users_as_before() -> None:
    """What is exempt asks the database, which Django lets no event loop do: it is asked in a thread."""
    policy = {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": "1/hour"}]}
    gate = AsyncGate(policy)
    told = {"policy": gate, "exempt": lambda request: request.user.is_authenticated}
    middleware = [f"{__name__}.Authenticate", MIDDLEWARE]
    with Site("asgi", [path("", read_async)], HEADGATE=told, MIDDLEWARE=middleware) as asked:
        assert [asked.ask(X_User="ann").status_code for _ in range(2)] == [200, 200]
        gate.reload(policy)
        assert [asked.ask(X_User="ann").status_code for _ in range(2)] == [200, 200]
        assert [asked.ask().status_code for _ in range(2)] == [200, 429]


class Counting(URLPattern):
    """A route that notes how often it was looked for."""

    times = 0

    def resolve(self, path: str) -> Any:
        Counting.times += 1
        return super().resolve(path)


@pytest.mark.parametrize("told", [{"limits": "2/minute"}, {"policy": "PER_ADDRESS"}])
def test_a_site_whose_routes_count_together_looks_for_no_route(
    kind: str, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "marked", Event())  # views of other tests are exempt
    told = {name: PER_ADDRESS if value == "PER_ADDRESS" else value for name, value in told.items()}
    route = path("", read)
    with limited(kind, [Counting(route.pattern, read)], **told) as site:
        Counting.times = 0
        assert site.statuses("/", "/", "/") == [200, 200, 429]
        assert Counting.times == 2, "Django looks for it"


PER_ADDRESS = {
    "version": 1,
    "namespace": "shop",
    "rules": [{"name": "all", "match": {"path": "/**"}, "by": ["ip"], "limits": "2/minute"}],
}


@pytest.mark.skipif(core.native is None, reason="the native core reads it")
@pytest.mark.parametrize("placed", ["limits", "policy", "view"])
def test_the_native_core_reads_a_request_where_django_has_it(
    kind: str, placed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(self: DjangoRequest) -> str:
        raise AssertionError("Python reads the request")

    view = read if kind == "wsgi" else read_async
    told: Any = {"limits": {"limits": "2/minute"}, "policy": {"policy": PER_ADDRESS}, "view": {}}[placed]
    with limited(kind, [path("", rate_limit("2/minute")(view) if placed == "view" else view)], **told) as site:
        monkeypatch.setattr(DjangoRequest, "client_ip", property(unread))
        assert [left(site.ask()) for _ in range(2)] == [1, 0]
        assert site.ask().status_code == 429
        assert site.ask(client="203.0.113.10").status_code == 200


def replacing(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware that has another method, path and client stand for what was sent, as some do behind proxies."""

    def respond(request: HttpRequest) -> Any:
        request.method = request.headers.get("X-Method", request.method)
        request.path = request.path_info = request.headers.get("X-Path", request.path)
        request.META["REMOTE_ADDR"] = request.headers.get("X-Client", request.META["REMOTE_ADDR"])
        return get_response(request)

    return respond


def test_what_a_middleware_puts_in_place_of_a_request_is_what_counts(kind: str) -> None:
    rules: list[dict[str, Any]] = [
        {"name": "login", "match": {"path": "/login"}, "by": ["ip"], "limits": "1/minute"},
        {"name": "writing", "match": {"method": "DELETE"}, "by": ["ip"], "limits": "1/minute"},
    ]
    above = [f"{__name__}.replacing", MIDDLEWARE]
    with Site(
        kind, [re_path("", read)], MIDDLEWARE=above, HEADGATE={"policy": {**PER_ADDRESS, "rules": rules}}
    ) as site:
        assert [site.ask("/", x_path="/login").status_code for _ in range(2)] == [200, 429]
        assert site.statuses("/login", client="203.0.113.10", x_client="203.0.113.9") == [429]
        assert site.statuses("/login", x_path="/else") == [200]
        assert [site.ask("/", "POST", x_method="DELETE").status_code for _ in range(2)] == [200, 429]
        assert site.ask("/", "DELETE", x_method="POST").status_code == 200


def policy_of(limits: str) -> dict[str, Any]:
    return {"version": 1, "rules": [{"name": "all", "by": ["ip"], "limits": limits}]}


@pytest.fixture(params=["limits", "policy"])
def site_of(request: pytest.FixtureRequest) -> Callable[[str], dict[str, Any]]:
    """What settings.HEADGATE says for these limits of all requests."""
    return lambda limits: {"limits": limits} if request.param == "limits" else {"policy": policy_of(limits)}


def test_every_response_tells_what_the_site_s_limits_leave(kind: str, site_of: Callable[[str], dict[str, Any]]) -> None:
    streamed = stream if kind == "wsgi" else stream_async
    views = {"plain": read, "stream": streamed, "own": own, "gone": gone, "broken": broken, "page": page}
    told = {"plain": 200, "stream": 200, "own": 200, "gone": 404, "broken": 500, "page": 200, "nowhere": 404}
    with limited(kind, [path(name, view) for name, view in views.items()], **site_of("9/minute")) as site:
        answers = {name: site.ask(f"/{name}") for name in told}
        assert {name: answer.status_code for name, answer in answers.items()} == told
        for answer in answers.values():
            for field in ("RateLimit-Policy", "RateLimit"):
                assert len(answer.headers.get_list(field)) == 1
        assert answers["own"].headers["RateLimit"] == '"mine";r=1', "the application's own word stands"
        assert answers["stream"].text == "one two three"
        assert [left(answer) for name, answer in answers.items() if name != "own"] == [8, 7, 5, 4, 3, 2]


def test_a_response_that_a_site_gives_again_says_nothing_of_another_client(
    kind: str, site_of: Callable[[str], dict[str, Any]]
) -> None:
    same = HttpResponse("same", headers={"X-Own": "1"})
    kept.clear()

    def view(request: HttpRequest) -> HttpResponse:
        return same

    patterns = [path("free", exempt(lambda request: same)), path("", view), path("own", rate_limit("9/minute")(view))]
    above = [f"{__name__}.keeping", MIDDLEWARE]
    with Site(kind, patterns, MIDDLEWARE=above, HEADGATE=site_of("3/minute")) as site:
        asked = [("/free", "9", None), ("/", "9", 2), ("/", "9", 1), ("/own", "10", 2), ("/free", "9", None)]
        for place, client, expected in asked:
            answer = site.ask(place, client=f"203.0.113.{client}")
            assert (answer.text, answer.headers["X-Own"]) == ("same", "1")
            assert (left(answer) if "RateLimit" in answer.headers else None) == expected, place
        told = [response.headers.get("RateLimit", ";-;").split(";")[1] for response in kept]
        assert told == ["-", "r=2", "r=1", "r=2", "-"], "what is on its way to a client stays as it is"


def test_a_response_that_two_threads_of_a_site_give_at_once_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    same = HttpResponse("same")
    there, go_on = Event(), Event()
    answers: dict[str, Any] = {}

    def slow(response: Any, told: list[tuple[str, str]]) -> bool:
        """One that is interrupted between looking at the response and telling on it."""
        is_first = claim(response, told)
        if is_first and response is same:
            there.set()
            assert go_on.wait(10)
        return is_first

    def ask(client: str) -> None:
        answers[client] = middleware(RequestFactory().get("/", REMOTE_ADDR=client))

    for module in (exchange, response_exchange):
        monkeypatch.setattr(module, "claim", slow)
    with override_settings(HEADGATE={"limits": "3/minute"}, ROOT_URLCONF=Site("wsgi", [path("", read)])):
        middleware = RateLimitMiddleware(lambda request: same)
        first = Thread(target=ask, args=["203.0.113.9"])
        first.start()
        assert there.wait(10)
        ask("203.0.113.10")
        ask("203.0.113.10")
        go_on.set()
        first.join()
    told = {client: response.headers["RateLimit"].split(";")[1] for client, response in answers.items()}
    assert told == {"203.0.113.9": "r=2", "203.0.113.10": "r=1"}


def test_two_clients_of_one_site_count_together(site_of: Callable[[str], dict[str, Any]]) -> None:
    with limited("wsgi", **site_of("2/minute")):
        assert [Client().get("/").status_code for _ in range(3)] == [200, 200, 429]
        site.forget()
        assert Client().get("/").status_code == 200


def test_limits_of_a_site_and_of_its_views_are_charged_and_told_together(
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
        assert left(site.ask("/both")) == 1, "of several limits the one that has least is told"
        assert left(site.ask("/")) == 3
        assert site.statuses("/sync", *["/async"] * 3, *["/sync"] * 3) == [200] + [429] * 6
        refused = site.ask("/sync")
        assert (refused.status_code, left(refused)) == (429, 0)
        expected = [200, 200, 429] if "limits" in site_of("5/minute") else [429]
        assert site.statuses(*["/"] * len(expected)) == expected, "limits that are taken back, a policy's are not"


def test_what_counts_in_a_view_is_settled_below_the_site_s_limits(
    kind: str, site_of: Callable[[str], dict[str, Any]]
) -> None:
    told: list[Response] = []

    def failures(request: Request, response: Response) -> bool:
        told.append(response)
        return response.status == 401

    def login(request: HttpRequest) -> HttpResponse:
        return HttpResponse("four", status=int(request.headers.get("X-Status", "200")))

    with limited(kind, [path("", rate_limit("2/minute", counts=failures)(login))], **site_of("9/minute")) as site:
        assert site.statuses(*["/"] * 3) == [200] * 3
        assert site.statuses(*["/"] * 3, X_Status="401") == [401, 401, 429]
    assert [(response.status, response.body_bytes) for response in told] == [(200, 4)] * 3 + [(401, 4)] * 2


def test_what_a_view_holds_below_the_site_s_limits_is_freed_when_its_response_is_closed(
    site_of: Callable[[str], dict[str, Any]],
) -> None:
    view = rate_limit("1 concurrent")(read)
    with limited("wsgi", [path("", view)], **site_of("9/minute")):
        middleware = RateLimitMiddleware(view)
        first, second = (middleware(RequestFactory().get("/")) for _ in range(2))
        assert (first.status_code, second.status_code) == (200, 429)
        first.close()
        assert middleware(RequestFactory().get("/")).status_code == 200


def test_a_copy_of_a_request_comes_to_the_limits_of_that_request(site_of: Callable[[str], dict[str, Any]]) -> None:
    view = rate_limit("2/minute")(read)
    with limited("wsgi", [path("", view)], **site_of("9/minute")):
        middleware = RateLimitMiddleware(lambda request: view(copy.copy(request)))
        answers = [middleware(RequestFactory().get("/")) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [answer.headers["RateLimit"].split(";")[1] for answer in answers] == ["r=1", "r=0", "r=0"]


def test_a_pickle_of_a_response_has_what_is_for_all_clients(site_of: Callable[[str], dict[str, Any]]) -> None:
    with limited("wsgi", **site_of("9/minute")):
        answer = RateLimitMiddleware(lambda request: HttpResponse("read", headers={"X-Own": "1"}))(
            RequestFactory().get("/")
        )
    assert "RateLimit" in answer.headers
    own = {"Content-Type": "text/html; charset=utf-8", "X-Own": "1"}
    untouched = HttpResponse("read", headers={"X-Own": "1"})
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for response in (answer, untouched):
            kept = pickle.loads(pickle.dumps(response, protocol))
            assert (dict(kept.headers), kept.content, type(kept.headers)) == (own, b"read", type(untouched.headers))
    answer.headers["RateLimit"] = '"mine";r=1'
    assert dict(pickle.loads(pickle.dumps(answer)).headers) == {**own, "RateLimit": '"mine";r=1'}


@pytest.mark.parametrize("headers", ["none", "x-delta"])
def test_a_site_says_what_remains_as_it_is_told_to(
    kind: str, headers: str, site_of: Callable[[str], dict[str, Any]]
) -> None:
    with limited(kind, **site_of("1/minute"), headers=headers) as site:
        answers = [site.ask() for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert "RateLimit" not in answers[0].headers
        assert answers[0].headers.get("X-RateLimit-Remaining") == (None if headers == "none" else "0")


def test_views_are_left_out_by_the_first_request_to_a_site(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views are imported when the first request comes, and by the first one after other URLs were set."""
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
