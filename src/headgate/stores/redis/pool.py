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
from headgate.stores.redis.errors import NO_CONNECTION, reply_or_raise, without_frames
from headgate.stores.redis.url import RedisTarget
from headgate.stores.redis.waiters import (
    OPENED_AT_ONCE,
    OPENED_AT_ONCE_OVER_TLS,
    STEP_US,
    Waiter,
    openings_at_once,
    remaining_s,
)


class ConnectionPool:
    """Connections of redis-py, as many as there are threads that ask at once, up to `target.connections`.

    `new_connection` gives one to a `target` that is not open. `call_timeout_s` tells how long a call has that needs a new one.
    """

    def __init__(
        self, new_connection: Callable[[], Any], target: RedisTarget, call_timeout_s: Callable[[], float]
    ) -> None:
        self._new_connection = new_connection
        self._timeout_s, self._connect_timeout_s = target.timeout_s, target.first_timeout_s
        self._most_connections = target.connections
        self._initial_openings = OPENED_AT_ONCE if target.tls is None else OPENED_AT_ONCE_OVER_TLS
        self._call_timeout_s = call_timeout_s
        self._reset()

    def _reset(self) -> None:
        """Be without connections: in a new process, those of the parent are the parent's."""
        self._idle: deque[Any] = deque()
        self._waiting: deque[Waiter] = deque()
        """Calls in the order in which they are served; changed under the lock."""

        self._openings: dict[object, int] = {}
        """What is being opened, and the deadline of the call that wanted it: later it is not counted upon."""

        self._drops = 0  # one after another, up to now
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def execute(self, key: bytes | None, command: Command) -> Any:
        """The reply to a command, as bytes; sent once. Raises what redis-py raises. All keys are on one server."""
        connection = self._take_idle()
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
        """`execute` within what `call_timeout_s` tells, which holds for waiting for a connection and the reply together."""
        return reply_or_raise(self.execute_many([command], self._call_timeout_s())[0])

    def execute_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        """The replies to several commands that travel in one write; an error of redis-py where one is refused."""
        return self.execute_many([command for _, command in requests])

    def execute_many(self, commands: Sequence[Command], within_s: float | None = None) -> list[Any]:
        """The replies to several commands that travel in one write; an error of redis-py where one is refused.

        `within_s` is what is left of a deadline; without it they have as long as any call.
        """
        connection, deadline_us = self._take_idle(), None
        if connection is None or within_s is not None:
            deadline_us = _deadline_in(self._call_timeout_s() if within_s is None else within_s)
            connection = connection or self._wait_for_connection(deadline_us)
        replies = self._exchange(connection, commands, deadline_us)
        self._give_back(connection)
        return replies

    def open(self, commands: Sequence[Command], on_replies: Callable[[list[Any]], object]) -> None:
        """Open a connection, send these over it and `on_replies` the replies; what a server refuses it is not told again."""
        if self._pid != os.getpid():
            self._reset()
        connection = self._open_connection(commands, on_replies)
        self._give_back(connection)

    def close(self) -> None:
        """Close the connections that no call uses."""
        with suppress(IndexError):
            while True:
                self._idle.pop().disconnect()

    def _take_idle(self) -> Any:
        """An open connection that no call uses; None where there is none, or the server has closed it meanwhile."""
        if self._pid != os.getpid():
            self._reset()
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if _is_usable(connection):
            return connection
        connection.disconnect()
        return None

    def _wait_for_connection(self, deadline_us: int) -> Any:
        """A connection that is given back or newly opened until then; raises what kept a new one from being opened."""
        while True:
            waiter = Waiter(deadline_us)
            with self._lock:
                self._waiting.append(waiter)
            try:
                self._serve_waiters()  # what was given back just before
                self._wait(waiter)
            finally:
                with self._lock, suppress(ValueError):
                    self._waiting.remove(waiter)
            connection = waiter.result()
            if connection is None:
                raise exceptions.TimeoutError(NO_CONNECTION)
            if not _is_usable(connection):
                connection.disconnect()
            elif remaining_s(deadline_us) > 0:
                return connection
            else:  # too late: the call may not charge any more
                self._give_back(connection)
                raise exceptions.TimeoutError

    def _wait(self, waiter: Waiter) -> None:
        """Wait until a call is served, or its deadline; the first of all sees to it that more and more are opened."""
        while not waiter.served.is_set() and (wait_s := remaining_s(waiter.deadline_us)) > 0:
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
                expected = sum(deadline_us > now_us for deadline_us in self._openings.values())
                wanted = min(len(self._waiting), openings_at_once(self._initial_openings, now_us - first.since_us))
                if expected >= wanted or len(self._openings) >= self._most_connections:
                    return first
                self._openings[opening] = self._waiting[-1].deadline_us
            try:
                threading.Thread(
                    target=self._open_several, args=(opening,), name="headgate-connect", daemon=True
                ).start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._open_one(opening)

    def _open_one(self, opening: object) -> None:
        try:
            connection = self._open_connection()
        except BaseException as error:
            with self._lock:
                del self._openings[opening]
                if self._waiting:
                    self._waiting.popleft().serve(None, error)
        else:
            with self._lock:
                del self._openings[opening]
            self._give_back(connection)

    def _open_several(self, opening: object) -> None:
        """Open a connection, and those that were not opened meanwhile."""
        self._open_one(opening)
        self._open_more()

    def _open_connection(
        self, commands: Sequence[Command] = (), on_replies: Callable[[list[Any]], object] | None = None
    ) -> Any:
        """A new connection that has sent these commands.

        Its server may be slow to greet: a call waits no longer than its own deadline.
        """
        connection = self._new_connection()
        connection.socket_timeout = self._connect_timeout_s
        connection.connect()
        if on_replies is not None:
            on_replies(self._exchange(connection, commands))
        connection.socket_timeout = self._timeout_s
        connection._sock.settimeout(self._timeout_s)
        connection._parser._socket_timeout = self._timeout_s
        return connection

    def _exchange(self, connection: Any, commands: Sequence[Command], deadline_us: int | None = None) -> list[Any]:
        """The replies to commands, all of them until a moment or each in the socket's own time.

        A connection that has not brought all of them is closed.
        """
        replies: list[Any] = []
        try:
            self._apply_deadline(connection, deadline_us)
            connection.send_packed_command(
                [b"".join(pack_command(command) for command in commands)], check_health=False
            )
            for _ in commands:
                self._apply_deadline(connection, deadline_us)
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    replies.append(without_frames(error))
            if deadline_us is not None:
                connection._sock.settimeout(self._timeout_s)
        except BaseException:
            self._drop(connection)
            raise
        return replies

    @staticmethod
    def _apply_deadline(connection: Any, deadline_us: int | None) -> None:
        """Let the next step on the socket end by a moment."""
        if deadline_us is not None:
            if (wait_s := remaining_s(deadline_us)) <= 0:
                raise exceptions.TimeoutError
            connection._sock.settimeout(wait_s)

    def _drop(self, connection: Any) -> None:
        """Close a connection that owes a reply; after several on end those that are idle, too, which may be dead."""
        connection.disconnect()  # a reply that comes late must not be taken for the next one
        self._drops += 1
        if self._drops >= FAILURES:
            self.close()

    def _give_back(self, connection: Any) -> None:
        if self._drops:
            self._drops = 0
        if len(self._idle) < self._most_connections:
            self._idle.append(connection)
            if self._waiting:
                self._serve_waiters()
        else:
            connection.disconnect()

    def _serve_waiters(self) -> None:
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


def _is_usable(connection: Any) -> bool:
    """Whether nothing waits to be read: a server that has closed the connection has said so."""
    try:
        return not connection.can_read(timeout=0)
    except (exceptions.RedisError, OSError):
        return False


def _deadline_in(within_s: float) -> int:
    return SYSTEM_CLOCK.now_us() + round(within_s * US_PER_SECOND)
