"""A request as a policy sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import cast
from urllib.parse import parse_qsl

from headgate.errors import ArgumentError


class Request:
    """What a policy needs to know of a request; nothing here is trusted.

    `headers` is a mapping or pairs, with names in any case; a header given several times counts as
    one list. `client_ip` is the address of the peer, as the caller sees it: whether a header may
    replace it is the policy's decision. `path` may carry a query. `endpoint` is the route's template,
    where a framework knows it.
    """

    __slots__ = ("_cookies", "_query", "charge", "client_ip", "endpoint", "headers", "host", "method", "path")

    headers: Mapping[str, str]
    """By name in lower case."""

    charge: object
    """What the request was charged, where somebody settles it later; else not there."""

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        *,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        client_ip: str = "",
        host: str = "",
        endpoint: str = "",
    ) -> None:
        if not (isinstance(method, str) and isinstance(path, str) and isinstance(client_ip, str)):
            raise ArgumentError("method, path and client_ip of a request are text")
        self.method = method if method.isupper() else method.upper()
        self.path = path
        self.client_ip = client_ip
        self.endpoint = endpoint
        self.headers = _by_lower_name(headers) if headers else {}
        self.host = host or self.headers.get("host", "")
        self._cookies: tuple[Mapping[str, str], dict[str, str]] | None = None
        self._query: tuple[str, dict[str, str]] | None = None

    def cookie(self, name: str) -> str:
        """A cookie's value, "" where there is none."""
        if self._cookies is None or self._cookies[0] is not self.headers:
            self._cookies = (self.headers, _read_cookies(self.headers.get("cookie", "")))
        return self._cookies[1].get(name, "")

    def query(self, name: str) -> str:
        """A query parameter's value, the first if it is there several times, "" where there is none."""
        if self._query is None or self._query[0] is not self.path:
            self._query = (self.path, _read_query(self.path.partition("?")[2]))
        return self._query[1].get(name, "")

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path.partition('?')[0]!r}, client_ip={self.client_ip!r})"


def _by_lower_name(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
    pairs: Collection[tuple[str, str]]
    if type(headers) is dict or isinstance(headers, Mapping):
        pairs = cast(Mapping[str, str], headers).items()
    else:
        pairs = list(headers)
    try:
        by_name = {str.lower(name): value for name, value in pairs}
        "".join(by_name.values())  # only texts can be joined
    except TypeError:
        raise ArgumentError("names and values of headers are text") from None
    return by_name if len(by_name) == len(pairs) else _merged(pairs)


def _merged(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers of which some are given several times: each such is one list."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.lower(), []).append(value)
    return {name: ", ".join(several) for name, several in values.items()}


def _read_cookies(header: str) -> dict[str, str]:
    cookies: dict[str, str] = {}
    for pair in header[:8192].replace(", ", ";").split(";"):
        name, separator, value = pair.strip().partition("=")
        if separator:
            cookies.setdefault(name, value.strip('"'))
    return cookies


def _read_query(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=256, errors="replace")
    except ValueError:  # too many fields to be meant
        return {}
    parameters: dict[str, str] = {}
    for name, value in pairs:
        parameters.setdefault(name, value)
    return parameters
