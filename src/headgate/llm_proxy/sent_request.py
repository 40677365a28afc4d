"""What a request says of its caller: the key that it sent, and what a policy's conditions see of it."""

from __future__ import annotations

from aiohttp import web

from headgate.policy.request import Request

_SECRET = ("authorization", "x-api-key")


def sent_key(request: web.BaseRequest) -> str | None:
    """The one key that was sent, as `Authorization: Bearer` or `x-api-key`; None for none, and for several."""
    bearers = request.headers.getall("authorization", [])
    sent = {value.partition(" ")[2].strip() for value in bearers if value[:7].lower() == "bearer "}
    if len(sent) < len(set(bearers)):
        return None
    sent |= {value.strip() for value in request.headers.getall("x-api-key", [])}
    sent.discard("")
    return sent.pop() if len(sent) == 1 else None


def subject_of(request: web.BaseRequest) -> Request:
    """The request as a policy's conditions see it."""
    return Request(
        request.method,
        request.raw_path,
        headers=[(name, value) for name, value in request.headers.items() if name.lower() not in _SECRET],
        client_ip=request.remote or "",
        host=request.headers.get("host", ""),
    )
