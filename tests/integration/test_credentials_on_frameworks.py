"""Credentials sent twice, or spelled unusually, to frameworks on real servers: what the handler reads is counted."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from served import running

from headgate.policy.sent_values import sent_text

pytestmark = pytest.mark.integration

LIMIT = 3

FASTAPI = """
from typing import Annotated
from fastapi import Cookie, Depends, FastAPI, Header, Query, Request
from headgate.http.keys import api_key, cookie, query, request_of
from headgate.integrations.fastapi import RateLimitMiddleware, RateLimits

app = FastAPI()
limits = RateLimits()
by = {"header": api_key("X-API-Key"), "cookie": cookie("session"), "query": query("token")}
if POLICY:
    app.add_middleware(RateLimitMiddleware, policy=POLICY)

def limited(place):
    return [] if POLICY else [Depends(limits("3/hour", key=by[place]))]

@app.get("/header", dependencies=limited("header"))
def header(request: Request):
    return {"read": request.headers.get("X-API-Key"), "seen": request_of(request).header("x-api-key")}

@app.get("/cookie", dependencies=limited("cookie"))
def cookies(request: Request):
    return {"read": request.cookies.get("session"), "seen": request_of(request).cookie("session")}

@app.get("/query", dependencies=limited("query"))
def queries(request: Request):
    return {"read": request.query_params.get("token"), "seen": request_of(request).query("token")}

@app.get("/declared/header", dependencies=limited("header"))
def declared_header(request: Request, x_api_key: Annotated[str | None, Header()] = None):
    return {"read": x_api_key, "seen": request_of(request).header("x-api-key")}

@app.get("/declared/cookie", dependencies=limited("cookie"))
def declared_cookie(request: Request, session: Annotated[str | None, Cookie()] = None):
    return {"read": session, "seen": request_of(request).cookie("session")}

@app.get("/declared/query", dependencies=limited("query"))
def declared_query(request: Request, token: Annotated[str | None, Query()] = None):
    return {"read": token, "seen": request_of(request).query("token")}
"""

STARLETTE = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from headgate.http.keys import api_key, cookie, query, request_of
from headgate.integrations.starlette import RateLimitMiddleware, RateLimits

limits = RateLimits()

def limited(key):
    return (lambda view: view) if POLICY else limits("3/hour", key=key)

@limited(api_key("X-API-Key"))
async def header(request):
    return JSONResponse({"read": request.headers.get("X-API-Key"), "seen": request_of(request).header("x-api-key")})

@limited(cookie("session"))
async def cookies(request):
    return JSONResponse({"read": request.cookies.get("session"), "seen": request_of(request).cookie("session")})

@limited(query("token"))
async def queries(request):
    return JSONResponse({"read": request.query_params.get("token"), "seen": request_of(request).query("token")})

app = Starlette(routes=[Route("/header", header), Route("/cookie", cookies), Route("/query", queries)])
if POLICY:
    app.add_middleware(RateLimitMiddleware, policy=POLICY)
"""

FLASK = """
from flask import Flask, request
from headgate.http.keys import api_key, cookie, query, request_of
from headgate.integrations.flask import RateLimitMiddleware, RateLimits

app = Flask("shop", static_folder=None)
limits = RateLimits()
if POLICY:
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, policy=POLICY)

def limited(key):
    return (lambda view: view) if POLICY else limits("3/hour", key=key)

@app.get("/header")
@limited(api_key("X-API-Key"))
def header():
    return {"read": request.headers.get("X-API-Key"), "seen": request_of(request).header("x-api-key")}

@app.get("/cookie")
@limited(cookie("session"))
def cookies():
    return {"read": request.cookies.get("session"), "seen": request_of(request).cookie("session")}

@app.get("/query")
@limited(query("token"))
def queries():
    return {"read": request.args.get("token"), "seen": request_of(request).query("token")}
"""

DJANGO = """
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path
from headgate.http.keys import api_key, cookie, query, request_of

MIDDLEWARE = ["headgate.integrations.django.RateLimitMiddleware"]
HEADGATE = {"policy": POLICY} if POLICY else {}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=MIDDLEWARE, HEADGATE=HEADGATE)
from headgate.integrations.django import rate_limit

def limited(key):
    return (lambda view: view) if POLICY else rate_limit("3/hour", key=key)

@limited(api_key("X-API-Key"))
def header(request):
    return JsonResponse({"read": request.headers.get("X-API-Key"), "seen": request_of(request).header("x-api-key")})

@limited(cookie("session"))
def cookies(request):
    return JsonResponse({"read": request.COOKIES.get("session"), "seen": request_of(request).cookie("session")})

@limited(query("token"))
def queries(request):
    return JsonResponse({"read": request.GET.get("token"), "seen": request_of(request).query("token")})

urlpatterns = [path("header", header), path("cookie", cookies), path("query", queries)]
wsgi, asgi = get_wsgi_application(), get_asgi_application()
"""

REST = """
import django
from django.conf import settings

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="s",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
    REST_FRAMEWORK={"DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
                    "DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None})
django.setup()
from django.core.wsgi import get_wsgi_application
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView
from headgate.http.keys import api_key, cookie, query, request_of
from headgate.integrations.drf import RateLimitThrottle

def view(by, get):
    throttle = type("Throttle", (RateLimitThrottle,), {"limits": "3/hour", "key": staticmethod(by)})
    return type("View", (APIView,), {"throttle_classes": [throttle], "get": get}).as_view()

def header(self, request):
    return Response({"read": request.headers.get("X-API-Key"), "seen": request_of(request).header("x-api-key")})

def cookies(self, request):
    return Response({"read": request.COOKIES.get("session"), "seen": request_of(request).cookie("session")})

def queries(self, request):
    return Response({"read": request.query_params.get("token"), "seen": request_of(request).query("token")})

urlpatterns = [path("header", view(api_key("X-API-Key"), header)), path("cookie", view(cookie("session"), cookies)),
               path("query", view(query("token"), queries))]
wsgi = get_wsgi_application()
"""

LITESTAR = """
from typing import Annotated, Any
from litestar import Litestar, Request, get
from litestar.params import Parameter
from headgate.http.keys import api_key, cookie, query, request_of
from headgate.integrations.litestar import RateLimitPlugin, RateLimits

limits = RateLimits()

def limited(key):
    return [] if POLICY else [limits("3/hour", key=key)]

@get("/header", middleware=limited(api_key("X-API-Key")))
async def header(request: Request) -> dict[str, Any]:
    return {"read": request.headers.get("X-API-Key"), "seen": request_of(request).header("x-api-key")}

@get("/cookie", middleware=limited(cookie("session")))
async def cookies(request: Request) -> dict[str, Any]:
    return {"read": request.cookies.get("session"), "seen": request_of(request).cookie("session")}

@get("/query", middleware=limited(query("token")))
async def queries(request: Request) -> dict[str, Any]:
    return {"read": request.query_params.get("token"), "seen": request_of(request).query("token")}

@get("/declared/header", middleware=limited(api_key("X-API-Key")))
async def declared_header(request: Request, headers: dict[str, str]) -> dict[str, Any]:
    return {"read": headers.get("x-api-key"), "seen": request_of(request).header("x-api-key")}

@get("/declared/cookie", middleware=limited(cookie("session")))
async def declared_cookie(request: Request, cookies: dict[str, str]) -> dict[str, Any]:
    return {"read": cookies.get("session"), "seen": request_of(request).cookie("session")}

@get("/declared/query", middleware=limited(query("token")))
async def declared_query(request: Request, token: str | None = None) -> dict[str, Any]:
    return {"read": token, "seen": request_of(request).query("token")}

handlers = [header, cookies, queries, declared_header, declared_cookie, declared_query]
app = Litestar(handlers, plugins=[RateLimitPlugin(POLICY)] if POLICY else [])
"""

AIOHTTP = """
import sys
from aiohttp import web
from headgate.http.keys import api_key, cookie, query, request_of
from headgate.integrations.aiohttp import RateLimits, setup

limits = RateLimits()

def limited(key):
    return (lambda view: view) if POLICY else limits("3/hour", key=key)

@limited(api_key("X-API-Key"))
async def header(request):
    read = request.headers.get("X-API-Key")
    return web.json_response({"read": read, "seen": request_of(request).header("x-api-key")})

@limited(cookie("session"))
async def cookies(request):
    return web.json_response({"read": request.cookies.get("session"), "seen": request_of(request).cookie("session")})

@limited(query("token"))
async def queries(request):
    return web.json_response({"read": request.query.get("token"), "seen": request_of(request).query("token")})

app = web.Application()
if POLICY:
    setup(app, policy=POLICY)
app.router.add_get("/header", header)
app.router.add_get("/cookie", cookies)
app.router.add_get("/query", queries)

def make(argv):
    return app
"""

POLICY: dict[str, Any] = {
    "version": 1,
    "identities": {
        "key": {"header": "X-API-Key", "secret": True},
        "session": {"cookie": "session", "secret": True},
        "token": {"query": "token", "secret": True},
    },
    "rules": [
        {"name": place, "match": {"path": [f"/{place}", f"/declared/{place}"]}, "by": [by], "limits": "3/hour"}
        for place, by in (("header", "key"), ("cookie", "session"), ("query", "token"))
    ],
}


class Kind(NamedTuple):
    """A framework on its server."""

    name_in_docs: str
    """The name of the framework in the docs."""

    source: str
    command: list[str]
    """The arguments that follow `python -m`."""

    declared: bool = False
    """Whether a handler may also declare what it reads."""

    gives_one_value: bool = True
    """Whether the framework gives one value, however a handler reads it."""


UVICORN = ["uvicorn", "--log-level", "warning", "--port", "PORT"]
GUNICORN = ["gunicorn", "--log-level", "warning", "-b", "127.0.0.1:PORT"]
KINDS = {
    "fastapi": Kind("FastAPI, Starlette", FASTAPI, [*UVICORN, "served_app:app"], declared=True),
    "starlette": Kind("FastAPI, Starlette", STARLETTE, [*UVICORN, "--http", "h11", "served_app:app"]),
    "flask": Kind("Flask", FLASK, [*GUNICORN, "served_app:app"]),
    "django, wsgi": Kind("Django, REST framework", DJANGO, [*GUNICORN, "served_app:wsgi"]),
    "django, asgi": Kind("Django, REST framework", DJANGO, [*UVICORN, "--lifespan", "off", "served_app:asgi"]),
    "rest framework": Kind("Django, REST framework", REST, [*GUNICORN, "served_app:wsgi"]),
    "litestar": Kind("Litestar", LITESTAR, [*UVICORN, "served_app:app"], declared=True, gives_one_value=False),
    "aiohttp": Kind("aiohttp", AIOHTTP, ["aiohttp.web", "-H", "127.0.0.1", "-P", "PORT", "served_app:make"]),
}
SERVED = [
    (name, style) for name in KINDS for style in ("keys", "policy") if (name, style) != ("rest framework", "policy")
]


class Client:
    """Sends requests unchanged, each on a connection of its own."""

    def __init__(self, port: int, kind: Kind) -> None:
        self.kind = kind
        self._port = port

    def send(self, place: str, lines: list[bytes], query: bytes = b"") -> tuple[int, dict[str, Any]]:
        """Return the status, and what the handler reports that it read."""
        target = f"/{place}".encode() + (b"?" + query if query else b"")
        request_lines = [b"GET " + target + b" HTTP/1.1", b"Host: shop.example", b"Connection: close", *lines]
        with socket.create_connection(("127.0.0.1", self._port), timeout=20) as connection:
            connection.sendall(b"\r\n".join(request_lines) + b"\r\n\r\n")
            response = b"".join(iter(lambda: connection.recv(65536), b""))
        head_bytes, _, body = response.partition(b"\r\n\r\n")
        status = int(head_bytes.split(b" ", 2)[1])
        return status, json.loads(body[body.index(b"{") : body.rindex(b"}") + 1]) if status == 200 else {}

    def read(self, place: str, lines: list[bytes], query: bytes = b"") -> str:
        """Return the credential that the handler read; "" where the request is refused or has none."""
        status, fields = self.send(place, lines, query)
        assert status in (200, 400, 429), status
        return (fields.get("read") or "").strip()  # some servers leave white space at its end


@pytest.fixture(scope="module", params=SERVED, ids=", ".join)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    name, style = request.param
    kind, folder = KINDS[name], tmp_path_factory.mktemp("served")
    policy = POLICY if style == "policy" else None
    (folder / "served_app.py").write_text(f"POLICY = {policy!r}\n{kind.source}")

    def is_listening(port: int) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    environment = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with running(["-m", *kind.command], is_listening, folder=Path(folder), environment=environment) as port:
        yield Client(port, kind)


Sent = tuple[list[bytes], bytes]
NUMBERS = itertools.count()


def spellings(place: str, valid: str, other: str) -> list[Sent]:
    """Return requests with a valid credential, in some way that an application may read, and with another value."""
    v, r = valid.encode(), other.encode()
    octal = b"\\%03o" % v[0] + v[1:]
    percent = b"%%%02X" % v[0] + v[1:]
    if place == "header":
        return [
            ([b"X-API-Key: " + v, b"X-API-Key: " + r], b""),
            ([b"X-API-Key: " + r, b"X-API-Key: " + v], b""),
            ([b"x-api-key: " + v, b"X-API-KEY: " + r, b"X-Api-Key: " + r], b""),
            ([b"X-API-Key: " + v + b"," + r], b""),
            ([b"X-API-Key:   " + v + b"  "], b""),
            ([b"X_API_Key: " + r, b"X-API-Key: " + v], b""),
            ([b"X-API-Key: " + v, b"X_API_Key: " + r], b""),
            ([b"X-API-Key:", b"X-API-Key: " + v], b""),
        ]
    if place == "cookie":
        pairs = [
            b"session=" + r + b"; session=" + v, b"session=" + v + b"; session=" + r,
            b"session=" + r + b";session=" + v + b";", b'session="' + octal + b'"; x=' + r,
            b'x=' + r + b'; session="' + v + b'"', b"session=" + percent + b"; x=" + r,
            b"SESSION=" + r + b"; session=" + v, b"session=" + v + b" ; x=" + r, b"x=" + r + b", session=" + v,
            b"x=" + r + b" session=" + v,
            b'session="' + v + b"; x=" + r, b"s%65ssion=" + v + b"; session=" + r, b"session=; session=" + v,
            b"session=" + v + b",session=" + r, b'x="' + r + b"; session=" + v + b'"',
        ]  # fmt: skip
        lines = [([b"Cookie: " + pair], b"") for pair in pairs]
        return [
            *lines,
            ([b"Cookie: session=" + v, b"Cookie: session=" + r], b""),
            ([b"Cookie: session=" + r, b"Cookie: session=" + v], b""),
        ]
    return [
        ([], query)
        for query in (
            b"token=" + v + b"&token=" + r, b"token=" + r + b"&token=" + v, b"token=" + percent + b"&x=" + r,
            b"token=" + v + b";token=" + r, b"token=" + r + b";token=" + v, b"tok%65n=" + v + b"&token=" + r,
            b"TOKEN=" + r + b"&token=" + v, b"token=&token=" + v + b"&x=" + r, b"token[]=" + r + b"&token=" + v,
            b"token=" + v + b"&token", b"token=" + v + b"&&token=" + r, b"?token=" + r + b"&token=" + v,
            b"token=" + v + b"%20&x=" + r, b"token%00=" + r + b"&token=" + v,
        )
    ]  # fmt: skip


def places(client: Client) -> list[tuple[str, str]]:
    """Return where a credential is, and the path of a handler that reads it."""
    names = ["header", "cookie", "query"]
    return [(name, name) for name in names] + [(name, f"declared/{name}") for name in names if client.kind.declared]


DOCS = Path(__file__).parents[2] / "docs" / "identity.md"


def test_the_docs_say_which_of_two_values_a_handler_reads(client: Client) -> None:
    rows = [row.strip("| ").split(" | ") for row in DOCS.read_text().splitlines() if row.startswith("| ")]
    [documented] = [row[1:4] for row in rows if row[0] == client.kind.name_in_docs and len(row) == 4]
    header = {client.read("header", [b"X-API-Key: one", b"X-API-Key: two"])}
    cookie = {client.read("cookie", [b"Cookie: session=one; session=two"])}
    query = {client.read("query", [], b"token=one&token=two")}
    if client.kind.declared:
        header.add(client.read("declared/header", [b"X-API-Key: one", b"X-API-Key: two"]))
        cookie.add(client.read("declared/cookie", [b"Cookie: session=one; session=two"]))
        query.add(client.read("declared/query", [], b"token=one&token=two"))
    words = {"one": "the first", "two": "the last", "one,two": "both, joined by a comma"}
    assert [" or ".join(sorted(words[read] for read in reads)) for reads in (header, cookie, query)] == documented


def test_a_valid_credential_passes_as_often_as_the_limit_says_however_it_is_sent(client: Client) -> None:
    for place, path in places(client):
        valid = f"Valid{next(NUMBERS)}"
        read: list[str] = []
        for _ in range(4):
            for lines, query in spellings(place, valid, f"r{next(NUMBERS)}"):
                read.append(client.read(path, lines, query))
        passed = read.count(valid)
        if client.kind.gives_one_value:
            assert passed == LIMIT, (path, passed)
        else:  # all credentials that were sent twice share one more key
            assert LIMIT <= passed <= 2 * LIMIT, (path, passed)


def test_what_is_counted_is_what_the_handler_reads(client: Client) -> None:
    for place, path in places(client):
        for _ in range(3):
            valid, other = f"Valid{next(NUMBERS)}", f"r{next(NUMBERS)}"
            for lines, query in (*spellings(place, valid, other), *MALFORMED[place]):
                status, fields = client.send(path, lines, query)
                assert status in (200, 400, 429), (path, lines, query, status)
                if status != 200:
                    continue
                read = sent_text(fields["read"] or "")
                if client.kind.gives_one_value:
                    assert fields["seen"] == read, (path, lines, query)
                else:  # an empty first value counts as none; another handler would read the last one
                    assert fields["seen"] in (read, "repeated") or not read, (path, lines, query)


MALFORMED: dict[str, list[Sent]] = {
    "header": [([b"X-API-Key: \xc3\xa9\xff"], b""), ([b"X-API-Key: a\tb"], b""), ([b"X-API-Key: " + b"x" * 4000], b"")],
    "cookie": [
        ([b"Cookie: " + pair], b"")
        for pair in (
            b"session", b"session==", b"=session", b'session="', b'session="\\', b'session="\\999"',
            b"session=\xc3\xa9", b"; ;session=a;;", b"session=a\tb", b"session=" + b"x" * 4000,
            b"a=b; " * 600 + b"session=late",
        )
    ],
    "query": [
        ([], query)
        for query in (
            b"token", b"token==", b"=token", b"token=%", b"token=%zz", b"token=%ff%fe", b"token=%C3%A9", b"token=a+b",
            b"token=%00", b"token=" + b"x" * 2000, b"a=b&" * 500 + b"token=late", b"token=%ED%A0%80",
        )
    ],
}  # fmt: skip
