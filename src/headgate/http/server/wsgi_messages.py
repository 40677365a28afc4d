"""WSGI responses: adds fields to the head of a response, and sends a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http.client import responses
from typing import Any

from headgate import core
from headgate.http.server.caching import NO_STORE, has_no_cache_field
from headgate.http.server.options import Refusal, length_of

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]


def python_start_with_fields(start_response: StartResponse, fields: list[tuple[str, str]]) -> StartResponse:
    """Return a `start_response` that adds fields to the head; a field that the application wrote itself stays."""

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        own = list(headers)
        written = {name.lower() for name, _ in own}
        return start_response(status, [*own, *(field for field in fields if field[0].lower() not in written)], *error)

    return start


start_with_fields: Callable[[StartResponse, list[tuple[str, str]]], StartResponse]
start_with_fields = python_start_with_fields if core.native is None else core.native.FieldStarter


def unstored(start_response: StartResponse) -> StartResponse:
    """Return a `start_response` that forbids caches to store a response, unless its headers say otherwise."""

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        own = list(headers)
        return start_response(status, [*own, NO_STORE] if has_no_cache_field(name for name, _ in own) else own, *error)

    return start


def send_refusal(start_response: StartResponse, refusal: Refusal, *, head: bool) -> Iterable[bytes]:
    """Send a refusal as a response; return its body."""
    headers = [*refusal.headers, *length_of(refusal)]
    start_response(f"{refusal.status} {responses.get(refusal.status, 'Refused')}", headers)
    return [b"" if head else refusal.body]
