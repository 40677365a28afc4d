"""The Redis store: the same limits for many hosts, on Redis or Valkey, single, Sentinel or Cluster.

One script call a decision, by the server's clock; see docs/redis.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis
import redis.asyncio
import redis.exceptions
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.cluster import ClusterNode
from redis.crc import key_slot
from redis.exceptions import NoScriptError
from redis.retry import Retry

from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.errors import ConfigError
from headgate.stores.protocol import AsyncBoundLimits, BoundLimits, Store, StoreStats
from headgate.stores.redis.async_link import AsyncLink
from headgate.stores.redis.cluster import ClusterLines
from headgate.stores.redis.commands import Call, Calls
from headgate.stores.redis.errors import store_error
from headgate.stores.redis.first_connection import FirstAttempt, first_commands
from headgate.stores.redis.limits import AsyncRedisLimits, RedisLimits, look
from headgate.stores.redis.multiplexer import command_of
from headgate.stores.redis.pool import Lines, sound
from headgate.stores.redis.replies import ReplyParser, check_said, read_time
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.url import DEFAULT_PREFIX, DEFAULT_TIMEOUT_S, Place, read_url

_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
_ERRORS = Exception
"""Whatever a client of redis-py makes of what a server sends."""

_SCANNED = 1000
MOST_TOGETHER = 500
"""Calls that travel in one write."""

_AS_BYTES = {NEVER_DECODE: True}
"""For a client of the caller's own that decodes what it reads."""

_SENTINEL: Any = redis.Sentinel  # these have no types
_NODE: Any = ClusterNode
_POOL: Any = redis.BlockingConnectionPool


class RedisStore(Store):
    """States in a Redis or Valkey that many hosts share; for threads and for asyncio.

    `server` is a URL (see `headgate.stores.redis.url`), or a client of redis-py: one of `redis` serves
    Limiter and Gate, one of `redis.asyncio` AsyncLimiter and AsyncGate. A client of your own keeps its
    own timeouts, and must not repeat a call whose answer was lost: give it no retries.

    Raises ConfigError for a URL or client that cannot be used. Nothing is connected before `warm_up` or the
    first call, for which a process waits up to `connect_timeout` (1 s), once. Later its limiters raise
    StoreTimeout after `timeout` (50 ms unless the URL says otherwise), which may have charged, and
    StoreUnavailable or StoreError where the server refuses.
    """

    blocking = True
    shown = ""
    """Where it is, without a password."""

    def __init__(self, server: str | Any, *, prefix: str | None = None) -> None:
        self._client: Any = None
        self._link: AsyncLink | None = None
        self._lines: Lines | ClusterLines | None = None
        self._execute: Callable[..., Any] | None = None
        self._first: FirstAttempt | None = None
        self._scripts: dict[str, Script] = {}
        self.prefix = prefix or DEFAULT_PREFIX
        self.timeout_s = DEFAULT_TIMEOUT_S
        self._place: Place | None = None
        if isinstance(server, str):
            self._place = read_url(server)
            self.shown = self._place.shown
            self.prefix = prefix or self._place.prefix
            self.timeout_s = self._place.timeout_s
            self.is_cluster = self._place.kind == "cluster"
            self._first = FirstAttempt(self._place)
            return
        self.shown = f"a {type(server).__module__.partition('.')[0]} client"
        self.is_cluster = isinstance(server, _CLUSTERS)
        if isinstance(server, redis.asyncio.Redis | redis.asyncio.RedisCluster):
            self._link = AsyncLink.of_client(server, self.shown)
        elif isinstance(server, redis.Redis | redis.RedisCluster):
            self._client = server
        else:
            raise ConfigError(f"a Redis store is a URL or a client of redis-py, not a {type(server).__name__}")

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """The limits, ready to be asked from threads."""
        if self._place is None and self._client is None:
            raise ConfigError(f"{self.shown} is for asyncio: use AsyncLimiter or AsyncGate")
        return RedisLimits(self, self.calls(limits), clock)

    def bind_async(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> AsyncBoundLimits:
        """The limits, ready to be asked from an event loop."""
        return AsyncRedisLimits(self._open_link(), self.calls(limits), clock)

    def _open_link(self) -> AsyncLink:
        if self._link is None:
            if self._place is None:
                raise ConfigError(f"{self.shown} is not for asyncio: use Limiter or Gate")
            self._link = AsyncLink(self._place, scripts=self._scripts)
        return self._link

    def calls(self, limits: Sequence[NamedLimit]) -> Calls:
        """How these limits are asked."""
        calls = Calls(limits, self.prefix, key_slot if self.is_cluster else None)
        if (script := calls.usual_script()) is not None:
            self._scripts[script.sha] = script
        return calls

    @property
    def client(self) -> Any:
        """The client of redis-py that threads use."""
        if self._client is None:
            if self._place is None:
                raise ConfigError(f"{self.shown} is for asyncio")
            self._client = _open_client(self._place)
        return self._client

    def run(self, call: Call) -> Any:
        """The reply of a script."""
        try:
            if self._first is not None and not self._first.is_over:
                with self._first.made(self._connect):
                    assert self._lines is not None
                    return self._run(call, self._lines.execute_first)
            return self._run(call, self._execute or self._open_lines())
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    def _run(self, call: Call, execute: Callable[..., Any]) -> Any:
        keys = len(call.keys)
        try:
            return execute("EVALSHA", call.script.sha, keys, *call.keys, *call.arguments)
        except NoScriptError:
            return execute("EVAL", call.script.text, keys, *call.keys, *call.arguments)

    def run_many(self, calls: Sequence[Call]) -> list[Any]:
        """The replies of scripts that are called together; one by one where there are many servers."""
        if self._place is None or self.is_cluster:
            return [self.run(call) for call in calls]
        assert self._first is not None
        try:
            with self._first.made(self._connect):
                return self._run_together(calls)
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    def _run_together(self, calls: Sequence[Call]) -> list[Any]:
        if self._lines is None:
            self._open_lines()
        assert isinstance(self._lines, Lines)
        replies: list[Any] = []
        for start in range(0, len(calls), MOST_TOGETHER):
            some = calls[start : start + MOST_TOGETHER]
            found = self._lines.execute_many(
                [command_of("EVALSHA", call.script.sha, call.keys, call.arguments) for call in some]
            )
            for call, reply in zip(some, found, strict=True):
                # A script that is not there was not executed.
                replies.append(self.run(call) if isinstance(reply, NoScriptError) else sound(reply))
        return replies

    def _sender(self) -> Callable[..., Any]:
        """What sends a command, in a process that has made its first connection, or tried to."""
        if self._first is not None and not self._first.is_over:
            self._first.make(self._connect)
        return self._execute or self._open_lines()

    def _connect(self) -> None:
        if self._execute is None:
            self._open_lines()
        assert self._lines is not None
        self._lines.open(first_commands(self._scripts))

    def warm_up(self) -> None:
        """Connect and load the scripts; raises StoreError where that does not succeed in the time it has."""
        try:
            if self._first is None:
                self.client.ping()
            elif not self._first.has_succeeded:
                if self._first.is_over:
                    self._first.forget()
                self._first.make(self._connect)
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    async def warm_up_async(self) -> None:
        """`warm_up` for an event loop."""
        await self._open_link().warm_up()

    def _open_lines(self) -> Callable[..., Any]:
        """What sends a command: over lines of our own, which cost less than a client and keep deadlines."""
        if self._place is None:
            self._execute = partial(self.client.execute_command, **_AS_BYTES)
            return self._execute
        assert self._first is not None
        if self.is_cluster:
            self._lines = ClusterLines(self._place, self._first.patience_s)
        else:
            make, first_s = self.client.connection_pool.make_connection, self._place.first_s
            self._lines = Lines(make, self.timeout_s, self._place.connections, first_s, self._first.patience_s)
        self._execute = self._lines.execute
        return self._execute

    def fetch(self, definitions: Sequence[NamedLimit], names: Sequence[bytes]) -> tuple[list[Any], int]:
        """What is stored under each name, None where nothing is, and the server's moment in microseconds."""
        try:
            execute = self._sender()
            found = [
                execute(*look(definition, name)) or None for definition, name in zip(definitions, names, strict=True)
            ]
            if isinstance(self._lines, ClusterLines):
                moment = self._lines.ask(names[0], "TIME")
            elif self.is_cluster:
                moment = self.client.time(target_nodes="random")
            else:
                moment = execute("TIME")
        except _ERRORS as error:
            raise store_error(error, self.shown) from error
        return found, read_time(moment)

    def stats(self) -> StoreStats:
        """Not counted here: a server's own figures tell of all that it holds."""
        return StoreStats(keys=0, bytes=0, max_keys=0, expired=0, evicted=0, refused_full=0, passed_full=0)

    def clear(self) -> None:
        """Forget everything under this store's prefix, a piece at a time, while others use it."""
        try:
            pending: list[bytes] = []
            for name in self.client.scan_iter(match=f"{self.prefix}:{{*}}:*", count=_SCANNED):
                pending.append(name)
                if len(pending) >= _SCANNED:
                    self._unlink(pending)
                    pending.clear()
            self._unlink(pending)
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    def _unlink(self, names: list[bytes]) -> None:
        if self.is_cluster:
            for name in names:
                self.client.unlink(name)
        elif names:
            self.client.unlink(*names)

    def probe(self) -> None:
        """Raise StoreError if the server would not charge: a replica, or one with no memory left."""
        try:
            execute = self._sender()
            check_said(execute("SET", self._probe_name, b"", "PX", 1000), b"OK")
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    async def probe_async(self) -> None:
        """`probe` for an event loop."""
        check_said(await self._open_link().ask(self._probe_name, ("SET", self._probe_name, b"", "PX", 1000)), b"OK")

    @property
    def _probe_name(self) -> bytes:
        return f"{self.prefix}:{{probe}}:probe".encode()

    def ping(self) -> None:
        """Raise StoreError if a server does not answer."""
        try:
            execute = self._sender()
            if isinstance(self._lines, ClusterLines):
                said = self._lines.ask(self._probe_name, "PING")
            else:
                said = self.client.ping() if self.is_cluster else execute("PING")
            check_said(said, b"PONG")
        except _ERRORS as error:
            raise store_error(error, self.shown) from error

    async def ping_async(self) -> None:
        """`ping` for an event loop."""
        await self._open_link().ping()

    def close(self) -> None:
        """Close the connections of threads; the states stay."""
        if self._lines is not None:
            self._lines.close()
        if self._first is not None:
            self._first.forget()
        if self._place is not None:
            if self._client is not None:
                self._client.close()
            self._client = self._lines = self._execute = None

    async def aclose(self) -> None:
        """Close all connections; the states stay."""
        if self._link is not None:
            await self._link.close()
        self.close()

    def __repr__(self) -> str:
        return f"RedisStore({self.shown!r}, prefix={self.prefix!r})"


def _open_client(place: Place) -> Any:
    never: dict[str, Any] = {
        "socket_timeout": place.timeout_s,
        "socket_connect_timeout": place.first_s,
        "retry": Retry(NoBackoff(), 0),  # a call whose answer was lost may have been charged
        "protocol": 2,
        "parser_class": ReplyParser,
    }
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
