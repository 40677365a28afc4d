"""Connections that threads share: one is taken for each call, and given back.

A call over a connection that is open waits as long as its socket does. Where none is idle, one is opened beside the
call, in a thread: names are looked up, Sentinels asked and passwords sent, each with a patience of its own or with
none. The call takes whichever comes first until its deadline, the new connection or one that another call gives back,
so that a slow opening holds up no call as long as there is a connection. One that comes later is kept for the
next call. How many are opened at once is said in `headgate.stores.redis.waiters`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hiredis import pack_command
from redis import exceptions

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.stores.guard.breaker import FAILURES
from headgate.stores.redis.commands import Command
from headgate.stores.redis.errors import NO_CONNECTION, sound, without_frames
from headgate.stores.redis.url import Place
from headgate.stores.redis.waiters import OPENED_AT_ONCE, OPENED_AT_ONCE_OVER_TLS, STEP_US, Waiter, left_s, most_at_once


class ConnectionPool:
    """Connections of redis-py, as many as there are threads that ask at once, up to `place.connections`.

    `make` gives one to a `place` that is not open. `patience_s` tells how long a call has that needs a new one.
    """

    def __init__(self, make: Callable[[], Any], place: Place, patience_s: Callable[[], float]) -> None:
        self._make = make
        self._timeout_s, self._connect_s = place.timeout_s, place.first_s
        self._most = place.connections
        self._at_once = OPENED_AT_ONCE if place.tls is None else OPENED_AT_ONCE_OVER_TLS
        self._patience_s = patience_s
        self._begin()

    def _begin(self) -> None:
        """Be without connections: in a new process, those of the parent are the parent's."""
        self._idle: deque[Any] = deque()
        self._waiting: deque[Waiter] = deque()
        """Calls in the order in which they are served; changed under the lock."""

        self._openings: dict[object, int] = {}
        """What is being opened, and the deadline of the call that wanted it: later it is not counted upon."""

        self._dropped = 0  # one after another, up to now
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def execute(self, key: bytes | None, command: Command) -> Any:
        """The reply to a command, as bytes; sent once. Raises what redis-py raises. All keys are on one server."""
        connection = self._take()
        if connection is None:
            return self.execute_first(key, command)
        try:
            connection.send_packed_command([pack_command(command)], check_health=False)
            reply = connection.read_response(disable_decoding=True)
        except exceptions.ResponseError:
            self._give_back(connection)
            raise
        except BaseException:
            self._drop(connection)
            raise
        self._give_back(connection)
        return reply

    def execute_first(self, key: bytes | None, command: Command) -> Any:
        """`execute` within what `patience_s` tells, which holds for waiting for a connection and the reply together."""
        return sound(self.execute_many([command], self._patience_s())[0])

    def execute_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        """The replies to several commands that travel in one write; an error of redis-py where one is refused."""
        return self.execute_many([command for _, command in requests])

    def execute_many(self, commands: Sequence[Command], within_s: float | None = None) -> list[Any]:
        """The replies to several commands that travel in one write; an error of redis-py where one is refused.

        `within_s` is what is left of a deadline; without it they have as long as any call.
        """
        connection, until_us = self._take(), None
        if connection is None or within_s is not None:
            until_us = _from_now_us(self._patience_s() if within_s is None else within_s)
            connection = connection or self._awaited(until_us)
        replies = self._talk(connection, commands, until_us)
        self._give_back(connection)
        return replies

    def open(self, commands: Sequence[Command], see: Callable[[list[Any]], object]) -> None:
        """Open a connection, send these over it and `see` the replies; what a server refuses it is not told again."""
        if self._pid != os.getpid():
            self._begin()
        connection = self._opened(commands, see)
        self._give_back(connection)

    def close(self) -> None:
        """Close the connections that no call uses."""
        with suppress(IndexError):
            while True:
                self._idle.pop().disconnect()

    def _take(self) -> Any:
        """An open connection that no call uses; None where there is none, or the server has closed it meanwhile."""
        if self._pid != os.getpid():
            self._begin()
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if _is_quiet(connection):
            return connection
        connection.disconnect()
        return None

    def _awaited(self, until_us: int) -> Any:
        """A connection that is given back or newly opened until then; raises what kept a new one from being opened."""
        while True:
            waiter = Waiter(until_us)
            with self._lock:
                self._waiting.append(waiter)
            try:
                self._serve()  # what was given back just before
                self._await(waiter)
            finally:
                with self._lock, suppress(ValueError):
                    self._waiting.remove(waiter)
            connection = waiter.taken()
            if connection is None:
                raise exceptions.TimeoutError(NO_CONNECTION)
            if not _is_quiet(connection):
                connection.disconnect()
            elif left_s(until_us) > 0:
                return connection
            else:  # too late: the call may not charge any more
                self._give_back(connection)
                raise exceptions.TimeoutError

    def _await(self, waiter: Waiter) -> None:
        """Wait until a call is served, or its deadline; the first of all sees to it that more and more are opened."""
        while not waiter.served.is_set() and (wait_s := left_s(waiter.until_us)) > 0:
            is_first = self._open_more() is waiter
            waiter.served.wait(min(wait_s, STEP_US / US_PER_SECOND) if is_first else wait_s)
        self._open_more()  # for the next one, that has waited meanwhile

    def _open_more(self) -> Waiter | None:
        """Open connections where calls wait and more may be opened; the call that waits first."""
        while True:
            opening, now_us = object(), SYSTEM_CLOCK.now_us()
            with self._lock:
                if not self._waiting:
                    return None
                first = self._waiting[0]
                to_come = sum(wanted_us > now_us for wanted_us in self._openings.values())
                wanted = min(len(self._waiting), most_at_once(self._at_once, now_us - first.since_us))
                if to_come >= wanted or len(self._openings) >= self._most:
                    return first
                self._openings[opening] = self._waiting[-1].until_us
            try:
                threading.Thread(target=self._open_some, args=(opening,), name="headgate-connect", daemon=True).start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._open_one(opening)

    def _open_one(self, opening: object) -> None:
        try:
            connection = self._opened()
        except BaseException as error:
            with self._lock:
                del self._openings[opening]
                if self._waiting:
                    self._waiting.popleft().serve(None, error)
        else:
            with self._lock:
                del self._openings[opening]
            self._give_back(connection)

    def _open_some(self, opening: object) -> None:
        """Open a connection, and those that were not opened meanwhile."""
        self._open_one(opening)
        self._open_more()

    def _opened(self, commands: Sequence[Command] = (), see: Callable[[list[Any]], object] | None = None) -> Any:
        """A new connection that has sent these commands.

        Its server may be slow to greet: a call waits no longer than its own deadline.
        """
        connection = self._make()
        connection.socket_timeout = self._connect_s
        connection.connect()
        if see is not None:
            see(self._talk(connection, commands))
        connection.socket_timeout = self._timeout_s
        connection._sock.settimeout(self._timeout_s)
        connection._parser._socket_timeout = self._timeout_s
        return connection

    def _talk(self, connection: Any, commands: Sequence[Command], until_us: int | None = None) -> list[Any]:
        """The replies to commands, all of them until a moment or each in the socket's own time.

        A connection that has not brought all of them is closed.
        """
        replies: list[Any] = []
        try:
            self._hurry(connection, until_us)
            connection.send_packed_command(
                [b"".join(pack_command(command) for command in commands)], check_health=False
            )
            for _ in commands:
                self._hurry(connection, until_us)
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    replies.append(without_frames(error))
            if until_us is not None:
                connection._sock.settimeout(self._timeout_s)
        except BaseException:
            self._drop(connection)
            raise
        return replies

    @staticmethod
    def _hurry(connection: Any, until_us: int | None) -> None:
        """Let the next step on the socket end by a moment."""
        if until_us is not None:
            if (wait_s := left_s(until_us)) <= 0:
                raise exceptions.TimeoutError
            connection._sock.settimeout(wait_s)

    def _drop(self, connection: Any) -> None:
        """Close a connection that owes a reply; after several on end those that are idle, too, which may be dead."""
        connection.disconnect()  # a reply that comes late must not be taken for the next one
        self._dropped += 1
        if self._dropped >= FAILURES:
            self.close()

    def _give_back(self, connection: Any) -> None:
        if self._dropped:
            self._dropped = 0
        if len(self._idle) < self._most:
            self._idle.append(connection)
            if self._waiting:
                self._serve()
        else:
            connection.disconnect()

    def _serve(self) -> None:
        """Hand idle connections to waiting calls, in the order in which they came."""
        with self._lock:
            while self._waiting:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    return
                self._waiting.popleft().serve(connection)


def execute_one_by_one(
    execute: Callable[[bytes | None, Command], Any], requests: Sequence[tuple[bytes | None, Command]]
) -> list[Any]:
    """The replies to several commands, each with the key that it is for; a refusal is an error among them."""
    replies: list[Any] = []
    for key, command in requests:
        try:
            replies.append(execute(key, command))
        except exceptions.ResponseError as error:
            replies.append(without_frames(error))
    return replies


def _is_quiet(connection: Any) -> bool:
    """Whether nothing waits to be read: a server that has closed the connection has said so."""
    try:
        return not connection.can_read(timeout=0)
    except (exceptions.RedisError, OSError):
        return False


def _from_now_us(within_s: float) -> int:
    return SYSTEM_CLOCK.now_us() + round(within_s * US_PER_SECOND)
