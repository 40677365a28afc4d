"""For tests of programs that use Headgate: a clock that does not run until it is moved."""

from __future__ import annotations

import threading

from headgate.errors import ArgumentError, kind_of
from headgate.keys import check_now, whole_number

_START_US = 1_800_000_000_000_000
"""2027-01-15 08:00:00 UTC, a moment that is near no window's border."""


class ManualClock:
    """A clock that a test moves, in microseconds since the Unix epoch.

    A limiter that waits by this clock does not sleep: it moves the clock to the moment it waits for.
    """

    __slots__ = ("_lock", "_now_us")

    def __init__(self, now_us: int = _START_US) -> None:
        self._now_us = check_now(now_us)
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """The current moment."""
        return self._now_us

    def set(self, now_us: int) -> None:
        """Set the clock to a moment; one before the current moment is allowed, as with real clocks."""
        self._now_us = check_now(now_us)

    def advance(self, duration_us: int) -> None:
        """Move the clock forward, by a negative duration back; raises ArgumentError for no number of microseconds."""
        if whole_number(duration_us) is None:
            raise ArgumentError(f"a duration is a whole number of microseconds, not {kind_of(duration_us)}")
        with self._lock:
            self._now_us = check_now(self._now_us + duration_us)

    def let_pass(self, duration_us: int) -> float:
        """Move the clock instead of sleeping."""
        self.advance(duration_us)
        return 0.0

    def __repr__(self) -> str:
        return f"ManualClock({self._now_us})"
