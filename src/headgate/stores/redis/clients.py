"""Clients and connections of redis-py to a target, in both colours.

None of them repeats a call, since one whose reply was lost may have been charged.
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
from headgate.stores.redis.url import Address, RedisTarget

_Sentinel: Any = redis.Sentinel  # these have no types
_AsyncSentinel: Any = redis.asyncio.Sentinel
_ClusterNode: Any = ClusterNode
_BlockingPool: Any = redis.BlockingConnectionPool
_SslConnection: Any = redis.SSLConnection
_AsyncSslConnection: Any = redis.asyncio.SSLConnection


class _TlsConnection(_SslConnection):  # type: ignore[misc]
    """A connection over TLS for threads, with a context that connections share."""

    def __init__(self, *, tls: TlsContext, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options)

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        return self._tls.get().wrap_socket(sock, server_hostname=self.host)


class _AsyncTlsConnection(_AsyncSslConnection):  # type: ignore[misc]
    """The same for an event loop."""

    def __init__(self, *, tls: TlsContext, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options)

    def _connection_arguments(self) -> Any:
        self.ssl_context.context = self._tls.get()
        return super()._connection_arguments()

    async def disconnect(self, nowait: bool = False, **options: Any) -> None:
        if nowait and self._writer is not None:
            self._writer.transport.abort()  # else it waits in the background for the server to agree
        await super().disconnect(nowait, **options)


class _SentinelTlsConnection(SentinelManagedConnection, _TlsConnection):
    """A connection over TLS to the server that Sentinels name."""


class _AsyncSentinelTlsConnection(AsyncSentinelManagedConnection, _AsyncTlsConnection):  # type: ignore[misc]
    """The same for an event loop."""


def open_client(target: RedisTarget) -> Any:
    """A client of a target, for threads."""
    common_options = _connection_options(target)
    if target.kind == "single":
        connection_class, options = _connection_class(target, redis.Connection, _TlsConnection)
        endpoint: dict[str, Any] = {"path": target.socket}
        if target.socket:
            connection_class = redis.UnixDomainSocketConnection
        else:
            endpoint = target.addresses[0]._asdict()
        pool = _BlockingPool(
            connection_class=connection_class, max_connections=target.connections, timeout=target.timeout_s,
            **endpoint, **options, **common_options,
        )  # fmt: skip
        return redis.Redis(connection_pool=pool)
    if target.kind == "sentinel":
        connection_class, options = _connection_class(target, SentinelManagedConnection, _SentinelTlsConnection)
        sentinel = _Sentinel(
            list(target.addresses),
            sentinel_kwargs=_sentinel_options(target, common_options),
            **common_options,
            **options,
        )
        for sentinel_client in sentinel.sentinels:
            _configure_sentinel_pool(sentinel_client.connection_pool, target, ReplyParser, _TlsConnection)
        return sentinel.master_for(target.service, connection_class=connection_class)
    nodes = [_ClusterNode(host, port) for host, port in target.addresses]
    return redis.RedisCluster(
        startup_nodes=nodes, max_connections=target.connections,
        **common_options, **target.options,
    )  # fmt: skip


def open_connection(target: RedisTarget, address: Address) -> Any:
    """An unopened connection to one server, for threads."""
    connection_class, options = _connection_class(target, redis.Connection, _TlsConnection)
    return connection_class(host=address.host, port=address.port, **_connection_options(target), **options)


def open_async_pool(target: RedisTarget) -> Any:
    """A pool that makes connections to a target, for an event loop."""
    common_options = _async_connection_options(target)
    if target.kind == "single":
        connection_class, options = _connection_class(target, redis.asyncio.Connection, _AsyncTlsConnection)
        endpoint: dict[str, Any] = {"path": target.socket}
        if target.socket:
            connection_class = redis.asyncio.UnixDomainSocketConnection
        else:
            endpoint = target.addresses[0]._asdict()
        return redis.asyncio.ConnectionPool(connection_class=connection_class, **endpoint, **options, **common_options)
    connection_class, options = _connection_class(target, AsyncSentinelManagedConnection, _AsyncSentinelTlsConnection)
    sentinel = _AsyncSentinel(
        list(target.addresses), sentinel_kwargs=_sentinel_options(target, common_options), **common_options, **options
    )
    for sentinel_client in sentinel.sentinels:
        _configure_sentinel_pool(sentinel_client.connection_pool, target, AsyncReplyParser, _AsyncTlsConnection)
    return sentinel.master_for(target.service, connection_class=connection_class).connection_pool


def open_async_connection(target: RedisTarget, address: Address) -> Any:
    """An unopened connection to one server, for an event loop."""
    connection_class, options = _connection_class(target, redis.asyncio.Connection, _AsyncTlsConnection)
    return connection_class(host=address.host, port=address.port, **_async_connection_options(target), **options)


def can_listen(client: Any) -> bool:
    """Whether a caller's own client can receive messages beside its calls: on a second connection."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return False
    pool = getattr(client, "connection_pool", None)
    return pool is None or pool.max_connections > 1


def repeats_calls(client: Any) -> bool:
    """Whether a caller's own client repeats a call whose reply was lost, as redis-py's do by default.

    An asyncio client of a single server does not: its calls go over a multiplexer.
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

    Over TLS, closing waits until the server agrees, up to 30 s where it hangs, unless it is closed `at_once`.
    """
    writer: asyncio.StreamWriter | None = getattr(connection, "_writer", None)
    if at_once and writer is not None:
        writer.transport.abort()
    await connection.disconnect(nowait=True)


async def wait_closed(writer: asyncio.StreamWriter, within_s: float) -> None:
    """Wait until a connection is closed, after which the event loop may end; over TLS the server has to agree."""
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

    The transport cannot close it, since it needs the loop. uvloop has closed its sockets by then.
    """
    writer: asyncio.StreamWriter | None = getattr(connection, "_writer", None)
    sock = None if writer is None else getattr(writer.get_extra_info("socket"), "_sock", None)
    if sock is not None:
        sock.close()


def _connection_class(target: RedisTarget, plain: Any, over_tls: Any) -> tuple[Any, dict[str, Any]]:
    """The class of connections to a target, and the options of each except for timeouts."""
    if target.tls is None:
        return plain, dict(target.options)
    options = {name: value for name, value in target.options.items() if not name.startswith("ssl")}
    return over_tls, options | {"tls": target.tls}


def _sentinel_options(target: RedisTarget, common_options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a Sentinel's client: its user and timeouts.

    Errors of redis-py before 8.1 show all options of that client, except for those inside a credential provider.
    """
    options = {name: value for name, value in common_options.items() if name != "parser_class"}
    options |= {"socket_timeout": target.per_server_timeout_s, "socket_connect_timeout": target.per_server_timeout_s}
    if target.sentinel:
        options["credential_provider"] = UsernamePasswordCredentialProvider(**target.sentinel)
    return options


def _configure_sentinel_pool(pool: Any, target: RedisTarget, parser: Any, over_tls: Any) -> None:
    """Set options on connections to a Sentinel that its client does not accept."""
    pool.connection_kwargs["parser_class"] = parser
    if target.tls is not None:
        pool.connection_kwargs["tls"] = target.tls
        pool.connection_class = over_tls


def _connection_options(target: RedisTarget) -> dict[str, Any]:
    return {
        "socket_timeout": target.timeout_s,
        "socket_connect_timeout": target.first_timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "parser_class": ReplyParser,
    }


def _async_connection_options(target: RedisTarget) -> dict[str, Any]:
    """A multiplexer keeps its own deadlines, so its connections have none."""
    return {
        "socket_timeout": None,
        "socket_connect_timeout": target.first_timeout_s,
        "retry": AsyncRetry(NoBackoff(), 0),
        "protocol": 2,
        "parser_class": AsyncReplyParser,
    }
