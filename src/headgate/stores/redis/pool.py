"""Connections that threads share: each call takes one and gives it back.

A call over an open connection waits for at most the timeout of its socket. Where none is idle, a thread opens one
beside the call: names are resolved, Sentinels queried and passwords sent, each with a timeout of its own or without
any. Until its deadline the call takes whichever is ready first, the new connection or one that another call gives back,
so that a slow opening delays no call while another connection is there. A connection that is ready later is kept for
the next call. `headgate.stores.redis.waiters` decides how many are opened at once.
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
from headgate.stores.redis.errors import NO_CONNECTION, NO_PRIMARY, reply_or_raise, without_frames
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
    """Connections of redis-py, one for each thread with a call at the same time, up to `target.connections`.

    `new_connection` returns an unopened connection to `target`. `call_timeout_s` returns how long a call may take that
    needs a new one.
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
        """Drop all connections: in a forked process they belong to the parent."""
        self._idle: deque[Any] = deque()
        self._waiting: deque[Waiter] = deque()
        """Waiting calls in the order in which they are served; guarded by the lock."""

        self._openings: dict[object, int] = {}
        """Connections being opened, with the deadline of the call that wanted each; after it they no longer count."""

        self._drops = 0  # in a row, up to now
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def execute(self, key: bytes | None, command: Command) -> Any:
        """Send a command once and return its reply, as bytes; raises errors of redis-py. All keys are on one server."""
        connection = self._take_idle()
        if connection is None:
            return self.execute_first(key, command)
        try:
            connection.send_packed_command([pack_command(command)], check_health=False)
            reply = connection.read_response(disable_decoding=True)
        except BaseException as error:
            if isinstance(error, exceptions.ResponseError) and not isinstance(error, NO_PRIMARY):
                self._give_back(connection)
            else:
                self._drop(connection)
            raise
        self._give_back(connection)
        return reply

    def execute_first(self, key: bytes | None, command: Command) -> Any:
        """`execute` with the timeout of `call_timeout_s` for waiting for a connection and for the reply together."""
        return reply_or_raise(self.execute_many([command], self._call_timeout_s())[0])

    def execute_all(self, requests: Sequence[tuple[bytes | None, Command]]) -> list[Any]:
        """Send commands in one write and return their replies; a refusal is an error of redis-py among them."""
        return self.execute_many([command for _, command in requests])

    def execute_many(self, commands: Sequence[Command], within_s: float | None = None) -> list[Any]:
        """`execute_all` within what is left of a deadline; without one, the usual timeout holds."""
        connection, deadline_us = self._take_idle(), None
        if connection is None or within_s is not None:
            deadline_us = _deadline_in(self._call_timeout_s() if within_s is None else within_s)
            connection = connection or self._wait_for_connection(deadline_us)
        replies = self._exchange(connection, commands, deadline_us)
        if any(isinstance(reply, NO_PRIMARY) for reply in replies):
            self._drop(connection)
        else:
            self._give_back(connection)
        return replies

    def open(self, commands: Sequence[Command], on_replies: Callable[[list[Any]], object]) -> None:
        """Open a connection, send these commands over it once and pass the replies to `on_replies`."""
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
        """An idle open connection; None where there is none, or where the server has closed it meanwhile."""
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
        """Wait for a connection that is given back or newly opened; raises the error that prevented opening one."""
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
            else:  # too late: the call must not charge any more
                self._give_back(connection)
                raise exceptions.TimeoutError

    def _wait(self, waiter: Waiter) -> None:
        """Wait until a call is served or its deadline has passed; the first waiter keeps opening more connections."""
        while not waiter.served.is_set() and (wait_s := remaining_s(waiter.deadline_us)) > 0:
            is_first = self._open_more() is waiter
            waiter.served.wait(min(wait_s, STEP_US / US_PER_SECOND) if is_first else wait_s)
        self._open_more()  # for the next waiter

    def _open_more(self) -> Waiter | None:
        """Open connections while calls wait and more may be opened; return the first waiter."""
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
        """Open a connection, and then any further ones that waiting calls need."""
        self._open_one(opening)
        self._open_more()

    def _open_connection(
        self, commands: Sequence[Command] = (), on_replies: Callable[[list[Any]], object] | None = None
    ) -> Any:
        """Open a new connection and send these commands over it.

        The handshake may be slow: a call waits no longer than its own deadline.
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
        """Send commands and return their replies: all by a deadline, or each within the socket's own timeout.

        The connection is closed where a reply is missing.
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
        """Limit the next step on the socket to the time left until a deadline."""
        if deadline_us is not None:
            if (wait_s := remaining_s(deadline_us)) <= 0:
                raise exceptions.TimeoutError
            connection._sock.settimeout(wait_s)

    def _drop(self, connection: Any) -> None:
        """Close a connection that owes a reply or leads to a replica; after several in a row also the idle ones."""
        connection.disconnect()  # a late reply must not be taken for the next one
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
        """Hand idle connections to waiting calls, in the order of their arrival."""
        with self._lock:
            while self._waiting:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    return
                self._waiting.popleft().serve(connection)


def _is_usable(connection: Any) -> bool:
    """Whether nothing waits to be read: where the server has closed the connection, the end of the stream does."""
    try:
        return not connection.can_read(timeout=0)
    except (exceptions.RedisError, OSError):
        return False


def _deadline_in(within_s: float) -> int:
    return SYSTEM_CLOCK.now_us() + round(within_s * US_PER_SECOND)
