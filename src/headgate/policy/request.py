"""An HTTP request as a policy sees it: the subject that policies are written for.

A header, a cookie and a query parameter that is meant to have one value may be sent twice, and each server
and framework then reads another one of them. `Request.header`, `.cookie` and `.query` give the one value
that the application will read, or `REPEATED` where it cannot be known which that is: then no
part of what was sent is taken for an identity of its own. See docs/identity.md#credentials-sent-twice.
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
"""Names of headers that are remembered."""

_ASCII = bytes(range(128)).decode()

path_text = partial(quote, safe="/:@!$&'()*+,;=~")
"""A path that a server has decoded, percent-encoded again: the policy decodes it, once."""

_get = dict.get
"""Of `Headers` it takes names that are in lower case already, and so half the time."""


class Request:
    """What a policy needs to know about a request; nothing here is trusted.

    `headers` is a mapping or pairs, with names in any case; a header given several times counts as
    one list. `client_ip` is the address of the peer, as the caller sees it: whether a header may
    replace it is the policy's decision. `path` may carry a query. `endpoint` is the route's template,
    where a framework knows it.

    **For integrations of frameworks.** A framework has its own parsers, and the application reads what these
    give. So a subclass that has the framework's request at hand overrides `header`, `cookie` and `query`, and
    returns exactly the text that the framework gives the application for this name: the first, the last or
    the joined one, "" where there is none, never `REPEATED`. That is all there is to it: identities, tiers,
    matches and the functions of `headgate.http.keys` ask these three. `headers` stays the mapping of all
    lines, each name's values joined in their order: the client's address is read from it.
    """

    __slots__ = (
        "_cookies", "_query", "charge", "client_ip", "counted_as", "endpoint", "headers", "host", "method", "path",
    )  # fmt: skip

    headers: Mapping[str, str]
    """By name in lower case, with "-" for "_"; asked for in any. All values of a name in their order, as one list."""

    charge: object
    """What the request was charged, where it is settled later; else not there."""

    entries = ()
    """None: only a descriptor has entries."""

    counted_as: str
    """What a limit of a route counts the request under, where that is not `endpoint`; else not there."""

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
        """The value of a header, whose name is in any case, without white space around it; "" where there is none.

        `REPEATED` where it is there several times with different values.
        """
        value: str = _get(self.headers, name, "")  # type: ignore[call-overload]  # it is a dictionary here
        if not value and (lower := name.lower()) != name:
            return self.header(lower)
        if type(value) is Repeated:
            return one_of_values(map(sent_text, value.values))
        return value.strip() if value.isascii() else sent_text(value)

    def cookie(self, name: str) -> str:
        """A cookie's value, "" where there is none; `REPEATED` where applications may read different ones.

        Quotes, escapes and percent-encoding are taken off, as some applications do: all spellings are one value.
        """
        sent = self.headers.get("cookie", "")
        if not sent:
            return ""
        if self._cookies is None or self._cookies[0] is not sent:
            self._cookies = (sent, {})
        known = self._cookies[1]
        if name not in known:
            known[name] = one_of_values(cookie_values(sent, name))
        return known[name]

    def query(self, name: str) -> str:
        """A query parameter's value, "" where there is none; `REPEATED` where applications may read different ones."""
        path = self.path
        if "?" not in path:
            return ""
        if self._query is None or self._query[0] is not path:
            self._query = (path, {})
        known = self._query[1]
        if name not in known:
            known[name] = one_of_values(query_values(path.partition("?")[2], name))
        return known[name]

    def entry(self, key: str) -> str:
        """Nothing: only a descriptor has entries."""
        return ""

    def attribute(self, name: str) -> str:
        """Nothing: what a request tells of itself are its headers."""
        return ""

    @property
    def own(self) -> Any:
        """The framework's own request, where one is at hand; else this one."""
        return self

    def call(self, function: Callable[..., Any], *rest: Any) -> Any:
        """What a function of the framework's own request, and of `rest`, gives for it."""
        return function(self.own, *rest)

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path.partition('?')[0]!r}, client_ip={self.client_ip!r})"


def one_value(headers: Mapping[str, str], name: str) -> str:
    """`Request.header` of headers that are no dictionary."""
    value = headers.get(name, "")
    return one_of_values(map(sent_text, value.values)) if type(value) is Repeated else sent_text(value)


def one_of_values(values: Iterable[str]) -> str:
    """The only value among these, "" where there is none, `REPEATED` where there are several."""
    found = ""
    for sent in values:
        value = sent.strip()
        if sent is REPEATED or (found and value and value != found):
            return REPEATED
        found = found or value
    return found


def target_text(sent: bytes) -> str:
    """A path or a query as it was sent, as text: bytes that are no ASCII are percent-encoded, as they should be."""
    return sent.decode("ascii") if sent.isascii() else quote(sent, safe=_ASCII)


class _Names(dict[str, str]):
    """`header_name` of names that were met before: most requests have the same ones."""

    def __missing__(self, name: str) -> str:
        plain = intern(str.replace(str.lower(name), "_", "-"))  # which the native gate finds by identity
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
    """Headers of which some are given several times: each such is one list."""
    values: dict[str, list[str]] = {}
    plain: dict[str, list[str]] = {}
    for name, value in pairs:
        wanted = header_name(name)
        values.setdefault(wanted, []).append(value)
        if "_" not in name:
            plain.setdefault(wanted, []).append(value)
    return {name: joined(several, plain.get(name)) for name, several in values.items()}


def joined(values: list[str], plain: list[str] | None) -> str:
    """The lines of one header as one list.

    `plain` are those whose name is spelled without `_`. Where there are any, the list has no others: a proxy that
    writes a header of its own removes what a client sent under this name, and passes on what is spelled with `_`.
    """
    if len(values) == 1:
        return values[0]
    try:
        return Repeated(", ".join(plain or values), tuple(values))
    except TypeError:
        raise ArgumentError("names and values of headers are text") from None
