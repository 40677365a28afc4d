"""The link of a Redis store for event loops: it picks the multiplexer for a call and repeats what was not executed."""

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

from headgate.drive import NEEDS_ASYNCIO, drive_async
from headgate.errors import ConfigError, StoreError, StoreUnavailable
from headgate.stores.redis.caller_cluster import CallerCluster
from headgate.stores.redis.clients import open_async_connection, open_async_pool
from headgate.stores.redis.commands import Command, ScriptCall
from headgate.stores.redis.errors import NO_PRIMARY, mark_unsent, no_connection_error, store_error
from headgate.stores.redis.eviction import EvictionNotice
from headgate.stores.redis.first_connection import first_commands
from headgate.stores.redis.multiplexer import Multiplexer
from headgate.stores.redis.replies import check_reply
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
from headgate.stores.redis.url import Address, RedisTarget

_AS_BYTES = {NEVER_DECODE: True}
"""Keeps replies as bytes on a caller's own client, which may decode what it reads."""

_NOT_EXECUTED = (exceptions.NoScriptError, *NO_PRIMARY)
"""Errors of a server that did not run a script; another attempt may run it."""

_CALLER_TIMEOUT_S = 5.0
"""The deadline of a call over the connections of a caller's own client."""


class AsyncLink:
    """The awaitable counterpart of `SyncLink`. Each event loop has its own connections."""

    def __init__(
        self, target: RedisTarget | None, client: Any, shown: str, scripts: dict[str, Script], notice: EvictionNotice
    ) -> None:
        self._target = target
        self._scripts = scripts
        self._notice = notice
        self._pid = os.getpid()
        self._client = client
        self.shown = shown
        self._timeout_s = _CALLER_TIMEOUT_S if target is None else target.timeout_s
        self._silent, self._failed = SilentServers(), dict[Address, None]()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = WeakKeyDictionary()
        self._latest: tuple[asyncio.AbstractEventLoop, _LoopConnections] | None = None

    @classmethod
    def of_client(cls, client: Any, shown: str) -> AsyncLink:
        """A link over the connections that a client of redis-py makes."""
        return cls(None, client, shown, {}, EvictionNotice(shown))

    async def run(self, call: ScriptCall) -> Any:
        """Call a script and return its reply."""
        connections, within_s = self._connections_here(), None
        command = call.by_sha
        try:
            if not connections.first_is_finished:
                try:
                    within_s = await connections.connect_first()
                except Exception as error:
                    raise mark_unsent(store_error(error, self.shown)) from error
            try:
                if connections.multiplexer is not None:
                    return await connections.multiplexer.execute(command, within_s=within_s)
                return await connections.execute(call.keys[0], command, within_s)
            except _NOT_EXECUTED:
                command = call.by_text  # another server may not have the script either
            return await connections.execute(call.keys[0], command, within_s)
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def execute(self, key: bytes | None, command: Command) -> Any:
        """Execute a command on the server that has a key (None: any server) and return its reply."""
        connections = self._connections_here()
        try:
            if not connections.first_is_finished:
                await connections.connect_first()
            return await connections.execute(key, command)
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Call scripts together, in one write to a single server; return their replies, with errors in their places."""
        connections = self._connections_here()
        multiplexer = connections.multiplexer
        if not connections.first_is_finished or multiplexer is None:
            return list(await asyncio.gather(*map(self.run, calls), return_exceptions=True))
        return await self.repeat_unexecuted(calls, await multiplexer.execute_many([call.by_sha for call in calls]))

    @property
    def multiplexer(self) -> Multiplexer | None:
        """The connection that takes all calls of this event loop; None of a Cluster, and before the first call."""
        connections = self._connections_here()
        return connections.multiplexer if connections.first_is_finished else None

    def load(self, script: Script) -> None:
        """Have the servers to which this event loop is connected load a script, before the calls that follow.

        A call whose script its server lacks is repeated, behind calls that were sent after it.
        """
        try:
            connections = self._by_loop.get(asyncio.get_running_loop())
        except RuntimeError:
            return
        if connections is not None and connections.first_is_finished and self._pid == os.getpid():
            connections.load(script)

    async def repeat_unexecuted(self, calls: Sequence[ScriptCall], replies: list[Any]) -> list[Any]:
        """Convert the errors among a multiplexer's replies to scripts, and repeat the calls that were not executed."""
        indexes: list[int] = []
        for index, reply in enumerate(replies):
            if isinstance(reply, _NOT_EXECUTED):
                indexes.append(index)
            elif isinstance(reply, Exception):
                replies[index] = error = store_error(reply, self.shown)
                if error is not reply:
                    error.__cause__ = reply
        if indexes:
            repeated = await asyncio.gather(*[self.run(calls[index]) for index in indexes], return_exceptions=True)
            for index, reply in zip(indexes, repeated, strict=True):
                replies[index] = reply
        return replies

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Call scripts together and return their replies."""
        return list(await asyncio.gather(*map(self.run, calls)))

    async def execute_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        """Execute commands, each on the server that has its key, and return their replies."""
        return list(await asyncio.gather(*[self.execute(key, command) for key, command in requests]))

    async def warm_up(self) -> None:
        """Connect and load the scripts; raises StoreError where that fails or does not finish in time."""
        connections = self._connections_here()
        try:
            await (connections.execute(None, ("PING",)) if self._target is None else connections.warm_up())
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def ping(self) -> None:
        """Raise StoreError if a server does not answer."""
        check_reply(await self.execute(None, ("PING",)), b"PONG")

    async def close(self) -> None:
        """End the connections of this event loop."""
        connections = self._by_loop.pop(asyncio.get_running_loop(), None)
        self._latest = None
        if connections is not None:
            await connections.close()

    def _connections_here(self) -> _LoopConnections:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(NEEDS_ASYNCIO) from None
        if self._pid != os.getpid():  # those of the parent are the parent's
            self._by_loop, self._latest, self._pid = WeakKeyDictionary(), None, os.getpid()
        if self._latest is not None and self._latest[0] is loop:
            return self._latest[1]
        connections = self._by_loop.get(loop)
        if connections is None:
            self._close_ended_loops()
            connections = self._by_loop[loop] = _LoopConnections(
                self._target, self._client, self.shown, self._timeout_s, self._scripts, self._notice, self._silent,
                self._failed,
            )  # fmt: skip
        self._latest = (loop, connections)
        return connections

    def _close_ended_loops(self) -> None:
        """Close the connections of loops that ended without closing their store; they would keep the loops alive."""
        for reference in list(self._by_loop.keyrefs()):
            ended = reference()
            if ended is not None and ended.is_closed():
                connections = self._by_loop.pop(ended, None)
                if connections is not None:
                    connections.abandon()


class _LoopConnections:
    """The multiplexers of one event loop, one for each server."""

    def __init__(
        self,
        target: RedisTarget | None,
        client: Any,
        shown: str,
        timeout_s: float,
        scripts: dict[str, Script],
        notice: EvictionNotice,
        silent: SilentServers,
        failed: dict[Address, None],
    ) -> None:
        self._target = target
        self._shown = shown
        self._timeout_s = timeout_s
        self._multiplexers: dict[Address | None, Multiplexer] = {}
        self._caller_cluster = client if isinstance(client, redis.asyncio.RedisCluster) else None
        self._servers = CallerCluster(client, shown, silent)
        self._pool: Any = None
        self._kind = "cluster" if self._caller_cluster is not None else "single" if target is None else target.kind
        self._slots = SlotMap(() if target is None else target.addresses, silent, failed)
        self._learning: asyncio.Task[None] | None = None
        self._scripts = scripts
        self._notice = notice
        self.first_is_finished = target is None
        """Whether the first attempt to connect has ended on this event loop, with a connection or without."""

        self._first_attempt: asyncio.Task[None] | None = None
        self._first_deadline = 0.0
        self._discovery_timeout_s: float | None = None
        """The deadline of a query for the slots while the first connection is made."""

        if self._kind != "cluster":
            caller_client: Any = client
            self._pool = caller_client.connection_pool if target is None else open_async_pool(target)

    @property
    def multiplexer(self) -> Multiplexer | None:
        """The multiplexer of a single server, once it was called; else None."""
        return self._multiplexers.get(None)

    def load(self, script: Script) -> None:
        for multiplexer in self._multiplexers.values():
            multiplexer.execute(("SCRIPT", "LOAD", script.text)).add_done_callback(_retrieve_error)

    async def connect_first(self) -> float | None:
        """Make the first connection, which has a deadline of its own; calls that arrive meanwhile wait for it together.

        Returns how many seconds are left of that deadline, which these calls share; None where that is no more than the
        usual timeout.
        """
        loop = asyncio.get_running_loop()
        if self._first_attempt is None:
            assert self._target is not None
            self._first_deadline = loop.time() + self._target.first_timeout_s
            self._first_attempt = loop.create_task(self._connect_first())
            self._first_attempt.add_done_callback(_retrieve_error)
        await asyncio.shield(self._first_attempt)
        remaining_s = self._first_deadline - loop.time()
        return remaining_s if remaining_s > self._timeout_s else None

    async def warm_up(self) -> None:
        if (
            self._first_attempt is not None
            and self._first_attempt.done()
            and (self._first_attempt.cancelled() or self._first_attempt.exception())
        ):
            self._first_attempt, self.first_is_finished = None, False
        await self.connect_first()

    async def _connect_first(self) -> None:
        assert self._target is not None
        commands, within_s, addresses = first_commands(self._scripts), self._target.first_timeout_s, list[Address]()
        try:
            async with asyncio.timeout(within_s):
                if self._kind == "cluster":
                    self._discovery_timeout_s = self._target.per_server_timeout_s
                    await self._learn_slots()
                    addresses = self._slots.servers()
                else:
                    await self._send_first_commands(None, commands, within_s)
            if self._kind == "cluster":
                await self._connect_each(addresses, commands, within_s)
        except TimeoutError as error:
            raise no_connection_error(self._shown) from error
        finally:
            self._discovery_timeout_s = None
            self.first_is_finished = True

    async def _connect_each(self, addresses: Sequence[Address], commands: Sequence[Command], within_s: float) -> None:
        """Connect to servers. One that does not answer in time is skipped: the first call to it raises the error."""
        silent = self._slots.silent
        loop = asyncio.get_running_loop()
        connecting = {
            loop.create_task(self._send_first_commands(address, commands, within_s)): address
            for address in addresses
            if not silent.has(address)
        }
        try:
            late = (await asyncio.wait(connecting, timeout=self._first_deadline - loop.time()))[1] if connecting else ()
            for task in late:
                with suppress(StoreError):
                    silent.raise_for(no_connection_error(self._shown), connecting[task], self._shown)
        finally:
            for task in connecting:
                task.add_done_callback(_retrieve_error)
                task.cancel()

    async def _send_first_commands(self, address: Address | None, commands: Sequence[Command], within_s: float) -> None:
        multiplexer = self._multiplexer(address)
        pending = [multiplexer.execute(command, within_s=within_s) for command in commands]
        replies = await asyncio.gather(*pending, return_exceptions=True)
        self._notice.check(replies)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, exceptions.ResponseError):
                raise reply

    async def execute(self, key: bytes | None, command: Command, within_s: float | None = None) -> Any:
        if self._kind != "cluster":
            multiplexer = self._multiplexer(None)
            connections = multiplexer.connections
            try:
                return await multiplexer.execute(command, within_s=within_s)
            except NO_PRIMARY:
                if multiplexer.connections == connections:  # else another call has found the new primary
                    await multiplexer.drop("it is no primary any more")
                return await multiplexer.execute(command, within_s=within_s)  # it was not executed
        if self._caller_cluster is not None:
            if command == ("PING",):  # redis-py makes one reply of those of several servers
                return await self._caller_cluster.ping()
            with self._servers.watching(key):
                return await self._caller_cluster.execute_command(*command, **_AS_BYTES)
        return await self._execute_on_cluster(key, command, within_s)

    async def _execute_on_cluster(self, key: bytes | None, command: Command, within_s: float | None = None) -> Any:
        slot, needs_whole_slot = 0 if key is None else key_slot(key), isinstance(key, RecordKey)
        deadline = asyncio.get_running_loop().time() + (within_s or self._timeout_s)

        refusal: Exception | None = None
        sent_to: Address | None = None
        directed_to: Address | None = None
        address = self._slots.server_of(slot)

        async def perform(step: SearchStep | SendTo) -> Any:
            nonlocal address, refusal, sent_to
            if not isinstance(step, SendTo):
                return await (self._learn_slots() if step is SearchStep.LEARN else asyncio.sleep(PAUSE_S))
            before = ("ASKING",) if step.asking else None
            address = sent_to = step.address
            try:
                return await self._multiplexer(step.address).execute(command, before=before, within_s=within_s)
            except exceptions.ResponseError as error:
                refusal, sent_to = error, None
                raise

        if address is not None:  # the usual case; the multiplexer keeps its deadline
            silent = self._slots.silent
            if silent.failures:
                silent.check(address, self._shown)
            try:
                reply = await self._multiplexer(address).execute(command, within_s=within_s)
            except exceptions.ResponseError as error:
                moves = is_moving(error, needs_whole_slot=needs_whole_slot)
                if not (moves or isinstance(error, ELSEWHERE)):
                    silent.raise_for(error, address, self._shown)
                silent.redirected(error, address)
                directed_to = None if moves else self._slots.redirected(error, slot, address)
            except LOST as error:
                self._slots.note_failed(address)
                silent.raise_for(error, address, self._shown)
            else:
                if silent.failures:
                    silent.answered(address)
                return reply
        try:
            async with asyncio.timeout_at(deadline):
                return await drive_async(
                    self._slots.search(slot, self._shown, directed_to, needs_whole_slot=needs_whole_slot), perform
                )
        except TimeoutError as error:
            if sent_to is None:
                raise too_late(self._shown, refusal, address) from error
            self._slots.note_failed(sent_to)
            self._slots.silent.raise_for(error, sent_to, self._shown)

    async def _learn_slots(self) -> None:
        """Query which server has which slot; concurrent calls share one query."""
        if self._learning is None or self._learning.done():
            self._learning = asyncio.get_running_loop().create_task(self._query_slots())
            self._learning.add_done_callback(_retrieve_error)
        await asyncio.shield(self._learning)

    async def _query_slots(self) -> None:
        assert self._target is not None
        last_error: Exception = StoreUnavailable(f"{self._shown}: no server answers")
        for address in self._slots.candidates(address for address in self._multiplexers if address is not None):
            try:
                self._slots.learn(await self._request_slots(address), address)
            except (exceptions.RedisError, OSError, StoreError) as error:
                last_error = error
                self._slots.note_failed(address)
                continue
            return
        raise last_error

    def _request_slots(self, address: Address) -> asyncio.Future[Any]:
        return self._multiplexer(address).execute(("CLUSTER", "SLOTS"), within_s=self._discovery_timeout_s)

    def _multiplexer(self, address: Address | None) -> Multiplexer:
        return self._multiplexers.get(address) or self._new_multiplexer(address)

    def _new_multiplexer(self, address: Address | None) -> Multiplexer:
        connected_within_s = self._timeout_s + (1.0 if self._target is None else self._target.first_timeout_s)

        async def connect() -> Any:
            if address is None:
                connection = self._pool.make_connection()
            else:
                assert self._target is not None
                connection = open_async_connection(self._target, address)
            try:
                async with asyncio.timeout(connected_within_s):
                    await connection.connect()
            except Exception as error:
                await connection.disconnect(nowait=True)
                raise mark_unsent(store_error(error, self._shown)) from error
            return connection

        multiplexer = self._multiplexers[address] = Multiplexer(connect, self._shown, self._timeout_s)
        return multiplexer

    async def close(self) -> None:
        if self._first_attempt is not None:
            self._first_attempt.cancel()
        while self._multiplexers:  # a pending call may add one meanwhile
            await self._multiplexers.popitem()[1].close()
        if self._kind == "sentinel":
            for sentinel in self._pool.sentinel_manager.sentinels:
                await sentinel.aclose()

    def abandon(self) -> None:
        """Close the sockets of an event loop that is closed, on which nothing can be awaited."""
        for multiplexer in self._multiplexers.values():
            multiplexer.abandon()


def _retrieve_error(task: asyncio.Future[Any]) -> None:
    """Mark the error of a task as retrieved: waiting calls raise it, and without any it is dropped."""
    if not task.cancelled():
        task.exception()
