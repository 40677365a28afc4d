"""Sends calls to providers, and separates calls that reached none from those that may have reached one.

See docs/decisions/0054-the-proxys-client.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import NamedTuple
from urllib.parse import quote

from headgate.errors import MissingExtraError
from headgate.llm.dialects.paths import Dialect
from headgate.llm_proxy.passed_headers import headers_to_send
from headgate.llm_proxy.provider_answer import ProviderAnswer
from headgate.llm_proxy.provider_connection import ProviderConnection
from headgate.llm_proxy.providers import ProviderSettings

try:
    from aiohappyeyeballs import start_connection
    from yarl import URL
except ImportError as error:
    raise MissingExtraError("the proxy of language models", extra="llm-proxy", why=error) from error

_KEEP_ALIVE_S = 20.0
"""Shorter than usual on servers, so that a call rarely uses a connection that the server is just closing."""

_NEXT_ADDRESS_S = 0.25
"""After this time the next address of a host is tried in parallel (RFC 8305)."""

_MOST_TARGETS = 512
_QUERY_CHARACTERS = "%/:=&?~+!$'()*,;@[]-._|{}\"<>^`\\"


class NotReached(Exception):
    """Nothing of a call was sent."""


class Lost(Exception):
    """A call was sent, and no answer arrived: the provider may or may not have processed it."""

    def __init__(self, message: str, *, is_timeout: bool) -> None:
        super().__init__(message)
        self.is_timeout = is_timeout


class _Origin(NamedTuple):
    """Where connections lead. Those with the same origin are interchangeable."""

    is_tls: bool
    host: str
    port: int


class _Target(NamedTuple):
    """A provider's endpoint of a dialect, with the parts of a request's head that are the same in all calls."""

    origin: _Origin
    start: str
    """Method and path."""

    fields: str
    names: frozenset[str]
    """The names of these fields. A client's fields of these names are not sent."""


class Upstream:
    """The connections to all providers. To be created and closed on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._free: dict[_Origin, list[ProviderConnection]] = {}
        self._sweep = self._loop.call_later(_KEEP_ALIVE_S, self._close_unused)

    async def send(
        self,
        provider: ProviderSettings,
        dialect: Dialect,
        query: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
    ) -> ProviderAnswer:
        """Send a call; return the answer once its headers are received. Raises NotReached, Lost."""
        answer = await self.begin(provider, dialect, query, headers, body)
        await self.head(answer)
        return answer

    async def begin(
        self,
        provider: ProviderSettings,
        dialect: Dialect,
        query: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
    ) -> ProviderAnswer:
        """Send a call; return its answer before its head is received, for `head` or to be closed. Raises NotReached."""
        target = _target_of(provider, dialect)
        head = _head(target, query, headers, body)
        connection = self._take(target.origin) or await self._connect(target.origin, provider.connect_timeout_s)
        return connection.send(head, body or b"", timeout_s=provider.timeout_s)

    async def head(self, answer: ProviderAnswer) -> None:
        """Wait until the headers of an answer are received. Raises Lost; then the answer is closed."""
        try:
            await answer.head()
        except OSError as error:
            answer.close()
            if isinstance(error, TimeoutError):
                raise Lost(str(error), is_timeout=True) from error
            raise Lost(_reason(error), is_timeout=False) from error
        except BaseException:
            answer.close()
            raise

    async def close(self) -> None:
        """Close the connections that no call uses."""
        self._sweep.cancel()
        for connections in self._free.values():
            for connection in connections:
                connection.abort()
        self._free.clear()
        await asyncio.sleep(0)

    def _take(self, origin: _Origin) -> ProviderConnection | None:
        """Take an open connection, the one that was used last; None where there is none."""
        connections = self._free.get(origin)
        oldest_s = self._loop.time() - _KEEP_ALIVE_S
        while connections:
            connection = connections.pop()
            if connection.is_open and connection.free_since_s > oldest_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: _Origin, timeout_s: float) -> ProviderConnection:
        """Open a new connection. Raises NotReached."""
        loop = self._loop
        free = self._free.setdefault(origin, [])
        connection = ProviderConnection(loop, free.append)
        try:
            async with asyncio.timeout(timeout_s):
                infos = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
                opened = await start_connection(infos, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1, loop=loop)
                try:
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    tls, name = (self._tls, origin.host) if origin.is_tls else (None, None)
                    await loop.create_connection(lambda: connection, sock=opened, ssl=tls, server_hostname=name)
                except BaseException:
                    opened.close()
                    raise
        except (OSError, UnicodeError) as error:
            raise NotReached(_reason(error)) from error
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _close_unused(self) -> None:
        """Close connections that were not used for a while."""
        oldest_s = self._loop.time() - _KEEP_ALIVE_S
        for connections in self._free.values():
            for connection in [old for old in connections if not old.is_open or old.free_since_s <= oldest_s]:
                connections.remove(connection)
                connection.abort()
        self._sweep = self._loop.call_later(_KEEP_ALIVE_S, self._close_unused)


@lru_cache(_MOST_TARGETS)
def _target_of(provider: ProviderSettings, dialect: Dialect) -> _Target:
    url = URL(provider.url(dialect))
    fields = {
        "host": url.host_port_subcomponent or "",
        **dict(provider.headers),
        **provider.auth_headers(dialect),
        "accept-encoding": "identity",  # answers are read as they pass
    }
    if dialect.method == "POST":
        fields["content-type"] = "application/json"  # as it was parsed here: parsed as a form it may be another call
    origin = _Origin(url.scheme == "https", url.raw_host or "", url.port or 0)
    text = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return _Target(origin, f"{dialect.method} {url.raw_path}", text, frozenset(fields))


def _head(target: _Target, query: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> bytes:
    """The head of a request."""
    suffix = f"?{_escaped(query)}" if query else ""
    names = target.names
    head = f"{target.start}{suffix} HTTP/1.1\r\n{target.fields}"
    for name, value in headers_to_send(headers):
        if name not in names:
            head += f"{name}: {value}\r\n"
    if body is not None:
        head += f"content-length: {len(body)}\r\n"
    return f"{head}\r\n".encode("utf-8", "surrogateescape")


def _escaped(query: str) -> str:
    """A query as the client sent it, but characters that a request target cannot have are escaped, and a fragment is
    dropped."""
    query = query.partition("#")[0]
    if query.isascii() and query.isprintable() and " " not in query:
        return query
    return quote(query.encode("utf-8", "surrogateescape"), safe=_QUERY_CHARACTERS)


def _reason(error: BaseException) -> str:
    """The kind of error, without addresses, which do not concern clients."""
    return type(error).__name__
