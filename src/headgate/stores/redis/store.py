"""The Redis store: the same limits for many hosts, on Redis or Valkey, single, Sentinel or Cluster.

One script call a decision, by the server's clock; see docs/redis.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio
from redis.crc import key_slot

from headgate.clock import Clock
from headgate.decision import NamedLimit
from headgate.errors import ConfigError, kind_of
from headgate.forks import InOneProcess
from headgate.stores.batches import Done, Failing
from headgate.stores.protocol import AsyncBoundLimits, BoundLimits, Store, StoreStats
from headgate.stores.redis import scripts
from headgate.stores.redis.async_link import AsyncLink
from headgate.stores.redis.check_batches import decide_batch
from headgate.stores.redis.clients import can_listen, open_client, repeats_calls
from headgate.stores.redis.commands import Commands, ScriptCall
from headgate.stores.redis.errors import store_error
from headgate.stores.redis.eviction import EvictionNotice
from headgate.stores.redis.limits import AsyncRedisLimits, RedisLimits
from headgate.stores.redis.replies import check_reply
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.sync_link import SyncLink
from headgate.stores.redis.turns import Turns
from headgate.stores.redis.url import DEFAULT_PREFIX, DEFAULT_TIMEOUT_S, check_prefix, read_url

log = logging.getLogger("headgate")

_SCANNED = 1000


class RedisStore(InOneProcess, Store):
    """States in a Redis or Valkey that many hosts share; for threads and for asyncio.

    `server` is a URL (see `headgate.stores.redis.url`), or a client of redis-py: one of `redis` serves
    Limiter and Gate, one of `redis.asyncio` AsyncLimiter and AsyncGate. A client of your own keeps its
    own timeouts, and must not repeat a call whose reply was lost: disable its retries.

    Raises ConfigError for a URL or client that cannot be used. Nothing is connected before `warm_up` or the
    first call, for which a process waits up to `connect_timeout` (1 s), once. Later its limiters raise
    StoreTimeout after `timeout` (50 ms unless the URL says otherwise), which may have charged, and
    StoreUnavailable or StoreError where the server refuses.
    """

    blocking = True
    decides_batches = True

    def __init__(self, server: str | Any, *, prefix: str | None = None) -> None:
        self._sync_link: SyncLink | None = None
        self._async_link: AsyncLink | None = None
        self._scripts: dict[str, Script] = {}
        self.prefix = DEFAULT_PREFIX if prefix is None else check_prefix("prefix", prefix, "RedisStore")
        self.timeout_s = DEFAULT_TIMEOUT_S
        if isinstance(server, str):
            target = read_url(server)
            self.shown = target.shown
            self.prefix = target.prefix if prefix is None else self.prefix
            self.timeout_s = target.timeout_s
            self.is_cluster = target.kind == "cluster"
            notice = EvictionNotice(self.shown)
            self._sync_link = SyncLink(target, None, self.shown, self._scripts, notice)
            self._async_link = AsyncLink(target, None, self.shown, self._scripts, notice)
            self.turns = Turns(None, lambda: open_client(target))
            return
        self.turns = Turns(server if can_listen(server) else None)
        self.shown = f"a {type(server).__module__.partition('.')[0]} client"
        self.is_cluster = isinstance(server, redis.RedisCluster | redis.asyncio.RedisCluster)
        if isinstance(server, redis.asyncio.Redis | redis.asyncio.RedisCluster):
            self._async_link = AsyncLink.of_client(server, self.shown)
        elif isinstance(server, redis.Redis | redis.RedisCluster):
            self._sync_link = SyncLink.of_client(server, self.shown)
        else:
            raise ConfigError(f"a Redis store is a URL or a client of redis-py, not {kind_of(server)}")
        if repeats_calls(server):
            log.warning(
                "%s sends a call again whose reply was lost, which may charge it twice: make the client with "
                "retry=Retry(NoBackoff(), 0)",
                self.shown,
            )

    def bind(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> BoundLimits:
        """Bind limits, for threads."""
        return RedisLimits(self.sync_link, self.commands(limits), clock, self.turns)

    def bind_async(self, limits: Sequence[NamedLimit], *, clock: Clock | None = None) -> AsyncBoundLimits:
        """Bind limits, for an event loop."""
        known = len(self._scripts)
        commands = self.commands(limits)
        for script in list(self._scripts.values())[known:]:
            self.async_link.load(script)
        return AsyncRedisLimits(self.async_link, commands, clock, self.turns)

    def decide_batch(self, guard: Any, batch: Any, clock: Clock | None, failure: Failing, done: Done) -> None:
        """Decide the checks of a batch from the front door."""
        decide_batch(self.async_link, guard, batch, clock, failure, done)

    @property
    def sync_link(self) -> SyncLink:
        """The link for threads; raises ConfigError for a client of asyncio."""
        if self._sync_link is None:
            raise ConfigError(f"{self.shown} is for asyncio: use AsyncLimiter or AsyncGate")
        return self._sync_link

    @property
    def async_link(self) -> AsyncLink:
        """The link for event loops; raises ConfigError for a client of threads."""
        if self._async_link is None:
            raise ConfigError(f"{self.shown} is not for asyncio: use Limiter or Gate")
        return self._async_link

    @property
    def client(self) -> Any:
        """The client of redis-py that threads use for rare operations."""
        return self.sync_link.client

    def commands(self, limits: Sequence[NamedLimit]) -> Commands:
        """The commands that decide these limits."""
        commands = Commands(limits, self.prefix, key_slot if self.is_cluster else None)
        if (script := commands.usual_script()) is not None:
            self._scripts[script.sha] = script
        return commands

    def stats(self) -> StoreStats:
        """All zero: the server has its own figures."""
        return StoreStats(keys=0, bytes=0, max_keys=0, expired=0, evicted=0, refused_full=0, passed_full=0)

    def clear(self) -> None:
        """Forget everything under this store's prefix, in small steps between which other clients are served."""
        try:
            pending: list[bytes] = []
            for name in self.client.scan_iter(match=f"{self.prefix}:{{*}}:*", count=_SCANNED):
                pending.append(name)
                if len(pending) >= _SCANNED:
                    self._unlink(pending)
                    pending.clear()
            self._unlink(pending)
        except Exception as error:  # anything that redis-py raises for what a server sends
            raise store_error(error, self.shown) from error

    def _unlink(self, names: list[bytes]) -> None:
        if self.is_cluster:
            for name in names:
                self.client.unlink(name)
        elif names:
            self.client.unlink(*names)

    def probe(self) -> None:
        """Raise StoreError if the server would not charge: a replica, one with no memory left, or a missing right."""
        check_reply(self.sync_link.run(self._probe), b"OK")

    async def probe_async(self) -> None:
        """`probe` for an event loop."""
        check_reply(await self.async_link.run(self._probe), b"OK")

    @property
    def _probe(self) -> ScriptCall:
        """The call of a script that leaves nothing behind."""
        return ScriptCall(scripts.probe(), [f"{self.prefix}:{{probe}}:probe".encode()], [])

    def ping(self) -> None:
        """Raise StoreError if a server does not answer."""
        self.sync_link.ping()

    async def ping_async(self) -> None:
        """`ping` for an event loop."""
        await self.async_link.ping()

    def warm_up(self) -> None:
        """Connect and load the scripts; raises StoreError where that fails or does not finish in time."""
        self.sync_link.warm_up()

    async def warm_up_async(self) -> None:
        """`warm_up` for an event loop."""
        await self.async_link.warm_up()

    def close(self) -> None:
        """Close the connections of threads; the states stay."""
        if self._sync_link is not None:
            self._sync_link.close()

    async def aclose(self) -> None:
        """Close all connections; the states stay."""
        if self._async_link is not None:
            await self._async_link.close()
        self.close()

    def __repr__(self) -> str:
        return f"RedisStore({self.shown!r}, prefix={self.prefix!r})"
