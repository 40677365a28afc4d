"""The borders of calendar windows, sent with a call, since scripts know no time zones and use the server's clock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct
from typing import Any, TypeVar

from headgate.calendars import Calendar
from headgate.clock import SYSTEM_CLOCK
from headgate.errors import StoreError
from headgate.stores.redis.script_replies import bytes_of

_BORDERS = Struct("<6d")
_REPLY = Struct("<2d")
_OUTSIDE = -2.0
"""A script whose borders are those of another time replies with this number and its moment.

Other replies are as long where the record of a hold is damaged, but begin with a letter.
"""

_MOST_CALLS = 3

CallT = TypeVar("CallT")


class Borders:
    """The borders of one calendar's windows around a moment: the one before, its own, and the three that follow."""

    __slots__ = ("_calendar", "_latest")

    def __init__(self, calendar: Calendar) -> None:
        self._calendar = calendar
        self._latest = (0, 0, b"")

    def around(self, now_us: int) -> bytes:
        """Six moments as doubles; the window of `now_us` is between the second and the third."""
        start, end, packed = self._latest
        if not start <= now_us < end:
            start, end = self._calendar.window(now_us)
            borders = [self._calendar.window(start - 1)[0], start, end]
            while len(borders) < 6:
                borders.append(self._calendar.window(borders[-1])[1])
            packed = _BORDERS.pack(*borders)
            self._latest = (start, end, packed)
        return packed


class ServerClock:
    """The offset of a server's clock as far as it is known; it may be in another window than the caller's clock."""

    __slots__ = ("_ahead_us",)

    def __init__(self) -> None:
        self._ahead_us = 0

    def now_us(self) -> int:
        """The moment of the server's clock, as far as it is known."""
        return max(0, SYSTEM_CLOCK.now_us() + self._ahead_us)

    def retried(self, reply: Any, call: Callable[[], CallT]) -> Generator[CallT, Any, Any]:
        """The reply of a script, called again while its borders are those of another time and it charges nothing."""
        for _ in range(_MOST_CALLS):
            if len(bytes_of(reply)) != _REPLY.size:
                return reply
            outside, moment_us = _REPLY.unpack(reply)
            if outside != _OUTSIDE:
                return reply
            self._ahead_us = int(moment_us) - SYSTEM_CLOCK.now_us()
            reply = yield call()
        raise StoreError("the clock of the server moves by more than a window of a calendar between two calls")
