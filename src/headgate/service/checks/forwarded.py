"""The request that a gateway asks about, as its headers describe it.

The gateway overwrites `X-Forwarded-Method`, `-Uri`, `-Host` and `-For` (or sends `X-Original-Method`
and `X-Original-URI`). Nothing of the query string of the gateway's own request counts:
some gateways append the client's. See docs/service.md#forward-auth.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.errors import ArgumentError
from headgate.policy.request import Repeated, Request, target_text


def forwarded_request(method: str, peer: str, rest: str, headers: Iterable[tuple[bytes, bytes]]) -> Request:
    """The original request. `rest` is what follows the ruleset in the path of the gateway's own request.

    Raises ArgumentError where one of the gateway's headers was sent several times: a client has added one.
    """
    request = Request(headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
    request.client_ip = peer
    request.method = (_header(request, "x-forwarded-method") or _header(request, "x-original-method") or method).upper()
    path = _header(request, "x-forwarded-uri") or _header(request, "x-original-uri") or rest
    request.path = target_text(path.encode("latin-1"))
    request.host = _header(request, "x-forwarded-host") or request.host
    return request


def _header(request: Request, name: str) -> str:
    """What the gateway says in a header. Only blanks are no part of it: bytes of UTF-8 may look like white space.

    A line that says nothing hides none that says something: a client may have added it.
    """
    sent = request.headers.get(name, "")
    if type(sent) is not Repeated:
        return sent.strip(" \t")
    said = {value.strip(" \t") for value in sent.values} - {""}
    if len(said) > 1:
        raise ArgumentError(f"{name} is there several times, with different values: let the gateway overwrite it")
    return said.pop() if said else ""
