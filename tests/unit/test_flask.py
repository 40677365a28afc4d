"""Limits of Flask views, blueprints and applications, in real applications without a server."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import flask
import httpx
import pytest
from flask.views import MethodView
from werkzeug.exceptions import NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from broken_store import NO_REDIS, BrokenStore
from headgate import ConfigError, MemoryStore
from headgate.http.keys import api_key, first_of, portable
from headgate.http.server.options import Refusal, Response
from headgate.integrations.flask import NO_ROUTE, RateLimitMiddleware, RateLimits, exempt, rate_limit
from headgate.policy.request import Request
from headgate.testing import ManualClock
from subjects import parse_list


class Client:
    """A client that sends requests to an application as a server does."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def request(
        self, path: str = "/", method: str = "GET", client: str = "203.0.113.9", **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.WSGITransport(self.app, remote_addr=client)
        with httpx.Client(transport=transport, base_url="http://shop.example") as session:
            return session.request(method, path, headers=named)

    def statuses(self, *paths: str, **options: Any) -> list[int]:
        return [self.request(path, **options).status_code for path in paths]


@pytest.fixture
def app() -> flask.Flask:
    return flask.Flask("shop", static_folder=None)


@pytest.fixture
def client(app: flask.Flask) -> Client:
    return Client(app)


@pytest.fixture
def limits() -> RateLimits:
    """Limits that no other test uses, on a manual clock."""
    return RateLimits(clock=ManualClock())


def remaining_units(response: httpx.Response) -> int:
    [(_, parameters)] = parse_list(response.headers["RateLimit"])
    remaining: int = parameters["r"]
    return remaining


def test_a_view_is_limited_for_each_address_without_further_configuration(app: flask.Flask, client: Client) -> None:
    @app.get("/search")
    @rate_limit("2/minute")
    def search() -> str:
        return "found"

    responses = [client.request("/search", client="198.51.100.77") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [remaining_units(response) for response in responses] == [1, 0, 0]
    assert client.request("/search", client="198.51.100.78").text == "found"
    assert search.__name__ == "search"


@pytest.mark.parametrize("limit", ["3/minute", "3/minute; 1 concurrent"])
def test_a_response_object_that_is_returned_again_has_no_fields_of_another_client(
    app: flask.Flask, client: Client, limits: RateLimits, limit: str
) -> None:
    same, stored, closed = flask.Response("same", headers={"X-Own": "1"}), [], []
    same.call_on_close(lambda: closed.append("once"))

    @app.after_request
    def store_response(response: flask.Response) -> flask.Response:
        stored.append(response)  # as a server does that sends it slowly
        return response

    app.add_url_rule("/", "same", limits(limit)(lambda: same))
    for address, expected in (("203.0.113.9", 2), ("203.0.113.9", 1), ("203.0.113.10", 2)):
        response = client.request(client=address)
        assert f";r={expected};" in response.headers["RateLimit"]
        assert (response.text, response.headers["X-Own"]) == ("same", "1")
    remaining = [response.headers["RateLimit"].split(";")[1] for response in stored]
    assert remaining == ["r=2", "r=1", "r=2"], "a response on its way to a client does not change"
    assert len(closed) == 3, "the functions that the application adds on close run each time"


def test_a_refusal_is_a_problem_document_with_the_exact_time_to_retry(app: flask.Flask, client: Client) -> None:
    clock = ManualClock()
    limits = RateLimits(clock=clock)

    @app.get("/")
    @limits("1/minute fixed", name="index")
    def index() -> str:
        return "home"

    client.request()
    refused = client.request()
    assert dict(refused.headers) == {
        "content-type": "application/problem+json",
        "content-length": str(len(refused.content)),
        "ratelimit-policy": '"index";q=1;w=60',
        "ratelimit": '"index";r=0;t=60',
        "retry-after": "60",
    }
    assert refused.json() == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "over the limit of index (1/minute fixed); retry in 60 s",
        "retry-after-ms": 60000,
        "violated-policies": ["index"],
    }
    head = client.request(method="HEAD")
    assert (head.status_code, head.content, head.headers["content-length"]) == (
        429, b"", refused.headers["content-length"],
    )  # fmt: skip
    clock.advance(59_000_000)
    assert client.request().status_code == 429
    clock.advance(1_000_000)
    assert client.request().status_code == 200


def test_every_response_has_the_fields_once(app: flask.Flask, client: Client, limits: RateLimits) -> None:
    limits = RateLimits(app, default="50/minute", headers=("draft-11", "x-delta"))

    @app.get("/stream")
    def stream() -> flask.Response:
        return flask.Response(part for part in ("one ", "two ", "three"))

    @app.get("/file")
    def file() -> flask.Response:
        return flask.send_file(io.BytesIO(b"bytes"), mimetype="text/plain")

    @app.get("/own")
    def own_fields() -> tuple[str, dict[str, str]]:
        return "mine", {"RateLimit": '"mine";r=1'}

    @app.get("/gone")
    @limits("20/minute")
    def missing() -> str:
        raise NotFound

    @app.get("/broken")
    @limits("20/minute")
    def broken() -> str:
        raise ValueError("broken")

    @app.errorhandler(404)
    def not_found(error: NotFound) -> tuple[str, int]:
        return "nothing here", 404

    statuses = {"/stream": 200, "/file": 200, "/own": 200, "/gone": 404, "/broken": 500, "/nowhere": 404}
    for path, status in statuses.items():
        response = client.request(path)
        assert response.status_code == status, path
        for name in ("RateLimit-Policy", "RateLimit", "X-RateLimit-Remaining"):
            assert len(response.headers.get_list(name)) == 1, (path, name)
    assert client.request("/own").headers["RateLimit"] == '"mine";r=1', "the application's own fields stay"
    assert client.request("/stream").text == "one two three"
    assert remaining_units(client.request("/gone")) == 18, (
        "of several limits, the one with the fewest remaining units is reported"
    )


def test_the_response_has_the_fields_although_a_function_after_the_request_fails(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    @app.get("/")
    @limits("5/minute")
    def index() -> str:
        return "home"

    @app.after_request
    def fails(response: flask.Response) -> flask.Response:
        raise ValueError("fails")

    response = client.request()
    assert (response.status_code, remaining_units(response)) == (500, 4)


def test_concrete_paths_are_one_limit_and_routes_are_several(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    @app.get("/users/<int:number>")
    @limits("2/minute")
    def user(number: int) -> str:
        return str(number)

    @app.post("/users/<int:number>")
    @limits("2/minute")
    def change(number: int) -> str:
        return str(number)

    assert client.statuses("/users/1", "/users/2", "/users/3") == [200, 200, 429]
    assert client.statuses("/users/4", "/users/5", "/users/6", method="POST") == [200, 200, 429]


def test_blueprints_and_mounts_with_the_same_inner_rule_are_several_limits(limits: RateLimits) -> None:
    endpoints: list[str] = []

    def shop() -> flask.Flask:
        app = flask.Flask("shop")
        for name in ("users", "orders"):
            blueprint = flask.Blueprint(name, name)

            @blueprint.get("/<int:number>")
            @limits("1/minute", on_decision=portable(lambda request, decision: endpoints.append(request.endpoint)))
            def read(number: int) -> str:
                return str(number)

            app.register_blueprint(blueprint, url_prefix=f"/{name}")
        return app

    client = Client(DispatcherMiddleware(shop(), {"/v2": shop()}))
    paths = ("/users/1", "/orders/1", "/v2/users/1", "/v2/orders/1")
    assert client.statuses(*paths) == [200] * 4
    assert client.statuses(*(path.replace("1", "2") for path in paths)) == [429] * 4
    assert endpoints[:3] == ["GET /users/<int:number>", "GET /orders/<int:number>", "GET /v2/users/<int:number>"]


def test_hosts_of_routes_are_several_limits(limits: RateLimits) -> None:
    app = flask.Flask("shop", host_matching=True, static_folder=None)
    for host in ("a.example", "b.example"):
        app.add_url_rule("/", host, limits("1/minute")(lambda: "home"), host=host)
    client = Client(app)
    assert [client.request(Host=host).status_code for host in ("a.example", "b.example", "a.example")] == [
        200,
        200,
        429,
    ]


def test_views_with_one_scope_and_the_same_limits_count_together(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    for name in ("a", "b"):
        app.add_url_rule(f"/{name}", name, limits("2/minute", scope="both")(lambda: "read"))
    app.add_url_rule("/c", "c", limits("2/minute")(lambda: "read"))
    assert client.statuses("/a", "/b", "/a", "/b", "/c") == [200, 200, 429, 429, 200]


def test_several_limits_of_a_view_apply_together_and_count_apart(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    @app.get("/")
    @limits("2/minute")
    @limits("2/minute", key=api_key())
    def index() -> str:
        return "home"

    assert client.statuses("/", "/", "/") == [200, 200, 429], (
        "a client without a key is counted by address in both, once in each"
    )


def test_the_default_applies_to_every_route_and_to_requests_without_a_route(app: flask.Flask, client: Client) -> None:
    RateLimits(app, default="2/minute")
    app.add_url_rule("/a", "a", lambda: "a")
    app.add_url_rule("/b", "b", lambda: "b", methods=["POST"])
    assert client.statuses("/a", "/a", "/a") == [200, 200, 429]
    assert client.statuses("/b", "/b", "/b", method="POST") == [200, 200, 429]
    assert client.statuses("/x/1", "/y/2", "/b") == [404, 404, 429], "a 405 counts as a request without a route"


def test_the_default_and_the_limit_of_a_view_count_apart(app: flask.Flask, client: Client) -> None:
    limits = RateLimits(app, default="3/minute")
    app.add_url_rule("/", "index", limits("3/minute")(lambda: "home"))
    assert client.statuses("/", "/", "/", "/") == [200, 200, 200, 429]


@pytest.mark.parametrize("static", [False, True])
def test_static_files_count_if_that_is_chosen(static: bool, tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("body {}")
    app = flask.Flask("shop", static_folder=str(tmp_path), static_url_path="/static")
    blueprint = flask.Blueprint("shop", "shop", static_folder=str(tmp_path), static_url_path="/static")
    app.register_blueprint(blueprint, url_prefix="/shop")
    RateLimits(app, default="1/minute", static=static)
    client = Client(app)
    second = 429 if static else 200
    assert client.statuses("/static/style.css", "/static/style.css") == [200, second]
    assert client.statuses("/shop/static/style.css", "/shop/static/style.css") == [200, second]


def test_exempt_views_do_not_count_in_wider_limits_but_in_their_own(app: flask.Flask, client: Client) -> None:
    limits = RateLimits(app, default="1/minute")

    @app.get("/health")
    @limits.exempt
    def health() -> str:
        return "well"

    @exempt
    class Version(MethodView):
        def get(self) -> str:
            return "1"

    app.add_url_rule("/version", view_func=Version.as_view("version"))
    inside = flask.Blueprint("inside", "inside")
    inside.add_url_rule("/free", "free", lambda: "free")
    inside.add_url_rule("/own", "own", limits("2/minute")(lambda: "own"))
    limits.exempt(inside)
    app.register_blueprint(inside)
    assert client.statuses(*["/health"] * 3, *["/version"] * 3, *["/free"] * 3) == [200] * 9
    assert client.statuses(*["/own"] * 3) == [200, 200, 429], "its own limit still applies"


@pytest.mark.parametrize("value", ["api", None, [flask.Blueprint("api", "api")], lambda: "view"])
def test_a_limit_of_a_blueprint_on_another_object_raises_at_once(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"limit_blueprint limits a flask\.Blueprint, not "):
        RateLimits().limit_blueprint(value, "2/minute")
    if not callable(value):
        with pytest.raises(ConfigError, match=r'as @rate_limit\("10/second"\); this is no view: '):
            rate_limit("2/minute")(value)


def test_a_limit_that_overrides_replaces_wider_limits(app: flask.Flask, client: Client) -> None:
    limits = RateLimits(app, default="1/minute")
    blueprint = flask.Blueprint("api", "api")
    limits.limit_blueprint(blueprint, "2/minute", override=True)
    blueprint.add_url_rule("/a", "a", lambda: "a")
    blueprint.add_url_rule("/b", "b", limits("4/minute", override=True)(lambda: "b"))
    app.register_blueprint(blueprint)
    app.add_url_rule("/c", "c", limits("3/minute")(lambda: "c"))

    class Both(MethodView):
        @limits("2/minute", override=True)
        def get(self) -> str:
            return "got"

        def post(self) -> str:
            return "posted"

    app.add_url_rule("/d", view_func=Both.as_view("d"))
    assert client.statuses(*["/a"] * 3) == [200, 200, 429]
    assert client.statuses(*["/b"] * 5) == [200] * 4 + [429]
    assert client.statuses(*["/c"] * 2) == [200, 429], "without override they apply together"
    assert client.statuses(*["/d"] * 3) == [200, 200, 429]
    assert client.statuses(*["/d"] * 2, method="POST") == [200, 429]


def test_a_limit_of_a_blueprint_applies_to_the_blueprints_in_it(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    outer = limits("2/minute")(flask.Blueprint("outer", "outer", url_prefix="/outer"))
    inner = flask.Blueprint("inner", "inner", url_prefix="/inner")
    limits.limit_blueprint(inner, "2/minute")
    for blueprint in (outer, inner):
        blueprint.add_url_rule("/<name>", "read", lambda name: name)
    outer.register_blueprint(inner)
    app.register_blueprint(outer)
    app.add_url_rule("/free", "free", lambda: "free")
    assert client.statuses("/outer/a", "/outer/b", "/outer/c") == [200, 200, 429], "each route by itself"
    assert client.statuses("/outer/inner/a", "/outer/inner/b", "/outer/inner/c") == [200, 200, 429], "counted apart"
    assert client.statuses(*["/free"] * 3) == [200] * 3


def test_a_request_of_an_application_to_itself_returns_no_charge_of_the_outer_request(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    @app.get("/inner")
    @limits("2/minute")
    def inner() -> str:
        return "inner"

    @app.get("/batch")
    @limits("3/minute", counts=lambda request, response: True)
    def batch() -> list[int]:
        environs = [{**flask.request.environ, "PATH_INFO": "/inner"} for _ in range(2)]
        return [flask.Response.from_app(app, environ).status_code for environ in environs]

    responses = [client.request("/batch") for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429]
    assert [response.json() for response in responses[:3]] == [[200, 200], [429, 429], [429, 429]]
    assert [remaining_units(response) for response in responses] == [2, 1, 0, 0]


def test_a_refusal_consumes_nothing_in_any_of_the_limits(app: flask.Flask, client: Client) -> None:
    limits = RateLimits(app, default="5/minute", scope="all", clock=ManualClock())
    app.add_url_rule("/a", "a", limits("1/minute", scope="a")(lambda: "a"))
    app.add_url_rule("/b", "b", lambda: "b")
    assert client.statuses(*["/a"] * 10) == [200] + [429] * 9
    assert client.statuses(*["/b"] * 5) == [200] * 4 + [429], "nine refusals consumed nothing of the wider limit"


def test_an_application_factory_can_set_the_options_later(client: Client) -> None:
    limits = RateLimits(default="2/minute")
    view = limits("1/minute")(lambda: "read")
    clock = ManualClock()

    def create_app() -> flask.Flask:
        app = flask.Flask("shop")
        limits.init_app(app, headers="x-delta", clock=clock)
        limits.init_app(app)
        app.add_url_rule("/a", "a", view)
        app.add_url_rule("/b", "b", lambda: "b")
        return app

    client = Client(create_app())
    response = client.request("/a")
    assert (response.headers["X-RateLimit-Remaining"], response.headers.get("RateLimit")) == ("0", None)
    assert client.statuses("/a", "/b", "/b", "/b") == [429, 200, 200, 429], "initialized twice, counted once"
    second = Client(create_app())
    assert second.statuses("/a", "/b") == [200, 200], "a new application starts with full limits"
    late = flask.Flask("late")
    RateLimits().init_app(late, default="1/minute")
    assert Client(late).statuses("/x", "/x") == [404, 429]


def test_each_application_has_the_options_that_it_was_initialized_with() -> None:
    limits = RateLimits(default="2/minute", clock=ManualClock())
    view = limits("1/minute")(lambda: "read")
    stores = {name: MemoryStore() for name in ("first", "second")}

    def create_app(name: str, **options: Any) -> Client:
        app = flask.Flask(name)
        limits.init_app(app, **options)
        app.add_url_rule("/a", "a", view)
        app.add_url_rule("/b", "b", lambda: "b")
        return Client(app)

    first = create_app("first", store=stores["first"])
    assert first.statuses("/a", "/b", "/b") == [200, 200, 200]
    second = create_app("second", default="3/minute", store=stores["second"], key=lambda: "all", headers="x-delta")
    assert first.statuses("/a", "/b") == [429, 429], "its store and its limits are those that it was given"
    assert first.request("/b").headers["RateLimit-Policy"] == '"default";q=2;w=60'
    assert second.statuses("/a", "/a", "/b", "/b", "/b", "/b") == [200, 429, 200, 200, 200, 429]
    assert second.request("/b").headers["X-RateLimit-Limit"] == "3"
    assert (stores["first"].stats().keys, stores["second"].stats().keys) == (3, 3)
    third = create_app("third")
    assert third.statuses("/a", "/b", "/b", "/b") == [200, 200, 200, 429], "the options of the constructor"
    limits.init_app(second.app, headers="draft-11")
    assert second.request("/a").headers["RateLimit-Policy"] == '"default";q=1;w=60', "the others of it stay"


def test_limits_that_only_one_application_can_use_are_its_own() -> None:
    limits = RateLimits()
    tiers = {"default": "1/minute", "pro": None}
    first, second = flask.Flask("first"), flask.Flask("second")
    limits.init_app(first, default=tiers, tier=lambda: flask.request.args.get("tier"))
    limits.init_app(second, default="2/minute", key=lambda: "all")
    assert Client(first).statuses("/", "/", "/?tier=pro") == [404, 429, 404]
    assert Client(second).statuses("/", "/", "/") == [404, 404, 429]
    with pytest.raises(ConfigError, match="need tier"):
        limits.init_app(flask.Flask("third"), default=tiers)


def test_an_application_ends_although_its_options_refer_to_it() -> None:
    limits = RateLimits(default="2/minute")
    view = limits("1/minute")(lambda: "read")

    def used() -> weakref.ref[flask.Flask]:
        app = flask.Flask("shop")
        limits.init_app(app, exempt=lambda: app.testing)
        app.add_url_rule("/a", "a", view)
        assert Client(app).statuses("/a", "/a") == [200, 429]
        return weakref.ref(app)

    references = [used(), used()]
    gc.collect()
    assert references[0]() is None


def test_a_key_can_read_the_user_and_the_session_of_flask(app: flask.Flask, client: Client, limits: RateLimits) -> None:
    app.secret_key = "for tests"

    @app.before_request
    def log_in() -> None:
        flask.g.user = flask.request.headers.get("X-User")
        flask.session["seen"] = True

    def user(request: Request) -> tuple[str, str] | None:
        assert flask.session["seen"] and request.environ is flask.request.environ  # type: ignore[attr-defined]
        return ("user", flask.g.user) if flask.g.user else None

    @app.get("/")
    @limits("1/minute", key=first_of(user, api_key()))
    def index() -> str:
        return "home"

    assert [client.request(X_User=name).status_code for name in "abab"] == [200, 200, 429, 429]
    assert [client.request(X_API_Key=key).status_code for key in "aba"] == [200, 200, 429]
    assert client.statuses("/", "/") == [200, 429], "a client without user and key is limited too"


def test_the_forged_end_of_a_forwarding_header_is_not_believed(app: flask.Flask, client: Client) -> None:
    limits = RateLimits(trusted_proxies=["10.0.0.0/8"])
    app.add_url_rule("/", "index", limits("1/minute")(lambda: "home"))
    forged = [{"client": "10.0.0.1", "X_Forwarded_For": f"{n}.1.1.1, 203.0.113.7"} for n in (1, 2)]
    assert [client.request(**request).status_code for request in forged] == [200, 429]


def test_the_response_can_decide_whether_a_request_counts(app: flask.Flask, client: Client, limits: RateLimits) -> None:
    counted: list[Response] = []

    def failures(request: Request, response: Response) -> bool:
        counted.append(response)
        return response.status == 401

    @app.get("/login")
    @limits("2/minute", counts=failures)
    def login() -> tuple[str, int]:
        return "", int(flask.request.headers.get("X-Status", "200"))

    assert client.statuses(*["/login"] * 5) == [200] * 5
    assert client.statuses(*["/login"] * 3, X_Status="401") == [401, 401, 429]
    assert len(counted) == 7, "a refused request has no response to settle by"


def test_a_stream_is_settled_by_all_bytes_that_were_sent(app: flask.Flask, client: Client, limits: RateLimits) -> None:
    sent: list[tuple[str, int]] = []

    def count(request: Request, response: Response) -> int:
        sent.append((response.headers["content-type"].partition(";")[0], response.body_bytes))
        return response.body_bytes

    closed: list[str] = []

    def parts() -> Iterator[Any]:
        try:
            yield "ÿ"
            yield b"12345678"
        finally:
            closed.append("closed")

    views: dict[str, Callable[[], Any]] = {
        "stream": lambda: flask.Response(parts(), mimetype="text/csv"),
        "file": lambda: flask.send_file(io.BytesIO(b"12345"), mimetype="image/png"),
        "plain": lambda: "four",
    }
    for name, view in views.items():
        app.add_url_rule(f"/{name}", name, limits("20/minute bucket", cost=5, counts=count)(view))
    for name in views:
        client.request(f"/{name}")
    client.request("/plain", method="HEAD")
    assert sent == [("text/csv", 10), ("image/png", 5), ("text/html", 4), ("text/html", 0)]
    assert closed == ["closed"]
    assert remaining_units(client.request("/stream")) == 5, "the first request consumed ten, this one five"


@pytest.mark.parametrize("propagate", [False, True])
def test_a_view_that_raises_is_settled_as_a_500(
    app: flask.Flask, client: Client, limits: RateLimits, propagate: bool
) -> None:
    app.config["PROPAGATE_EXCEPTIONS"] = propagate
    counted: list[int] = []

    def count(request: Request, response: Response) -> bool:
        counted.append(response.status)
        return True

    @app.get("/")
    @limits("5/minute", counts=count)
    def index() -> str:
        raise ValueError("broken")

    if propagate:
        with pytest.raises(ValueError, match="broken"):
            client.request()
    else:
        assert client.request().status_code == 500
    assert counted == [500]


def test_an_error_handler_of_the_application_can_respond_to_a_refusal(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    app.add_url_rule("/", "index", limits("1/minute fixed")(lambda: "home"))

    @app.errorhandler(429)
    def slow_down(error: Any) -> tuple[str, int]:
        return f"<p>come back in {error.decision.retry_after:.0f} s</p>", 429

    client.request()
    refused = client.request()
    assert (refused.text, refused.headers["Retry-After"]) == ("<p>come back in 60 s</p>", "60")
    assert refused.headers["Content-Type"].startswith("text/html") and remaining_units(refused) == 0


def test_the_response_to_a_refused_request_can_be_customized(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    def other(request: Any, decision: Any, usual: Refusal) -> Refusal | None:
        status = int(request.args.get("status", 0))
        return Refusal(status, [("Content-Type", "text/plain")], b"other") if status else None

    app.add_url_rule("/", "index", limits("1/minute", refusal=other)(lambda: "home"))
    client.request()
    for status in (503, 420, 200):
        response = client.request(f"/?status={status}")
        assert (response.status_code, response.text, response.headers["Content-Type"]) == (
            status,
            "other",
            "text/plain",
        )
    assert client.request().status_code == 429


def test_a_fallback_responds_to_a_refused_request(app: flask.Flask, client: Client) -> None:
    def old(name: str = "") -> str:
        return f"old {name}"

    async def older() -> str:
        return "older"

    limits = RateLimits(app, default="1/minute", fallback=lambda **_: "busy")
    app.add_url_rule("/a/<name>", "a", limits("1/minute", override=True, fallback=old)(lambda name: f"new {name}"))
    app.add_url_rule("/b", "b", limits("1/minute", override=True, fallback=older)(lambda: "new"))
    app.add_url_rule("/c", "c", lambda: "new")
    assert [client.request("/a/x").text for _ in range(2)] == ["new x", "old x"]
    assert [client.request("/b").text for _ in range(2)] == ["new", "older"]
    assert [client.request("/c").text for _ in range(2)] == ["new", "busy"]
    response = client.request("/a/x")
    assert (response.status_code, remaining_units(response)) == (200, 0)
    assert int(response.headers["Retry-After"]) >= 1
    assert response.headers["Content-Type"].startswith("text/html")


def test_a_fallback_that_returns_nothing_lets_no_request_pass(app: flask.Flask, client: Client) -> None:
    app.testing = True  # errors of the application reach the test
    limits = RateLimits(app)
    viewed_paths = []

    def view() -> str:
        viewed_paths.append(flask.request.path)
        return "home"

    def nothing(**_: object) -> None: ...

    blueprint = flask.Blueprint("inside", __name__)
    blueprint.add_url_rule("/inside", "view", view)
    limits("1/minute", fallback=nothing)(blueprint)
    app.register_blueprint(blueprint)
    app.add_url_rule("/view", "view", limits("1/minute", fallback=nothing)(view))
    for url in ("/inside", "/view"):
        assert client.request(url).text == "home"
        with pytest.raises(TypeError, match=r"fallback \S*nothing of GET /\S+ returned None: it must return"):
            client.request(url)
    assert viewed_paths == ["/inside", "/view"]


def test_class_based_views_are_limited_as_one_or_by_method(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    class Whole(MethodView):
        decorators = [limits("2/minute")]  # noqa: RUF012  # as Flask has it

        def get(self, number: int) -> str:
            return "got"

        def post(self, number: int) -> str:
            return "posted"

    class Single(MethodView):
        @limits("1/minute")
        def get(self, number: int) -> str:
            return "got"

        @limits("1/minute")
        def post(self, number: int) -> str:
            return "posted"

        def put(self, number: int) -> str:
            return "put"

    app.add_url_rule("/whole/<int:number>", view_func=Whole.as_view("whole"))
    app.add_url_rule("/single/<int:number>", view_func=Single.as_view("single"))
    statuses = [client.request(f"/whole/{n}", method).status_code for n, method in enumerate(("GET", "POST", "GET"))]
    assert statuses == [200, 200, 429]
    methods = ("GET", "POST", "PUT", "HEAD", "POST", "PUT")
    assert [client.request(f"/single/{n}", method).status_code for n, method in enumerate(methods)] == [
        200, 200, 200, 429, 429, 200,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"Single is a class: it is limited by `decorators = \[rate_limit"):
        limits("1/minute")(Single)


def test_async_views_are_limited_before_their_event_loop_starts(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    loops: list[bool] = []

    def key(request: Request) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        loops.append(True)
        return flask.request.headers["X-User"]

    @app.get("/")
    @limits("2/minute", key=key)
    async def index() -> str:
        await asyncio.sleep(0)
        return "home"

    assert [client.request(X_User="a").status_code for _ in range(3)] == [200, 200, 429]
    assert len(loops) == 3


def test_an_async_decorator_around_the_limit_is_not_blocked(
    app: flask.Flask, client: Client, limits: RateLimits
) -> None:
    threads: list[int] = []

    def timed(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        async def outer(**kwargs: Any) -> Any:
            threads.append(threading.get_ident())
            return await view(**kwargs)

        return outer

    def key(request: Request) -> str:
        threads.append(threading.get_ident())
        return flask.request.headers["X-User"]

    @app.get("/<name>")
    @timed
    @limits("1/minute", key=key)
    async def index(name: str) -> str:
        return name

    responses = [client.request("/x", X_User="a") for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    assert remaining_units(responses[0]) == 0 and threads[0] != threads[1]


def test_a_limit_above_its_route_raises_or_warns(
    app: flask.Flask, client: Client, limits: RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    @limits("1/minute")
    @app.get("/wrong")
    def wrong() -> str:
        return "free"

    @app.get("/right")
    @limits("1/minute")
    def right() -> str:
        return "limited"

    app.testing = True
    with pytest.raises(ConfigError, match=r"is above the route of .*wrong, where it limits nothing: put it below"):
        client.request("/right")
    assert client.statuses("/right", "/right") == [200, 429], "the error is raised once"

    production = flask.Flask("production")

    @limits("1/minute")
    @production.get("/wrong")
    def wrong_again() -> str:
        return "free"

    assert Client(production).statuses("/wrong", "/wrong") == [200, 200]
    assert "wrong_again, where it limits nothing" in caplog.text


def test_a_store_that_fails_never_causes_a_429(app: flask.Flask, client: Client) -> None:
    limits = RateLimits(store=BrokenStore())
    app.add_url_rule("/open", "open", limits("1/minute")(lambda: "home"))
    app.add_url_rule("/closed", "closed", limits("1/minute", on_store_error="closed")(lambda: "home"))
    passed, refused = client.request("/open"), client.request("/closed")
    assert (passed.status_code, passed.headers["X-RateLimit-Degraded"]) == (200, "open")
    assert (refused.status_code, refused.headers["X-RateLimit-Degraded"]) == (503, "closed")
    assert refused.headers["Content-Type"] == "application/problem+json"


def test_without_redis_the_option_chooses_the_status(app: flask.Flask, client: Client) -> None:
    limits = RateLimits(store=NO_REDIS)
    app.add_url_rule("/open", "open", limits("1/minute", on_store_error="open")(lambda: "home"))
    app.add_url_rule("/closed", "closed", limits("1/minute", on_store_error="closed")(lambda: "home"))
    for _ in range(3):
        passed, refused = client.request("/open"), client.request("/closed")
        assert (passed.status_code, passed.headers["X-RateLimit-Degraded"]) == (200, "open")
        assert (refused.status_code, refused.headers["X-RateLimit-Degraded"]) == (503, "closed")
        assert refused.headers["Content-Type"] == "application/problem+json"


def test_a_request_without_an_identity_is_limited(app: flask.Flask, client: Client, limits: RateLimits) -> None:
    for missing in ("address", "anonymous", "refuse"):
        view = limits("1/minute", key=api_key(), missing=missing)(lambda: "read")
        app.add_url_rule(f"/{missing}", missing, view)
    assert client.statuses("/address", "/address", "/anonymous", "/anonymous", "/refuse") == [200, 429, 200, 429, 429]


def test_each_tier_has_its_own_limits(app: flask.Flask, client: Client, limits: RateLimits) -> None:
    tiered = limits(
        {"default": "1/minute", "pro": "2/minute", "staff": None}, tier=lambda request: request.headers.get("x-tier")
    )
    app.add_url_rule("/", "index", tiered(lambda: "home"))
    cases = [("free", 2, [200, 429]), ("pro", 3, [200, 200, 429]), ("staff", 4, [200] * 4)]
    for tier, times, statuses in cases:
        assert [client.request(X_Tier=tier).status_code for _ in range(times)] == statuses


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: rate_limit("10/fortnight"), "fortnight"),
        (lambda: RateLimits(default="1/0 minutes"), "at least 1"),
        (lambda: RateLimits(headers="draft-12")("1/minute"), "draft-12"),
        (lambda: rate_limit(None), "not None"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_raise_at_once(create: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create()


def test_an_unknown_option_raises() -> None:
    with pytest.raises(TypeError, match="no option is named"):
        rate_limit("1/minute", per="minute")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no option is named"):
        RateLimits(stores="memory://")  # type: ignore[call-arg]


def test_the_endpoint_of_a_request_without_a_route_names_its_mount(app: flask.Flask) -> None:
    endpoints: list[str] = []
    RateLimits(
        app, default="9/minute", on_decision=portable(lambda request, decision: endpoints.append(request.endpoint))
    )
    client = Client(DispatcherMiddleware(flask.Flask("other"), {"/shop": app}))
    assert client.statuses("/shop/nowhere", "/shop/else") == [404, 404]
    assert endpoints == [f"{NO_ROUTE} /shop"] * 2


def test_a_preflight_of_a_browser_is_not_counted(app: flask.Flask, client: Client) -> None:
    RateLimits(app, default="1/minute")
    app.add_url_rule("/", "index", lambda: "home")
    preflight = {"Origin": "https://a.example", "Access_Control_Request_Method": "PUT"}
    assert [client.request(method="OPTIONS", **preflight).status_code for _ in range(3)] == [200] * 3


def test_without_flask_the_message_names_what_to_install() -> None:
    program = (
        "import sys, json; sys.modules['flask'] = None\n"
        "from headgate import MissingExtraError\n"
        "try:\n    import headgate.integrations.flask\n"
        "except MissingExtraError as error: print(json.dumps(str(error)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'headgate[flask]'" in json.loads(result.stdout)


@pytest.mark.parametrize("read", [lambda request: request.form["user"], lambda request: request.get_json(force=True)])
def test_a_function_of_the_middleware_consumes_no_body_of_the_application(read: Callable[[flask.Request], str]) -> None:
    app = flask.Flask("shop")

    @app.post("/login")
    def login() -> str:
        return flask.request.form["user"]

    inner = app.wsgi_app
    app.wsgi_app = RateLimitMiddleware(inner, limits="5/minute", key=read)  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"reads no body, .* limit the view by @rate_limit"):
        app.test_client().post("/login", data={"user": "ann"})
    by_query = RateLimitMiddleware(inner, limits="5/minute", key=lambda request: request.args.get("user"))
    app.wsgi_app = by_query  # type: ignore[method-assign]
    assert app.test_client().post("/login?user=ann", data={"user": "ann"}).text == "ann"
