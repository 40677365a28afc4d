"""Calls that wait for their replies on a connection that many share; for `headgate.stores.redis.multiplexer`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from headgate.stores.redis.commands import Command

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


class Part:
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


@dataclass(slots=True, eq=False)
class Pending:
    command: Command
    before: Command | None
    """A command that goes ahead in the same write; no call waits for its reply."""

    reply: asyncio.Future[Any] | Part
    deadline: float
    is_usual: bool
    """Whether it has as long as every call, so that none behind it has less."""
