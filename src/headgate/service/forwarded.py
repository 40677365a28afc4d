"""The request that a gateway asks about, as its headers tell it.

The gateway overwrites `X-Forwarded-Method`, `-Uri`, `-Host` and `-For` (or sends `X-Original-Method`
and `X-Original-URI`). Nothing of the query string of the question itself counts: some gateways
append the client's. See docs/service.md#forward-auth.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from headgate.policy.request import Request


def forwarded_request(method: str, peer: str, rest: str, headers: Iterable[tuple[bytes, bytes]]) -> Request:
    """The original request. `rest` is what follows the ruleset in the question's own path."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    request = Request(headers=pairs, client_ip=peer)
    told = request.headers
    request.method = (told.get("x-forwarded-method") or told.get("x-original-method") or method).strip().upper()
    request.path = _path(told.get("x-forwarded-uri") or told.get("x-original-uri") or rest)
    request.host = (told.get("x-forwarded-host") or request.host).partition(",")[0].strip()
    return request


def _path(uri: str) -> str:
    """The path and query of a request target, which may be absolute (RFC 9112, 3.2.2)."""
    uri = uri.strip()
    if uri.startswith("/"):
        return uri
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "/"
    path = parts.path if parts.path.startswith("/") else "/"
    return f"{path}?{parts.query}" if parts.query else path
