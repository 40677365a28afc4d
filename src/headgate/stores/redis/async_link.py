"""The Redis store on an event loop: which courier takes a call, and what is done where it was not executed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.crc import key_slot

from headgate.drive import drive_async
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.redis.commands import Call
from headgate.stores.redis.errors import store_error
from headgate.stores.redis.first_connection import Commands, first_commands
from headgate.stores.redis.multiplexer import Command, Courier, command_of
from headgate.stores.redis.replies import AsyncReplyParser, check_said
from headgate.stores.redis.scripts import Script
from headgate.stores.redis.slot_map import ELSEWHERE, LOST, PAUSE_S, Send, Slots, Step
from headgate.stores.redis.url import Address, Place

_AS_BYTES = {NEVER_DECODE: True}
"""For a client of the caller's own that decodes what it reads."""


class AsyncLink:
    """The connections of a store, for each event loop that uses it."""

    def __init__(
        self,
        place: Place | None,
        client: Any = None,
        shown: str = "",
        timeout_s: float = 5.0,
        scripts: dict[str, Script] | None = None,
    ) -> None:
        self._place = place
        self._scripts = {} if scripts is None else scripts
        self._pid = os.getpid()
        self._client = client
        self.shown = place.shown if place is not None else shown
        self._timeout_s = place.timeout_s if place is not None else timeout_s
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lines] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop, _Lines] | None = None

    @classmethod
    def of_client(cls, client: Any, shown: str) -> AsyncLink:
        """Over the connections that a client of redis-py makes."""
        return cls(None, client, shown)

    async def run(self, call: Call) -> Any:
        """The reply of a script."""
        lines, within_s = self._lines_here(), None
        command = command_of("EVALSHA", call.script.sha, call.keys, call.arguments)
        try:
            if not lines.first_is_over:
                within_s = await lines.connect_first()
            try:
                if lines.courier is not None:
                    return await lines.courier.ask(command, within_s=within_s)
                return await lines.ask(call.keys[0], command, within_s)
            except exceptions.NoScriptError:
                command = command_of("EVAL", call.script.text, call.keys, call.arguments)
            except exceptions.ReadOnlyError:
                pass
            return await lines.ask(call.keys[0], command, within_s)
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def ask(self, key: bytes | None, command: Command) -> Any:
        """The reply to a command, from the server that has a key (None: any)."""
        lines = self._lines_here()
        try:
            if not lines.first_is_over:
                await lines.connect_first()
            return await lines.ask(key, command)
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def warm_up(self) -> None:
        """Connect and load the scripts; raises StoreError where that does not succeed in the time it has."""
        lines = self._lines_here()
        try:
            await (lines.ask(None, ("PING",)) if self._place is None else lines.warm_up())
        except Exception as error:
            raise store_error(error, self.shown) from error

    async def ping(self) -> None:
        """Raise StoreError if a server does not answer."""
        check_said(await self.ask(None, ("PING",)), b"PONG")

    async def close(self) -> None:
        """End the connections of this event loop."""
        lines = self._lines.pop(asyncio.get_running_loop(), None)
        self._last = None
        if lines is not None:
            await lines.close()

    def _lines_here(self) -> _Lines:
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():  # those of the parent are the parent's
            self._lines, self._last, self._pid = WeakKeyDictionary(), None, os.getpid()
        if self._last is not None and self._last[0] is loop:
            return self._last[1]
        lines = self._lines.get(loop)
        if lines is None:
            lines = self._lines[loop] = _Lines(self._place, self._client, self.shown, self._timeout_s, self._scripts)
        self._last = (loop, lines)
        return lines


class _Lines:
    """The couriers of one event loop, one for each server."""

    def __init__(
        self, place: Place | None, client: Any, shown: str, timeout_s: float, scripts: dict[str, Script]
    ) -> None:
        self._place = place
        self._shown = shown
        self._timeout_s = timeout_s
        self._couriers: dict[Address | None, Courier] = {}
        self._own_cluster = client if isinstance(client, redis.asyncio.RedisCluster) else None
        self._pool: Any = None
        self._kind = "cluster" if self._own_cluster is not None else "single" if place is None else place.kind
        self._slots = Slots(() if place is None else place.addresses)
        self._learned: asyncio.Task[None] | None = None
        self._scripts = scripts
        self.first_is_over = place is None
        """Whether the first connection was made here, or was not in its time."""

        self._first: asyncio.Task[None] | None = None
        self._first_until = 0.0
        self._within_s: float | None = None
        """The deadline of what is asked to find the way, while the first connection is made."""

        if self._kind != "cluster":
            own: Any = client
            self._pool = own.connection_pool if place is None else _pool(place)

    @property
    def courier(self) -> Courier | None:
        """The only one, where there is one server and it was called before."""
        return self._couriers.get(None)

    async def connect_first(self) -> float | None:
        """Make the first connection, which has a deadline of its own; those who come meanwhile wait for it together.

        What is left of it then is theirs, too; None where that is no more than any call has.
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
        commands, within_s = first_commands(self._scripts), self._place.first_s
        try:
            async with asyncio.timeout(within_s):
                if self._kind == "cluster":
                    self._within_s = self._place.each_s
                    await self._learn()
                    await asyncio.gather(
                        *[self._send_first(address, commands, within_s) for address in self._slots.servers()],
                        return_exceptions=True,  # who asks this server is told
                    )
                else:
                    await self._send_first(None, commands, within_s)
        finally:
            self._within_s = None
            self.first_is_over = True

    async def _send_first(self, address: Address | None, commands: Commands, within_s: float) -> None:
        courier = self._courier(address)
        replies = [courier.ask(command, within_s=within_s) for command in commands]
        for reply in await asyncio.gather(*replies, return_exceptions=True):
            if isinstance(reply, BaseException) and not isinstance(reply, exceptions.ResponseError):
                raise reply

    async def ask(self, key: bytes | None, command: Command, within_s: float | None = None) -> Any:
        if self._kind != "cluster":
            courier = self._courier(None)
            connections = courier.connections
            try:
                return await courier.ask(command, within_s=within_s)
            except exceptions.ReadOnlyError:
                if self._place is None or self._place.kind != "sentinel":
                    raise
                if courier.connections == connections:  # else somebody else has found the new primary
                    await courier.drop("it is no primary any more")
                return await courier.ask(command, within_s=within_s)  # it was not executed
        if self._own_cluster is not None:
            return await self._own_cluster.execute_command(*command, **_AS_BYTES)
        return await self._ask_cluster(key, command, within_s)

    async def _ask_cluster(self, key: bytes | None, command: Command, within_s: float | None = None) -> Any:
        slot = 0 if key is None else key_slot(key)
        until = asyncio.get_running_loop().time() + (within_s or self._timeout_s)

        async def do(step: Step | Send) -> Any:
            if isinstance(step, Send):
                before = ("ASKING",) if step.asking else None
                return await self._courier(step.address).ask(command, before=before, within_s=within_s)
            return await (self._learn() if step is Step.LEARN else asyncio.sleep(PAUSE_S))

        asked, address = None, self._slots.server_of(slot)
        if address is not None:  # the usual way, whose deadline is kept by the courier
            try:
                return await self._courier(address).ask(command, within_s=within_s)
            except ELSEWHERE as error:
                asked = self._slots.directed(error, slot, address)
            except LOST:
                self._slots.doubt(address)
                raise
        try:
            async with asyncio.timeout_at(until):
                return await drive_async(self._slots.search(slot, self._shown, asked), do)
        except TimeoutError as error:
            self._slots.doubt(asked or self._slots.server_of(slot))
            raise store_error(error, self._shown) from error

    async def _learn(self) -> None:
        """Ask where each slot is; those who come together ask once."""
        if self._learned is None or self._learned.done():
            self._learned = asyncio.get_running_loop().create_task(self._ask_where())
            self._learned.add_done_callback(_retrieve)
        await asyncio.shield(self._learned)

    async def _ask_where(self) -> None:
        assert self._place is not None
        last: Exception = StoreUnavailable(f"{self._shown}: no server answers")
        for address in self._slots.candidates(address for address in self._couriers if address is not None):
            try:
                self._slots.learn(await self._where(address), address)
            except (exceptions.RedisError, OSError, StoreError) as error:
                last = error
                self._slots.doubt(address)
                continue
            return
        raise last

    def _where(self, address: Address) -> asyncio.Future[Any]:
        return self._courier(address).ask(("CLUSTER", "SLOTS"), within_s=self._within_s)

    def _courier(self, address: Address | None) -> Courier:
        return self._couriers.get(address) or self._new_courier(address)

    def _new_courier(self, address: Address | None) -> Courier:
        connected_within_s = self._timeout_s + (1.0 if self._place is None else self._place.first_s)

        async def connect() -> Any:
            if address is None:
                connection = self._pool.make_connection()
            else:
                assert self._place is not None
                connection = _connection(self._place, address)
            try:
                async with asyncio.timeout(connected_within_s):
                    await connection.connect()
            except Exception as error:
                await connection.disconnect(nowait=True)
                raise store_error(error, self._shown) from error
            return connection

        courier = self._couriers[address] = Courier(connect, self._shown, self._timeout_s)
        return courier

    async def close(self) -> None:
        if self._first is not None:
            self._first.cancel()
        for courier in self._couriers.values():
            await courier.close()
        self._couriers.clear()
        if self._kind == "sentinel":
            for sentinel in self._pool.sentinel_manager.sentinels:
                await sentinel.aclose()


def _retrieve(task: asyncio.Task[None]) -> None:
    """Who waits is told; where nobody does any more, nobody is."""
    if not task.cancelled():
        task.exception()


def _never(connect_s: float) -> dict[str, Any]:
    """A courier keeps its own deadlines, and nothing is sent twice unless it was not executed."""
    return {
        "socket_timeout": None,
        "socket_connect_timeout": connect_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "parser_class": AsyncReplyParser,
    }


def _pool(place: Place) -> Any:
    never = _never(place.first_s)
    if place.kind == "single":
        options = dict(place.options)
        kind: Any = redis.asyncio.SSLConnection if options.pop("ssl", False) else redis.asyncio.Connection
        where: dict[str, Any] = {"path": place.socket}
        if place.socket:
            kind = redis.asyncio.UnixDomainSocketConnection
        else:
            where = place.addresses[0]._asdict()
        return redis.asyncio.ConnectionPool(connection_class=kind, **where, **options, **never)
    addresses: Sequence[Address] = place.addresses
    asking = {name: value for name, value in never.items() if name != "parser_class"}
    asking |= {"socket_timeout": place.each_s, "socket_connect_timeout": place.each_s}
    make_sentinel: Any = redis.asyncio.Sentinel  # has no types
    sentinel = make_sentinel(list(addresses), sentinel_kwargs=asking, **never, **place.options)
    for each in sentinel.sentinels:  # whose client does not take it
        each.connection_pool.connection_kwargs["parser_class"] = AsyncReplyParser
    return sentinel.master_for(place.service).connection_pool


def _connection(place: Place, address: Address) -> Any:
    options = dict(place.options)
    kind = redis.asyncio.SSLConnection if options.pop("ssl", False) else redis.asyncio.Connection
    return kind(host=address.host, port=address.port, **_never(place.first_s), **options)
