"""The key of a request, and the request in the form that a policy's conditions read."""

from __future__ import annotations

from aiohttp import web

from headgate.policy.request import Request

_SECRET_HEADERS = ("authorization", "x-api-key")


def key_of(request: web.BaseRequest) -> str | None:
    """The key of a request, from `Authorization: Bearer` or `x-api-key`; None without one, and for several."""
    bearers = request.headers.getall("authorization", [])
    keys = {value.partition(" ")[2].strip() for value in bearers if value[:7].lower() == "bearer "}
    if len(keys) < len(set(bearers)):
        return None
    keys |= {value.strip() for value in request.headers.getall("x-api-key", [])}
    keys.discard("")
    return keys.pop() if len(keys) == 1 else None


def subject_of(request: web.BaseRequest) -> Request:
    """The request in the form that a policy's conditions read."""
    return Request(
        request.method,
        request.raw_path,
        headers=[(name, value) for name, value in request.headers.items() if name.lower() not in _SECRET_HEADERS],
        client_ip=request.remote or "",
        host=request.headers.get("host", ""),
    )
