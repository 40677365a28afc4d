"""Connections that threads share: one is taken for each call, and given back.

A call over a connection that is open waits as long as its socket does. Where one has to be opened first, names
are looked up, Sentinels asked and passwords sent, each with a patience of its own or with none; so that is done
in a thread, and who asked waits for it until the deadline and no longer. A connection that comes later is kept
for the next call.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hiredis import pack_command
from redis import exceptions

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND

Command = Sequence[Any]


class Lines:
    """Connections of redis-py, as many as there are threads that ask at once, up to `most`.

    `make` gives one that is not open, whose socket waits for `timeout_s`, and for `connect_s` while it is opened.
    `patience_s` tells how long a call has that needs a new one.
    """

    def __init__(
        self, make: Callable[[], Any], timeout_s: float, most: int, connect_s: float, patience_s: Callable[[], float]
    ) -> None:
        self._make = make
        self._timeout_s = timeout_s
        self._most = most
        self._connect_s = connect_s
        self._patience_s = patience_s
        self._idle: deque[Any] = deque()
        self._opening = threading.BoundedSemaphore(most)
        self._pid = os.getpid()

    def execute(self, *command: Any) -> Any:
        """The reply to a command, as bytes; sent once. Raises what redis-py raises."""
        connection = self._take()
        if connection is None:
            return sound(self._apart([command], self._patience_s())[0])
        try:
            connection.send_packed_command([pack_command(command)], check_health=False)
            reply = connection.read_response(disable_decoding=True)
        except exceptions.ResponseError:
            self._give_back(connection)
            raise
        except BaseException:
            connection.disconnect()  # a reply that comes late must not be taken for the next one
            raise
        self._give_back(connection)
        return reply

    def execute_many(self, commands: Sequence[Command], within_s: float | None = None) -> list[Any]:
        """The replies to several commands that travel in one write; an error of redis-py where one is refused.

        `within_s` is what is left of a deadline; without it they have as long as any call.
        """
        connection = self._take() if within_s is None else None
        if connection is None:
            return self._apart(commands, self._patience_s() if within_s is None else within_s)
        return self._exchange(connection, commands)

    def open(self, commands: Sequence[Command]) -> None:
        """Open a connection and send these over it; what a server refuses of them it is not told again."""
        self._give_back(self._opened(commands))

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().disconnect()

    def _take(self) -> Any:
        """An open connection that nobody uses; None where there is none, or the server has closed it meanwhile."""
        if self._pid != os.getpid():  # those of the parent are the parent's
            self._idle, self._opening, self._pid = deque(), threading.BoundedSemaphore(self._most), os.getpid()
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if _is_quiet(connection):
            return connection
        connection.disconnect()
        return None

    def _apart(self, commands: Sequence[Command], within_s: float) -> list[Any]:
        """The replies to commands over a connection that a thread opens, if they come in time."""
        until_us = SYSTEM_CLOCK.now_us() + round(within_s * US_PER_SECOND)
        opening = self._opening
        if not opening.acquire(timeout=within_s):
            raise exceptions.ConnectionError(f"{self._most} connections are being opened already")
        done, given_up = threading.Event(), threading.Event()
        replies: list[Any] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                connection = self._take() or self._opened()
                if given_up.is_set():  # nobody is to be charged for it any more
                    self._give_back(connection)
                else:
                    replies.extend(self._exchange(connection, commands))
            except BaseException as error:
                errors.append(error)
            finally:
                opening.release()
                done.set()

        try:
            threading.Thread(target=run, name="headgate-connect", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter ends
            run()
        if not done.wait(max(0.0, (until_us - SYSTEM_CLOCK.now_us()) / US_PER_SECOND)):
            given_up.set()
            raise exceptions.TimeoutError
        if errors:
            raise errors[0]
        return replies

    def _opened(self, commands: Sequence[Command] = ()) -> Any:
        """A new connection that has sent these commands.

        Its server may be slow to greet: who asked waits no longer than its own deadline.
        """
        connection = self._make()
        connection.socket_timeout = self._connect_s
        connection.connect()
        if commands:
            self._talk(connection, commands)
        connection.socket_timeout = self._timeout_s
        connection._sock.settimeout(self._timeout_s)
        connection._parser._socket_timeout = self._timeout_s
        return connection

    def _exchange(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        replies = self._talk(connection, commands)
        self._give_back(connection)
        return replies

    @staticmethod
    def _talk(connection: Any, commands: Sequence[Command]) -> list[Any]:
        """The replies to commands; a connection that has not brought all of them is closed."""
        replies: list[Any] = []
        try:
            connection.send_packed_command(
                [b"".join(pack_command(tuple(command)) for command in commands)], check_health=False
            )
            for _ in commands:
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    replies.append(error)
        except BaseException:
            connection.disconnect()
            raise
        return replies

    def _give_back(self, connection: Any) -> None:
        if len(self._idle) < self._most:
            self._idle.append(connection)
        else:
            connection.disconnect()


def sound(reply: Any) -> Any:
    """A reply of several; raises it where it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def _is_quiet(connection: Any) -> bool:
    """Whether nothing waits to be read: a server that has closed the connection has said so."""
    try:
        return not connection.can_read(timeout=0)
    except (exceptions.RedisError, OSError):
        return False
