"""Connections that threads share: one is taken for each command, and given back."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hiredis import pack_command
from redis.exceptions import RedisError, ResponseError


class Lines:
    """Connections of redis-py, as many as there are threads that ask at once. `make` gives one that is not open."""

    def __init__(self, make: Callable[[], Any], most_idle: int) -> None:
        self._make = make
        self._most_idle = most_idle
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def execute(self, *command: Any) -> Any:
        """The reply to a command, as bytes; sent once. Raises what redis-py raises."""
        connection = self._take()
        try:
            connection.send_packed_command([pack_command(command)], check_health=False)
            reply = connection.read_response(disable_decoding=True)
        except ResponseError:
            self._give_back(connection)
            raise
        except BaseException:
            connection.disconnect()  # a reply that comes late must not be taken for the next one
            raise
        self._give_back(connection)
        return reply

    def execute_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to several commands that travel in one write; an error of redis-py where one is refused."""
        connection = self._take()
        replies: list[Any] = []
        try:
            connection.send_packed_command(
                [b"".join(pack_command(tuple(command)) for command in commands)], check_health=False
            )
            for _ in commands:
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except ResponseError as error:
                    replies.append(error)
        except BaseException:
            connection.disconnect()
            raise
        self._give_back(connection)
        return replies

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().disconnect()

    def _take(self) -> Any:
        """An open connection; one that the server has closed meanwhile is opened again."""
        if self._pid != os.getpid():  # those of the parent are the parent's
            self._idle, self._pid = deque(), os.getpid()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._make()
        else:
            if not _is_quiet(connection):
                connection.disconnect()
        connection.connect()
        return connection

    def _give_back(self, connection: Any) -> None:
        if len(self._idle) < self._most_idle:
            self._idle.append(connection)
        else:
            connection.disconnect()


def _is_quiet(connection: Any) -> bool:
    """Whether nothing waits to be read: a server that has closed the connection has said so."""
    try:
        return not connection.can_read(timeout=0)
    except (RedisError, OSError):
        return False


def sound(reply: Any) -> Any:
    """A reply of several; raises it where it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply
