"""Calls that wait for their replies on a connection that many share; for `headgate.stores.redis.multiplexer`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Command = tuple[Any, ...]

_NOT_YET: Any = object()
"""Stands for a reply that has not come."""


class Several:
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


class Place:
    """One of several replies, settled as the future of a single one is."""

    __slots__ = ("_place", "_several")

    def __init__(self, several: Several, place: int) -> None:
        self._several = several
        self._place = place

    def done(self) -> bool:
        return self._several.replies[self._place] is not _NOT_YET or self._several.whole.done()

    def set_result(self, reply: Any) -> None:
        self._several.take(self._place, reply)

    def set_exception(self, error: Exception) -> None:
        self._several.take(self._place, error)


class PackedReply:
    """The replies to commands that were packed together, as they come; settled as the future of a single one is."""

    __slots__ = ("_count", "_is_done", "_replies", "_take", "left")

    def __init__(self, count: int, take: Callable[[list[Any]], object]) -> None:
        self._count = count
        self._take = take
        self._replies: list[Any] = []
        self._is_done = False
        self.left = count
        """How many have not come; they do even where they are not waited for any more."""

    def add(self, replies: list[Any]) -> None:
        """Take note of the replies that come next."""
        self.left -= len(replies)
        if not self._is_done:
            self._replies += replies
            if not self.left:
                self._is_done = True
                self._take(self._replies)

    def done(self) -> bool:
        return self._is_done

    def set_exception(self, error: Exception) -> None:
        self._is_done = True
        self._take([*self._replies, *[error] * (self._count - len(self._replies))])


class Packed:
    """Commands that were packed elsewhere."""

    __slots__ = ("commands", "count", "deadline", "is_usual", "reply")

    def __init__(self, commands: bytes, count: int, take: Callable[[list[Any]], object], deadline: float) -> None:
        self.commands = commands
        self.count = count
        self.reply = PackedReply(count, take)
        self.deadline = deadline
        self.is_usual = True


@dataclass(slots=True, eq=False)
class Pending:
    command: Command
    before: Command | None
    """A command that goes ahead in the same write; no call waits for its reply."""

    reply: asyncio.Future[Any] | Place
    deadline: float
    is_usual: bool
    """Whether it has as long as every call, so that none behind it has less."""
