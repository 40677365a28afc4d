"""Which headers pass the proxy: all but those of a connection, of keys and cookies, and of how a body is sent."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.llm.dialects.fields import is_limit_header

_OF_A_CONNECTION = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
))  # fmt: skip
_NOT_SENT = _OF_A_CONNECTION | {
    "authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "host", "content-length", "content-encoding",
    "accept-encoding", "expect", "x-headgate-user", "forwarded", "x-forwarded-for", "x-forwarded-host",
    "x-forwarded-proto", "x-real-ip",
}  # fmt: skip
_NOT_ANSWERED = _OF_A_CONNECTION | {"content-length", "content-encoding", "set-cookie", "alt-svc"}

Pairs = Iterable[tuple[str, str]]


def headers_to_send(headers: Pairs) -> list[tuple[str, str]]:
    """What a provider gets of a client's headers; names come in any case."""
    pairs = [(name.lower(), value) for name, value in headers]
    dropped = _NOT_SENT | _named_by_connection(pairs)
    return [pair for pair in pairs if pair[0] not in dropped]


def headers_to_answer(headers: Pairs, own: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What a client gets of a provider's headers, and the proxy's own.

    A provider's limits are those of the proxy's owner: a client is told its own.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    dropped = _NOT_ANSWERED | _named_by_connection(pairs)
    return [pair for pair in pairs if pair[0] not in dropped and not is_limit_header(pair[0])] + own


def _named_by_connection(pairs: list[tuple[str, str]]) -> set[str]:
    """Headers that are of this connection alone, as `connection` says."""
    told = [value for name, value in pairs if name == "connection"]
    return {part.strip().lower() for part in ",".join(told).split(",")} if told else set()
