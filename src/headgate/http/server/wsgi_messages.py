"""Answers of WSGI: fields are added to the head of a response, a refusal is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http.client import responses
from typing import Any

from headgate import core
from headgate.http.server.caching import NO_STORE, has_no_cache_field
from headgate.http.server.options import Refusal

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]


def python_telling(start_response: StartResponse, fields: list[tuple[str, str]]) -> StartResponse:
    """Add fields to the head of the response; one that the application wrote itself stays as it is."""

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        own = list(headers)
        written = {name.lower() for name, _ in own}
        return start_response(status, [*own, *(field for field in fields if field[0].lower() not in written)], *error)

    return start


telling: Callable[[StartResponse, list[tuple[str, str]]], StartResponse]
telling = python_telling if core.native is None else core.native.FieldStarter


def unstored(start_response: StartResponse) -> StartResponse:
    """Have no cache store the response of a fallback, unless it says something itself."""

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        own = list(headers)
        return start_response(status, [*own, NO_STORE] if has_no_cache_field(name for name, _ in own) else own, *error)

    return start


def send_refusal(start_response: StartResponse, refusal: Refusal, *, head: bool) -> Iterable[bytes]:
    """Send a refusal as a response; gives its body."""
    headers = list(refusal.headers)
    for name, _ in headers:
        if name.lower() == "content-length":
            break
    else:
        headers.append(("Content-Length", str(len(refusal.body))))
    start_response(f"{refusal.status} {responses.get(refusal.status, 'Refused')}", headers)
    return [b"" if head else refusal.body]
