"""Identify clients: functions of a request that return the key it is counted by, None where it has none.

    RateLimitMiddleware(app, limits="100/minute", key=first_of(api_key("X-API-Key"), header("X-User-Id")))

They take Headgate's request, and that of any framework whose integration is imported.

Each key begins with its source: header 7 is not cookie 7. Only a value that a client cannot choose
freely identifies it; see docs/identity.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any

from headgate.drive import answered
from headgate.errors import ConfigError
from headgate.http.server.functions import adapt_function, portable, portable_here, request_of
from headgate.keys import whole_number
from headgate.policy.extract import Extractor, extractor_of
from headgate.policy.identity import CookieIdentity, HeaderIdentity, Parts, QueryIdentity, is_repeated
from headgate.policy.request import REPEATED, Request, header_name

__all__ = ["all_of", "api_key", "cookie", "endpoint", "first_of", "header", "portable", "query", "request_of"]

KeyOf = Callable[[Any], tuple[str, ...] | None]


def header(name: str, *, secret: bool = False) -> KeyOf:
    """Key by the value of a header; a `secret` one is replaced by a digest before it is used."""
    return _from_extractor(
        f"header:{_checked(name).lower()}", extractor_of(HeaderIdentity(name, header_name(name), secret))
    )


def api_key(name: str = "X-API-Key") -> KeyOf:
    """Key by the API key in a header, or by the token after `Bearer`; only its digest is kept."""
    lower = header_name(_checked(name))
    read = extractor_of(HeaderIdentity(name, lower, secret=True))

    @portable_here
    def key_of(any_request: Any) -> tuple[str, ...] | None:
        request = any_request if isinstance(any_request, Request) else request_of(any_request)
        sent = request.header(lower)
        scheme, *token = sent.split(None, 1)[:2] or [""]
        if scheme.lower() == "bearer":  # without a token it is not a key
            request = Request(headers={name: token[0] if token else ""})
        return _key("api_key", read(request))

    return key_of


def cookie(name: str, *, secret: bool = True) -> KeyOf:
    """Key by the value of a cookie; a `secret` one is replaced by its digest."""
    return _from_extractor(f"cookie:{name}", extractor_of(CookieIdentity(name, _checked(name), secret)))


def query(name: str, *, secret: bool = False) -> KeyOf:
    """Key by the value of a query parameter; a `secret` one is replaced by its digest."""
    return _from_extractor(f"query:{name}", extractor_of(QueryIdentity(name, _checked(name), secret)))


@portable_here
def endpoint(request: Any) -> str:
    """Return a request's route, `GET /items/{id}`, "" where none is known: `scope=endpoint` counts each by itself."""
    return request_of(request).endpoint


def first_of(*keys: Callable[..., Any]) -> Callable[[Any], Any]:
    """Key by the first key that a request has; awaited where one of the functions is a coroutine function."""
    if not keys:
        raise ConfigError("first_of needs at least one function")
    functions = tuple(adapt_function("first_of", function) for function in keys)

    def key_of(any_request: Any) -> Any:
        request = request_of(any_request)
        return next((key for key in (function(request) for function in functions) if _is_key(key)), None)

    async def key_of_async(any_request: Any) -> Any:
        request = request_of(any_request)
        for function in functions:
            key = await _awaited(function(request))
            if _is_key(key):
                return key
        return None

    return portable_here(key_of_async if any(map(iscoroutinefunction, functions)) else key_of)


def all_of(*keys: Callable[..., Any]) -> Callable[[Any], Any]:
    """Key by all of these together, such as a tenant and its user; None where one is missing."""
    if not keys:
        raise ConfigError("all_of needs at least one function")
    functions = tuple(adapt_function("all_of", function) for function in keys)

    def key_of(any_request: Any) -> Any:
        request = request_of(any_request)
        return _combined([function(request) for function in functions])

    async def key_of_async(any_request: Any) -> Any:
        request = request_of(any_request)
        return _combined([await _awaited(function(request)) for function in functions])

    return portable_here(key_of_async if any(map(iscoroutinefunction, functions)) else key_of)


def _is_key(key: Any) -> bool:
    """Whether a function's result is a key: 0 is one, and a tuple that lacks a part is not."""
    if isinstance(key, tuple):
        return bool(key) and all(part is not None and part != "" for part in key)
    return bool(key) or whole_number(key) is not None


def _combined(found: list[Any]) -> tuple[Any, ...] | None:
    if not all(map(_is_key, found)):
        return None
    return tuple(part for key in found for part in (key if isinstance(key, tuple) else (key,)))


async def _awaited(value: Any | Awaitable[Any]) -> Any:
    return await answered(value)


def _from_extractor(source: str, extract: Extractor) -> KeyOf:
    @portable_here
    def key_of(any_request: Any) -> tuple[str, ...] | None:
        return _key(source, extract(any_request if isinstance(any_request, Request) else request_of(any_request)))

    return key_of


def _key(source: str, found: Parts | None) -> tuple[str, ...] | None:
    if found is None:
        return None
    return (source, REPEATED) if is_repeated(found) else (source, *found)


def _checked(name: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"a header, cookie or parameter has a name, not {name!r:.40}")
    return name
