"""The link of a Redis store for event loops: which multiplexer takes a call, and what if it was not executed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import redis.asyncio
from redis import exceptions
from redis.client import NEVER_DECODE
from redis.crc import key_slot

from headgate.drive import drive_async
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.redis.clients import open_async_connection, open_async_pool
from headgate.stores.redis.commands import Command, ScriptCall
from headgate.stores.redis.errors import never_sent, store_error, unconnected
from headgate.stores.redis.eviction import EvictionNotice
from headgate.stores.redis.first_connection import first_commands
from headgate.stores.redis.multiplexer import Multiplexer
from headgate.stores.redis.own_cluster import OwnCluster
from headgate.stores.redis.replies import check_said
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.silent_servers import SilentServers
from headgate.stores.redis.slot_map import (
    ELSEWHERE,
    LOST,
    PAUSE_S,
    RecordKey,
    SearchStep,
    SendTo,
    SlotMap,
    is_moving,
    too_late,
)
from headgate.stores.redis.url import Address, Place

_AS_BYTES = {NEVER_DECODE: True}
"""For a client of the caller's own that decodes what it reads."""

_NOT_EXECUTED = (exceptions.NoScriptError, exceptions.ReadOnlyError)
"""What a server says that did not run a script; another way may."""

_PATIENCE_S = 5.0
"""How long a call over the connections of a caller's own client may take."""


class AsyncLink:
    """How event loops reach the servers of a store: as `SyncLink`, awaited. Each loop has its own connections."""

    def __init__(
        self, place: Place | None, client: Any, shown: str, scripts: dict[str, Script], notice: EvictionNotice
    ) -> None:
        self._place = place
        self._scripts = scripts
        self._notice = notice
        self._pid = os.getpid()
        self._client = client
        self.shown = shown
        self._timeout_s = _PATIENCE_S if place is None else place.timeout_s
        self._silent, self._failed = SilentServers(), dict[Address, None]()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop, _LoopConnections] | None = None

    @classmethod
    def of_client(cls, client: Any, shown: str) -> AsyncLink:
        """Over the connections that a client of redis-py makes."""
        return cls(None, client, shown, {}, EvictionNotice(shown))

    async def run(self, call: ScriptCall) -> Any:
        """The reply of a script."""
        connections, within_s = self._here(), None
        command = call.by_sha
        try:
            if not connections.first_is_over:
                try:
                    within_s = await connections.connect_first()
                except Exception as error:
                    raise never_sent(store_error(error, self.shown)) from error
            try:
                if connections.multiplexer is not None:
                    return await connections.multiplexer.ask(command, within_s=within_s)
                return await connections.ask(call.keys[0], command, within_s)
            except exceptions.NoScriptError:
                command = call.by_text
            except exceptions.ReadOnlyError:
                pass
            return await connections.ask(call.keys[0], command, within_s)
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def ask(self, key: bytes | None, command: Command) -> Any:
        """The reply to a command, from the server that has a key (None: any)."""
        connections = self._here()
        try:
            if not connections.first_is_over:
                await connections.connect_first()
            return await connections.ask(key, command)
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The replies of scripts that are called together, errors in their places; in one write to a single server."""
        connections = self._here()
        multiplexer = connections.multiplexer
        if not connections.first_is_over or multiplexer is None:
            return list(await asyncio.gather(*map(self.run, calls), return_exceptions=True))
        return await self.repaired(calls, await multiplexer.ask_many([call.by_sha for call in calls]))

    @property
    def multiplexer(self) -> Multiplexer | None:
        """The connection that takes all calls of this event loop; None of a Cluster, and before the first call."""
        connections = self._here()
        return connections.multiplexer if connections.first_is_over else None

    async def repaired(self, calls: Sequence[ScriptCall], replies: list[Any]) -> list[Any]:
        """The replies to scripts, from a multiplexer, with errors as ours; what was not executed is asked again."""
        again: list[int] = []
        for place, reply in enumerate(replies):
            if isinstance(reply, _NOT_EXECUTED):
                again.append(place)
            elif isinstance(reply, Exception):
                replies[place] = error = store_error(reply, self.shown)
                if error is not reply:
                    error.__cause__ = reply
        if again:
            repeated = await asyncio.gather(*[self.run(calls[place]) for place in again], return_exceptions=True)
            for place, reply in zip(again, repeated, strict=True):
                replies[place] = reply
        return replies

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The replies of scripts that are called together."""
        return list(await asyncio.gather(*map(self.run, calls)))

    async def ask_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        """The replies to commands, each from the server that has its key."""
        return list(await asyncio.gather(*[self.ask(key, command) for key, command in requests]))

    async def warm_up(self) -> None:
        """Connect and load the scripts; raises StoreError where that does not succeed in the time it has."""
        connections = self._here()
        try:
            await (connections.ask(None, ("PING",)) if self._place is None else connections.warm_up())
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def ping(self) -> None:
        """Raise StoreError if a server does not answer."""
        check_said(await self.ask(None, ("PING",)), b"PONG")

    async def close(self) -> None:
        """End the connections of this event loop."""
        connections = self._by_loop.pop(asyncio.get_running_loop(), None)
        self._last = None
        if connections is not None:
            await connections.close()

    def _here(self) -> _LoopConnections:
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():  # those of the parent are the parent's
            self._by_loop, self._last, self._pid = WeakKeyDictionary(), None, os.getpid()
        if self._last is not None and self._last[0] is loop:
            return self._last[1]
        connections = self._by_loop.get(loop)
        if connections is None:
            self._leave_closed_loops()
            connections = self._by_loop[loop] = _LoopConnections(
                self._place, self._client, self.shown, self._timeout_s, self._scripts, self._notice, self._silent,
                self._failed,
            )  # fmt: skip
        self._last = (loop, connections)
        return connections

    def _leave_closed_loops(self) -> None:
        """Close what event loops have left open that ended without closing their store: it would keep them, too."""
        for known in list(self._by_loop.keyrefs()):
            ended = known()
            if ended is not None and ended.is_closed():
                connections = self._by_loop.pop(ended, None)
                if connections is not None:
                    connections.leave()


class _LoopConnections:
    """The multiplexers of one event loop, one for each server."""

    def __init__(
        self,
        place: Place | None,
        client: Any,
        shown: str,
        timeout_s: float,
        scripts: dict[str, Script],
        notice: EvictionNotice,
        silent: SilentServers,
        failed: dict[Address, None],
    ) -> None:
        self._place = place
        self._shown = shown
        self._timeout_s = timeout_s
        self._multiplexers: dict[Address | None, Multiplexer] = {}
        self._own_cluster = client if isinstance(client, redis.asyncio.RedisCluster) else None
        self._servers = OwnCluster(client, shown, silent)
        self._pool: Any = None
        self._kind = "cluster" if self._own_cluster is not None else "single" if place is None else place.kind
        self._slots = SlotMap(() if place is None else place.addresses, silent, failed)
        self._learned: asyncio.Task[None] | None = None
        self._scripts = scripts
        self._notice = notice
        self.first_is_over = place is None
        """Whether the first connection was made here, or was not in its time."""

        self._first: asyncio.Task[None] | None = None
        self._first_until = 0.0
        self._within_s: float | None = None
        """The deadline of what is asked to find the way, while the first connection is made."""

        if self._kind != "cluster":
            own: Any = client
            self._pool = own.connection_pool if place is None else open_async_pool(place)

    @property
    def multiplexer(self) -> Multiplexer | None:
        """The only one, where there is one server and it was called before."""
        return self._multiplexers.get(None)

    async def connect_first(self) -> float | None:
        """Make the first connection, which has a deadline of its own; calls that come meanwhile wait for it together.

        Gives what is left of that deadline, which these calls have as well; None where that is no more than usual.
        """
        loop = asyncio.get_running_loop()
        if self._first is None:
            assert self._place is not None
            self._first_until = loop.time() + self._place.first_s
            self._first = loop.create_task(self._connect_first())
            self._first.add_done_callback(_retrieve)
        await asyncio.shield(self._first)
        left_s = self._first_until - loop.time()
        return left_s if left_s > self._timeout_s else None

    async def warm_up(self) -> None:
        if self._first is not None and self._first.done() and (self._first.cancelled() or self._first.exception()):
            self._first, self.first_is_over = None, False
        await self.connect_first()

    async def _connect_first(self) -> None:
        assert self._place is not None
        commands, within_s, addresses = first_commands(self._scripts), self._place.first_s, list[Address]()
        try:
            async with asyncio.timeout(within_s):
                if self._kind == "cluster":
                    self._within_s = self._place.each_s
                    await self._learn()
                    addresses = self._slots.servers()
                else:
                    await self._send_first(None, commands, within_s)
            if self._kind == "cluster":
                await self._connect_each(addresses, commands, within_s)
        except TimeoutError as error:
            raise unconnected(self._shown) from error
        finally:
            self._within_s = None
            self.first_is_over = True

    async def _connect_each(self, addresses: Sequence[Address], commands: Sequence[Command], within_s: float) -> None:
        """Connect to servers; one that does not answer in time is left out: the first call to it gets the error."""
        silent = self._slots.silent
        loop = asyncio.get_running_loop()
        connecting = {
            loop.create_task(self._send_first(address, commands, within_s)): address
            for address in addresses
            if not silent.has(address)
        }
        try:
            late = (await asyncio.wait(connecting, timeout=self._first_until - loop.time()))[1] if connecting else ()
            for task in late:
                with suppress(StoreError):
                    silent.blame(unconnected(self._shown), connecting[task], self._shown)
        finally:
            for task in connecting:
                task.add_done_callback(_retrieve)
                task.cancel()

    async def _send_first(self, address: Address | None, commands: Sequence[Command], within_s: float) -> None:
        multiplexer = self._multiplexer(address)
        asked = [multiplexer.ask(command, within_s=within_s) for command in commands]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        self._notice.see(replies)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, exceptions.ResponseError):
                raise reply

    async def ask(self, key: bytes | None, command: Command, within_s: float | None = None) -> Any:
        if self._kind != "cluster":
            multiplexer = self._multiplexer(None)
            connections = multiplexer.connections
            try:
                return await multiplexer.ask(command, within_s=within_s)
            except exceptions.ReadOnlyError:
                if self._place is None or self._place.kind != "sentinel":
                    raise
                if multiplexer.connections == connections:  # else another call has found the new primary
                    await multiplexer.drop("it is no primary any more")
                return await multiplexer.ask(command, within_s=within_s)  # it was not executed
        if self._own_cluster is not None:
            if command == ("PING",):  # redis-py makes one reply of those of several servers
                return await self._own_cluster.ping()
            with self._servers.asking(key):
                return await self._own_cluster.execute_command(*command, **_AS_BYTES)
        return await self._ask_cluster(key, command, within_s)

    async def _ask_cluster(self, key: bytes | None, command: Command, within_s: float | None = None) -> Any:
        slot, whole = 0 if key is None else key_slot(key), isinstance(key, RecordKey)
        until = asyncio.get_running_loop().time() + (within_s or self._timeout_s)

        refusal: Exception | None = None
        sent_to: Address | None = None
        asked: Address | None = None
        address = self._slots.server_of(slot)

        async def do(step: SearchStep | SendTo) -> Any:
            nonlocal address, refusal, sent_to
            if not isinstance(step, SendTo):
                return await (self._learn() if step is SearchStep.LEARN else asyncio.sleep(PAUSE_S))
            before = ("ASKING",) if step.asking else None
            address = sent_to = step.address
            try:
                return await self._multiplexer(step.address).ask(command, before=before, within_s=within_s)
            except exceptions.ResponseError as error:
                refusal, sent_to = error, None
                raise

        if address is not None:  # the usual way, whose deadline is kept by the multiplexer
            silent = self._slots.silent
            if silent.failures:
                silent.check(address, self._shown)
            try:
                reply = await self._multiplexer(address).ask(command, within_s=within_s)
            except exceptions.ResponseError as error:
                moves = whole and is_moving(error)
                if not (moves or isinstance(error, ELSEWHERE)):
                    silent.blame(error, address, self._shown)
                silent.directed(error, address)
                asked = None if moves else self._slots.directed(error, slot, address)
            except LOST as error:
                self._slots.doubt(address)
                silent.blame(error, address, self._shown)
            else:
                if silent.failures:
                    silent.answered(address)
                return reply
        try:
            async with asyncio.timeout_at(until):
                return await drive_async(self._slots.search(slot, self._shown, asked, whole=whole), do)
        except TimeoutError as error:
            if sent_to is None:
                raise too_late(self._shown, refusal, address) from error
            self._slots.doubt(sent_to)
            self._slots.silent.blame(error, sent_to, self._shown)

    async def _learn(self) -> None:
        """Ask where each slot is; calls that come together ask once."""
        if self._learned is None or self._learned.done():
            self._learned = asyncio.get_running_loop().create_task(self._ask_where())
            self._learned.add_done_callback(_retrieve)
        await asyncio.shield(self._learned)

    async def _ask_where(self) -> None:
        assert self._place is not None
        last: Exception = StoreUnavailable(f"{self._shown}: no server answers")
        for address in self._slots.candidates(address for address in self._multiplexers if address is not None):
            try:
                self._slots.learn(await self._where(address), address)
            except (exceptions.RedisError, OSError, StoreError) as error:
                last = error
                self._slots.doubt(address)
                continue
            return
        raise last

    def _where(self, address: Address) -> asyncio.Future[Any]:
        return self._multiplexer(address).ask(("CLUSTER", "SLOTS"), within_s=self._within_s)

    def _multiplexer(self, address: Address | None) -> Multiplexer:
        return self._multiplexers.get(address) or self._new_multiplexer(address)

    def _new_multiplexer(self, address: Address | None) -> Multiplexer:
        connected_within_s = self._timeout_s + (1.0 if self._place is None else self._place.first_s)

        async def connect() -> Any:
            if address is None:
                connection = self._pool.make_connection()
            else:
                assert self._place is not None
                connection = open_async_connection(self._place, address)
            try:
                async with asyncio.timeout(connected_within_s):
                    await connection.connect()
            except Exception as error:
                await connection.disconnect(nowait=True)
                raise never_sent(store_error(error, self._shown)) from error
            return connection

        multiplexer = self._multiplexers[address] = Multiplexer(connect, self._shown, self._timeout_s)
        return multiplexer

    async def close(self) -> None:
        if self._first is not None:
            self._first.cancel()
        while self._multiplexers:  # what is on its way may add some meanwhile
            await self._multiplexers.popitem()[1].close()
        if self._kind == "sentinel":
            for sentinel in self._pool.sentinel_manager.sentinels:
                await sentinel.aclose()

    def leave(self) -> None:
        """Close the sockets of an event loop that is closed: nothing can be awaited there."""
        for multiplexer in self._multiplexers.values():
            multiplexer.leave()


def _retrieve(task: asyncio.Task[None]) -> None:
    """Waiting calls get the error of a task; where none waits any more, it is dropped."""
    if not task.cancelled():
        task.exception()
