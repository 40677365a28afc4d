"""One connection that many calls share: those of one turn of the event loop travel in one write.

A multiplexer has a queue of calls that were not sent and a queue of those that were; replies come in the
order of the calls. A caller that gives up waiting leaves a
place behind, whose reply is read and dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hiredis import pack_command
from redis import exceptions

from headgate.errors import StoreError, StoreTimeout, StoreUnavailable
from headgate.stores.redis.errors import store_error

MOST_WAITING = 100_000
"""Calls that may wait at one time; beyond it a call is refused at once."""

MOST_IN_A_WRITE = 1_000
_LOOKS_IN_A_DEADLINE = 8
_LOST_AFTER_S = 1.0
"""A connection that has owed a reply for so long is given up."""

_LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, EOFError)
_REFUSALS = (exceptions.AuthenticationError, exceptions.BusyLoadingError)
"""What a server said before redis-py closed the connection: nothing was charged."""

_NOT_YET: Any = object()
"""Stands for a reply that has not come."""

Command = tuple[Any, ...]


class _Several:
    """The replies to commands that are asked together: a list of them, errors in their places, once all are there."""

    __slots__ = ("_left", "replies", "whole")

    def __init__(self, count: int, whole: asyncio.Future[list[Any]]) -> None:
        self.replies: list[Any] = [_NOT_YET] * count
        self.whole = whole
        self._left = count

    def take(self, place: int, reply: Any) -> None:
        self.replies[place] = reply
        self._left -= 1
        if not self._left:
            self.whole.set_result(self.replies)


class _Place:
    """One of several replies, settled as the future of a single one is."""

    __slots__ = ("_place", "_several")

    def __init__(self, several: _Several, place: int) -> None:
        self._several = several
        self._place = place

    def done(self) -> bool:
        return self._several.replies[self._place] is not _NOT_YET or self._several.whole.done()

    def set_result(self, reply: Any) -> None:
        self._several.take(self._place, reply)

    def set_exception(self, error: Exception) -> None:
        self._several.take(self._place, error)


@dataclass(slots=True, eq=False)
class _Pending:
    command: Command
    before: Command | None
    """A command that goes ahead in the same write; no call waits for its reply."""

    reply: asyncio.Future[Any] | _Place
    deadline: float
    is_usual: bool
    """Whether it has as long as every call, so that none behind it has less."""


class Multiplexer:
    """Calls over one connection, for one event loop. `connect` gives a connection of redis-py that is open."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], shown: str, timeout_s: float) -> None:
        self._connect = connect
        self._shown = shown
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Pending] = deque()
        self._sent: deque[_Pending | None] = deque()
        self._wake_writer = asyncio.Event()
        self._wake_reader = asyncio.Event()
        self._connection: Any = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._watch: asyncio.TimerHandle | None = None
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
        self._pending.append(_Pending(command, before, reply, deadline, within_s is None))
        self._begin()
        return reply

    def ask_many(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """What `ask` would give for each of at least one command, errors in their places, when all of it is there."""
        whole: asyncio.Future[list[Any]] = self._loop.create_future()
        if len(self._pending) + len(self._sent) + len(commands) > MOST_WAITING:
            refused = StoreUnavailable(f"{self._shown}: {MOST_WAITING:,} calls wait for it already")
            whole.set_result([refused] * len(commands))
            return whole
        several = _Several(len(commands), whole)
        deadline = self._loop.time() + self._timeout_s
        self._pending.extend(
            [_Pending(command, None, _Place(several, place), deadline, True) for place, command in enumerate(commands)]
        )
        self._begin()
        return whole

    def _begin(self) -> None:
        """Have what waits sent, and its deadline kept."""
        if not self._tasks:
            self._tasks = (self._loop.create_task(self._write()), self._loop.create_task(self._read()))
        self._wake_writer.set()
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
        await self._lose(StoreUnavailable(f"{self._shown}: the store was closed"))
        if writer is not None:
            await self._closed(writer)
        self._fail(self._pending, StoreUnavailable(f"{self._shown}: the store was closed"))

    async def _write(self) -> None:
        while True:
            await self._wake_writer.wait()
            self._wake_writer.clear()
            while self._pending:
                if self._connection is None:
                    try:
                        self._connection = await self._connect()
                        self.connections += 1
                    except Exception as error:
                        self._fail(self._pending, error)
                        break
                await self._send()

    async def _send(self) -> None:
        connection = self._connection
        packed: list[bytes] = []
        while self._pending and len(packed) < MOST_IN_A_WRITE:
            ask = self._pending.popleft()
            if ask.reply.done():
                continue
            if ask.before is not None:
                packed.append(pack_command(ask.before))
                self._sent.append(None)
            packed.append(pack_command(ask.command))
            self._sent.append(ask)
        if not packed:
            return
        self.writes += 1
        self._wake_reader.set()
        try:
            await connection.send_packed_command(packed, check_health=False)
        except Exception as error:
            await self._lose(self._lost(error))

    async def _read(self) -> None:
        while True:
            await self._wake_reader.wait()
            self._wake_reader.clear()
            while self._sent and (connection := self._connection) is not None:
                try:
                    reply = await connection.read_response(disable_decoding=True)
                except exceptions.ResponseError as error:
                    self._settle(error)
                except Exception as error:  # of the network, or what redis-py makes of bytes that are no reply
                    if connection is self._connection:
                        await self._lose(self._lost(error))
                else:
                    self._settle(reply)
                    if not self._sent and connection is self._connection and _has_more(connection):
                        await self._lose(StoreUnavailable(f"{self._shown}: it sends more than was asked for"))

    def _settle(self, reply: Any) -> None:
        ask = self._sent.popleft()
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
                ask.reply.set_exception(
                    StoreTimeout(f"{self._shown}: no answer in time; what was asked may have been charged")
                )
        oldest = next((ask for ask in self._sent if ask is not None), None)
        if oldest is not None and now - oldest.deadline > _LOST_AFTER_S:
            self._loop.create_task(self._lose(StoreUnavailable(f"{self._shown}: does not answer"))).add_done_callback(
                lambda task: task.exception()
            )
        if self._sent or self._pending:
            self._watch = self._loop.call_later(self._timeout_s / _LOOKS_IN_A_DEADLINE, self._look)

    async def _lose(self, error: Exception) -> None:
        """Give the connection up: calls that were sent may have charged."""
        connection, self._connection = self._connection, None
        self._fail(self._sent, error)
        self._wake_reader.set()
        if connection is not None:
            with suppress(Exception):
                await connection.disconnect(nowait=True)

    async def _closed(self, writer: asyncio.StreamWriter) -> None:
        """Wait until a connection is closed: over TLS the server has to agree, and the event loop may end then."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await writer.wait_closed()
        except TimeoutError:
            writer.transport.abort()
            await asyncio.sleep(0)
        except (OSError, EOFError):
            pass  # the server was gone

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


def _has_more(connection: Any) -> bool:
    """Whether something was read that answers no call: it would be taken for the next reply."""
    reader = getattr(connection._parser, "_reader", None)
    return reader is not None and bool(reader.has_data())
