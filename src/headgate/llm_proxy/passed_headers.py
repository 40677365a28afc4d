"""Which headers pass the proxy: all but those of the connection, of keys, cookies and accounts, and of the body's
encoding and length."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.llm.dialects.fields import LIMIT_HEADERS

_CONNECTION_HEADERS = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
))  # fmt: skip
_ACCOUNT_HEADERS = {"openai-organization", "openai-project"}
"""These name the account at the provider. It is the proxy owner's, who may set it in the headers of a provider's
settings."""

_NOT_SENT = _CONNECTION_HEADERS | _ACCOUNT_HEADERS | {
    "authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "host", "content-length", "content-encoding",
    "accept-encoding", "expect", "x-headgate-user", "forwarded", "x-forwarded-for", "x-forwarded-host",
    "x-forwarded-proto", "x-real-ip", "x-goog-user-project", "x-goog-fieldmask",
}  # fmt: skip
_NOT_ANSWERED = _CONNECTION_HEADERS | _ACCOUNT_HEADERS | {
    "content-length", "content-encoding", "set-cookie", "alt-svc", "anthropic-organization-id",
}  # fmt: skip

_USUAL = {"keep-alive"}
"""Values of `connection` that name none of the headers that pass."""

Pairs = Iterable[tuple[str, str]]


def headers_to_send(headers: Pairs) -> list[tuple[str, str]]:
    """The client's headers that are sent to a provider, with names in lower case."""
    sent, connection_values = list[tuple[str, str]](), list[str]()
    for original_name, value in headers:
        name = original_name.lower()
        if name not in _NOT_SENT:
            sent.append((name, value))
        elif name == "connection":
            connection_values.append(value)
    return _without(sent, connection_values) if connection_values else sent


def headers_to_answer(headers: Pairs, proxy_headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The provider's headers that are passed to the client, with names in lower case, and the proxy's own.

    A provider's limits are those of the proxy's owner: the client receives its own limits instead.
    """
    answered, connection_values = list[tuple[str, str]](), list[str]()
    for original_name, value in headers:
        name = original_name.lower()
        if name not in _NOT_ANSWERED:
            if not name.startswith(LIMIT_HEADERS):
                answered.append((name, value))
        elif name == "connection":
            connection_values.append(value)
    return (_without(answered, connection_values) if connection_values else answered) + proxy_headers


def _without(pairs: list[tuple[str, str]], connection_values: list[str]) -> list[tuple[str, str]]:
    """The headers without those that `connection` declares to be of the connection alone."""
    named = {part.strip().lower() for part in ",".join(connection_values).split(",")}
    return pairs if named <= _USUAL else [pair for pair in pairs if pair[0] not in named]
