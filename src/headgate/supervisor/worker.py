"""The supervisor's record of one worker: its process, whether it answers, when it is restarted."""

from __future__ import annotations

import signal
import socket
from dataclasses import dataclass

from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND

_STEADY_US = 10 * US_PER_SECOND
"""A worker that lived this long did not die of the same cause as its predecessor."""

FIRST_DELAY_US = 200_000
_LONGEST_DELAY_US = 5 * US_PER_SECOND


@dataclass(slots=True)
class Worker:
    """One worker, through all processes that are started for it."""

    number: int
    listener: socket.socket
    pid: int = 0
    """0 while it does not run."""

    answers: bool = False
    started_us: int = 0
    due_us: int | None = 0
    """The time at which it is to be started; None while it runs."""

    deaths: int = 0
    """The number of early deaths in a row."""

    beats: int = 0
    missed_beats: int = 0
    """The number of checks in a row that found no new heartbeat."""

    is_to_reload: bool = False
    """Whether a SIGHUP arrived that no process of it has handled yet."""

    kill_at_us: int | None = None
    """The time at which it is killed because it hangs; None where it does not."""

    def count_death(self) -> int:
        """Microseconds to wait before it is restarted: 0, then ever longer while it dies early."""
        lived_us = SYSTEM_CLOCK.now_us() - self.started_us
        self.deaths = 1 if lived_us >= _STEADY_US else self.deaths + 1
        if self.deaths == 1:
            return 0
        return min(FIRST_DELAY_US << min(self.deaths - 2, 10), _LONGEST_DELAY_US)


def how_ended(code: int) -> str:
    """How a process ended, from its exit code; a negative one is a signal's."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
