"""What redis-py gives for a place: clients and connections, in both colours.

None of them sends a call again: one whose answer was lost may have been charged.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from headgate.stores.redis.replies import AsyncReplyParser, ReplyParser
from headgate.stores.redis.url import Address, Place

_SENTINEL: Any = redis.Sentinel  # these have no types
_ASYNC_SENTINEL: Any = redis.asyncio.Sentinel
_NODE: Any = ClusterNode
_POOL: Any = redis.BlockingConnectionPool


def open_client(place: Place) -> Any:
    """The client of a place, for threads."""
    never = _options(place)
    if place.kind == "single":
        options = dict(place.options)
        kind: Any = redis.SSLConnection if options.pop("ssl", False) else redis.Connection
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
        asking = {name: value for name, value in never.items() if name != "parser_class"}
        asking |= {"socket_timeout": place.each_s, "socket_connect_timeout": place.each_s}
        sentinel = _SENTINEL(list(place.addresses), sentinel_kwargs=asking, **never, **place.options)
        for each in sentinel.sentinels:  # whose client does not take it
            each.connection_pool.connection_kwargs["parser_class"] = ReplyParser
        return sentinel.master_for(place.service)
    nodes = [_NODE(host, port) for host, port in place.addresses]
    return redis.RedisCluster(
        startup_nodes=nodes, max_connections=place.connections,
        **never, **place.options,
    )  # fmt: skip


def open_connection(place: Place, address: Address) -> Any:
    """A connection to one server, for threads; it is not connected yet."""
    options = dict(place.options)
    kind: Any = redis.SSLConnection if options.pop("ssl", False) else redis.Connection
    return kind(host=address.host, port=address.port, **_options(place), **options)


def open_async_pool(place: Place) -> Any:
    """What makes connections to a place, for an event loop."""
    never = _async_options(place)
    if place.kind == "single":
        options = dict(place.options)
        kind: Any = redis.asyncio.SSLConnection if options.pop("ssl", False) else redis.asyncio.Connection
        where: dict[str, Any] = {"path": place.socket}
        if place.socket:
            kind = redis.asyncio.UnixDomainSocketConnection
        else:
            where = place.addresses[0]._asdict()
        return redis.asyncio.ConnectionPool(connection_class=kind, **where, **options, **never)
    asking = {name: value for name, value in never.items() if name != "parser_class"}
    asking |= {"socket_timeout": place.each_s, "socket_connect_timeout": place.each_s}
    sentinel = _ASYNC_SENTINEL(list(place.addresses), sentinel_kwargs=asking, **never, **place.options)
    for each in sentinel.sentinels:  # whose client does not take it
        each.connection_pool.connection_kwargs["parser_class"] = AsyncReplyParser
    return sentinel.master_for(place.service).connection_pool


def open_async_connection(place: Place, address: Address) -> Any:
    """A connection to one server, for an event loop; it is not connected yet."""
    options = dict(place.options)
    kind = redis.asyncio.SSLConnection if options.pop("ssl", False) else redis.asyncio.Connection
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
