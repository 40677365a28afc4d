"""An HTTP request as a policy reads it: the usual subject of policies.

A header, a cookie or a query parameter that should have one value may be sent twice, and servers and
frameworks differ in which of the values they read. `Request.header`, `.cookie` and `.query` give the value
that the application will read, or `REPEATED` where that is not known: then none of the values that were sent
counts as an identity of its own. See docs/identity.md#credentials-sent-twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from sys import intern
from typing import Any, cast
from urllib.parse import quote

from headgate.errors import ArgumentError
from headgate.policy.headers import Headers, header_name
from headgate.policy.sent_values import cookie_values, query_values, sent_text
from headgate.policy.subject import REPEATED, Repeated

__all__ = [
    "REPEATED", "Repeated", "Request", "header_name", "joined", "one_of_values", "one_value", "path_text",
    "target_text",
]  # fmt: skip

_MOST_NAMES = 1024
_LONGEST_NAME = 64
"""The most names of headers that are cached, and the most characters of each."""

_ASCII = bytes(range(128)).decode()

path_text = partial(quote, safe="/:@!$&'()*+,;=~")
"""Percent-encodes a path again that a server has decoded: the policy decodes it, once."""

_get = dict.get
"""Gets a field of `Headers` by a name that is in lower case already, in half the time of `Headers.get`."""


class Request:
    """The parts of a request that a policy reads; nothing here is trusted.

    `headers` is a mapping or pairs, with names in any case; a header that occurs several times counts as
    one list. `client_ip` is the address of the peer, as the caller sees it: whether a header may
    replace it is the policy's decision. `path` may have a query. `endpoint` is the route's template,
    where a framework knows it.

    **For integrations of frameworks.** A framework has its own parsers, and the application reads their results.
    So a subclass that has the framework's request overrides `header`, `cookie` and `query`, and
    returns exactly the text that the framework gives the application for this name: the first, the last or
    the joined value, "" where there is none, never `REPEATED`. Nothing else is needed: identities, tiers,
    matches and the functions of `headgate.http.keys` read these three. `headers` stays the mapping of all
    lines, each name's values joined in their order: the client's address is read from it.
    """

    __slots__ = (
        "_cookies", "_query", "charge", "client_ip", "counted_as", "endpoint", "headers", "host", "method", "path",
    )  # fmt: skip

    headers: Mapping[str, str]
    """By name in lower case, with "-" for "_", found in any spelling. All values of a name, in order, as one list."""

    charge: object
    """The charge of the request, where it is settled later; otherwise the attribute is not set."""

    entries = ()
    """Always empty: only a descriptor has entries."""

    counted_as: str
    """The endpoint by which a limit of a route counts the request, if it is not `endpoint`; otherwise not set."""

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
        try:
            "".join((method, path, client_ip, host, endpoint))  # only texts can be joined
        except TypeError:
            raise ArgumentError("method, path, client_ip, host and endpoint of a request are text") from None
        if not method.isupper():
            if method.startswith("/") and type(self) is Request:
                raise ArgumentError(f"a request is Request(method, path), and {method[:60]!r} is a path, not a method")
            method = method.upper()
        self.method = method
        self.path = path
        self.client_ip = client_ip
        self.endpoint = endpoint
        by_name = _by_lower_name(headers) if headers else Headers()
        self.headers = by_name
        self.host = host or _get(by_name, "host", "")
        self._cookies: tuple[str, dict[str, str]] | None = None
        self._query: tuple[str, dict[str, str]] | None = None

    def header(self, name: str) -> str:
        """The value of a header, by its name in any case, without white space around it; "" where there is none.

        `REPEATED` where it occurs several times with different values.
        """
        value: str = _get(self.headers, name, "")  # type: ignore[call-overload]  # it is a dictionary here
        if not value and (lower := name.lower()) != name:
            return self.header(lower)
        if type(value) is Repeated:
            return one_of_values(map(sent_text, value.values))
        return value.strip() if value.isascii() else sent_text(value)

    def cookie(self, name: str) -> str:
        """A cookie's value; "" where there is none, `REPEATED` where applications may read different values.

        Quotes, escapes and percent-encoding are removed, as some applications do: all spellings are one value.
        """
        sent = self.headers.get("cookie", "")
        if not sent:
            return ""
        if self._cookies is None or self._cookies[0] is not sent:
            self._cookies = (sent, {})
        cached_values = self._cookies[1]
        if name not in cached_values:
            cached_values[name] = one_of_values(cookie_values(sent, name))
        return cached_values[name]

    def query(self, name: str) -> str:
        """A query parameter's value; "" if there is none, `REPEATED` where applications may read different values."""
        path = self.path
        if "?" not in path:
            return ""
        if self._query is None or self._query[0] is not path:
            self._query = (path, {})
        cached_values = self._query[1]
        if name not in cached_values:
            cached_values[name] = one_of_values(query_values(path.partition("?")[2], name))
        return cached_values[name]

    def entry(self, key: str) -> str:
        """Return "": only a descriptor has entries."""
        return ""

    def attribute(self, name: str) -> str:
        """Return "": a request describes itself by its headers."""
        return ""

    @property
    def own(self) -> Any:
        """The framework's own request, where there is one; otherwise this request."""
        return self

    def call(self, function: Callable[..., Any], *rest: Any) -> Any:
        """Call a function with the framework's own request and `rest`; return its result."""
        return function(self.own, *rest)

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path.partition('?')[0]!r}, client_ip={self.client_ip!r})"


def one_value(headers: Mapping[str, str], name: str) -> str:
    """`Request.header` for headers that are not a dictionary."""
    value = headers.get(name, "")
    return one_of_values(map(sent_text, value.values)) if type(value) is Repeated else sent_text(value)


def one_of_values(values: Iterable[str]) -> str:
    """The only value among these; "" where there is none, `REPEATED` where there are different values."""
    only_value = ""
    for sent in values:
        value = sent.strip()
        if sent is REPEATED or (only_value and value and value != only_value):
            return REPEATED
        only_value = only_value or value
    return only_value


def target_text(sent: bytes) -> str:
    """A path or a query, as it was sent, as text: bytes outside ASCII are percent-encoded, as they should have been."""
    return sent.decode("ascii") if sent.isascii() else quote(sent, safe=_ASCII)


class _Names(dict[str, str]):
    """A cache of `header_name`: most requests have the same names."""

    def __missing__(self, name: str) -> str:
        plain = intern(str.replace(str.lower(name), "_", "-"))  # the native gate compares names by identity
        if len(self) < _MOST_NAMES and len(name) <= _LONGEST_NAME:
            self[name] = plain
        return plain


_names = _Names()


def _by_lower_name(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> Headers:
    pairs: Collection[tuple[str, str]]
    try:
        if type(headers) is dict or isinstance(headers, Mapping):
            pairs = cast(Mapping[str, str], headers).items()
        else:
            pairs = list(headers)
        names = _names
        by_name = {names[name]: value for name, value in pairs}
        "".join(by_name.values())  # only texts can be joined
    except TypeError:
        raise ArgumentError("names and values of headers are text") from None
    except ValueError:
        raise ArgumentError("headers are a mapping, or pairs of a name and a value") from None
    return Headers(by_name if len(by_name) == len(pairs) else _merged(pairs))


def _merged(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers of which some occur several times: each of these becomes one list."""
    values: dict[str, list[str]] = {}
    plain: dict[str, list[str]] = {}
    for name, value in pairs:
        header = header_name(name)
        values.setdefault(header, []).append(value)
        if "_" not in name:
            plain.setdefault(header, []).append(value)
    return {name: joined(lines, plain.get(name)) for name, lines in values.items()}


def joined(values: list[str], plain: list[str] | None) -> str:
    """Join the lines of one header to one list.

    `plain` are the lines whose name is spelled without `_`. If there are any, the list has no others: a proxy that
    sets a header of its own removes a client's header of this name, and passes on one that is spelled with `_`.
    """
    if len(values) == 1:
        return values[0]
    try:
        return Repeated(", ".join(plain or values), tuple(values))
    except TypeError:
        raise ArgumentError("names and values of headers are text") from None
