"""Calls that were packed elsewhere, many in one write, whose replies are taken as the bytes that came.

For `headgate.stores.redis.multiplexer`, on whose connection they travel between other calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headgate.stores.redis.replies import AsyncReplyParser


class ReplyReceiver(Protocol):
    """What asks commands that it has packed itself."""

    def receive(self, replies: list[Any]) -> object:
        """Go on with the replies to all of them, errors in their places. Called once, and must not raise."""

    def receive_bytes(self, data: bytes) -> int:
        """Take the replies to all of them from the beginning of what was sent, in place of `receive`.

        Gives how many bytes they are; 0 where they are not whole yet, negative where `receive` has to have them.
        """
        ...

    def resume(self) -> object:
        """Called after `receive_bytes` has taken the replies; must not raise."""


class PackedCalls:
    """Commands that were packed elsewhere; `reply`, which is settled as the future of a single one, is itself."""

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
        """How many replies have not come; they do even where they are not waited for any more."""

        self.partial = b""
        """What has come of the replies, before they are whole."""

    @property
    def reply(self) -> PackedCalls:
        return self

    def add(self, replies: list[Any]) -> None:
        """Take note of the replies that come next."""
        self.missing -= len(replies)
        if not self._is_done:
            self._replies += replies
            if not self.missing:
                self._is_done = True
                self.receiver.receive(self._replies)

    def receive_bytes(self, data: bytes) -> int:
        """Take all replies from what has come so far, if they can be; see `ReplyReceiver`."""
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
    """Have what comes on a connection of redis-py shown to packed calls first, while it `is_in_use`.

    `sent` has the calls in their order. Replies that a packed call takes as bytes wake no task and make no objects; all
    else goes the usual way, by the stream that the parser reads.
    """
    parser, stream = connection._parser, getattr(connection, "_reader", None)
    if stream is None or not isinstance(parser, AsyncReplyParser):  # of a caller's client
        return
    pass_on = stream.feed_data

    def feed_data(data: bytes) -> None:
        while sent and isinstance(first := sent[0], PackedCalls) and is_in_use():
            if stream._buffer or parser.has_partial_reply():  # they come before
                break
            if first.partial:
                data, first.partial = first.partial + data, b""
            length = first.receive_bytes(data)
            if length < 0:
                break
            if not length:
                first.partial = data
                return
            sent.popleft()  # what comes of them may be asked next
            first.receiver.resume()
            if length == len(data):
                return
            data = data[length:]
        pass_on(data)

    stream.feed_data = feed_data
