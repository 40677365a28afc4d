"""What redis-py gives for a place: clients and connections, in both colours.

None of them sends a call again: one whose answer was lost may have been charged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import SentinelManagedConnection as AsyncSentinelManagedConnection
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.credentials import UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis.sentinel import SentinelManagedConnection

from headgate.stores.redis.replies import AsyncReplyParser, ReplyParser
from headgate.stores.redis.tls_files import TlsContext
from headgate.stores.redis.url import Address, Place

_SENTINEL: Any = redis.Sentinel  # these have no types
_ASYNC_SENTINEL: Any = redis.asyncio.Sentinel
_NODE: Any = ClusterNode
_POOL: Any = redis.BlockingConnectionPool
_SSL: Any = redis.SSLConnection
_ASYNC_SSL: Any = redis.asyncio.SSLConnection


class _Tls(_SSL):  # type: ignore[misc]
    """A connection over TLS for threads, with a context that others have, too."""

    def __init__(self, *, tls: TlsContext, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options)

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        return self._tls.get().wrap_socket(sock, server_hostname=self.host)


class _AsyncTls(_ASYNC_SSL):  # type: ignore[misc]
    """The same for an event loop."""

    def __init__(self, *, tls: TlsContext, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options)

    def _connection_arguments(self) -> Any:
        self.ssl_context.context = self._tls.get()
        return super()._connection_arguments()

    async def disconnect(self, nowait: bool = False, **how: Any) -> None:
        if nowait and self._writer is not None:
            self._writer.transport.abort()  # else it waits for the server to agree, unseen
        await super().disconnect(nowait, **how)


class _SentinelTls(SentinelManagedConnection, _Tls):
    """One to whichever server Sentinels name."""


class _AsyncSentinelTls(AsyncSentinelManagedConnection, _AsyncTls):  # type: ignore[misc]
    """The same for an event loop."""


def open_client(place: Place) -> Any:
    """The client of a place, for threads."""
    never = _options(place)
    if place.kind == "single":
        kind, options = _kind(place, redis.Connection, _Tls)
        where: dict[str, Any] = {"path": place.socket}
        if place.socket:
            kind = redis.UnixDomainSocketConnection
        else:
            where = place.addresses[0]._asdict()
        pool = _POOL(
            connection_class=kind, max_connections=place.connections, timeout=place.timeout_s,
            **where, **options, **never,
        )  # fmt: skip
        return redis.Redis(connection_pool=pool)
    if place.kind == "sentinel":
        kind, options = _kind(place, SentinelManagedConnection, _SentinelTls)
        sentinel = _SENTINEL(list(place.addresses), sentinel_kwargs=_asking(place, never), **never, **options)
        for each in sentinel.sentinels:
            _prepare(each.connection_pool, place, ReplyParser, _Tls)
        return sentinel.master_for(place.service, connection_class=kind)
    nodes = [_NODE(host, port) for host, port in place.addresses]
    return redis.RedisCluster(
        startup_nodes=nodes, max_connections=place.connections,
        **never, **place.options,
    )  # fmt: skip


def open_connection(place: Place, address: Address) -> Any:
    """A connection to one server, for threads; it is not connected yet."""
    kind, options = _kind(place, redis.Connection, _Tls)
    return kind(host=address.host, port=address.port, **_options(place), **options)


def open_async_pool(place: Place) -> Any:
    """What makes connections to a place, for an event loop."""
    never = _async_options(place)
    if place.kind == "single":
        kind, options = _kind(place, redis.asyncio.Connection, _AsyncTls)
        where: dict[str, Any] = {"path": place.socket}
        if place.socket:
            kind = redis.asyncio.UnixDomainSocketConnection
        else:
            where = place.addresses[0]._asdict()
        return redis.asyncio.ConnectionPool(connection_class=kind, **where, **options, **never)
    kind, options = _kind(place, AsyncSentinelManagedConnection, _AsyncSentinelTls)
    sentinel = _ASYNC_SENTINEL(list(place.addresses), sentinel_kwargs=_asking(place, never), **never, **options)
    for each in sentinel.sentinels:
        _prepare(each.connection_pool, place, AsyncReplyParser, _AsyncTls)
    return sentinel.master_for(place.service, connection_class=kind).connection_pool


def open_async_connection(place: Place, address: Address) -> Any:
    """A connection to one server, for an event loop; it is not connected yet."""
    kind, options = _kind(place, redis.asyncio.Connection, _AsyncTls)
    return kind(host=address.host, port=address.port, **_async_options(place), **options)


def can_listen(client: Any) -> bool:
    """Whether a client of the caller's own can hear messages beside what it is asked: on a second connection."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return False
    pool = getattr(client, "connection_pool", None)
    return pool is None or pool.max_connections > 1


def sends_again(client: Any) -> bool:
    """Whether a client of the caller's own sends a call again whose reply was lost, as redis-py's do by default.

    One of asyncio for a single server does not: its calls go over a multiplexer.
    """
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        retry = getattr(client, "retry", None)
    elif isinstance(client, redis.Redis):
        retry = client.get_retry()
    else:
        return False
    return getattr(retry, "_retries", 0) != 0


async def disconnect(connection: Any, *, at_once: bool) -> None:
    """Close an event loop's connection; a task that waits for its reply wakes up.

    Over TLS that takes until the server agrees, for 30 s where it hangs, unless it is closed `at_once`.
    """
    writer: asyncio.StreamWriter | None = getattr(connection, "_writer", None)
    if at_once and writer is not None:
        writer.transport.abort()
    await connection.disconnect(nowait=True)


async def closed(writer: asyncio.StreamWriter, within_s: float) -> None:
    """Wait until a connection is closed: over TLS the server has to agree, and the event loop may end then."""
    try:
        async with asyncio.timeout(within_s):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
        await asyncio.sleep(0)
    except (OSError, EOFError):
        pass  # the server was gone


def close_socket(connection: Any) -> None:
    """Close the socket of an event loop's connection, if there is one, once the loop is closed.

    The transport cannot: it asks the loop to. uvloop has closed its sockets by then.
    """
    writer: asyncio.StreamWriter | None = getattr(connection, "_writer", None)
    sock = None if writer is None else getattr(writer.get_extra_info("socket"), "_sock", None)
    if sock is not None:
        sock.close()


def _kind(place: Place, bare: Any, over_tls: Any) -> tuple[Any, dict[str, Any]]:
    """The class of connections to a place, and the options of each but for deadlines."""
    if place.tls is None:
        return bare, dict(place.options)
    options = {name: value for name, value in place.options.items() if not name.startswith("ssl")}
    return over_tls, options | {"tls": place.tls}


def _asking(place: Place, never: Mapping[str, Any]) -> dict[str, Any]:
    """What the client of a Sentinel takes: by whom it is asked, and how long it is waited for.

    Errors of redis-py before 8.1 have all options of that client in their text, but for what a provider keeps.
    """
    asking = {name: value for name, value in never.items() if name != "parser_class"}
    asking |= {"socket_timeout": place.each_s, "socket_connect_timeout": place.each_s}
    if place.sentinel:
        asking["credential_provider"] = UsernamePasswordCredentialProvider(**place.sentinel)
    return asking


def _prepare(pool: Any, place: Place, parser: Any, over_tls: Any) -> None:
    """Give connections to a Sentinel what its client does not take."""
    pool.connection_kwargs["parser_class"] = parser
    if place.tls is not None:
        pool.connection_kwargs["tls"] = place.tls
        pool.connection_class = over_tls


def _options(place: Place) -> dict[str, Any]:
    return {
        "socket_timeout": place.timeout_s,
        "socket_connect_timeout": place.first_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "parser_class": ReplyParser,
    }


def _async_options(place: Place) -> dict[str, Any]:
    """A multiplexer keeps its own deadlines, so its connections have none."""
    return {
        "socket_timeout": None,
        "socket_connect_timeout": place.first_s,
        "retry": AsyncRetry(NoBackoff(), 0),
        "protocol": 2,
        "parser_class": AsyncReplyParser,
    }
