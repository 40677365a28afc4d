"""Calls that wait for their replies on a connection that many share; for `headgate.stores.redis.multiplexer`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headgate.stores.redis.commands import Command

_MISSING: Any = object()
"""Stands for a reply that has not arrived."""


class ReplyGroup:
    """The replies to commands that were sent together: a list, with errors in their places, once all have arrived."""

    __slots__ = ("_missing", "all_replies", "replies")

    def __init__(self, count: int, all_replies: asyncio.Future[list[Any]]) -> None:
        self.replies: list[Any] = [_MISSING] * count
        self.all_replies = all_replies
        self._missing = count

    def set_reply(self, index: int, reply: Any) -> None:
        self.replies[index] = reply
        self._missing -= 1
        if not self._missing:
            self.all_replies.set_result(self.replies)


class GroupPart:
    """One reply of a group, settled like the future of a single call."""

    __slots__ = ("_group", "_index")

    def __init__(self, group: ReplyGroup, index: int) -> None:
        self._group = group
        self._index = index

    def done(self) -> bool:
        return self._group.replies[self._index] is not _MISSING or self._group.all_replies.done()

    def set_result(self, reply: Any) -> None:
        self._group.set_reply(self._index, reply)

    def set_exception(self, error: Exception) -> None:
        self._group.set_reply(self._index, error)


@dataclass(slots=True, eq=False)
class Pending:
    command: Command
    before: Command | None
    """A command that precedes it in the same write; no call waits for its reply."""

    reply: asyncio.Future[Any] | GroupPart
    deadline: float
    is_usual: bool
    """Whether it has the usual timeout, so that no call behind it has an earlier deadline."""


def overdue(calls: Iterable[Any], now: float) -> Iterator[Any]:
    """The calls without a reply whose deadline has passed. Usual calls have one timeout, so theirs are in order."""
    for call in calls:
        if call is None or call.reply.done():
            continue
        if call.deadline <= now:
            yield call
        elif call.is_usual:
            return


def postpone(calls: Iterable[Any], stalled_s: float, latest: float) -> None:
    """Make deadlines later by the time in which the event loop stood still, but none later than `latest` by that."""
    for call in calls:
        if call is not None:
            call.deadline = max(call.deadline, min(call.deadline + stalled_s, latest))
