"""Calls that were packed elsewhere, many in one write, whose replies are parsed there from the received bytes.

For `headgate.stores.redis.multiplexer`, which sends them among other calls on its connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headgate.stores.redis.replies import AsyncReplyParser


class ReplyReceiver(Protocol):
    """The caller of commands that it has packed itself."""

    def receive(self, replies: list[Any]) -> object:
        """Receive the replies to all of them, with errors in their places. Called once; must not raise."""

    def receive_bytes(self, data: bytes) -> int:
        """Parse the replies to all of them from the beginning of the received bytes, in place of `receive`.

        Returns how many bytes they take; 0 where they are incomplete, a negative number where `receive` is needed.
        """
        ...

    def resume(self) -> object:
        """Continue after `receive_bytes` has parsed the replies; must not raise."""


class PackedCalls:
    """Commands that were packed elsewhere. It is its own `reply`, which is settled like the future of a single call."""

    __slots__ = ("_is_done", "_replies", "commands", "count", "deadline", "is_usual", "missing", "partial", "receiver")

    def __init__(self, commands: bytes, count: int, receiver: ReplyReceiver, deadline: float) -> None:
        self.commands = commands
        self.count = count
        self.receiver = receiver
        self.deadline = deadline
        self.is_usual = True
        self._replies: list[Any] = []
        self._is_done = False
        self.missing = count
        """How many replies are missing; they arrive even where no caller waits for them any more."""

        self.partial = b""
        """The bytes received so far of incomplete replies."""

    @property
    def reply(self) -> PackedCalls:
        return self

    def add(self, replies: list[Any]) -> None:
        """Record the next replies."""
        self.missing -= len(replies)
        if not self._is_done:
            self._replies += replies
            if not self.missing:
                self._is_done = True
                self.receiver.receive(self._replies)

    def receive_bytes(self, data: bytes) -> int:
        """Parse all replies from the bytes received so far, if possible; see `ReplyReceiver`."""
        if self._is_done or self._replies:
            return -1
        length = self.receiver.receive_bytes(data)
        if length > 0:
            self._is_done = True
        return length

    def done(self) -> bool:
        return self._is_done

    def set_exception(self, error: Exception) -> None:
        self._is_done = True
        self.receiver.receive([*self._replies, *[error] * (self.count - len(self._replies))])


def intercept_replies(connection: Any, sent: deque[Any], is_in_use: Callable[[], bool]) -> None:
    """Pass what a connection of redis-py receives to packed calls first, while it `is_in_use`.

    `sent` has the calls in their order. Replies that a packed call parses wake no task and create no objects;
    everything else goes to the stream that redis-py's parser reads.
    """
    parser, stream = connection._parser, getattr(connection, "_reader", None)
    if stream is None or not isinstance(parser, AsyncReplyParser):  # the connection of a caller's client
        return
    pass_on = stream.feed_data

    def feed_data(data: bytes) -> None:
        while sent and isinstance(first := sent[0], PackedCalls) and is_in_use():
            if stream._buffer or parser.has_partial_reply():  # earlier bytes are still unread
                break
            if first.partial:
                data, first.partial = first.partial + data, b""
            length = first.receive_bytes(data)
            if length < 0:
                break
            if not length:
                first.partial = data
                return
            sent.popleft()  # resuming may send the next call
            first.receiver.resume()
            if length == len(data):
                return
            data = data[length:]
        pass_on(data)

    stream.feed_data = feed_data
