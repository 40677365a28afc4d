"""One connection that many calls share: those of one turn of the event loop travel in one write.

A multiplexer has a queue of calls that were not sent and a queue of those that were; replies come in the order of the
calls. A caller that gives up waiting leaves a place behind, whose reply is read and dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from hiredis import pack_command
from redis import exceptions

from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.redis.clients import close_socket, closed, disconnect
from headgate.stores.redis.commands import Command
from headgate.stores.redis.errors import store_error, unconnected
from headgate.stores.redis.packed_calls import Asker, Packed, take_bytes_of
from headgate.stores.redis.replies import AsyncReplyParser, has_more, is_stale
from headgate.stores.redis.waiting_calls import Part, Pending, Several

MOST_WAITING = 100_000
"""Calls that may wait at one time; beyond it a call is refused at once."""

MOST_IN_A_WRITE = 1_000
_LOOKS_IN_A_DEADLINE = 8
_LOST_AFTER_S = 1.0
"""A connection that has owed a reply for so long is given up."""

_LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, EOFError)
_REFUSALS = (exceptions.AuthenticationError, exceptions.BusyLoadingError)
"""What a server said before redis-py closed the connection: nothing was charged."""


class Multiplexer:
    """Calls over one connection, for one event loop. `connect` gives a connection of redis-py that is open."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], shown: str, timeout_s: float) -> None:
        self._connect = connect
        self._shown = shown
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Pending | Packed] = deque()
        self._sent: deque[Pending | Packed | None] = deque()
        self._wake_writer = asyncio.Event()
        self._wake_reader = asyncio.Event()
        self._connection: Any = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._watch: asyncio.TimerHandle | None = None
        self._is_writing = False
        self.writes = 0
        self.connections = 0

    def ask(
        self, command: Command, *, before: Command | None = None, within_s: float | None = None
    ) -> asyncio.Future[Any]:
        """The reply to a command, when it comes; an error of redis-py where the server refuses it.

        Ends with StoreTimeout once the deadline has passed, with StoreUnavailable where the connection is lost.
        `within_s` is a longer deadline than that of every call.
        """
        reply = self._loop.create_future()
        if len(self._pending) + len(self._sent) >= MOST_WAITING:
            reply.set_exception(StoreUnavailable(f"{self._shown}: {MOST_WAITING:,} calls wait for it already"))
            return reply
        deadline = self._loop.time() + (within_s or self._timeout_s)
        self._pending.append(Pending(command, before, reply, deadline, within_s is None))
        self._begin()
        return reply

    def ask_many(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """What `ask` would give for each of at least one command, errors in their places, when all of it is there."""
        whole: asyncio.Future[list[Any]] = self._loop.create_future()
        if len(self._pending) + len(self._sent) + len(commands) > MOST_WAITING:
            refused = StoreUnavailable(f"{self._shown}: {MOST_WAITING:,} calls wait for it already")
            whole.set_result([refused] * len(commands))
            return whole
        several = Several(len(commands), whole)
        deadline = self._loop.time() + self._timeout_s
        self._pending.extend(
            [Pending(command, None, Part(several, place), deadline, True) for place, command in enumerate(commands)]
        )
        self._begin()
        return whole

    def ask_packed(self, commands: bytes, count: int, asker: Asker) -> None:
        """`ask_many` of some commands that are packed already, written at once where a connection is open."""
        if len(self._pending) + len(self._sent) + count > MOST_WAITING:
            refused = StoreUnavailable(f"{self._shown}: {MOST_WAITING:,} calls wait for it already")
            asker.take([refused] * count)
            return
        packed = Packed(commands, count, asker, self._loop.time() + self._timeout_s)
        waits = self._pending or self._is_writing or (not self._sent and is_stale(self._connection))
        writer = None if waits else getattr(self._connection, "_writer", None)
        if writer is None:
            self._pending.append(packed)
            self._begin()
            return
        self._sent.append(packed)
        self.writes += 1
        self._wake_reader.set()
        self._watch_deadlines()
        writer.write(commands)  # where the connection is lost, the reader learns of it

    def _begin(self) -> None:
        """Have what waits sent, and its deadline kept."""
        if not self._tasks:
            self._tasks = (self._loop.create_task(self._write()), self._loop.create_task(self._read()))
        self._wake_writer.set()
        self._watch_deadlines()

    def _watch_deadlines(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout_s / _LOOKS_IN_A_DEADLINE, self._look)

    async def drop(self, reason: str) -> None:
        """Make a new connection for the next call."""
        await self._lose(StoreUnavailable(f"{self._shown}: {reason}"))

    async def close(self) -> None:
        """End the connection, and wait until its socket is closed; calls that still wait get an error."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = ()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        writer = getattr(self._connection, "_writer", None)
        await self._lose(StoreUnavailable(f"{self._shown}: the store was closed"), at_once=False)
        if writer is not None:
            await closed(writer, self._timeout_s)
        self._fail(self._pending, StoreUnavailable(f"{self._shown}: the store was closed"))

    def leave(self) -> None:
        """`close` where the event loop is closed."""
        close_socket(self._connection)

    async def _write(self) -> None:
        while True:
            await self._wake_writer.wait()
            self._wake_writer.clear()
            while self._pending:
                if not self._sent and is_stale(self._connection):
                    await self.drop("it has closed the connection")  # no call waits on it
                if self._connection is None:
                    try:
                        await self._open()
                    except Exception as error:
                        self._fail(self._pending, error)
                        break
                await self._send()

    async def _open(self) -> None:
        connection = self._connection = await self._connect()
        take_bytes_of(connection, self._sent, lambda: connection is self._connection)
        self.connections += 1

    async def _send(self) -> None:
        packed: list[bytes] = []
        count = 0
        while self._pending and count < MOST_IN_A_WRITE:
            ask = self._pending.popleft()
            if ask.reply.done():
                continue
            if isinstance(ask, Packed):
                count += ask.count
                packed.append(ask.commands)
                self._sent.append(ask)
                continue
            count += 1
            if ask.before is not None:
                packed.append(pack_command(ask.before))
                self._sent.append(None)
            packed.append(pack_command(ask.command))
            self._sent.append(ask)
        if not packed:
            return
        self.writes += 1
        self._wake_reader.set()
        self._is_writing = True
        try:
            await self._connection.send_packed_command(packed, check_health=False)
        except Exception as error:
            await self._lose(self._lost(error))
        finally:
            self._is_writing = False
        if self._tasks[0].cancelling():  # asyncio.wait_for of Python 3.11 drops a cancellation as it ends
            raise asyncio.CancelledError

    async def _read(self) -> None:
        while True:
            await self._wake_reader.wait()
            self._wake_reader.clear()
            while self._sent and (connection := self._connection) is not None:
                try:
                    await self._read_some(connection)
                except Exception as error:  # of the network, or what redis-py makes of bytes that are no reply
                    if connection is self._connection:
                        await self._lose(self._lost(error))
                else:
                    if not self._sent and connection is self._connection and has_more(connection):
                        await self._lose(StoreUnavailable(f"{self._shown}: it sends more than was asked for"))

    async def _read_some(self, connection: Any) -> None:
        """Settle calls with the next replies; those that come together take one turn of the event loop."""
        parser = connection._parser
        if not isinstance(parser, AsyncReplyParser):  # of a caller's client
            try:
                self._settle(await connection.read_response(disable_decoding=True))
            except exceptions.ResponseError as error:
                self._settle(error)
            return
        if not self._settle_read(connection):
            await parser.read_from_socket()
            self._settle_read(connection)

    def _settle_read(self, connection: Any) -> bool:
        """Settle calls with what was read already; whether there was something."""
        settled = False
        while (sent := self._sent) and connection is self._connection:
            packed = first if isinstance(first := sent[0], Packed) else None
            replies = connection._parser.take(1 if packed is None else packed.left)
            if not replies:
                break
            settled = True
            if packed is None:
                self._settle(replies[0])
                continue
            if len(replies) == packed.left:
                sent.popleft()  # what comes of them may be asked next
            packed.add(replies)
        return settled

    def _settle(self, reply: Any) -> None:
        ask = self._sent[0]
        if isinstance(ask, Packed):  # of a parser of the caller's own
            if ask.left == 1:
                self._sent.popleft()
            ask.add([reply])
            return
        self._sent.popleft()
        if ask is None or ask.reply.done():
            return
        if isinstance(reply, Exception):
            ask.reply.set_exception(reply)
        else:
            ask.reply.set_result(reply)

    def _look(self) -> None:
        """Fail the calls whose deadline has passed; usual calls have the same timeout, so they are in order."""
        self._watch = None
        now = self._loop.time()
        for queue in (self._sent, self._pending):
            for ask in queue:
                if ask is None or ask.reply.done():
                    continue
                if ask.deadline > now:
                    if ask.is_usual:
                        break
                    continue
                unsent = queue is self._pending and self._connection is None
                ask.reply.set_exception(
                    unconnected(self._shown) if unsent else store_error(TimeoutError(), self._shown)
                )
        oldest = next((ask for ask in self._sent if ask is not None), None)
        if oldest is not None and now - oldest.deadline > _LOST_AFTER_S:
            losing = self._lose(StoreUnavailable(f"{self._shown}: does not answer"))
            self._loop.create_task(losing).add_done_callback(lambda task: task.exception())
        if self._sent or self._pending:
            self._watch = self._loop.call_later(self._timeout_s / _LOOKS_IN_A_DEADLINE, self._look)

    async def _lose(self, error: Exception, *, at_once: bool = True) -> None:
        """Give the connection up: calls that were sent may have charged."""
        connection, self._connection = self._connection, None
        self._fail(self._sent, error)
        self._wake_reader.set()
        if connection is not None:
            with suppress(Exception):
                await disconnect(connection, at_once=at_once)

    def _lost(self, error: Exception) -> StoreError:
        if isinstance(error, _REFUSALS) or not isinstance(error, _LOST):
            return store_error(error, self._shown)
        return StoreUnavailable(
            f"{self._shown}: the connection was lost ({type(error).__name__}); what was asked may have been charged"
        )

    @staticmethod
    def _fail(queue: deque[Any], error: Exception) -> None:
        waiting = [ask for ask in queue if ask is not None and not ask.reply.done()]
        queue.clear()
        for ask in waiting:
            ask.reply.set_exception(error)
