"""One connection that many calls share: the calls of one turn of the event loop are sent in one write.

A multiplexer has a queue of unsent calls and a queue of sent ones; replies arrive in the order of the calls. Where a
caller gives up waiting, its call stays in the queue, and the reply is read and dropped.
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
from headgate.stores.redis.clients import close_socket, disconnect, wait_closed
from headgate.stores.redis.commands import Command
from headgate.stores.redis.errors import no_connection_error, store_error
from headgate.stores.redis.packed_calls import PackedCalls, ReplyReceiver, intercept_replies
from headgate.stores.redis.replies import AsyncReplyParser, has_unread_data, is_stale
from headgate.stores.redis.waiting_calls import GroupPart, Pending, ReplyGroup, overdue, postpone

MOST_WAITING = 100_000
"""Calls that may wait at one time; further ones are refused at once."""

MOST_IN_A_WRITE = 1_000
_CHECKS_PER_DEADLINE = 8
_LOST_AFTER_S = 1.0
"""A connection is closed when a reply is overdue for this long."""

_LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, EOFError)
_REFUSALS = (exceptions.AuthenticationError, exceptions.BusyLoadingError)
"""Refusals by a server before redis-py closed the connection: nothing was charged."""


class Multiplexer:
    """Calls over one connection, for one event loop. `connect` returns an open connection of redis-py."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], shown: str, timeout_s: float) -> None:
        self._connect = connect
        self._shown = shown
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Pending | PackedCalls] = deque()
        self._sent: deque[Pending | PackedCalls | None] = deque()
        self._wake_writer = asyncio.Event()
        self._wake_reader = asyncio.Event()
        self._connection: Any = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._check_s = timeout_s / _CHECKS_PER_DEADLINE
        self._check_due = 0.0
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._is_writing = False
        self.writes = 0
        self.connections = 0

    def execute(
        self, command: Command, *, before: Command | None = None, within_s: float | None = None
    ) -> asyncio.Future[Any]:
        """Send a command; return a future of its reply, or of an error of redis-py where the server refuses it.

        It ends with StoreTimeout once the deadline has passed, with StoreUnavailable where the connection is lost.
        `within_s` is a longer deadline than the usual one.
        """
        reply = self._loop.create_future()
        if len(self._pending) + len(self._sent) >= MOST_WAITING:
            reply.set_exception(StoreUnavailable(f"{self._shown}: {MOST_WAITING:,} calls are already waiting"))
            return reply
        deadline = self._loop.time() + (within_s or self._timeout_s)
        self._pending.append(Pending(command, before, reply, deadline, within_s is None))
        self._start()
        return reply

    def execute_many(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """Send at least one command; return a future of all replies, with errors in their places."""
        all_replies: asyncio.Future[list[Any]] = self._loop.create_future()
        if len(self._pending) + len(self._sent) + len(commands) > MOST_WAITING:
            refused = StoreUnavailable(f"{self._shown}: {MOST_WAITING:,} calls are already waiting")
            all_replies.set_result([refused] * len(commands))
            return all_replies
        group = ReplyGroup(len(commands), all_replies)
        deadline = self._loop.time() + self._timeout_s
        self._pending.extend(
            [Pending(command, None, GroupPart(group, index), deadline, True) for index, command in enumerate(commands)]
        )
        self._start()
        return all_replies

    def execute_packed(self, commands: bytes, count: int, receiver: ReplyReceiver) -> None:
        """`execute_many` for commands that are packed already; written at once where a connection is open."""
        if len(self._pending) + len(self._sent) + count > MOST_WAITING:
            refused = StoreUnavailable(f"{self._shown}: {MOST_WAITING:,} calls are already waiting")
            receiver.receive([refused] * count)
            return
        packed = PackedCalls(commands, count, receiver, self._loop.time() + self._timeout_s)
        waits = self._pending or self._is_writing or (not self._sent and is_stale(self._connection))
        writer = None if waits else getattr(self._connection, "_writer", None)
        if writer is None:
            self._pending.append(packed)
            self._start()
            return
        self._sent.append(packed)
        self.writes += 1
        self._wake_reader.set()
        self._start_deadline_timer()
        writer.write(commands)  # the reader notices where the connection is lost

    def _start(self) -> None:
        """Start the tasks that send what is pending and keep its deadlines."""
        if not self._tasks:
            self._tasks = (self._loop.create_task(self._write()), self._loop.create_task(self._read()))
        self._wake_writer.set()
        self._start_deadline_timer()

    def _start_deadline_timer(self) -> None:
        if self._deadline_timer is None:
            self._check_due = self._loop.time() + self._check_s
            self._deadline_timer = self._loop.call_at(self._check_due, self._check_deadlines)

    async def drop(self, reason: str) -> None:
        """Close the connection; the next call opens a new one."""
        await self._disconnect(StoreUnavailable(f"{self._shown}: {reason}"))

    async def close(self) -> None:
        """Close the connection and wait until its socket is closed; pending calls end with an error."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = ()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        writer = getattr(self._connection, "_writer", None)
        await self._disconnect(StoreUnavailable(f"{self._shown}: the store was closed"), at_once=False)
        if writer is not None:
            await wait_closed(writer, self._timeout_s)
        self._fail(self._pending, StoreUnavailable(f"{self._shown}: the store was closed"))

    def abandon(self) -> None:
        """Close the socket of an event loop that is closed."""
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
        intercept_replies(connection, self._sent, lambda: connection is self._connection)
        self.connections += 1

    async def _send(self) -> None:
        packed: list[bytes] = []
        count = 0
        while self._pending and count < MOST_IN_A_WRITE:
            call = self._pending.popleft()
            if call.reply.done():
                continue
            if isinstance(call, PackedCalls):
                count += call.count
                packed.append(call.commands)
                self._sent.append(call)
                continue
            count += 1
            if call.before is not None:
                packed.append(pack_command(call.before))
                self._sent.append(None)
            packed.append(pack_command(call.command))
            self._sent.append(call)
        if not packed:
            return
        self.writes += 1
        self._wake_reader.set()
        self._is_writing = True
        try:
            await self._connection.send_packed_command(packed, check_health=False)
        except Exception as error:
            await self._disconnect(self._connection_error(error))
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
                except Exception as error:  # of the network, or of redis-py for bytes that are no reply
                    if connection is self._connection:
                        await self._disconnect(self._connection_error(error))
                else:
                    if not self._sent and connection is self._connection and has_unread_data(connection):
                        await self._disconnect(StoreUnavailable(f"{self._shown}: it sent a reply that no call expects"))

    async def _read_some(self, connection: Any) -> None:
        """Settle calls with the next replies; replies that arrive together take one turn of the event loop."""
        parser = connection._parser
        if not isinstance(parser, AsyncReplyParser):  # the connection of a caller's client
            try:
                self._settle(await connection.read_response(disable_decoding=True))
            except exceptions.ResponseError as error:
                self._settle(error)
            return
        if not self._settle_read(connection):
            await parser.read_from_socket()
            self._settle_read(connection)

    def _settle_read(self, connection: Any) -> bool:
        """Settle calls with replies that were read already; return whether there were any."""
        settled = False
        while (sent := self._sent) and connection is self._connection:
            packed = first if isinstance(first := sent[0], PackedCalls) else None
            replies = connection._parser.take_replies(1 if packed is None else packed.missing)
            if not replies:
                break
            settled = True
            if packed is None:
                self._settle(replies[0])
                continue
            if len(replies) == packed.missing:
                sent.popleft()  # receiving them may send the next call
            packed.add(replies)
        return settled

    def _settle(self, reply: Any) -> None:
        call = self._sent[0]
        if isinstance(call, PackedCalls):  # with the parser of a caller's client
            if call.missing == 1:
                self._sent.popleft()
            call.add([reply])
            return
        self._sent.popleft()
        if call is None or call.reply.done():
            return
        if isinstance(reply, Exception):
            call.reply.set_exception(reply)
        else:
            call.reply.set_result(reply)

    def _check_deadlines(self) -> None:
        """Fail calls whose deadline has passed. A stall of the event loop adds to it: nothing was read then."""
        self._deadline_timer = None
        now = self._loop.time()
        stalled_s = now - self._check_due
        if stalled_s > self._check_s:
            postpone((*self._sent, *self._pending), stalled_s, now + self._timeout_s)
        for queue in (self._sent, self._pending):
            unsent = queue is self._pending and self._connection is None
            for call in overdue(queue, now):
                call.reply.set_exception(
                    no_connection_error(self._shown) if unsent else store_error(TimeoutError(), self._shown)
                )
        oldest = next((call for call in self._sent if call is not None), None)
        if oldest is not None and now - oldest.deadline > _LOST_AFTER_S:
            dropping = self._disconnect(StoreUnavailable(f"{self._shown}: does not answer"))
            self._loop.create_task(dropping).add_done_callback(lambda task: task.exception())
        if self._sent or self._pending:
            self._start_deadline_timer()

    async def _disconnect(self, error: Exception, *, at_once: bool = True) -> None:
        """Close the connection and fail the calls that were sent, which may have charged."""
        connection, self._connection = self._connection, None
        self._fail(self._sent, error)
        self._wake_reader.set()
        if connection is not None:
            with suppress(Exception):
                await disconnect(connection, at_once=at_once)

    def _connection_error(self, error: Exception) -> StoreError:
        if isinstance(error, _REFUSALS) or not isinstance(error, _LOST):
            return store_error(error, self._shown)
        return StoreUnavailable(
            f"{self._shown}: the connection was lost ({type(error).__name__}); calls may have been charged"
        )

    @staticmethod
    def _fail(queue: deque[Any], error: Exception) -> None:
        waiting = [call for call in queue if call is not None and not call.reply.done()]
        queue.clear()
        for call in waiting:
            call.reply.set_exception(error)
