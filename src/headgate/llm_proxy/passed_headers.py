"""Which headers pass the proxy: all but those of a connection, of keys, cookies and accounts, and of a body's form."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.llm.dialects.fields import LIMIT_HEADERS

_OF_A_CONNECTION = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
))  # fmt: skip
_OF_AN_ACCOUNT = {"openai-organization", "openai-project"}
"""Whose account at the provider a call is of: that of the proxy's owner, who may name it among a provider's headers."""

_NOT_SENT = _OF_A_CONNECTION | _OF_AN_ACCOUNT | {
    "authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "host", "content-length", "content-encoding",
    "accept-encoding", "expect", "x-headgate-user", "forwarded", "x-forwarded-for", "x-forwarded-host",
    "x-forwarded-proto", "x-real-ip", "x-goog-user-project", "x-goog-fieldmask",
}  # fmt: skip
_NOT_ANSWERED = _OF_A_CONNECTION | _OF_AN_ACCOUNT | {
    "content-length", "content-encoding", "set-cookie", "alt-svc", "anthropic-organization-id",
}  # fmt: skip

_USUAL = {"keep-alive"}
"""What `connection` says that names no header which is left."""

Pairs = Iterable[tuple[str, str]]


def headers_to_send(headers: Pairs) -> list[tuple[str, str]]:
    """What a provider gets of a client's headers; names come in any case."""
    sent, of_connection = list[tuple[str, str]](), list[str]()
    for told, value in headers:
        name = told.lower()
        if name not in _NOT_SENT:
            sent.append((name, value))
        elif name == "connection":
            of_connection.append(value)
    return _without(sent, of_connection) if of_connection else sent


def headers_to_answer(headers: Pairs, own: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What a client gets of a provider's headers, and the proxy's own.

    A provider's limits are those of the proxy's owner: a client is told its own.
    """
    answered, of_connection = list[tuple[str, str]](), list[str]()
    for told, value in headers:
        name = told.lower()
        if name not in _NOT_ANSWERED:
            if not name.startswith(LIMIT_HEADERS):
                answered.append((name, value))
        elif name == "connection":
            of_connection.append(value)
    return (_without(answered, of_connection) if of_connection else answered) + own


def _without(pairs: list[tuple[str, str]], of_connection: list[str]) -> list[tuple[str, str]]:
    """Headers but those that are of a connection alone, as its `connection` says."""
    named = {part.strip().lower() for part in ",".join(of_connection).split(",")}
    return pairs if named <= _USUAL else [pair for pair in pairs if pair[0] not in named]
