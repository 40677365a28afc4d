"""For tests of programs that use Headgate: a clock that stands still until it is moved."""

from __future__ import annotations

import threading

from headgate.keys import check_now

_START_US = 1_800_000_000_000_000
"""2027-01-15 08:00:00 UTC, a moment that no window's border comes near."""


class ManualClock:
    """A clock that a test moves, in microseconds since the Unix epoch.

    A limiter that waits on it does not sleep: it moves the clock to the moment it waits for.
    """

    __slots__ = ("_lock", "_now_us")

    def __init__(self, now_us: int = _START_US) -> None:
        self._now_us = check_now(now_us)
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """The current moment."""
        return self._now_us

    def set(self, now_us: int) -> None:
        """Go to a moment; earlier than the current one is allowed, as with real clocks."""
        self._now_us = check_now(now_us)

    def advance(self, duration_us: int) -> None:
        """Let time pass; a negative duration is a clock that steps back."""
        with self._lock:
            self._now_us = check_now(self._now_us + duration_us)

    def let_pass(self, duration_us: int) -> float:
        """Move on instead of sleeping."""
        self.advance(duration_us)
        return 0.0

    def __repr__(self) -> str:
        return f"ManualClock({self._now_us})"
