"""The request that a gateway asks the service to check, as the gateway's headers describe it.

The gateway overwrites `X-Forwarded-Method`, `-Uri`, `-Host` and `-For` (or sends `X-Original-Method`
and `X-Original-URI`). The query string of the gateway's own request is ignored:
some gateways append the client's. See docs/service.md#forward-auth.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.errors import ArgumentError
from headgate.policy.request import Repeated, Request, target_text


def forwarded_request(method: str, peer: str, suffix: str, headers: Iterable[tuple[bytes, bytes]]) -> Request:
    """The original request. `suffix` follows the ruleset in the path of the gateway's own request.

    Raises ArgumentError where one of the gateway's headers was sent several times: a client has added one.
    """
    request = Request(headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
    request.client_ip = peer
    request.method = (_header(request, "x-forwarded-method") or _header(request, "x-original-method") or method).upper()
    path = _header(request, "x-forwarded-uri") or _header(request, "x-original-uri") or suffix
    request.path = target_text(path.encode("latin-1"))
    request.host = _header(request, "x-forwarded-host") or request.host
    return request


def _header(request: Request, name: str) -> str:
    """The value of a gateway's header. Only blanks are stripped: bytes of UTF-8 may look like other white space.

    An empty line hides none that has a value: a client may have added it.
    """
    value = request.headers.get(name, "")
    if type(value) is not Repeated:
        return value.strip(" \t")
    values = {line.strip(" \t") for line in value.values} - {""}
    if len(values) > 1:
        raise ArgumentError(f"{name} is there several times, with different values: let the gateway overwrite it")
    return values.pop() if values else ""
