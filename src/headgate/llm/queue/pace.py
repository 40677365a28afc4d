"""The number of jobs a worker runs at a time: more while the provider answers, half as many when it is overloaded.

Additive increase, multiplicative decrease, as in congestion control (RFC 5681, section 3.1). No I/O, no clock.
"""

from __future__ import annotations

from headgate.errors import ConfigError

_PER_JOB = 1000
_FIRST_PAUSE_US = 1_000_000
_LONGEST_PAUSE_US = 300_000_000


class Pace:
    """The number of concurrent jobs: begins with `start` and grows up to `most`. Internally in thousandths of a job."""

    def __init__(self, start: int = 2, most: int = 64) -> None:
        for name, value in (("start", start), ("most", most)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
                raise ConfigError(f"{name} is a whole number of jobs from 1 to 10,000, not {str(value)[:40]!r}")
        if start > most:
            raise ConfigError(f"start is at most as large as most, not {start} of {most}")
        self._width = start * _PER_JOB
        self._most = most * _PER_JOB
        self._pauses = 0
        self.paused_until_us = 0
        """No call is sent before this time: the provider requested that, or was overloaded."""

    @property
    def width(self) -> int:
        """How many jobs may run now."""
        return self._width // _PER_JOB

    @property
    def most(self) -> int:
        """How many jobs may ever run at one time."""
        return self._most // _PER_JOB

    def succeeded(self) -> None:
        """Record an answer: the width grows by one job for each round of answers."""
        self._pauses = 0
        self._width = min(self._most, self._width + max(1, _PER_JOB * _PER_JOB // self._width))

    def busy(self, now_us: int, sent_us: int, retry_after_us: int | None) -> int:
        """Record that the provider was overloaded for a call sent at `sent_us`; return when to send again.

        Calls that were sent before the current pause was announced report the same overload: they halve nothing again.
        """
        if sent_us >= self.paused_until_us:
            self._width = max(_PER_JOB, self._width // 2)
            self._pauses = min(self._pauses + 1, 20)
        pause_us = pause_of(self._pauses) if retry_after_us is None else retry_after_us
        self.paused_until_us = max(self.paused_until_us, now_us + pause_us)
        return self.paused_until_us


def pause_of(attempt: int) -> int:
    """Return the microseconds to wait before another try if the provider states no wait: 1 s, 2 s, 4 s to 5 minutes."""
    return min(_LONGEST_PAUSE_US, _FIRST_PAUSE_US << max(0, min(attempt, 20) - 1))
