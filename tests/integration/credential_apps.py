"""Applications that take a credential in any way that some framework reads it, for tests of credentials sent twice."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.requests import cookie_parser
from werkzeug.http import parse_cookie

import headgate.http.asgi
import headgate.http.wsgi

VALID = "VALID"
LIMIT = 3

Attack = Callable[[int], tuple[list[bytes], bytes]]
"""The header lines and the query of one request of many, each with something else made up."""


def lines(*texts: str) -> Attack:
    """Header lines, with the number of the request for N."""
    return lambda number: ([text.replace("N", f"r{number}").encode("latin-1") for text in texts], b"")


def query(text: str) -> Attack:
    """A query, with the number of the request for N."""
    return lambda number: ([], text.replace("N", f"r{number}").encode("latin-1"))


def cases(text: str, number: int) -> str:
    """A spelling in capitals and small letters, another for each number."""
    return "".join(one.upper() if number >> place & 1 else one.lower() for place, one in enumerate(text))


def basic(number: int) -> tuple[list[bytes], bytes]:
    """Basic credentials with something in them that decoders pass over."""
    text = base64.b64encode(f"a:{VALID}".encode()).decode()
    return [f"Authorization: Basic {text[:number]}!{text[number:]}".encode()], b""


HEADER = {
    "valid first": lines("X-API-Key: VALID", "X-API-Key: N"),
    "valid last": lines("X-API-Key: N", "X-API-Key: VALID"),
    "in another case": lines("X-API-Key: VALID", "x-api-KEY: N"),
    "underscores": lines("X-API-Key: N", "X_API_Key: VALID"),
    "underscores alone": lines("X_API_Key: VALID", "Other: N"),
    "joined": lines("X-API-Key: VALID, N"),
    "joined, valid last": lines("X-API-Key: N,VALID"),
    "empty first": lines("X-API-Key:", "X-API-Key: VALID", "Other: N"),
    "white space": lambda number: ([b"X-API-Key: " + b" " * number + b"VALID" + b"\t" * number], b""),
    "folded": lines("X-API-Key: VALID\r\n N"),
    "three": lines("X-API-Key: N", "X-API-Key: VALID", "X-API-Key: N"),
}
AUTHORIZATION = {
    "twice": lines("Authorization: Bearer VALID", "Authorization: Bearer N"),
    "the case of the scheme": lambda number: ([f"Authorization: {cases('bearer', number)} VALID".encode()], b""),
    "white space after it": lambda number: ([b"Authorization: Bearer" + b" " * (number + 1) + b"VALID"], b""),
    "basic with what is no base64": basic,
}
COOKIE = {
    "valid first": lines("Cookie: session=VALID; session=N"),
    "valid last": lines("Cookie: session=N; session=VALID"),
    "two lines": lines("Cookie: session=N", "Cookie: session=VALID"),
    "two lines, valid first": lines("Cookie: session=VALID", "Cookie: session=N"),
    "octal": lambda number: (
        [b'Cookie: session="%s"' % "".join(f"\\{ord(c):03o}" if number >> i & 1 else c
                                           for i, c in enumerate(VALID)).encode()], b""
    ),
    "escapes": lambda number: (
        [b'Cookie: session="%s"' % "".join(f"\\{c}" if number >> i & 1 else c
                                           for i, c in enumerate(VALID)).encode()], b""
    ),
    "percent": lambda number: (
        [b"Cookie: session=%s" % "".join(f"%{ord(c):02x}" if number >> i & 1 else c
                                         for i, c in enumerate(VALID)).encode()], b""
    ),
    "quoted and plain": lines('Cookie: session="VALID"; session=N'),
    "separated by white space": lines("Cookie: session=N; a=b session=VALID"),
    "separated by a comma": lines("Cookie: session=N, session=VALID"),
    "more after it": lines("Cookie: session=VALID N"),
    "more after it, quoted": lines('Cookie: session="VALID" N'),
    "inside of quotes": lines('Cookie: a="; session=N; b="; session=VALID'),
    "empty first": lines("Cookie: session=; session=VALID; other=N"),
    "padding": lines(f"Cookie: a={'a' * 5000}; session=N; session=VALID"),
    "padding before it": lambda number: ([b"Cookie: a=%s; session=VALID" % (b"a" * (5000 + number))], b""),
    "many": lines("Cookie: " + "a=1; " * 600 + "session=VALID; b=N"),
    "no value": lines("Cookie: session; session=N; session=VALID"),
}  # fmt: skip
QUERY = {
    "valid first": query("token=VALID&token=N"),
    "valid last": query("token=N&token=VALID"),
    "encoded name": query("token=N&%74oken=VALID"),
    "encoded value": lambda number: (
        [], "".join(f"%{ord(c):02x}" if number >> i & 1 else c for i, c in enumerate(f"token={VALID}")).replace(
            "%3d", "=").encode()
    ),
    "semicolon": query("token=N;token=VALID"),
    "more after a semicolon": query("token=VALID;N"),
    "fragment": query("token=VALID#N"),
    "fragment before": query("token=N#&token=VALID"),
    "empty first": query("token=&token=VALID&other=N"),
    "many": query("a=1&" * 300 + "token=VALID&b=N"),
    "very many": query("a&" * 1500 + "token=VALID&b=N"),
    "bytes that are no UTF-8": query("token=N&token=VALID&a=%ff\xff"),
}  # fmt: skip
KINDS = {"header": HEADER, "authorization": AUTHORIZATION, "cookie": COOKIE, "query": QUERY}
ATTACKS: dict[str, tuple[str, Attack]] = {
    f"{kind}, {name}": (kind, attack) for kind, attacks in KINDS.items() for name, attack in attacks.items()
}
PATHS = {name: f"/a{place}" for place, name in enumerate(ATTACKS)}

POLICY: dict[str, Any] = {
    "version": 1,
    "client_ip": {"header": "X-Forwarded-For", "trusted_proxies": ["127.0.0.0/8"]},
    "identities": {
        "header": {"header": "X-API-Key", "secret": True},
        "authorization": {"header": "Authorization", "secret": True},
        "cookie": {"cookie": "session", "secret": True},
        "query": {"query": "token"},
    },
    "rules": [
        {"name": f"a{place}", "match": {"path": PATHS[name]}, "by": [kind], "limits": f"{LIMIT}/hour log"}
        for place, (name, (kind, _)) in enumerate(ATTACKS.items())
    ],
}


def header_readings(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What an application may take for the credential in a header."""
    for name, value in pairs:
        if name.lower().replace("_", "-") == "x-api-key":
            for text in (value, *value.split(",")):
                yield text.strip()
        if name.lower() == "authorization":
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "basic":
                yield base64.b64decode(token).decode("latin-1").partition(":")[2]
            yield from (text.strip() for text in token.split(",")) if scheme.lower() == "bearer" else ()
        if name.lower() == "cookie":
            yield cookie_parser(value).get("session", "")
            yield unquote(cookie_parser(value).get("session", ""))
            yield from parse_cookie(value).getlist("session")
            with contextlib.suppress(CookieError):
                yield getattr(SimpleCookie(value).get("session"), "value", "")


def query_readings(query: str) -> Iterator[str]:
    """Yield what an application may read as the credential in a query."""
    for text in (query, query.replace(";", "&"), query.partition("#")[0]):
        yield from parse_qs(text).get("token", [])


def verdict(pairs: Iterable[tuple[str, str]], query: str) -> bytes:
    """Return the body that says whether a credential is valid in any of these readings."""
    return b"valid" if VALID in (*header_readings(pairs), *query_readings(query)) else b"not valid"


async def bare_asgi(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    """The application on ASGI."""
    if scope["type"] != "http":
        raise NotImplementedError
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    body = verdict(pairs, scope["query_string"].decode("latin-1"))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def bare_wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """The application on WSGI."""
    pairs = [(name[5:].replace("_", "-"), value) for name, value in environ.items() if name.startswith("HTTP_")]
    body = verdict(pairs, environ.get("QUERY_STRING", ""))
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


asgi: Any = bare_asgi if os.environ.get("BARE") else headgate.http.asgi.RateLimitMiddleware(bare_asgi, POLICY)
wsgi: Any = bare_wsgi if os.environ.get("BARE") else headgate.http.wsgi.RateLimitMiddleware(bare_wsgi, POLICY)
